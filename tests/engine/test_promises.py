"""One test for each promise, named as the promise. The matrix asks what a failing call does; here the world itself gets in the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kubectl_gpu_transition import engine
from kubectl_gpu_transition.failures import InterruptedNow, LostGuard, RefusedByServer, UnknownOutcome
from kubectl_gpu_transition.model import Outcome, Problem
from kubectl_gpu_transition.modes import LABELS, Mode
from kubectl_gpu_transition.plan import env_path, rule_path
from kubectl_gpu_transition.report import failure_text
from kubectl_gpu_transition.waiting import FRESH
from tests.fakes.cluster import RECORD, FakeSignal, FakeWatch, Write
from tests.fakes.fleet import NO_HISTORY
from tests.fakes.world import CLUSTER, ENV, HAMI, NODE, VM, World, daemon_pod, gpu_pod, live_rule, owner_pod, rule_text

ANNOTATION = "kube-dc.com/gpu-transition"
PATCH, READ, SIGNAL, PUSH = "cluster.patch_node", "cluster.read_node", "cluster.next_signal", "fleet.push_commit"
CORDON, ANNOUNCE, UNCORDON = 2, 3, 4  # the numbers of these patches in an undisturbed apply; the first is the dry run


def killed_after(name: str, number: int) -> World:
    """A world whose first run was killed right after that call."""
    world = World()
    world.steering.faults[name, number] = "dies"
    assert world.run_to_death() is None
    world.steering.revive()
    world.cluster.writes.clear()
    world.fleet.pushes.clear()
    return world


def writes(world: World, kind: str) -> list[Write]:
    return [write for write in world.cluster.writes if write.kind == kind]


def heartbeat(world: World) -> None:
    """The kubelet writes something that nobody looks at."""
    world.cluster.change(lambda node: node["status"].update(beat=world.cluster.version))


def assert_stopped(world: World, outcome: Outcome, *, cordoned: bool = True) -> None:
    """Exit 4, no uncordon of ours, and the node as said."""
    assert outcome.exit_code == 4, outcome.error
    assert "uncordon" not in world.cluster.kinds()
    assert world.cluster.unschedulable == cordoned


# ---------------------------------------------------------------- whose cordon, whose record


def test_a_node_cordoned_by_someone_else_stays_cordoned() -> None:
    for resume in (False, True):
        world = World()
        world.cluster.cordon("kubectl-cordon")
        assert world.run(resume=resume).exit_code == 3
        assert world.cluster.unschedulable
        assert world.cluster.writes == []


def test_a_node_that_someone_else_cordons_between_the_look_and_our_cordon_stays_cordoned() -> None:
    world = World()
    world.steering.before[PATCH, CORDON] = world.cluster.cordon
    outcome = world.run()
    assert (outcome.exit_code, outcome.word) == (3, "blocked")
    assert world.cluster.unschedulable
    assert world.cluster.record is None


def test_a_cordon_that_someone_else_made_under_our_record_is_never_lifted_while_we_wait() -> None:
    world = World()

    def lift_and_set() -> None:
        world.cluster.uncordon()
        world.cluster.cordon("kubectl-cordon")

    world.clock.at(4.0, lift_and_set)
    outcome = world.run(timeout=60.0)
    assert_stopped(world, outcome)
    assert any("the cordon is kubectl-cordon's" in item for item in outcome.waiting_for)
    assert "Go on with:" in failure_text(outcome), "uncordoning by hand is right here, so it is not warned against"


def test_a_cordon_that_someone_else_made_under_our_record_before_the_push_ends_the_run() -> None:
    world = World()

    def lift_and_set() -> None:
        world.cluster.uncordon()
        world.clock.time += 2
        world.cluster.cordon("kubectl-cordon")

    world.steering.after[PATCH, CORDON] = lift_and_set
    outcome = world.run()
    assert_stopped(world, outcome)
    assert outcome.error is not None
    assert "was cordoned by kubectl-cordon" in str(outcome.error)
    assert world.fleet.pushes == []


def test_a_cordon_that_appears_at_the_last_moment_is_not_lifted() -> None:
    world = World()

    def lift_and_set() -> None:
        world.cluster.uncordon()
        world.clock.time += 1
        world.cluster.cordon("kubectl-cordon")

    world.steering.before[PATCH, UNCORDON] = lift_and_set
    outcome = world.run(timeout=60.0)
    assert outcome.exit_code == 4
    assert world.cluster.unschedulable
    assert [write.effective for write in writes(world, "uncordon")] == [False]


OTHER_ID = "11111111-1111-4111-8111-111111111111"


@pytest.mark.parametrize("when", [(PATCH, ANNOUNCE), (SIGNAL, 1), (SIGNAL, 10), (PATCH, UNCORDON)], ids=str)
def test_a_record_of_another_id_is_never_removed(when: tuple[str, int]) -> None:
    world = World()

    def replace_record() -> None:
        world.cluster.annotate(ANNOTATION, json.dumps({**json.loads(world.cluster.record or "{}"), "id": OTHER_ID}))

    world.steering.before[when] = replace_record
    outcome = world.run()
    assert (outcome.exit_code, outcome.word, outcome.resume_command) == (4, "ended-elsewhere", None)
    assert world.transaction is not None
    assert world.transaction.id == OTHER_ID
    assert world.cluster.unschedulable


@pytest.mark.parametrize("edit", [{"cluster": "eu/dc2"}, {"from": "vm-passthrough", "to": "pod-hami"}], ids=str)
@pytest.mark.parametrize("when", [(READ, 2), (PATCH, ANNOUNCE), (SIGNAL, 3)], ids=str)
def test_our_id_with_another_cluster_or_direction_ends_the_run(edit: dict[str, str], when: tuple[str, int]) -> None:
    world = World()

    def edit_record() -> None:
        world.cluster.annotate(ANNOTATION, json.dumps({**json.loads(world.cluster.record or "{}"), **edit}))

    world.steering.before[when] = edit_record
    outcome = world.run()
    assert_stopped(world, outcome)
    assert "annotation-drift" in repr(getattr(outcome.error, "id", None))


def uncordon(world: World) -> None:
    world.cluster.uncordon()


def test_a_record_that_was_dropped_ends_the_run_and_the_node_is_never_cordoned_again() -> None:
    for when in ((PATCH, ANNOUNCE), (SIGNAL, 1), (SIGNAL, 8)):
        for also in (lambda _: None, uncordon):
            world = World()
            world.steering.before[when] = lambda world=world, also=also: (world.cluster.annotate(ANNOTATION, None), also(world))  # type: ignore[misc]
            outcome = world.run()
            assert (outcome.exit_code, outcome.word, outcome.resume_command) == (4, "ended-elsewhere", None), when
            assert world.cluster.kinds()[-1] in ("cordon", "announce")
            assert "recordon" not in world.cluster.kinds()
            if also is uncordon:
                assert (outcome.headline or "").startswith("THE NODE IS SCHEDULABLE: gpu-1 is not cordoned and nothing protects it: ")


def finished_by_hand(world: World) -> None:
    """What another run of the same transaction does at its end."""
    world.cluster.annotate(ANNOTATION, None)
    world.cluster.uncordon()


def test_a_transaction_that_another_run_has_finished_is_complete() -> None:
    world = World()
    world.steering.before[SIGNAL, 30] = lambda: finished_by_hand(world)
    outcome = world.run()
    assert (outcome.exit_code, outcome.word) == (0, "completed")
    assert {s.name: s.status for s in outcome.steps}["uncordon"] == "skipped"
    assert "finished by another run: the node is schedulable and in vm-passthrough" in world.terminal.lines
    assert "uncordon" not in world.cluster.kinds()


def test_a_record_that_was_dropped_at_the_target_is_not_complete_while_the_node_is_cordoned() -> None:
    world = World()
    world.steering.before[SIGNAL, 30] = lambda: world.cluster.annotate(ANNOTATION, None)
    outcome = world.run()
    assert (outcome.exit_code, outcome.word, outcome.resume_command) == (4, "ended-elsewhere", None)
    assert world.cluster.unschedulable


def test_whether_another_run_has_finished_it_is_asked_until_it_can_be_read() -> None:
    world = World()

    def finish() -> None:
        finished_by_hand(world)
        world.fleet.tip_problem = Problem("the remote does not answer", "check the network")
        world.clock.at(7.0, lambda: setattr(world.fleet, "tip_problem", None))

    world.steering.before[SIGNAL, 30] = finish
    outcome = world.run()
    assert (outcome.exit_code, outcome.word) == (0, "completed"), outcome.error
    assert world.cluster.kinds() == ["cordon", "announce"]


def test_several_runs_of_one_transaction_do_no_harm() -> None:
    """A second process takes the transaction up and ends it, at every call that the first one makes after its cordon."""
    plain = World()
    plain.run()
    first = plain.steering.calls.index((PATCH, CORDON)) + 1
    for key in plain.steering.calls[first::3]:
        world = World()

        def resume(world: World = world) -> None:
            other = World.__new__(World)
            other.__dict__.update(world.__dict__)
            other.steering = type(world.steering)(world.clock)
            mine, world.cluster.steering, world.fleet.steering = world.steering, other.steering, other.steering
            memory, holding = world.fleet.memory, world.fleet.holding
            assert other.run(resume=True).exit_code == 0
            world.cluster.steering = world.fleet.steering = mine
            world.fleet.memory, world.fleet.holding = memory, holding

        world.steering.before[key] = resume
        outcome = world.run()
        assert (outcome.exit_code, world.is_done()) == (0, True), (key, outcome.error)
        assert [write.effective for write in writes(world, "uncordon")].count(True) == 1


def test_of_an_abandon_and_an_apply_that_announces_its_push_exactly_one_gets_through() -> None:
    world = killed_after(PATCH, CORDON)

    def abandon() -> None:
        world.cluster.annotate(ANNOTATION, None)
        world.cluster.uncordon("kubectl-gpu-transition")

    world.steering.before[PATCH, 2] = abandon  # the announcement
    outcome = world.run(resume=True)
    assert (outcome.exit_code, outcome.word, world.fleet.pushes) == (4, "ended-elsewhere", [])
    world = killed_after(PATCH, CORDON)
    transaction = json.loads(world.cluster.record or "{}")
    announced = json.dumps({**transaction, "phase": "pushing", "commit": "a" * 40})
    world.steering.before[PATCH, 1] = lambda: world.cluster.annotate(ANNOTATION, announced)  # abandon's own and only patch
    outcome = world.run("abandon")
    assert (outcome.exit_code, getattr(outcome.error, "id", None)) == (3, "push-announced"), "its patch was refused for certain"
    assert world.cluster.record == announced
    assert world.cluster.unschedulable


# ---------------------------------------------------------------- the first write


def test_the_cordon_is_tried_five_times_and_the_node_is_checked_before_each() -> None:
    world = World()
    for number in range(CORDON, CORDON + 5):
        world.steering.before[PATCH, number] = lambda: heartbeat(world)
    outcome = world.run()
    assert (outcome.exit_code, outcome.word, outcome.resume_command) == (3, "failed-before-cordon", None)
    assert world.cluster.kinds() == ["cordon"] * 5
    assert not world.cluster.unschedulable
    world = World()
    for number in range(CORDON, CORDON + 4):
        world.steering.before[PATCH, number] = lambda: heartbeat(world)
    assert world.run().exit_code == 0


def slow_answer(world: World, seconds: float) -> None:
    """The person takes that long to type the node's name."""
    ask = world.terminal.ask

    def slowly(lines: Any, expected: str) -> bool:
        world.clock.pass_time(seconds)
        return ask(lines, expected)

    world.terminal.ask = slowly  # type: ignore[method-assign]
    world.terminal.answers = [NODE, NODE]


