"""An API server for one node: applies JSON patches with jsonpatch, keeps resource versions and the managedFields of the cordon."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jsonpatch

from kubectl_gpu_transition.adapters.cluster import COLLECTIONS, WATCHED
from kubectl_gpu_transition.facts import Facts
from kubectl_gpu_transition.failures import Failure, Forbidden, LostGuard, Missing, RefusedByServer, UnknownOutcome, Unreachable
from kubectl_gpu_transition.model import ANNOTATION, FIELD_MANAGER, NodeView, Problem
from kubectl_gpu_transition.views import node_view
from tests.fakes.steering import Call, Clock, Steering

RECORD = "/metadata/annotations/kube-dc.com~1gpu-transition"
CORDON = "/spec/unschedulable"


@dataclass(frozen=True)
class Write:
    """One patch that the server accepted, or was asked for: what it does, its operations, when, and the ages that matter then."""

    kind: str
    operations: list[dict[str, Any]]
    time: float
    effective: bool
    before: dict[str, Any]

    def value(self, path: str, op: str) -> Any:
        """The value of that operation, or None where the patch has none."""
        return next((o.get("value", True) for o in self.operations if (o["op"], o["path"]) == (op, path)), None)


def kind_of(operations: Sequence[dict[str, Any]], dry_run: bool) -> str:
    """What a patch does, told from its operations alone."""
    steps = {(o["op"], o["path"]) for o in operations}
    if dry_run:
        return "dry-run"
    if ("remove", CORDON) in steps:
        return "uncordon"
    if ("remove", RECORD) in steps:
        return "drop"
    if ("add", CORDON) in steps:
        return "cordon" if ("add", RECORD) in steps else "recordon"
    new = next(o["value"] for o in operations if (o["op"], o["path"]) == ("replace", RECORD))
    return "announce" if '"phase":"pushing"' in new else "take-back"


class Cluster:
    """The port ``Cluster``. ``node`` is the object as the server stores it, None when it is gone; others change it by the methods below."""

    context, server = "dc1-admin", "https://dc1.example:6443"

    def __init__(self, steering: Steering, clock: Clock, name: str) -> None:
        self.steering, self.clock, self.name = steering, clock, name
        self.version = 100
        self.node: dict[str, Any] | None = {
            "metadata": {"name": name, "uid": "uid-1", "resourceVersion": "100", "labels": {}, "managedFields": []},
            "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
        self.pods: dict[str, dict[str, Any]] = {}
        self.objects: dict[str, list[dict[str, Any]]] = {}  # what there is beside the pods, by the field of ``Facts``
        self.unread: dict[str, str] = {}  # why a field of ``Facts`` can not be read, while it is so
        self.blind: Problem | None = None  # why a watch can not be started
        self.writes: list[Write] = []
        self.asked: list[str] = []  # what of Flux was asked to reconcile, in order
        self.refuses: Callable[[str], Failure | None] = lambda _kind: None
        self.mutates: Callable[[str, dict[str, Any]], None] = lambda _kind, _node: None
        self.problem: Failure | None = None  # what every read answers, while it is set
        self.reads: dict[str, float] = {}  # when each kind of read last ended
        self.watches: list[FakeWatch] = []

    # ------------------------------------------------------------ what others do

    def change(self, edit: Callable[[dict[str, Any]], None]) -> None:
        """Somebody else writes the node."""
        assert self.node is not None
        edit(self.node)
        self._bump(self.node)

    def _bump(self, node: dict[str, Any]) -> None:
        self.version += 1
        node["metadata"]["resourceVersion"] = str(self.version)

    def label(self, **values: str) -> None:
        """Somebody else labels the node: ``active``, ``expected`` and ``config`` by their short names."""
        keys = {
            "active": "kube-dc.com/gpu.workload-mode",
            "expected": "kube-dc.com/gpu.expected-workload-mode",
            "config": "nvidia.com/gpu.workload.config",
        }
        self.change(lambda node: node["metadata"]["labels"].update({keys[key]: value for key, value in values.items()}))

    def annotate(self, key: str, value: str | None) -> None:
        """Somebody else sets or drops an annotation."""

        def edit(node: dict[str, Any]) -> None:
            annotations = node["metadata"].setdefault("annotations", {})
            annotations.pop(key, None)
            if value is not None:
                annotations[key] = value

        self.change(edit)

    def cordon(self, manager: str = "kubectl-cordon", traced: bool = True) -> None:
        """Somebody else cordons the node."""

        def edit(node: dict[str, Any]) -> None:
            if not node["spec"].get("unschedulable"):
                node["spec"]["unschedulable"] = True
                if traced:
                    self._own_cordon(node, manager)

        self.change(edit)

    def uncordon(self, manager: str = "kubectl") -> None:
        """Somebody else uncordons the node; the only trace is an entry for something else that the same manager wrote."""

        def edit(node: dict[str, Any]) -> None:
            node["spec"].pop("unschedulable", None)
            self._own_cordon(node, None)
            node["metadata"]["managedFields"].append(
                {"manager": manager, "operation": "Update", "time": self.clock.now(), "fieldsV1": {"f:metadata": {}}}
            )

        self.change(edit)

    def _own_cordon(self, node: dict[str, Any], manager: str | None) -> None:
        fields = [
            entry for entry in node["metadata"].get("managedFields", []) if "f:unschedulable" not in entry["fieldsV1"].get("f:spec", {})
        ]
        if manager is not None:
            fields.append(
                {"manager": manager, "operation": "Update", "time": self.clock.now(), "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}
            )
        node["metadata"]["managedFields"] = fields

    def delete(self) -> None:
        """The node goes."""
        self.node = None
        self.version += 1

    def recreate(self) -> None:
        """The node goes and comes back under its name."""
        assert self.node is not None
        node = copy.deepcopy(self.node)
        node["metadata"]["uid"] = "uid-2"
        node["metadata"].pop("annotations", None)
        node["spec"].pop("unschedulable", None)
        self.node = node
        self._bump(node)

    def add_pod(self, pod: dict[str, Any]) -> None:
        """A pod appears, or changes."""
        self.pods[f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"] = pod
        self.version += 1

    def remove_pod(self, name: str) -> None:
        """A pod goes."""
        self.pods.pop(name, None)
        self.version += 1

    # ------------------------------------------------------------ what tests ask

    @property
    def unschedulable(self) -> bool:
        return self.node is not None and bool(self.node["spec"].get("unschedulable"))

    @property
    def record(self) -> str | None:
        """The transaction annotation, as it is on the node now."""
        return None if self.node is None else (self.node["metadata"].get("annotations") or {}).get(ANNOTATION)

    def kinds(self) -> list[str]:
        """The patches that were sent, dry runs left out, whether they took effect or not."""
        return [write.kind for write in self.writes if write.kind != "dry-run"]

    # ------------------------------------------------------------ the port

    def _enter(self, name: str) -> Call:
        call = self.steering.enter(f"cluster.{name}")
        if name.startswith("read_"):
            if call.is_fault("refused"):
                raise Forbidden("forbidden", "not allowed (403)", "ask for the permission")
            if self.problem is not None:
                raise self.problem
            if call.is_fault("fails", "lost"):
                raise Unreachable("unreachable", "the API server can not be reached", "check the network")
        return call

    def _leave(self, name: str, call: Call) -> None:
        self.reads[name] = self.clock.monotonic()
        call.done()

    def read_node(self, name: str) -> NodeView | None:
        call = self._enter("read_node")
        assert name == self.name
        answer = None if self.node is None else node_view(copy.deepcopy(self.node))
        self._leave("read_node", call)
        return answer

    def read_nodes(self) -> tuple[NodeView, ...]:
        call = self._enter("read_nodes")
        answer = () if self.node is None else (node_view(copy.deepcopy(self.node)),)
        self._leave("read_nodes", call)
        return answer

    def read_everything(self) -> Facts:
        return self.read_facts(self.name, False)

    def facts(self, whole: bool = False) -> Facts:
        """Everything beside the node, as it is now."""
        objects = {"pods": [pod for _, pod in sorted(self.pods.items())], **self.objects}
        found: dict[str, Any] = {
            c.field: tuple(c.view(copy.deepcopy(item)) for item in objects.get(c.field, []))
            for c in (COLLECTIONS if whole else WATCHED[1:])
        }
        return Facts(**found)

    def read_facts(self, node: str, whole: bool) -> Facts:
        call = self.steering.enter("cluster.read_facts")
        assert node == self.name
        answer = replace(self.facts(whole), **{field: Problem(reason) for field, reason in self.unread.items()})
        reason = "not allowed (403)" if call.is_fault("refused") else self.problem.message if self.problem else None
        if call.is_fault("fails", "lost"):
            reason = "the API server can not be reached"
        if reason is not None:
            answer = Facts(**{field: Problem(reason) for field in vars(answer)})
        self._leave("read_facts", call)
        return answer

    def patch_node(
        self, name: str, operations: Sequence[dict[str, Any]], dry_run: bool = False, late: Callable[[], bool] | None = None
    ) -> NodeView:
        call = self.steering.enter("cluster.patch_node")
        if late is not None and late():
            raise RefusedByServer("too-late", "the look is too old")
        assert name == self.name
        operations = copy.deepcopy(list(operations))
        kind = kind_of(operations, dry_run)
        before = copy.deepcopy(self.node) or {}

        def note(effective: bool) -> None:
            self.writes.append(Write(kind, operations, self.clock.monotonic(), effective, before))

        if call.is_fault("refused"):
            note(False)
            raise RefusedByServer("patch-refused", "admission says no (400)", "see what it says")
        if call.is_fault("fails"):
            note(False)
            raise UnknownOutcome("patch-unknown", "the connection broke", "look at the node")
        refusal = self.refuses(kind)
        if refusal is not None:
            note(False)
            raise refusal
        if self.node is None:
            note(False)
            raise Missing("not-found", "no such node (404)")
        try:
            node = self._apply(self.node, operations)
        except LostGuard:
            note(False)
            raise
        self.mutates(kind, node)
        if not dry_run and node != self.node:
            self._bump(node)
            self.node = node
        note(True)
        if call.is_fault("lost"):
            raise UnknownOutcome("patch-unknown", "the answer was lost", "look at the node")
        answer = node_view(copy.deepcopy(node))
        call.done()
        return answer

    def _apply(self, stored: dict[str, Any], operations: list[dict[str, Any]]) -> dict[str, Any]:
        # Servers pass a test against null for an absent path; jsonpatch does not, so none may be sent.
        assert all(o["op"] != "test" or o["value"] is not None for o in operations)
        try:
            node = jsonpatch.apply_patch(stored, copy.deepcopy(operations))
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException):
            raise LostGuard("lost-guard", "the node changed under the patch (422)") from None
        if node["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"]:
            raise LostGuard("lost-guard", "the node changed under the patch (409)")
        was, now = bool(stored["spec"].get("unschedulable")), bool(node["spec"].get("unschedulable"))
        if was != now:
            self._own_cordon(node, FIELD_MANAGER if now else None)
        return dict(node)

    def ask_flux(self, collection: str, namespace: str, name: str) -> str:
        call = self.steering.enter("cluster.ask_flux")
        if call.is_fault("fails", "lost", "refused"):
            raise Forbidden("forbidden", "not allowed (403)", "ask for the permission")
        self.asked.append(f"{collection} {namespace}/{name}")
        call.done()
        return f"asked {len(self.asked)}"

    def probe_watches(self, node: str) -> Problem | None:
        assert node == self.name
        return self.blind

    def watch(self, node: str) -> FakeWatch:
        call = self.steering.enter("cluster.watch")
        assert node == self.name
        watch = FakeWatch(self)
        self.watches.append(watch)
        call.done()
        return watch


@dataclass(frozen=True)
class FakeSignal:
    """The port ``Signal``."""

    node: NodeView | None = None
    gone: bool = False
    facts: Facts | None = None
    broke: bool = False
    problem: str | None = None


class FakeWatch:
    """The port ``Watch``: shows the state whenever it differs from what was shown last; waiting is what lets time pass."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.shown, self.closed = cluster, -1, False
        self.extra: list[FakeSignal] = []

    def state(self, **more: Any) -> FakeSignal:
        """What there is to see now."""
        cluster = self.cluster
        node = None if cluster.node is None else node_view(copy.deepcopy(cluster.node))
        return FakeSignal(**{"node": node, "gone": node is None, "facts": cluster.facts(), **more})

    def next_signal(self, seconds: float) -> FakeSignal | None:
        call = self.cluster.steering.enter("cluster.next_signal")
        assert not self.closed
        if call.is_fault("fails", "lost", "refused"):
            return FakeSignal(broke=True, problem="the watch broke")
        if (problem := self.cluster.problem) is not None:
            self.cluster.clock.pass_time(seconds)
            self.shown = -1
            return FakeSignal(broke=True, problem=problem.message) if seconds else None
        if self.shown == self.cluster.version and not self.extra:
            self.cluster.clock.pass_time(self.cluster.clock.until_next(seconds))
        answer = None
        if self.extra:
            answer = self.extra.pop(0)
        elif self.shown != self.cluster.version:
            self.shown = self.cluster.version
            answer = self.state()
        call.done()
        return answer

    def close(self) -> None:
        self.closed = True
