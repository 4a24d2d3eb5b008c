"""One git repository on disk, read only: where its parts are, its configuration, its refs and its objects.

Nothing here writes, refreshes or creates anything. References: gitrepository-layout(5), git-worktree(1), git-config(1) ``core.*`` and
``extensions.*``.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from dulwich.object_store import BaseObjectStore, DiskObjectStore
from dulwich.objects import Blob, Commit, ObjectID, ShaFile, Tree

from kubectl_gpu_transition.adapters import gitconfig
from kubectl_gpu_transition.adapters.gitconfig import ConfigError, GitConfig
from kubectl_gpu_transition.model import Problem

_HEX = re.compile(r"[0-9a-f]{40}")
# Extensions that change nothing for a reader of refs, index and loose or packed SHA-1 objects.
_HARMLESS = frozenset({"noop", "preciousobjects", "partialclone", "worktreeconfig", "relativeworktrees"})
_PER_WORKTREE = ("refs/bisect/", "refs/worktree/", "refs/rewritten/")
# What dulwich raises for an object that is absent or damaged.
OBJECT_ERRORS = (KeyError, ValueError, OSError, EOFError, AssertionError, IndexError)


class Unusable(Exception):
    """A repository that can not be worked with; carries the Problem. Never leaves the adapters."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(frozen=True)
class Repository:
    """An open repository. ``branch`` is the full ref that HEAD names, None when it is detached; ``head`` HEAD's commit or None."""

    top: str
    git_dir: str
    common_dir: str
    config: GitConfig
    branch: str | None
    head: str | None
    objects: BaseObjectStore

    def path_of(self, name: str) -> str:
        """Where the loose file of a ref, or any other file that each work tree may have of its own, is."""
        shared = name.startswith("refs/") and not name.startswith(_PER_WORKTREE)
        return os.path.join(self.common_dir if shared else self.git_dir, name)

    def read_ref(self, name: str) -> str | None:
        """The commit id that a ref holds, through symbolic refs and packed refs; None where it does not exist."""
        return _read_ref(self.git_dir, self.common_dir, name)

    def is_symbolic(self, name: str) -> bool:
        """Whether the ref only names another one."""
        return _read_loose(self.path_of(name)).startswith("ref:")

    def read_shallow(self) -> frozenset[str]:
        """Commits whose parents were left out when this clone was made."""
        try:
            with open(os.path.join(self.common_dir, "shallow"), encoding="ascii") as file:
                return frozenset(file.read().split())
        except FileNotFoundError:
            return frozenset()


@contextmanager
def open_repository(path: str, environ: Mapping[str, str]) -> Iterator[Repository]:
    """Open the repository whose work tree's top is ``path``; raises Unusable, also for an OSError of the caller's that nobody else
    knows what to do with. Closes the files of its packs at the end."""
    objects: DiskObjectStore | None = None
    try:
        top = os.path.realpath(path)
        git_dir = _find_git_dir(top)
        common_dir = _find_common_dir(git_dir)
        _check_ownership([top, git_dir], environ)
        symbolic = _read_loose(os.path.join(git_dir, "HEAD"))
        branch = symbolic.removeprefix("ref:").strip() if symbolic.startswith("ref:") else None
        config = gitconfig.load_config(git_dir, common_dir, branch.removeprefix("refs/heads/") if branch else None, environ)
        _check_format(config, top, git_dir)
        objects = DiskObjectStore(os.path.join(common_dir, "objects"))
        yield Repository(top, git_dir, common_dir, config, branch, _read_ref(git_dir, common_dir, "HEAD"), objects)
    except ConfigError as error:
        raise Unusable(Problem(f"git configuration: {error}")) from error
    except OSError as error:
        raise Unusable(Problem(f"{_named(error.filename or path)}: {error.strerror}")) from error
    finally:
        if objects is not None:
            objects.close()


def _named(filename: str | bytes | int) -> str:
    return os.fsdecode(filename) if isinstance(filename, (str, bytes)) else "a file"


