"""Worlds that do not play fair: checkouts switched under a run, servers that stall, closed streams, text made to be pasted.

Plan: each test brings about one such thing at the worst moment of a run, by a proxy, a slow git or another program's write, and looks at
what counts afterwards: what was pushed where, whether the node was given back, and what an administrator is told to type.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.harness.faultproxy import FaultProxy, ProxyRequest
from tests.harness.kube import Json
from tests.harness.world import NODES, OWNERS, PODS, REJECT, Running, World, clean_environment, gpu_pod, zipapp_path

from .expect import report_of
from .test_resume import annotate, complete, stop_before_push
from .transitions import (
    accepted,
    assert_completed,
    assert_resumes,
    assert_safe,
    is_announcement,
    is_cordon,
    is_recordon,
    is_uncordon,
)

NODE = f"^{NODES}/gpu-1$"
KUSTOMIZATIONS = "/kustomizations$"  # listed by every full look
SANDBOX = OWNERS["vm-passthrough"][1]
NOT_THE_API_SERVER = (404, b"404 page not found\n")


@pytest.fixture
def proxy(world: World) -> Iterator[FaultProxy]:
    with FaultProxy(world.backend) as proxy:
        world.kubeconfig = world.through(proxy)
        yield proxy


# A checkout that is switched to another branch


def test_a_revert_is_seen_although_the_checkout_was_switched_to_another_branch(world: World) -> None:
    """The tip is read from where the run has pushed: the other branch still asks for the target."""
    world.player.kubelet.behave(f".*{SANDBOX}.*", start="pending")
    running = world.start("apply", "-o", "json")
    running.wait_for_stderr(f"owner {SANDBOX}", 60)
    world.wait_until(lambda: world.mode() == "vm-passthrough", "the labels")
    world.player.flux.paused = True
    ours = world.fleet.tip()
    world.fleet.git("switch", "--quiet", "--create", "feature")
    world.fleet.git("push", "--quiet", "--set-upstream", "origin", "feature")
    world.fleet.revert_by_somebody(ours)
    assert world.fleet.modes(world.fleet.read_tip("feature")) == {"gpu-1": "vm-passthrough"}
    world.player.kubelet.heal()

    running.wait_for_stderr("asks for pod-hami: the change is being taken back", 60)
    running.signal()
    result = running.wait()

    assert result.code == 4, result
    assert world.is_cordoned()
    assert world.uncordons() == []


def test_a_checkout_switched_between_cordon_and_push_does_not_redirect_the_push(world: World, proxy: FaultProxy) -> None:
    """The commit goes to the branch that was announced; the other one, here and at the remote, is left alone."""
    world.fleet.git("branch", "feature")
    world.fleet.git("push", "--quiet", "--set-upstream", "origin", "feature")
    start = world.fleet.tip()
    proxy.on("patch", NODE, when=is_cordon, times=1, after=lambda _: world.fleet.git("switch", "--quiet", "feature"))

    result = world.run("apply", "-o", "json")

    record = assert_completed(world, result, advanced=False)
    assert result.report["plan"]["branch"] == "main"
    assert world.fleet.tip() == record["commit"]
    assert world.fleet.read_tip("feature") == start
    assert world.fleet.git("rev-parse", "--abbrev-ref", "HEAD") == "feature"
    assert world.fleet.head() == start
    assert world.fleet.git("status", "--porcelain") == ""


# Looks that grow old


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 429 asks for five seconds of patience."""
    plain = BaseHTTPRequestHandler.send_response

    def send_response(self: BaseHTTPRequestHandler, code: int, message: str | None = None) -> None:
        plain(self, code, message)
        if code == 429:
            self.send_header("Retry-After", "5")

    monkeypatch.setattr(BaseHTTPRequestHandler, "send_response", send_response)


