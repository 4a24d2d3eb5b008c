"""The lock on one checkout: a file in the work tree's git directory that names the process, held by flock(2).

The kernel gives it up when the process ends, however it ends; the file's text is for people and decides nothing (spec section 9).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from datetime import datetime, timezone

from kubectl_gpu_transition.model import Problem

NAME = "gpu-transition.lock"
# Another run that only looks takes a shared lock for an instant; a taker that meets it tries again.
_TRIES, _PAUSE = 8, 0.025


class Lock:
    """A lock that this process holds until ``release``."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor

    def release(self) -> None:
        """Remove the file and let go, in this order: nobody can lock a file that is about to go."""
        if self._descriptor >= 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            os.close(self._descriptor)
            self._descriptor = -1


def take_lock(git_dir: str, command: str) -> Lock | Problem:
    """Lock the checkout for this process; a Problem names the holder when it is taken, or why no lock is to be had."""
    path = os.path.join(git_dir, NAME)
    for attempt in range(_TRIES):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            return Problem(f"{path} can not be written: {error.strerror}")
        failure = _try_flock(descriptor, fcntl.LOCK_EX)
        if failure is None and _is_same(path, descriptor):
            _write_holder(descriptor, command)
            return Lock(path, descriptor)
        os.close(descriptor)
        if failure is not None and failure.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            return Problem(f"{path} can not be locked: {failure.strerror}")
        if attempt < _TRIES - 1:
            time.sleep(_PAUSE)
    return _taken(path)


def read_lock(git_dir: str) -> Problem | None:
    """Who holds the lock, or None where nobody does. Writes nothing."""
    path = os.path.join(git_dir, NAME)
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Problem(f"{path} can not be read: {error.strerror}")
    try:
        failure = _try_flock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)
    return None if failure is None else _taken(path)


def _try_flock(descriptor: int, kind: int) -> OSError | None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        return error
    return None


def _is_same(path: str, descriptor: int) -> bool:
    """Whether the locked file is still the one of that name: a holder removes it just before it lets go."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _write_holder(descriptor: int, command: str) -> None:
    since = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "command": command, "since": since}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode() + b"\n", 0)


def _taken(path: str) -> Problem:
    try:
        with open(path, encoding="utf-8") as file:
            holder = json.load(file)
    except (OSError, ValueError):
        holder = None
    if not isinstance(holder, dict):
        return Problem("the checkout is locked by another run", "wait for it to end")
    who = f"process {holder.get('pid')} on {holder.get('host')} since {holder.get('since')}: {holder.get('command')}"
    return Problem(f"the checkout is locked by {who}", "wait for it to end")
