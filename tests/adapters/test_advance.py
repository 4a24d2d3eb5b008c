"""Commits made and the checkout moved forward: whole, half, by whoever was killed where; git has the last word on what came out."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kubectl_gpu_transition.failures import Refused
from kubectl_gpu_transition.model import Advance
from tests.adapters.gitworld import ENV, MESSAGE, NEW, OLD, RULE, World, snapshot

PULL = "git pull --ff-only"
RESTORE = f"git restore --source=HEAD --staged --worktree -- {RULE} && {PULL}"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def pushed(world: World, repo: Path | None = None) -> tuple[str, str]:
    """(base, commit) of a push that the remote has accepted."""
    base, commit, state = world.push(world.fleet(repo), world.head(repo))
    assert state == "accepted"
    return base, commit


# ---------------------------------------------------------------- the commit


def test_the_commit_is_the_one_that_git_would_make(world: World) -> None:
    environ = {"GIT_AUTHOR_DATE": "1700000000 +0130", "GIT_COMMITTER_DATE": "1700000100 -0500", "GIT_AUTHOR_NAME": "Ünï Code"}
    base = world.head()
    before = snapshot(world.checkout / ".git")
    commit = world.fleet(**environ).prepare_commit(base, RULE, NEW, MESSAGE, True)
    added = set(snapshot(world.checkout / ".git")) - set(before)
    assert {name.partition("/")[0] for name in added} == {"objects"}
    assert all(stat.S_IMODE(os.stat(world.checkout / ".git" / name).st_mode) == 0o444 for name in added if len(name) > 20)
    world.write(RULE, NEW)
    world.git("commit", "-qa", "--cleanup=verbatim", "-m", MESSAGE, env=environ)
    assert world.head() == commit
    assert world.git("diff", "--name-only", base, commit).splitlines() == [RULE]


def test_without_keep_nothing_is_written(world: World) -> None:
    before = snapshot(world.root)
    fleet = world.fleet()
    commit = fleet.prepare_commit(world.head(), RULE, NEW, MESSAGE, False)
    assert snapshot(world.root) == before
    assert fleet.find_parent(commit) == world.head()
    assert world.fleet().find_parent(commit) is None
    assert fleet.find_parent("0" * 40) is None


def test_a_kept_commit_is_found_by_the_next_run(world: World) -> None:
    commit = world.fleet().prepare_commit(world.head(), RULE, NEW, MESSAGE, True)
    assert world.fleet().find_parent(commit) == world.head()
    blob = world.git("rev-parse", f"{commit}:{RULE}").strip()
    (world.checkout / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    assert world.fleet().find_parent(commit) is None


def test_the_files_mode_stays_in_the_commit(world: World) -> None:
    (world.checkout / RULE).chmod(0o755)
    world.git("commit", "-qam", "mode")
    commit = world.fleet().prepare_commit(world.head(), RULE, NEW, MESSAGE, True)
    assert world.git("ls-tree", commit, RULE).startswith("100755 blob")


def test_no_commit_without_an_identity_or_a_parent(world: World) -> None:
    with pytest.raises(Refused, match="its objects are not here"):
        world.fleet().prepare_commit("1" * 40, RULE, NEW, MESSAGE, True)
    with pytest.raises(Refused, match="it has no clusters/none"):
        world.fleet().prepare_commit(world.head(), "clusters/none", NEW, MESSAGE, True)
    (world.home / ".gitconfig").write_text("")
    with pytest.raises(Refused, match="git has no author name"):
        world.fleet().prepare_commit(world.head(), RULE, NEW, MESSAGE, True)


# ---------------------------------------------------------------- forward


def test_the_checkout_moves_forward(world: World) -> None:
    (world.checkout / RULE).chmod(0o640)
    world.git("update-index", "-q", "--refresh")
    base, commit = pushed(world)
    assert world.head() == base
    before = snapshot(world.checkout)
    assert world.fleet().advance_checkout(base, commit, RULE) == Advance(True, f"the checkout is at {commit}")
    world.assert_clean(commit)
    assert stat.S_IMODE((world.checkout / RULE).stat().st_mode) == 0o640
    after = snapshot(world.checkout)
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name) and not stat.S_ISDIR(after[name][0])}
    assert changed == {
        RULE, ".git/index", ".git/refs/heads/main", ".git/refs/remotes/origin/main", ".git/logs/HEAD", ".git/logs/refs/heads/main",
        ".git/logs/refs/remotes/origin/main",
    }  # fmt: skip
    assert world.git("reflog", "--format=%H %gs").splitlines()[0] == f"{commit} gpu-transition: commit: {RULE}"
    assert world.fleet().advance_checkout(base, commit, RULE).done
    assert world.git("write-tree").strip() == world.git("rev-parse", "HEAD^{tree}").strip()


@pytest.mark.parametrize(
    "setup",
    [
        ["pack-refs", "--all"],
        ["gc", "-q"],
        ["update-index", "--index-version", "4"],
        ["config", "core.autocrlf", "true"],
        ["config", "core.logAllRefUpdates", "false"],
        ["config", "index.skipHash", "true"],
        ["update-index", "--untracked-cache"],
        ["config", "core.sharedRepository", "group"],
    ],
    ids=" ".join,
)
def test_the_checkout_moves_forward_whatever_the_repository_is_like(world: World, setup: list[str]) -> None:
    world.git(*setup, check=setup[1] != "--untracked-cache")
    if "autocrlf" in " ".join(setup):
        (world.checkout / RULE).unlink()
        world.git("checkout", "-q", "--", RULE)
        assert (world.checkout / RULE).read_bytes() == OLD.replace(b"\n", b"\r\n")
    world.git("status")
    base, commit = pushed(world)
    assert world.fleet().advance_checkout(base, commit, RULE).done
    if "autocrlf" in " ".join(setup):
        assert (world.checkout / RULE).read_bytes() == NEW.replace(b"\n", b"\r\n")
    world.assert_clean(commit)


def test_a_linked_work_tree_moves_forward(world: World, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    world.git("checkout", "-q", "-b", "parked")
    world.git("worktree", "add", "-q", str(linked), "main")
    base, commit = pushed(world, linked)
    assert world.fleet(linked).advance_checkout(base, commit, RULE).done
    assert world.git("status", "--porcelain=v1", "--branch", cwd=linked) == "## main...origin/main\n"
    assert world.head(linked) == commit
    assert world.git("fsck", "--no-dangling") == ""
    assert world.git("status", "--porcelain=v1") == ""
    assert world.git("reflog", "--format=%H", cwd=linked).splitlines()[0] == commit


def test_a_commit_that_another_machine_made_is_taken_over(world: World) -> None:
    other = world.other()
    base, commit = pushed(world, other)
    fleet = world.fleet()
    assert not fleet.advance_checkout(base, commit, RULE).done
    fleet.read_tip("eu/dc1")
    assert fleet.advance_checkout(base, commit, RULE).done
    world.assert_clean(commit)


def test_a_remote_without_a_fetch_refspec_has_no_tracking_ref(world: World) -> None:
    world.git("config", "--unset", "remote.origin.fetch")
    base, commit = pushed(world)
    assert world.fleet().advance_checkout(base, commit, RULE).done
    assert world.head(ref="origin/main") == base
    assert world.git("status", "--porcelain=v1") == ""


def test_the_tracking_ref_is_made_where_it_is_not(world: World) -> None:
    world.git("update-ref", "-d", "refs/remotes/origin/main")
    shutil.rmtree(world.checkout / ".git" / "refs" / "remotes", ignore_errors=True)
    base, commit = pushed(world)
    assert world.fleet().advance_checkout(base, commit, RULE).done
    world.assert_clean(commit)


def test_a_file_system_without_hard_links_will_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError

    base, commit = pushed(world)
    monkeypatch.setattr(os, "link", no_links)
    assert world.fleet().advance_checkout(base, commit, RULE).done
    world.assert_clean(commit)


# ---------------------------------------------------------------- half-way

MOVES = ("file", "index", "branch", "tracking")


def half_advance(world: World, moved: tuple[str, ...], base: str, commit: str) -> None:
    """What a killed run may leave: some of the four at the commit, the others at base."""
    if "file" in moved:
        world.write(RULE, NEW)
    if "index" in moved:
        blob = world.git("rev-parse", f"{commit}:{RULE}").strip()
        world.git("update-index", "--cacheinfo", f"100644,{blob},{RULE}")
    if "branch" in moved:
        world.git("update-ref", "refs/heads/main", commit, base)
    if "tracking" in moved:
        world.git("update-ref", "refs/remotes/origin/main", commit, base)


@pytest.mark.parametrize("moved", [combination for size in range(5) for combination in itertools.combinations(MOVES, size)], ids="+".join)
def test_every_half_advanced_state_is_completed(world: World, moved: tuple[str, ...]) -> None:
    base, commit = pushed(world)
    half_advance(world, moved, base, commit)
    assert world.fleet().advance_checkout(base, commit, RULE) == Advance(True, f"the checkout is at {commit}")
    world.assert_clean(commit)


KILLER = """
    import os, signal, sys
    from kubectl_gpu_transition.adapters.fleet import GitFleet
    count = 0
    def killing(real):
        def call(*args, **kwargs):
            global count
            count += 1
            if count == {at}:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)
        return call
    for name in ("rename", "link", "unlink", "fsync"):
        setattr(os, name, killing(getattr(os, name)))
    fleet = GitFleet({repo!r}, dict(os.environ), token_env=None, git_timeout=20, log=lambda line: None)
    assert fleet.take_lock("apply") is None
    print(fleet.advance_checkout({base!r}, {commit!r}, {path!r}).done, count)
