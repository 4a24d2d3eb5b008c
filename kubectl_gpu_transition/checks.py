"""The preflight: a request and an observation in, every check in the contract's order out (spec section 3). Pure.

Nothing here stops at the first failure, and nothing that could not be read passes. On a resume whose change is already in force the
same checks are judged by what can still do harm (spec section 6): everything else becomes a warning, for the wait asks for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kubectl_gpu_transition import plan
from kubectl_gpu_transition.facts import KustomizationView, Observation
from kubectl_gpu_transition.flux import find_gitops, find_kustomization, find_troubles
from kubectl_gpu_transition.gates import GATES, find_comments, find_open_gates
from kubectl_gpu_transition.holders import describe_holder, find_exempt, find_holders, find_unasked
from kubectl_gpu_transition.live_rule import (
    find_blocks,
    find_exclusion,
    find_live_mode,
    find_missing_rule,
    find_object,
    find_other_writers,
    read_name,
)
from kubectl_gpu_transition.marks import find_operations
from kubectl_gpu_transition.model import (
    ANNOTATION,
    Check,
    CommitFacts,
    NodeView,
    Problem,
    Request,
    TipFacts,
)
from kubectl_gpu_transition.modes import LABELS, MODES, QUALIFIED, Mode, label_values, supported_modes
from kubectl_gpu_transition.record import Claim
from kubectl_gpu_transition.resume import Verdict, judge_abandon, judge_cordon, read_rule_mode
from kubectl_gpu_transition.rule import Edit, RuleError, read_block
from kubectl_gpu_transition.stack import foresee
from kubectl_gpu_transition.target import find_missing_labels, find_missing_owners, find_owners

# What can refuse a resume whose change is in force; every other failure is a warning then (spec section 6).
_REFUSES_WAIT = frozenset({"modes", "creation-gates", "fleet-rule", "fleet-cluster", "node", "cordon", "live-mode", "access"})


@dataclass(frozen=True)
class Look:
    """An observation with what was concluded from it before the checks: whose annotation, section 6's verdict on the tip (None on a
    first run), the edit of the rule in HEAD, a commit that is in force without a transaction, and the push probe."""

    request: Request
    observation: Observation
    claim: Claim
    verdict: Verdict | None
    edit: Edit | RuleError | Problem | None
    orphan: CommitFacts | None = None
    push: Problem | None = None

    @property
    def waiting(self) -> bool:
        """Whether the change is already in force, so that this run only waits."""
        return self.verdict is not None and self.verdict.entry == "wait"


# What to do where a fact could not be told and the reason does not say more.
_REMEDIES = {
    "cluster-overlay": "see git fsck in the fleet checkout, or name another one with --repo",
    "creation-gates": "mend the file, as any reviewed change",
    "fleet-checkout": "see git status there, or name another checkout with --repo",
    "fleet-remote": "see git remote -v and git branch -vv in the fleet checkout",
    "fleet-identity": "see git config --list --show-origin in the fleet checkout",
    "fleet-rule": "mend the file, as any reviewed change",
}


def _fail(name: str, problem: Problem) -> Check:
    """A check whose fact is not as it should be, or not to be had: an error while it was read fails it (spec section 3)."""
    return Check(name, "fail", problem.message, problem.remedy or _REMEDIES.get(name, "see what the API server says, and try again"))


def evaluate(look: Look) -> tuple[Check, ...]:
    """Every check but ``access`` (which is a request of its own), in the contract's order."""
    checks = (
        _modes(look),
        _overlay(look),
        _gates(look),
        _checkout(look),
        _remote(look),
        _identity(look),
        _rule(look),
        judge_fleet_cluster(look),
        _flux(look),
        _live_rule(look),
        _target_stack(look),
        _node(look),
        _live_mode(look),
        _cordon(look),
        _holders(look),
        _other_actors(look),
    )
    if not look.waiting:
        return checks
    return tuple(replace(check, status="warn") if check.status == "fail" and check.name not in _REFUSES_WAIT else check for check in checks)


