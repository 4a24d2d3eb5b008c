"""Signs on a node that another operation is at work (spec section 3.1). One table; pure."""

from __future__ import annotations

import json

from kubectl_gpu_transition.facts import Facts
from kubectl_gpu_transition.model import NodeView, Problem

# label -> values that mean "nothing going on" beside absent and empty; a failed state is a mark too
_LABELS = {"nvidia.com/gpu-driver-upgrade-state": "upgrade-done", "nvidia.com/mig.config.state": "success"}
_ANNOTATIONS = ("weave.works/kured-reboot-in-progress", "nvidia.com/gpu-driver-upgrade.driver-wait-for-safe-load")
_TAINTS = (
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "medik8s.io/drain",
    "kubevirt.io/drain",
    "node.kubernetes.io/out-of-service",
)
_CONDITIONS = ("DrainScheduled",)
_POD_LABEL = "upgrade.cattle.io/plan"


def find_marks(node: NodeView) -> tuple[str, ...]:
    """Each mark on the node object in words, in the table's order; empty when there is none."""
    marks = [f"label {key} is {node.labels[key]!r}" for key, done in _LABELS.items() if node.labels.get(key, "") not in ("", done)]
    marks += [f"annotation {key} is set" for key in _ANNOTATIONS if key in node.annotations]
    marks += [f"taint {key} is set" for key in _TAINTS if key in node.taints]
    marks += [f"condition {key} is True" for key in _CONDITIONS if node.conditions.get(key) == "True"]
    if node.deleting:
        marks.append("the node is being deleted")
    return tuple(marks)


# kured's lock: an annotation of its DaemonSet, JSON with the node's name in nodeID (kubereboot/kured: pkg/daemonsetlock).
_KURED, _LOCK = ("kube-system", "kured"), "weave.works/kured-node-lock"


def find_operations(node: NodeView, facts: Facts) -> tuple[str, ...] | Problem:
    """Each mark of another operation on the node, in words, in the table's order; a Problem where a place of the table was not read."""
    if isinstance(facts.pods, Problem) or isinstance(facts.maintenances, Problem) or isinstance(facts.daemonsets, Problem):
        return facts.find_problem("pods", "maintenances", "daemonsets") or Problem("marks were not read")
    marks = list(find_marks(node))
    marks += sorted(f"NodeMaintenance {found.name} names the node" for found in facts.maintenances if found.node == node.name)
    upgrading = [pod for pod in facts.pods if pod.node == node.name and not pod.finished and _POD_LABEL in pod.labels]
    marks += sorted(f"pod {pod.namespace}/{pod.name} of the upgrade plan {pod.labels[_POD_LABEL]!r}" for pod in upgrading)
    for found in facts.daemonsets:
        if (found.namespace, found.name) == _KURED and _LOCK in found.annotations and _holds_lock(found.annotations[_LOCK], node.name):
            marks.append(f"annotation {_LOCK} of DaemonSet kube-system/kured does not name another node")
    return tuple(marks)


def _holds_lock(text: str, node: str) -> bool:
    """Whether kured's lock is this node's. One that can not be read may be."""
    try:
        lock = json.loads(text)
    except ValueError:
        return True
    name = lock.get("nodeID") if isinstance(lock, dict) else None
    return not isinstance(name, str) or name in ("", node)
