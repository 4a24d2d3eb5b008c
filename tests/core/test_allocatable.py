"""What a node offers (spec sections 1 and 7, condition 8), and what is shown beside the conditions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kubectl_gpu_transition.allocatable import find_missing_offers
from kubectl_gpu_transition.facts import SliceView
from kubectl_gpu_transition.holders import find_holders, find_unasked
from kubectl_gpu_transition.model import Problem
from kubectl_gpu_transition.modes import Mode
from kubectl_gpu_transition.target import Goal, find_advice, find_missing
from tests.core.builders import DRA, HAMI, VM, facts, holder, node, ours, owner, pod, request

GONE = Problem("not allowed (403)", "ask")
VM_NAME, DRIVER = "nvidia.com/GV100", "hami-core-gpu.project-hami.io"
PERMITTED = (frozenset({VM_NAME, "vendor.example/other"}), frozenset({"x"}))
POOL = SliceView(DRIVER, "gpu-1", "gpu-1", ("d0", "d1"))


@pytest.mark.parametrize(
    ("source", "target", "allocatable", "more", "words"),
    [
        (HAMI, VM, {VM_NAME: "2"}, {}, []),
        (HAMI, VM, {VM_NAME: "2", "nvidia.com/gpu": "0"}, {}, []),
        (HAMI, VM, {"x": "1"}, {}, []),
        (HAMI, VM, {}, {}, ["allocatable: nothing yet of one of KubeVirt's permitted host devices"]),
        (HAMI, VM, {VM_NAME: "0"}, {}, ["allocatable: nothing yet of one of KubeVirt's permitted host devices"]),
        (HAMI, VM, {VM_NAME: "2", "nvidia.com/gpu": "10"}, {}, ["allocatable: still nvidia.com/gpu 10 of pod-hami"]),
        (HAMI, VM, {"nvidia.com/GT200": "1"}, {}, ["allocatable: nothing yet of one of KubeVirt's permitted host devices"]),
        (VM, HAMI, {"nvidia.com/gpu": "10", VM_NAME: "0"}, {}, []),
        (VM, HAMI, {VM_NAME: "1"}, {}, ["allocatable: nothing yet of nvidia.com/gpu", f"allocatable: still {VM_NAME} 1 of vm-passthrough"]),
        (VM, HAMI, {"nvidia.com/gpu": "10"}, {"permitted": (frozenset({"nvidia.com/gpu"}),)}, []),
        (HAMI, DRA, {}, {"slices": (POOL,)}, []),
        (HAMI, DRA, {}, {"slices": (replace(POOL, devices=()),)}, [f"allocatable: nothing yet of a device of the DRA driver {DRIVER}"]),
        (HAMI, DRA, {}, {"slices": (replace(POOL, driver="x"),)}, [f"allocatable: nothing yet of a device of the DRA driver {DRIVER}"]),
        (HAMI, DRA, {}, {"slices": (replace(POOL, node="gpu-2"),)}, [f"allocatable: nothing yet of a device of the DRA driver {DRIVER}"]),
        (HAMI, DRA, {}, {"slices": (replace(POOL, node=None, device_nodes={"d0": "gpu-1"}),)}, []),
        (DRA, HAMI, {"nvidia.com/gpu": "1"}, {"slices": (POOL,)}, [f"allocatable: still {DRIVER}/gpu-1 2 of pod-hami-dra"]),
        (HAMI, VM, {VM_NAME: "2"}, {"permitted": GONE}, GONE),
        (DRA, HAMI, {"nvidia.com/gpu": "1"}, {"slices": GONE}, GONE),
    ],
)
def test_what_a_node_offers(source: Mode, target: Mode, allocatable: dict[str, str], more: dict[str, Any], words: Any) -> None:
    seen = facts(**{"permitted": PERMITTED, **more})
    assert find_missing_offers(source, target, node(allocatable=allocatable), seen) == words


@pytest.mark.parametrize("offers", [True, False])
def test_what_it_offers_is_a_condition_only_where_it_is_asked_for_and_else_is_shown(offers: bool) -> None:
    seen, around = ours(VM, allocatable={"nvidia.com/gpu": "10"}), facts(pods=(owner(VM),), permitted=PERMITTED)
    goal = Goal(VM, left=HAMI, offers=offers)
    words = [
        "allocatable: nothing yet of one of KubeVirt's permitted host devices",
        "allocatable: still nvidia.com/gpu 10 of pod-hami",
    ]
    assert find_missing(goal, seen, around, ()) == (words if offers else [])
    assert find_advice(goal, seen, around, request()) == ([] if offers else words)


def test_what_it_offers_and_can_not_be_read_is_missing_only_where_it_is_asked_for() -> None:
    seen, around = ours(VM), facts(pods=(owner(VM),), permitted=GONE)
    assert find_missing(Goal(VM, left=HAMI, offers=True), seen, around, ()) == ["could not be read: not allowed (403)"]
    assert find_missing(Goal(VM, left=HAMI), seen, around, ()) == []
    assert find_advice(Goal(VM, left=HAMI), seen, around, request()) == []


def test_an_abandon_asks_and_shows_nothing_of_it() -> None:
    seen, around = ours(HAMI), facts(pods=(owner(HAMI),), permitted=PERMITTED)
    assert find_missing(Goal(HAMI), seen, around, ()) == []
    assert find_advice(Goal(HAMI), seen, around, request()) == []


REACHES = ("runtime class nvidia", "host path /dev/nvidia0")


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({}, True),
        ({"reaches": ()}, False),
        ({"node": "gpu-2"}, False),
        ({"phase": "Succeeded", "running": False}, False),
        ({"namespace": "gpu-operator"}, False),
        ({"namespace": "hami-system"}, False),
        ({"resources": frozenset({"nvidia.com/gpu"})}, False),
    ],
    ids=str,
)
def test_a_pod_that_reaches_gpus_without_asking_is_shown_and_holds_nothing(more: dict[str, Any], shown: bool) -> None:
    seen = facts(pods=(pod("snoop", **{"reaches": REACHES, **more}),))
    words = "pod team-a/snoop reaches GPUs without asking for one (runtime class nvidia, host path /dev/nvidia0)"
    assert find_unasked(seen, request()) == ((words,) if shown else ())
    assert bool(find_holders(seen, request())) == (more.get("resources") is not None)
    assert find_advice(Goal(VM), node(), seen, request()) == ([words] if shown else [])


def test_who_reaches_gpus_is_not_told_where_holders_are_not_known() -> None:
    assert find_unasked(facts(pods=(holder(reaches=REACHES),), permitted=GONE), request()) == ()
