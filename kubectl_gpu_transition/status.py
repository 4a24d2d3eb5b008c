"""What ``status`` says of each node: where fleet and cluster have it, whose cordon is on it, and what is left to do (spec section 7). Pure.

One reading serves a whole fleet, so what belongs to a node is found by looking it up, never by going through everything for each node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kubectl_gpu_transition import plan, resume
from kubectl_gpu_transition.facts import ClaimView, Facts, SliceView
from kubectl_gpu_transition.holders import find_holders
from kubectl_gpu_transition.model import FIELD_MANAGER, NodeStatus, NodeView, Problem, Request, TipFacts, Transaction
from kubectl_gpu_transition.modes import find_mode
from kubectl_gpu_transition.record import Claim, find_foreign_cordon, read_claim
from kubectl_gpu_transition.rule import RuleError, list_blocks
from kubectl_gpu_transition.target import find_missing_labels, find_missing_owners, find_owners

T = TypeVar("T")


@dataclass(frozen=True)
class Survey:
    """What was read for a status. ``nodes`` by name, or why there are none; ``tips`` the tip with the history since each transaction's
    base, by that base (None: the tip alone)."""

    nodes: Mapping[str, NodeView] | Problem
    facts: Facts
    tips: Mapping[str | None, TipFacts | Problem]

    @property
    def tip(self) -> TipFacts | Problem:
        """The tip alone."""
        return self.tips[None]


def read_modes(tip: TipFacts | Problem) -> dict[str, str | Problem] | Problem:
    """The mode that the tip's rule asks for, by node, in the file's order; a Problem for a node whose block does not tell, or for all."""
    rule = tip if isinstance(tip, Problem) else tip.rule
    if rule is None:
        return Problem("the cluster has no rule file at the tip of the branch", "name a cluster of this fleet")
    if isinstance(rule, Problem):
        return rule
    try:
        blocks = list_blocks(rule)
    except RuleError as error:
        return Problem(f"the rule at the tip: {error}", "mend the file, as any reviewed change")
    found: dict[str, str | Problem] = {}
    for node, mode in blocks:
        told: str | Problem = mode if find_mode(mode) else Problem(f"the rule has {node} in a block that says {mode}")
        found[node] = Problem(f"the rule has {node} in more than one block") if node in found else told
    return found


def survey_nodes(request: Request, survey: Survey, since: Callable[[str], int | None]) -> tuple[tuple[NodeStatus, ...], tuple[str, ...]]:
    """Each node of the request (that one, else all of the rule file), and what could not be read. ``since`` is that of ``ports.Clock``."""
    modes, unread = read_modes(survey.tip), []
    if isinstance(modes, Problem):
        unread.append(modes.message)
        modes = {}
    if isinstance(survey.nodes, Problem):
        unread.append(f"nodes: {survey.nodes.message}")
    names = [request.node] if request.node else sorted(modes)
    here = split_by_node(survey.facts)
    for field in ("kustomizations", "sources"):  # the fields that holders and owners need are named with the nodes that lack them
        problem = survey.facts.find_problem(field)
        unread += [f"{field}: {problem.message}"] if problem else []
    found = tuple(_judge(replace(request, node=name), survey, here(name), modes.get(name), since) for name in names)
    return found, tuple(dict.fromkeys([*unread, *(reason for status in found for reason in status.unread)]))


def _judge(request: Request, survey: Survey, facts: Facts, mode: str | Problem | None, since: Callable[[str], int | None]) -> NodeStatus:
    unread = [mode.message] if isinstance(mode, Problem) else []
    first = NodeStatus(request.node, mode if isinstance(mode, str) else None, None, unread=tuple(unread))
    if isinstance(survey.nodes, Problem):
        return first
    node = survey.nodes.get(request.node)
    if node is None:
        return replace(first, next="the rule names it, and this cluster has no such node: see kubectl get nodes") if mode else first
    claim = read_claim(node, request.cluster, None)
    transaction = claim.transaction
    ours = transaction if claim.kind == "ours" else None
    request = _with_options(request, ours)
    holders, in_branch = find_holders(facts, request), _is_in_branch(ours, survey)
    if isinstance(holders, Problem):
        unread.append(f"holders: {holders.message}")
    if isinstance(in_branch, Problem):
        unread.append(f"whether the branch has the transaction's commit: {in_branch.message}")
    if isinstance(facts.pods, Problem):
        unread.append(f"pods: {facts.pods.message}")
    return replace(
        first,
        live=node,
        owners=() if isinstance(facts.pods, Problem) else find_owners(facts.pods, node.name),
        cordoned_by=_find_cordoner(node, claim),
        transaction=transaction,
        age=since(transaction.started) if transaction else None,
        in_branch=None if isinstance(in_branch, Problem) else in_branch,
        holders=None if isinstance(holders, Problem) else len(holders),
        next=_find_next(request, node, claim, survey, mode, facts),
        unread=tuple(unread),
    )


def _with_options(request: Request, transaction: Transaction | None) -> Request:
    """The request with the options that the transaction was begun with: a name in either counts (spec section 4)."""
    if transaction is None:
        return request
    return replace(
        request,
        source=transaction.source,
        target=transaction.target,
        gpu_resources=tuple(dict.fromkeys((*request.gpu_resources, *transaction.gpu_resources))),
        ignore_dra_drivers=tuple(dict.fromkeys((*request.ignore_dra_drivers, *transaction.ignore_dra_drivers))),
        require_allocatable=transaction.require_allocatable,
    )


def _find_cordoner(node: NodeView, claim: Claim) -> str | None:
    if not node.unschedulable:
        return None
    foreign = find_foreign_cordon(node)
    if foreign is not None:
        return foreign.manager
    if claim.kind == "ours":
        return "transaction"
    mine = any(entry.cordons and entry.manager == FIELD_MANAGER for entry in node.managers or ())
    return FIELD_MANAGER if mine else "unknown"


def _is_in_branch(transaction: Transaction | None, survey: Survey) -> bool | Problem | None:
    """Whether a commit with the transaction's id is in the branch; None where there is no transaction, a Problem where it is not known."""
    if transaction is None:
        return None
    tip = survey.tips.get(transaction.base, survey.tip)
    if isinstance(tip, Problem):
        return tip
    if tip.tip is None or tip.tip == transaction.base:
        return False
    if isinstance(tip.history, Problem) or tip.history is None:
        return tip.history or Problem("its history was not read")
    return any(transaction.id in commit.transactions for commit in tip.history.commits)