def test_a_look_older_than_10_seconds_does_not_cordon() -> None:
    for slow in ("answer", "commit", "conflict"):
        world = World()
        if slow == "answer":
            slow_answer(world, 60.0)
        elif slow == "commit":
            world.steering.faults["fleet.prepare_commit", 1] = "slow"
        else:
            world.steering.before[PATCH, CORDON] = lambda world=world: (heartbeat(world), world.clock.pass_time(11.0))  # type: ignore[misc]
        outcome = world.run(yes=slow != "answer")
        assert outcome.exit_code == 0, outcome.error
        cordon = next(write for write in writes(world, "cordon") if write.effective)
        index = [write.kind for write in world.cluster.writes].index("cordon")
        assert world.cluster.writes[index - 1].kind == "dry-run" or slow == "conflict"
        assert [write.kind for write in world.cluster.writes].count("dry-run") == 2, "the checks were made anew"
        assert cordon.time - next(w.time for w in reversed(world.cluster.writes) if w.kind == "dry-run") <= 10


def test_a_cordon_that_the_server_keeps_waiting_until_the_look_is_old_is_not_sent() -> None:
    world = World()
    world.steering.faults[PATCH, CORDON] = "slow"
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert [write.kind for write in world.cluster.writes][:3] == ["dry-run", "dry-run", "cordon"], "looked at and checked afresh"


def test_a_holder_that_came_while_the_person_was_asked_is_seen() -> None:
    world = World()
    slow_answer(world, 60.0)
    world.clock.at(30.0, lambda: world.cluster.add_pod(gpu_pod()))
    outcome = world.run(yes=False)
    assert (outcome.exit_code, world.cluster.kinds()) == (3, [])


def test_a_node_that_reached_the_target_while_the_person_was_asked_is_left_alone() -> None:
    world = World()
    slow_answer(world, 60.0)
    world.clock.at(30.0, lambda: world.fleet.commit(rule_path(CLUSTER), rule_text(gpu_1=VM, gpu_2=HAMI)))
    outcome = world.run(yes=False)
    assert (outcome.word, world.cluster.kinds()) == ("already-at-target", [])


def test_servers_too_slow_for_a_fresh_look_are_refused_before_anything_is_written() -> None:
    world = World()
    for number in range(1, 20):
        world.steering.faults[PATCH, number] = "slow"  # each dry run
    outcome = world.run()
    assert (outcome.exit_code, getattr(outcome.error, "id", None)) == (3, "too-slow")
    assert world.cluster.kinds() == []


def test_a_push_permission_that_takes_long_to_probe_is_probed_once() -> None:
    world = World()
    world.steering.faults["fleet.probe_push", 1] = "slow"
    assert world.run().exit_code == 0
    assert world.steering.calls.count(("fleet.probe_push", 2)) == 0


def test_a_definite_no_to_the_first_write_is_exit_3_and_leaves_nothing_to_resume() -> None:
    world = World()
    world.cluster.refuses = lambda kind: RefusedByServer("patch-refused", "no (400)") if kind == "cordon" else None
    outcome = world.run()
    assert (outcome.exit_code, outcome.word, outcome.resume_command, outcome.transaction) == (3, "failed-before-cordon", None, None)


def test_a_conflict_is_not_concluded_from_before_the_node_was_read() -> None:
    """A proxy may have sent the patch twice: the second answer is a conflict with our own write."""
    world = World()
    patch = world.cluster.patch_node

    def twice(name: str, operations: Any, dry_run: bool = False, late: Any = None) -> Any:
        answer = patch(name, operations, dry_run, late)
        return answer if dry_run else patch(name, operations, dry_run, late)

    world.cluster.patch_node = twice  # type: ignore[method-assign]
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert world.is_done()


def test_a_conflict_after_which_the_node_can_not_be_read_counts_as_sent() -> None:
    world = World()

    def break_down() -> None:
        heartbeat(world)
        world.cluster.problem = RefusedByServer("server-error", "503")

    world.steering.before[PATCH, CORDON] = break_down
    outcome = world.run()
    assert (outcome.exit_code, outcome.word) == (4, "failed-cordoned")
    assert isinstance(outcome.error, UnknownOutcome)
    assert (outcome.headline or "").startswith("whether gpu-1 is still cordoned could not be read")
    assert [fact.split(":")[0] for fact in outcome.facts] == ["node", "annotation", "fleet", "remote"]
    assert outcome.facts[:2] == ["node: could not be read: 503", "annotation: could not be read"]


