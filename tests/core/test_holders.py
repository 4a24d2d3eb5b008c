"""Who holds a GPU (spec section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kubectl_gpu_transition.holders import describe_holder, find_holders, gpu_resources, is_gpu_resource
from kubectl_gpu_transition.model import Controller, Holder, PodView, Problem
from tests.core.builders import claim, facts, holder, pod, request

NONE: frozenset[str] = frozenset()


def find(pods: Sequence[PodView], *names: str, **options: Any) -> tuple[Holder, ...]:
    """The holders of gpu-1 where these pods are all there is; ``names`` are what KubeVirt permits."""
    found = find_holders(facts(pods=tuple(pods), permitted=(frozenset(names),)), request(**options))
    assert not isinstance(found, Problem)
    return found


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/GV100GL_TESLA_V100_PCIE_32GB",
        "requests.nvidia.com/gpu",
        "gpu.intel.com/i915",
        "amd.com/gpu",
        "amd.com/gpu-memory",
        "deviceclass.resource.kubernetes.io/gpu",
    ],
)
def test_a_name_is_a_native_gpu(name: str) -> None:
    assert is_gpu_resource(name, NONE)


@pytest.mark.parametrize("name", ["cpu", "amd.com/cpu", "nvidia.com", "xnvidia.com/gpu", "intel.com/gpu", "vendor.example/gpu", "gpu"])
def test_a_name_is_none_unless_it_is_named(name: str) -> None:
    assert not is_gpu_resource(name, NONE)
    assert is_gpu_resource(name, frozenset({name}))


HOLDS = [
    pytest.param({"resources": frozenset({"cpu", "nvidia.com/gpu"})}, ("nvidia.com/gpu",), id="a native resource"),
    pytest.param({"resources": frozenset({"vendor.example/gpu"})}, ("vendor.example/gpu",), id="a name from KubeVirt or the command line"),
    pytest.param({"claims": (claim("gpu"),)}, ("claim gpu",), id="a claim"),
    pytest.param({"allocations": ("hami.io/vgpu-node",), "allocated_node": "gpu-1"}, ("annotation hami.io/vgpu-node",), id="HAMi's word"),
    pytest.param({"allocations": ("hami.io/vgpu-devices-allocated",)}, ("annotation hami.io/vgpu-devices-allocated",), id="naming no node"),
]
HOLDS_NOT = [
    pytest.param({"resources": frozenset({"cpu", "memory"})}, id="nothing of a GPU"),
    pytest.param({"resources": frozenset({"nvidia.com/gpu"}), "phase": "Succeeded", "running": False}, id="finished"),
    pytest.param({"resources": frozenset({"nvidia.com/gpu"}), "node": "gpu-2"}, id="on another node"),
    pytest.param({"resources": frozenset({"nvidia.com/gpu"}), "node": ""}, id="on no node"),
    pytest.param({"allocations": ("hami.io/vgpu-node",), "allocated_node": "gpu-2"}, id="HAMi's word for another node"),
]


@pytest.mark.parametrize(("changes", "resources"), HOLDS)
def test_a_pod_holds(changes: dict[str, Any], resources: tuple[str, ...]) -> None:
    (found,) = find([pod(**changes)], *{"vendor.example/gpu"})
    assert found.resources == resources
    assert (found.namespace, found.kind, found.name, found.pods, found.terminating, found.bound) == (
        "team-a",
        "Pod",
        "train-0",
        ("train-0",),
        False,
        True,
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "Failed", "running": True},
        {"phase": "Pending", "running": False},
        {"phase": "Unknown", "running": False},
        {"deleting_since": "t", "grace": 30},
    ],
    ids=str,
)
def test_a_pod_holds_until_its_containers_are_gone(changes: dict[str, Any]) -> None:
    assert len(find([holder(**changes)])) == 1


@pytest.mark.parametrize("changes", HOLDS_NOT)
def test_a_pod_does_not_hold(changes: dict[str, Any]) -> None:
    assert find([pod(**changes)]) == ()


def test_holders_are_shown_by_controller_sorted_whatever_the_order_of_the_list() -> None:
    def of(name: str, number: int, **more: Any) -> PodView:
        return holder(f"{name}-{number}", controller=Controller("apps/v1", "StatefulSet", name), **more)

    pods = [
        of("train", 1),
        holder("solo"),
        of("eval", 0),
        of("train", 0, resources=frozenset({"nvidia.com/gpumem"})),
        of("a", 0, namespace="z"),
    ]
    found = find(pods)
    assert found == find(pods[::-1])
    assert [(h.namespace, h.kind, h.name, h.pods) for h in found] == [
        ("team-a", "Pod", "solo", ("solo",)),
        ("team-a", "StatefulSet", "eval", ("eval-0",)),
        ("team-a", "StatefulSet", "train", ("train-0", "train-1")),
        ("z", "StatefulSet", "a", ("a-0",)),
    ]
    assert found[2].resources == ("nvidia.com/gpu", "nvidia.com/gpumem")


def test_a_group_is_terminating_when_all_of_it_is() -> None:
    controller = Controller("apps/v1", "StatefulSet", "train")
    leaving = holder("train-0", controller=controller, deleting_since="2026-05-01T00:00:30Z", grace=30)
    (both,) = find([leaving, holder("train-1", controller=controller)])
    (one,) = find([leaving])
    assert (both.terminating, one.terminating) == (False, True)
    assert one.advice == "terminating (its grace period of 30 s ends 2026-05-01T00:00:30Z): wait for it"
    (unsaid,) = find([holder(deleting_since="t")])
    assert "grace period of 0 s" in unsaid.advice


ADVICE = [
    ("VirtualMachineInstance", "stop the VM, a GPU VM can not be migrated: virtctl stop x -n team-a"),
    ("StatefulSet", "kubectl scale -n team-a statefulset/x --replicas=0"),
    ("ReplicaSet", "kubectl get -n team-a replicaset/x -o jsonpath='{.metadata.ownerReferences[*].name}'"),
    ("ReplicationController", "kubectl get -n team-a replicationcontroller/x"),
    ("Job", 'kubectl patch -n team-a job/x -p \'{"spec":{"suspend":true}}\''),
    ("Notebook", "ask the owner of Notebook team-a/x to stop it on this node"),
]


@pytest.mark.parametrize(("kind", "words"), ADVICE)
def test_the_advice_is_for_its_controller_and_never_a_forced_deletion(kind: str, words: str) -> None:
    (found,) = find([holder(controller=Controller("v1", kind, "x"))])
    assert words in found.advice
    assert "--force" not in found.advice
    assert "grace-period" not in found.advice


def test_a_pod_of_its_own_is_asked_for_at_its_owner() -> None:
    (found,) = find([holder()])
    assert found.advice == "ask its owner to stop it: kubectl delete pod -n team-a train-0"


def test_what_a_pod_holds_is_sorted() -> None:
    everything = pod(
        resources=frozenset({"nvidia.com/b", "nvidia.com/a"}), claims=(claim("z"), claim("y")), allocations=("hami.io/x-devices-allocated",)
    )
    assert gpu_resources(everything, NONE) == (
        "nvidia.com/a",
        "nvidia.com/b",
        "claim y",
        "claim z",
        "annotation hami.io/x-devices-allocated",
    )


def test_a_holder_in_one_line() -> None:
    one = Holder("team-a", "Job", "x", ("x-1", "x-2"), ("nvidia.com/gpu",), True, True, "advice")
    assert describe_holder(one) == "team-a/Job/x (terminating): nvidia.com/gpu by x-1, x-2"
