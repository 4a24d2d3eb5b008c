"""The remote: its tip, read into memory, and the compare-and-swap push (spec section 9).

Responsible for the two exchanges and for what their ends mean. Writes nothing on this machine; on the remote, one ref in
``push_commit``. What was fetched lives in ``Remote.memory``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dulwich.client import HTTPUnauthorized
from dulwich.errors import SendPackError
from dulwich.object_store import BaseObjectStore, MemoryObjectStore, ObjectStoreGraphWalker, OverlayObjectStore
from dulwich.objects import ObjectID, ShaFile
from dulwich.pack import UnpackedObject, pack_objects_to_data
from dulwich.refs import Ref

from kubectl_gpu_transition.adapters import credentials
from kubectl_gpu_transition.adapters.credentials import Credential
from kubectl_gpu_transition.adapters.gitconfig import ConfigError
from kubectl_gpu_transition.adapters.githttp import HttpClient
from kubectl_gpu_transition.adapters.history import Walk
from kubectl_gpu_transition.adapters.repository import Repository, oid
from kubectl_gpu_transition.adapters.route import Location, Target, locate, redact
from kubectl_gpu_transition.adapters.transport import (
    WIRE_ERRORS,
    ExchangeFailed,
    PipeClient,
    describe_failure,
    run_limited,
    start_git,
    start_ssh,
)  # fmt: skip
from kubectl_gpu_transition.model import Problem, PushResult

T = TypeVar("T")
_REJECTED_REMEDY = "check the token, or what the credential helper has stored for this host"


class _Late(Exception):
    """What decided the push has become too old; nothing was sent."""


class _Stopped(Exception):
    """Ends a push on purpose, before its ref update is sent. ``tip`` is where the remote branch is."""

    def __init__(self, tip: str | None = None) -> None:
        super().__init__(tip)
        self.tip = tip


class _Gate:
    """Between "nothing was sent" and "it may have been": passed once, never after it was shut."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shut = False
        self.passed = False

    def enter(self) -> None:
        """Pass, from the exchange's thread; raises ExchangeFailed where the time was up first."""
        with self._lock:
            if self._shut:
                raise ExchangeFailed(Problem("the time for the push was up before it was sent"), True)
            self.passed = True

    def shut(self) -> None:
        """Let nothing pass any more, from the caller's thread."""
        with self._lock:
            self._shut = True


class _Haves(ObjectStoreGraphWalker):
    """What we say we have: the newest few hundred commits. Answers are read at the end only, so that the pipe must hold them all."""

    _left = 256

    def __next__(self) -> ObjectID | None:
        self._left -= 1
        return self.next() if self._left >= 0 else None


