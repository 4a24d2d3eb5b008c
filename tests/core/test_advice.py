"""The checks that warn and never block (spec section 3)."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_gpu_transition.advice import advise
from kubectl_gpu_transition.model import Check, Problem
from kubectl_gpu_transition.record import Claim
from kubectl_gpu_transition.resume import Verdict
from tests.core.builders import ENV, HAMI, VM, checkout, daemon, look, node, observation, owner, request, tip

GONE = Problem("not allowed (403)", "ask")
SHARED, MACHINE = "GPU_SHARED_CREATION_ENABLED", "GPU_VM_CREATION_ENABLED"


def advice(name: str, target: Any = VM, verdict: Any = None, **more: Any) -> Check:
    made = look(observation(**more), request=request(target=target), claim=Claim("none", "", None), verdict=verdict)
    return next(check for check in advise(made) if check.name == name)


def modes(text: str) -> Any:
    return checkout(env=ENV + f"GPU_NODE_MODES={text}\n".encode())


def deploy(key: str, value: str) -> Any:
    return node(labels={**node().labels, f"nvidia.com/gpu.deploy.{key}": value})


WAITING = Verdict("wait", "the tip asks for the target", None)


def test_the_order_is_the_contracts() -> None:
    assert [check.name for check in advise(look())] == ["live-gates", "source-owner", "gpu-stack", "generator-input"]


@pytest.mark.parametrize(
    ("name", "more", "status", "message"),
    [
        ("live-gates", {}, "pass", "both creation gates are false in the cluster"),
        ("live-gates", {"settings": ()}, "skip", "there is no ConfigMap flux-system/cluster-config"),
        ("live-gates", {"settings": GONE}, "warn", "can not be told: not allowed (403)"),
        ("live-gates", {"settings": ({SHARED: "true", MACHINE: "false"},)}, "warn", f"{SHARED} is 'true'"),
        ("live-gates", {"settings": ({SHARED: "false"},)}, "warn", f"{MACHINE} is 'absent'"),
        ("source-owner", {}, "pass", "hami-device-plugin runs on the node"),
        ("source-owner", {"pods": ()}, "warn", "owner hami-device-plugin: no pod on the node"),
        ("source-owner", {"pods": (owner(HAMI, ready=False),)}, "warn", "not Ready yet"),
        ("source-owner", {"pods": (owner(HAMI), daemon("nvidia-device-plugin-daemonset"))}, "warn", "nvidia-device-plugin-daemonset"),
        ("source-owner", {"pods": GONE}, "warn", "can not be told: not allowed (403)"),
        ("source-owner", {"node": None}, "skip", "no node"),
        ("source-owner", {"pods": (), "verdict": WAITING}, "skip", "on its way out"),
        ("gpu-stack", {}, "pass", "no operand is paused"),
        ("gpu-stack", {"node": deploy("driver", "paused-for-driver-upgrade")}, "warn", "gpu.deploy.driver is 'paused-for-driver-upgrade'"),
        ("gpu-stack", {"node": deploy("driver", "pre-installed")}, "warn", "gpu.deploy.driver is 'pre-installed'"),
        ("gpu-stack", {"node": deploy("driver", "pre-installed"), "target": HAMI}, "pass", "no operand is paused"),
        ("gpu-stack", {"node": deploy("driver", "false")}, "pass", "no operand is paused"),
        ("gpu-stack", {"node": None}, "skip", "no node"),
        ("generator-input", {}, "skip", "GPU_NODE_MODES is not in clusters/eu/dc1/cluster-config.env"),
        ("generator-input", {"checkout": modes("gpu-1=vm-passthrough,gpu-2=pod-hami")}, "pass", "says vm-passthrough too"),
        ("generator-input", {"checkout": modes("gpu-1=pod-hami")}, "warn", "has gpu-1 in pod-hami"),
        ("generator-input", {"checkout": modes("gpu-2=pod-hami")}, "warn", "does not name gpu-1"),
        ("generator-input", {"checkout": checkout(env=None)}, "skip", "no configuration"),
        ("generator-input", {"checkout": checkout(env=b"A=\xff\n")}, "skip", "UTF-8"),
        (
            "generator-input",
            {"tip": tip(env=ENV + b"GPU_NODE_MODES=gpu-1=vm-passthrough\n"), "checkout": modes("gpu-1=pod-hami"), "verdict": WAITING},
            "pass",
            "says vm-passthrough too",
        ),
    ],
)
def test_advice(name: str, more: dict[str, Any], status: str, message: str) -> None:
    check = advice(name, **more)
    assert check.status == status and message in check.message, check
    assert (check.remedy is not None) == (status == "warn")


def test_the_generators_input_is_updated_with_every_node_kept() -> None:
    remedy = advice("generator-input", checkout=modes("gpu-2=pod-hami, gpu-1=pod-hami")).remedy or ""
    assert remedy.endswith("kube-dc bootstrap config set eu/dc1 GPU_NODE_MODES=gpu-1=vm-passthrough,gpu-2=pod-hami --yes")
