"""Texts that a transaction leaves in the world or hands to the operator: paths, commit message, commands to paste. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from kubectl_gpu_transition.model import ANNOTATION, TRAILER, Request, Transaction
from kubectl_gpu_transition.modes import LABELS, Mode

STEPS = ("preflight", "cordon", "recheck", "edit", "push", "wait", "uncordon")
PROGRAM = "kubectl gpu-transition"


def env_path(cluster: str) -> str:
    """The cluster's configuration in the fleet."""
    return f"clusters/{cluster}/cluster-config.env"


def rule_path(cluster: str) -> str:
    """The generated NodeFeatureRule of the cluster in the fleet."""
    return f"clusters/{cluster}/gpu-node-modes/nodefeaturerule.yaml"


def commit_subject(node: str, target: Mode) -> str:
    """First line of the commit (spec section 9)."""
    return f"feat(gpu): transition {node} to {target.value}"


def commit_beginning(request: Request, source: Mode, target: Mode) -> str:
    """How the message of every commit of this node, cluster and direction begins: a node's name alone may be in several clusters."""
    body = f"Cluster: {request.cluster}\nFrom: {source.value}\nTo: {target.value}\n"
    return f"{commit_subject(request.node, target)}\n\n{body}"


def commit_message(request: Request, source: Mode, target: Mode, transaction_id: str) -> str:
    """The whole commit message with its trailer."""
    reason = f"Reason: {request.reason}\n" if request.reason else ""
    return f"{commit_beginning(request, source, target)}{reason}\n{TRAILER}: {transaction_id}\n"


def _shared_options(request: Request) -> list[str]:
    words = ["--repo", request.repo, "--kubeconfig", request.kubeconfig]
    if request.context:
        words += ["--context", request.context]
    return words


def _duration(seconds: float) -> str:
    nanoseconds = round(seconds * 1e9)
    return next(f"{nanoseconds // size}{unit}" for size, unit in ((10**9, "s"), (10**6, "ms"), (1, "ns")) if nanoseconds % size == 0)


def _more_options(request: Request, defaults: Request) -> list[str]:
    words = []
    if request.ignore_missing_gitops:
        words.append("--ignore-missing-gitops")
    for flag, value, default in (
        ("--timeout", request.timeout, defaults.timeout),
        ("--settle", request.settle, defaults.settle),
        ("--request-timeout", request.request_timeout, defaults.request_timeout),
        ("--git-timeout", request.git_timeout, defaults.git_timeout),
    ):
        if value != default:
            words += [flag, _duration(value)]
    if request.token_env:
        words += ["--token-env", request.token_env]
    return words


_DEFAULTS = Request("", "", "", None, None, "", "")


def _command(verb: str, request: Request, more: Sequence[str]) -> str:
    return shlex.join([*PROGRAM.split(), verb, request.cluster, request.node, *_shared_options(request), *more])


def apply_command(request: Request, source: Mode, target: Mode, resume: bool) -> str:
    """The exact ``apply`` that does this transition, with every option that matters; with ``resume`` the one that finishes it."""
    words = ["--from", source.value, "--to", target.value]
    if resume:
        words.append("--resume-cordoned")
    words.append("--yes")
    for name in request.gpu_resources:
        words += ["--gpu-resource", name]
    for name in request.ignore_dra_drivers:
        words += ["--ignore-dra-driver", name]
    if request.require_allocatable:
        words.append("--require-allocatable")
    if request.reconcile:
        words.append("--reconcile")
    if request.reason:
        words += ["--reason", request.reason]
    return _command("apply", request, words + _more_options(request, _DEFAULTS))


def abandon_command(request: Request) -> str:
    """The exact ``abandon`` for this node."""
    return _command("abandon", request, ["--yes", *_more_options(request, _DEFAULTS)])


def _cluster_options(request: Request) -> str:
    words = ["--kubeconfig", request.kubeconfig]
    if request.context:
        words += ["--context", request.context]
    return shlex.join(words)


def _kubectl(request: Request) -> str:
    return f"kubectl {_cluster_options(request)}"


def point_at_cluster(request: Request, advice: str) -> str:
    """Advice that ends in a command, with the options that make it act on this cluster and on no other."""
    return f"{advice} {_cluster_options(request)}" if re.search(r": (kubectl|virtctl|flux) ", advice) else advice


def inspect_commands(request: Request) -> tuple[str, ...]:
    """The runbook's commands to look at a node whose transition stopped, real names filled in."""
    kubectl, node = _kubectl(request), shlex.quote(request.node)
    return (
        f"{kubectl} get node {node} -L {','.join(LABELS)}",
        f"{kubectl} get pods -A --field-selector spec.nodeName={node}",
        f"flux get kustomizations {_cluster_options(request)}",
    )


def way_back(request: Request, commit: str) -> str:
    """How to take the change back when the target can not come up (spec section 6)."""
    revert = f"git -C {shlex.quote(request.repo)} revert {commit}"
    return f"{revert}, reviewed and pushed as any change; then {abandon_command(request)}"


def drop_annotation_command(request: Request) -> str:
    """The last way out: drops the record by hand; the node stays cordoned and is then nobody's but its operator's."""
    return f"{_kubectl(request)} annotate node {shlex.quote(request.node)} {ANNOTATION}-"


def uncordon_command(request: Request) -> str:
    """The uncordon by hand, offered only where a person's own cordon lies on top of ours."""
    return f"{_kubectl(request)} uncordon {shlex.quote(request.node)}"


def cordon_command(request: Request) -> str:
    """The cordon by hand."""
    return f"{_kubectl(request)} cordon {shlex.quote(request.node)}"


def find_in_branch_command(request: Request, transaction_id: str) -> str:
    """Shows whether the branch holds a commit of that transaction."""
    return f"git -C {shlex.quote(request.repo)} log --grep {shlex.quote(transaction_id)} --oneline"


def describe_transaction(transaction: Transaction) -> str:
    """One line for people."""
    where = f"{transaction.source.value} to {transaction.target.value} in {transaction.cluster}"
    # Anybody may have written the record: what it says stays on this line.
    return " ".join(f"{transaction.id} ({where}, {transaction.phase}, since {transaction.started}, by {transaction.by})".split())