@pytest.mark.usefixtures("patience")
def test_an_uncordon_that_was_put_off_is_decided_anew(world: World, proxy: FaultProxy) -> None:
    """A GPU pod that lands while the API server has no time is seen: the node is given back only when it has gone."""
    holder = gpu_pod("late", world.name)
    made: list[Json] = []
    looks: list[float] = []

    def arrive(_: ProxyRequest) -> None:
        if not made:
            made.append(world.add(holder))

    proxy.on("list", KUSTOMIZATIONS, after=lambda _: looks.append(time.time()))
    busy = proxy.on("patch", NODE, when=is_uncordon, times=2, reply=(429, None), before=arrive)
    running = world.start("apply", "-o", "json")
    busy.wait(60)

    running.wait_for_stderr(r"waiting for .*holder tenant-a/Pod/late", 60)
    assert world.is_cordoned()
    assert world.uncordons() == []
    removed = world.backend.mark()
    world.remove(holder)
    result = running.wait()

    assert_completed(world, result)
    assert len(world.uncordons(since=removed)) == 1
    assert len(busy.fired) == 2
    sent = [request.time for request in proxy.requests if is_uncordon(request)]
    ages = [at - max(look for look in looks if look <= at) for at in sent]
    assert max(ages) < 5 + 3, ages  # 5 s from the end of the look, which this one read is not; two pauses would make it 10


def test_a_push_is_not_sent_on_a_look_that_a_slow_server_made_old(world: World) -> None:
    """The receiving side takes longer to answer than a look is good for: the node is looked at again, and a new holder stops the push."""
    slow, probed, asleep = (world.root / name for name in ("receive-pack.sh", "probed", "asleep"))
    slow.write_text(
        f"#!/bin/sh\nif [ ! -e {probed} ]; then touch {probed}\nelif [ ! -e {asleep} ]; then touch {asleep}; sleep 11\nfi\n"
        'exec git receive-pack "$@"\n'
    )
    slow.chmod(0o755)
    world.fleet.git("config", "remote.origin.receivepack", str(slow))
    tip = world.fleet.tip()
    running = world.start("apply", "-o", "json")
    world.wait_until(asleep.exists, "the push to begin", 60)
    holder = world.add(gpu_pod("late", world.name))
    result = running.wait()

    assert_safe(world, result, "holder-appeared")
    assert world.fleet.tip() == tip
    world.remove(holder)
    assert_resumes(world, result)


# Streams that are closed from the start


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"], ids=["stdout", "stderr", "stdin", "all"])
def test_closed_streams_do_not_change_how_a_run_ends(world: World, closed: str) -> None:
    """A refused push is 4 and a completed resume 0, and what is left open says so."""

    def run(**options: Any) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, str(zipapp_path()), *world.arguments("apply", output="json", **options)]
        return subprocess.run(
            ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**clean_environment(world.home), "TMPDIR": str(world.scratch)},
            cwd=world.root,
        )

    world.fleet.hook("pre-receive", REJECT)
    failed = run()
    assert failed.returncode == 4, failed
    left = world.annotation()
    assert left is not None
    assert (left["phase"], world.is_cordoned()) == ("cordoned", True)
    world.fleet.hook("pre-receive", None)
    completed = run(resume_cordoned=True)
    assert completed.returncode == 0, completed

    assert assert_completed(world, None)["id"] == left["id"]
    for done, word in ((failed, "failed-cordoned"), (completed, "completed")):
        assert done.stdout == "" if ">&-" in closed.split() else json.loads(done.stdout)["outcome"] == word
        assert "Traceback" not in done.stderr
        assert done.stderr == "" if "2>&-" in closed else "waiting for" in completed.stderr


# Other runs, and an API server without time, at the cordon