def evaluate_abandon(look: Look) -> tuple[Check, ...]:
    """The checks of ``abandon`` (spec section 7). Holders are shown and do not block: nothing was taken from under them."""
    tip = look.observation.tip
    transaction = look.claim.transaction
    if isinstance(tip, Problem):
        remote = _fail("fleet-remote", tip)
        rule = Check("fleet-rule", "skip", "the tip could not be read")
    else:
        remote = (
            Check("fleet-remote", "pass", f"the tip is {tip.tip[:12]}")
            if tip.tip
            else Check("fleet-remote", "fail", "the branch does not exist on the remote", "find out who removed it")
        )
        mode = read_rule_mode(tip.rule, look.request.node)
        if transaction is None:
            rule = Check("fleet-rule", "skip", "there is no transaction to compare it with")
        elif isinstance(mode, Problem):
            rule = _fail("fleet-rule", mode)
        elif mode is transaction.source:
            rule = Check("fleet-rule", "pass", f"the tip's rule asks for {mode.value}")
        else:
            rule = Check(
                "fleet-rule",
                "fail",
                f"the tip's rule asks for {mode.value}, not {transaction.source.value}: the change is in force",
                "resume the transaction, or revert its commit, push that as any change, and abandon then",
            )
    node = look.observation.node
    cordon = judge_abandon(look.request, node, look.claim, tip) if isinstance(node, NodeView) else replace(_node(look), name="cordon")
    holders = _holders(look)
    if holders.status == "fail" and not isinstance(find_holders(look.observation.facts, look.request), Problem):
        holders = replace(holders, status="warn")
    return remote, rule, judge_fleet_cluster(look), cordon, holders


def node_checks(look: Look) -> tuple[Check, ...]:
    """The checks that depend on the node alone, for a node that was read again after a conflict."""
    return _node(look), _live_mode(look), _cordon(look), _other_actors(look)


def is_at_target(request: Request, observation: Observation, fleet_cluster: Check) -> bool:
    """Whether the node was already there and nothing is left to do (spec section 3, "already at the target")."""
    node, tip, target = observation.node, observation.tip, request.target
    if not isinstance(node, NodeView) or isinstance(tip, Problem) or isinstance(observation.facts.pods, Problem) or target is None:
        return False
    return (
        {request.source, target} <= set(supported_modes())
        and request.source is not target
        and read_rule_mode(tip.rule, request.node) is target
        and not find_missing_labels(node, target)
        and not node.unschedulable
        and not node.deleting
        and ANNOTATION not in node.annotations
        and not find_missing_owners(find_owners(observation.facts.pods, request.node), target)
        and not find_missing_rule(observation.facts, read_name(tip.rule), request.node, target, request.ignore_missing_gitops)
        and fleet_cluster.status != "fail"
    )


def moot_checks(look: Look, advice: tuple[Check, ...]) -> tuple[Check, ...]:
    """The checks of a node that is already at the target: all but the ones that said so are moot."""
    kept = {"modes", "fleet-cluster"}
    checks = evaluate(look) + ((Check("access", "skip", ""),) if look.request.command == "apply" else ()) + advice
    return tuple(check if check.name in kept else Check(check.name, "skip", "moot: the node is already at the target") for check in checks)


def _modes(look: Look) -> Check:
    source, target = look.request.source, look.request.target
    if source is None or target is None or source is target:
        return Check("modes", "fail", "the modes are not two different known ones", f"known modes: {', '.join(m.value for m in Mode)}")
    for mode in (source, target):
        reason = MODES[mode].refused
        if reason is not None:
            return Check(
                "modes",
                "fail",
                f"{mode.value} is not supported: {reason}",
                f"supported modes: {', '.join(m.value for m in supported_modes())}",
            )
    if {source, target} != QUALIFIED:
        return Check("modes", "warn", f"{source.value} to {target.value} works by the same rules but is not qualified on hardware")
    return Check("modes", "pass", f"{source.value} to {target.value}")


