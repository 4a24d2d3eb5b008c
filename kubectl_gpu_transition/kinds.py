"""JSON of the API server to the values of ``facts``: the kinds beside Node and Pod. Pure; the rules are those of ``views``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kubectl_gpu_transition.facts import (
    ClaimView,
    Condition,
    DaemonSetView,
    Device,
    KustomizationView,
    MachineView,
    MaintenanceView,
    PolicyView,
    Requirement,
    RuleObject,
    SliceView,
    SourceView,
    VolumeView,
)
from kubectl_gpu_transition.views import items, mapping, required, texts


def _parts(obj: object, kind: str) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any], str]:
    """Metadata, spec, status, and what to call the object."""
    whole = mapping(obj, f"a {kind}")
    meta = mapping(whole.get("metadata"), f"a {kind}'s metadata")
    name = required(meta, "name", f"a {kind}")
    what = f"{kind} {meta['namespace']}/{name}" if meta.get("namespace") else f"{kind} {name}"
    return meta, mapping(whole.get("spec"), f"{what} spec"), mapping(whole.get("status"), f"{what} status"), what


def permitted_host_devices(kubevirt: object) -> frozenset[str]:
    """Resource names that one KubeVirt CR permits (``spec.configuration.permittedHostDevices``; kubevirt.io API)."""
    spec = mapping(mapping(kubevirt, "a KubeVirt").get("spec"), "KubeVirt spec")
    configuration = mapping(spec.get("configuration"), "KubeVirt spec.configuration")
    permitted = mapping(configuration.get("permittedHostDevices"), "KubeVirt permittedHostDevices")
    names = set()
    for kind in ("pciHostDevices", "mediatedDevices"):
        for raw in items(permitted.get(kind), f"KubeVirt {kind}"):
            name = mapping(raw, f"KubeVirt {kind}[]").get("resourceName")
            if name:
                names.add(str(name))
    return frozenset(names)


# ---------------------------------------------------------------- dynamic resource allocation


def class_resource(obj: object) -> str | None:
    """The extended resource that a DeviceClass stands for (``spec.extendedResourceName``; resource.k8s.io/v1), None for none."""
    _, spec, _, _ = _parts(obj, "DeviceClass")
    name = spec.get("extendedResourceName")
    return str(name) if name else None


def claim_view(obj: object) -> ClaimView:
    """A ResourceClaim (the same fields in resource.k8s.io v1, v1beta2 and v1beta1). Raises Malformed."""
    meta, _, status, what = _parts(obj, "ResourceClaim")
    allocation = status.get("allocation")
    devices = None
    only = None
    if allocation is not None:
        allocation = mapping(allocation, f"{what} allocation")
        results = items(mapping(allocation.get("devices"), f"{what} devices").get("results"), f"{what} results")
        devices = tuple(
            Device(str(r.get("driver") or ""), str(r.get("pool") or ""), str(r.get("device") or ""), r.get("adminAccess") is True)
            for r in (mapping(raw, f"{what} results[]") for raw in results)
        )
        only = _only_node(mapping(allocation.get("nodeSelector"), f"{what} nodeSelector"), what)
    reserved = [mapping(raw, f"{what} reservedFor[]") for raw in items(status.get("reservedFor"), f"{what} reservedFor")]
    return ClaimView(
        required(meta, "namespace", what),
        str(meta["name"]),
        devices,
        tuple(sorted(f"{raw.get('resource')}/{raw.get('name')}" for raw in reserved)),
        only,
        meta.get("deletionTimestamp") or None,
    )


def _only_node(selector: Mapping[str, Any], what: str) -> str | None:
    """The one node that a node selector admits: every term has to ask for it by name (``metadata.name``, as the DRA drivers' helper
    writes it), or by the label ``kubernetes.io/hostname``."""
    names: set[str | None] = set()
    for term in items(selector.get("nodeSelectorTerms"), f"{what} nodeSelectorTerms"):
        term = mapping(term, f"{what} nodeSelectorTerms[]")
        found = None
        for kind, key in (("matchFields", "metadata.name"), ("matchExpressions", "kubernetes.io/hostname")):
            for raw in items(term.get(kind), f"{what} {kind}"):
                raw = mapping(raw, f"{what} {kind}[]")
                values = items(raw.get("values"), f"{what} values")
                if raw.get("key") == key and raw.get("operator") == "In" and len(values) == 1:
                    found = found or str(values[0])
        names.add(found)
    return names.pop() if len(names) == 1 else None


def slice_view(obj: object) -> SliceView:
    """A ResourceSlice; devices of v1beta1 keep their node below ``basic``. Raises Malformed."""
    _, spec, _, what = _parts(obj, "ResourceSlice")
    names, nodes = [], {}
    for raw in items(spec.get("devices"), f"{what} devices"):
        raw = mapping(raw, f"{what} devices[]")
        name = str(raw.get("name"))
        names.append(name)
        node = raw.get("nodeName") or mapping(raw.get("basic"), f"{what} basic").get("nodeName")
        if node:
            nodes[name] = str(node)
    pool = mapping(spec.get("pool"), f"{what} pool")
    return SliceView(str(spec.get("driver") or ""), str(pool.get("name") or ""), spec.get("nodeName") or None, tuple(names), nodes)


# ---------------------------------------------------------------- KubeVirt, volumes, other operations


def machine_view(obj: object) -> MachineView:
    """A VirtualMachineInstance (kubevirt.io/v1). A migration has ended when it is ``completed`` or ``failed``. Raises Malformed."""
    meta, spec, status, what = _parts(obj, "VirtualMachineInstance")
    domain = mapping(spec.get("domain"), f"{what} domain")
    devices = mapping(domain.get("devices"), f"{what} devices")
    names = []
    for kind in ("gpus", "hostDevices"):
        for raw in items(devices.get(kind), f"{what} {kind}"):
            raw = mapping(raw, f"{what} {kind}[]")
            names.append(str(raw.get("deviceName") or raw.get("claimName") or raw.get("name")))
    migration = mapping(status.get("migrationState"), f"{what} migrationState")
    under_way = migration and not migration.get("completed") and not migration.get("failed")
    return MachineView(
        required(meta, "namespace", what),
        str(meta["name"]),
        str(meta.get("uid") or ""),
        str(status.get("phase") or ""),
        str(status.get("nodeName") or ""),
        tuple(names),
        frozenset(texts(status.get("activePods"), f"{what} activePods").values()) - {""},
        str(migration.get("targetNode") or "") or None if under_way else None,
        meta.get("deletionTimestamp") or None,
    )


def volume_view(obj: object) -> VolumeView:
    """A PersistentVolumeClaim; the scheduler writes the node for volumes that wait for their first consumer. Raises Malformed."""
    meta, _, status, what = _parts(obj, "PersistentVolumeClaim")
    annotations = texts(meta.get("annotations"), f"{what} annotations")
    node = annotations.get("volume.kubernetes.io/selected-node", "")
    return VolumeView(required(meta, "namespace", what), str(meta["name"]), node, status.get("phase") == "Bound")


def maintenance_view(obj: object) -> MaintenanceView:
    """A NodeMaintenance (nodemaintenance.medik8s.io). Raises Malformed."""
    meta, spec, _, _ = _parts(obj, "NodeMaintenance")
    return MaintenanceView(str(meta["name"]), str(spec.get("nodeName") or ""))


def daemonset_view(obj: object) -> DaemonSetView:
    """A DaemonSet (apps/v1). Raises Malformed."""
    meta, spec, _, what = _parts(obj, "DaemonSet")
    template = mapping(mapping(spec.get("template"), f"{what} template").get("spec"), f"{what} template spec")
    return DaemonSetView(
        required(meta, "namespace", what),
        str(meta["name"]),
        texts(template.get("nodeSelector"), f"{what} nodeSelector"),
        texts(meta.get("annotations"), f"{what} annotations"),
        _node_terms(mapping(template.get("affinity"), f"{what} affinity"), what),
    )


def _node_terms(affinity: Mapping[str, Any], what: str) -> tuple[tuple[Requirement, ...], ...] | None:
    """The terms of the required node affinity, None where there is none."""
    wanted = mapping(affinity.get("nodeAffinity"), f"{what} nodeAffinity").get("requiredDuringSchedulingIgnoredDuringExecution")
    if wanted is None:
        return None
    terms = []
    for term in items(mapping(wanted, f"{what} required node affinity").get("nodeSelectorTerms"), f"{what} nodeSelectorTerms"):
        term = mapping(term, f"{what} nodeSelectorTerms[]")
        found = []
        for kind in ("matchExpressions", "matchFields"):
            for raw in items(term.get(kind), f"{what} {kind}"):
                raw = mapping(raw, f"{what} {kind}[]")
                values = tuple(str(value) for value in items(raw.get("values"), f"{what} values"))
                found.append(Requirement(required(raw, "key", what), str(raw.get("operator")), values, kind == "matchFields"))
        terms.append(tuple(found))
    return tuple(terms)


# ---------------------------------------------------------------- Flux, NFD, the GPU operator


def rule_object(obj: object) -> RuleObject:
    """A NodeFeatureRule (nfd.k8s-sigs.io). Raises Malformed."""
    meta, spec, _, what = _parts(obj, "NodeFeatureRule")
    rules = tuple(mapping(raw, f"{what} rules[]") for raw in items(spec.get("rules"), f"{what} rules"))
    return RuleObject(str(meta["name"]), texts(meta.get("annotations"), f"{what} annotations"), rules)


def _conditions(status: Mapping[str, Any], what: str) -> dict[str, Condition]:
    found = {}
    for raw in items(status.get("conditions"), f"{what} conditions"):
        raw = mapping(raw, f"{what} conditions[]")
        found[str(raw.get("type"))] = Condition(str(raw.get("status")), str(raw.get("reason") or ""), str(raw.get("message") or ""))
    return found


def _is_observed(meta: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    return status.get("observedGeneration") == meta.get("generation")


def kustomization_view(obj: object) -> KustomizationView:
    """A Kustomization (kustomize.toolkit.fluxcd.io/v1). Names without a namespace are in its own. Raises Malformed."""
    meta, spec, status, what = _parts(obj, "Kustomization")
    namespace = required(meta, "namespace", what)
    reference = mapping(spec.get("sourceRef"), f"{what} sourceRef")
    source = (str(reference.get("kind") or "GitRepository"), str(reference.get("namespace") or namespace), str(reference.get("name") or ""))
    depends = [mapping(raw, f"{what} dependsOn[]") for raw in items(spec.get("dependsOn"), f"{what} dependsOn")]
    return KustomizationView(
        namespace,
        str(meta["name"]),
        str(spec.get("path") or ""),
        source,
        tuple((str(raw.get("namespace") or namespace), str(raw.get("name"))) for raw in depends),
        spec.get("suspend") is True,
        _is_observed(meta, status),
        _conditions(status, what),
        str(status["lastAppliedRevision"]) if status.get("lastAppliedRevision") else None,
        str(status["lastHandledReconcileAt"]) if status.get("lastHandledReconcileAt") else None,
    )


# The user part of a URL; a source's URL is shown without it.
_USER_INFO = re.compile(r"(?<=://)[^/]*@")


def source_view(obj: object) -> SourceView:
    """A GitRepository (source.toolkit.fluxcd.io/v1). Raises Malformed.

    One that follows anything but a branch is described ("tag v1"), so that it never equals a branch name
    (``ref.commit`` goes before ``name``, ``semver``, ``tag`` and ``branch``, which defaults to master).
    """
    meta, spec, status, what = _parts(obj, "GitRepository")
    ref = mapping(spec.get("ref"), f"{what} ref")
    other = next((f"{key} {ref[key]}" for key in ("commit", "name", "semver", "tag") if ref.get(key)), None)
    other = other.removeprefix("name refs/heads/") if other else None
    artifact = mapping(status.get("artifact"), f"{what} artifact")
    return SourceView(
        required(meta, "namespace", what),
        str(meta["name"]),
        _USER_INFO.sub("", str(spec.get("url") or "")),
        other or str(ref.get("branch") or "master"),
        spec.get("suspend") is True,
        _is_observed(meta, status),
        _conditions(status, what),
        str(artifact["revision"]) if artifact.get("revision") else None,
        str(status["lastHandledReconcileAt"]) if status.get("lastHandledReconcileAt") else None,
    )


def policy_view(obj: object) -> PolicyView:
    """A ClusterPolicy (nvidia.com/v1), with the chart's defaults where it is silent (NVIDIA/gpu-operator: deployments/gpu-operator/
    values.yaml). Raises Malformed."""
    meta, spec, _, what = _parts(obj, "ClusterPolicy")
    sandbox = mapping(spec.get("sandboxWorkloads"), f"{what} sandboxWorkloads")
    plugin = mapping(spec.get("devicePlugin"), f"{what} devicePlugin")
    return PolicyView(
        str(meta["name"]),
        sandbox.get("enabled") is True,
        str(sandbox.get("mode") or "kubevirt"),
        str(sandbox.get("defaultWorkload") or "container"),
        plugin.get("enabled") is not False,
    )


def settings_view(obj: object) -> Mapping[str, str]:
    """The data of a ConfigMap. Raises Malformed."""
    return texts(mapping(obj, "a ConfigMap").get("data"), "the ConfigMap's data")
