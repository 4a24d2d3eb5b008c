"""The same promises over https and ssh, against git's own http backend and a real sshd."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kubectl_gpu_transition.adapters.fleet import GitFleet
from kubectl_gpu_transition.model import Problem, PushResult, TipFacts
from tests.adapters.gitworld import CLUSTER, MESSAGE, NEW, RULE, World, snapshot
from tests.harness.gitservers import GitHttpServer, SshServer

TOKEN = "s3cr3t-t0ken"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def http(world: World) -> Iterator[GitHttpServer]:
    """A server without authentication; the checkout's origin is there."""
    with GitHttpServer(world.root) as server:
        world.git("remote", "set-url", "origin", f"{server.url}/remote.git")
        yield server


@pytest.fixture
def guarded(world: World) -> Iterator[GitHttpServer]:
    """An https server that asks for credentials."""
    with GitHttpServer(world.root, users={"ada": TOKEN, "x-access-token": TOKEN}, tls=True) as server:
        world.git("remote", "set-url", "origin", f"{server.url}/remote.git")
        world.git("config", "http.sslCAInfo", str(server.ca_file))
        yield server


def kinds(server: GitHttpServer) -> list[tuple[str, int | None]]:
    return [(request.kind, request.code) for request in server.requests]


def tip_of(fleet: GitFleet) -> str:
    found = fleet.read_tip(CLUSTER)
    assert isinstance(found, TipFacts), found
    assert found.tip is not None
    return found.tip


def message_of(found: object) -> str:
    assert isinstance(found, Problem), found
    assert TOKEN not in found.message + (found.remedy or "")
    return found.message


# ---------------------------------------------------------------- http and https


def test_the_whole_way_over_http(world: World, http: GitHttpServer) -> None:
    fleet = world.fleet()
    assert tip_of(fleet) == world.head()
    assert fleet.probe_push() is None
    before = snapshot(world.checkout / ".git" / "refs")
    base, commit, state = world.push(fleet)
    assert state == "accepted"
    assert snapshot(world.checkout / ".git" / "refs") == before
    assert fleet.advance_checkout(base, commit, RULE).done
    world.assert_clean(commit)
    tip = world.commit_elsewhere()
    found = fleet.read_tip(CLUSTER, base)
    assert isinstance(found, TipFacts) and (found.tip, found.relation) == (tip, "behind")
    assert ("push", 200) in kinds(http)


def test_a_shallow_clone_over_http(world: World, http: GitHttpServer, tmp_path: Path) -> None:
    first = world.head()
    world.commit_elsewhere()
    world.git("clone", "-q", "--depth=1", f"{http.url}/remote.git", str(tmp_path / "shallow"), cwd=tmp_path)
    found = world.fleet(tmp_path / "shallow").read_tip(CLUSTER, first)
    assert isinstance(found, TipFacts) and not isinstance(found.history, Problem)
    assert found.history is not None and found.history.descends and len(found.history.commits) == 1


def test_a_token_goes_out_early_over_https(world: World, guarded: GitHttpServer) -> None:
    fleet = world.fleet(token_env="FLEET_TOKEN", FLEET_TOKEN=TOKEN)
    assert tip_of(fleet) == world.head()
    assert world.push(fleet)[2] == "accepted"
    assert {request.user for request in guarded.requests} == {"x-access-token"}
    assert {request.code for request in guarded.requests} == {200}
    assert TOKEN not in "\n".join(world.log)


def test_a_credential_helper_is_asked_once(world: World, guarded: GitHttpServer) -> None:
    count = world.root / "asked"
    helper = f'!f() {{ echo "$1" >> {count}; echo username=ada; echo password={TOKEN}; }}; f'
    world.git("config", "credential.helper", helper)
    fleet = world.fleet()
    assert tip_of(fleet) == world.head()
    assert world.push(fleet)[2] == "accepted"
    assert count.read_text() == "get\n"
    assert kinds(guarded)[0] == ("fetch-refs", 401)
    assert TOKEN not in "\n".join(world.log)


