"""One node, one fleet, and what moves between them: Flux, NFD and the GPU operator. ``World.run`` is one process of the program."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from typing import Any

from ruamel.yaml import YAML

from kubectl_gpu_transition.engine import Engine
from kubectl_gpu_transition.model import Outcome, Request, Transaction
from kubectl_gpu_transition.modes import MODES, Mode
from kubectl_gpu_transition.plan import env_path, rule_path
from kubectl_gpu_transition.record import decode
from kubectl_gpu_transition.rule import find_block
from tests.fakes.cluster import Cluster
from tests.fakes.fleet import Fleet
from tests.fakes.steering import Clock, Interrupts, ProcessDied, Steering, Terminal

CLUSTER, NODE = "eu/dc1", "gpu-1"
HAMI, DRA, VM = Mode.POD_HAMI, Mode.POD_HAMI_DRA, Mode.VM_PASSTHROUGH
ENV = b"DOMAIN=dc1.example\nGPU_SHARED_CREATION_ENABLED=false\nGPU_VM_CREATION_ENABLED=false\n"
_HEAD = "apiVersion: nfd.k8s-sigs.io/v1alpha1\nkind: NodeFeatureRule\nmetadata:\n  name: eu-dc1-gpu-node-modes\nspec:\n  rules:\n"
_BLOCK = """\
    - name: NODE-MODE
      labels:
        kube-dc.com/gpu.workload-mode: MODE
        kube-dc.com/gpu.expected-workload-mode: MODE
        nvidia.com/gpu.workload.config: CONFIG
      matchFeatures:
        - feature: system.name
          matchExpressions:
            nodename:
              op: In
              value: ["NODE"]
        - feature: pci.device
          matchExpressions:
            vendor:
              op: In
              value: ["10de"]
            class:
              op: In
              value: ["0300", "0302"]
"""


def rule_text(**modes: Mode) -> bytes:
    """The generated rule of these nodes; ``gpu_1=HAMI`` is the node gpu-1."""
    blocks = (
        _BLOCK.replace("NODE", node.replace("_", "-")).replace("MODE", mode.value).replace("CONFIG", MODES[mode].config)
        for node, mode in modes.items()
    )
    return (_HEAD + "".join(blocks)).encode()


def owner_namespace(mode: Mode) -> str:
    """Where the owner of a mode runs here."""
    return "gpu-operator" if "gpu-operator" in MODES[mode].namespaces else "hami-system"


def stack() -> dict[str, list[dict[str, Any]]]:
    """The owner DaemonSets of the supported modes, the GPU operator's policy, and the live settings."""
    selectors = {
        HAMI: {"kube-dc.com/gpu.workload-mode": "pod-hami"},
        DRA: {"kube-dc.com/gpu.workload-mode": "pod-hami-dra"},
        VM: {"nvidia.com/gpu.deploy.sandbox-device-plugin": "true"},
    }
    daemonsets = [
        {
            "metadata": {"namespace": owner_namespace(mode), "name": MODES[mode].owner},
            "spec": {"template": {"spec": {"nodeSelector": selector}}},
        }
        for mode, selector in selectors.items()
    ]
    policy = {"metadata": {"name": "cluster-policy"}, "spec": {"sandboxWorkloads": {"enabled": True}, "devicePlugin": {"enabled": False}}}
    closed = {"data": {"GPU_SHARED_CREATION_ENABLED": "false", "GPU_VM_CREATION_ENABLED": "false"}}
    return {"daemonsets": daemonsets, "policies": [policy], "settings": [closed]}


def owner_pod(mode: Mode, ready: bool = True, **more: Any) -> dict[str, Any]:
    """A pod of the mode's owner DaemonSet on the node."""
    return daemon_pod(MODES[mode].owner, owner_namespace(mode), ready, **more)


def daemon_pod(name: str, namespace: str, ready: bool = True, **more: Any) -> dict[str, Any]:
    """A DaemonSet's pod on the node."""
    return {
        "metadata": {
            "namespace": namespace,
            "name": f"{name}-abcde",
            "uid": f"uid-{name}",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "controller": True}],
            **more,
        },
        "spec": {"nodeName": NODE, "containers": [{"name": "plugin"}]},
        "status": {
            "phase": "Running" if ready else "Pending",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [{"name": "plugin", "state": {"running": {}} if ready else {"waiting": {"reason": "PodInitializing"}}}],
        },
    }


def gpu_pod(name: str = "train-0", resource: str = "nvidia.com/gpu", **status: Any) -> dict[str, Any]:
    """A tenant's pod that holds a GPU."""
    return {
        "metadata": {"namespace": "team-a", "name": name, "uid": f"uid-{name}"},
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "resources": {"limits": {resource: "1"}}}]},
        "status": {"phase": "Running", **status},
    }


def live_rule(mode: Mode) -> dict[str, Any]:
    """The NodeFeatureRule as Flux has applied it, with the node in that mode."""
    made: dict[str, Any] = YAML(typ="safe", pure=True).load(rule_text(gpu_1=mode, gpu_2=HAMI).decode())
    return made


