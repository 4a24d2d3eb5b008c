"""How a test steers the world: which call fails and how, what others do right before or after a call, and what time it is."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone

# How a call can go wrong. ``fails``: no effect, and the caller can not know. ``lost``: it took effect, the answer did not arrive.
# ``dies``: it took effect, and the process ended right after. ``refused``: a definite no. ``slow``: all is well, 11 seconds late.
KINDS = ("fails", "lost", "dies", "refused", "slow")
LATE = 11.0


class ProcessDied(BaseException):
    """SIGKILL, as far as a test in one process can have it: nothing catches it, and no later call of the dead process has any effect."""


class Clock:
    """Time that only moves when somebody waits. ``at`` lets things happen while it does."""

    def __init__(self) -> None:
        self.time = 1000.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        """Let it happen so many seconds from now."""
        heapq.heappush(self._events, (self.time + seconds, next(self._order), event))

    def pass_time(self, seconds: float) -> None:
        """Move on, through everything that happens on the way."""
        end = self.time + seconds
        while self._events and self._events[0][0] <= end:
            when, _, event = heapq.heappop(self._events)
            self.time = max(self.time, when)
            event()
        self.time = end

    def until_next(self, longest: float) -> float:
        """Seconds to the next event, at most ``longest``."""
        return max(0.0, min(longest, self._events[0][0] - self.time)) if self._events else longest

    def monotonic(self) -> float:
        return self.time

    def now(self) -> str:
        return (datetime(2026, 5, 1, tzinfo=timezone.utc) + timedelta(seconds=self.time)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def seconds_since(self, text: str) -> int | None:
        begun = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z")
        return int((datetime(2026, 5, 1, tzinfo=timezone.utc) + timedelta(seconds=self.time) - begun).total_seconds())

    def sleep(self, seconds: float) -> None:
        self.pass_time(seconds)


class Interrupts:
    """The flag of a signal, set by the test."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.held = False

    def hold(self) -> None:
        self.held = True

    def pending(self) -> str | None:
        return self.name


class Terminal:
    """What was said, and the answers that are waiting."""

    def __init__(self, answers: Iterable[str] = ()) -> None:
        self.lines: list[str] = []
        self.asked: list[str] = []
        self.answers = list(answers)

    def say(self, line: str) -> None:
        self.lines.append(line)

    def ask(self, lines: Iterable[str], expected: str) -> bool:
        self.asked.append(" ".join(lines))
        return bool(self.answers) and self.answers.pop(0) == expected


class Steering:
    """Counts the calls of all ports by name, and knows what is to happen at each. Names are ``cluster.read_node`` and the like."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.calls: list[tuple[str, int]] = []
        self.faults: dict[tuple[str, int], str] = {}
        self.before: dict[tuple[str, int], Callable[[], None]] = {}
        self.after: dict[tuple[str, int], Callable[[], None]] = {}
        self.dead = False
        self._counts: Counter[str] = Counter()
        self._lock = threading.RLock()  # what happens before a call may be another process's calls

    def revive(self) -> None:
        """A new process: it counts anew, and nothing is planned for it."""
        self.dead = False
        self.calls, self.faults, self.before, self.after, self._counts = [], {}, {}, {}, Counter()

    def enter(self, name: str) -> Call:
        """Called first by every method of a port."""
        with self._lock:  # an observation reads side by side
            if self.dead:
                raise ProcessDied
            self._counts[name] += 1
            key = (name, self._counts[name])
            self.calls.append(key)
            if event := self.before.get(key):
                event()
        call = Call(self, key)
        if call.is_fault("slow"):
            self.clock.pass_time(LATE)
        return call

    def leave(self, key: tuple[str, int]) -> None:
        """Called last, when the call has had its effect."""
        with self._lock:
            if event := self.after.get(key):
                event()
            if self.faults.get(key) == "dies":
                self.dead = True
                raise ProcessDied


class Call:
    """One call of a port's method."""

    def __init__(self, steering: Steering, key: tuple[str, int]) -> None:
        self.steering, self.key = steering, key

    def is_fault(self, *kinds: str) -> bool:
        """Whether this call is to go wrong in one of these ways."""
        return self.steering.faults.get(self.key) in kinds

    def done(self) -> None:
        """The effect is there."""
        self.steering.leave(self.key)
