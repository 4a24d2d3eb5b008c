"""The user name and password for an http remote: from the URL, a token, credential helpers, or GIT_ASKPASS. Nothing is stored.

The protocol is gitcredentials(7) and git-credential(1). Passwords travel over pipes only; no message of this file has one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kubectl_gpu_transition.adapters.gitconfig import ConfigError, GitConfig, expand_home, parse_bool
from kubectl_gpu_transition.adapters.route import Location, find_for_url, redact
from kubectl_gpu_transition.adapters.transport import has_terminal
from kubectl_gpu_transition.model import Problem

# What the big hosts take as the user of a token; a user in the URL or in credential.username wins.
TOKEN_USER = "x-access-token"
_COMMAND = "GPU_TRANSITION_HELPER"


@dataclass(frozen=True, repr=False)
class Credential:
    """A user name, its password, and where they come from, for people."""

    user: str
    password: str
    source: str


def find_early(location: Location, config: GitConfig, environ: Mapping[str, str], token_env: str | None) -> Credential | Problem | None:
    """What can be sent without being asked: a token, or what the URL holds. A token that is named but not set is a Problem."""
    if token_env is not None:
        token = environ.get(token_env, "").strip()
        if not token:
            return Problem(f"--token-env names {token_env}, which is not set or empty", f"set {token_env}, or leave --token-env out")
        return Credential(_find_user(location, config) or TOKEN_USER, token, f"the token in {token_env}")
    if location.user is not None and location.password is not None:
        return Credential(location.user, location.password, "the remote's URL")
    return None


def _find_user(location: Location, config: GitConfig) -> str | None:
    configured = find_for_url(config, "credential", "username", location.url)
    return location.user or (configured[-1] if configured else None) or None


def find_helpers(config: GitConfig, url: str) -> list[str]:
    """Credential helpers for a URL in the order in which git asks them; an empty value starts the list anew.

    Unlike other settings per URL these are not ranked: they count in the order of the files (git's credential.c).
    """
    helpers: list[str] = []
    for section, sub, name, value in config.entries:
        if (section, name) != ("credential", "helper") or (sub is not None and not find_for_url(_only(sub), "credential", "helper", url)):
            continue
        helpers = [*helpers, value] if value else []
    return helpers


def _only(pattern: str) -> GitConfig:
    return GitConfig((("credential", pattern, "helper", "x"),))


def ask(
    location: Location, config: GitConfig, environ: Mapping[str, str], seconds: float, log: Callable[[str], None]
) -> Credential | Problem:
    """What git's helpers know, or the askpass program answers. Prompting on the terminal is left to these programs."""
    try:
        use_path = find_for_url(config, "credential", "useHttpPath", location.url)
        with_path = bool(use_path) and parse_bool(use_path[-1], "credential.useHttpPath")
    except ConfigError as error:
        return Problem(str(error))
    scheme = location.url.partition(":")[0]
    known = {
        "protocol": scheme,
        "host": location.host,
        "path": location.path if with_path else "",
        "username": _find_user(location, config) or "",
    }
    helpers = find_helpers(config, location.url)
    for helper in helpers:
        log(f"git: credential helper {helper.split()[0] if not helper.startswith('!') else '(shell)'} for {redact(location.url)}")
        answer = _ask_helper(helper, known, environ, seconds)
        if answer.get("quit", "").lower() in ("1", "true"):
            break
        known.update({name: answer[name] for name in ("username", "password") if answer.get(name)})
        if known["username"] and known.get("password"):
            return Credential(known["username"], known["password"], "a credential helper")
    program = environ.get("GIT_ASKPASS") or config.get("core", "askPass") or environ.get("SSH_ASKPASS")
    if program:
        return _ask_program(expand_home(program, environ), known, environ, seconds)
    tried = f"none of the {len(helpers)} credential helpers has" if helpers else "no credential helper is configured that could have"
    return Problem(
        f"{redact(location.url)} asks for credentials and {tried} them",
        "configure a git credential helper, or put a token in an environment variable and name it with --token-env",
    )


def helper_command(helper: str, environ: Mapping[str, str]) -> str:
    """The shell's command of a helper for the operation ``get``: ``!shell``, an absolute path, or a name after ``git credential-``."""
    if helper.startswith("!"):
        return f"{helper[1:]} get"
    if os.path.isabs(helper):
        return f"{helper} get"
    name, _, rest = helper.partition(" ")
    program = f"git-credential-{name}"
    # Helpers that come with git are not on PATH but known to git itself.
    start = program if shutil.which(program, path=environ.get("PATH")) else f"git credential-{name}"
    return f"{start} {rest} get"


def _ask_helper(helper: str, known: Mapping[str, str], environ: Mapping[str, str], seconds: float) -> dict[str, str]:
    request = "".join(f"{name}={value}\n" for name, value in known.items() if value) + "\n"
    # A command from the configuration may hold a password itself; as an argument everybody on the machine could read it.
    run = ["/bin/sh", "-c", f'command=${_COMMAND}; unset {_COMMAND}; eval "$command"']
    output = _run(run, request.encode(), {**environ, _COMMAND: helper_command(helper, environ)}, seconds)
    pairs = (line.partition("=") for line in (output or b"").decode("utf-8", "replace").splitlines())
    return {name: value for name, equals, value in pairs if equals}


def _ask_program(program: str, known: Mapping[str, str], environ: Mapping[str, str], seconds: float) -> Credential | Problem:
    base = f"{known['protocol']}://{known['host']}"
    user = known["username"]
    if not user:
        answer = _run([program, f"Username for '{base}': "], b"", environ, seconds)
        user = (answer or b"").decode("utf-8", "replace").partition("\n")[0].strip("\r")
    prompt = f"Password for '{base.replace('://', f'://{user}@', 1)}': "
    answer = _run([program, prompt], b"", environ, seconds) if user else None
    if answer is None:
        return Problem(f"{base} asks for credentials and the askpass program {program} gave none", "check GIT_ASKPASS or core.askPass")
    return Credential(user, answer.decode("utf-8", "replace").partition("\n")[0].strip("\r"), f"the askpass program {program}")


def _run(argv: list[str], request: bytes, environ: Mapping[str, str], seconds: float) -> bytes | None:
    """The child's output, or None where it failed. Its stderr is the terminal's business, not a log's: it may hold a secret."""
    terminal = has_terminal()
    if terminal:
        # A helper may ask there, so it stays in our session, where it must not get the terminal's SIGINT.
        argv = ["/bin/sh", "-c", "trap '' INT QUIT; exec \"$@\"", "sh", *argv]
    try:
        done = subprocess.run(
            argv,
            input=request,
            stdout=subprocess.PIPE,
            stderr=None if terminal else subprocess.DEVNULL,
            env=dict(environ),
            timeout=seconds,
            start_new_session=not terminal,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