@pytest.mark.parametrize("moment", ["during-the-second-look", "before-the-patch"])
def test_an_abandon_never_leaves_a_cordon_of_ours_without_a_record(world: World, proxy: FaultProxy, moment: str) -> None:
    """Another run cordons the schedulable node again under the same record while it is given up: both go, or none."""
    stop_before_push(world)
    world.uncordon(manager="driver-manager")
    direct = world.backend.kubeconfig(world.root / "direct.kubeconfig")
    resumes: list[Running] = []

    def resume(_: ProxyRequest) -> None:
        if not resumes:
            resumes.append(world.start("apply", resume_cordoned=True, settle="15s", output="json", kubeconfig=direct))
            resumes[0].wait_for_stderr("cordoned again", 60)

    if moment == "before-the-patch":
        proxy.on("patch", NODE, when=lambda request: "dryRun" not in request.query, before=resume)
    else:
        proxy.on("list", KUSTOMIZATIONS, nth=2, before=resume)
    abandoned = world.run("abandon", output="json")
    assert resumes, abandoned
    assert not (world.is_cordoned() and world.annotation() is None), abandoned

    resumed = resumes[0].wait()
    report_of(resumed)
    assert abandoned.code == 0, abandoned
    assert (resumed.code, resumed.report["outcome"]) == (4, "ended-elsewhere"), resumed
    assert (world.is_cordoned(), world.annotation(), world.mode()) == (False, None, "pod-hami")
    assert world.fleet.transition_commits() == []


def test_a_cordon_that_the_api_server_had_no_time_for_is_set_in_the_end(world: World, proxy: FaultProxy) -> None:
    """Another actor lifts the cordon and every try of one round is answered 429: the next round sets it."""
    world.player.flux.paused = True
    busy = proxy.on("patch", NODE, when=is_recordon, times=3, reply=(429, None))
    running = world.start("apply", "-o", "json")
    running.wait_for_stderr(r"waiting for .*labels 0/3", 60)
    world.uncordon(manager="driver-manager")

    running.wait_for_stderr("the node was uncordoned by another actor .* and is cordoned again", 60)
    assert world.is_cordoned()
    world.player.flux.paused = False
    assert_completed(world, running.wait())
    assert len(busy.fired) == 3
    assert len(accepted(world, is_recordon)) == 1