def _find_next(request: Request, node: NodeView, claim: Claim, survey: Survey, mode: str | Problem | None, facts: Facts) -> str | None:
    """What to do where something is unfinished; None where nothing is."""
    if claim.kind == "none":
        return _find_next_without(request, node, mode, facts)
    transaction, foreign = claim.transaction, find_foreign_cordon(node)
    if claim.kind != "ours" or transaction is None:
        return resume.not_ours_remedy(request, claim)
    again = plan.apply_command(request, transaction.source, transaction.target, resume=True)
    if foreign is not None:
        return f"the cordon is {foreign.manager}'s: that one uncordons ({plan.uncordon_command(request)}), then resume: {again}"
    ahead = "" if node.unschedulable else "it is SCHEDULABLE with an unfinished transaction; the resume cordons it again first: "
    tip = survey.tips.get(transaction.base, survey.tip)
    if isinstance(tip, Problem):
        return f"{ahead}see to the remote, then resume: {again}"
    verdict = resume.judge_tip(transaction, request.node, tip)
    if verdict.entry == "wait":
        return f"{ahead}resume: {again}"
    if verdict.entry == "push":
        may_abandon = transaction.phase == "cordoned" or tip.tip != transaction.base
        return f"{ahead}resume: {again}" + (f"; or give it up: {plan.abandon_command(request)}" if may_abandon else "")
    if verdict.entry == "unread":
        return f"{ahead}{verdict.message}: {verdict.remedy or 'see to the remote'}, then resume: {again}"
    return f"{ahead}{verdict.message}: {verdict.remedy or ''} ({plan.abandon_command(request)})"


