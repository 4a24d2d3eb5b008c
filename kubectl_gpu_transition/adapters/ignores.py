"""Which untracked paths git ignores: the files of rules, their order, and "nothing below an ignored directory comes back".

The patterns themselves are dulwich's. Its manager is not used: asked about a directory it also says yes when only what is in it is
ignored, which hides files that a later pattern takes back. Rules: gitignore(5).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from dulwich.ignore import IgnoreFilter, Pattern, read_ignore_patterns

from kubectl_gpu_transition.adapters.gitconfig import GitConfig, config_home, expand_home


class Ignores:
    """The rules of one work tree. Paths are bytes from its top, without a slash at the end; files are read when first needed."""

    def __init__(self, top: str, common_dir: str, config: GitConfig, environ: Mapping[str, str]) -> None:
        self._top = os.fsencode(top)
        self._ignore_case = config.get_bool("core", "ignoreCase")
        home, configured = config_home(environ), config.get("core", "excludesFile")
        user = expand_home(configured, environ) if configured else os.path.join(home, "ignore") if home else None
        # The first list that has a match decides, so the directories' own come before these.
        self._others = [self._read(os.path.join(common_dir, "info", "exclude"))]
        self._others += [self._read(os.path.join(top, user))] if user else []
        self._files: dict[bytes, list[Pattern]] = {}
        self._directories: dict[bytes, bool] = {b"": False}

    def is_ignored(self, path: bytes, is_directory: bool) -> bool:
        """Whether git ignores the path, for its own sake or as a part of an ignored directory. A link is no directory."""
        parent = path.rpartition(b"/")[0]
        if parent not in self._directories:
            self._directories[parent] = self.is_ignored(parent, True)
        return self._directories[parent] or self._matches(path, is_directory)

    def _matches(self, path: bytes, is_directory: bool) -> bool:
        parts = path.split(b"/")
        for depth in reversed(range(len(parts))):
            found = _decide(self._rules_of(b"/".join(parts[:depth])), b"/".join(parts[depth:]), is_directory)
            if found is not None:
                return found
        for patterns in self._others:
            found = _decide(patterns, path, is_directory)
            if found is not None:
                return found
        return False

    def _rules_of(self, directory: bytes) -> list[Pattern]:
        if directory not in self._files:
            path = os.path.join(self._top, directory, b".gitignore")
            self._files[directory] = [] if os.path.islink(path) else self._read(path)
        return self._files[directory]

    def _read(self, path: str | bytes) -> list[Pattern]:
        try:
            with open(path, "rb") as file:
                if file.read(3) != b"\xef\xbb\xbf":
                    file.seek(0)
                return IgnoreFilter(read_ignore_patterns(file), self._ignore_case, os.fsdecode(path)).patterns
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return []


def _decide(patterns: list[Pattern], name: bytes, is_directory: bool) -> bool | None:
    """What one file of rules says: its last match counts."""
    return next((pattern.is_exclude for pattern in reversed(patterns) if pattern.matches(name, is_directory)), None)
