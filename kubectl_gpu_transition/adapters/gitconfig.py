"""Git's configuration as git itself would see it from one checkout, as one flat list in order of precedence.

Responsible for the file format, for the files and environment variables that git reads (git-config(1)), and for includes. Never
writes. dulwich's own stack is not used: it evaluates ``includeIf`` of the user's files never, and keeps no order between files.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dulwich.wildmatch import MalformedPattern, translate

Entry = tuple[str, "str | None", str, "str | None"]

_SPACE = " \t\r\n"
_ESCAPES = {"t": "\t", "b": "\b", "n": "\n", "\\": "\\", '"': '"'}
_TRUE, _FALSE = frozenset({"true", "yes", "on"}), frozenset({"false", "no", "off", ""})
_MAX_DEPTH = 10


class ConfigError(Exception):
    """Configuration that git would refuse too; the text says which and where. Never leaves the adapters."""


@dataclass(frozen=True)
class GitConfig:
    """Entries ``(section, subsection, name, value)``, the last one wins. Section and name are lower case; a value of None is a
    name without ``=``."""

    entries: tuple[Entry, ...]

    def get_all(self, section: str, name: str, subsection: str | None = None) -> list[str]:
        """Every value in order, least important first; a name without a value counts as the empty text."""
        wanted = (section, subsection, name.lower())
        return [value or "" for *key, value in self.entries if tuple(key) == wanted]

    def get(self, section: str, name: str, subsection: str | None = None) -> str | None:
        """The value that counts, or None where there is none."""
        values = self.get_all(section, name, subsection)
        return values[-1] if values else None

    def get_bool(self, section: str, name: str, default: bool = False, subsection: str | None = None) -> bool:
        """The value as git reads a boolean; raises ConfigError where it is none."""
        wanted = (section, subsection, name.lower())
        values = [value for *key, value in self.entries if tuple(key) == wanted]
        return parse_bool(values[-1], f"{section}.{name}") if values else default

    def get_list(self, section: str, name: str, subsection: str | None = None) -> list[str]:
        """Every value since the last empty one, which starts the list anew."""
        values: list[str] = []
        for value in self.get_all(section, name, subsection):
            values = [*values, value] if value else []
        return values

    def subsections(self, section: str) -> list[str]:
        """Names of the subsections of a section, in order of their first appearance."""
        return list(dict.fromkeys(sub for name, sub, _, _ in self.entries if name == section and sub is not None))


def parse_bool(value: str | None, what: str) -> bool:
    """A boolean of git-config(1): None (a name alone) is true, a number is true unless 0."""
    if value is None or value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    try:
        return int(value, 0) != 0
    except ValueError:
        raise ConfigError(f"bad boolean value {value!r} for {what}") from None


class _Parser:
    """One configuration file, character by character, as git's config.c does it."""

    def __init__(self, text: str) -> None:
        self.text = text.removeprefix("\ufeff").replace("\r\n", "\n")
        self.at = 0

    def next(self) -> str:
        self.at += 1
        return self.text[self.at - 1] if self.at <= len(self.text) else ""

    def fail(self) -> ConfigError:
        return ConfigError(f"bad line {self.text.count(chr(10), 0, max(self.at - 1, 0)) + 1}")

    def entries(self) -> Iterator[Entry]:
        section: tuple[str, str | None] | None = None
        while char := self.next():
            if char in _SPACE:
                continue
            if char in "#;":
                while self.next() not in ("\n", ""):
                    pass
            elif char == "[":
                section = self.header()
            elif section is not None and char.isascii() and char.isalpha():
                name, value = self.variable(char)
                yield (*section, name, value)
            else:
                raise self.fail()

    def header(self) -> tuple[str, str | None]:
        name = ""
        while (char := self.next()) != "]":
            if char and char in " \t":
                return self.extended(name.lower())
            if not (char.isascii() and char.isalnum()) and char not in ("-", "."):
                raise self.fail()
            name += char
        return split_section(name.lower())

    def extended(self, name: str) -> tuple[str, str | None]:
        while (char := self.next()) and char in " \t":
            pass
        if char != '"':
            raise self.fail()
        sub = ""
        while (char := self.next()) != '"':
            char = self.next() if char == "\\" else char
            if char in ("\n", ""):
                raise self.fail()
            sub += char
        if self.next() != "]":
            raise self.fail()
        section, outer = split_section(name)
        return section, f"{outer}.{sub}" if outer is not None else sub

    def variable(self, first: str) -> tuple[str, str | None]:
        name = first
        while (char := self.next()).isascii() and (char.isalnum() or char == "-"):
            name += char
        while char and char in " \t":
            char = self.next()
        if char in ("\n", ""):
            return name.lower(), None
        if char != "=":
            raise self.fail()
        return name.lower(), self.value()

    def value(self) -> str:
        value, pending, quoted, comment = "", "", False, False
        while True:
            char = self.next()
            if char in ("\n", ""):
                if quoted:
                    raise self.fail()
                return value
            if comment:
                continue
            if char in _SPACE and not quoted:
                pending += char if value else ""
                continue
            if char in "#;" and not quoted:
                comment = True
                continue
            value, pending = value + pending, ""
            if char == '"':
                quoted = not quoted
            elif char == "\\":
                escaped = self.next()
                if escaped != "\n":
                    if escaped not in _ESCAPES:
                        raise self.fail()
                    value += _ESCAPES[escaped]
            else:
                value += char