def _find_next_without(request: Request, node: NodeView, mode: str | Problem | None, facts: Facts) -> str | None:
    """What to do for a node without a transaction: the fleet's mode has to be there, and a cordon is somebody's own business."""
    wanted = find_mode(mode) if isinstance(mode, str) else None
    missing = []
    if wanted is not None and not isinstance(facts.pods, Problem):
        missing = [*find_missing_labels(node, wanted), *find_missing_owners(find_owners(facts.pods, node.name), wanted)]
    if node.unschedulable and missing:
        return f"cordoned without a transaction, and not in {mode} yet ({'; '.join(missing)}): leave the cordon until it is"
    if node.unschedulable:
        return f"cordoned without a transaction{f', and in {mode}' if wanted else ''}: whoever cordoned it uncordons it"
    if not missing:
        return None
    what = f"schedulable, and not in the mode that the fleet asks for ({'; '.join(missing)})"
    return f"{what}: cordon it until it is ({plan.cordon_command(request)}), and see Flux and NFD"


# ---------------------------------------------------------------- what belongs to a node


def split_by_node(facts: Facts) -> Callable[[str], Facts]:
    """For any node's name the facts that matter for it, with the same holders and owners as all of them would give."""
    volumes = {(v.namespace, v.name): v.node for v in _known(facts.volumes) if v.node}
    pods = _index(facts.pods, lambda pod: [pod.node])
    unbound = _index(
        facts.unbound,
        lambda pod: [pod.nominated, pod.allocated_node, *(volumes.get((pod.namespace, name), "") for name in pod.volumes)],
    )
    machines = _index(facts.machines, lambda machine: [machine.node, machine.migrating_to or "", *machine.active])
    slices: dict[tuple[str, str], list[SliceView]] = {}
    for one in _known(facts.slices):
        slices.setdefault((one.driver, one.pool), []).append(one)
    claims = _index(facts.claims, lambda claim: _find_nodes(claim, slices))
    named = {(claim.namespace, claim.name): claim for claim in _known(facts.claims)}

    def of(node: str) -> Facts:
        bound, promised = pods.get(node, ()), unbound.get(node, ())
        mine = [*claims.get(node, ())]
        mine += [named[key] for pod in (*bound, *promised) for claim in pod.claims if (key := (pod.namespace, claim.name or "")) in named]
        known = tuple(dict.fromkeys(mine))
        relevant = [one for claim in known for device in claim.devices or () for one in slices.get((device.driver, device.pool), ())]
        own: dict[str, Any] = {
            "pods": bound,
            "unbound": promised,
            "machines": machines.get(node, ()),
            "claims": known,
            "slices": tuple({id(one): one for one in relevant}.values()),
        }
        return replace(facts, **{field: value for field, value in own.items() if not isinstance(getattr(facts, field), Problem)})

    return of


def _known(field: tuple[T, ...] | Problem) -> tuple[T, ...]:
    return () if isinstance(field, Problem) else field


def _index(field: tuple[T, ...] | Problem, nodes: Callable[[T], Iterable[str]]) -> dict[str, tuple[T, ...]]:
    found: dict[str, list[T]] = {}
    for one in _known(field):
        for node in dict.fromkeys(nodes(one)):
            found.setdefault(node, []).append(one)
    return {node: tuple(ones) for node, ones in found.items()}


def _find_nodes(claim: ClaimView, slices: Mapping[tuple[str, str], list[SliceView]]) -> Iterable[str]:
    """The nodes that a claim's devices lie on, as ``holders`` tells it for one."""
    for device in claim.devices or ():
        found = slices.get((device.driver, device.pool))
        if found is None:
            yield device.pool
            if claim.only_node:
                yield claim.only_node
        for one in found or ():
            if one.node:
                yield one.node
            if device.name in one.device_nodes:
                yield one.device_nodes[device.name]
