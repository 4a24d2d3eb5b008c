"""The check ``holders`` (contract section 5): who holds a GPU on the node, by controller, and who does not.

States that a server's own admission would not let in, or that not every version knows, come from a proxy that adds them to an answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.e2e.expect import assert_blocked, assert_only_read, assert_untouched, look
from tests.e2e.states import Make, Row, nothing, preview
from tests.harness.backend import SimBackend
from tests.harness.faultproxy import FaultProxy, ProxyRequest
from tests.harness.kube import Json
from tests.harness.world import KUBEVIRTS, POD_RESOURCE, VM_RESOURCE, World, gpu_pod, pod, vmi


@dataclass(frozen=True)
class Held:
    """A pod that holds, and the one holder that it makes: ``namespace/kind/name`` and its resources."""

    make: Make
    holder: str
    resources: tuple[str, ...] = (POD_RESOURCE,)
    remedy: str = ""
    terminating: bool = False
    bound: bool = True
    pods: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)


def assert_held(world: World, row: Held, **options: Any) -> None:
    """The check ``holders`` alone stops a preview, and the report has this one holder."""
    before = look(world)
    result = world.run("preview", "-o", "json", **{**row.options, **options})
    check = assert_blocked(result, "holders", (row.holder, *row.resources), row.remedy)
    assert "--force" not in check["remedy"] and "grace-period" not in check["remedy"]
    (found,) = result.report["holders"]
    assert f"{found['namespace']}/{found['kind']}/{found['name']}" == row.holder
    assert tuple(found["resources"]) == row.resources
    assert (found["terminating"], found["bound"]) == (row.terminating, row.bound)
    assert len(found["pods"]) == row.pods
    assert_only_read(world, before)
    assert_untouched(world, before)


def terminate(world: World) -> None:
    """A pod that is deleted, and whose containers take their time."""
    world.player.kubelet.behave("tenant-a/holder", stop="never")
    world.remove(world.add(gpu_pod("holder", "gpu-1", phase="Running")), grace=None)


def permit_elsewhere(world: World, resource: str) -> None:
    """A second KubeVirt, in a namespace of its own, that permits a mediated device."""
    spec = {"configuration": {"permittedHostDevices": {"mediatedDevices": [{"mdevNameSelector": "A-4Q", "resourceName": resource}]}}}
    world.add({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "other", "namespace": "tenant-b"}, "spec": spec})


def permit(world: World, resource: str) -> None:
    permitted = {"pciHostDevices": [{"pciVendorSelector": "1002:74A1", "resourceName": resource}]}
    world.kube.patch(f"{KUBEVIRTS}/kubevirt", {"spec": {"configuration": {"permittedHostDevices": permitted}}})


def sidecar(name: str, resources: Json) -> Json:
    return {"name": name, "image": "registry.example.com/side:1", "resources": resources}


ONE = {"limits": {POD_RESOURCE: "1"}, "requests": {POD_RESOURCE: "1"}}
HOLDER, MACHINE = "tenant-a/Pod/holder", "tenant-a/VirtualMachineInstance/vm-1"
OWN = "example.com/accelerator"
CANARY = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "hami-device-plugin-canary-29", "uid": "00000000-0000-4000-8000-000000000002"},
}
TRAINING = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "training", "uid": "00000000-0000-4000-8000-000000000001"}}


def odd_pod(**spec: Any) -> Json:
    """A running pod without a GPU in its own container."""
    return pod("holder", "gpu-1", phase="Running", **spec)


def held(table: Mapping[str, Held]) -> Any:
    """As ``rows``, for holders."""
    return pytest.mark.parametrize("row", list(table.values()), ids=list(table))


def gpu(resource: str = POD_RESOURCE, **changes: Any) -> Make:
    """Add a running pod that asks for one of the resource."""
    return lambda world: world.add(gpu_pod("holder", world.name, resource=resource, **{"phase": "Running", **changes}))


def machine(**status: Any) -> Json:
    """A GPU VM that KubeVirt says to be on the node, without any pod; ``status`` says otherwise."""
    made = vmi("vm-1", "gpu-1")
    return {**made, "status": {**made["status"], **status}}


def waiting(**changes: Any) -> Json:
    """A pod that asks for a GPU, is on no node, and whose scheduler is not here."""
    return gpu_pod("holder", None, schedulerName="nobody", **changes)


def nominate(world: World) -> None:
    world.add(waiting())
    world.kube.patch("/api/v1/namespaces/tenant-a/pods/holder/status", {"status": {"nominatedNodeName": "gpu-1"}})


def place(world: World, node: str = "gpu-1") -> None:
    """The scheduler has chosen the node for the pod's volume, which is not there yet: the pod follows it."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "tenant-a", "annotations": {"volume.kubernetes.io/selected-node": node}},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "slow", "resources": {"requests": {"storage": "1Gi"}}},
    }
    world.add(claim)
    world.add(waiting(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]))


