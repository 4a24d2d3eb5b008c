"""Will the target's owner come up on the node, and nobody else's? What node selectors tell before the cordon (spec section 3,
``target-stack``). Pure.

Answers are three-valued: what provably can not come blocks, what can not be told is only a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kubectl_gpu_transition.facts import DaemonSetView, PolicyView, Requirement
from kubectl_gpu_transition.model import NodeView
from kubectl_gpu_transition.modes import CONFLICTING_OWNERS, MODES, Mode, label_values, supported_modes

DEPLOY = "nvidia.com/gpu.deploy."
# The operator's operands of each workload config (NVIDIA/gpu-operator: controllers/state_manager.go, gpuStateLabels). The sandbox
# plugin's key is the KubeVirt mode's; the MIG manager is no owner of a device.
_OPERANDS = {
    "container": (
        *("driver", "container-toolkit", "device-plugin", "gpu-feature-discovery", "dcgm", "dcgm-exporter"),
        *("node-status-exporter", "operator-validator"),
    ),
    "vm-passthrough": ("sandbox-device-plugin", "sandbox-validator", "vfio-manager", "kata-manager", "cc-manager"),
}
_KEYS = frozenset(
    DEPLOY + name for name in (*(n for names in _OPERANDS.values() for n in names), "kata-sandbox-device-plugin", "vgpu-manager")
)


@dataclass(frozen=True)
class Prospect:
    """What there is to say of a node at the target: ``impossible`` reasons each with what to do, ``unknown`` ones, and the owner that
    will come (namespace/name), None where none will for certain."""

    impossible: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]
    owner: str | None


def predict_labels(node: NodeView, mode: Mode) -> tuple[dict[str, str], frozenset[str]]:
    """The node's labels in that mode, and the keys whose value can not be told: the three ownership labels, and the operator's deploy
    labels, of which it adds those of the config and keeps the values that are not empty."""
    wanted = {DEPLOY + name for name in _OPERANDS[MODES[mode].config]}
    if node.labels.get(f"{DEPLOY}operands") == "false":
        wanted = set()
    labels = {key: value for key, value in node.labels.items() if key in wanted or key not in _KEYS}
    for key in wanted:
        labels[key] = labels.get(key) or "true"
    paused = frozenset(key for key in wanted if is_paused(labels[key]))
    return {**labels, **label_values(mode)}, paused


def is_paused(value: str) -> bool:
    """Whether a deploy label's value is one that is put back later (k8s-driver-manager, mig-parted)."""
    return value.startswith("paused-") or value.endswith("_paused-for-driver-upgrade")


def foresee(daemonsets: Iterable[DaemonSetView], policies: tuple[PolicyView, ...], node: NodeView, mode: Mode) -> Prospect:
    """What will become of the node at that mode."""
    labels, unsure = predict_labels(node, mode)
    impossible, unknown = _judge_policies(policies, mode)
    if not policies:  # then nobody is known to write them
        unsure |= {key for key in _KEYS if labels.get(key) != node.labels.get(key)}
    facts = MODES[mode]
    others = {MODES[other].owner for other in supported_modes() if other is not mode} | CONFLICTING_OWNERS
    owners: list[DaemonSetView] = []
    for daemonset in daemonsets:
        name = f"{daemonset.namespace}/{daemonset.name}"
        if daemonset.name == facts.owner and daemonset.namespace in facts.namespaces:
            owners.append(daemonset)
        elif daemonset.name in others:
            comes = selects(daemonset, node.name, labels, unsure)
            what = f"DaemonSet {name} will run on the node too, and conflicts with {mode.value}"
            if comes:
                impossible.append((what, f"take it off the node first, through the fleet: {_inspect(daemonset)}"))
            elif comes is None:
                unknown.append(f"whether DaemonSet {name}, which conflicts with {mode.value}, will run on the node")
    places = " or ".join(sorted(facts.namespaces))
    answers = [(owner, selects(owner, node.name, labels, unsure)) for owner in owners]
    coming = next((f"{owner.namespace}/{owner.name}" for owner, comes in answers if comes), None)
    if not owners:
        what = f"there is no DaemonSet {facts.owner} in {places}: this cluster does not have the stack of {mode.value}"
        impossible.append((what, "deploy that stack through the fleet first: kubectl get daemonsets -A"))
    elif coming is None and all(comes is False for _, comes in answers):
        for owner, _ in answers:
            what = f"DaemonSet {owner.namespace}/{owner.name} will not select the node at {mode.value}: {_unmet(owner, node.name, labels)}"
            impossible.append((what, f"mend its node selector or the node's labels first: {_inspect(owner)}"))
    elif coming is None:
        unknown += [f"whether DaemonSet {owner.namespace}/{owner.name} will select the node at {mode.value}" for owner, _ in answers]
    return Prospect(tuple(impossible), tuple(unknown), coming)


