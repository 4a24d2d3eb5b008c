"""Where git would fetch from and push to: remotes, URL rewriting, and taking URLs apart. Pure: no file, no network.

The rules are git-config(1) ``branch.*``, ``remote.*``, ``url.*`` and git-fetch(1) "GIT URLS", and spec section 9.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote

from kubectl_gpu_transition.adapters.gitconfig import GitConfig
from kubectl_gpu_transition.model import Problem, Route

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_SCP_USER = re.compile(r"[^/@\s:]+@(?:\[[^\]]*\]|[^/@\s:\[]+):\S+")
_USER_INFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/@\s'\"]*(?:@[^/@\s'\"]*)*@")


def redact(text: str) -> str:
    """The text with the user part of every URL in it removed. The one function that does this, for URLs and for messages.

    ``user@host:path`` is taken for a URL only where it is the whole text: in a sentence it could be anything.
    """
    return _USER_INFO.sub(r"\1", text if _SCP_USER.fullmatch(text) is None else text.partition("@")[2])


@dataclass(frozen=True)
class Target:
    """Both ends of the way between this checkout and its remote, with the URLs as they are used: never to be shown.

    ``fetch_ref`` and ``push_ref`` are full names of the branch on the two sides; ``tracking`` the local ref that remembers the push
    side, or None. ``upload_pack`` and ``receive_pack`` are programs configured for the far side.
    """

    remote: str
    fetch_url: str
    fetch_ref: str
    push_url: str
    push_ref: str
    tracking: str | None
    upload_pack: str | None = None
    receive_pack: str | None = None

    @property
    def differs(self) -> bool:
        """Whether the fetch side is another place than the push side."""
        return (self.fetch_url, self.fetch_ref) != (self.push_url, self.push_ref)

    def shown(self) -> Route:
        """The same for people and reports, without user info."""
        branch = self.push_ref.removeprefix("refs/heads/")
        name = self.remote if self.remote != self.fetch_url else redact(self.remote)
        return Route(name, branch, redact(self.push_url), redact(self.fetch_url), self.differs)


@dataclass(frozen=True)
class Location:
    """A URL taken apart. ``kind`` is path, ssh or http. Of http the ``url`` has no user info."""

    kind: str
    path: str
    url: str = ""
    host: str = ""
    user: str | None = None
    password: str | None = None
    port: int | None = None


def rewrite_url(config: GitConfig, url: str, rule: str) -> str:
    """The URL after ``url.<base>.insteadOf`` or ``pushInsteadOf``: of all that match the longest counts, the first of equals."""
    best, base = "", None
    for candidate in config.subsections("url"):
        for prefix in config.get_all("url", rule, candidate):
            if url.startswith(prefix) and len(prefix) > len(best):
                best, base = prefix, candidate
    return url if base is None else base + url[len(best) :]


def _push_urls(config: GitConfig, remote: str, urls: list[str]) -> list[str]:
    explicit = config.get_list("remote", "pushurl", remote)
    if explicit:
        return [rewrite_url(config, url, "insteadOf") for url in explicit]
    rewritten = [(url, rewrite_url(config, url, "pushInsteadOf")) for url in urls]
    changed = [push for url, push in rewritten if push != url]
    return changed or [rewrite_url(config, url, "insteadOf") for url in urls]


def _map_ref(ref: str, refspecs: list[str]) -> str | None:
    """The local ref that a remote's fetch refspecs give a remote ref, or None."""
    for refspec in refspecs:
        source, colon, target = refspec.removeprefix("+").partition(":")
        if not colon or not target or source.startswith("^"):
            continue
        before, star, after = source.partition("*")
        if star and ref.startswith(before) and ref.endswith(after) and len(ref) >= len(before) + len(after):
            return target.replace("*", ref[len(before) : len(ref) - len(after)], 1)
        if source == ref:
            return target
    return None


