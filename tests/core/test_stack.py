"""What will become of a node at the target: owners that select it, owners that must not, and the operator's policy (spec section 3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kubectl_gpu_transition.facts import DaemonSetView, PolicyView, Requirement
from kubectl_gpu_transition.model import NodeView
from kubectl_gpu_transition.modes import CONFLICTING_OWNERS, MODES, Mode
from kubectl_gpu_transition.stack import Prospect, foresee, is_paused, predict_labels, selects
from tests.core.builders import DRA, HAMI, VM, facts, node

SOUND: tuple[DaemonSetView, ...] = facts().daemonsets  # type: ignore[assignment]
POLICY: PolicyView = facts().policies[0]  # type: ignore[index]
DEPLOY = "nvidia.com/gpu.deploy."
SANDBOX, PLUGIN, DRIVER = f"{DEPLOY}sandbox-device-plugin", f"{DEPLOY}device-plugin", f"{DEPLOY}driver"
ACTIVE = "kube-dc.com/gpu.workload-mode"


def labelled(mode: Mode = HAMI, **labels: str) -> NodeView:
    """The node with more labels; ``sandbox_device_plugin`` is the deploy label of that name."""
    more = {DEPLOY + key.replace("_", "-"): value for key, value in labels.items()}
    return node(mode, labels={**node(mode).labels, **more})


def daemonset(name: str, namespace: str = "elsewhere", terms: Any = None, **selector: str) -> DaemonSetView:
    return DaemonSetView(namespace, name, {key.replace("_", "-"): value for key, value in selector.items()}, {}, terms)


def given(
    *more: DaemonSetView, without: Mode | None = None, policies: Any = (POLICY,), target: Mode = VM, on: NodeView | None = None
) -> Prospect:
    """The prospect of the node in a sound cluster, with these DaemonSets beside, and without the owner of one mode."""
    kept = [one for one in SOUND if without is None or one.name != MODES[without].owner]
    return foresee([*kept, *more], policies, on or labelled(), target)


def reasons(prospect: Prospect) -> str:
    return "; ".join(what for what, _ in prospect.impossible)


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize(("mode", "has", "has_not"), [(VM, SANDBOX, PLUGIN), (HAMI, PLUGIN, SANDBOX), (DRA, DRIVER, SANDBOX)])
def test_the_operators_labels_follow_the_workload_config(mode: Mode, has: str, has_not: str) -> None:
    labels, unsure = predict_labels(labelled(device_plugin="true", sandbox_device_plugin="true"), mode)
    assert (labels[has], has_not in labels, labels[ACTIVE], unsure) == ("true", False, mode.value, frozenset())


def test_values_that_are_not_empty_stay_and_empty_ones_do_not() -> None:
    labels, _ = predict_labels(labelled(sandbox_device_plugin="false", vfio_manager="", client="x"), VM)
    assert (labels[SANDBOX], labels[f"{DEPLOY}vfio-manager"], labels[f"{DEPLOY}client"]) == ("false", "true", "x")


def test_a_node_without_operands_gets_no_labels() -> None:
    labels, _ = predict_labels(labelled(operands="false", sandbox_device_plugin="true"), VM)
    assert SANDBOX not in labels


@pytest.mark.parametrize("value", ["paused-for-driver-upgrade", "paused-for-mig-change", "x_paused-for-driver-upgrade"])
def test_a_paused_value_will_be_another(value: str) -> None:
    assert is_paused(value)
    assert predict_labels(labelled(sandbox_device_plugin=value), VM)[1] == {SANDBOX}


def test_other_values_are_not_paused() -> None:
    assert not any(is_paused(value) for value in ("true", "false", "", "pre-installed"))


# ---------------------------------------------------------------- the target's owner


@pytest.mark.parametrize("target", [HAMI, DRA, VM])
def test_a_sound_cluster_brings_the_targets_owner_and_no_other(target: Mode) -> None:
    prospect = given(target=target, on=labelled(VM if target is not VM else HAMI))
    assert prospect.impossible == () and prospect.unknown == ()
    assert (prospect.owner or "").endswith(MODES[target].owner)


@pytest.mark.parametrize("target", [HAMI, DRA, VM])
def test_without_the_owner_the_target_can_not_come(target: Mode) -> None:
    prospect = given(without=target, target=target)
    assert f"there is no DaemonSet {MODES[target].owner} in " in reasons(prospect)
    assert f"does not have the stack of {target.value}" in reasons(prospect)


@pytest.mark.parametrize("target", [HAMI, DRA, VM])
def test_an_owner_in_a_namespace_that_is_not_trusted_is_none(target: Mode) -> None:
    prospect = given(daemonset(MODES[target].owner, "tenant-a"), without=target, target=target)
    assert f"there is no DaemonSet {MODES[target].owner}" in reasons(prospect)


def test_an_owner_that_will_not_select_the_node_says_what_it_wants() -> None:
    prospect = given(daemonset(MODES[VM].owner, "gpu-operator", gpu="on"), without=VM)
    assert reasons(prospect) == (
        f"DaemonSet gpu-operator/{MODES[VM].owner} will not select the node at vm-passthrough: it wants gpu=on, there will be none"
    )
    assert prospect.owner is None


def test_a_deploy_label_that_is_off_keeps_the_owner_away() -> None:
    assert f"it wants {SANDBOX}=true, there will be false" in reasons(given(on=labelled(sandbox_device_plugin="false")))


def test_a_deploy_label_that_is_paused_leaves_it_open() -> None:
    prospect = given(on=labelled(sandbox_device_plugin="paused-for-driver-upgrade"))
    assert (prospect.impossible, prospect.owner) == ((), None)
    assert f"whether DaemonSet gpu-operator/{MODES[VM].owner} will select the node" in prospect.unknown[0]


def test_one_of_two_owners_is_enough() -> None:
    prospect = given(daemonset(MODES[HAMI].owner, "hami-system", gpu="on"), target=HAMI)
    assert (prospect.impossible, prospect.owner) == ((), "gpu-operator/hami-device-plugin")


# ---------------------------------------------------------------- owners that must not come


@pytest.mark.parametrize("name", sorted({*CONFLICTING_OWNERS, MODES[HAMI].owner, MODES[DRA].owner}))
def test_an_owner_that_selects_every_node_conflicts_wherever_it_is(name: str) -> None:
    assert f"DaemonSet elsewhere/{name} will run on the node too, and conflicts with vm-passthrough" in reasons(given(daemonset(name)))


def test_an_owner_that_leaves_with_the_labels_does_not_conflict() -> None:
    stock = DaemonSetView("gpu-operator", "nvidia-device-plugin-daemonset", {PLUGIN: "true"}, {})
    assert given(stock).impossible == ()
    assert "nvidia-device-plugin-daemonset will run on the node too" in reasons(given(stock, target=HAMI))


def test_whether_a_conflicting_owner_comes_may_be_open() -> None:
    stock = DaemonSetView("gpu-operator", "nvidia-device-plugin-daemonset", {PLUGIN: "true"}, {})
    prospect = given(stock, target=HAMI, on=labelled(device_plugin="paused-for-mig-change"))
    assert prospect.impossible == () and "conflicts with pod-hami" in prospect.unknown[0]


def test_any_other_daemonset_is_nobodys_business() -> None:
    assert given(daemonset("node-exporter")).impossible == ()


# ---------------------------------------------------------------- the operator's policy

KATA, OFF = replace(POLICY, sandbox_mode="kata"), replace(POLICY, sandbox_enabled=False)


@pytest.mark.parametrize(("policy", "what"), [(OFF, "sandbox workloads disabled"), (KATA, "sandbox workloads in mode kata, not kubevirt")])
def test_a_policy_without_kubevirt_sandboxes_brings_no_vm(policy: PolicyView, what: str) -> None:
    assert what in reasons(given(policies=(policy,)))
    assert given(policies=(policy,), target=HAMI).impossible == ()


def test_which_of_several_policies_counts_is_not_known() -> None:
    prospect = given(policies=(OFF, POLICY))
    assert prospect.impossible == () and "which ClusterPolicy counts" in prospect.unknown[0]
    assert given(policies=(OFF, KATA)).impossible != ()


def test_without_a_policy_the_operators_labels_are_not_known() -> None:
    prospect = given(policies=())
    assert prospect.impossible == () and len(prospect.unknown) == 2
    assert given(policies=(), target=HAMI).owner == "gpu-operator/hami-device-plugin"


# ---------------------------------------------------------------- selectors


def wants(key: str, operator: str, *values: str, field: bool = False) -> Requirement:
    return Requirement(key, operator, values, field)


@pytest.mark.parametrize(
    ("terms", "answer"),
    [
        (None, True),
        ((), False),
        (((),), False),
        (((wants("a", "In", "1", "2"),),), True),
        (((wants("a", "In", "3"),),), False),
        (((wants("a", "NotIn", "1"),),), False),
        (((wants("b", "NotIn", "1"),),), True),
        (((wants("a", "Exists"),),), True),
        (((wants("b", "Exists"),),), False),
        (((wants("b", "DoesNotExist"),),), True),
        (((wants("a", "DoesNotExist"),),), False),
        (((wants("a", "In", "1"), wants("b", "Exists")),), False),
        (((wants("b", "Exists"),), (wants("a", "In", "1"),)), True),
        (((wants("metadata.name", "In", "gpu-1", field=True),),), True),
        (((wants("metadata.name", "In", "gpu-2", field=True),),), False),
        (((wants("a", "Gt", "0"),),), None),
        (((wants("a", "Gt", "0"), wants("b", "Exists")),), False),
        (((wants("u", "In", "1"),),), None),
        (((wants("u", "In", "1"),), (wants("a", "Exists"),)), True),
        (((wants("spec.unschedulable", "In", "x", field=True),),), None),
    ],
)
def test_node_affinity(terms: Any, answer: bool | None) -> None:
    assert selects(daemonset("x", terms=terms), "gpu-1", {"a": "1"}, frozenset({"u"})) is answer


def test_selector_and_affinity_have_to_hold_both() -> None:
    holds = ((wants("a", "Exists"),),)
    assert selects(daemonset("x", terms=holds, a="1"), "gpu-1", {"a": "1"}, frozenset()) is True
    assert selects(daemonset("x", terms=holds, a="2"), "gpu-1", {"a": "1"}, frozenset()) is False
    assert selects(daemonset("x", terms=((wants("b", "Exists"),),), a="1"), "gpu-1", {"a": "1"}, frozenset()) is False


def test_an_affinity_that_does_not_admit_the_node_is_the_reason() -> None:
    away = daemonset(MODES[VM].owner, "gpu-operator", terms=((wants("zone", "In", "b"),),))
    assert "its node affinity does not admit it" in reasons(given(away, without=VM))
