"""What goes wrong after the cordon, one thing at a time: the node stays safe, people are told, and the printed command goes on."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness.faultproxy import FaultProxy, ProxyRequest, Rule
from tests.harness.gitservers import GitHttpServer
from tests.harness.kube import Json
from tests.harness.world import (
    ANNOTATION,
    LABEL_ACTIVE,
    LOSE_THE_ANSWER,
    NODES,
    OWNERS,
    REJECT,
    Result,
    Running,
    World,
    gpu_node,
    gpu_pod,
    rule_bytes,
    sleep_hook,
)

from .expect import report_of
from .test_apply import follow_url
from .transitions import (
    accepted,
    assert_checkout_is_at,
    assert_completed,
    assert_resumes,
    assert_safe,
    assert_says_what_is_true,
    failure_lines,
    follow,
    is_announcement,
    is_cordon,
    is_recordon,
    is_taking_back,
    is_uncordon,
    without_objects,
)

NODE = f"^{NODES}/gpu-1$"
PODS = "^/api/v1/pods$"
SANDBOX = OWNERS["vm-passthrough"][1]
MARK = {"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}


@pytest.fixture
def proxy(world: World) -> Iterator[FaultProxy]:
    with FaultProxy(world.backend) as proxy:
        world.kubeconfig = world.through(proxy)
        yield proxy


class Moment:
    """A point of a run, as the proxy sees it pass: the program's patches of the node."""

    def __init__(self, proxy: FaultProxy, kind: Callable[[Any], bool]) -> None:
        self._proxy, self._kind = proxy, kind

    def has_passed(self, *_: object) -> bool:
        """Whether such a patch was answered already."""
        return any(self._kind(request) and request.code is not None for request in list(self._proxy.requests))


def apply(world: World, *args: str, **options: Any) -> Result:
    return world.run("apply", "-o", "json", *args, **options)


def start_waiting(world: World, *args: str, **options: Any) -> Running:
    """An apply whose change does not arrive, at the point where it waits for it."""
    world.player.flux.paused = True
    running = world.start("apply", "-o", "json", *args, **options)
    running.wait_for_stderr(r"waiting for .*labels 0/3")
    return running


def stop_when(world: World, pattern: str) -> Result:
    """An apply that is told to stop once it says this on standard error."""
    running = world.start("apply", "-o", "json")
    running.wait_for_stderr(pattern)
    running.signal()
    return running.wait()


# Holders


@pytest.mark.parametrize("look", [1, 2], ids=["at-the-first-look", "between-the-two-looks"])
def test_a_holder_that_appears_before_the_push_stops_it(world: World, proxy: FaultProxy, look: int) -> None:
    holder = gpu_pod("late", world.name)
    tip, before = world.fleet.tip(), world.fleet.snapshot()
    proxy.on("list", PODS, when=Moment(proxy, is_cordon).has_passed, nth=look, before=lambda _: world.add(holder))

    result = apply(world)

    report = assert_safe(world, result, "holder-appeared")
    assert [(item["namespace"], item["kind"], item["pods"]) for item in report["holders"]] == [("tenant-a", "Pod", ["late"])]
    assert result.step("recheck")["status"] == "failed"
    assert world.fleet.tip() == tip
    assert without_objects(world.fleet.snapshot()) == without_objects(before)
    assert accepted(world, is_announcement) == []
    assert "tenant-a/Pod/late" in failure_lines(result)[0]
    still = follow(world, result)
    assert (still.code, still.check("holders")["status"]) == (3, "fail")
    assert "force" not in (still.check("holders")["remedy"] or "").lower()

    world.remove(holder)
    assert_resumes(world, result)


def test_a_holder_between_the_two_verifying_observations_keeps_the_node_cordoned(world: World, proxy: FaultProxy) -> None:
    """The watch of pods shows nothing of it: what counts is that each observation lists afresh."""
    holder = gpu_pod("late", world.name)
    arrival = threading.Event()

    def hide(events: Iterator[Json]) -> Iterator[Json]:
        return (event for event in events if event["object"]["metadata"]["name"] != "late")

    def arrive(_: ProxyRequest) -> None:
        world.add(holder)
        arrival.set()

    proxy.on("watch", PODS, stream=hide)
    second = proxy.on("list", PODS, when=lambda _: "looking once more" in running.err, times=1, before=arrive)
    running = world.start("apply", "-o", "json")

    second.wait()
    running.wait_for_stderr(r"waiting for .*holder tenant-a/Pod/late")
    assert world.is_cordoned()
    assert accepted(world, is_uncordon) == []
    removed = world.backend.mark()
    world.remove(holder)
    result = running.wait()

    assert_completed(world, result)
    assert len(world.uncordons(since=removed)) == 1


# Pushes that do not get through


