"""Values as the adapters make them, each with one field or two changed. The defaults are a node that is fit to leave pod-hami."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from kubectl_gpu_transition.checks import Look
from kubectl_gpu_transition.facts import Condition, Facts, KustomizationView, Observation, SourceView
from kubectl_gpu_transition.kinds import daemonset_view, policy_view, rule_object, settings_view
from kubectl_gpu_transition.model import (
    CheckoutFacts,
    CommitFacts,
    Controller,
    FieldEntry,
    History,
    Identity,
    NodeView,
    PodClaim,
    PodView,
    Request,
    Route,
    TipFacts,
    Transaction,
)
from kubectl_gpu_transition.modes import MODES, Mode, label_values
from kubectl_gpu_transition.record import Claim, encode
from kubectl_gpu_transition.rule import edit_block
from tests.fakes.world import live_rule, rule_text, stack

HAMI, DRA, VM, VGPU = Mode.POD_HAMI, Mode.POD_HAMI_DRA, Mode.VM_PASSTHROUGH, Mode.VM_VGPU
ANNOTATION = "kube-dc.com/gpu-transition"
ID, BASE, COMMIT, LATER = "12345678-1234-4234-8234-123456789abc", "b" * 40, "c" * 40, "d" * 40
ENV = b"GPU_SHARED_CREATION_ENABLED=false\nGPU_VM_CREATION_ENABLED=false\n"
RULE, RULE_VM = rule_text(gpu_1=HAMI, gpu_2=HAMI), rule_text(gpu_1=VM, gpu_2=HAMI)
READY = {"Ready": Condition("True", "ReconciliationSucceeded", "applied")}
ROUTE = Route("origin", "main", "https://git.example/fleet.git", "https://git.example/fleet.git", False)


def request(**more: Any) -> Request:
    values = {"command": "apply", "source": HAMI, "target": VM, **more}
    return Request(cluster="eu/dc1", node="gpu-1", repo="/fleet", kubeconfig="/dc1.kubeconfig", **values)


def transaction(**more: Any) -> Transaction:
    first = Transaction(ID, "uid-1", "eu/dc1", HAMI, VM, "cordoned", BASE, None, "2026-05-01T00:00:00Z", "Op@laptop")
    return replace(first, **more)


def pushing(**more: Any) -> Transaction:
    return transaction(phase="pushing", commit=COMMIT, **more)


def entry(manager: str, time: str = "2026-05-01T00:00:00Z", cordons: bool = True) -> FieldEntry:
    return FieldEntry(manager, "Update", time, cordons)


def node(mode: Mode = HAMI, **more: Any) -> NodeView:
    first = NodeView(
        name="gpu-1",
        uid="uid-1",
        version="100",
        labels=label_values(mode),
        annotations={},
        has_annotations=True,
        unschedulable=False,
        ready="True",
        deleting=False,
        taints=(),
        conditions={"Ready": "True"},
        managers=(),
    )
    return replace(first, **more)


def ours(mode: Mode = HAMI, record: Transaction | None = None, **more: Any) -> NodeView:
    """The node, cordoned under a transaction."""
    values = {"unschedulable": True, "annotations": {ANNOTATION: encode(record or transaction())}, **more}
    return node(mode, **values)


def pod(name: str = "train-0", **more: Any) -> PodView:
    first = PodView(
        namespace="team-a",
        name=name,
        uid=f"uid-{name}",
        node="gpu-1",
        phase="Running",
        running=True,
        ready=True,
        deleting_since=None,
        grace=None,
        controller=None,
        resources=frozenset(),
        claims=(),
        waiting=None,
    )
    return replace(first, **more)


def holder(name: str = "train-0", **more: Any) -> PodView:
    return pod(name, **{"resources": frozenset({"nvidia.com/gpu"}), **more})


def daemon(name: str, namespace: str = "gpu-operator", **more: Any) -> PodView:
    return pod(f"{name}-x", **{"namespace": namespace, "controller": Controller("apps/v1", "DaemonSet", name), **more})


def owner(mode: Mode, **more: Any) -> PodView:
    return daemon(MODES[mode].owner, sorted(MODES[mode].namespaces)[0], **more)


def history(*commits: CommitFacts, descends: bool = True) -> History:
    return History(BASE, descends, commits)


def tip(**more: Any) -> TipFacts:
    return replace(TipFacts(BASE, None, "equal", ENV, RULE, None), **more)


def checkout(**more: Any) -> CheckoutFacts:
    first = CheckoutFacts(
        path="/fleet",
        state=None,
        locked=None,
        branch="main",
        head=BASE,
        clusters=("eu/dc1", "us/dc9"),
        env=ENV,
        rule=RULE,
        route=ROUTE,
        identity=Identity("Op <op@example.com>", "Op <op@example.com>"),
    )
    return replace(first, **more)


def kustomization(**more: Any) -> KustomizationView:
    first = KustomizationView(
        namespace="flux-system",
        name="gpu-node-mode",
        path="./clusters/eu/dc1/gpu-node-modes",
        source=("GitRepository", "flux-system", "flux-system"),
        depends_on=(),
        suspended=False,
        observed=True,
        conditions=READY,
        applied=None,
    )
    return replace(first, **more)


def source(**more: Any) -> SourceView:
    first = SourceView(
        namespace="flux-system",
        name="flux-system",
        url="https://git.example/fleet.git",
        ref="main",
        suspended=False,
        observed=True,
        conditions=READY,
        revision=None,
    )
    return replace(first, **more)


def facts(**more: Any) -> Facts:
    """What a sound cluster shows beside the node; Flux's two objects can be given as ``kustomization`` and ``source``, None for absent,
    and what the live rule asks for as ``asks``."""
    flux = {"kustomizations": more.pop("kustomization", kustomization()), "sources": more.pop("source", source())}
    sound: dict[str, Any] = {
        "rules": (rule_object(live_rule(more.pop("asks", HAMI))),),
        "daemonsets": tuple(daemonset_view(one) for one in stack()["daemonsets"]),
        "policies": tuple(policy_view(one) for one in stack()["policies"]),
        "settings": tuple(settings_view(one) for one in stack()["settings"]),
    }
    first = Facts(pods=(owner(HAMI),), **sound, **{field: () if made is None else (made,) for field, made in flux.items()})
    return replace(first, **more)


def claim(name: str) -> PodClaim:
    """A claim that a pod names, not known by its own name yet."""
    return PodClaim(name, None)


def observation(**more: Any) -> Observation:
    """An observation; what ``facts`` takes may be given here too."""
    own = {key: more.pop(key) for key in ("node", "facts", "checkout", "tip", "taken") if key in more}
    return replace(Observation(node(), facts(**more), checkout(), tip(), 0.0), **own)


def look(observed: Observation | None = None, **more: Any) -> Look:
    values: dict[str, Any] = {
        "request": request(),
        "observation": observed or observation(),
        "claim": Claim("none", "", None),
        "verdict": None,
        "edit": edit_block(RULE, "gpu-1", HAMI, VM, "rule.yaml"),
        **more,
    }
    return Look(**values)


def changed(obj: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The object with another value at ``a.b.c``; ``...`` removes."""
    obj = copy.deepcopy(obj)
    *way, last = path.split(".")
    place = obj
    for key in way:
        place = place.setdefault(key, {})
    if value is ...:
        place.pop(last, None)
    else:
        place[last] = value
    return obj
