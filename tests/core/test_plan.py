"""Texts that the program leaves in the world or hands over: each command is read again as a shell and the program itself would."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from kubectl_gpu_transition import plan
from kubectl_gpu_transition.cli import build_parser, parse_duration
from kubectl_gpu_transition.model import Request
from tests.core.builders import COMMIT, HAMI, ID, VM, request, transaction

KUBECTL = ["kubectl", "--kubeconfig", "/dc1.kubeconfig"]


def test_the_files_of_a_cluster() -> None:
    assert plan.env_path("eu/dc1") == "clusters/eu/dc1/cluster-config.env"
    assert plan.rule_path("eu/dc1") == "clusters/eu/dc1/gpu-node-modes/nodefeaturerule.yaml"


def test_the_message_of_the_commit() -> None:
    assert plan.commit_message(request(), HAMI, VM, ID) == (
        f"feat(gpu): transition gpu-1 to vm-passthrough\n\nCluster: eu/dc1\nFrom: pod-hami\nTo: vm-passthrough\n\nGpu-Transition-Id: {ID}\n"
    )
    with_reason = plan.commit_message(request(reason="Gpu-Transition-Id: forged"), HAMI, VM, ID)
    assert "\nReason: Gpu-Transition-Id: forged\n\nGpu-Transition-Id: " in with_reason, "the last paragraph is the trailer alone"


def parsed(command: str) -> Any:
    """The command as the program would read it."""
    words = shlex.split(command)
    assert words[:2] == ["kubectl", "gpu-transition"]
    return build_parser().parse_args(words[2:])


FULL: dict[str, Any] = {
    "context": "it's mine",
    "gpu_resources": ("vendor.example/gpu", "b"),
    "ignore_missing_gitops": True,
    "timeout": 5400.0,
    "settle": 2.5,
    "request_timeout": 0.25,
    "git_timeout": 61.0,
    "token_env": "TOKEN",
    "require_allocatable": True,
    "reconcile": True,
    "reason": "OPS-7; rm -rf /",
}


@pytest.mark.parametrize("resume", [False, True])
def test_the_command_that_goes_on_has_every_option_that_matters(resume: bool) -> None:
    asked = request(**FULL)
    read = parsed(plan.apply_command(asked, HAMI, VM, resume))
    assert (read.command, read.cluster, read.node, read.repo, read.kubeconfig) == ("apply", "eu/dc1", "gpu-1", "/fleet", "/dc1.kubeconfig")
    assert (read.source, read.target, read.resume_cordoned, read.yes) == (HAMI, VM, resume, True)
    assert read.gpu_resource == list(FULL["gpu_resources"])
    for key in FULL.keys() - {"gpu_resources"}:
        assert getattr(read, key) == FULL[key], key


def test_defaults_are_left_out() -> None:
    assert plan.apply_command(request(), HAMI, VM, resume=True) == (
        "kubectl gpu-transition apply eu/dc1 gpu-1 --repo /fleet --kubeconfig /dc1.kubeconfig --from pod-hami --to vm-passthrough "
        "--resume-cordoned --yes"
    )
    assert plan.abandon_command(request()) == (
        "kubectl gpu-transition abandon eu/dc1 gpu-1 --repo /fleet --kubeconfig /dc1.kubeconfig --yes"
    )
    defaults = Request("", "", "", None, None, "", "")
    read = parsed(plan.apply_command(request(), HAMI, VM, resume=False))
    assert (read.timeout, read.settle, read.request_timeout, read.git_timeout) == (
        defaults.timeout,
        defaults.settle,
        defaults.request_timeout,
        defaults.git_timeout,
    )


def test_an_abandon_keeps_what_it_understands() -> None:
    read = parsed(plan.abandon_command(request(**FULL)))
    assert (read.command, read.timeout, read.settle, read.ignore_missing_gitops, read.context) == (
        "abandon",
        5400.0,
        2.5,
        True,
        "it's mine",
    )


@pytest.mark.parametrize("seconds", [1.0, 90.0, 0.001, 1.5, 0.25, 1e-9, 0.000015, 604800.0, 0.1, 3.3, 2.000000001])
def test_a_duration_is_read_as_it_was_meant(seconds: float) -> None:
    words = shlex.split(plan.apply_command(request(git_timeout=seconds), HAMI, VM, resume=False))
    assert parse_duration(words[words.index("--git-timeout") + 1]) == pytest.approx(seconds, rel=1e-12)


def test_the_runbooks_commands_have_the_real_names() -> None:
    hostile = request(context="a b")
    assert [shlex.split(command) for command in plan.inspect_commands(hostile)] == [
        [
            *(*KUBECTL, "--context", "a b", "get", "node", "gpu-1", "-L"),
            "kube-dc.com/gpu.workload-mode,kube-dc.com/gpu.expected-workload-mode,nvidia.com/gpu.workload.config",
        ],
        [*KUBECTL, "--context", "a b", "get", "pods", "-A", "--field-selector", "spec.nodeName=gpu-1"],
        ["flux", "get", "kustomizations", "--kubeconfig", "/dc1.kubeconfig", "--context", "a b"],
    ]


def test_the_commands_for_a_person() -> None:
    asked = request()
    assert shlex.split(plan.drop_annotation_command(asked)) == [*KUBECTL, "annotate", "node", "gpu-1", "kube-dc.com/gpu-transition-"]
    assert shlex.split(plan.uncordon_command(asked)) == [*KUBECTL, "uncordon", "gpu-1"]
    assert shlex.split(plan.cordon_command(asked)) == [*KUBECTL, "cordon", "gpu-1"]
    found = plan.find_in_branch_command(asked, "a'b")
    assert shlex.split(found) == ["git", "-C", "/fleet", "log", "--grep", "a'b", "--oneline"]
    assert plan.way_back(asked, COMMIT) == (
        f"git -C /fleet revert {COMMIT}, reviewed and pushed as any change; then {plan.abandon_command(asked)}"
    )


def test_a_transaction_in_one_line() -> None:
    assert plan.describe_transaction(transaction()) == (
        f"{ID} (pod-hami to vm-passthrough in eu/dc1, cordoned, since 2026-05-01T00:00:00Z, by Op@laptop)"
    )


def test_the_steps_are_these_in_this_order() -> None:
    assert plan.STEPS == ("preflight", "cordon", "recheck", "edit", "push", "wait", "uncordon")