def test_a_lost_answer_is_a_failure_for_certain_once_the_node_has_changed_without_the_effect() -> None:
    world = World()
    world.steering.faults[PATCH, CORDON] = "fails"
    world.steering.before[READ, 2] = lambda: heartbeat(world)
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert [write.effective for write in writes(world, "cordon")] == [False, True]


def test_an_answer_that_shows_another_node_is_not_believed() -> None:
    world = World()
    world.cluster.mutates = lambda kind, node: node["metadata"].update(uid="uid-2") if kind == "cordon" else None
    outcome = world.run()
    assert (outcome.exit_code, getattr(outcome.error, "id", None), outcome.resume_command) == (4, "node-gone", None)


def test_a_lost_answer_is_read_back_until_the_request_timeout_is_spent() -> None:
    world = World()
    world.steering.faults[PATCH, CORDON] = "fails"
    begun = world.clock.time
    outcome = world.run(request_timeout=7.0)
    assert outcome.exit_code == 4
    assert 7.0 <= world.clock.time - begun <= 8.0


def test_a_cordon_that_took_effect_and_was_lifted_before_it_was_read_back_is_not_taken_for_refused() -> None:
    world = World()
    world.steering.faults[PATCH, CORDON] = "lost"
    world.steering.before[READ, 2] = world.cluster.uncordon
    outcome = world.run()
    assert_stopped(world, outcome, cordoned=False)
    assert (outcome.headline or "").startswith("THE NODE IS SCHEDULABLE")
    assert world.transaction is not None


def test_an_answer_without_the_effect_is_a_failure() -> None:
    world = World()

    def undo(kind: str, node: dict[str, Any]) -> None:
        if kind == "cordon":
            node["spec"].pop("unschedulable", None)

    world.cluster.mutates = undo
    outcome = world.run()
    assert (outcome.exit_code, getattr(outcome.error, "id", None)) == (4, "write-without-effect")
    assert world.fleet.pushes == []


def test_a_record_that_would_not_fit_is_refused_before_the_cordon() -> None:
    world = World()
    world.fleet.identity = type(world.fleet.identity)("x <x@example.com>", "ü" * 200 + " <x@example.com>")  # type: ignore[call-arg, arg-type]
    names = tuple(f"vendor.example/{'n' * 180}-{number}" for number in range(9))
    outcome = world.run(gpu_resources=names)
    assert (outcome.exit_code, outcome.word) == (2, "usage-error")
    assert world.cluster.kinds() == []


def test_the_lock_is_not_taken_for_ours_when_its_holder_leaves_between_two_looks() -> None:
    world = World()
    world.fleet.locked = Problem("locked by pid 7 on laptop", "wait for it")
    world.steering.before["fleet.read_checkout", 1] = lambda: setattr(world.fleet, "locked", None)
    outcome = world.run()
    assert outcome.exit_code == 3
    assert [check.message for check in outcome.checks if check.status == "fail"] == ["locked by pid 7 on laptop"]


def test_the_lock_is_given_back_before_the_wait_and_always_at_the_end() -> None:
    world = World()
    held: list[bool] = []
    world.steering.before["fleet.advance_checkout", 1] = lambda: held.append(world.fleet.holding)
    world.steering.before["cluster.watch", 1] = lambda: held.append(world.fleet.holding)
    assert world.run().exit_code == 0
    assert held == [True, False]
    world = World()
    world.cluster.add_pod(gpu_pod())
    world.run()
    assert not world.fleet.holding


# ---------------------------------------------------------------- between cordon and push


def appears_after_cordon(event: Callable[[World], Any]) -> tuple[World, Outcome]:
    """Let it happen right after the cordon, and run."""
    world = World()
    world.steering.after[PATCH, CORDON] = lambda: event(world)
    return world, world.run()


def not_ready(world: World) -> None:
    world.cluster.change(lambda node: node["status"].update(conditions=[{"type": "Ready", "status": "False"}]))


def upgrade_pod() -> dict[str, Any]:
    """A pod of the system upgrade controller."""
    return {
        "metadata": {"namespace": "system-upgrade", "name": "apply-1", "uid": "u", "labels": {"upgrade.cattle.io/plan": "server"}},
        "spec": {"nodeName": NODE, "containers": [{"name": "c"}]},
        "status": {"phase": "Running"},
    }


def add_other_rule(world: World) -> None:
    """A NodeFeatureRule of somebody else's, for every node."""
    other = {"metadata": {"name": "zz-other"}, "spec": {"rules": [{"name": "all", "labels": {LABELS[0]: "x"}}]}}
    world.cluster.objects["rules"].append(other)


BEFORE_PUSH = [
    pytest.param(lambda w: w.cluster.add_pod(gpu_pod()), "holder-appeared", id="a holder"),
    pytest.param(not_ready, "node-unfit", id="a node that is not Ready"),
    pytest.param(add_other_rule, "node-unfit", id="another rule that writes the labels"),
    pytest.param(lambda w: w.cluster.annotate("weave.works/kured-reboot-in-progress", "x"), "node-unfit", id="a mark on the node"),
    pytest.param(lambda w: w.cluster.add_pod(upgrade_pod()), "node-unfit", id="a pod that upgrades the node"),
    pytest.param(lambda w: w.cluster.label(active="vm-passthrough"), "label-drift", id="a label that has left"),
    pytest.param(lambda w: w.cluster.uncordon(), "uncordoned", id="an uncordon"),
    pytest.param(lambda w: w.cluster.recreate(), "node-gone", id="another node of this name"),
    pytest.param(lambda w: w.cluster.delete(), "node-gone", id="no node"),
]


@pytest.mark.parametrize(("event", "reason"), BEFORE_PUSH)
def test_nothing_is_pushed_when_the_recheck_finds(event: Callable[[World], Any], reason: str) -> None:
    world, outcome = appears_after_cordon(event)
    assert (outcome.exit_code, getattr(outcome.error, "id", None)) == (4, reason)
    assert world.fleet.pushes == []
    assert "announce" not in world.cluster.kinds()
    assert "uncordon" not in world.cluster.kinds()


@pytest.mark.parametrize(("event", "reason"), BEFORE_PUSH)
def test_nothing_is_pushed_when_the_second_look_finds(event: Callable[[World], Any], reason: str) -> None:
    world = World()
    world.steering.before[READ, 3] = lambda: event(world)
    outcome = world.run()
    assert (outcome.exit_code, getattr(outcome.error, "id", None)) == (4, reason)
    assert world.fleet.pushes == []


@pytest.mark.parametrize(("event", "reason"), BEFORE_PUSH[5:])
def test_nothing_is_pushed_when_the_announcement_finds(event: Callable[[World], Any], reason: str) -> None:
    world = World()
    world.steering.before[PATCH, ANNOUNCE] = lambda: event(world)
    outcome = world.run()
    assert (outcome.exit_code, getattr(outcome.error, "id", None)) == (4, reason)
    assert world.fleet.pushes == []


def test_the_first_line_says_that_the_node_is_schedulable_and_why() -> None:
    _, outcome = appears_after_cordon(lambda w: w.cluster.uncordon())
    assert failure_text(outcome)[0] == (
        "THE NODE IS SCHEDULABLE: gpu-1 is not cordoned and nothing protects it: "
        "the node was uncordoned by another actor before the push; nothing was pushed"
    )


@pytest.mark.parametrize("event", ["recreate", "delete"])
@pytest.mark.parametrize("when", [(READ, 2), (PATCH, ANNOUNCE), (SIGNAL, 1), (SIGNAL, 9), (PATCH, UNCORDON), (READ, 5)], ids=str)
def test_a_node_that_is_gone_is_said_to_be_gone_and_there_is_no_resume(event: str, when: tuple[str, int]) -> None:
    world = World()
    world.steering.before[when] = getattr(world.cluster, event)
    outcome = world.run()
    assert (outcome.exit_code, outcome.resume_command) == (4, None)
    assert failure_text(outcome)[0] == "the node is gone or was created anew; nothing protects it"
    assert not world.cluster.unschedulable or world.cluster.node is None


