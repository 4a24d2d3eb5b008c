"""Flux on its way: asked to hurry where that was wanted, shown, and never decisive (spec sections 2 and 7)."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_gpu_transition.flux import short_revision
from kubectl_gpu_transition.model import Outcome
from tests.fakes.world import World

SOURCE, KUSTOMIZATION = "sources flux-system/flux-system", "kustomizations flux-system/gpu-node-mode"


def applied(world: World, revision: str | None, handled: str | None = None) -> None:
    """What Flux's objects say: the revision that is applied, and the request that both have handled."""
    for field in ("kustomizations", "sources"):
        status = world.cluster.objects[field][0]["status"]
        status.update({"lastAppliedRevision": revision, **({"lastHandledReconcileAt": handled} if handled else {})})
    world.cluster.version += 1


def waited(outcome: Outcome) -> str:
    """What was said of Flux when the node was given back."""
    message = next(step.message for step in outcome.steps if step.name == "wait")
    return "".join(part for part in message.split("; besides: ") if part.startswith("Flux"))


@pytest.mark.parametrize("reconcile", [True, False])
def test_flux_is_asked_after_the_push_the_source_first_and_only_where_that_was_wanted(reconcile: bool) -> None:
    world = World()
    outcome = world.run(reconcile=reconcile)
    assert outcome.exit_code == 0, outcome.error
    assert world.cluster.asked == ([SOURCE, KUSTOMIZATION] if reconcile else [])
    names = [name for name, _ in world.steering.calls]
    if reconcile:
        assert names.index("fleet.push_commit") < names.index("cluster.ask_flux")


def test_a_resume_that_only_waits_asks_too() -> None:
    world = World()
    world.steering.faults["fleet.push_commit", 1] = "dies"
    world.run_to_death(reconcile=True)
    assert world.cluster.asked == []
    outcome = world.resume(reconcile=True)
    assert (outcome.exit_code, world.cluster.asked) == (0, [SOURCE, KUSTOMIZATION])


def test_an_abandon_asks_nobody() -> None:
    world = World()
    world.steering.faults["cluster.patch_node", 2] = "dies"
    world.run_to_death()
    world.steering.revive()
    assert (world.run("abandon").exit_code, world.cluster.asked) == (0, [])


@pytest.mark.parametrize("number", [1, 2])
def test_flux_that_can_not_be_asked_costs_nothing_but_time(number: int) -> None:
    world = World()
    world.steering.faults["cluster.ask_flux", number] = "refused"
    outcome = world.run(reconcile=True)
    assert (outcome.exit_code, len(world.cluster.asked)) == (0, number - 1)
    assert any("was not asked to reconcile" in line and "403" in line for line in world.terminal.lines)


@pytest.mark.parametrize(("field", "words"), [("kustomizations", "nothing of it to ask"), ("sources", "nothing of it to ask")])
def test_where_there_is_no_flux_nobody_is_asked(field: str, words: str) -> None:
    world = World()
    world.cluster.objects[field] = []
    outcome = world.run(reconcile=True, ignore_missing_gitops=True)
    assert (outcome.exit_code, world.cluster.asked) == (0, [])
    assert any(words in line for line in world.terminal.lines)


CASES: list[Any] = [
    pytest.param(lambda world: f"main@sha1:{world.fleet.tip}", ", which has the change", id="ours"),
    pytest.param(lambda world: "main@sha1:" + world.fleet.commit("README", b"y"), ", which has the change", id="a later one"),
    pytest.param(lambda world: f"main@sha1:{world.fleet.ancestors(world.fleet.tip)[-1]}", ", without the change yet", id="an earlier one"),
    pytest.param(lambda world: "main@sha1:" + "e" * 40, "", id="one that is not known here"),
]


@pytest.mark.parametrize(("revision", "words"), CASES)
def test_what_flux_has_applied_is_shown_and_decides_nothing(revision: Any, words: str) -> None:
    world = World()
    shown: list[str] = []

    def arrive() -> None:
        shown.append(revision(world))
        applied(world, shown[0])

    world.on_arrival = arrive
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert waited(outcome) == f"Flux has applied {short_revision(shown[0])}{words}"


def test_when_flux_has_handled_the_request_is_shown() -> None:
    world = World()
    applied(world, f"main@sha1:{world.fleet.tip}")
    world.on_arrival = lambda: applied(world, f"main@sha1:{world.fleet.tip}", handled="asked 1")
    outcome = world.run(reconcile=True)
    assert any(
        "without the change yet (asked to reconcile: source not yet, Kustomization not yet)" in line for line in world.terminal.lines
    )
    assert waited(outcome).endswith("which has the change (asked to reconcile: source done, Kustomization not yet)")


@pytest.mark.parametrize(
    ("revision", "shown"),
    [("main@sha1:" + "a" * 40, "main@aaaaaaaaaaaa"), ("sha1:" + "a" * 40, "aaaaaaaaaaaa"), ("v1@sha256:" + "b" * 64, "v1@bbbbbbbbbbbb")],
)
def test_a_revision_is_shown_in_short(revision: str, shown: str) -> None:
    assert short_revision(revision) == shown
