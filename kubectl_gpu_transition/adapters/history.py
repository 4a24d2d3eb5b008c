"""What lies between two commits: ancestry, and the commits that only one of them has. Pure over an object store.

The walk is git's painting down by date (commit-reach.c): correct whatever the dates say, and short where they are sane. A parent
that is not in the store is reported, never taken for "has no parents" (spec section 6: a shallow clone is not a rewritten history).
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from dulwich.object_store import BaseObjectStore
from dulwich.objects import Commit

from kubectl_gpu_transition.adapters.repository import read_commit
from kubectl_gpu_transition.model import TRAILER, CommitFacts

_LEFT, _RIGHT, _STALE = 1, 2, 4
_TRAILER = re.compile(rb"(?i:" + TRAILER.encode() + rb")[ \t]*:[ \t]*(\S.*?)[ \t]*")


@dataclass(frozen=True)
class Comparison:
    """Two commits compared: is one an ancestor of (or equal to) the other, the commits that only ``right`` has (newest first),
    and whether a missing parent could change any of this."""

    left_in_right: bool
    right_in_left: bool
    only_right: tuple[str, ...]
    complete: bool


class Walk:
    """Reads commits once, and remembers whose parents were not to be had."""

    def __init__(self, objects: BaseObjectStore) -> None:
        self.objects = objects
        self._read: dict[str, Commit | None] = {}

    def find(self, commit: str) -> Commit | None:
        """The commit, or None where it is not in the store."""
        if commit not in self._read:
            try:
                self._read[commit] = read_commit(self.objects, commit)
            except KeyError:
                self._read[commit] = None
        return self._read[commit]

    def compare(self, left: str, right: str) -> Comparison:
        """Compare two commits. Either may be absent; the answer is then incomplete unless the other's ancestry is all here."""
        flags: dict[str, int] = {}
        queue: list[tuple[int, str]] = []
        complete = True
        visited: dict[str, None] = {}

        def mark(commit: str, flag: int) -> None:
            if flags.get(commit, 0) & flag != flag:
                flags[commit] = flags.get(commit, 0) | flag
                found = self.find(commit)
                heapq.heappush(queue, (-found.commit_time if found else 0, commit))

        mark(left, _LEFT)
        mark(right, _RIGHT)
        while any(not flags[commit] & _STALE for _, commit in queue):
            _, commit = heapq.heappop(queue)
            flag = flags[commit]
            found = self.find(commit)
            if found is None:
                # An absent end says nothing by itself: it is found, or not, in the other's ancestry.
                if not flag & _STALE and flag != (_LEFT if commit == left else 0):
                    complete = False
                continue
            visited[commit] = None
            if flag & _LEFT and flag & _RIGHT:
                flag |= _STALE
            for parent in found.parents:
                mark(parent.decode("ascii"), flag)
        only = tuple(commit for commit in visited if flags[commit] & (_LEFT | _RIGHT) == _RIGHT)
        return Comparison(bool(flags[left] & _RIGHT), bool(flags[right] & _LEFT), only, complete)

    def ancestors(self, tip: str) -> Iterator[str | None]:
        """The commit and everything before it, newest first by date; None once for each parent that is not in the store."""
        queue: list[tuple[int, str]] = []
        seen = {tip}
        start = self.find(tip)
        heapq.heappush(queue, (-start.commit_time if start else 0, tip))
        while queue:
            _, commit = heapq.heappop(queue)
            found = self.find(commit)
            if found is None:
                yield None
                continue
            yield commit
            for parent in (item.decode("ascii") for item in found.parents):
                if parent not in seen:
                    seen.add(parent)
                    before = self.find(parent)
                    heapq.heappush(queue, (-before.commit_time if before else 0, parent))


def describe_commit(commit: str, found: Commit) -> CommitFacts:
    """Id, subject and transaction trailers of a commit."""
    message = found.message.decode("utf-8", "replace")
    return CommitFacts(commit, find_subject(message), find_transactions(found.message))


def find_subject(message: str) -> str:
    """The first paragraph of a message as one line, as git shows it."""
    lines = itertools.dropwhile(lambda line: not line, (line.strip() for line in message.split("\n")))
    return " ".join(itertools.takewhile(bool, lines))


def find_transactions(message: bytes) -> tuple[str, ...]:
    """Values of the ``Gpu-Transition-Id`` trailers: lines of the last paragraph, which is not the subject's (git-interpret-trailers(1)).

    A revert quotes the subject but no trailers; a cherry-pick keeps them.
    """
    paragraphs = [part for part in re.split(rb"\n[ \t]*\n", message.replace(b"\r\n", b"\n").strip(b"\n")) if part.strip()]
    if len(paragraphs) < 2:
        return ()
    matches = (_TRAILER.fullmatch(line) for line in paragraphs[-1].splitlines())
    return tuple(match[1].decode("utf-8", "replace") for match in matches if match)
