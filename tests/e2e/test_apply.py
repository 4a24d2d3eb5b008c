"""A whole ``apply``, from a schedulable node in one mode to a schedulable node in another, over every way to the fleet's remote."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.faultproxy import FaultProxy
from tests.harness.gitservers import GitHttpServer, SshServer
from tests.harness.kube import Json
from tests.harness.world import ANNOTATION, NODES, SOURCES, World, clean_environment, gpu_pod, pod

from .expect import STEPS, report_of
from .transitions import (
    accepted,
    assert_checkout_is_at,
    assert_completed,
    assert_resumes,
    assert_safe,
    is_announcement,
    is_cordon,
    is_recordon,
    is_uncordon,
)

KUBECTL = Path(sys.executable).parent / "kubectl"
TOKEN = "t0p-s3cret"
DEVICE = {"name": "device", "hostPath": {"path": "/dev/nvidia0"}}


# From every mode to every other


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("pod-hami", "vm-passthrough"),
        ("vm-passthrough", "pod-hami"),
        ("pod-hami", "pod-hami-dra"),
        ("pod-hami-dra", "pod-hami"),
        ("pod-hami-dra", "vm-passthrough"),
        ("vm-passthrough", "pod-hami-dra"),
    ],
)
def test_a_node_goes_from_any_mode_to_any_other(make_world: Callable[..., World], source: str, target: str) -> None:
    world = make_world(nodes={"gpu-1": source, "gpu-2": source})
    others = world.node("gpu-2")
    base = world.fleet.tip()

    result = world.run("apply", "-o", "json", from_=source, to=target)

    record = assert_completed(world, result, target)
    assert record["base"] == base
    assert record["commit"] == world.fleet.tip() == world.fleet.head()
    assert world.fleet.modes() == {"gpu-1": target, "gpu-2": source}
    assert [len(accepted(world, kind)) for kind in (is_cordon, is_announcement, is_recordon, is_uncordon)] == [1, 1, 0, 1]
    assert len([request for request in world.writes() if request["code"] < 300]) == 3
    now = world.node("gpu-2")
    assert (now["spec"], now["metadata"]["labels"]) == (others["spec"], others["metadata"]["labels"])
    is_qualified = "pod-hami-dra" not in (source, target)
    assert result.check("modes")["status"] == ("pass" if is_qualified else "warn")


def test_flux_is_asked_to_reconcile_at_once_where_that_is_wanted(world: World) -> None:
    world.player.flux.only_on_request = True
    result = world.run("apply", "-o", "json", "--reconcile", timeout="60s")
    assert_completed(world, result)
    asked = [request for request in world.writes() if "toolkit.fluxcd.io" in request["path"]]
    assert [request["path"].split("/")[-2:] for request in asked] == [
        ["gitrepositories", "flux-system"],
        ["kustomizations", "gpu-node-mode"],
    ]
    waited = next(step["message"] for step in result.report["steps"] if step["name"] == "wait")
    assert f"Flux has applied main@{world.fleet.tip()[:12]}, which has the change" in waited
    assert "asked to reconcile: source done, Kustomization done" in waited


@pytest.mark.parametrize(("source", "target"), [("pod-hami", "vm-passthrough"), ("vm-passthrough", "pod-hami")])
def test_a_node_is_given_back_when_it_offers_the_target_where_that_is_asked_for(
    make_world: Callable[..., World], source: str, target: str
) -> None:
    world = make_world(nodes={"gpu-1": source})
    world.player.kubelet.devices = False
    stopped = world.run("apply", "-o", "json", "--require-allocatable", from_=source, to=target, timeout="6s")
    report = assert_safe(world, stopped, "timeout", phase="pushing", pushed=True)
    assert report["transaction"]["requireAllocatable"] is True
    assert [item.split(":")[0] for item in report["waitingFor"]] == ["allocatable", "allocatable"], report["waitingFor"]
    world.player.kubelet.devices = True
    record = assert_resumes(world, stopped, target)
    assert record["requireAllocatable"] is True


def test_what_the_node_offers_is_shown_and_decides_nothing_where_it_is_not_asked_for(world: World) -> None:
    world.player.kubelet.devices = False
    world.add(pod("snoop", "gpu-1", phase="Running", volumes=[DEVICE]))
    result = world.run("apply", "-o", "json")
    assert_completed(world, result)
    assert result.check("holders")["status"] == "warn"
    waited = next(step["message"] for step in result.report["steps"] if step["name"] == "wait")
    for words in ("allocatable: nothing yet", "allocatable: still nvidia.com/gpu", "pod tenant-a/snoop reaches GPUs without asking"):
        assert words in waited


def test_the_record_is_on_the_node_from_the_cordon_to_the_uncordon(world: World) -> None:
    node = world.node()
    base = world.fleet.tip()
    result = world.run("apply", "-o", "json")
    record = assert_completed(world, result)
    cordon, announcement, uncordon = (accepted(world, kind)[0]["requestObject"] for kind in (is_cordon, is_announcement, is_uncordon))

    first = json.loads(next(item["value"] for item in cordon if item["path"].startswith("/metadata/annotations/")))
    assert first == {**record, "phase": "cordoned", "base": base, "commit": None}
    assert {"op": "test", "path": "/metadata/uid", "value": node["metadata"]["uid"]} in cordon
    assert {"op": "replace", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]} in cordon
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", record["id"])
    assert record["uid"] == node["metadata"]["uid"]
    assert record["by"].startswith("fleet operator@")
    values = {item["path"]: item["value"] for item in announcement if item["op"] == "test"}
    assert json.loads(values["/metadata/annotations/kube-dc.com~1gpu-transition"]) == first
    assert values["/spec/unschedulable"] is True
    assert values["/metadata/labels/kube-dc.com~1gpu.workload-mode"] == "pod-hami"
    assert all(request["query"].get("fieldManager") == "kubectl-gpu-transition" for request in world.writes())
    assert uncordon


def test_the_uncordon_is_tied_to_the_second_of_two_looks(world: World) -> None:
    """Everything is read afresh twice, at least the settle time apart, the node first; the patch names the second look's version."""
    seen: list[tuple[float, str, str]] = []

    def keep(code: int, body: Json) -> tuple[int, Json]:
        seen.append((proxy.requests[-1].time, proxy.requests[-1].path, body["metadata"]["resourceVersion"]))
        return code, body

    with FaultProxy(world.backend) as proxy:
        proxy.on("get", f"^{NODES}/gpu-1$", rewrite=keep)
        result = world.run("apply", "-o", "json", kubeconfig=world.through(proxy))
        assert_completed(world, result)
        sent = next(request for request in proxy.requests if is_uncordon(request))
        looks = [request for request in proxy.requests if request.verb == "get" and request.path == f"{NODES}/gpu-1"][-2:]
        bound = {"fieldSelector": "spec.nodeName=gpu-1"}
        lists = [request for request in proxy.requests if request.verb == "list" and request.path == "/api/v1/pods"]
        pods = [request.time for request in lists if bound.items() <= request.query.items()][-2:]
    version = next(item["value"] for item in sent.json if item["path"] == "/metadata/resourceVersion")
    assert version == seen[-1][2]
    assert looks[1].time - looks[0].time >= 1.0
    assert sent.time - looks[1].time < 5
    assert looks[0].time <= pods[0] < looks[1].time <= pods[1] <= sent.time


