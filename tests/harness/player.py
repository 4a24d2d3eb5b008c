"""Plays what does not exist in a test: the kubelet, Flux, NFD, the GPU operator and NVIDIA's driver manager.

Responsible for reacting to the API and to the fleet's remote as these do in the field, each as its own field manager, and for doing it
late, wrongly or never where a test says so. DaemonSet pods are not made here: that is the controller's business, real or simulated.
"""

from __future__ import annotations

import abc
import json
import re
import threading
import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, final

from .backend import Backend
from .kube import ApiError, Json, Kube
from .world import (
    DEPLOY_KEYS,
    DRA_DRIVER,
    FLUX,
    HANDS_OFF,
    LABEL_CONFIG,
    NODES,
    OWNERS,
    POD_RESOURCE,
    RULES,
    SOURCES,
    VM_RESOURCE,
    Fleet,
    devices_of,
    node_feature_rule,
    now,
    pod_status,
)

FEATURE_LABELS = "nfd.node.kubernetes.io/feature-labels"
REQUESTED_AT = "reconcile.fluxcd.io/requestedAt"

# Answers to a write that came too late: the object has gone or changed, and the next look decides again.
_LATE = frozenset({404, 409, 422})

Start = Literal["running", "not-ready", "crash-loop", "init-crash-loop", "image-pull", "pending"]
Stop = Literal["normal", "never"]


@dataclass
class Scene:
    """What a turn of the player looks at."""

    nodes: dict[str, Json]
    pods: list[Json]
    rules: list[Json]


class Actor(abc.ABC):
    """One of the roles: it sees a scene every ``Player.interval`` seconds unless it is paused."""

    def __init__(self, kube: Kube, manager: str) -> None:
        self.kube = kube.with_agent(f"{manager}/v0.0.0")
        self.manager = manager
        self.paused = False
        self._first_seen: dict[Hashable, float] = {}

    @abc.abstractmethod
    def act(self, scene: Scene) -> None:
        """Look, and do at most what is due now."""

    def _due(self, key: Hashable, delay: float) -> bool:
        """Whether something first asked about ``delay`` seconds ago may happen now."""
        return time.monotonic() - self._first_seen.setdefault(key, time.monotonic()) >= delay

    def _patch(self, path: str, body: Json) -> None:
        """A merge patch; one that comes too late is nothing."""
        try:
            self.kube.patch(path, body, manager=self.manager)
        except ApiError as error:
            if error.code not in _LATE:
                raise


@dataclass
class Behaviour:
    """How the kubelet treats the pods whose ``namespace/name`` a pattern matches."""

    pattern: re.Pattern[str]
    start: Start
    stop: Stop


