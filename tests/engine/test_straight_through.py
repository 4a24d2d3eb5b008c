"""What each command does when nothing goes wrong: the order of things, what is left behind, and what is reported."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kubectl_gpu_transition.model import ANNOTATION, FIELD_MANAGER, Mode, Outcome
from kubectl_gpu_transition.record import decode
from kubectl_gpu_transition.report import document, text
from tests.fakes.cluster import CORDON, RECORD
from tests.fakes.world import CLUSTER, DRA, HAMI, NODE, VM, World

ID = "00000000-0000-4000-8000-000000000001"


@pytest.fixture(scope="module")
def done() -> tuple[World, Outcome]:
    """An apply that nothing disturbed."""
    world = World()
    return world, world.run(reason="OPS-7", settle=1.5)


def test_an_apply_ends_with_the_node_at_the_target_and_schedulable(done: tuple[World, Outcome]) -> None:
    world, outcome = done
    assert (outcome.word, outcome.exit_code, outcome.error) == ("completed", 0, None)
    assert world.is_done()
    assert world.cluster.record is None
    assert world.fleet.head == world.fleet.tip, "the checkout has moved forward"
    assert not world.fleet.holding
    assert world.interrupts.held


def test_three_patches_in_this_order_and_no_other(done: tuple[World, Outcome]) -> None:
    world, _ = done
    assert [write.kind for write in world.cluster.writes] == ["dry-run", "cordon", "announce", "uncordon"]


def test_the_cordon_and_the_record_are_one_patch_tied_to_the_node_that_was_checked(done: tuple[World, Outcome]) -> None:
    write = done[0].cluster.writes[1]
    record = write.value(RECORD, "add")
    assert write.operations == [
        {"op": "test", "path": "/metadata/uid", "value": "uid-1"},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": write.before["metadata"]["resourceVersion"]},
        {"op": "add", "path": "/metadata/annotations", "value": {}},
        {"op": "add", "path": CORDON, "value": True},
        {"op": "add", "path": RECORD, "value": record},
    ]
    assert json.loads(record) == {
        "v": 1,
        "id": ID,
        "uid": "uid-1",
        "cluster": CLUSTER,
        "from": "pod-hami",
        "to": "vm-passthrough",
        "phase": "cordoned",
        "base": done[0].fleet.ancestors(done[0].fleet.tip)[1],
        "commit": None,
        "started": "2026-05-01T00:16:40Z",
        "by": "Op@laptop",
        "gpuResources": [],
        "ignoreDraDrivers": [],
        "requireAllocatable": False,
    }


def test_the_dry_run_is_the_cordon_without_its_version(done: tuple[World, Outcome]) -> None:
    dry, real = (write.operations for write in done[0].cluster.writes[:2])
    assert [o["path"] for o in dry] == [o["path"] for o in real if o["path"] != "/metadata/resourceVersion"]


def test_the_push_is_announced_under_the_cordon_and_the_labels_of_before(done: tuple[World, Outcome]) -> None:
    world, _ = done
    cordon, announce = world.cluster.writes[1:3]
    before, after = cordon.value(RECORD, "add"), announce.value(RECORD, "replace")
    assert announce.operations == [
        {"op": "test", "path": "/metadata/uid", "value": "uid-1"},
        {"op": "test", "path": RECORD, "value": before},
        {"op": "test", "path": CORDON, "value": True},
        {"op": "test", "path": "/metadata/labels/kube-dc.com~1gpu.workload-mode", "value": "pod-hami"},
        {"op": "test", "path": "/metadata/labels/kube-dc.com~1gpu.expected-workload-mode", "value": "pod-hami"},
        {"op": "test", "path": "/metadata/labels/nvidia.com~1gpu.workload.config", "value": "container"},
        {"op": "replace", "path": RECORD, "value": after},
    ]
    transaction = decode(before)
    assert transaction is not None
    assert decode(after) == replace(transaction, phase="pushing", commit=world.fleet.tip)


def test_one_commit_goes_out_and_changes_that_file_alone(done: tuple[World, Outcome]) -> None:
    world, _ = done
    (parent, commit, _) = world.fleet.pushes[0]
    old, new = world.fleet.commits[parent].files, world.fleet.commits[commit].files
    assert len(world.fleet.pushes) == 1
    assert {path for path in old if old[path] != new[path]} == {f"clusters/{CLUSTER}/gpu-node-modes/nodefeaturerule.yaml"}
    assert old.keys() == new.keys()
    assert world.fleet.commits[commit].message == (
        f"feat(gpu): transition {NODE} to vm-passthrough\n\n"
        f"Cluster: {CLUSTER}\nFrom: pod-hami\nTo: vm-passthrough\nReason: OPS-7\n\nGpu-Transition-Id: {ID}\n"
    )


def test_the_commit_is_made_before_the_cordon_and_the_node_is_looked_at_twice_before_the_push(done: tuple[World, Outcome]) -> None:
    names = [name for name, _ in done[0].steering.calls if name != "cluster.next_signal"]
    first, *_ = (i for i, name in enumerate(names) if name == "cluster.patch_node")
    assert names[first + 1 : first + 3] == ["fleet.prepare_commit", "cluster.patch_node"]
    look = ["cluster.read_node", "cluster.read_facts"]
    assert names[first + 3 : first + 11] == [
        *look,
        *look,
        "cluster.patch_node",
        "fleet.push_commit",
        "fleet.read_tip",
        "fleet.advance_checkout",
    ]


def test_the_pauses_are_the_settle_time(done: tuple[World, Outcome]) -> None:
    world, _ = done
    cordon, announce, uncordon = world.cluster.writes[1:]
    assert announce.time - cordon.time == pytest.approx(1.5)
    # Everything is there 3 seconds after the labels, which follow the push within a second; then two observations.
    assert 3 + 1.5 <= uncordon.time - announce.time <= 1 + 3 + 1.5 + 0.5


def test_the_uncordon_demands_all_that_was_verified(done: tuple[World, Outcome]) -> None:
    world, _ = done
    announce, uncordon = world.cluster.writes[2:]
    assert uncordon.operations == [
        {"op": "test", "path": "/metadata/uid", "value": "uid-1"},
        {"op": "test", "path": RECORD, "value": announce.value(RECORD, "replace")},
        {"op": "test", "path": CORDON, "value": True},
        {"op": "test", "path": "/metadata/labels/kube-dc.com~1gpu.workload-mode", "value": "vm-passthrough"},
        {"op": "test", "path": "/metadata/labels/kube-dc.com~1gpu.expected-workload-mode", "value": "vm-passthrough"},
        {"op": "test", "path": "/metadata/labels/nvidia.com~1gpu.workload.config", "value": "vm-passthrough"},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": uncordon.before["metadata"]["resourceVersion"]},
        {"op": "remove", "path": CORDON},
        {"op": "remove", "path": RECORD},
    ]


def test_the_report_shows_every_step_the_last_record_and_the_node_as_the_uncordon_left_it(done: tuple[World, Outcome]) -> None:
    world, outcome = done
    shown = document(outcome)
    assert [(step["name"], step["status"]) for step in shown["steps"]] == [
        (name, "done") for name in ("preflight", "cordon", "recheck", "edit", "push", "wait", "uncordon")
    ]
    assert all(step["started"] and step["message"] for step in shown["steps"])
    assert [check["name"] for check in shown["checks"] if check["status"] != "pass"] == ["generator-input"]
    assert shown["transaction"] == json.loads(world.cluster.writes[2].value(RECORD, "replace"))
    assert shown["live"] == {
        "ready": True,
        "unschedulable": False,
        "activeMode": "vm-passthrough",
        "expectedMode": "vm-passthrough",
        "workloadConfig": "vm-passthrough",
        "owners": [{"namespace": "gpu-operator", "name": "nvidia-sandbox-device-plugin-daemonset", "ready": True, "terminating": False}],
    }
    assert (shown["waitingFor"], shown["error"], shown["resumeCommand"], shown["holders"]) == ([], None, None, [])
    assert shown["plan"]["message"].endswith(f"Gpu-Transition-Id: {ID}\n")


def test_context_server_and_remote_are_said_before_the_first_write_and_the_gates_at_the_end(done: tuple[World, Outcome]) -> None:
    world, outcome = done
    lines = world.terminal.lines
    first = next(i for i, line in enumerate(lines) if line.startswith("cordon:"))
    assert [line for line in lines[:first] if line.startswith(("context", "remote"))] == [
        "context dc1-admin, server https://dc1.example:6443",
        "remote origin https://git.example/fleet.git, branch main",
    ]
    assert "gates are still closed" in text(outcome, colour=False)[-1]


PAIRS = [pytest.param(a, b, id=f"{a.value} to {b.value}") for a in (HAMI, DRA, VM) for b in (HAMI, DRA, VM) if a is not b]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_pair_of_modes_works_by_the_same_rules(source: Mode, target: Mode) -> None:
    world = World(source, target)
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert world.is_done()
    assert outcome.checks[0].status == ("pass" if {source, target} == {HAMI, VM} else "warn")


def test_on_the_way_from_vm_passthrough_the_driver_manager_uncordons_and_the_node_is_cordoned_again_at_once() -> None:
    world = World(VM, HAMI)
    times: list[float] = []

    def lift() -> None:
        times.append(world.clock.time)
        world.cluster.uncordon("driver-manager")

    world.on_arrival = lift
    outcome = world.run()
    assert outcome.exit_code == 0, outcome.error
    assert world.cluster.kinds() == ["cordon", "announce", "recordon", "uncordon"]
    recordon = next(write for write in world.cluster.writes if write.kind == "recordon")
    assert recordon.time == times[0]
    assert recordon.operations[1] == {"op": "test", "path": RECORD, "value": world.cluster.writes[2].value(RECORD, "replace")}
    said = next(line for line in world.terminal.lines if "uncordoned by another actor" in line)
    assert "(driver-manager)" in said
    assert said.startswith("2026-05-01T00:16:4")


def test_who_uncordoned_is_unknown_where_nothing_tells() -> None:
    world = World(VM, HAMI)
    world.on_arrival = lambda: world.cluster.uncordon("kube-controller-manager")
    assert world.run().exit_code == 0
    assert any("uncordoned by another actor (unknown)" in line for line in world.terminal.lines)


def test_the_cordon_of_the_program_is_told_by_its_manager() -> None:
    world = World()
    managers: list[Any] = []
    world.steering.after["cluster.patch_node", 2] = lambda: managers.extend((world.cluster.node or {})["metadata"]["managedFields"])
    world.run()
    assert [entry["manager"] for entry in managers] == [FIELD_MANAGER]


@pytest.mark.parametrize("required", [True, False])
def test_the_node_is_given_back_when_it_offers_the_target_where_that_is_asked_for(required: bool) -> None:
    world = World()
    offered: list[float] = []

    def offer() -> None:
        offered.append(world.clock.time)
        world.cluster.change(lambda node: node["status"].update(allocatable={"nvidia.com/GV100": "1", "nvidia.com/gpu": "0"}))

    world.cluster.objects["permitted"] = [
        {"spec": {"configuration": {"permittedHostDevices": {"pciHostDevices": [{"resourceName": "nvidia.com/GV100"}]}}}}
    ]
    world.on_arrival = lambda: world.clock.at(60.0, offer)
    outcome = world.run(require_allocatable=required)
    assert (outcome.word, outcome.exit_code) == ("completed", 0), outcome.error
    uncordon = world.cluster.writes[-1]
    assert bool(offered) == required
    assert not required or uncordon.time > offered[0]
    record = decode(world.cluster.writes[1].value(RECORD, "add"))
    assert record is not None and record.require_allocatable is required
    besides = "besides: allocatable: nothing yet of one of KubeVirt's permitted host devices"
    waited = next(step.message for step in outcome.steps if step.name == "wait")
    assert (besides in waited) == (not required)
    assert any("waiting for" in line and "allocatable: nothing yet" in line for line in world.terminal.lines)


def test_a_resume_asks_for_what_the_record_asks_for() -> None:
    world = World()
    world.cluster.objects["permitted"] = [
        {"spec": {"configuration": {"permittedHostDevices": {"pciHostDevices": [{"resourceName": "nvidia.com/GV100"}]}}}}
    ]
    world.steering.faults["fleet.push_commit", 1] = "dies"
    world.run_to_death(require_allocatable=True)
    outcome = world.resume(timeout=30.0)
    assert (outcome.word, outcome.waiting_for) == (
        "failed-cordoned",
        ("allocatable: nothing yet of one of KubeVirt's permitted host devices",),
    )
    assert "--require-allocatable" in (outcome.resume_command or "")


# ---------------------------------------------------------------- preview


def test_a_preview_reads_and_shows_what_the_apply_then_does(done: tuple[World, Outcome]) -> None:
    world = World()
    before = world.end()
    outcome = world.run("preview", yes=False)
    assert (outcome.word, outcome.exit_code) == ("ready", 0)
    assert world.end() == before
    assert world.cluster.writes == []
    assert {name for name, _ in world.steering.calls} == {
        "cluster.read_node",
        "cluster.read_facts",
        "fleet.read_tip",
        "fleet.read_checkout",
        "fleet.probe_push",
    }
    assert [step.status for step in outcome.steps] == ["done", *["pending"] * 6]
    assert outcome.plan is not None
    assert done[1].plan is not None
    assert outcome.plan.patch == done[1].plan.patch
    assert outcome.plan.diff == done[1].plan.diff
    assert "Gpu-Transition-Id: <id>\n" in outcome.plan.message


def test_a_preview_of_a_resume_makes_no_plan_once_the_change_is_in_force() -> None:
    world = World()
    world.steering.faults["fleet.push_commit", 1] = "dies"
    world.run_to_death()
    world.steering.revive()
    writes = len(world.cluster.writes)
    outcome = world.run("preview", resume=True)
    assert (outcome.word, outcome.plan, outcome.resumed, len(world.cluster.writes)) == ("ready", None, True, writes)


# ---------------------------------------------------------------- already at the target


@pytest.mark.parametrize("command", ["preview", "apply"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_node_that_is_at_the_target_is_left_alone(command: str, resume: bool) -> None:
    world = World(VM)
    world.source, world.target = HAMI, VM
    outcome = world.run(command, resume=resume)
    assert (outcome.word, outcome.exit_code) == ("already-at-target", 0)
    assert world.cluster.writes == []
    assert world.fleet.pushes == []
    kept = {check.name: check.status for check in outcome.checks}
    assert (kept.pop("modes"), kept.pop("fleet-cluster")) == ("pass", "pass")
    assert set(kept.values()) == {"skip"}
    assert ("access" in kept) == (command == "apply")
    assert [step.status for step in outcome.steps] == ["done", *["skipped"] * 6]


# ---------------------------------------------------------------- the question


def test_the_question_is_asked_once_after_the_preflight_and_a_wrong_answer_changes_nothing() -> None:
    world = World()
    world.terminal.answers = ["gpu-2"]
    outcome = world.run(yes=False)
    assert (outcome.word, outcome.exit_code, outcome.resume_command) == ("usage-error", 2, None)
    assert world.cluster.kinds() == []
    assert world.terminal.asked == [
        f"This cordons {NODE}, moves it from pod-hami to vm-passthrough through the fleet, and uncordons it when that is verified."
    ]
    assert world.terminal.lines.index("preflight: 20 checks pass, 0 warn") < world.terminal.lines.index(
        "context dc1-admin, server https://dc1.example:6443"
    )


def test_the_right_answer_goes_on() -> None:
    world = World()
    world.terminal.answers = [NODE]
    assert world.run(yes=False).exit_code == 0
    assert len(world.terminal.asked) == 1


def test_nothing_is_asked_when_the_preflight_fails() -> None:
    world = World()
    world.cluster.cordon()
    assert world.run(yes=False).exit_code == 3
    assert world.terminal.asked == []


# ---------------------------------------------------------------- abandon


def test_an_abandon_gives_a_node_back_whose_change_was_never_made() -> None:
    world = World()
    world.steering.faults["cluster.patch_node", 2] = "dies"
    world.run_to_death()
    world.steering.revive()
    record = world.cluster.record
    outcome = world.run("abandon")
    assert (outcome.word, outcome.exit_code) == ("abandoned", 0), outcome.error
    assert [check.name for check in outcome.checks] == ["fleet-remote", "fleet-rule", "fleet-cluster", "cordon", "holders"]
    assert {check.status for check in outcome.checks} == {"pass"}
    assert world.cluster.kinds() == ["cordon", "uncordon"]
    assert [o["value"] for o in world.cluster.writes[-1].operations if o["op"] == "test"] == [
        "uid-1",
        record,
        True,
        "pod-hami",
        "pod-hami",
        "container",
    ]
    assert (world.cluster.unschedulable, world.cluster.record, world.fleet.carrying()) == (False, None, [])
    assert {step.name: step.status for step in outcome.steps} == {
        "preflight": "done",
        "cordon": "skipped",
        "recheck": "skipped",
        "edit": "skipped",
        "push": "skipped",
        "wait": "done",
        "uncordon": "done",
    }
    shown = document(outcome)
    assert (shown["from"], shown["to"], shown["command"]) == ("pod-hami", "vm-passthrough", "abandon")
    assert "fleet.take_lock" not in {name for name, _ in world.steering.calls}


def test_an_abandon_of_a_node_that_others_uncordoned_only_drops_the_record() -> None:
    world = World()
    world.steering.faults["cluster.patch_node", 2] = "dies"
    world.run_to_death()
    world.steering.revive()
    world.cluster.uncordon()
    outcome = world.run("abandon")
    assert (outcome.word, outcome.exit_code) == ("abandoned", 0), outcome.error
    assert world.cluster.kinds() == ["cordon", "drop"]
    assert CORDON not in {o["path"] for o in world.cluster.writes[-1].operations}
    assert (world.cluster.unschedulable, ANNOTATION in (world.cluster.node or {})["metadata"]["annotations"]) == (False, False)