def split_section(name: str) -> tuple[str, str | None]:
    """``section.sub`` of a header or a key into its two parts."""
    section, dot, sub = name.partition(".")
    return section, sub if dot else None


def parse_config(data: bytes) -> list[Entry]:
    """The entries of one file's bytes, includes not followed; raises ConfigError naming the line."""
    return list(_Parser(data.decode("utf-8", "surrogateescape")).entries())


def split_key(key: str) -> tuple[str, str | None, str]:
    """``section.sub.sections.name`` as on git's command line; raises ConfigError where it has no dot."""
    head, dot, name = key.rpartition(".")
    if not dot or not head:
        raise ConfigError(f"invalid configuration key {key!r}")
    section, sub = split_section(head)
    return section.lower(), sub, name.lower()


def expand_home(path: str, environ: Mapping[str, str]) -> str:
    """``~/x`` by HOME, ``~user/x`` by the account database, anything else unchanged."""
    if path == "~" or path.startswith("~/"):
        home = environ.get("HOME")
        if not home:
            raise ConfigError(f"{path} needs HOME, which is not set")
        return home + path[1:]
    return os.path.expanduser(path) if path.startswith("~") else path


def match_glob(pattern: str, text: str) -> bool:
    """git's wildmatch with ``WM_PATHNAME``: ``*`` never crosses a slash, ``**`` does."""
    try:
        regex = translate(os.fsencode(pattern))
    except MalformedPattern:
        return False
    return re.fullmatch(regex, os.fsencode(text), re.DOTALL) is not None


class _Loader:
    """Collects entries of several files in order, following includes."""

    def __init__(self, git_dir: str, branch: str | None, environ: Mapping[str, str], urls: list[str] | None) -> None:
        self.git_dir, self.branch, self.environ, self.urls = git_dir, branch, environ, urls
        self.entries: list[Entry] = []

    def add_file(self, path: str, depth: int = 0) -> bool:
        try:
            with open(path, "rb") as file:
                data = file.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return False
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        try:
            entries = parse_config(data)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
        self.add(entries, path, depth)
        return True

    def add(self, entries: list[Entry], source: str, depth: int = 0) -> None:
        for entry in entries:
            self.entries.append(entry)
            section, condition, name, value = entry
            if name != "path" or not value or section not in ("include", "includeif"):
                continue
            if (section == "include" and condition is None) or (condition is not None and self.holds(condition, source)):
                if depth >= _MAX_DEPTH:
                    raise ConfigError(f"{source}: more than {_MAX_DEPTH} nested includes")
                path = expand_home(value, self.environ)
                self.add_file(os.path.join(os.path.dirname(source), path), depth + 1)

    def holds(self, condition: str, source: str) -> bool:
        keyword, _, pattern = condition.partition(":")
        if keyword == "onbranch":
            return self.branch is not None and match_glob(pattern + ("**" if pattern.endswith("/") else ""), self.branch)
        if keyword in ("gitdir", "gitdir/i"):
            return self.in_git_dir(pattern, source, ignore_case=keyword == "gitdir/i")
        if condition.startswith("hasconfig:remote.*.url:") and self.urls is not None:
            pattern = condition.removeprefix("hasconfig:remote.*.url:")
            return any(match_glob(pattern, url) for url in self.urls)
        return False

    def in_git_dir(self, pattern: str, source: str, ignore_case: bool) -> bool:
        if pattern.startswith("./"):
            pattern = os.path.join(os.path.dirname(os.path.realpath(source)), pattern[2:])
        pattern = expand_home(pattern, self.environ)
        if not os.path.isabs(pattern):
            pattern = "**/" + pattern
        pattern += "**" if pattern.endswith("/") else ""
        candidates = (os.path.realpath(self.git_dir), os.path.abspath(self.git_dir))
        fold: Callable[[str], str] = str.lower if ignore_case else str
        return any(match_glob(fold(pattern), fold(candidate)) for candidate in candidates)


