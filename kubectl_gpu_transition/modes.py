"""The one table of GPU node modes. Every other module asks here; nobody else spells a mode, label or owner."""

from __future__ import annotations

import enum
from dataclasses import dataclass

LABEL_ACTIVE = "kube-dc.com/gpu.workload-mode"
LABEL_EXPECTED = "kube-dc.com/gpu.expected-workload-mode"
LABEL_CONFIG = "nvidia.com/gpu.workload.config"
LABELS = (LABEL_ACTIVE, LABEL_EXPECTED, LABEL_CONFIG)


class Mode(enum.Enum):
    """What a GPU node is for; the value is the text used on the command line, in labels and in the rule."""

    POD_HAMI = "pod-hami"
    POD_HAMI_DRA = "pod-hami-dra"
    VM_PASSTHROUGH = "vm-passthrough"
    VM_VGPU = "vm-vgpu"


@dataclass(frozen=True)
class ModeFacts:
    """One row of the contract's table of modes (spec section 1).

    ``config`` is the value of ``nvidia.com/gpu.workload.config``; ``owner`` the DaemonSet that owns the GPUs and
    ``namespaces`` where that DaemonSet is trusted. What works when the mode does: the node's allocatable ``resource``, or devices of the
    DRA ``driver``, or, with neither, one of KubeVirt's permitted host devices. ``refused`` says why a mode is not supported, else None.
    """

    title: str
    config: str
    owner: str
    namespaces: frozenset[str]
    resource: str | None = None
    driver: str | None = None
    refused: str | None = None


MODES: dict[Mode, ModeFacts] = {
    Mode.POD_HAMI: ModeFacts(
        "shared Pod GPU (HAMi device plugin)",
        "container",
        "hami-device-plugin",
        frozenset({"gpu-operator", "hami-system"}),
        resource="nvidia.com/gpu",
    ),
    Mode.POD_HAMI_DRA: ModeFacts(
        "shared Pod GPU (HAMi DRA driver)",
        "container",
        "hami-dra-driver-kubelet-plugin",
        frozenset({"hami-system"}),
        driver="hami-core-gpu.project-hami.io",
    ),
    Mode.VM_PASSTHROUGH: ModeFacts(
        "dedicated GPU VM (KubeVirt)", "vm-passthrough", "nvidia-sandbox-device-plugin-daemonset", frozenset({"gpu-operator"})
    ),
    Mode.VM_VGPU: ModeFacts(
        "virtual GPU (vGPU)",
        "vm-vgpu",
        "nvidia-sandbox-device-plugin-daemonset",
        frozenset(),
        refused="the licensed driver, registry, SOPS and mdev path is not qualified",
    ),
}

# The pair that was qualified on hardware; every other supported pair works by the same rules but is a warning (spec section 1).
QUALIFIED = frozenset({Mode.POD_HAMI, Mode.VM_PASSTHROUGH})

# DaemonSets that conflict with every mode, in whatever namespace they run (spec section 1).
CONFLICTING_OWNERS = frozenset(
    {"nvidia-device-plugin-daemonset", "nvidia-device-plugin-mps-control-daemon", "nvidia-kata-sandbox-device-plugin-daemonset"}
)


# Where the GPU stack itself runs: its pods reach devices without asking, as their work (spec section 7).
STACK_NAMESPACES = frozenset().union(*(facts.namespaces for facts in MODES.values()))


def find_mode(text: str) -> Mode | None:
    """The mode of that exact text, or None where there is none."""
    return next((mode for mode in Mode if mode.value == text), None)


def supported_modes() -> tuple[Mode, ...]:
    """The modes a transition may start from or end in, in the table's order."""
    return tuple(mode for mode, facts in MODES.items() if facts.refused is None)


def label_values(mode: Mode) -> dict[str, str]:
    """The three ownership labels of a node in this mode."""
    return {LABEL_ACTIVE: mode.value, LABEL_EXPECTED: mode.value, LABEL_CONFIG: MODES[mode].config}
