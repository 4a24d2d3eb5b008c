"""The readings of ``status``: cluster and fleet side by side, a few lists however many nodes there are (spec section 7)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

from kubectl_gpu_transition.facts import Facts, Observation
from kubectl_gpu_transition.model import NodeView, Problem, TipFacts
from kubectl_gpu_transition.record import read_claim
from kubectl_gpu_transition.session import Session, known
from kubectl_gpu_transition.status import Survey


def read_survey(session: Session) -> tuple[Observation, Survey]:
    """Everything that a status shows. With a node in the request only that node is read, else all; the history of the branch is read once
    for each commit that an unfinished transaction is built on."""
    request, cluster, fleet = session.request, session.cluster, session.fleet

    def read_nodes() -> dict[str, NodeView] | Problem:
        if not request.node:
            every = known(cluster.read_nodes)
            return every if isinstance(every, Problem) else {node.name: node for node in every}
        node = known(lambda: cluster.read_node(request.node))
        return node if isinstance(node, Problem) else {} if node is None else {node.name: node}

    def read_facts() -> Facts:
        return cluster.read_facts(request.node, False) if request.node else cluster.read_everything()

    pool = ThreadPoolExecutor(max_workers=2)
    try:
        reading, facts_reading = pool.submit(read_nodes), pool.submit(read_facts)
        checkout = fleet.read_checkout(request.cluster)
        tip = known(lambda: fleet.read_tip(request.cluster))
        nodes, facts = reading.result(), facts_reading.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # after an interrupt nobody waits for a server that does not answer
    claims = [read_claim(node, request.cluster, None) for node in ({} if isinstance(nodes, Problem) else nodes).values()]
    tips: dict[str | None, TipFacts | Problem] = {None: tip}
    for base in dict.fromkeys(claim.transaction.base for claim in claims if claim.kind == "ours" and claim.transaction):
        tips[base] = known(partial(fleet.read_tip, request.cluster, base))
    return Observation(None, facts, checkout, tip, session.clock.monotonic()), Survey(nodes, facts, tips)