def test_askpass_and_the_user_of_the_url(world: World, guarded: GitHttpServer) -> None:
    program = world.root / "askpass"
    program.write_text(f'#!/bin/sh\ncase "$1" in *ada@*) echo {TOKEN};; *) echo wrong;; esac\n')
    program.chmod(0o755)
    world.git("remote", "set-url", "origin", f"{guarded.url.replace('https://', 'https://ada@')}/remote.git")
    fleet = world.fleet(GIT_ASKPASS=str(program))
    assert tip_of(fleet) == world.head()
    route = fleet.read_checkout(CLUSTER).route
    assert not isinstance(route, Problem) and "ada" not in route.push_url


def test_a_password_in_the_url_works_and_is_never_shown(world: World, guarded: GitHttpServer) -> None:
    world.git("remote", "set-url", "origin", f"{guarded.url.replace('https://', f'https://ada:{TOKEN}@')}/remote.git")
    fleet = world.fleet()
    assert tip_of(fleet) == world.head()
    guarded.users.clear()
    guarded.users["ada"] = "changed"
    message = message_of(world.fleet().read_tip(CLUSTER))
    assert message == f"{guarded.url}/remote.git rejected the credential for user ada from the remote's URL (401)"
    assert TOKEN not in "\n".join(world.log) + repr(fleet.read_checkout(CLUSTER))


@pytest.mark.usefixtures("guarded")
def test_a_rejected_credential_is_named_with_its_source(world: World) -> None:
    fleet = world.fleet(token_env="FLEET_TOKEN", FLEET_TOKEN=TOKEN + "x")
    assert "rejected the credential for user x-access-token from the token in FLEET_TOKEN (401)" in message_of(fleet.read_tip(CLUSTER))
    assert "rejected the credential" in message_of(fleet.probe_push())
    base = world.head()
    commit = fleet.prepare_commit(base, RULE, NEW, MESSAGE, True)
    result = fleet.push_commit(base, commit)
    assert result.state == "refused" and "rejected the credential" in result.message
    world.git("config", "credential.helper", "!echo username=ada; echo password=no; :")
    assert "from a credential helper (401)" in message_of(world.fleet().read_tip(CLUSTER))
    world.git("config", "--unset", "credential.helper")
    assert "asks for credentials and no credential helper is configured" in message_of(world.fleet().read_tip(CLUSTER))
    assert "FLEET_TOKEN, which is not set" in message_of(world.fleet(token_env="FLEET_TOKEN").read_tip(CLUSTER))


def test_a_token_does_not_follow_to_the_programs_that_are_run(world: World, guarded: GitHttpServer) -> None:
    seen = world.root / "seen"
    world.git("config", "credential.helper", f"!env > {seen}; echo username=ada; echo password={TOKEN}; :")
    fleet = world.fleet(token_env="FLEET_TOKEN", FLEET_TOKEN=TOKEN)
    world.git("remote", "set-url", "origin", str(world.remote))
    world.hook("pre-receive", f"env > {seen}")
    assert world.push(fleet)[2] == "accepted"
    assert TOKEN not in seen.read_text()
    assert guarded.requests == []


def test_a_certificate_that_is_not_trusted(world: World, guarded: GitHttpServer) -> None:
    world.git("config", "--unset", "http.sslCAInfo")
    message = message_of(world.fleet(token_env="T", T=TOKEN).read_tip(CLUSTER))
    assert "certificate verify failed" in message and "HTTPSConnectionPool" not in message
    assert tip_of(world.fleet(token_env="T", T=TOKEN, GIT_SSL_CAINFO=str(guarded.ca_file))) == world.head()
    world.git("config", f"http.{guarded.url}.sslVerify", "false")
    assert tip_of(world.fleet(token_env="T", T=TOKEN)) == world.head()


