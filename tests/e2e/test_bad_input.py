"""What ends a command before its first write for another reason than a check of the fleet or node: words, files, servers, people.

Each of them says one clear thing with what to do about it, ends with the code of the contract's section 2, and changes nothing.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
from ruamel.yaml import YAML

from tests.e2e.expect import (
    assert_blocked,
    assert_one_error,
    assert_only_read,
    assert_passes,
    assert_says,
    assert_untouched,
    failing,
    leave_transaction,
    look,
    report_of,
    show,
    transaction,
    validate,
)
from tests.harness.faultproxy import FaultProxy
from tests.harness.gitservers import GitHttpServer
from tests.harness.kube import Json
from tests.harness.realplane import free_port
from tests.harness.world import NODES, Result, World, clean_environment, zipapp_path

FORMATS = ("text", "json", "yaml")


def assert_usage(world: World, result: Result, *words: str) -> None:
    """The run ended for its words alone: no request was sent."""
    assert result.code == 2, show(result)
    assert_one_error(result, *words)
    assert world.requests() == []


# Words


WORDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "an unknown mode to go to": ({"to": "vm-pass"}, ("--to", "'vm-pass'", "pod-hami, pod-hami-dra, vm-passthrough")),
    "an unknown mode to come from": ({"from_": "none"}, ("--from", "'none'", "pod-hami, pod-hami-dra, vm-passthrough")),
    "equal modes": ({"to": "pod-hami"}, ("--from", "--to", "pod-hami", "different")),
    "no node": ({"node": None}, ("NODE",)),
    "a node that is no name": ({"node": "GPU_1"}, ("NODE", "'GPU_1'")),
    "a cluster that leaves the fleet": ({"cluster": "../dc1"}, ("CLUSTER", "'../dc1'")),
    "a timeout that is no duration": ({"timeout": "soon"}, ("--timeout", "'soon'", "15m")),
    "a settle time that is too short": ({"settle": "500ms"}, ("--settle", "'500ms'", "1s")),
    "a request timeout that is no duration": ({"request_timeout": "30"}, ("--request-timeout", "'30'")),
    "a git timeout that is no duration": ({"git_timeout": "1d"}, ("--git-timeout", "'1d'")),
    "more resources than fit": ({"gpu_resource": [f"example.com/gpu-{number}" for number in range(17)]}, ("--gpu-resource", "16")),
    "a token instead of the name of its variable": ({"token_env": "ghp-1234/5678"}, ("--token-env", "NAME")),
    "a variable for the token that is not set": ({"token_env": "FLEET_TOKEN"}, ("--token-env", "FLEET_TOKEN")),
    "an unknown format": ({"output": "wide"}, ("--output", "'wide'")),
    "an unknown option": ({"force": True}, ("--force",)),
}


@pytest.mark.parametrize(("options", "words"), list(WORDS.values()), ids=list(WORDS))
def test_words_that_are_wrong(kept_world: World, options: Mapping[str, Any], words: tuple[str, ...]) -> None:
    result = kept_world.run("apply", **options)
    assert_usage(kept_world, result, *words)
    assert result.out == ""
    assert "ghp-1234" not in result.err


KUBECTL = {
    "--as": "admin",
    "--server": "https://127.0.0.1:1",
    "-s": "https://127.0.0.1:1",
    "--token": "s3cret",
    "--cluster": "dc1",
    "--user": "admin",
    "--namespace": "default",
    "--insecure-skip-tls-verify": "true",
    "--dry-run": "server",
}


def test_kubectls_own_flags_are_refused_by_name(kept_world: World) -> None:
    """With what to use instead, whichever way the value is written."""
    for number, (flag, value) in enumerate(KUBECTL.items()):
        result = kept_world.run("preview", *([flag, value] if number % 2 else [f"{flag}={value}"]))
        instead = {"--dry-run": "preview", "--namespace": "no namespace"}.get(flag, "kubeconfig")
        assert_usage(kept_world, result, f"{flag} is kubectl's", instead)
        assert "s3cret" not in result.err


def test_no_command_like_that(kept_world: World) -> None:
    assert_usage(kept_world, kept_world.run("drain", "dc1", "gpu-1"), "'drain'", "--help")


@pytest.mark.parametrize("arguments", [[], ["help"], ["-h"], ["preview", "--help"]], ids=" ".join)
def test_help_is_no_error(zipapp: Path, tmp_path: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, zipapp, *arguments], capture_output=True, text=True, env=clean_environment(tmp_path), check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: kubectl gpu-transition")
    assert "130" in done.stdout


# The checkout and the kubeconfig


def plain_file(world: World) -> Path:
    path = world.root / "file"
    path.write_text("")
    return path


@pytest.mark.parametrize(
    "place",
    [lambda world: world.root / "nowhere", plain_file, lambda world: world.root / "nowhere" / "below"],
    ids=["missing", "a file", "below nothing"],
)
def test_a_repo_that_is_no_directory(kept_world: World, place: Callable[[World], Path]) -> None:
    path = place(kept_world)
    assert_usage(kept_world, kept_world.run("preview", repo=path), f"--repo {path} is not a directory", "checkout")


def test_the_fleet_of_the_environment_is_never_skipped(kept_world: World) -> None:
    """One that is set and is no directory is an error, although the next place would do."""
    fallback = kept_world.home / ".kube-dc" / "fleet"
    fallback.parent.mkdir()
    fallback.symlink_to(kept_world.fleet.checkout)
    result = kept_world.run("preview", repo=None, env={"KUBE_DC_FLEET": "/nowhere/fleet"})
    assert_usage(kept_world, result, "$KUBE_DC_FLEET /nowhere/fleet is not a directory", "--repo")
    assert kept_world.run("preview", repo=None).code == 0
    fallback.unlink()
    assert kept_world.run("preview", repo=None, env={"KUBE_DC_FLEET": str(kept_world.fleet.checkout)}).code == 0


def test_without_any_fleet_the_default_is_named(kept_world: World) -> None:
    assert_usage(kept_world, kept_world.run("preview", repo=None), "~/.kube-dc/fleet is not a directory", "--repo")


def test_a_kubeconfig_is_never_taken_from_elsewhere(kept_world: World) -> None:
    config = kept_world.home / ".kube" / "config"
    config.parent.mkdir()
    config.write_bytes(kept_world.kubeconfig.read_bytes())
    result = kept_world.run("preview", kubeconfig=None, env={"KUBECONFIG": str(kept_world.kubeconfig)})
    assert_usage(kept_world, result, "--kubeconfig FILE is required", "$KUBECONFIG")


def changed(change: Callable[[Json], Any]) -> Callable[[World, Path], None]:
    """The world's kubeconfig with a change."""

    def make(world: World, path: Path) -> None:
        config = json.loads(world.kubeconfig.read_text())
        change(config)
        path.write_text(json.dumps(config))

    return make


