"""After a failure: what is true now, read afresh. A fact that can not be read is said to be so; no line is left out."""

from __future__ import annotations

from kubectl_gpu_transition import plan
from kubectl_gpu_transition.failures import Drift, EndedElsewhere, NodeGone
from kubectl_gpu_transition.model import ANNOTATION, History, NodeView, Problem, TipFacts
from kubectl_gpu_transition.modes import LABELS
from kubectl_gpu_transition.record import decode
from kubectl_gpu_transition.resume import read_rule_mode
from kubectl_gpu_transition.session import Session, known

_GONE = "the node is gone or was created anew; nothing protects it"


def describe_truth(session: Session, error: Exception) -> bool:
    """Fill the outcome's ``facts`` (node, annotation, fleet, remote), its ``headline`` where the node is not cordoned, and the way back
    where the change is in force. True when the node is gone."""
    outcome, request = session.outcome, session.request
    node = known(lambda: session.cluster.read_node(request.node))
    tip = session.read_tip()
    checkout = session.fleet.read_checkout(request.cluster)
    outcome.facts = [f"node: {_node(node)}", f"annotation: {_annotation(node)}"]
    where = f"{checkout.path}, {checkout.branch or 'no branch'} at {(checkout.head or 'nothing')[:12]}"
    outcome.facts.append(f"fleet: {where}, {checkout.state.message if checkout.state else 'clean'}")
    outcome.facts.append(f"remote: {_remote(session, tip)}")
    outcome.way_back = _way_back(session, tip)
    uid = session.running.uid
    if isinstance(error, NodeGone) or node is None or (isinstance(node, NodeView) and node.uid != uid):
        outcome.headline = _GONE
        return True
    if isinstance(node, Problem):
        outcome.headline = f"whether {request.node} is still cordoned could not be read; this run did not uncordon it"
        return False
    session.see(node)
    if not node.unschedulable:
        why = error.message if isinstance(error, (Drift, EndedElsewhere)) else "another actor uncordoned it, or no cordon took effect"
        outcome.headline = f"THE NODE IS SCHEDULABLE: {request.node} is not cordoned and nothing protects it: {why}"
    return False


def _way_back(session: Session, tip: TipFacts | Problem) -> str | None:
    """What to do when the target can not come up, once the tip asks for it (spec section 6)."""
    request, transaction = session.request, session.running
    if request.command != "apply" or isinstance(tip, Problem) or read_rule_mode(tip.rule, request.node) is not transaction.target:
        return None
    return plan.way_back(request, _find_ours(session, tip) or "<the commit that made the change>")


def _find_ours(session: Session, tip: TipFacts) -> str | None:
    if not isinstance(tip.history, History):
        return None
    return next((commit.id for commit in tip.history.commits if session.running.id in commit.transactions), None)


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
    mine = _find_ours(session, tip)
    if mine:
        ours = f"our commit {mine[:12]} is in it"
    else:
        ours = "our commit is not in it" if isinstance(tip.history, History) else "whether our commit is in it could not be read"
    return f"tip {(tip.tip or 'none')[:12]}, {rule}, {ours}"
