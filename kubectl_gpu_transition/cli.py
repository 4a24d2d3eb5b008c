"""The command line: argv in, exit code out. The only reader of argv and environment, and the only place that prints the end.

Heavy modules are imported by the commands that need them, after the arguments have been found in order.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from kubectl_gpu_transition import __version__
from kubectl_gpu_transition.failures import Failure, Interrupted, InterruptedNow, Usage, exit_code, outcome_word
from kubectl_gpu_transition.model import Outcome, Request, Step
from kubectl_gpu_transition.modes import Mode, find_mode
from kubectl_gpu_transition.plan import PROGRAM, STEPS
from kubectl_gpu_transition.record import NAME_LENGTH, NAMES, check_names

_CLUSTER = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:/[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")  # spec section 2
_NODE = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")  # RFC 1123 subdomain
_RESOURCE = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_OUTPUT = re.compile(r"(?:-v*o=?|--output(?:=|$))(.*)", re.DOTALL)  # as argparse reads it
_LONGEST = 7 * 24 * 3600.0  # seconds; nobody waits longer for one node
_REASON = 512  # characters of --reason

# kubectl's global flags that this program does not have, and what to use instead.
_KUBECTL_FLAGS = {
    **dict.fromkeys(("--as", "--as-group", "--as-uid", "--as-user-extra"), "a kubeconfig whose user may do it"),
    **dict.fromkeys(
        (
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
        ),
        "--kubeconfig FILE and --context NAME",
    ),
    **dict.fromkeys(("--namespace", "-n"), "nothing: a node has no namespace"),
    **dict.fromkeys(("--v", "--vmodule", "--log-flush-frequency"), "-v, which logs each request and git operation"),
    **dict.fromkeys(("--kuberc", "--match-server-version", "--profile", "--profile-output", "--warnings-as-errors"), "nothing instead"),
    "--dry-run": "the command preview",
}

_REPORTING = ("preview", "apply", "status", "abandon")
_COMMANDS = (*_REPORTING, "version", "help")
_READING = ("preview", "status")

_EXIT_CODES = """exit codes:
  0    preview: no check fails; apply, abandon: done, or nothing was left to do; status: everything was read
  1    a bug in the program, before anything was sent
  2    usage, or a confirmation that was not given
  3    refused or failed, and this run changed nothing
  4    failed after the cordon was sent: the node stays cordoned, the resume command is printed
  130  interrupted before that
"""


class _Parser(argparse.ArgumentParser):
    """argparse, with its errors as our failures."""

    def error(self, message: str) -> NoReturn:
        raise Usage("usage", message, f"{self.prog} --help")


def parse_duration(text: str) -> float:
    """Go's duration syntax (``90s``, ``15m``, ``1h30m``) in seconds. Raises ArgumentTypeError."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90s, 15m or 1h30m")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0 < seconds <= _LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and at most {int(_LONGEST // 3600)}h")
    return seconds


def _settle(text: str) -> float:
    seconds = parse_duration(text)
    if seconds < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is less than 1s")
    return seconds


def _matching(pattern: re.Pattern[str], longest: int, what: str) -> Any:
    def convert(text: str) -> str:
        if not pattern.fullmatch(text) or len(text) > longest:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return text

    return convert


def _mode(text: str) -> Mode:
    mode = find_mode(text)
    if mode is None:
        raise argparse.ArgumentTypeError(f"unknown mode {text!r}; modes: {', '.join(m.value for m in Mode)}")
    return mode


def _reason(text: str) -> str:
    if not text.strip() or len(text) > _REASON or not text.isprintable():
        raise argparse.ArgumentTypeError(f"give one line of at most {_REASON} printable characters")
    return text.strip()


