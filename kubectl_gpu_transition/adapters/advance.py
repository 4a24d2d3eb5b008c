"""Moving one checkout forward to an accepted commit: one file, its index entry, the branch, the tracking ref. Nothing else, ever.

Each is one rename of a complete and synced file. What is there is looked at before the first of them, and every combination of old
and new that a killed run can leave is recognised and completed (spec section 9). git's own lock files are respected and used.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dulwich.object_store import BaseObjectStore
from dulwich.objects import ShaFile

from kubectl_gpu_transition.adapters import identity
from kubectl_gpu_transition.adapters import objects as making
from kubectl_gpu_transition.adapters.checkout import find_obstacle
from kubectl_gpu_transition.adapters.gitconfig import ConfigError
from kubectl_gpu_transition.adapters.gitindex import BadIndex, Entry, Index, change_entry
from kubectl_gpu_transition.adapters.history import Walk
from kubectl_gpu_transition.adapters.repository import Repository, find_entry, read_commit, read_object
from kubectl_gpu_transition.adapters.route import Target
from kubectl_gpu_transition.adapters.worktree import WorkTree, list_staged, read_index
from kubectl_gpu_transition.model import Advance, Identity, Problem

PREFIX = "gpu-transition-tmp-"
_PULL = "git pull --ff-only"


class Blocked(Exception):
    """Why the checkout is left alone, with the remedy. Never leaves the adapters."""

    def __init__(self, message: str, remedy: str | None = _PULL) -> None:
        super().__init__(message)
        self.message, self.remedy = message, remedy


@dataclass(frozen=True)
class _Move:
    """What is to be moved: the file, its two blobs, and what is there now."""

    path: str
    mode: int
    old: str
    new: str
    content: bytes
    index: Index
    entry: Entry
    tree: WorkTree


def advance(
    repo: Repository, target: Target, known: BaseObjectStore, environ: Mapping[str, str], base: str, commit: str, path: str
) -> Advance:
    """Bring the checkout from ``base``, or from any mixture that a killed run left, to ``commit``. ``known`` holds the commit's
    objects; those that the repository lacks are written first."""
    moving = False
    try:
        if repo.head not in (None, base, commit) and Walk(known).compare(commit, repo.head).left_in_right:
            return Advance(True, f"the checkout is already beyond {commit}")
        _remove_leftovers(repo, target, path)
        move = _look(repo, known, environ, base, commit, path)
        if move is not None:
            _refuse_locks(repo, target)
            making.write_loose(os.path.join(repo.common_dir, "objects"), _missing(repo, known, base, commit))
            moving = True
            _move_file(repo, move)
            _move_index(repo, move)
            _move_ref(repo, _branch(repo), (base, commit), commit, environ, f"commit: {path}")
        if target.tracking is not None and _may_track(repo, known, target.tracking, commit):
            _move_ref(repo, target.tracking, (repo.read_ref(target.tracking),), commit, environ, "update by push")
    except Blocked as error:
        state = "could not be moved forward" if moving else "was left alone"
        return Advance(False, f"the checkout {state}: {error.message}", _restore(path) if moving else error.remedy)
    except (ConfigError, BadIndex) as error:
        return Advance(False, f"the checkout was left alone: {error}", _PULL)
    except KeyError:
        return Advance(False, f"the checkout was left alone: objects of {commit} are not here", _PULL)
    except OSError as error:
        return Advance(False, f"the checkout could not be moved forward: {error.strerror} ({error.filename})", _restore(path))
    return Advance(True, f"the checkout is at {commit}")


def _restore(path: str) -> str:
    return f"git restore --source=HEAD --staged --worktree -- {shlex.quote(path)} && {_PULL}"


def _branch(repo: Repository) -> str:
    assert repo.branch is not None  # _look() has refused a detached HEAD.
    return repo.branch


def _may_track(repo: Repository, known: BaseObjectStore, tracking: str, commit: str) -> bool:
    """Whether the tracking ref would move forward: it is absent or before the commit. A later fetch may have brought it further."""
    at = repo.read_ref(tracking)
    return not repo.is_symbolic(tracking) and (at is None or (at != commit and Walk(known).compare(at, commit).left_in_right))


def _locks(repo: Repository, target: Target) -> list[str]:
    """git's lock files for what is moved here."""
    names = [_branch(repo), *([target.tracking] if target.tracking else [])]
    return [os.path.join(repo.git_dir, "index.lock"), *(f"{repo.path_of(name)}.lock" for name in names)]


