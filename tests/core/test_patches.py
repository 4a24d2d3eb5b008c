"""The patches of the node, operation by operation, applied as the server applies them."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import pytest

from kubectl_gpu_transition.modes import LABELS, label_values
from kubectl_gpu_transition.patches import Patch, announce_patch, cordon_patch, drop_patch, recordon_patch, restore_patch, uncordon_patch
from tests.core.builders import ANNOTATION, HAMI, VM, node, ours

RECORD = "/metadata/annotations/kube-dc.com~1gpu-transition"
OLD, NEW = '{"phase":"cordoned"}', '{"phase":"pushing"}'


def stored(**changes: Any) -> dict[str, Any]:
    """The node as the server has it: cordoned, OLD on it, at HAMI. A change names its place and key, as ``spec__unschedulable``."""
    labels, annotations = {**label_values(HAMI), "other": "x"}, {ANNOTATION: OLD, "a": "b"}
    meta: dict[str, Any] = {"uid": "uid-1", "resourceVersion": "100", "labels": labels, "annotations": annotations}
    spec: dict[str, Any] = {"unschedulable": True, "podCIDR": "10.0.0.0/24"}
    places: dict[str, dict[str, Any]] = {"metadata": meta, "spec": spec, "labels": labels, "annotations": annotations}
    for path, value in changes.items():
        place, key = path.split("__")
        places[place].pop(key, None)
        if value is not None:
            places[place][key] = value
    return {"metadata": meta, "spec": spec}


def applied(patch: Patch, obj: dict[str, Any]) -> dict[str, Any] | None:
    """What the server makes of it: the object, or None where it refuses."""
    try:
        after = jsonpatch.apply_patch(copy.deepcopy(obj), copy.deepcopy(patch))
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException):
        return None
    return after if after["metadata"]["resourceVersion"] == obj["metadata"]["resourceVersion"] else None


AT = ours()
PATCHES = {
    "cordon": cordon_patch(node(), NEW),
    "recordon": recordon_patch(AT, OLD),
    "announce": announce_patch(AT, OLD, NEW, HAMI),
    "restore": restore_patch(AT, OLD, NEW),
    "uncordon": uncordon_patch(AT, OLD, HAMI),
    "drop": drop_patch(AT, OLD, HAMI),
}
# What must hold for each; the letters stand for uid, version, record, cordon and labels.
GUARDS = {"cordon": "uv", "recordon": "uvr", "announce": "urcl", "restore": "ur", "uncordon": "uvrcl", "drop": "uvrl"}
BREAKS: dict[str, list[dict[str, Any]]] = {
    "u": [{"metadata__uid": "uid-2"}],
    "v": [{"metadata__resourceVersion": "101"}, {"metadata__resourceVersion": "99"}],
    "r": [{"annotations__" + ANNOTATION: None}, {"annotations__" + ANNOTATION: OLD + " "}, {"annotations__" + ANNOTATION: NEW}],
    "c": [{"spec__unschedulable": None}, {"spec__unschedulable": False}],
    "l": [{"labels__" + label: value} for label in LABELS for value in (None, "vm-passthrough", "")],
}
CASES = [
    pytest.param(name, change, letter in GUARDS[name], id=f"{name}, {change}")
    for name in PATCHES
    for letter, changes in BREAKS.items()
    for change in changes
]


@pytest.mark.parametrize(("name", "change", "guarded"), CASES)
def test_the_server_refuses_what_the_patch_relied_on_and_only_that(name: str, change: dict[str, Any], guarded: bool) -> None:
    if name in ("restore", "drop") and "annotations__" + ANNOTATION in change:
        guarded = True
    assert (applied(PATCHES[name], stored(**change)) is None) == guarded


@pytest.mark.parametrize("name", PATCHES)
def test_no_guard_tests_against_null(name: str) -> None:
    assert all("value" not in o or o["value"] is not None for o in PATCHES[name])


def test_cordon_and_record_come_together() -> None:
    before = stored(spec__unschedulable=None, **{"annotations__" + ANNOTATION: None})
    assert applied(cordon_patch(node(), NEW), before) == stored(**{"annotations__" + ANNOTATION: NEW})


def test_an_annotations_map_that_is_missing_is_added_and_one_that_is_there_is_kept() -> None:
    before = stored(spec__unschedulable=None)
    del before["metadata"]["annotations"]
    after = applied(cordon_patch(node(has_annotations=False), NEW), before)
    assert after is not None
    assert after["metadata"]["annotations"] == {ANNOTATION: NEW}
    assert applied(cordon_patch(node(), NEW), before) is None


def test_the_dry_run_is_the_same_patch_without_its_version() -> None:
    assert cordon_patch(node(), NEW, versioned=False) == [o for o in cordon_patch(node(), NEW) if o["path"] != "/metadata/resourceVersion"]


def test_the_effects() -> None:
    assert applied(PATCHES["recordon"], stored(spec__unschedulable=None)) == stored()
    assert applied(PATCHES["announce"], stored()) == stored(**{"annotations__" + ANNOTATION: NEW})
    assert applied(PATCHES["restore"], stored()) == stored(**{"annotations__" + ANNOTATION: NEW})
    gone = stored(spec__unschedulable=None, **{"annotations__" + ANNOTATION: None})
    assert applied(PATCHES["uncordon"], stored()) == gone
    assert applied(PATCHES["drop"], stored(spec__unschedulable=None)) == gone
    assert applied(PATCHES["drop"], stored()) == stored(**{"annotations__" + ANNOTATION: None}), "a cordon is not touched"


def test_the_labels_are_those_of_the_mode_that_was_asked_for() -> None:
    tests = {o["path"]: o["value"] for o in uncordon_patch(AT, OLD, VM) if o["op"] == "test" and "labels" in o["path"]}
    assert list(tests.values()) == ["vm-passthrough"] * 3
    assert list(tests) == [
        "/metadata/labels/kube-dc.com~1gpu.workload-mode",
        "/metadata/labels/kube-dc.com~1gpu.expected-workload-mode",
        "/metadata/labels/nvidia.com~1gpu.workload.config",
    ]


def test_a_pointer_escapes_what_has_to_be() -> None:
    assert {o["path"] for o in cordon_patch(node(), NEW)} == {"/metadata/uid", "/metadata/resourceVersion", "/spec/unschedulable", RECORD}
