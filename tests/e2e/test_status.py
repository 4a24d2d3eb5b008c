"""``status``: where each node stands, read in a few lists, and what is left to do (spec section 7)."""

from __future__ import annotations

from collections.abc import Iterator

import jsonschema
import pytest

from tests.harness.faultproxy import FaultProxy
from tests.harness.kube import Json
from tests.harness.world import ANNOTATION, FLUX, NODES, Result, World, gpu_pod

from .expect import assert_only_read, assert_untouched, assert_usage_error, look, schema
from .test_resume import annotate, stop_after_push, stop_before_push

KEYS = ["apiVersion", "kind", "command", "cluster", "outcome", "exitCode", "error", "nodes"]
NODE_KEYS = [
    "node",
    "fleetMode",
    "live",
    "cordonedBy",
    "transaction",
    "transactionAgeSeconds",
    "commitInBranch",
    "holders",
    "next",
]


def status(world: World, code: int = 0, *args: str, **options: object) -> Json:
    """A status that only reads; its report, as the schema and the contract say."""
    before = look(world)
    result = world.run("status", "-o", "json", *args, **options)
    assert result.code == code, result
    assert_only_read(world, before)
    assert_untouched(world, before)
    report = result.report
    jsonschema.Draft202012Validator(schema()).validate(report)
    assert list(report) == KEYS
    assert all(list(node) == NODE_KEYS for node in report["nodes"])
    assert (report["kind"], report["exitCode"], report["outcome"] == "ok") == ("StatusReport", code, code == 0)
    return report


def shown(report: Json, name: str = "gpu-1") -> Json:
    """One node of a report."""
    found: Json = next(node for node in report["nodes"] if node["node"] == name)
    return found


@pytest.mark.world(nodes={"gpu-2": "vm-passthrough", "gpu-1": "pod-hami"})
def test_every_node_of_the_rule_in_order(world: World) -> None:
    world.add(gpu_pod("tenant", "gpu-1", phase="Running"))
    report = status(world, node=None)
    assert [node["node"] for node in report["nodes"]] == ["gpu-1", "gpu-2"]
    assert shown(report) == {
        "node": "gpu-1",
        "fleetMode": "pod-hami",
        "live": {
            "ready": True,
            "unschedulable": False,
            "activeMode": "pod-hami",
            "expectedMode": "pod-hami",
            "workloadConfig": "container",
            "owners": [{"namespace": "gpu-operator", "name": "hami-device-plugin", "ready": True, "terminating": False}],
        },
        "cordonedBy": None,
        "transaction": None,
        "transactionAgeSeconds": None,
        "commitInBranch": None,
        "holders": 1,
        "next": None,
    }
    assert (shown(report, "gpu-2")["fleetMode"], shown(report, "gpu-2")["holders"]) == ("vm-passthrough", 0)
    assert shown(status(world, node="gpu-1")) == shown(report)


def test_a_transaction_before_its_push(world: World) -> None:
    left = stop_before_push(world)
    for report in (status(world), status(world, node=None)):
        node = shown(report)
        assert (node["transaction"], node["cordonedBy"], node["commitInBranch"]) == (left, "transaction", False)
        assert 0 <= node["transactionAgeSeconds"] < 600
        assert "--resume-cordoned" in node["next"] and "gpu-transition abandon" in node["next"]


def test_a_transaction_after_its_push_can_be_finished_by_the_command_that_is_shown(world: World) -> None:
    left = stop_after_push(world)
    node = shown(status(world))
    assert (node["transaction"], node["fleetMode"], node["commitInBranch"]) == (left, "vm-passthrough", True)
    assert "--resume-cordoned" in node["next"] and "abandon" not in node["next"]


def test_a_node_that_was_uncordoned_by_hand_is_shown_as_unprotected(world: World) -> None:
    stop_before_push(world)
    world.uncordon()
    node = shown(status(world))
    assert (node["cordonedBy"], node["live"]["unschedulable"]) == (None, False)
    assert node["next"].startswith("it is SCHEDULABLE with an unfinished transaction")


def test_a_change_that_was_reverted_says_what_is_left(world: World) -> None:
    left = stop_after_push(world)
    world.fleet.revert_by_somebody(world.fleet.commits_with(left["id"])[0])
    node = shown(status(world))
    assert (node["fleetMode"], node["commitInBranch"]) == ("pod-hami", True)
    assert "reverted" in node["next"] and "gpu-transition abandon" in node["next"]


