"""Several runs at once: on one node, on two nodes of one cluster, from one checkout or two. Every race is made to happen, not hoped for."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.faultproxy import FaultProxy
from tests.harness.kube import Json
from tests.harness.world import NODES, OWNERS, Result, Running, World, sleep_hook

from .expect import report_of
from .transitions import (
    AS_PRINTED,
    OPERATOR,
    RECORD_PATH,
    accepted,
    assert_checkout_is_at,
    assert_completed,
    assert_given_back,
    assert_one_commit,
    assert_safe,
    failure_lines,
    is_announcement,
    is_cordon,
    is_recordon,
    is_taking_back,
    is_uncordon,
    without_objects,
)

SOMEBODY = "Somebody Else <somebody@example.com>"
TWO_NODES = {"gpu-1": "pod-hami", "gpu-2": "pod-hami"}


@pytest.fixture
def proxy(world: World) -> Iterator[FaultProxy]:
    with FaultProxy(world.backend) as proxy:
        world.kubeconfig = world.through(proxy)
        yield proxy


def meet(proxy: FaultProxy, kind: Callable[[Any], bool], parties: int = 2) -> None:
    """Let the first patches of this kind of that many runs arrive at the server at the same time."""
    barrier = threading.Barrier(parties)
    proxy.on("patch", f"^{NODES}/", when=kind, times=parties, before=lambda _: barrier.wait(30))


def start(world: World, repo: Path | None = None, node: str | None = None) -> Running:
    return world.start("apply", "-o", "json", repo=repo or world.fleet.checkout, node=node or world.name)


def start_resume(world: World, result: Result, repo: Path | None = None) -> Running:
    """The printed command, from this checkout."""
    words = shlex.split(failure_lines(result)[-1])
    if repo:
        words[words.index("--repo") + 1] = str(repo)
    return world.start(words[2], *words[3:], "-o", "json", **AS_PRINTED)


# One node


def test_two_applies_on_one_node_make_one_transition(world: World, proxy: FaultProxy) -> None:
    second = world.fleet.clone("second")
    before = world.fleet.snapshot(second), world.fleet.snapshot()
    meet(proxy, is_cordon)

    runs = [start(world), start(world, second)]
    results = [run.wait() for run in runs]

    assert sorted(result.code for result in results) == [0, 3]
    assert [len(accepted(world, kind)) for kind in (is_cordon, is_announcement, is_recordon, is_uncordon)] == [1, 1, 0, 1]
    winner, loser = sorted(results, key=lambda result: result.code)
    checkout, author = (world.fleet.checkout, OPERATOR) if winner is results[0] else (second, SOMEBODY)
    record = assert_completed(world, winner, checkout=checkout, author=author)
    report = report_of(loser)
    assert (report["outcome"], report["transaction"], report["resumeCommand"]) == ("blocked", None, None)
    assert loser.check("cordon")["status"] == "fail"
    assert record["id"] in loser.check("cordon")["message"]
    left = second if winner is results[0] else world.fleet.checkout
    assert world.fleet.git("rev-parse", "HEAD", cwd=left) == record["base"]
    assert without_objects(world.fleet.snapshot(left)) == without_objects(before[0] if left == second else before[1])


def interrupted_before_the_push(world: World, proxy: FaultProxy) -> Result:
    rule = proxy.on("patch", f"^{NODES}/", when=is_cordon, times=1, after=lambda _: running.signal())
    running = world.start("apply", "-o", "json")
    result = running.wait()
    assert len(rule.fired) == 1
    assert_safe(world, result, "interrupted")
    return result


def assert_both_are_done(world: World, results: list[Result], left: Json, author: str | None = None) -> str:
    """One uncordon, one commit with the id, and both runs say that it is complete; the commit."""
    for result in results:
        report = report_of(result)
        assert (result.code, report["outcome"], report["resumed"]) == (0, "completed", True), str(result)
        assert report["transaction"]["id"] == left["id"]
        assert report["error"] is None
        assert not report["live"]["unschedulable"]
    operations = assert_given_back(world, "gpu-1", "vm-passthrough")
    assert (
        json.loads(next(item["value"] for item in operations if item["op"] == "test" and item["path"] == RECORD_PATH))["id"] == left["id"]
    )
    assert (world.is_cordoned(), world.annotation(), world.owners()) == (False, None, [OWNERS["vm-passthrough"][1]])
    found = world.fleet.git("log", "-1", "--format=%an <%ae>", *world.fleet.commits_with(left["id"]), cwd=world.fleet.remote)
    assert found == (author or found)
    return assert_one_commit(world, left["id"], "gpu-1", "pod-hami", "vm-passthrough", author=found)


def test_two_resumes_before_the_push_make_one_commit(world: World, proxy: FaultProxy) -> None:
    """One is in the middle of its push when the other announces its own: only one of the two can land."""
    first = interrupted_before_the_push(world, proxy)
    left = world.annotation() or {}
    second = world.fleet.clone("second")
    proxy.clear()
    meet(proxy, is_announcement)
    world.fleet.hook("pre-receive", sleep_hook(2.5))

    runs = [start_resume(world, first), start_resume(world, first, second)]
    results = [run.wait() for run in runs]

    assert len(accepted(world, is_announcement)) == 2
    assert accepted(world, is_taking_back) == []  # who found an announcement never takes one back, and the other's has landed
    commit = assert_both_are_done(world, results, left)
    for checkout in (world.fleet.checkout, second):
        assert_checkout_is_at(world, commit, checkout)


def test_two_resumes_in_the_wait_uncordon_once(world: World, proxy: FaultProxy) -> None:
    """From one checkout: the lock is not needed for waiting. Both verify the node; one uncordon can find the record."""
    world.player.flux.paused = True
    running = world.start("apply", "-o", "json")
    running.wait_for_stderr("waiting for .*labels 0/3")
    running.signal()
    first = running.wait()
    left = world.annotation() or {}
    assert_safe(world, first, "interrupted", phase="pushing", pushed=True)
    meet(proxy, is_uncordon)

    runs = [start_resume(world, first), start_resume(world, first)]
    for run in runs:
        run.wait_for_stderr("waiting for .*labels 0/3")
    world.player.flux.paused = False
    results = [run.wait() for run in runs]

    commit = assert_both_are_done(world, results, left, OPERATOR)
    assert_checkout_is_at(world, commit)
    assert len([request for request in proxy.requests if is_uncordon(request)]) == 2


# Two nodes


@pytest.mark.world(nodes=TWO_NODES)
def test_two_nodes_at_once_lose_no_update(world: World, proxy: FaultProxy) -> None:
    """Both push onto the same tip; the one that comes second takes up the other's commit."""
    base = world.fleet.tip()
    second = world.fleet.clone("second")
    meet(proxy, is_announcement)

    runs = {"gpu-1": start(world), "gpu-2": start(world, second, "gpu-2")}
    results = {name: run.wait() for name, run in runs.items()}

    assert world.fleet.modes() == dict.fromkeys(TWO_NODES, "vm-passthrough")
    assert len(world.fleet.log()) == 3
    checkouts = {"gpu-1": (world.fleet.checkout, OPERATOR), "gpu-2": (second, SOMEBODY)}
    bases = {}
    for name, result in results.items():
        checkout, author = checkouts[name]
        was_first = world.fleet.log()[1] in world.fleet.commits_with(result.report["transaction"]["id"])
        record = assert_completed(world, result, node=name, checkout=checkout, author=author, advanced=was_first, others=1)
        bases[was_first] = (record["base"], record["commit"])
        if not was_first:
            assert "git pull --ff-only" in result.step("push")["message"]
            assert world.fleet.git("status", "--porcelain", cwd=checkout) == ""
            assert world.fleet.git("rev-parse", "HEAD", cwd=checkout) == base
    assert bases[True][0] == base
    assert bases[False] == (bases[True][1], world.fleet.tip())