def _refuse_locks(repo: Repository, target: Target) -> None:
    held = next((path for path in _locks(repo, target) if os.path.lexists(path)), None)
    if held is not None:
        raise _locked(held)


def _locked(path: str) -> Blocked:
    return Blocked(f"another git process holds {path}", f"wait for it to end (or remove the file if there is none), then {_PULL}")


def _missing(repo: Repository, known: BaseObjectStore, base: str, commit: str) -> list[ShaFile]:
    return [item for item in making.list_new(known, base, commit) if item.id not in repo.objects]


def _look(repo: Repository, known: BaseObjectStore, environ: Mapping[str, str], base: str, commit: str, path: str) -> _Move | None:
    """Everything that must hold before the first rename; None where there is nothing to move any more. Raises Blocked, and KeyError
    where objects are missing."""
    obstacle = find_obstacle(repo)
    if obstacle is not None:
        raise Blocked(obstacle.message)
    made, start = read_commit(known, commit), read_commit(known, base)
    if [parent.decode("ascii") for parent in made.parents] != [base]:
        raise Blocked(f"{commit} is not the child of {base}")
    if making.list_changed_paths(known, start.tree, made.tree) != [path]:
        raise Blocked(f"{commit} changes more than {path}")
    if repo.head not in (base, commit):
        raise _other_commits(repo, known, base, commit)
    if repo.is_symbolic(_branch(repo)):
        raise Blocked(f"{repo.branch} is a symbolic ref")
    old, new = find_entry(known, start.tree, path), find_entry(known, made.tree, path)
    if not isinstance(old, tuple) or not isinstance(new, tuple) or old[0] != new[0] or not stat.S_ISREG(new[0]):
        raise Blocked(f"{path} is not the same regular file in both commits")
    blobs = (old[1].decode("ascii"), new[1].decode("ascii"))
    index = read_index(repo)
    tree = WorkTree(repo, index, environ)
    entry = next((entry for entry in index.entries if entry.path == path.encode()), None)
    if entry is None or entry.stage or entry.intended or entry.skipped or entry.sha not in blobs:
        raise Blocked(f"{path} is staged with another content, or not in the index")
    half = repo.head == commit or entry.sha == blobs[1] or tree.has_content(entry, blobs[1])
    if repo.head == commit and entry.sha == blobs[1] and tree.has_content(entry, blobs[1]):
        return None
    others = [change.path for change in list_staged(index, known, start.tree) if change.path != path]
    others += [change.path for change in tree.changes() if change.path != path]
    if others:
        raise Blocked(f"it has other changes: {', '.join(others[:5])}", _restore(path) if half else _PULL)
    if not any(tree.has_content(entry, blob) for blob in blobs):
        raise Blocked(f"{path} has another content in the work tree", _restore(path) if half else _PULL)
    content = tree.smudge(entry.path, read_object(known, new[1]).as_raw_string())
    if content is None:
        raise Blocked(f"{path} goes through a filter of git", _restore(path) if half else _PULL)
    return _Move(path, old[0], *blobs, content, index, entry, tree)


def _other_commits(repo: Repository, known: BaseObjectStore, base: str, commit: str) -> Blocked:
    assert repo.head is not None  # find_obstacle() has refused a branch without a commit.
    if Walk(known).compare(repo.head, commit).left_in_right:
        return Blocked(f"its branch is at {repo.head}, before {base}")
    return Blocked(f"its branch has commits of its own ({repo.head})", "git pull --rebase")


def _remove_leftovers(repo: Repository, target: Target, path: str) -> None:
    """Temporary files of a killed run, which held our lock on this work tree: nobody else writes files of these names there.

    A git lock file that is the very file of such a run goes with it: it was made as a second name of it.
    """
    if repo.branch is None:
        return
    beside = os.path.join(repo.top, os.path.dirname(path))
    for directory, prefix in ((repo.git_dir, PREFIX), (beside, "." + PREFIX)):
        for leftover in [os.path.join(directory, name) for name in _list(directory) if name.startswith(prefix)]:
            for lock in _locks(repo, target):
                if os.path.lexists(lock) and os.path.samestat(os.lstat(lock), os.lstat(leftover)):
                    os.unlink(lock)
            os.unlink(leftover)


def _list(directory: str) -> list[str]:
    return os.listdir(directory) if os.path.isdir(directory) else []


