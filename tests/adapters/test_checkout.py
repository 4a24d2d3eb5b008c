"""The checkout's facts, compared with git's own, and the proof that reading them changes nothing on disk."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from kubectl_gpu_transition.adapters import eol, lock
from kubectl_gpu_transition.adapters.gitindex import BadIndex, parse_index
from kubectl_gpu_transition.adapters.repository import Unusable, open_repository
from kubectl_gpu_transition.adapters.worktree import WorkTree, blob_id, list_staged, read_index
from kubectl_gpu_transition.model import CheckoutFacts, Identity, Problem, Route
from tests.adapters.gitworld import CLUSTER, ENV, OLD, RULE, World, snapshot


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def facts(world: World, repo: Path | None = None, cluster: str = CLUSTER) -> CheckoutFacts:
    """The facts, read while nothing below the world's root changes."""
    before = snapshot(world.root)
    found = world.fleet(repo).read_checkout(cluster)
    assert snapshot(world.root) == before
    return found


def state(world: World, repo: Path | None = None) -> str:
    found = facts(world, repo).state
    return found.message if found else "clean"


def differences(repo: Path, environ: dict[str, str]) -> set[tuple[str, str]]:
    """What we say differs: (X, Y) kinds and paths as in ``git status``."""
    with open_repository(str(repo), environ) as opened:
        index = read_index(opened)
        assert opened.head is not None
        from kubectl_gpu_transition.adapters.repository import read_commit

        staged = list(list_staged(index, opened.objects, read_commit(opened.objects, opened.head).tree))
        return {(change.kind, change.path) for change in [*staged, *WorkTree(opened, index, environ).changes()]}


def said_by_git(world: World, repo: Path | None = None) -> set[tuple[str, str]]:
    """The same, of ``git status``."""
    output = world.git("--no-optional-locks", "status", "--porcelain=v1", "-z", "--no-renames", "--ignore-submodules=dirty", cwd=repo)
    found: set[tuple[str, str]] = set()
    for record in output.split("\0")[:-1]:
        code, path = record[:2], record[3:]
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        if code == "??":
            found.add(("untracked", shown))
            continue
        unmerged = "U" in code or code in ("AA", "DD")
        if code[0] != " " or code[1] == "A":
            found.add(("staged", shown))
        if code[1] != " " and not (unmerged and code[1] == "D"):
            found.add(("changed", shown))
    return found


# ---------------------------------------------------------------- facts


def test_a_fit_checkout(world: World) -> None:
    assert facts(world) == CheckoutFacts(
        path=str(world.checkout),
        state=None,
        locked=None,
        branch="main",
        head=world.head(),
        clusters=("eu/dc1", "lab"),
        env=b"A=1\n",
        rule=OLD,
        route=Route("origin", "main", str(world.remote), str(world.remote), False),
        identity=Identity("Ada Fleet <ada@example.com>", "Ada Fleet <ada@example.com>"),
    )


def test_what_counts_is_what_head_holds(world: World) -> None:
    world.write(ENV, b"A=2\n")
    world.git("add", ENV)
    found = facts(world)
    assert found.env == b"A=1\n"
    assert found.state == Problem(
        f"the checkout is not clean: staged {ENV}", f"git -C {world.checkout} status; commit, stash or remove what it shows"
    )


def test_a_cluster_that_is_not_there(world: World) -> None:
    found = facts(world, cluster="eu/dc2")
    assert (found.env, found.rule, found.clusters) == (None, None, ("eu/dc1", "lab"))


def test_clusters_are_found_two_levels_deep_and_not_below_one(world: World) -> None:
    for name in ("lab/inner", "a/b/c", "eu/dc0"):
        world.write(f"clusters/{name}/cluster-config.env", b"")
    world.write("clusters/file", b"")
    world.git("add", ".")
    world.git("commit", "-qm", "more")
    assert facts(world).clusters == ("eu/dc0", "eu/dc1", "lab")


def test_what_is_not_a_regular_file_is_a_problem(world: World) -> None:
    (world.checkout / RULE).unlink()
    (world.checkout / RULE).symlink_to("elsewhere.yaml")
    (world.checkout / ENV).unlink()
    world.write(f"{ENV}/x", b"")
    world.git("add", ".")
    world.git("commit", "-qm", "odd")
    found = facts(world)
    assert found.rule == Problem(f"{RULE} is a symbolic link, not a regular file")
    assert found.env == Problem(f"{ENV} is a directory, not a regular file")