def test_a_rejected_push_leaves_everything_as_it_was(world: World) -> None:
    before, tip = world.fleet.snapshot(), world.fleet.tip()
    world.fleet.hook("pre-receive", REJECT)

    result = apply(world)

    assert_safe(world, result, "push-rejected")
    assert "no pushes today" in failure_lines(result)[0]
    assert without_objects(world.fleet.snapshot()) == without_objects(before)
    assert world.fleet.tip() == tip
    cordon, announcement, back = (accepted(world, kind) for kind in (is_cordon, is_announcement, is_taking_back))
    assert [len(cordon), len(announcement), len(back)] == [1, 1, 1]
    first = next(item["value"] for item in cordon[0]["requestObject"] if "annotations" in item["path"])
    assert world.node()["metadata"]["annotations"][ANNOTATION] == first

    world.fleet.hook("pre-receive", None)
    assert_resumes(world, result)


def test_a_branch_that_moved_on_is_taken_up(world: World, proxy: FaultProxy) -> None:
    before, base = world.fleet.snapshot(), world.fleet.tip()
    proxy.on("patch", NODE, when=is_announcement, times=1, before=lambda _: world.fleet.another_commit_by_somebody())

    result = apply(world)

    record = assert_completed(world, result, advanced=False)
    theirs = world.fleet.log()[1]
    assert world.fleet.log() == [record["commit"], theirs, base]
    assert record["base"] == theirs
    assert [len(accepted(world, kind)) for kind in (is_announcement, is_taking_back)] == [2, 1]
    assert without_objects(world.fleet.snapshot()) == without_objects(before)
    remedy = "git pull --ff-only"
    assert remedy in result.step("push")["message"]
    world.fleet.git(*remedy.split()[1:])
    assert_checkout_is_at(world, record["commit"])


def test_a_branch_that_moves_on_again_and_again_is_given_up(world: World, proxy: FaultProxy) -> None:
    before = world.fleet.snapshot()
    proxy.on("patch", NODE, when=is_announcement, before=lambda _: world.fleet.another_commit_by_somebody())

    result = apply(world)

    assert_safe(world, result, "remote-moved")
    assert [len(accepted(world, kind)) for kind in (is_announcement, is_taking_back)] == [4, 4]
    assert without_objects(world.fleet.snapshot()) == without_objects(before)
    proxy.clear()
    refused = follow(world, result)
    assert (refused.code, refused.check("fleet-remote")["status"]) == (3, "fail")
    assert "pull --ff-only" in refused.check("fleet-remote")["remedy"]
    world.fleet.git("pull", "--quiet", "--ff-only")
    assert_resumes(world, result)


def test_gates_that_were_opened_meanwhile_stop_the_push(world: World, proxy: FaultProxy) -> None:
    def open_a_gate(_: ProxyRequest) -> None:
        config = world.fleet.file_at(world.fleet.tip(), world.fleet.config_path)
        opened = config.replace(b"GPU_VM_CREATION_ENABLED=false", b"GPU_VM_CREATION_ENABLED=true")
        world.fleet.another_commit_by_somebody(world.fleet.config_path, opened)

    proxy.on("patch", NODE, when=is_announcement, times=1, before=open_a_gate)

    result = apply(world)

    assert_safe(world, result, "moved-tip-blocked")
    assert "GPU_VM_CREATION_ENABLED is 'true'" in failure_lines(result)[0]
    world.fleet.git("pull", "--quiet", "--ff-only")
    world.fleet.set_gate("GPU_VM_CREATION_ENABLED", "false")
    assert_resumes(world, result)


def test_the_same_change_by_other_hands_is_waited_for(world: World, proxy: FaultProxy) -> None:
    changed = rule_bytes(world.cluster, {"gpu-1": "vm-passthrough"})
    proxy.on(
        "patch",
        NODE,
        when=is_announcement,
        times=1,
        before=lambda _: world.fleet.another_commit_by_somebody(world.fleet.rule_path, changed),
    )

    result = apply(world)

    report = report_of(result)
    assert (result.code, report["outcome"]) == (0, "completed"), str(result)
    assert world.fleet.transition_commits() == []
    assert len(accepted(world, is_uncordon)) == 1
    assert (world.is_cordoned(), world.annotation(), world.mode()) == (False, None, "vm-passthrough")


def test_a_rewritten_branch_stops_the_push(world: World, proxy: FaultProxy) -> None:
    def rewrite(_: ProxyRequest) -> None:
        clone = world.fleet.clone("rewriting")
        world.fleet.git("commit", "--quiet", "--amend", "--message=chore: another start", cwd=clone)
        world.fleet.git("push", "--quiet", "--force", cwd=clone)

    before = world.fleet.snapshot()
    proxy.on("patch", NODE, when=is_announcement, times=1, before=rewrite)

    result = apply(world)

    assert_safe(world, result, "tip-refused")
    assert "history was rewritten" in failure_lines(result)[0]
    assert without_objects(world.fleet.snapshot()) == without_objects(before)
    assert world.fleet.transition_commits() == []
    refused = follow(world, result)
    report_of(refused)
    assert (refused.code, refused.check("fleet-rule")["status"]) == (3, "fail")
    assert "abandon" in refused.check("fleet-rule")["remedy"]


def test_a_remote_that_is_gone_at_the_push(world: World, proxy: FaultProxy) -> None:
    aside = world.fleet.remote.with_name("aside.git")
    before = world.fleet.snapshot()
    proxy.on("patch", NODE, when=is_announcement, times=1, before=lambda _: world.fleet.remote.rename(aside))

    result = apply(world)
    aside.rename(world.fleet.remote)

    assert_safe(world, result, "push-rejected")
    facts = failure_lines(result)
    assert "could not be read" in next(line for line in facts if line.startswith("  remote:"))
    assert without_objects(world.fleet.snapshot()) == without_objects(before)
    assert_resumes(world, result)