class World:
    """Everything that outlives a process. ``mode`` is where the node starts; without ``player`` Flux, NFD and the operator do nothing."""

    def __init__(self, mode: Mode = HAMI, other: Mode = VM, player: bool = True) -> None:
        self.clock = Clock()
        self.steering = Steering(self.clock)
        self.cluster = Cluster(self.steering, self.clock, NODE)
        self.fleet = Fleet(
            self.steering, self.clock, {env_path(CLUSTER): ENV, rule_path(CLUSTER): rule_text(gpu_1=mode, gpu_2=HAMI), "README": b"x"}
        )
        self.source, self.target = mode, other
        self.cluster.label(active=mode.value, expected=mode.value, config=MODES[mode].config)
        self.cluster.add_pod(owner_pod(mode))
        flux = {"name": "gpu-node-mode", "namespace": "flux-system", "generation": 1}
        applied = {
            "observedGeneration": 1,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Succeeded", "message": "applied"}],
        }
        kustomization = {
            "metadata": flux,
            "spec": {"path": f"./clusters/{CLUSTER}/gpu-node-modes", "sourceRef": {"kind": "GitRepository", "name": "flux-system"}},
            "status": applied,
        }
        source = {
            "metadata": {"name": "flux-system", "namespace": "flux-system", "generation": 1},
            "spec": {"url": "ssh://git@git.example/fleet", "ref": {"branch": "main"}},
            "status": applied,
        }
        self.cluster.objects = {"kustomizations": [kustomization], "sources": [source], "rules": [live_rule(mode)], **stack()}
        self.terminal = Terminal()
        self.interrupts = Interrupts()
        self.on_arrival: Callable[[], None] = lambda: None  # what else happens when the labels change
        self._ids = (str(uuid.UUID(int=number, version=4)) for number in itertools.count(1))
        self._applied, self._revision = mode, self.fleet.tip
        if player:
            self._play()

    # ------------------------------------------------------------ Flux, NFD, the operator

    def _play(self) -> None:
        """Every second, for ever: the remote's rule is applied, the labels follow, then the plugins, one after the other."""
        if self.fleet.tip not in (None, self._revision) and self.cluster.node is not None:
            self._revision, mode = self.fleet.tip, self.fleet_mode()
            if mode is not self._applied:
                self._applied = mode
                self.arrive(mode)
        self.clock.at(1.0, self._play)

    def arrive(self, mode: Mode) -> None:
        """The node goes over to a mode, in steps."""
        cluster = self.cluster
        others = [other for other in MODES if MODES[other].owner != MODES[mode].owner]
        cluster.objects["rules"] = [live_rule(mode)]
        cluster.label(active=mode.value, expected=mode.value, config=MODES[mode].config)
        self.on_arrival()
        self.clock.at(0.5, lambda: cluster.add_pod(owner_pod(mode, ready=False)))
        for other in others:
            name = f"{owner_pod(other)['metadata']['namespace']}/{MODES[other].owner}-abcde"
            self.clock.at(1.0, lambda name=name: cluster.remove_pod(name))  # type: ignore[misc]
        self.clock.at(3.0, lambda: cluster.add_pod(owner_pod(mode)))

    # ------------------------------------------------------------ the program

    def request(self, command: str = "apply", **more: Any) -> Request:
        """A request in this world."""
        source, target = (None, None) if command in ("abandon", "status") else (self.source, self.target)
        lenient = {"ignore_missing_gitops": True} if command == "status" else {}
        values = {"node": NODE, "source": source, "target": target, "yes": True, **lenient, **more}
        return Request(command, CLUSTER, repo="/fleet", kubeconfig="/dc1.kubeconfig", **values)

    def run(self, command: str = "apply", **more: Any) -> Outcome:
        """One process of the program, to its end. Raises ProcessDied when it was killed."""
        return self.engine(command, **more).run()

    def engine(self, command: str = "apply", **more: Any) -> Engine:
        """A new process that has not started yet."""
        self.fleet.new_process()
        return Engine(
            self.request(command, **more),
            self.cluster,
            self.fleet,
            self.clock,
            self.terminal,
            self.interrupts,
            lambda: next(self._ids),
            "laptop",
            "kubectl gpu-transition apply …",
        )

    def run_to_death(self, **more: Any) -> Outcome | None:
        """As ``run``; None when the process was killed."""
        try:
            return self.run(**more)
        except ProcessDied:
            return None

    def resume(self, **more: Any) -> Outcome:
        """What an operator does next, in a new process: resume where there is a transaction, else apply. Nothing is steered any more."""
        self.steering.revive()
        self.interrupts = Interrupts()
        return self.run(resume=self.cluster.record is not None, **more)

    # ------------------------------------------------------------ what tests ask

    @property
    def transaction(self) -> Transaction | None:
        """The transaction on the node now."""
        return decode(self.cluster.record or "")

    def fleet_mode(self) -> Mode:
        """What the tip's rule asks for."""
        assert self.fleet.tip is not None
        return find_block(self.fleet.commits[self.fleet.tip].files[rule_path(CLUSTER)], NODE).mode

    def is_done(self) -> bool:
        """The end of an undisturbed run: schedulable, no record, at the target, and exactly one commit for it."""
        labels = self.cluster.node["metadata"]["labels"] if self.cluster.node else {}
        return (
            not self.cluster.unschedulable
            and self.cluster.record is None
            and labels.get("kube-dc.com/gpu.workload-mode") == self.target.value
            and self.fleet_mode() is self.target
            and len(self.fleet.carrying()) == 1
        )

    def end(self) -> dict[str, Any]:
        """The end state, to be compared with that of another run."""
        assert self.cluster.node is not None
        node = self.cluster.node
        return {
            "labels": node["metadata"]["labels"],
            "annotations": node["metadata"].get("annotations") or {},
            "spec": node["spec"],
            "pods": sorted(self.cluster.pods),
            "commits": [self.fleet.commits[c].facts().subject for c in self.fleet.ancestors(self.fleet.tip)],
            "files": self.fleet.commits[self.fleet.tip].files if self.fleet.tip else None,
        }