def _system_files(environ: Mapping[str, str]) -> list[str]:
    """The system-wide file. git has its place compiled in; on macOS the usual builds differ, so the first that exists counts."""
    if "GIT_CONFIG_NOSYSTEM" in environ and parse_bool(environ["GIT_CONFIG_NOSYSTEM"], "GIT_CONFIG_NOSYSTEM"):
        return []
    if "GIT_CONFIG_SYSTEM" in environ:
        return [environ["GIT_CONFIG_SYSTEM"]]
    places = ["/etc/gitconfig"]
    if sys.platform == "darwin":
        places += [
            "/opt/homebrew/etc/gitconfig",
            "/usr/local/etc/gitconfig",
            "/Library/Developer/CommandLineTools/usr/share/git-core/gitconfig",
            "/Applications/Xcode.app/Contents/Developer/usr/share/git-core/gitconfig",
        ]
    return [path for path in places if os.path.exists(path)][:1]


def config_home(environ: Mapping[str, str]) -> str | None:
    """git's directory below the XDG configuration home, or None without a home."""
    if environ.get("XDG_CONFIG_HOME"):
        return os.path.join(environ["XDG_CONFIG_HOME"], "git")
    return os.path.join(environ["HOME"], ".config", "git") if environ.get("HOME") else None


def _global_files(environ: Mapping[str, str]) -> list[str]:
    if "GIT_CONFIG_GLOBAL" in environ:
        return [environ["GIT_CONFIG_GLOBAL"]]
    xdg, home = config_home(environ), environ.get("HOME")
    return ([os.path.join(xdg, "config")] if xdg else []) + ([os.path.join(home, ".gitconfig")] if home else [])


def _environment_entries(environ: Mapping[str, str]) -> list[Entry]:
    """GIT_CONFIG_COUNT, _KEY_n and _VALUE_n, then what ``git -c`` hands on in GIT_CONFIG_PARAMETERS."""
    entries: list[Entry] = []
    count = environ.get("GIT_CONFIG_COUNT") or "0"
    if not count.isdecimal():
        raise ConfigError(f"bogus count in GIT_CONFIG_COUNT: {count!r}")
    for index in range(int(count)):
        key, value = environ.get(f"GIT_CONFIG_KEY_{index}"), environ.get(f"GIT_CONFIG_VALUE_{index}")
        if key is None or value is None:
            raise ConfigError(f"missing GIT_CONFIG_KEY_{index} or GIT_CONFIG_VALUE_{index}")
        entries.append((*split_key(key), value))
    try:
        words = shlex.split(environ.get("GIT_CONFIG_PARAMETERS", ""))
    except ValueError as error:
        raise ConfigError("bogus format in GIT_CONFIG_PARAMETERS") from error
    for word in words:
        key, equals, value = word.partition("=")
        entries.append((*split_key(key), value if equals else None))
    return entries


def load_config(git_dir: str, common_dir: str, branch: str | None, environ: Mapping[str, str]) -> GitConfig:
    """Everything that git would read for this checkout: system, user, repository, work tree, environment. Raises ConfigError."""
    urls: list[str] | None = None
    while True:
        loader = _Loader(git_dir, branch, environ, urls)
        for path in [*_system_files(environ), *_global_files(environ), os.path.join(common_dir, "config")]:
            loader.add_file(path)
        if GitConfig(tuple(loader.entries)).get_bool("extensions", "worktreeConfig"):
            loader.add_file(os.path.join(git_dir, "config.worktree"))
        loader.add(_environment_entries(environ), "")
        if urls is not None or not any(e[0] == "includeif" and (e[1] or "").startswith("hasconfig:") for e in loader.entries):
            return GitConfig(tuple(loader.entries))
        # Conditions on remotes' URLs need every file read once without them; included files may not add URLs (git-config(1)).
        urls = [value or "" for section, sub, name, value in loader.entries if (section, name) == ("remote", "url") and sub is not None]


def safe_directories(environ: Mapping[str, str]) -> list[str]:
    """``safe.directory`` where git takes it from: system, user and environment, never the repository itself."""
    loader = _Loader("/", None, environ, None)
    for path in [*_system_files(environ), *_global_files(environ)]:
        loader.add_file(path)
    loader.add(_environment_entries(environ), "")
    return GitConfig(tuple(loader.entries)).get_list("safe", "directory")