def test_a_node_that_went_while_our_cordon_was_lost_is_said_to_be_gone() -> None:
    world = World()
    world.steering.faults[PATCH, CORDON] = "lost"
    world.steering.before[READ, 2] = world.cluster.delete
    outcome = world.run()
    assert (outcome.exit_code, failure_text(outcome)[0]) == (4, "the node is gone or was created anew; nothing protects it")


def test_a_node_that_went_before_the_cordon_is_a_failure_before_the_cordon() -> None:
    for event in ("delete", "recreate"):
        world = World()
        world.steering.before[PATCH, CORDON] = getattr(world.cluster, event)
        assert world.run().exit_code == 3
        assert world.cluster.record is None


def test_labels_that_another_run_of_ours_has_moved_are_no_drift() -> None:
    """The recheck finds labels that are not --from: the tip is read first."""
    world = World()

    def push_elsewhere() -> None:
        other = next(commit for commit in world.fleet.commits.values() if commit.facts().transactions)
        world.fleet.tip = other.id
        world.cluster.label(active="vm-passthrough", expected="vm-passthrough", config="vm-passthrough")

    world.steering.after[PATCH, CORDON] = push_elsewhere
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert world.fleet.pushes == []


def test_a_lost_announcement_is_never_followed_by_a_push_even_if_the_node_looks_fit() -> None:
    """A guard can be lost to something that is over when the node is read: then it is announced anew, not pushed."""
    world = World()
    asked = []

    def once(kind: str) -> LostGuard | None:
        if kind == "announce" and not asked:
            asked.append(kind)
            return LostGuard("lost-guard", "409")
        return None

    world.cluster.refuses = once
    pushed: list[str | None] = []
    world.steering.before[PUSH, 1] = lambda: pushed.append(world.transaction.phase if world.transaction else None)
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert pushed == ["pushing"]
    assert [write.effective for write in writes(world, "announce")] == [False, True]


def test_an_announcement_that_keeps_being_lost_ends_without_a_push() -> None:
    world = World()
    world.cluster.refuses = lambda kind: LostGuard("lost-guard", "409") if kind == "announce" else None
    outcome = world.run()
    assert_stopped(world, outcome)
    assert (world.fleet.pushes, getattr(outcome.error, "id", None)) == ([], "node-busy")


def test_an_announcement_of_unknown_outcome_is_not_pushed_for() -> None:
    for kind in ("fails", "lost"):
        world = World()
        world.steering.faults[PATCH, ANNOUNCE] = kind
        if kind == "lost":
            world.steering.after["cluster.read_facts", 3] = lambda w=world: setattr(w.cluster, "problem", RefusedByServer("x", "503"))  # type: ignore[misc]
        outcome = world.run(request_timeout=5.0)
        assert outcome.exit_code == 4
        assert isinstance(outcome.error, UnknownOutcome)
        assert world.fleet.pushes == []


def test_a_recheck_older_than_10_seconds_at_the_push_is_repeated() -> None:
    world = World()
    world.steering.faults[PATCH, ANNOUNCE] = "slow"
    looks: list[float] = []
    for number in (1, 2):
        world.steering.before[PUSH, number] = lambda: looks.append(world.clock.time - world.cluster.reads["read_facts"])
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert looks[0] > 10, "so late that nothing was sent"
    assert looks[-1] <= 10
    assert world.cluster.kinds() == ["cordon", "announce", "take-back", "announce", "uncordon"]
    assert len(world.fleet.pushes) == 1


# ---------------------------------------------------------------- the push


def test_a_rejected_push_takes_the_announcement_back_and_leaves_the_node_cordoned() -> None:
    world = World()
    world.fleet.rejects = "the branch is frozen tonight"
    outcome = world.run()
    assert_stopped(world, outcome)
    assert "the branch is frozen tonight" in str(outcome.error)
    assert world.cluster.kinds() == ["cordon", "announce", "take-back"]
    cordon, announce, back = (write for write in world.cluster.writes if write.kind != "dry-run")
    assert back.operations == [
        {"op": "test", "path": "/metadata/uid", "value": "uid-1"},
        {"op": "test", "path": RECORD, "value": announce.value(RECORD, "replace")},
        {"op": "replace", "path": RECORD, "value": cordon.value(RECORD, "add")},
    ]
    assert world.fleet.head == world.fleet.ancestors(world.fleet.tip)[0]
    world.fleet.rejects = None
    assert world.resume().exit_code == 0
    assert world.is_done()


def test_a_run_that_found_pushing_never_writes_cordoned() -> None:
    for rejects, unknown in (("frozen", None), (None, "the connection broke")):
        world = killed_after(PATCH, ANNOUNCE)
        world.fleet.rejects, world.fleet.unknown = rejects, unknown
        outcome = world.run(resume=True)
        assert_stopped(world, outcome)
        assert world.transaction is not None
        assert world.transaction.phase == "pushing"
        assert world.cluster.kinds() == ["announce"], "nothing at all is put back"


def test_an_announcement_that_can_not_be_taken_back_stays_and_is_said_to() -> None:
    world = World()
    world.fleet.rejects = "frozen"
    world.cluster.refuses = lambda kind: RefusedByServer("patch-refused", "no (400)") if kind == "take-back" else None
    outcome = world.run()
    assert_stopped(world, outcome)
    assert "the record still says pushing, for it could not be put back: no (400)" in str(outcome.error)
    world.fleet.rejects = None
    assert world.resume().exit_code == 0


def test_a_push_of_unknown_outcome_stays_pushing_and_exits_4() -> None:
    world = World()
    world.fleet.unknown = "the connection broke"
    outcome = world.run()
    assert_stopped(world, outcome)
    assert world.transaction is not None
    assert world.transaction.phase == "pushing"
    assert "whether the push has landed is unknown: the connection broke; the tip is still" in str(outcome.error)


def test_an_accepted_push_whose_tip_can_not_be_read_is_unknown() -> None:
    world = World()
    world.steering.faults["fleet.read_tip", 2] = "fails"
    outcome = world.run()
    assert_stopped(world, outcome)
    assert "the tip can not be read: the remote does not answer" in str(outcome.error)
    assert world.transaction is not None
    assert world.transaction.phase == "pushing"


def test_a_tip_that_moved_and_whose_history_is_not_here_leaves_the_push_unknown() -> None:
    world = World()
    world.steering.faults[PUSH, 1] = "lost"

    def hide() -> None:
        world.fleet.commit("README", b"on top")
        world.fleet.history_problem = NO_HISTORY

    world.steering.before["fleet.read_tip", 2] = hide
    outcome = world.run()
    assert_stopped(world, outcome)
    assert "the branch has moved, and its history is not to be had" in str(outcome.error)
    assert "take-back" not in world.cluster.kinds()


def test_an_accepted_push_whose_branch_was_rewritten_since_ends_the_run_and_keeps_the_announcement() -> None:
    world = World()

    def rewrite() -> None:
        world.fleet.tip = world.fleet.pushes[0][0]
        world.fleet.commit("README", b"rewritten")

    world.steering.after[PUSH, 1] = rewrite
    outcome = world.run()
    assert_stopped(world, outcome)
    assert getattr(outcome.error, "id", None) == "remote-moved"
    assert world.transaction is not None
    assert world.transaction.phase == "pushing"


def test_two_runs_that_announce_the_same_commit_do_not_write_the_same_record() -> None:
    world = killed_after(PATCH, ANNOUNCE)
    first = world.cluster.record
    world.fleet.rejects = "frozen"
    world.run(resume=True)
    (announce,) = writes(world, "announce")
    again = json.loads(announce.value(RECORD, "replace"))
    assert announce.value(RECORD, "replace") != first
    assert {**again, "by": ""} == {**json.loads(first or "{}"), "by": ""}


def test_a_push_whose_answer_was_lost_is_found_below_another_commit() -> None:
    world = World()
    world.steering.faults[PUSH, 1] = "lost"
    world.steering.before["fleet.read_tip", 2] = lambda: world.fleet.commit("README", b"on top")
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert len(world.fleet.pushes) == 1


def move_before_each_push(world: World, times: int) -> None:
    """Somebody else pushes first, so many times."""
    for number in range(1, times + 1):
        world.steering.before[PUSH, number] = lambda number=number: world.fleet.commit("README", str(number).encode())  # type: ignore[misc]