KUBECONFIGS: dict[str, tuple[Callable[[World, Path], Any], dict[str, Any], tuple[str, ...]]] = {
    "missing": (lambda _, __: None, {}, ("no such file",)),
    "a directory": (lambda _, path: path.mkdir(), {}, ("no such file",)),
    "empty": (lambda _, path: path.write_text(""), {}, ("contexts",)),
    "broken YAML": (lambda _, path: path.write_text("contexts: [\n"), {}, ("not readable",)),
    "another text": (lambda _, path: path.write_text("hello"), {}, ("contexts",)),
    "binary": (lambda _, path: path.write_bytes(b"\xff\xfe\x00"), {}, ("not readable",)),
    "no contexts": (changed(lambda config: config.update(contexts=[])), {}, ("contexts",)),
    "no context with that name": (changed(lambda _: None), {"context": "dc2"}, ("'dc2'", "admin@test")),
    "no current context": (changed(lambda config: config.pop("current-context")), {}, ("current-context", "admin@test")),
    "a current context that is not there": (
        changed(lambda config: config.update({"current-context": "gone"})),
        {},
        ("'gone'", "admin@test"),
    ),
    "a context of a cluster that is not there": (changed(lambda config: config.update(clusters=[])), {}, ("admin@test",)),
    "a cluster without a server": (changed(lambda config: config["clusters"][0]["cluster"].pop("server")), {}, ("server",)),
    "an authority that is none": (
        changed(lambda config: config["clusters"][0]["cluster"].update({"certificate-authority-data": base64.b64encode(b"none").decode()})),
        {},
        ("certificate",),
    ),
}


