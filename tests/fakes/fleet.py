"""A fleet in memory: commits by id, one remote branch, one checkout. What a process keeps in its own memory dies with it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from kubectl_gpu_transition.failures import Refused
from kubectl_gpu_transition.model import (
    TRAILER,
    Advance,
    CheckoutFacts,
    CommitFacts,
    History,
    Identity,
    Problem,
    PushResult,
    Route,
    TipFacts,
)
from kubectl_gpu_transition.plan import env_path, rule_path
from tests.fakes.steering import Call, Clock, Steering

ROUTE = Route("origin", "main", "https://git.example/fleet.git", "https://git.example/fleet.git", False)
NO_HISTORY = Problem("the objects are not here", "git fetch --unshallow")


@dataclass(frozen=True)
class Commit:
    """One commit with the whole tree."""

    parent: str | None
    tree: tuple[tuple[str, bytes], ...]
    message: str

    @property
    def id(self) -> str:
        return hashlib.sha1(repr((self.parent, self.tree, self.message)).encode()).hexdigest()

    @property
    def files(self) -> dict[str, bytes]:
        return dict(self.tree)

    def facts(self) -> CommitFacts:
        """As the port shows it."""
        lines = self.message.rstrip("\n").split("\n")
        trailers = tuple(line.split(": ", 1)[1] for line in lines if line.startswith(f"{TRAILER}: "))
        return CommitFacts(self.id, lines[0], trailers)


class Fleet:
    """The port ``Fleet``. ``commits`` are all that exist anywhere; ``here`` the ids in the checkout's object store."""

    def __init__(self, steering: Steering, clock: Clock, files: dict[str, bytes]) -> None:
        self.steering, self.clock = steering, clock
        first = Commit(None, tuple(sorted(files.items())), "the fleet\n")
        self.commits = {first.id: first}
        self.tip: str | None = first.id
        self.head = first.id
        self.here = {first.id}
        self.memory: set[str] = set()
        self.state: Problem | None = None
        self.locked: Problem | None = None  # by somebody else
        self.holding = False
        self.route: Route | Problem = ROUTE
        self.identity: Identity | Problem = Identity("Op <op@example.com>", "Op <op@example.com>")
        self.fetch_tip: str | Problem | None = None
        self.relation: str | None = None
        self.tip_problem: Problem | None = None
        self.history_problem: Problem | None = None
        self.push_problem: Problem | None = None
        self.rejects: str | None = None  # what the remote's hook says to every push, while it is set
        self.unknown: str | None = None  # how the exchange of every push ends without any effect, while it is set
        self.pushes: list[tuple[str, str, float]] = []

    # ------------------------------------------------------------ what others do

    def commit(self, path: str, content: bytes, message: str = "another change\n", *, checkout: bool = False) -> str:
        """Somebody else's commit on top of the tip, pushed at once; with ``checkout`` this checkout has it too."""
        assert self.tip is not None
        new = Commit(self.tip, tuple(sorted({**self.commits[self.tip].files, path: content}.items())), message)
        self.commits[new.id] = new
        self.tip = new.id
        if checkout:
            self.pull()
        return new.id

    def pull(self) -> None:
        """git pull --ff-only, by hand."""
        assert self.tip is not None
        self.head = self.tip
        self.here |= set(self.ancestors(self.tip))

    def ancestors(self, commit: str | None) -> list[str]:
        """The commit and all before it, newest first."""
        found = []
        while commit is not None:
            found.append(commit)
            commit = self.commits[commit].parent
        return found

    def carrying(self, transaction: str | None = None) -> list[str]:
        """Commits of the branch with a transaction trailer (that of one id)."""
        return [
            c for c in self.ancestors(self.tip) if any(transaction in (None, trailer) for trailer in self.commits[c].facts().transactions)
        ]

    def new_process(self) -> None:
        """What a process keeps to itself is gone with it, the lock too."""
        self.memory, self.holding = set(), False

    # ------------------------------------------------------------ the port

    def _enter(self, name: str) -> Call:
        return self.steering.enter(f"fleet.{name}")

    def read_checkout(self, cluster: str) -> CheckoutFacts:
        call = self._enter("read_checkout")
        files = self.commits[self.head].files
        state = Problem("the checkout can not be read", "look at it") if call.is_fault("fails", "lost", "refused") else self.state
        answer = CheckoutFacts(
            path="/fleet",
            state=state,
            locked=None if self.holding else self.locked,
            branch="main",
            head=self.head,
            clusters=tuple(sorted(path.split("/")[1] for path in files if path.endswith("cluster-config.env"))),
            env=files.get(env_path(cluster)),
            rule=files.get(rule_path(cluster)),
            route=self.route,
            identity=self.identity,
        )
        call.done()
        return answer

    def _relation(self) -> str:
        if self.relation is not None:
            return self.relation
        if self.head == self.tip:
            return "equal"
        if self.head in self.ancestors(self.tip):
            return "behind"
        return "ahead" if self.tip in self.ancestors(self.head) else "diverged"

    def read_tip(self, cluster: str, base: str | None = None) -> TipFacts | Problem:
        call = self._enter("read_tip")
        if call.is_fault("fails", "lost", "refused"):
            return Problem("the remote does not answer", "check the network")
        if self.tip_problem is not None:
            return self.tip_problem
        answer = self._tip(cluster, base)
        call.done()
        return answer

    def _tip(self, cluster: str, base: str | None) -> TipFacts:
        if self.tip is None:
            return TipFacts(None, self.fetch_tip, "unknown", None, None, None)
        history: History | Problem | None = None
        if base is not None:
            way = self.ancestors(self.tip)
            newer = way[: way.index(base)] if base in way else []
            history = self.history_problem or History(base, base in way, tuple(self.commits[c].facts() for c in newer))
        files = self.commits[self.tip].files
        return TipFacts(self.tip, self.fetch_tip, self._relation(), files.get(env_path(cluster)), files.get(rule_path(cluster)), history)

    def probe_push(self) -> Problem | None:
        call = self._enter("probe_push")
        if call.is_fault("fails", "lost", "refused"):
            return Problem("the receiving side does not answer", "check the network")
        call.done()
        return self.push_problem

    def find_commits(self, tip: str, beginning: str) -> tuple[CommitFacts, ...] | Problem:
        call = self._enter("find_commits")
        if call.is_fault("fails", "lost", "refused"):
            return NO_HISTORY
        begun = [c for c in self.ancestors(tip) if self.commits[c].message.startswith(beginning)]
        found = tuple(facts for c in begun if (facts := self.commits[c].facts()).transactions)
        call.done()
        return found

    def take_lock(self, command: str) -> Problem | None:
        call = self._enter("take_lock")
        assert command
        if call.is_fault("fails", "refused"):
            return Problem("the lock can not be taken", "look at the git directory")
        if self.locked is not None:
            return self.locked
        self.holding = True
        if call.is_fault("lost"):
            return Problem("the lock can not be told to be taken", "look at the git directory")
        call.done()
        return None

    def release_lock(self) -> None:
        self.holding = False  # harmless and silent whenever it is called: no test needs it to fail

    def prepare_commit(self, parent: str, path: str, content: bytes, message: str, keep: bool) -> str:
        call = self._enter("prepare_commit")
        if call.is_fault("fails", "refused"):
            raise Refused("commit-not-made", "the commit's objects can not be written", "make room")
        assert parent in self.here or not keep
        new = Commit(parent, tuple(sorted({**self.commits[parent].files, path: content}.items())), message)
        self.commits[new.id] = new
        (self.here if keep else self.memory).add(new.id)
        if call.is_fault("lost"):
            raise Refused("commit-not-made", "the commit's objects may not be safe", "make room")
        call.done()
        return new.id

    def find_parent(self, commit: str) -> str | None:
        call = self._enter("find_parent")
        if call.is_fault("fails", "lost", "refused"):
            return None
        answer = self.commits[commit].parent if commit in self.here | self.memory else None
        call.done()
        return answer

    def is_ancestor(self, commit: str, later: str) -> bool | None:
        return commit in self.ancestors(later) if later in self.commits else None

    def is_same_change(self, commit: str, other: str) -> bool:
        call = self._enter("is_same_change")
        if call.is_fault("fails", "lost", "refused"):
            return False
        known = [self.commits[name] for name in (commit, other) if name in self.here | self.memory]
        shapes = [(found.parent, found.tree, found.message.split(TRAILER)[-1]) for found in known]
        call.done()
        return len(shapes) == 2 and shapes[0] == shapes[1]

    def push_commit(self, parent: str, commit: str, late: Callable[[], bool] | None = None) -> PushResult:
        call = self._enter("push_commit")
        if late is not None and late():
            return PushResult("late", "the look is too old")
        assert self.commits[commit].parent == parent
        assert commit in self.here | self.memory
        self.pushes.append((parent, commit, self.clock.monotonic()))
        if call.is_fault("fails") or self.unknown is not None:
            return PushResult("unknown", self.unknown or "the connection broke")
        if call.is_fault("refused") or self.rejects is not None:
            return PushResult("refused", self.rejects or "the branch is frozen")
        if self.tip != parent:
            return PushResult("refused", "the branch is not where it was")
        self.tip = commit
        if call.is_fault("lost"):
            return PushResult("unknown", "the answer was lost")
        call.done()
        return PushResult("accepted", "ok")

    def advance_checkout(self, base: str, commit: str, path: str) -> Advance:
        call = self._enter("advance_checkout")
        assert self.commits[commit].files[path] != self.commits[base].files[path]
        if call.is_fault("fails", "refused") or self.head not in (base, commit) or self.state is not None:
            return Advance(False, "the checkout was left alone", "git pull --ff-only")
        self.head = commit
        self.here.add(commit)
        if call.is_fault("lost"):
            return Advance(False, "the checkout may be half-way", "git restore and pull")
        call.done()
        return Advance(True, "the checkout is at the commit")