def test_a_branch_that_moves_is_taken_up_at_most_3_times() -> None:
    world = World()
    move_before_each_push(world, 3)
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert len(world.fleet.pushes) == 4
    assert len(world.fleet.carrying()) == 1
    world = World()
    move_before_each_push(world, 9)
    outcome = world.run()
    assert_stopped(world, outcome)
    assert (len(world.fleet.pushes), getattr(outcome.error, "id", None)) == (4, "remote-moved")
    assert world.transaction is not None
    assert world.transaction.phase == "cordoned"


def test_a_take_up_is_rechecked_and_announced_with_the_new_base_and_the_checkout_left_alone() -> None:
    world = World()
    head = world.fleet.head
    move_before_each_push(world, 1)
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert world.cluster.kinds() == ["cordon", "announce", "take-back", "announce", "uncordon"]
    assert json.loads(writes(world, "announce")[1].value(RECORD, "replace"))["base"] == world.fleet.pushes[1][0]
    assert writes(world, "announce")[1].time - writes(world, "take-back")[0].time >= 2.0
    assert world.fleet.head == head
    assert any("git pull --ff-only" in note for note in outcome.notes)
    assert world.fleet.commits[world.fleet.tip or ""].files["README"] == b"1"


MOVED = [
    pytest.param(
        {env_path(CLUSTER): ENV.replace(b"VM_CREATION_ENABLED=false", b"VM_CREATION_ENABLED=true")}, "moved-tip-blocked", id="a gate"
    ),
    pytest.param({rule_path(CLUSTER): b"nothing\n"}, "tip-refused", id="a rule that can not be read"),
    pytest.param({rule_path(CLUSTER): rule_text(gpu_1=Mode.POD_HAMI_DRA, gpu_2=HAMI)}, "tip-refused", id="a third mode"),
    pytest.param(
        {rule_path(CLUSTER): rule_text(gpu_1=HAMI) + b"    - {name: all, labels: {nvidia.com/gpu.workload.config: container}}\n"},
        "rule-refused",
        id="another rule that writes the labels",
    ),
]


@pytest.mark.parametrize(("files", "reason"), MOVED)
def test_a_moved_tip_is_not_taken_up_with(files: dict[str, bytes], reason: str) -> None:
    world = World()
    world.steering.before[PUSH, 1] = lambda: [world.fleet.commit(path, content) for path, content in files.items()]
    outcome = world.run()
    assert_stopped(world, outcome)
    assert (len(world.fleet.pushes), getattr(outcome.error, "id", None)) == (1, reason)


def test_a_moved_tip_at_the_target_is_waited_for() -> None:
    world = World()
    world.steering.before[PUSH, 1] = lambda: world.fleet.commit(rule_path(CLUSTER), rule_text(gpu_1=VM, gpu_2=HAMI))
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert len(world.fleet.pushes) == 1


def test_a_branch_that_was_removed_or_rewritten_under_us_ends_the_run() -> None:
    for tip in (None, "rewritten"):
        world = World()

        def spoil(world: World = world, tip: str | None = tip) -> None:
            world.fleet.tip = tip
            if tip is not None:
                world.fleet.commits[tip] = type(next(iter(world.fleet.commits.values())))(
                    None, world.fleet.commits[world.fleet.head].tree, "rewritten\n"
                )

        world.steering.before[PUSH, 1] = spoil
        outcome = world.run()
        assert_stopped(world, outcome)
        assert getattr(outcome.error, "id", None) == "tip-refused"


def test_a_branch_that_can_not_be_read_after_it_moved_ends_the_run() -> None:
    world = World()
    move_before_each_push(world, 1)
    world.steering.faults["fleet.read_tip", 3] = "fails"
    outcome = world.run()
    assert_stopped(world, outcome)
    assert getattr(outcome.error, "id", None) == "tip-unread"


# ---------------------------------------------------------------- verified


def between_observations(event: Callable[[World], Any]) -> tuple[World, Outcome, float]:
    """Let it happen between the two verifying observations; returns when it happened too."""
    world = World()
    times: list[float] = []

    def happen() -> None:
        times.append(world.clock.time)
        event(world)

    # The observations of the wait are reads 4 and 5: one second after the first is before the second.
    world.steering.after[READ, 4] = lambda: world.clock.at(1.0, happen)
    outcome = world.run(timeout=60.0)
    return world, outcome, times[0]


def flap(world: World) -> None:
    world.cluster.label(active="pod-hami")
    world.clock.at(0.5, lambda: world.cluster.label(active="vm-passthrough"))


def passing_holder(world: World) -> None:
    world.cluster.add_pod(gpu_pod())
    world.clock.at(0.5, lambda: world.cluster.remove_pod("team-a/train-0"))


def passing_owner(world: World) -> None:
    world.cluster.add_pod(owner_pod(HAMI))
    world.clock.at(0.5, lambda: world.cluster.remove_pod("gpu-operator/hami-device-plugin-abcde"))


def broken_watch(world: World) -> None:
    world.cluster.watches[-1].extra.append(world.cluster.watches[-1].state(broke=True, problem="410 Gone"))


def lifted(world: World) -> None:
    world.cluster.uncordon("driver-manager")


@pytest.mark.parametrize("event", [flap, passing_holder, passing_owner, broken_watch, lifted], ids=lambda event: event.__name__)
def test_what_contradicts_between_the_two_observations_starts_over(event: Callable[[World], None]) -> None:
    world, outcome, when = between_observations(event)
    assert outcome.exit_code == 0, outcome.error
    # Two observations after it, the settle time apart.
    assert writes(world, "uncordon")[0].time >= when + 2.0
    calls = [key for key in world.steering.calls if key[0] == READ]
    assert len(calls) >= 6


def test_what_contradicts_during_the_second_observation_starts_over() -> None:
    world = World()
    times: list[float] = []

    def pass_by() -> None:
        """A holder comes and goes after the pods were read: only the watch has seen it."""
        times.append(world.clock.time)
        world.cluster.add_pod(gpu_pod())
        world.cluster.watches[-1].extra.append(world.cluster.watches[-1].state())
        world.cluster.remove_pod("team-a/train-0")

    world.steering.after["cluster.read_facts", 5] = pass_by
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert writes(world, "uncordon")[0].time >= times[0] + 2.0


def test_a_holder_that_a_late_watch_of_the_node_hides_starts_over_all_the_same() -> None:
    """The watch of the pods is ahead of the node's: the node that comes with it is older than our last read."""
    world = World()
    stale: list[FakeSignal] = []

    def keep() -> None:
        stale.append(world.cluster.watches[-1].state())
        heartbeat(world)

    def show() -> None:
        world.cluster.add_pod(gpu_pod())
        facts = world.cluster.watches[-1].state().facts
        world.cluster.remove_pod("team-a/train-0")
        world.cluster.watches[-1].extra.append(FakeSignal(stale[0].node, False, facts))
        times.append(world.clock.time)

    times: list[float] = []
    world.steering.before[READ, 4] = keep
    world.steering.after[READ, 4] = lambda: world.clock.at(1.0, show)
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert writes(world, "uncordon")[0].time >= times[0] + 2.0


def test_a_node_that_a_late_watch_shows_as_it_was_is_not_cordoned_again() -> None:
    world = World()
    stale: list[FakeSignal] = []

    def keep() -> None:
        stale.append(FakeWatch(world.cluster).state())

    world.steering.before[PATCH, CORDON] = keep
    world.steering.after["cluster.watch", 1] = lambda: world.cluster.watches[-1].extra.append(stale[0])
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert "recordon" not in world.cluster.kinds()


