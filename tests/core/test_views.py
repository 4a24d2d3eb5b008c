"""Objects of the API server as values: what is used, what is tolerated, and what makes an object malformed."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_gpu_transition.failures import Malformed
from kubectl_gpu_transition.model import Controller, FieldEntry, PodClaim
from kubectl_gpu_transition.views import is_positive, node_view, pod_view
from tests.core.builders import changed

NODE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {
        "name": "gpu-1",
        "uid": "u",
        "resourceVersion": "7",
        "labels": {"a": "b", "empty": None},
        "annotations": {"c": "d"},
        "managedFields": [
            {
                "manager": "kubectl-gpu-transition",
                "operation": "Update",
                "time": "2026-05-01T00:00:00Z",
                "fieldsV1": {"f:spec": {"f:unschedulable": {}}},
            },
            {"manager": "kubelet", "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}},
            {"manager": "bare"},
        ],
    },
    "spec": {"unschedulable": True, "taints": [{"key": "t", "effect": "NoSchedule"}]},
    "status": {
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "DrainScheduled", "status": "False"}],
        "allocatable": {"nvidia.com/gpu": "4"},
    },
}
POD: dict[str, Any] = {
    "metadata": {
        "namespace": "team-a",
        "name": "train-0",
        "uid": "p",
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "gpu-1"},
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "controller": True},
        ],
    },
    "spec": {"nodeName": "gpu-1", "containers": [{"name": "main"}]},
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "t"}}}],
    },
}


def test_a_node_is_read() -> None:
    view = node_view(NODE)
    assert (view.name, view.uid, view.version, view.unschedulable, view.ready, view.deleting) == ("gpu-1", "u", "7", True, "True", False)
    assert (dict(view.labels), dict(view.annotations), view.has_annotations) == ({"a": "b", "empty": ""}, {"c": "d"}, True)
    assert (view.taints, dict(view.conditions)) == (("t",), {"Ready": "True", "DrainScheduled": "False"})
    assert dict(view.allocatable) == {"nvidia.com/gpu": "4"}
    assert view.managers == (
        FieldEntry("kubectl-gpu-transition", "Update", "2026-05-01T00:00:00Z", True, ""),
        FieldEntry("kubelet", "Update", "", False, "status"),
        FieldEntry("bare", "", "", False, ""),
    )


def test_a_node_of_which_only_the_name_is_there_is_schedulable_and_not_ready() -> None:
    view = node_view({"metadata": {"name": "gpu-1", "uid": "u", "resourceVersion": "7"}})
    assert (view.unschedulable, view.ready, view.has_annotations, view.managers) == (False, "absent", False, None)
    assert (view.labels, view.annotations, view.taints) == ({}, {}, ())


@pytest.mark.parametrize(
    ("path", "value", "attribute", "expected"),
    [
        ("spec.unschedulable", False, "unschedulable", False),
        ("spec.unschedulable", None, "unschedulable", False),
        ("metadata.annotations", {}, "has_annotations", True),
        ("metadata.annotations", None, "has_annotations", False),
        ("metadata.deletionTimestamp", "t", "deleting", True),
        ("metadata.managedFields", [], "managers", None),
        ("metadata.managedFields", None, "managers", None),
        ("spec.taints", None, "taints", ()),
        ("status.conditions", [{"type": "Ready", "status": "Unknown"}], "ready", "Unknown"),
    ],
)
def test_a_field_of_a_node(path: str, value: Any, attribute: str, expected: Any) -> None:
    assert getattr(node_view(changed(NODE, path, value)), attribute) == expected


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata", None),
        ("metadata", []),
        ("metadata.name", ...),
        ("metadata.uid", ""),
        ("metadata.uid", 7),
        ("metadata.resourceVersion", ...),
        ("metadata.labels", []),
        ("metadata.annotations", "x"),
        ("metadata.managedFields", {}),
        ("metadata.managedFields", ["x"]),
        ("spec", "x"),
        ("spec.unschedulable", "true"),
        ("spec.taints", {}),
        ("spec.taints", ["x"]),
        ("status", []),
        ("status.conditions", {}),
        ("status.conditions", [None, 1]),
    ],
)
def test_a_node_is_malformed(path: str, value: Any) -> None:
    with pytest.raises(Malformed) as raised:
        node_view(changed(NODE, path, value))
    assert raised.value.id == "malformed-object"


@pytest.mark.parametrize("view", [node_view, pod_view], ids=lambda view: view.__name__)
@pytest.mark.parametrize("obj", ["x", 1, ["a"]])
def test_what_is_no_object_is_malformed(view: Any, obj: object) -> None:
    with pytest.raises(Malformed):
        view(obj)


def test_a_pod_is_read() -> None:
    view = pod_view(POD)
    assert (view.namespace, view.name, view.uid, view.node, view.phase) == ("team-a", "train-0", "p", "gpu-1", "Running")
    assert (view.running, view.ready, view.finished, view.waiting) == (True, True, False, None)
    assert (view.deleting_since, view.grace, view.labels, view.claims, view.resources) == (None, None, {}, (), frozenset())
    assert view.controller == Controller("apps/v1", "StatefulSet", "train")


def test_an_unbound_pod_is_read() -> None:
    view = pod_view({"metadata": {"namespace": "a", "name": "b", "uid": "c"}})
    assert (view.node, view.phase, view.running, view.ready, view.controller) == ("", "Unknown", False, False, None)


def test_when_a_pod_leaves_is_read() -> None:
    view = pod_view(changed(changed(POD, "metadata.deletionTimestamp", "t"), "metadata.deletionGracePeriodSeconds", 30))
    assert (view.deleting_since, view.grace) == ("t", 30)
    assert pod_view(changed(POD, "metadata.deletionGracePeriodSeconds", "30")).grace is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata", {}),
        ("metadata.namespace", ...),
        ("metadata.uid", ...),
        ("metadata.ownerReferences", {}),
        ("spec.containers", {}),
        ("spec.containers", ["x"]),
        ("spec.containers", [{"resources": "x"}]),
        ("spec.containers", [{"resources": {"limits": []}}]),
        ("spec.overhead", []),
        ("spec.resourceClaims", {}),
        ("spec.resourceClaims", ["x"]),
        ("status.conditions", ["x"]),
        ("status.containerStatuses", {}),
        ("status.containerStatuses", [{"state": []}]),
        ("status.extendedResourceClaimStatus", ["x"]),
    ],
)
def test_a_pod_is_malformed(path: str, value: Any) -> None:
    with pytest.raises(Malformed):
        pod_view(changed(POD, path, value))


ONE = {"limits": {"nvidia.com/gpu": "1"}}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param("spec.containers", [{"resources": ONE}], id="the limits of a container"),
        pytest.param("spec.containers", [{}, {"resources": {"requests": {"nvidia.com/gpu": 1}}}], id="the requests of another"),
        pytest.param("spec.initContainers", [{"resources": ONE}], id="an init container"),
        pytest.param("spec.initContainers", [{"restartPolicy": "Always", "resources": ONE}], id="a restartable init container"),
        pytest.param("spec.ephemeralContainers", [{"resources": ONE}], id="an ephemeral container"),
        pytest.param("spec.overhead", {"nvidia.com/gpu": "1"}, id="the overhead"),
        pytest.param("spec.resources", ONE, id="the pod's own resources"),
    ],
)
def test_the_resources_of_a_pod_come_from(path: str, value: Any) -> None:
    assert pod_view(changed(POD, path, value)).resources == {"nvidia.com/gpu"}


def test_a_quantity_of_zero_is_no_resource() -> None:
    limits = {"nvidia.com/gpu": "0", "cpu": "500m", "memory": 0}
    assert pod_view(changed(POD, "spec.containers", [{"resources": {"limits": limits}}])).resources == {"cpu"}


@pytest.mark.parametrize("quantity", ["1", 1, "0.5", "500m", "1e3", "1E-9", "+1", ".5", "5.", "1Ki", "2Gi", "1n", "100k", " 1 "])
def test_a_quantity_is_above_zero(quantity: object) -> None:
    assert is_positive(quantity)


@pytest.mark.parametrize("quantity", ["0", 0, "0.0", "0m", "0e5", "-1", "-0", "0Ki", ".0", "0."])
def test_a_quantity_is_not_above_zero(quantity: object) -> None:
    assert not is_positive(quantity)


@pytest.mark.parametrize("quantity", ["", "x", None, "1 Gi", "0x0", "zero", {}, "0Qi"])
def test_a_quantity_that_can_not_be_read_counts(quantity: object) -> None:
    assert is_positive(quantity)


def test_the_claims_of_a_pod_are_those_it_names_and_the_one_the_scheduler_made() -> None:
    pod = changed(POD, "spec.resourceClaims", [{"name": "gpu", "resourceClaimName": "c"}, {"name": "net"}])
    pod = changed(pod, "status.extendedResourceClaimStatus", {"resourceClaimName": "made"})
    assert pod_view(pod).claims == (PodClaim("gpu", "c"), PodClaim("net", None), PodClaim("made", "made"))


@pytest.mark.parametrize(
    ("annotations", "allocations", "node"),
    [
        ({}, (), ""),
        ({"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1,1:;"}, ("hami.io/vgpu-devices-allocated",), ""),
        (
            {"hami.io/vgpu-devices-to-allocate": "", "hami.io/vgpu-node": "gpu-2"},
            ("hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-node"),
            "gpu-2",
        ),
        ({"hami.io/mlu-devices-allocated": "x"}, ("hami.io/mlu-devices-allocated",), ""),
        ({"hami.io/bind-phase": "success", "hami.io/webhook": "ignore", "other/x-devices-allocated": "x"}, (), ""),
    ],
    ids=str,
)
def test_hamis_allocations_of_a_pod(annotations: dict[str, str], allocations: tuple[str, ...], node: str) -> None:
    view = pod_view(changed(POD, "metadata.annotations", annotations))
    assert (view.allocations, view.allocated_node) == (allocations, node)


@pytest.mark.parametrize(
    ("spec", "reaches"),
    [
        ({"runtimeClassName": "nvidia"}, ("runtime class nvidia",)),
        ({"runtimeClassName": "nvidia-cdi"}, ("runtime class nvidia-cdi",)),
        ({"runtimeClassName": "kata"}, ()),
        ({"volumes": [{"name": "d", "hostPath": {"path": "/dev/nvidiactl"}}]}, ("host path /dev/nvidiactl",)),
        ({"volumes": [{"name": "d", "hostPath": {"path": "/dev/vfio/7"}}]}, ("host path /dev/vfio/7",)),
        ({"volumes": [{"name": "d", "hostPath": {"path": "/var/dev/vfio"}}, {"name": "e", "emptyDir": {}}]}, ()),
    ],
    ids=str,
)
def test_how_a_pod_reaches_gpus_without_asking(spec: dict[str, Any], reaches: tuple[str, ...]) -> None:
    assert pod_view({**POD, "spec": {**POD["spec"], **spec}}).reaches == reaches


def statuses(**kinds: Any) -> dict[str, Any]:
    return {**POD, "status": {"phase": "Pending", **kinds}}


WAITING = [
    pytest.param({"containerStatuses": [{"name": "c", "state": {"running": {}}}]}, None, id="all run"),
    pytest.param(
        {"containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]},
        "container c waiting: ImagePullBackOff: no such image",
        id="a container waits",
    ),
    pytest.param({"containerStatuses": [{"name": "c", "state": {"waiting": {"x": 1}}}]}, "container c waiting: no reason given", id="why?"),
    pytest.param(
        {
            "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "PodInitializing"}}}],
            "initContainerStatuses": [{"name": "i", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
        },
        "init container i waiting: CrashLoopBackOff",
        id="init containers come first",
    ),
    pytest.param(
        {"initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]},
        "init container i ended with exit code 1 (Error)",
        id="one has failed",
    ),
    pytest.param(
        {"containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 137}}}]},
        "container c ended with exit code 137 (no reason given)",
        id="one was killed",
    ),
    pytest.param({"initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 0}}}]}, None, id="one is through"),
    pytest.param({"initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}, "init container i is running", id="one runs"),
    pytest.param({"initContainerStatuses": [{"name": "i", "started": True, "state": {"running": {}}}]}, None, id="a sidecar has started"),
]


@pytest.mark.parametrize(("kinds", "words"), WAITING)
def test_why_a_pod_is_not_up(kinds: dict[str, Any], words: str | None) -> None:
    assert pod_view(statuses(**kinds)).waiting == words


RUNNING: dict[str, Any] = {"state": {"running": {}}}
DONE: dict[str, Any] = {"state": {"terminated": {"exitCode": 0}}}


@pytest.mark.parametrize(
    ("phase", "kinds", "finished"),
    [
        ("Running", {}, False),
        ("Pending", {}, False),
        ("Unknown", {}, False),
        ("Succeeded", {}, True),
        ("Failed", {"containerStatuses": [DONE]}, True),
        ("Failed", {"containerStatuses": [DONE, RUNNING]}, False),
        ("Failed", {"initContainerStatuses": [RUNNING]}, False),
        ("Succeeded", {"ephemeralContainerStatuses": [RUNNING]}, False),
    ],
)
def test_a_pod_is_finished_when_its_phase_says_so_and_no_container_runs(phase: str, kinds: dict[str, Any], finished: bool) -> None:
    pod = statuses(**kinds)
    pod["status"]["phase"] = phase
    assert pod_view(pod).finished == finished
