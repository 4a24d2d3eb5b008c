"""The way out before the push: ``abandon`` in phase ``cordoned`` (spec section 7), and its refusals.

Plan: every refusal leaves node, checkout and remote as they were and ends with the last way out; every success is one patch, guarded as
an uncordon is, and writes nothing to the fleet.
"""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.e2e.test_resume import FOREIGN, annotate, state, stop_after_push, stop_before_push
from tests.harness.faultproxy import FaultProxy
from tests.harness.world import ANNOTATION, Result, World, gpu_pod


def refuse(world: World, *words: str, check: str = "cordon", **options: Any) -> Result:
    """Run an abandon that has to be refused by that check; it ends with the last way out and changes nothing."""
    before, since = state(world), world.backend.mark()
    result = world.run("abandon", output="json", **options)
    assert result.code == 3, result
    assert result.report["outcome"] == "blocked"
    found = result.check(check)
    assert found["status"] == "fail", result
    for word in words:
        assert word in f"{found['message']} {found['remedy']}", found
    assert f"annotate node {world.name} {ANNOTATION}-" in result.err
    assert state(world) == before
    assert world.writes(since=since) == []
    return result


def test_a_transaction_before_its_push_is_given_up(world: World) -> None:
    left = stop_before_push(world)
    fleet, since = world.fleet.snapshot(), world.backend.mark()
    result = world.run("abandon", output="json")
    assert result.code == 0, result
    report = result.report
    assert (report["outcome"], report["from"], report["to"]) == ("abandoned", "pod-hami", "vm-passthrough")
    assert [check["name"] for check in report["checks"]] == ["fleet-remote", "fleet-rule", "fleet-cluster", "cordon", "holders"]
    steps = {step["name"]: step["status"] for step in report["steps"]}
    assert steps == {
        **dict.fromkeys(("preflight", "wait", "uncordon"), "done"),
        **dict.fromkeys(("cordon", "recheck", "edit", "push"), "skipped"),
    }
    assert (world.mode(), world.is_cordoned(), world.annotation()) == ("pod-hami", False, None)
    assert world.fleet.snapshot() == fleet
    assert world.fleet.commits_with(left["id"]) == []
    (patch,) = world.writes(since=since)
    operations = patch["requestObject"]
    tested = {operation["path"]: operation["value"] for operation in operations if operation["op"] == "test"}
    assert tested["/spec/unschedulable"] is True
    assert json.loads(tested["/metadata/annotations/kube-dc.com~1gpu-transition"]) == left
    assert tested["/metadata/labels/kube-dc.com~1gpu.workload-mode"] == "pod-hami"
    assert [operation["path"] for operation in operations if operation["op"] == "replace"] == ["/metadata/resourceVersion"]


def test_holders_are_shown_and_do_not_block(world: World) -> None:
    stop_before_push(world)
    world.add(gpu_pod("tenant", world.name, namespace="tenant-a"))
    result = world.run("abandon", output="json")
    assert result.code == 0, result
    assert result.check("holders")["status"] == "warn"
    assert [holder["name"] for holder in result.report["holders"]] == ["tenant"]


def test_a_node_that_is_schedulable_only_loses_the_annotation(world: World) -> None:
    stop_before_push(world)
    world.uncordon()
    since = world.backend.mark()
    result = world.run("abandon", output="json")
    assert result.code == 0, result
    assert (world.is_cordoned(), world.annotation()) == (False, None)
    (patch,) = world.writes(since=since)
    assert not any("unschedulable" in operation["path"] for operation in patch["requestObject"])


def test_the_wait_is_for_the_mode_that_the_transaction_came_from(world: World) -> None:
    """The owner of --from is away: nothing is given back until it is Ready again."""
    stop_before_push(world)
    world.player.kubelet.behave("gpu-operator/hami-device-plugin", start="crash")
    plugin = next(item["metadata"] for item in world.pods() if item["metadata"]["name"].startswith("hami-device-plugin"))
    world.kube.delete(f"/api/v1/namespaces/{plugin['namespace']}/pods/{plugin['name']}", 0)
    running = world.start("abandon", output="json")
    running.wait_for_stderr("owner hami-device-plugin")
    assert world.is_cordoned()
    world.player.kubelet.heal()
    result = running.wait()
    assert result.code == 0, result
    assert not world.is_cordoned()


