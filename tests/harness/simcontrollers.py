"""The parts of kube-controller-manager that the tests need: taints and annotations of nodes, pods of DaemonSets.

They act a moment after each change, write to the store as the manager ``kube-controller-manager``, and are not in the log of requests.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import time

from .simfields import Json
from .simstore import RESOURCES, Refusal, Store, timestamp

MANAGER = "kube-controller-manager"
MOMENT = 0.05
_NODES, _PODS, _DAEMONSETS = (next(item for item in RESOURCES if item.plural == plural) for plural in ("nodes", "pods", "daemonsets"))
_CORDONED, _NOT_READY, _UNREACHABLE = (f"node.kubernetes.io/{name}" for name in ("unschedulable", "not-ready", "unreachable"))
_TTL = "node.alpha.kubernetes.io/ttl"
# AddOrUpdateDaemonPodTolerations of pkg/controller/daemon/util
_TOLERATED = [
    *({"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute"} for name in ("not-ready", "unreachable")),
    *({"key": f"node.kubernetes.io/{name}-pressure", "operator": "Exists", "effect": "NoSchedule"} for name in ("disk", "memory", "pid")),
    {"key": _CORDONED, "operator": "Exists", "effect": "NoSchedule"},
]


class Controllers:
    """Runs in a thread of its own until `stopping`; each of the two parts can be switched off at any time."""

    def __init__(self, store: Store, taint_cordoned: bool, run_daemonsets: bool) -> None:
        self.store = store
        self.taint_cordoned, self.run_daemonsets = taint_cordoned, run_daemonsets
        self.stopping = False
        self._synced: dict[str, str] = {}  # nodes in the version that was looked at

    def run(self) -> None:
        """Act after each change until stopped."""
        done: tuple[int, bool, bool] | None = None
        while not self.stopping:
            with self.store.changed:
                self.store.changed.wait_for(lambda done=done: self.stopping or self._state() != done, 0.2)
            if self._state() == done:
                continue
            time.sleep(MOMENT)
            done = self._state()
            if self.taint_cordoned:
                self._sync_nodes()
            if self.run_daemonsets:
                self._sync_daemonsets()

    def _state(self) -> tuple[int, bool, bool]:
        return self.store.revision, self.taint_cordoned, self.run_daemonsets

    # Nodes: the TTL and the node lifecycle controller

    def _sync_nodes(self) -> None:
        for (_, name), node in self.store.objects(_NODES)[1].items():
            version = node["metadata"]["resourceVersion"]
            if self._synced.get(name) == version:
                continue
            self._synced[name] = version
            for change in (_annotated, _tainted):
                with contextlib.suppress(Refusal):  # gone meanwhile
                    self.store.update(_NODES, "v1", "", name, change, MANAGER)

    # DaemonSets

    def _sync_daemonsets(self) -> None:
        with self.store.changed:
            nodes = list(self.store.objects(_NODES)[1].values())
            pods = list(self.store.objects(_PODS)[1].values())
            sets = {item["metadata"]["uid"]: item for item in self.store.objects(_DAEMONSETS)[1].values()}
            owned: dict[str, list[Json]] = {uid: [] for uid in sets}
            for pod in pods:
                owner = _controller(pod)
                if owner is None:
                    continue
                if owner["uid"] in owned:
                    owned[owner["uid"]].append(pod)
                else:
                    self._delete(pod)  # the garbage collector's part
            for uid, daemonset in sets.items():
                self._sync(daemonset, owned[uid], nodes)

    def _sync(self, daemonset: Json, pods: list[Json], nodes: list[Json]) -> None:
        """``podsShouldBeOnNode`` for every node, then the status."""
        should = {node["metadata"]["name"] for node in nodes if _should_run(daemonset, node)}
        there: dict[str, list[Json]] = {}
        for pod in pods:
            there.setdefault(pod["spec"]["nodeName"], []).append(pod)
        for name in sorted(should | set(there)):
            mine = there.get(name, [])
            living = [pod for pod in mine if "deletionTimestamp" not in pod["metadata"]]
            failed = [pod for pod in living if pod["status"].get("phase") == "Failed"]
            running = sorted((pod for pod in living if pod not in failed), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
            for pod in failed + running[1:] if name in should else living:
                self._delete(pod)
            if name in should and not mine:
                self._create(daemonset, name)
        placed = {name for name in should if name in there}
        ready = {name for name in placed if any(_is_ready(pod) for pod in there[name])}
        counts = {
            "currentNumberScheduled": len(placed), "numberMisscheduled": len(set(there) - should), "desiredNumberScheduled": len(should),
            "numberReady": len(ready), "observedGeneration": daemonset["metadata"]["generation"], "updatedNumberScheduled": len(placed),
            "numberAvailable": len(ready), "numberUnavailable": len(should) - len(ready),
        }  # fmt: skip
        always = ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady")
        status = {key: value for key, value in counts.items() if value or key in always}
        metadata = daemonset["metadata"]
        if status != daemonset["status"]:
            self.store.update(
                _DAEMONSETS,
                "v1",
                metadata["namespace"],
                metadata["name"],
                lambda obj: {**obj, "status": status},
                MANAGER,
                subresource="status",
            )

    def _create(self, daemonset: Json, node: str) -> None:
        metadata, template = daemonset["metadata"], copy.deepcopy(daemonset["spec"]["template"])
        owner = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        revision = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
        labels = {**template["metadata"].get("labels", {}), "controller-revision-hash": revision, "pod-template-generation": "1"}
        about = {"generateName": f"{metadata['name']}-", "labels": labels, "ownerReferences": [owner]}
        if template["metadata"].get("annotations"):
            about["annotations"] = template["metadata"]["annotations"]
        spec = {**template["spec"], "nodeName": node, "tolerations": [*template["spec"].get("tolerations", []), *copy.deepcopy(_TOLERATED)]}
        self.store.create(_PODS, "v1", metadata["namespace"], {"metadata": about, "spec": spec}, MANAGER)

    def _delete(self, pod: Json) -> None:
        if "deletionTimestamp" not in pod["metadata"]:
            self.store.delete(_PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], {})


def _annotated(node: Json) -> Json:
    node["metadata"].setdefault("annotations", {}).setdefault(_TTL, "0")
    return node


def _tainted(node: Json) -> Json:
    """The taints that say what the node's condition and cordon are, all with NoSchedule."""
    ready = next((item["status"] for item in node.get("status", {}).get("conditions", []) if item["type"] == "Ready"), "")
    taints = node["spec"].get("taints", [])
    wanted = {_CORDONED: bool(node["spec"].get("unschedulable"))}
    if ready:
        wanted |= {_NOT_READY: ready == "False", _UNREACHABLE: ready == "Unknown"}
    result = [taint for taint in taints if taint["effect"] != "NoSchedule" or wanted.get(taint["key"], True)]
    for key, present in wanted.items():
        if present and not any(taint["key"] == key and taint["effect"] == "NoSchedule" for taint in result):
            result.append({"key": key, "effect": "NoSchedule", "timeAdded": timestamp()})
    node["spec"]["taints"] = result
    return node


def _controller(pod: Json) -> Json | None:
    owners = pod["metadata"].get("ownerReferences", [])
    return next((owner for owner in owners if owner.get("controller") and owner["kind"] == "DaemonSet"), None)


def _is_ready(pod: Json) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions", []))


def _should_run(daemonset: Json, node: Json) -> bool:
    """Whether the node selector matches and every taint is tolerated (affinity is not looked at)."""
    spec, labels = daemonset["spec"]["template"]["spec"], node["metadata"].get("labels", {})
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    if spec.get("nodeName", node["metadata"]["name"]) != node["metadata"]["name"]:
        return False
    taints = [taint for taint in node["spec"].get("taints", []) if taint["effect"] in ("NoSchedule", "NoExecute")]
    return all(any(_tolerates(item, taint) for item in [*spec.get("tolerations", []), *_TOLERATED]) for taint in taints)


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect", taint["effect"]) != taint["effect"] or toleration.get("key", taint["key"]) != taint["key"]:
        return False
    return bool(toleration.get("operator", "Equal") == "Exists") or bool(toleration.get("value", "") == taint.get("value", ""))
