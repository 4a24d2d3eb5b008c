"""Time: monotonic for durations, UTC for people. Sleep ends early when an interrupt arrives."""

from __future__ import annotations

import time
from datetime import datetime, timezone

from kubectl_gpu_transition.ports import Interrupts

# Counts on while the machine sleeps, where there is such a clock (Linux): a look from before a nap is an old one.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_SLICE = 0.1  # seconds: how long an interrupt may go unnoticed


class SystemClock:
    """The machine's clock."""

    def __init__(self, interrupts: Interrupts) -> None:
        self.interrupts = interrupts

    def monotonic(self) -> float:
        """Seconds from an arbitrary start."""
        return time.clock_gettime(_CLOCK)

    def now(self) -> str:
        """RFC 3339 UTC with seconds."""
        return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    def seconds_since(self, text: str) -> int | None:
        """Whole seconds from an RFC 3339 time until now, None where it is none."""
        try:
            begun = datetime.fromisoformat(text.replace("Z", "+00:00"))
            return max(0, int((datetime.now(timezone.utc) - begun).total_seconds()))
        except (ValueError, TypeError, OverflowError):
            return None

    def sleep(self, seconds: float) -> None:
        """Sleep so long, or until an interrupt arrives. One that is pending already does not count: what has to be brought to a known
        outcome first must not turn into a busy loop."""
        deadline, before = time.monotonic() + seconds, self.interrupts.pending()
        while (left := deadline - time.monotonic()) > 0 and self.interrupts.pending() == before:
            time.sleep(min(_SLICE, left))