def test_a_path_through_a_symbolic_link_is_a_problem(world: World) -> None:
    world.git("mv", "clusters/eu", "real")
    (world.checkout / "clusters" / "eu").symlink_to("../real")
    world.git("add", ".")
    world.git("commit", "-qm", "link")
    assert facts(world).rule == Problem("clusters/eu is a symbolic link, not a directory")


def test_a_missing_object_is_a_problem(world: World) -> None:
    blob = world.git("rev-parse", f"HEAD:{RULE}").strip()
    (world.checkout / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    found = facts(world).rule
    assert isinstance(found, Problem) and found.message.startswith(f"{RULE} can not be read from commit {world.head()}")


def test_what_is_no_top_of_a_work_tree(world: World, tmp_path: Path) -> None:
    assert state(world, world.checkout / "clusters") == f"{world.checkout / 'clusters'} is inside a git work tree, not its top"
    assert state(world, world.remote) == f"{world.remote} is a bare repository, not a checkout"
    assert state(world, tmp_path / "home") == f"{tmp_path / 'home'} is not a git checkout"
    assert state(world, tmp_path / "nowhere") == f"{tmp_path / 'nowhere'} is not a git checkout"
    found = facts(world, world.remote)
    assert (found.head, found.branch, found.clusters) == (None, None, ())
    assert all(isinstance(part, Problem) for part in (found.env, found.rule, found.route, found.identity))


def test_a_checkout_through_a_symbolic_link_and_a_relative_path(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(world.checkout)
    assert facts(world, tmp_path / "link").path == str(world.checkout)
    monkeypatch.chdir(tmp_path)
    assert facts(world, Path("checkout")).path == str(world.checkout)


def test_repositories_that_are_not_understood_are_refused(world: World) -> None:
    world.git("config", "core.repositoryFormatVersion", "1")
    assert state(world) == "clean"
    world.git("config", "extensions.partialClone", "origin")
    assert state(world) == "clean"
    config = world.checkout / ".git" / "config"
    plain = config.read_text()
    for name, value in (("refStorage", "reftable"), ("objectFormat", "sha256"), ("newThing", "x")):
        config.write_text(plain + f"[extensions]\n\t{name} = {value}\n")
        assert f"uses extensions.{name.lower()} {value}, which is not supported" in state(world)
    config.write_text(plain.replace("ormatVersion = 1", "ormatVersion = 2"))
    assert "format version 2" in state(world)
    config.write_text(plain + "[broken\n")
    assert "bad line" in state(world)
    config.write_text(plain + "[core]\n\tworktree = /elsewhere\n")
    assert "the work tree of" in state(world)


def test_another_users_repository_is_not_trusted(world: World) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(world.checkout, 12345, -1)
    assert "belongs to another user" in state(world)
    for value, trusted in (("/elsewhere", False), ("*", True), (str(world.checkout), True)):
        world.git("config", "--global", "safe.directory", value)
        said = world.git("rev-parse", "HEAD", check=False) != ""
        assert said is trusted
        assert (state(world) == "clean") is trusted
    # Since git 2.46.
    world.git("config", "--global", "safe.directory", f"{world.root}/*")
    assert state(world) == "clean"
    world.git("config", "--global", "--unset", "safe.directory")
    assert isinstance(world.fleet(SUDO_UID="12345").read_checkout(CLUSTER).state, type(None))


def test_a_detached_head_and_a_branch_without_a_commit(world: World) -> None:
    world.git("checkout", "-q", "--detach")
    found = facts(world)
    assert found.state == Problem(f"HEAD of {world.checkout} is detached, not on a branch", "git switch <branch>")
    assert (found.branch, found.head) == (None, world.head())
    assert isinstance(found.route, Problem) and found.rule == OLD
    world.git("checkout", "-q", "--orphan", "new")
    assert state(world) == f"branch new of {world.checkout} has no commit"


IN_PROGRESS: dict[str, Callable[[World], None]] = {
    "merge": lambda world: world.git("merge", "-q", "other", check=False),
    "rebase": lambda world: world.git("rebase", "-q", "other", check=False),
    "rebase or am": lambda world: world.git("rebase", "-q", "--apply", "other", check=False),
    "cherry-pick": lambda world: world.git("cherry-pick", "other", check=False),
    "revert": lambda world: world.git("revert", "--no-edit", "HEAD~1", check=False),
    "bisect": lambda world: world.git("bisect", "start", "HEAD", "HEAD~1"),
}  # type: ignore[dict-item]


@pytest.mark.parametrize("what", IN_PROGRESS)
def test_an_operation_in_progress(world: World, what: str) -> None:
    world.write("README.md", b"two\n")
    world.git("commit", "-qam", "two")
    world.git("checkout", "-q", "-b", "other", "HEAD~1")
    world.write("README.md", b"three\n")
    world.git("commit", "-qam", "three")
    world.git("checkout", "-q", "main")
    world.write("README.md", b"four\n")
    world.git("commit", "-qam", "four")
    IN_PROGRESS[what](world)
    assert state(world) == f"a {what} is in progress in {world.checkout}"


def test_the_first_few_files_are_named(world: World) -> None:
    for number in range(8):
        world.write(f"new{number}", b"")
    world.write("README.md", b"x\n")
    world.write(ENV, b"A=2\n")
    world.git("add", ENV)
    assert state(world) == (f"the checkout is not clean: staged {ENV}; changed README.md; untracked new0, new1, new2, new3, new4, …")


def test_linked_work_trees_and_packed_refs(world: World, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    world.git("worktree", "add", "-q", "-b", "side", str(linked))
    world.git("pack-refs", "--all")
    world.git("gc", "-q")
    found = facts(world, linked)
    assert (found.state, found.branch, found.head, found.rule) == (None, "side", world.head(), OLD)
    assert facts(world).head == world.head()
    world.write("README.md", b"dirty here\n")
    assert state(world, linked) == "clean"
    (linked / "README.md").write_bytes(b"dirty there\n")
    assert state(world, linked) == "the checkout is not clean: changed README.md"
    world.git("worktree", "lock", str(linked))
    (linked / ".git").write_text("gitdir: /nowhere\n")
    assert "does not lead to a git directory" in state(world, linked)


def test_objects_of_an_alternate_are_seen(world: World, tmp_path: Path) -> None:
    world.git("clone", "-q", "--shared", str(world.remote), str(tmp_path / "shared"), cwd=tmp_path)
    found = facts(world, tmp_path / "shared")
    assert (found.state, found.rule) == (None, OLD)


# ---------------------------------------------------------------- clean or not, compared with git


def act(world: World, choose: random.Random) -> None:
    """One thing that somebody may do to a work tree."""
    # Attributes stay as they are: changed within the second of the index, git would compare contents anew and we would not.
    listed = world.git("ls-files", "-z").split("\0")[:-1]
    files = [path for path in listed if (world.checkout / path).is_file() and path != ".gitattributes"]
    names = ["a.txt", "d/b.txt", "d/e/c.txt", "build/x.o", "keep.log", "d/keep.log", "ünï.txt", "sp ace", "f.crlf", "g.txt", "m/n/o"]
    path = choose.choice(files) if files and choose.random() < 0.5 else choose.choice(names)
    target = world.checkout / path
    data = choose.choice(
        [b"one\n", b"one\r\n", b"two\n", b"one\ntwo\n", b"one\r\ntwo\r\n", b"mixed\r\nends\n", b"\0binary\r\n", b"", b"lone\rcr\r\n"]
    )
    kind = choose.choice(
        ["write", "write", "add", "add", "rm", "rmcached", "chmod", "link", "touch", "intent", "dir", "commit", "ignore", "repo"]
    )
    if any(part.is_file() or part.is_symlink() for part in target.parents if part != world.checkout) or (
        target.is_dir() and not target.is_symlink()
    ):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if kind == "write":
        if target.is_symlink():
            target.unlink()
        target.write_bytes(data)
    elif kind == "add":
        world.git("add", "-A", check=False)
    elif kind == "rm" and os.path.lexists(target):
        target.unlink()
    elif kind == "rmcached":
        world.git("rm", "-q", "--cached", "-f", path, check=False)
    elif kind == "chmod" and target.is_file() and not target.is_symlink():
        target.chmod(target.stat().st_mode ^ 0o111)
    elif kind == "link" and not os.path.lexists(target):
        target.symlink_to(choose.choice(["README.md", "nowhere", "d"]))
    elif kind == "touch" and target.is_file() and not target.is_symlink():
        os.utime(target, ns=(10**18, 10**18 + choose.randint(0, 10**9)))
    elif kind == "intent":
        world.git("add", "-N", "-f", path, check=False)
    elif kind == "dir":
        (world.checkout / f"empty{choose.randint(0, 3)}" / "er").mkdir(parents=True, exist_ok=True)
    elif kind == "commit":
        world.git("commit", "-qm", "some", check=False)
    elif kind == "ignore":
        where = choose.choice([".gitignore", "d/.gitignore", ".git/info/exclude"])
        (world.checkout / where).parent.mkdir(exist_ok=True)
        lines = choose.sample(["*.log", "!keep.log", "build/", "/a.txt", "d/*", "!d/e", "**/c.txt", "sp*", "\\#x", "m/**/o", "empty*"], 3)
        (world.checkout / where).write_text("\n".join(lines) + "\n")
    elif kind == "repo":
        world.git("init", "-q", "sub", check=False)


CONFIGS = [
    {},
    {"core.autocrlf": "true"},
    {"core.autocrlf": "input"},
    {"core.fileMode": "false"},
    {"core.eol": "crlf"},
    {"index.version": "4", "core.trustctime": "false"},
    {"core.checkStat": "minimal"},
    {"core.symlinks": "false"},
]
ATTRIBUTES = [
    "",
    "* text=auto\n",
    "*.txt text eol=crlf\n*.log -text\n",
    "* text\n*.crlf -crlf\n",
    "*.txt binary\nd/** text=auto eol=lf\n",
    "*.txt eol=crlf\n",
]


@pytest.mark.parametrize("seed", range(16))
def test_a_work_tree_is_clean_or_not_as_git_says(world: World, seed: int) -> None:
    choose = random.Random(seed)
    for name, value in CONFIGS[seed % len(CONFIGS)].items():
        world.git("config", name, value)
    if attributes := ATTRIBUTES[seed % len(ATTRIBUTES)]:
        world.write(".gitattributes", attributes.encode())
    if seed % 3 == 0:
        (world.home / ".config" / "git").mkdir(parents=True)
        (world.home / ".config" / "git" / "ignore").write_text("g.txt\n")
    for _ in range(14):
        act(world, choose)
        before = snapshot(world.checkout)
        ours = differences(world.checkout, world.env)
        assert snapshot(world.checkout) == before
        assert ours == said_by_git(world), world.git("ls-files", "-s", "--debug")


def test_every_kind_of_dirt(world: World, tmp_path: Path) -> None:
    """One of each, by hand: the generated ones above may miss a kind."""

    def check(expected: set[tuple[str, str]]) -> None:
        assert differences(world.checkout, world.env) == expected == said_by_git(world)
        world.git("reset", "-q", "--hard")
        world.git("clean", "-qfdx")

    check(set())
    os.utime(world.checkout / "README.md", ns=(1, 1))
    check(set())
    world.write("README.md", b"fleeT\n")
    check({("changed", "README.md")})
    (world.checkout / "README.md").unlink()
    check({("changed", "README.md")})
    (world.checkout / "README.md").unlink()
    (world.checkout / "README.md").mkdir()
    check({("changed", "README.md")})
    (world.checkout / "README.md").chmod(0o755)
    check({("changed", "README.md")})
    world.git("rm", "-q", "--cached", "README.md")
    check({("staged", "README.md"), ("untracked", "README.md")})
    world.git("update-index", "--assume-unchanged", "README.md")
    world.write("README.md", b"assumed\n")
    check(set())
    world.git("update-index", "--no-assume-unchanged", "README.md")
    world.git("reset", "-q", "--hard")
    world.git("update-index", "--skip-worktree", "README.md")
    (world.checkout / "README.md").unlink()
    check(set())
    world.git("update-index", "--no-skip-worktree", "README.md")
    world.git("reset", "-q", "--hard")
    real = tmp_path / "real"
    (world.checkout / "clusters").rename(real)
    (world.checkout / "clusters").symlink_to(real)
    check({("changed", ENV), ("changed", RULE), ("changed", "clusters/lab/cluster-config.env"), ("untracked", "clusters")})


def test_unmerged_files_are_dirt(world: World) -> None:
    world.git("checkout", "-q", "-b", "other")
    world.write("README.md", b"two\n")
    world.git("commit", "-qam", "two")
    world.git("checkout", "-q", "main")
    world.write("README.md", b"three\n")
    world.git("commit", "-qam", "three")
    world.git("merge", "-q", "other", check=False)
    assert ("staged", "README.md") in differences(world.checkout, world.env)
    (world.checkout / ".git" / "MERGE_HEAD").unlink()
    assert state(world).startswith("the checkout is not clean: staged README.md")


def test_submodules_at_another_commit_are_dirt(world: World) -> None:
    world.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(world.remote), "sub")
    world.git("commit", "-qm", "sub")
    assert differences(world.checkout, world.env) == said_by_git(world) == set()
    world.git("commit", "-q", "--allow-empty", "-m", "x", cwd=world.checkout / "sub")
    assert differences(world.checkout, world.env) == said_by_git(world) == {("changed", "sub")}
    world.git("submodule", "--quiet", "deinit", "-f", "sub")
    assert differences(world.checkout, world.env) == said_by_git(world) == set()


def test_a_change_within_the_moment_of_the_index_is_seen(world: World) -> None:
    """The racy case of git: same size, same time, and the index not newer than the file."""
    index = world.checkout / ".git" / "index"
    target = world.checkout / "README.md"
    world.git("config", "core.trustctime", "false")
    status = target.stat()
    target.write_bytes(b"FLEET\n")
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.utime(index, ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert differences(world.checkout, world.env) == {("changed", "README.md")}


def test_sparse_checkouts(world: World) -> None:
    world.git("config", "index.sparse", "true")
    world.git("sparse-checkout", "set", "--cone", "clusters/eu")
    assert not (world.checkout / "clusters" / "lab").exists()
    assert differences(world.checkout, world.env) == said_by_git(world) == set()


def test_a_file_behind_a_filter_counts_by_its_stat_data_alone(world: World) -> None:
    world.write(".gitattributes", b"*.bin filter=up\n")
    world.write("x.bin", b"abc\n")
    ran = world.root / "ran"
    world.git("config", "filter.up.clean", f"touch {ran}; tr a-z A-Z")
    world.git("add", ".")
    world.git("commit", "-qm", "filter")
    ran.unlink()
    os.utime(world.checkout / ".git" / "index", ns=(2 * 10**18, 2 * 10**18))
    assert state(world) == "clean"
    os.utime(world.checkout / "x.bin", ns=(1, 1))
    assert state(world) == "the checkout is not clean: changed x.bin"
    assert not ran.exists()


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_index_versions_and_extensions(world: World, version: str) -> None:
    world.git("config", "core.untrackedCache", "true")
    for number in range(40):
        world.write(f"files/with/a/long/name/number-{number:03}", b"x")
    world.git("add", "-A")
    world.git("commit", "-qm", "many")
    world.git("update-index", "--index-version", version)
    if version == "3":
        world.write("later", b"")
        world.git("add", "-N", "later")
    world.git("status")
    index = parse_index((world.checkout / ".git" / "index").read_bytes())
    lines = [line.split("\t") for line in world.git("ls-files", "-s").splitlines()]
    assert [(f"{e.mode:o} {e.sha} {e.stage}", e.path.decode()) for e in index.entries] == [tuple(line) for line in lines]


def test_an_index_that_can_not_be_read_is_not_clean(world: World) -> None:
    place = world.checkout / ".git" / "index"
    data = place.read_bytes()
    for broken in (b"", data[:40], data[:-1], data[:50] + b"x" + data[51:], b"DIRC" + bytes([0, 0, 0, 9]) + data[8:]):
        with pytest.raises(BadIndex):
            parse_index(broken)
        place.write_bytes(broken)
        assert state(world).startswith(f"the state of {world.checkout} can not be told: the index")
    place.write_bytes(data)
    world.git("update-index", "--split-index")
    assert "git update-index --no-split-index" in state(world)
    world.git("update-index", "--no-split-index")
    assert state(world) == "clean"
    place.unlink()
    assert state(world).startswith("the checkout is not clean: staged")


LINE_ENDS = [
    b"a\r\nb\r\n", b"a\nb\n", b"a\r\nb\n", b"a\rb\r\n", b"\0\r\n", b"\x01" * 3 + b"\r\n", b"x" * 130 + b"\x01\r\n", b"a\r\n\x1a", b"",
    b"x" * 256 + b"\x01\n", b"\b\t\x1b\x0c\n",
]  # fmt: skip


@pytest.mark.parametrize("autocrlf", ["true", "input", "false"])
@pytest.mark.parametrize(
    "text", ["", "text", "text=auto", "-text", "text eol=crlf", "text=auto eol=lf", "text=auto eol=crlf", "eol=lf", "crlf=input"]
)
def test_line_ends_are_gits(tmp_path_factory: pytest.TempPathFactory, autocrlf: str, text: str) -> None:
    """One repository for all: git hashes files as it would add them, and writes blobs as it would check them out."""
    world = _shared(tmp_path_factory)
    (world.checkout / ".gitattributes").write_text(f"f* {text}\n" if text else "")
    config = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.autocrlf", "GIT_CONFIG_VALUE_0": autocrlf}
    names = [f"f{number}" for number in range(len(LINE_ENDS))]
    for name, data in zip(names, LINE_ENDS, strict=True):
        (world.checkout / name).write_bytes(data)
    with open_repository(str(world.checkout), {**world.env, **config}) as repo:
        tree = WorkTree(repo, read_index(repo), world.env)
        action = eol.decide(tree.attributes.match_path(b"f0"), tree.settings)

    def run(*args: str, lines: list[str]) -> bytes:
        env, sent = {**world.env, **config}, "".join(f"{line}\n" for line in lines).encode()
        return subprocess.run(["git", *args], cwd=world.checkout, env=env, input=sent, capture_output=True, check=True).stdout

    blobs = run("hash-object", "-w", "--stdin-paths", lines=names).decode().split()
    stored = [eol.to_repository(data, action, lambda: b"") for data in LINE_ENDS]
    assert [blob_id(data) for data in stored] == blobs
    said = run("cat-file", "--filters", "--batch=-", lines=[f"{blob} {name}" for blob, name in zip(blobs, names, strict=True)])
    assert said == b"".join(b"-\n" + eol.to_work_tree(data, action) + b"\n" for data in stored)


_worlds: list[World] = []


def _shared(factory: pytest.TempPathFactory) -> World:
    if not _worlds:
        _worlds.append(World(factory.mktemp("eol")))
    return _worlds[0]


# ---------------------------------------------------------------- the lock


def test_the_lock_names_its_holder_and_goes_with_it(world: World) -> None:
    fleet, other = world.fleet(), world.fleet()
    place = world.checkout / ".git" / lock.NAME
    assert fleet.take_lock("apply eu/dc1 node-1") is None
    holder = json.loads(place.read_text())
    assert (
        holder["pid"] == os.getpid() and holder["command"] == "apply eu/dc1 node-1" and set(holder) == {"host", "pid", "command", "since"}
    )
    assert fleet.read_checkout(CLUSTER).locked is None
    assert fleet.take_lock("again") is None
    taken = other.take_lock("apply eu/dc1 node-2")
    assert isinstance(taken, Problem)
    assert taken.message.startswith(f"the checkout is locked by process {os.getpid()} on ")
    assert taken.message.endswith("apply eu/dc1 node-1")
    before = snapshot(world.checkout)
    assert other.read_checkout(CLUSTER).locked == taken
    assert other.read_checkout(CLUSTER).state is None
    assert snapshot(world.checkout) == before
    fleet.release_lock()
    fleet.release_lock()
    assert not place.exists()
    assert facts(world).locked is None
    assert other.take_lock("apply eu/dc1 node-2") is None
    other.release_lock()


def test_a_killed_holder_leaves_no_lock(world: World) -> None:
    script = f"""
        import os, sys, time
        from kubectl_gpu_transition.adapters.lock import take_lock
        held = take_lock({str(world.checkout / ".git")!r}, "apply eu/dc1 node-1")
        print("held", flush=True)
        time.sleep(60)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"held\n"
    locked = facts(world).locked
    assert locked is not None and f"process {child.pid} on " in locked.message
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert (world.checkout / ".git" / lock.NAME).exists()
    assert facts(world).locked is None
    fleet = world.fleet()
    assert fleet.take_lock("next") is None
    fleet.release_lock()


def test_linked_work_trees_have_locks_of_their_own(world: World, tmp_path: Path) -> None:
    world.git("worktree", "add", "-q", "-b", "side", str(tmp_path / "linked"))
    first, second = world.fleet(), world.fleet(tmp_path / "linked")
    assert first.take_lock("one") is None
    assert second.take_lock("two") is None
    first.release_lock()
    second.release_lock()


def test_a_lock_needs_a_repository(world: World) -> None:
    found = world.fleet(world.home).take_lock("x")
    assert isinstance(found, Problem) and "is not a git checkout" in found.message
    with pytest.raises(Unusable), open_repository(str(world.home), world.env):
        pass


def test_a_lock_whose_file_says_nothing(world: World) -> None:
    held = lock.take_lock(str(world.checkout / ".git"), "x")
    assert isinstance(held, lock.Lock)
    (world.checkout / ".git" / lock.NAME).write_text("{")
    assert lock.read_lock(str(world.checkout / ".git")) == Problem("the checkout is locked by another run", "wait for it to end")
    held.release()
