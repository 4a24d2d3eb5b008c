"""What the parts of one run share: the request, the ports, the ledger, and whether the node is in our hands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from kubectl_gpu_transition.facts import Facts, Observation
from kubectl_gpu_transition.failures import Failure, Interrupted
from kubectl_gpu_transition.holders import find_holders
from kubectl_gpu_transition.model import (
    CheckoutFacts,
    Holder,
    NodeView,
    Outcome,
    Problem,
    Request,
    Step,
    TipFacts,
    Transaction,
)
from kubectl_gpu_transition.ports import Clock, Cluster, Fleet, Interrupts, Terminal
from kubectl_gpu_transition.record import read_claim
from kubectl_gpu_transition.target import find_owners

T = TypeVar("T")


def known(read: Callable[[], T]) -> T | Problem:
    """The answer of a read, or why there is none: unknown is a value, never a default."""
    try:
        return read()
    except Failure as failure:
        return Problem(failure.message, failure.remedy)


@dataclass
class Session:
    """One run. ``record`` is the exact value of our annotation as last known, ``transaction`` its meaning.

    ``in_hands`` is true from the moment a first write is about to leave (taken back only by a definite refusal), or once a resume's
    preflight has passed. It alone decides what an error means.
    """

    request: Request
    cluster: Cluster
    fleet: Fleet
    clock: Clock
    terminal: Terminal
    interrupts: Interrupts
    outcome: Outcome
    in_hands: bool = False
    transaction: Transaction | None = None
    record: str = ""
    current: str = "preflight"
    checkout: CheckoutFacts | None = None

    @property
    def running(self) -> Transaction:
        """The transaction; asking before there is one is a bug."""
        if self.transaction is None:
            raise AssertionError("no transaction yet")
        return self.transaction

    def adopt(self, transaction: Transaction, record: str) -> None:
        """From here on this is the transaction and the exact value of its annotation."""
        self.transaction, self.record = transaction, record
        self.outcome.transaction = transaction

    def say(self, text: str) -> None:
        """One line of progress."""
        self.terminal.say(text)

    def stop_if_interrupted(self) -> None:
        """Called between writes, never inside one. Raises Interrupted."""
        name = self.interrupts.pending()
        if name is not None:
            raise Interrupted("interrupted", f"interrupted by {name}")

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Time one step and keep how it went."""
        step = next(step for step in self.outcome.steps if step.name == name)
        outer, self.current, step.started = self.current, name, step.started or self.clock.now()
        begun = self.clock.monotonic()
        try:
            yield step
        except BaseException as error:
            step.status, step.message = "failed", error.message if isinstance(error, Failure) else type(error).__name__
            raise
        finally:
            step.seconds += self.clock.monotonic() - begun
        self.current = outer
        step.status = "done" if step.status in ("pending", "failed") else step.status
        if step.message:
            self.say(f"{name}: {step.message}")

    def skip(self, names: tuple[str, ...], why: str) -> None:
        """Mark steps that this run does not have to make."""
        for step in self.outcome.steps:
            if step.name in names and step.status == "pending":
                step.status, step.message = "skipped", why

    # ------------------------------------------------------------ looking

    def find_holders(self, facts: Facts) -> tuple[Holder, ...] | Problem:
        """The holders that these facts show, kept for the report."""
        holders = find_holders(facts, self.request)
        self.outcome.holders = () if isinstance(holders, Problem) else holders
        return holders

    def see(self, node: NodeView | None, facts: Facts | None = None) -> None:
        """Keep the latest look for the report."""
        if node is not None:
            self.outcome.node = node
        if facts is not None and not isinstance(facts.pods, Problem):
            self.outcome.owners = find_owners(facts.pods, self.request.node)

    def read_tip(self) -> TipFacts | Problem:
        """The tip, with the history since the transaction's base."""
        return known(lambda: self.fleet.read_tip(self.request.cluster, self.running.base))

    def observe(self, checkout: CheckoutFacts | None = None) -> Observation:
        """One observation: the node first, then the tip, then the rest side by side (spec section 7). A checkout given is not read again,
        nor what only a preflight asks: while we wait nothing depends on it."""
        node = known(lambda: self.cluster.read_node(self.request.node))
        base = None
        if isinstance(node, NodeView):
            claim = read_claim(node, self.request.cluster, None)
            base = claim.transaction.base if claim.kind == "ours" and claim.transaction else None
        tip = known(lambda: self.fleet.read_tip(self.request.cluster, base))
        pool = ThreadPoolExecutor(max_workers=1)
        try:
            reading = pool.submit(self.cluster.read_facts, self.request.node, checkout is None)
            local = checkout or self.fleet.read_checkout(self.request.cluster)
            observation = Observation(node, reading.result(), local, tip, self.clock.monotonic())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # after an interrupt nobody waits for a server that does not answer
        self.checkout = local
        self.see(node if isinstance(node, NodeView) else None, observation.facts)
        return observation
