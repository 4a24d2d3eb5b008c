"""The command preview: it reads and nothing else, and shows the whole plan (contract sections 3 and 10)."""

from __future__ import annotations

import json
from typing import Any

import jsonpatch
import pytest
from ruamel.yaml import YAML

from tests.e2e.expect import (
    CHECKS,
    assert_only_read,
    assert_passes,
    assert_untouched,
    leave_transaction,
    look,
    report_of,
    show,
    statuses,
    transaction,
    without_times,
)
from tests.harness.gitservers import GitHttpServer
from tests.harness.world import LABEL_ACTIVE, World, gpu_pod, rule_bytes

FORMATS = ("text", "json", "yaml")


def load_yaml(data: bytes) -> Any:
    return YAML(typ="safe", pure=True).load(data.decode())


# It only reads


@pytest.mark.parametrize("output", FORMATS)
def test_a_clean_preview_only_reads(kept_world: World, output: str) -> None:
    before = look(kept_world)
    result = kept_world.run("preview", "-o", output)
    assert result.code == 0, show(result)
    assert_only_read(kept_world, before)
    assert_untouched(kept_world, before)


def test_the_same_preview_prints_the_same_bytes(kept_world: World) -> None:
    for name in ("b", "a", "c"):
        kept_world.add(gpu_pod(name, kept_world.name, namespace="tenant-b" if name == "a" else "tenant-a", phase="Running"))
    kept_world.patch_node({"metadata": {"labels": {"nvidia.com/mig.config.state": "pending", LABEL_ACTIVE: "pod-hami-dra"}}})
    for output in FORMATS:
        first, second = (kept_world.run("preview", "-o", output) for _ in range(2))
        assert first.code == second.code == 3
        assert without_times(first.out) == without_times(second.out)
        assert without_times(first.err) == without_times(second.err)


def test_nothing_is_fetched_when_the_remote_is_ahead(kept_world: World) -> None:
    commit = kept_world.fleet.another_commit_by_somebody()
    before = look(kept_world)
    result = kept_world.run("preview", "-o", "json")
    assert result.code == 3
    assert commit[:12] in result.check("fleet-remote")["message"]
    assert_only_read(kept_world, before)
    assert_untouched(kept_world, before)


def test_nothing_is_written_where_the_index_is_out_of_date(kept_world: World) -> None:
    """Touched files make git refresh its index; a preview leaves even that alone."""
    for path in (kept_world.fleet.checkout / kept_world.fleet.rule_path, kept_world.fleet.checkout / "README.md"):
        path.touch()
    before = look(kept_world)
    assert_passes(kept_world.run("preview", "-o", "json"))
    assert_untouched(kept_world, before)


def test_a_checkout_that_can_not_be_written_is_enough(kept_world: World) -> None:
    """Every file and directory loses its write permission; what a superuser could still write is seen by the comparison."""
    paths = [kept_world.fleet.checkout, *kept_world.fleet.checkout.rglob("*")]
    modes = {path: path.stat().st_mode for path in paths}
    for path in paths:
        path.chmod(modes[path] & ~0o222)
    try:
        before = look(kept_world)
        result = kept_world.run("preview", "-o", "json")
        assert_untouched(kept_world, before)
    finally:
        for path in paths:
            path.chmod(modes[path])
    # An index of files with other permissions than the committed ones is no change to git: it knows the executable bit only.
    assert_passes(result)


# The report and the plan


def test_the_json_report_is_complete(kept_world: World) -> None:
    report = assert_passes(kept_world.run("preview", "-o", "json"))
    head = {key: report[key] for key in ("kind", "command", "cluster", "node", "from", "to", "outcome", "exitCode", "resumed")}
    assert head == {
        "kind": "TransitionReport",
        "command": "preview",
        "cluster": "dc1",
        "node": "gpu-1",
        "from": "pod-hami",
        "to": "vm-passthrough",
        "outcome": "ready",
        "exitCode": 0,
        "resumed": False,
    }
    required = set(CHECKS[: CHECKS.index("access")])
    assert {check["name"] for check in report["checks"] if check["status"] == "pass"} >= required
    assert report["holders"] == report["waitingFor"] == []
    assert report["transaction"] is report["error"] is report["resumeCommand"] is None
    assert report["live"] == {
        "ready": True,
        "unschedulable": False,
        "activeMode": "pod-hami",
        "expectedMode": "pod-hami",
        "workloadConfig": "container",
        "owners": [{"namespace": "gpu-operator", "name": "hami-device-plugin", "ready": True, "terminating": False}],
    }
    assert [step["status"] for step in report["steps"]] == ["done"] + ["pending"] * 6