def _overlay(look: Look) -> Check:
    checkout, cluster = look.observation.checkout, look.request.cluster
    path = plan.env_path(cluster)
    if checkout.head is None:
        return Check("cluster-overlay", "skip", "there is no checkout to look into")
    if isinstance(checkout.env, Problem):
        return _fail("cluster-overlay", checkout.env)
    if checkout.env is None:
        known = ", ".join(checkout.clusters) or "none"
        return Check(
            "cluster-overlay",
            "fail",
            f"{path} does not exist in HEAD of the fleet checkout; known clusters: {known}",
            "name one of the known clusters",
        )
    return Check("cluster-overlay", "pass", path)


def judge_gates(request: Request, env: bytes | Problem | None, where: str) -> Check:
    """The check ``creation-gates`` on one state of the cluster's configuration; ``where`` names it (HEAD, the tip)."""
    path = plan.env_path(request.cluster)
    if isinstance(env, Problem):
        return _fail("creation-gates", env)
    if env is None:
        return Check("creation-gates", "skip", f"{path} does not exist at {where}")
    try:
        complaints = find_open_gates(env)
    except UnicodeDecodeError as error:
        return Check("creation-gates", "fail", f"{path} at {where} is not UTF-8 (byte {error.start})", "mend the file")
    if complaints:
        settings = " ".join(f"{gate}=false" for gate in GATES)
        remedy = f"kube-dc bootstrap config set {request.cluster} {settings} --yes"
        comments = find_comments(env)
        if comments:
            remedy += f" (it drops {' and '.join(comments)}: keep a comment on a line of its own)"
        return Check("creation-gates", "fail", f"{path} at {where}: {'; '.join(complaints)}", remedy)
    return Check("creation-gates", "pass", f"both creation gates are false at {where}")


def _gates(look: Look) -> Check:
    tip = look.observation.tip
    if look.waiting and isinstance(tip, TipFacts):
        check = judge_gates(look.request, tip.env, "the tip")
        # With the change in force an overlay that is gone can not be told closed, so it can not be skipped either.
        return replace(check, status="fail") if check.status == "skip" else check
    if look.observation.checkout.head is None:
        return Check("creation-gates", "skip", "there is no checkout to look into")
    return judge_gates(look.request, look.observation.checkout.env, "HEAD")


def _checkout(look: Look) -> Check:
    checkout = look.observation.checkout
    problem = checkout.state or checkout.locked
    if problem is not None:
        return _fail("fleet-checkout", problem)
    return Check("fleet-checkout", "pass", f"{checkout.path}: clean, on {checkout.branch} at {(checkout.head or '')[:12]}")


_RELATIONS = {
    "behind": ("is behind the remote: it lacks what the tip {tip} has", "git -C {repo} pull --ff-only"),
    "ahead": ("is ahead of the remote's tip {tip}: it has commits that were never pushed", "push them as any change: git -C {repo} push"),
    "diverged": ("and the remote's tip {tip} have diverged", "git -C {repo} pull --rebase"),
    "unknown": ("is not the remote's tip {tip}, and the objects here do not tell more", "git -C {repo} fetch, and compare"),
}