@pytest.mark.parametrize(("make", "options", "words"), list(KUBECONFIGS.values()), ids=list(KUBECONFIGS))
def test_a_kubeconfig_that_can_not_be_used(
    kept_world: World, tmp_path: Path, make: Callable[[World, Path], Any], options: dict[str, Any], words: tuple[str, ...]
) -> None:
    path = tmp_path / "a.kubeconfig"
    make(kept_world, path)
    result = kept_world.run("preview", kubeconfig=path, **options)
    assert_usage(kept_world, result, str(path), *words)
    assert "remedy: " in result.err


def test_the_named_context_is_used(kept_world: World, tmp_path: Path) -> None:
    path = tmp_path / "two.kubeconfig"
    changed(lambda config: config.update({"current-context": "gone"}))(kept_world, path)
    assert_passes(kept_world.run("preview", "-o", "json", kubeconfig=path, context="admin@test"))


# What the cluster does not have


def test_a_cluster_that_the_fleet_does_not_have(kept_world: World) -> None:
    """It is not the one behind the kubeconfig either."""
    before = look(kept_world)
    result = kept_world.run("preview", "-o", "json", cluster="eu/dc9")
    check = assert_blocked(result, "cluster-overlay", "clusters/eu/dc9/cluster-config.env", beside=["fleet-cluster"])
    assert "known clusters: dc1" in check["message"]
    assert_untouched(kept_world, before)


def test_a_node_that_the_cluster_does_not_have(kept_world: World) -> None:
    before = look(kept_world)
    result = kept_world.run("apply", "-o", "json", node="gpu-9")
    assert_blocked(result, "node", ("gpu-9", "does not exist"), "get nodes", beside=["fleet-rule"])
    assert_only_read(kept_world, before)
    assert_untouched(kept_world, before)


# The API server

# The checks that need a reading of the cluster; what they decide together with others may be left out instead.
NEEDING = {
    "node": {"node"},
    "pods": {"holders", "other-actors"},
    "kubevirts": {"holders"},
    "virtualmachineinstances": {"holders"},
    "resourceclaims": {"holders"},
    "resourceslices": {"holders"},
    "deviceclasses": {"holders"},
    "nodemaintenances": {"other-actors"},
    "daemonsets": {"other-actors", "target-stack"},
    "clusterpolicies": {"target-stack"},
    "kustomizations": {"fleet-cluster", "flux"},
    "gitrepositories": {"fleet-cluster", "flux"},
    "nodefeaturerules": {"live-rule"},
}
ALL = {"node", "holders", "fleet-cluster", "flux", "live-rule"}


def assert_unread(result: Result, needed: set[str], *words: str) -> None:
    """The checks that need what could not be read fail closed, each saying why and what to do."""
    assert result.code == 3, show(result)
    report_of(result)
    assert needed <= set(failing(result)), show(result)
    for name in needed:
        check = result.check(name)
        assert_says(check["message"], words)
        assert check["remedy"]
    assert_one_error(result)


@pytest.mark.parametrize("command", ["preview", "apply"])
def test_an_api_server_that_is_not_there(kept_world: World, tmp_path: Path, command: str) -> None:
    url = f"https://127.0.0.1:{free_port()}"
    config = kept_world.backend.kubeconfig(tmp_path / "closed.kubeconfig", server=url)
    before = look(kept_world)
    assert_unread(kept_world.run(command, "-o", "json", kubeconfig=config), ALL, url, "can not be reached", "refused")
    assert_untouched(kept_world, before)


def test_an_api_server_that_never_answers(kept_world: World, kept_proxy: FaultProxy) -> None:
    kept_proxy.on("*", "", silent=True)
    before = look(kept_world)
    result = kept_world.run("preview", "-o", "json", kubeconfig=kept_world.through(kept_proxy), request_timeout="1s")
    assert_unread(result, ALL, kept_proxy.url, "can not be reached")
    assert result.seconds < 20
    assert_untouched(kept_world, before)


