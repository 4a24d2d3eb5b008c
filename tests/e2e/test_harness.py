"""The harness itself, on both servers: what the other end-to-end tests take for granted."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.faultproxy import FaultProxy
from tests.harness.gitservers import GitHttpServer, SshServer
from tests.harness.kube import ApiError, Json, Kube
from tests.harness.world import (
    FLUX,
    LOSE_THE_ANSWER,
    NODES,
    OWNERS,
    POD_RESOURCE,
    REJECT,
    RULES,
    VM_RESOURCE,
    Fleet,
    World,
    clean_environment,
    gpu_pod,
    object_name,
    pod,
    rule_bytes,
)

HAMI, SANDBOX = OWNERS["pod-hami"][1], OWNERS["vm-passthrough"][1]


# The world and the player


def test_the_world_comes_up_in_mode_pod_hami(world: World) -> None:
    node = world.node()
    assert world.mode() == "pod-hami"
    assert world.owners() == [HAMI]
    assert node["status"]["allocatable"][POD_RESOURCE] == "20"
    assert not world.is_cordoned()
    assert world.annotation() is None
    assert world.fleet.head() == world.fleet.tip() == world.player.flux.applied
    live = world.kube.get(f"{RULES}/{object_name(world.cluster)}")
    assert live["spec"]["rules"][0]["name"] == "gpu-1-pod-hami"


@pytest.mark.world(cluster="eu/dc1", nodes={"gpu-1": "vm-passthrough", "gpu-2": "pod-hami"})
def test_a_pushed_rule_moves_labels_owners_and_devices(world: World) -> None:
    commit = world.fleet.set_modes({"gpu-1": "pod-hami"})

    world.wait_until(lambda: world.mode() == "pod-hami" and world.owners() == [HAMI], "the node to move")
    offered = {VM_RESOURCE: "0", POD_RESOURCE: "20"}
    world.wait_until(lambda: offered.items() <= world.node()["status"]["allocatable"].items(), "the devices to follow")
    assert world.player.flux.applied == commit
    assert world.mode("gpu-2") == "pod-hami"
    labels = world.node()["metadata"]["labels"]
    assert labels["nvidia.com/gpu.deploy.driver"] == "true"
    assert "nvidia.com/gpu.deploy.sandbox-device-plugin" not in labels
    applied = world.kube.get(f"{FLUX}/gpu-node-mode")["status"]["lastAppliedRevision"]
    assert applied == f"main@sha1:{commit}"
    assert world.fleet.modes() == {"gpu-1": "pod-hami", "gpu-2": "pod-hami"}


def test_a_paused_flux_holds_the_change_back(world: World) -> None:
    world.player.flux.paused = True
    world.fleet.set_modes({"gpu-1": "vm-passthrough"})
    time.sleep(0.5)
    assert world.mode() == "pod-hami"
    world.player.flux.paused = False
    world.wait_until(lambda: world.owners() == [SANDBOX], "the change to arrive")


def test_a_broken_kustomization_stops_what_depends_on_it(world: World) -> None:
    world.player.flux.broken["infra-core"] = "kustomize build failed"
    commit = world.fleet.set_modes({"gpu-1": "vm-passthrough"})

    def reason() -> str:
        return str(world.kube.get(f"{FLUX}/gpu-node-mode")["status"]["conditions"][0]["reason"])

    world.wait_until(lambda: reason() == "DependencyNotReady", "the dependency to count")
    assert world.mode() == "pod-hami"
    world.player.flux.broken.clear()
    world.wait_until(lambda: world.player.flux.applied == commit, "the change to arrive")


def test_the_kubelet_holds_pods_up_where_told(world: World) -> None:
    world.player.kubelet.behave(f"gpu-operator/{HAMI}", stop="never")
    world.player.kubelet.behave(f"gpu-operator/{SANDBOX}", start="init-crash-loop")
    world.fleet.set_modes({"gpu-1": "vm-passthrough"})

    def stuck() -> bool:
        pods = {item["metadata"]["name"].rpartition("-")[0]: item for item in world.pods()}
        has_both = HAMI in pods and SANDBOX in pods
        return has_both and "deletionTimestamp" in pods[HAMI]["metadata"] and "initContainerStatuses" in pods[SANDBOX]["status"]

    world.wait_until(stuck, "one pod to hang on and the other not to start")
    assert world.owners() == []
    world.player.kubelet.heal()
    world.wait_until(lambda: world.owners() == [SANDBOX] and len(world.pods()) == 1, "both to be healed")


@pytest.mark.world(nodes={"gpu-1": "vm-passthrough"}, driver_manager=True)
def test_the_driver_manager_uncordons_once(world: World) -> None:
    world.cordon()
    world.fleet.set_modes({"gpu-1": "pod-hami"})
    world.wait_until(lambda: not world.is_cordoned(), "the driver manager to uncordon")
    world.cordon()
    time.sleep(0.5)
    assert world.is_cordoned()
    assert [name for _, name in world.player.driver_manager.uncordons] == ["gpu-1"]


def test_holders_come_and_go(world: World) -> None:
    holder = world.add(gpu_pod("trainer", world.name))
    machine, launcher = world.add_vm()
    finished = world.add(pod("done", world.name, phase="Succeeded"))
    world.wait_until(lambda: (world.get(holder) or {})["status"]["phase"] == "Running", "the pod to run")
    assert machine["status"]["activePods"] == {launcher["metadata"]["uid"]: world.name}
    assert (world.get(finished) or {})["status"]["phase"] == "Succeeded"
    world.remove(holder, grace=None)
    world.wait_until(lambda: world.get(holder) is None, "the pod to end")
    assert (world.get(launcher) or {})["status"]["phase"] == "Running"


@pytest.mark.needs("resource.k8s.io/v1")
def test_a_dra_owner_publishes_a_slice(make_world: Callable[..., World]) -> None:
    world = make_world(nodes={"gpu-1": "pod-hami-dra"})
    slices = world.wait_until(lambda: world.kube.list("/apis/resource.k8s.io/v1/resourceslices"), "the slice")
    assert slices[0]["spec"]["nodeName"] == "gpu-1"


# The server


def test_requests_are_logged_by_user(world: World) -> None:
    mark = world.backend.mark()
    client = world.backend.client(user_agent="somebody/2")
    patch = [{"op": "add", "path": "/spec/unschedulable", "value": True}]
    client.patch(f"{NODES}/gpu-1", patch, kind="json", manager="somebody", dry_run=True)
    client.patch(f"{NODES}/gpu-1", patch, kind="json", manager="somebody")
    client.list("/api/v1/pods", fieldSelector="spec.nodeName=gpu-1")
    with pytest.raises(ApiError, match="404"):
        client.get(f"{NODES}/gpu-9")
    client.patch(f"{NODES}/gpu-1", [{"op": "remove", "path": "/spec/unschedulable"}], kind="json")

    seen = world.requests(since=mark)
    assert [(item["verb"], item["resource"], item["name"], item["code"]) for item in seen] == [
        ("patch", "nodes", "gpu-1", 200),
        ("patch", "nodes", "gpu-1", 200),
        ("list", "pods", "", 200),
        ("get", "nodes", "gpu-9", 404),
        ("patch", "nodes", "gpu-1", 200),
    ]
    assert seen[0]["query"] == {"fieldManager": "somebody", "dryRun": "All"}
    assert seen[1]["requestObject"] == patch
    assert seen[1]["userAgent"] == "somebody/2"
    assert seen[2]["query"] == {"fieldSelector": "spec.nodeName=gpu-1"}
    assert len(world.writes(since=mark)) == 2
    assert len(world.uncordons(since=mark)) == 1
    assert world.requests(since=world.backend.mark()) == []


def test_a_user_may_do_what_the_rules_say(world: World, tmp_path: Path) -> None:
    world.backend.add_user("reader", [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}])
    reader = world.backend.client("reader")
    assert reader.get(f"{NODES}/gpu-1")["metadata"]["name"] == "gpu-1"
    with pytest.raises(ApiError, match="403"):
        reader.list("/api/v1/pods")
    with pytest.raises(ApiError, match="403"):
        reader.patch(f"{NODES}/gpu-1", {"spec": {"unschedulable": True}})
    kubectl = Path(sys.executable).parent / "kubectl"
    if kubectl.exists():
        config = world.backend.kubeconfig(tmp_path / "reader.kubeconfig", user="reader")
        done = subprocess.run(
            [kubectl, "--kubeconfig", config, "get", "nodes", "-o", "name"], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.strip() == "node/gpu-1"


def test_reset_leaves_nothing(world: World) -> None:
    held = gpu_pod("held", world.name)
    held["metadata"]["finalizers"] = ["tests/never"]
    world.add(held)
    world.player.stop()
    world.backend.reset()
    for path in (NODES, RULES, "/api/v1/pods", "/apis/apps/v1/daemonsets", "/apis/kubevirt.io/v1/kubevirts"):
        assert world.kube.list(path) == [], path


# The proxy


@pytest.fixture
def proxy(world: World) -> Iterator[FaultProxy]:
    with FaultProxy(world.backend) as proxy:
        yield proxy


def test_the_proxy_forwards_as_the_admin(world: World, proxy: FaultProxy) -> None:
    mark = world.backend.mark()
    assert Kube(proxy.url).get(f"{NODES}/gpu-1")["metadata"]["name"] == "gpu-1"
    assert [item["path"] for item in world.requests(since=mark)] == [f"{NODES}/gpu-1"]
    assert [(item.verb, item.target.name, item.code) for item in proxy.requests] == [("get", "gpu-1", 200)]


def test_the_proxy_makes_races(world: World, proxy: FaultProxy) -> None:
    client = Kube(proxy.url)
    rule = proxy.on("get", f"^{NODES}/gpu-1$", nth=2, before=lambda _: world.cordon())
    assert "unschedulable" not in client.get(f"{NODES}/gpu-1")["spec"]
    assert client.get(f"{NODES}/gpu-1")["spec"]["unschedulable"] is True
    assert len(rule.seen) == 2 and len(rule.fired) == 1


def test_the_proxy_answers_loses_and_refuses(world: World, proxy: FaultProxy) -> None:
    client = Kube(proxy.url)
    proxy.on("list", "/pods$", reply=(503, None), times=1)
    with pytest.raises(ApiError, match="503"):
        client.list("/api/v1/pods")
    assert client.list("/api/v1/pods")

    cordon: Json = {"spec": {"unschedulable": True}}
    proxy.on("patch", "/nodes/", drop="before", times=1)
    with pytest.raises(ConnectionError):
        Kube(proxy.url).patch(f"{NODES}/gpu-1", cordon)
    assert not world.is_cordoned()
    proxy.clear()
    lost = proxy.on("patch", "/nodes/", when=lambda request: bool(request.json["spec"]["unschedulable"]), drop="after", times=1)
    with pytest.raises(ConnectionError):
        Kube(proxy.url).patch(f"{NODES}/gpu-1", cordon)
    assert world.is_cordoned()
    assert lost.wait(1).json == cordon
    proxy.on("get", "/nodes/", rewrite=lambda code, body: (code, {**body, "metadata": {}}))
    assert client.get(f"{NODES}/gpu-1")["metadata"] == {}


def test_the_proxy_streams_cuts_and_silences_watches(world: World, proxy: FaultProxy) -> None:
    client = Kube(proxy.url, timeout=5)
    version = client.get(NODES)["metadata"]["resourceVersion"]
    threading.Timer(0.3, world.cordon).start()
    event = next(client.watch(NODES, resourceVersion=version))
    assert (event["type"], event["object"]["metadata"]["name"]) == ("MODIFIED", "gpu-1")

    gone: Json = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
    proxy.on("watch", NODES, stream=lambda events: iter([gone]), times=1)
    assert list(client.watch(NODES, resourceVersion=version)) == [gone]

    proxy.on("watch", NODES, silent=True)
    with pytest.raises(TimeoutError):
        list(Kube(proxy.url, timeout=0.5).watch(NODES, resourceVersion=version))


# The fleet and its servers


def test_the_rule_has_the_generated_layout() -> None:
    text = rule_bytes("eu/dc1", {"b": "vm-passthrough", "a": "pod-hami-dra"}).decode()
    lines = text.splitlines()
    assert lines[0].startswith("# Generated by kube-dc bootstrap init.")
    assert "  name: eu-dc1-gpu-node-modes" in lines
    assert lines.index("    - name: a-pod-hami-dra") < lines.index("    - name: b-vm-passthrough")
    assert "        nvidia.com/gpu.workload.config: container" in lines
    assert '              value: ["b"]' in lines
    assert text.endswith('value: ["0300", "0302"]\n')
    assert object_name("a" * 80) == "a" * 54 + "-" + object_name("a" * 80)[-8:]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path / "git")


def test_the_fleet_is_clean_and_follows_its_remote(fleet: Fleet) -> None:
    assert fleet.git("status", "--porcelain", "--branch") == "## main...origin/main"
    assert fleet.head() == fleet.tip() == fleet.read_tip()
    before = fleet.snapshot()
    other = fleet.another_commit_by_somebody()
    assert fleet.tip() == other != fleet.head()
    assert fleet.snapshot() == before
    fleet.git("pull", "--quiet", "--ff-only")
    changed = fleet.set_gate("GPU_VM_CREATION_ENABLED", "true")
    assert fleet.tip() == changed
    assert b"GPU_VM_CREATION_ENABLED=true" in fleet.file_at(changed, fleet.config_path)
    marked = fleet.commit("x", "x", "feat: x\n\nGpu-Transition-Id: 1234")
    assert fleet.commits_with("1234") == fleet.transition_commits() == [marked]
    reverted = fleet.revert_by_somebody(marked)
    assert fleet.tip() == reverted
    assert fleet.commits_with("1234") == [marked]
    fleet.git("pack-refs", "--all", cwd=fleet.remote)
    assert fleet.read_tip() == reverted


def test_hooks_refuse_a_push_or_lose_its_answer(fleet: Fleet) -> None:
    before = fleet.tip()
    fleet.hook("pre-receive", REJECT)
    with pytest.raises(RuntimeError, match="no pushes today"):
        fleet.commit("x", "1")
    assert fleet.tip() == before
    fleet.hook("pre-receive", None)
    fleet.hook("post-receive", LOSE_THE_ANSWER)
    with pytest.raises(RuntimeError):
        fleet.git("push")
    assert fleet.tip() == fleet.head() != before


def push(clone: Path, url: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A plain ``git push`` of the checkout to another URL."""
    environment = {**clean_environment(home), "GIT_TERMINAL_PROMPT": "0", **env}
    return subprocess.run(
        ["git", "push", "--quiet", url, "HEAD:main"], cwd=clone, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_a_push_over_http(fleet: Fleet, tmp_path: Path, tls: bool) -> None:
    commit = fleet.commit("x", "1", push=False)
    with GitHttpServer(fleet.root, users={"kube-dc": "s3cret"}, tls=tls, workdir=tmp_path) as server:
        url = f"{server.url}/remote.git"
        trust = {"GIT_SSL_CAINFO": str(server.ca_file)} if tls else {}
        assert push(fleet.checkout, url, tmp_path, **trust).returncode
        assert fleet.tip() != commit
        known = url.replace("://", "://kube-dc:s3cret@")
        assert push(fleet.checkout, known, tmp_path, **trust).returncode == 0
        assert fleet.tip() == commit
        assert server.requests[-1].kind == "push" and server.requests[-1].user == "kube-dc"


def test_http_faults(fleet: Fleet, tmp_path: Path) -> None:
    with GitHttpServer(fleet.root) as server:
        url = f"{server.url}/remote.git"
        first = fleet.commit("x", "1", push=False)
        server.fail("push", "error", code=502)
        assert push(fleet.checkout, url, tmp_path).returncode
        server.fail("push", "drop-before")
        assert push(fleet.checkout, url, tmp_path).returncode
        assert fleet.tip() != first
        server.fail("push", "drop-after")
        assert push(fleet.checkout, url, tmp_path).returncode
        assert fleet.tip() == first
        server.fail("push-refs", "silent")
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run(["git", "push", "--quiet", url, "HEAD:main"], cwd=fleet.checkout, capture_output=True, timeout=1, check=False)


@pytest.mark.ssh
def test_a_push_over_ssh(fleet: Fleet, tmp_path: Path) -> None:
    commit = fleet.commit("x", "1", push=False)
    with SshServer(fleet.root, tmp_path / "ssh") as server:
        done = push(fleet.checkout, server.url("remote.git"), tmp_path, GIT_SSH_COMMAND=server.ssh_command())
        assert (done.returncode, fleet.tip()) == (0, commit), done.stderr + server.log


# The program's process


def test_the_arguments_of_a_run(world: World) -> None:
    assert world.arguments("apply", "-o", "json", yes=None, gpu_resource=["a", "b"], resume_cordoned=True) == [
        "apply", "dc1", "gpu-1", "--repo", str(world.fleet.checkout), "--kubeconfig", str(world.kubeconfig),
        "--from", "pod-hami", "--to", "vm-passthrough", "--settle", "1s", "--timeout", "60s",
        "--gpu-resource", "a", "--gpu-resource", "b", "--resume-cordoned", "-o", "json",
    ]  # fmt: skip
    assert world.arguments("status", node=None, kubeconfig=None) == ["status", "dc1", "--repo", str(world.fleet.checkout)]
    assert world.arguments("version", "--schema") == ["version", "--schema"]


def test_a_run_has_a_clean_environment(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "program.py"
    script.write_text("import json, os, sys\nprint(json.dumps(dict(os.environ)))\nsys.exit(7)\n")
    monkeypatch.setenv("KGT_ZIPAPP", str(script))
    monkeypatch.setenv("KUBECONFIG", "/elsewhere")
    result = world.run("status", env={"ONE": "1"})
    assert result.code == 7
    assert result.report["ONE"] == "1"
    assert result.report["HOME"] == str(world.home)
    assert "KUBECONFIG" not in result.report


def test_a_running_program_is_watched_typed_to_and_interrupted(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(4))\n"
        "print('a terminal' if sys.stdin.isatty() else 'no terminal', file=sys.stderr, flush=True)\n"
        "print('typed', sys.stdin.readline().strip(), file=sys.stderr, flush=True)\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setenv("KGT_ZIPAPP", str(script))
    running = world.start("apply", tty=True)
    running.wait_for_stderr("^a terminal")
    running.type("gpu-1\n")
    assert running.wait_for_stderr(r"typed (\S+)")[1] == "gpu-1"
    running.signal()
    assert running.wait(10).code == 4
    with pytest.raises(AssertionError, match="it ended with 4"):
        running.wait_for_stderr("never")