def test_extra_headers_and_proxies_are_the_configured_ones(world: World, http: GitHttpServer) -> None:
    world.git("config", "http.userAgent", "git/fleet-test")
    assert tip_of(world.fleet()) == world.head()
    assert http.requests[-1].userAgent == "git/fleet-test"
    world.git("config", "http.proxy", "http://me:pw@127.0.0.1:9")
    message = message_of(world.fleet(timeout=5).read_tip(CLUSTER))
    assert "pw" not in message
    assert tip_of(world.fleet(no_proxy="127.0.0.1")) == world.head()
    world.git("config", "http.proxy", "socks5://127.0.0.1:9")
    assert "of a kind that is not supported" in message_of(world.fleet().read_tip(CLUSTER))


@pytest.mark.parametrize(
    ("code", "words"), [(403, "access is forbidden (403)"), (404, "no such repository"), (500, "the server answered 500")]
)
def test_a_status_is_a_problem_with_its_meaning(world: World, http: GitHttpServer, code: int, words: str) -> None:
    http.fail("fetch-refs", "error", code=code)
    assert words in message_of(world.fleet().read_tip(CLUSTER))
    http.fail("push-refs", "error", code=code)
    assert words in message_of(world.fleet().probe_push())
    http.fail("push-refs", "error", code=code)
    assert world.push(world.fleet())[2] == "refused"


def test_a_repository_that_is_not_served_and_a_server_that_is_not_there(world: World, http: GitHttpServer) -> None:
    world.git("remote", "set-url", "origin", f"{http.url}/nothing.git")
    assert "no such repository" in message_of(world.fleet().read_tip(CLUSTER))
    world.git("remote", "set-url", "origin", "http://user:pw@127.0.0.1:9/x.git")
    message = message_of(world.fleet().read_tip(CLUSTER))
    assert message.startswith("http://127.0.0.1:9/x.git: ") and message.endswith("Connection refused") and "pw" not in message


@pytest.mark.parametrize(("how", "moved"), [("error", False), ("drop-before", False), ("drop-after", True), ("silent", False)])
@pytest.mark.parametrize("keep_alive", [False, True])
def test_a_push_without_its_answer_is_unknown_and_is_never_sent_twice(world: World, how: str, moved: bool, keep_alive: bool) -> None:
    with GitHttpServer(world.root, keep_alive=keep_alive) as server:
        world.git("remote", "set-url", "origin", f"{server.url}/remote.git")
        fault = server.fail("push", how, times=None)  # type: ignore[arg-type]
        fleet = world.fleet(timeout=2)
        base, commit, state = world.push(fleet)
        assert state == "unknown"
        assert len(fault.fired) == 1
        server.faults.clear()
        assert tip_of(fleet) == (commit if moved else base)


def test_a_silent_server_before_the_push_is_a_refusal(world: World, http: GitHttpServer) -> None:
    http.fail("push-refs", "silent")
    fleet = world.fleet(timeout=1)
    base = world.head()
    commit = fleet.prepare_commit(base, RULE, NEW, MESSAGE, True)
    result = fleet.push_commit(base, commit)
    assert result.state == "refused" and "did not answer within 1 s" in result.message
    time.sleep(0.5)
    assert world.head(world.remote, "main") == base
    http.fail("fetch-refs", "silent")
    assert "did not answer" in message_of(fleet.read_tip(CLUSTER))


def test_refusals_over_http(world: World, http: GitHttpServer) -> None:
    world.hook("pre-receive", "echo closed on fridays; exit 1")
    fleet = world.fleet()
    base = world.head()
    commit = fleet.prepare_commit(base, RULE, NEW, MESSAGE, True)
    result = fleet.push_commit(base, commit)
    assert result.state == "refused" and "closed on fridays" in result.message
    tip = world.git("rev-parse", "main", cwd=world.remote).strip()
    assert tip == base
    (world.remote / "hooks" / "pre-receive").unlink()
    moved = world.commit_elsewhere()
    assert fleet.push_commit(base, commit) == PushResult("refused", f"remote moved: refs/heads/main is at {moved}, not at {base}")
    assert http.requests


