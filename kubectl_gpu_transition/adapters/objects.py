"""Making objects: a commit with one changed file on a parent, the objects that a push must send, and writing them to disk.

Objects are made in memory and, where asked, written loose and durable (temporary file, fsync, rename): unreferenced, so that it is
no change to the repository (spec section 4).
"""

from __future__ import annotations

import os
import stat
import tempfile
import zlib
from collections.abc import Iterable

from dulwich.object_store import BaseObjectStore
from dulwich.objects import Blob, Commit, ObjectID, ShaFile, Tree

from kubectl_gpu_transition.adapters.repository import oid, read_commit, read_object, read_tree


def build_commit(
    objects: BaseObjectStore, parent: str, path: str, content: bytes, message: str, author: str, committer: str
) -> tuple[Commit, list[ShaFile]]:
    """A commit on ``parent`` with the bytes of one file changed, its mode kept, and every object that is new with it.

    ``author`` and ``committer`` are the lines' tails, ``Name <email> seconds zone``. Raises KeyError where the parent's objects are
    missing or have no file at that path.
    """
    blob = Blob.from_string(content)
    tree, new = _change_tree(objects, read_commit(objects, parent).tree, path.encode().split(b"/"), blob)
    text = message if message.endswith("\n") else message + "\n"
    raw = f"tree {tree.id.decode()}\nparent {parent}\nauthor {author}\ncommitter {committer}\n\n{text}"
    commit = Commit()
    commit.set_raw_string(raw.encode("utf-8", "surrogateescape"))
    return commit, [blob, *new, commit]


def _change_tree(objects: BaseObjectStore, sha: ObjectID, parts: list[bytes], blob: Blob) -> tuple[Tree, list[ShaFile]]:
    tree = read_tree(objects, sha).copy()
    assert isinstance(tree, Tree)
    mode, entry = tree[parts[0]]
    if len(parts) == 1:
        if not stat.S_ISREG(mode):
            raise KeyError(parts[0])
        tree[parts[0]] = (mode, blob.id)
        return tree, [tree]
    below, new = _change_tree(objects, entry, parts[1:], blob)
    tree[parts[0]] = (mode, below.id)
    return tree, [*new, tree]


def list_new(objects: BaseObjectStore, parent: str, commit: str) -> list[ShaFile]:
    """What a remote that has ``parent`` lacks of ``commit``: the commit and the trees and blobs that the parent's tree does not have
    at the same path. Raises KeyError where one of them is missing here."""
    made = read_commit(objects, commit)
    found: list[ShaFile] = [made]
    _compare(objects, read_commit(objects, parent).tree, made.tree, found)
    return found


def _compare(objects: BaseObjectStore, old: ObjectID | None, new: ObjectID, found: list[ShaFile]) -> None:
    if old == new:
        return
    tree = read_tree(objects, new)
    found.append(tree)
    before = {item.path: (item.mode, item.sha) for item in read_tree(objects, old).iteritems()} if old else {}
    for item in tree.iteritems():
        mode, sha = before.get(item.path, (None, None))
        if stat.S_ISDIR(item.mode):
            _compare(objects, sha if mode is not None and stat.S_ISDIR(mode) else None, item.sha, found)
        elif item.sha != sha and stat.S_IFMT(item.mode) != 0o160000:
            found.append(read_object(objects, item.sha))


def list_changed_paths(objects: BaseObjectStore, old: ObjectID, new: ObjectID, prefix: str = "") -> list[str]:
    """Paths of files that differ between two trees; raises KeyError where a tree is missing."""
    if old == new:
        return []
    before, after = ({i.path: (i.mode, i.sha) for i in read_tree(objects, sha).iteritems()} for sha in (old, new))
    changed: list[str] = []
    for name in sorted({*before, *after}, key=lambda part: part or b""):
        first, second = before.get(name), after.get(name)
        if first == second or name is None:
            continue
        path = prefix + name.decode("utf-8", "replace")
        if first and second and first[0] == second[0] == stat.S_IFDIR and first[1] and second[1]:
            changed += list_changed_paths(objects, first[1], second[1], path + "/")
        else:
            changed.append(path)
    return changed


def write_loose(directory: str, objects: Iterable[ShaFile]) -> None:
    """Write objects that are not there yet as loose files below an ``objects`` directory, durable; raises OSError."""
    for item in objects:
        name = item.id.decode("ascii")
        place = os.path.join(directory, name[:2])
        target = os.path.join(place, name[2:])
        if os.path.exists(target):
            continue
        if not os.path.isdir(place):
            make_directory(place)
        with tempfile.NamedTemporaryFile(dir=directory, prefix="tmp_obj_", delete=False) as file:
            try:
                file.write(zlib.compress(item.type_name + b" %d\x00" % item.raw_length() + item.as_raw_string()))
                file.flush()
                os.fchmod(file.fileno(), 0o444)
                os.fsync(file.fileno())
                os.rename(file.name, target)
            except OSError:
                os.unlink(file.name)
                raise
        sync_directory(place)


def make_directory(path: str) -> None:
    """A directory, and those above it, with the permissions of the one that they are made in (core.sharedRepository)."""
    above = os.path.dirname(path)
    if not os.path.isdir(above):
        make_directory(above)
    try:
        os.mkdir(path)
    except FileExistsError:
        return
    os.chmod(path, stat.S_IMODE(os.stat(above).st_mode))


def sync_directory(path: str) -> None:
    """Make a rename in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # Some file systems have no fsync for directories; the rename itself is still atomic.
    finally:
        os.close(descriptor)


def has_all(objects: BaseObjectStore, parent: str, commit: str) -> bool:
    """Whether everything that a push of ``commit`` on ``parent`` needs is here."""
    try:
        list_new(objects, parent, commit)
    except KeyError:
        return False
    return oid(commit) in objects
