"""Both resume tables of spec section 6, row by row, and what holds around them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kubectl_gpu_transition.failures import Forbidden
from kubectl_gpu_transition.model import Check, Outcome, Problem
from kubectl_gpu_transition.plan import env_path, rule_path
from tests.fakes.fleet import NO_HISTORY
from tests.fakes.world import CLUSTER, DRA, ENV, HAMI, NODE, VM, World, gpu_pod, owner_pod, rule_text

ANNOTATION = "kube-dc.com/gpu-transition"
DEATHS = {"cordon": ("cluster.patch_node", 2), "announce": ("cluster.patch_node", 3), "push": ("fleet.push_commit", 1)}
RESUME = (
    f"kubectl gpu-transition apply {CLUSTER} {NODE} --repo /fleet --kubeconfig /dc1.kubeconfig "
    "--from pod-hami --to vm-passthrough --resume-cordoned --yes"
)


def stopped_after(step: str, **world: Any) -> World:
    """A world whose first run was killed right after that step, and that nothing steers any more."""
    one = World(**world)
    one.steering.faults[DEATHS[step]] = "dies"
    assert one.run_to_death() is None
    one.steering.revive()
    one.cluster.writes.clear()
    one.fleet.pushes.clear()
    return one


def check_of(outcome: Outcome, name: str) -> Check:
    return next(check for check in outcome.checks if check.name == name)


def rewritten(world: World, **changes: Any) -> str:
    """The record of the node with other values, as somebody could have left it."""
    return json.dumps({**json.loads(world.cluster.record or "{}"), **changes})


def other_direction(world: World) -> None:
    world.cluster.annotate(ANNOTATION, rewritten(world, **{"from": "vm-passthrough", "to": "pod-hami"}))


def other_cluster(world: World) -> None:
    world.cluster.annotate(ANNOTATION, rewritten(world, cluster="eu/dc2"))


def other_version(world: World) -> None:
    world.cluster.annotate(ANNOTATION, rewritten(world, v=2))


def other_uid(world: World) -> None:
    world.cluster.annotate(ANNOTATION, rewritten(world, uid="uid-0"))


def unreadable(world: World) -> None:
    world.cluster.annotate(ANNOTATION, "{")


def dropped(world: World) -> None:
    world.cluster.annotate(ANNOTATION, None)


def recordoned_by_hand(world: World) -> None:
    world.cluster.uncordon()
    world.clock.pass_time(5)
    world.cluster.cordon("kubectl-cordon")


NOT_OURS = [
    (other_direction, "another direction", "--from vm-passthrough --to pod-hami --resume-cordoned"),
    (other_cluster, "another cluster", "see whether the branch has it: git -C /fleet log --grep 00000000-0000-4000-8000-000000000001"),
    (other_version, "another version of the program", "use the version of this program that wrote it"),
    (other_uid, "another node of this name", f"annotate node {NODE} kube-dc.com/gpu-transition-"),
    (unreadable, "not readable: {", f"annotate node {NODE} kube-dc.com/gpu-transition-"),
]
REFUSED: list[Any] = []
for flag in (False, True):
    with_flag = f"{'with' if flag else 'without'} the flag"
    REFUSED += [
        pytest.param(True, dropped, flag, "cordoned, and not by this workflow", "whoever did it", id=f"cordoned, no record, {with_flag}"),
        *(
            pytest.param(cordoned, spoil, flag, why, remedy, id=f"{'cordoned' if cordoned else 'schedulable'}, {why}, {with_flag}")
            for cordoned in (True, False)
            for spoil, why, remedy in NOT_OURS
        ),
        pytest.param(
            True,
            recordoned_by_hand,
            flag,
            "the node was cordoned by kubectl-cordon at 2026-05-01T00:16:4",
            f"that one uncordons (kubectl --kubeconfig /dc1.kubeconfig uncordon {NODE}), then resume",
            id=f"cordoned, ours, but the cordon is another manager's, {with_flag}",
        ),
    ]
REFUSED += [
    pytest.param(True, lambda _: None, False, "an unfinished transaction is on the node", RESUME, id="cordoned, ours, without the flag"),
    pytest.param(
        False,
        lambda _: None,
        False,
        "an unfinished transaction was uncordoned by another actor",
        RESUME,
        id="schedulable, ours, without the flag",
    ),
    pytest.param(False, dropped, True, "nothing to resume", "without --resume-cordoned", id="schedulable, no record, with the flag"),
]


@pytest.mark.parametrize("command", ["apply", "preview"])
@pytest.mark.parametrize(("cordoned", "spoil", "flag", "why", "remedy"), REFUSED)
def test_the_node_is_refused(cordoned: bool, spoil: Callable[[World], None], flag: bool, why: str, remedy: str, command: str) -> None:
    world = stopped_after("cordon")
    spoil(world)
    if not cordoned:
        world.cluster.uncordon()
    before = world.end()
    outcome = world.run(command, resume=flag)
    check = check_of(outcome, "cordon")
    assert (outcome.exit_code, outcome.word, check.status) == (3, "blocked", "fail")
    assert why in check.message
    assert remedy in (check.remedy or "")
    assert world.cluster.writes == []
    assert world.end() == before
    if remedy == RESUME:
        assert outcome.resume_command == RESUME


@pytest.mark.parametrize("step", DEATHS)
def test_a_cordoned_node_of_ours_is_resumed(step: str) -> None:
    world = stopped_after(step)
    outcome = world.run(resume=True)
    assert (outcome.word, outcome.resumed) == ("completed", True), outcome.error
    assert world.is_done()
    assert next(s for s in outcome.steps if s.name == "cordon").status == "skipped"


@pytest.mark.parametrize("step", DEATHS)
def test_a_schedulable_node_of_ours_is_cordoned_again_as_the_first_write(step: str) -> None:
    world = stopped_after(step, player=False)
    world.cluster.uncordon()
    record = world.cluster.record
    if step == "push":
        world.arrive(VM)
    else:
        world._play()
    outcome = world.run(resume=True)
    assert outcome.exit_code == 0, outcome.error
    assert world.cluster.writes[0].kind == "recordon"
    assert world.cluster.writes[0].operations[1]["value"] == record
    assert world.is_done()


def test_a_refusal_after_that_cordon_exits_4() -> None:
    world = stopped_after("cordon")
    world.cluster.uncordon()
    world.cluster.add_pod(gpu_pod())
    outcome = world.run(resume=True)
    assert (outcome.exit_code, outcome.word) == (4, "failed-cordoned")
    assert check_of(outcome, "holders").status == "fail"
    assert world.cluster.kinds() == ["recordon"]
    assert world.cluster.unschedulable
    assert outcome.error_step == "preflight"


def test_a_cordon_that_meets_a_conflict_on_a_resume_is_tried_five_times() -> None:
    for conflicts, ends in ((4, 0), (5, 3)):
        world = stopped_after("cordon")
        world.cluster.uncordon()
        for number in range(1, conflicts + 1):
            world.steering.before["cluster.patch_node", number] = lambda w=world: w.cluster.annotate("beat", str(w.cluster.version))  # type: ignore[misc]
        outcome = world.run(resume=True)
        assert outcome.exit_code == ends, outcome.error
        assert world.cluster.kinds().count("recordon") == 5


def test_a_node_that_another_run_has_cordoned_meanwhile_is_cordoned_once() -> None:
    world = stopped_after("cordon")
    world.cluster.uncordon()
    world.steering.before["cluster.patch_node", 1] = lambda: world.cluster.cordon("kubectl-gpu-transition")
    outcome = world.run(resume=True)
    assert outcome.exit_code == 0, outcome.error
    assert [write.effective for write in world.cluster.writes if write.kind == "recordon"] == [False]


def test_a_record_that_goes_while_a_resume_cordons_again_is_left_alone() -> None:
    world = stopped_after("cordon")
    world.cluster.uncordon()
    world.steering.before["cluster.patch_node", 1] = lambda: world.cluster.annotate(ANNOTATION, None)
    outcome = world.run(resume=True)
    assert (outcome.exit_code, world.cluster.unschedulable) == (3, False)


@pytest.mark.parametrize("change", ["path", "absent", "unreadable", "route"])
def test_a_node_that_is_not_known_to_be_this_clusters_is_not_cordoned_again(change: str) -> None:
    world = stopped_after("cordon")
    world.cluster.uncordon()
    if change == "path":
        world.cluster.objects["kustomizations"][0]["spec"]["path"] = "./clusters/eu/dc2/gpu-node-modes"
    elif change == "absent":
        world.cluster.objects["kustomizations"] = []
    elif change == "unreadable":
        world.cluster.unread["kustomizations"] = "not allowed (403)"
    else:
        world.fleet.route = Problem("HEAD is detached", "git switch main")
    outcome = world.run(resume=True)
    assert (outcome.exit_code, world.cluster.writes) == (3, [])


def test_a_resume_without_gitops_objects_cordons_again_where_that_is_said_to_be_so() -> None:
    world = stopped_after("cordon")
    world.cluster.uncordon()
    world.cluster.objects["kustomizations"] = []
    assert world.run(resume=True, ignore_missing_gitops=True).exit_code == 0


def test_a_preview_of_a_resume_does_not_cordon_again() -> None:
    world = stopped_after("cordon")
    world.cluster.uncordon()
    outcome = world.run("preview", resume=True)
    assert (outcome.exit_code, outcome.word, world.cluster.writes) == (0, "ready", [])


def test_the_question_comes_before_that_cordon_and_only_once() -> None:
    world = stopped_after("cordon")
    world.cluster.uncordon()
    world.terminal.answers = ["no"]
    assert world.run(resume=True, yes=False).exit_code == 2
    assert world.cluster.writes == []
    world.terminal.answers = [NODE]
    assert world.run(resume=True, yes=False).exit_code == 0
    assert len(world.terminal.asked) == 2


def test_a_change_of_a_node_of_the_same_name_in_another_cluster_is_not_named() -> None:
    world = stopped_after("push", player=False)
    tip = world.fleet.tip or ""
    ours = world.fleet.commits[tip]
    world.fleet.commits[tip] = replace(ours, message=ours.message.replace(f"Cluster: {CLUSTER}", "Cluster: eu/dc2"))
    world.cluster.annotate(ANNOTATION, None)
    assert "in the branch has put" not in check_of(world.run(), "cordon").message


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("cordoned", [False, True])
def test_a_change_that_is_in_force_without_a_transaction_has_a_message_of_its_own(cordoned: bool, flag: bool) -> None:
    world = stopped_after("push", player=False)
    world.cluster.annotate(ANNOTATION, None)
    if not cordoned:
        world.cluster.uncordon()
    outcome = world.run(resume=flag)
    check = check_of(outcome, "cordon")
    assert (outcome.exit_code, check.status) == (3, "fail")
    assert (
        f"{(world.fleet.tip or '')[:12]} in the branch has put vm-passthrough in force for it: no transaction protects it" in check.message
    )
    assert check.remedy is not None
    assert check.remedy.startswith(
        "follow it:" if cordoned else f"cordon it: kubectl --kubeconfig /dc1.kubeconfig cordon {NODE}; follow it:"
    )
    assert "uncordon by hand when a pod of nvidia-sandbox-device-plugin-daemonset is Ready there and no other owner is left" in check.remedy
    assert world.cluster.writes == []


def test_a_node_that_has_arrived_and_is_cordoned_is_somebody_elses() -> None:
    world = World()
    assert world.run().exit_code == 0
    world.steering.revive()
    world.cluster.cordon("kubectl-cordon")
    check = check_of(world.run(), "cordon")
    assert check.message.startswith("the node is cordoned, and not by this workflow (last by kubectl-cordon at")


# ---------------------------------------------------------------- the second table: the tip decides


def test_a_tip_at_the_target_by_our_commit_is_waited_for() -> None:
    world = stopped_after("push")
    outcome = world.run(resume=True)
    assert outcome.exit_code == 0, outcome.error
    assert (world.fleet.pushes, world.is_done()) == ([], True)
    assert {s.name: s.status for s in outcome.steps}["push"] == "skipped"
    assert world.fleet.head == world.fleet.tip, "the advance that was cut short has been completed"


def test_a_tip_at_the_target_by_other_hands_is_waited_for() -> None:
    world = stopped_after("announce")
    world.fleet.commit(rule_path(CLUSTER), rule_text(gpu_1=VM, gpu_2=HAMI), "by hand\n")
    outcome = world.run(resume=True)
    assert outcome.exit_code == 0, outcome.error
    assert world.fleet.pushes == []
    assert not world.cluster.unschedulable


def test_the_announced_commit_is_pushed_again_where_its_objects_are_here() -> None:
    world = stopped_after("announce")
    announced = world.transaction.commit if world.transaction else None
    assert world.run(resume=True).exit_code == 0
    assert [commit for _, commit, _ in world.fleet.pushes] == [announced]


def test_it_is_built_anew_where_its_objects_are_not_here() -> None:
    world = stopped_after("announce")
    announced = world.transaction.commit if world.transaction else None
    world.fleet.here.discard(announced or "")
    outcome = world.run(resume=True, reason="another machine")
    assert outcome.exit_code == 0, outcome.error
    assert world.is_done()
    assert [commit for _, commit, _ in world.fleet.pushes] != [announced]


@pytest.mark.parametrize("step", ["cordon", "announce"])
def test_a_tip_that_moved_on_without_us_is_pushed_on(step: str) -> None:
    world = stopped_after(step)
    world.fleet.commit("README", b"y", checkout=True)
    outcome = world.run(resume=True)
    assert outcome.exit_code == 0, outcome.error
    assert world.is_done()
    assert world.fleet.ancestors(world.fleet.tip)[1] == world.fleet.pushes[0][0]


def test_a_change_that_somebody_reverted_is_refused_naming_both_commits() -> None:
    world = stopped_after("push", player=False)
    ours = world.fleet.tip or ""
    revert = world.fleet.commit(rule_path(CLUSTER), rule_text(gpu_1=HAMI, gpu_2=HAMI), 'Revert "feat"\n')
    world.fleet.commit("README", b"later", checkout=True)
    outcome = world.run(resume=True)
    check = check_of(outcome, "fleet-rule")
    assert (outcome.exit_code, check.status) == (3, "fail")
    assert "somebody reverted the change" in check.message
    assert ours[:12] in check.message
    assert check.remedy == f"abandon, or revert the revert ({revert[:12]}) and resume"
    assert world.fleet.pushes == []


def test_a_history_that_was_rewritten_is_refused_naming_both_commits() -> None:
    world = stopped_after("announce")
    base = world.fleet.tip or ""
    world.fleet.tip = next(iter(world.fleet.commits))
    other = world.fleet.commit("README", b"rewritten")
    world.fleet.commits[other] = type(world.fleet.commits[other])(None, world.fleet.commits[other].tree, "rewritten\n")
    world.fleet.pull()
    outcome = world.run(resume=True)
    check = check_of(outcome, "fleet-rule")
    assert (outcome.exit_code, check.status, check.remedy) == (3, "fail", "abandon is the way out")
    assert "history was rewritten" in check.message
    assert base[:12] in check.message
    assert other[:12] in check.message


def test_a_tip_at_neither_mode_is_drift() -> None:
    world = stopped_after("announce")
    world.fleet.commit(rule_path(CLUSTER), rule_text(gpu_1=DRA, gpu_2=HAMI), checkout=True)
    outcome = world.run(resume=True)
    assert (outcome.exit_code, check_of(outcome, "fleet-rule").status) == (3, "fail")
    assert "drift: the tip" in check_of(outcome, "fleet-rule").message


def test_a_history_that_is_not_here_is_never_taken_for_rewritten() -> None:
    world = stopped_after("announce")
    world.fleet.commit("README", b"y", checkout=True)
    world.fleet.history_problem = NO_HISTORY
    outcome = world.run(resume=True)
    remote = check_of(outcome, "fleet-remote")
    assert (outcome.exit_code, remote.status, remote.remedy) == (3, "fail", "git fetch --unshallow")
    assert check_of(outcome, "fleet-rule").status == "skip"


# ---------------------------------------------------------------- with the change in force


def not_ready(world: World) -> None:
    world.cluster.change(lambda node: node["status"].update(conditions=[{"type": "Ready", "status": "Unknown"}]))


def dirty(world: World) -> None:
    world.fleet.state = Problem("there are changed files: README", "commit or stash them")


def locked(world: World) -> None:
    world.fleet.locked = Problem("locked by pid 7 on laptop", "wait for it")


def no_identity(world: World) -> None:
    world.fleet.identity = Problem("no identity", "git config user.name")


def no_push(world: World) -> None:
    world.fleet.push_problem = Problem("not allowed to push", "ask for it")


def holder(world: World) -> None:
    world.cluster.add_pod(gpu_pod())


def drained(world: World) -> None:
    world.cluster.annotate("weave.works/kured-reboot-in-progress", "now")


def label_missing(world: World) -> None:
    world.cluster.change(lambda node: node["metadata"]["labels"].pop("kube-dc.com/gpu.workload-mode"))


def behind(world: World) -> None:
    world.fleet.commit("README", b"newer")


SOFT = [
    pytest.param(not_ready, "node", id="a node that is not Ready"),
    pytest.param(dirty, "fleet-checkout", id="a checkout with changes"),
    pytest.param(locked, "fleet-checkout", id="a checkout that another run has locked"),
    pytest.param(behind, "fleet-remote", id="a checkout that is behind"),
    pytest.param(no_push, "fleet-remote", id="a push that would not be let in"),
    pytest.param(no_identity, "fleet-identity", id="no identity"),
    pytest.param(holder, "holders", id="a holder"),
    pytest.param(drained, "other-actors", id="a mark"),
    pytest.param(label_missing, "live-mode", id="a label that is absent for the moment"),
]


@pytest.mark.parametrize(("spoil", "name"), SOFT)
def test_with_the_change_in_force_it_is_a_warning(spoil: Callable[[World], None], name: str) -> None:
    world = stopped_after("push", player=False)
    spoil(world)
    outcome = world.run(resume=True, timeout=30.0)
    assert check_of(outcome, name).status == "warn", check_of(outcome, name)
    assert (outcome.exit_code, outcome.error_step) == (4, "wait"), outcome.error
    assert world.cluster.kinds() == []


@pytest.mark.parametrize(("spoil", "name"), [*SOFT[:1], *SOFT[6:8]])
def test_it_is_a_condition_of_the_wait_all_the_same(spoil: Callable[[World], None], name: str) -> None:
    world = stopped_after("push", player=False)
    spoil(world)
    world.arrive(VM)
    outcome = world.run(resume=True, timeout=30.0)
    assert (outcome.exit_code, world.cluster.unschedulable) == (4, True), name
    assert len(outcome.waiting_for) == 1


def open_gate(world: World) -> None:
    world.fleet.commit(env_path(CLUSTER), ENV.replace(b"VM_CREATION_ENABLED=false", b"VM_CREATION_ENABLED=true"))


def no_overlay(world: World) -> None:
    tip = world.fleet.commit("README", b"z")
    commit = world.fleet.commits[tip]
    world.fleet.commits[tip] = type(commit)(commit.parent, tuple(f for f in commit.tree if f[0] != env_path(CLUSTER)), commit.message)


def other_label(world: World) -> None:
    world.cluster.label(active="pod-hami-dra")


def wrong_cluster(world: World) -> None:
    world.cluster.objects["kustomizations"][0]["spec"]["path"] = "clusters/eu/dc2/gpu-node-modes/"


def no_access(world: World) -> None:
    world.cluster.refuses = lambda kind: Forbidden("forbidden", "nodes is forbidden") if kind == "dry-run" else None


def no_tip(world: World) -> None:
    world.fleet.tip_problem = Problem("the remote does not answer", "check the network")


HARD = [
    pytest.param(open_gate, "creation-gates", id="a gate that is open at the tip"),
    pytest.param(no_overlay, "creation-gates", id="an overlay that is gone from the tip"),
    pytest.param(other_label, "live-mode", id="a label of a third mode"),
    pytest.param(wrong_cluster, "fleet-cluster", id="another cluster"),
    pytest.param(no_access, "access", id="no access"),
    pytest.param(no_tip, "fleet-remote", id="a tip that can not be read"),
    pytest.param(lambda w: w.cluster.delete(), "node", id="no such node"),
]


@pytest.mark.parametrize(("spoil", "name"), HARD)
def test_with_the_change_in_force_it_refuses_all_the_same(spoil: Callable[[World], None], name: str) -> None:
    world = stopped_after("push", player=False)
    spoil(world)
    outcome = world.run(resume=True, timeout=30.0)
    assert (outcome.exit_code, outcome.word) == (3, "blocked")
    assert check_of(outcome, name).status == "fail"
    assert world.cluster.kinds() == []


def test_gates_that_are_open_in_the_checkout_alone_do_not_matter_then() -> None:
    world = stopped_after("push")
    head = world.fleet.head
    commit = world.fleet.commits[head]
    opened = type(commit)(commit.parent, tuple((p, b"" if p == env_path(CLUSTER) else c) for p, c in commit.tree), "local\n")
    world.fleet.commits[opened.id] = opened
    world.fleet.head = opened.id
    outcome = world.run(resume=True)
    assert outcome.exit_code == 0, outcome.error


def test_a_lock_that_is_taken_leaves_the_checkout_alone() -> None:
    world = stopped_after("push")
    locked(world)
    head = world.fleet.head
    assert world.run(resume=True).exit_code == 0
    assert world.fleet.head == head


def test_where_the_tip_is_at_from_the_preflight_is_that_of_a_first_run() -> None:
    for spoil, name in (
        (holder, "holders"),
        (drained, "other-actors"),
        (not_ready, "node"),
        (dirty, "fleet-checkout"),
        (behind, "fleet-remote"),
    ):
        world = stopped_after("announce")
        spoil(world)
        outcome = world.run(resume=True)
        assert (outcome.exit_code, check_of(outcome, name).status) == (3, "fail"), name
        assert world.cluster.unschedulable


def test_already_at_the_target_comes_before_the_tables() -> None:
    world = World()
    world.steering.faults["cluster.patch_node", 4] = "dies"  # the uncordon
    world.run_to_death()
    world.steering.revive()
    assert world.run(resume=True).word == "already-at-target"


def test_the_names_of_the_first_run_count_on_a_resume() -> None:
    world = World()
    world.steering.faults[DEATHS["cordon"]] = "dies"
    world.run_to_death(gpu_resources=("vendor.example/gpu",))
    world.steering.revive()
    world.cluster.add_pod(gpu_pod(resource="vendor.example/gpu"))
    outcome = world.run(resume=True, gpu_resources=("other.example/gpu",))
    assert check_of(outcome, "holders").status == "fail"
    assert "--gpu-resource other.example/gpu --gpu-resource vendor.example/gpu" in (outcome.resume_command or "")


# ---------------------------------------------------------------- failures of a resume


@pytest.mark.parametrize("kind", ["fails", "lost", "dies", "refused", "slow"])
@pytest.mark.parametrize(
    ("step", "key"),
    [
        ("cordon", ("cluster.patch_node", 1)),
        ("cordon", ("cluster.patch_node", 2)),
        ("cordon", ("fleet.prepare_commit", 1)),
        ("cordon", ("fleet.push_commit", 1)),
        ("announce", ("fleet.is_same_change", 1)),
        ("announce", ("cluster.patch_node", 2)),
        ("announce", ("fleet.push_commit", 1)),
        ("announce", ("fleet.read_tip", 2)),
        ("push", ("fleet.find_parent", 1)),
        ("push", ("fleet.advance_checkout", 1)),
        ("push", ("cluster.read_node", 2)),
        ("push", ("cluster.patch_node", 2)),
    ],
    ids=lambda part: part if isinstance(part, str) else f"{part[0]}-{part[1]}",
)
def test_a_resume_that_fails_can_be_resumed(step: str, key: tuple[str, int], kind: str) -> None:
    world = stopped_after(step)
    world.steering.faults[key] = kind
    outcome = world.run_to_death(resume=True)
    assert key in world.steering.calls
    if outcome is not None and outcome.exit_code != 0:
        # The dry run is part of the preflight: a resume that it refuses leaves the node as it was.
        assert outcome.exit_code == (3 if key == ("cluster.patch_node", 1) else 4)
        assert world.cluster.unschedulable
        assert world.transaction is not None
        assert "--resume-cordoned" in (outcome.resume_command or "")
    if world.fleet.head != world.fleet.tip and world.fleet_mode() is HAMI:
        world.fleet.pull()
    last = world.resume()
    assert last.exit_code == 0, last.error
    assert world.is_done()


# ---------------------------------------------------------------- abandon


def test_an_announced_push_whose_base_is_still_the_tip_can_not_be_abandoned() -> None:
    world = stopped_after("announce")
    outcome = world.run("abandon")
    check = check_of(outcome, "cordon")
    assert (outcome.exit_code, outcome.word, check.status) == (3, "blocked", "fail")
    assert "may still be in flight" in check.message
    assert check.remedy is not None
    assert "push any other commit to the branch (an empty one will do)" in check.remedy
    assert check.remedy.endswith("(the node stays as it is, and is its operator's)")
    assert RESUME in check.remedy
    assert world.cluster.writes == []
    assert outcome.resume_command == f"kubectl gpu-transition abandon {CLUSTER} {NODE} --repo /fleet --kubeconfig /dc1.kubeconfig --yes"


@pytest.mark.parametrize("way", ["another commit", "the change and its revert"])
def test_an_announced_push_that_can_not_land_any_more_is_abandoned(way: str) -> None:
    if way == "another commit":
        world = stopped_after("announce")
        world.fleet.commit("README", b"y")
    else:
        world = stopped_after("push", player=False)
        world.fleet.commit(rule_path(CLUSTER), rule_text(gpu_1=HAMI, gpu_2=HAMI), 'Revert "feat"\n')
    outcome = world.run("abandon")
    assert (outcome.exit_code, outcome.word) == (0, "abandoned"), outcome.error
    assert world.cluster.kinds() == ["uncordon"]
    assert not world.cluster.unschedulable


@pytest.mark.parametrize(("step", "cordoned", "ends"), [("announce", True, 3), ("announce", False, 0), ("cordon", True, 0)])
def test_holders_keep_an_abandon_waiting_only_after_an_announcement_on_a_cordoned_node(step: str, cordoned: bool, ends: int) -> None:
    world = stopped_after(step)
    world.fleet.commit("README", b"y")
    if not cordoned:
        world.cluster.uncordon()
    world.cluster.add_pod(gpu_pod())
    outcome = world.run("abandon", timeout=30.0)
    assert outcome.exit_code == ends
    assert check_of(outcome, "holders").status == "warn"
    assert outcome.holders
    assert world.cluster.unschedulable == (ends == 3)


def test_a_tip_that_goes_back_to_the_base_of_an_announced_push_keeps_an_abandon_from_ending() -> None:
    world = stopped_after("announce")
    base = world.fleet.tip
    world.fleet.commit("README", b"y")
    world.steering.before["cluster.watch", 1] = lambda: setattr(world.fleet, "tip", base)
    outcome = world.run("abandon", timeout=20.0)
    assert (outcome.exit_code, world.cluster.writes) == (3, [])
    assert outcome.waiting_for == ("the tip is back at the base of an announced push, which may still be in flight",)


def test_a_node_that_was_schedulable_and_that_a_resume_cordons_meanwhile_is_given_back_by_the_abandon() -> None:
    world = stopped_after("cordon")
    world.cluster.uncordon()
    world.clock.at(1.0, lambda: world.cluster.cordon("kubectl-gpu-transition"))
    outcome = world.run("abandon")
    assert (outcome.word, world.cluster.kinds()) == ("abandoned", ["uncordon"]), outcome.error
    assert not world.cluster.unschedulable


@pytest.mark.parametrize("traced", [True, False])
def test_a_node_that_was_schedulable_and_that_somebody_cordons_meanwhile_stays_cordoned(traced: bool) -> None:
    world = stopped_after("cordon")
    world.cluster.uncordon()
    world.clock.at(1.0, lambda: world.cluster.cordon(traced=traced))
    outcome = world.run("abandon", timeout=20.0)
    assert (outcome.exit_code, world.cluster.writes, world.cluster.unschedulable) == (3, [], True)
    assert "has to uncordon" in outcome.waiting_for[0]


ABANDON = [
    pytest.param(other_cluster, "cordon", id="another cluster's record"),
    pytest.param(other_uid, "cordon", id="another node's record"),
    pytest.param(unreadable, "cordon", id="an unreadable record"),
    pytest.param(dropped, "cordon", id="no record"),
    pytest.param(recordoned_by_hand, "cordon", id="another manager's cordon"),
    pytest.param(wrong_cluster, "fleet-cluster", id="another cluster behind the kubeconfig"),
    pytest.param(no_tip, "fleet-remote", id="a tip that can not be read"),
    pytest.param(lambda w: w.cluster.delete(), "cordon", id="no such node"),
    pytest.param(
        lambda w: w.fleet.commit(rule_path(CLUSTER), rule_text(gpu_1=VM, gpu_2=HAMI)), "fleet-rule", id="a change that is in force"
    ),
]


@pytest.mark.parametrize(("spoil", "name"), ABANDON)
def test_an_abandon_is_refused(spoil: Callable[[World], Any], name: str) -> None:
    world = stopped_after("cordon", player=False)
    spoil(world)
    outcome = world.run("abandon")
    assert (outcome.exit_code, outcome.word) == (3, "blocked")
    assert check_of(outcome, name).status == "fail"
    assert world.cluster.writes == []
    if world.cluster.record is not None:
        assert "drop the record by hand" in str(getattr(outcome.error, "remedy", ""))
    assert [step.status for step in outcome.steps] == ["failed", *["skipped"] * 4, "pending", "pending"]


def test_any_direction_can_be_abandoned() -> None:
    world = stopped_after("cordon")
    world.source, world.target = VM, HAMI
    assert world.run("abandon").word == "abandoned"


def test_an_abandon_that_times_out_exits_3_where_it_wrote_nothing_and_4_where_it_cordoned_again() -> None:
    world = stopped_after("cordon")
    not_ready(world)
    outcome = world.run("abandon", timeout=20.0)
    assert (outcome.exit_code, outcome.word) == (3, "blocked")
    assert outcome.waiting_for == ("node Ready is Unknown",)
    world.steering.revive()
    world.clock.at(3.0, world.cluster.uncordon)
    outcome = world.run("abandon", timeout=20.0)
    assert (outcome.exit_code, outcome.word) == (4, "failed-cordoned")
    assert world.cluster.kinds() == ["recordon"]
    assert outcome.resume_command is not None
    assert " abandon " in outcome.resume_command


def test_the_way_back_after_the_push_is_a_revert_and_an_abandon() -> None:
    world = World()
    world.on_arrival = lambda: world.clock.at(3.5, lambda: world.cluster.add_pod(owner_pod(VM, ready=False)))
    outcome = world.run(timeout=60.0)
    assert outcome.exit_code == 4
    assert outcome.way_back == (
        f"git -C /fleet revert {world.fleet.tip}, reviewed and pushed as any change; then "
        f"kubectl gpu-transition abandon {CLUSTER} {NODE} --repo /fleet --kubeconfig /dc1.kubeconfig --yes --timeout 60s"
    )
    world.steering.revive()
    world.on_arrival = lambda: None
    world.fleet.commit(rule_path(CLUSTER), rule_text(gpu_1=HAMI, gpu_2=HAMI), 'Revert "feat"\n')
    assert world.run("abandon").word == "abandoned"
    assert not world.cluster.unschedulable
