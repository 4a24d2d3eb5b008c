"""Wait until the node is wholly in a mode, verify it twice, and give it back: the only place that uncordons (spec sections 4 and 7).

Watches say what is missing; a full observation, the tip included, is made only when nothing seems missing. Two observations in a row,
at least the settle time apart, with nothing contradicting and no watch broken in between, are "verified". The patch that gives the
node back is tied to the second one, so the API server itself refuses it if the node changed since.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kubectl_gpu_transition.checks import Look, judge_fleet_cluster
from kubectl_gpu_transition.facts import Facts, Observation
from kubectl_gpu_transition.failures import Drift, EndedElsewhere, Expired, LostGuard, Refused, RefusedByServer, UnknownOutcome
from kubectl_gpu_transition.flux import find_gitops
from kubectl_gpu_transition.live_rule import find_missing_rule, read_name
from kubectl_gpu_transition.model import ANNOTATION, NodeView, Problem, TipFacts
from kubectl_gpu_transition.patches import drop_patch, recordon_patch, uncordon_patch
from kubectl_gpu_transition.ports import Watch
from kubectl_gpu_transition.progress import Progress
from kubectl_gpu_transition.record import Claim, decode, find_foreign_cordon, has_own_cordon
from kubectl_gpu_transition.resume import read_rule_mode
from kubectl_gpu_transition.session import Session, known
from kubectl_gpu_transition.target import (
    Goal,
    find_advice,
    find_missing,
    find_missing_labels,
    find_missing_owners,
    find_new_managers,
    find_owners,
    is_same_ground,
)
from kubectl_gpu_transition.writes import cordoned_under, edited_record, node_gone, read_same_node, write_node

FRESH = 5.0  # seconds from the end of the verifying observation within which the uncordon is sent (spec section 4, step 6)
RETRY = 1.0  # seconds before a cordon that could not be set is tried again
# What of the API server passes: the wait goes on until its timeout (spec section 7).
_PASSING = frozenset({"not-sent", "busy", "too-late"})
RECORDONS = 20  # how often a node that others uncordon is cordoned again (spec section 4, step 5)
TICK = 0.25  # seconds: how long an interrupt may go unnoticed
HEARTBEAT = 60.0  # seconds between two lines while nothing changes (spec section 11)


class _Finished(Exception):
    """Another run of the same transaction has given the node back, and it is where it was to be."""


def clock_text(seconds: float) -> str:
    """A duration for people: ``45s``, ``2m05s``."""
    whole = max(0, round(seconds))
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"


@dataclass
class Wait:
    """One wait. ``abandoning``: the goal is the mode the transaction came from, and an announcement made meanwhile ends it."""

    session: Session
    goal: Goal
    progress: Progress
    abandoning: bool = False
    recordons: int = 0
    node: NodeView | None = None
    shown: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()  # what is told beside what is missing, and decides nothing
    told: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # the last line: what was missing, and what was beside it
    quiet: bool = False  # nothing seems missing in what the watches show
    begun: float = 0.0
    spoke: float = 0.0
    deadline: float = 0.0
    looked: float = float("-inf")  # when the last full observation ended
    rule_name: str | None = None  # of the live rule, as the last tip that was read has it
    named: tuple[object, str | None] = (None, None)
    retry: float | None = None  # when a cordon that could not be set again is tried again

    def run(self) -> None:
        """The steps wait and uncordon: wait, verify and release. Raises Expired, EndedElsewhere, NodeGone, Interrupted, …"""
        session = self.session
        begun = session.clock.monotonic()
        self.deadline = begun + session.request.timeout
        self.begun = self.spoke = begun
        self.node = session.outcome.node
        watch = session.cluster.watch(session.request.node)
        try:
            while True:
                with session.step("wait") as step:
                    observation = self._until_verified(watch)
                    again = f"; others uncordoned it {self.recordons}x, and it was cordoned again" if self.recordons else ""
                    besides = "".join(f"; besides: {line}" for line in self.advice)
                    step.message = f"{session.request.node} is in {self.goal.mode.value}, seen twice{again}{besides}"
                with session.step("uncordon") as step:
                    released = self._release(observation)
                    step.message = released or "the node changed first; looking anew"
                if released is not None:
                    return
                step.status = "pending"
        except _Finished as finished:
            for step in session.outcome.steps:
                if step.name in ("wait", "uncordon"):
                    step.status, step.message = ("done", str(finished)) if step.name == "wait" else ("skipped", "another run has done it")
            session.say(str(finished))
        finally:
            watch.close()

    # ------------------------------------------------------------ the loop

    def _until_verified(self, watch: Watch) -> Observation:
        """The second of two verifying observations."""
        session, clock = self.session, self.session.clock
        seen = False  # whether the first of the two verifying observations has been made, with nothing against it since
        while True:
            session.stop_if_interrupted()
            now = clock.monotonic()
            if now >= self.deadline:
                raise Expired("timeout", self._expiry())
            due = self.looked + session.request.settle
            patience = min(TICK, self.deadline - now, *([due - now] if self.quiet else []))
            if not self._take_signals(watch, max(0.0, patience)):
                seen = False
            self._retry_cordon()
            self._heartbeat()
            if not self.quiet or clock.monotonic() < due:
                continue
            observation = session.observe(session.checkout)
            self.looked = clock.monotonic()
            missing = self._missing_in(observation)
            contradicted = not self._take_signals(watch, 0.0)
            if missing or contradicted:
                seen = False
                if missing:
                    self._show(missing)
            elif not seen:
                seen = True
                self._show(["nothing any more; looking once more"])
                session.outcome.waiting_for = ()
            else:
                return observation

    def _take_signals(self, watch: Watch, seconds: float) -> bool:
        """Take in what the watches saw, waiting so long for the first of it. False when any of it contradicts "verified", or when a
        watch broke, so that something may have been missed."""
        session, fine = self.session, True
        signal = watch.next_signal(seconds)
        while signal is not None:
            if signal.gone:
                raise node_gone(session.request.node)
            if signal.broke:
                fine = self.quiet = False
            if signal.problem is not None:
                self._show([signal.problem])
            node = signal.node
            if node is not None and signal.facts is not None:
                if self._is_old(node):
                    node = self.node or node  # one watch is behind; what the others show counts all the same
                else:
                    fine = not self._follow(node) and fine
                session.see(node, signal.facts)
                missing = self._missing(node, signal.facts)
                # Without a record there is only one thing left to know, and a full observation is what tells it.
                self.quiet = not missing or ANNOTATION not in node.annotations
                if missing:
                    fine = False
                    self._show(missing)
            signal = watch.next_signal(0.0)
        return fine

    def _is_old(self, node: NodeView) -> bool:
        """Whether a watch shows the node as it was before our last read of it (versions of one object grow, where they are numbers)."""
        known = self.node.version if self.node else ""
        return known.isdigit() and node.version.isdigit() and int(node.version) < int(known)

    def _missing(self, node: NodeView, facts: Facts) -> list[str]:
        flux = [] if self.abandoning else self.progress.describe(facts)
        self.advice = (*flux, *find_advice(self.goal, node, facts, self.session.request))
        missing = find_missing(self.goal, node, facts, self.session.find_holders(facts))
        return missing + (self._missing_live(facts, self.rule_name) if self.rule_name else [])

    def _missing_live(self, facts: Facts, name: str | None) -> list[str]:
        request = self.session.request
        return find_missing_rule(facts, name, request.node, self.goal.mode, request.ignore_missing_gitops)

    def _missing_in(self, observation: Observation) -> list[str]:
        """What an observation lacks, condition 7 included; what could not be read is missing."""
        node = observation.node
        if node is None:
            raise node_gone(self.session.request.node)
        if isinstance(node, Problem):
            return [f"could not be read: {node.message}"]
        changed = self._follow(node)
        if isinstance(observation.tip, TipFacts):
            self.rule_name = self._read_name(observation.tip)
        missing = self._missing(node, observation.facts)
        if changed:
            missing.append("the node's cordon or record has changed")
        if isinstance(observation.tip, Problem):
            missing.append(f"the tip can not be read: {observation.tip.message}")
        else:
            missing += self._missing_at(observation.tip)
            missing += [] if self.rule_name else self._missing_live(observation.facts, None)
        return missing

    def _read_name(self, tip: TipFacts) -> str | None:
        """The name of the live rule at this tip; read once for each rule, for a fleet's file is long."""
        if tip.rule is not self.named[0]:
            self.named = (tip.rule, read_name(tip.rule))
        return self.named[1]

    def _missing_at(self, tip: TipFacts) -> list[str]:
        mode = read_rule_mode(tip.rule, self.session.request.node)
        if isinstance(mode, Problem):
            return [f"the rule at the tip can not be read: {mode.message}"]
        transaction = self.session.transaction
        if self.abandoning and transaction is not None and transaction.phase == "pushing" and tip.tip == transaction.base:
            return ["the tip is back at the base of an announced push, which may still be in flight"]
        return [] if mode is self.goal.mode else [f"the tip's rule asks for {mode.value}: the change is being taken back"]

    # ------------------------------------------------------------ whose node it is

    def _follow(self, node: NodeView) -> bool:
        """Keep up with what others do to the node and its record. True when that starts the verification afresh.

        Raises EndedElsewhere or NodeGone when the transaction is no longer on the node, _Finished when another run has completed it.
        """
        session, transaction = self.session, self.session.running
        if node.uid != transaction.uid:
            raise node_gone(node.name)
        changed = self.node is not None and node.unschedulable != self.node.unschedulable
        before, self.node = self.node, node
        text = node.annotations.get(ANNOTATION)
        if text != session.record:
            self._follow_record(text)
            changed = True
        if text is None:
            return True  # how that came could not be read: the next look asks again, and nothing is written meanwhile
        if not self.goal.cordoned and has_own_cordon(node):
            # Another run of this transaction has cordoned it meanwhile: that cordon is ours to lift with the record.
            self.goal = replace(self.goal, cordoned=True)
            return True
        if not node.unschedulable and self.goal.cordoned:
            self._cordon_again(node, before)
            return True
        return changed

    def _follow_record(self, text: str | None) -> None:
        session, transaction = self.session, self.session.running
        if text is None:
            self._finish_or_end()
            return
        other = decode(text)
        if other is None or other.id != transaction.id:
            shown = f"transaction {other.id}" if other else "something unreadable"
            raise EndedElsewhere(
                "ended-elsewhere",
                f"the node's annotation is no longer ours: it holds {shown}",
                "find out who wrote it; this run has stopped and does not cordon again",
            )
        if other.move != transaction.move:
            raise edited_record()
        if self.abandoning and other.phase != "cordoned":
            raise Refused("push-announced", "another run has announced a push under this transaction: it can not be given up now")
        session.adopt(other, text)
        session.say("another run of this transaction is at work; following it")

    def _finish_or_end(self) -> None:
        """The record is gone: complete if the node is there (whoever removed it), else over. Returns only where that can not be read."""
        session = self.session
        observation = session.observe(session.checkout)
        node, pods, tip = observation.node, observation.facts.pods, observation.tip
        if node is None or (isinstance(node, NodeView) and node.uid != session.running.uid):
            raise node_gone(session.request.node)
        if isinstance(node, Problem) or isinstance(pods, Problem) or isinstance(tip, Problem):
            return
        if isinstance(find_gitops(observation.facts), Problem) or isinstance(observation.facts.rules, Problem):
            return
        look = Look(session.request, observation, Claim("none", "", None), None, None)
        if (
            ANNOTATION not in node.annotations
            and not node.unschedulable
            and not find_missing_labels(node, self.goal.mode)
            and not find_missing_owners(find_owners(pods, node.name), self.goal.mode)
            and not self._missing_at(tip)
            and not self._missing_live(observation.facts, self._read_name(tip))
            and judge_fleet_cluster(look).status != "fail"
        ):
            word = "abandoned" if self.abandoning else "finished"
            raise _Finished(f"{word} by another run: the node is schedulable and in {self.goal.mode.value}")
        raise EndedElsewhere(
            "ended-elsewhere",
            f"our transaction has gone from the node without {self.goal.mode.value} being reached; "
            f"the node is {'cordoned' if node.unschedulable else 'SCHEDULABLE'}",
            "find out who removed it (another run's abandon, say); this run has stopped and does not cordon again",
        )

    def _cordon_again(self, node: NodeView, before: NodeView | None) -> None:
        """Somebody lifted our cordon: set it again at once, guarded, under the same record."""
        session = self.session
        if self.recordons >= RECORDONS:
            raise Drift(
                "uncordoned-again",
                f"the node was uncordoned {RECORDONS + 1} times by others: it is schedulable and unprotected",
                "find out who uncordons it before anything else",
            )
        try:
            shows = cordoned_under(session.record)
            self.node = write_node(session, node, recordon_patch(node, session.record), shows, versioned=True)
        except LostGuard:
            return  # changed once more since: the next look decides again
        except (RefusedByServer, UnknownOutcome) as failure:
            if isinstance(failure, RefusedByServer) and failure.id not in _PASSING:
                raise
            self.retry = session.clock.monotonic() + RETRY
            self._show([f"the cordon, which another actor has lifted: {failure.message}"])
            return
        self.recordons += 1
        managers = ", ".join(find_new_managers(before, node)) if before is not None else ""
        session.say(f"{session.clock.now()} the node was uncordoned by another actor ({managers or 'unknown'}) and is cordoned again")

    def _retry_cordon(self) -> None:
        """Try a cordon again that the API server had no time for, on the node as it is now."""
        session = self.session
        if self.retry is None or session.clock.monotonic() < self.retry:
            return
        self.retry = session.clock.monotonic() + RETRY
        node = known(lambda: session.cluster.read_node(session.request.node))
        if node is None:
            raise node_gone(session.request.node)
        if isinstance(node, NodeView):
            self.retry = None
            self._follow(node)

    # ------------------------------------------------------------ giving it back

    def _release(self, observation: Observation) -> str | None:
        """Give the node back on the strength of a second verifying observation; None when it has to be observed anew."""
        session, node = self.session, observation.node
        assert isinstance(node, NodeView)

        def late() -> bool:
            return session.clock.monotonic() - observation.taken > FRESH

        while not late():
            session.stop_if_interrupted()
            if find_foreign_cordon(node) is not None or node.unschedulable != self.goal.cordoned:
                return None
            patch = (
                uncordon_patch(node, session.record, self.goal.mode)
                if self.goal.cordoned
                else drop_patch(node, session.record, self.goal.mode)
            )
            try:
                # Only the end of our record counts, whoever removed it: schedulable or not is for what follows to say.
                after = write_node(session, node, patch, lambda seen: ANNOTATION not in seen.annotations, versioned=True, late=late)
            except RefusedByServer as refusal:
                if refusal.id not in _PASSING:
                    raise
                self._show([f"the uncordon: {refusal.message}"])
                return None
            except LostGuard:
                again = read_same_node(session, node)
                if again.annotations.get(ANNOTATION) != session.record or not is_same_ground(node, again, self.goal.offers):
                    return None
                node = again
                continue
            if after.unschedulable:
                raise EndedElsewhere(
                    "ended-elsewhere",
                    "our record is gone, and the node was cordoned by somebody else since",
                    "whoever cordoned it has to uncordon it",
                )
            return "the node is schedulable again" if self.goal.cordoned else "the record is gone; the node was schedulable all along"
        return None

    # ------------------------------------------------------------ what people see

    def _show(self, missing: list[str]) -> None:
        session = self.session
        session.outcome.waiting_for = tuple(missing)
        if (tuple(missing), self.advice) != self.told:
            self.shown = tuple(missing)
            self._speak("waiting for")

    def _heartbeat(self) -> None:
        if self.session.clock.monotonic() - self.spoke >= HEARTBEAT:
            self._speak("still waiting for")

    def _speak(self, words: str) -> None:
        clock = self.session.clock
        self.spoke, self.told = clock.monotonic(), (self.shown, self.advice)
        gone, left = self.spoke - self.begun, self.deadline - self.spoke
        besides = "".join(f"; besides: {line}" for line in self.advice)
        missing = "; ".join(self.shown) or "a first look"
        self.session.say(f"{clock.now()} {words} ({clock_text(gone)}, {clock_text(left)} left): {missing}{besides}")

    def _expiry(self) -> str:
        missing = "; ".join(self.shown) or "no look at the node succeeded"
        return f"{self.goal.mode.value} was not reached within {clock_text(self.session.request.timeout)}; missing: {missing}"
