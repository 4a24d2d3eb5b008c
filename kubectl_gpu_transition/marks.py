"""Signs on a node that another operation is at work (spec section 3.1). One table; pure."""

from __future__ import annotations

from kubectl_gpu_transition.model import NodeView

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


def find_marks(node: NodeView) -> tuple[str, ...]:
    """Each mark on the node object in words, in the table's order; empty when there is none."""
    marks = [f"label {key} is {node.labels[key]!r}" for key, done in _LABELS.items() if node.labels.get(key, "") not in ("", done)]
    marks += [f"annotation {key} is set" for key in _ANNOTATIONS if key in node.annotations]
    marks += [f"taint {key} is set" for key in _TAINTS if key in node.taints]
    marks += [f"condition {key} is True" for key in _CONDITIONS if node.conditions.get(key) == "True"]
    if node.deleting:
        marks.append("the node is being deleted")
    return tuple(marks)