def _judge_policies(policies: tuple[PolicyView, ...], mode: Mode) -> tuple[list[tuple[str, str]], list[str]]:
    """What the operator's policy makes impossible, and what it leaves open. With several the operator takes one and ignores the rest."""
    if not policies:
        return [], ["no ClusterPolicy: what the GPU operator will run here"]
    if mode is not Mode.VM_PASSTHROUGH:
        return [], []
    wrong = []
    for policy in policies:
        see = f"mend it through the fleet first: kubectl get clusterpolicy {policy.name} -o yaml"
        if not policy.sandbox_enabled:
            wrong.append((f"ClusterPolicy {policy.name} has sandbox workloads disabled: the workload config is ignored", see))
        elif policy.sandbox_mode != "kubevirt":
            wrong.append((f"ClusterPolicy {policy.name} has sandbox workloads in mode {policy.sandbox_mode}, not kubevirt", see))
    if len(wrong) < len(policies):
        return [], [f"which ClusterPolicy counts: {what}" for what, _ in wrong]
    return wrong, []


def _inspect(daemonset: DaemonSetView) -> str:
    return f"kubectl get daemonset -n {daemonset.namespace} {daemonset.name} -o yaml"


def selects(daemonset: DaemonSetView, name: str, labels: Mapping[str, str], unsure: frozenset[str]) -> bool | None:
    """Whether its pods' node selector and required node affinity admit a node with these labels; None where a label in ``unsure``
    decides. Of the affinity's terms one has to hold, with all its requirements (kubernetes/api: core/v1, NodeSelector)."""
    wanted = _all(_holds(requirement, name, labels, unsure) for requirement in _selector(daemonset))
    if daemonset.node_terms is None:
        return wanted
    terms = [_all(_holds(requirement, name, labels, unsure) for requirement in term) if term else False for term in daemonset.node_terms]
    one = True if True in terms else None if None in terms else False
    return _all((wanted, one))


def _selector(daemonset: DaemonSetView) -> list[Requirement]:
    return [Requirement(key, "In", (value,)) for key, value in sorted(daemonset.node_selector.items())]


def _all(answers: Iterable[bool | None]) -> bool | None:
    found = list(answers)
    return False if False in found else None if None in found else True


_OPERATORS: dict[str, Callable[[str | None, tuple[str, ...]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
}


def _holds(requirement: Requirement, name: str, labels: Mapping[str, str], unsure: frozenset[str]) -> bool | None:
    if requirement.field:
        value, sure = name, requirement.key == "metadata.name"
    else:
        value, sure = labels.get(requirement.key, ""), requirement.key not in unsure
    operator = _OPERATORS.get(requirement.operator)
    if not sure or operator is None:  # Gt and Lt compare numbers: no owner is known to use them
        return None
    return operator(value if requirement.field or requirement.key in labels else None, requirement.values)


def _unmet(daemonset: DaemonSetView, name: str, labels: Mapping[str, str]) -> str:
    unmet = [
        f"it wants {requirement.key}={requirement.values[0]}, there will be {labels.get(requirement.key) or 'none'}"
        for requirement in _selector(daemonset)
        if _holds(requirement, name, labels, frozenset()) is False
    ]
    return "; ".join(unmet) or "its node affinity does not admit it"
