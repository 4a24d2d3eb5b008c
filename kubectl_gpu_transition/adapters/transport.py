"""One exchange with the far side of a remote: the child process behind it, its time limit, and what its failures mean.

Responsible for path and ssh remotes (http is githttp.py's) and for turning everything that can break on the way into
``ExchangeFailed``. dulwich speaks the protocol; its own local client is not used, for it runs none of the remote's hooks.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import threading
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TypeVar

import urllib3.exceptions
from dulwich.client import HTTPProxyUnauthorized, TraditionalGitClient
from dulwich.errors import ApplyDeltaError, ChecksumMismatch, GitProtocolError, HangupException, NotGitRepository
from dulwich.protocol import Protocol

from kubectl_gpu_transition.adapters.gitconfig import GitConfig
from kubectl_gpu_transition.adapters.route import Location, redact
from kubectl_gpu_transition.model import Problem

T = TypeVar("T")

# What dulwich, urllib3 and the system raise when the far side breaks off or talks nonsense (its assertions are about the wire).
WIRE_ERRORS = (
    GitProtocolError, NotGitRepository, HTTPProxyUnauthorized, ApplyDeltaError, ChecksumMismatch, urllib3.exceptions.HTTPError,
    OSError, ValueError, KeyError, IndexError, EOFError, AssertionError, zlib.error,
)  # fmt: skip

# Variables that describe one repository; git clears them for the far side of a path remote (environment.c, local_repo_env).
_REPOSITORY_VARIABLES = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_CONFIG", "GIT_CONFIG_PARAMETERS", "GIT_CONFIG_COUNT", "GIT_OBJECT_DIRECTORY", "GIT_DIR",
    "GIT_WORK_TREE", "GIT_IMPLICIT_WORK_TREE", "GIT_GRAFT_FILE", "GIT_INDEX_FILE", "GIT_NO_REPLACE_OBJECTS", "GIT_REPLACE_REF_BASE",
    "GIT_PREFIX", "GIT_SHALLOW_FILE", "GIT_COMMON_DIR", "GIT_INTERNAL_SUPER_PREFIX",
)  # fmt: skip
_TEXT_LIMIT = 4000


class ExchangeFailed(Exception):
    """An exchange that did not come to its end. ``problem`` is for people; ``timed_out`` tells a limit from a failure."""

    def __init__(self, problem: Problem, timed_out: bool = False) -> None:
        super().__init__(problem.message)
        self.problem, self.timed_out = problem, timed_out


def run_limited(action: Callable[[], T], seconds: float, stop: Callable[[], None]) -> T:
    """Run ``action`` with a time limit; past it ``stop`` is called and ExchangeFailed raised. Other exceptions come through.

    The action has a thread of its own: no limit of sockets or processes covers name resolution, a helper that asks, and all the
    rest together. The thread dies with the process.
    """
    future: Future[T] = Future()

    def work() -> None:
        try:
            result = action()
        except BaseException as error:  # carried over to the caller's thread, where it is raised
            future.set_exception(error)
        else:
            future.set_result(result)

    thread = threading.Thread(target=work, daemon=True, name="git exchange")
    thread.start()
    try:
        thread.join(seconds)
    finally:
        late = thread.is_alive()
        if late:
            stop()
    if late:
        thread.join(1.0)
        raise ExchangeFailed(Problem(f"the git remote did not answer within {seconds:g} s", "try again, or a longer --git-timeout"), True)
    return future.result()


class Child:
    """A child process whose two pipes carry the protocol. What it says on stderr is kept."""

    def __init__(self, argv: list[str], environ: Mapping[str, str], own_session: bool) -> None:
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            start_new_session=own_session,
        )
        self._own_session = own_session
        self._said = bytearray()
        self._reader = threading.Thread(target=self._drain, daemon=True, name="git stderr")
        self._reader.start()

    def _drain(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            while chunk := stream.read1(4096):  # type: ignore[attr-defined]
                self._said = (self._said + chunk)[-_TEXT_LIMIT:]

    def read(self, size: int) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.read(size)

    def write(self, data: bytes) -> int:
        """Hand over all of it. A far side that does not want the rest (a pack that is too large, say) has still something to say,
        which is read next; if it has gone altogether, that read finds out."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        return len(data)

    def can_read(self) -> bool:
        # The answers to "have" lines are then read after "done", in one go.
        return False

    def said(self) -> str:
        """What the child has written to stderr, once it is at its end or a moment has passed (a multiplexing ssh keeps it open)."""
        self._reader.join(0.5)
        return self._said.decode("utf-8", "replace").strip()

    def kill(self) -> None:
        """End the child, and what it started where that is a session of its own."""
        try:
            if self._own_session:
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        except (ProcessLookupError, PermissionError):
            pass  # It has ended; macOS says so of a group by EPERM.

    def close(self) -> None:
        """Hang up and collect the child; one that does not end by itself is killed."""
        for stream in (self.process.stdin, self.process.stdout):
            try:
                if stream is not None:
                    stream.close()
            except OSError:
                pass  # Bytes that could not be flushed to a child that is gone.
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
        self._reader.join(0.5)


