"""The objects of the simulated API server: versions, history, creation, updates, deletion, as the registries of Kubernetes do them.

It knows no HTTP. Each behaviour was tried on kube-apiserver v1.20.2 (``tests/e2e/test_api_conformance.py``); resources and
fields that are newer follow the API reference.
"""

from __future__ import annotations

import copy
import json
import random
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from .simfields import Json, Owner, Path, applied_fields, compare, merge_patch, owned_fields, strategic_patch, track, without

Key = tuple[str, str]


@dataclass(frozen=True)
class Resource:
    """A resource that is served; `custom` as a CRD with a status subresource would be."""

    group: str
    versions: tuple[str, ...]
    plural: str
    kind: str
    namespaced: bool
    custom: bool = False
    status: bool = False
    generation: bool = False
    short: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()

    @property
    def qualified(self) -> str:
        """``daemonsets.apps``, as messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def api_version(self, version: str) -> str:
        """``apps/v1``."""
        return f"{self.group}/{version}" if self.group else version


def _custom(group: str, version: str, plural: str, kind: str, namespaced: bool, *short: str) -> Resource:
    return Resource(group, (version,), plural, kind, namespaced, custom=True, status=True, generation=True, short=short)


_DRA = ("v1", "v1beta2", "v1beta1")
# Field selectors: pkg/apis/core/v1/conversion.go and the registries' GetAttrs; for others name and namespace only.
_POD_FIELDS = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)

RESOURCES = (
    Resource("", ("v1",), "namespaces", "Namespace", False, status=True, short=("ns",), fields=("status.phase",)),
    Resource("", ("v1",), "nodes", "Node", False, status=True, short=("no",), fields=("spec.unschedulable",)),
    Resource("", ("v1",), "pods", "Pod", True, status=True, short=("po",), fields=_POD_FIELDS),
    Resource("", ("v1",), "configmaps", "ConfigMap", True, short=("cm",)),
    Resource("", ("v1",), "persistentvolumeclaims", "PersistentVolumeClaim", True, status=True, short=("pvc",)),
    Resource("apps", ("v1",), "daemonsets", "DaemonSet", True, status=True, generation=True, short=("ds",)),
    _custom("nfd.k8s-sigs.io", "v1alpha1", "nodefeaturerules", "NodeFeatureRule", False, "nfr"),
    _custom("kustomize.toolkit.fluxcd.io", "v1", "kustomizations", "Kustomization", True, "ks"),
    _custom("source.toolkit.fluxcd.io", "v1", "gitrepositories", "GitRepository", True, "gitrepo"),
    _custom("kubevirt.io", "v1", "kubevirts", "KubeVirt", True, "kv"),
    _custom("kubevirt.io", "v1", "virtualmachineinstances", "VirtualMachineInstance", True, "vmi"),
    _custom("nvidia.com", "v1", "clusterpolicies", "ClusterPolicy", False),
    _custom("nodemaintenance.medik8s.io", "v1beta1", "nodemaintenances", "NodeMaintenance", False, "nm"),
    Resource("resource.k8s.io", _DRA, "resourceclaims", "ResourceClaim", True, status=True),
    Resource("resource.k8s.io", _DRA, "resourceslices", "ResourceSlice", False, generation=True),
    Resource("resource.k8s.io", _DRA, "deviceclasses", "DeviceClass", False, generation=True),
)
SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


class Refusal(Exception):
    """An answer other than success, as the Status object that says it."""

    def __init__(self, code: int, reason: str, message: str, details: Json | None = None, metadata: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": metadata or {}, "status": "Failure", "message": message}
        if reason:
            self.body["reason"] = reason
        if details is not None:
            self.body["details"] = details
        self.body["code"] = code


def details(resource: Resource, name: str = "") -> Json:
    """The details of a Status about a resource."""
    found = {"name": name, "group": resource.group, "kind": resource.plural}
    return {key: value for key, value in found.items() if value}


def not_found(resource: Resource, name: str) -> Refusal:
    """404 for an object."""
    return Refusal(404, "NotFound", f'{resource.qualified} "{name}" not found', details(resource, name))


def bad_request(message: str) -> Refusal:
    """400."""
    return Refusal(400, "BadRequest", message)


def invalid(resource: Resource, name: str, field: str, cause: str, problem: str, kind: str = "") -> Refusal:
    """422 for one field; `cause` is ``FieldValueInvalid``, say."""
    kind = kind or resource.kind
    about: Json = {key: value for key, value in {"name": name, "group": resource.group, "kind": kind}.items() if value}
    about["causes"] = [{"reason": cause, "message": problem, "field": field}]
    return Refusal(422, "Invalid", f'{".".join(filter(None, (kind, resource.group)))} "{name}" is invalid: {field}: {problem}', about)


def conflict(resource: Resource, name: str, problem: str = "", kind: str = "") -> Refusal:
    """409 for a stale version or a precondition."""
    problem = problem or "the object has been modified; please apply your changes to the latest version and try again"
    about = {**details(resource, name), **({"kind": kind} if kind else {})}
    return Refusal(409, "Conflict", f'Operation cannot be fulfilled on {kind or resource.qualified} "{name}": {problem}', about)


def parse_version(text: str, field: str = "") -> int:
    """A resourceVersion as a number; a text that is none is an internal error on the server."""
    if text and not text.isdecimal():
        raise Refusal(500, "", f'{field}strconv.ParseUint: parsing "{text}": invalid syntax')
    return int(text or 0)


def timestamp(seconds: float | None = None) -> str:
    """RFC 3339 in UTC, whole seconds, as metav1.Time is written."""
    return datetime.fromtimestamp(time.time() if seconds is None else seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Event:
    """One change: `obj` is None where it was deleted, `previous` where it was created."""

    revision: int
    resource: Resource
    key: Key
    obj: Json | None
    previous: Json | None


class Store:
    """All objects, and the changes of the recent past.

    Stored objects are never changed in place: what a reader got stays what it was. `changed` is notified after every change.
    """

    def __init__(self, history: int = 1000) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.revision = 1
        self.oldest = 1  # changes up to this revision are no longer known
        self._history = history
        self._events: deque[Event] = deque()
        self._objects: dict[str, dict[Key, Json]] = {resource.qualified: {} for resource in RESOURCES}
        namespaces = next(resource for resource in RESOURCES if resource.plural == "namespaces")
        for name in SYSTEM_NAMESPACES:
            self.create(namespaces, "v1", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}, "kube-apiserver")

    # Reading

    def get(self, resource: Resource, namespace: str, name: str) -> Json:
        """One object; Refusal 404."""
        with self.changed:
            try:
                return self._objects[resource.qualified][namespace, name]
            except KeyError:
                raise not_found(resource, name) from None

    def objects(self, resource: Resource, revision: int | None = None) -> tuple[int, dict[Key, Json]]:
        """All objects, by namespace and name, now or as they were at a revision that is still known."""
        with self.changed:
            found = dict(self._objects[resource.qualified])
            if revision is not None:
                for event in reversed(self._events):
                    if event.revision <= revision:
                        break
                    if event.resource == resource:
                        found.pop(event.key, None)
                        if event.previous is not None:
                            found[event.key] = event.previous
            return self.revision if revision is None else revision, dict(sorted(found.items(), key=lambda item: "/".join(item[0])))

    def events(self, after: int) -> list[Event]:
        """The changes after a revision, oldest first; the caller holds `changed`."""
        found: list[Event] = []
        for event in reversed(self._events):
            if event.revision <= after:
                break
            found.append(event)
        return found[::-1]

    def compact(self) -> None:
        """Forget the past: older versions can neither be watched from nor listed further."""
        with self.changed:
            self._events.clear()
            self.oldest = self.revision

    # Writing

    def create(
        self, resource: Resource, version: str, namespace: str, given: Json, manager: str, dry_run: bool = False, applied: bool = False
    ) -> Json:
        """A new object; Refusals 400, 404 (namespace), 409 and 422."""
        with self.changed:
            obj = _checked(resource, version, given)
            metadata = obj["metadata"]
            if metadata.get("resourceVersion"):
                raise Refusal(500, "", "resourceVersion should not be set on objects to be created")
            if not metadata.get("name"):
                if not metadata.get("generateName"):
                    raise invalid(resource, "", "metadata.name", "FieldValueRequired", "Required value: name or generateName is required")
                metadata["name"] = metadata["generateName"] + "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))
            name = metadata["name"]
            if resource.namespaced:
                if metadata.setdefault("namespace", namespace) != namespace:
                    raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
                if ("", namespace) not in self._objects["namespaces"]:
                    raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found', {"name": namespace, "kind": "namespaces"})
            _check_name(resource, name)
            for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"):
                metadata.pop(field, None)
            metadata.update(uid=str(uuid.uuid4()), creationTimestamp=timestamp())
            if resource.generation:
                metadata["generation"] = 1
            fields = applied_fields(obj, not resource.custom) if applied else None
            _default(resource, obj)
            blank = {**copy.deepcopy(_BLANKS.get(resource.kind, {})), "metadata": {}}
            _set_managed(resource, version, blank, obj, manager, fields)
            _admit(resource, obj)
            key = (namespace if resource.namespaced else "", name)
            if key in self._objects[resource.qualified]:
                raise Refusal(409, "AlreadyExists", f'{resource.qualified} "{name}" already exists', details(resource, name))
            return obj if dry_run else self._put(resource, key, obj, None)

    def update(
        self,
        resource: Resource,
        version: str,
        namespace: str,
        name: str,
        change: Callable[[Json], Json],
        manager: str,
        *,
        subresource: str = "",
        dry_run: bool = False,
        put: bool = False,
        applied: set[Path] | None = None,
    ) -> Json:
        """Replace an object by what `change` makes of a copy of it; what changes nothing does not move the version.

        Refusals 404, 400 (another name), 409 (the result names another version or, of a PUT, another uid), 422 and 500.
        """
        with self.changed:
            if put:
                _check_url(_checked(resource, version, change({})), name)
            old = self.get(resource, namespace, name)
            obj = change({**copy.deepcopy(old), "apiVersion": resource.api_version(version)})
            obj = _checked(resource, version, obj, patch=not put)
            _check_url(obj, name)
            metadata, before = obj["metadata"], old["metadata"]
            if put and metadata.get("uid", before["uid"]) != before["uid"]:
                uid = metadata["uid"]
                raise conflict(resource, name, f"Precondition failed: UID in precondition: {uid}, UID in object meta: {before['uid']}")
            if put and resource.custom and not metadata.get("resourceVersion"):
                problem = "Invalid value: 0x0: must be specified for an update"
                raise invalid(resource, name, "metadata.resourceVersion", "FieldValueInvalid", problem, resource.plural)
            asked = parse_version(metadata.get("resourceVersion") or "")
            if asked and asked != int(before["resourceVersion"]):
                raise conflict(resource, name)
            _default(resource, obj)
            _keep(resource, old, obj, subresource)
            _set_managed(resource, version, old, obj, manager, applied)
            metadata["resourceVersion"] = before["resourceVersion"]
            if {**obj, "apiVersion": ""} == {**old, "apiVersion": ""}:
                return old
            if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and not metadata["deletionGracePeriodSeconds"]:
                return obj if dry_run else self._drop(resource, (namespace, name), obj)
            return obj if dry_run else self._put(resource, (namespace, name), obj, old)

    def apply(
        self, resource: Resource, version: str, namespace: str, name: str, given: Json, manager: str, force: bool, dry_run: bool
    ) -> tuple[Json, bool]:
        """A server-side apply; the object, and whether it is new. What the manager applied before and nobody else owns goes."""
        with self.changed:
            _check_url(_checked(resource, version, given), name)
            if given["metadata"].get("managedFields") is not None:
                raise bad_request("metadata.managedFields must be nil")
            if (namespace, name) not in self._objects[resource.qualified]:
                return self.create(resource, version, namespace, given, manager, dry_run, applied=True), True
            old = self.get(resource, namespace, name)
            owned = owned_fields(old)
            fields = applied_fields(given, not resource.custom)
            mine, _ = owned.pop((manager, "Apply", resource.api_version(version)), (set[Path](), ""))
            dropped = mine - fields - {path for paths, _ in owned.values() for path in paths}
            merge = merge_patch if resource.custom else strategic_patch

            def change(obj: Json) -> Json:
                result: Json = merge(without(obj, dropped), given)
                return result

            taken, _ = compare(old, change(old), not resource.custom)
            lost = {who: paths & taken for who, (paths, _) in owned.items() if paths & taken}
            if lost and not force:
                raise _apply_conflict(lost)
            return self.update(resource, version, namespace, name, change, manager, dry_run=dry_run, applied=fields), False

    def delete(self, resource: Resource, namespace: str, name: str, options: Json, dry_run: bool = False) -> tuple[Json, bool]:
        """Delete an object or begin to; the object as it is then or was last, and whether it is gone."""
        with self.changed:
            old = self.get(resource, namespace, name)
            before = old["metadata"]
            wanted = options.get("preconditions") or {}
            if wanted.get("uid", before["uid"]) != before["uid"]:
                problem = f"the UID in the precondition ({wanted['uid']}) does not match the UID in record ({before['uid']}). "
                raise conflict(resource, name, problem + "The object might have been deleted and then recreated", resource.kind)
            if wanted.get("resourceVersion", before["resourceVersion"]) != before["resourceVersion"]:
                problem = (
                    f"the ResourceVersion in the precondition ({wanted['resourceVersion']}) does not match the ResourceVersion in record "
                )
                raise conflict(
                    resource, name, problem + f"({before['resourceVersion']}). The object might have been modified", resource.kind
                )
            grace = _grace(resource, old, options.get("gracePeriodSeconds"))
            obj = copy.deepcopy(old)
            metadata = obj["metadata"]
            if grace or before.get("finalizers"):
                known = before.get("deletionGracePeriodSeconds")
                if known is not None and (known <= grace or known == 0):
                    return old, False
                now = datetime.fromisoformat(before["deletionTimestamp"][:-1] + "+00:00").timestamp() - known if known else time.time()
                metadata.update(deletionTimestamp=timestamp(now + grace), deletionGracePeriodSeconds=grace)
                if resource.generation:
                    metadata["generation"] += 1
                return (obj if dry_run else self._put(resource, (namespace, name), obj, old)), False
            if resource.kind == "Pod":  # watches see that its time is up before they see it go
                metadata.update(deletionTimestamp=timestamp(), deletionGracePeriodSeconds=0)
            if not dry_run:
                if resource.kind == "Pod":
                    self._put(resource, (namespace, name), obj, old)
                self._drop(resource, (namespace, name), obj)
                if resource.plural == "namespaces":
                    self._empty(name)
            return obj, True

    def bind(self, pods: Resource, namespace: str, name: str, node: str) -> None:
        """What POST pods/NAME/binding does (pkg/registry/core/pod/storage, ``assignPod``)."""
        with self.changed:
            old = self.get(pods, namespace, name)
            problem = ""
            if old["metadata"].get("deletionTimestamp"):
                problem = f"pod {name} is being deleted, cannot be assigned to a host"
            elif old["spec"].get("nodeName"):
                problem = f'pod {name} is already assigned to node "{old["spec"]["nodeName"]}"'
            if problem:
                raise conflict(pods, name, problem, "pods/binding")
            obj = copy.deepcopy(old)
            obj["spec"]["nodeName"] = node
            conditions = [item for item in obj["status"].get("conditions", []) if item["type"] != "PodScheduled"]
            scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": timestamp()}
            obj["status"]["conditions"] = [*conditions, scheduled]
            self._put(pods, (namespace, name), obj, old)

    def reset(self) -> None:
        """Remove everything but the namespaces of the system; versions go on, watches see each removal."""
        with self.changed:
            for resource in RESOURCES:
                for (namespace, name), obj in list(self._objects[resource.qualified].items()):
                    if resource.plural != "namespaces" or name not in SYSTEM_NAMESPACES:
                        self._drop(resource, (namespace, name), obj)

    def _empty(self, namespace: str) -> None:
        for resource in RESOURCES:
            for key, obj in list(self._objects[resource.qualified].items()):
                if key[0] == namespace:
                    self._drop(resource, key, obj)

    def _put(self, resource: Resource, key: Key, obj: Json, old: Json | None) -> Json:
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        self._objects[resource.qualified][key] = obj
        self._record(Event(self.revision, resource, key, obj, old))
        return obj

    def _drop(self, resource: Resource, key: Key, last: Json) -> Json:
        old = self._objects[resource.qualified].pop(key)
        self.revision += 1
        self._record(Event(self.revision, resource, key, None, old))
        return last

    def _record(self, event: Event) -> None:
        self._events.append(event)
        while len(self._events) > self._history:
            self.oldest = self._events.popleft().revision
        self.changed.notify_all()


# What the registries do to each kind


# The zero values that Go writes although nobody set them: they belong to no field manager.
_NODE_INFO = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)
_NODE_STATUS: Json = {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": dict.fromkeys(_NODE_INFO, "")}
_TEMPLATE: Json = {"metadata": {"creationTimestamp": None}, "spec": {"containers": None}}
_DS_STATUS: Json = dict.fromkeys(("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady"), 0)
_BLANKS: dict[str, Json] = {
    "Node": {"spec": {}, "status": _NODE_STATUS},
    "Pod": {"spec": {"containers": None}, "status": {}},
    "Namespace": {"spec": {}, "status": {}},
    "PersistentVolumeClaim": {"spec": {"resources": {}}, "status": {}},
    "DaemonSet": {"spec": {"selector": None, "template": _TEMPLATE, "updateStrategy": {}}, "status": _DS_STATUS},
    "ResourceClaim": {"spec": {}, "status": {}},
    "ResourceSlice": {"spec": {}},
    "DeviceClass": {"spec": {}},
}
# Members of a node's spec that Go knows: it drops others without a word, as of every built-in type.
_NODE_SPEC = {"podCIDR", "podCIDRs", "providerID", "unschedulable", "taints", "configSource"}
# Members that Go leaves out when they are empty.
_OMITTED = {
    "labels", "annotations", "finalizers", "ownerReferences", "taints", "tolerations", "nodeSelector", "capacity", "allocatable",
    "conditions", "addresses", "images", "volumesInUse", "volumesAttached", "data", "binaryData", "containerStatuses",
    "initContainerStatuses", "ephemeralContainerStatuses", "nodeName", "phase", "unschedulable", "nominatedNodeName", "providerID",
    "initContainers", "volumes", "ephemeralContainers", "resourceClaims",
}  # fmt: skip
_NULL_TIMES = {"Node": ("lastHeartbeatTime", "lastTransitionTime"), "Pod": ("lastProbeTime", "lastTransitionTime")}
_EVICTING = ("not-ready", "unreachable")


def _checked(resource: Resource, version: str, given: Any, patch: bool = False) -> Json:
    """A copy of a body that is of the right kind and whose labels, annotations and cordon have the right types."""
    api_version = resource.api_version(version)
    if not isinstance(given, dict) or not isinstance(given.get("metadata", {}), dict):
        raise _undecodable(patch)
    missing = ("", "") if resource.custom else (resource.kind, api_version)
    kind, named = given.get("kind") or missing[0], given.get("apiVersion") or missing[1]
    if (kind, named) != (resource.kind, api_version):
        raise _undecodable(patch, f'{kind} in version "{named}" cannot be handled as a {resource.kind}')
    metadata = given.get("metadata") or {}
    maps_of_text = [metadata.get("labels"), metadata.get("annotations")]  # checked here; other types are not
    texts = [value for found in maps_of_text if isinstance(found, dict) for value in found.values()]
    version_text, cordon = metadata.get("resourceVersion", ""), (given.get("spec") or {}).get("unschedulable", False)
    if not all(found is None or isinstance(found, dict) for found in maps_of_text) or not isinstance(version_text, str | None):
        raise _undecodable(patch)
    if not all(text is None or isinstance(text, str) for text in texts) or (
        resource.kind == "Node" and not isinstance(cordon, bool | None)
    ):
        raise _undecodable(patch)
    _check_texts(resource, metadata)
    return copy.deepcopy({**given, "kind": kind, "apiVersion": api_version, "metadata": metadata})


_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"


def _check_texts(resource: Resource, metadata: Json) -> None:
    """Names of labels and annotations, values of labels (``IsQualifiedName``, ``IsValidLabelValue``)."""
    for field in ("labels", "annotations"):
        for key, value in (metadata.get(field) or {}).items():
            problem = ""
            if not re.fullmatch(rf"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_WORD}", key):
                problem = f'"{key}": name part must consist of alphanumeric characters'
            elif field == "labels" and value and not re.fullmatch(_WORD, value):
                problem = f'"{value}": a valid label must be an empty string or consist of alphanumeric characters'
            if problem:
                raise invalid(resource, metadata.get("name", ""), f"metadata.{field}", "FieldValueInvalid", f"Invalid value: {problem}")


def _undecodable(patch: bool, problem: str = "a member has the wrong type") -> Refusal:
    """A body that is no object of the kind: a bad request, of a patch an invalid one."""
    if not patch:
        return bad_request(problem)
    about = {"causes": [{"reason": "FieldValueInvalid", "message": f"Invalid value: {problem}", "field": "patch"}]}
    return Refusal(422, "Invalid", f' "" is invalid: patch: Invalid value: {problem}', about)


def _check_url(obj: Json, name: str) -> None:
    given = obj["metadata"].get("name", "")
    if given != name:
        raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")


def _check_name(resource: Resource, name: str) -> None:
    if not re.fullmatch(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", name):
        problem = f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters'
        raise invalid(resource, name, "metadata.name", "FieldValueInvalid", problem)


def _default(resource: Resource, obj: Json) -> None:
    """Bring a body into the form that Go writes: defaults, zero values, and nothing where it leaves the empty out."""
    if resource.custom:
        for field in ("labels", "annotations", "finalizers", "ownerReferences"):
            if not obj["metadata"].get(field, True):
                del obj["metadata"][field]
        return
    _omit(obj)
    for name, blank in _BLANKS.get(resource.kind, {}).items():
        obj[name] = _fill(obj.get(name), blank)
    status = obj.get("status", {})
    for condition in status.get("conditions", []):
        for field in _NULL_TIMES.get(resource.kind, ()):
            condition.setdefault(field, None)
    if resource.kind == "Node":
        obj["spec"] = {name: value for name, value in obj["spec"].items() if name in _NODE_SPEC}
    if resource.kind == "Node" and "capacity" in status:
        for name in ("capacity", "allocatable"):
            status[name] = {key: str(value) for key, value in status.get(name, status["capacity"]).items()}
    if resource.kind == "Namespace":
        status.setdefault("phase", "Active")
    if resource.kind == "PersistentVolumeClaim":
        obj["spec"].setdefault("volumeMode", "Filesystem")
        status.setdefault("phase", "Pending")
    if resource.kind == "Pod":
        _default_pod(obj["spec"])
        obj["spec"].setdefault("enableServiceLinks", True)
    if resource.kind == "DaemonSet":
        spec = obj["spec"]
        _default_pod(spec["template"]["spec"])
        spec["updateStrategy"] = spec["updateStrategy"] or {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
        spec.setdefault("revisionHistoryLimit", 10)
        obj["metadata"].setdefault("annotations", {}).setdefault("deprecated.daemonset.template.generation", "1")


def _omit(value: Any, field: str = "") -> None:
    """Drop nulls and what is left out when empty, in place; the contents of free maps (labels, data) stay."""
    if isinstance(value, dict):
        for name in list(value):
            if value[name] is None and field in ("labels", "annotations", "data"):
                value[name] = ""
            elif (value[name] is None and not name.endswith(("Time", "At", "Timestamp"))) or (name in _OMITTED and not value[name]):
                del value[name]
            else:
                _omit(value[name], name)
    elif isinstance(value, list):
        for item in value:
            _omit(item)


def _fill(value: Any, blank: Json) -> Json:
    """`value` with the members of `blank` that it has not."""
    result = value if isinstance(value, dict) else {}
    for name, default in blank.items():
        result[name] = _fill(result.get(name), default) if isinstance(default, dict) else result.get(name, default)
    return result


def _default_pod(spec: Json) -> None:
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        resources = container.setdefault("resources", {})
        for kind in ("limits", "requests"):
            if kind in resources:
                resources[kind] = {name: str(amount) for name, amount in resources[kind].items()}
        if "limits" in resources:
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault(
            "imagePullPolicy",
            "IfNotPresent" if ":" in container.get("image", "") and not container["image"].endswith(":latest") else "Always",
        )
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")


def _admit(resource: Resource, obj: Json) -> None:
    """What admission plugins and the strategies' PrepareForCreate add; no field manager owns it."""
    metadata, spec = obj["metadata"], obj.get("spec", {})
    if resource.kind == "Node":
        taints = spec.setdefault("taints", [])
        if not any(taint["key"] == "node.kubernetes.io/not-ready" for taint in taints):
            taints.append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
    elif resource.kind == "Pod":
        if not spec.get("containers"):
            raise invalid(resource, metadata["name"], "spec.containers", "FieldValueRequired", "Required value")
        tolerations = spec.setdefault("tolerations", [])
        for condition in _EVICTING:
            key = f"node.kubernetes.io/{condition}"
            if not any(item.get("key") in (key, None) and item.get("effect") in ("NoExecute", None) for item in tolerations):
                tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
        spec.setdefault("priority", 0)
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
        obj["status"] = {"phase": "Pending", "qosClass": _qos(spec)}
    elif resource.kind == "Namespace":
        spec.setdefault("finalizers", ["kubernetes"])
        obj["status"] = {"phase": "Active"}
    elif resource.kind == "PersistentVolumeClaim":
        metadata.setdefault("finalizers", ["kubernetes.io/pvc-protection"])
        obj["status"] = {"phase": "Pending"}
    elif resource.kind == "DaemonSet":
        obj["status"] = dict(_DS_STATUS)
    elif resource.kind == "ResourceClaim":
        obj["status"] = {}
    elif resource.custom and resource.status:
        obj.pop("status", None)


