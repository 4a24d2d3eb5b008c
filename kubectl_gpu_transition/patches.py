"""The JSON patches of the node (RFC 6902), as data. Pure; every write the program makes to the API server is one of these.

``test`` operations say what must hold; ``replace /metadata/resourceVersion`` ties a patch to one look (a stale one is a clean 409,
a failed ``test`` a 422). There is no ``test`` against null: servers pass it for an absent path (spec section 4).
"""

from __future__ import annotations

from typing import Any

from kubectl_gpu_transition.model import ANNOTATION, NodeView
from kubectl_gpu_transition.modes import Mode, label_values

Patch = list[dict[str, Any]]


def _pointer(*parts: str) -> str:
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


_RECORD = _pointer("metadata", "annotations", ANNOTATION)
_CORDON = "/spec/unschedulable"


def _test(path: str, value: Any) -> dict[str, Any]:
    return {"op": "test", "path": path, "value": value}


def _uid(node: NodeView) -> Patch:
    return [_test("/metadata/uid", node.uid)]


def _version(node: NodeView) -> Patch:
    return [{"op": "replace", "path": "/metadata/resourceVersion", "value": node.version}]


def _labels(mode: Mode) -> Patch:
    return [_test(_pointer("metadata", "labels", key), value) for key, value in label_values(mode).items()]


def cordon_patch(node: NodeView, record: str, versioned: bool = True) -> Patch:
    """Cordon and annotation in one; without ``versioned`` the dry run of it."""
    patch = _uid(node) + (_version(node) if versioned else [])
    if not node.has_annotations:
        patch.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    return [*patch, {"op": "add", "path": _CORDON, "value": True}, {"op": "add", "path": _RECORD, "value": record}]


def recordon_patch(node: NodeView, record: str) -> Patch:
    """Cordon again under the same record, whose exact value is demanded."""
    return [*_uid(node), _test(_RECORD, record), *_version(node), {"op": "add", "path": _CORDON, "value": True}]


def announce_patch(node: NodeView, old: str, new: str, source: Mode) -> Patch:
    """Put ``new`` in the place of exactly ``old``, only while cordoned and while the live labels are still those of --from."""
    return [*_uid(node), _test(_RECORD, old), _test(_CORDON, True), *_labels(source), {"op": "replace", "path": _RECORD, "value": new}]


def restore_patch(node: NodeView, announced: str, before: str) -> Patch:
    """Take an announcement of our own back: the exact announced value becomes the one from before."""
    return [*_uid(node), _test(_RECORD, announced), {"op": "replace", "path": _RECORD, "value": before}]


def uncordon_patch(node: NodeView, record: str, mode: Mode) -> Patch:
    """Uncordon and drop the record in one, only if uid, record, cordon, labels of ``mode`` and version are those that were verified."""
    return [
        *_uid(node),
        _test(_RECORD, record),
        _test(_CORDON, True),
        *_labels(mode),
        *_version(node),
        {"op": "remove", "path": _CORDON},
        {"op": "remove", "path": _RECORD},
    ]


def drop_patch(node: NodeView, record: str, mode: Mode) -> Patch:
    """Drop the record of a node that is schedulable (``abandon``), under the same guards."""
    return [*_uid(node), _test(_RECORD, record), *_labels(mode), *_version(node), {"op": "remove", "path": _RECORD}]
