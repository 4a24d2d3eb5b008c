"""Sending a patch of the node and bringing it to a known outcome (spec section 4). No decisions: callers say what must be seen.

No reply is not no effect: a patch whose answer was lost is read back until the effect is seen, until it has failed for certain, or
until the request timeout is spent, and then it stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable

from kubectl_gpu_transition.failures import Drift, Forbidden, LostGuard, Missing, NodeGone, RefusedByServer, UnknownOutcome
from kubectl_gpu_transition.model import ANNOTATION, NodeView
from kubectl_gpu_transition.patches import Patch
from kubectl_gpu_transition.session import Session, known

_PAUSE = 0.25  # seconds between two reads of a lost answer


def node_gone(name: str) -> NodeGone:
    """The failure of a node that is not there any more, or not the same one."""
    return NodeGone(
        "node-gone",
        f"the node is gone or was created anew; nothing protects it ({name})",
        "look at the cluster: this node's transaction has ended with it",
    )


def edited_record() -> Drift:
    """The failure of a record with our id that names another node, cluster or direction."""
    return Drift(
        "annotation-drift",
        "the annotation has our id but another node, cluster or direction: somebody edited it",
        "put the record back as the report shows it, then resume",
    )


def carries(record: str) -> Callable[[NodeView], bool]:
    """Whether a node has exactly this record."""
    return lambda node: node.annotations.get(ANNOTATION) == record


def cordoned_under(record: str) -> Callable[[NodeView], bool]:
    """Whether a node is cordoned and has exactly this record."""
    return lambda node: node.unschedulable and node.annotations.get(ANNOTATION) == record


def write_node(
    session: Session,
    before: NodeView,
    patch: Patch,
    shows: Callable[[NodeView], bool],
    versioned: bool,
    wrote: Callable[[NodeView], bool] | None = None,
    late: Callable[[], bool] | None = None,
) -> NodeView:
    """Send ``patch`` once; returns the node that shows the effect.

    ``shows`` tells whether a node shows what was asked; ``versioned`` says that the patch is tied to ``before``'s resource version.
    ``wrote`` tells from a node read later that the patch took effect, whatever others changed since; it is ``shows`` where not given.
    ``late`` tells, right before the request leaves, that what the patch was decided from has become too old for it.
    Raises LostGuard (nothing was written, for certain), NodeGone, RefusedByServer or Forbidden (a definite no), Drift (200 without the
    effect), UnknownOutcome. The node is in our hands from before the request leaves, unless it was refused for certain.
    """
    mine, session.in_hands = session.in_hands, True  # before the request leaves; only a definite refusal takes it back
    try:
        return _send(session, before, patch, shows, versioned, wrote or shows, late)
    except (LostGuard, RefusedByServer, Forbidden):
        session.in_hands = mine
        raise
    except Missing:
        session.in_hands = mine
        raise node_gone(before.name) from None


def _send(
    session: Session,
    before: NodeView,
    patch: Patch,
    shows: Callable[[NodeView], bool],
    versioned: bool,
    wrote: Callable[[NodeView], bool],
    late: Callable[[], bool] | None,
) -> NodeView:
    try:
        node = session.cluster.patch_node(before.name, patch, late=late)
    except LostGuard as refusal:
        # The server can have acted on an earlier copy of this very request (a proxy that retries), so the effect is looked for first.
        return _read_back(session, before, wrote, versioned, refusal)
    except UnknownOutcome as lost:
        return _read_back(session, before, wrote, versioned, lost)
    session.see(node)
    if node.uid != before.uid:
        raise node_gone(before.name)
    if not shows(node):
        raise Drift(
            "write-without-effect",
            "the server accepted the patch of the node, and the node it sent back does not show it",
            "look at the node: an admission webhook may have changed the write",
        )
    return node


def read_same_node(session: Session, before: NodeView) -> NodeView:
    """The node read afresh. Raises NodeGone where it is not the same one any more, or what the read raises."""
    node = session.cluster.read_node(before.name)
    if node is None or node.uid != before.uid:
        raise node_gone(before.name)
    session.see(node)
    return node


def _read_back(
    session: Session, before: NodeView, wrote: Callable[[NodeView], bool], versioned: bool, answer: LostGuard | UnknownOutcome
) -> NodeView:
    """The node with the effect. One without it proves the failure after a lost guard, and where the patch was tied to another version."""
    deadline = session.clock.monotonic() + session.request.request_timeout
    while True:
        node = known(lambda: session.cluster.read_node(before.name))
        if node is None or (isinstance(node, NodeView) and node.uid != before.uid):
            raise answer if isinstance(answer, LostGuard) else node_gone(before.name)
        if isinstance(node, NodeView):
            if wrote(node):
                session.see(node)
                return node
            if isinstance(answer, LostGuard):
                raise answer
            if versioned and node.version != before.version:
                raise LostGuard(
                    "lost-guard", f"the answer was lost, and the node was changed by others before it could take effect ({answer.message})"
                )
        if session.clock.monotonic() >= deadline:
            if isinstance(answer, UnknownOutcome):
                raise answer
            raise UnknownOutcome(
                "patch-unknown",
                f"{answer.message}, and the node can not be read to tell whether the patch took effect",
                "look at the node before anything else",
            )
        session.clock.sleep(_PAUSE)
