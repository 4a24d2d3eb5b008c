"""Resume: every row of the contract's two tables, on a real cluster and a real remote (spec section 6).

Plan: a state is left behind by a real run wherever a run can leave it, and written by hand only where it takes another program to make
it. Each refusal must leave node, checkout and remote as they were; each resume must end as an undisturbed run does, with one commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.world import ANNOTATION, Result, World, gpu_pod

REJECT = "echo 'no pushes tonight' >&2; exit 1\n"
PATH = "metadata.annotations"


def stop_before_push(world: World) -> dict[str, Any]:
    """A node left cordoned by a refused push; returns its annotation."""
    world.fleet.hook("pre-receive", REJECT)
    result = world.run("apply")
    world.fleet.hook("pre-receive", None)
    assert result.code == 4, result
    left = world.annotation()
    assert left is not None
    assert left["phase"] == "cordoned"
    return left


def stop_after_push(world: World) -> dict[str, Any]:
    """A node left cordoned by a wait that timed out, with the change in the branch; returns its annotation."""
    world.player.flux.paused = True
    result = world.run("apply", timeout="2s")
    assert result.code == 4, result
    left = world.annotation()
    assert left is not None
    assert left["phase"] == "pushing"
    return left


def annotate(world: World, value: dict[str, Any] | str | None) -> None:
    """Write the annotation as another program would."""
    text = value if value is None or isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    world.patch_node({"metadata": {"annotations": {ANNOTATION: text}}}, manager="somebody")


def state(world: World) -> tuple[object, ...]:
    """What a refusal must not change."""
    node = world.node()
    return (
        node["spec"].get("unschedulable"),
        node["metadata"].get("annotations", {}).get(ANNOTATION),
        world.fleet.snapshot(),
        world.fleet.tip(),
    )


def refuse(world: World, *words: str, resume: bool, check: str = "cordon", code: int = 3, **options: Any) -> Result:
    """Run an apply that has to be refused by that check, and make sure that it changed nothing."""
    before = state(world)
    since = world.backend.mark()
    result = world.run("apply", resume_cordoned=resume, output="json", **options)
    assert result.code == code, result
    assert result.check(check)["status"] == "fail", result
    shown = f"{result.check(check)['message']} {result.check(check)['remedy']}"
    for word in words:
        assert word in shown, f"{word!r} is not in: {shown}"
    assert state(world) == before
    assert world.writes(since=since) == []
    return result


def complete(world: World, id: str, target: str = "vm-passthrough", **options: Any) -> Result:
    """Resume to the end: target mode, schedulable, no annotation, and one commit of that transaction."""
    world.player.flux.paused = False
    result = world.run("apply", resume_cordoned=True, output="json", **options)
    assert result.code == 0, result
    assert result.report["outcome"] == "completed"
    assert result.report["resumed"] is True
    assert (world.mode(), world.is_cordoned(), world.annotation()) == (target, False, None)
    assert len(world.fleet.commits_with(id)) == 1
    assert world.fleet.git("status", "--porcelain", cwd=world.fleet.checkout) == ""
    return result


BOTH = pytest.mark.parametrize("resume", [False, True], ids=["without the flag", "with --resume-cordoned"])


# ------------------------------------------------------------ the node, the annotation and the flag


@BOTH
def test_a_node_cordoned_without_a_transaction_is_not_ours(world: World, resume: bool) -> None:
    world.cordon(manager="kubectl")
    refuse(world, "not by this workflow", "kubectl", resume=resume)
    assert world.is_cordoned()


def another_direction(left: dict[str, Any]) -> dict[str, Any]:
    return {**left, "from": "vm-passthrough", "to": "pod-hami"}


FOREIGN: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any] | str], tuple[str, ...]]] = {
    "another direction": (another_direction, ("another direction", "--resume-cordoned", "abandon")),
    "another cluster": (lambda left: {**left, "cluster": "dc9"}, ("another cluster", "log --grep", f"{ANNOTATION}-")),
    "another version": (lambda left: {**left, "v": 2}, ("another version", "version of this program")),
    "another node's uid": (
        lambda left: {**left, "uid": "0b6f8c1e-0000-4000-8000-000000000000"},
        ("another node of this name", f"{ANNOTATION}-"),
    ),
    "unreadable": (lambda left: json.dumps(left)[:-9], ("not readable", f"{ANNOTATION}-")),
}


@BOTH
def test_an_annotation_that_is_not_this_one_refuses_and_is_shown(world: World, resume: bool) -> None:
    left = stop_before_push(world)
    for change, words in FOREIGN.values():
        annotate(world, change(left))
        refuse(world, *words, resume=resume)
    world.uncordon()
    for change, words in FOREIGN.values():
        annotate(world, change(left))
        refuse(world, *words, resume=resume)


@BOTH
def test_a_cordon_made_by_somebody_else_under_our_annotation_is_theirs(world: World, resume: bool) -> None:
    left = stop_before_push(world)
    world.uncordon(manager="driver-manager")
    world.cordon(manager="kubectl-cordon")
    refuse(world, "cordoned by kubectl-cordon", "uncordon", resume=resume)
    world.uncordon()
    complete(world, left["id"])


def test_a_cordoned_node_of_ours_without_the_flag_prints_the_resume_command_and_with_it_resumes(world: World) -> None:
    left = stop_before_push(world)
    refuse(world, left["id"], "--resume-cordoned", resume=False)
    result = complete(world, left["id"])
    steps = {step["name"]: step["status"] for step in result.report["steps"]}
    assert steps == {**dict.fromkeys(("preflight", "recheck", "edit", "push", "wait", "uncordon"), "done"), "cordon": "skipped"}


def test_a_schedulable_node_of_ours_without_the_flag_is_refused_and_with_it_is_cordoned_again_first(world: World) -> None:
    left = stop_before_push(world)
    world.uncordon()
    refuse(world, "uncordoned by another actor", "--resume-cordoned", resume=False)
    since = world.backend.mark()
    complete(world, left["id"])
    first = world.writes(since=since)[0]["requestObject"]
    assert {"op": "add", "path": "/spec/unschedulable", "value": True} in first
    assert not any(operation["op"] == "add" and "annotations" in operation["path"] for operation in first)


def test_a_schedulable_node_of_ours_that_fails_its_preflight_is_left_cordoned(world: World) -> None:
    left = stop_before_push(world)
    world.uncordon()
    world.add(gpu_pod("late", world.name, namespace="tenant-a"))
    result = world.run("apply", resume_cordoned=True, output="json")
    assert result.code == 4, result
    assert result.check("holders")["status"] == "fail"
    assert world.is_cordoned()
    assert world.annotation() == left
    assert world.uncordons() == []


def test_a_schedulable_node_of_another_cluster_s_kubeconfig_is_not_cordoned(world: World) -> None:
    stop_before_push(world)
    world.uncordon()
    world.player.flux.paused = True
    flux = "/apis/kustomize.toolkit.fluxcd.io/v1/namespaces/flux-system/kustomizations/gpu-node-mode"
    world.kube.patch(flux, {"spec": {"path": "./clusters/dc9/gpu-node-modes"}})
    refuse(world, "another cluster", resume=True, check="fleet-cluster")
    assert not world.is_cordoned()


def test_there_is_nothing_to_resume_on_a_schedulable_node_without_a_transaction(world: World) -> None:
    refuse(world, "nothing to resume", resume=True)


@BOTH
@pytest.mark.parametrize("cordoned", [True, False], ids=["cordoned", "schedulable"])
def test_a_change_in_force_without_a_transaction_is_a_person_s_to_finish(world: World, resume: bool, cordoned: bool) -> None:
    left = stop_after_push(world)
    annotate(world, None)
    if not cordoned:
        world.uncordon()
    commit = world.fleet.commits_with(left["id"])[0]
    refuse(world, commit[:12], "no transaction protects it", "nvidia-sandbox-device-plugin-daemonset", resume=resume)


# ------------------------------------------------------------ the tip and the history


def test_a_tip_at_the_target_is_waited_for(world: World) -> None:
    left = stop_after_push(world)
    since = world.backend.mark()
    result = complete(world, left["id"])
    steps = {step["name"]: step["status"] for step in result.report["steps"]}
    assert steps["push"] == "skipped"
    assert steps["wait"] == steps["uncordon"] == "done"
    assert result.report["plan"] is None
    assert len(world.writes(since=since)) == 1


def test_the_same_change_by_other_hands_is_waited_for(world: World) -> None:
    left = stop_before_push(world)
    world.fleet.set_modes({world.name: "vm-passthrough"})
    result = world.run("apply", resume_cordoned=True, output="json")
    assert result.code == 0, result
    assert world.mode() == "vm-passthrough"
    assert world.fleet.commits_with(left["id"]) == []


def test_a_branch_that_others_moved_on_is_built_upon(world: World) -> None:
    left = stop_before_push(world)
    other = world.fleet.another_commit_by_somebody("docs/note.md", "hello\n")
    world.fleet.git("pull", "--ff-only", cwd=world.fleet.checkout)
    complete(world, left["id"])
    commit = world.fleet.commits_with(left["id"])[0]
    assert world.fleet.git("rev-parse", f"{commit}^", cwd=world.fleet.checkout).strip() == other


def test_a_checkout_that_is_behind_refuses_with_the_pull(world: World) -> None:
    stop_before_push(world)
    world.fleet.another_commit_by_somebody()
    refuse(world, "behind", "pull --ff-only", resume=True, check="fleet-remote")


def test_a_reverted_change_is_refused_naming_both_commits(world: World) -> None:
    left = stop_after_push(world)
    ours = world.fleet.commits_with(left["id"])[0]
    revert = world.fleet.revert_by_somebody(ours)
    world.fleet.git("pull", "--ff-only", cwd=world.fleet.checkout)
    refuse(world, ours[:12], revert[:12], "abandon", resume=True, check="fleet-rule")


def test_a_reverted_revert_is_resumed(world: World) -> None:
    left = stop_after_push(world)
    ours = world.fleet.commits_with(left["id"])[0]
    world.fleet.revert_by_somebody(world.fleet.revert_by_somebody(ours))
    world.player.flux.paused = False
    result = world.run("apply", resume_cordoned=True, output="json")
    assert result.code == 0, result
    assert world.mode() == "vm-passthrough"


def test_a_rewritten_history_is_refused_naming_both_ends(world: World) -> None:
    world.fleet.another_commit_by_somebody("docs/a.md", "a\n")
    world.fleet.git("pull", "--ff-only", cwd=world.fleet.checkout)
    left = stop_before_push(world)
    world.fleet.git("reset", "--hard", "HEAD~1", cwd=world.fleet.checkout)
    world.fleet.git("commit", "--allow-empty", "-m", "another past", cwd=world.fleet.checkout)
    world.fleet.git("push", "--force", cwd=world.fleet.checkout)
    refuse(world, "rewritten", left["base"][:12], world.fleet.tip()[:12], resume=True, check="fleet-rule")


def test_a_rule_that_asks_for_a_third_mode_is_drift(world: World) -> None:
    stop_before_push(world)
    world.fleet.set_modes({world.name: "pod-hami-dra"})
    refuse(world, "drift", "pod-hami-dra", resume=True, check="fleet-rule")


def test_history_that_a_shallow_clone_lacks_is_read_from_the_remote(world: World, tmp_path: Path) -> None:
    left = stop_before_push(world)
    for number in range(3):
        world.fleet.another_commit_by_somebody(f"docs/{number}.md", "text\n")
    shallow = tmp_path / "shallow"
    world.fleet.git("clone", "--quiet", "--depth", "1", f"file://{world.fleet.remote}", str(shallow), cwd=tmp_path)
    for key, value in (("user.name", "fleet operator"), ("user.email", "operator@fleet.example")):
        world.fleet.git("config", key, value, cwd=shallow)
    result = world.run("apply", resume_cordoned=True, output="json", repo=shallow)
    assert result.code == 0, result
    assert len(world.fleet.commits_with(left["id"])) == 1


# ------------------------------------------------------------ what a resume at the target does and does not ask


def test_a_resume_at_the_target_does_not_mind_what_can_no_longer_do_harm(world: World) -> None:
    """A dirty checkout, holders and a node that is not Ready are warnings then, and conditions of the wait."""
    left = stop_after_push(world)
    stray = world.fleet.write("stray.txt", "mine\n")
    holder = world.add(gpu_pod("late", world.name, namespace="tenant-a"))
    world.player.flux.paused = False
    running = world.start("apply", resume_cordoned=True, output="json")
    running.wait_for_stderr(r"holder tenant-a/Pod/late")
    assert world.is_cordoned()
    world.remove(holder)
    result = running.wait()
    assert result.code == 0, result
    assert result.check("fleet-checkout")["status"] == "warn"
    assert result.check("holders")["status"] == "warn"
    assert stray.read_text() == "mine\n"
    assert len(world.fleet.commits_with(left["id"])) == 1


def test_a_resume_at_the_target_refuses_open_gates_at_the_tip(world: World) -> None:
    stop_after_push(world)
    world.fleet.set_gate("GPU_VM_CREATION_ENABLED", "true")
    refuse(world, "GPU_VM_CREATION_ENABLED", "the tip", resume=True, check="creation-gates")


def test_a_resume_at_the_target_refuses_labels_of_a_third_mode_as_drift(world: World) -> None:
    stop_after_push(world)
    world.player.nfd.paused = True
    world.patch_node({"metadata": {"labels": {"kube-dc.com/gpu.workload-mode": "vm-vgpu"}}})
    refuse(world, "drift", "vm-vgpu", resume=True, check="live-mode")


def test_a_resume_completes_an_advance_that_was_cut_short(world: World) -> None:
    """The push has landed, and the checkout was not moved forward."""
    world.player.flux.paused = True
    world.fleet.hook("post-receive", "kill -9 $PPID\n")
    before = world.fleet.head()
    running = world.run("apply", timeout="2s", output="json")
    world.fleet.hook("post-receive", None)
    assert running.code == 4, running
    left = world.annotation()
    assert left is not None
    world.fleet.git("reset", "--hard", before, cwd=world.fleet.checkout)
    world.fleet.git("update-ref", "refs/remotes/origin/main", before, cwd=world.fleet.checkout)
    complete(world, left["id"])
    assert world.fleet.head() == world.fleet.tip()


def test_an_announced_commit_is_pushed_again_as_it_was(world: World) -> None:
    """The announcement was made and nothing arrived: the same commit goes out, not a second one."""
    left = stop_before_push(world)
    commit = world.fleet.git("rev-parse", "HEAD", cwd=world.fleet.checkout).strip()
    assert commit == left["base"]
    objects = world.fleet.git("fsck", "--unreachable", "--no-reflogs", cwd=world.fleet.checkout)
    prepared = next(line.split()[-1] for line in objects.splitlines() if " commit " in line)
    annotate(world, {**left, "phase": "pushing", "commit": prepared})
    complete(world, left["id"])
    assert world.fleet.tip() == prepared