class _Door:
    """Passes TCP connections on to a proxy; while it is shut, new ones are refused and only the watches go on."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._to = int(proxy.url.rpartition(":")[2])
        self._ends: dict[socket.socket, socket.socket] = {}  # both ways
        self._watches: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._start(self._accept, self._listener)

    def _start(self, work: Callable[[socket.socket], None], connection: socket.socket) -> None:
        self._threads.append(threading.Thread(target=work, args=(connection,), name="door"))
        self._threads[-1].start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                self._ends |= {client: server, server: client}
                self._start(self._pump, client)
                self._start(self._pump, server)

    def _pump(self, source: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if b"watch=true" in data:
                    self._watches |= {source, self._ends[source]}
                self._ends[source].sendall(data)
        _hang_up(source, self._ends[source])

    def shut(self) -> None:
        """Refuse new connections, and end those that could carry another request."""
        _hang_up(self._listener)
        self._listener.close()
        _hang_up(*(self._ends.keys() - self._watches))

    def open(self) -> None:
        """Accept connections again, where they were accepted before."""
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._start(self._accept, self._listener)

    def close(self) -> None:
        """End everything."""
        _hang_up(self._listener, *self._ends)
        for thread in self._threads:
            thread.join()
        for connection in (self._listener, *self._ends):
            connection.close()


def _hang_up(*connections: socket.socket) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def test_a_cordon_that_met_a_refused_connection_is_set_in_the_end(world: World, proxy: FaultProxy) -> None:
    """Another actor lifts the cordon while the API server takes no connections: it is set once it does again."""
    world.player.flux.paused = True
    with contextlib.closing(_Door(proxy)) as door:
        kubeconfig = world.backend.kubeconfig(world.root / "door.kubeconfig", server=door.url)
        running = world.start("apply", "-o", "json", kubeconfig=kubeconfig)
        running.wait_for_stderr(r"waiting for .*labels 0/3", 60)
        door.shut()
        world.uncordon(manager="driver-manager")
        running.wait_for_stderr("the cordon, which another actor has lifted: the patch was not sent", 60)
        door.open()

        running.wait_for_stderr("the node was uncordoned by another actor .* and is cordoned again", 60)
        assert world.is_cordoned()
        world.player.flux.paused = False
        assert_completed(world, running.wait())
    assert len(accepted(world, is_recordon)) == 1


# Words of others that are taken for ours


@pytest.mark.parametrize("kind", ["of-somebody-s-work", "with-our-trailer-and-one-more-file"])
def test_a_commit_that_only_the_annotation_names_is_not_pushed(world: World, kind: str) -> None:
    """A resume pushes again what was announced only if it is this very change: any other local commit stays at home."""
    left = stop_before_push(world)
    world.fleet.git("switch", "--quiet", "--create", "wip")
    world.fleet.write("README.md", "work in progress, never to be pushed\n")
    message = "wip: secrets\n"
    if kind != "of-somebody-s-work":
        message = f"feat(gpu): transition gpu-1 to vm-passthrough\n\nGpu-Transition-Id: {left['id']}\n"
        rule = (world.fleet.checkout / world.fleet.rule_path).read_text()
        config = rule.replace("workload.config: container", "workload.config: vm-passthrough")
        world.fleet.write(world.fleet.rule_path, config.replace("pod-hami", "vm-passthrough"))
    world.fleet.git("commit", "--quiet", "--all", f"--message={message}")
    foreign = world.fleet.head()
    world.fleet.git("switch", "--quiet", "main")
    annotate(world, {**left, "phase": "pushing", "commit": foreign})

    complete(world, left["id"])

    assert foreign not in world.fleet.log()
    (commit,) = world.fleet.commits_with(left["id"])
    assert world.fleet.git("diff", "--name-only", f"{commit}^", commit, cwd=world.fleet.remote) == world.fleet.rule_path


def test_gates_opened_at_a_tip_that_moved_during_the_recheck_of_a_resume_stop_it(world: World, proxy: FaultProxy) -> None:
    """Another run changes the record at the same time, so that the resume starts over with that tip: it is judged all the same."""
    left = stop_before_push(world)
    announced = {**left, "phase": "pushing", "commit": "a" * 40}
    tips: list[str] = []

    def open_a_gate(_: ProxyRequest) -> None:
        annotate(world, announced)
        config = world.fleet.file_at(world.fleet.tip(), world.fleet.config_path)
        opened = config.replace(b"GPU_VM_CREATION_ENABLED=false", b"GPU_VM_CREATION_ENABLED=true")
        tips.append(world.fleet.another_commit_by_somebody(world.fleet.config_path, opened))

    since = world.backend.mark()
    proxy.clear()
    proxy.on("get", NODE, nth=2, before=open_a_gate)  # the first one is the preflight's
    result = world.run("apply", "-o", "json", resume_cordoned=True)

    assert tips, result
    assert_safe(world, result, "moved-tip-blocked", phase="pushing")
    assert "GPU_VM_CREATION_ENABLED is 'true'" in result.report["error"]["message"]
    assert world.fleet.tip() == tips[0]
    assert world.annotation() == announced
    assert world.writes(since=since) == []


# Something between here and the API server says 404


def test_a_proxy_s_own_404_for_the_nodes_is_not_the_end_of_the_node(world: World, proxy: FaultProxy) -> None:
    """It meets the list that a broken watch begins again with, and a look at the node itself: the wait goes on."""
    world.player.flux.paused = True
    proxy.on("watch", f"^{NODES}$", nth=1, drop="before")
    listed = proxy.on("list", f"^{NODES}$", nth=2, reply=NOT_THE_API_SERVER)
    read = proxy.on("get", NODE, when=lambda _: "waiting for" in running.err, times=1, reply=NOT_THE_API_SERVER)
    running = world.start("apply", "-o", "json")
    listed.wait(60)
    running.wait_for_stderr(r"waiting for .*404", 60)
    world.player.flux.paused = False
    result = running.wait()

    assert read.fired
    assert_completed(world, result)


def test_a_proxy_s_own_404_before_the_push_is_a_node_that_could_not_be_read(world: World, proxy: FaultProxy) -> None:
    """Not one that has gone: the failure says how to go on, and the transaction can be finished."""
    tip = world.fleet.tip()

    def is_cordoned(_: ProxyRequest) -> bool:
        return any(is_cordon(request) and request.code is not None for request in list(proxy.requests))

    proxy.on("get", NODE, when=is_cordoned, nth=1, reply=NOT_THE_API_SERVER)
    result = world.run("apply", "-o", "json")

    assert_safe(world, result, "node-unread")
    assert (world.fleet.tip(), accepted(world, is_announcement)) == (tip, [])
    assert_resumes(world, result)


# Text that is made to be pasted, or to be believed


@pytest.mark.parametrize("kind", ["StatefulSet", "ReplicaSet", "Job", "VirtualMachineInstance", "Curious"])
def test_the_remedy_for_a_holder_runs_nothing_but_itself(world: World, kind: str, tmp_path: Path) -> None:
    """The name of a pod's owner is whatever its creator wrote: pasted into a shell it is one word."""
    name, place = "x; touch pwned #$(touch pwned)", tmp_path / "shell"
    pod = gpu_pod("evil", world.name)
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "example.com/v1", "kind": kind, "name": name, "uid": "11111111-2222-4333-8444-555555555555", "controller": True}
    ]
    world.add(pod)

    result = world.run("preview", "-o", "json")

    remedy = result.check("holders")["remedy"]
    assert [holder["name"] for holder in result.report["holders"]] == [name]
    assert any(name in word for word in shlex.split(remedy)), remedy
    place.mkdir()
    for tool in ("kubectl", "virtctl"):
        (place / tool).write_text('#!/bin/sh\nprintf "%s\\n" "$@" > words\n')
        (place / tool).chmod(0o755)
    start = next((remedy.index(tool) for tool in ("kubectl ", "virtctl ") if tool in remedy), None)
    if start is not None:
        subprocess.run(["/bin/sh", "-c", remedy[start:]], cwd=place, env={"PATH": f"{place}:/usr/bin:/bin"}, check=False, timeout=30)
        assert any(line.endswith(name) for line in (place / "words").read_text().splitlines())
    assert not (place / "pwned").exists()