def _remote(look: Look) -> Check:
    checkout, tip = look.observation.checkout, look.observation.tip
    if checkout.head is None:
        return Check("fleet-remote", "skip", "there is no commit to compare the remote with")
    if checkout.branch is None:
        return Check("fleet-remote", "skip", "HEAD is on no branch that could have a remote")
    if isinstance(checkout.route, Problem):
        return _fail("fleet-remote", checkout.route)
    if isinstance(tip, Problem):
        return _fail("fleet-remote", tip)
    route = checkout.route
    where = f"{route.branch} of {route.remote} ({route.push_url})"
    if tip.tip is None:
        return Check("fleet-remote", "fail", f"{where} does not exist", f"git -C {look.request.repo} push -u {route.remote} {route.branch}")
    if tip.tip != checkout.head:
        message, remedy = _RELATIONS.get(tip.relation, _RELATIONS["unknown"])
        return Check(
            "fleet-remote",
            "fail",
            f"HEAD {checkout.head[:12]} {message.format(tip=tip.tip[:12])}, {where}",
            remedy.format(repo=look.request.repo),
        )
    if isinstance(tip.fetch_tip, Problem):
        return _fail("fleet-remote", tip.fetch_tip)
    if route.fetch_differs and tip.fetch_tip != checkout.head:
        return Check(
            "fleet-remote",
            "fail",
            f"the fetch side {route.fetch_url} has {(tip.fetch_tip or 'no such branch')[:14]}, not HEAD {checkout.head[:12]}",
            "bring both sides of the remote to the same commit",
        )
    if isinstance(tip.history, Problem) and not look.waiting:
        return _fail("fleet-remote", tip.history)
    if look.push is not None:
        refused = replace(look.push, message=f"a push would fail: {look.push.message}")
        return replace(_fail("fleet-remote", refused), status="fail" if look.request.command == "apply" else "warn")
    return Check("fleet-remote", "pass", f"{where} is at HEAD")


def _identity(look: Look) -> Check:
    checkout = look.observation.checkout
    identity = checkout.identity
    if checkout.head is None and checkout.branch is None:
        return Check("fleet-identity", "skip", "there is no checkout to look into")
    if isinstance(identity, Problem):
        return _fail("fleet-identity", identity)
    same = identity.author == identity.committer
    return Check("fleet-identity", "pass", identity.author if same else f"author {identity.author}, committer {identity.committer}")


def _rule(look: Look) -> Check:
    path, source, target = plan.rule_path(look.request.cluster), look.request.source, look.request.target
    if look.verdict is not None and look.verdict.entry != "push":
        if look.verdict.entry == "wait":
            return Check("fleet-rule", "pass", look.verdict.message)
        if look.verdict.entry == "unread":
            return Check("fleet-rule", "skip", look.verdict.message)
        return Check("fleet-rule", "fail", look.verdict.message, look.verdict.remedy)
    edit = look.edit
    if look.observation.checkout.head is None:
        return Check("fleet-rule", "skip", "there is no checkout to look into")
    if edit is None:
        if look.observation.checkout.env is None:
            return Check("fleet-rule", "skip", "the cluster is not in the fleet")
        return Check("fleet-rule", "fail", f"{path} does not exist in HEAD", "generate it with kube-dc bootstrap, as any reviewed change")
    if isinstance(edit, Problem):
        return _fail("fleet-rule", edit)
    if isinstance(edit, RuleError):
        actual = read_rule_mode(look.observation.checkout.rule, look.request.node)
        if source is None or MODES[source].refused:
            return Check("fleet-rule", "skip", "no block in that mode is supported")
        if actual is source and target is not None and MODES[target].refused:
            return Check("fleet-rule", "pass", f"the block of {look.request.node} is in mode {source.value}")
        if actual is target and target is not None:
            return Check(
                "fleet-rule",
                "fail",
                f"the fleet's rule already asks for {target.value}, and the node is not there",
                "see the check cordon, or wait for Flux and NFD to bring the node to the rule's mode",
            )
        hint = (
            f"run it with --from {actual.value} if that is the direction you want"
            if isinstance(actual, Mode) and actual is not source
            else "mend the file, as any reviewed change"
        )
        return Check("fleet-rule", "fail", f"{path}: {edit}", hint)
    return Check("fleet-rule", "pass", f"line {edit.block.line}: {edit.block.name}")