STANDING = [
    pytest.param(lambda w: w.cluster.add_pod(gpu_pod()), "holder team-a/Pod/train-0", id="a holder"),
    pytest.param(
        lambda w: w.cluster.add_pod(gpu_pod(deletionTimestamp="x") | {"metadata": {**gpu_pod()["metadata"], "deletionTimestamp": "t"}}),
        "holder team-a/Pod/train-0 (terminating)",
        id="a terminating holder",
    ),
    pytest.param(lambda w: w.cluster.add_pod(owner_pod(HAMI)), "other owner gpu-operator/hami-device-plugin", id="another mode's owner"),
    pytest.param(
        lambda w: w.cluster.add_pod(daemon_pod("nvidia-device-plugin-daemonset", "elsewhere", ready=False)),
        "other owner elsewhere/nvidia-device-plugin-daemonset",
        id="a conflicting DaemonSet, wherever it runs",
    ),
    pytest.param(lambda w: w.cluster.add_pod(owner_pod(VM, ready=False)), "owner nvidia-sandbox", id="an owner that is not Ready"),
    pytest.param(
        lambda w: w.cluster.add_pod(owner_pod(VM, deletionTimestamp="t")), "-abcde: terminating", id="an owner that is terminating"
    ),
    pytest.param(lambda w: w.cluster.label(config="container"), "labels 2/3", id="a label"),
    pytest.param(not_ready, "node Ready is False", id="Ready"),
    pytest.param(
        lambda w: w.cluster.change(lambda node: node["spec"].update(taints=[{"key": "karpenter.sh/disrupted"}])),
        "another operation: taint karpenter.sh/disrupted",
        id="a mark on the node",
    ),
    pytest.param(lambda w: w.cluster.add_pod(upgrade_pod()), "another operation: pod system-upgrade/apply-1", id="an upgrade's pod"),
    pytest.param(
        lambda w: w.fleet.commit(rule_path(CLUSTER), rule_text(gpu_1=HAMI, gpu_2=HAMI), "revert\n"),
        "the tip's rule asks for pod-hami",
        id="a tip that is back",
    ),
    pytest.param(
        lambda w: w.cluster.objects.update(rules=[live_rule(HAMI)]), "the live rule asks for pod-hami", id="a live rule that is back"
    ),
    pytest.param(lambda w: w.cluster.unread.update(rules="no answer"), "the live rule can not be read: no answer", id="live rules"),
    pytest.param(lambda w: w.cluster.objects.update(rules=[]), "the live NodeFeatureRule", id="no live rule"),
    pytest.param(lambda w: setattr(w.fleet, "tip_problem", Problem("no route", None)), "the tip can not be read: no route", id="the tip"),
    pytest.param(
        lambda w: w.fleet.commit(rule_path(CLUSTER), b"nothing\n"), "the rule at the tip can not be read", id="the rule at the tip"
    ),
    *(
        pytest.param(lambda w, field=field: w.cluster.unread.update({field: "no answer"}), "could not be read: no answer", id=field)
        for field in ("pods", "unbound", "volumes", "permitted", "classes", "claims", "slices", "machines", "maintenances", "daemonsets")
    ),
    pytest.param(
        lambda w: w.steering.faults.update({(READ, n): "refused" for n in range(4, 99)}), "could not be read: not allowed", id="the node"
    ),
]


@pytest.mark.parametrize(("event", "missing"), STANDING)
def test_a_node_is_not_given_back_while_this_is_missing(event: Callable[[World], Any], missing: str) -> None:
    world = World(player=False)
    world.steering.after[PUSH, 1] = lambda: (world.arrive(VM), world.clock.at(3.2, lambda: event(world)))
    outcome = world.run(timeout=40.0)
    assert_stopped(world, outcome)
    assert (outcome.word, getattr(outcome.error, "id", None)) == ("failed-cordoned", "timeout")
    assert any(missing in item for item in outcome.waiting_for), outcome.waiting_for
    assert missing in str(outcome.error)
    assert world.cluster.kinds() == ["cordon", "announce"], "nothing is written meanwhile"


def test_an_api_server_that_is_away_is_ridden_out_until_the_timeout() -> None:
    world = World()

    def away() -> None:
        world.cluster.problem = RefusedByServer("server-error", "503")
        world.clock.at(300.0, lambda: setattr(world.cluster, "problem", None))

    world.steering.before["cluster.watch", 1] = away
    assert world.run().exit_code == 0
    world = World()
    world.steering.before["cluster.watch", 1] = lambda: setattr(world.cluster, "problem", RefusedByServer("server-error", "503"))
    outcome = world.run(timeout=30.0)
    assert_stopped(world, outcome)
    assert "was not reached within 30s; missing: 503" in str(outcome.error)


def test_full_observations_are_made_only_when_nothing_seems_missing_and_at_most_one_per_settle() -> None:
    world = World()
    world.on_arrival = lambda: world.clock.at(3.5, lambda: world.cluster.add_pod(owner_pod(VM, ready=False)))
    world.run(timeout=100.0)
    assert world.steering.calls.count((READ, 6)) == 0, "something seems missing from then on"
    world = World()
    world.steering.after[PUSH, 1] = lambda: setattr(world.fleet, "tip_problem", None)
    world.on_arrival = lambda: world.clock.at(2.0, lambda: setattr(world.fleet, "tip_problem", Problem("no route", None)))
    outcome = world.run(timeout=104.0, settle=10.0)
    assert outcome.exit_code == 4
    assert sum(name == "fleet.read_tip" for name, _ in world.steering.calls) <= 2 + 100 / 10 + 2


def test_the_timeout_counts_from_the_start_of_the_wait() -> None:
    world = World(player=False)
    outcome = world.run(timeout=30.0, settle=5.0)
    wait = next(step for step in outcome.steps if step.name == "wait")
    assert (wait.status, wait.seconds) == ("failed", pytest.approx(30.0))
    assert "vm-passthrough was not reached within 30s; missing: labels 0/3" in wait.message


def test_a_long_wait_is_heard_of_once_a_minute() -> None:
    world = World(player=False)
    world.run(timeout=290.0)
    beats = [line for line in world.terminal.lines if "still waiting for" in line]
    assert len(beats) == 4
    assert "(1m00s, 3m50s left): labels 0/3" in beats[0]


# ---------------------------------------------------------------- cordoned again


def test_a_node_is_cordoned_again_at_most_20_times() -> None:
    world = World(player=False)

    def lift() -> None:
        if world.cluster.unschedulable:
            world.cluster.uncordon("driver-manager")
        world.clock.at(3.0, lift)

    world.steering.after[PUSH, 1] = lambda: world.clock.at(3.0, lift)
    outcome = world.run()
    assert (outcome.exit_code, getattr(outcome.error, "id", None)) == (4, "uncordoned-again")
    assert world.cluster.kinds().count("recordon") == 20
    assert (outcome.headline or "").startswith("THE NODE IS SCHEDULABLE")
    assert "it is schedulable and unprotected" in (outcome.headline or "")
    assert not world.cluster.unschedulable


def test_a_conflict_does_not_count_as_cordoned_again() -> None:
    world = World(VM, HAMI)
    world.on_arrival = lambda: world.cluster.uncordon("driver-manager")
    asked: list[str] = []

    def busy(kind: str) -> LostGuard | None:
        if kind == "recordon" and len(asked) < 30:
            asked.append(kind)
            heartbeat(world)
            return LostGuard("lost-guard", "409")
        return None

    world.cluster.refuses = busy
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert sum(write.effective for write in writes(world, "recordon")) == 1


def test_a_cordon_that_the_server_has_no_time_for_is_tried_again_until_it_has() -> None:
    for identifier in ("busy", "not-sent", "lost"):
        world = World(VM, HAMI)
        world.on_arrival = lambda world=world: world.cluster.uncordon("driver-manager")  # type: ignore[misc]
        answers: list[str] = []

        def busy(kind: str, answers: list[str] = answers, identifier: str = identifier) -> RefusedByServer | UnknownOutcome | None:
            if kind != "recordon" or len(answers) == 3:
                return None
            answers.append(kind)
            return UnknownOutcome("patch-unknown", "lost") if identifier == "lost" else RefusedByServer(identifier, "429")

        world.cluster.refuses = busy
        outcome = world.run(request_timeout=2.0)
        assert outcome.exit_code == 0, outcome.error
        assert sum(write.effective for write in writes(world, "recordon")) == 1
        assert len(writes(world, "recordon")) == 4