HAMI = {"hami.io/vgpu-node": "gpu-1", "hami.io/vgpu-devices-to-allocate": "GPU-1,NVIDIA,1000,10:;"}


@held(
    {
        "a VM without a pod": Held(lambda world: world.add(machine()), MACHINE, (VM_RESOURCE,), "virtctl stop vm-1", pods=0),
        "a VM that is on its way here": Held(
            lambda world: world.add(machine(nodeName="gpu-2", migrationState={"targetNode": "gpu-1"})), MACHINE, (VM_RESOURCE,), pods=0
        ),
        "a VM with a pod here": Held(
            lambda world: world.add(machine(nodeName="gpu-2", activePods={"uid": "gpu-1"})), MACHINE, (VM_RESOURCE,), pods=0
        ),
        "a pod that is nominated to the node": Held(nominate, HOLDER, remedy="nominated to the node", bound=False),
        "a pod whose volume is placed on the node": Held(place, HOLDER, remedy="its volume is placed", bound=False),
        "a pod for which HAMi has chosen the node": Held(
            lambda world: world.add(waiting(annotations=HAMI)),
            HOLDER,
            tuple(sorted((POD_RESOURCE, *(f"annotation {key}" for key in HAMI)))),
            "HAMi has chosen",
            bound=False,
        ),
        "a pod with HAMi's word alone": Held(
            lambda world: world.add(odd_pod(annotations={"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1000,10:;"})),
            HOLDER,
            ("annotation hami.io/vgpu-devices-allocated",),
        ),
        "a quantity with an exponent": Held(lambda world: world.add(odd_pod(resources={POD_RESOURCE: "1e3"})), HOLDER),
    }
)
def test_holders_that_no_resource_of_a_bound_pod_shows(world: World, row: Held) -> None:
    row.make(world)
    assert_held(world, row)


def test_who_is_not_promised_the_node(world: World) -> None:
    world.add({**machine(phase="Succeeded")})
    world.add({**machine(nodeName="gpu-2"), "metadata": {"name": "vm-2", "namespace": "tenant-a"}})
    ended = {"targetNode": "gpu-1", "failed": True}
    world.add({**machine(nodeName="gpu-2", migrationState=ended), "metadata": {"name": "vm-3", "namespace": "tenant-a"}})
    world.add({**vmi("vm-4", "gpu-1", device=None)})
    place(world, "gpu-2")
    world.add({**waiting(annotations={**HAMI, "hami.io/bind-phase": "failed"}), "metadata": failed_binding()})
    preview(world, Row(nothing), "holders")


def failed_binding() -> Json:
    return {"name": "failed", "namespace": "tenant-a", "annotations": {**HAMI, "hami.io/bind-phase": "failed"}}


DRIVER = "gpu.nvidia.com"
CLAIMED = "tenant-a/ResourceClaim/gpu-claim"