class Kubelet(Actor):
    """Starts bound pods, ends terminating ones, and registers and withdraws the devices of the owners.

    ``start_delay`` and ``stop_delay`` are in seconds; ``devices`` False leaves the nodes' capacity and allocatable alone.
    """

    def __init__(self, kube: Kube, *, slices: bool) -> None:
        super().__init__(kube, "kubelet")
        self.start_delay = 0.0
        self.stop_delay = 0.0
        self.devices = True
        self._slices = slices
        self._behaviours: list[Behaviour] = []
        self._played: dict[str, Start] = {}

    def behave(self, pattern: str, *, start: Start = "running", stop: Stop = "normal") -> None:
        """From now on treat the pods whose ``namespace/name`` this expression matches from its start so; the last call counts."""
        self._behaviours.append(Behaviour(re.compile(pattern), start, stop))

    def heal(self) -> None:
        """Treat all pods normally again, those that were held up so far included."""
        self._behaviours.clear()

    def act(self, scene: Scene) -> None:
        """Bring every bound pod one step further."""
        for pod in scene.pods:
            if pod["spec"].get("nodeName") in scene.nodes:
                self._play_pod(pod)
        if self.devices:
            for node in scene.nodes.values():
                if HANDS_OFF not in (node["metadata"].get("annotations") or {}):
                    self._play_devices(node, scene.pods)

    def _play_pod(self, pod: Json) -> None:
        metadata = pod["metadata"]
        uid = metadata["uid"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        start, stop = self._behaviour(f"{metadata['namespace']}/{metadata['name']}")
        if metadata.get("deletionTimestamp"):
            if stop != "never" and self._due((uid, "stop"), self.stop_delay):
                self._delete(path)
            return
        if HANDS_OFF in (metadata.get("annotations") or {}):
            return
        if uid not in self._played and pod.get("status", {}).get("phase", "Pending") != "Pending":
            return
        if start != self._played.get(uid, "pending") and self._due((uid, "start"), self.start_delay):
            names = [container["name"] for container in pod["spec"]["containers"]]
            self._patch(f"{path}/status", {"status": _status(start, names)})
            self._played[uid] = start

    def _behaviour(self, name: str) -> tuple[Start, Stop]:
        for behaviour in reversed(self._behaviours):
            if behaviour.pattern.match(name):
                return behaviour.start, behaviour.stop
        return "running", "normal"

    def _delete(self, path: str) -> None:
        try:
            self.kube.delete(path, grace=0)
        except ApiError as error:
            if error.code not in _LATE:
                raise

    def _play_devices(self, node: Json, pods: Iterable[Json]) -> None:
        """A plugin that is gone leaves its resource at an allocatable of 0; kubelet never removes it."""
        name = node["metadata"]["name"]
        running = {mode for pod in pods if (mode := _owner_mode(pod)) and pod["spec"].get("nodeName") == name and _is_ready(pod)}
        offered: dict[str, str] = {}
        for mode in sorted(running):
            offered |= devices_of(mode)
        capacity = node["status"].get("capacity", {})
        allocatable = node["status"].get("allocatable", {})
        wanted = {key: offered.get(key, "0") for key in (POD_RESOURCE, VM_RESOURCE) if key in capacity or key in offered}
        if any(allocatable.get(key) != value for key, value in wanted.items()):
            self._patch(f"{NODES}/{name}/status", {"status": {"capacity": offered, "allocatable": wanted}})
        if self._slices:
            self._play_slice(name, "pod-hami-dra" in running)

    def _play_slice(self, node: str, wanted: bool) -> None:
        path = "/apis/resource.k8s.io/v1/resourceslices"
        name = f"{node}-{DRA_DRIVER}"
        exists = any(item["metadata"]["name"] == name for item in self.kube.list(path))
        if wanted and not exists:
            self.kube.create(path, resource_slice(name, node))
        elif exists and not wanted:
            self._delete(f"{path}/{name}")


class Flux(Actor):
    """Follows the remote's branch: source, then each Kustomization in turn, applying the rule of ``gpu-node-mode``.

    ``delay`` in seconds comes before a new commit is noticed. With ``only_on_request`` commits are noticed only when the source is
    asked (``reconcile.fluxcd.io/requestedAt``). ``broken`` maps names of Kustomizations to the message of their failed build.
    It acts when the branch, an object's spec or a request changes; what a test writes into a status stays until then.
    """

    def __init__(self, kube: Kube, fleet: Fleet) -> None:
        super().__init__(kube, "kustomize-controller")
        self.delay = 0.0
        self.only_on_request = False
        self.broken: dict[str, str] = {}
        self.applied: str | None = None
        self._fleet = fleet
        self._done: dict[str, tuple[Any, ...]] = {}

    def act(self, scene: Scene) -> None:
        """Bring source and Kustomizations up to date, in the order of their dependencies."""
        source = _get(self.kube, f"{SOURCES}/flux-system")
        if source is None:
            return
        revision = self._fetch(source)
        if revision is None:
            return
        ready: dict[str, bool] = {}
        for item in _in_order(self.kube.list(FLUX)):
            name = item["metadata"]["name"]
            dependencies = [dependency["name"] for dependency in item["spec"].get("dependsOn") or []]
            blocked = next((dependency for dependency in dependencies if not ready.get(dependency)), None)
            ready[name] = self._reconcile(item, revision, blocked, source["spec"].get("url", ""))

    def _fetch(self, source: Json) -> str | None:
        """The revision of the source's artifact, after taking up the branch's commit if that is due."""
        status = source.get("status") or {}
        known: str | None = (status.get("artifact") or {}).get("revision")
        if source["spec"].get("suspend"):
            return known
        request = (source["metadata"].get("annotations") or {}).get(REQUESTED_AT)
        asked = request is not None and request != status.get("lastHandledReconcileAt")
        branch = (source["spec"].get("ref") or {}).get("branch", "master")
        tip = self._fleet.read_tip(branch)
        revision = f"{branch}@sha1:{tip}" if tip else known
        if revision is None:
            return None
        stale = revision != known and (known is None or not self.only_on_request) and self._due(revision, self.delay)
        changed = status.get("observedGeneration") != source["metadata"].get("generation")
        if not (asked or stale or changed):
            return known
        self._patch(
            f"{SOURCES}/flux-system/status",
            {
                "status": {
                    "observedGeneration": source["metadata"].get("generation"),
                    "artifact": {"revision": revision, "lastUpdateTime": now()},
                    "conditions": [_ready(source, "True", "Succeeded", f"stored artifact for revision '{revision}'")],
                    **({"lastHandledReconcileAt": request} if request else {}),
                }
            },
        )
        return revision

    def _reconcile(self, item: Json, revision: str, blocked: str | None, url: str) -> bool:
        """Apply a Kustomization if anything about it has changed; whether it is ready at this revision now."""
        name, metadata = item["metadata"]["name"], item["metadata"]
        if item["spec"].get("suspend"):
            return bool((item.get("status") or {}).get("lastAppliedRevision") == revision)
        request = (metadata.get("annotations") or {}).get(REQUESTED_AT)
        broken = self.broken.get(name)
        state = (metadata["uid"], metadata.get("generation"), revision, request, blocked, broken)
        if self._done.get(name) == state:
            return not blocked and not broken
        status: Json = {"observedGeneration": metadata.get("generation"), **({"lastHandledReconcileAt": request} if request else {})}
        if blocked:
            status["conditions"] = [_ready(item, "False", "DependencyNotReady", f"dependency 'flux-system/{blocked}' is not ready")]
        elif broken:
            status |= {"lastAttemptedRevision": revision, "conditions": [_ready(item, "False", "BuildFailed", broken)]}
        else:
            if name == "gpu-node-mode":
                entry = f"_{self._apply(item, revision)}_nfd.k8s-sigs.io_NodeFeatureRule"
                status["inventory"] = {"entries": [{"id": entry, "v": "v1alpha1"}]}
            status |= {"lastAttemptedRevision": revision, "lastAppliedRevision": revision}
            status["conditions"] = [_ready(item, "True", "ReconciliationSucceeded", f"Applied revision: {revision}")]
        self._patch(f"{FLUX}/{name}/status", {"status": status})
        self._done[name] = state
        return not blocked and not broken

    def _apply(self, item: Json, revision: str) -> str:
        """Apply the rule below the Kustomization's path; the name of the object."""
        commit = revision.rpartition(":")[2]
        path = item["spec"]["path"].removeprefix("./").rstrip("/") + "/nodefeaturerule.yaml"
        wanted = node_feature_rule(self._fleet.file_at(commit, path))
        name: str = wanted["metadata"]["name"]
        live = _get(self.kube, f"{RULES}/{name}")
        if live is None:
            self.kube.create(RULES, wanted, fieldManager=self.manager)
        elif not _is_excluded(live):
            self._patch(f"{RULES}/{name}", {"metadata": {"labels": wanted["metadata"]["labels"]}, "spec": wanted["spec"]})
        self.applied = commit
        return name


class Nfd(Actor):
    """Labels the nodes that the NodeFeatureRules name, in the order of the rules' names, when a rule or a node is new or changed.

    A label that somebody else changes stays so until then. ``delay`` in seconds comes before a changed rule is noticed.
    """

    def __init__(self, kube: Kube) -> None:
        super().__init__(kube, "nfd-master")
        self.delay = 0.0
        self._done: dict[str, str] = {}

    def act(self, scene: Scene) -> None:
        """Label the nodes whose wanted labels are not those of the last time."""
        rules = sorted(scene.rules, key=lambda rule: str(rule["metadata"]["name"]))
        state = json.dumps([rule.get("spec") for rule in rules], sort_keys=True)
        if not self._due(state, self.delay if self._done else 0.0):
            return
        for name, node in scene.nodes.items():
            uid = node["metadata"]["uid"]
            if self._done.get(uid) != state and HANDS_OFF not in (node["metadata"].get("annotations") or {}):
                self._label(node, _labels_for(name, rules))
                self._done[uid] = state
        self._first_seen = {state: self._first_seen[state]}

    def _label(self, node: Json, wanted: Json) -> None:
        metadata = node["metadata"]
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        owned = [key for key in annotations.get(FEATURE_LABELS, "").split(",") if key]
        change = {key: None for key in owned if key not in wanted and key in labels}
        change |= {key: value for key, value in wanted.items() if labels.get(key) != value}
        keys = ",".join(sorted(wanted))
        if change or annotations.get(FEATURE_LABELS) != keys:
            self._patch(f"{NODES}/{metadata['name']}", {"metadata": {"labels": change, "annotations": {FEATURE_LABELS: keys}}})


class Operator(Actor):
    """The GPU operator: exchanges the ``nvidia.com/gpu.deploy.*`` labels of a node when its workload config changes.

    A wanted label that has a value keeps it, as the operator does. ``delay`` is in seconds.
    """

    def __init__(self, kube: Kube) -> None:
        super().__init__(kube, "gpu-operator")
        self.delay = 0.0
        self._configs: dict[str, str] = {}

    def act(self, scene: Scene) -> None:
        """Exchange the labels of the nodes whose config has changed since the last look."""
        for name, node in scene.nodes.items():
            labels = node["metadata"].get("labels") or {}
            if labels.get("nvidia.com/gpu.present") != "true":
                continue
            config = labels.get(LABEL_CONFIG, "")
            if config not in DEPLOY_KEYS:
                config = "container"  # what the operator falls back to
            uid = node["metadata"]["uid"]
            before = self._configs.setdefault(uid, config)
            if config == before or not self._due((uid, before, config), self.delay):
                continue
            self._first_seen.pop((uid, before, config))
            self._configs[uid] = config
            wanted = {f"nvidia.com/gpu.deploy.{key}" for key in DEPLOY_KEYS[config]}
            every = {f"nvidia.com/gpu.deploy.{key}" for keys in DEPLOY_KEYS.values() for key in keys}
            change: Json = {key: None for key in every - wanted if key in labels}
            change |= {key: "true" for key in wanted if not labels.get(key)}
            if change:
                self._patch(f"{NODES}/{name}", {"metadata": {"labels": change}})


class DriverManager(Actor):
    """NVIDIA's k8s-driver-manager: uncordons a node after it went from ``vm-passthrough`` to ``container``.

    ``times`` is how often it does that to one node for one change of the config; ``uncordons`` lists what it did. ``delay`` is in
    seconds, from the moment it sees the node cordoned.
    """

    def __init__(self, kube: Kube, times: int) -> None:
        super().__init__(kube, "driver-manager")
        self.times = times
        self.delay = 0.0
        self.uncordons: list[tuple[float, str]] = []
        self._configs: dict[str, str] = {}
        self._left: dict[str, int] = {}

    def act(self, scene: Scene) -> None:
        """Uncordon the nodes that are due."""
        for name, node in scene.nodes.items():
            uid = node["metadata"]["uid"]
            config = (node["metadata"].get("labels") or {}).get(LABEL_CONFIG, "")
            if self._configs.get(uid) == "vm-passthrough" and config == "container":
                self._left[uid] = self.times
            self._configs[uid] = config
            if not node["spec"].get("unschedulable") or not self._left.get(uid):
                self._first_seen.pop(uid, None)
            elif self._due(uid, self.delay):
                self._left[uid] -= 1
                self._first_seen.pop(uid)
                self.kube.patch(f"{NODES}/{name}", {"spec": {"unschedulable": None}}, kind="strategic", manager=self.manager)
                self.uncordons.append((time.time(), name))


@final
class Player:
    """All roles on one thread; a context manager, or ``start`` and ``stop``.

    ``interval`` is the pause in seconds between two turns. ``driver_manager`` True makes the driver manager uncordon once.
    """

    def __init__(self, backend: Backend, fleet: Fleet, *, driver_manager: bool = False, interval: float = 0.1) -> None:
        self.interval = interval
        self.kubelet = Kubelet(backend.kube, slices=backend.serves("resource.k8s.io/v1", "resourceslices"))
        self.flux = Flux(backend.kube, fleet)
        self.nfd = Nfd(backend.kube)
        self.operator = Operator(backend.kube)
        self.driver_manager = DriverManager(backend.kube, 1 if driver_manager else 0)
        self.errors: list[Exception] = []
        self._kube = backend.kube
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="player")

    def __enter__(self) -> Player:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def actors(self) -> tuple[Actor, ...]:
        """Every role, in the order in which they act."""
        return (self.flux, self.nfd, self.operator, self.driver_manager, self.kubelet)

    def start(self) -> None:
        """Begin to play."""
        self._thread.start()

    def stop(self) -> None:
        """End, and raise what went wrong meanwhile."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self.errors:
            raise RuntimeError(f"the player failed {len(self.errors)} times, first: {self.errors[0]!r}") from self.errors[0]

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._turn()
            except ApiError as error:
                if error.code not in _LATE:
                    self.errors.append(error)
            except Exception as error:  # a thread has nobody above it; stop() raises it
                self.errors.append(error)
            self._stopping.wait(self.interval)

    def _turn(self) -> None:
        nodes = {node["metadata"]["name"]: node for node in self._kube.list(NODES)}
        scene = Scene(nodes, self._kube.list("/api/v1/pods"), self._kube.list(RULES))
        for actor in self.actors:
            if not actor.paused:
                actor.act(scene)


def resource_slice(name: str, node: str, *, driver: str = DRA_DRIVER, pool: str | None = None) -> Json:
    """A ResourceSlice with one shared GPU."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool or node, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": "hami-gpu-0",
                    "allowMultipleAllocations": True,
                    "attributes": {"type": {"string": "hami-gpu"}},
                    "capacity": {"cores": {"value": "100"}, "memory": {"value": "32Gi"}},
                }
            ],
        },
    }


