"""JSON of the API server to the values of ``model``: pure, tolerant of what we do not use, strict about what we do.

A field that Kubernetes promises and that is not there raises ``Malformed``, so that whatever depends on it is unknown
rather than empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kubectl_gpu_transition.failures import Malformed
from kubectl_gpu_transition.model import Controller, FieldEntry, GitopsFacts, NodeView, PodView

# Kubernetes quantities: a signed decimal with an optional exponent, binary or decimal suffix (apimachinery, resource.Quantity).
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i)?")


def is_positive(quantity: object) -> bool:
    """Whether a resource quantity is above zero. What can not be read counts as positive: unknown is never no."""
    match = _QUANTITY.fullmatch(str(quantity).strip())
    return True if match is None else float(match.group(1)) > 0


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Malformed("malformed-object", f"{where} is not an object")
    return value


def _items(value: object, where: str) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise Malformed("malformed-object", f"{where} is not a list")
    return value


def _texts(value: object, where: str) -> dict[str, str]:
    return {str(key): "" if text is None else str(text) for key, text in _mapping(value, where).items()}


def _required(meta: Mapping[str, Any], key: str, what: str) -> str:
    value = meta.get(key)
    if not isinstance(value, str) or not value:
        raise Malformed("malformed-object", f"{what} has no metadata.{key}")
    return value


def _entries(value: object, what: str) -> tuple[FieldEntry, ...] | None:
    """``metadata.managedFields``; None where the server keeps none for the object."""
    entries = []
    for raw in _items(value, f"{what} metadata.managedFields"):
        raw = _mapping(raw, f"{what} metadata.managedFields[]")
        spec = _mapping(_mapping(raw.get("fieldsV1"), "fieldsV1").get("f:spec"), "fieldsV1 f:spec")
        entries.append(
            FieldEntry(
                str(raw.get("manager") or ""),
                str(raw.get("operation") or ""),
                str(raw.get("time") or ""),
                "f:unschedulable" in spec,
                str(raw.get("subresource") or ""),
            )
        )
    return tuple(entries) or None


def node_view(obj: object) -> NodeView:
    """A core/v1 Node as the API serves it. Raises Malformed."""
    node = _mapping(obj, "the node")
    meta = _mapping(node.get("metadata"), "the node's metadata")
    name = _required(meta, "name", "the node")
    what = f"node {name}"
    spec = _mapping(node.get("spec"), f"{what} spec")
    status = _mapping(node.get("status"), f"{what} status")
    conditions = {}
    for raw in _items(status.get("conditions"), f"{what} status.conditions"):
        raw = _mapping(raw, f"{what} status.conditions[]")
        conditions[str(raw.get("type"))] = str(raw.get("status"))
    unschedulable = spec.get("unschedulable")
    if unschedulable not in (None, True, False):
        raise Malformed("malformed-object", f"{what} spec.unschedulable is {unschedulable!r}")
    return NodeView(
        name=name,
        uid=_required(meta, "uid", what),
        version=_required(meta, "resourceVersion", what),
        labels=_texts(meta.get("labels"), f"{what} labels"),
        annotations=_texts(meta.get("annotations"), f"{what} annotations"),
        has_annotations=meta.get("annotations") is not None,
        unschedulable=bool(unschedulable),
        ready=conditions.get("Ready", "absent"),
        deleting=bool(meta.get("deletionTimestamp")),
        taints=tuple(str(_mapping(taint, "taint").get("key")) for taint in _items(spec.get("taints"), f"{what} taints")),
        conditions=conditions,
        managers=_entries(meta.get("managedFields"), what),
        allocatable=_texts(status.get("allocatable"), f"{what} allocatable"),
    )


_CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
_STATUS_LISTS = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")


def _resources(spec: Mapping[str, Any], what: str) -> Iterator[str]:
    demands = [_mapping(spec.get("overhead"), f"{what} overhead")]
    holders = [_mapping(c, f"{what} {kind}[]") for kind in _CONTAINER_LISTS for c in _items(spec.get(kind), f"{what} {kind}")]
    for holder in [spec, *holders]:
        resources = _mapping(holder.get("resources"), f"{what} resources")
        demands += [_mapping(resources.get(side), f"{what} resources.{side}") for side in ("requests", "limits")]
    for demand in demands:
        yield from (str(name) for name, quantity in demand.items() if is_positive(quantity))


def _waiting(status: Mapping[str, Any], what: str) -> str | None:
    """Why the pod is not up, in words: the first container that waits or has failed, init containers first."""
    for kind in _STATUS_LISTS:
        for raw in _items(status.get(kind), f"{what} {kind}"):
            raw = _mapping(raw, f"{what} {kind}[]")
            state = _mapping(raw.get("state"), f"{what} state")
            waiting = _mapping(state.get("waiting"), f"{what} waiting")
            ended = _mapping(state.get("terminated"), f"{what} terminated")
            label = "init container" if kind.startswith("init") else "container"
            if waiting:
                # Whoever runs the container has written it: it stays on one line.
                text = ": ".join(" ".join(str(waiting[key]).split()) for key in ("reason", "message") if waiting.get(key))
                return f"{label} {raw.get('name')} waiting: {text or 'no reason given'}"
            if ended and ended.get("exitCode") not in (None, 0):
                return f"{label} {raw.get('name')} ended with exit code {ended['exitCode']} ({ended.get('reason') or 'no reason given'})"
            if kind.startswith("init") and state.get("running") is not None and not raw.get("started"):
                return f"{label} {raw.get('name')} is running"
    return None


# HAMi's scheduler writes these when it has chosen devices: hami.io/vgpu-devices-to-allocate, hami.io/<vendor>-devices-allocated, and the
# node it chose (Project-HAMi/HAMi: pkg/util/types.go, pkg/device/*/device.go).
_ALLOCATION = re.compile(r"hami\.io/.+-devices-(?:to-allocate|allocated)")
_ALLOCATED_NODE = "hami.io/vgpu-node"


def pod_view(obj: object) -> PodView:
    """A core/v1 Pod as the API serves it. Raises Malformed."""
    pod = _mapping(obj, "a pod")
    meta = _mapping(pod.get("metadata"), "a pod's metadata")
    namespace, name = _required(meta, "namespace", "a pod"), _required(meta, "name", "a pod")
    what = f"pod {namespace}/{name}"
    spec = _mapping(pod.get("spec"), f"{what} spec")
    status = _mapping(pod.get("status"), f"{what} status")
    controller = None
    for raw in _items(meta.get("ownerReferences"), f"{what} ownerReferences"):
        raw = _mapping(raw, f"{what} ownerReferences[]")
        if raw.get("controller") is True:
            controller = Controller(str(raw.get("apiVersion")), str(raw.get("kind")), str(raw.get("name")))
    states = [
        _mapping(_mapping(raw, what).get("state"), f"{what} state")
        for kind in _STATUS_LISTS
        for raw in _items(status.get(kind), f"{what} {kind}")
    ]
    conditions = [_mapping(raw, f"{what} conditions[]") for raw in _items(status.get("conditions"), f"{what} conditions")]
    claims = [str(_mapping(raw, f"{what} claim").get("name")) for raw in _items(spec.get("resourceClaims"), f"{what} resourceClaims")]
    extended = _mapping(status.get("extendedResourceClaimStatus"), f"{what} extendedResourceClaimStatus")
    if extended:
        claims.append(str(extended.get("resourceClaimName")))
    grace = meta.get("deletionGracePeriodSeconds")
    annotations = _texts(meta.get("annotations"), f"{what} annotations")
    return PodView(
        namespace=namespace,
        name=name,
        uid=_required(meta, "uid", what),
        node=str(spec.get("nodeName") or ""),
        phase=str(status.get("phase") or "Unknown"),
        running=any(state.get("running") is not None for state in states),
        ready=any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions),
        deleting_since=meta.get("deletionTimestamp") or None,
        grace=grace if isinstance(grace, int) else None,
        controller=controller,
        resources=frozenset(_resources(spec, what)),
        claims=tuple(claims),
        waiting=_waiting(status, what),
        labels=_texts(meta.get("labels"), f"{what} labels"),
        allocations=tuple(sorted(key for key in annotations if _ALLOCATION.fullmatch(key) or key == _ALLOCATED_NODE)),
        allocated_node=annotations.get(_ALLOCATED_NODE, ""),
    )


def permitted_host_devices(kubevirt: object) -> frozenset[str]:
    """Resource names that one KubeVirt CR permits (``spec.configuration.permittedHostDevices``; kubevirt.io API)."""
    spec = _mapping(_mapping(kubevirt, "a KubeVirt").get("spec"), "KubeVirt spec")
    configuration = _mapping(spec.get("configuration"), "KubeVirt spec.configuration")
    permitted = _mapping(configuration.get("permittedHostDevices"), "KubeVirt permittedHostDevices")
    names = set()
    for kind in ("pciHostDevices", "mediatedDevices"):
        for raw in _items(permitted.get(kind), f"KubeVirt {kind}"):
            name = _mapping(raw, f"KubeVirt {kind}[]").get("resourceName")
            if name:
                names.add(str(name))
    return frozenset(names)


# The user part of a URL; a source's URL is shown without it.
_USER_INFO = re.compile(r"(?<=://)[^/]*@")


def gitops_facts(kustomization: object, source: object) -> GitopsFacts:
    """Flux's Kustomization ``gpu-node-mode`` and its source; None for either where it does not exist. Raises Malformed.

    A source that follows anything but a branch is described ("tag v1"), so that it never equals a branch name
    (source.toolkit.fluxcd.io: ``ref.commit`` before ``name``, ``semver``, ``tag`` and ``branch``, which defaults to master).
    """
    if kustomization is None:
        return GitopsFacts(None, None, None, None)
    spec = _mapping(_mapping(kustomization, "the Kustomization").get("spec"), "the Kustomization's spec")
    reference = _mapping(spec.get("sourceRef"), "the Kustomization's sourceRef")
    name = f"{reference.get('kind') or 'GitRepository'} {reference.get('namespace') or 'flux-system'}/{reference.get('name')}"
    if source is None:
        return GitopsFacts(str(spec.get("path") or ""), name, None, None)
    spec_of_source = _mapping(_mapping(source, "the GitRepository").get("spec"), "the GitRepository's spec")
    ref = _mapping(spec_of_source.get("ref"), "the GitRepository's ref")
    other = next((f"{key} {ref[key]}" for key in ("commit", "name", "semver", "tag") if ref.get(key)), None)
    other = other.removeprefix("name refs/heads/") if other else None
    url = _USER_INFO.sub("", str(spec_of_source.get("url") or ""))
    return GitopsFacts(str(spec.get("path") or ""), name, url, other or str(ref.get("branch") or "master"))