def test_a_server_of_another_authority(kept_world: World, tmp_path: Path) -> None:
    """It may be another cluster: nothing is believed, and the credentials are not shown to it."""
    config = tmp_path / "other.kubeconfig"
    other = base64.b64encode(trustme.CA().cert_pem.bytes()).decode()
    changed(lambda found: found["clusters"][0]["cluster"].update({"certificate-authority-data": other}))(kept_world, config)
    before = look(kept_world)
    result = kept_world.run("preview", "-o", "json", kubeconfig=config)
    assert_unread(result, ALL, kept_world.backend.url, "certificate", "authority")
    assert kept_world.requests(since=before.mark) == []


def test_credentials_that_the_server_does_not_know(kept_world: World, tmp_path: Path) -> None:
    config = kept_world.backend.kubeconfig(tmp_path / "wrong.kubeconfig", credentials={"token": "n0t-this-0ne"})
    before = look(kept_world)
    result = kept_world.run("preview", "-o", "json", "-v", kubeconfig=config)
    assert_unread(result, ALL, "401", kept_world.backend.url, "admin@test")
    assert "n0t-this" not in result.out + result.err
    assert_untouched(kept_world, before)


GROUPS = {
    "nodes": "",
    "pods": "",
    "kubevirts": "kubevirt.io",
    "virtualmachineinstances": "kubevirt.io",
    "resourceclaims": "resource.k8s.io",
    "resourceslices": "resource.k8s.io",
    "deviceclasses": "resource.k8s.io",
    "nodemaintenances": "nodemaintenance.medik8s.io",
    "daemonsets": "apps",
    "kustomizations": "kustomize.toolkit.fluxcd.io",
    "gitrepositories": "source.toolkit.fluxcd.io",
}


@pytest.mark.parametrize("resource", GROUPS)
def test_a_reading_that_is_forbidden_fails_closed(kept_world: World, resource: str) -> None:
    """The user may read everything else, and may patch nodes."""
    rules = [
        {"apiGroups": [group], "resources": [other], "verbs": ["get", "list", "watch", "patch"]}
        for other, group in GROUPS.items()
        if other != resource
    ]
    others = ["nfd.k8s-sigs.io", "nvidia.com"]
    rules.append({"apiGroups": others, "resources": ["*"], "verbs": ["get", "list", "watch"]})
    more = ["configmaps", "persistentvolumeclaims", "namespaces"]
    rules.append({"apiGroups": [""], "resources": more, "verbs": ["get", "list", "watch"]})
    kept_world.backend.add_user("nearly", rules)
    config = kept_world.backend.kubeconfig(kept_world.root / "nearly.kubeconfig", user="nearly")
    before = look(kept_world)
    result = kept_world.run("apply", "-o", "json", kubeconfig=config)
    needed = NEEDING[resource.removesuffix("s") if resource == "nodes" else resource]
    assert_unread(result, needed, "403", resource)
    assert set(failing(result)) == needed, show(result)
    assert_says(result.check(min(needed))["remedy"], "permission")
    assert_only_read(kept_world, before, user="nearly")
    assert_untouched(kept_world, before, user="nearly")


