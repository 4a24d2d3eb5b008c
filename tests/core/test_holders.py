"""Who holds a GPU (spec section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kubectl_gpu_transition.facts import ClaimView, Device, Facts, MachineView, SliceView, VolumeView
from kubectl_gpu_transition.holders import describe_holder, find_exempt, find_holders, is_gpu_resource
from kubectl_gpu_transition.model import Controller, Holder, PodClaim, PodView, Problem
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
    (found,) = find([everything])
    assert found.resources == tuple(
        sorted(("nvidia.com/a", "nvidia.com/b", "claim y", "claim z", "annotation hami.io/x-devices-allocated"))
    )


SPECIAL = [
    pytest.param(
        {"namespace": "gpu-operator", "controller": Controller("batch/v1", "Job", "hami-device-plugin-canary-29")},
        "kube-dc's allocation canary: wait for it, and suspend it for the time of the transition: "
        "kubectl patch -n gpu-operator cronjob/hami-device-plugin-canary -p",
        id="the canary",
    ),
    pytest.param({"controller": Controller("batch/v1", "Job", "hami-device-plugin-canary-29")}, "wait for the Job, or", id="no canary"),
    pytest.param({"name": "nvidia-device-plugin-validator-x"}, "the GPU operator's own check", id="the validator"),
    pytest.param({"static": True, "controller": Controller("v1", "Node", "gpu-1")}, "a static pod (team-a/train-0): move", id="static"),
]


@pytest.mark.parametrize(("changes", "words"), SPECIAL)
def test_who_is_known_by_name_is_told_as_such(changes: dict[str, Any], words: str) -> None:
    (found,) = find([holder(**{"name": "train-0", **changes})])
    assert found.advice.startswith(words)


# --- claims

GPU, NIC = "gpu.nvidia.com", "dra.net"


def device(name: str = "gpu-0", **more: Any) -> Device:
    return Device(**{"driver": GPU, "pool": "gpu-1", "name": name, "admin": False, **more})


def allocated(*devices: Device, **more: Any) -> ClaimView:
    return ClaimView(**{"namespace": "team-a", "name": "c", "devices": devices or (device(),), "reserved": (), "only_node": None, **more})


def slices(node: str | None = "gpu-1", **more: Any) -> SliceView:
    return SliceView(**{"driver": GPU, "pool": "gpu-1", "node": node, "devices": ("gpu-0",), **more})


def held(seen: Facts, **options: Any) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    found = find_holders(seen, request(**options))
    assert not isinstance(found, Problem)
    return [(h.kind, h.name, h.pods, h.resources) for h in found]


CLAIM = ("ResourceClaim", "c", (), ("device gpu.nvidia.com/gpu-1/gpu-0",))


def test_a_claim_on_a_device_of_the_node_holds_whoever_it_is_reserved_for() -> None:
    assert held(facts(claims=(allocated(),), slices=(slices(),))) == [CLAIM]
    reserved = allocated(reserved=("pods/gone-0",))
    assert held(facts(claims=(reserved,), slices=(slices(),))) == [(*CLAIM[:2], ("gone-0",), CLAIM[3])]


HERE = [
    pytest.param(allocated(), slices("gpu-2"), False, id="the slice is of another node"),
    pytest.param(allocated(), slices(None), False, id="the slice is of no one node"),
    pytest.param(allocated(), slices(None, device_nodes={"gpu-0": "gpu-1"}), True, id="the device is of the node"),
    pytest.param(allocated(device("gpu-1")), slices(None, device_nodes={"gpu-0": "gpu-1"}), False, id="another device is"),
    pytest.param(allocated(), slices(driver="other"), True, id="its slice is gone, and the pool is the node's"),
    pytest.param(allocated(device(pool="p")), slices(driver="other"), False, id="its slice is gone, and the pool is not"),
    pytest.param(allocated(device(pool="p"), only_node="gpu-1"), slices(driver="other"), True, id="only this node will do"),
    pytest.param(allocated(device(pool="p"), only_node="gpu-2"), slices(driver="other"), False, id="only another node will do"),
    pytest.param(allocated(devices=None), slices(), False, id="not allocated"),
]


@pytest.mark.parametrize(("made", "there", "holds"), HERE)
def test_where_a_claim_is(made: ClaimView, there: SliceView, holds: bool) -> None:
    assert bool(held(facts(claims=(made,), slices=(there,)))) == holds


def test_a_claim_that_its_pod_shows_is_not_counted_twice() -> None:
    named = pod(claims=(PodClaim("gpu", "c"),))
    assert held(facts(pods=(named,), claims=(allocated(),), slices=(slices(),))) == [("Pod", "train-0", ("train-0",), ("claim c",))]
    finished = pod(claims=(PodClaim("gpu", "c"),), phase="Succeeded", running=False)
    assert held(facts(pods=(finished,), claims=(allocated(),), slices=(slices(),))) == [CLAIM]


EXEMPT = [
    pytest.param((device(admin=True),), True, id="administration"),
    pytest.param((device(driver=NIC),), True, id="a driver that is ignored"),
    pytest.param((device(driver=NIC), device(admin=True)), True, id="both"),
    pytest.param((device(), device(admin=True)), False, id="one of them counts"),
    pytest.param((device(),), False, id="a GPU"),
]


@pytest.mark.parametrize(("devices", "exempt"), EXEMPT)
def test_what_is_shown_and_not_counted(devices: tuple[Device, ...], exempt: bool) -> None:
    named = pod(claims=(PodClaim("gpu", "c"),))
    seen = facts(pods=(named,), claims=(allocated(*devices),), slices=(slices(), slices(driver=NIC)))
    asked = request(ignore_dra_drivers=(NIC,))
    assert (find_holders(seen, asked) == ()) == exempt
    assert bool(find_exempt(seen, asked)) == exempt
    alone = facts(claims=seen.claims, slices=seen.slices)
    assert (find_holders(alone, asked) == ()) == exempt


UNKNOWN = [
    pytest.param((), id="not read"),
    pytest.param((allocated(devices=None),), id="not allocated"),
    pytest.param((ClaimView("team-a", "c", (), (), None),), id="allocated to nothing"),
    pytest.param((allocated(device(driver=NIC), namespace="team-b"),), id="of another namespace"),
]


@pytest.mark.parametrize("claims", UNKNOWN)
def test_a_claim_that_is_not_known_to_be_exempt_counts(claims: tuple[ClaimView, ...]) -> None:
    for name in ("c", None):
        named = pod(claims=(PodClaim("net", name), PodClaim("x", None)))
        assert held(facts(pods=(named,), claims=claims), ignore_dra_drivers=(NIC,))


# --- promised pods

PROMISED = [
    pytest.param({"nominated": "gpu-1"}, (), "nominated to the node", id="nominated"),
    pytest.param({"allocated_node": "gpu-1", "allocations": ("hami.io/vgpu-node",)}, (), "HAMi has chosen", id="HAMi"),
    pytest.param({"volumes": ("data",)}, (VolumeView("team-a", "data", "gpu-1", False),), "its volume is placed", id="a volume"),
]
NOT_PROMISED = [
    pytest.param({}, (), id="nothing"),
    pytest.param({"nominated": "gpu-2"}, (), id="nominated elsewhere"),
    pytest.param({"allocated_node": "gpu-1", "bind_phase": "failed"}, (), id="HAMi has failed"),
    pytest.param({"allocated_node": "gpu-2"}, (), id="HAMi elsewhere"),
    pytest.param({"volumes": ("data",)}, (VolumeView("team-a", "data", "gpu-1", True),), id="bound already"),
    pytest.param({"volumes": ("data",)}, (VolumeView("team-b", "data", "gpu-1", False),), id="of another namespace"),
    pytest.param({"volumes": ("data",)}, (VolumeView("team-a", "data", "gpu-2", False),), id="placed elsewhere"),
    pytest.param({"nominated": "gpu-1", "resources": frozenset({"cpu"})}, (), id="without a GPU"),
]


@pytest.mark.parametrize(("changes", "volumes", "words"), PROMISED)
def test_a_pod_that_is_promised_to_the_node_holds(changes: dict[str, Any], volumes: tuple[VolumeView, ...], words: str) -> None:
    found = find_holders(facts(unbound=(holder(node="", **changes),), volumes=volumes), request())
    assert not isinstance(found, Problem)
    ((one),) = found
    assert (one.bound, one.pods) == (False, ("train-0",))
    assert one.advice.startswith("not bound yet (") and words in one.advice


@pytest.mark.parametrize(("changes", "volumes"), NOT_PROMISED)
def test_a_pod_that_is_not_promised_to_the_node_does_not(changes: dict[str, Any], volumes: tuple[VolumeView, ...]) -> None:
    assert held(facts(unbound=(holder(**{"node": "", **changes}),), volumes=volumes)) == []


# --- virtual machines


def machine(**more: Any) -> MachineView:
    first = MachineView("team-a", "vm", "u", "Running", "gpu-1", ("nvidia.com/T4",), frozenset(), None)
    return replace(first, **more)


RUNS = [
    pytest.param({}, id="on the node"),
    pytest.param({"node": "gpu-2", "active": frozenset({"gpu-1"})}, id="an active pod of it is"),
    pytest.param({"node": "gpu-2", "migrating_to": "gpu-1"}, id="on its way"),
    pytest.param({"phase": "Scheduled"}, id="not started"),
    pytest.param({"phase": "Unknown"}, id="unknown"),
]
RUNS_NOT = [
    pytest.param({"node": "gpu-2"}, id="on another node"),
    pytest.param({"phase": "Succeeded"}, id="succeeded"),
    pytest.param({"phase": "Failed"}, id="failed"),
    pytest.param({"devices": ()}, id="without a device"),
]


@pytest.mark.parametrize("changes", RUNS)
def test_a_virtual_machine_holds_without_a_launcher_pod(changes: dict[str, Any]) -> None:
    assert held(facts(machines=(machine(**changes),))) == [("VirtualMachineInstance", "vm", (), ("nvidia.com/T4",))]


@pytest.mark.parametrize("changes", RUNS_NOT)
def test_a_virtual_machine_does_not(changes: dict[str, Any]) -> None:
    assert held(facts(machines=(machine(**changes),))) == []


def test_a_virtual_machine_and_its_launcher_are_one_holder() -> None:
    launcher = holder("virt-launcher-vm-x", controller=Controller("kubevirt.io/v1", "VirtualMachineInstance", "vm"))
    (found,) = held(facts(pods=(launcher,), machines=(machine(),)))
    assert found == ("VirtualMachineInstance", "vm", ("virt-launcher-vm-x",), ("nvidia.com/T4", "nvidia.com/gpu"))


@pytest.mark.parametrize("field", ["pods", "unbound", "volumes", "permitted", "classes", "claims", "slices", "machines"])
def test_what_can_not_be_read_is_never_nobody(field: str) -> None:
    unread = Problem("no answer")
    assert find_holders(facts(**{field: unread}), request()) == unread


def test_a_holder_in_one_line() -> None:
    one = Holder("team-a", "Job", "x", ("x-1", "x-2"), ("nvidia.com/gpu",), True, True, "advice")
    assert describe_holder(one) == "team-a/Job/x (terminating): nvidia.com/gpu by x-1, x-2"
    assert describe_holder(replace(one, terminating=False, bound=False, pods=())) == "team-a/Job/x (not bound yet): nvidia.com/gpu"