def test_json_and_yaml_are_one_document(kept_world: World) -> None:
    as_json, as_yaml = (kept_world.run("preview", "-o", output) for output in ("json", "yaml"))
    report_of(as_yaml)
    one, two = as_json.report, as_yaml.report
    assert list(one) == list(two)
    for step in (*one["steps"], *two["steps"]):
        step |= {"started": None, "seconds": 0}
    assert one == two
    assert as_json.out.startswith("{\n") and as_json.out.endswith("}\n")
    assert as_yaml.out.startswith("apiVersion: ")


@pytest.mark.world(cluster="eu/dc1", nodes={"gpu-2": "vm-passthrough", "gpu-1": "pod-hami", "gpu-3": "pod-hami"})
def test_the_plan_is_the_whole_change(world: World) -> None:
    """In a fleet of three nodes, a cluster in a group, the other way round."""
    fleet = world.fleet
    plan = assert_passes(world.run("preview", "-o", "json"))["plan"]
    assert plan["file"] == "clusters/eu/dc1/gpu-node-modes/nodefeaturerule.yaml"
    assert (plan["branch"], plan["remote"]) == ("main", f"origin ({fleet.remote})")

    before = (fleet.checkout / fleet.rule_path).read_bytes()
    after = rule_bytes(world.cluster, {**fleet.nodes, "gpu-2": "pod-hami"})
    operations = [
        (operation["op"], operation["path"].replace("~1", "/").removeprefix("/spec/rules/1/"), operation["value"])
        for operation in plan["patch"]
    ]
    assert operations == [
        ("test", "name", "gpu-2-vm-passthrough"),
        ("test", "labels/kube-dc.com/gpu.workload-mode", "vm-passthrough"),
        ("test", "labels/kube-dc.com/gpu.expected-workload-mode", "vm-passthrough"),
        ("test", "labels/nvidia.com/gpu.workload.config", "vm-passthrough"),
        ("replace", "name", "gpu-2-pod-hami"),
        ("replace", "labels/kube-dc.com/gpu.workload-mode", "pod-hami"),
        ("replace", "labels/kube-dc.com/gpu.expected-workload-mode", "pod-hami"),
        ("replace", "labels/nvidia.com/gpu.workload.config", "container"),
    ]
    # The patch and the diff say the same, each to the tool that it is made for.
    assert jsonpatch.apply_patch(load_yaml(before), plan["patch"]) == load_yaml(after)
    patch = world.root / "plan.diff"
    patch.write_text(plan["diff"])
    clone = fleet.clone("patched")
    fleet.git("apply", str(patch), cwd=clone)
    assert (clone / fleet.rule_path).read_bytes() == after
    assert sum(line.startswith("-") for line in plan["diff"].splitlines()) == 1 + 4

    assert plan["message"].splitlines()[0] == "feat(gpu): transition gpu-2 to pod-hami"
    assert plan["message"].splitlines()[-1] == "Gpu-Transition-Id: <id>"
    for part in ("eu/dc1", "vm-passthrough"):
        assert part in plan["message"]


def test_the_text_shows_checks_and_plan(kept_world: World) -> None:
    report = assert_passes(kept_world.run("preview", "-o", "json"))
    text = kept_world.run("preview").out
    lines = text.splitlines()
    shown = [line.split()[:2] for line in lines[: len(report["checks"])]]
    assert shown == [[check["status"].upper(), check["name"]] for check in report["checks"]]
    starts = {line.index(check["message"]) for line, check in zip(lines, report["checks"], strict=False)}
    assert len(starts) == 1, "the messages are not aligned"
    assert "\x1b" not in text
    plan = report["plan"]
    for part in (*plan["diff"].splitlines(), *plan["message"].splitlines(), plan["file"], plan["remote"], plan["branch"]):
        assert part.rstrip() in text
    places = [
        lines.index(line) for line in lines if all(step in line for step in ("cordon", "recheck", "edit", "push", "wait", "uncordon"))
    ]
    assert places, "the steps are not shown in order"
    assert all(operation["path"] in text for operation in plan["patch"])
    assert "apply dc1 gpu-1" in text


def test_remedies_stand_below_their_checks(kept_world: World) -> None:
    kept_world.cordon()
    result = kept_world.run("preview")
    check = kept_world.run("preview", "-o", "json").check("cordon")
    lines = result.out.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("FAIL"))
    assert "cordon" in lines[at] and check["message"] in lines[at]
    assert lines[at + 1].startswith("     ") and check["remedy"] in lines[at + 1]


# What is not shown


@pytest.fixture
def secret_remote(kept_world: World) -> Any:
    """The fleet's remote over http, with the credential in the URL of the checkout."""
    with GitHttpServer(kept_world.fleet.root, users={"deploy": "s3cret"}) as server:
        url = f"{server.url}/remote.git".replace("://", "://deploy:s3cret@")
        kept_world.fleet.git("remote", "set-url", "origin", url)
        yield url