def test_a_wait_that_ends_without_the_conditions_has_written_nothing(world: World) -> None:
    left = stop_before_push(world)
    world.patch_node({"metadata": {"annotations": {"weave.works/kured-reboot-in-progress": "now"}}})
    since = world.backend.mark()
    result = world.run("abandon", output="json", timeout="2s")
    assert result.code == 3, result
    assert result.report["outcome"] == "blocked"
    assert any("kured" in item for item in result.report["waitingFor"])
    assert result.report["resumeCommand"].startswith("kubectl gpu-transition abandon ")
    assert world.annotation() == left
    assert world.writes(since=since) == []


def test_a_node_uncordoned_meanwhile_is_cordoned_again_and_a_timeout_is_then_a_failure_of_this_run(world: World) -> None:
    left = stop_before_push(world)
    world.patch_node({"metadata": {"annotations": {"weave.works/kured-reboot-in-progress": "now"}}})
    running = world.start("abandon", output="json", timeout="6s")
    running.wait_for_stderr("kured")
    world.uncordon()
    running.wait_for_stderr("cordoned again")
    result = running.wait()
    assert result.code == 4, result
    assert world.is_cordoned()
    assert world.annotation() == left


def test_an_interrupt_while_waiting_leaves_the_node_cordoned(world: World) -> None:
    left = stop_before_push(world)
    world.patch_node({"metadata": {"annotations": {"weave.works/kured-reboot-in-progress": "now"}}})
    running = world.start("abandon", output="json")
    running.wait_for_stderr("kured")
    running.signal(signal.SIGTERM)
    result = running.wait()
    assert result.code == 130, result
    assert world.is_cordoned()
    assert world.annotation() == left


@pytest.mark.parametrize("again", [1, 2])
def test_an_abandon_that_was_killed_is_made_again(world: World, again: int) -> None:
    left = stop_before_push(world)
    world.patch_node({"metadata": {"annotations": {"weave.works/kured-reboot-in-progress": "now"}}})
    for _ in range(again):
        running = world.start("abandon", output="json")
        running.wait_for_stderr("kured")
        running.kill()
        assert (world.is_cordoned(), world.annotation()) == (True, left)
    world.patch_node({"metadata": {"annotations": {"weave.works/kured-reboot-in-progress": None}}})
    assert world.run("abandon").code == 0
    assert (world.mode(), world.is_cordoned(), world.annotation()) == ("pod-hami", False, None)
    refuse_nothing(world)


def refuse_nothing(world: World) -> None:
    """What is over is over: another abandon finds nothing, and the preview is ready again."""
    refuse(world, "nothing to abandon")
    assert world.run("preview").code == 0


def test_a_change_whose_history_was_rewritten_is_given_up(world: World) -> None:
    left = stop_after_push(world)
    world.fleet.git("reset", "--hard", left["base"], cwd=world.fleet.checkout)
    world.fleet.git("push", "--force", cwd=world.fleet.checkout)
    refuse(world, "may still be in flight")
    world.fleet.git("commit", "--allow-empty", "-m", "another past", cwd=world.fleet.checkout)
    world.fleet.git("push", cwd=world.fleet.checkout)
    world.player.flux.paused = False
    assert world.run("abandon").code == 0
    assert (world.mode(), world.is_cordoned(), world.annotation()) == ("pod-hami", False, None)
    refuse_nothing(world)


def test_a_node_without_a_transaction_has_nothing_to_give_up(world: World) -> None:
    refuse(world, "nothing to abandon")
    world.cordon()
    refuse(world, "nothing to abandon")
    assert world.is_cordoned()


def test_a_change_that_is_in_force_can_not_be_given_up(world: World) -> None:
    stop_after_push(world)
    refuse(world, "in force", "revert", check="fleet-rule")


