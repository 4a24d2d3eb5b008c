"""SIGINT, SIGTERM and SIGHUP become a flag that the engine reads between writes; before anything can have been written they end the run.

Imported before everything else, so it must import nothing heavy (``failures`` imports nothing).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType

from kubectl_gpu_transition.failures import InterruptedNow

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
_AGAIN = 0.1  # seconds until a signal that was not handled is sent to the main thread again


class Flag:
    """The first signal that arrived, and whether one may end the run at once (``immediate``, until the first write)."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.immediate = True

    def pending(self) -> str | None:
        """Name of the first signal, or None."""
        return self.name

    def hold(self) -> None:
        """From here on signals only set the flag: a write may be under way."""
        self.immediate = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        first, self.name = self.name is None, self.name or signal.Signals(number).name
        if first and self.immediate:
            sys.unraisablehook = _ignore  # what is cut off half made may not be able to clear up; nobody has to read of it
            raise InterruptedNow(self.name)


FLAG = Flag()


def _ignore(_: object) -> None:
    pass


def install() -> Flag:
    """Set the handlers; a second signal changes nothing. SIGPIPE stays ignored, so a closed stdout never ends a run.

    A signal that comes just before the main thread begins to wait does not end the wait, and its handler runs only after it
    (CPython: handlers run in the main thread, between two instructions). So a thread sends it again until it was handled.
    """
    for name in _NAMES:
        signal.signal(getattr(signal, name), FLAG._handle)
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    threading.Thread(target=_insist, args=(told,), daemon=True, name="signals").start()
    return FLAG


def _insist(told: int) -> None:
    main = threading.main_thread()
    while number := os.read(told, 1):
        while FLAG.name is None:
            time.sleep(_AGAIN)
            if FLAG.name is None:
                signal.pthread_kill(main.ident or 0, number[0])
