"""Who git would say writes a commit, and when. Pure: configuration, environment and the time come in as arguments.

The rules are git-commit-tree(1) "COMMIT INFORMATION", git-config(1) ``user.*``, ``author.*``, ``committer.*`` and git's ident.c. The
account of the operating system is never taken, although git would fall back to it on some machines (spec section 9).
"""

from __future__ import annotations

import email.utils
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from kubectl_gpu_transition.adapters.gitconfig import ConfigError, GitConfig
from kubectl_gpu_transition.model import Identity, Problem

_CRUD = "".join(map(chr, range(33))) + ".,:;<>\"\\'"
_REMEDY = 'git config --global user.name "Your Name" && git config --global user.email you@example.com'


@dataclass(frozen=True)
class Stamp:
    """A moment as commits record it: seconds since the epoch and the offset from UTC in seconds."""

    seconds: int
    offset: int


def _strip(text: str) -> str:
    """A name or address without what git strips from its ends, and without newlines and angle brackets inside (ident.c)."""
    return re.sub(r"[\n<>]", "", text.strip(_CRUD))


def _find_part(config: GitConfig, environ: Mapping[str, str], role: str, part: str) -> str | None:
    variable = environ.get(f"GIT_{role.upper()}_{part.upper()}")
    if variable is not None:
        return variable
    configured = config.get(role, part) or config.get("user", part)
    if configured or part != "email" or config.get_bool("user", "useConfigOnly"):
        return configured or None
    return environ.get("EMAIL") or None


def _find_person(config: GitConfig, environ: Mapping[str, str], role: str) -> str | Problem:
    """``Name <email>`` of the author or the committer."""
    name, address = (_find_part(config, environ, role, part) for part in ("name", "email"))
    if name is None or address is None:
        missing = "name" if name is None else "email"
        return Problem(f"git has no {role} {missing}: neither user.{missing} nor GIT_{role.upper()}_{missing.upper()} is set", _REMEDY)
    name, address = _strip(name), _strip(address)
    if not name:
        return Problem(f"the {role} name is empty or has only characters that git strips", _REMEDY)
    return f"{name} <{address}>"


def find_identity(config: GitConfig, environ: Mapping[str, str], repo: str) -> Identity | Problem:
    """Author and committer as git would choose them. Signing that is asked for, and a date that git would not read, are Problems."""
    try:
        if config.get_bool("commit", "gpgSign"):
            return Problem(
                "commits are to be signed (commit.gpgSign), and signing is not supported yet: an unsigned commit is never pushed instead",
                f"git -C {shlex.quote(repo)} config commit.gpgSign false",
            )
        author, committer = (_find_person(config, environ, role) for role in ("author", "committer"))
    except ConfigError as error:
        return Problem(str(error))
    if isinstance(author, Problem):
        return author
    if isinstance(committer, Problem):
        return committer
    for role in ("AUTHOR", "COMMITTER"):
        text = environ.get(f"GIT_{role}_DATE")
        if text and parse_date(text) is None:
            return Problem(f"GIT_{role}_DATE is no date that is understood here: {text!r}", f"unset GIT_{role}_DATE")
    return Identity(author, committer)


def find_stamp(environ: Mapping[str, str], role: str, now: float) -> Stamp:
    """The moment for the author or the committer: GIT_<ROLE>_DATE where set and readable, else now in local time."""
    text = environ.get(f"GIT_{role.upper()}_DATE")
    parsed = parse_date(text) if text else None
    if parsed is not None:
        return parsed
    return Stamp(int(now), _local_offset(int(now)))


def _local_offset(seconds: float) -> int:
    delta = datetime.fromtimestamp(seconds, timezone.utc).astimezone().utcoffset()
    return int(delta.total_seconds()) if delta is not None else 0


def parse_date(text: str) -> Stamp | None:
    """A date of git-commit(1) "DATE FORMATS": git's own ``<seconds> <zone>``, RFC 2822 or ISO 8601; None for anything else."""
    raw = re.fullmatch(r"@?(\d+)(?: ([+-]\d{4}))?", text.strip())
    if raw and (text.strip().startswith("@") or len(raw[1]) > 8):
        seconds = int(raw[1])
        return Stamp(seconds, _parse_zone(raw[2]) if raw[2] else (0 if text.strip().startswith("@") else _local_offset(seconds)))
    iso = re.fullmatch(r"(\d{4})[-./](\d\d)[-./](\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?\s*(Z|[+-]\d\d:?\d\d)?", text.strip())
    try:
        if iso:
            moment = datetime(*(int(part or 0) for part in iso.groups()[:6]))  # type: ignore[arg-type]
            zone = iso[7]
            offset = None if zone is None else 0 if zone == "Z" else _parse_zone(zone.replace(":", ""))
        else:
            parsed = email.utils.parsedate_tz(text)
            if parsed is None:
                return None
            moment, offset = datetime(*parsed[:6]), parsed[9]
    except ValueError:
        return None
    if offset is None:
        seconds = int(moment.timestamp())
        return Stamp(seconds, _local_offset(seconds))
    return Stamp(int(moment.replace(tzinfo=timezone.utc).timestamp()) - offset, offset)


def _parse_zone(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    return sign * (int(text[1:3]) * 3600 + int(text[3:5]) * 60)


def format_person(person: str, stamp: Stamp) -> str:
    """A line's tail as in commits and reflogs: ``Name <email> 1700000000 +0100``."""
    sign, minutes = ("-" if stamp.offset < 0 else "+"), abs(stamp.offset) // 60
    return f"{person} {stamp.seconds} {sign}{minutes // 60:02d}{minutes % 60:02d}"
