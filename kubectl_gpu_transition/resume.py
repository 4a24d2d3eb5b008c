"""Where a run takes up the work: the contract's two resume tables and the rules of ``abandon``, as functions of what was read. Pure.

The annotation only proves that the cordon is ours; where the transition stands is decided from the tip of the remote branch
(spec section 6). Nothing here expires and nothing here is guessed: what can not be read is a refusal.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from kubectl_gpu_transition import plan
from kubectl_gpu_transition.model import Check, CommitFacts, History, NodeView, Problem, Request, TipFacts, Transaction
from kubectl_gpu_transition.modes import MODES, Mode
from kubectl_gpu_transition.record import Claim, find_foreign_cordon
from kubectl_gpu_transition.rule import RuleError, find_block


@dataclass(frozen=True)
class Verdict:
    """What section 6 says for a tip: ``push`` (the change is still to be made), ``wait`` (it is in force), ``refused``, or ``unread``
    (the history that would decide is not to be had).

    ``commit`` is the commit between base and tip that carries our id, where there is one.
    """

    entry: str
    message: str
    remedy: str | None = None
    commit: str | None = None


def read_rule_mode(rule: bytes | Problem | None, node: str) -> Mode | Problem:
    """The mode that a rule file asks for this node, or why that can not be told."""
    if rule is None:
        return Problem("the rule file does not exist there")
    if isinstance(rule, Problem):
        return rule
    try:
        return find_block(rule, node).mode
    except RuleError as error:
        return Problem(str(error))


def judge_tip(transaction: Transaction, node: str, tip: TipFacts) -> Verdict:
    """The second table of section 6: the tip's rule and the history between ``base`` and the tip decide."""
    if tip.tip is None:
        return Verdict(
            "refused", "the branch does not exist on the remote any more", "find out who removed it; nothing was changed by this run"
        )
    # A tip that still is the base has no history in between, whether it was asked for or not.
    history = History(transaction.base, True, ()) if tip.tip == transaction.base else tip.history
    ours = _ours(history, transaction)
    mode = read_rule_mode(tip.rule, node)
    if isinstance(mode, Problem):
        return Verdict("refused", f"the rule at the tip {tip.tip[:12]} can not be used: {mode.message}", mode.remedy, ours)
    if mode is transaction.target:
        return Verdict("wait", f"the tip {tip.tip[:12]} asks for {mode.value}", None, ours)
    if mode is not transaction.source:
        return Verdict(
            "refused",
            f"drift: the tip {tip.tip[:12]} asks for {mode.value}, neither {transaction.source.value} nor {transaction.target.value}",
            "find out who changed the rule, and bring the block back to one of the two modes",
            ours,
        )
    if history is None or isinstance(history, Problem):
        reason = history.message if history else "it was not read"
        remedy = history.remedy if history else None
        return Verdict("unread", f"the history between {transaction.base[:12]} and the tip is not to be had: {reason}", remedy)
    if not history.descends:
        return Verdict(
            "refused",
            f"history was rewritten: the transaction's base {transaction.base[:12]} is not in the history of the tip {tip.tip[:12]}; "
            "what happened to the change is unknown",
            "abandon is the way out",
        )
    if ours is not None:
        return Verdict(
            "refused",
            f"somebody reverted the change: our commit {ours[:12]} is in the branch, and yet the tip {tip.tip[:12]} asks for {mode.value}",
            f"abandon, or revert the revert ({_undoing(history, ours)[:12]}) and resume",
            ours,
        )
    return Verdict("push", f"the tip {tip.tip[:12]} still asks for {mode.value}")


def _ours(history: History | Problem | None, transaction: Transaction) -> str | None:
    if not isinstance(history, History):
        return None
    return next((commit.id for commit in history.commits if transaction.id in commit.transactions), None)


def _undoing(history: History, ours: str) -> str:
    """The commit after ours that most likely took it back: one whose subject says revert, else the newest."""
    later = list(takewhile(lambda commit: commit.id != ours, history.commits))
    return next((commit.id for commit in later if commit.subject.lower().startswith("revert")), later[0].id if later else ours)


