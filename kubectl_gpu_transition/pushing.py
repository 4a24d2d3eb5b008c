"""From a cordoned node to a remote branch that asks for the target: recheck, edit, announce, push (spec section 4, steps 2 to 4).

Every round begins with the tip and section 6's verdict on it, so a branch that moved, another run of the same transaction and a
resume all take the same way. A push is a compare-and-swap; what it did is read from the remote, not from its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from kubectl_gpu_transition import plan, resume
from kubectl_gpu_transition.checks import Look, judge_gates
from kubectl_gpu_transition.failures import Drift, EndedElsewhere, Failure, LostGuard, Refused, RemoteMoved, RemoteRejected, UnknownOutcome
from kubectl_gpu_transition.live_rule import find_other_writers, read_name
from kubectl_gpu_transition.marks import find_marks, find_operations
from kubectl_gpu_transition.model import ANNOTATION, Advance, History, NodeView, Plan, Problem, Request, TipFacts, Transaction
from kubectl_gpu_transition.patches import announce_patch, restore_patch
from kubectl_gpu_transition.record import decode, encode, find_foreign_cordon
from kubectl_gpu_transition.rule import Edit, RuleError, edit_block
from kubectl_gpu_transition.session import Session
from kubectl_gpu_transition.target import find_missing_labels
from kubectl_gpu_transition.writes import carries, cordoned_under, edited_record, node_gone, write_node

T = TypeVar("T")

STALE = 10.0  # seconds after which an observation is not good enough for a write (spec section 4)
TAKE_UPS = 3  # how often a tip that moved on is taken up (spec section 9)
ROUNDS = 12  # how often the way to the push may start over before it is given up as a lost guard


def _told(fact: T | Problem) -> T:
    """A fact that the push depends on. Raises Refused where it is not to be had."""
    if isinstance(fact, Problem):
        message = f"whether the node is still free could not be told: {fact.message}"
        raise Refused("recheck-unread", message, fact.remedy or "resume when the API server answers")
    return fact


def _unfit(reasons: list[str]) -> Refused:
    return Refused("node-unfit", f"{'; '.join(reasons)}; nothing was pushed", "let that end, then resume")


class Push:
    """The way to the push of one run. ``locked``: this run holds the checkout's lock and may move it forward."""

    def __init__(self, session: Session, locked: bool, new_id: Callable[[], str]) -> None:
        self.session, self.locked, self.new_id = session, locked, new_id
        self.commit: tuple[str, str] | None = None  # (parent, commit) that is ready to be pushed
        self.before: str | None = None  # the record from before this run's announcement, while it may be taken back
        self.rechecked = 0.0
        self.landed: str | None = None  # the commit in the branch that put the target in force, where it is known
        self.judged: str | None = None  # the last tip whose gates were looked at

    @property
    def request(self) -> Request:
        """What was asked for."""
        return self.session.request

    def prepare_first(self, look: Look, edit: Edit, transaction: Transaction) -> None:
        """Build the real commit on HEAD, once, before anything is written to the node; its objects are unreferenced. Raises Refused."""
        self._build(look, edit, transaction, transaction.base, keep=True)

    def _build(self, look: Look, edit: Edit, transaction: Transaction, parent: str, keep: bool) -> None:
        request, route = self.request, look.observation.checkout.route
        message = plan.commit_message(request, transaction.source, transaction.target, transaction.id)
        path = plan.rule_path(request.cluster)
        if self.commit is None or self.commit[0] != parent:
            self.commit = (parent, self.session.fleet.prepare_commit(parent, path, edit.after, message, keep))
        if not isinstance(route, Problem):
            self.session.outcome.plan = Plan(
                path, tuple(edit.patch), edit.diff, message, f"{route.remote} ({route.push_url})", route.branch
            )

    def bring_tip_to_target(self, look: Look) -> None:
        """Steps 2 to 4, as often as section 6 sends us back to them: until the tip's rule is --to."""
        session, tip = self.session, look.observation.tip
        self.judged = tip.tip if isinstance(tip, TipFacts) else None
        taken_up = 0
        for _ in range(ROUNDS):
            if isinstance(tip, Problem):
                raise Refused("tip-unread", f"the tip can not be read: {tip.message}", tip.remedy)
            verdict = resume.judge_tip(session.running, self.request.node, tip)
            if verdict.entry == "wait":
                self._join_wait(verdict)
                return
            if verdict.entry != "push":
                raise Refused("tip-refused", verdict.message, verdict.remedy)
            assert tip.tip is not None
            if self.judged != tip.tip:
                taken_up += 1
                if taken_up > TAKE_UPS:
                    raise RemoteMoved(
                        "remote-moved", f"the branch moved on {taken_up} times before the push got through", "resume when it is quieter"
                    )
                self._check_moved_tip(tip)
                self.judged = tip.tip
            state = self._recheck(tip)
            if state == "ready":
                self._prepare(look, tip)
                state = self._announce(tip.tip)
            if state == "ready":
                state = self._push()
            if state in ("pushed", "gone"):
                return  # a record that is gone: the wait tells whether another run has finished it
            tip = session.read_tip()
            self._stop_on_drift(state, tip)
        raise LostGuard("node-busy", "the node or the branch kept changing under this run", "resume when it is quieter")

    def _stop_on_drift(self, state: str, tip: TipFacts | Problem) -> None:
        """Labels that are not --from are another run's doing only if the tip says so (spec section 4, step 2)."""
        if state == "labels" and isinstance(tip, TipFacts):
            verdict = resume.judge_tip(self.session.running, self.request.node, tip)
            if verdict.entry == "push":
                node = self.session.outcome.node
                drift = "; ".join(find_missing_labels(node, self.session.running.source)) if node else "?"
                raise Drift(
                    "label-drift",
                    f"the live labels left {self.session.running.source.value} before the push: {drift}",
                    "find out who wrote them; nothing was pushed",
                )

    def _join_wait(self, verdict: resume.Verdict) -> None:
        """The change is already at the tip: complete an advance that was cut short, and go on to the wait."""
        session = self.session
        self.landed = verdict.commit
        session.skip(("recheck", "edit"), verdict.message)
        with session.step("push") as step:
            step.status, step.message = "skipped", verdict.message
            parent = session.fleet.find_parent(verdict.commit) if verdict.commit else None
            if self.locked and verdict.commit and parent:
                moved = session.fleet.advance_checkout(parent, verdict.commit, plan.rule_path(self.request.cluster))
                step.message += f"; {self._tell(moved)}"

    def _tell(self, moved: Advance) -> str:
        """What became of the checkout; how to bring up one that was left alone is for the report and, as a note, for its text."""
        if moved.done or not moved.remedy:
            return moved.message
        self.session.outcome.notes.append(f"The checkout was left alone; bring it up with: {moved.remedy}")
        return f"{moved.message}; bring it up with: {moved.remedy}"

    def _check_moved_tip(self, tip: TipFacts) -> None:
        """``creation-gates`` on a tip that others moved on; ``fleet-rule`` is made by editing it."""
        gates = judge_gates(self.request, tip.env, f"the new tip {(tip.tip or '')[:12]}")
        if gates.status != "pass":
            raise Refused("moved-tip-blocked", gates.message, gates.remedy)
        self.session.say(f"the branch has moved on to {(tip.tip or '')[:12]}; taking it up")

    def _prepare(self, look: Look, tip: TipFacts) -> None:
        """Step 3: the commit on this very tip, the one built before the cordon where it still fits."""
        session, request, transaction = self.session, self.request, self.session.running
        assert tip.tip is not None
        with session.step("edit") as step:
            if self.commit is None or self.commit[0] != tip.tip:
                if not isinstance(tip.rule, bytes):
                    raise Refused("rule-unread", "the rule at the tip can not be read")
                try:
                    edit = edit_block(tip.rule, request.node, transaction.source, transaction.target, plan.rule_path(request.cluster))
                except RuleError as error:
                    raise Refused(
                        "rule-refused", f"the rule at the tip {tip.tip[:12]}: {error}", "mend the file, as any reviewed change"
                    ) from error
                self._build(look, edit, transaction, tip.tip, keep=tip.tip == look.observation.checkout.head)
                assert self.commit is not None
                # What was announced goes out again as it was, if it is this very change and nothing else.
                if transaction.commit and session.fleet.is_same_change(transaction.commit, self.commit[1]):
                    self.commit = (tip.tip, transaction.commit)
            assert self.commit is not None
            step.message = f"commit {self.commit[1][:12]} on {tip.tip[:12]}"

    def _recheck(self, tip: TipFacts) -> str:
        """Step 2: two fresh looks, the settle time apart. ``ready``, or ``labels``/``record`` when the tip has to be read first."""
        session = self.session
        rule_name = read_name(tip.rule)
        with session.step("recheck") as step:
            for look in range(2):
                if look:
                    session.clock.sleep(session.request.settle)
                session.stop_if_interrupted()
                node = session.cluster.read_node(self.request.node)
                state = self._judge_before_push(node)
                facts = session.cluster.read_facts(self.request.node, whole=False)
                session.see(node, facts)
                found = session.find_holders(facts), find_operations(node, facts) if node is not None else ()
                if state != "ready":
                    step.message = "another run of this transaction is at work; the tip decides"
                    return state
                writers = find_other_writers(facts, rule_name, self.request.node) if rule_name else ()
                holders, marks, others = _told(found[0]), _told(found[1]), _told(writers)
                if marks:
                    raise _unfit([f"another operation is at work: {mark}" for mark in marks])
                if others:
                    raise _unfit([f"the mode labels may be written by {other} as well" for other in others])
                if holders:
                    shown = "; ".join(f"{h.namespace}/{h.kind}/{h.name} ({', '.join(h.pods)})" for h in holders)
                    raise Refused(
                        "holder-appeared",
                        f"somebody holds a GPU on the node since the preflight: {shown}",
                        "; ".join(plan.point_at_cluster(self.request, h.advice) for h in holders),
                    )
            self.rechecked = session.clock.monotonic()
            step.message = "no holders, twice"
            return "ready"

    def _judge_before_push(self, node: NodeView | None) -> str:
        """Whether the node may still be pushed for. Raises what ends the run; ``labels``/``record`` send it to the tip, ``gone`` to the
        wait."""
        session, transaction = self.session, self.session.running
        if node is None or node.uid != transaction.uid:
            raise node_gone(self.request.node)
        session.see(node)
        text = node.annotations.get(ANNOTATION)
        if text is None:
            return "gone"
        other = decode(text)
        if other is None or other.id != transaction.id:
            raise EndedElsewhere(
                "ended-elsewhere",
                "our transaction has gone from the node before the push; nothing was pushed",
                "find out who replaced it; this run has stopped and does not cordon again",
            )
        if other.move != transaction.move:
            raise edited_record()
        if not node.unschedulable:
            raise Drift(
                "uncordoned",
                "the node was uncordoned by another actor before the push; nothing was pushed",
                "find out who uncordoned it; the resume cordons it again first",
            )
        foreign = find_foreign_cordon(node)
        if foreign is not None:
            raise Refused(
                "foreign-cordon",
                f"the node was cordoned by {foreign.manager} at {foreign.time}: that cordon is not ours",
                f"that one uncordons ({plan.uncordon_command(self.request)}), then resume, which cordons again first",
            )
        if text != session.record:
            session.adopt(other, text)
            return "record"
        if find_missing_labels(node, transaction.source):
            return "labels"
        unfit = [] if node.ready == "True" else [f"the node is not Ready (Ready is {node.ready}): it can not be proven free of holders"]
        unfit += [f"another operation is at work: {mark}" for mark in find_marks(node)]
        if unfit:
            raise _unfit(unfit)
        return "ready"

    def _announce(self, base: str) -> str:
        """Phase ``pushing``, guarded by the exact old value, the cordon and the labels. If that guard is lost, nothing is pushed:
        the answer is then never ``ready``."""
        session, before = self.session, self.session.record
        assert self.commit is not None and session.outcome.node is not None
        announced = replace(session.running, phase="pushing", base=base, commit=self.commit[1])
        record = encode(announced)
        if record == before:
            # Two runs that announce the same commit must not have the same record, or one could take back what the other relies on.
            announced = replace(announced, by=f"{announced.by.split('#')[0][:119]}#{self.new_id()[:8]}")
            record = encode(announced)
        session.stop_if_interrupted()
        with session.step("push"):
            node = session.outcome.node
            try:
                write_node(session, node, announce_patch(node, before, record, announced.source), cordoned_under(record), versioned=False)
            except LostGuard:
                state = self._judge_before_push(session.cluster.read_node(self.request.node))
                # A node that looks as before has no announcement all the same, and without one nothing may be pushed.
                return "again" if state == "ready" else state
        if decode(before) is not None and session.running.phase == "cordoned":
            self.before = before
        session.adopt(announced, record)
        return "ready"

    def _take_back(self) -> str:
        """After a push that failed for certain: the announcement goes, if this run made it from ``cordoned``.

        A record that can not be put back stays ``pushing``, which a resume reads the remote for: that is said, and no more.
        """
        session, before, node = self.session, self.before, self.session.outcome.node
        if before is None or node is None:
            return ""
        self.before = None
        restored = decode(before)
        assert restored is not None
        try:
            write_node(session, node, restore_patch(node, session.record, before), carries(before), versioned=False)
        except Failure as failure:
            return f"; the record still says pushing, for it could not be put back: {failure.message}"
        session.adopt(restored, before)
        return ""

    def _push(self) -> str:
        """Step 4: one commit, compare-and-swap, then the tip is read and believed. ``pushed``; ``moved`` when the tip went elsewhere;
        ``again`` when the recheck had become too old, and nothing was pushed."""
        session = self.session
        assert self.commit is not None
        parent, commit = self.commit
        with session.step("push") as step:
            if session.interrupts.pending() is not None:
                self._take_back()  # no push was sent since the announcement
                session.stop_if_interrupted()
            result = session.fleet.push_commit(parent, commit, self._is_late)
            if result.state == "late":
                self._take_back()
                return "again"
            tip = session.read_tip()
            landed = self._has_landed(tip, commit) if isinstance(tip, TipFacts) else None
            if landed:
                self.landed = commit
                moved = session.fleet.advance_checkout(parent, commit, plan.rule_path(self.request.cluster))
                step.message = f"{commit[:12]} is in the branch; {self._tell(moved)}"
                return "pushed"
            elsewhere = isinstance(tip, TipFacts) and tip.tip != parent
            if elsewhere and result.state == "accepted":
                raise RemoteMoved(
                    "remote-moved",
                    "the remote accepted the push, and its branch was moved elsewhere since",
                    "find out who rewrote the branch, then resume",
                )
            if result.state == "refused" or (elsewhere and landed is False):
                left = self._take_back()
                if elsewhere:
                    step.message = f"the branch moved before the push{left}"
                    return "moved"
                raise RemoteRejected(
                    "push-rejected", f"the remote refused the push: {result.message}{left}", "correct what it says, then resume"
                )
            where = f"can not be read: {tip.message}" if isinstance(tip, Problem) else f"is still {parent[:12]}"
            why = "the branch has moved, and its history is not to be had" if elsewhere else f"the tip {where}"
            raise UnknownOutcome(
                "push-unknown",
                f"whether the push has landed is unknown: {result.message}; {why}",
                "resume: it reads the remote and goes on from there",
            )

    def _is_late(self) -> bool:
        """Whether the recheck has become too old to push on: asked right before the ref update leaves."""
        return self.session.clock.monotonic() - self.rechecked > STALE

    def _has_landed(self, tip: TipFacts, commit: str) -> bool | None:
        """Whether the tip is, or contains, the commit; None where its history is not to be had."""
        if tip.tip == commit:
            return True
        if not isinstance(tip.history, History):
            return None
        return any(commit == seen.id for seen in tip.history.commits)
