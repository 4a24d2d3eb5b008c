"""Reading the tip and pushing, against real git behind a path: what was read lives in memory, and what a push's end means."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from kubectl_gpu_transition.adapters.history import find_subject, find_transactions
from kubectl_gpu_transition.model import CommitFacts, History, Problem, PushResult, TipFacts
from tests.adapters.gitworld import CLUSTER, ENV, MESSAGE, NEW, OLD, RULE, SUBJECT, World, snapshot

ID = "11111111-2222-4333-8444-555555555555"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def read(world: World, base: str | None = None, repo: Path | None = None) -> TipFacts:
    """The tip, read while nothing in the checkout changes."""
    before = snapshot(repo or world.checkout)
    found = world.fleet(repo).read_tip(CLUSTER, base)
    assert snapshot(repo or world.checkout) == before
    assert isinstance(found, TipFacts), found
    return found


def refused(world: World) -> PushResult:
    """A push whose refusal leaves checkout and remote branch as they were."""
    base = world.head()
    fleet = world.fleet()
    commit = fleet.prepare_commit(base, RULE, NEW, MESSAGE, True)
    before, tip = snapshot(world.checkout), world.head(world.remote, "main")
    result = fleet.push_commit(base, commit)
    assert snapshot(world.checkout) == before
    assert world.head(world.remote, "main") == tip
    assert result.state == "refused"
    return result


# ---------------------------------------------------------------- the tip


def test_the_tip_where_the_checkout_is_up_to_date(world: World) -> None:
    assert read(world) == TipFacts(world.head(), None, "equal", b"A=1\n", OLD, None)
    assert world.log == [f"git: read refs/heads/main of {world.remote}"]


def test_the_tip_that_another_writer_moved_is_read_into_memory(world: World) -> None:
    base = world.head()
    tip = world.commit_elsewhere(RULE, NEW, MESSAGE)
    assert read(world, base) == TipFacts(tip, None, "behind", b"A=1\n", NEW, History(base, True, (CommitFacts(tip, SUBJECT, (ID,)),)))
    assert tip not in world.git("cat-file", "--batch-check", "--batch-all-objects")


def test_ahead_and_diverged_are_told_apart(world: World) -> None:
    base = world.head()
    world.git("commit", "-q", "--allow-empty", "-m", "mine")
    assert read(world).relation == "ahead"
    tip = world.commit_elsewhere()
    assert read(world, base).relation == "diverged"
    found = read(world, world.head())
    assert found.history == History(world.head(), False, ())
    world.git("fetch", "-q")
    assert (read(world).tip, read(world).relation) == (tip, "diverged")


def test_history_between_base_and_tip_with_merges(world: World) -> None:
    base = world.head()
    world.git("checkout", "-q", "-b", "side", base)
    world.git("commit", "-q", "--allow-empty", "-m", MESSAGE)
    world.git("checkout", "-q", "main")
    world.git("commit", "-q", "--allow-empty", "-m", "on main")
    world.git("merge", "-q", "--no-ff", "-m", "merged", "side")
    world.git("push", "-q", "origin", "main")
    expected = world.git("rev-list", f"{base}..main").split()
    history = read(world, base).history
    assert isinstance(history, History) and history.descends
    assert sorted(commit.id for commit in history.commits) == sorted(expected)
    assert history.commits[0].id == world.head()
    assert [commit.transactions for commit in history.commits if commit.id == world.head(ref="side")] == [(ID,)]


def test_a_rewritten_history_is_told_as_such(world: World) -> None:
    base = world.head()
    clone = world.other()
    world.git("commit", "-q", "--amend", "-m", "another start", cwd=clone)
    world.git("push", "-qf", "origin", "main", cwd=clone)
    assert read(world, base).history == History(base, False, ())
    assert read(world, "1" * 40).history == History("1" * 40, False, ())


def test_a_revert_carries_no_id_and_a_cherry_pick_does(world: World) -> None:
    base = world.head()
    tip = world.commit_elsewhere(RULE, NEW, MESSAGE)
    clone = world.other()
    world.git("revert", "--no-edit", tip, cwd=clone)
    world.git("cherry-pick", tip, cwd=clone)
    world.git("push", "-q", "origin", "main", cwd=clone)
    history = read(world, base).history
    assert isinstance(history, History)
    assert [commit.transactions for commit in history.commits] == [(ID,), (), (ID,)]
    assert history.commits[1].subject == f'Revert "{SUBJECT}"'


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"s\n\nGpu-Transition-Id: a\n", ("a",)),
        (b"s\n\nbody\n\ngpu-transition-ID :  a \nSigned-off-by: x\nGpu-Transition-Id: b\n", ("a", "b")),
        (b"Gpu-Transition-Id: a\n", ()),
        (b"s\n\nGpu-Transition-Id: a\n\nafterword\n", ()),
        (b"s\r\n\r\nGpu-Transition-Id: a\r\n", ("a",)),
        (b"s\n\n> Gpu-Transition-Id: a\n", ()),
    ],
)
def test_trailers(message: bytes, expected: tuple[str, ...]) -> None:
    assert find_transactions(message) == expected


def test_subjects_are_gits(world: World) -> None:
    for message in ("one\n", "\n\none\ntwo \n\nbody", "  one  \n", "one\n \nbody\n"):
        world.git("commit", "-q", "--allow-empty", "--cleanup=verbatim", "-m", message)
        raw = world.git("cat-file", "commit", "HEAD").partition("\n\n")[2]
        assert find_subject(raw) == world.git("log", "-1", "--format=%s").rstrip("\n").strip()


@pytest.mark.parametrize("origin", ["shallow clone", "shallow with a merge"])
def test_a_shallow_clone_reads_missing_history_from_the_remote(world: World, tmp_path: Path, origin: str) -> None:
    first = world.head()
    for number in range(3):
        world.commit_elsewhere(data=b"%d\n" % number, message=f"number {number}")
    if "merge" in origin:
        clone = world.other()
        world.git("checkout", "-q", "-b", "side", first, cwd=clone)
        world.git("commit", "-q", "--allow-empty", "-m", "old side", cwd=clone)
        world.git("checkout", "-q", "main", cwd=clone)
        world.git("merge", "-q", "-m", "merged", "side", cwd=clone)
        world.git("push", "-q", "origin", "main", cwd=clone)
    shallow = tmp_path / "shallow"
    world.git("clone", "-q", "--depth=1", f"file://{world.remote}", str(shallow), cwd=tmp_path)
    tip = world.commit_elsewhere(RULE, NEW, MESSAGE)
    found = read(world, first, shallow)
    assert (found.tip, found.relation, found.rule) == (tip, "behind", NEW)
    expected = world.git("rev-list", f"{first}..{tip}", cwd=world.remote).split()
    assert isinstance(found.history, History) and found.history.descends
    assert sorted(commit.id for commit in found.history.commits) == sorted(expected)
    here = world.head(shallow)
    found = read(world, here, shallow)
    assert found.history == History(here, True, (CommitFacts(tip, SUBJECT, (ID,)),))
    assert read(world, "1" * 40, shallow).history == History("1" * 40, False, ())
    fleet = world.fleet(shallow)
    fleet.read_tip(CLUSTER)
    assert fleet.find_commits(tip, SUBJECT) == (CommitFacts(tip, SUBJECT, (ID,)),)


def test_history_that_the_remote_lacks_too_is_a_problem_and_never_rewritten(world: World, tmp_path: Path) -> None:
    first = world.head()
    world.commit_elsewhere()
    middle = tmp_path / "middle.git"
    world.git("clone", "-q", "--bare", "--depth=1", f"file://{world.remote}", str(middle), cwd=tmp_path)
    shallow = tmp_path / "shallow"
    world.git("clone", "-q", f"file://{middle}", str(shallow), cwd=tmp_path)
    found = world.fleet(shallow).read_tip(CLUSTER, first)
    assert isinstance(found, TipFacts)
    assert isinstance(found.history, Problem) and found.history.remedy == "git fetch --unshallow"
    commits = world.fleet(shallow).find_commits(world.head(shallow), SUBJECT)
    assert isinstance(commits, Problem) and commits.remedy == "git fetch --unshallow"


def test_commits_are_found_by_how_their_message_begins_and_a_trailer(world: World) -> None:
    tips = [world.commit_elsewhere(RULE, NEW, MESSAGE)]
    world.commit_elsewhere(data=b"1", message=SUBJECT)
    world.commit_elsewhere(data=b"2", message=f"{SUBJECT}x\n\nGpu-Transition-Id: x")
    tips.insert(0, world.commit_elsewhere(data=b"3", message=f"{SUBJECT}\n\nGpu-Transition-Id: second"))
    fleet = world.fleet()
    found = fleet.read_tip(CLUSTER)
    assert isinstance(found, TipFacts) and found.tip is not None
    assert fleet.find_commits(found.tip, f"{SUBJECT}\n") == (
        CommitFacts(tips[0], SUBJECT, ("second",)),
        CommitFacts(tips[1], SUBJECT, (ID,)),
    )
    assert fleet.find_commits(found.tip, "nothing") == ()


def test_a_branch_that_the_remote_does_not_have(world: World, tmp_path: Path) -> None:
    world.git("checkout", "-q", "-b", "fresh")
    assert read(world) == TipFacts(None, None, "unknown", None, None, None)
    world.git("checkout", "-q", "main")
    world.git("init", "-q", "--bare", str(tmp_path / "empty.git"))
    world.git("remote", "set-url", "origin", str(tmp_path / "empty.git"))
    assert read(world).tip is None
    world.git("push", "-q", "origin", "main:main2")
    assert read(world).tip is None


def test_files_at_the_tip_that_are_absent_or_odd(world: World) -> None:
    clone = world.other()
    world.git("rm", "-q", ENV, cwd=clone)
    (clone / RULE).unlink()
    (clone / RULE).symlink_to("x")
    world.commit_elsewhere()
    found = read(world)
    assert found.env is None
    assert isinstance(found.rule, Problem) and "is a symbolic link" in found.rule.message


def test_the_fetch_side_is_read_where_it_is_another_place(world: World, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror.git"
    world.git("clone", "-q", "--bare", str(world.remote), str(mirror), cwd=tmp_path)
    world.git("config", "remote.origin.pushurl", str(mirror))
    world.git("config", "remote.origin.url", f"file://{world.remote}")
    base = world.head()
    assert (read(world).tip, read(world).fetch_tip, read(world).relation) == (base, base, "equal")
    tip = world.commit_elsewhere()
    assert (read(world).tip, read(world).fetch_tip) == (base, tip)
    shutil.move(world.remote, tmp_path / "gone.git")
    found = read(world).fetch_tip
    assert isinstance(found, Problem) and "gone.git" not in found.message
    shutil.move(tmp_path / "gone.git", world.remote)
    world.git("config", "branch.main.merge", "refs/heads/other")
    assert read(world).tip is None


def test_a_remote_that_does_not_answer_is_a_problem_with_its_own_words(world: World, tmp_path: Path) -> None:
    world.git("remote", "set-url", "origin", str(tmp_path / "nowhere.git"))
    found = world.fleet().read_tip(CLUSTER)
    assert isinstance(found, Problem)
    assert "nowhere.git" in found.message and "does not appear to be a git repository" in found.message
    probe = world.fleet().probe_push()
    assert isinstance(probe, Problem) and "does not appear to be a git repository" in probe.message
    world.git("remote", "remove", "origin")
    found = world.fleet().read_tip(CLUSTER)
    assert found == Problem("remote origin has no URL", "git remote add origin <url>")
    world.git("checkout", "-q", "--detach")
    assert isinstance(world.fleet().read_tip(CLUSTER), Problem)
    assert isinstance(world.fleet(world.home).read_tip(CLUSTER), Problem)


def test_a_missing_git_is_a_problem_by_name(world: World) -> None:
    found = world.fleet(PATH="/nowhere").read_tip(CLUSTER)
    assert found == Problem(f"{world.remote}: the program 'git' is needed for this remote and is not on PATH", "install git")
    assert world.fleet(PATH="/nowhere").push_commit(world.head(), world.head()).state == "refused"


def test_the_variables_of_one_repository_do_not_reach_the_remote(world: World) -> None:
    fleet = world.fleet(GIT_DIR=str(world.checkout / ".git"), GIT_INDEX_FILE="/nowhere", GIT_OBJECT_DIRECTORY="/nowhere")
    assert isinstance(fleet.read_tip(CLUSTER), TipFacts)
    assert world.push(fleet)[2] == "accepted"


def test_a_reader_that_gets_no_answer_gives_up_in_time(world: World, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nsleep 60\n")
    slow.chmod(0o755)
    world.git("config", "remote.origin.uploadpack", str(slow))
    started = time.monotonic()
    found = world.fleet(timeout=0.5).read_tip(CLUSTER)
    assert isinstance(found, Problem) and "did not answer within 0.5 s" in found.message
    assert time.monotonic() - started < 10


# ---------------------------------------------------------------- the push


def test_a_push_moves_one_ref_and_nothing_here(world: World) -> None:
    world.git("config", "push.followTags", "true")
    world.git("config", "remote.origin.push", "refs/heads/*:refs/heads/*")
    world.git("tag", "-a", "-m", "x", "v1")
    world.git("branch", "extra")
    fleet = world.fleet()
    base = world.head()
    commit = fleet.prepare_commit(base, RULE, NEW, MESSAGE, True)
    before = snapshot(world.checkout)
    assert fleet.push_commit(base, commit) == PushResult("accepted", "")
    assert snapshot(world.checkout) == before
    assert world.git("for-each-ref", "--format=%(refname) %(objectname)", cwd=world.remote) == f"refs/heads/main {commit}\n"
    assert world.git("show", f"main:{RULE}", cwd=world.remote).encode() == NEW
    assert world.git("fsck", cwd=world.remote) == ""
    assert "git: push" in world.log[-1]


def test_a_commit_in_memory_on_a_parent_that_only_the_remote_has(world: World) -> None:
    tip = world.commit_elsewhere()
    fleet = world.fleet()
    before = snapshot(world.checkout)
    fleet.read_tip(CLUSTER)
    commit = fleet.prepare_commit(tip, RULE, NEW, MESSAGE, False)
    assert fleet.find_parent(commit) == tip
    assert fleet.push_commit(tip, commit).state == "accepted"
    assert snapshot(world.checkout) == before
    assert world.head(world.remote, "main") == commit
    assert world.git("fsck", cwd=world.remote) == ""


def test_a_writer_between_look_and_push_makes_the_push_fail(world: World) -> None:
    base = world.head()
    tip = world.commit_elsewhere()
    result = refused(world)
    assert result.message == f"remote moved: refs/heads/main is at {tip}, not at {base}"


def test_a_writer_during_the_push_makes_the_push_fail(world: World) -> None:
    """The remote moves after it has said where it is: its own compare-and-swap refuses."""
    tip = world.commit_elsewhere()
    base = world.head()
    world.git("update-ref", "refs/heads/main", base, cwd=world.remote)
    world.hook("pre-receive", f"unset GIT_QUARANTINE_PATH; git update-ref refs/heads/main {tip}")
    fleet = world.fleet()
    commit = fleet.prepare_commit(base, RULE, NEW, MESSAGE, True)
    before = snapshot(world.checkout)
    result = fleet.push_commit(base, commit)
    assert result.state == "refused", result
    assert snapshot(world.checkout) == before
    assert world.head(world.remote, "main") == tip


def test_the_remote_branch_is_gone(world: World) -> None:
    base = world.head()
    world.git("update-ref", "-d", "refs/heads/main", cwd=world.remote)
    fleet = world.fleet()
    commit = fleet.prepare_commit(base, RULE, NEW, MESSAGE, True)
    assert fleet.push_commit(base, commit) == PushResult("refused", f"remote moved: refs/heads/main is at nothing, not at {base}")


@pytest.mark.parametrize("hook", ["pre-receive", "update"])
def test_a_hook_that_rejects_is_a_refusal_with_its_words(world: World, hook: str) -> None:
    world.hook(hook, "echo see https://user:pw@wiki.example/rules >&2; exit 1")
    result = refused(world)
    assert "declined" in result.message
    assert "see https://wiki.example/rules" in result.message


def test_words_of_hooks_of_an_accepted_push_are_kept(world: World) -> None:
    world.hook("post-receive", "echo mirrored")
    fleet = world.fleet()
    base = world.head()
    commit = fleet.prepare_commit(base, RULE, NEW, MESSAGE, True)
    assert fleet.push_commit(base, commit) == PushResult("accepted", "mirrored")


def test_a_ref_that_is_locked_over_there_is_a_refusal(world: World) -> None:
    (world.remote / "refs" / "heads" / "main.lock").write_text("")
    assert "failed to update ref" in refused(world).message


def test_a_remote_that_can_not_unpack_is_a_refusal(world: World) -> None:
    world.git("config", "receive.maxInputSize", "20", cwd=world.remote)
    assert refused(world).state == "refused"


def test_a_large_push_that_is_refused_early_is_a_refusal(world: World) -> None:
    """The remote stops reading long before the pack is sent; its report counts all the same."""
    world.git("config", "receive.maxInputSize", "1000", cwd=world.remote)
    fleet = world.fleet()
    base = world.head()
    commit = fleet.prepare_commit(base, RULE, os.urandom(1_500_000), MESSAGE, True)
    result = fleet.push_commit(base, commit)
    assert result.state == "refused", result
    assert world.head(world.remote, "main") == base


def test_a_lost_answer_is_unknown_and_the_tip_tells(world: World) -> None:
    world.hook("post-receive", "kill -9 $PPID; sleep 0.2")
    fleet = world.fleet()
    base, commit, state = world.push(fleet)
    assert state == "unknown"
    found = fleet.read_tip(CLUSTER, base)
    assert isinstance(found, TipFacts) and found.tip == commit
    assert found.history == History(base, True, (CommitFacts(commit, SUBJECT, (ID,)),))


def test_a_remote_that_dies_before_the_update_leaves_it_unknown(world: World) -> None:
    world.hook("pre-receive", "kill -9 $PPID; sleep 0.2")
    base, _, state = world.push(world.fleet())
    assert state == "unknown"
    assert world.head(world.remote, "main") == base


def test_a_remote_that_ends_before_its_refs_is_a_refusal(world: World) -> None:
    world.git("config", "remote.origin.receivepack", "echo no push here >&2; false")
    assert "no push here" in refused(world).message
    probe = world.fleet().probe_push()
    assert isinstance(probe, Problem) and "no push here" in probe.message


def test_a_slow_hook_past_the_time_limit_leaves_it_unknown(world: World) -> None:
    world.hook("pre-receive", "sleep 60")
    started = time.monotonic()
    fleet = world.fleet(timeout=1)
    base = world.head()
    commit = fleet.prepare_commit(base, RULE, NEW, MESSAGE, True)
    result = fleet.push_commit(base, commit)
    assert (result.state, time.monotonic() - started < 10) == ("unknown", True)
    assert "did not answer within 1 s" in result.message


def test_a_remote_that_is_slow_before_its_refs_is_a_refusal(world: World, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_text('#!/bin/sh\nsleep 3\nexec git receive-pack "$@"\n')
    slow.chmod(0o755)
    world.git("config", "remote.origin.receivepack", str(slow))
    fleet = world.fleet(timeout=0.5)
    base = world.head()
    commit = fleet.prepare_commit(base, RULE, NEW, MESSAGE, True)
    assert fleet.push_commit(base, commit).state == "refused"
    time.sleep(3.5)
    assert world.head(world.remote, "main") == base


def test_objects_that_are_not_here_can_not_be_pushed(world: World) -> None:
    result = world.fleet().push_commit(world.head(), "1" * 40)
    assert result.state == "refused" and "are not here" in result.message


def test_the_announced_commit_is_pushed_again_by_a_later_run(world: World) -> None:
    base = world.head()
    commit = world.fleet().prepare_commit(base, RULE, NEW, MESSAGE, True)
    world.git("gc", "-q")
    later = world.fleet()
    assert later.find_parent(commit) == base
    assert later.push_commit(base, commit).state == "accepted"
    assert later.push_commit(base, commit).state == "refused"
    assert world.head(world.remote, "main") == commit


def test_a_push_to_a_push_remote_and_through_a_rewritten_url(world: World, tmp_path: Path) -> None:
    backup = tmp_path / "backup.git"
    world.git("clone", "-q", "--bare", str(world.remote), str(backup), cwd=tmp_path)
    world.git("remote", "add", "backup", "fleet:backup.git")
    world.git("config", f"url.{tmp_path}/.pushInsteadOf", "fleet:")
    world.git("config", f"url.file://{tmp_path}/.insteadOf", "fleet:")
    world.git("config", "remote.pushDefault", "backup")
    base, commit, state = world.push(world.fleet())
    assert state == "accepted"
    assert (world.head(backup, "main"), world.head(world.remote, "main")) == (commit, base)


def test_pushing_from_a_shallow_clone_and_a_linked_work_tree(world: World, tmp_path: Path) -> None:
    world.commit_elsewhere()
    shallow = tmp_path / "shallow"
    world.git("clone", "-q", "--depth=1", f"file://{world.remote}", str(shallow), cwd=tmp_path)
    fleet = world.fleet(shallow)
    base, commit, state = world.push(fleet, world.head(shallow))
    assert state == "accepted"
    assert fleet.advance_checkout(base, commit, RULE).done
    assert world.git("status", "--porcelain=v1", "--branch", cwd=shallow) == "## main...origin/main\n"
    assert world.git("fsck", cwd=world.remote) == ""


def test_the_probe_changes_nothing_and_sees_what_can_not_be_written(world: World) -> None:
    before = snapshot(world.root)
    assert world.fleet().probe_push() is None
    assert snapshot(world.root) == before
    world.hook("pre-receive", "exit 1")
    assert world.fleet().probe_push() is None
    world.git("config", "remote.origin.url", str(world.remote)[:-4])
    assert world.fleet().probe_push() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_a_path_remote_that_others_own_can_not_be_written() -> None:
    script = """
        import os, sys
        from kubectl_gpu_transition.adapters.fleet import GitFleet
        os.setgroups([])
        os.setresuid(65534, 65534, 65534)  # only now: that user may not be let in to where this program is
        fleet = GitFleet(sys.argv[1], dict(os.environ), token_env=None, git_timeout=20, log=lambda line: None)
        print(fleet.probe_push().message)
    """
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        world = World(root)
        world.git("config", "--global", "safe.directory", "*")
        shutil.copytree(world.checkout, root / "mine")
        subprocess.run(["chown", "-R", "65534", str(root / "mine")], check=True)
        run = [sys.executable, "-c", textwrap.dedent(script), str(root / "mine")]
        done = subprocess.run(run, env=world.env, capture_output=True, check=False, cwd=Path.cwd())
    assert b"can not be written by this user" in done.stdout, done.stderr