def test_a_node_that_goes_while_its_cordon_is_tried_again_is_said_to_be_gone() -> None:
    world = World(VM, HAMI)
    world.on_arrival = lambda: world.cluster.uncordon("driver-manager")
    world.cluster.refuses = lambda kind: RefusedByServer("busy", "429") if kind == "recordon" else None
    world.clock.at(4.5, world.cluster.delete)
    outcome = world.run()
    assert (outcome.exit_code, getattr(outcome.error, "id", None)) == (4, "node-gone")


def test_a_node_that_can_not_be_read_when_its_cordon_is_tried_again_is_read_later() -> None:
    world = World(VM, HAMI)
    world.on_arrival = lambda: world.cluster.uncordon("driver-manager")
    answers: list[str] = []

    def busy(kind: str) -> RefusedByServer | None:
        if kind == "recordon" and not answers:
            answers.append(kind)
            world.steering.faults.update({(READ, number): "fails" for number in range(4, 7)})
            return RefusedByServer("busy", "429")
        return None

    world.cluster.refuses = busy
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert sum(write.effective for write in writes(world, "recordon")) == 1


def test_a_cordon_that_is_refused_for_good_ends_the_run_saying_that_the_node_is_schedulable() -> None:
    world = World(VM, HAMI)
    world.on_arrival = lambda: world.cluster.uncordon("driver-manager")
    world.cluster.refuses = lambda kind: RefusedByServer("patch-refused", "no (400)") if kind == "recordon" else None
    outcome = world.run()
    assert (outcome.exit_code, world.cluster.kinds().count("recordon")) == (4, 1)
    assert failure_text(outcome)[0].startswith("THE NODE IS SCHEDULABLE")


def test_an_uncordon_by_others_never_counts_as_done() -> None:
    world = World()
    world.steering.before[PATCH, UNCORDON] = world.cluster.uncordon
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert world.cluster.kinds()[2:] == ["uncordon", "recordon", "uncordon"]
    first, again, last = world.cluster.writes[3:]
    assert (first.effective, last.effective) == (False, True)
    assert last.time >= again.time + 2.0, "verified afresh, in two observations"


def test_a_node_is_cordoned_again_only_under_its_own_record() -> None:
    world = World()
    world.steering.before[SIGNAL, 5] = world.cluster.uncordon
    world.steering.before[PATCH, 4] = lambda: world.cluster.annotate(ANNOTATION, None)
    outcome = world.run()
    assert (outcome.exit_code, outcome.word) == (4, "ended-elsewhere")
    assert not world.cluster.unschedulable


# ---------------------------------------------------------------- the uncordon


def test_the_uncordon_carries_the_version_of_the_second_observation() -> None:
    world = World()
    seen: list[str] = []
    world.steering.before[READ, 5] = lambda: heartbeat(world)
    world.steering.after[READ, 5] = lambda: seen.append(str(world.cluster.version))
    world.steering.before[PATCH, UNCORDON] = lambda: heartbeat(world)
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    first, second = writes(world, "uncordon")
    assert first.value("/metadata/resourceVersion", "replace") == seen[0]
    assert not first.effective
    assert second.value("/metadata/resourceVersion", "replace") == second.before["metadata"]["resourceVersion"]


GROUND = [
    pytest.param(heartbeat, True, id="a heartbeat"),
    pytest.param(lambda w: w.cluster.annotate("team", "a"), True, id="an annotation of somebody else"),
    pytest.param(lambda w: w.cluster.change(lambda node: node["spec"].update(taints=[{"key": "medik8s.io/drain"}])), False, id="a mark"),
    pytest.param(not_ready, False, id="Ready"),
    pytest.param(lambda w: w.cluster.label(active="pod-hami"), False, id="a label"),
    pytest.param(
        lambda w: w.cluster.change(lambda n: n["metadata"]["managedFields"][-1].update(time="2030-01-01T00:00:00Z")),
        False,
        id="the cordon's entry",
    ),
]


@pytest.mark.parametrize(("event", "again"), GROUND)
def test_after_a_conflict_the_uncordon_is_sent_again_only_on_the_same_ground(event: Callable[[World], Any], again: bool) -> None:
    world = World()
    world.steering.before[PATCH, UNCORDON] = lambda: event(world)
    outcome = world.run(timeout=30.0)
    sent = writes(world, "uncordon")
    assert not sent[0].effective
    if again:
        assert outcome.exit_code == 0
        assert sent[1].time == sent[0].time
    else:
        assert all(write.time >= sent[0].time + 2.0 for write in sent[1:]), "observed twice again"


def test_an_observation_older_than_5_seconds_is_not_used_for_the_uncordon() -> None:
    world = World()

    late: list[float] = []

    def delay() -> None:
        heartbeat(world)
        world.clock.pass_time(FRESH + 0.1)
        late.append(world.clock.time)

    world.steering.before[PATCH, UNCORDON] = delay  # what the request needs took so long that the look is too old to send it
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    (sent,) = writes(world, "uncordon")
    assert sent.time >= late[0] + 2.0, "observed twice again"


def test_an_uncordon_is_sent_within_5_seconds_of_the_look_even_if_the_watch_was_slow() -> None:
    world = World()
    world.steering.after[READ, 5] = lambda: world.cluster.watches[-1].extra.append(world.cluster.watches[-1].state())
    slow = {("cluster.next_signal", number): "slow" for number in range(30, 60)}
    world.steering.faults.update(slow)
    world.run(timeout=400.0)
    for write in writes(world, "uncordon"):
        assert write.time - world.cluster.reads["read_facts"] <= 5.0 or not write.effective


@pytest.mark.parametrize("identifier", ["busy", "not-sent", "too-late"])
def test_an_uncordon_that_the_server_has_no_time_for_is_verified_and_sent_anew(identifier: str) -> None:
    world = World()
    answers: list[str] = []

    def busy(kind: str) -> RefusedByServer | None:
        if kind == "uncordon" and not answers:
            answers.append(kind)
            return RefusedByServer(identifier, "429")
        return None

    world.cluster.refuses = busy
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    first, second = writes(world, "uncordon")
    assert second.time >= first.time + 2.0


def test_an_uncordon_that_is_refused_for_good_ends_the_run() -> None:
    world = World()
    world.cluster.refuses = lambda kind: RefusedByServer("patch-refused", "no (400)") if kind == "uncordon" else None
    outcome = world.run()
    assert (outcome.exit_code, world.cluster.unschedulable, outcome.error_step) == (4, True, "uncordon")


def test_an_uncordon_that_would_leave_too_late_is_not_sent() -> None:
    world = World()
    world.steering.faults[PATCH, UNCORDON] = "slow"
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    (uncordon,) = writes(world, "uncordon")
    assert uncordon.time - world.cluster.reads["read_facts"] <= 5.0


def test_an_uncordon_whose_answer_was_lost_is_read_back() -> None:
    world = World()
    world.steering.faults[PATCH, UNCORDON] = "lost"
    outcome = world.run()
    assert (outcome.exit_code, world.is_done()) == (0, True)


def test_a_node_that_is_found_cordoned_without_our_record_is_not_called_done() -> None:
    world = World()
    world.steering.faults[PATCH, UNCORDON] = "lost"
    world.steering.before[READ, 6] = world.cluster.cordon
    outcome = world.run()
    assert (outcome.exit_code, outcome.word) == (4, "ended-elsewhere")
    assert world.cluster.unschedulable


# ---------------------------------------------------------------- interrupts


def interrupted(name: str, number: int, *, before: bool = True, **more: Any) -> tuple[World, Outcome]:
    """A run that gets SIGINT right before, or during, that call."""
    world = World()
    events = world.steering.before if before else world.steering.after
    events[name, number] = lambda: setattr(world.interrupts, "name", "SIGINT")
    return world, world.run(**more)


def test_an_interrupt_before_the_first_write_is_130() -> None:
    world, outcome = interrupted("fleet.prepare_commit", 1)
    assert (outcome.exit_code, outcome.word, outcome.resume_command) == (130, "interrupted", None)
    assert world.cluster.kinds() == []