def dra(version: str, *, admin: bool = False, driver: str = DRIVER, node: str = "gpu-1", published: bool = True) -> list[Json]:
    """A claim that is allocated to a device, and the slice that has the device."""
    api = f"resource.k8s.io/{version}"
    device: Json = {"name": "gpu-0"}
    result = {"request": "gpu", "driver": driver, "pool": node, "device": "gpu-0", **({"adminAccess": True} if admin else {})}
    claim = {
        "apiVersion": api,
        "kind": "ResourceClaim",
        "metadata": {"name": "gpu-claim", "namespace": "tenant-a"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": driver}}]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    made = {"driver": driver, "nodeName": node, "pool": pool, "devices": [device if version != "v1beta1" else {**device, "basic": {}}]}
    slices = [{"apiVersion": api, "kind": "ResourceSlice", "metadata": {"name": f"{node}-x"}, "spec": made}]
    return [claim, *(slices if published else [])]


VERSIONS = {"v1": (), "v1beta2": ("resource.k8s.io/v1",), "v1beta1": ("resource.k8s.io/v1", "resource.k8s.io/v1beta2")}


@pytest.mark.needs("resource.k8s.io/v1")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_claim_that_nobody_uses_holds_in_every_version_of_the_api(world: World, version: str) -> None:
    with absent(world, *VERSIONS[version]):
        for made in dra(version):
            world.add(made)
        assert_held(world, Held(nothing, CLAIMED, (f"device {DRIVER}/gpu-1/gpu-0",), "reserved for nobody", pods=0))


@pytest.mark.needs("resource.k8s.io/v1")
def test_a_claim_whose_slices_are_gone_holds(world: World) -> None:
    for made in dra("v1", published=False):
        world.add(made)
    assert_held(world, Held(nothing, CLAIMED, (f"device {DRIVER}/gpu-1/gpu-0",), pods=0))


@pytest.mark.needs("resource.k8s.io/v1")
@pytest.mark.parametrize("what", ["adminAccess", "driver", "node"])
def test_a_claim_that_takes_nothing_away_is_shown_and_not_counted(world: World, what: str) -> None:
    chosen: dict[str, Json] = {"adminAccess": {"admin": True}, "driver": {"driver": "dra.net"}, "node": {"node": "gpu-2"}}
    for made in dra("v1", **chosen[what]):
        world.add(made)
    result = world.run("preview", "-o", "json", ignore_dra_driver="dra.net")
    assert result.code == 0, result
    assert ("not counted: claim tenant-a/gpu-claim" in result.check("holders")["message"]) == (what != "node")


@pytest.mark.needs("resource.k8s.io/v1")
def test_where_there_is_no_dra_nobody_holds_by_it(world: World) -> None:
    with absent(world, "resource.k8s.io"):
        preview(world, Row(nothing), "holders")


@contextlib.contextmanager
def absent(world: World, *names: str) -> Iterator[None]:
    """A server without these API groups or versions."""
    assert isinstance(world.backend, SimBackend)
    before, world.backend.cluster.absent = world.backend.cluster.absent, frozenset(names)
    try:
        yield
    finally:
        world.backend.cluster.absent = before


@held(
    {
        "a container": Held(gpu(), HOLDER, remedy="kubectl delete pod -n tenant-a holder"),
        "a container that has not started": Held(gpu(phase="Pending"), HOLDER),
        "an init container": Held(lambda world: world.add(odd_pod(initContainers=[sidecar("init", ONE)])), HOLDER),
        "a GPU of Intel": Held(gpu("gpu.intel.com/i915"), HOLDER, ("gpu.intel.com/i915",)),
        "a GPU of AMD": Held(gpu("amd.com/gpu"), HOLDER, ("amd.com/gpu",)),
        "a resource that --gpu-resource names": Held(gpu(OWN), HOLDER, (OWN,), options={"gpu_resource": ["example.com/other", OWN]}),
        "a mediated device that a KubeVirt anywhere permits": Held(
            lambda world: (permit_elsewhere(world, OWN), world.add(gpu_pod("holder", "gpu-1", resource=OWN, phase="Running"))),
            HOLDER,
            (OWN,),
        ),
        "an extended resource of a device class": Held(
            gpu("deviceclass.resource.kubernetes.io/gpus"), HOLDER, ("deviceclass.resource.kubernetes.io/gpus",)
        ),
        "a static pod": Held(
            lambda world: world.add(gpu_pod("holder", "gpu-1", phase="Running", annotations={"kubernetes.io/config.mirror": "x"})),
            HOLDER,
            remedy="out of the kubelet's folder",
        ),
        "a pod that is terminating": Held(terminate, HOLDER, remedy="wait for it", terminating=True),
        "a GPU VM, to be stopped": Held(lambda world: world.add_vm(), MACHINE, (VM_RESOURCE,), "virtctl stop vm-1 -n tenant-a"),
        "a VM with a host device of any domain that KubeVirt permits": Held(
            lambda world: (permit(world, OWN), world.add_vm(device=OWN)), MACHINE, (OWN,), "virtctl stop vm-1 -n tenant-a"
        ),
    }
)
def test_holders(kept_world: World, row: Held) -> None:
    row.make(kept_world)
    assert_held(kept_world, row)


@pytest.mark.needs("resource.k8s.io/v1")
def test_a_claim_that_a_pod_names_makes_it_a_holder(kept_world: World) -> None:
    kept_world.add(odd_pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu-claim"}]))
    assert_held(kept_world, Held(nothing, HOLDER, ("claim gpu-claim",)))


@pytest.mark.needs("resource.k8s.io/v1")
def test_a_resource_that_a_device_class_names_makes_a_holder(world: World) -> None:
    spec = {"extendedResourceName": OWN}
    world.add({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpus"}, "spec": spec})
    world.add(gpu_pod("holder", "gpu-1", resource=OWN, phase="Running"))
    assert_held(world, Held(nothing, HOLDER, (OWN,)))


@pytest.mark.world(nodes={"gpu-1": "pod-hami", "gpu-2": "pod-hami"})
def test_who_is_no_holder(world: World) -> None:
    """Pods without a GPU, with none of it, finished, with a resource that nobody called a GPU, or on another node."""
    world.add(pod("plain", "gpu-1", phase="Running"))
    world.add(gpu_pod("zero", "gpu-1", count=0, phase="Running"))
    world.add(gpu_pod("succeeded", "gpu-1", phase="Succeeded"))
    world.add(gpu_pod("failed", "gpu-1", phase="Failed"))
    world.add(gpu_pod("other-resource", "gpu-1", resource=OWN, phase="Running"))
    world.add(gpu_pod("network", "gpu-1", resource="intel.com/sriov", phase="Running"))
    world.add(gpu_pod("elsewhere", "gpu-2", phase="Running"))
    preview(world, Row(nothing), "holders")


# Through the proxy


def is_bound(request: ProxyRequest) -> bool:
    """Whether it asks for the node's pods, not for those that are on none."""
    return request.query.get("fieldSelector") == "spec.nodeName=gpu-1"


def serve(proxy: FaultProxy, *made: Json) -> None:
    """Add pods to every list of pods."""
    more = [
        {**item, "metadata": {**item["metadata"], "uid": f"00000000-0000-4000-8000-{number:012}", "resourceVersion": "1"}}
        for number, item in enumerate(made)
    ]
    proxy.on("list", "^/api/v1/pods$", rewrite=lambda code, body: (code, {**body, "items": [*body["items"], *more]}))


def whole(made: Json) -> Json:
    """The pod with a GPU for all its containers together."""
    return {**made, "spec": {**made["spec"], "resources": ONE}}


def with_status(made: Json, **status: Any) -> Json:
    """The pod with more in its status."""
    return {**made, "status": {**made["status"], **status}}


def still_running(phase: str) -> Json:
    """A pod whose phase says finished and whose container says otherwise."""
    made = gpu_pod("holder", "gpu-1", phase="Running")
    made["status"]["phase"] = phase
    return made


@held(
    {
        "an ephemeral container": Held(lambda _: odd_pod(ephemeralContainers=[sidecar("debug", ONE)]), HOLDER),
        "the overhead of the pod": Held(lambda _: odd_pod(overhead={POD_RESOURCE: "1"}), HOLDER),
        "a sidecar": Held(lambda _: odd_pod(initContainers=[{**sidecar("side", ONE), "restartPolicy": "Always"}]), HOLDER),
        "requests alone": Held(lambda _: odd_pod(initContainers=[sidecar("init", {"requests": {POD_RESOURCE: "1"}})]), HOLDER),
        "limits alone": Held(lambda _: odd_pod(initContainers=[sidecar("init", {"limits": {POD_RESOURCE: "1"}})]), HOLDER),
        "a fraction of a GPU": Held(lambda _: odd_pod(overhead={POD_RESOURCE: "500m"}), HOLDER),
        "a resource beginning with requests": Held(
            lambda _: gpu_pod("holder", "gpu-1", resource="requests.nvidia.com/gpu", phase="Running"), HOLDER, ("requests.nvidia.com/gpu",)
        ),
        "a pod of a StatefulSet": Held(
            lambda _: gpu_pod("holder", "gpu-1", owner=TRAINING, phase="Running"),
            "tenant-a/StatefulSet/training",
            remedy="statefulset/training --replicas=0",
        ),
        "the canary of kube-dc": Held(
            lambda _: gpu_pod("canary-x", "gpu-1", namespace="gpu-operator", phase="Running", owner=CANARY),
            "gpu-operator/Job/hami-device-plugin-canary-29",
            remedy="kubectl patch -n gpu-operator cronjob/hami-device-plugin-canary",
        ),
        "the resources of the pod as a whole": Held(lambda _: whole(odd_pod()), HOLDER),
        "a claim from a template": Held(
            lambda _: odd_pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "gpus"}]), HOLDER, ("claim gpu",)
        ),
        "a claim that was made from a template": Held(
            lambda _: with_status(
                odd_pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "gpus"}]),
                resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "holder-gpu-x"}],
            ),
            HOLDER,
            ("claim holder-gpu-x",),
        ),
        "a claim that the scheduler made for extended resources": Held(
            lambda _: with_status(odd_pod(), extendedResourceClaimStatus={"resourceClaimName": "holder-extended"}),
            HOLDER,
            ("claim holder-extended",),
        ),
        "a succeeded pod whose container runs": Held(lambda _: still_running("Succeeded"), HOLDER),
        "a failed pod whose container runs": Held(lambda _: still_running("Failed"), HOLDER),
        "a pod of which nothing is known": Held(lambda _: still_running("Unknown"), HOLDER),
    }
)
def test_holders_of_other_shapes(kept_world: World, kept_proxy: FaultProxy, row: Held) -> None:
    serve(kept_proxy, row.make(kept_world))
    assert_held(kept_world, row, kubeconfig=kept_world.through(kept_proxy))


