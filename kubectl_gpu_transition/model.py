"""The values that travel: what was read from the world, as frozen data. Nothing here reads, decides or formats.

A fact that could not be read is a ``Problem`` in the place of the value: unknown is never taken for no (spec section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kubectl_gpu_transition.modes import Mode

ANNOTATION = "kube-dc.com/gpu-transition"
FIELD_MANAGER = "kubectl-gpu-transition"
TRAILER = "Gpu-Transition-Id"


@dataclass(frozen=True)
class Problem:
    """A fact that is not to be had, or a no: what was observed and what to do."""

    message: str
    remedy: str | None = None


Json = Mapping[str, Any]

# ---------------------------------------------------------------- the request


@dataclass(frozen=True)
class Request:
    """What the user asked for, checked for form. Durations in seconds. ``source`` and ``target`` are --from and --to.

    Both are None for ``abandon``, which takes the direction from the annotation.
    """

    command: str
    cluster: str
    node: str
    source: Mode | None
    target: Mode | None
    repo: str
    kubeconfig: str
    context: str | None = None
    yes: bool = False
    resume: bool = False
    timeout: float = 900.0
    settle: float = 2.0
    gpu_resources: tuple[str, ...] = ()
    ignore_dra_drivers: tuple[str, ...] = ()
    require_allocatable: bool = False
    ignore_missing_gitops: bool = False
    reconcile: bool = False
    reason: str | None = None
    token_env: str | None = None
    request_timeout: float = 30.0
    git_timeout: float = 60.0
    output: str = "text"
    verbose: bool = False


# ---------------------------------------------------------------- the cluster


@dataclass(frozen=True)
class FieldEntry:
    """One entry of ``metadata.managedFields``: who wrote, when (RFC 3339 text), and whether it claims spec.unschedulable."""

    manager: str
    operation: str
    time: str
    cordons: bool
    subresource: str = ""


@dataclass(frozen=True)
class NodeView:
    """One node as read. ``version`` belongs to this one look and is used by the one write decided from it."""

    name: str
    uid: str
    version: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    has_annotations: bool
    unschedulable: bool
    ready: str
    deleting: bool
    taints: tuple[str, ...]
    conditions: Mapping[str, str]
    managers: tuple[FieldEntry, ...] | None
    allocatable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Controller:
    """The controller reference of a pod."""

    api_version: str
    kind: str
    name: str


@dataclass(frozen=True)
class PodClaim:
    """A ResourceClaim that a pod names: ``reference`` is the pod's own name for it, ``name`` the claim's, None while it is not known."""

    reference: str
    name: str | None


@dataclass(frozen=True)
class PodView:
    """One pod as read. ``resources`` are the names it requests or limits in a positive quantity, in any container or as overhead.

    ``allocations`` are the keys of HAMi's allocation annotations on it, ``allocated_node`` the node that these name, empty for none,
    ``bind_phase`` what HAMi says of its binding; ``nominated`` the node that the scheduler is making room on for it; ``volumes`` the
    names of its PersistentVolumeClaims; ``reaches`` how it can get at GPUs without asking for one, in words.
    """

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    running: bool
    ready: bool
    deleting_since: str | None
    grace: int | None
    controller: Controller | None
    resources: frozenset[str]
    claims: tuple[PodClaim, ...]
    waiting: str | None
    labels: Mapping[str, str] = field(default_factory=dict)
    allocations: tuple[str, ...] = ()
    allocated_node: str = ""
    bind_phase: str = ""
    nominated: str = ""
    volumes: tuple[str, ...] = ()
    static: bool = False
    reaches: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """Phase Succeeded or Failed and no container still running (spec section 5)."""
        return self.phase in ("Succeeded", "Failed") and not self.running


@dataclass(frozen=True)
class GitopsFacts:
    """What Flux is told to apply: the Kustomization flux-system/gpu-node-mode and its source. None where an object is absent.

    ``url`` is without user info, for showing.
    """

    path: str | None
    source: str | None
    url: str | None
    branch: str | None
    revision: str | None = None


# ---------------------------------------------------------------- the fleet


@dataclass(frozen=True)
class Route:
    """Where git would push from this checkout. URLs as git resolved them, for showing: user info removed.

    ``remote`` is the remote's name, ``branch`` the branch there. ``fetch_differs`` when the fetch side is another URL.
    """

    remote: str
    branch: str
    push_url: str
    fetch_url: str
    fetch_differs: bool


@dataclass(frozen=True)
class Identity:
    """Author and committer as git would choose them: ``Name <email>``."""

    author: str
    committer: str


@dataclass(frozen=True)
class CheckoutFacts:
    """What the fleet checkout says, read without any network and without writing a byte.

    ``state`` is None when the checkout is fit (spec section 3, ``fleet-checkout``), else the reason. ``head`` is the commit id of
    HEAD (40 hex digits), ``branch`` the local branch. ``clusters`` are the overlays known in HEAD; ``env`` and ``rule`` the bytes
    in HEAD of this cluster's two files, None where absent, a Problem where unreadable or not a regular file.
    """

    path: str
    state: Problem | None
    locked: Problem | None
    branch: str | None
    head: str | None
    clusters: tuple[str, ...]
    env: bytes | Problem | None
    rule: bytes | Problem | None
    route: Route | Problem
    identity: Identity | Problem


@dataclass(frozen=True)
class CommitFacts:
    """One commit of the branch: id, subject, body's ``Gpu-Transition-Id`` trailers, and RFC 3339 committer time."""

    id: str
    subject: str
    transactions: tuple[str, ...]