def test_a_node_that_is_already_there_is_left_alone(world: World) -> None:
    before = world.fleet.snapshot()
    tip = world.fleet.tip()

    result = world.run("apply", "-o", "json", from_="vm-passthrough", to="pod-hami")

    report = report_of(result)
    assert (result.code, report["outcome"]) == (0, "already-at-target")
    assert (report["transaction"], report["plan"], report["error"]) == (None, None, None)
    assert {check["name"]: check["status"] for check in report["checks"] if check["status"] != "skip"}.keys() >= {"fleet-cluster"}
    assert world.writes() == []
    assert [request for request in world.requests() if "dryRun" in request["query"]] == []
    assert world.fleet.snapshot() == before
    assert world.fleet.tip() == tip


# Uncordons by others


@pytest.mark.world(nodes={"gpu-1": "vm-passthrough"}, driver_manager=True)
def test_an_uncordon_by_the_driver_manager_is_undone_and_told(world: World) -> None:
    result = world.run("apply", "-o", "json")

    record = assert_completed(world, result, "pod-hami")
    assert [name for _, name in world.player.driver_manager.uncordons] == ["gpu-1"]
    again = accepted(world, is_recordon)
    assert len(again) == 1
    tests = {item["path"]: item["value"] for item in again[0]["requestObject"] if item["op"] == "test"}
    assert json.loads(tests["/metadata/annotations/kube-dc.com~1gpu-transition"]) == record
    assert again[0]["time"] - world.player.driver_manager.uncordons[0][0] < 5
    assert re.search(
        r"^\d{4}-\d\d-\d\dT\S+Z the node was uncordoned by another actor \(.+\) and is cordoned again$", result.err, re.MULTILINE
    )
    assert "others uncordoned it 1x" in result.step("wait")["message"]


@pytest.mark.world(nodes={"gpu-1": "vm-passthrough"})
def test_a_node_that_is_uncordoned_too_often_is_given_up(world: World) -> None:
    world.player.driver_manager.times = 100
    result = world.run("apply", "-o", "json")
    world.player.driver_manager.paused = True

    assert_safe(world, result, "uncordoned-again", phase="pushing", pushed=True, schedulable=True)
    assert len(accepted(world, is_recordon)) == 20
    assert len(world.player.driver_manager.uncordons) == 21

    assert_resumes(world, result, "pod-hami")
    assert len(accepted(world, is_recordon)) == 21