PATHS = {
    "node": f"^{NODES}/gpu-1$",
    "pods": "^/api/v1/pods$",
    "kubevirts": "/kubevirts$",
    "kustomizations": "/kustomizations$",
    "gitrepositories": "/gitrepositories$",
}
ANSWERS: dict[str, tuple[tuple[int, Any], str]] = {
    "the server fails": ((500, None), "500"),
    "the server is away": ((503, None), "503"),
    "the answer is a page": ((200, b"<html>login</html>"), "not JSON"),
    "the answer is another object": ((200, {"kind": "Status", "status": "Success"}), ""),
    "the answer is cut short": ((200, b'{"kind": "Li'), "not JSON"),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("what", ["node", "pods", "kustomizations"])
def test_an_answer_that_is_no_answer_fails_closed(kept_world: World, kept_proxy: FaultProxy, what: str, answer: str) -> None:
    reply, word = ANSWERS[answer]
    kept_proxy.on("*", PATHS[what], reply=reply)
    before = look(kept_world)
    result = kept_world.run("preview", "-o", "json", kubeconfig=kept_world.through(kept_proxy))
    assert_unread(result, NEEDING[what], word)
    assert_untouched(kept_world, before)


def test_a_hiccup_of_the_server_is_ridden_out(kept_world: World, kept_proxy: FaultProxy) -> None:
    for path in PATHS.values():
        kept_proxy.on("*", path, times=1, reply=(503, None))
        kept_proxy.on("*", path, times=1, drop="before")
    assert_passes(kept_world.run("preview", "-o", "json", kubeconfig=kept_world.through(kept_proxy)))


# The confirmation


@pytest.mark.parametrize("command", ["apply", "abandon"])
@pytest.mark.parametrize("output", FORMATS)
def test_without_yes_and_without_a_terminal(kept_world: World, command: str, output: str) -> None:
    """Decided before the first request; an answer in a pipe is none."""
    result = kept_world.run(command, "-o", output, yes=None, stdin="gpu-1\n")
    assert_usage(kept_world, result, "--yes", "terminal")


SHOWN = r"context admin@test, server (\S+)"


def ask(world: World, **options: Any) -> Any:
    """Start an apply on a terminal and wait for its question, before which everything that matters has been shown."""
    running = world.start("apply", "-o", "json", yes=None, tty=True, **options)
    running.wait_for_stderr(r"Type the node's name")
    assert running.wait_for_stderr(SHOWN)[1] == world.backend.url
    running.wait_for_stderr(rf"remote .*{world.fleet.remote}")
    assert world.writes() == []
    return running


@pytest.mark.parametrize(
    "answer", ["gpu-2\n", "yes\n", "\n", "gpu-1 please\n", "\x04"], ids=["another node", "yes", "nothing", "more", "end of input"]
)
def test_an_answer_that_is_not_the_nodes_name(kept_world: World, answer: str) -> None:
    before = look(kept_world)
    running = ask(kept_world)
    running.type(answer)
    result = running.wait()
    assert result.code == 2, show(result)
    report = report_of(result)
    assert report["outcome"] == "usage-error"
    assert report["error"]["id"] == "not-confirmed"
    assert [step["status"] for step in report["steps"]][1:] == ["pending"] * 6
    assert_one_error(result, "nothing was done")
    assert_untouched(kept_world, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_at_the_question(kept_world: World, number: signal.Signals) -> None:
    before = look(kept_world)
    running = ask(kept_world)
    running.signal(number)
    result = running.wait(10)
    assert result.code == 130, show(result)
    assert report_of(result)["outcome"] == "interrupted"
    assert_untouched(kept_world, before)


def test_the_nodes_name_goes_on(world: World) -> None:
    running = ask(world)
    running.type("gpu-1\n")
    result = running.wait()
    assert result.code == 0, show(result)
    assert report_of(result)["outcome"] == "completed"
    assert result.err.count("Type the node's name") == 1
    assert world.mode() == "vm-passthrough" and not world.is_cordoned()


def test_nobody_is_asked_where_a_check_fails(kept_world: World) -> None:
    kept_world.cordon()
    result = kept_world.run("apply", "-o", "json", yes=None, tty=True)
    assert_blocked(result, "cordon")
    assert "Type" not in result.err


# Standard output and standard error


FAILURES: dict[str, tuple[int, dict[str, Any]]] = {
    "equal modes": (2, {"to": "pod-hami"}),
    "an unknown mode": (2, {"to": "nothing"}),
    "an unknown option": (2, {"force": True}),
    "a flag of kubectl": (2, {"token": "x"}),
    "a kubeconfig that is missing": (2, {"kubeconfig": "/nowhere"}),
    "a check": (3, {"node": "gpu-9"}),
}


@pytest.mark.parametrize("output", [["-o", "json"], ["-ojson"], ["--output=yaml"]], ids=" ".join)
@pytest.mark.parametrize(("code", "options"), list(FAILURES.values()), ids=list(FAILURES))
def test_standard_output_is_one_document_also_on_failure(kept_world: World, code: int, options: dict[str, Any], output: list[str]) -> None:
    result = kept_world.run("preview", *output, **options)
    assert result.code == code, show(result)
    report = validate(YAML(typ="safe", pure=True).load(result.out) if "yaml" in output[0] else json.loads(result.out))
    assert report["exitCode"] == code
    assert_one_error(result)


@pytest.mark.parametrize("output", FORMATS)
def test_a_clean_run_says_nothing_wrong_on_standard_error(kept_world: World, output: str) -> None:
    result = kept_world.run("preview", "-o", output)
    assert result.code == 0
    assert "error" not in result.err and "Traceback" not in result.err and "Warning" not in result.err


def run_with(world: World, redirection: str, command: str = "preview", **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the program from a shell that redirects its streams."""
    words = [sys.executable, str(zipapp_path()), *world.arguments(command, "-o", "json", **options)]
    environment = {**clean_environment(world.home), "TMPDIR": str(world.scratch)}
    script = f"exec {shlex.join(words)} {redirection}"
    return subprocess.run(["/bin/sh", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False)


STREAMS = {
    "standard output is closed": ">&-",
    "standard output is full": ">/dev/full",
    "standard error is closed": "2>&-",
    "standard error is full": "2>/dev/full",
    "both are closed": ">&- 2>&-",
    "all three are closed": "<&- >&- 2>&-",
}


@pytest.mark.parametrize("redirection", list(STREAMS.values()), ids=list(STREAMS))
def test_a_stream_that_can_not_be_written_changes_no_exit_code(kept_world: World, redirection: str) -> None:
    before = look(kept_world)
    for code, options in ((0, {}), (2, {"to": "pod-hami"}), (3, {"node": "gpu-9"})):
        done = run_with(kept_world, redirection, **options)
        assert done.returncode == code, done
        if done.stdout:
            validate(json.loads(done.stdout))
        assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert_untouched(kept_world, before)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_has_left_changes_no_exit_code(kept_world: World, stream: str) -> None:
    for code, node in ((0, "gpu-1"), (3, "gpu-9")):
        reader, writer = os.pipe()
        os.close(reader)
        try:
            result = kept_world.run("preview", node=node, **{stream: writer})
        finally:
            os.close(writer)
        assert result.code == code, show(result)
        assert "Traceback" not in result.err


def test_an_apply_with_closed_streams_does_what_it_would(world: World) -> None:
    done = run_with(world, "<&- >&- 2>&-", "apply")
    assert done.returncode == 0
    assert world.mode() == "vm-passthrough" and not world.is_cordoned()


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("command", ["preview", "apply"])
def test_a_signal_before_the_cordon(kept_world: World, kept_proxy: FaultProxy, command: str, number: signal.Signals) -> None:
    """The run is waiting for the server, and does not wait any longer."""
    rule = kept_proxy.on("list", "/pods$", silent=True)
    before = look(kept_world)
    running = kept_world.start(command, "-o", "json", kubeconfig=kept_world.through(kept_proxy))
    rule.wait()
    running.signal(number, group=True)
    result = running.wait(10)
    assert result.code == 130, show(result)
    report = report_of(result)
    assert report["outcome"] == "interrupted"
    assert_says(report["error"]["message"], number.name)
    assert_one_error(result)
    assert_untouched(kept_world, before)


def test_a_signal_while_git_is_asked(kept_world: World) -> None:
    """The child that talks to the remote gets the terminal's signal too, and is not left behind."""
    with GitHttpServer(kept_world.fleet.root) as server:
        kept_world.fleet.git("remote", "set-url", "origin", f"{server.url}/remote.git")
        fault = server.fail("fetch-refs", "silent", times=None)
        running = kept_world.start("preview", "-o", "json")
        kept_world.wait_until(lambda: fault.fired, "the remote to be asked")
        running.signal(group=True)
        result = running.wait(10)
    assert result.code == 130, show(result)
    assert report_of(result)["outcome"] == "interrupted"


def test_a_signal_on_a_resume_says_that_the_node_is_still_cordoned(kept_world: World, kept_proxy: FaultProxy) -> None:
    leave_transaction(kept_world, transaction(kept_world))
    rule = kept_proxy.on("patch", f"^{NODES}/gpu-1$", when=lambda request: "dryRun" in request.query, silent=True)
    before = look(kept_world)
    running = kept_world.start("apply", resume_cordoned=True, kubeconfig=kept_world.through(kept_proxy))
    rule.wait()
    running.signal()
    result = running.wait(10)
    assert result.code == 130, show(result)
    assert "still cordoned" in result.err
    assert_untouched(kept_world, before)
