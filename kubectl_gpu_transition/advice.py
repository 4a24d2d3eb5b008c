"""The checks that only warn (spec section 3): what a person should know before a transition and what does not make it unsafe. Pure."""

from __future__ import annotations

from kubectl_gpu_transition import plan
from kubectl_gpu_transition.checks import Look
from kubectl_gpu_transition.gates import GATES, read_env
from kubectl_gpu_transition.model import Check, NodeView, Problem, TipFacts
from kubectl_gpu_transition.modes import MODES
from kubectl_gpu_transition.stack import DEPLOY, is_paused
from kubectl_gpu_transition.target import find_missing_owners, find_owners

NODE_MODES = "GPU_NODE_MODES"  # the generator's input: node=mode,… (facts of the fleet's generator)


def advise(look: Look) -> tuple[Check, ...]:
    """Every check that warns, in the contract's order, after all that block."""
    return _live_gates(look), _source_owner(look), _gpu_stack(look), _generator_input(look)


def _live_gates(look: Look) -> Check:
    settings = look.observation.facts.settings
    if isinstance(settings, Problem):
        return Check("live-gates", "warn", f"the live creation gates can not be told: {settings.message}", settings.remedy)
    if not settings:
        return Check("live-gates", "skip", "there is no ConfigMap flux-system/cluster-config")
    wrong = [f"{gate} is {settings[0].get(gate, 'absent')!r}" for gate in GATES if settings[0].get(gate) != "false"]
    if wrong:
        remedy = (
            "wait until Flux has applied the fleet, or see who opened them: kubectl get configmap -n flux-system cluster-config -o yaml"
        )
        return Check("live-gates", "warn", f"in the cluster {'; '.join(wrong)}", plan.point_at_cluster(look.request, remedy))
    return Check("live-gates", "pass", "both creation gates are false in the cluster")


def _source_owner(look: Look) -> Check:
    node, pods, source = look.observation.node, look.observation.facts.pods, look.request.source
    if not isinstance(node, NodeView) or source is None:
        return Check("source-owner", "skip", "there is no node to look at")
    if look.waiting:
        return Check("source-owner", "skip", "the change is in force: the owner is on its way out")
    if isinstance(pods, Problem):
        return Check("source-owner", "warn", f"the owner of {source.value} can not be told: {pods.message}", pods.remedy)
    missing = find_missing_owners(find_owners(pods, node.name), source)
    if missing:
        remedy = f"the node does not really work in {source.value}; find out why first, or go on if you know"
        return Check("source-owner", "warn", "; ".join(missing), remedy)
    return Check("source-owner", "pass", f"{MODES[source].owner} runs on the node")


def _gpu_stack(look: Look) -> Check:
    """Deploy labels that keep the operator from its work: paused ones are in progress or stuck; a driver that was there before is
    never unbound, so that no VM gets the device (k8s-driver-manager: cmd/driver-manager)."""
    node, target = look.observation.node, look.request.target
    if not isinstance(node, NodeView) or target is None:
        return Check("gpu-stack", "skip", "there is no node to look at")
    for_vm = MODES[target].config != "container"
    found = [
        f"{key} is {value!r}"
        for key, value in sorted(node.labels.items())
        if key.startswith(DEPLOY) and (is_paused(value) or (for_vm and value == "pre-installed"))
    ]
    if found:
        remedy = "a paused operand is being changed or was left so: see the driver manager's and the MIG manager's pods"
        if any("pre-installed" in what for what in found):
            remedy = "a driver that was installed on the host is not unloaded by the GPU operator: take it off the host"
        return Check("gpu-stack", "warn", f"the target may never become ready: {'; '.join(found)}", remedy)
    return Check("gpu-stack", "pass", "no operand is paused or left over from a host driver")


def _generator_input(look: Look) -> Check:
    request, tip = look.request, look.observation.tip
    env = tip.env if look.waiting and isinstance(tip, TipFacts) else look.observation.checkout.env
    if not isinstance(env, bytes) or request.target is None:
        return Check("generator-input", "skip", "there is no configuration to look at")
    try:
        text = read_env(env).get(NODE_MODES)
    except UnicodeDecodeError:
        return Check("generator-input", "skip", "the configuration is not UTF-8")
    if not text:
        return Check("generator-input", "skip", f"{NODE_MODES} is not in {plan.env_path(request.cluster)}")
    entries = (entry.partition("=") for entry in text.split(",") if entry.strip())
    modes = {name.strip(): mode.strip() for name, _, mode in entries}
    if modes.get(request.node) == request.target.value:
        return Check("generator-input", "pass", f"{NODE_MODES} says {request.target.value} too")
    says = f"has {request.node} in {modes[request.node]}" if request.node in modes else f"does not name {request.node}"
    updated = ",".join(f"{name}={mode}" for name, mode in sorted({**modes, request.node: request.target.value}.items()))
    return Check(
        "generator-input",
        "warn",
        f"{NODE_MODES} {says}: generating the fleet's files again would undo the change",
        f"when the transition is complete: kube-dc bootstrap config set {request.cluster} {NODE_MODES}={updated} --yes",
    )