def _write_temporary(directory: str, prefix: str, data: bytes, mode: int) -> str:
    """A complete, synced file of these bytes and permissions, to be renamed."""
    with tempfile.NamedTemporaryFile(dir=directory, prefix=prefix, delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        except OSError:
            os.unlink(file.name)
            raise
    return file.name


def _rename(temporary: str, target: str) -> None:
    try:
        os.rename(temporary, target)
    except OSError:
        os.unlink(temporary)
        raise


def _move_file(repo: Repository, move: _Move) -> None:
    target = os.path.join(repo.top, move.path)
    if move.tree.has_content(move.entry, move.new):
        return
    status = os.lstat(target)
    same_device = status.st_dev == os.lstat(repo.git_dir).st_dev
    mode = stat.S_IMODE(status.st_mode)
    beside = not same_device
    if same_device:
        temporary = _write_temporary(repo.git_dir, PREFIX, move.content, mode)
        try:
            _rename(temporary, target)
        except OSError as error:
            # One device does not mean one mount: a bind mount between the two refuses the rename.
            if error.errno != errno.EXDEV:
                raise
            beside = True
    if beside:
        _rename(_write_temporary(os.path.dirname(target), "." + PREFIX, move.content, mode), target)
    making.sync_directory(os.path.dirname(target))


def _replace_locked(repo: Repository, target: str, data: bytes, mode: int, is_still: Callable[[], bool]) -> None:
    """Replace a file of git under git's own lock ``<file>.lock``, which is made complete, as a second name of our temporary file:
    a run that is killed in between leaves a lock that the next one knows as its own. ``is_still`` is asked under the lock."""
    lock = target + ".lock"
    temporary = _write_temporary(repo.git_dir, PREFIX, data, mode)
    try:
        _take_git_lock(temporary, lock, data, mode)
        if not is_still():
            os.unlink(lock)
            raise Blocked(f"{target} was changed by another process")
        os.rename(lock, target)
    finally:
        os.unlink(temporary)
    making.sync_directory(os.path.dirname(target))


def _take_git_lock(temporary: str, lock: str, data: bytes, mode: int) -> None:
    try:
        os.link(temporary, lock)
    except FileExistsError:
        raise _locked(lock) from None
    except OSError:
        # No hard links on this file system: git's way, with a moment in which a kill leaves a lock that a person has to remove.
        descriptor = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def _move_index(repo: Repository, move: _Move) -> None:
    target = os.path.join(repo.git_dir, "index")
    data = change_entry(move.index, move.entry, move.new, os.lstat(os.path.join(repo.top, move.path)))
    if data != move.index.data:
        mode = stat.S_IMODE(os.stat(target).st_mode)
        _replace_locked(repo, target, data, mode, lambda: read_index(repo).data == move.index.data)


def _move_ref(repo: Repository, name: str, allowed: tuple[str | None, ...], commit: str, environ: Mapping[str, str], why: str) -> None:
    before = repo.read_ref(name)
    if before == commit:
        return
    target = repo.path_of(name)
    if not os.path.isdir(os.path.dirname(target)):
        making.make_directory(os.path.dirname(target))
    mode = stat.S_IMODE(os.stat(target).st_mode) if os.path.exists(target) else _default_mode(repo)
    _replace_locked(repo, target, f"{commit}\n".encode(), mode, lambda: repo.read_ref(name) in allowed)
    for log in dict.fromkeys([name, "HEAD"] if name == repo.branch else [name]):
        _write_reflog(repo, log, before, commit, environ, why)


def _default_mode(repo: Repository) -> int:
    """The permissions of a new ref: those of its repository's configuration file, which git makes alike."""
    return stat.S_IMODE(os.stat(os.path.join(repo.common_dir, "config")).st_mode)


def _write_reflog(repo: Repository, name: str, before: str | None, commit: str, environ: Mapping[str, str], why: str) -> None:
    path = os.path.join(repo.git_dir if name == "HEAD" else repo.common_dir, "logs", name)
    wanted = repo.config.get("core", "logAllRefUpdates")
    if (
        not os.path.exists(path)
        and wanted is not None
        and wanted.lower() != "always"
        and not repo.config.get_bool("core", "logAllRefUpdates")
    ):
        return
    person = identity.find_identity(repo.config, environ, repo.top)
    if isinstance(person, Problem):
        return
    assert isinstance(person, Identity)
    if not os.path.isdir(os.path.dirname(path)):
        making.make_directory(os.path.dirname(path))
    stamp = identity.find_stamp(environ, "committer", time.time())
    line = f"{before or '0' * 40} {commit} {identity.format_person(person.committer, stamp)}\tgpu-transition: {why}\n"
    with open(path, "a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(line)