def _qos(spec: Json) -> str:
    containers = [*spec.get("containers", []), *spec.get("initContainers", [])]
    named = [
        {name: container["resources"].get(kind, {}).get(name) for kind in ("limits", "requests") for name in ("cpu", "memory")}
        for container in containers
    ]
    if not any(amount for amounts in named for amount in amounts.values()):
        return "BestEffort"
    limits = [container["resources"].get("limits", {}) for container in containers]
    requests = [container["resources"].get("requests", {}) for container in containers]
    same = all(
        limit.get(name) and limit.get(name) == request.get(name)
        for limit, request in zip(limits, requests, strict=True)
        for name in ("cpu", "memory")
    )
    return "Guaranteed" if same else "Burstable"


def _keep(resource: Resource, old: Json, obj: Json, subresource: str) -> None:
    """What an update can not change (PrepareForUpdate, ValidateObjectMetaUpdate)."""
    metadata, before, name = obj["metadata"], old["metadata"], old["metadata"]["name"]
    fixed = ["uid", "deletionGracePeriodSeconds", *([] if "deletionTimestamp" in before else ["deletionTimestamp"])]
    for field in fixed:
        if metadata.get(field, before.get(field)) != before.get(field):
            raise invalid(
                resource,
                name,
                f"metadata.{field}",
                "FieldValueInvalid",
                f"Invalid value: {json.dumps(metadata[field])}: field is immutable",
            )
    for field in ("namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
        metadata.pop(field, None)
        if field in before:
            metadata[field] = before[field]
    if resource.status:
        if subresource == "status":
            managed = metadata.get("managedFields")
            kept = {field: value for field, value in old.items() if field != "status"}
            if not resource.custom:
                kept["metadata"] = metadata
            obj.update(copy.deepcopy(kept))
            if managed is not None:
                obj["metadata"]["managedFields"] = managed
        elif "status" in old:
            obj["status"] = copy.deepcopy(old["status"])
        else:
            obj.pop("status", None)
    if resource.kind == "Pod" and not subresource:
        _check_pod_update(resource, old, obj)
    if resource.kind == "Node" and not subresource and old["spec"].get("providerID", "") not in ("", obj["spec"].get("providerID", "")):
        raise invalid(
            resource,
            name,
            "spec.providerID",
            "FieldValueForbidden",
            'Forbidden: node updates may not change providerID except from "" to valid',
        )
    rest = ("metadata", "status", "apiVersion", "kind")
    if resource.generation and {k: v for k, v in obj.items() if k not in rest} != {k: v for k, v in old.items() if k not in rest}:
        obj["metadata"]["generation"] = before["generation"] + 1


def _check_pod_update(resource: Resource, old: Json, obj: Json) -> None:
    """A pod's spec may change in its images, deadline and more tolerations only (ValidatePodUpdate)."""

    def fixed(spec: Json) -> Json:
        rest = {key: value for key, value in spec.items() if key not in ("tolerations", "activeDeadlineSeconds")}
        for kind in ("containers", "initContainers"):
            rest[kind] = [{**container, "image": ""} for container in spec.get(kind) or []]
        return rest

    if fixed(old["spec"]) != fixed(obj["spec"]):
        problem = "Forbidden: pod updates may not change fields other than `spec.containers[*].image`, `spec.initContainers[*].image`, "
        problem += "`spec.activeDeadlineSeconds` or `spec.tolerations` (only additions to existing tolerations)"
        raise invalid(resource, old["metadata"]["name"], "spec", "FieldValueForbidden", problem)


def _set_managed(resource: Resource, version: str, old: Json, obj: Json, manager: str, applied: set[Path] | None = None) -> None:
    managed = track(old, obj, manager, resource.api_version(version), timestamp(), not resource.custom, applied)
    obj["metadata"].pop("managedFields", None)
    if managed:
        obj["metadata"]["managedFields"] = managed


def _apply_conflict(lost: dict[Owner, set[Path]]) -> Refusal:
    """409 for an apply that would take fields from others."""
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{who[0]}"' + (f" using {who[2]}" if who[1] == "Update" else ""),
            "field": "".join(f".{part[2:]}" for part in path),
        }
        for who, paths in lost.items()
        for path in sorted(paths)
    ]
    said = ", ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
    return Refusal(409, "Conflict", f"Apply failed with {len(causes)} conflict{'s' if len(causes) > 1 else ''}: {said}", {"causes": causes})


def _grace(resource: Resource, obj: Json, asked: int | None) -> int:
    """Seconds until the object may go: pods only, and not those that never started or are finished (podStrategy.CheckGracefulDelete)."""
    if resource.kind != "Pod":
        return 0
    if not obj["spec"].get("nodeName") or obj["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    grace = obj["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked
    return max(0, int(grace))


def items_in(found: dict[Key, Json], namespace: str) -> Iterable[Json]:
    """The objects of one namespace, or all for the empty name."""
    return (obj for (place, _), obj in found.items() if not namespace or place == namespace)