"""


def test_killed_before_any_system_call_the_next_run_completes_it(world: World) -> None:
    """SIGKILL before each rename, link, unlink and fsync in turn, until a run gets through."""
    base, commit = pushed(world)
    saved = world.root / "saved"
    shutil.copytree(world.checkout, saved, symlinks=True)
    for at in range(1, 60):
        shutil.rmtree(world.checkout)
        shutil.copytree(saved, world.checkout, symlinks=True)
        script = textwrap.dedent(KILLER).format(at=at, repo=str(world.checkout), base=base, commit=commit, path=RULE)
        done = subprocess.run([sys.executable, "-c", script], env=world.env, capture_output=True, check=False, cwd=Path.cwd())
        if done.returncode != -signal.SIGKILL:
            assert done.stdout.startswith(b"True"), done.stderr
            break
        assert world.fleet().advance_checkout(base, commit, RULE) == Advance(True, f"the checkout is at {commit}"), at
        world.assert_clean(commit)
        left = [name for name in snapshot(world.checkout) if "gpu-transition-tmp" in name or name.endswith(".lock")]
        assert left in ([], [".git/gpu-transition.lock"]), at
    else:
        raise AssertionError("no run got through")
    assert at > 10


# ---------------------------------------------------------------- left alone


def left_alone(world: World, base: str, commit: str) -> Advance:
    """Nothing moves, and nothing is left behind."""
    before = snapshot(world.checkout)
    found = world.fleet().advance_checkout(base, commit, RULE)
    after = snapshot(world.checkout)
    touched = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    assert touched <= {".git"}, touched
    assert not found.done and found.message.startswith("the checkout was left alone: "), found
    return found


def test_a_checkout_with_other_changes_is_left_alone(world: World) -> None:
    base, commit = pushed(world)
    for path, kind in (("README.md", "changed"), ("new", "untracked"), (ENV, "staged")):
        world.write(path, b"mine\n")
        if kind == "staged":
            world.git("add", path)
        found = left_alone(world, base, commit)
        assert path in found.message and found.remedy == PULL
        world.git("reset", "-q", "--hard")
        world.git("clean", "-qfd")
    world.write(RULE, b"mine\n")
    assert left_alone(world, base, commit).message.endswith("has another content in the work tree")
    world.git("add", RULE)
    assert "is staged with another content" in left_alone(world, base, commit).message
    world.git("reset", "-q", "--hard")
    (world.checkout / RULE).unlink()
    assert "has another content in the work tree" in left_alone(world, base, commit).message


def test_a_half_advanced_checkout_with_other_changes_gets_its_own_remedy(world: World) -> None:
    base, commit = pushed(world)
    half_advance(world, ("file", "index"), base, commit)
    world.write("README.md", b"mine\n")
    assert left_alone(world, base, commit).remedy == RESTORE
    world.git("checkout", "-q", "README.md")
    world.git("restore", f"--source={base}", "--staged", "--worktree", "--", RULE)
    subprocess.run(["/bin/sh", "-c", RESTORE], cwd=world.checkout, env=world.env, check=True, capture_output=True)
    world.assert_clean(commit)


def test_a_checkout_that_is_there_already_may_have_other_changes(world: World) -> None:
    base, commit = pushed(world)
    assert world.fleet().advance_checkout(base, commit, RULE).done
    world.write("README.md", b"mine\n")
    before = snapshot(world.checkout)
    assert world.fleet().advance_checkout(base, commit, RULE) == Advance(True, f"the checkout is at {commit}")
    assert {name for name in before if before[name] != snapshot(world.checkout).get(name)} <= {".git"}


def test_a_tracking_ref_that_a_fetch_has_brought_further_stays(world: World) -> None:
    base, commit = pushed(world)
    later = world.commit_elsewhere()
    world.git("fetch", "-q")
    assert world.fleet().advance_checkout(base, commit, RULE).done
    assert world.head(ref="origin/main") == later
    assert world.git("status", "--porcelain=v1", "--branch") == "## main...origin/main [behind 1]\n"


def test_a_branch_with_commits_of_its_own_is_left_alone(world: World) -> None:
    base, commit = pushed(world)
    world.git("commit", "-q", "--allow-empty", "-m", "mine")
    found = left_alone(world, base, commit)
    assert "commits of its own" in found.message and found.remedy == "git pull --rebase"


def test_a_checkout_that_is_behind_beyond_or_elsewhere_is_left_alone(world: World) -> None:
    world.git("commit", "-q", "--allow-empty", "-m", "second")
    world.git("push", "-q")
    base, commit = pushed(world)
    world.git("reset", "-q", "--hard", "HEAD~1")
    assert f"before {base}" in left_alone(world, base, commit).message
    world.git("pull", "-q")
    world.git("commit", "-q", "--allow-empty", "-m", "later")
    assert world.fleet().advance_checkout(base, commit, RULE) == Advance(True, f"the checkout is already beyond {commit}")
    world.git("reset", "-q", "--hard", base)
    world.git("checkout", "-q", "--detach")
    assert "is detached" in left_alone(world, base, commit).message
    world.git("checkout", "-q", "-b", "another", "HEAD~1")
    found = left_alone(world, base, commit)
    assert found.remedy == PULL


def test_the_other_branch_at_the_same_commit_is_left_alone(world: World) -> None:
    """HEAD must be the branch that was pushed."""
    fleet = world.fleet()
    base, commit, _ = world.push(fleet)
    world.git("checkout", "-q", "-b", "side")
    before = snapshot(world.checkout / ".git" / "refs")
    found = fleet.advance_checkout(base, commit, RULE)
    assert not found.done and found.message.endswith("HEAD is refs/heads/side, which is not the branch of the push")
    assert snapshot(world.checkout / ".git" / "refs") == before
    world.git("checkout", "-q", "main")
    assert fleet.advance_checkout(base, commit, RULE).done


def test_an_operation_in_progress_is_left_alone(world: World) -> None:
    base, commit = pushed(world)
    world.git("bisect", "start")
    assert "a bisect is in progress" in left_alone(world, base, commit).message


def test_a_commit_of_another_shape_is_left_alone(world: World) -> None:
    base, commit = pushed(world)
    world.git("fetch", "-q")
    assert f"{base} is not the child of {commit}" in left_alone(world, commit, base).message
    world.git("checkout", "-q", "-b", "two")
    world.write(RULE, NEW)
    world.write(ENV, b"A=2\n")
    world.git("commit", "-qam", "two files")
    wide = world.head()
    world.git("checkout", "-q", "main")
    assert "changes more than" in left_alone(world, base, wide).message
    assert "objects of" in left_alone(world, base, "1" * 40).message


@pytest.mark.parametrize("name", ["index.lock", "refs/heads/main.lock", "refs/remotes/origin/main.lock"])
def test_gits_own_locks_are_respected(world: World, name: str) -> None:
    base, commit = pushed(world)
    place = world.checkout / ".git" / name
    place.write_text("")
    assert f"another git process holds {place}" in left_alone(world, base, commit).message
    place.unlink()
    assert world.fleet().advance_checkout(base, commit, RULE).done
    world.assert_clean(commit)


def test_our_own_lock_is_respected(world: World) -> None:
    base, commit = pushed(world)
    holder = world.fleet()
    assert holder.take_lock("apply") is None
    assert "is locked by process" in left_alone(world, base, commit).message
    assert holder.advance_checkout(base, commit, RULE).done
    assert (world.checkout / ".git" / "gpu-transition.lock").exists()
    holder.release_lock()
    world.assert_clean(commit)


def test_a_file_behind_a_filter_is_left_alone(world: World) -> None:
    world.write(".gitattributes", b"*.yaml filter=up\n")
    world.git("config", "filter.up.clean", "cat")
    world.git("add", ".")
    world.git("commit", "-qm", "filter")
    world.git("push", "-q")
    base, commit = pushed(world)
    assert "left alone" in left_alone(world, base, commit).message


def test_a_split_index_is_left_alone(world: World) -> None:
    base, commit = pushed(world)
    world.git("update-index", "--split-index")
    assert "the extension link" in left_alone(world, base, commit).message


def test_a_work_tree_that_can_not_be_written_says_so(world: World) -> None:
    base, commit = pushed(world)
    directory = (world.checkout / RULE).parent
    if os.geteuid() == 0:
        subprocess.run(["chattr", "+i", str(directory)], check=False, capture_output=True)
        if "i" not in subprocess.run(["lsattr", "-d", str(directory)], capture_output=True, check=False).stdout.decode().split(" ")[0]:
            pytest.skip("this file system has no immutable directories, and root ignores permissions")
    else:
        directory.chmod(0o555)
    try:
        found = world.fleet().advance_checkout(base, commit, RULE)
    finally:
        subprocess.run(["chattr", "-i", str(directory)], check=False, capture_output=True)
        directory.chmod(0o755)
    assert not found.done and "could not be moved forward" in found.message and found.remedy == RESTORE
    assert world.fleet().advance_checkout(base, commit, RULE).done
    world.assert_clean(commit)
