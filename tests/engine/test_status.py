"""A status reads, says what it could not read, and ends as any command does (spec sections 2 and 7)."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from kubectl_gpu_transition.cli import read_schema
from kubectl_gpu_transition.model import Outcome
from kubectl_gpu_transition.report import document, failure_text, text
from tests.fakes.world import NODE, World


def valid(outcome: Outcome) -> dict[str, Any]:
    shown = document(outcome)
    jsonschema.validate(shown, json.loads(read_schema()))
    return shown


@pytest.mark.parametrize("node", [NODE, ""])
def test_a_status_only_reads(node: str) -> None:
    world = World()
    outcome = world.run("status", node=node)
    assert (outcome.word, outcome.exit_code) == ("ok", 0), outcome.error
    assert world.cluster.writes == []
    assert all(name.split(".")[1].startswith("read_") for name, _ in world.steering.calls)
    assert valid(outcome)["nodes"][0]["fleetMode"] == "pod-hami"


@pytest.mark.parametrize("node", [NODE, ""])
@pytest.mark.parametrize("call", ["cluster.read_node", "cluster.read_nodes", "cluster.read_facts", "fleet.read_tip", "fleet.read_checkout"])
@pytest.mark.parametrize("fault", ["fails", "refused"])
def test_whatever_can_not_be_read_a_status_ends_with_a_report(node: str, call: str, fault: str) -> None:
    world = World()
    world.steering.faults[call, 1] = fault
    outcome = world.run("status", node=node)
    asked = any(name == call for name, _ in world.steering.calls)
    matters = asked and call != "fleet.read_checkout"
    assert (outcome.word, outcome.exit_code) == (("blocked", 3) if matters else ("ok", 0)), outcome.error
    shown = valid(outcome)
    assert (shown["error"] is not None) == matters
    assert not matters or "could not be read" in failure_text(outcome)[0]
    assert shown["nodes"] or call == "fleet.read_tip"


def test_an_unfinished_transaction_is_shown_with_what_finishes_it() -> None:
    world = World()
    world.steering.faults["fleet.push_commit", 1] = "dies"
    world.run_to_death()
    world.steering.revive()
    outcome = world.run("status", node="")
    node = valid(outcome)["nodes"][0]
    assert (node["cordonedBy"], node["commitInBranch"], node["transaction"]["phase"]) == ("transaction", True, "pushing")
    lines = text(outcome, colour=False)
    assert lines[0].split()[:3] == ["NODE", "FLEET", "LIVE"]
    assert any("its commit is in the branch" in line for line in lines)
    assert any(line.startswith("  -> resume: kubectl gpu-transition apply") for line in lines)
    assert lines[-1] == "ok: 2 nodes, 2 with something left to do"


def test_a_branch_that_is_read_for_each_base_once() -> None:
    world = World()
    world.steering.faults["fleet.push_commit", 1] = "dies"
    world.run_to_death()
    world.steering.revive()
    before = len(world.steering.calls)
    world.run("status", node="")
    reads = [name for name, _ in world.steering.calls[before:] if name == "fleet.read_tip"]
    assert len(reads) == 2


def test_a_bug_in_a_status_is_exit_1() -> None:
    world = World()
    world.cluster.read_nodes = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    outcome = world.run("status", node="")
    assert (outcome.word, outcome.exit_code, valid(outcome)["error"]["id"]) == ("bug", 1, "bug")