def _kind(path: str) -> int | None:
    """S_IFDIR, S_IFREG or another kind of what is at a path, links followed; None where nothing is."""
    try:
        return stat.S_IFMT(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _find_git_dir(top: str) -> str:
    place = os.path.join(top, ".git")
    kind = _kind(place)
    if kind == stat.S_IFDIR:
        return place
    if kind == stat.S_IFREG:
        with open(place, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read().strip()
        target = os.path.normpath(os.path.join(top, text.removeprefix("gitdir:").strip()))
        if not text.startswith("gitdir:") or not os.path.isdir(target):
            raise Unusable(Problem(f"{place} does not lead to a git directory", "git worktree repair"))
        return target
    if os.path.isdir(os.path.join(top, "objects")) and os.path.isfile(os.path.join(top, "HEAD")):
        raise Unusable(Problem(f"{top} is a bare repository, not a checkout", "name a work tree of it with --repo"))
    above = os.path.dirname(top)
    while above != os.path.dirname(above):
        if os.path.lexists(os.path.join(above, ".git")):
            raise Unusable(Problem(f"{top} is inside a git work tree, not its top", f"--repo {shlex.quote(above)}"))
        above = os.path.dirname(above)
    raise Unusable(Problem(f"{top} is not a git checkout", "name the fleet's checkout with --repo"))


def _find_common_dir(git_dir: str) -> str:
    common = _read_loose(os.path.join(git_dir, "commondir"))
    directory = os.path.normpath(os.path.join(git_dir, common)) if common else git_dir
    if not os.path.isdir(os.path.join(directory, "objects")):
        raise Unusable(Problem(f"{directory} has no objects: not a git repository"))
    return directory


def _check_ownership(paths: list[str], environ: Mapping[str, str]) -> None:
    """git's ``safe.directory``: another user's repository could run commands of its configuration as us."""
    user = os.geteuid()
    allowed = {user, int(environ["SUDO_UID"])} if user == 0 and environ.get("SUDO_UID", "").isdecimal() else {user}
    if all(os.lstat(path).st_uid in allowed for path in paths):
        return
    try:
        trusted = gitconfig.safe_directories(environ)
    except ConfigError as error:
        raise Unusable(Problem(f"git configuration: {error}")) from error
    for entry in trusted:
        directory = entry.rstrip("/") if len(entry) > 1 else entry
        inside = directory.endswith("/*") and paths[0].startswith(directory[:-1])
        if entry == "*" or inside or os.path.realpath(directory) == paths[0]:
            return
    message = f"{paths[0]} belongs to another user, and git does not trust such a repository"
    raise Unusable(Problem(message, f"git config --global --add safe.directory {shlex.quote(paths[0])}"))


def _check_format(config: GitConfig, top: str, git_dir: str) -> None:
    version = config.get("core", "repositoryFormatVersion") or "0"
    if version not in ("0", "1"):
        raise Unusable(Problem(f"repository format version {version} is not known"))
    for section, _, name, value in config.entries:
        if section != "extensions" or name in _HARMLESS or version == "0":
            continue
        if (name, (value or "").lower()) not in (("objectformat", "sha1"), ("refstorage", "files")):
            raise Unusable(Problem(f"the repository uses extensions.{name} {value or ''}, which is not supported"))
    if config.get_bool("core", "bare"):
        raise Unusable(Problem(f"{top} is a bare repository, not a checkout", "name a work tree of it with --repo"))
    work_tree = config.get("core", "worktree")
    if work_tree is not None and os.path.realpath(os.path.join(git_dir, work_tree)) != top:
        raise Unusable(Problem(f"the work tree of {git_dir} is {work_tree} (core.worktree)", f"--repo {shlex.quote(work_tree)}"))


def _read_loose(path: str) -> str:
    """The text of a ref's file, or nothing where there is none. An old-style HEAD is a symbolic link."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().strip()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ""


def _read_ref(git_dir: str, common_dir: str, name: str) -> str | None:
    for _ in range(6):
        shared = name.startswith("refs/") and not name.startswith(_PER_WORKTREE)
        text = _read_loose(os.path.join(common_dir if shared else git_dir, name))
        if not text.startswith("ref:"):
            return text if _HEX.fullmatch(text) else _read_packed(common_dir, name)
        name = text.removeprefix("ref:").strip()
    return None


def _read_packed(common_dir: str, name: str) -> str | None:
    for line in _read_loose(os.path.join(common_dir, "packed-refs")).splitlines():
        commit, _, ref = line.partition(" ")
        if ref == name and _HEX.fullmatch(commit):
            return commit
    return None


def oid(text: str) -> ObjectID:
    """An object id as dulwich wants it."""
    return ObjectID(text.encode("ascii"))


def read_object(objects: BaseObjectStore, sha: ObjectID) -> ShaFile:
    """One object; raises KeyError where it is absent or can not be read, whatever is wrong with it."""
    try:
        return objects[sha]
    except OBJECT_ERRORS as error:
        raise KeyError(sha) from error


def read_commit(objects: BaseObjectStore, commit: str) -> Commit:
    """A commit; raises KeyError where it is absent or no commit."""
    found = read_object(objects, oid(commit))
    if not isinstance(found, Commit):
        raise KeyError(commit)
    return found


def read_tree(objects: BaseObjectStore, sha: ObjectID) -> Tree:
    """A tree; raises KeyError where it is absent or no tree."""
    found = read_object(objects, sha)
    if not isinstance(found, Tree):
        raise KeyError(sha)
    return found


def find_entry(objects: BaseObjectStore, tree: ObjectID, path: str) -> tuple[int, ObjectID] | Problem | None:
    """Mode and id of what a tree holds at a path: None where there is nothing, a Problem where a part of the path is no directory."""
    mode, sha = stat.S_IFDIR, tree
    parts = path.encode("utf-8").split(b"/")
    for index, part in enumerate(parts):
        if not stat.S_ISDIR(mode):
            return Problem(f"{b'/'.join(parts[:index]).decode()} is {describe_mode(mode)}, not a directory")
        try:
            mode, sha = read_tree(objects, sha)[part]
        except KeyError as error:
            if error.args and error.args[0] == sha:
                raise
            return None
    return mode, sha


def read_file(objects: BaseObjectStore, commit: str, path: str) -> bytes | Problem | None:
    """The bytes of a regular file in a commit: None where there is none, a Problem where it is another thing or can not be read."""
    try:
        found = find_entry(objects, read_commit(objects, commit).tree, path)
        if found is None or isinstance(found, Problem):
            return found
        mode, sha = found
        if not stat.S_ISREG(mode):
            return Problem(f"{path} is {describe_mode(mode)}, not a regular file")
        blob = read_object(objects, sha)
    except KeyError:
        return Problem(f"{path} can not be read from commit {commit}: an object is missing or damaged", "git fsck")
    return blob.as_raw_string() if isinstance(blob, Blob) else Problem(f"{path} is not a blob in commit {commit}", "git fsck")


def describe_mode(mode: int) -> str:
    """What a tree entry of this mode is, for people."""
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFLNK: "a symbolic link", stat.S_IFREG: "a file", 0o160000: "a submodule"}
    return kinds.get(stat.S_IFMT(mode), f"of unknown mode {mode:o}")


def list_clusters(objects: BaseObjectStore, commit: str) -> tuple[str, ...]:
    """Names of the overlays of a commit: ``clusters/<name>/`` or ``clusters/<group>/<name>/`` with a ``cluster-config.env``, sorted.

    A first-level directory that has the file is not looked into further. Raises KeyError where a tree can not be read.
    """
    root = find_entry(objects, read_commit(objects, commit).tree, "clusters")
    if root is None or isinstance(root, Problem) or not stat.S_ISDIR(root[0]):
        return ()
    names: list[str] = []
    for name, tree in _directories(objects, root[1]):
        if b"cluster-config.env" in tree:
            names.append(name)
            continue
        names += [f"{name}/{inner}" for inner, below in _directories(objects, tree.id) if b"cluster-config.env" in below]
    return tuple(sorted(names))


def _directories(objects: BaseObjectStore, tree: ObjectID) -> Iterator[tuple[str, Tree]]:
    for entry in read_tree(objects, tree).iteritems():
        if entry.mode is not None and stat.S_ISDIR(entry.mode) and entry.path is not None and entry.sha is not None:
            yield entry.path.decode("utf-8", "replace"), read_tree(objects, entry.sha)
