"""When a node is wholly in a mode (spec section 7), and on what ground an uncordon may be sent again (section 4, step 6)."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_gpu_transition.holders import find_holders
from kubectl_gpu_transition.model import Controller, NodeView, PodView
from kubectl_gpu_transition.modes import LABEL_ACTIVE, LABEL_CONFIG, LABEL_EXPECTED, label_values
from kubectl_gpu_transition.target import (
    Goal,
    find_missing,
    find_missing_labels,
    find_missing_owners,
    find_new_managers,
    find_owners,
    is_same_ground,
)
from tests.core.builders import ANNOTATION, DRA, HAMI, VGPU, VM, daemon, entry, facts, holder, node, ours, owner, pod, request

SANDBOX, HAMI_PLUGIN = "nvidia-sandbox-device-plugin-daemonset", "hami-device-plugin"


def missing(seen: NodeView, *pods: PodView, **goal: Any) -> list[str]:
    goal = {"mode": VM, **goal}
    return find_missing(Goal(**goal), seen, facts(pods=pods), find_holders(facts(pods=pods), request()))


def test_nothing_is_missing() -> None:
    assert missing(ours(VM), owner(VM)) == []
    assert missing(ours(DRA), owner(DRA), mode=DRA) == []
    assert missing(ours(HAMI), daemon(HAMI_PLUGIN, "hami-system"), mode=HAMI) == []
    assert missing(ours(VM), owner(VM), pod(), daemon("node-exporter", "monitoring")) == []


NODES = [
    pytest.param(ours(VM, ready="False"), "node Ready is False", id="a node that is not Ready"),
    pytest.param(ours(VM, ready="Unknown"), "node Ready is Unknown", id="a node that is lost"),
    pytest.param(ours(VM, ready="absent"), "node Ready is absent", id="a node without the condition"),
    pytest.param(node(VM), "the node is not cordoned", id="a node that is not cordoned"),
    pytest.param(
        ours(VM, managers=(entry("kubectl-cordon", "t"),)),
        "the cordon is kubectl-cordon's (since t): that one has to uncordon",
        id="another manager's cordon",
    ),
    pytest.param(
        ours(VM, labels={**label_values(VM), LABEL_EXPECTED: "pod-hami"}),
        f"labels 2/3: {LABEL_EXPECTED} is 'pod-hami', not 'vm-passthrough'",
        id="a label of the other mode",
    ),
    pytest.param(
        ours(VM, labels={}),
        f"labels 0/3: {LABEL_ACTIVE} is None, not 'vm-passthrough'; {LABEL_EXPECTED} is None, not 'vm-passthrough'; "
        f"{LABEL_CONFIG} is None, not 'vm-passthrough'",
        id="no labels",
    ),
    pytest.param(ours(VM, taints=("medik8s.io/drain",)), "another operation: taint medik8s.io/drain is set", id="a mark"),
]


@pytest.mark.parametrize(("seen", "words"), NODES)
def test_of_the_node_this_is_missing(seen: NodeView, words: str) -> None:
    assert missing(seen, owner(VM)) == [words]


PODS = [
    pytest.param((), f"owner {SANDBOX}: no pod on the node", id="no owner"),
    pytest.param((owner(VM, node="gpu-2"),), f"owner {SANDBOX}: no pod on the node", id="an owner on another node"),
    pytest.param(
        (owner(VM, phase="Succeeded", running=False),), f"owner {SANDBOX}: no pod on the node", id="an owner whose pod is finished"
    ),
    pytest.param((daemon(SANDBOX, "team-a"),), f"owner {SANDBOX}: no pod on the node", id="a namesake in a namespace that is not trusted"),
    pytest.param(
        (owner(VM, controller=Controller("extensions/v1beta1", "DaemonSet", SANDBOX)),),
        f"owner {SANDBOX}: no pod on the node",
        id="a namesake of another API",
    ),
    pytest.param(
        (owner(VM, controller=Controller("apps/v1", "ReplicaSet", SANDBOX)),),
        f"owner {SANDBOX}: no pod on the node",
        id="a namesake of another kind",
    ),
    pytest.param((owner(VM, controller=None),), f"owner {SANDBOX}: no pod on the node", id="a pod without a controller"),
    pytest.param((owner(VM, ready=False),), f"owner {SANDBOX}: {SANDBOX}-x: not Ready yet", id="an owner that is not Ready"),
    pytest.param(
        (owner(VM, ready=False, waiting="init container toolkit waiting: x"),),
        f"owner {SANDBOX}: {SANDBOX}-x: init container toolkit waiting: x",
        id="an owner that waits for something",
    ),
    pytest.param((owner(VM, phase="Pending"),), f"owner {SANDBOX}: {SANDBOX}-x: not Ready yet", id="an owner that does not run"),
    pytest.param((owner(VM, deleting_since="t"),), f"owner {SANDBOX}: {SANDBOX}-x: terminating", id="an owner that leaves"),
    pytest.param(
        (owner(VM), owner(HAMI)),
        f"other owner gpu-operator/{HAMI_PLUGIN}: pod {HAMI_PLUGIN}-x still there",
        id="another mode's owner",
    ),
    pytest.param(
        (owner(VM), owner(HAMI, deleting_since="t")),
        f"other owner gpu-operator/{HAMI_PLUGIN}: pod {HAMI_PLUGIN}-x terminating",
        id="another mode's owner that leaves",
    ),
    pytest.param(
        (owner(VM), owner(HAMI, phase="Pending", ready=False, running=False)),
        f"other owner gpu-operator/{HAMI_PLUGIN}: pod {HAMI_PLUGIN}-x still there",
        id="another mode's owner that has not begun",
    ),
    pytest.param(
        (owner(VM), daemon(HAMI_PLUGIN, "anywhere")),
        f"other owner anywhere/{HAMI_PLUGIN}: pod {HAMI_PLUGIN}-x still there",
        id="another mode's owner in any namespace",
    ),
    *(
        pytest.param((owner(VM), daemon(name, "anywhere")), f"other owner anywhere/{name}: pod {name}-x still there", id=name)
        for name in (
            "nvidia-device-plugin-daemonset",
            "nvidia-device-plugin-mps-control-daemon",
            "nvidia-kata-sandbox-device-plugin-daemonset",
        )
    ),
    pytest.param((owner(VM), holder()), "holder team-a/Pod/train-0: nvidia.com/gpu by train-0", id="a holder"),
    pytest.param(
        (owner(VM), pod(labels={"upgrade.cattle.io/plan": "p"})),
        "another operation: pod team-a/train-0 of the upgrade plan 'p'",
        id="a pod that upgrades the node",
    ),
]


@pytest.mark.parametrize(("pods", "words"), PODS)
def test_of_the_pods_this_is_missing(pods: tuple[PodView, ...], words: str) -> None:
    assert missing(ours(VM), *pods) == [words]


def test_another_owner_whose_pod_is_finished_is_gone() -> None:
    assert missing(ours(VM), owner(VM), owner(HAMI, phase="Failed", running=False)) == []


def test_one_owner_that_is_up_is_enough() -> None:
    assert missing(ours(VM), owner(VM), owner(VM, uid="old", deleting_since="t")) == []


def test_a_goal_may_do_without_holders_or_cordon() -> None:
    assert missing(ours(VM), owner(VM), holder(), no_holders=False) == []
    assert missing(node(VM), owner(VM), cordoned=False) == []


def test_a_cordon_that_was_not_there_at_first_and_that_nobody_signed_is_missing_an_uncordon() -> None:
    unsigned = ours(VM, managers=None)
    assert missing(unsigned, owner(VM), cordoned=False) == [
        "the node has been cordoned meanwhile, by whom is not known: whoever did has to uncordon"
    ]
    signed = ours(VM, managers=(entry("kubectl-cordon", "t"),))
    assert missing(signed, owner(VM), cordoned=False) == ["the cordon is kubectl-cordon's (since t): that one has to uncordon"]


def test_everything_that_is_missing_is_told_in_the_contracts_order() -> None:
    seen = node(HAMI, ready="False", taints=("medik8s.io/drain",))
    words = missing(seen, holder(), owner(HAMI))
    assert [word.split()[0] for word in words] == ["node", "the", "labels", "holder", "owner", "other", "another"]


def test_owners_are_sorted_and_say_what_they_are() -> None:
    conflicting = daemon("nvidia-device-plugin-daemonset", "b")
    found = find_owners([conflicting, owner(VM), daemon(SANDBOX, "a", ready=False), pod(), owner(DRA)], "gpu-1")
    assert [(o.namespace, o.name, o.trusted, o.mode, o.ready) for o in found] == [
        ("a", SANDBOX, False, VM, False),
        ("b", "nvidia-device-plugin-daemonset", False, None, True),
        ("gpu-operator", SANDBOX, True, VM, True),
        ("hami-system", "hami-dra-driver-kubelet-plugin", True, DRA, True),
    ]


def test_a_mode_that_is_not_supported_owns_nothing_of_its_own() -> None:
    assert find_missing_owners(find_owners([owner(VM)], "gpu-1"), VM) == []
    assert {o.mode for o in find_owners([owner(VM)], "gpu-1")} == {VM}
    assert find_missing_labels(node(VM), VGPU)


def test_a_label_that_is_absent_is_not_one_that_is_empty() -> None:
    assert find_missing_labels(node(labels={**label_values(VM), LABEL_ACTIVE: ""}), VM) == [f"{LABEL_ACTIVE} is '', not 'vm-passthrough'"]


# ---------------------------------------------------------------- the same ground

CORDONED = (entry("kubectl-gpu-transition", "t1"), entry("kubelet", "t1", cordons=False))


@pytest.mark.parametrize(
    "change",
    [
        {"version": "101"},
        {"labels": {**label_values(VM), "other": "x"}},
        {"annotations": {**ours(VM).annotations, "other": "x"}},
        {"taints": ("nvidia.com/gpu",)},
        {"managers": (*CORDONED, entry("nfd", "t9", cordons=False))},
        {"managers": tuple(reversed(CORDONED))},
        {"allocatable": {"nvidia.com/gpu": "1"}},
        {"conditions": {"Ready": "True", "DiskPressure": "True"}},
    ],
    ids=str,
)
def test_the_ground_is_the_same(change: dict[str, Any]) -> None:
    assert is_same_ground(
        ours(VM, managers=CORDONED), ours(VM, managers=CORDONED, **change) if "managers" not in change else ours(VM, **change)
    )


@pytest.mark.parametrize(
    "change",
    [
        {"uid": "uid-2"},
        {"unschedulable": False},
        {"ready": "Unknown"},
        {"annotations": {ANNOTATION: "{}"}},
        {"annotations": {}},
        *({"labels": {**label_values(VM), label: "pod-hami"}} for label in (LABEL_ACTIVE, LABEL_EXPECTED, LABEL_CONFIG)),
        {"taints": ("kubevirt.io/drain",)},
        {"deleting": True},
        {"conditions": {"DrainScheduled": "True"}},
        {"managers": (*CORDONED, entry("kubectl-cordon", "t0"))},
        {"managers": (entry("kubectl-gpu-transition", "t2"),)},
        {"managers": None},
    ],
    ids=str,
)
def test_the_ground_has_changed(change: dict[str, Any]) -> None:
    assert not is_same_ground(ours(VM, managers=CORDONED), ours(VM, **{"managers": CORDONED, **change}))


def test_where_allocatable_decides_it_is_part_of_the_ground() -> None:
    before, after = ours(VM, managers=CORDONED, allocatable={"x": "1"}), ours(VM, managers=CORDONED, allocatable={"x": "0"})
    assert is_same_ground(before, after)
    assert not is_same_ground(before, after, offers=True)
    assert is_same_ground(before, before, offers=True)


def test_who_wrote_the_node_since_the_last_look() -> None:
    before = node(managers=(entry("kubelet", "t1", cordons=False), entry("old", "t1", cordons=False)))
    after = node(
        managers=(
            entry("old", "t1", cordons=False),
            entry("kubelet", "t2", cordons=False),
            entry("driver-manager", "t2", cordons=False),
            *(entry(name, "t2", cordons=False) for name in ("kubectl-gpu-transition", "kube-controller-manager", "ancient-changes", "")),
        )
    )
    assert find_new_managers(before, after) == ("driver-manager", "kubelet")
    assert find_new_managers(node(managers=None), node(managers=None)) == ()