def _normal_url(url: str) -> str:
    """A URL reduced to host and path, so that the forms of one repository compare equal."""
    text = re.sub(r"^[a-z+]+://", "", url.strip().lower())
    text = re.sub(r"^[^@/]*@", "", text)
    scp = re.match(r"^([^/:]+):(?!\d+/)(.*)$", text)
    if scp:
        text = f"{scp.group(1)}/{scp.group(2)}"
    text = re.sub(r"^([^/:]+):\d+/", r"\1/", text)
    return re.sub(r"(\.git)?/*$", "", re.sub("/+", "/", text))


def judge_fleet_cluster(look: Look) -> Check:
    """The check ``fleet-cluster``: that the cluster behind the kubeconfig is CLUSTER and follows what this checkout pushes."""
    gitops, request, route = find_gitops(look.observation.facts), look.request, look.observation.checkout.route
    absent = "warn" if request.ignore_missing_gitops else "fail"
    if isinstance(gitops, Problem):
        return _fail("fleet-cluster", gitops)
    accept = "if this cluster has no Flux: --ignore-missing-gitops"
    if gitops.path is None:
        return Check(
            "fleet-cluster",
            absent,
            "the Kustomization flux-system/gpu-node-mode does not exist in this cluster: "
            "nothing tells that it is the one named, and nothing would bring the change",
            f"check --kubeconfig and --context; {accept}",
        )
    wanted = f"clusters/{request.cluster}/gpu-node-modes"
    path = gitops.path.removeprefix("./").rstrip("/")
    if path != wanted:
        return Check(
            "fleet-cluster",
            "fail",
            f"the cluster behind the kubeconfig follows {path}, not {wanted}: it is another cluster",
            "check CLUSTER, --kubeconfig and --context",
        )
    if not (gitops.source or "").startswith("GitRepository "):
        return Check(
            "fleet-cluster",
            "fail",
            f"the Kustomization's source is {gitops.source}, no GitRepository: nothing tells that it follows what this checkout pushes",
            "check --kubeconfig and --context: this may be another cluster",
        )
    if gitops.branch is None:
        return Check("fleet-cluster", absent, f"the Kustomization's source {gitops.source} does not exist", accept)
    if isinstance(route, Problem):
        return Check("fleet-cluster", "skip", "where this checkout pushes is not known")
    if gitops.branch != route.branch:
        return Check(
            "fleet-cluster",
            "fail",
            f"Flux follows {gitops.branch}, this checkout pushes {route.branch}: the change would not arrive",
            f"check out the branch that Flux follows: git -C {request.repo} switch {gitops.branch}",
        )
    if _normal_url(gitops.url or "") not in (_normal_url(route.push_url), _normal_url(route.fetch_url)):
        return Check(
            "fleet-cluster", "warn", f"Flux reads {gitops.url}, this checkout pushes {route.push_url}: not known to be the same repository"
        )
    return Check("fleet-cluster", "pass", f"Flux follows {path}, branch {gitops.branch}")


def _flux(look: Look) -> Check:
    troubles = find_troubles(look.observation.facts)
    if isinstance(troubles, Problem):
        return _fail("flux", troubles)
    failures, warnings = troubles
    if failures:
        remedies = dict.fromkeys(plan.point_at_cluster(look.request, f"mend Flux first: {remedy}") for _, remedy in failures)
        return Check("flux", "fail", f"the change would not arrive: {'; '.join(what for what, _ in failures)}", "; ".join(remedies))
    if warnings:
        return Check("flux", "warn", "; ".join(warnings))
    found = find_kustomization(look.observation.facts)
    if not isinstance(found, KustomizationView):
        return Check("flux", "skip", "there is no Kustomization to look at")
    return Check("flux", "pass", f"nothing that brings the change is suspended or failing; applied: {found.applied or 'unknown'}")


