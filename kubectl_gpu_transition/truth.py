"""After a failure: what is true now, read afresh. A fact that can not be read is said to be so; no line is left out."""

from __future__ import annotations

from kubectl_gpu_transition import plan
from kubectl_gpu_transition.model import ANNOTATION, NodeView, Problem, TipFacts
from kubectl_gpu_transition.modes import LABELS
from kubectl_gpu_transition.record import decode
from kubectl_gpu_transition.resume import read_rule_mode
from kubectl_gpu_transition.session import Session, known


def describe_truth(session: Session, gone: bool) -> None:
    """Fill the outcome's ``facts`` (node, annotation, fleet, remote) and, where the node is not cordoned, its ``headline``."""
    outcome, request = session.outcome, session.request
    node = known(lambda: session.cluster.read_node(request.node))
    tip = session.read_tip()
    checkout = session.fleet.read_checkout(request.cluster)
    outcome.facts = [f"node: {_node(node)}", f"annotation: {_annotation(node)}"]
    where = f"{checkout.path}, {checkout.branch or 'no branch'} at {(checkout.head or 'nothing')[:12]}"
    outcome.facts.append(f"fleet: {where}, {checkout.state.message if checkout.state else 'clean'}")
    outcome.facts.append(f"remote: {_remote(session, tip)}")
    if gone:
        return
    if isinstance(node, NodeView):
        session.see(node)
        if not node.unschedulable:
            outcome.headline = f"THE NODE IS SCHEDULABLE: {request.node} is not cordoned and nothing protects it"
    elif node is None:
        outcome.headline = f"the node is gone; nothing protects it ({request.node})"
    else:
        outcome.headline = f"whether {request.node} is still cordoned could not be read; this run did not uncordon it"


def _node(node: NodeView | Problem | None) -> str:
    if node is None:
        return "it does not exist"
    if isinstance(node, Problem):
        return f"could not be read: {node.message}"
    labels = ", ".join(f"{key}={node.labels.get(key, '(absent)')}" for key in LABELS)
    return f"{'cordoned' if node.unschedulable else 'SCHEDULABLE'}, Ready {node.ready}, {labels}"


def _annotation(node: NodeView | Problem | None) -> str:
    if not isinstance(node, NodeView):
        return "could not be read"
    text = node.annotations.get(ANNOTATION)
    transaction = decode(text or "")
    return plan.describe_transaction(transaction) if transaction else ("none" if text is None else f"not readable: {text[:200]}")


def _remote(session: Session, tip: TipFacts | Problem) -> str:
    if isinstance(tip, Problem):
        return f"could not be read: {tip.message}"
    mode = read_rule_mode(tip.rule, session.request.node)
    rule = f"its rule can not be read: {mode.message}" if isinstance(mode, Problem) else f"its rule asks for {mode.value}"
    history = tip.history
    if history is None or isinstance(history, Problem):
        ours = "whether our commit is in it could not be read"
    else:
        mine = next((commit.id for commit in history.commits if session.running.id in commit.transactions), None)
        ours = f"our commit {mine[:12]} is in it" if mine else "our commit is not in it"
    return f"tip {(tip.tip or 'none')[:12]}, {rule}, {ours}"