def _status(start: Start, names: list[str]) -> Json:
    if start in ("running", "not-ready"):
        return pod_status("Running", ready=start == "running", names=names)
    if start == "pending":
        return pod_status("Pending", names=names)
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
    if start == "crash-loop":
        status = pod_status("Running", ready=False, names=names)
        for container in status["containerStatuses"]:
            container |= {"state": waiting, "restartCount": 7}
        return status
    status = pod_status("Pending", names=names)
    if start == "image-pull":
        for container in status["containerStatuses"]:
            container["state"] = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
        return status
    status["initContainerStatuses"] = [
        {"name": "init", "image": "registry.example.com/init:1", "imageID": "", "ready": False, "restartCount": 7, "state": waiting}
    ]
    return status


def _owner_mode(pod: Json) -> str | None:
    for reference in pod["metadata"].get("ownerReferences") or []:
        if reference["kind"] == "DaemonSet":
            for mode, owner in OWNERS.items():
                if owner == (pod["metadata"]["namespace"], reference["name"]):
                    return mode
    return None


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def _get(kube: Kube, path: str) -> Json | None:
    try:
        return kube.get(path)
    except ApiError as error:
        if error.code == 404:
            return None
        raise


def _in_order(items: list[Json]) -> list[Json]:
    """Kustomizations, each after those it depends on; what depends on a missing one comes last."""
    waiting = {item["metadata"]["name"]: item for item in sorted(items, key=lambda item: str(item["metadata"]["name"]))}
    done: list[Json] = []
    while waiting:
        free = [
            name
            for name, item in waiting.items()
            if not any(dependency["name"] in waiting for dependency in item["spec"].get("dependsOn") or [])
        ]
        done += [waiting.pop(name) for name in free or list(waiting)]
    return done


def _ready(item: Json, truth: str, reason: str, message: str) -> Json:
    return {
        "type": "Ready",
        "status": truth,
        "reason": reason,
        "message": message,
        "observedGeneration": item["metadata"].get("generation"),
        "lastTransitionTime": now(),
    }


def _is_excluded(live: Json) -> bool:
    annotations = live["metadata"].get("annotations") or {}
    return (
        annotations.get("kustomize.toolkit.fluxcd.io/reconcile") == "disabled"
        or annotations.get("kustomize.toolkit.fluxcd.io/ssa", "").lower() == "ignore"
    )


def _labels_for(node: str, rules: list[Json]) -> Json:
    """The labels that the rules give a node; a later rule wins."""
    labels: Json = {}
    for rule in rules:
        for block in rule["spec"].get("rules") or []:
            for feature in block.get("matchFeatures") or []:
                match = (feature.get("matchExpressions") or {}).get("nodename") or {}
                if feature.get("feature") == "system.name" and match.get("op") == "In" and node in match.get("value", []):
                    labels |= block.get("labels") or {}
    return labels