@pytest.mark.world(nodes=TWO_NODES)
def test_a_second_node_goes_while_the_first_one_waits(world: World) -> None:
    """One checkout is enough: it is not locked during the wait, and stands at the first node's commit by then."""
    world.player.flux.paused = True
    first = start(world)
    first.wait_for_stderr("waiting for .*labels 0/3")
    tip = world.fleet.tip()
    second = start(world, node="gpu-2")
    second.wait_for_stderr("waiting for .*labels 0/3")
    world.player.flux.paused = False

    one, two = first.wait(), second.wait()

    assert_completed(world, one, advanced=False, others=1)
    record = assert_completed(world, two, node="gpu-2", others=1)
    assert (record["base"], record["commit"]) == (tip, world.fleet.tip())
    assert world.fleet.modes() == dict.fromkeys(TWO_NODES, "vm-passthrough")


@pytest.mark.world(nodes=TWO_NODES)
def test_one_checkout_serves_one_push_at_a_time(world: World) -> None:
    """From the preflight to the push a checkout is locked, and whoever has it is named."""
    started = world.root / "started"
    world.fleet.hook("pre-receive", f"touch {started}\nsleep 3\n")
    first = start(world)
    world.wait_until(started.exists, "the push")

    refused = world.run("apply", "-o", "json", node="gpu-2")

    report = report_of(refused)
    assert (refused.code, report["outcome"], refused.check("fleet-checkout")["status"]) == (3, "blocked", "fail")
    assert str(first.pid) in refused.check("fleet-checkout")["message"]
    assert "kubectl gpu-transition apply dc1 gpu-1" in refused.check("fleet-checkout")["message"]
    assert not world.is_cordoned("gpu-2")
    assert_completed(world, first.wait())
