"""What comes between a change that is in force and the uncordon: holders that land while others lift the cordon, owners that do not come
up or that conflict, nodes that go away and come back (spec sections 4, 5 and 7).

Plan: an apply waits for a change that does not arrive; something is done to the cluster; the change arrives. The node stays cordoned, the
wait says what is missing, and once that is gone the transition completes under its own id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.kube import Json
from tests.harness.world import (
    LABEL_ACTIVE,
    OWNERS,
    Running,
    World,
    daemonset,
    gpu_pod,
    pod,
    vmi,
)

from .test_failures import start_waiting
from .test_holders import HAMI, ONE, dra, nominate, odd_pod, place, sidecar, waiting
from .transitions import accepted, assert_completed, is_recordon, is_uncordon

SANDBOX = OWNERS["vm-passthrough"][1]
Land = Callable[[World], Any]


def arrive(world: World) -> None:
    """Let the change arrive, to the end of what it brings by itself."""
    world.player.flux.paused = False
    world.wait_until(lambda: world.owners() == [SANDBOX], "the new owner alone")


def assert_kept(world: World, running: Running, *patterns: str) -> None:
    """The run waits for this and nothing else, and the node is cordoned."""
    for pattern in patterns:
        running.wait_for_stderr(pattern)
    assert running.is_running
    assert world.is_cordoned()
    assert accepted(world, is_uncordon) == []


def bound(**spec: Any) -> Land:
    """A pod that its creator has put on the node, past the scheduler and so past any cordon."""
    return lambda world: world.add(odd_pod(**spec))


LANDINGS: dict[str, tuple[Land, str]] = {
    "a pod": (lambda world: world.add(gpu_pod("holder", "gpu-1", phase="Running")), "Pod/holder: nvidia.com/gpu"),
    "a pod that has not started": (lambda world: world.add(gpu_pod("holder", "gpu-1", phase="Pending")), "Pod/holder: nvidia.com/gpu"),
    "an init container": (bound(initContainers=[sidecar("init", ONE)]), "Pod/holder: nvidia.com/gpu"),
    "HAMi's word alone": (bound(annotations={"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1000,10:;"}), "Pod/holder: annotation"),
    "a VM without a pod": (lambda world: world.add(vmi("vm-1", "gpu-1")), "VirtualMachineInstance/vm-1"),
    "a VM with its pod": (lambda world: world.add_vm(), "VirtualMachineInstance/vm-1"),
    "a VM that migrates here": (
        lambda world: world.add({**vmi("vm-1", "gpu-2"), "status": {"phase": "Running", "migrationState": {"targetNode": "gpu-1"}}}),
        "VirtualMachineInstance/vm-1",
    ),
    "a nominated pod": (nominate, r"Pod/holder \(not bound yet\)"),
    "a pod whose volume is placed here": (place, r"Pod/holder \(not bound yet\)"),
    "a pod for which HAMi has chosen the node": (lambda world: world.add(waiting(annotations=HAMI)), r"Pod/holder \(not bound yet\)"),
}


def clear(world: World) -> None:
    """Take away whatever has landed."""
    for path in ("/api/v1/pods", "/apis/kubevirt.io/v1/virtualmachineinstances"):
        for item in world.kube.list(path):
            if item["metadata"]["namespace"] == "tenant-a":
                prefix, _, kind = path.rpartition("/")
                world.kube.delete(f"{prefix}/namespaces/tenant-a/{kind}/{item['metadata']['name']}", 0)


@pytest.mark.parametrize("landing", LANDINGS)
def test_a_holder_that_lands_while_others_lift_the_cordon_is_waited_for(world: World, landing: str) -> None:
    land, words = LANDINGS[landing]
    running = start_waiting(world)
    world.uncordon(manager="somebody")
    land(world)
    running.wait_for_stderr("the node was uncordoned by another actor")
    arrive(world)
    assert_kept(world, running, f"waiting for [^:]*: holder [a-z-]+/{words}")
    clear(world)
    record = assert_completed(world, running.wait())
    assert len(accepted(world, is_recordon)) == 1
    assert world.fleet.commits_with(record["id"])


@pytest.mark.needs("resource.k8s.io/v1")
@pytest.mark.parametrize("by", ["ResourceClaim/gpu-claim", "Pod/holder: claim gpu-claim"], ids=["alone", "of-a-pod"])
def test_a_claim_that_lands_while_others_lift_the_cordon_is_waited_for(world: World, by: str) -> None:
    running = start_waiting(world)
    world.uncordon(manager="somebody")
    user = odd_pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu-claim"}])
    made = [world.add(one) for one in (dra("v1") if by.startswith("Resource") else [user])]
    running.wait_for_stderr("the node was uncordoned by another actor")
    arrive(world)
    assert_kept(world, running, f"holder tenant-a/{by}")
    world.remove(made[0])
    assert_completed(world, running.wait())


def test_a_pod_that_ends_by_itself_is_waited_for_and_one_of_a_finished_job_is_not(world: World) -> None:
    running = start_waiting(world)
    world.player.kubelet.behave("tenant-a/holder", stop="never")
    leaving = world.add(gpu_pod("holder", "gpu-1", phase="Running"))
    world.add(gpu_pod("done", "gpu-1", phase="Succeeded"))
    world.remove(leaving, grace=None)
    arrive(world)
    assert_kept(world, running, r"waiting for [^:]*: holder tenant-a/Pod/holder \(terminating\)")
    world.player.kubelet.heal()
    assert_completed(world, running.wait())


# Owners


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("init-crash-loop", "init container init waiting: CrashLoopBackOff"),
        ("crash-loop", "container [a-z-]+ waiting: CrashLoopBackOff"),
        ("image-pull", "container [a-z-]+ waiting: ImagePullBackOff: "),
        ("not-ready", "not Ready yet"),
        ("pending", "not Ready yet"),
    ],
)
def test_why_the_owner_does_not_come_up_is_told(world: World, start: Any, words: str) -> None:
    world.player.kubelet.behave(f"gpu-operator/{SANDBOX}", start=start)
    running = world.start("apply", "-o", "json")
    assert_kept(world, running, f"waiting for .*owner {SANDBOX}: {SANDBOX}-[a-z0-9]+: {words}")
    world.player.kubelet.heal()
    assert_completed(world, running.wait())


@pytest.mark.parametrize("namespace", ["gpu-operator", "tenant-a"])
@pytest.mark.parametrize(
    "name",
    [
        "nvidia-device-plugin-daemonset",
        "nvidia-device-plugin-mps-control-daemon",
        "nvidia-kata-sandbox-device-plugin-daemonset",
        "hami-dra-driver-kubelet-plugin",
    ],
)
def test_a_plugin_that_conflicts_keeps_the_node_cordoned_wherever_it_runs(world: World, name: str, namespace: str) -> None:
    """It comes while the run waits: before the cordon the check ``target-stack`` finds it."""
    running = start_waiting(world)
    conflicting = world.add(daemonset(name, namespace, {LABEL_ACTIVE: "vm-passthrough"}))
    world.player.flux.paused = False
    assert_kept(world, running, f"waiting for [^:]*: other owner {namespace}/{name}: pod {name}-[a-z0-9]+ still there$|: other owner")
    world.wait_until(lambda: SANDBOX in world.owners() and name in world.owners(), "both owners")
    world.remove(conflicting)
    assert_completed(world, running.wait())


def test_a_namesake_of_the_owner_in_another_namespace_proves_nothing(world: World) -> None:
    world.player.kubelet.behave(f"gpu-operator/{SANDBOX}", start="pending")
    running = start_waiting(world)
    namesake = world.add(daemonset(SANDBOX, "tenant-a", {LABEL_ACTIVE: "vm-passthrough"}))
    world.player.flux.paused = False
    world.wait_until(lambda: any(is_ready(item) for item in world.pods() if item["metadata"]["namespace"] == "tenant-a"), "the namesake")
    assert_kept(world, running, f"owner {SANDBOX}: {SANDBOX}-[a-z0-9]+: not Ready yet")
    world.remove(namesake)
    world.player.kubelet.heal()
    assert_completed(world, running.wait())


def is_ready(item: Json) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in item.get("status", {}).get("conditions", []))


# The node


def test_a_node_that_is_not_ready_for_a_while_is_waited_for(world: World) -> None:
    running = start_waiting(world)
    world.set_ready(False)
    world.player.flux.paused = False
    world.wait_until(lambda: world.mode() == "vm-passthrough", "the labels")
    assert_kept(world, running, "waiting for [^:]*: node Ready is False")
    world.set_ready(True)
    assert_completed(world, running.wait())


def test_a_pod_that_takes_a_gpu_without_asking_does_not_keep_the_node(world: World) -> None:
    running = start_waiting(world)
    world.add(pod("snoop", "gpu-1", phase="Running", volumes=[{"name": "device", "hostPath": {"path": "/dev/vfio/7"}}]))
    arrive(world)
    assert_completed(world, running.wait())
    assert "pod tenant-a/snoop reaches GPUs without asking for one (host path /dev/vfio/7)" in running.err
