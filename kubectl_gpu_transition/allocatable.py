"""What a node offers: whether the target works and what the previous mode offered is gone (spec sections 1 and 7, condition 8). Pure.

Allocatable decides, never capacity: after a device plugin has gone the kubelet keeps its resource's capacity for minutes, and an explicit 0
in allocatable is gone.
"""

from __future__ import annotations

from kubectl_gpu_transition.facts import Facts
from kubectl_gpu_transition.model import NodeView, Problem
from kubectl_gpu_transition.modes import MODES, Mode
from kubectl_gpu_transition.views import is_positive


def describe_offer(mode: Mode) -> str:
    """What a node in this mode offers, in words."""
    facts = MODES[mode]
    if facts.driver is not None:
        return f"a device of the DRA driver {facts.driver}"
    return facts.resource or "one of KubeVirt's permitted host devices"


def find_offers(mode: Mode, node: NodeView, facts: Facts) -> dict[str, str] | Problem:
    """What the node offers of a mode now: resource names with their quantity, or pools of the mode's DRA driver with their devices' number.

    A Problem where what tells it was not read.
    """
    row = MODES[mode]
    if row.driver is not None:
        if isinstance(facts.slices, Problem):
            return facts.slices
        counts: dict[str, int] = {}
        for found in facts.slices:
            if found.driver == row.driver:
                here = found.devices if found.node == node.name else [d for d in found.devices if found.device_nodes.get(d) == node.name]
                counts[found.pool] = counts.get(found.pool, 0) + len(here)
        return {f"{row.driver}/{pool}": str(count) for pool, count in sorted(counts.items()) if count}
    names = frozenset({row.resource}) if row.resource else None
    if names is None:
        if isinstance(facts.permitted, Problem):
            return facts.permitted
        names = frozenset().union(*facts.permitted)
    return {name: node.allocatable[name] for name in sorted(names) if is_positive(node.allocatable.get(name, "0"))}


def find_missing_offers(source: Mode, target: Mode, node: NodeView, facts: Facts) -> list[str] | Problem:
    """What keeps the node from offering the target and nothing of the previous mode; empty when nothing does, a Problem where that is not
    known."""
    now, before = find_offers(target, node, facts), find_offers(source, node, facts)
    if isinstance(now, Problem):
        return now
    if isinstance(before, Problem):
        return before
    missing = [] if now else [f"allocatable: nothing yet of {describe_offer(target)}"]
    left = [f"{name} {quantity}" for name, quantity in before.items() if name not in now]
    return missing + ([f"allocatable: still {', '.join(left)} of {source.value}"] if left else [])