def test_a_push_that_breaks_off_may_have_landed(world: World) -> None:
    """The exchange ended after the ref update was sent and the tip still is the base: nobody can know."""
    before = world.fleet.snapshot()
    world.fleet.hook("pre-receive", LOSE_THE_ANSWER)

    result = apply(world)

    report = assert_safe(world, result, "push-unknown", phase="pushing")
    assert "unknown" in failure_lines(result)[0]
    assert without_objects(world.fleet.snapshot()) == without_objects(before)
    assert accepted(world, is_taking_back) == []
    world.fleet.hook("pre-receive", None)
    record = assert_resumes(world, result)
    assert record["commit"] == report["transaction"]["commit"]  # the announced one, pushed again


def test_an_answer_lost_after_the_push_is_read_back(world: World) -> None:
    world.fleet.hook("post-receive", LOSE_THE_ANSWER)
    assert_completed(world, apply(world))


def test_an_answer_lost_over_http_is_read_back(world: World) -> None:
    with GitHttpServer(world.fleet.root) as server:
        follow_url(world, f"{server.url}/remote.git")
        fault = server.fail("push", "drop-after")
        result = apply(world)
    assert len(fault.fired) == 1
    assert_completed(world, result)


@pytest.mark.parametrize("how", ["drop-before", "error"])
def test_a_push_that_an_http_server_does_not_answer(world: World, how: Any) -> None:
    with GitHttpServer(world.fleet.root) as server:
        follow_url(world, f"{server.url}/remote.git")
        server.fail("push", how, code=502)
        result = apply(world)
        assert_safe(world, result, "push-unknown", phase="pushing")
        assert_resumes(world, result)


def test_a_token_that_is_revoked_before_the_push(world: World, proxy: FaultProxy) -> None:
    """The exchange ended before anything was sent, so the push has failed for certain."""
    token = {"FLEET_TOKEN": "first"}
    with GitHttpServer(world.fleet.root, users={"git": "first"}) as server:
        follow_url(world, f"{server.url.replace('://', '://git@')}/remote.git")
        proxy.on("patch", NODE, when=is_announcement, times=1, before=lambda _: server.users.update(git="second"))
        result = apply(world, env=token, token_env="FLEET_TOKEN")
        assert_safe(world, result, "push-rejected")
        assert "rejected the credential" in failure_lines(result)[0]
        assert "first" not in result.out + result.err
        assert_resumes(world, result, env={"FLEET_TOKEN": "second"})


def test_the_text_of_a_failure(world: World) -> None:
    world.fleet.hook("pre-receive", REJECT)
    result = world.run("apply")
    assert result.code == 4
    lines = result.out.rstrip("\n").split("\n")
    words = [(line.split()[0], line.split()[1]) for line in lines if line.startswith(("DONE", "FAIL", "SKIP"))]
    assert words == [
        ("DONE", "preflight"),
        ("DONE", "cordon"),
        ("DONE", "recheck"),
        ("DONE", "edit"),
        ("FAIL", "push"),
        ("SKIP", "wait"),
        ("SKIP", "uncordon"),
    ]
    assert lines[-1].startswith("failed-cordoned: the remote refused the push: ")
    assert "no pushes today" in lines[-1]
    lines = failure_lines(result)
    assert lines[0] == f"error: {result.out.rstrip().rpartition('failed-cordoned: ')[2]}"
    assert_says_what_is_true(lines, world.name)
    assert lines[-2] == "Do not uncordon it by hand; go on with:"
    assert lines[-1].startswith("  kubectl gpu-transition apply dc1 gpu-1 ")


def test_a_slow_hook_leaves_the_push_unknown_and_a_resume_finds_it_landed(world: World) -> None:
    hook = world.fleet.hook("pre-receive", sleep_hook(4))
    with GitHttpServer(world.fleet.root) as server:
        follow_url(world, f"{server.url}/remote.git")
        result = apply(world, git_timeout="2s")
        assert "--git-timeout 2s" in failure_lines(result)[-1]
        assert world.fleet.transition_commits() == []
        report = assert_safe(world, result, "push-unknown", phase="pushing")
        world.wait_until(lambda: world.fleet.tip() == report["transaction"]["commit"], "the slow push to land")
        hook.unlink()
        record = assert_resumes(world, result)
    assert record["commit"] == report["transaction"]["commit"]
    assert accepted(world, is_taking_back) == []


# The wait


def test_a_change_that_does_not_arrive_in_time(world: World) -> None:
    world.player.flux.paused = True

    result = apply(world, timeout="3s")

    report = assert_safe(world, result, "timeout", phase="pushing", pushed=True)
    assert report["waitingFor"][0].startswith("labels 0/3")
    assert any(SANDBOX in item for item in report["waitingFor"])
    lines = failure_lines(result)
    assert lines[lines.index("Still missing:") + 1].strip() == report["waitingFor"][0]
    assert 2.5 < result.step("wait")["seconds"] < 10
    assert_checkout_is_at(world, report["transaction"]["commit"])
    world.player.flux.paused = False
    assert_resumes(world, result)