def test_a_redirect_is_followed_without_the_credential(world: World, http: GitHttpServer) -> None:
    """A moved repository answers its first request with its new place; another server must not get what was meant for this one."""
    seen: list[str | None] = []

    class Moved(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_response(302)
            self.send_header("Location", f"{http.url}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Moved) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        world.git("remote", "set-url", "origin", f"http://127.0.0.1:{server.server_port}/remote.git")
        fleet = world.fleet(token_env="T", T=TOKEN)
        assert tip_of(fleet) == world.head()
        assert world.push(fleet)[2] == "accepted"
        server.shutdown()
        thread.join()
    assert all(value is not None for value in seen)
    assert {request.user for request in http.requests} == {None}


def test_a_login_page_is_no_git_server(world: World, http: GitHttpServer) -> None:
    http.fail("fetch-refs", "error", code=200)
    assert "the answer is no git server's" in message_of(world.fleet().read_tip(CLUSTER))


# ---------------------------------------------------------------- ssh


@pytest.fixture
def ssh(world: World, tmp_path: Path) -> Iterator[SshServer]:
    with SshServer(world.root, tmp_path / "sshd") as server:
        world.git("remote", "set-url", "origin", server.url("remote.git"))
        yield server


@pytest.mark.ssh
def test_the_whole_way_over_ssh(world: World, ssh: SshServer) -> None:
    fleet = world.fleet(GIT_SSH_COMMAND=ssh.ssh_command())
    assert tip_of(fleet) == world.head()
    assert fleet.probe_push() is None
    base, commit, state = world.push(fleet)
    assert state == "accepted"
    assert fleet.advance_checkout(base, commit, RULE).done
    world.assert_clean(commit)
    tip = world.commit_elsewhere()
    world.git("config", "core.sshCommand", ssh.ssh_command())
    found = world.fleet().read_tip(CLUSTER, base)
    assert isinstance(found, TipFacts) and (found.tip, found.relation) == (tip, "behind")


@pytest.mark.ssh
def test_hooks_and_refusals_over_ssh(world: World, ssh: SshServer) -> None:
    world.hook("pre-receive", "echo closed on fridays; exit 1")
    fleet = world.fleet(GIT_SSH_COMMAND=ssh.ssh_command())
    base = world.head()
    commit = fleet.prepare_commit(base, RULE, NEW, MESSAGE, True)
    result = fleet.push_commit(base, commit)
    assert result.state == "refused" and "closed on fridays" in result.message
    world.hook("pre-receive", "kill -9 $PPID; sleep 0.2")
    assert fleet.push_commit(base, commit).state == "unknown"
    world.hook("pre-receive", "sleep 60")
    slow = world.fleet(GIT_SSH_COMMAND=ssh.ssh_command(), timeout=3)
    assert slow.push_commit(base, commit).state == "unknown"


@pytest.mark.ssh
def test_an_ssh_that_is_not_let_in(world: World, ssh: SshServer) -> None:
    fleet = world.fleet(GIT_SSH_COMMAND=ssh.ssh_command().replace("user_key", "no_key"))
    assert "Permission denied" in message_of(fleet.read_tip(CLUSTER))
    assert "Permission denied" in message_of(fleet.probe_push())
    world.git("remote", "set-url", "origin", ssh.url("nothing.git"))
    assert "does not appear to be a git repository" in message_of(world.fleet(GIT_SSH_COMMAND=ssh.ssh_command()).read_tip(CLUSTER))


def fake_ssh(world: World) -> Path:
    """An ssh that notes its arguments and runs the command here."""
    program = world.root / "fake-ssh"
    program.write_text(f'#!/bin/sh\nfor word; do echo "$word"; done > {world.root}/argv\nfor last; do :; done\nexec sh -c "$last"\n')
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("url", "variant", "expected"),
    [
        ("host:{path}", "", ["host", "git-upload-pack '{path}'"]),
        ("me@host:{path}", "", ["me@host", "git-upload-pack '{path}'"]),
        ("ssh://me@host:2222{path}", "", ["-p", "2222", "me@host", "git-upload-pack '{path}'"]),
        ("[host:2222]:{path}", "plink", ["-P", "2222", "host", "git-upload-pack '{path}'"]),
        ("ssh://host:22{path}", "tortoiseplink", ["-batch", "-P", "22", "host", "git-upload-pack '{path}'"]),
    ],
)
def test_ssh_is_called_as_git_calls_it(world: World, url: str, variant: str, expected: list[str]) -> None:
    world.git("remote", "set-url", "origin", url.format(path=world.remote))
    program = fake_ssh(world)
    for environ in ({"GIT_SSH": str(program)}, {"GIT_SSH_COMMAND": f"FLAG=1 {program}"}):
        environ |= {"GIT_SSH_VARIANT": variant} if variant else {}
        assert tip_of(world.fleet(**environ)) == world.head()
        assert (world.root / "argv").read_text().splitlines() == [word.format(path=world.remote) for word in expected]


def test_odd_paths_reach_the_far_side_whole(world: World) -> None:
    odd = world.root / "it's o!dd $HOME.git"
    world.remote.rename(odd)
    world.git("remote", "set-url", "origin", f"host:{odd}")
    assert tip_of(world.fleet(GIT_SSH=str(fake_ssh(world)))) == world.head()
    world.git("remote", "set-url", "origin", str(odd))
    assert tip_of(world.fleet()) == world.head()


INTERRUPTED = """
    import os, signal, sys
    from kubectl_gpu_transition.adapters.fleet import GitFleet
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    fleet = GitFleet({repo!r}, dict(os.environ), token_env=None, git_timeout=30, log=lambda line: None)
    print("ready", flush=True)
    print(fleet.push_commit({base!r}, {commit!r}).state, len(seen), flush=True)
"""


@pytest.mark.parametrize("transport", ["path", "ssh"])
@pytest.mark.parametrize("terminal", [False, True])
def test_the_terminals_interrupt_does_not_reach_the_children_of_a_push(world: World, transport: str, terminal: bool) -> None:
    """Ctrl-C goes to the whole foreground group; the push in flight comes to its end all the same."""
    base = world.head()
    commit = world.fleet().prepare_commit(base, RULE, NEW, MESSAGE, True)
    started = world.root / "started"
    world.hook("pre-receive", f"touch {started}; sleep 1")
    env = dict(world.env)
    if transport == "ssh":
        world.git("remote", "set-url", "origin", f"host:{world.remote}")
        env["GIT_SSH_COMMAND"] = shlex.quote(str(fake_ssh(world)))
    script = textwrap.dedent(INTERRUPTED).format(repo=str(world.checkout), base=base, commit=commit)
    env["PYTHONPATH"] = str(Path.cwd())
    if not terminal:
        child = subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, start_new_session=True)
        assert child.stdout is not None
        _wait_for(started)
        os.killpg(child.pid, signal.SIGINT)
        assert child.stdout.read() == b"ready\naccepted 1\n"
        child.stdout.close()
        child.wait()
        return
    pid, master = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", script], env)
    _wait_for(started)
    os.write(master, b"\x03")
    output = b""
    try:
        while chunk := os.read(master, 4096):
            output += chunk
    except OSError:
        pass  # What Linux gives for the end of a pseudo terminal.
    os.waitpid(pid, 0)
    os.close(master)
    assert b"accepted 1" in output, output


def _wait_for(path: Path) -> None:
    for _ in range(400):
        if path.exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} did not appear")
