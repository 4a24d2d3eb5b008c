"""JSON of the API server to the values of ``model``: pure, tolerant of what we do not use, strict about what we do.

A field that Kubernetes promises and that is not there raises ``Malformed``, so that whatever depends on it is unknown
rather than empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kubectl_gpu_transition.failures import Malformed
from kubectl_gpu_transition.model import Controller, FieldEntry, NodeView, PodClaim, PodView

# Kubernetes quantities: a signed decimal with an optional exponent, binary or decimal suffix (apimachinery, resource.Quantity).
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i)?")


def is_positive(quantity: object) -> bool:
    """Whether a resource quantity is above zero. What can not be read counts as positive: unknown is never no."""
    match = _QUANTITY.fullmatch(str(quantity).strip())
    return True if match is None else float(match.group(1)) > 0


def mapping(value: object, where: str) -> Mapping[str, Any]:
    """An object, empty where there is none. Raises Malformed."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Malformed("malformed-object", f"{where} is not an object")
    return value


def items(value: object, where: str) -> Sequence[Any]:
    """A list, empty where there is none. Raises Malformed."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise Malformed("malformed-object", f"{where} is not a list")
    return value


def texts(value: object, where: str) -> dict[str, str]:
    """A map of texts, empty where there is none. Raises Malformed."""
    return {str(key): "" if text is None else str(text) for key, text in mapping(value, where).items()}


def required(meta: Mapping[str, Any], key: str, what: str) -> str:
    """A text of the metadata that has to be there. Raises Malformed."""
    value = meta.get(key)
    if not isinstance(value, str) or not value:
        raise Malformed("malformed-object", f"{what} has no metadata.{key}")
    return value


def _entries(value: object, what: str) -> tuple[FieldEntry, ...] | None:
    """``metadata.managedFields``; None where the server keeps none for the object."""
    entries = []
    for raw in items(value, f"{what} metadata.managedFields"):
        raw = mapping(raw, f"{what} metadata.managedFields[]")
        spec = mapping(mapping(raw.get("fieldsV1"), "fieldsV1").get("f:spec"), "fieldsV1 f:spec")
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
    node = mapping(obj, "the node")
    meta = mapping(node.get("metadata"), "the node's metadata")
    name = required(meta, "name", "the node")
    what = f"node {name}"
    spec = mapping(node.get("spec"), f"{what} spec")
    status = mapping(node.get("status"), f"{what} status")
    conditions = {}
    for raw in items(status.get("conditions"), f"{what} status.conditions"):
        raw = mapping(raw, f"{what} status.conditions[]")
        conditions[str(raw.get("type"))] = str(raw.get("status"))
    unschedulable = spec.get("unschedulable")
    if unschedulable not in (None, True, False):
        raise Malformed("malformed-object", f"{what} spec.unschedulable is {unschedulable!r}")
    return NodeView(
        name=name,
        uid=required(meta, "uid", what),
        version=required(meta, "resourceVersion", what),
        labels=texts(meta.get("labels"), f"{what} labels"),
        annotations=texts(meta.get("annotations"), f"{what} annotations"),
        has_annotations=meta.get("annotations") is not None,
        unschedulable=bool(unschedulable),
        ready=conditions.get("Ready", "absent"),
        deleting=bool(meta.get("deletionTimestamp")),
        taints=tuple(str(mapping(taint, "taint").get("key")) for taint in items(spec.get("taints"), f"{what} taints")),
        conditions=conditions,
        managers=_entries(meta.get("managedFields"), what),
        allocatable=texts(status.get("allocatable"), f"{what} allocatable"),
    )


_CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
_STATUS_LISTS = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")


def _resources(spec: Mapping[str, Any], what: str) -> Iterator[str]:
    demands = [mapping(spec.get("overhead"), f"{what} overhead")]
    holders = [mapping(c, f"{what} {kind}[]") for kind in _CONTAINER_LISTS for c in items(spec.get(kind), f"{what} {kind}")]
    for holder in [spec, *holders]:
        resources = mapping(holder.get("resources"), f"{what} resources")
        demands += [mapping(resources.get(side), f"{what} resources.{side}") for side in ("requests", "limits")]
    for demand in demands:
        yield from (str(name) for name, quantity in demand.items() if is_positive(quantity))


def _waiting(status: Mapping[str, Any], what: str) -> str | None:
    """Why the pod is not up, in words: the first container that waits or has failed, init containers first."""
    for kind in _STATUS_LISTS:
        for raw in items(status.get(kind), f"{what} {kind}"):
            raw = mapping(raw, f"{what} {kind}[]")
            state = mapping(raw.get("state"), f"{what} state")
            waiting = mapping(state.get("waiting"), f"{what} waiting")
            ended = mapping(state.get("terminated"), f"{what} terminated")
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
_BIND_PHASE = "hami.io/bind-phase"
_DEVICE_PATH = re.compile(r"/dev/(?:nvidia|vfio)")
_MIRROR = "kubernetes.io/config.mirror"  # on the mirror of a static pod


def pod_view(obj: object) -> PodView:
    """A core/v1 Pod as the API serves it. Raises Malformed."""
    pod = mapping(obj, "a pod")
    meta = mapping(pod.get("metadata"), "a pod's metadata")
    namespace, name = required(meta, "namespace", "a pod"), required(meta, "name", "a pod")
    what = f"pod {namespace}/{name}"
    spec = mapping(pod.get("spec"), f"{what} spec")
    status = mapping(pod.get("status"), f"{what} status")
    controller = None
    for raw in items(meta.get("ownerReferences"), f"{what} ownerReferences"):
        raw = mapping(raw, f"{what} ownerReferences[]")
        if raw.get("controller") is True:
            controller = Controller(str(raw.get("apiVersion")), str(raw.get("kind")), str(raw.get("name")))
    states = [
        mapping(mapping(raw, what).get("state"), f"{what} state")
        for kind in _STATUS_LISTS
        for raw in items(status.get(kind), f"{what} {kind}")
    ]
    conditions = [mapping(raw, f"{what} conditions[]") for raw in items(status.get("conditions"), f"{what} conditions")]
    grace = meta.get("deletionGracePeriodSeconds")
    annotations = texts(meta.get("annotations"), f"{what} annotations")
    return PodView(
        namespace=namespace,
        name=name,
        uid=required(meta, "uid", what),
        node=str(spec.get("nodeName") or ""),
        phase=str(status.get("phase") or "Unknown"),
        running=any(state.get("running") is not None for state in states),
        ready=any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions),
        deleting_since=meta.get("deletionTimestamp") or None,
        grace=grace if isinstance(grace, int) else None,
        controller=controller,
        resources=frozenset(_resources(spec, what)),
        claims=tuple(_claims(spec, status, what)),
        waiting=_waiting(status, what),
        labels=texts(meta.get("labels"), f"{what} labels"),
        allocations=tuple(sorted(key for key in annotations if _ALLOCATION.fullmatch(key) or key == _ALLOCATED_NODE)),
        allocated_node=annotations.get(_ALLOCATED_NODE, ""),
        bind_phase=annotations.get(_BIND_PHASE, ""),
        nominated=str(status.get("nominatedNodeName") or ""),
        volumes=tuple(_volumes(name, spec, what)),
        static=_MIRROR in annotations,
        reaches=tuple(_reaches(spec, what)),
    )


def _claims(spec: Mapping[str, Any], status: Mapping[str, Any], what: str) -> Iterator[PodClaim]:
    """The claims that a pod names: given by name, made from a template (the name is in the status), or made for its extended resources.

    A template's claim that the status says is not needed is none (core/v1, PodResourceClaimStatus: unset resourceClaimName).
    """
    made = {
        str(raw.get("name")): raw.get("resourceClaimName")
        for raw in (mapping(raw, f"{what} claim") for raw in items(status.get("resourceClaimStatuses"), f"{what} resourceClaimStatuses"))
    }
    for raw in items(spec.get("resourceClaims"), f"{what} resourceClaims"):
        raw = mapping(raw, f"{what} claim")
        key = str(raw.get("name"))
        name = raw.get("resourceClaimName") or made.get(key)
        if name or key not in made:
            yield PodClaim(key, str(name) if name else None)
    extended = mapping(status.get("extendedResourceClaimStatus"), f"{what} extendedResourceClaimStatus")
    if extended:
        name = str(extended.get("resourceClaimName") or "")
        yield PodClaim(name or "extended resources", name or None)


def _reaches(spec: Mapping[str, Any], what: str) -> Iterator[str]:
    """How the pod gets at GPUs without the scheduler's knowing: NVIDIA's runtime, or the devices' own files (spec section 7)."""
    runtime = str(spec.get("runtimeClassName") or "")
    if runtime.startswith("nvidia"):
        yield f"runtime class {runtime}"
    for raw in items(spec.get("volumes"), f"{what} volumes"):
        raw = mapping(raw, f"{what} volumes[]")
        path = str(mapping(raw.get("hostPath"), f"{what} hostPath").get("path") or "")
        if _DEVICE_PATH.match(path):
            yield f"host path {path}"


def _volumes(pod: str, spec: Mapping[str, Any], what: str) -> Iterator[str]:
    """Names of the PersistentVolumeClaims that a pod uses; that of an ephemeral volume is the pod's name and the volume's."""
    for raw in items(spec.get("volumes"), f"{what} volumes"):
        raw = mapping(raw, f"{what} volumes[]")
        claim = mapping(raw.get("persistentVolumeClaim"), f"{what} persistentVolumeClaim").get("claimName")
        if claim:
            yield str(claim)
        elif raw.get("ephemeral") is not None:
            yield f"{pod}-{raw.get('name')}"
