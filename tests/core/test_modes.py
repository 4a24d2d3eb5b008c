"""The table of modes is the contract's, written out here once more, on purpose (spec section 1)."""

from __future__ import annotations

import pytest

from kubectl_gpu_transition.modes import CONFLICTING_OWNERS, LABELS, MODES, QUALIFIED, Mode, find_mode, label_values, supported_modes

ROWS = [
    ("pod-hami", "container", "hami-device-plugin", {"gpu-operator", "hami-system"}),
    ("pod-hami-dra", "container", "hami-dra-driver-kubelet-plugin", {"hami-system"}),
    ("vm-passthrough", "vm-passthrough", "nvidia-sandbox-device-plugin-daemonset", {"gpu-operator"}),
]


@pytest.mark.parametrize(("word", "config", "owner", "namespaces"), ROWS)
def test_a_supported_mode_has_this_row(word: str, config: str, owner: str, namespaces: set[str]) -> None:
    mode = find_mode(word)
    assert mode is not None
    facts = MODES[mode]
    assert (facts.config, facts.owner, set(facts.namespaces), facts.refused) == (config, owner, namespaces, None)
    assert label_values(mode) == {
        "kube-dc.com/gpu.workload-mode": word,
        "kube-dc.com/gpu.expected-workload-mode": word,
        "nvidia.com/gpu.workload.config": config,
    }


def test_the_table_has_these_modes_in_this_order_and_no_others() -> None:
    assert [mode.value for mode in supported_modes()] == [row[0] for row in ROWS]
    assert [mode.value for mode in MODES] == [*(row[0] for row in ROWS), "vm-vgpu"]
    assert list(MODES) == list(Mode)


def test_vm_vgpu_is_refused_with_its_reason() -> None:
    assert MODES[Mode.VM_VGPU].refused == "the licensed driver, registry, SOPS and mdev path is not qualified"


def test_the_qualified_pair_is_pod_hami_and_vm_passthrough() -> None:
    assert {mode.value for mode in QUALIFIED} == {"pod-hami", "vm-passthrough"}


def test_what_conflicts_with_every_mode() -> None:
    assert set(CONFLICTING_OWNERS) == {
        "nvidia-device-plugin-daemonset",
        "nvidia-device-plugin-mps-control-daemon",
        "nvidia-kata-sandbox-device-plugin-daemonset",
    }


@pytest.mark.parametrize("text", ["", "POD-HAMI", "pod-hami ", "pod_hami", "container", "POD_HAMI"])
def test_only_the_exact_word_is_a_mode(text: str) -> None:
    assert find_mode(text) is None


def test_the_labels_are_those_three() -> None:
    assert set(LABELS) == set(label_values(Mode.POD_HAMI))
