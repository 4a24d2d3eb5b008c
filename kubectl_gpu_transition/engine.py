"""The fixed order of a transition, and the only failure boundary.

What holds here, and has a test by name:

1. Guarded write. Each patch of the node tests what the decision relied on. A lost guard means: look and decide again, a limited
   number of times; never a blind retry.
2. No reply is not no effect. The node counts as in our hands before the request leaves; only a definite refusal takes that back.
3. Evidence beats the record. Where a run stands is decided from the tip of the remote branch; the annotation only proves that the
   cordon is ours. A resume is this same code, entered at another step.
4. One uncordon call site, in ``waiting``, taking the observation that verified.
5. Unknown is not no. A fact that could not be read fails its check, or is missing from the wait.
6. Nothing expires. The lock dies with its process; the cordon does not. An announcement is taken back only by the run that made it.
7. A preview is an apply stopped before its first write: the same observation, checks and plan.

A failure never uncordons. Everything that goes wrong ends in ``Engine.run``, which asks one question: was the node in our hands?
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kubectl_gpu_transition import plan, resume
from kubectl_gpu_transition.advice import advise
from kubectl_gpu_transition.checks import Look, evaluate, evaluate_abandon, is_at_target, judge_fleet_cluster, moot_checks, node_checks
from kubectl_gpu_transition.facts import Observation
from kubectl_gpu_transition.failures import (
    EndedElsewhere,
    Failure,
    Forbidden,
    Interrupted,
    InterruptedNow,
    LostGuard,
    NodeGone,
    Refused,
    RefusedByServer,
    Usage,
    exit_code,
    outcome_word,
)
from kubectl_gpu_transition.model import (
    ANNOTATION,
    Check,
    CommitFacts,
    NodeView,
    Outcome,
    Plan,
    Problem,
    Request,
    Step,
    TipFacts,
    Transaction,
)
from kubectl_gpu_transition.patches import cordon_patch, recordon_patch
from kubectl_gpu_transition.ports import Clock, Cluster, Fleet, Interrupts, Terminal
from kubectl_gpu_transition.progress import Progress
from kubectl_gpu_transition.pushing import STALE, Push
from kubectl_gpu_transition.record import BY_LENGTH, Claim, encode, read_claim
from kubectl_gpu_transition.rule import Edit, RuleError, edit_block
from kubectl_gpu_transition.session import Session, known
from kubectl_gpu_transition.status import survey_nodes
from kubectl_gpu_transition.survey import read_survey
from kubectl_gpu_transition.target import Goal, find_missing_labels, find_missing_owners, find_owners
from kubectl_gpu_transition.truth import describe_truth
from kubectl_gpu_transition.waiting import Wait
from kubectl_gpu_transition.writes import carries, cordoned_under, read_same_node, write_node

CORDON_TRIES = 5  # spec section 4, step 1


class Engine:
    """One command, from its first read to its last word."""

    def __init__(
        self,
        request: Request,
        cluster: Cluster,
        fleet: Fleet,
        clock: Clock,
        terminal: Terminal,
        interrupts: Interrupts,
        new_id: Callable[[], str],
        host: str,
        command_line: str,
    ) -> None:
        self.outcome = Outcome(request, [Step(name) for name in plan.STEPS])
        self.session = Session(request, cluster, fleet, clock, terminal, interrupts, self.outcome)
        self.new_id, self.host, self.command_line = new_id, host, command_line
        self.confirmed, self.introduced = request.yes, False
        self.unlocked: Problem | None = None  # why this run does not hold the checkout's lock, where it wants it
        self.probe: tuple[Problem | None] | None = None  # whether a push would be let in, asked once

    @property
    def request(self) -> Request:
        """What was asked for."""
        return self.session.request

    def run(self) -> Outcome:
        """Do the command. Never raises: every ending, a bug included, is an outcome."""
        try:
            commands = {"preview": self._preview, "apply": self._apply, "abandon": self._abandon, "status": self._status}
            commands[self.request.command]()
        except InterruptedNow as signal:
            self._fail(Interrupted("interrupted", f"interrupted by {signal}"))
        except Exception as error:  # the one failure boundary: whatever happened, say what is true now
            self._fail(error)
        finally:
            self._give_lock_back()
        return self.outcome

    def _give_lock_back(self) -> None:
        """The lock dies with the process anyway, so an error here must not hide how the run ended."""
        try:
            self.session.fleet.release_lock()
        except OSError as error:
            self.session.say(f"the lock of the checkout could not be given back: {error}")

    def _succeed(self, word: str) -> None:
        self.outcome.word, self.outcome.exit_code = word, 0

    def _fail(self, error: Exception) -> None:
        session, outcome = self.session, self.outcome
        outcome.error, outcome.error_step = error, session.current
        outcome.exit_code, outcome.word = exit_code(error, session.in_hands), outcome_word(error, session.in_hands)
        transaction, request, gone = session.transaction, session.request, isinstance(error, NodeGone)
        if transaction is None:
            if request.resume and isinstance(error, Interrupted):
                outcome.headline = "this run changed nothing; the node is as the earlier run left it"
            return
        if isinstance(error, Interrupted) and not session.in_hands:
            if outcome.node is not None and request.resume:
                state = "still cordoned by the earlier run" if outcome.node.unschedulable else "SCHEDULABLE, the earlier run unfinished"
                outcome.headline = f"this run changed nothing; the node is {state}"
        elif session.in_hands or outcome.resumed or request.command == "abandon":
            try:
                gone = describe_truth(session, error) or gone
            except Exception as second:  # what is true now could not be told: that is said, and the ending stays what it was
                outcome.facts.append(f"the rest could not be read: {type(second).__name__}: {second}")
            outcome.inspect = plan.inspect_commands(request)
        if gone or isinstance(error, EndedElsewhere):
            return
        if request.command == "abandon":
            outcome.resume_command = plan.abandon_command(request)
        else:
            outcome.resume_command = plan.apply_command(request, transaction.source, transaction.target, resume=True)

    # ------------------------------------------------------------ preflight

    def _look(self) -> Look:
        """One observation and what follows from it before any check."""
        session, request = self.session, self.request
        observation = session.observe()
        if self.unlocked is not None and observation.checkout.locked is None:  # whoever had it has given it back, but not to this run
            observation = replace(observation, checkout=replace(observation.checkout, locked=self.unlocked))
        node, tip = observation.node, observation.tip
        direction = None if request.command == "abandon" else (request.source, request.target)
        claim = read_claim(node, request.cluster, direction) if isinstance(node, NodeView) else Claim("none", "", None)
        if claim.transaction is not None and claim.kind == "ours":
            session.adopt(claim.transaction, claim.text)
            self.outcome.resumed = request.resume
            names = tuple(dict.fromkeys((*request.gpu_resources, *claim.transaction.gpu_resources)))
            drivers = tuple(dict.fromkeys((*request.ignore_dra_drivers, *claim.transaction.ignore_dra_drivers)))
            needed = request.require_allocatable or claim.transaction.require_allocatable
            session.request = request = replace(request, gpu_resources=names, ignore_dra_drivers=drivers, require_allocatable=needed)
        verdict = None
        if claim.kind == "ours" and claim.transaction is not None and isinstance(tip, TipFacts):
            verdict = resume.judge_tip(claim.transaction, request.node, tip)
        push = None
        if request.command != "abandon" and not isinstance(observation.checkout.route, Problem) and not isinstance(tip, Problem):
            self.probe = self.probe or (known(session.fleet.probe_push),)
            push = self.probe[0]
        look = Look(request, observation, claim, verdict, self._edit(observation), self._orphan(observation, claim), push)
        session.find_holders(observation.facts)
        return look

    def _edit(self, observation: Observation) -> Edit | RuleError | Problem | None:
        request, rule = self.request, observation.checkout.rule
        if rule is None or isinstance(rule, Problem) or request.source is None or request.target is None:
            return rule if isinstance(rule, Problem) else None
        try:
            return edit_block(rule, request.node, request.source, request.target, plan.rule_path(request.cluster))
        except RuleError as error:
            return error

    def _orphan(self, observation: Observation, claim: Claim) -> CommitFacts | None:
        """A commit of this node and direction that is in force though no transaction is on the node (the first resume table's last row)."""
        request, tip = self.request, observation.tip
        if claim.kind != "none" or request.source is None or request.target is None or not isinstance(tip, TipFacts) or tip.tip is None:
            return None
        node, pods = observation.node, observation.facts.pods
        if resume.read_rule_mode(tip.rule, request.node) is not request.target or not isinstance(node, NodeView):
            return None
        arrived = not isinstance(pods, Problem) and not find_missing_owners(find_owners(pods, node.name), request.target)
        if arrived and not find_missing_labels(node, request.target):
            return None  # the node has arrived: a cordon on it is somebody's own business
        commits = self.session.fleet.find_commits(tip.tip, plan.commit_beginning(request, request.source, request.target))
        return commits[0] if not isinstance(commits, Problem) and commits else None

    def _preflight(self) -> Look | None:
        """Every check. None when the node is already at the target. Raises Refused when a check fails."""
        session, request, outcome = self.session, self.request, self.outcome
        with session.step("preflight") as step:
            look = self._look()
            if is_at_target(request, look.observation, judge_fleet_cluster(look)):
                outcome.checks = moot_checks(look, advise(look))
                step.message = f"{request.node} is already at {request.target.value if request.target else '?'}"
                session.skip(plan.STEPS[1:], "the node is already at the target")
                self._succeed("already-at-target")
                return None
            if self._must_cordon_first(look):
                self._confirm(look)
                self._cordon_on_resume(look)
                look = self._look()
            outcome.checks = evaluate(look)
            if isinstance(look.edit, Edit) and not look.waiting:
                outcome.plan = self._plan(look.edit, look.observation, "<id>")
            failed = [check for check in outcome.checks if check.status == "fail"]
            if request.command == "apply" and not failed:
                access = self._access(look)
                outcome.checks += (access,)
                failed += [access] if access.status == "fail" else []
            elif request.command == "apply":
                outcome.checks += (Check("access", "skip", "other checks failed first"),)
            outcome.checks += advise(look)
            if failed:
                raise Refused("blocked", f"{len(failed)} check{'s' if len(failed) > 1 else ''} failed: {', '.join(c.name for c in failed)}")
            step.message = (
                f"{sum(c.status == 'pass' for c in outcome.checks)} checks pass, {sum(c.status == 'warn' for c in outcome.checks)} warn"
            )
            return look

    def _plan(self, edit: Edit, observation: Observation, transaction_id: str) -> Plan | None:
        request, route = self.request, observation.checkout.route
        if isinstance(route, Problem) or request.source is None or request.target is None:
            return None
        message = plan.commit_message(request, request.source, request.target, transaction_id)
        return Plan(
            plan.rule_path(request.cluster), tuple(edit.patch), edit.diff, message, f"{route.remote} ({route.push_url})", route.branch
        )

    def _must_cordon_first(self, look: Look) -> bool:
        """A resume of a node that somebody uncordoned cordons as soon as ours and ``fleet-cluster`` are established (spec section 6)."""
        node = look.observation.node
        if not isinstance(node, NodeView) or self.request.command != "apply" or not self.request.resume:
            return False
        return look.claim.kind == "ours" and not node.unschedulable and judge_fleet_cluster(look).status in ("pass", "warn")

    def _access(self, look: Look) -> Check:
        """A server-side dry run of the cordon patch: RBAC and admission, proven."""
        node = look.observation.node
        assert isinstance(node, NodeView)
        record = look.claim.text if look.claim.kind == "ours" else encode(self._draft(look, node))
        try:
            self.session.cluster.patch_node(node.name, cordon_patch(node, record, versioned=False), dry_run=True)
        except Failure as failure:
            return Check(
                "access",
                "fail",
                f"a dry run of the cordon was not accepted: {failure.message}",
                failure.remedy or "ask for the permission to patch nodes, and see what admission says",
            )
        blind = self.session.cluster.probe_watches(node.name)
        if blind is not None:
            return Check("access", "fail", blind.message, blind.remedy or "ask for the permission: see the README's role")
        return Check("access", "pass", "a dry run of the cordon is accepted, and what the wait needs may be watched")

    def _confirm(self, look: Look) -> None:
        """Show where this goes, and ask once. Raises Usage when the answer is not the node's name."""
        session, request, route = self.session, self.request, look.observation.checkout.route
        remote = f"{route.remote} {route.push_url}, branch {route.branch}" if not isinstance(route, Problem) else "unknown"
        if not self.introduced:
            session.say(f"context {session.cluster.context}, server {session.cluster.server}")
            session.say(f"remote {remote}")
        self.introduced = True
        if self.confirmed:
            return
        modes = f"{request.source.value} to {request.target.value}" if request.source and request.target else ""
        what = (
            f"This gives up the transaction of {request.node} ({modes})."
            if request.command == "abandon"
            else (f"This cordons {request.node}, moves it from {modes} through the fleet, and uncordons it when that is verified.")
        )
        if not session.terminal.ask([what], request.node):
            session.stop_if_interrupted()
            raise Usage("not-confirmed", "the answer was not the node's name: nothing was done")
        self.confirmed = True

    # ------------------------------------------------------------ the commands

    def _preview(self) -> None:
        if self._preflight() is not None:
            self._succeed("ready")

    def _apply(self) -> None:
        session = self.session
        self.unlocked = session.fleet.take_lock(self.command_line)
        push = Push(session, self.unlocked is None, self.new_id)
        look = self._preflight()
        if look is None:
            return
        self._confirm(look)
        if look.claim.kind == "none":
            look = self._cordon(look, push)
            if look is None:
                return
        else:
            session.interrupts.hold()
            session.in_hands = True
            session.skip(("cordon",), "the node is cordoned by this transaction")
        push.bring_tip_to_target(look)
        session.fleet.release_lock()
        running = session.running
        goal = Goal(running.target, left=running.source, offers=self.request.require_allocatable)
        self._wait(Wait(session, goal, Progress(session, push.landed)))
        self._succeed("completed")
        self.outcome.notes.append("Both creation gates are still closed; opening them is your own reviewed change.")

    def _abandon(self) -> None:
        session = self.session
        session.skip(("cordon", "recheck", "edit", "push"), "abandon does not make this step")
        with session.step("preflight") as step:
            look = self._look()
            if session.transaction is not None:
                session.request = replace(self.request, source=session.transaction.source, target=session.transaction.target)
                look = replace(look, request=session.request)
                self.outcome.request = session.request
            self.outcome.checks = evaluate_abandon(look)
            failed = [check.name for check in self.outcome.checks if check.status == "fail"]
            if failed:
                raise Refused("blocked", f"this transaction can not be abandoned: {', '.join(failed)}", resume.last_way_out(self.request))
            step.message = "the change is not in force and nothing of ours is on its way"
        self._confirm(look)
        session.interrupts.hold()
        node = look.observation.node
        assert isinstance(node, NodeView)
        # After an announcement the change may have been in force, and somebody may have got a device by it.
        no_holders = session.running.phase == "pushing" and node.unschedulable
        goal = Goal(session.running.source, no_holders, cordoned=node.unschedulable)
        self._wait(Wait(session, goal, Progress(session), abandoning=True))
        self._succeed("abandoned")

    def _status(self) -> None:
        """Read everything once, and say of each node how it stands. Raises Refused for another cluster, and for what could not be read."""
        session, request = self.session, self.request
        observation, survey = read_survey(session)
        where = judge_fleet_cluster(Look(request, observation, Claim("none", "", None), None, None))
        if where.status == "fail" and not observation.facts.find_problem("kustomizations", "sources"):
            raise Refused("blocked", where.message, where.remedy)
        self.outcome.nodes, unread = survey_nodes(request, survey, session.clock.seconds_since)
        if request.node and self.outcome.nodes[0].fleet_mode is None and not unread and self.outcome.nodes[0].live is None:
            raise Refused(
                "node-unknown", f"{request.node} is neither in the rule of {request.cluster} nor in the cluster", "check its name"
            )
        if unread:
            raise Refused(
                "status-unread", f"could not be read: {'; '.join(unread)}", "what depends on it is not shown: see to it, and ask again"
            )
        self._succeed("ok")

    def _wait(self, wait: Wait) -> None:
        if self.request.reconcile:
            wait.progress.ask()
        wait.run()
        self.session.outcome.waiting_for = ()

    # ------------------------------------------------------------ cordon

    def _draft(self, look: Look, node: NodeView, transaction_id: str = "00000000-0000-4000-8000-000000000000") -> Transaction:
        request, checkout = self.request, look.observation.checkout
        assert (
            request.source is not None
            and request.target is not None
            and checkout.head is not None
            and not isinstance(checkout.identity, Problem)
        )
        name = checkout.identity.committer.split(" <", 1)[0]
        return Transaction(
            transaction_id,
            node.uid,
            request.cluster,
            request.source,
            request.target,
            "cordoned",
            checkout.head,
            None,
            self.session.clock.now(),
            f"{name}@{self.host}"[:BY_LENGTH],
            request.gpu_resources,
            request.ignore_dra_drivers,
            request.require_allocatable,
        )

    def _cordon(self, look: Look, push: Push) -> Look | None:
        """Step 1: cordon and record in one patch, tied to the node that was checked. The real commit is there before it.

        Returns the look that decided; None when the node turned out to be at the target after all.
        """
        session, transaction_id = self.session, self.new_id()
        with session.step("cordon") as step:
            for _ in range(CORDON_TRIES):
                ready = self._make_ready(look, push, transaction_id)
                if ready is None:
                    return None
                look, transaction = ready
                node, record = look.observation.node, encode(transaction)
                assert isinstance(node, NodeView)
                session.interrupts.hold()
                session.stop_if_interrupted()
                session.adopt(transaction, record)
                try:
                    write_node(
                        session,
                        node,
                        cordon_patch(node, record),
                        cordoned_under(record),
                        versioned=True,
                        # A record that nobody else can have written proves the write, also on a node that was uncordoned right after.
                        wrote=carries(record),
                        late=partial(self._is_stale, look),
                    )
                except (LostGuard, RefusedByServer, Forbidden, NodeGone) as failure:
                    if not session.in_hands:
                        session.transaction, self.outcome.transaction = None, None
                    if failure.id == "too-late":  # it was not sent: the server was busy until the look had become too old
                        continue
                    if not isinstance(failure, LostGuard):
                        raise
                    look = self._check_again(look, read_same_node(session, node))
                    continue
                step.message = f"{node.name} is cordoned, transaction {transaction.id}"
                return look
            raise LostGuard(
                "node-busy", f"the node changed {CORDON_TRIES} times between the look and the cordon", "run it again when the node is quiet"
            )

    def _make_ready(self, look: Look, push: Push, transaction_id: str) -> tuple[Look, Transaction] | None:
        """The transaction with its commit made, and a look that is not too old to act on: taken and checked afresh as long as it is.

        None when the node is at the target by then.
        """
        for _ in range(CORDON_TRIES):
            node = look.observation.node
            assert isinstance(node, NodeView) and isinstance(look.edit, Edit)
            transaction = self._draft(look, node, transaction_id)
            encode(transaction)  # a record that is too long is told here
            push.prepare_first(look, look.edit, transaction)
            if not self._is_stale(look):
                return look, transaction
            again = self._preflight()
            if again is None:
                return None
            look = again
        raise Refused(
            "too-slow",
            f"{CORDON_TRIES} looks at cluster and fleet were each older than {STALE:.0f} s before the node could be cordoned",
            "see with -v which server is so slow",
        )

    def _is_stale(self, look: Look) -> bool:
        return self.session.clock.monotonic() - look.observation.taken > STALE

    def _check_again(self, look: Look, node: NodeView) -> Look:
        """The same look with a node that changed under us, after the node checks on it. Raises Refused."""
        claim = read_claim(node, self.request.cluster, (self.request.source, self.request.target))
        look = replace(look, observation=replace(look.observation, node=node), claim=claim)
        again = {c.name: c for c in node_checks(look)}
        self.outcome.checks = tuple(again.get(check.name, check) for check in self.outcome.checks)
        failed = [check for check in again.values() if check.status == "fail"]
        if failed:
            raise Refused("blocked", f"the node changed before the cordon: {'; '.join(check.message for check in failed)}")
        return look

    def _cordon_on_resume(self, look: Look) -> None:
        session, node = self.session, look.observation.node
        assert isinstance(node, NodeView)
        session.interrupts.hold()
        with session.step("cordon") as step:
            for _ in range(CORDON_TRIES):
                session.stop_if_interrupted()
                try:
                    shows = cordoned_under(session.record)
                    node = write_node(session, node, recordon_patch(node, session.record), shows, versioned=True)
                except LostGuard:
                    node = read_same_node(session, node)
                    if node.annotations.get(ANNOTATION) != session.record:
                        raise
                    if node.unschedulable:
                        step.message = f"{node.name} was cordoned by somebody else meanwhile"
                        return
                    continue
                step.message = f"{node.name} had been uncordoned by another actor and is cordoned again, same transaction"
                return
            raise LostGuard(
                "node-busy", f"the node changed {CORDON_TRIES} times between the look and the cordon", "run it again when the node is quiet"
            )
