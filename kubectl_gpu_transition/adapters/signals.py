"""SIGINT, SIGTERM and SIGHUP become a flag that the engine reads between writes; before anything can have been written they end the run.

Imported before everything else, so it must import nothing heavy (``failures`` imports nothing).
"""

from __future__ import annotations

import signal
from types import FrameType

from kubectl_gpu_transition.failures import InterruptedNow

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


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
            raise InterruptedNow(self.name)


FLAG = Flag()


def install() -> Flag:
    """Set the handlers; a second signal changes nothing. SIGPIPE stays ignored, so a closed stdout never ends a run."""
    for name in _NAMES:
        signal.signal(getattr(signal, name), FLAG._handle)
    return FLAG