class PipeClient(TraditionalGitClient):
    """dulwich's client over a child process: git on this machine, or ssh."""

    def __init__(self, start: Callable[[str], Child]) -> None:
        super().__init__(thin_packs=False, quiet=True)
        self._start = start
        self.child: Child | None = None
        self._protocol: Protocol | None = None

    def _connect(
        self,
        cmd: bytes,
        path: str | bytes,  # noqa: ARG002 - the child was told
        protocol_version: int | None = None,  # noqa: ARG002
    ) -> tuple[Protocol, Callable[[], bool], None]:
        self.child = child = self._start(cmd.decode("ascii"))
        self._protocol = Protocol(child.read, child.write, child.close)
        return self._protocol, child.can_read, None

    def close(self) -> None:
        """Hang up, where dulwich has not: it leaves a connection open that broke before the first answer."""
        if self._protocol is not None:
            self._protocol.close()

    def stop(self) -> None:
        """End the exchange from another thread."""
        if self.child is not None:
            self.child.kill()

    def said(self) -> str:
        """What the far side, or ssh, said on stderr."""
        return self.child.said() if self.child is not None else ""


def start_git(path: str, programs: Mapping[str, str | None], environ: Mapping[str, str]) -> Callable[[str], Child]:
    """How to start the far side of a path remote; it never gets the terminal's SIGINT. ``programs``: service -> configured one."""
    clean = {name: value for name, value in environ.items() if name not in _REPOSITORY_VARIABLES}

    def start(service: str) -> Child:
        program = programs.get(service)
        argv = ["git", service, path] if program is None else ["/bin/sh", "-c", f'{program} "$@"', program, path]
        # Version 2 lets the branch be asked for alone; pushes have no version 2.
        version = {"GIT_PROTOCOL": "version=2"} if service == "upload-pack" else {}
        return Child(argv, {**clean, **version}, own_session=True)

    return start


def start_ssh(
    location: Location, programs: Mapping[str, str | None], config: GitConfig, environ: Mapping[str, str]
) -> Callable[[str], Child]:
    """How to start the user's ssh, as git would: GIT_SSH_COMMAND, core.sshCommand, GIT_SSH, ssh."""
    address = f"{location.user}@{location.host}" if location.user else location.host

    def start(service: str) -> Child:
        remote_command = f"{programs.get(service) or 'git-' + service} {_quote(location.path)}"
        command = environ.get("GIT_SSH_COMMAND") or config.get("core", "sshCommand")
        words = [command] if command else [environ.get("GIT_SSH") or "ssh"]
        variant = _find_variant(words[0], bool(command), config, environ)
        port = [] if location.port is None else ["-P" if variant in ("plink", "putty", "tortoiseplink") else "-p", str(location.port)]
        batch = ["-batch"] if variant == "tortoiseplink" else []
        arguments = [*batch, *port, address, remote_command]
        # In a session of its own ssh could not ask for a passphrase; in ours it must ignore the terminal's SIGINT.
        terminal = has_terminal()
        if command:
            script, tail = f'{command} "$@"', [command, *arguments]
        else:
            script, tail = 'exec "$@"', [words[0], words[0], *arguments]
        ignore = "trap '' INT QUIT; " if terminal else ""
        return Child(["/bin/sh", "-c", ignore + script, *tail], environ, own_session=not terminal)

    return start


def has_terminal() -> bool:
    """Whether this process has a terminal that a child could ask on."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
    except OSError:
        return False
    return True


def _find_variant(command: str, is_shell: bool, config: GitConfig, environ: Mapping[str, str]) -> str:
    configured = environ.get("GIT_SSH_VARIANT") or config.get("ssh", "variant")
    if configured and configured != "auto":
        return configured
    try:
        first = shlex.split(command)[0] if is_shell else command
    except (ValueError, IndexError):
        return "ssh"
    return os.path.basename(first).lower().removesuffix(".exe")


def _quote(path: str) -> str:
    """A path for the far side's shell, quoted as git does it."""
    return "'" + re.sub(r"(['!])", r"'\\\1'", path) + "'"


def _find_reason(error: BaseException) -> str:
    """The innermost words: urllib3 wraps each failure in the story of its retries, and dulwich that in one of its own."""
    while True:
        reason = getattr(error, "reason", None)
        inner = reason if isinstance(reason, BaseException) else error.__cause__
        if inner is None or isinstance(error, OSError):
            return error.strerror or str(error) if isinstance(error, OSError) else str(error)
        error = inner


def describe_failure(error: BaseException, said: str, url: str) -> Problem:
    """What an exchange's failure means for people. ``said`` is what the far side said; URLs lose their user part."""
    where = redact(url)
    if isinstance(error, FileNotFoundError) and error.filename in ("git", "/bin/sh", b"git"):
        return Problem(f"{where}: the program {error.filename!r} is needed for this remote and is not on PATH", "install git")
    lines = [line for line in said.splitlines() if line.strip()]
    if lines:
        return Problem(f"{where}: {redact(' / '.join(line.strip() for line in lines[-6:]))}", "check the remote's URL and access to it")
    if isinstance(error, HangupException):
        detail = "it ended the connection"
    elif isinstance(error, NotGitRepository):
        detail = "there is no git repository"
    else:
        detail = redact(_find_reason(error)) or type(error).__name__
    return Problem(f"{where}: {detail}", "check the remote's URL and access to it")