def _urls_of(config: GitConfig, remote: str) -> list[str] | Problem:
    urls = config.get_list("remote", "url", remote)
    if config.get("remote", "vcs", remote):
        return Problem(f"remote {remote} uses a remote helper (remote.{remote}.vcs), which is not supported")
    if urls:
        return urls
    if remote != "." and ("/" in remote or ":" in remote):
        return [remote]
    if remote == ".":
        return Problem("the branch's upstream is a local branch (remote '.')", "git branch --set-upstream-to=<remote>/<branch>")
    return Problem(f"remote {remote} has no URL", f"git remote add {remote} <url>")


def find_target(config: GitConfig, branch: str, top: str) -> Target | Problem:
    """Where git would fetch this local branch from and push it to. Relative paths are taken from ``top``, as git does.

    Several push URLs, and a ``pushRemote`` that names the upstream's own remote while the upstream has another name (git itself
    would refuse or depend on ``push.default``), are a Problem.
    """
    remote = config.get("branch", "remote", branch) or "origin"
    merges = config.get_list("branch", "merge", branch)
    if len(merges) > 1:
        return Problem(f"branch {branch} has several upstreams", f"git branch --set-upstream-to={remote}/{branch}")
    fetch_ref = merges[0] if merges else f"refs/heads/{branch}"
    fetch_ref = fetch_ref if fetch_ref.startswith("refs/") else f"refs/heads/{fetch_ref}"
    explicit = config.get("branch", "pushRemote", branch) or config.get("remote", "pushDefault")
    push_remote = explicit or remote
    push_ref = fetch_ref if explicit is None else f"refs/heads/{branch}"
    if explicit == remote and push_ref != fetch_ref:
        return Problem(
            f"branch {branch} has the upstream {fetch_ref} but is to be pushed to {push_ref} of the same remote {remote}",
            f"git branch --set-upstream-to={remote}/{branch}",
        )
    if not fetch_ref.startswith("refs/heads/"):
        return Problem(f"the upstream of branch {branch} is {fetch_ref}, which is not a branch")
    urls, push_side = _urls_of(config, remote), _urls_of(config, push_remote)
    if isinstance(urls, Problem):
        return urls
    if isinstance(push_side, Problem):
        return push_side
    pushes = _push_urls(config, push_remote, push_side)
    if len(pushes) != 1:
        shown = ", ".join(redact(url) for url in pushes)
        return Problem(
            f"remote {push_remote} has {len(pushes)} push URLs ({shown}): one commit could reach one and not the other",
            f"leave one of them: git remote set-url --push --delete {push_remote} <url>",
        )
    fetch_url = _absolute(rewrite_url(config, urls[0], "insteadOf"), top)
    return Target(
        remote=push_remote,
        fetch_url=fetch_url,
        fetch_ref=fetch_ref,
        push_url=_absolute(pushes[0], top),
        push_ref=push_ref,
        tracking=_map_ref(push_ref, config.get_all("remote", "fetch", push_remote)),
        upload_pack=config.get("remote", "uploadpack", push_remote),
        receive_pack=config.get("remote", "receivepack", push_remote),
    )


def _is_local(url: str) -> bool:
    """git's rule for a path against ``host:path``: no scheme, and no colon before the first slash."""
    colon, slash = url.find(":"), url.find("/")
    return _SCHEME.match(url) is None and (colon < 0 or 0 <= slash < colon)


def _absolute(url: str, top: str) -> str:
    return os.path.normpath(os.path.join(top, url)) if _is_local(url) and not url.startswith("~") else url


def locate(url: str) -> Location | Problem:
    """Take a URL apart: a path, ``file://``, ``ssh://``, ``host:path``, ``https://`` and ``http://``; anything else is a Problem."""
    match = _SCHEME.match(url)
    if match is None and _is_local(url):
        return Location("path", url)
    if match is None:
        return _locate_scp(url)
    scheme, rest = match[1].lower(), match[2]
    authority, slash, tail = rest.partition("/")
    if scheme == "file":
        return Location("path", unquote(slash + tail))
    user_info, at, host_port = authority.rpartition("@")
    user, colon, password = user_info.partition(":")
    host, port = _split_port(host_port)
    if host is None or (scheme != "file" and not host):
        return Problem(f"the remote URL {redact(url)} has no usable host or port")
    parts = (unquote(user) if at else None, unquote(password) if colon else None)
    if scheme in ("ssh", "git+ssh", "ssh+git"):
        path = unquote(slash + tail)
        path = path[1:] if path.startswith("/~") else path
        return _checked_ssh(Location("ssh", path, host=host.strip("[]"), user=parts[0], port=port), url)
    if scheme in ("http", "https"):
        return Location("http", tail, f"{scheme}://{host_port}{slash}{tail}", host_port, *parts, port)
    return Problem(f"the transport of {redact(url)} is not supported", "use https, ssh or a path")