# What people see


def test_the_text_of_a_completed_apply(world: World) -> None:
    result = world.run("apply", reason="OPS-12: two more VMs")

    record = assert_completed(world, None, reason="OPS-12: two more VMs")
    assert result.code == 0
    lines = result.out.rstrip("\n").split("\n")
    assert lines[-1] == "Both creation gates are still closed; opening them is your own reviewed change."
    assert re.fullmatch(r"completed: gpu-1 is in vm-passthrough and schedulable \(\d+ s\)", lines[-2])
    steps = [match for line in lines if (match := re.fullmatch(r"DONE  (\S+) +(\d+\.\d) s  (.+)", line))]
    assert [match[1] for match in steps] == list(STEPS)
    assert float(steps[STEPS.index("recheck")][2]) >= 1.0
    assert [line.split()[1] for line in lines if line.startswith("PASS  ")][:2] == ["modes", "cluster-overlay"]
    assert "\x1b" not in result.out + result.err
    context, server, remote = (
        re.search(text, result.err, re.MULTILINE) for text in (r"^context admin@test", r"server https://", r"^remote origin")
    )
    cordon = result.err.index("cordon: gpu-1 is cordoned")
    assert all(found is not None and found.start() < cordon for found in (context, server, remote))
    assert record["id"] in result.err
    assert "waiting for" in result.err


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_standard_output_holds_one_document(world: World, output: str) -> None:
    result = world.run("apply", output=output)
    assert_completed(world, result)
    if output == "json":
        assert json.loads(result.out)["kind"] == "TransitionReport"
        assert result.out.startswith("{") and result.out.endswith("}\n")
    else:
        assert result.out.count("kind: TransitionReport") == 1
        assert result.out.startswith("apiVersion: gpu-transition.kube-dc.com/v1\n")


def test_a_typed_name_confirms(world: World) -> None:
    running = world.start("apply", "-o", "json", tty=True, yes=None)
    running.wait_for_stderr("Type the node's name")
    assert world.writes() == []
    running.type("gpu-1\n")
    assert_completed(world, running.wait())


def test_a_slow_confirmation_is_checked_again(world: World) -> None:
    """What was seen more than 10 s ago is no ground for a cordon."""
    running = world.start("apply", "-o", "json", tty=True, yes=None)
    running.wait_for_stderr("Type the node's name")
    world.add(gpu_pod("late", world.name))
    time.sleep(10.2)
    running.type("gpu-1\n")
    result = running.wait()
    report = report_of(result)
    assert (result.code, report["outcome"], result.check("holders")["status"]) == (3, "blocked", "fail")
    assert world.writes() == []


# How it is started