def _live_rule(look: Look) -> Check:
    """The check ``live-rule``. A change in force is compared with the tip, as the rule and the gates are."""
    facts, request, tip = look.observation.facts, look.request, look.observation.tip
    rule = tip.rule if look.waiting and isinstance(tip, TipFacts) else look.observation.checkout.rule
    name = read_name(rule)
    if not isinstance(rule, bytes) or name is None:
        return Check("live-rule", "skip", "there is no rule to compare it with")
    found, others = find_object(facts, name), find_other_writers(facts, name, request.node)
    if isinstance(found, Problem) or isinstance(others, Problem):
        return _fail("live-rule", found if isinstance(found, Problem) else Problem("the rules were not read"))
    if others:
        return Check(
            "live-rule",
            "fail",
            f"the mode labels of {request.node} may be written by {'; '.join(others)} as well",
            "take the labels out of it, or leave the node out by its name (an In list of system.name's nodename)",
        )
    if found is None:
        return Check(
            "live-rule",
            "warn" if request.ignore_missing_gitops else "fail",
            f"the NodeFeatureRule {name} does not exist in this cluster",
            plan.point_at_cluster(request, "see why Flux has not made it: flux get kustomizations"),
        )
    excluded = find_exclusion(found)
    if excluded:
        key = excluded.split(":")[0]
        return Check(
            "live-rule",
            "fail",
            f"the NodeFeatureRule {name} is excluded from reconciliation ({excluded}): the change would not arrive",
            plan.point_at_cluster(request, f"let Flux have it again: kubectl annotate nodefeaturerule {name} {key}-"),
        )
    try:
        wanted = read_block(rule, request.node)
    except RuleError as error:
        return Check("live-rule", "skip", f"there is no block to compare it with: {error}")
    if find_blocks(found, request.node) != [wanted]:
        live = find_live_mode(facts, name, request.node)
        says = f"asks for {live.value}" if isinstance(live, Mode) else live.message if live else "is not there"
        return Check(
            "live-rule",
            "fail",
            f"the live NodeFeatureRule {name} is not what the fleet says about {request.node}: it {says}",
            plan.point_at_cluster(request, "wait until Flux has applied the fleet, or see why not: flux get kustomizations"),
        )
    return Check("live-rule", "pass", f"NodeFeatureRule {name} says what the fleet says")


def _target_stack(look: Look) -> Check:
    """The check ``target-stack``: whether the target can come up on this node, as far as selectors and the operator's policy tell."""
    node, facts, target = look.observation.node, look.observation.facts, look.request.target
    if not isinstance(node, NodeView) or target is None or target not in supported_modes():
        return Check("target-stack", "skip", "there is no node and target to look at")
    if isinstance(facts.daemonsets, Problem) or isinstance(facts.policies, Problem):
        unread = facts.find_problem("daemonsets", "policies") or Problem("the stack was not read")
        return _fail("target-stack", replace(unread, message=f"whether {target.value} can come up can not be told: {unread.message}"))
    prospect = foresee(facts.daemonsets, facts.policies, node, target)
    if look.request.require_allocatable and not MODES[target].resource and not MODES[target].driver:
        permitted = facts.permitted
        if isinstance(permitted, Problem):
            return _fail("target-stack", replace(permitted, message=f"what {target.value} will offer can not be told: {permitted.message}"))
        if not any(permitted):
            return Check(
                "target-stack",
                "fail",
                "KubeVirt permits no host device in this cluster, so --require-allocatable would never see one on the node",
                "name the GPU in permittedHostDevices of the KubeVirt object, or leave --require-allocatable out",
            )
    if prospect.impossible:
        what = "; ".join(reason for reason, _ in prospect.impossible)
        remedies = dict.fromkeys(plan.point_at_cluster(look.request, remedy) for _, remedy in prospect.impossible)
        return Check("target-stack", "fail", what, "; ".join(remedies))
    if prospect.unknown:
        return Check("target-stack", "warn", f"not known: {'; '.join(prospect.unknown)}")
    return Check("target-stack", "pass", f"DaemonSet {prospect.owner} will run on the node at {target.value}, and no other owner")


