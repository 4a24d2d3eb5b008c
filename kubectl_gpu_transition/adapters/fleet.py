"""The fleet: one checkout and its remote, behind the ``Fleet`` protocol of ports.py. Composes; decides nothing itself.

Every method opens the repository anew, so that what it says is what is there now, and closes its files at the end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from kubectl_gpu_transition.adapters import advance, checkout, identity, lock, objects, route
from kubectl_gpu_transition.adapters.history import Walk, describe_commit
from kubectl_gpu_transition.adapters.remote import Remote
from kubectl_gpu_transition.adapters.repository import Repository, Unusable, open_repository, read_commit, read_file
from kubectl_gpu_transition.adapters.route import Target
from kubectl_gpu_transition.adapters.transport import ExchangeFailed
from kubectl_gpu_transition.failures import Refused
from kubectl_gpu_transition.model import Advance, CheckoutFacts, CommitFacts, History, Problem, PushResult, TipFacts

_UNSHALLOW = "git fetch --unshallow"


class GitFleet:
    """The ``Fleet`` of one checkout. ``repo`` is its top, ``environ`` the process's environment, ``token_env`` the variable that holds
    the token for https, ``git_timeout`` the seconds for one exchange, ``log`` gets one line for each exchange (without secrets)."""

    def __init__(
        self, repo: str, environ: Mapping[str, str], *, token_env: str | None, git_timeout: float, log: Callable[[str], None]
    ) -> None:
        self._path, self._environ = repo, environ
        self._remote = Remote(environ, token_env, git_timeout, log)
        self._lock: lock.Lock | None = None
        # The local branch of the first look at the remote, and where it goes: the tip is read from there and pushed to there until the
        # end, whatever HEAD is switched to meanwhile, and no other branch is ever moved forward.
        self._used: tuple[str | None, Target] | None = None
        # Without a handler Python would print dulwich's warnings to stderr.
        logging.getLogger("dulwich").addHandler(logging.NullHandler())

    def read_checkout(self, cluster: str) -> CheckoutFacts:
        """Local facts; whatever is wrong is a Problem in its field."""
        return checkout.read_facts(self._path, cluster, self._environ, self._lock is not None)

    def read_tip(self, cluster: str, base: str | None = None) -> TipFacts | Problem:
        """The remote branch now; with ``base`` also the history between base and the tip. A Problem where it can not be read."""
        try:
            with open_repository(self._path, self._environ) as repo:
                return self._read_tip(repo, self._find_target(repo), cluster, base)
        except Unusable as error:
            return error.problem
        except ExchangeFailed as error:
            return error.problem

    def _read_tip(self, repo: Repository, target: Target, cluster: str, base: str | None) -> TipFacts:
        tip = self._remote.read_tip(repo, target)
        fetch_tip: str | Problem | None = None
        if target.differs:
            try:
                fetch_tip = self._remote.read_fetch_tip(repo, target)
            except ExchangeFailed as error:
                fetch_tip = error.problem
            if fetch_tip is None:
                fetch_tip = Problem(f"the fetch side {route.redact(target.fetch_url)} has no {target.fetch_ref}")
        if tip is None:
            return TipFacts(None, fetch_tip, "unknown", None, None, None)
        known = self._remote.known(repo)
        return TipFacts(
            tip=tip,
            fetch_tip=fetch_tip,
            relation=_relate(self._remote.walk(repo), repo.head, tip),
            env=read_file(known, tip, checkout.ENV_FILE.format(cluster=cluster)),
            rule=read_file(known, tip, checkout.RULE_FILE.format(cluster=cluster)),
            history=None if base is None else self._read_history(repo, target, base, tip),
        )

    def _read_history(self, repo: Repository, target: Target, base: str, tip: str) -> History | Problem:
        walk = self._remote.walk(repo)
        compared = walk.compare(base, tip)
        if not compared.complete:
            try:
                self._remote.deepen(repo, target)
            except ExchangeFailed as error:
                return Problem(f"the history between {base} and {tip} is not here: {error.problem.message}", _UNSHALLOW)
            walk = self._remote.walk(repo)
            compared = walk.compare(base, tip)
        if not compared.complete:
            return Problem(f"the history between {base} and {tip} is not here, nor all of it at the remote", _UNSHALLOW)
        if not compared.left_in_right:
            return History(base, False, ())
        commits = ((commit, walk.find(commit)) for commit in compared.only_right)
        return History(base, True, tuple(describe_commit(commit, found) for commit, found in commits if found is not None))

    def probe_push(self) -> Problem | None:
        """None when the receiving side answers and a path remote is writable, else why a push would fail."""
        try:
            with open_repository(self._path, self._environ) as repo:
                return self._remote.probe_push(repo, self._find_target(repo))
        except Unusable as error:
            return error.problem

    def find_commits(self, tip: str, beginning: str) -> tuple[CommitFacts, ...] | Problem:
        """Commits up to ``tip`` whose message begins so and has a transaction trailer, newest first."""
        try:
            with open_repository(self._path, self._environ) as repo:
                found = _find_commits(self._remote.walk(repo), tip, beginning)
                if found is None:
                    self._remote.deepen(repo, self._find_target(repo))
                    found = _find_commits(self._remote.walk(repo), tip, beginning)
        except Unusable as error:
            return error.problem
        except ExchangeFailed as error:
            return Problem(f"the history of {tip} is not here: {error.problem.message}", _UNSHALLOW)
        return found if found is not None else Problem(f"the history of {tip} is not here, nor all of it at the remote", _UNSHALLOW)

    def take_lock(self, command: str) -> Problem | None:
        """Lock the checkout for this process; harmless where it is held already. A Problem names the holder when it is taken."""
        if self._lock is not None:
            return None
        try:
            with open_repository(self._path, self._environ) as repo:
                taken = lock.take_lock(repo.git_dir, command)
        except Unusable as error:
            return error.problem
        if isinstance(taken, Problem):
            return taken
        self._lock = taken
        return None

    def release_lock(self) -> None:
        """Give the lock back; harmless where it is not held."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def prepare_commit(self, parent: str, path: str, content: bytes, message: str, keep: bool) -> str:
        """Build the commit; returns its id. Raises Refused where there is no identity, or the parent's objects are not here."""
        with _refusing(), open_repository(self._path, self._environ) as repo:
            person = identity.find_identity(repo.config, self._environ, repo.top)
            if isinstance(person, Problem):
                raise Unusable(person)
            now = time.time()
            author, committer = (
                identity.format_person(who, identity.find_stamp(self._environ, role, now))
                for who, role in ((person.author, "author"), (person.committer, "committer"))
            )
            try:
                commit, new = objects.build_commit(self._remote.known(repo), parent, path, content, message, author, committer)
            except KeyError as error:
                raise Unusable(Problem(f"no commit can be made on {parent}: its objects are not here, or it has no {path}")) from error
            for item in new:
                self._remote.memory.add_object(item)
            if keep:
                objects.write_loose(f"{repo.common_dir}/objects", new)
            return commit.id.decode("ascii")

    def find_parent(self, commit: str) -> str | None:
        """The parent of a commit whose objects are all here, else None."""
        try:
            with open_repository(self._path, self._environ) as repo:
                known = self._remote.known(repo)
                parents = read_commit(known, commit).parents
                if len(parents) != 1 or not objects.has_all(known, parents[0].decode("ascii"), commit):
                    return None
                return parents[0].decode("ascii")
        except (Unusable, KeyError):
            return None

    def is_ancestor(self, commit: str, later: str) -> bool | None:
        """Whether ``later`` is or descends from ``commit``; None where what is here does not tell."""
        try:
            with open_repository(self._path, self._environ) as repo:
                compared = self._remote.walk(repo).compare(commit, later)
        except (Unusable, KeyError, ValueError):
            return None
        return compared.left_in_right or (False if compared.complete else None)

    def is_same_change(self, commit: str, other: str) -> bool:
        """Whether both commits are here with the same parent, the same tree and the same transaction's trailer."""
        try:
            with open_repository(self._path, self._environ) as repo:
                known = self._remote.known(repo)
                walk = self._remote.walk(repo)
                first, second = (read_commit(known, name) for name in (commit, other))
                facts = [walk.find(name) for name in (commit, other)]
                trailers = [describe_commit(name, found).transactions for name, found in zip((commit, other), facts, strict=True) if found]
                same = (first.tree, first.parents) == (second.tree, second.parents) and len(first.parents) == 1
                return (
                    same
                    and len(trailers) == 2
                    and trailers[0] == trailers[1]
                    and objects.has_all(known, first.parents[0].decode("ascii"), commit)
                )
        except (Unusable, KeyError):
            return False

    def push_commit(self, parent: str, commit: str, late: Callable[[], bool] | None = None) -> PushResult:
        """Move the remote branch from exactly ``parent`` to exactly ``commit``; one ref, no force, and nothing where it is ``late``."""
        try:
            with open_repository(self._path, self._environ) as repo:
                new = objects.list_new(self._remote.known(repo), parent, commit)
                return self._remote.push_commit(repo, self._find_target(repo), parent, commit, new, late)
        except Unusable as error:
            return PushResult("refused", error.problem.message)
        except KeyError:
            return PushResult("refused", f"objects of {commit} or of {parent} are not here")

    def advance_checkout(self, base: str, commit: str, path: str) -> Advance:
        """Move file, index entry, branch and tracking ref forward, where the checkout allows. Takes the lock where it is not held."""
        held = self._lock is not None
        taken = self.take_lock("advance of the checkout")
        if taken is not None:
            return Advance(False, f"the checkout was left alone: {taken.message}", "git pull --ff-only")
        try:
            with open_repository(self._path, self._environ) as repo:
                target = _find_target(repo)
                if self._used not in (None, (repo.branch, target)):
                    message = f"HEAD is {repo.branch}, which is not the branch of the push"
                    return Advance(False, f"the checkout was left alone: {message}", "git pull --ff-only")
                return advance.advance(repo, target, self._remote.known(repo), self._environ, base, commit, path)
        except Unusable as error:
            return Advance(False, f"the checkout was left alone: {error.problem.message}", error.problem.remedy)
        finally:
            if not held:
                self.release_lock()

    def _find_target(self, repo: Repository) -> Target:
        if self._used is None:
            self._used = (repo.branch, _find_target(repo))
        return self._used[1]


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn what keeps a commit from being made into the failure that the engine knows."""
    try:
        yield
    except Unusable as error:
        raise Refused("commit-not-made", error.problem.message, error.problem.remedy) from error
    except OSError as error:
        raise Refused("commit-not-made", f"the commit's objects can not be written: {error.strerror} ({error.filename})") from error


def _find_target(repo: Repository) -> Target:
    if repo.branch is None:
        raise Unusable(Problem("HEAD is detached: without a branch there is nothing to push to", "git switch <branch>"))
    target = route.find_target(repo.config, repo.branch.removeprefix("refs/heads/"), repo.top)
    if isinstance(target, Problem):
        raise Unusable(target)
    return target


def _relate(walk: Walk, head: str | None, tip: str) -> str:
    if head is None:
        return "unknown"
    if head == tip:
        return "equal"
    compared = walk.compare(head, tip)
    if compared.left_in_right:
        return "behind"
    if compared.right_in_left:
        return "ahead"
    return "diverged" if compared.complete else "unknown"


def _find_commits(walk: Walk, tip: str, beginning: str) -> tuple[CommitFacts, ...] | None:
    """The commits, or None where a part of the history is missing."""
    found: list[CommitFacts] = []
    wanted = beginning.encode()
    for commit in walk.ancestors(tip):
        facts = walk.find(commit) if commit is not None else None
        if commit is None or facts is None:
            return None
        if facts.message.startswith(wanted):
            described = describe_commit(commit, facts)
            if described.transactions:
                found.append(described)
    return tuple(found)