BETWEEN = [
    pytest.param((PATCH, CORDON), ["cordon"], 0, "cordoned", id="during the cordon"),
    pytest.param((READ, 2), ["cordon"], 0, "cordoned", id="during the recheck"),
    pytest.param((READ, 3), ["cordon"], 0, "cordoned", id="during the second look"),
    pytest.param((PATCH, ANNOUNCE), ["cordon", "announce", "take-back"], 0, "cordoned", id="during the announcement"),
    pytest.param((PUSH, 1), ["cordon", "announce"], 1, "pushing", id="during the push"),
    pytest.param((SIGNAL, 7), ["cordon", "announce"], 1, "pushing", id="during the wait"),
]


@pytest.mark.parametrize(("key", "kinds", "pushes", "phase"), BETWEEN)
def test_an_interrupt_is_acted_on_between_writes(key: tuple[str, int], kinds: list[str], pushes: int, phase: str) -> None:
    world, outcome = interrupted(*key)
    assert_stopped(world, outcome)
    assert (outcome.word, str(outcome.error)) == ("failed-cordoned", "interrupted by SIGINT")
    assert world.cluster.kinds() == kinds
    assert len(world.fleet.pushes) == pushes
    assert world.transaction is not None
    assert world.transaction.phase == phase
    assert world.resume().exit_code == 0
    assert world.is_done()


def test_an_interrupt_during_the_uncordon_changes_nothing_any_more() -> None:
    world, outcome = interrupted(PATCH, UNCORDON)
    assert (outcome.exit_code, world.is_done()) == (0, True)


def test_an_interrupt_after_a_conflict_of_the_uncordon_stops_before_the_next() -> None:
    world = World()

    def busy() -> None:
        heartbeat(world)
        world.interrupts.name = "SIGTERM"

    world.steering.before[PATCH, UNCORDON] = busy
    outcome = world.run()
    assert outcome.exit_code == 4
    assert [write.effective for write in writes(world, "uncordon")] == [False]
    assert world.cluster.unschedulable


def test_a_patch_in_flight_is_brought_to_a_known_outcome_first() -> None:
    world = World()
    world.steering.faults[PATCH, CORDON] = "lost"
    world.steering.before[READ, 2] = lambda: setattr(world.interrupts, "name", "SIGHUP")
    outcome = world.run()
    assert_stopped(world, outcome)
    assert "SIGHUP" in str(outcome.error)
    assert world.transaction is not None


@pytest.mark.parametrize("cordoned", [True, False])
def test_an_interrupt_at_once_in_the_preflight_of_a_resume_says_how_the_node_is(cordoned: bool) -> None:
    world = killed_after(PATCH, CORDON)
    if not cordoned:
        world.cluster.uncordon()

    def strike() -> None:
        raise InterruptedNow("SIGINT")

    world.steering.before["fleet.probe_push", 1] = strike
    outcome = world.run(resume=True)
    assert (outcome.exit_code, outcome.word) == (130, "interrupted")
    state = "still cordoned by the earlier run" if cordoned else "SCHEDULABLE, the earlier run unfinished"
    assert outcome.headline == f"this run changed nothing; the node is {state}"
    assert "--resume-cordoned" in (outcome.resume_command or "")


def test_an_interrupt_before_a_resume_has_read_the_node_does_not_claim_to_know() -> None:
    world = killed_after(PATCH, CORDON)

    def strike() -> None:
        raise InterruptedNow("SIGINT")

    world.steering.before[READ, 1] = strike
    outcome = world.run(resume=True)
    assert (outcome.exit_code, outcome.headline) == (130, "this run changed nothing; the node is as the earlier run left it")


def test_an_interrupt_while_the_question_is_asked_is_an_interrupt() -> None:
    world = World()
    world.interrupts.name = "SIGINT"
    assert world.run(yes=False).exit_code == 130


# ---------------------------------------------------------------- bugs


class Bug(Exception):
    """Something that nobody thought of."""


@pytest.mark.parametrize(
    ("key", "code", "word"), [((READ, 1), 1, "bug"), ((READ, 2), 4, "failed-cordoned"), ((SIGNAL, 4), 4, "failed-cordoned")]
)
def test_a_bug_exits_1_before_the_cordon_and_4_after_it_and_says_so(key: tuple[str, int], code: int, word: str) -> None:
    world = World()

    def strike() -> None:
        raise Bug("dangling pointer")

    world.steering.before[key] = strike
    outcome = world.run()
    assert (outcome.exit_code, outcome.word) == (code, word)
    assert "error: a bug in this program: Bug: dangling pointer" in failure_text(outcome)
    assert world.cluster.unschedulable == (code == 4)


def test_a_failure_says_what_failed_what_is_true_what_to_look_at_and_how_to_go_on_in_this_order() -> None:
    world = World()
    world.fleet.rejects = "the branch is frozen tonight"
    outcome = world.run()
    lines = failure_text(outcome)
    kubectl = "kubectl --kubeconfig /dc1.kubeconfig"
    assert lines == [
        "error: the remote refused the push: the branch is frozen tonight",
        "  remedy: correct what it says, then resume",
        "What is true now:",
        "  node: cordoned, Ready True, kube-dc.com/gpu.workload-mode=pod-hami, kube-dc.com/gpu.expected-workload-mode=pod-hami, "
        "nvidia.com/gpu.workload.config=container",
        "  annotation: 00000000-0000-4000-8000-000000000001 (pod-hami to vm-passthrough in eu/dc1, cordoned, since 2026-05-01T00:16:40Z, "
        "by Op@laptop)",
        f"  fleet: /fleet, main at {world.fleet.head[:12]}, clean",
        f"  remote: tip {world.fleet.head[:12]}, its rule asks for pod-hami, our commit is not in it",
        "Look at:",
        f"  {kubectl} get node gpu-1 -L {','.join(LABELS)}",
        f"  {kubectl} get pods -A --field-selector spec.nodeName=gpu-1",
        "  flux get kustomizations --kubeconfig /dc1.kubeconfig",
        "Do not uncordon it by hand; go on with:",
        "  kubectl gpu-transition apply eu/dc1 gpu-1 --repo /fleet --kubeconfig /dc1.kubeconfig --from pod-hami --to vm-passthrough "
        "--resume-cordoned --yes",
    ]


def test_an_error_at_the_very_end_does_not_hide_how_the_run_ended() -> None:
    world = World()

    def broken() -> None:
        raise OSError("disk")

    world.fleet.release_lock = broken  # type: ignore[method-assign]
    world.cluster.add_pod(gpu_pod())
    assert world.run().exit_code == 3
    assert "the lock of the checkout could not be given back: disk" in world.terminal.lines
    world = World()
    world.fleet.rejects = "frozen"

    def strike() -> None:
        raise Bug("dangling")

    world.steering.before["fleet.read_checkout", 2] = strike
    outcome = world.run()
    assert (outcome.exit_code, getattr(outcome.error, "id", None)) == (4, "push-rejected")
    assert outcome.facts[-1] == "the rest could not be read: Bug: dangling"
    assert outcome.resume_command is not None


def test_facts_that_can_not_be_read_are_said_to_be_so() -> None:
    world = World(player=False)

    def away() -> None:
        world.fleet.history_problem = NO_HISTORY
        world.fleet.state = Problem("there are changed files: README", "commit them")
        world.cluster.annotate(ANNOTATION, "{")

    world.steering.before[SIGNAL, 2] = away
    outcome = world.run()
    assert outcome.exit_code == 4
    assert outcome.facts[1:] == [
        "annotation: not readable: {",
        f"fleet: /fleet, main at {world.fleet.head[:12]}, there are changed files: README",
        f"remote: tip {(world.fleet.tip or '')[:12]}, its rule asks for vm-passthrough, whether our commit is in it could not be read",
    ]
    world = World()

    def all_away() -> None:
        world.fleet.commit(rule_path(CLUSTER), b"nothing\n")
        world.fleet.tip_problem = Problem("no route", None)
        world.cluster.delete()

    world.steering.before[READ, 2] = all_away
    outcome = world.run()
    assert outcome.facts[0::3] == ["node: it does not exist", "remote: could not be read: no route"]


def test_the_number_of_tries_is_the_contracts() -> None:
    assert (engine.CORDON_TRIES, engine.STALE, FRESH) == (5, 10.0, 5.0)