@dataclass(frozen=True)
class History:
    """What lies between ``base`` and the tip. ``descends``: base is the tip or an ancestor of it; ``commits``, newest first, without it."""

    base: str
    descends: bool
    commits: tuple[CommitFacts, ...]


@dataclass(frozen=True)
class TipFacts:
    """The remote branch we push to, read now. ``tip`` is None where the branch does not exist.

    ``fetch_tip`` is the tip of the fetch side where that is another URL, else None. ``relation`` of HEAD to the tip:
    ``equal``, ``ahead``, ``behind``, ``diverged``, ``unknown`` (as far as objects tell). ``env`` and ``rule`` as in ``CheckoutFacts``, but
    at the tip. ``history`` is None where no base was asked for, a Problem where it can not be read.
    """

    tip: str | None
    fetch_tip: str | Problem | None
    relation: str
    env: bytes | Problem | None
    rule: bytes | Problem | None
    history: History | Problem | None


@dataclass(frozen=True)
class PushResult:
    """How a push ended: ``accepted`` (the remote's status report says so), ``refused`` (for certain),
    ``late`` (nothing was sent) or ``unknown``; the remote's words."""

    state: str
    message: str


@dataclass(frozen=True)
class Advance:
    """Whether the checkout was moved forward to the commit; ``message`` says what is so, ``remedy`` how to bring it up where it was not."""

    done: bool
    message: str
    remedy: str | None = None


# ---------------------------------------------------------------- decisions


@dataclass(frozen=True)
class Check:
    """One preflight result: ``status`` is pass, fail, warn or skip."""

    name: str
    status: str
    message: str
    remedy: str | None = None


@dataclass(frozen=True)
class Holder:
    """Somebody who has, or is promised, a GPU on the node, by controller."""

    namespace: str
    kind: str
    name: str
    pods: tuple[str, ...]
    resources: tuple[str, ...]
    terminating: bool
    bound: bool
    advice: str


@dataclass(frozen=True)
class Owner:
    """A pod on the node whose controller is one of the DaemonSets of the mode table, or one that looks like it."""

    namespace: str
    name: str
    pod: str
    ready: bool
    terminating: bool
    trusted: bool
    mode: Mode | None
    waiting: str | None = None


@dataclass(frozen=True)
class Transaction:
    """The annotation: one intended move of one node (spec section 4). ``phase`` is cordoned or pushing."""

    id: str
    uid: str
    cluster: str
    source: Mode
    target: Mode
    phase: str
    base: str
    commit: str | None
    started: str
    by: str
    gpu_resources: tuple[str, ...] = ()
    ignore_dra_drivers: tuple[str, ...] = ()
    require_allocatable: bool = False

    @property
    def move(self) -> tuple[str, str, str, Mode, Mode]:
        """What stays the same for as long as it runs: id, node, cluster and direction."""
        return self.id, self.uid, self.cluster, self.source, self.target


@dataclass
class Step:
    """One of preflight, cordon, recheck, edit, push, wait, uncordon, and how it went. ``started`` RFC 3339, ``seconds`` its length."""

    name: str
    status: str = "pending"
    started: str | None = None
    seconds: float = 0.0
    message: str = ""


@dataclass(frozen=True)
class Plan:
    """What an apply will do, or does. ``patch`` is the RFC 6902 patch of the rule, ``diff`` unified, ``message`` the commit's."""

    file: str
    patch: tuple[Json, ...]
    diff: str
    message: str
    remote: str
    branch: str


@dataclass(frozen=True)
class NodeStatus:
    """One node of a status. What could not be read is None, and named in ``unread``; a node that does not exist has no ``live``.

    ``cordoned_by`` is ``transaction``, a manager's name, ``unknown``, or None for a schedulable node; ``age`` is in seconds.
    """

    name: str
    fleet_mode: str | None
    live: NodeView | None
    owners: tuple[Owner, ...] = ()
    cordoned_by: str | None = None
    transaction: Transaction | None = None
    age: int | None = None
    in_branch: bool | None = None
    holders: int | None = None
    next: str | None = None
    unread: tuple[str, ...] = ()


@dataclass
class Outcome:
    """How a command ended, and everything it found on the way: the engine's ledger, of which ``report`` makes the document and the text.

    ``facts`` (what is true now), ``inspect`` (commands) and ``way_back`` are filled after a failure; ``notes`` are sentences for the end of
    the text.
    """

    request: Request
    steps: list[Step]
    word: str = "bug"
    exit_code: int = 1
    resumed: bool = False
    checks: tuple[Check, ...] = ()
    holders: tuple[Holder, ...] = ()
    plan: Plan | None = None
    transaction: Transaction | None = None
    node: NodeView | None = None
    owners: tuple[Owner, ...] = ()
    waiting_for: tuple[str, ...] = ()
    error: BaseException | None = None
    error_step: str | None = None
    headline: str | None = None
    facts: list[str] = field(default_factory=list)
    inspect: tuple[str, ...] = ()
    way_back: str | None = None
    resume_command: str | None = None
    notes: list[str] = field(default_factory=list)
    nodes: tuple[NodeStatus, ...] = ()
