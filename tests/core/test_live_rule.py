"""The rule as it is in the cluster (spec section 3, ``live-rule``; section 7, condition 7)."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kubectl_gpu_transition.facts import Facts, RuleObject
from kubectl_gpu_transition.kinds import rule_object
from kubectl_gpu_transition.live_rule import find_exclusion, find_live_mode, find_missing_rule, find_other_writers, read_name
from kubectl_gpu_transition.model import Problem
from kubectl_gpu_transition.modes import LABEL_ACTIVE, LABEL_CONFIG, LABEL_EXPECTED, Mode
from tests.core.builders import HAMI, RULE, VM, facts
from tests.fakes.world import live_rule

LIVE = rule_object(live_rule(HAMI))
NAME = LIVE.name


def nodename(op: str, *names: str) -> dict[str, Any]:
    return {"feature": "system.name", "matchExpressions": {"nodename": {"op": op, "value": list(names)}}}


def beside(*rules: dict[str, Any], name: str = "zz-other") -> Facts:
    return facts(rules=(LIVE, RuleObject(name, {}, rules)))


def altered(change: dict[str, Any]) -> Facts:
    """The live rule with other values in the block of gpu-1."""
    rules = copy.deepcopy(list(LIVE.rules))
    rules[0]["labels"].update(change)
    return facts(rules=(RuleObject(NAME, {}, tuple(rules)),))


def test_the_name_is_the_one_in_the_file() -> None:
    assert read_name(RULE) == NAME
    assert read_name(None) is None
    assert read_name(Problem("x")) is None
    assert read_name(b"kind: [") is None


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.VM_VGPU])
def test_the_mode_is_read_from_the_nodes_block(mode: Mode) -> None:
    assert find_live_mode(facts(asks=mode), NAME, "gpu-1") is mode
    assert find_live_mode(facts(asks=mode), NAME, "gpu-2") is HAMI


@pytest.mark.parametrize("change", [{LABEL_ACTIVE: "x"}, {LABEL_EXPECTED: "vm-passthrough"}, {LABEL_CONFIG: "vm-passthrough"}])
def test_a_block_that_contradicts_itself_is_no_mode(change: dict[str, Any]) -> None:
    found = find_live_mode(altered(change), NAME, "gpu-1")
    assert isinstance(found, Problem)
    assert "does not agree with itself" in found.message


def test_no_block_or_two_are_no_mode() -> None:
    found = find_live_mode(facts(), NAME, "gpu-9")
    assert isinstance(found, Problem)
    assert "0 blocks" in found.message
    double = facts(rules=(RuleObject(NAME, {}, (*LIVE.rules, *LIVE.rules)),))
    assert "2 blocks" in str(find_live_mode(double, NAME, "gpu-1"))


MISSING: list[Any] = [
    pytest.param(facts(asks=VM), NAME, False, "", id="there"),
    pytest.param(facts(), NAME, False, "asks for pod-hami", id="not applied yet"),
    pytest.param(facts(rules=()), NAME, False, "does not exist", id="absent"),
    pytest.param(facts(rules=()), NAME, True, "", id="absent and accepted"),
    pytest.param(facts(), NAME, True, "asks for pod-hami", id="not applied yet, though absence is accepted"),
    pytest.param(facts(rules=Problem("no answer")), NAME, True, "no answer", id="unread"),
    pytest.param(facts(asks=VM), None, True, "can not be told", id="no name"),
]


@pytest.mark.parametrize(("at", "name", "accept", "words"), MISSING)
def test_condition_seven_asks_the_cluster_too(at: Facts, name: str | None, accept: bool, words: str) -> None:
    missing = find_missing_rule(at, name, "gpu-1", VM, accept)
    assert len(missing) == bool(words)
    assert words in "".join(missing)


WRITERS: list[Any] = [
    pytest.param({"labels": {LABEL_ACTIVE: "x"}}, True, id="a label"),
    pytest.param({"labels": {"other": "x"}}, False, id="another label"),
    pytest.param({"labelsTemplate": f"{{{{ range .x }}}}{LABEL_CONFIG}=y{{{{ end }}}}"}, True, id="a template"),
    pytest.param({"labels": {LABEL_CONFIG: "x"}, "matchFeatures": [nodename("In", "gpu-2")]}, False, id="a list without the node"),
    pytest.param({"labels": {LABEL_CONFIG: "x"}, "matchFeatures": [nodename("In", "gpu-2", "gpu-1")]}, True, id="a list with it"),
    pytest.param({"labels": {LABEL_CONFIG: "x"}, "matchFeatures": [nodename("NotIn", "gpu-1")]}, True, id="another operator"),
    pytest.param(
        {"labels": {LABEL_CONFIG: "x"}, "matchAny": [{"matchFeatures": [nodename("In", "a")]}, {"matchFeatures": [nodename("In", "b")]}]},
        False,
        id="alternatives that all leave it out",
    ),
    pytest.param(
        {"labels": {LABEL_CONFIG: "x"}, "matchAny": [{"matchFeatures": [nodename("In", "a")]}, {"matchFeatures": []}]},
        True,
        id="alternatives of which one does not",
    ),
]


@pytest.mark.parametrize(("rule", "writes"), WRITERS)
@pytest.mark.parametrize("object_name", ["zz-other", "aa-other"])
def test_another_rule_that_may_write_the_labels_is_found(rule: dict[str, Any], writes: bool, object_name: str) -> None:
    found = find_other_writers(beside({"name": "r", **rule}, name=object_name), NAME, "gpu-1")
    assert found == ((f"rule 'r' of NodeFeatureRule {object_name}",) if writes else ())


def test_another_rule_of_the_same_object_counts_and_the_block_does_not() -> None:
    assert find_other_writers(facts(), NAME, "gpu-1") == ()
    more = RuleObject(NAME, {}, (*LIVE.rules, {"name": "all", "labels": {LABEL_ACTIVE: "x"}}))
    assert find_other_writers(facts(rules=(more,)), NAME, "gpu-1") == (f"rule 'all' of NodeFeatureRule {NAME}",)


def test_a_block_for_the_node_in_another_object_is_another_writer() -> None:
    twin = RuleObject("twin", {}, LIVE.rules)
    found = find_other_writers(facts(rules=(LIVE, twin)), NAME, "gpu-1")
    assert not isinstance(found, Problem)
    assert len(found) == 1
    assert "twin" in found[0]


@pytest.mark.parametrize(
    ("key", "value", "excluded"),
    [
        ("kustomize.toolkit.fluxcd.io/reconcile", "disabled", True),
        ("kustomize.toolkit.fluxcd.io/reconcile", "DISABLED", True),
        ("kustomize.toolkit.fluxcd.io/reconcile", "enabled", False),
        ("kustomize.toolkit.fluxcd.io/ssa", "Ignore", True),
        ("kustomize.toolkit.fluxcd.io/ssa", "merge", False),
        ("other", "disabled", False),
    ],
)
def test_an_object_that_flux_leaves_alone(key: str, value: str, excluded: bool) -> None:
    assert (find_exclusion(RuleObject(NAME, {key: value}, ())) is not None) is excluded