def test_a_zero_in_any_writing_is_no_holder(kept_world: World, kept_proxy: FaultProxy) -> None:
    zeros = [sidecar(f"init-{number}", {"limits": {POD_RESOURCE: zero}}) for number, zero in enumerate(("0", "0Gi", "0.0", "0m", "0e3"))]
    serve(kept_proxy, odd_pod(overhead={POD_RESOURCE: "0"}, initContainers=zeros))
    preview(kept_world, Row(nothing, options={"kubeconfig": kept_world.through(kept_proxy)}), "holders")


def test_a_holder_on_a_later_page_is_found(kept_world: World, kept_proxy: FaultProxy) -> None:
    """A continue token that has expired starts over."""
    kept_world.add(gpu_pod("holder", "gpu-1", phase="Running"))
    everything = kept_world.kube.get("/api/v1/pods", fieldSelector="spec.nodeName=gpu-1")
    *first, last = everything["items"]
    assert first and last["metadata"]["name"] == "holder"
    page, rest = ({**everything, "items": items} for items in (first, [last]))
    page["metadata"] = {**page["metadata"], "continue": "more"}
    expired = kept_proxy.on(
        "list", "/pods$", when=lambda request: is_bound(request) and "continue" in request.query, times=1, reply=(410, None)
    )
    second = kept_proxy.on(
        "list", "/pods$", when=lambda request: is_bound(request) and request.query.get("continue") == "more", reply=(200, rest)
    )
    kept_proxy.on("list", "/pods$", when=is_bound, reply=(200, page))
    result = kept_world.run("preview", "-o", "json", kubeconfig=kept_world.through(kept_proxy))
    assert_blocked(result, "holders", HOLDER)
    assert len(expired.fired) == len(second.fired) == 1


def test_holders_are_shown_by_controller_and_in_order(kept_world: World, kept_proxy: FaultProxy) -> None:
    training = [gpu_pod(f"training-{number}", "gpu-1", owner=TRAINING, phase="Running") for number in (2, 1)]
    last = gpu_pod("zz", "gpu-1", namespace="tenant-b", phase="Running")
    serve(kept_proxy, last, *training, gpu_pod("aa", "gpu-1", resource="nvidia.com/gpucores", phase="Running"))
    result = kept_world.run("preview", "-o", "json", kubeconfig=kept_world.through(kept_proxy))
    check = assert_blocked(result, "holders", "3 ")
    found = [(holder["namespace"], holder["kind"], holder["name"], holder["pods"]) for holder in result.report["holders"]]
    assert found == [
        ("tenant-a", "Pod", "aa", ["aa"]),
        ("tenant-a", "StatefulSet", "training", ["training-1", "training-2"]),
        ("tenant-b", "Pod", "zz", ["zz"]),
    ]
    places = [check["message"].index(name) for name in ("Pod/aa", "StatefulSet/training", "Pod/zz")]
    assert places == sorted(places)
