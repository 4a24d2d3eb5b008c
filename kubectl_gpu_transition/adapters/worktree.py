"""What differs between HEAD, the index and the work tree, found as git would and without writing: not even the index is refreshed.

Responsible for the comparison alone. A file whose stat data is the index's counts as unchanged, as for git; else its content
decides, line ends converted. A file that only an external filter could compare counts as changed: nothing is run here.
"""

from __future__ import annotations

import hashlib
import os
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dulwich.attrs import AttributeValue, GitAttributes, Pattern, compile_gitattributes_patterns, parse_git_attributes
from dulwich.object_store import BaseObjectStore
from dulwich.objects import ObjectID

from kubectl_gpu_transition.adapters import eol, gitconfig
from kubectl_gpu_transition.adapters.gitindex import Entry, Index, parse_index, stat_numbers
from kubectl_gpu_transition.adapters.ignores import Ignores
from kubectl_gpu_transition.adapters.repository import Repository, Unusable, oid, open_repository, read_object, read_tree

_GITLINK = 0o160000
_EMPTY_INDEX = b"DIRC" + bytes([0, 0, 0, 2, 0, 0, 0, 0])


@dataclass(frozen=True)
class Change:
    """One difference: ``kind`` is staged, changed or untracked. An untracked directory ends in a slash."""

    kind: str
    path: str


def read_index(repo: Repository) -> Index:
    """The index of the work tree, empty where there is none; raises BadIndex and OSError."""
    try:
        with open(os.path.join(repo.git_dir, "index"), "rb") as file:
            return parse_index(file.read())
    except FileNotFoundError:
        return parse_index(_EMPTY_INDEX + hashlib.sha1(_EMPTY_INDEX).digest())


def shown(path: bytes) -> str:
    """A path of the index for people."""
    return path.decode("utf-8", "backslashreplace")


def list_staged(index: Index, objects: BaseObjectStore, tree: ObjectID) -> Iterator[Change]:
    """Where index and tree differ, unmerged and intended entries included; raises KeyError where a tree is missing."""
    if index.tree == tree.decode("ascii"):
        yield from (Change("staged", shown(entry.path)) for entry in index.entries if entry.stage or entry.intended)
        return
    sparse = frozenset(entry.path.rstrip(b"/") for entry in index.entries if stat.S_ISDIR(entry.mode))
    committed = dict(_flatten(objects, tree, b"", sparse))
    for entry in index.entries:
        expected = committed.pop(entry.path.rstrip(b"/"), None)
        if entry.stage or entry.intended or expected != (entry.mode, entry.sha):
            yield Change("staged", shown(entry.path))
    for path in committed:
        yield Change("staged", shown(path))


def _flatten(objects: BaseObjectStore, tree: ObjectID, prefix: bytes, sparse: frozenset[bytes]) -> Iterator[tuple[bytes, tuple[int, str]]]:
    for item in read_tree(objects, tree).iteritems():
        path = prefix + item.path
        if stat.S_ISDIR(item.mode) and path not in sparse:
            yield from _flatten(objects, item.sha, path + b"/", sparse)
        else:
            # Trees of old have modes such as 100664, which git reads as 100644.
            mode = item.mode if not stat.S_ISREG(item.mode) else 0o100755 if item.mode & 0o100 else 0o100644
            yield path, (mode, item.sha.decode("ascii"))


