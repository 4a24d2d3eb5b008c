"""Line ends between work tree and repository, as git's convert.c decides and converts them. Pure.

Filters that run programs, other encodings and ``$Id$`` are not carried out here: a file that has one of these is not comparable.
The rules are gitattributes(5) ``text``, ``eol`` and git-config(1) ``core.autocrlf``, ``core.eol``.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kubectl_gpu_transition.adapters.gitconfig import ConfigError, GitConfig

Attributes = Mapping[bytes, "bytes | bool | None"]

# Everything below a space but backspace, tab, escape and form feed, which git counts as printable.
_CONTROLS = bytes(code for code in [*range(32), 127] if code not in b"\b\t\x1b\x0c")


class Action(enum.Enum):
    """What happens to line ends: the second word is what the work tree gets. AUTO decides by the content."""

    BINARY = "binary"
    TEXT_LF = "text lf"
    TEXT_CRLF = "text crlf"
    AUTO_LF = "auto lf"
    AUTO_CRLF = "auto crlf"

    @property
    def guesses(self) -> bool:
        return self in (Action.AUTO_LF, Action.AUTO_CRLF)


@dataclass(frozen=True)
class Settings:
    """``autocrlf`` is true, false or input; ``crlf`` whether text without an ``eol`` attribute gets CRLF in the work tree."""

    autocrlf: str
    crlf: bool


def read_settings(config: GitConfig) -> Settings:
    """The two settings of git-config(1); raises ConfigError."""
    raw = config.get("core", "autocrlf")
    is_input = raw is not None and raw.lower() == "input"
    autocrlf = "input" if is_input else "true" if config.get_bool("core", "autocrlf") else "false"
    eol = (config.get("core", "eol") or "native").lower()
    if eol not in ("lf", "crlf", "native"):
        raise ConfigError(f"bad value {eol!r} for core.eol")
    crlf = autocrlf == "true" or (autocrlf == "false" and (eol == "crlf" or (eol == "native" and os.linesep == "\r\n")))
    return Settings(autocrlf, crlf)


def find_unsupported(attributes: Attributes) -> str | None:
    """The attribute that makes a file's work tree content another one in a way that is not carried out here, or None."""
    for name in (b"filter", b"working-tree-encoding"):
        if isinstance(attributes.get(name), bytes):
            return name.decode()
    return "ident" if attributes.get(b"ident") is True else None


def decide(attributes: Attributes, settings: Settings) -> Action:
    """git's convert_attrs(): the action for a path's attributes (absent or None: unspecified)."""
    text = attributes.get(b"text")
    if text not in (True, False, b"auto", b"input"):
        text = attributes.get(b"crlf")
    if attributes.get(b"binary") is True:
        text = False
    eol = attributes.get(b"eol")
    if text is False:
        return Action.BINARY
    if text == b"auto":
        if eol == b"lf" or eol == b"crlf":
            return Action.AUTO_LF if eol == b"lf" else Action.AUTO_CRLF
        return Action.AUTO_CRLF if settings.crlf else Action.AUTO_LF
    if eol == b"lf" or eol == b"crlf":
        return Action.TEXT_LF if eol == b"lf" else Action.TEXT_CRLF
    if text is True:
        return Action.TEXT_CRLF if settings.crlf else Action.TEXT_LF
    if text == b"input":
        return Action.TEXT_LF
    return {"true": Action.AUTO_CRLF, "input": Action.AUTO_LF, "false": Action.BINARY}[settings.autocrlf]


def is_binary(data: bytes) -> bool:
    """git's convert_is_binary(): a NUL, a carriage return alone, or more than one unprintable byte in 128."""
    if 0 in data or data.count(b"\r") != data.count(b"\r\n"):
        return True
    printable = len(data.translate(None, _CONTROLS))
    unprintable = len(data) - printable - data.count(b"\n") - data.count(b"\r") - data.endswith(b"\x1a")
    return printable >> 7 < unprintable


def to_repository(data: bytes, action: Action, read_indexed: Callable[[], bytes]) -> bytes:
    """The blob that ``git add`` would make of the work tree's bytes. ``read_indexed`` gives the blob in the index, asked for only
    where it matters: a text committed with CRLF keeps it when git only guesses."""
    if action is Action.BINARY or b"\r\n" not in data:
        return data
    if action.guesses:
        if is_binary(data):
            return data
        indexed = read_indexed()
        if b"\r\n" in indexed and not is_binary(indexed):
            return data
    return data.replace(b"\r\n", b"\n")


def to_work_tree(data: bytes, action: Action) -> bytes:
    """The bytes that a checkout of the blob would write."""
    if action not in (Action.TEXT_CRLF, Action.AUTO_CRLF) or data.count(b"\n") == data.count(b"\r\n"):
        return data
    if action.guesses and (b"\r" in data or is_binary(data)):
        return data
    return data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