def _environment_name(text: str) -> str:
    if not _VARIABLE.fullmatch(text):
        raise argparse.ArgumentTypeError("give the NAME of an environment variable, never the token itself")
    return text


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog=PROGRAM,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_EXIT_CODES,
        description=(
            "Move one GPU node between Shared Pod GPU (pod-hami) and Dedicated GPU VM (vm-passthrough)\n"
            "through the fleet repository, without pulling a device from under a workload."
        ),
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser, required=True)
    for name, text in (
        ("preview", "Run every check and show the plan; reads only"),
        ("apply", "Cordon, push the change, wait for the target, verify, uncordon"),
        ("status", "Show where each node stands, and what is left to do; reads only"),
        ("abandon", "Give up an unfinished transaction whose change is not in force"),
    ):
        example = f"example:\n  {PROGRAM} {name} dc1 gpu-1 --repo ~/fleet --kubeconfig ~/dc1.kubeconfig"
        example += " --from pod-hami --to vm-passthrough" if name in ("preview", "apply") else ""
        sub = commands.add_parser(
            name,
            help=text,
            description=f"{text}.",
            allow_abbrev=False,
            prog=f"{PROGRAM} {name}",
            epilog=f"{example}\n\n{_EXIT_CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add_arguments(sub, name)
    version = commands.add_parser("version", help="Print the version", allow_abbrev=False, prog=f"{PROGRAM} version")
    version.add_argument("--schema", action="store_true", help="Print the JSON Schema of the reports instead")
    commands.add_parser("help", help="Print this help", allow_abbrev=False)
    return parser


def _add_arguments(sub: argparse.ArgumentParser, name: str) -> None:
    sub.add_argument(
        "cluster",
        metavar="CLUSTER",
        type=_matching(_CLUSTER, 253, "a cluster's path below clusters/ (lower case, digits, '-', '/')"),
        help="Path of the cluster below clusters/ in the fleet, as dc1 or eu/dc1",
    )
    node, a_node = _matching(_NODE, 253, "a Kubernetes node name"), "Exact name of the Kubernetes node"
    if name == "status":
        sub.add_argument("node", metavar="NODE", nargs="?", type=node, help=f"{a_node}; default all of the rule file")
    else:
        sub.add_argument("node", metavar="NODE", type=node, help=a_node)
    sub.add_argument("--repo", metavar="DIR", help="Fleet checkout; default $KUBE_DC_FLEET, then ~/.kube-dc/fleet")
    sub.add_argument("--kubeconfig", metavar="FILE", help="Admin kubeconfig; required, no other is ever used")
    sub.add_argument("--context", metavar="NAME", help="Context in that kubeconfig; default its current-context")
    if name in ("preview", "apply"):
        sub.add_argument("--from", dest="source", metavar="MODE", type=_mode, required=True, help="Mode the node is in")
        sub.add_argument("--to", dest="target", metavar="MODE", type=_mode, required=True, help="Mode the node is to be in")
        sub.add_argument("--resume-cordoned", action="store_true", help="Go on with a transaction whose cordon this program made")
    if name != "abandon":
        sub.add_argument(
            "--gpu-resource",
            metavar="NAME",
            action="append",
            default=[],
            type=_matching(_RESOURCE, NAME_LENGTH, "a resource name"),
            help="One more resource name that counts as a GPU (repeatable)",
        )
        sub.add_argument(
            "--ignore-dra-driver",
            metavar="NAME",
            action="append",
            default=[],
            type=_matching(_NODE, NAME_LENGTH, "the name of a DRA driver (a DNS name)"),
            help="Claims whose devices all come from this DRA driver (a network card, say) do not hold (repeatable)",
        )
    if name == "apply":
        sub.add_argument("--reason", metavar="TEXT", type=_reason, help="One line (a ticket, say) for the commit's body")
        sub.add_argument(
            "--require-allocatable",
            action="store_true",
            help="Uncordon only when the node offers the target's resources and none of the previous mode's",
        )
        sub.add_argument("--reconcile", action="store_true", help="After the push ask Flux to reconcile at once")
    if name not in _READING:
        sub.add_argument("--yes", action="store_true", help="Do it without asking")
        sub.add_argument(
            "--timeout", metavar="DURATION", type=parse_duration, default=900.0, help="Longest wait for the target; default 15m"
        )
        sub.add_argument(
            "--settle", metavar="DURATION", type=_settle, default=2.0, help="Pause between two looks that decide; default 2s, at least 1s"
        )
    if name != "status":
        sub.add_argument("--ignore-missing-gitops", action="store_true", help="Do not block where Flux's or NFD's objects do not exist")
    sub.add_argument("--token-env", metavar="NAME", type=_environment_name, help="Environment variable that holds the git token for https")
    sub.add_argument("--request-timeout", metavar="DURATION", type=parse_duration, default=30.0, help="For one API request; default 30s")
    sub.add_argument(
        "--git-timeout", metavar="DURATION", type=parse_duration, default=60.0, help="For one exchange with the git remote; default 60s"
    )
    sub.add_argument("-o", "--output", choices=("text", "json", "yaml"), default="text", help="Report format; default text")
    sub.add_argument("-v", "--verbose", action="store_true", help="Log each API request and git operation to stderr")


def _refuse_kubectl_flags(argv: Sequence[str]) -> None:
    for word in argv:
        flag = word.split("=", 1)[0]
        if flag in _KUBECTL_FLAGS:
            raise Usage("kubectl-flag", f"{flag} is kubectl's and not supported here", f"use {_KUBECTL_FLAGS[flag]}")


def make_request(options: argparse.Namespace, environ: Mapping[str, str], interactive: bool) -> Request:
    """The typed request. Raises Usage for what arguments, environment and local files already tell (spec section 2)."""
    source, target = getattr(options, "source", None), getattr(options, "target", None)
    if options.command in ("preview", "apply") and source is target:
        raise Usage("modes-equal", f"--from and --to are both {source.value if source else '?'}", "name two different modes")
    if not options.kubeconfig:
        raise Usage(
            "kubeconfig-required",
            "--kubeconfig FILE is required: $KUBECONFIG, ~/.kube/config and in-cluster credentials are never used",
            "name the cluster's admin kubeconfig: --kubeconfig FILE",
        )
    yes = getattr(options, "yes", False)
    if options.command not in _READING and not yes and not interactive:
        raise Usage("not-confirmed", f"{options.command} needs --yes where there is no terminal to ask on", "add --yes")
    repo = _find_repo(options.repo, environ)
    if options.context == "":
        raise Usage("context-unknown", "--context is empty", "name a context, or leave the option out for the current one")
    names, drivers = (tuple(dict.fromkeys(getattr(options, field, []))) for field in ("gpu_resource", "ignore_dra_driver"))
    for flag, given in (("--gpu-resource", names), ("--ignore-dra-driver", drivers)):
        if len(given) > NAMES:
            raise Usage("too-many-names", f"{len(given)} names with {flag}; at most {NAMES} fit into the transaction", "name fewer")
    if source is not None and target is not None:
        check_names(options.cluster, source, target, names, drivers)
    if options.token_env and not environ.get(options.token_env):
        raise Usage(
            "token-missing", f"--token-env {options.token_env}: that environment variable is not set", "export it, or leave the option out"
        )
    return Request(
        command=options.command,
        cluster=options.cluster,
        node=options.node or "",
        source=source,
        target=target,
        repo=repo,
        kubeconfig=os.path.abspath(os.path.expanduser(options.kubeconfig)),
        context=options.context,
        yes=yes,
        resume=getattr(options, "resume_cordoned", False),
        timeout=getattr(options, "timeout", 900.0),
        settle=getattr(options, "settle", 2.0),
        gpu_resources=names,
        ignore_dra_drivers=drivers,
        require_allocatable=getattr(options, "require_allocatable", False),
        ignore_missing_gitops=getattr(options, "ignore_missing_gitops", True),
        reconcile=getattr(options, "reconcile", False),
        reason=getattr(options, "reason", None),
        token_env=options.token_env,
        request_timeout=options.request_timeout,
        git_timeout=options.git_timeout,
        output=options.output,
        verbose=options.verbose,
    )


def _find_repo(option: str | None, environ: Mapping[str, str]) -> str:
    """The first of --repo, $KUBE_DC_FLEET and ~/.kube-dc/fleet that is set; one that is no directory is an error, never skipped."""
    for where, value in (("--repo", option), ("$KUBE_DC_FLEET", environ.get("KUBE_DC_FLEET")), ("the default", "~/.kube-dc/fleet")):
        if value or (value == "" and where == "--repo"):
            path = os.path.abspath(os.path.expanduser(value))
            if not value or not os.path.isdir(path):
                raise Usage("repo-missing", f"{where} {value or repr(value)} is not a directory", "name the fleet checkout with --repo DIR")
            return path
    raise AssertionError("the default is always set")


def _wanted_output(argv: Sequence[str]) -> str:
    """The report format, also where the rest of the command line is wrong."""
    found = "text"
    for word, following in zip(argv, [*argv, ""][1:], strict=True):
        option = _OUTPUT.fullmatch(word)
        value = (option[1] or following) if option else None
        if value in ("text", "json", "yaml"):
            found = value
    return found


def read_schema() -> str:
    """The JSON Schema of the reports, as shipped."""
    import pkgutil

    data = pkgutil.get_data("kubectl_gpu_transition", "report.schema.json")
    if data is None:
        raise FileNotFoundError("report.schema.json")
    return data.decode()


def _print(outcome: Outcome, output: str) -> int:
    from kubectl_gpu_transition import report
    from kubectl_gpu_transition.adapters.terminal import has_colour, write_line

    if output == "json":
        write_line(sys.stdout, json.dumps(report.document(outcome), indent=2))
    elif output == "yaml":
        write_line(sys.stdout, _as_yaml(report.document(outcome)))
    elif outcome.checks or outcome.nodes or outcome.error is None:
        for line in report.text(outcome, has_colour(sys.stdout, dict(os.environ))):
            write_line(sys.stdout, line)
    for line in report.failure_text(outcome):
        write_line(sys.stderr, line)
    return outcome.exit_code


def _as_yaml(document: dict[str, Any]) -> str:
    import io

    from ruamel.yaml import YAML

    yaml, stream = YAML(typ="rt", pure=True), io.StringIO()
    yaml.default_flow_style, yaml.width = False, 4096
    yaml.dump(document, stream)
    return stream.getvalue().rstrip("\n")


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; prints, never raises."""
    command = argv[0] if argv and argv[0] in _REPORTING else ""
    outcome = Outcome(Request(command, "", "", None, None, "", ""), [Step(name) for name in STEPS])
    output, verbose = _wanted_output(argv), "-v" in argv or "--verbose" in argv
    try:
        return _run(list(argv), outcome)
    except InterruptedNow as signal:
        error: BaseException = Interrupted("interrupted", f"interrupted by {signal}; nothing was done")
    except Exception as problem:  # before the engine runs, which has a boundary of its own
        error = problem
    if verbose and not isinstance(error, Failure):
        traceback.print_exception(error)
    outcome.error, outcome.exit_code, outcome.word = error, exit_code(error, False), outcome_word(error, False)
    return _print(outcome, output)


def _run(argv: list[str], outcome: Outcome) -> int:
    from kubectl_gpu_transition.adapters.terminal import write_line

    parser = build_parser()
    if argv[:1] in ([], ["help"], ["-h"], ["--help"]):
        write_line(sys.stdout, parser.format_help().rstrip("\n"))
        return 0
    if argv[0] == "--version":
        argv = ["version", *argv[1:]]
    _refuse_kubectl_flags(argv)
    try:
        options = parser.parse_args(argv)
    except SystemExit:  # argparse has printed the help that was asked for
        return 0
    except Usage as error:
        if argv[0] in _COMMANDS and error.id == "usage":
            error.remedy = f"{PROGRAM} {argv[0]} --help"
        raise
    if options.command == "version":
        write_line(sys.stdout, read_schema().rstrip("\n") if options.schema else f"{PROGRAM} {__version__}")
        return 0
    outcome.request = Request(
        options.command, options.cluster, options.node or "", getattr(options, "source", None), getattr(options, "target", None), "", ""
    )
    request = make_request(options, os.environ, sys.stdin is not None and sys.stdin.isatty())
    return _print(_drive(request, argv), request.output)


def _drive(request: Request, argv: list[str]) -> Outcome:
    """Build the adapters and run the engine. Raises Usage for a kubeconfig that can not be used."""
    import socket
    import uuid

    from kubectl_gpu_transition.adapters.clock import SystemClock
    from kubectl_gpu_transition.adapters.cluster import KubeCluster
    from kubectl_gpu_transition.adapters.fleet import GitFleet
    from kubectl_gpu_transition.adapters.kubeconfig import Kubeconfig
    from kubectl_gpu_transition.adapters.signals import FLAG
    from kubectl_gpu_transition.adapters.terminal import StandardTerminal
    from kubectl_gpu_transition.engine import Engine

    if request.command not in _READING:
        import kubectl_gpu_transition.adapters.watch  # noqa: F401  (all that later steps need is there before the first write)

    terminal = StandardTerminal()

    def log(line: str) -> None:
        if request.verbose:
            terminal.say(line)

    cluster = KubeCluster(Kubeconfig(request.kubeconfig, request.context), request.request_timeout, log)
    fleet = GitFleet(request.repo, os.environ, token_env=request.token_env, git_timeout=request.git_timeout, log=log)
    engine = Engine(
        request,
        cluster,
        fleet,
        SystemClock(FLAG),
        terminal,
        FLAG,
        lambda: str(uuid.uuid4()),
        socket.gethostname(),
        shlex.join([*PROGRAM.split(), *argv]),
    )
    outcome = engine.run()
    if request.verbose and outcome.error is not None and not isinstance(outcome.error, Failure):
        traceback.print_exception(outcome.error)
    return outcome