class WorkTree:
    """The files below the top of one work tree, against one index."""

    def __init__(self, repo: Repository, index: Index, environ: Mapping[str, str]) -> None:
        self.repo, self.index, self.environ = repo, index, environ
        self.settings = eol.read_settings(repo.config)
        self.file_mode = repo.config.get_bool("core", "fileMode", True)
        self.symlinks = repo.config.get_bool("core", "symlinks", True)
        self.compose = repo.config.get_bool("core", "precomposeUnicode")
        self.minimal = (repo.config.get("core", "checkStat") or "").lower() == "minimal"
        self.trust_ctime = repo.config.get_bool("core", "trustctime", True)
        self.top = os.fsencode(repo.top)
        self.attributes = self._load_attributes()
        self.indexed_at = self._index_time()

    def _index_time(self) -> int:
        try:
            return os.stat(os.path.join(self.repo.git_dir, "index")).st_mtime_ns
        except FileNotFoundError:
            return 0

    def changes(self) -> Iterator[Change]:
        """Changed and untracked paths, found in one pass over the tree; raises OSError where a directory can not be read."""
        entries: dict[bytes, Entry] = {}
        for entry in self.index.entries:
            if entry.stage:
                entries.setdefault(entry.path, entry)
            elif not (entry.skipped or entry.assumed or stat.S_ISDIR(entry.mode)):
                entries[entry.path] = entry
        tracked = {entry.path for entry in self.index.entries}
        directories = {b""}
        for path in tracked:
            while (path := path.rpartition(b"/")[0]) not in directories:
                directories.add(path)
        ignores = Ignores(self.repo.top, self.repo.common_dir, self.repo.config, self.environ)
        yield from self._walk(b"", directories, tracked, entries, ignores)
        for path in entries:
            if entries[path].mode != _GITLINK:
                yield Change("changed", shown(path))

    def _walk(
        self, below: bytes, directories: set[bytes], tracked: set[bytes], entries: dict[bytes, Entry], ignores: Ignores
    ) -> Iterator[Change]:
        """One directory that holds tracked files. What was seen is taken out of ``entries``; what stays there is gone."""
        prefix = below + b"/" if below else b""
        with os.scandir(os.path.join(self.top, below)) as found:
            items = sorted(found, key=lambda item: item.name)
        for item in items:
            if item.name == b".git":
                continue
            path = prefix + self._composed(item.name)
            if path in tracked:
                entry = entries.pop(path, None)
                if entry is not None and self._is_changed(entry, item.stat(follow_symlinks=False)):
                    yield Change("changed", shown(path))
                if not item.is_dir(follow_symlinks=False) or path not in directories:
                    continue
            if path in directories and item.is_dir(follow_symlinks=False):
                yield from self._walk(path, directories, tracked, entries, ignores)
            elif untracked := self._find_untracked(path, item.is_dir(follow_symlinks=False), ignores):
                yield Change("untracked", shown(untracked))

    def _composed(self, name: bytes) -> bytes:
        if not self.compose or name.isascii():
            return name
        return os.fsencode(unicodedata.normalize("NFC", os.fsdecode(name)))

    def _find_untracked(self, path: bytes, is_directory: bool, ignores: Ignores) -> bytes | None:
        """The path where git would list it as untracked: not ignored, and a directory only if there is something to list in it."""
        if ignores.is_ignored(path, is_directory):
            return None
        if not is_directory:
            return path
        with os.scandir(os.path.join(self.top, path)) as found:
            items = list(found)
        if any(item.name == b".git" for item in items):
            return path + b"/"
        for item in items:
            if self._find_untracked(path + b"/" + item.name, item.is_dir(follow_symlinks=False), ignores):
                return path + b"/"
        return None

    def _load_attributes(self) -> GitAttributes:
        """Attributes, the least important first: the user's file, each directory's, the repository's (gitattributes(5))."""
        home = gitconfig.config_home(self.environ)
        configured = self.repo.config.get("core", "attributesFile")
        user = gitconfig.expand_home(configured, self.environ) if configured else os.path.join(home, "attributes") if home else None
        system = [] if "GIT_ATTR_NOSYSTEM" in self.environ else _read_attributes("/etc/gitattributes")
        patterns = system + (_read_attributes(os.path.join(self.repo.top, user)) if user else [])

        def load(directory: bytes) -> list[tuple[Pattern, Mapping[bytes, AttributeValue]]]:
            path = os.path.join(self.top, directory, b".gitattributes")
            return [] if os.path.islink(path) else _read_attributes(os.fsdecode(path), directory)

        info = _read_attributes(os.path.join(self.repo.common_dir, "info", "attributes"))
        return GitAttributes(patterns + load(b""), directory_loader=load, info_patterns=info)

    def _is_changed(self, entry: Entry, status: os.stat_result) -> bool:
        """Whether a file differs from its entry, for git."""
        if entry.stage:
            return True
        if entry.mode == _GITLINK:
            return self._is_submodule_changed(entry, status)
        kind = stat.S_IFMT(status.st_mode)
        # Without core.symlinks a link is checked out as a file that holds its target.
        if kind != stat.S_IFMT(entry.mode) and (self.symlinks or kind != stat.S_IFREG):
            return True
        if self.file_mode and stat.S_ISREG(entry.mode) and bool(status.st_mode & 0o100) != bool(entry.mode & 0o100):
            return True
        # git looks at no content when the size is another one (0: not known), so that a file with other line ends alone is changed.
        if entry.stat[9] not in (0, status.st_size & 0xFFFFFFFF):
            return True
        return not self._is_fresh(entry, status) and not self.has_content(entry, entry.sha)

    def _is_fresh(self, entry: Entry, status: os.stat_result) -> bool:
        """Whether the stat data says "unchanged": all of it is the index's, and the file is older than the index (else a change in
        the same moment would not show)."""
        now, then = stat_numbers(status), entry.stat
        if now[2:4] != then[2:4] or now[9] != then[9] or then[2] * 10**9 + then[3] >= self.indexed_at:
            return False
        if self.minimal:
            return True
        return now[5] == then[5] and now[7:9] == then[7:9] and (not self.trust_ctime or now[:2] == then[:2])

    def has_content(self, entry: Entry, sha: str) -> bool:
        """Whether the file of an entry, as ``git add`` would take it, is the blob ``sha``. No stat data is trusted."""
        path = os.path.join(self.top, entry.path)
        try:
            if os.path.islink(path):
                return stat.S_ISLNK(entry.mode) and blob_id(os.readlink(path)) == sha
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            return False
        if stat.S_ISLNK(entry.mode):
            return blob_id(data) == sha
        attributes = self.attributes.match_path(entry.path)
        if eol.find_unsupported(attributes) is not None:
            return False
        action = eol.decide(attributes, self.settings)
        return blob_id(eol.to_repository(data, action, lambda: self._read_indexed(entry))) == sha

    def _read_indexed(self, entry: Entry) -> bytes:
        return read_object(self.repo.objects, oid(entry.sha)).as_raw_string()

    def smudge(self, path: bytes, data: bytes) -> bytes | None:
        """The bytes that a checkout would write for a blob at a path, or None where only an external filter could say."""
        attributes = self.attributes.match_path(path)
        if eol.find_unsupported(attributes) is not None:
            return None
        return eol.to_work_tree(data, eol.decide(attributes, self.settings))

    def _is_submodule_changed(self, entry: Entry, status: os.stat_result) -> bool:
        """Whether another commit is checked out there; what is inside is not looked at. One that is not checked out is unchanged."""
        if not stat.S_ISDIR(status.st_mode):
            return True
        place = os.path.join(self.top, entry.path)
        if not os.path.lexists(os.path.join(place, b".git")):
            return False
        try:
            with open_repository(os.fsdecode(place), self.environ) as inner:
                return inner.head != entry.sha
        except Unusable:
            return True


def _read_attributes(path: str, base: bytes = b"") -> list[tuple[Pattern, Mapping[bytes, AttributeValue]]]:
    try:
        with open(path, "rb") as file:
            return compile_gitattributes_patterns(parse_git_attributes(file), path, base)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return []


def blob_id(data: bytes) -> str:
    """The object id of a blob with these bytes."""
    return hashlib.sha1(b"blob %d\x00" % len(data) + data).hexdigest()