def test_an_announced_push_that_may_be_in_flight_can_not_be_given_up_until_another_commit_is_pushed(world: World) -> None:
    left = stop_before_push(world)
    announced = {**left, "phase": "pushing", "commit": "1" * 40}
    annotate(world, announced)
    refuse(world, "may still be in flight", "--resume-cordoned", "an empty one will do")
    world.fleet.another_commit_by_somebody()
    result = world.run("abandon", output="json")
    assert result.code == 0, result
    assert (world.mode(), world.is_cordoned(), world.annotation()) == ("pod-hami", False, None)


def test_a_change_that_was_reverted_is_given_up_once_the_node_is_back_and_nobody_holds_a_gpu(world: World) -> None:
    left = stop_after_push(world)
    holder = world.add(gpu_pod("late", world.name, namespace="tenant-a"))
    world.fleet.revert_by_somebody(world.fleet.commits_with(left["id"])[0])
    world.player.flux.paused = False
    running = world.start("abandon", output="json")
    running.wait_for_stderr("holder tenant-a/Pod/late")
    assert world.is_cordoned()
    world.remove(holder)
    result = running.wait()
    assert result.code == 0, result
    assert (world.mode(), world.is_cordoned(), world.annotation()) == ("pod-hami", False, None)


@pytest.mark.parametrize("kind", [kind for kind in FOREIGN if kind != "another direction"])
def test_an_annotation_that_is_not_this_cluster_s_and_node_s_is_refused(world: World, kind: str) -> None:
    change, _ = FOREIGN[kind]
    annotate(world, change(stop_before_push(world)))
    refuse(world)


def test_either_direction_can_be_given_up(world: World) -> None:
    left = stop_before_push(world)
    annotate(world, {**left, "to": "pod-hami-dra"})
    result = world.run("abandon", output="json")
    assert result.code == 0, result
    assert result.report["to"] == "pod-hami-dra"


def test_a_cordon_of_somebody_else_is_left_to_them(world: World) -> None:
    stop_before_push(world)
    world.uncordon()
    world.cordon(manager="kubectl-cordon")
    refuse(world, "cordoned by kubectl-cordon")
    assert world.is_cordoned()


def test_a_change_in_force_by_other_hands_refuses(world: World) -> None:
    stop_before_push(world)
    world.player.flux.paused = True
    world.fleet.set_modes({world.name: "vm-passthrough"})
    refuse(world, "in force", check="fleet-rule")


def test_a_remote_that_can_not_be_read_refuses(world: World) -> None:
    stop_before_push(world)
    world.player.flux.paused = True
    gone = world.fleet.remote.rename(world.fleet.remote.with_name("away.git"))
    try:
        before = world.node()["metadata"]["annotations"]
        result = world.run("abandon", output="json")
        assert result.code == 3, result
        assert result.check("fleet-remote")["status"] == "fail"
        assert world.is_cordoned()
        assert world.node()["metadata"]["annotations"] == before
    finally:
        gone.rename(world.fleet.remote)


def test_an_apply_that_announces_its_push_meanwhile_wins(world: World) -> None:
    """The record is changed between the second look and the uncordon: the API server refuses the abandon, and it stops."""
    left = stop_before_push(world)

    def announce(_: object) -> None:
        if not announced:
            announced.append(True)
            annotate(world, {**left, "phase": "pushing", "commit": "0" * 40})

    announced: list[bool] = []
    with FaultProxy(world.backend) as proxy:
        proxy.on(verb="patch", path="/nodes/", before=announce)
        result = world.run("abandon", output="json", kubeconfig=world.backend.kubeconfig(world.root / "proxied", server=proxy.url))
    assert result.code == 3, result
    assert world.is_cordoned()
    left_now = world.annotation()
    assert left_now is not None
    assert left_now["phase"] == "pushing"


def test_the_lock_of_the_checkout_is_not_needed(world: World) -> None:
    stop_before_push(world)
    world.fleet.write("stray.txt", "a dirty checkout does not matter either\n")
    assert world.run("abandon").code == 0
    assert not world.is_cordoned()