def test_somebody_s_cordon_and_a_record_that_is_not_ours(world: World) -> None:
    world.cordon()
    assert shown(status(world))["cordonedBy"] not in (None, "transaction")
    annotate(world, {"v": 1})
    node = shown(status(world))
    assert node["transaction"] is None
    assert f"{ANNOTATION}-" in node["next"]


def test_a_node_that_the_rule_names_and_the_cluster_does_not_have(world: World) -> None:
    world.kube.delete(f"{NODES}/{world.name}", 0)
    node = shown(status(world))
    assert (node["live"], node["fleetMode"], node["holders"]) == (None, "pod-hami", None)
    assert "no such node" in node["next"]


def test_a_node_that_nobody_knows(world: World) -> None:
    report = status(world, 3, node="gpu-99")
    assert report["error"]["id"] == "node-unknown"


def test_another_cluster_is_refused_and_nothing_of_it_shown(world: World) -> None:
    world.player.flux.paused = True
    world.kube.patch(f"{FLUX}/gpu-node-mode", {"spec": {"path": "./clusters/other/gpu-node-modes"}})
    report = status(world, 3)
    assert (report["nodes"], "it is another cluster" in report["error"]["message"]) == ([], True)


@pytest.fixture
def proxy(world: World) -> Iterator[FaultProxy]:
    with FaultProxy(world.backend) as proxy:
        world.kubeconfig = world.through(proxy)
        yield proxy


UNREAD: list[tuple[str, dict[str, object]]] = [
    ("/pods$", {"holders": None}),
    ("/kubevirts$", {"holders": None}),
    ("/kustomizations$", {"holders": 0, "fleetMode": "pod-hami"}),
]


@pytest.mark.parametrize(("path", "left"), UNREAD)
@pytest.mark.parametrize("every", [True, False])
def test_what_could_not_be_read_is_null_and_named(world: World, proxy: FaultProxy, path: str, left: dict[str, object], every: bool) -> None:
    proxy.on("list", path, reply=(403, None))
    report = status(world, 3, **({"node": None} if every else {}))
    assert report["error"]["id"] == "status-unread"
    assert path.strip("/$") in report["error"]["message"] or "holders" in report["error"]["message"]
    assert {key: shown(report)[key] for key in left} == left


def test_a_remote_that_does_not_answer_leaves_what_the_cluster_tells(world: World) -> None:
    world.fleet.remote.rename(world.fleet.remote.with_name("away"))
    report = status(world, 3)
    assert (shown(report)["fleetMode"], shown(report)["live"]["activeMode"]) == (None, "pod-hami")
    world.fleet.remote.with_name("away").rename(world.fleet.remote)


@pytest.mark.world(nodes={f"gpu-{index}": "pod-hami" for index in range(1, 41)})
def test_a_whole_fleet_is_read_in_one_list_of_each_kind(world: World, proxy: FaultProxy) -> None:
    """Nothing is asked for a node by itself, and a list has its pages."""
    report = status(world, node=None)
    assert len(report["nodes"]) == 40
    assert {request.verb for request in proxy.requests} == {"list"}
    served = [request for request in proxy.requests if request.code == 200]
    kinds = sorted(request.path.rpartition("/")[2] for request in served)
    assert kinds == sorted(set(kinds)) and {"nodes", "pods"} <= set(kinds)
    assert {request.query["limit"] for request in served} == {"500"}


def test_the_text_has_a_line_for_each_node_and_what_to_do(world: World) -> None:
    left = stop_before_push(world)
    result: Result = world.run("status", node=None)
    assert result.code == 0, result
    lines = result.out.splitlines()
    assert lines[0].split() == ["NODE", "FLEET", "LIVE", "READY", "CORDON", "OWNERS", "HOLDERS"]
    row = next(line for line in lines if line.startswith(world.name))
    assert row.split() == [world.name, "pod-hami", "pod-hami", "True", "transaction", "hami-device-plugin", "(Ready)", "0"]
    assert any(left["id"] in line and "not in the branch" in line for line in lines)
    assert any(line.strip().startswith("-> resume: kubectl gpu-transition apply") for line in lines)
    assert lines[-1].startswith("ok: ")


def test_a_cluster_that_the_fleet_does_not_have(world: World) -> None:
    report = status(world, 3, cluster="nowhere")
    assert report["nodes"] == [] or report["nodes"][0]["fleetMode"] is None


def test_options_of_other_commands_are_not_taken(world: World) -> None:
    for option in ("--yes", "--resume-cordoned", "--ignore-missing-gitops", "--from"):
        assert_usage_error(world.run("status", option), option)
