"""The two tables of section 6 and the rules of abandon, as functions of what was read. What the engine makes of them is tested there."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_gpu_transition.model import CommitFacts, NodeView, Problem, TipFacts, Transaction
from kubectl_gpu_transition.modes import Mode
from kubectl_gpu_transition.record import Claim, encode, read_claim
from kubectl_gpu_transition.resume import judge_abandon, judge_cordon, judge_tip, last_way_out, not_ours_remedy, read_rule_mode
from tests.core.builders import (
    ANNOTATION,
    BASE,
    COMMIT,
    DRA,
    HAMI,
    ID,
    LATER,
    RULE,
    RULE_VM,
    VM,
    entry,
    history,
    node,
    ours,
    pushing,
    request,
    rule_text,
    tip,
    transaction,
)

OURS = CommitFacts(COMMIT, "feat(gpu): transition gpu-1 to vm-passthrough", (ID,))
REVERT = CommitFacts(LATER, 'Revert "feat(gpu): transition gpu-1 to vm-passthrough"', ())
OTHER = CommitFacts("e" * 40, "another change", ("11111111-1111-4111-8111-111111111111",))
MOVED = {"tip": LATER}

VERDICTS = [
    pytest.param(tip(), "push", "still asks for pod-hami", id="the tip is the base"),
    pytest.param(tip(history=Problem("shallow")), "push", "still asks", id="the tip is the base, whatever history can not be read"),
    pytest.param(tip(**MOVED, history=history(OTHER)), "push", "still asks", id="the tip has moved on without us"),
    pytest.param(tip(**MOVED, rule=RULE_VM, history=history(OURS)), "wait", "asks for vm-passthrough", id="our change is in force"),
    pytest.param(tip(**MOVED, rule=RULE_VM), "wait", "asks for", id="the change is in force, by whoever"),
    pytest.param(tip(**MOVED, rule=RULE_VM, history=history(descends=False)), "wait", "asks for", id="in force on a rewritten history"),
    pytest.param(tip(**MOVED, history=history(OTHER, OURS)), "refused", "somebody reverted the change", id="reverted"),
    pytest.param(tip(**MOVED, history=history(descends=False)), "refused", "history was rewritten", id="rewritten"),
    pytest.param(
        tip(**MOVED, rule=rule_text(gpu_1=DRA)), "refused", "drift: the tip dddddddddddd asks for pod-hami-dra", id="a third mode"
    ),
    pytest.param(tip(**MOVED, rule=None), "refused", "the rule file does not exist there", id="no rule"),
    pytest.param(tip(**MOVED, rule=rule_text(gpu_2=HAMI)), "refused", "no block lists node gpu-1", id="no block"),
    pytest.param(tip(**MOVED, rule=Problem("it is a symlink", "x")), "refused", "it is a symlink", id="a rule that can not be read"),
    pytest.param(tip(tip=None, rule=None), "refused", "the branch does not exist on the remote any more", id="no branch"),
    pytest.param(tip(**MOVED, history=Problem("shallow", "git fetch --unshallow")), "unread", "shallow", id="no history"),
    pytest.param(tip(**MOVED), "unread", "it was not read", id="a history that was not asked for"),
]


@pytest.mark.parametrize(("seen", "entered", "words"), VERDICTS)
def test_the_tip_decides(seen: TipFacts, entered: str, words: str) -> None:
    verdict = judge_tip(transaction(), "gpu-1", seen)
    assert verdict.entry == entered
    assert words in verdict.message
    assert verdict.commit == (COMMIT if entered != "push" and OURS in getattr(seen.history, "commits", ()) else None)


def test_a_history_that_can_not_be_read_keeps_its_remedy() -> None:
    assert judge_tip(transaction(), "gpu-1", tip(**MOVED, history=Problem("x", "git fetch --unshallow"))).remedy == "git fetch --unshallow"


@pytest.mark.parametrize(
    ("commits", "named"),
    [
        pytest.param((OTHER, REVERT, OURS), LATER, id="the one that says so"),
        pytest.param((OTHER, OURS, REVERT), OTHER.id, id="not one from before ours"),
        pytest.param((OURS,), COMMIT, id="none but ours"),
    ],
)
def test_the_commit_that_took_ours_back_is_named(commits: tuple[CommitFacts, ...], named: str) -> None:
    verdict = judge_tip(transaction(), "gpu-1", tip(**MOVED, history=history(*commits)))
    assert COMMIT[:12] in verdict.message
    assert verdict.remedy == f"abandon, or revert the revert ({named[:12]}) and resume"


def test_a_rewritten_history_names_both_ends() -> None:
    verdict = judge_tip(transaction(), "gpu-1", tip(**MOVED, history=history(descends=False)))
    assert BASE[:12] in verdict.message
    assert LATER[:12] in verdict.message
    assert verdict.remedy == "abandon is the way out"


@pytest.mark.parametrize(
    ("rule", "mode"),
    [(RULE, HAMI), (RULE_VM, VM), (None, "the rule file does not exist"), (Problem("x"), "x"), (b"a: b\n", "not a NodeFeatureRule")],
    ids=["pod-hami", "vm-passthrough", "no file", "a problem", "another file"],
)
def test_the_mode_of_a_rule_is_told_or_why_not(rule: bytes | Problem | None, mode: Mode | str) -> None:
    found = read_rule_mode(rule, "gpu-1")
    assert found is mode or (isinstance(found, Problem) and str(mode) in found.message)


# ---------------------------------------------------------------- the node's table, where the engine's tests do not reach


def cordon(seen: NodeView, orphan: CommitFacts | None = None, **more: Any) -> Any:
    asked = request(**more)
    return judge_cordon(asked, seen, read_claim(seen, "eu/dc1", (asked.source, asked.target)), orphan)


def test_a_fit_node_passes() -> None:
    check = cordon(node())
    assert (check.status, check.message) == ("pass", "schedulable, no transaction")
    for seen in (ours(), ours(unschedulable=False)):
        assert cordon(seen, resume=True).status == "pass"


def test_who_cordoned_is_told_as_far_as_it_is_known() -> None:
    seen = node(unschedulable=True, managers=(entry("a", "t2"), entry("b", "t1"), entry("c", "t3", cordons=False)))
    assert cordon(seen).message == "the node is cordoned, and not by this workflow (last by a at t2)"
    assert cordon(node(unschedulable=True, managers=None)).message == "the node is cordoned, and not by this workflow"


def test_an_unreadable_record_is_shown_but_not_at_any_length() -> None:
    check = cordon(node(annotations={ANNOTATION: "x" * 500}))
    assert check.message.endswith("not readable: " + "x" * 200)


def test_the_id_of_the_record_is_what_is_looked_for_in_the_branch() -> None:
    seen = ours(record=transaction(cluster="eu/dc2"))
    assert f"--grep {ID}" in (cordon(seen).remedy or "")
    assert "--grep Gpu-Transition-Id" in (cordon(node(annotations={ANNOTATION: "x"})).remedy or "")


def test_an_orphan_is_told_without_a_direction_too() -> None:
    check = judge_cordon(request(command="abandon", source=None, target=None), node(), Claim("none", "", None), OURS)
    assert "has put ? in force" in check.message
    assert "the target's owner" in (check.remedy or "")


@pytest.mark.parametrize(
    ("kind", "record"), [("direction", None), ("cluster", transaction()), ("uid", transaction()), ("unreadable", None)]
)
def test_the_last_resort_drops_the_record(kind: str, record: Transaction | None) -> None:
    assert "annotate node gpu-1 kube-dc.com/gpu-transition-" in not_ours_remedy(request(), Claim(kind, "x", record))


# ---------------------------------------------------------------- abandon

ABANDON = [
    pytest.param(ours(), tip(), True, "cordoned, our transaction", id="phase cordoned"),
    pytest.param(ours(unschedulable=False), tip(), True, "schedulable, our transaction", id="phase cordoned, schedulable"),
    pytest.param(ours(), Problem("x"), True, "our transaction", id="phase cordoned, whatever the tip"),
    pytest.param(ours(record=pushing()), tip(**MOVED), True, "our transaction", id="announced, and the tip is elsewhere"),
    pytest.param(ours(record=pushing()), tip(), False, "may still be in flight", id="announced, and the tip is its base"),
    pytest.param(ours(record=pushing()), Problem("x"), False, "may still be in flight", id="announced, and the tip is not known"),
    pytest.param(ours(record=pushing()), tip(tip=None), False, "may still be in flight", id="announced, and there is no branch"),
    pytest.param(ours(record=transaction(source=VM, target=HAMI)), tip(), True, "our transaction", id="any direction"),
    pytest.param(node(), tip(), False, "nothing to abandon", id="no record"),
    pytest.param(ours(record=transaction(cluster="x")), tip(), False, "another cluster", id="another cluster"),
    pytest.param(ours(uid="uid-9"), tip(), False, "another node of this name", id="another node"),
    pytest.param(node(annotations={ANNOTATION: "{"}), tip(), False, "not readable", id="unreadable"),
    pytest.param(
        ours(managers=(entry("kubectl-cordon", "t"),)), tip(), False, "cordoned by kubectl-cordon at t", id="another manager's cordon"
    ),
]


@pytest.mark.parametrize(("seen", "at", "allowed", "words"), ABANDON)
def test_a_transaction_may_be_given_up(seen: NodeView, at: TipFacts | Problem, allowed: bool, words: str) -> None:
    asked = request(command="abandon", source=None, target=None)
    check = judge_abandon(asked, seen, read_claim(seen, "eu/dc1", None), at)
    assert (check.name, check.status) == ("cordon", "pass" if allowed else "fail")
    assert words in check.message


def test_a_refusal_of_abandon_ends_with_the_last_way_out() -> None:
    asked = request(command="abandon", source=None, target=None)
    for seen in (ours(record=pushing()), ours(managers=(entry("x", "t"),))):
        check = judge_abandon(asked, seen, read_claim(seen, "eu/dc1", None), tip())
        assert (check.remedy or "").endswith(last_way_out(asked))
    assert encode(pushing()) != encode(transaction())
