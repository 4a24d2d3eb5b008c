"""The index file: reading it, and changing one entry in its bytes. Pure: bytes in, bytes out.

The format is gitformat-index(5), versions 2 to 4. Every byte that is not this entry's stays, but for the cached trees, which the
change makes wrong, and the table of offsets that goes with them.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from typing import NamedTuple

_HEADER = struct.Struct(">4sII")
_ENTRY = struct.Struct(">10I20sH")
_WORD = 0xFFFFFFFF
_EXTENDED, _VALID = 0x4000, 0x8000
_SKIP_WORKTREE, _INTENT_TO_ADD = 0x4000, 0x2000
# The cached trees of the old entries, and two tables that only speed up reading and are checksummed over the others.
_DROPPED = frozenset({b"TREE", b"EOIE", b"IEOT"})
_REQUIRED_AND_KNOWN = frozenset({b"sdir"})


class BadIndex(ValueError):
    """An index that can not be read here; the text says why. Never leaves the adapters."""


class Entry(NamedTuple):
    """One entry. ``stat`` is (ctime s, ns, mtime s, ns, dev, ino, mode, uid, gid, size) as stored, ``sha`` 40 hex digits."""

    path: bytes
    stat: tuple[int, ...]
    sha: str
    stage: int
    assumed: bool
    skipped: bool
    intended: bool
    offset: int

    @property
    def mode(self) -> int:
        """The mode as in a tree."""
        return self.stat[6]


@dataclass(frozen=True)
class Index:
    """A parsed index: the entries in order, and where they end in the data. ``tree`` is the tree of the whole index where git has
    noted it, which leaves out intended entries; else None."""

    data: bytes
    entries: tuple[Entry, ...]
    end: int
    tree: str | None


def parse_index(data: bytes) -> Index:
    """Parse the bytes of an index; raises BadIndex for a damaged one, and for one that is split over two files."""
    if len(data) < _HEADER.size + 20:
        raise BadIndex("the index is too short")
    signature, version, count = _HEADER.unpack_from(data)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise BadIndex(f"the index has the unknown version {version}")
    if data[-20:] not in (bytes(20), hashlib.sha1(data[:-20]).digest()):
        raise BadIndex("the index is damaged: its checksum is wrong")
    entries: list[Entry] = []
    at, path = _HEADER.size, b""
    try:
        for _ in range(count):
            *numbers, sha, flags = _ENTRY.unpack_from(data, at)
            start, name_at, extended = at, at + _ENTRY.size, 0
            if flags & _EXTENDED:
                (extended,) = struct.unpack_from(">H", data, name_at)
                name_at += 2
            if version == 4:
                strip, name_at = _read_varint(data, name_at)
                end = data.index(0, name_at)
                path, at = path[: len(path) - strip] + data[name_at:end], end + 1
            else:
                end = data.index(0, name_at)
                path, at = data[name_at:end], start + (end - start + 8) // 8 * 8
            entries.append(
                Entry(
                    path, tuple(numbers), sha.hex(), flags >> 12 & 3, bool(flags & _VALID),
                    bool(extended & _SKIP_WORKTREE), bool(extended & _INTENT_TO_ADD), start,
                )
            )  # fmt: skip
    except (struct.error, ValueError) as error:
        raise BadIndex("the index is damaged") from error
    tree: str | None = None
    for name, raw in _extensions(data, at):
        if name == b"TREE":
            tree = _read_root(raw[8:])
        if name[:1].islower() and name not in _REQUIRED_AND_KNOWN:
            hint = "; `git update-index --no-split-index` joins it" if name == b"link" else ""
            raise BadIndex(f"the index has the extension {name.decode('ascii', 'replace')}, which is not supported{hint}")
    return Index(data, tuple(entries), at, tree)


def _read_root(cached: bytes) -> str | None:
    """The root's id of the cached trees: an empty name, NUL, ``<entries> <subtrees>``, newline, id; -1 entries where it is not valid."""
    head, _, rest = cached.partition(b"\n")
    counts = head.removeprefix(b"\0").split(b" ")
    return rest[:20].hex() if len(counts) == 2 and counts[0].isdigit() and len(rest) >= 20 else None


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The offset encoding of pack files: most significant part first, one added for each further byte."""
    byte = data[at]
    value = byte & 127
    while byte & 128:
        at += 1
        byte = data[at]
        value = (value + 1) << 7 | byte & 127
    return value, at + 1


def _extensions(data: bytes, at: int) -> list[tuple[bytes, bytes]]:
    """The extensions after the entries: name, and all of its bytes with the header."""
    found: list[tuple[bytes, bytes]] = []
    while at + 8 <= len(data) - 20:
        name, size = struct.unpack_from(">4sI", data, at)
        if at + 8 + size > len(data) - 20:
            raise BadIndex("the index is damaged: an extension is longer than the file")
        found.append((name, data[at : at + 8 + size]))
        at += 8 + size
    return found


def change_entry(index: Index, entry: Entry, sha: str, status: os.stat_result) -> bytes:
    """The bytes of the index with this entry at another blob and at the file's new stat data; its mode and flags stay."""
    numbers = stat_numbers(status)
    fields = (*numbers[:6], entry.mode, *numbers[7:])
    fixed = struct.pack(">10I20s", *fields, bytes.fromhex(sha))
    head = index.data[: entry.offset] + fixed + index.data[entry.offset + len(fixed) : index.end]
    body = head + b"".join(raw for name, raw in _extensions(index.data, index.end) if name not in _DROPPED)
    # index.skipHash leaves zeros in the place of the checksum.
    return body + (bytes(20) if index.data[-20:] == bytes(20) else hashlib.sha1(body).digest())


def stat_numbers(status: os.stat_result) -> tuple[int, ...]:
    """A file's stat data as an index holds it: each number cut to 32 bits, in the order of ``Entry.stat``."""
    seconds, nanos = divmod(status.st_ctime_ns, 10**9)
    modified, modified_nanos = divmod(status.st_mtime_ns, 10**9)
    return (
        seconds & _WORD, nanos, modified & _WORD, modified_nanos, status.st_dev & _WORD, status.st_ino & _WORD,
        status.st_mode, status.st_uid, status.st_gid, status.st_size & _WORD,
    )  # fmt: skip