@dataclass
class Remote:
    """The far side of one checkout's branch, for as long as the program runs: what was fetched and which credential worked."""

    environ: Mapping[str, str] = field(repr=False)
    token_env: str | None
    seconds: float
    log: Callable[[str], None]
    memory: MemoryObjectStore = field(default_factory=MemoryObjectStore)
    commits: MemoryObjectStore = field(default_factory=MemoryObjectStore)
    _credentials: dict[str, Credential] = field(default_factory=dict, repr=False)
    _tips: tuple[str, ...] = ()

    def known(self, repo: Repository) -> BaseObjectStore:
        """Everything that is here: the checkout's objects, and what was fetched or made in memory."""
        return OverlayObjectStore([repo.objects, self.memory])

    def read_tip(self, repo: Repository, target: Target) -> str | None:
        """The commit of the branch that we push to, None where it does not exist; its objects are here afterwards. Raises
        ExchangeFailed."""
        return self._read_ref(repo, target, target.push_url, target.push_ref, with_objects=True)

    def read_fetch_tip(self, repo: Repository, target: Target) -> str | None:
        """The same of the fetch side, without objects."""
        return self._read_ref(repo, target, target.fetch_url, target.fetch_ref, with_objects=False)

    def _read_ref(self, repo: Repository, target: Target, url: str, ref: str, with_objects: bool) -> str | None:
        objects = self.known(repo)
        found: list[str] = []

        def want(refs: Mapping[Ref, ObjectID], *_: object, **__: object) -> list[ObjectID]:
            tip = refs.get(Ref(ref.encode()))
            found[:] = [tip.decode("ascii")] if tip is not None else []
            return [tip] if with_objects and tip is not None and tip not in objects else []

        self.log(f"git: read {ref} of {redact(url)}")
        self._fetch(repo, target, url, ref, want, self.memory, self._find_haves(repo, target), repo.read_shallow())
        if found and with_objects:
            self._tips = (found[0],)
        return found[0] if found else None

    def deepen(self, repo: Repository, target: Target) -> None:
        """Read the whole history of the branch into memory, apart from the other objects; raises ExchangeFailed."""
        self.log(f"git: read the history of {target.push_ref} of {redact(target.push_url)}")

        def want(refs: Mapping[Ref, ObjectID], *_: object, **__: object) -> list[ObjectID]:
            # The branch may have moved on since; its history then still has the commit, and a server need not give out another one.
            now = refs.get(Ref(target.push_ref.encode()))
            return [now] if now is not None else []

        self._fetch(repo, target, target.push_url, target.push_ref, want, self.commits, [], frozenset())

    def walk(self, repo: Repository) -> Walk:
        """A walk over the commits that are here."""
        return Walk(OverlayObjectStore([repo.objects, self.memory, self.commits]))

    def _find_haves(self, repo: Repository, target: Target) -> list[ObjectID]:
        tracked = repo.read_ref(target.tracking) if target.tracking else None
        known = self.known(repo)
        return [oid(commit) for commit in {repo.head, tracked, *self._tips} if commit is not None and oid(commit) in known]

    def _fetch(
        self,
        repo: Repository,
        target: Target,
        url: str,
        ref: str,
        want: Callable[..., list[ObjectID]],
        into: MemoryObjectStore,
        haves: Sequence[ObjectID],
        shallow: frozenset[str],
    ) -> None:
        walk = Walk(self.known(repo))

        def parents(commit: ObjectID) -> list[ObjectID]:
            found = walk.find(commit.decode("ascii"))
            return [parent for parent in found.parents if walk.find(parent.decode("ascii"))] if found else []

        def action(client: PipeClient | HttpClient, path: str) -> None:
            walker = _Haves(haves, parents, {oid(commit) for commit in shallow})
            stream, commit, abort = into.add_pack()
            try:
                filter_spec = b"tree:0" if into is self.commits else None
                client.fetch_pack(path, want, walker, stream.write, ref_prefix=[ref.encode()], filter_spec=filter_spec)
            except BaseException:
                abort()
                raise
            commit()

        self._exchange(repo, url, target, action)

    def probe_push(self, repo: Repository, target: Target) -> Problem | None:
        """Ask the receiving side for its refs and hang up; of a path remote, look whether it can be written."""

        def stop(_: dict[Ref, ObjectID]) -> dict[Ref, ObjectID]:
            raise _Stopped

        self.log(f"git: probe a push to {redact(target.push_url)}")
        try:
            self._exchange(repo, target.push_url, target, lambda client, path: client.send_pack(path.encode(), stop, pack_nothing))
        except _Stopped:
            pass
        except ExchangeFailed as error:
            return error.problem
        location = locate(target.push_url)
        return _find_unwritable(location.path) if isinstance(location, Location) and location.kind == "path" else None

    def push_commit(
        self, repo: Repository, target: Target, parent: str, commit: str, new: Sequence[ShaFile], late: Callable[[], bool] | None = None
    ) -> PushResult:
        """Move the branch from exactly ``parent`` to exactly ``commit``, sending ``new``. See PushResult for what the answer means."""
        ref = Ref(target.push_ref.encode())
        gate = _Gate()
        said: list[bytes] = []
        statuses: dict[bytes, str | None] = {}

        def update(refs: dict[Ref, ObjectID]) -> dict[Ref, ObjectID]:
            if refs.get(ref) != oid(parent):
                raise _Stopped(refs[ref].decode("ascii") if ref in refs else None)
            if late is not None and late():
                raise _Late
            gate.enter()
            return {ref: oid(commit)}

        def pack(*_: object, **__: object) -> tuple[int, Iterator[UnpackedObject]]:
            return pack_objects_to_data(new, deltify=False)

        def action(client: PipeClient | HttpClient, path: str) -> None:
            result = client.send_pack(path.encode(), update, pack, progress=said.append)
            statuses.update(result.ref_status or {})

        self.log(f"git: push {commit} to {target.push_ref} of {redact(target.push_url)}, from {parent}")
        try:
            self._exchange(repo, target.push_url, target, action, gate)
        except _Stopped as error:
            return PushResult("refused", f"remote moved: {target.push_ref} is at {error.tip or 'nothing'}, not at {parent}")
        except _Late:
            return PushResult("late", "the look that decided had become too old before the ref update could be sent")
        except SendPackError as error:
            detail = error.args[0] if error.args else b""
            return _result("refused", detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail), said)
        except ExchangeFailed as error:
            return _result("unknown" if gate.passed else "refused", error.problem.message, said)
        if target.push_ref.encode() not in statuses:
            return _result("unknown", "the remote sent no status report for the branch", said)
        verdict = statuses[target.push_ref.encode()]
        return _result("accepted", "", said) if verdict is None else _result("refused", verdict, said)

    def _exchange(
        self,
        repo: Repository,
        url: str,
        target: Target,
        action: Callable[[PipeClient | HttpClient, str], T],
        gate: _Gate | None = None,
    ) -> T:
        """Open a client for the URL and run one exchange on it; raises ExchangeFailed, and what the action raises on purpose."""
        location = locate(url)
        if isinstance(location, Problem):
            raise ExchangeFailed(location)
        clients: list[PipeClient | HttpClient] = []

        def attempt(client: PipeClient | HttpClient) -> T:
            clients.append(client)
            try:
                return action(client, location.path if location.kind != "http" else "")
            except SendPackError:
                raise
            except WIRE_ERRORS as error:
                raise ExchangeFailed(describe_failure(error, client.said(), url)) from error
            finally:
                client.close()

        def run() -> T:
            if location.kind == "http":
                return self._with_credentials(repo, location, attempt)
            programs = {"upload-pack": target.upload_pack, "receive-pack": target.receive_pack}
            if location.kind == "ssh":
                return attempt(PipeClient(start_ssh(location, programs, repo.config, self._child_environ())))
            return attempt(PipeClient(start_git(location.path, programs, self._child_environ())))

        def stop() -> None:
            if gate is not None:
                gate.shut()
            for client in clients:
                client.stop()

        return run_limited(run, self.seconds, stop)

    def _with_credentials(self, repo: Repository, location: Location, attempt: Callable[[PipeClient | HttpClient], T]) -> T:
        """Try with what is known, then with what the helpers say; a credential that was rejected is a failure by name."""
        environ = self._child_environ()
        credential = self._credentials.get(location.url)
        if credential is None:
            early = credentials.find_early(location, repo.config, self.environ, self.token_env)
            if isinstance(early, Problem):
                raise ExchangeFailed(early)
            credential = early
        asked = credential is not None
        while True:
            try:
                result = attempt(self._open_http(repo, location, credential))
            except HTTPUnauthorized as error:
                if credential is not None and asked:
                    message = f"{redact(location.url)} rejected the credential for user {credential.user} from {credential.source} (401)"
                    raise ExchangeFailed(Problem(message, _REJECTED_REMEDY)) from error
            else:
                if credential is not None:
                    self._credentials[location.url] = credential
                return result
            answer = credentials.ask(location, repo.config, environ, self.seconds, self.log)
            if isinstance(answer, Problem):
                raise ExchangeFailed(answer)
            credential, asked = answer, True

    def _open_http(self, repo: Repository, location: Location, credential: Credential | None) -> HttpClient:
        try:
            return HttpClient(location, repo.config, self._child_environ(), credential, self.seconds)
        except ConfigError as error:
            raise ExchangeFailed(Problem(f"git configuration: {error}")) from error

    def _child_environ(self) -> dict[str, str]:
        """The environment without the token, which no child needs."""
        return {name: value for name, value in self.environ.items() if name != self.token_env}


def pack_nothing(*_: object, **__: object) -> tuple[int, Iterator[UnpackedObject]]:
    """An empty pack, for a push that ends before it would be sent."""
    return 0, iter(())


def _result(state: str, message: str, said: Sequence[bytes]) -> PushResult:
    """The end of a push with what the remote's hooks said, without user info in URLs."""
    words = b"".join(said).decode("utf-8", "replace").splitlines()
    return PushResult(state, redact(" / ".join(part for part in (message, *(line.strip() for line in words)) if part)))


def _find_unwritable(path: str) -> Problem | None:
    """Why nothing could be written to the repository at a path, found by looking at permissions alone."""
    for suffix in ("/.git", "", ".git/.git", ".git"):
        if os.path.isdir(os.path.join(path + suffix, "objects")):
            for name in ("objects", "refs", "refs/heads"):
                place = os.path.join(path + suffix, name)
                if os.path.isdir(place) and not os.access(place, os.W_OK | os.X_OK):
                    return Problem(f"the remote's {place} can not be written by this user", "ask for write access to it")
            return None
    return None
