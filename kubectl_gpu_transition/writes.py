"""Sending a patch of the node and bringing it to a known outcome (spec section 4). No decisions: callers say what must be seen.

No reply is not no effect: a patch whose answer was lost is read back until the effect is seen, until it has failed for certain, or
until the request timeout is spent, and then it stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable

from kubectl_gpu_transition.failures import Drift, Forbidden, LostGuard, Missing, NodeGone, RefusedByServer, UnknownOutcome
from kubectl_gpu_transition.model import NodeView
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


def write_node(session: Session, before: NodeView, patch: Patch, shows: Callable[[NodeView], bool], versioned: bool) -> NodeView:
    """Send ``patch`` once; returns the node that shows the effect.

    ``shows`` tells whether a node shows what was asked; ``versioned`` says that the patch is tied to ``before``'s resource version.
    Raises LostGuard (nothing was written, for certain), NodeGone, RefusedByServer or Forbidden (a definite no), Drift (200 without the
    effect), UnknownOutcome. The node is in our hands from before the request leaves, unless it was refused for certain.
    """
    mine, session.in_hands = session.in_hands, True  # before the request leaves; only a definite refusal takes it back
    try:
        return _send(session, before, patch, shows, versioned)
    except (LostGuard, RefusedByServer, Forbidden):
        session.in_hands = mine
        raise
    except Missing:
        session.in_hands = mine
        raise node_gone(before.name) from None


def _send(session: Session, before: NodeView, patch: Patch, shows: Callable[[NodeView], bool], versioned: bool) -> NodeView:
    try:
        node = session.cluster.patch_node(before.name, patch)
    except LostGuard:
        # The server can have acted on an earlier copy of this very request (a proxy that retries), so the effect is looked for first.
        found = known(lambda: read_same_node(session, before))
        if isinstance(found, NodeView) and shows(found):
            return found
        raise
    except UnknownOutcome as lost:
        return _read_back(session, before, shows, versioned, lost)
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


def _read_back(session: Session, before: NodeView, shows: Callable[[NodeView], bool], versioned: bool, lost: UnknownOutcome) -> NodeView:
    deadline = session.clock.monotonic() + session.request.request_timeout
    while True:
        node = known(lambda: session.cluster.read_node(before.name))
        if node is None or (isinstance(node, NodeView) and node.uid != before.uid):
            raise node_gone(before.name)
        if isinstance(node, NodeView) and shows(node):
            session.see(node)
            return node
        if isinstance(node, NodeView) and versioned and node.version != before.version:
            raise LostGuard(
                "lost-guard", f"the answer was lost, and the node was changed by others before it could take effect ({lost.message})"
            )
        if session.clock.monotonic() >= deadline:
            raise lost
        session.clock.sleep(_PAUSE)