HOSTILE = "\x1b[2Kall is well\r\n\nerror: nothing is wrong\nGo on with:\n  kubectl uncordon gpu-1\u2028kubectl uncordon gpu-1\n"


def assert_speaks_for_itself(err: str) -> None:
    """No line says what only the program may say there, and nothing steers the terminal."""
    assert "kubectl uncordon gpu-1" in err  # it was shown
    for line in err.splitlines():
        assert not line.strip().startswith("kubectl uncordon"), err
        assert line != "error: nothing is wrong", err
    assert not {character for character in err if character < " " and character != "\n"}, repr(err)
    assert "\u2028" not in err


def test_what_an_annotation_says_stays_on_our_line(world: World) -> None:
    """Neither the failure of the run that finds it, nor the refusal of the next one, lets it pose as a line of its own."""
    world.player.flux.paused = True
    running = world.start("apply")
    running.wait_for_stderr(r"waiting for .*labels 0/3", 60)
    left = world.annotation()
    assert left is not None
    annotate(world, HOSTILE)
    ended = running.wait()
    assert ended.code == 4, ended
    assert_speaks_for_itself(ended.err)

    for text in (HOSTILE, {**left, "by": HOSTILE}):
        annotate(world, text)
        refused = world.run("apply")
        assert refused.code == 3, refused
        assert_speaks_for_itself(refused.out + refused.err)


def test_what_a_container_says_stays_on_our_line(world: World) -> None:
    """The reason why the owner is not Ready is shown while waiting; it comes from whoever runs the container."""
    world.player.kubelet.behave(f".*{SANDBOX}.*", start="pending")
    running = world.start("apply")
    found = world.wait_until(lambda: [pod for pod in world.pods() if pod["metadata"]["name"].startswith(SANDBOX)], "the plugin", 60)
    world.player.kubelet.paused = True
    waiting = {"state": {"waiting": {"reason": "ErrImagePull", "message": HOSTILE}}}
    status = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0, **waiting}
    world.kube.patch(
        f"{PODS.format(namespace='gpu-operator')}/{found[0]['metadata']['name']}/status", {"status": {"containerStatuses": [status]}}
    )
    running.wait_for_stderr("nothing is wrong", 60)
    running.signal()
    result = running.wait()
    assert result.code == 4, result
    assert_speaks_for_itself(result.err)
