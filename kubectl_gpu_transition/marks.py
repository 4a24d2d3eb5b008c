"""Signs on a node that another operation is at work (spec section 3.1). One table; pure."""

from __future__ import annotations

from collections.abc import Iterable

from kubectl_gpu_transition.model import NodeView, PodView

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


def find_pod_marks(pods: Iterable[PodView], node: str) -> tuple[str, ...]:
    """Each unfinished pod on the node that upgrades it (a plan of the system upgrade controller), in words, sorted."""
    upgrading = [pod for pod in pods if pod.node == node and not pod.finished and _POD_LABEL in pod.labels]
    return tuple(sorted(f"pod {pod.namespace}/{pod.name} of the upgrade plan {pod.labels[_POD_LABEL]!r}" for pod in upgrading))
