"""The command line: every option, and every way to get it wrong, through ``cli.main`` where no cluster is needed (spec section 2)."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from kubectl_gpu_transition import __version__, cli
from kubectl_gpu_transition.failures import InterruptedNow, Usage
from kubectl_gpu_transition.model import Request
from kubectl_gpu_transition.modes import Mode

HAMI, VM = Mode.POD_HAMI, Mode.VM_PASSTHROUGH
DIRECTION = ["--from", "pod-hami", "--to", "vm-passthrough"]
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: dc1
contexts: [{name: dc1, context: {cluster: dc1, user: dc1}}]
clusters: [{name: dc1, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: dc1, user: {token: x}}]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to be in, with a kubeconfig; a home of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "fleet").mkdir()
    (tmp_path / "dc1.kubeconfig").write_text(KUBECONFIG)
    return tmp_path


def argv(command: str = "apply", *more: str, node: str = "gpu-1", cluster: str = "eu/dc1", direction: list[str] | None = None) -> list[str]:
    """A command line that is in order but for ``more``."""
    words = [command, cluster, node, "--repo", "fleet", "--kubeconfig", "dc1.kubeconfig"]
    return [*words, *((DIRECTION if direction is None else direction) if command != "abandon" else []), *more]


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    code = cli.main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def request_of(words: list[str], environ: dict[str, str] | None = None, interactive: bool = True) -> Request:
    return cli.make_request(cli.build_parser().parse_args(words), environ or {}, interactive)


# ---------------------------------------------------------------- help, version, schema


@pytest.mark.parametrize("words", [[], ["help"], ["-h"], ["--help"], ["help", "apply"]], ids=str)
def test_help_is_printed_and_nothing_else(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(words, capsys)
    assert (code, err) == (0, "")
    for word in ("preview", "apply", "abandon", "version", "exit codes:", "130"):
        assert word in out


@pytest.mark.parametrize("command", ["preview", "apply", "abandon", "version"])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_each_command_has_a_help_of_its_own(command: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run([command, flag], capsys)
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: kubectl gpu-transition {command} ")


@pytest.mark.parametrize("words", [["version"], ["--version"]], ids=str)
def test_the_version(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words, capsys) == (0, f"kubectl gpu-transition {__version__}\n", "")


@pytest.mark.parametrize("words", [["version", "--schema"], ["--version", "--schema"]], ids=str)
def test_the_schema(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(words, capsys)
    assert (code, err) == (0, "")
    jsonschema.Draft202012Validator.check_schema(json.loads(out))


# ---------------------------------------------------------------- what is understood

OPTIONS: list[tuple[str, list[str], str, Any]] = [
    ("apply", [], "source", HAMI),
    ("apply", [], "target", VM),
    ("apply", [], "timeout", 900.0),
    ("apply", [], "settle", 2.0),
    ("apply", [], "request_timeout", 30.0),
    ("apply", [], "git_timeout", 60.0),
    ("apply", [], "output", "text"),
    ("apply", [], "resume", False),
    ("apply", [], "yes", False),
    ("apply", [], "verbose", False),
    ("apply", [], "context", None),
    ("apply", [], "reason", None),
    ("apply", ["--context", "dc1"], "context", "dc1"),
    ("apply", ["--yes"], "yes", True),
    ("apply", ["--resume-cordoned"], "resume", True),
    ("preview", ["--resume-cordoned"], "resume", True),
    ("apply", ["--timeout", "1h30m"], "timeout", 5400.0),
    ("abandon", ["--timeout", "90s"], "timeout", 90.0),
    ("abandon", ["--settle", "1s"], "settle", 1.0),
    (
        "apply",
        ["--gpu-resource", "a.example/x", "--gpu-resource=b", "--gpu-resource", "a.example/x"],
        "gpu_resources",
        ("a.example/x", "b"),
    ),
    ("preview", ["--ignore-dra-driver", "dra.net", "--ignore-dra-driver=a.b"], "ignore_dra_drivers", ("dra.net", "a.b")),
    ("apply", ["--ignore-missing-gitops"], "ignore_missing_gitops", True),
    ("abandon", ["--ignore-missing-gitops"], "ignore_missing_gitops", True),
    ("apply", ["--require-allocatable"], "require_allocatable", True),
    ("apply", [], "require_allocatable", False),
    ("apply", ["--reconcile"], "reconcile", True),
    ("apply", [], "reconcile", False),
    ("apply", ["--reason", " OPS-7 "], "reason", "OPS-7"),
    ("preview", ["--request-timeout", "5s"], "request_timeout", 5.0),
    ("preview", ["--git-timeout", "2m"], "git_timeout", 120.0),
    ("preview", ["-o", "json"], "output", "json"),
    ("preview", ["-oyaml"], "output", "yaml"),
    ("preview", ["--output=json"], "output", "json"),
    ("preview", ["-v"], "verbose", True),
    ("abandon", [], "source", None),
    ("abandon", ["--verbose"], "verbose", True),
]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("command", "more", "field", "value"), OPTIONS, ids=lambda part: " ".join(part) if isinstance(part, list) else str(part)
)
def test_an_option_is_understood(command: str, more: list[str], field: str, value: Any) -> None:
    assert getattr(request_of(argv(command, *more)), field) == value


def test_paths_become_absolute(place: Path) -> None:
    request = request_of(argv())
    assert (request.repo, request.kubeconfig) == (str(place / "fleet"), str(place / "dc1.kubeconfig"))
    (place / "home").mkdir()
    assert request_of([*argv(), "--kubeconfig", "~/x"]).kubeconfig == str(place / "home" / "x")


def test_the_token_is_named_and_never_kept(place: Path) -> None:
    del place
    request = request_of(argv("apply", "--token-env", "GIT_TOKEN"), {"GIT_TOKEN": "s3cret"})
    assert request.token_env == "GIT_TOKEN"
    assert "s3cret" not in repr(request)


def test_the_first_repository_that_is_set_is_taken(place: Path) -> None:
    for name in ("a", "b", "home/.kube-dc/fleet"):
        (place / name).mkdir(parents=True)
    bare = ["preview", "eu/dc1", "gpu-1", "--kubeconfig", "k", *DIRECTION]
    assert request_of([*bare, "--repo", "a"], {"KUBE_DC_FLEET": "b"}).repo == str(place / "a")
    assert request_of(bare, {"KUBE_DC_FLEET": "b"}).repo == str(place / "b")
    assert request_of(bare, {"KUBE_DC_FLEET": ""}).repo == str(place / "home/.kube-dc/fleet")
    assert request_of(bare, {}).repo == str(place / "home/.kube-dc/fleet")


@pytest.mark.parametrize(
    ("option", "environ", "words"),
    [
        (["--repo", "missing"], {"KUBE_DC_FLEET": "fleet"}, "--repo missing is not a directory"),
        (["--repo", "dc1.kubeconfig"], {"KUBE_DC_FLEET": "fleet"}, "--repo dc1.kubeconfig is not a directory"),
        (["--repo", ""], {"KUBE_DC_FLEET": "fleet"}, "--repo '' is not a directory"),
        ([], {"KUBE_DC_FLEET": "missing"}, "$KUBE_DC_FLEET missing is not a directory"),
        ([], {}, "the default ~/.kube-dc/fleet is not a directory"),
    ],
    ids=str,
)
def test_a_repository_that_is_set_and_no_directory_is_never_skipped(
    option: list[str], environ: dict[str, str], words: str, place: Path
) -> None:
    del place
    with pytest.raises(Usage) as raised:
        request_of(["preview", "eu/dc1", "gpu-1", "--kubeconfig", "k", *DIRECTION, *option], environ)
    assert (raised.value.id, raised.value.message) == ("repo-missing", words)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("command", "asks"), [("apply", True), ("abandon", True), ("preview", False)])
def test_without_yes_and_without_a_terminal_only_a_preview_goes_on(command: str, asks: bool) -> None:
    assert request_of(argv(command), interactive=True).yes is False
    assert request_of(argv(command, *(["--yes"] if asks else [])), interactive=False).yes is asks
    if asks:
        with pytest.raises(Usage, match=f"{command} needs --yes where there is no terminal to ask on"):
            request_of(argv(command), interactive=False)


# ---------------------------------------------------------------- durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("15m", 900.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("100ms", 0.1),
        ("2h45m30.5s", 9930.5),
        ("1us", 1e-6),
        ("1µs", 1e-6),
        ("1μs", 1e-6),
        ("7ns", 7e-9),
        ("168h", 604800.0),
    ],
)
def test_a_duration(text: str, seconds: float) -> None:
    assert cli.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0s",
        "15",
        "15 m",
        "-5m",
        "+5m",
        "m",
        "1d",
        "1h 30m",
        "1H",
        "90S",
        "1e3s",
        "1h30",
        ".s",
        "169h",
        "inf",
        "nan",
        "٣s",
        "9" * 400 + "s",
        "1m\n",
    ],
    ids=ascii,
)
def test_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        cli.parse_duration(text)


# ---------------------------------------------------------------- what is refused

GOOD_CLUSTERS = ["dc1", "eu/dc1", "a", "a-b/c-d/e", "0/1"]
BAD_CLUSTERS = [
    "../x",
    "..",
    ".",
    "/dc1",
    "dc1/",
    "eu//dc1",
    "eu/../dc1",
    "EU/dc1",
    "dc_1",
    "-dc1",
    "dc1-",
    "eu/-dc1",
    "dc1.",
    "dc1\n",
    "dc1 ",
    "",
    "dс1",
    "~",
    "$HOME",
    "a\\b",
    "dc1\0",
    "a" * 254,
]
GOOD_NODES = ["gpu-1", "gpu-1.dc1.example.com", "1", "a" * 63, "a" * 253]
BAD_NODES = [
    "../x",
    "gpu_1",
    "GPU-1",
    "gpu-1.",
    ".gpu",
    "gpu..1",
    "-gpu",
    "gpu-",
    "gpu-.x",
    "a/b",
    "gpu-1\n",
    "gpu 1",
    "",
    "gpu-1;rm",
    "gpu-1%2f",
    "гpu",
    "a" * 254,
]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("cluster", GOOD_CLUSTERS)
def test_a_cluster(cluster: str) -> None:
    assert request_of(argv(cluster=cluster)).cluster == cluster


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("node", GOOD_NODES, ids=lambda node: node[:30])
def test_a_node(node: str) -> None:
    assert request_of(argv(node=node)).node == node


def assert_usage(words: list[str], message: str, capsys: pytest.CaptureFixture[str], remedy: str = "") -> None:
    """Exit 2, the message and the remedy on stderr, and with -o json one valid document on stdout."""
    code, out, err = run(words, capsys)
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ")
    assert message in err
    assert remedy in err
    assert "Traceback" not in err
    for option in (["-o", "json"], ["-ojson"], ["--output=json"], ["-vojson"], ["-v", "--output", "json"]):
        code, out, err = run([*words, *option], capsys)
        assert code == 2
        document = json.loads(out)
        jsonschema.validate(document, json.loads(cli.read_schema()))
        assert (document["outcome"], document["exitCode"], document["error"]["step"]) == ("usage-error", 2, "preflight")
        assert message in document["error"]["message"]
        assert message in err


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("cluster", BAD_CLUSTERS, ids=lambda text: ascii(text)[:30])
def test_no_cluster(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(argv("preview", cluster=cluster), capsys)
    assert (code, out) == (2, "")
    assert "is not a cluster's path below clusters/" in err or "the following arguments are required" in err or "unrecognized" in err


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("node", BAD_NODES, ids=lambda text: ascii(text)[:30])
def test_no_node(node: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(argv("preview", node=node), capsys)
    assert (code, out) == (2, "")
    assert "is not a Kubernetes node name" in err or "the following arguments are required" in err or "unrecognized" in err


WRONG = [
    pytest.param(["frobnicate"], "invalid choice: 'frobnicate'", "kubectl gpu-transition --help", id="an unknown command"),
    pytest.param(["version", "--frobnicate"], "unrecognized arguments: --frobnicate", "", id="an unknown option of version"),
    pytest.param(argv("apply", "--frobnicate"), "unrecognized arguments: --frobnicate", "", id="an unknown option"),
    pytest.param(argv("apply", "--resume"), "unrecognized arguments: --resume", "", id="an option cut short"),
    pytest.param(argv("apply", "extra"), "unrecognized arguments: extra", "", id="one word too many"),
    pytest.param(["apply"], "required: CLUSTER, NODE", "kubectl gpu-transition apply --help", id="no cluster"),
    pytest.param(["apply", "dc1"], "required: NODE", "", id="no node"),
    pytest.param(argv("apply", direction=[]), "required: --from, --to", "", id="no direction"),
    pytest.param(argv("apply", direction=["--from", "pod-hami"]), "required: --to", "", id="half a direction"),
    pytest.param(
        argv("preview", direction=["--from", "pod-hami", "--to", "gpu"]),
        "unknown mode 'gpu'; modes: pod-hami, pod-hami-dra, vm-passthrough, vm-vgpu",
        "",
        id="an unknown mode",
    ),
    pytest.param(
        argv("preview", direction=["--from", "pod-hami", "--to", "pod-hami"]),
        "--from and --to are both pod-hami",
        "name two different modes",
        id="equal modes",
    ),
    pytest.param(argv("abandon", "--from", "pod-hami"), "unrecognized arguments: --from pod-hami", "", id="a direction for abandon"),
    pytest.param(argv("abandon", "--reason", "x"), "unrecognized arguments: --reason", "", id="a reason for abandon"),
    pytest.param(argv("preview", "--yes"), "unrecognized arguments: --yes", "", id="yes to a preview"),
    pytest.param(argv("preview", "--timeout", "1m"), "unrecognized arguments: --timeout", "", id="a timeout of a preview"),
    pytest.param(argv("preview", "--reason", "x"), "unrecognized arguments: --reason", "", id="a reason for a preview"),
    pytest.param(argv("apply"), "apply needs --yes where there is no terminal to ask on", "add --yes", id="apply without yes and terminal"),
    pytest.param(argv("abandon"), "abandon needs --yes where there is no terminal", "add --yes", id="abandon without yes and terminal"),
    pytest.param(argv("apply", "--timeout", "15"), "'15' is not a duration such as 90s, 15m or 1h30m", "", id="a bare number"),
    pytest.param(argv("apply", "--timeout", "0s"), "'0s' is not above 0 and at most 168h", "", id="no time at all"),
    pytest.param(argv("apply", "--timeout", "1000h"), "is not above 0 and at most 168h", "", id="too long"),
    pytest.param(argv("apply", "--settle", "999ms"), "'999ms' is less than 1s", "", id="a settle below 1s"),
    pytest.param(argv("apply", "--request-timeout", "x"), "'x' is not a duration", "", id="a request timeout"),
    pytest.param(argv("apply", "--git-timeout", "x"), "'x' is not a duration", "", id="a git timeout"),
    pytest.param(argv("apply", "--gpu-resource", "a b"), "'a b' is not a resource name", "", id="a resource name"),
    pytest.param(argv("apply", "--gpu-resource", "n" * 317), "is not a resource name", "", id="a long resource name"),
    pytest.param(
        argv("preview", *(f"--gpu-resource=x/{n}" for n in range(17))),
        "17 names with --gpu-resource; at most 16",
        "name fewer",
        id="17 names",
    ),
    pytest.param(
        argv("preview", *(f"--gpu-resource=x.example/{n}{'n' * 300}" for n in range(6))),
        "the transaction does not fit into 2048 bytes",
        "name fewer or shorter",
        id="names beyond 2 KiB",
    ),
    pytest.param(
        argv("apply", "--reason", "two\nlines"), "give one line of at most 512 printable characters", "", id="a reason of two lines"
    ),
    pytest.param(argv("apply", "--reason", "x" * 513), "give one line", "", id="a long reason"),
    pytest.param(argv("apply", "--reason", "  "), "give one line", "", id="a blank reason"),
    pytest.param(argv("apply", "--reason", "a\x1b[2Jb"), "give one line", "", id="a reason with an escape"),
    pytest.param(
        argv("preview", "--token-env", "ghp_abc-def"), "give the NAME of an environment variable, never the token itself", "", id="a token"
    ),
    pytest.param(
        argv("preview", "--token-env", "UNSET_TOKEN"),
        "--token-env UNSET_TOKEN: that environment variable is not set",
        "export it",
        id="an unset token",
    ),
    pytest.param(argv("preview", "--context", ""), "--context is empty", "leave the option out", id="an empty context"),
    pytest.param(argv("preview", "--context", "dc9"), "dc9", "", id="an unknown context"),
    pytest.param(
        ["preview", "dc1", "gpu-1", "--repo", "fleet", *DIRECTION],
        "--kubeconfig FILE is required: $KUBECONFIG, ~/.kube/config and in-cluster credentials are never used",
        "",
        id="no kubeconfig",
    ),
    pytest.param([*argv("preview"), "--kubeconfig", ""], "--kubeconfig FILE is required", "", id="an empty kubeconfig"),
    pytest.param([*argv("preview"), "--kubeconfig", "missing"], "missing", "", id="a kubeconfig that is not there"),
    pytest.param([*argv("preview"), "--kubeconfig", "fleet"], "fleet", "", id="a kubeconfig that is a directory"),
    pytest.param([*argv("preview"), "--kubeconfig", "broken"], "broken", "", id="a kubeconfig that is not YAML"),
    pytest.param([*argv("preview"), "--kubeconfig", "text"], "text", "", id="a kubeconfig that is something else"),
    pytest.param(
        [*argv("preview"), "--repo", "missing"],
        "--repo missing is not a directory",
        "name the fleet checkout with --repo DIR",
        id="no repository",
    ),
]


@pytest.mark.parametrize(("words", "message", "remedy"), WRONG)
def test_a_command_line_is_refused(words: list[str], message: str, remedy: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "broken").write_text("{")
    (place / "text").write_text("hello\n")
    assert_usage(words, message, capsys, remedy)


@pytest.mark.parametrize("words", [["--frobnicate"], ["--"], ["-v"]], ids=str)
def test_no_command_is_no_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(words, capsys)
    assert (code, out) == (2, "")
    assert "the following arguments are required: COMMAND" in err


@pytest.mark.usefixtures("place")
def test_an_output_that_does_not_exist_is_refused_in_text(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(argv("preview", "-o", "xml"), capsys)
    assert (code, out) == (2, "")
    assert "invalid choice: 'xml'" in err


KUBECTL = {
    "a kubeconfig whose user may do it": ["--as", "--as-group", "--as-uid", "--as-user-extra"],
    "--kubeconfig FILE and --context NAME": [
        "--cluster",
        "--user",
        "--server",
        "-s",
        "--tls-server-name",
        "--certificate-authority",
        "--insecure-skip-tls-verify",
        "--client-certificate",
        "--client-key",
        "--token",
        "--username",
        "--password",
        "--cache-dir",
        "--disable-compression",
    ],
    "nothing: a node has no namespace": ["--namespace", "-n"],
    "the command preview": ["--dry-run"],
    "-v, which logs each request and git operation": ["--v", "--vmodule", "--log-flush-frequency"],
    "nothing instead": ["--kuberc", "--match-server-version", "--profile", "--profile-output", "--warnings-as-errors"],
}


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("flag", "instead"), [(flag, instead) for instead, flags in KUBECTL.items() for flag in flags])
def test_a_flag_of_kubectl_is_refused_by_name_with_what_to_use_instead(flag: str, instead: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([*argv("preview"), flag, "s3cret"], [*argv("preview"), f"{flag}=s3cret"], [flag, *argv("preview")]):
        code, out, err = run(words, capsys)
        assert (code, out) == (2, "")
        assert f"error: {flag} is kubectl's and not supported here\n  remedy: use {instead}\n" == err
        assert "s3cret" not in err


@pytest.mark.usefixtures("place")
def test_a_usage_error_names_what_was_understood(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run([*argv("apply"), "-o", "json"], capsys)
    document = json.loads(out)
    assert [document[key] for key in ("command", "cluster", "node", "from", "to")] == [
        "apply",
        "eu/dc1",
        "gpu-1",
        "pod-hami",
        "vm-passthrough",
    ]
    _, out, _ = run(["apply", "-o", "json"], capsys)
    document = json.loads(out)
    assert [document[key] for key in ("command", "cluster", "node", "from", "to")] == ["apply", None, None, None, None]
    _, out, _ = run(["status", "-o", "json"], capsys)
    assert [json.loads(out)[key] for key in ("kind", "command", "cluster", "nodes")] == ["StatusReport", "status", None, []]
    jsonschema.validate(json.loads(out), json.loads(cli.read_schema()))


@pytest.mark.usefixtures("place")
def test_the_last_output_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*argv("apply"), "-o", "json", "-o", "text"], capsys)[1] == ""
    _, out, _ = run([*argv("apply"), "-o", "json", "-o", "yaml"], capsys)
    document = YAML(typ="safe", pure=True).load(out)
    jsonschema.validate(document, json.loads(cli.read_schema()))
    assert document["exitCode"] == 2


# ---------------------------------------------------------------- a server that is not there


@pytest.mark.usefixtures("place")
def test_a_server_that_does_not_answer_is_exit_3_with_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run([*argv("preview"), "-o", "json", "--request-timeout", "1s"], capsys)
    document = json.loads(out)
    jsonschema.validate(document, json.loads(cli.read_schema()))
    assert (code, document["exitCode"], document["outcome"]) == (3, 3, "blocked")
    status = {check["name"]: check["status"] for check in document["checks"]}
    assert (status["modes"], status["node"], status["fleet-checkout"], status["holders"]) == ("pass", "fail", "fail", "fail")
    assert "checks failed" in err


@pytest.mark.usefixtures("place")
def test_vm_vgpu_is_a_check_and_no_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(argv("preview", direction=["--from", "pod-hami", "--to", "vm-vgpu"]), capsys)
    assert code == 3
    assert "FAIL  modes            vm-vgpu is not supported: the licensed driver" in out


# ---------------------------------------------------------------- before the engine


def test_a_bug_is_exit_1_and_its_traceback_is_for_those_who_ask(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("dangling")

    monkeypatch.setattr(cli, "build_parser", broken)
    code, out, err = run(["apply"], capsys)
    assert (code, out, err) == (1, "", "error: a bug in this program: RuntimeError: dangling\n")
    code, out, err = run(["apply", "-v", "-o", "json"], capsys)
    assert (code, json.loads(out)["outcome"]) == (1, "bug")
    assert "Traceback" in err


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise InterruptedNow("SIGTERM")

    monkeypatch.setattr(cli, "build_parser", interrupted)
    assert run(["apply"], capsys) == (130, "", "error: interrupted by SIGTERM; nothing was done\n")


@pytest.mark.usefixtures("place")
def test_without_standard_input_there_is_no_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    code, _, err = run(argv("apply"), capsys)
    assert code == 2
    assert "needs --yes" in err