def test_kubectl_finds_the_plugin(world: World, zipapp: Path) -> None:
    plugins = world.root / "plugins"
    plugins.mkdir()
    (plugins / "kubectl-gpu_transition").symlink_to(zipapp)
    environment = clean_environment(world.home)
    environment["PATH"] = f"{plugins}:{KUBECTL.parent}:{environment['PATH']}"
    done = subprocess.run(
        ["kubectl", "gpu-transition", *world.arguments("apply")],
        env=environment,
        cwd=world.root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert_completed(world, None)


def test_a_context_is_named(world: World) -> None:
    config = json.loads(world.kubeconfig.read_text())
    config["clusters"].append({"name": "elsewhere", "cluster": {"server": "https://127.0.0.1:1"}})
    config["contexts"].append({"name": "wrong", "context": {"cluster": "elsewhere", "user": "admin"}})
    config["current-context"] = "wrong"
    path = world.root / "two.kubeconfig"
    path.write_text(json.dumps(config))

    refused = world.run("apply", "-o", "json", kubeconfig=path)
    assert report_of(refused)["outcome"] == "blocked"
    result = world.run("apply", "-o", "json", kubeconfig=path, context="admin@test")

    assert_completed(world, result)
    assert "context admin@test, server " in result.err


@pytest.mark.world(cluster="eu/dc1", nodes={"gpu-1.example.com": "pod-hami"})
def test_a_cluster_below_a_folder_and_a_node_with_dots(world: World) -> None:
    assert_completed(world, world.run("apply", "-o", "json"))


# Over every way to the remote


def follow_url(world: World, url: str) -> None:
    """Let the cluster's source name the remote as the checkout does."""
    world.kube.patch(f"{SOURCES}/flux-system", {"spec": {"url": url}})
    world.fleet.git("remote", "set-url", "origin", url)


def assert_nothing_tells(world: World, secret: str, *texts: str) -> None:
    """The secret is in none of the texts, in no request, commit or object of the node."""
    places = [*texts, json.dumps(world.requests()), json.dumps(world.node()), world.fleet.message(world.fleet.tip())]
    assert all(secret not in place for place in places)
    for path in (world.fleet.checkout / ".git").rglob("*"):
        assert not path.is_file() or path.name == "config" or secret.encode() not in path.read_bytes()


def test_a_remote_over_https_with_a_token_from_the_environment(world: World) -> None:
    with GitHttpServer(world.fleet.root, users={"kube-dc": TOKEN}, tls=True, workdir=world.root) as server:
        follow_url(world, f"{server.url.replace('://', '://kube-dc@')}/remote.git")
        world.fleet.git("config", "http.sslCAInfo", str(server.ca_file))
        result = world.run("apply", "-o", "json", "-v", env={"FLEET_TOKEN": TOKEN}, token_env="FLEET_TOKEN")
        pushes = [(request.user, request.code) for request in server.requests if request.kind == "push"]
    assert_completed(world, result)
    assert pushes == [("kube-dc", 200)]
    assert result.check("fleet-cluster")["status"] == "pass"
    assert_nothing_tells(world, TOKEN, result.out, result.err)


def test_a_remote_over_https_with_a_credential_helper(world: World) -> None:
    helper = world.root / "helper"
    helper.write_text(f"#!/bin/sh\n[ \"$1\" = get ] && printf 'username=kube-dc\\npassword={TOKEN}\\n'\nexit 0\n")
    helper.chmod(0o755)
    with GitHttpServer(world.fleet.root, users={"kube-dc": TOKEN}, tls=True, workdir=world.root) as server:
        follow_url(world, f"{server.url}/remote.git")
        world.fleet.git("config", "http.sslCAInfo", str(server.ca_file))
        world.fleet.git("config", "credential.helper", str(helper))
        result = world.run("apply", "-o", "json", "-v")
    assert_completed(world, result)
    assert_nothing_tells(world, TOKEN, result.out, result.err)


def test_a_remote_over_https_without_a_credential_is_refused_before_the_cordon(world: World) -> None:
    with GitHttpServer(world.fleet.root, users={"kube-dc": TOKEN}) as server:
        follow_url(world, f"{server.url}/remote.git")
        result = world.run("apply", "-o", "json", env={"FLEET_TOKEN": "not-the-token"}, token_env="FLEET_TOKEN")
    report_of(result)
    assert (result.code, result.check("fleet-remote")["status"]) == (3, "fail")
    assert world.writes() == []
    assert "not-the-token" not in result.out + result.err


@pytest.mark.ssh
def test_a_remote_over_ssh(world: World) -> None:
    with SshServer(world.fleet.root, world.root / "ssh") as server:
        follow_url(world, server.url("remote.git"))
        world.fleet.git("config", "core.sshCommand", server.ssh_command())
        result = world.run("apply", "-o", "json")
    assert_completed(world, result)


def test_a_remote_by_file_url(world: World) -> None:
    follow_url(world, f"file://{world.fleet.remote}")
    assert_completed(world, world.run("apply", "-o", "json"))


def test_a_linked_work_tree(world: World) -> None:
    linked = world.root / "linked"
    world.fleet.git("checkout", "--quiet", "--detach")
    world.fleet.git("worktree", "add", "--quiet", str(linked), "main")
    before = (world.fleet.head(), (world.fleet.checkout / world.fleet.rule_path).read_bytes())

    result = world.run("apply", "-o", "json", repo=linked)

    assert_completed(world, result, checkout=linked)
    assert (world.fleet.head(), (world.fleet.checkout / world.fleet.rule_path).read_bytes()) == before
    assert world.fleet.git("status", "--porcelain") == ""


def test_packed_refs_and_objects(world: World) -> None:
    for place in (world.fleet.checkout, world.fleet.remote):
        world.fleet.git("pack-refs", "--all", cwd=place)
        world.fleet.git("gc", "--quiet", cwd=place)
    assert not (world.fleet.checkout / ".git/refs/heads/main").exists()
    assert_completed(world, world.run("apply", "-o", "json"))


def test_there_and_back_again(world: World) -> None:
    """Two transitions from one checkout: the second starts where the first has left everything."""
    assert world.run("apply").code == 0
    world.since = world.backend.mark()
    first = world.fleet.tip()

    result = world.run("apply", "-o", "json", from_="vm-passthrough", to="pod-hami")

    report = report_of(result)
    assert (result.code, report["outcome"]) == (0, "completed")
    assert world.fleet.log()[:2] == [report["transaction"]["commit"], first]
    assert world.fleet.rule_at() == world.fleet.rule_at(f"{first}~1")
    assert_checkout_is_at(world, report["transaction"]["commit"])
    assert ANNOTATION not in world.node()["metadata"]["annotations"]
    assert not world.is_cordoned()