def _split_port(host_port: str) -> tuple[str | None, int | None]:
    match = re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]*)(?::(\d*))?", host_port)
    if match is None or (match[2] and int(match[2]) > 65535):
        return None, None
    return match[1], int(match[2]) if match[2] else None


def _locate_scp(url: str) -> Location | Problem:
    if re.match(r"[A-Za-z0-9]+::", url):
        return Problem(f"the transport of {redact(url)} is not supported", "use https, ssh or a path")
    match = re.fullmatch(r"(?:([^@\[]*)@)?(?:\[([^\]]*)\]|([^:\[]*)):(.*)", url, re.DOTALL)
    if match is None:
        return Problem(f"the remote URL {redact(url)} has no usable host")
    host, port = match[3], None
    if match[2] is not None:
        host = match[2]
        inner = re.fullmatch(r"([^:]*):(\d+)", host)
        host, port = (inner[1], int(inner[2])) if inner else (host, None)
    return _checked_ssh(Location("ssh", match[4], host=host, user=match[1], port=port), url)


def _checked_ssh(location: Location, url: str) -> Location | Problem:
    """Refuse what ssh would take for an option (CVE-2017-1000117), as git does."""
    address = f"{location.user}@{location.host}" if location.user else location.host
    if not location.host or address.startswith("-") or location.path.startswith("-") or not location.path:
        return Problem(f"the remote URL {redact(url)} has no usable host or path")
    return location


def match_url(pattern: str, url: str) -> tuple[int, int, int] | None:
    """How well ``http.<pattern>`` or ``credential.<pattern>`` fits a URL (larger is more specific), or None where it does not.

    git-config(1) ``http.<url>.*``: scheme, host (with ``*`` labels), port, path at a slash, user. A URL without user info never
    fits a pattern with a user. The result is (length of host, length of path, user).
    """
    mine, theirs = _SCHEME.match(pattern), _SCHEME.match(url)
    if mine is None or theirs is None or mine[1].lower() != theirs[1].lower():
        return None
    (host, path, user), (url_host, url_path, url_user) = _split_for_match(mine), _split_for_match(theirs)
    if user is not None and user != url_user:
        return None
    labels, url_labels = host.split("."), url_host.split(".")
    if len(labels) != len(url_labels) or any(a not in ("*", b) for a, b in zip(labels, url_labels, strict=True)):
        return None
    if path and url_path != path and not url_path.startswith(path + "/"):
        return None
    return len(host) - host.count("*"), len(path), user is not None


def _split_for_match(match: re.Match[str]) -> tuple[str, str, str | None]:
    """Host with port (the scheme's default left out), path without trailing slash, user or None."""
    default = {"http": ":80", "https": ":443"}.get(match[1].lower(), ":")
    authority, _, path = match[2].partition("/")
    user_info, at, host = authority.rpartition("@")
    return host.lower().removesuffix(default), path.rstrip("/"), unquote(user_info.partition(":")[0]) if at else None


def find_for_url(config: GitConfig, section: str, name: str, url: str) -> list[str]:
    """Values of ``section.name`` and of every ``section.<url>.name`` that fits, the most specific last; an empty one starts anew."""
    found: list[tuple[tuple[int, int, int], int, str]] = []
    for index, (entry_section, sub, entry_name, value) in enumerate(config.entries):
        if (entry_section, entry_name) != (section, name.lower()):
            continue
        rank = (-1, -1, -1) if sub is None else match_url(sub, url)
        if rank is not None:
            found.append((rank, index, "true" if value is None else value))
    return [value for _, _, value in sorted(found)]