def judge_cordon(request: Request, node: NodeView, claim: Claim, orphan: CommitFacts | None) -> Check:
    """The first table of section 6 (and, with no annotation and no flag, the check ``cordon`` of a first run)."""
    state = "cordoned" if node.unschedulable else "schedulable"
    if claim.kind == "none":
        if orphan is not None:
            return Check(
                "cordon",
                "fail",
                f"the node is {state} without a transaction, yet {orphan.id[:12]} in the branch has put "
                f"{request.target.value if request.target else '?'} in force for it: no transaction protects it",
                _orphan_remedy(request, node),
            )
        if node.unschedulable:
            return Check(
                "cordon",
                "fail",
                f"the node is cordoned, and not by this workflow{_by_whom(node)}",
                "find out why it was cordoned; whoever did it has to uncordon it",
            )
        if request.resume:
            return Check(
                "cordon",
                "fail",
                "there is nothing to resume: the node is schedulable and carries no transaction",
                "run it without --resume-cordoned",
            )
        return Check("cordon", "pass", "schedulable, no transaction")
    if claim.kind != "ours":
        return Check(
            "cordon",
            "fail",
            f"the node is {state} and carries a transaction that is not this one: {_what(claim)}",
            not_ours_remedy(request, claim),
        )
    assert claim.transaction is not None
    foreign = find_foreign_cordon(node)
    if foreign is not None:
        return Check(
            "cordon",
            "fail",
            f"under our transaction the node was cordoned by {foreign.manager} at {foreign.time}: that cordon is not ours",
            f"that one uncordons ({plan.uncordon_command(request)}), then resume, which cordons again first",
        )
    if not request.resume:
        message = (
            f"an unfinished transaction is on the node: {plan.describe_transaction(claim.transaction)}"
            if node.unschedulable
            else f"an unfinished transaction was uncordoned by another actor: {plan.describe_transaction(claim.transaction)}"
        )
        return Check(
            "cordon", "fail", message, plan.apply_command(request, claim.transaction.source, claim.transaction.target, resume=True)
        )
    return Check("cordon", "pass", f"{state}, our transaction {plan.describe_transaction(claim.transaction)}")


def _by_whom(node: NodeView) -> str:
    entries = [entry for entry in node.managers or () if entry.cordons]
    return "".join(f" (last by {entry.manager} at {entry.time})" for entry in sorted(entries, key=lambda entry: entry.time)[-1:])


def _what(claim: Claim) -> str:
    reasons = {
        "direction": "another direction",
        "cluster": "another cluster",
        "version": "written by another version of the program",
        "uid": "made for another node of this name",
        "unreadable": "not readable",
    }
    shown = plan.describe_transaction(claim.transaction) if claim.transaction else " ".join(claim.text[:200].split())
    return f"{reasons[claim.kind]}: {shown}"


def not_ours_remedy(request: Request, claim: Claim) -> str:
    """The way on for each kind of annotation that is not this command's (second row of the table)."""
    transaction = claim.transaction
    if claim.kind == "direction" and transaction is not None:
        resume = plan.apply_command(request, transaction.source, transaction.target, resume=True)
        return f"finish that one: {resume}; or give it up: {plan.abandon_command(request)}"
    if claim.kind == "version":
        return "use the version of this program that wrote it"
    look = plan.find_in_branch_command(request, transaction.id if transaction else "Gpu-Transition-Id")
    drop = plan.drop_annotation_command(request)
    return f"see whether the branch has it: {look}; then drop the record: {drop} (the node stays as it is, and is its operator's)"


def _orphan_remedy(request: Request, node: NodeView) -> str:
    cordon = "" if node.unschedulable else f"cordon it: {plan.cordon_command(request)}; "
    owner = MODES[request.target].owner if request.target else "the target's owner"
    look = plan.inspect_commands(request)[1]
    return f"{cordon}follow it: {look}; uncordon by hand when a pod of {owner} is Ready there and no other owner is left"


def last_way_out(request: Request) -> str:
    """How every refusal of abandon ends (spec section 7)."""
    drop = plan.drop_annotation_command(request)
    return f"the last way out is to drop the record by hand: {drop} (the node stays as it is, and is its operator's)"


def judge_abandon(request: Request, node: NodeView, claim: Claim, tip: TipFacts | Problem) -> Check:
    """Whether ``abandon`` may end the node's transaction, as far as node and tip tell: the check ``cordon`` of an abandon.

    A push that was announced can not land any more once the tip is not its base: the push is a compare-and-swap.
    """
    if claim.kind == "none":
        return Check("cordon", "fail", "the node carries no transaction: there is nothing to abandon", "nothing to do")
    if claim.kind != "ours" or claim.transaction is None:
        return Check(
            "cordon", "fail", f"the node's transaction is not this cluster's and node's: {_what(claim)}", not_ours_remedy(request, claim)
        )
    foreign = find_foreign_cordon(node)
    if foreign is not None:
        return Check(
            "cordon",
            "fail",
            f"under our transaction the node was cordoned by {foreign.manager} at {foreign.time}: that cordon is not ours",
            f"that one uncordons ({plan.uncordon_command(request)}), then abandon again; {last_way_out(request)}",
        )
    shown = plan.describe_transaction(claim.transaction)
    if claim.transaction.phase == "pushing" and (isinstance(tip, Problem) or tip.tip in (None, claim.transaction.base)):
        resume = plan.apply_command(request, claim.transaction.source, claim.transaction.target, resume=True)
        return Check(
            "cordon",
            "fail",
            f"a push was announced and may still be in flight: {shown}",
            f"resume it: {resume}; or push any other commit to the branch (an empty one will do), after which it can not land any more, "
            f"then abandon; {last_way_out(request)}",
        )
    return Check("cordon", "pass", f"{'cordoned' if node.unschedulable else 'schedulable'}, our transaction {shown}")
