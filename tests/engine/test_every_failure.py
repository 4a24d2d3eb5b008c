"""The matrix: every port call of an undisturbed apply, in order, and each way in which it can go wrong.

Whatever fails: exit code 4 once the cordon was sent and never before, the node still cordoned under our record, no uncordon sent, and a
next run that reaches the end of an undisturbed one with exactly one commit for the transaction.
"""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_gpu_transition.model import Outcome
from tests.fakes.steering import KINDS
from tests.fakes.world import World

Key = tuple[str, int]


def undisturbed(**world: Any) -> World:
    """The run to compare with."""
    one = World(**world)
    outcome = one.run()
    assert (outcome.exit_code, one.is_done()) == (0, True)
    return one


PLAIN = undisturbed()
CALLS = list(dict.fromkeys(PLAIN.steering.calls))
UNCORDON = [key for key, write in zip([c for c in CALLS if c[0] == "cluster.patch_node"], PLAIN.cluster.writes, strict=True)][-1]


def was_sent(world: World) -> bool:
    """Whether a cordon was accepted, or may have been."""
    return any(
        w.kind == "cordon" and (w.effective or world.steering.faults.get(("cluster.patch_node", n)) == "fails")
        for n, w in enumerate(world.cluster.writes, 1)
    )


def check_failed(world: World, outcome: Outcome, key: Key) -> None:
    """What must hold right after a run that did not reach its end."""
    sent = was_sent(world)
    assert outcome.exit_code == (4 if sent else 3), outcome.error
    if key != UNCORDON:
        assert "uncordon" not in world.cluster.kinds()
    assert outcome.error is not None
    if any(w.kind == "cordon" and w.effective for w in world.cluster.writes):
        check_protected(world)
        assert outcome.resume_command is not None
        assert "--resume-cordoned" in outcome.resume_command
        assert {fact.split(":")[0] for fact in outcome.facts} == {"node", "annotation", "fleet", "remote"}
        assert outcome.inspect
    elif sent:
        assert outcome.headline is not None
        assert outcome.headline.startswith("THE NODE IS SCHEDULABLE")
    assert len(world.fleet.carrying()) <= 1


def check_protected(world: World) -> None:
    """The node is cordoned under our record."""
    assert world.cluster.unschedulable
    assert world.transaction is not None
    assert (world.transaction.source, world.transaction.target) == (world.source, world.target)


def check_next_run_ends_well(world: World, like: World) -> None:
    """The next run reaches the same end, with exactly one commit for the transaction."""
    before = world.transaction
    if world.fleet.head != world.fleet.tip and before is not None and world.fleet_mode() is world.source:
        world.fleet.pull()
    outcome = world.resume()
    assert outcome.exit_code == 0, outcome.error
    assert world.end() == like.end()
    assert world.is_done()
    if before is not None:
        assert len(world.fleet.carrying(before.id)) == 1


def kinds_of(name: str) -> tuple[str, ...]:
    """The ways in which a call can go wrong; a read that fails, is refused or loses its answer has had no effect all the same."""
    reads = name.split(".")[1].startswith(("read_", "find_", "probe_", "next_", "watch"))
    return ("fails", "dies", "slow") if reads else KINDS


CASES = [pytest.param(key, kind, id=f"{key[0]}-{key[1]}-{kind}") for key in CALLS for kind in kinds_of(key[0])]


@pytest.mark.parametrize(("key", "kind"), CASES)
def test_the_call_goes_wrong(key: Key, kind: str) -> None:
    world = World()
    world.steering.faults[key] = kind
    outcome = world.run_to_death()
    assert key in world.steering.calls
    assert world.cluster.kinds().count("uncordon") <= 1 + (key == UNCORDON)
    if outcome is None:
        if "uncordon" in world.cluster.kinds():
            assert key == UNCORDON
        elif "cordon" in world.cluster.kinds():
            check_protected(world)
        else:
            assert not world.cluster.unschedulable
    elif outcome.exit_code == 0:
        assert world.end() == PLAIN.end()
        assert world.is_done()
    else:
        check_failed(world, outcome, key)
    check_next_run_ends_well(world, PLAIN)