def test_user_info_of_a_url_is_never_shown(kept_world: World, secret_remote: str) -> None:
    sources = "/apis/source.toolkit.fluxcd.io/v1/namespaces/flux-system/gitrepositories/flux-system"
    elsewhere = secret_remote.replace("/remote.git", "/other.git")  # what Flux reads is shown where it is another repository
    for url, output in ((secret_remote, "json"), (elsewhere, "json"), (elsewhere, "text")):
        kept_world.kube.patch(sources, {"spec": {"url": url}})
        before = look(kept_world)
        result = kept_world.run("preview", "-o", output, "-v")
        assert result.code == 0, show(result)
        assert "127.0.0.1" in result.out
        assert "s3cret" not in result.out + result.err
        assert "deploy" not in result.out + result.err
        assert_only_read(kept_world, before)
        assert_untouched(kept_world, before)


def test_credentials_of_the_kubeconfig_are_never_shown(kept_world: World) -> None:
    result = kept_world.run("preview", "-v", "-o", "json")
    assert_passes(result)
    user = json.loads(kept_world.kubeconfig.read_text())["users"][0]["user"]
    for value in user.values():
        assert str(value)[-40:] not in result.out + result.err


def test_control_characters_of_the_cluster_are_not_shown(kept_world: World) -> None:
    kept_world.kube.patch(
        "/apis/source.toolkit.fluxcd.io/v1/namespaces/flux-system/gitrepositories/flux-system",
        {"spec": {"url": "https://git.example.com/\x1b[2Jfleet\u202e.git"}},
    )
    result = kept_world.run("preview")
    assert result.code == 0, show(result)
    assert "fleet" in result.out
    assert "\x1b" not in result.out + result.err and "\u202e" not in result.out + result.err


# On a transaction that an earlier run left


def test_a_preview_of_a_resume_before_the_push_shows_the_plan(kept_world: World) -> None:
    record = transaction(kept_world, gpuResources=["example.com/gpu"])
    leave_transaction(kept_world, record)
    before = look(kept_world)
    result = kept_world.run("preview", "-o", "json", resume_cordoned=True)
    report = assert_passes(result)
    assert report["resumed"] is True
    assert report["transaction"] == record
    assert report["plan"]["message"].endswith("Gpu-Transition-Id: <id>\n")
    assert record["id"] in result.check("cordon")["message"]
    assert "--resume-cordoned" in kept_world.run("preview", resume_cordoned=True).out
    assert_only_read(kept_world, before)
    assert_untouched(kept_world, before)


def test_a_preview_of_a_resume_after_the_push_has_no_plan(kept_world: World) -> None:
    """Everything that the wait asks for is a warning then, not a refusal."""
    fleet = kept_world.fleet
    record = transaction(kept_world)
    commit = fleet.commit(fleet.rule_path, rule_bytes("dc1", {"gpu-1": "vm-passthrough"}), f"feat: x\n\nGpu-Transition-Id: {record['id']}")
    leave_transaction(kept_world, {**record, "phase": "pushing", "commit": commit})
    kept_world.add(gpu_pod("holder", kept_world.name, phase="Running"))
    before = look(kept_world)
    result = kept_world.run("preview", "-o", "json", resume_cordoned=True)
    report = assert_passes(result)
    assert report["resumed"] is True and report["plan"] is None
    found = statuses(result)
    assert (found["cordon"], found["fleet-rule"], found["holders"], found["live-mode"]) == ("pass", "pass", "warn", "warn")
    assert [holder["name"] for holder in report["holders"]] == ["holder"]
    assert_only_read(kept_world, before)
    assert_untouched(kept_world, before)


def test_a_preview_of_a_node_that_is_already_there_says_so(kept_world: World) -> None:
    """Neither gates nor holders matter then, and the checks that it makes moot are left out."""
    kept_world.fleet.set_gate("GPU_VM_CREATION_ENABLED", "true")
    kept_world.add(gpu_pod("holder", kept_world.name, phase="Running"))
    before = look(kept_world)
    result = kept_world.run("preview", "-o", "json", from_="vm-passthrough", to="pod-hami")
    assert result.code == 0, show(result)
    report = report_of(result)
    assert report["outcome"] == "already-at-target"
    assert report["plan"] is None
    assert {name for name, status in statuses(result).items() if status == "skip"} >= {
        "creation-gates",
        "fleet-remote",
        "holders",
        "cordon",
    }
    assert_only_read(kept_world, before)
    assert_untouched(kept_world, before)