def test_an_owner_that_does_not_start(world: World) -> None:
    world.player.kubelet.behave(f"gpu-operator/{SANDBOX}", start="init-crash-loop")
    result = stop_when(world, "init container init waiting")

    report = assert_safe(world, result, "interrupted", phase="pushing", pushed=True)
    assert any(SANDBOX in item and "init container init waiting: CrashLoopBackOff" in item for item in report["waitingFor"])
    world.player.kubelet.heal()
    assert_resumes(world, result)


def test_an_owner_that_does_not_go(world: World) -> None:
    world.player.kubelet.behave("gpu-operator/hami-device-plugin", stop="never")
    result = stop_when(world, "hami-device-plugin.*terminating")

    report = assert_safe(world, result, "interrupted", phase="pushing", pushed=True)
    assert any("hami-device-plugin" in item and "terminating" in item for item in report["waitingFor"])
    world.player.kubelet.heal()
    assert_resumes(world, result)


def break_off(_: Iterator[Json]) -> Iterator[Json]:
    return iter(())


def expire(_: Iterator[Json]) -> Iterator[Json]:
    return iter([{"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}}])


@pytest.mark.parametrize(
    "fault",
    [{"stream": break_off}, {"stream": expire}, {"drop": "before"}, {"reply": (503, None)}, {"reply": (429, None)}],
    ids=["end-at-once", "410", "dropped", "503", "429"],
)
def test_watches_that_break_are_ridden_out(world: World, proxy: FaultProxy, fault: dict[str, Any]) -> None:
    rules = [proxy.on("watch", path, times=2, **fault) for path in (f"^{NODES}$", PODS, "/kubevirts$")]

    result = apply(world)

    assert_completed(world, result)
    assert all(len(rule.fired) == 2 for rule in rules)


def test_lists_that_fail_for_a_while_are_ridden_out(world: World, proxy: FaultProxy) -> None:
    rule = proxy.on("list", PODS, when=Moment(proxy, is_announcement).has_passed, times=6, reply=(503, None))
    assert_completed(world, apply(world))
    assert len(rule.fired) == 6


# Signals


def assert_interrupted(world: World, result: Result, name: str, **options: Any) -> Json:
    report = assert_safe(world, result, "interrupted", **options)
    assert failure_lines(result)[0] == f"error: interrupted by {name}"
    return report


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_while_waiting(world: World, name: str) -> None:
    running = start_waiting(world)
    running.signal(signal.Signals[name])
    result = running.wait(10)
    assert_interrupted(world, result, name, phase="pushing", pushed=True)
    world.player.flux.paused = False
    assert_resumes(world, result)


def test_a_signal_during_the_recheck(world: World, proxy: FaultProxy) -> None:
    tip = world.fleet.tip()
    proxy.on("list", PODS, when=Moment(proxy, is_cordon).has_passed, times=1, before=lambda _: running.signal())
    running = world.start("apply", "-o", "json")
    result = running.wait()
    assert_interrupted(world, result, "SIGINT")
    assert world.fleet.tip() == tip
    assert_resumes(world, result)


@pytest.mark.parametrize("number", [1, 2], ids=["one", "a-second-changes-nothing"])
def test_a_signal_during_a_push_waits_for_its_outcome(world: World, number: int) -> None:
    """As a terminal does it: the whole group gets it, and yet the push goes on."""
    started = world.root / "started"
    world.fleet.hook("pre-receive", f"touch {started}\nsleep 1.5\n")
    running = world.start("apply", "-o", "json")
    world.wait_until(started.exists, "the push")
    running.signal(signal.SIGINT, group=True)
    for _ in range(number - 1):
        running.wait_for_stderr("preflight")
        running.signal(signal.SIGTERM, group=True)
        running.signal(signal.SIGINT, group=True)
    result = running.wait()

    report = assert_interrupted(world, result, "SIGINT", phase="pushing", pushed=True)
    assert result.step("push")["status"] == "done"
    assert_checkout_is_at(world, report["transaction"]["commit"])
    world.fleet.hook("pre-receive", None)
    assert_resumes(world, result)


@pytest.mark.parametrize("kind", [is_cordon, is_announcement, is_uncordon], ids=["cordon", "announcement", "uncordon"])
def test_a_signal_during_a_patch_waits_for_its_outcome(world: World, proxy: FaultProxy, kind: Callable[[Any], bool]) -> None:
    """Its answer is lost at the same time, so that the effect has to be read back first. What was only announced is then taken back."""
    rule = proxy.on("patch", NODE, when=kind, times=1, before=lambda _: running.signal(), drop="after")
    running = world.start("apply", "-o", "json")
    result = running.wait()
    assert len(rule.fired) == 1
    if kind is is_uncordon:
        assert_completed(world, result)
        return
    assert_interrupted(world, result, "SIGINT")
    assert len(accepted(world, is_taking_back)) == len(accepted(world, is_announcement))
    assert_resumes(world, result)


def test_a_signal_before_the_cordon_ends_the_run_with_nothing_done(world: World, proxy: FaultProxy) -> None:
    before = world.fleet.snapshot()
    proxy.on("patch", NODE, when=lambda request: "dryRun" in request.query, before=lambda _: running.signal(), delay=0.2)
    running = world.start("apply", "-o", "json")
    result = running.wait()
    report = report_of(result)
    assert (result.code, report["outcome"], report["resumeCommand"]) == (130, "interrupted", None)
    assert world.writes() == []
    assert without_objects(world.fleet.snapshot()) == without_objects(before)


@pytest.mark.parametrize(
    ("kind", "phase"),
    [(is_cordon, "cordoned"), (is_announcement, "pushing")],
    ids=["after-the-cordon", "after-the-announcement"],
)
def test_a_run_that_is_killed(world: World, proxy: FaultProxy, kind: Callable[[Any], bool], phase: str) -> None:
    """No handler runs, and nothing needs a clean-up: the next run goes on from what it finds."""
    before = world.fleet.snapshot()
    rule = proxy.on("patch", NODE, when=kind, times=1, after=lambda _: running.kill())
    running = world.start("apply", "-o", "json")
    rule.wait()
    world.wait_until(lambda: not running.is_running, "the end")
    left = world.annotation() or {}
    assert (world.is_cordoned(), left["phase"], world.fleet.transition_commits()) == (True, phase, [])
    lock = ".git/gpu-transition.lock"  # nobody holds it any more
    assert {**without_objects(world.fleet.snapshot()), lock: ""} == {**without_objects(before), lock: ""}

    result = apply(world, resume_cordoned=True)

    record = assert_completed(world, result, resumed=True)
    assert record["id"] == left["id"]
    assert left["commit"] in (None, record["commit"])


@pytest.mark.parametrize("streams", [("stdout",), ("stderr",), ("stdout", "stderr")], ids="-".join)
def test_closed_streams_do_not_end_a_run(world: World, streams: tuple[str, ...]) -> None:
    pipes = {name: os.pipe() for name in streams}
    running = world.start("apply", "-o", "json", stdout=pipes.get("stdout", (0, None))[1], stderr=pipes.get("stderr", (0, None))[1])
    for _, writer in pipes.values():
        os.close(writer)
    world.wait_until(world.is_cordoned, "the cordon")
    for reader, _ in pipes.values():
        os.close(reader)
    result = running.wait()
    assert result.code == 0
    assert_completed(world, result if "stdout" not in streams else None)


# Answers of the API server that are lost, or are errors


FAULTS: dict[str, dict[str, Any]] = {"dropped-before": {"drop": "before"}, "503-before": {"reply": (503, None)}}


@pytest.mark.parametrize("kind", [is_cordon, is_announcement, is_uncordon], ids=["cordon", "announcement", "uncordon"])
@pytest.mark.parametrize("how", ["dropped", "500"])
def test_a_patch_whose_answer_is_lost_is_read_back(world: World, proxy: FaultProxy, kind: Callable[[Any], bool], how: str) -> None:
    lost: dict[str, Any] = (
        {"drop": "after"} if how == "dropped" else {"rewrite": lambda _, __: (500, {"kind": "Status", "message": "lost"})}
    )
    rule = proxy.on("patch", NODE, when=kind, times=1, **lost)
    assert_completed(world, apply(world))
    assert len(rule.fired) == 1
    assert len(accepted(world, kind)) == 1


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_cordon_that_may_have_been_made(world: World, proxy: FaultProxy, fault: dict[str, Any]) -> None:
    """Nobody can know, so it counts as sent; the node is what it was, and that is said first."""
    before = world.node()
    proxy.on("patch", NODE, when=is_cordon, times=1, **fault)

    result = apply(world, request_timeout="1s")

    report = report_of(result)
    assert (result.code, report["outcome"], report["error"]["id"]) == (4, "failed-cordoned", "patch-unknown")
    lines = failure_lines(result)
    assert lines[0].startswith("THE NODE IS SCHEDULABLE")
    assert_says_what_is_true(lines, world.name)
    assert lines[-1].strip() == report["resumeCommand"]
    assert world.node() == before
    nothing = follow(world, result)
    assert (nothing.code, nothing.check("cordon")["status"]) == (3, "fail")
    assert "--resume-cordoned" in nothing.check("cordon")["remedy"]
    assert_completed(world, apply(world))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_lost_cordon_that_can_not_take_effect_any_more_is_tried_again(world: World, proxy: FaultProxy, fault: dict[str, Any]) -> None:
    """It named a version of the node that has passed."""
    touch = {"metadata": {"annotations": {"example.com/somebody": "was here"}}}
    rule = proxy.on("patch", NODE, when=is_cordon, times=1, before=lambda _: world.patch_node(touch), **fault)
    assert_completed(world, apply(world))
    assert len(rule.seen) == 2


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_an_announcement_that_may_have_been_made_stops_the_push(world: World, proxy: FaultProxy, fault: dict[str, Any]) -> None:
    tip = world.fleet.tip()
    proxy.on("patch", NODE, when=is_announcement, times=1, **fault)
    result = apply(world, request_timeout="1s")
    assert_safe(world, result, "patch-unknown")
    assert world.fleet.tip() == tip
    assert_resumes(world, result)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_an_uncordon_that_may_have_been_made(world: World, proxy: FaultProxy, fault: dict[str, Any]) -> None:
    proxy.on("patch", NODE, when=is_uncordon, times=1, **fault)
    result = apply(world, request_timeout="1s")
    assert_safe(world, result, "patch-unknown", phase="pushing", pushed=True)
    assert_resumes(world, result)


def test_an_announcement_that_met_a_conflict_is_made_before_anything_is_pushed(world: World, proxy: FaultProxy) -> None:
    """The server says that the guard was lost and the node looks as it did: without a record of the push there is no push."""
    tips: list[str] = []
    rule = proxy.on("patch", NODE, when=is_announcement, times=1, reply=(409, None))
    proxy.on("patch", NODE, when=is_announcement, before=lambda _: tips.append(world.fleet.tip()))
    base = world.fleet.tip()

    result = apply(world)

    assert len(rule.fired) == 1
    assert tips == [base]
    assert_completed(world, result)
    assert len(accepted(world, is_announcement)) == 1


@pytest.mark.parametrize("fault", [{"reply": (400, None)}, {"reply": (403, None)}], ids=["400", "403"])
def test_a_cordon_that_was_refused_changed_nothing(world: World, proxy: FaultProxy, fault: dict[str, Any]) -> None:
    before = world.node()
    proxy.on("patch", NODE, when=is_cordon, **fault)
    result = apply(world)
    report = report_of(result)
    assert (result.code, report["outcome"], report["resumeCommand"]) == (3, "failed-before-cordon", None)
    assert world.node() == before


# Conflicts


@pytest.mark.parametrize("conflicts", [4, 5])
def test_a_busy_node_is_tried_five_times(world: World, proxy: FaultProxy, conflicts: int) -> None:
    def touch(request: ProxyRequest) -> None:
        world.patch_node({"metadata": {"annotations": {"example.com/heartbeat": str(request.time)}}})

    rule = proxy.on("patch", NODE, when=is_cordon, times=conflicts, before=touch)
    result = apply(world)
    if conflicts == 5:
        report = report_of(result)
        assert (result.code, report["outcome"], report["error"]["id"]) == (3, "failed-before-cordon", "node-busy")
        assert (report["transaction"], report["resumeCommand"]) == (None, None)
        assert len(rule.seen) == 5
        assert (world.is_cordoned(), world.annotation()) == (False, None)
    else:
        assert_completed(world, result)
        assert [request.code for request in rule.seen] == [409, 409, 409, 409, 200]


def test_a_node_that_was_marked_before_the_cordon_is_left_alone(world: World, proxy: FaultProxy) -> None:
    proxy.on("patch", NODE, when=is_cordon, times=1, before=lambda _: world.patch_node({"spec": {"taints": [MARK]}}))
    result = apply(world)
    report = report_of(result)
    assert (result.code, report["outcome"], result.check("other-actors")["status"]) == (3, "blocked", "fail")
    assert (world.is_cordoned(), world.annotation()) == (False, None)


def uncordoning(proxy: FaultProxy, before: Callable[[ProxyRequest], object], **options: Any) -> Rule:
    return proxy.on("patch", NODE, when=is_uncordon, before=before, **options)


def observations(proxy: FaultProxy, rule: Rule) -> int:
    """How often everything was looked at between the first and the second request of a rule."""
    first, second = (request.time for request in rule.seen[:2])
    lists = [r for r in proxy.requests if r.verb == "list" and r.path.endswith("/kustomizations")]
    return len([r for r in lists if first < r.time < second])


def test_a_change_that_means_nothing_only_needs_the_new_version(world: World, proxy: FaultProxy) -> None:
    rule = uncordoning(proxy, lambda _: world.patch_node({"metadata": {"labels": {"example.com/rack": "7"}}}), times=1)
    result = apply(world)
    assert [request.code for request in rule.seen] == [409, 200]
    assert observations(proxy, rule) == 0
    world.patch_node({"metadata": {"labels": {"example.com/rack": None}}})
    assert_completed(world, result)


@pytest.mark.parametrize(
    ("change", "undo", "missing"),
    [
        ({"spec": {"taints": [MARK]}}, {"spec": {"taints": None}}, "ToBeDeletedByClusterAutoscaler"),
        ({"metadata": {"labels": {LABEL_ACTIVE: "pod-hami"}}}, {"metadata": {"labels": {LABEL_ACTIVE: "vm-passthrough"}}}, "labels 2/3"),
        (
            {"metadata": {"annotations": {"weave.works/kured-reboot-in-progress": "now"}}},
            {"metadata": {"annotations": {"weave.works/kured-reboot-in-progress": None}}},
            "kured-reboot-in-progress",
        ),
    ],
    ids=["taint", "label", "annotation"],
)
def test_a_change_that_counts_starts_the_verification_afresh(
    world: World, proxy: FaultProxy, change: Json, undo: Json, missing: str
) -> None:
    """It arrives after the second look and before the uncordon: the server refuses that, and the program looks again."""
    rule = uncordoning(proxy, lambda _: world.patch_node(change), times=1)
    running = world.start("apply", "-o", "json")
    rule.wait()
    running.wait_for_stderr(f"waiting for .*{missing}")
    assert world.is_cordoned()
    assert accepted(world, is_uncordon) == []
    world.patch_node(undo)
    assert_completed(world, running.wait())
    assert [request.code for request in rule.seen][1:] == [200]
    assert rule.seen[0].code in (409, 422)


def test_a_lost_node_is_not_given_back(world: World, proxy: FaultProxy) -> None:
    rule = uncordoning(proxy, lambda _: world.set_ready(False), times=1)
    running = world.start("apply", "-o", "json")
    rule.wait()
    running.wait_for_stderr("waiting for .*node Ready is False")
    assert world.is_cordoned()
    world.set_ready(True)
    assert_completed(world, running.wait())


# The node or its record is taken away


def recreate(world: World) -> None:
    world.remove(world.node())
    world.add(gpu_node(world.name))


@pytest.mark.parametrize("how", [lambda world: world.remove(world.node()), recreate], ids=["deleted", "recreated"])
@pytest.mark.parametrize("when", ["recheck", "wait"])
def test_a_node_that_is_gone(world: World, proxy: FaultProxy, how: Callable[[World], None], when: str) -> None:
    if when == "recheck":
        proxy.on("get", NODE, when=Moment(proxy, is_cordon).has_passed, times=1, before=lambda _: how(world))
        result = apply(world)
        assert world.fleet.transition_commits() == []
    else:
        running = start_waiting(world)
        how(world)
        result = running.wait()

    report = report_of(result)
    assert (result.code, report["outcome"], report["error"]["id"]) == (4, "failed-cordoned", "node-gone")
    assert failure_lines(result)[0].startswith("the node is gone or was created anew; nothing protects it")
    assert report["resumeCommand"] is None
    assert "--resume-cordoned" not in result.err
    assert accepted(world, is_uncordon) == []
    assert len(accepted(world, is_cordon)) == 1
    assert accepted(world, is_recordon) == []


OTHER = (
    '{"v":1,"id":"11111111-2222-4333-8444-555555555555","uid":"UID","cluster":"dc1","from":"pod-hami","to":"vm-passthrough",'
    '"phase":"cordoned","base":"0123456789012345678901234567890123456789","commit":null,"started":"2026-01-01T00:00:00Z","by":"x@y"}'
)


@pytest.mark.parametrize("when", ["recheck", "wait"])
def test_a_record_that_somebody_edited_stops_the_run(world: World, proxy: FaultProxy, when: str) -> None:
    """It has our id and another direction, so it is not ours; nothing is made of it."""

    def edit(*_: object) -> None:
        changed = {**(world.annotation() or {}), "from": "vm-passthrough", "to": "pod-hami"}
        world.patch_node({"metadata": {"annotations": {ANNOTATION: json.dumps(changed)}}})

    if when == "recheck":
        proxy.on("get", NODE, when=Moment(proxy, is_cordon).has_passed, times=1, before=edit)
        result = apply(world)
    else:
        running = start_waiting(world)
        edit()
        result = running.wait()

    report = report_of(result)
    assert (result.code, report["outcome"], report["error"]["id"]) == (4, "failed-cordoned", "annotation-drift")
    assert world.is_cordoned()
    assert len(world.fleet.transition_commits()) == (0 if when == "recheck" else 1)
    assert (accepted(world, is_uncordon), accepted(world, is_recordon)) == ([], [])


@pytest.mark.parametrize("when", ["recheck", "wait"])
@pytest.mark.parametrize("value", [None, OTHER, "not readable"], ids=["removed", "another-transaction", "unreadable"])
def test_a_record_that_is_not_ours_any_more_ends_the_run(world: World, proxy: FaultProxy, when: str, value: str | None) -> None:
    text = value.replace("UID", world.node()["metadata"]["uid"]) if value else None

    def change(*_: object) -> None:
        world.patch_node({"metadata": {"annotations": {ANNOTATION: text}}, "spec": {"unschedulable": None}})

    if when == "recheck":
        proxy.on("get", NODE, when=Moment(proxy, is_cordon).has_passed, times=1, before=change)
        result = apply(world)
        assert world.fleet.transition_commits() == []
    else:
        running = start_waiting(world)
        change()
        result = running.wait()

    report = report_of(result)
    assert (result.code, report["outcome"], report["error"]["id"]) == (4, "ended-elsewhere", "ended-elsewhere")
    assert failure_lines(result)[0].startswith("THE NODE IS SCHEDULABLE")
    node = world.node()
    assert node["metadata"]["annotations"].get(ANNOTATION) == text
    assert "unschedulable" not in node["spec"]  # it never cordons again
    assert (accepted(world, is_uncordon), accepted(world, is_recordon)) == ([], [])


# Cordons and uncordons by others


@pytest.mark.parametrize("when", ["recheck", "announcement"])
def test_an_uncordon_before_the_push_stops_it(world: World, proxy: FaultProxy, when: str) -> None:
    tip, before = world.fleet.tip(), world.fleet.snapshot()
    if when == "recheck":
        proxy.on("get", NODE, when=Moment(proxy, is_cordon).has_passed, times=1, before=lambda _: world.uncordon())
    else:
        proxy.on("patch", NODE, when=is_announcement, times=1, before=lambda _: world.uncordon())

    result = apply(world)

    assert_safe(world, result, "uncordoned", schedulable=True)
    assert world.fleet.tip() == tip
    assert without_objects(world.fleet.snapshot()) == without_objects(before)
    assert accepted(world, is_recordon) == []
    assert_resumes(world, result)
    assert len(accepted(world, is_recordon)) == 1


def cordon_over(world: World) -> None:
    """Somebody uncordons, and cordons for a reason of their own."""
    world.uncordon()
    world.cordon()


def test_a_cordon_of_somebody_elses_before_the_push_stops_it(world: World, proxy: FaultProxy) -> None:
    proxy.on("get", NODE, when=Moment(proxy, is_cordon).has_passed, times=1, before=lambda _: cordon_over(world))

    result = apply(world)

    assert_safe(world, result, "foreign-cordon")
    assert "cordoned by kubectl at " in failure_lines(result)[0]
    assert f"uncordon {world.name}" in result.err
    assert world.fleet.transition_commits() == []
    refused = follow(world, result)
    assert (refused.code, refused.check("cordon")["status"]) == (3, "fail")
    assert "kubectl" in refused.check("cordon")["message"]
    world.uncordon()
    assert_resumes(world, result)


def test_a_cordon_of_somebody_elses_at_the_end_is_not_lifted(world: World, proxy: FaultProxy) -> None:
    """It is made behind the watches' back, right before the uncordon is sent, and the server refuses that for its version."""
    rule = uncordoning(proxy, lambda _: cordon_over(world), times=1)
    result = stop_when(world, "the cordon is kubectl's")

    report = assert_safe(world, result, "interrupted", phase="pushing", pushed=True)
    assert any("the cordon is kubectl's" in item for item in report["waitingFor"])
    assert rule.seen[0].code in (409, 422)
    assert len(rule.seen) == 1
    world.uncordon()
    assert_resumes(world, result)
    assert len(accepted(world, is_recordon)) == 1


def test_an_uncordon_by_somebody_after_the_push_is_undone_and_told(world: World) -> None:
    running = start_waiting(world)
    world.uncordon(manager="somebody")
    running.wait_for_stderr("the node was uncordoned by another actor")
    world.wait_until(world.is_cordoned, "the cordon")
    world.player.flux.paused = False
    assert_completed(world, running.wait())
    assert len(accepted(world, is_recordon)) == 1


def test_a_change_that_is_taken_back_is_not_verified(world: World, proxy: FaultProxy) -> None:
    """The tip is read anew in every observation: a revert keeps the node cordoned although everything in the cluster says otherwise."""

    def revert(_: ProxyRequest) -> None:
        world.player.flux.paused = True
        reverts.append(world.fleet.revert_by_somebody(world.fleet.tip()))

    reverts: list[str] = []
    proxy.on("get", NODE, when=lambda _: "looking once more" in running.err, times=1, before=revert)
    running = world.start("apply", "-o", "json")

    running.wait_for_stderr("the change is being taken back")
    assert world.is_cordoned()
    assert accepted(world, is_uncordon) == []
    world.fleet.revert_by_somebody(*reverts)
    world.player.flux.paused = False
    assert_completed(world, running.wait())


def test_a_remote_that_can_not_be_read_is_not_verified(world: World) -> None:
    aside = world.fleet.remote.with_name("aside.git")
    running = start_waiting(world)
    commit = world.fleet.tip()
    world.player.flux.paused = False
    world.wait_until(lambda: world.player.flux.applied == commit, "the change to be applied")
    world.fleet.remote.rename(aside)
    running.wait_for_stderr("the tip can not be read")
    assert world.is_cordoned()
    aside.rename(world.fleet.remote)
    assert_completed(world, running.wait())


# Looks that have become too old


def test_an_uncordon_is_not_sent_again_on_the_strength_of_an_old_look(world: World, proxy: FaultProxy) -> None:
    """The server took more than the 5 s that a look is good for, and then refused for the version: two new looks have to come first."""
    touch = {"metadata": {"annotations": {"example.com/somebody": "was here"}}}
    rule = uncordoning(proxy, lambda _: world.patch_node(touch), times=1, delay=5.2)

    result = apply(world)

    assert_completed(world, result)
    assert [request.code for request in rule.seen] == [409, 200]
    assert observations(proxy, rule) == 2


def test_a_recheck_that_has_become_too_old_is_made_again(world: World, proxy: FaultProxy) -> None:
    """The announcement took more than the 10 s that a recheck is good for, and a holder came meanwhile."""
    holder = gpu_pod("late", world.name)
    proxy.on("patch", NODE, when=is_announcement, times=1, delay=10.2, before=lambda _: world.add(holder))

    result = apply(world)

    assert_safe(world, result, "holder-appeared")
    assert [len(accepted(world, kind)) for kind in (is_announcement, is_taking_back)] == [1, 1]
    assert world.fleet.transition_commits() == []
    world.remove(holder)
    assert_resumes(world, result)
