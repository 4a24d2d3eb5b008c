"""The simulated API server answers as a real one does, in every point that the program relies on.

The same tests run on both servers. Where Kubernetes' own versions differ (wording, the times and subresources of managedFields),
only what they have in common is asked for.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.harness.backend import Backend, RealBackend, SimBackend
from tests.harness.kube import ApiError, Json, Kube

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
DAEMONSETS = "/apis/apps/v1/namespaces/default/daemonsets"
RULES = "/apis/nfd.k8s-sigs.io/v1alpha1/nodefeaturerules"
OURS = "kube-dc.com/gpu-transition"
POINTER = "/metadata/annotations/kube-dc.com~1gpu-transition"
CORDONED_TAINT = "node.kubernetes.io/unschedulable"
READ_NODES = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}

T = TypeVar("T")


@pytest.fixture
def api(backend: Backend) -> Backend:
    """A server with nothing on it."""
    backend.reset()
    return backend


@pytest.fixture
def node(api: Backend) -> Json:
    """A node as the controllers leave it: Ready, without taints, with the annotation that they give it."""
    return make_node(api.kube, "a")


def make_node(kube: Kube, name: str, **labels: str) -> Json:
    status = {
        "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
    }
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}
    kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}, fieldManager="kubelet")
    return eventually(lambda: settled(kube.get(f"{NODES}/{name}")))


def settled(node: Json) -> Json | None:
    return node if node["metadata"].get("annotations") and not node["spec"].get("taints") else None


def make_pod(kube: Kube, name: str, node: str | None = None, **spec: Any) -> Json:
    body: Json = {"containers": [{"name": "c", "image": "image", "resources": {"limits": {"nvidia.com/gpu": "1"}}}], **spec}
    if node:
        body["nodeName"] = node
    return kube.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"pod": name}}, "spec": body})


def rule(name: str, **spec: Any) -> Json:
    return {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeatureRule", "metadata": {"name": name}, "spec": spec}


def eventually(ask: Callable[[], T | None], seconds: float = 20) -> T:
    """What `ask` gives once it gives something true."""
    end = time.monotonic() + seconds
    while not (found := ask()):
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)
    return found


def version_of(obj: Json) -> str:
    return str(obj["metadata"]["resourceVersion"])


def names(items: list[Json]) -> list[str]:
    return [item["metadata"]["name"] for item in items]


def taints(node: Json) -> dict[str, str]:
    return {taint["key"]: taint["effect"] for taint in node["spec"].get("taints", [])}


def cordoners(node: Json) -> list[str]:
    """The managers whose entry has spec.unschedulable."""
    entries = node["metadata"].get("managedFields", [])
    return sorted(entry["manager"] for entry in entries if "f:unschedulable" in entry["fieldsV1"].get("f:spec", {}))


def managers(obj: Json) -> set[str]:
    return {entry["manager"] for entry in obj["metadata"].get("managedFields", [])}


def add(path: str, value: Any) -> Json:
    return {"op": "add", "path": path, "value": value}


def must_be(path: str, value: Any) -> Json:
    return {"op": "test", "path": path, "value": value}


def at_version(version: str) -> Json:
    return {"op": "replace", "path": "/metadata/resourceVersion", "value": version}


CORDON = add("/spec/unschedulable", True)


# Guards of a JSON patch: the operations for a node, and the answer's code


def stale(node: Json) -> str:
    return str(int(version_of(node)) - 1)


Operations = Callable[[Json], list[Json]]
GUARDS: dict[str, tuple[Operations, int]] = {
    "everything holds": (lambda n: [must_be("/metadata/uid", n["metadata"]["uid"]), at_version(version_of(n)), CORDON], 200),
    "another uid": (lambda n: [must_be("/metadata/uid", "other"), CORDON], 422),
    "another value of a label": (lambda n: [must_be("/metadata/labels/kubernetes.io~1hostname", "b"), CORDON], 422),
    "an absent label": (lambda n: [must_be("/metadata/labels/mode", "pod-hami"), CORDON], 422),
    "an absent annotation": (lambda n: [must_be(POINTER, "{}"), CORDON], 422),
    "a cordon that is not there": (lambda n: [must_be("/spec/unschedulable", True)], 422),
    "false for a field that is left out": (lambda n: [must_be("/spec/unschedulable", False)], 422),
    "a stale version": (lambda n: [at_version(stale(n)), CORDON], 409),
    "a version of the future": (lambda n: [at_version("999999999"), CORDON], 409),
    "a stale version and a failed test": (lambda n: [at_version(stale(n)), must_be("/metadata/uid", "other"), CORDON], 422),
    "a failed test and a stale version": (lambda n: [must_be("/metadata/uid", "other"), at_version(stale(n)), CORDON], 422),
    "a version that is no number": (lambda n: [at_version("latest"), CORDON], 500),
    "a version that is no text": (lambda n: [{**at_version(""), "value": 5}, CORDON], 422),
    "version 0 guards nothing": (lambda n: [at_version("0"), CORDON], 200),
    "an empty version guards nothing": (lambda n: [at_version(""), CORDON], 200),
    "a test of the stale version": (lambda n: [must_be("/metadata/resourceVersion", stale(n)), CORDON], 422),
    "null for an absent member": (lambda n: [must_be("/metadata/labels/mode", None), CORDON], 200),
    "null for a member of an absent map": (lambda n: [must_be("/spec/configSource/configMap", None), CORDON], 422),
    "null for a member that is there": (lambda n: [must_be("/metadata/uid", None), CORDON], 422),
    "replace of an absent member": (lambda n: [{"op": "replace", "path": "/spec/unschedulable", "value": True}], 200),
    "remove of an absent member": (lambda n: [{"op": "remove", "path": "/spec/unschedulable"}], 422),
    "replace in an absent map": (lambda n: [CORDON, {"op": "replace", "path": "/spec/configSource/configMap", "value": {}}], 422),
    "add in an absent map": (lambda n: [CORDON, add("/metadata/finalizers/-", "example.com/x")], 422),
    "a later operation fails": (lambda n: [CORDON, add(POINTER, "{}"), must_be(POINTER, "{ }")], 422),
    "an operation that there is none of": (lambda n: [CORDON, {"op": "merge", "path": "/spec"}], 422),
    "another uid set": (lambda n: [CORDON, {"op": "replace", "path": "/metadata/uid", "value": "other"}], 422),
    "a value of the wrong type": (lambda n: [add("/spec/unschedulable", "true")], 422),
    "an annotation that is no text": (lambda n: [CORDON, add(POINTER, 5)], 422),
    "a label that is not allowed": (lambda n: [CORDON, add("/metadata/labels/mode", "pod hami")], 422),
    "another name": (lambda n: [CORDON, {"op": "replace", "path": "/metadata/name", "value": "b"}], 400),
}


@pytest.mark.parametrize("case", GUARDS)
@pytest.mark.parametrize("dry_run", [False, True], ids=["real", "dry"])
def test_a_json_patch_is_applied_whole_or_refused_whole(api: Backend, node: Json, case: str, dry_run: bool) -> None:
    operations, code = GUARDS[case]
    if code == 200:
        answer = api.kube.patch(f"{NODES}/a", operations(node), "json", dry_run=dry_run)
        assert answer["spec"]["unschedulable"] is True
    else:
        with pytest.raises(ApiError) as refused:
            api.kube.patch(f"{NODES}/a", operations(node), "json", dry_run=dry_run)
        assert refused.value.code == code
        assert refused.value.reason == {422: "Invalid", 409: "Conflict", 500: "", 400: "BadRequest"}[code]
    after = api.kube.get(f"{NODES}/a")
    assert after["spec"].get("unschedulable", False) is (code == 200 and not dry_run)
    assert OURS not in after["metadata"]["annotations"]
    if code != 200 or dry_run:
        assert version_of(after) == version_of(node)


def test_a_failed_test_looks_like_a_bad_operation_and_a_stale_version_does_not(api: Backend, node: Json) -> None:
    answers = []
    for operations in ([must_be("/metadata/uid", "other")], [{"op": "merge", "path": "/spec"}], [at_version(stale(node))]):
        with pytest.raises(ApiError) as refused:
            api.kube.patch(f"{NODES}/a", operations, "json")
        answers.append(refused.value.body)
    assert answers[0] == answers[1]
    assert answers[2]["details"] == {"name": "a", "kind": "nodes"}
    assert answers[2]["message"].startswith('Operation cannot be fulfilled on nodes "a": the object has been modified')


def test_an_absent_map_of_annotations_takes_no_member_but_can_be_added(api: Backend) -> None:
    for path in (NODES, RULES):  # the controllers annotate nodes, so that only a moment is left there
        kind = {"kind": "Node"} if path == NODES else rule("x")
        api.kube.create(path, {**kind, "metadata": {"name": "bare", "labels": {"a": "b"}}})
    with pytest.raises(ApiError) as refused:
        api.kube.patch(f"{RULES}/bare", [add(POINTER, "1")], "json")
    assert refused.value.code == 422
    answer = api.kube.patch(f"{RULES}/bare", [add("/metadata/annotations", {}), add(POINTER, "1")], "json")
    assert answer["metadata"]["annotations"] == {OURS: "1"}
    emptied = api.kube.patch(f"{RULES}/bare", [{"op": "remove", "path": POINTER}], "json")
    assert not emptied["metadata"].get("annotations")


def test_a_patch_that_changes_nothing_leaves_the_version(api: Backend, node: Json) -> None:
    cordoned = eventually(lambda: cordon(api.kube))
    for body, kind in (
        ([CORDON], "json"),
        ([], "json"),
        ({"spec": {"unschedulable": True}}, "merge"),
        ({"spec": {"unschedulable": True}}, "strategic"),
    ):
        answer = api.kube.patch(f"{NODES}/a", body, kind, manager="somebody-else")
        assert version_of(answer) == version_of(cordoned)
        assert answer["metadata"]["managedFields"] == cordoned["metadata"]["managedFields"]
    assert version_of(api.kube.replace(f"{NODES}/a", cordoned)) == version_of(cordoned)


def cordon(kube: Kube, manager: str = "kubectl-gpu-transition") -> Json | None:
    """Cordon the node (again, if need be), and wait for the taint."""
    node = kube.patch(f"{NODES}/a", [CORDON], "json", manager=manager)
    return node if CORDONED_TAINT in taints(node) else None


def test_an_unknown_member_of_a_node_is_dropped_without_a_word(api: Backend, node: Json) -> None:
    answer = api.kube.patch(f"{NODES}/a", [add("/spec/unscheduleable", True)], "json")
    assert "unscheduleable" not in answer["spec"]
    assert version_of(answer) == version_of(node)


def test_pointers_are_unescaped(api: Backend, node: Json) -> None:
    answer = api.kube.patch(f"{NODES}/a", [add("/metadata/annotations/a.b~1c", "1"), must_be("/metadata/annotations/a.b~1c", "1")], "json")
    assert answer["metadata"]["annotations"]["a.b/c"] == "1"


def test_false_and_null_uncordon_and_leave_no_field(api: Backend, node: Json) -> None:
    for body, kind in (
        ({"spec": {"unschedulable": False}}, "merge"),
        ({"spec": {"unschedulable": None}}, "merge"),
        ({"spec": {"unschedulable": None}}, "strategic"),
        ([{"op": "remove", "path": "/spec/unschedulable"}], "json"),
        ([{"op": "replace", "path": "/spec/unschedulable", "value": False}], "json"),
    ):
        api.kube.patch(f"{NODES}/a", [CORDON], "json")
        assert "unschedulable" not in api.kube.patch(f"{NODES}/a", body, kind)["spec"]


def test_patches_that_are_not_what_they_say(api: Backend, node: Json) -> None:
    codes = {}
    for label, body, kind in (("broken", b"{", "json"), ("no list", {"op": "test"}, "json"), ("another kind", {"kind": "Pod"}, "merge")):
        with pytest.raises(ApiError) as refused:
            api.kube.patch(f"{NODES}/a", body, kind)
        codes[label] = refused.value.code
    assert codes == {"broken": 400, "no list": 400, "another kind": 422}
    status, content_type, _ = api.client().raw("PATCH", f"{NODES}/a", b"[]", {"Content-Type": "text/plain"})
    assert (status, content_type) == (415, "application/json")


# PUT and DELETE


def test_a_put_is_guarded_by_the_version_it_names_and_by_the_uid(api: Backend, node: Json) -> None:
    api.kube.patch(f"{NODES}/a", {"metadata": {"annotations": {OURS: "1"}}, "spec": {"unschedulable": True}})
    with pytest.raises(ApiError) as refused:
        api.kube.replace(f"{NODES}/a", node)
    assert (refused.value.code, refused.value.reason) == (409, "Conflict")
    unversioned = {**node, "metadata": {**node["metadata"], "resourceVersion": None, "uid": "other"}}
    with pytest.raises(ApiError) as refused:
        api.kube.replace(f"{NODES}/a", unversioned)
    assert (refused.value.code, refused.value.reason) == (409, "Conflict")
    with pytest.raises(ApiError) as refused:
        api.kube.replace(f"{NODES}/b", node)
    assert (refused.value.code, refused.value.reason) == (400, "BadRequest")


def test_a_put_of_an_old_copy_without_a_version_wipes_the_cordon(api: Backend, node: Json) -> None:
    api.kube.patch(
        f"{NODES}/a", {"metadata": {"annotations": {OURS: "1"}}, "spec": {"unschedulable": True}}, manager="kubectl-gpu-transition"
    )
    old = {**node, "metadata": {name: value for name, value in node["metadata"].items() if name != "resourceVersion"}}
    wiped = api.kube.replace(f"{NODES}/a", old)
    assert "unschedulable" not in wiped["spec"]
    assert OURS not in wiped["metadata"]["annotations"]
    assert "kubectl-gpu-transition" not in managers(wiped)


def test_a_delete_is_guarded_by_its_preconditions(api: Backend, node: Json) -> None:
    for wanted in ({"uid": "other"}, {"resourceVersion": "1"}):
        with pytest.raises(ApiError) as refused:
            api.kube._json("DELETE", f"{NODES}/a", {}, {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": wanted})
        assert (refused.value.code, refused.value.reason) == (409, "Conflict")
    assert api.kube.delete(f"{NODES}/a", dryRun="All")["status"] == "Success"
    answer = api.kube.delete(f"{NODES}/a")
    assert (answer["kind"], answer["status"], answer["details"]["uid"]) == ("Status", "Success", node["metadata"]["uid"])
    assert make_node(api.kube, "a")["metadata"]["uid"] != node["metadata"]["uid"]


def test_a_finalizer_keeps_an_object_that_is_being_deleted(api: Backend, node: Json) -> None:
    api.kube.patch(f"{NODES}/a", {"metadata": {"finalizers": ["example.com/x"]}})
    assert api.kube.delete(f"{NODES}/a")["metadata"]["deletionTimestamp"]
    assert api.kube.get(f"{NODES}/a")["metadata"]["deletionGracePeriodSeconds"] == 0
    api.kube.patch(f"{NODES}/a", {"metadata": {"finalizers": None}})
    with pytest.raises(ApiError) as refused:
        api.kube.get(f"{NODES}/a")
    assert refused.value.code == 404


# Who cordoned: managedFields


def test_the_entry_of_a_cordon_names_its_manager_and_goes_with_the_uncordon(api: Backend, node: Json) -> None:
    ours = api.kube.patch(f"{NODES}/a", [CORDON, add(POINTER, "1")], "json", manager="kubectl-gpu-transition")
    assert cordoners(ours) == ["kubectl-gpu-transition"]
    entry = next(entry for entry in ours["metadata"]["managedFields"] if entry["manager"] == "kubectl-gpu-transition")
    assert (entry["operation"], entry["apiVersion"], entry["fieldsType"]) == ("Update", "v1", "FieldsV1")
    assert entry["fieldsV1"] == {"f:metadata": {"f:annotations": {f"f:{OURS}": {}}}, "f:spec": {"f:unschedulable": {}}}
    assert abs(datetime.fromisoformat(entry["time"].replace("Z", "+00:00")).timestamp() - time.time()) < 10

    tainted = eventually(lambda: cordon(api.kube))
    taint_owner = [entry for entry in tainted["metadata"]["managedFields"] if "f:taints" in entry["fieldsV1"].get("f:spec", {})]
    assert [entry["manager"] for entry in taint_owner] == ["kube-controller-manager"]
    assert cordoners(tainted) == ["kubectl-gpu-transition"]

    operations = [must_be(POINTER, "1"), {"op": "remove", "path": "/spec/unschedulable"}, {"op": "remove", "path": POINTER}]
    uncordoned = api.kube.patch(f"{NODES}/a", operations, "json", manager="kubectl-gpu-transition")
    assert cordoners(uncordoned) == []
    assert "kubectl-gpu-transition" not in managers(uncordoned)


def test_a_second_cordon_does_not_move_the_field(api: Backend, node: Json) -> None:
    api.kube.patch(f"{NODES}/a", [CORDON], "json", manager="kured")
    both = api.kube.patch(f"{NODES}/a", [CORDON, add(POINTER, "1")], "json", manager="kubectl-gpu-transition")
    assert cordoners(both) == ["kured"]
    assert "kubectl-gpu-transition" in managers(both)


def test_a_cordon_after_an_uncordon_is_the_last_ones(api: Backend, node: Json) -> None:
    api.kube.patch(f"{NODES}/a", [CORDON, add(POINTER, "1")], "json", manager="kubectl-gpu-transition")
    lifted = api.kube.patch(f"{NODES}/a", {"spec": {"unschedulable": None}}, "strategic", manager="driver-manager")
    assert cordoners(lifted) == []
    assert "driver-manager" not in managers(lifted)  # who uncordoned leaves no trace
    again = api.kube.patch(f"{NODES}/a", {"spec": {"unschedulable": True}}, "strategic", manager="kured")
    assert cordoners(again) == ["kured"]


def test_a_value_written_by_another_becomes_its_own(api: Backend, node: Json) -> None:
    api.kube.patch(f"{NODES}/a", [CORDON, add(POINTER, "1")], "json", manager="kubectl-gpu-transition")
    taken = api.kube.patch(f"{NODES}/a", {"metadata": {"annotations": {OURS: "2"}}}, manager="somebody-else")
    owners = {entry["manager"]: entry["fieldsV1"] for entry in taken["metadata"]["managedFields"]}
    assert owners["somebody-else"] == {"f:metadata": {"f:annotations": {f"f:{OURS}": {}}}}
    assert owners["kubectl-gpu-transition"] == {"f:spec": {"f:unschedulable": {}}}


def test_the_manager_is_the_user_agents_first_word_by_default(api: Backend, node: Json) -> None:
    kube = api.client(user_agent="kubectl/v1.30.0 (linux/amd64)")
    assert cordoners(kube.patch(f"{NODES}/a", {"spec": {"unschedulable": True}}, "strategic", manager=None)) == ["kubectl"]


def test_a_dry_run_shows_the_entry_and_does_not_keep_it(api: Backend, node: Json) -> None:
    shown = api.kube.patch(f"{NODES}/a", [CORDON], "json", manager="kubectl-gpu-transition", dry_run=True)
    assert cordoners(shown) == ["kubectl-gpu-transition"]
    assert managers(api.kube.get(f"{NODES}/a")) == managers(node)


def test_an_apply_of_the_same_value_shares_the_field(api: Backend, node: Json) -> None:
    applied = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "spec": {"unschedulable": True}}
    api.kube.patch(f"{NODES}/a", [CORDON, add(POINTER, "1")], "json", manager="kubectl-gpu-transition")
    shared = api.kube.patch(f"{NODES}/a", applied, "apply", manager="gitops")
    assert cordoners(shared) == ["gitops", "kubectl-gpu-transition"]
    assert {entry["operation"] for entry in shared["metadata"]["managedFields"] if entry["manager"] == "gitops"} == {"Apply"}
    tainted = eventually(lambda: cordon(api.kube))
    assert version_of(api.kube.patch(f"{NODES}/a", applied, "apply", manager="gitops")) == version_of(tainted)
    with pytest.raises(ApiError) as refused:
        api.kube.patch(f"{NODES}/a", {**applied, "spec": {"unschedulable": False}}, "apply", manager="other")
    assert (refused.value.code, refused.value.reason) == (409, "Conflict")
    assert {cause["reason"] for cause in refused.value.body["details"]["causes"]} == {"FieldManagerConflict"}
    forced = api.kube.patch(
        f"{NODES}/a", {**applied, "metadata": {"name": "a", "annotations": {OURS: "2"}}}, "apply", manager="gitops", force=True
    )
    assert forced["metadata"]["annotations"][OURS] == "2"
    assert api.kube.patch(f"{NODES}/a", [{"op": "remove", "path": "/spec/unschedulable"}], "json")["spec"].get("unschedulable") is None
    assert cordoners(api.kube.get(f"{NODES}/a")) == []


def test_an_object_without_managed_fields_gets_none(api: Backend, node: Json) -> None:
    reset = api.kube.patch(f"{NODES}/a", {"metadata": {"managedFields": [{}]}})
    assert "managedFields" not in reset["metadata"]
    assert "managedFields" not in api.kube.patch(f"{NODES}/a", [CORDON], "json")["metadata"]
    bare = api.kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bare"}})
    assert "managedFields" not in bare["metadata"]
    assert "managedFields" not in api.kube.patch(f"{NODES}/bare", [CORDON], "json")["metadata"]


def test_the_oldest_of_many_managers_are_merged(api: Backend, node: Json) -> None:
    api.kube.patch(f"{NODES}/a", [CORDON], "json", manager="aaa-first")
    time.sleep(1.1)  # their order is that of whole seconds
    for number in range(12):
        api.kube.patch(f"{NODES}/a", {"metadata": {"annotations": {f"example.com/{number}": "1"}}}, manager=f"manager-{number:02}")
    after = api.kube.get(f"{NODES}/a")
    assert cordoners(after) == ["ancient-changes"]
    assert "aaa-first" not in managers(after)
    assert "manager-11" in managers(after)
    assert len(after["metadata"]["managedFields"]) <= 11


def test_kubectl_cordons_and_uncordons(api: Backend, node: Json, tmp_path: Path) -> None:
    config = api.kubeconfig(tmp_path / "kubeconfig")

    def kubectl(*words: str) -> str:
        argv = [str(Path(sys.executable).with_name("kubectl")), f"--kubeconfig={config}", f"--cache-dir={tmp_path}", *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout.strip()

    assert kubectl("cordon", "a") == "node/a cordoned"
    assert len(cordoners(api.kube.get(f"{NODES}/a"))) == 1
    assert cordoners(api.kube.get(f"{NODES}/a"))[0].startswith("kubectl")
    assert kubectl("cordon", "a") == "node/a already cordoned"
    assert kubectl("uncordon", "a") == "node/a uncordoned"
    assert cordoners(api.kube.get(f"{NODES}/a")) == []
    assert kubectl("annotate", "node", "a", f"{OURS}=1") == "node/a annotated"
    assert kubectl("annotate", "node", "a", f"{OURS}-") == "node/a annotated"
    assert kubectl("get", "node", "a", "-o", "jsonpath={.metadata.name}") == "a"


# Taints


def test_a_cordon_becomes_a_taint_and_goes_with_it(api: Backend, node: Json) -> None:
    assert taints(eventually(lambda: cordon(api.kube))) == {CORDONED_TAINT: "NoSchedule"}
    api.kube.patch(f"{NODES}/a", {"spec": {"unschedulable": None}})
    eventually(lambda: taints(api.kube.get(f"{NODES}/a")) == {})


def test_taints_of_others_stay_and_a_removed_taint_is_no_uncordon(api: Backend, node: Json) -> None:
    other = [{"key": "example.com/x", "effect": "NoSchedule"}]
    api.kube.patch(f"{NODES}/a", {"spec": {"taints": other, "unschedulable": True}})
    eventually(lambda: set(taints(api.kube.get(f"{NODES}/a"))) == {"example.com/x", CORDONED_TAINT})
    without = api.kube.patch(f"{NODES}/a", {"spec": {"taints": other}}, "strategic")
    assert without["spec"]["unschedulable"] is True
    assert taints(without) == {"example.com/x": "NoSchedule"}  # strategic patches replace the list of taints


# Status


def test_status_is_written_by_its_subresource_alone(api: Backend, node: Json) -> None:
    drained = {"type": "DrainScheduled", "status": "True"}
    assert (
        api.kube.patch(f"{NODES}/a", {"status": {"capacity": {"nvidia.com/gpu": "2"}}})["status"]["capacity"] == node["status"]["capacity"]
    )
    both = api.kube.patch(f"{NODES}/a/status", {"status": {"conditions": [drained]}, "spec": {"unschedulable": True}}, "strategic")
    assert {item["type"] for item in both["status"]["conditions"]} == {"Ready", "DrainScheduled"}
    assert "unschedulable" not in both["spec"]
    only = api.kube.patch(f"{NODES}/a/status", {"status": {"conditions": [drained], "capacity": {"nvidia.com/gpu": 2}}})
    assert [item["type"] for item in only["status"]["conditions"]] == ["DrainScheduled"]
    assert only["status"]["capacity"] == {**node["status"]["capacity"], "nvidia.com/gpu": "2"}
    assert only["status"]["allocatable"] == node["status"]["allocatable"] == node["status"]["capacity"]


# Lists


def test_pods_are_found_by_node_phase_name_and_namespace(api: Backend) -> None:
    for name, place in (("one", "a"), ("two", "a"), ("three", "b"), ("four", None)):
        make_pod(api.kube, name, place)
    api.kube.patch(f"{PODS}/two/status", {"status": {"phase": "Succeeded"}})

    def found(path: str = "/api/v1/pods", **query: str) -> set[str]:
        return set(names(api.kube.list(path, **query)))

    assert found(fieldSelector="spec.nodeName=a") == {"one", "two"}
    assert found(fieldSelector="spec.nodeName=a,status.phase!=Succeeded") == {"one"}
    assert found(fieldSelector="spec.nodeName=") == {"four"}
    assert found(fieldSelector="metadata.name=three") == {"three"}
    assert found(fieldSelector="metadata.namespace=kube-system") == set()
    assert found(PODS, fieldSelector="spec.nodeName!=a") == {"three", "four"}
    assert found("/api/v1/namespaces/kube-system/pods") == set()
    assert found(labelSelector="pod in (one,three),pod!=three") == {"one"}
    assert found(labelSelector="pod,pod notin (one, two)") == {"three", "four"}
    assert found(labelSelector="!pod") == set()
    for query in ({"fieldSelector": "spec.foo=a"}, {"fieldSelector": "spec.nodeName"}, {"labelSelector": "pod in one"}, {"limit": "x"}):
        with pytest.raises(ApiError) as refused:
            api.kube.get(PODS, **query)
        assert (refused.value.code, refused.value.reason) == (400, "BadRequest")


def test_the_items_of_a_typed_list_do_not_repeat_their_kind_and_custom_ones_do(api: Backend, node: Json) -> None:
    api.kube.create(RULES, rule("r"))
    nodes, rules = api.kube.get(NODES), api.kube.get(RULES)
    assert (nodes["kind"], nodes["apiVersion"]) == ("NodeList", "v1")
    assert not {"kind", "apiVersion"} & set(nodes["items"][0])
    assert (rules["kind"], rules["apiVersion"]) == ("NodeFeatureRuleList", "nfd.k8s-sigs.io/v1alpha1")
    assert rules["items"][0]["kind"] == "NodeFeatureRule"
    assert api.kube.get("/apis/kubevirt.io/v1/virtualmachineinstances")["items"] == []


def test_pages_show_the_list_as_it_was_at_the_first(api: Backend) -> None:
    for number in range(5):
        api.kube.create(CONFIGMAPS, {"metadata": {"name": f"page-{number}", "labels": {"page": "1"}}})
    first = api.kube.get(CONFIGMAPS, limit=2, labelSelector="page")
    assert names(first["items"]) == ["page-0", "page-1"]
    api.kube.delete(f"{CONFIGMAPS}/page-3")
    api.kube.create(CONFIGMAPS, {"metadata": {"name": "page-2b", "labels": {"page": "1"}}})
    second = api.kube.get(CONFIGMAPS, limit=2, labelSelector="page", continue_=first["metadata"]["continue"])
    third = api.kube.get(CONFIGMAPS, limit=2, labelSelector="page", continue_=second["metadata"]["continue"])
    assert names(second["items"]) + names(third["items"]) == ["page-2", "page-3", "page-4"]
    assert not third["metadata"].get("continue")
    assert version_of(first) == version_of(second) == version_of(third)
    assert names(api.kube.list(CONFIGMAPS, limit=1, labelSelector="page")) == ["page-0", "page-1", "page-2", "page-2b", "page-4"]
    with pytest.raises(ApiError) as refused:
        api.kube.get(CONFIGMAPS, limit=2, continue_="nonsense")
    assert refused.value.code == 400


def test_a_continue_token_expires(api: Backend) -> None:
    for number in range(3):
        api.kube.create(CONFIGMAPS, {"metadata": {"name": f"page-{number}"}})
    token = api.kube.get(CONFIGMAPS, limit=1)["metadata"]["continue"]
    api.kube.delete(f"{CONFIGMAPS}/page-0")
    forget_the_past(api)
    with pytest.raises(ApiError) as refused:
        api.kube.get(CONFIGMAPS, limit=1, continue_=token)
    assert (refused.value.code, refused.value.reason) == (410, "Expired")
    assert refused.value.body["metadata"]["continue"]


def forget_the_past(api: Backend) -> None:
    """Compact what the server keeps of earlier versions."""
    if isinstance(api, SimBackend):
        api.cluster.compact()
        return
    assert isinstance(api, RealBackend)
    argv = api.plane.children["etcd"].process.args
    assert isinstance(argv, list)
    url = next(word for word in map(str, argv) if word.startswith("--listen-client-urls=")).partition("=")[2]
    revision = int(version_of(api.kube.get(CONFIGMAPS)))
    body = json.dumps({"revision": str(revision), "physical": True}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v3/kv/compaction", body, method="POST"), timeout=10) as answer:
        assert answer.status == 200


def test_a_version_of_the_future_is_not_there_yet(api: Backend) -> None:
    for path in (NODES, CONFIGMAPS):
        with pytest.raises(ApiError) as refused:
            api.kube.get(path, resourceVersion="999999999")
        assert (refused.value.code, refused.value.reason) == (504, "Timeout")


# Watches


class Watcher:
    """A watch in a thread of its own: its events as (type, name), and the objects."""

    def __init__(self, kube: Kube, path: str, **query: Any) -> None:
        self.events: list[Json] = []
        self.error: ApiError | None = None
        self._thread = threading.Thread(target=self._run, args=(kube, path, query))
        self._thread.start()

    def _run(self, kube: Kube, path: str, query: Json) -> None:
        try:
            for event in kube.watch(path, **query):
                self.events.append(event)
        except ApiError as error:
            self.error = error

    def seen(self) -> list[tuple[str, str]]:
        return [(event["type"], event["object"]["metadata"].get("name", "")) for event in self.events if event["type"] != "BOOKMARK"]

    def end(self) -> Watcher:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self


@pytest.fixture
def watch(api: Backend) -> Iterator[Callable[..., Watcher]]:
    """Starts watches that are over when the test is."""
    started: list[Watcher] = []

    def start(path: str, kube: Kube | None = None, **query: Any) -> Watcher:
        started.append(Watcher(kube or api.kube, path, **query))
        return started[-1]

    yield start
    for watcher in started:
        watcher.end()


def test_a_watch_goes_on_from_the_version_of_a_list(api: Backend, watch: Callable[..., Watcher]) -> None:
    make_pod(api.kube, "before", "a")
    version = version_of(api.kube.get("/api/v1/pods", fieldSelector="spec.nodeName=a"))
    make_pod(api.kube, "early", "a")
    watcher = watch("/api/v1/pods", fieldSelector="spec.nodeName=a", resourceVersion=version, timeoutSeconds=4)
    make_pod(api.kube, "elsewhere", "b")
    api.kube.patch(f"{PODS}/before", {"metadata": {"annotations": {"a": "b"}}})
    make_pod(api.kube, "late", "a")
    api.kube.delete(f"{PODS}/before")
    api.kube.delete(f"{PODS}/before", grace=0)
    watcher.end()
    assert watcher.seen() == [
        ("ADDED", "early"),
        ("MODIFIED", "before"),
        ("ADDED", "late"),
        ("MODIFIED", "before"),
        ("MODIFIED", "before"),
        ("DELETED", "before"),
    ]
    assert [event["object"]["metadata"].get("deletionGracePeriodSeconds") for event in watcher.events[3:]] == [30, 0, 0]
    versions = [int(version_of(event["object"])) for event in watcher.events]
    assert versions == sorted(set(versions))
    gone = watcher.events[-1]["object"]
    assert (gone["kind"], gone["apiVersion"]) == ("Pod", "v1")
    assert gone["metadata"]["deletionTimestamp"]


def test_a_watch_without_a_version_begins_with_what_is_there(api: Backend, watch: Callable[..., Watcher]) -> None:
    for name in ("one", "two"):
        make_pod(api.kube, name, "a")
    assert sorted(watch(PODS, timeoutSeconds=1).end().seen()) == [("ADDED", "one"), ("ADDED", "two")]
    assert watch(PODS, timeoutSeconds=1, resourceVersion=version_of(api.kube.get(PODS))).end().seen() == []


def test_what_leaves_a_selection_is_deleted_and_what_enters_is_added(api: Backend, node: Json, watch: Callable[..., Watcher]) -> None:
    version = version_of(api.kube.get(NODES))
    watcher = watch(NODES, labelSelector="mode=x", resourceVersion=version, timeoutSeconds=3)
    for value in ("x", "y"):
        last = api.kube.patch(f"{NODES}/a", {"metadata": {"labels": {"mode": value}}})
    watcher.end()
    assert watcher.seen() == [("ADDED", "a"), ("DELETED", "a")]
    assert watcher.events[1]["object"]["metadata"]["labels"]["mode"] == "x"
    assert version_of(watcher.events[1]["object"]) == version_of(last)


def test_a_pod_that_gets_bound_enters_the_selection_of_its_node(api: Backend, watch: Callable[..., Watcher]) -> None:
    make_pod(api.kube, "late", schedulerName="nobody")
    watcher = watch("/api/v1/pods", fieldSelector="spec.nodeName=a", resourceVersion=version_of(api.kube.get(PODS)), timeoutSeconds=3)
    bind(api.kube, "late", "a")
    assert watcher.end().seen() == [("ADDED", "late")]


def test_bookmarks_carry_a_version_and_nothing_else(api: Backend, node: Json, watch: Callable[..., Watcher]) -> None:
    bookmarks: list[Json] = []
    for _ in range(4):  # a server promises no bookmark
        version = version_of(api.kube.get(NODES))
        watcher = watch(NODES, resourceVersion=version, allowWatchBookmarks=True, timeoutSeconds=6)
        time.sleep(0.5)  # it owes none for what happened before it began
        api.kube.patch(f"{NODES}/a", {"metadata": {"annotations": {"turn": version}}})
        events = watcher.end().events
        changed = [event for event in events if event["type"] != "BOOKMARK"]
        bookmarks += [event["object"] for event in events if event["type"] == "BOOKMARK"]
        if bookmarks:
            break
    assert bookmarks
    assert int(version_of(bookmarks[-1])) >= int(version_of(changed[-1]["object"]))
    assert (bookmarks[-1]["kind"], bookmarks[-1]["metadata"].get("name")) == ("Node", None)


def test_a_watch_from_a_forgotten_version_gets_410_as_an_event(api: Backend, watch: Callable[..., Watcher]) -> None:
    api.kube.create(RULES, rule("r"))
    if isinstance(api, SimBackend):
        forget_the_past(api)  # a real one forgot before it began to watch these
    [event] = watch(RULES, resourceVersion="1", timeoutSeconds=1).end().events
    assert event["type"] == "ERROR"
    assert (event["object"]["kind"], event["object"]["code"], event["object"]["reason"]) == ("Status", 410, "Expired")
    assert event["object"]["message"].startswith("too old resource version: 1 ")


def test_a_watch_from_no_version_at_all_is_refused(api: Backend, watch: Callable[..., Watcher]) -> None:
    error = watch(NODES, resourceVersion="latest", timeoutSeconds=1).end().error
    assert error
    assert error.code >= 400


def test_a_reset_ends_no_watch_and_shows_each_removal(api: Backend, node: Json, watch: Callable[..., Watcher]) -> None:
    watcher = watch(NODES, resourceVersion=version_of(api.kube.get(NODES)), timeoutSeconds=4)
    api.reset()
    assert watcher.end().seen()[-1] == ("DELETED", "a")
    assert watcher.error is None


# Pods


def bind(kube: Kube, pod: str, node: str) -> Json:
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return kube.create(f"{PODS}/{pod}/binding", {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target})


def test_a_bound_pod_is_deleted_gracefully(api: Backend) -> None:
    make_pod(api.kube, "p", "a")
    going = api.kube.delete(f"{PODS}/p")
    assert (going["kind"], going["metadata"]["deletionGracePeriodSeconds"]) == ("Pod", 30)
    until = datetime.fromisoformat(going["metadata"]["deletionTimestamp"].replace("Z", "+00:00")).timestamp()
    assert 20 < until - time.time() < 40
    assert version_of(api.kube.delete(f"{PODS}/p")) == version_of(going)
    assert api.kube.delete(f"{PODS}/p", grace=5)["metadata"]["deletionGracePeriodSeconds"] == 5
    assert api.kube.delete(f"{PODS}/p", grace=60)["metadata"]["deletionGracePeriodSeconds"] == 5
    assert names(api.kube.list(PODS, fieldSelector="spec.nodeName=a")) == ["p"]
    api.kube.delete(f"{PODS}/p", grace=0)
    with pytest.raises(ApiError) as refused:
        api.kube.get(f"{PODS}/p")
    assert refused.value.code == 404


def test_nobody_can_set_or_move_the_time_of_a_deletion(api: Backend) -> None:
    make_pod(api.kube, "p", "a")
    past = {"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}}
    with pytest.raises(ApiError) as refused:
        api.kube.patch(f"{PODS}/p", past)
    assert (refused.value.code, refused.value.reason) == (422, "Invalid")
    going = api.kube.delete(f"{PODS}/p")
    assert api.kube.patch(f"{PODS}/p", past)["metadata"]["deletionTimestamp"] == going["metadata"]["deletionTimestamp"]


def test_a_dry_run_deletes_nothing(api: Backend) -> None:
    make_pod(api.kube, "p", "a")
    assert api.kube.delete(f"{PODS}/p", dryRun="All")["metadata"]["name"] == "p"
    assert api.kube.delete(f"{PODS}/p", grace=0, dryRun="All")["metadata"]["name"] == "p"
    assert "deletionTimestamp" not in api.kube.get(f"{PODS}/p")["metadata"]


def test_an_unbound_or_finished_pod_is_gone_at_once(api: Backend) -> None:
    make_pod(api.kube, "unbound", schedulerName="nobody")
    make_pod(api.kube, "finished", "a")
    api.kube.patch(f"{PODS}/finished/status", {"status": {"phase": "Failed"}})
    for name in ("unbound", "finished"):
        assert api.kube.delete(f"{PODS}/{name}")["metadata"]["name"] == name
    assert api.kube.list(PODS) == []


def test_a_pod_is_created_pending_with_the_defaults_and_can_not_move(api: Backend) -> None:
    pod = make_pod(api.kube, "p", "a")
    assert pod["status"]["phase"] == "Pending"
    assert pod["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "1"}
    assert pod["spec"]["terminationGracePeriodSeconds"] == 30
    with pytest.raises(ApiError) as refused:
        api.kube.patch(f"{PODS}/p", {"spec": {"nodeName": "b"}})
    assert refused.value.code == 422
    status = {"phase": "Running", "nominatedNodeName": "a", "conditions": [{"type": "Ready", "status": "True"}]}
    running = api.kube.patch(f"{PODS}/p/status", {"status": status}, "strategic")
    assert {**running["status"], "conditions": None} == {**pod["status"], **status, "conditions": None}


def test_a_binding_binds_once(api: Backend) -> None:
    make_pod(api.kube, "p", schedulerName="nobody")
    assert bind(api.kube, "p", "a")["status"] == "Success"
    bound = api.kube.get(f"{PODS}/p")
    assert bound["spec"]["nodeName"] == "a"
    assert [(item["type"], item["status"]) for item in bound["status"]["conditions"]] == [("PodScheduled", "True")]
    with pytest.raises(ApiError) as refused:
        bind(api.kube, "p", "b")
    assert (refused.value.code, refused.value.reason) == (409, "Conflict")
    with pytest.raises(ApiError) as refused:
        bind(api.kube, "missing", "b")
    assert refused.value.code == 404


def test_a_pod_needs_its_namespace(api: Backend) -> None:
    with pytest.raises(ApiError) as refused:
        api.kube.create("/api/v1/namespaces/missing/configmaps", {"metadata": {"name": "x"}})
    assert (refused.value.code, refused.value.body["details"]) == (404, {"name": "missing", "kind": "namespaces"})
    assert api.kube.get("/api/v1/namespaces/missing/pods")["items"] == []
    with pytest.raises(ApiError) as refused:
        api.kube.create("/api/v1/pods", {"metadata": {"name": "x"}})
    assert refused.value.code == 405


# DaemonSets


def test_the_pods_of_a_daemonset_follow_the_label_of_the_node(api: Backend) -> None:
    make_node(api.kube, "a", mode="x")
    make_node(api.kube, "b")
    template = {
        "metadata": {"labels": {"app": "owner"}},
        "spec": {"nodeSelector": {"mode": "x"}, "containers": [{"name": "c", "image": "image"}]},
    }
    made = api.kube.create(
        DAEMONSETS,
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "owner"},
            "spec": {"selector": {"matchLabels": {"app": "owner"}}, "template": template},
        },
    )

    def pods() -> dict[str, Json]:
        return {pod["spec"]["nodeName"]: pod for pod in api.kube.list(PODS, labelSelector="app=owner") if pod["spec"].get("nodeName")}

    eventually(lambda: set(pods()) == {"a"})
    pod = pods()["a"]
    [owner] = pod["metadata"]["ownerReferences"]
    assert (owner["apiVersion"], owner["kind"], owner["name"], owner["controller"]) == ("apps/v1", "DaemonSet", "owner", True)
    assert owner["uid"] == made["metadata"]["uid"]
    assert pod["status"]["phase"] == "Pending"
    assert {"key": CORDONED_TAINT, "operator": "Exists", "effect": "NoSchedule"} in pod["spec"]["tolerations"]
    api.kube.patch(
        f"{PODS}/{pod['metadata']['name']}/status", {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    )
    eventually(lambda: api.kube.get(f"{DAEMONSETS}/owner")["status"].get("numberReady") == 1)

    # a cordon keeps no DaemonSet away
    api.kube.patch(f"{NODES}/b", {"spec": {"unschedulable": True}, "metadata": {"labels": {"mode": "x"}}})
    eventually(lambda: set(pods()) == {"a", "b"})

    api.kube.patch(f"{NODES}/a", {"metadata": {"labels": {"mode": None}}})
    eventually(lambda: pods()["a"]["metadata"].get("deletionTimestamp"))
    assert "deletionTimestamp" not in pods()["b"]["metadata"]
    # a terminating pod is not replaced before it is gone
    api.kube.patch(f"{NODES}/a", {"metadata": {"labels": {"mode": "x"}}})
    time.sleep(0.5)
    assert pods()["a"]["metadata"]["uid"] == pod["metadata"]["uid"]
    api.kube.delete(f"{PODS}/{pod['metadata']['name']}", grace=0)
    eventually(lambda: "a" in pods() and pods()["a"]["metadata"]["uid"] != pod["metadata"]["uid"])

    api.kube.delete(f"{DAEMONSETS}/owner", propagationPolicy="Background")
    eventually(lambda: all(pod["metadata"].get("deletionTimestamp") for pod in pods().values()))


# Custom resources


def test_a_custom_resource_has_a_status_of_its_own_and_counts_generations(api: Backend) -> None:
    made = api.kube.create(RULES, {**rule("r", rules=[{"name": "a"}], empty=None), "status": {"x": 1}})
    assert "status" not in made
    assert made["metadata"]["generation"] == 1
    assert made["spec"] == {"rules": [{"name": "a"}], "empty": None}
    assert api.kube.patch(f"{RULES}/r", {"metadata": {"labels": {"a": "b"}}})["metadata"]["generation"] == 1
    changed = api.kube.patch(f"{RULES}/r", {"spec": {"rules": []}, "status": {"x": 1}})
    assert changed["metadata"]["generation"] == 2
    assert "status" not in changed
    done = api.kube.patch(f"{RULES}/r/status", {"status": {"done": True}, "spec": {"rules": [1]}, "metadata": {"labels": {"a": "c"}}})
    assert (done["status"], done["spec"]["rules"], done["metadata"]["labels"]) == ({"done": True}, [], {"a": "b"})
    assert done["metadata"]["generation"] == 2


def test_a_custom_resource_takes_no_strategic_patch_and_no_put_without_a_version(api: Backend) -> None:
    made = api.kube.create(RULES, rule("r"))
    with pytest.raises(ApiError) as refused:
        api.kube.patch(f"{RULES}/r", {"spec": {}}, "strategic")
    assert (refused.value.code, refused.value.reason) == (415, "UnsupportedMediaType")
    with pytest.raises(ApiError) as refused:
        api.kube.replace(f"{RULES}/r", rule("r"))
    assert refused.value.code == 422
    assert api.kube.replace(f"{RULES}/r", {**made, "spec": {"a": 1}})["spec"] == {"a": 1}
    with pytest.raises(ApiError) as refused:
        api.kube.patch(f"{RULES}/r", [at_version(version_of(made))], "json")
    assert (refused.value.code, refused.value.body["details"]) == (
        409,
        {"name": "r", "group": "nfd.k8s-sigs.io", "kind": "nodefeaturerules"},
    )
    with pytest.raises(ApiError) as refused:
        api.kube.create(RULES, rule("r"))
    assert (refused.value.code, refused.value.reason) == (409, "AlreadyExists")


# What is not there and what is not allowed


def test_what_is_not_there_is_404_in_three_shapes(api: Backend) -> None:
    with pytest.raises(ApiError) as refused:
        api.kube.get(f"{RULES}/missing")
    assert refused.value.body == {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "code": 404,
        "message": 'nodefeaturerules.nfd.k8s-sigs.io "missing" not found',
        "details": {"name": "missing", "group": "nfd.k8s-sigs.io", "kind": "nodefeaturerules"},
    }  # fmt: skip
    for path in ("/api/v1/things", "/apis/apps/v1/things", "/apis/apps/v9/daemonsets"):
        with pytest.raises(ApiError) as refused:
            api.kube.get(path)
        assert (refused.value.code, refused.value.message) == (404, "the server could not find the requested resource")
    for path in ("/apis/example.com/v1/things", "/apis/nfd.k8s-sigs.io/v1/nodefeaturerules", "/apis/nfd.k8s-sigs.io/v1alpha1/others"):
        assert api.client().raw("GET", path) == (404, "text/plain; charset=utf-8", b"404 page not found\n")


def test_who_has_no_valid_token_is_not_let_in(api: Backend) -> None:
    kube = Kube(api.url, ca=api.ca_pem, token="nonsense")
    with pytest.raises(ApiError) as refused:
        kube.get(NODES)
    assert refused.value.body == {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Unauthorized", "reason": "Unauthorized", "code": 401,
    }  # fmt: skip
    with pytest.raises(ApiError) as refused:
        Kube(api.url, ca=api.ca_pem).get(NODES)
    assert (refused.value.code, refused.value.reason) == (403, "Forbidden")
    assert 'User "system:anonymous" cannot list resource "nodes"' in refused.value.message


def test_a_client_certificate_names_user_and_group(api: Backend, node: Json, tmp_path: Path) -> None:
    api.add_user("reader", [READ_NODES])
    for user, groups, code in (("reader", (), 403), ("root", ("system:masters",), 0)):
        if isinstance(api, SimBackend):
            certificate, key = api.cluster.client_certificate(user, *groups)
        else:
            assert isinstance(api, RealBackend)
            issued = api.plane.issue(user, *groups)
            certificate, key = issued.certificate, issued.key
        files = [tmp_path / f"{user}.crt", tmp_path / f"{user}.key"]
        for file, content in zip(files, (certificate, key), strict=True):
            file.write_bytes(content)
        kube = Kube(api.url, ca=api.ca_pem, cert=files[0], key=files[1])
        assert names(kube.list(NODES)) == ["a"]
        if code:
            with pytest.raises(ApiError) as refused:
                kube.list(PODS)
            assert refused.value.code == code
            assert f'User "{user}" cannot list resource "pods"' in refused.value.message
        else:
            assert kube.list(PODS) == []


_CLUSTER, _DEFAULT = "at the cluster scope", 'in the namespace "default"'
# what is asked; what the answer calls it, the verb, the resource and its group, where; and the details
FORBIDDEN: dict[str, tuple[Callable[[Kube], object], tuple[str, str, str, str, str], Json]] = {
    "get": (
        lambda kube: kube.get(f"{RULES}/r"),
        ('nodefeaturerules.nfd.k8s-sigs.io "r"', "get", "nodefeaturerules", "nfd.k8s-sigs.io", _CLUSTER),
        {"name": "r", "group": "nfd.k8s-sigs.io", "kind": "nodefeaturerules"},
    ),
    "list": (lambda kube: kube.get("/api/v1/pods"), ("pods", "list", "pods", "", _CLUSTER), {"kind": "pods"}),
    "list in a namespace": (
        lambda kube: kube.get(DAEMONSETS),
        ("daemonsets.apps", "list", "daemonsets", "apps", _DEFAULT),
        {"group": "apps", "kind": "daemonsets"},
    ),
    "watch": (lambda kube: next(kube.watch("/api/v1/pods")), ("pods", "watch", "pods", "", _CLUSTER), {"kind": "pods"}),
    "patch": (
        lambda kube: kube.patch(f"{NODES}/a", []),
        ('nodes "a"', "patch", "nodes", "", _CLUSTER),
        {"name": "a", "kind": "nodes"},
    ),
    "dry run": (
        lambda kube: kube.patch(f"{NODES}/a", [], dry_run=True),
        ('nodes "a"', "patch", "nodes", "", _CLUSTER),
        {"name": "a", "kind": "nodes"},
    ),
    "status": (
        lambda kube: kube.patch(f"{NODES}/a/status", []),
        ('nodes "a"', "patch", "nodes/status", "", _CLUSTER),
        {"name": "a", "kind": "nodes"},
    ),
    "a namespace": (
        lambda kube: kube.get("/api/v1/namespaces/default"),
        ('namespaces "default"', "get", "namespaces", "", _DEFAULT),
        {"name": "default", "kind": "namespaces"},
    ),
    "a group that is not there": (
        lambda kube: kube.get("/apis/example.com/v1/things"),
        ("things.example.com", "list", "things", "example.com", _CLUSTER),
        {"group": "example.com", "kind": "things"},
    ),
}


def test_what_is_not_allowed_is_refused_by_name(api: Backend, node: Json) -> None:
    api.add_user("viewer", [READ_NODES])
    kube = api.client("viewer")
    assert names(kube.list(NODES)) == ["a"]
    assert kube.get("/version")["gitVersion"]
    assert "nodes" in {item["name"] for item in kube.get("/api/v1")["resources"]}
    for label, (ask, (what, verb, resource, group, where), details) in FORBIDDEN.items():
        with pytest.raises(ApiError) as refused:
            ask(kube)
        assert (refused.value.code, refused.value.reason) == (403, "Forbidden"), label
        cannot = f'cannot {verb} resource "{resource}" in API group "{group}" {where}'
        assert refused.value.message == f'{what} is forbidden: User "viewer" {cannot}'
        assert refused.value.body["details"] == details


def test_a_rule_can_name_its_objects(api: Backend, node: Json) -> None:
    make_node(api.kube, "b")
    api.add_user("mover", [READ_NODES, {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"], "resourceNames": ["a"]}])
    kube = api.client("mover")
    assert kube.patch(f"{NODES}/a", [CORDON], "json")["spec"]["unschedulable"] is True
    with pytest.raises(ApiError) as refused:
        kube.patch(f"{NODES}/b", [CORDON], "json")
    assert refused.value.code == 403


def test_a_list_of_one_name_is_allowed_by_a_rule_for_that_name(api: Backend, node: Json) -> None:
    api.add_user("narrow", [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"], "resourceNames": ["a"]}])
    # the backend knows when rules count that name no objects: these it has to be asked for
    eventually(lambda: allowed(api.client("narrow")))
    with pytest.raises(ApiError) as refused:
        api.client("narrow").get(NODES)
    assert refused.value.code == 403


def allowed(kube: Kube) -> bool:
    try:
        return names(kube.list(NODES, fieldSelector="metadata.name=a")) == ["a"]
    except ApiError as error:
        if error.code != 403:
            raise
        return False


def test_what_can_not_be_created(api: Backend, node: Json) -> None:
    bad: list[tuple[Json, int, str]] = [
        ({"name": "a"}, 409, "AlreadyExists"),
        ({}, 422, "Invalid"),
        ({"name": "A_b"}, 422, "Invalid"),
        ({"name": "b", "resourceVersion": "5"}, 500, ""),
    ]
    for metadata, code, reason in bad:
        with pytest.raises(ApiError) as refused:
            api.kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        assert (refused.value.code, refused.value.reason) == (code, reason)
    made = api.kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"generateName": "some-"}}, dryRun="All")
    assert made["metadata"]["name"].startswith("some-")
    assert names(api.kube.list(NODES)) == ["a"]
