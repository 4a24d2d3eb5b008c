"""Marks of other operations (spec section 3.1), row by row."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_gpu_transition.marks import find_marks, find_operations
from tests.core.builders import facts, node, pod

UPGRADE, MIG = "nvidia.com/gpu-driver-upgrade-state", "nvidia.com/mig.config.state"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"labels": {UPGRADE: ""}},
        {"labels": {UPGRADE: "upgrade-done"}},
        {"labels": {MIG: ""}},
        {"labels": {MIG: "success"}},
        {"taints": ("nvidia.com/gpu", "node.kubernetes.io/unschedulable")},
        {"conditions": {"DrainScheduled": "False"}},
        {"conditions": {"DrainScheduled": "Unknown"}},
        {"annotations": {"weave.works/kured-most-recent-reboot-needed": "x"}},
    ],
    ids=str,
)
def test_no_mark(changes: dict[str, Any]) -> None:
    assert find_marks(node(**changes)) == ()


TAINTS = [
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "medik8s.io/drain",
    "kubevirt.io/drain",
    "node.kubernetes.io/out-of-service",
]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(({"labels": {UPGRADE: v}}, f"label {UPGRADE} is {v!r}") for v in ("upgrade-required", "upgrade-failed", "success")),
        *(({"labels": {MIG: v}}, f"label {MIG} is {v!r}") for v in ("pending", "failed", "upgrade-done")),
        *(
            ({"annotations": {key: ""}}, f"annotation {key} is set")
            for key in ("weave.works/kured-reboot-in-progress", "nvidia.com/gpu-driver-upgrade.driver-wait-for-safe-load")
        ),
        *(({"taints": (taint,)}, f"taint {taint} is set") for taint in TAINTS),
        ({"conditions": {"DrainScheduled": "True"}}, "condition DrainScheduled is True"),
        ({"deleting": True}, "the node is being deleted"),
    ],
    ids=str,
)
def test_a_mark(changes: dict[str, Any], words: str) -> None:
    assert find_marks(node(**changes)) == (words,)


def test_every_mark_is_named_in_the_tables_order() -> None:
    marks = find_marks(node(labels={MIG: "failed", UPGRADE: "x"}, taints=("kubevirt.io/drain", "karpenter.sh/disrupted"), deleting=True))
    assert [mark.split()[1] for mark in marks] == [UPGRADE, MIG, "karpenter.sh/disrupted", "kubevirt.io/drain", "node"]


def test_an_unfinished_pod_of_an_upgrade_plan_on_the_node_is_a_mark() -> None:
    labels = {"upgrade.cattle.io/plan": "server"}
    assert find_operations(node(), facts(pods=(pod("b", labels=labels), pod("a", labels=labels, running=False, phase="Pending")))) == (
        "pod team-a/a of the upgrade plan 'server'",
        "pod team-a/b of the upgrade plan 'server'",
    )
    others = [pod(labels=labels, node="gpu-2"), pod(labels=labels, phase="Succeeded", running=False), pod(labels={"app": "x"})]
    assert find_operations(node(), facts(pods=tuple(others))) == ()