def _node(look: Look) -> Check:
    node, name = look.observation.node, look.request.node
    if isinstance(node, Problem):
        return _fail("node", node)
    if node is None:
        return Check(
            "node", "fail", f"node {name} does not exist in this cluster", f"kubectl --kubeconfig {look.request.kubeconfig} get nodes"
        )
    if node.ready != "True":
        # A lost node can not be proven free of holders; while the change is in force the wait asks for Ready itself.
        return Check(
            "node",
            "warn" if look.waiting else "fail",
            f"node {name} is not Ready (Ready is {node.ready}): it can not be proven free of holders",
            "bring the node back, or find out why it is away",
        )
    return Check("node", "pass", f"{name} is Ready")


def find_label_drift(node: NodeView, source: Mode, target: Mode) -> list[str]:
    """Labels that are neither of the source's nor the target's values nor absent for the moment."""
    wanted = {key: {label_values(source)[key], label_values(target)[key]} for key in LABELS}
    return [f"{key} is {node.labels[key]!r}" for key in LABELS if key in node.labels and node.labels[key] not in wanted[key]]


def _live_mode(look: Look) -> Check:
    node, source, target = look.observation.node, look.request.source, look.request.target
    if not isinstance(node, NodeView) or source is None or target is None:
        return Check("live-mode", "skip", "the node was not read")
    if look.waiting:
        drift = find_label_drift(node, source, target)
        if drift:
            return Check(
                "live-mode",
                "fail",
                f"drift: {'; '.join(drift)}, of neither {source.value} nor {target.value}",
                "find out who wrote the labels (kubectl get node --show-managed-fields)",
            )
        missing = find_missing_labels(node, target)
        return Check(
            "live-mode", "warn" if missing else "pass", f"waiting for {target.value}: {'; '.join(missing)}" if missing else target.value
        )
    missing = find_missing_labels(node, source)
    if missing:
        return Check(
            "live-mode",
            "fail",
            f"the node does not run in {source.value}: {'; '.join(missing)}",
            "the fleet's rule and the live labels must agree first: see flux get kustomizations and NFD",
        )
    return Check("live-mode", "pass", source.value)


def _cordon(look: Look) -> Check:
    node = look.observation.node
    if not isinstance(node, NodeView):
        return Check("cordon", "skip", "the node was not read")
    return judge_cordon(look.request, node, look.claim, look.orphan)


def _holders(look: Look) -> Check:
    if look.observation.node is None:
        return Check("holders", "skip", "there is no such node")
    holders = find_holders(look.observation.facts, look.request)
    if isinstance(holders, Problem):
        return _fail("holders", Problem(f"holders can not be told: {holders.message}", holders.remedy))
    if holders:
        shown = "; ".join(describe_holder(holder) for holder in holders)
        return Check(
            "holders",
            "fail",
            f"{len(holders)} on the node: {shown}",
            "; ".join(dict.fromkeys(plan.point_at_cluster(look.request, holder.advice) for holder in holders)),
        )
    exempt, unasked = (find(look.observation.facts, look.request) for find in (find_exempt, find_unasked))
    shown = f"; not counted: {'; '.join(exempt)}" if exempt else ""
    if unasked:
        remedy = "see whether these should run here while the GPU changes hands: the program does not wait for them"
        return Check("holders", "warn", f"nobody holds a GPU on the node{shown}; but {'; '.join(unasked)}", remedy)
    return Check("holders", "pass", f"nobody holds a GPU on the node{shown}")


def _other_actors(look: Look) -> Check:
    node = look.observation.node
    if not isinstance(node, NodeView):
        return Check("other-actors", "skip", "the node was not read")
    marks = find_operations(node, look.observation.facts)
    if isinstance(marks, Problem):
        return _fail("other-actors", Problem(f"whether another operation is at work can not be told: {marks.message}", marks.remedy))
    if marks:
        return Check("other-actors", "fail", f"another operation is at work: {'; '.join(marks)}", "let it end, or end it with its own tool")
    return Check("other-actors", "pass", "no mark of another operation")
