"""What the engine asks of the world. The adapters implement these protocols; tests may put stateful fakes in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from kubectl_gpu_transition.facts import Facts
from kubectl_gpu_transition.model import Advance, CheckoutFacts, CommitFacts, NodeView, Problem, PushResult, TipFacts


class Cluster(Protocol):
    """The API server. Reads are quorum reads; each raises a ``Failure`` (Unreachable, Forbidden, Malformed) when there is no answer."""

    context: str
    server: str

    def read_node(self, name: str) -> NodeView | None:
        """The node, or None where it does not exist (404)."""

    def read_facts(self, node: str, whole: bool) -> Facts:
        """Everything of the cluster that a decision about the node needs, side by side and each list to its last page. What could not be
        read is a Problem in its field; never raises for it. Without ``whole`` what only a preflight asks is left out."""

    def read_nodes(self) -> tuple[NodeView, ...]:
        """Every node, to the last page."""

    def read_everything(self) -> Facts:
        """What holders, owners and Flux are told from, of all nodes at once: a list each, however many nodes there are. What could not be
        read is a Problem in its field, what is not needed for that is left out."""

    def patch_node(
        self, name: str, operations: Sequence[dict[str, Any]], dry_run: bool = False, late: Callable[[], bool] | None = None
    ) -> NodeView:
        """One JSON patch of the node, as field manager kubectl-gpu-transition. Raises LostGuard (409, 422), RefusedByServer or Forbidden
        (a definite no), Missing (404: no such node), UnknownOutcome (anything else: it may have happened).
        ``late`` is asked right before the request leaves, each time: where it says yes, nothing is sent (RefusedByServer ``too-late``).
        """

    def ask_flux(self, collection: str, namespace: str, name: str) -> str:
        """Ask Flux to reconcile one object of ``sources`` or ``kustomizations`` now; the value it shows once it has. Raises Failure."""

    def probe_watches(self, node: str) -> Problem | None:
        """None when everything that a wait watches may be watched, else why not: a wait that can not see is found before the cordon."""

    def watch(self, node: str) -> Watch:
        """Start to watch what an observation lists for the node."""


class Watch(Protocol):
    """Changes as they arrive, until closed. Rides out drops; never raises for one."""

    def next_signal(self, seconds: float) -> Signal | None:
        """The next signal, or None when none came within so many seconds."""

    def close(self) -> None:
        """Stop watching; does not block for long."""


class Signal(Protocol):
    """One change that the watches saw: everything as it is known after it (None while unknown), ``gone`` when the node was deleted,
    ``broke`` when a watch had to start over and may have missed something, ``problem`` why."""

    @property
    def node(self) -> NodeView | None: ...
    @property
    def gone(self) -> bool: ...
    @property
    def facts(self) -> Facts | None: ...
    @property
    def broke(self) -> bool: ...
    @property
    def problem(self) -> str | None: ...


class Fleet(Protocol):
    """The fleet's checkout and its remote. ``read_…`` write nothing anywhere: what must be fetched lives in memory."""

    def read_checkout(self, cluster: str) -> CheckoutFacts:
        """Local facts; a repository in a bad state is a Problem in the field, never an exception."""

    def read_tip(self, cluster: str, base: str | None = None) -> TipFacts | Problem:
        """The remote branch and what it holds; with ``base``, also the history between base and the tip."""

    def probe_push(self) -> Problem | None:
        """None when the receive-pack side answers (and a path remote is writable), else why a push would fail."""

    def find_commits(self, tip: str, beginning: str) -> tuple[CommitFacts, ...] | Problem:
        """Commits of the branch up to ``tip`` whose message begins so and has a transaction trailer, newest first."""

    def take_lock(self, command: str) -> Problem | None:
        """Lock the checkout for this process; a Problem names the holder when it is taken."""

    def release_lock(self) -> None:
        """Give the lock back; harmless where it is not held."""

    def prepare_commit(self, parent: str, path: str, content: bytes, message: str, keep: bool) -> str:
        """Build blob, trees and commit on ``parent`` with that one file changed; returns the commit id. With ``keep`` the objects are
        written to the object store (unreferenced), else they live in memory (a parent that only the remote has)."""

    def find_parent(self, commit: str) -> str | None:
        """The parent of a commit whose objects are all here, else None."""

    def is_ancestor(self, commit: str, later: str) -> bool | None:
        """Whether ``later`` is or descends from ``commit``, as far as is known here without asking the remote; None where it is not."""

    def is_same_change(self, commit: str, other: str) -> bool:
        """Whether both commits are here with the same parent, the same tree and the same transaction's trailer."""

    def push_commit(self, parent: str, commit: str, late: Callable[[], bool] | None = None) -> PushResult:
        """Move the remote branch from exactly ``parent`` to exactly ``commit``; one ref, no force. ``late`` is asked right before the ref
        update leaves: where it says yes, nothing is sent and the state is ``late``."""

    def advance_checkout(self, base: str, commit: str, path: str) -> Advance:
        """Move that one file, its index entry, the branch and the tracking ref forward, where the checkout allows (spec section 9)."""


class Clock(Protocol):
    """Time. Monotonic seconds for durations, RFC 3339 UTC text for people and records."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start."""

    def now(self) -> str:
        """RFC 3339 UTC with seconds."""

    def seconds_since(self, text: str) -> int | None:
        """Whole seconds from an RFC 3339 time until now, at least 0; None where it is none: anybody may have written it."""

    def sleep(self, seconds: float) -> None:
        """Sleep so long, or until an interrupt arrives."""


class Terminal(Protocol):
    """Progress to stderr and the one question. A closed stream never raises."""

    def say(self, line: str) -> None:
        """One line of progress."""

    def ask(self, lines: Iterable[str], expected: str) -> bool:
        """Show the lines, read one line from the terminal, True only for exactly the expected text."""


class Interrupts(Protocol):
    """The flag that signal handlers set. Until ``hold`` a signal may end the run at once, by InterruptedNow."""

    def hold(self) -> None:
        """From here on signals only set the flag: a write may be under way."""

    def pending(self) -> str | None:
        """The name of the first signal that arrived (SIGINT, say), or None."""
