"""What a status says of each node (spec section 7), and that it says the same of one node as of all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubectl_gpu_transition.facts import ClaimView, Device, Facts, MachineView, SliceView, VolumeView
from kubectl_gpu_transition.holders import find_holders
from kubectl_gpu_transition.model import CommitFacts, NodeStatus, NodeView, PodClaim, Problem, TipFacts
from kubectl_gpu_transition.modes import LABEL_ACTIVE
from kubectl_gpu_transition.status import Survey, read_modes, split_by_node, survey_nodes
from kubectl_gpu_transition.target import find_owners
from tests.core.builders import (
    ANNOTATION,
    BASE,
    COMMIT,
    HAMI,
    ID,
    LATER,
    RULE_VM,
    VM,
    entry,
    facts,
    history,
    holder,
    node,
    ours,
    pod,
    pushing,
    request,
    tip,
    transaction,
)
from tests.fakes.world import rule_text

AGES = {"2026-05-01T00:00:00Z": 3661}
GONE = Problem("not allowed (403)", "ask")
MINE = CommitFacts(COMMIT, "feat", (ID,))
ABANDON = "kubectl gpu-transition abandon eu/dc1 gpu-1 --repo /fleet --kubeconfig /dc1.kubeconfig --yes"
RESUME = (
    "kubectl gpu-transition apply eu/dc1 gpu-1 --repo /fleet --kubeconfig /dc1.kubeconfig --from pod-hami --to vm-passthrough "
    "--resume-cordoned --yes"
)


def survey(
    *nodes: NodeView, at: TipFacts | Problem | None = None, around: Facts | None = None, name: str = "gpu-1", **options: Any
) -> tuple[NodeStatus, tuple[str, ...]]:
    """The status of one node of a survey of all, and what could not be read."""
    at = at or tip()
    based = at if isinstance(at, Problem) else replace(at, history=at.history or history())
    found = Survey({one.name: one for one in nodes}, around or facts(), {None: at, BASE: based})
    asked = request(command="status", source=None, target=None, **options)
    every, unread = survey_nodes(replace(asked, node=""), found, AGES.get)
    only, alone = survey_nodes(replace(asked, node=name), found, AGES.get)
    status = next((one for one in every if one.name == name), None)
    assert status in (None, only[0])
    assert set(alone) <= set(unread) or status is None
    return only[0], unread


def test_a_node_where_nothing_is_to_be_done() -> None:
    status, unread = survey(node())
    assert status == NodeStatus("gpu-1", "pod-hami", node(), owners=status.owners, holders=0)
    assert [(o.name, o.ready) for o in status.owners] == [("hami-device-plugin", True)]
    assert unread == ()


NEXT: list[Any] = [
    pytest.param(ours(), {}, "transaction", False, f"resume: {RESUME}; or give it up: {ABANDON}", id="before the push"),
    pytest.param(ours(record=pushing()), {}, "transaction", False, f"resume: {RESUME}", id="a push that may be in flight"),
    pytest.param(
        ours(record=pushing()),
        {"at": tip(tip=LATER, history=history(CommitFacts(LATER, "x", ())))},
        "transaction",
        False,
        f"resume: {RESUME}; or give it up: {ABANDON}",
        id="a push that can not land any more",
    ),
    pytest.param(
        ours(record=pushing()),
        {"at": tip(tip=COMMIT, rule=RULE_VM, history=history(MINE))},
        "transaction",
        True,
        f"resume: {RESUME}",
        id="in force",
    ),
    pytest.param(
        ours(record=pushing()),
        {"at": tip(tip=LATER, history=history(CommitFacts(LATER, "Revert x", ()), MINE))},
        "transaction",
        True,
        f"({ABANDON})",
        id="reverted",
    ),
    pytest.param(
        ours(record=pushing()),
        {"at": tip(tip=LATER, history=history(descends=False))},
        "transaction",
        False,
        f"({ABANDON})",
        id="rewritten",
    ),
    pytest.param(
        ours(unschedulable=False),
        {},
        None,
        False,
        f"it is SCHEDULABLE with an unfinished transaction; the resume cordons it again first: resume: {RESUME}; or give it up: {ABANDON}",
        id="uncordoned by others",
    ),
    pytest.param(
        ours(managers=(entry("kubectl-gpu-transition", "t1"), entry("kubectl-cordon", "t2"))),
        {},
        "kubectl-cordon",
        False,
        "the cordon is kubectl-cordon's: that one uncordons (kubectl --kubeconfig /dc1.kubeconfig uncordon gpu-1), then resume: ",
        id="cordoned by somebody else on top",
    ),
    pytest.param(ours(uid="another"), {}, "unknown", None, "see whether the branch has it", id="a record of another node of this name"),
    pytest.param(node(annotations={ANNOTATION: "{"}), {}, None, None, "see whether the branch has it", id="a record that is not readable"),
    pytest.param(
        node(unschedulable=True, managers=(entry("kubectl-cordon"),)),
        {},
        "kubectl-cordon",
        None,
        "cordoned without a transaction, and in pod-hami: whoever cordoned it uncordons it",
        id="cordoned by somebody",
    ),
    pytest.param(
        node(unschedulable=True, managers=None),
        {"at": tip(rule=RULE_VM)},
        "unknown",
        None,
        "cordoned without a transaction, and not in vm-passthrough yet (",
        id="cordoned by somebody, and the record dropped",
    ),
    pytest.param(
        node(unschedulable=True, managers=(entry("kubectl-gpu-transition"),)),
        {},
        "kubectl-gpu-transition",
        None,
        "cordoned without a transaction",
        id="cordoned by us, and the record dropped",
    ),
    pytest.param(
        node(labels={**node().labels, LABEL_ACTIVE: "vm-passthrough"}),
        {},
        None,
        None,
        "cordon it until it is (kubectl --kubeconfig /dc1.kubeconfig cordon gpu-1)",
        id="schedulable, and not in the fleet's mode",
    ),
    pytest.param(node(), {"around": facts(pods=())}, None, None, "owner hami-device-plugin: no pod on the node", id="no owner"),
]


@pytest.mark.parametrize(("seen", "more", "cordoner", "in_branch", "words"), NEXT)
def test_whose_cordon_it_is_and_what_to_do_next(
    seen: NodeView, more: dict[str, Any], cordoner: str | None, in_branch: bool | None, words: str
) -> None:
    status, unread = survey(seen, **more)
    assert (status.cordoned_by, status.in_branch, unread) == (cordoner, in_branch, ())
    assert status.next is not None and words in status.next, status.next


def test_the_age_of_a_transaction_is_told_where_its_beginning_is_a_time() -> None:
    assert survey(ours())[0].age == 3661
    assert survey(ours(record=transaction(started="long ago")))[0].age is None


def test_a_record_of_another_cluster_lends_no_options() -> None:
    claimed = ClaimView("team-a", "c", (Device("dra.net", "gpu-1", "d", False),), (), None)
    around = facts(claims=(claimed,), slices=(SliceView("dra.net", "gpu-1", "gpu-1", ("d",)),))
    mine = transaction(ignore_dra_drivers=("dra.net",))
    assert survey(ours(record=mine), around=around)[0].holders == 0
    assert survey(ours(record=replace(mine, cluster="us/dc9")), around=around)[0].holders == 1
    assert survey(ours(), around=around)[0].holders == 1
    assert survey(ours(), around=around, ignore_dra_drivers=("dra.net",))[0].holders == 0


def test_a_node_that_is_not_there() -> None:
    missing, unread = survey(node(), name="gpu-2")
    assert (missing.live, missing.fleet_mode, missing.holders, unread) == (None, "pod-hami", None, ())
    assert missing.next is not None and "this cluster has no such node" in missing.next
    unknown, _ = survey(node(), name="gpu-9")
    assert (unknown.live, unknown.fleet_mode, unknown.next) == (None, None, None)


def test_a_node_that_the_rule_does_not_name_is_shown_all_the_same() -> None:
    status, unread = survey(node(name="gpu-9"), name="gpu-9")
    assert (status.fleet_mode, status.next, unread) == (None, None, ())
    assert status.live is not None


UNREAD: list[Any] = [
    pytest.param({"at": GONE}, "not allowed (403)", {"fleet_mode": None}, id="the tip"),
    pytest.param({"at": tip(rule=None)}, "the cluster has no rule file", {"fleet_mode": None}, id="no rule"),
    pytest.param({"at": tip(rule=b"x: [")}, "the rule at the tip: line", {"fleet_mode": None}, id="a rule that is no YAML"),
    pytest.param({"around": facts(pods=GONE)}, "pods: not allowed (403)", {"owners": (), "holders": None}, id="the pods"),
    pytest.param({"around": facts(claims=GONE)}, "holders: not allowed (403)", {"holders": None}, id="the claims"),
    pytest.param({"around": facts(kustomizations=GONE)}, "kustomizations: not allowed (403)", {"holders": 0}, id="Flux"),
]


@pytest.mark.parametrize(("more", "words", "shown"), UNREAD)
def test_what_could_not_be_read_is_named_and_null(more: dict[str, Any], words: str, shown: dict[str, Any]) -> None:
    status, unread = survey(node(), **more)
    assert any(words in reason for reason in unread), unread
    assert {key: getattr(status, key) for key in shown} == shown


def test_nodes_that_could_not_be_read_are_named_and_the_fleet_is_shown() -> None:
    found = Survey(GONE, facts(), {None: tip()})
    nodes, unread = survey_nodes(request(command="status", source=None, target=None), found, AGES.get)
    assert [(one.name, one.fleet_mode, one.live) for one in nodes] == [("gpu-1", "pod-hami", None)]
    assert unread == ("nodes: not allowed (403)",)


def test_history_that_could_not_be_read_leaves_it_open_whether_the_branch_has_the_commit() -> None:
    status, unread = survey(ours(record=pushing()), at=tip(tip=LATER, history=GONE))
    assert status.in_branch is None
    assert unread == ("whether the branch has the transaction's commit: not allowed (403)",)
    assert status.next is not None and RESUME in status.next


def test_modes_are_those_of_the_tips_rule_in_order() -> None:
    assert read_modes(tip(rule=rule_text(b=VM, a=HAMI))) == {"b": "vm-passthrough", "a": "pod-hami"}
    found = read_modes(tip(rule=rule_text(a=HAMI) + rule_text(a=VM).split(b"rules:\n")[1]))
    assert found == {"a": Problem("the rule has a in more than one block")}
    drift = read_modes(tip(rule=rule_text(a=HAMI).replace(b"config: container", b"config: vm-passthrough")))
    assert drift == {"a": Problem("the rule has a in a block that says drift")}


# ---------------------------------------------------------------- one node as all

NODES = ["gpu-1", "gpu-2", ""]
names, keys = st.sampled_from(NODES), st.sampled_from(["a", "b"])
pods = st.builds(
    lambda name, bound, **more: (
        holder(name, node=bound, namespace="n", **more) if more.pop("gpu") else pod(name, node=bound, namespace="n", **more)
    ),
    keys,
    names,
    gpu=st.booleans(),
    nominated=names,
    allocated_node=names,
    allocations=st.sampled_from([(), ("hami.io/vgpu-node",)]),
    volumes=st.sampled_from([(), ("v",), ("w",)]),
    claims=st.lists(st.builds(PodClaim, keys, keys), max_size=2).map(tuple),
)
devices = st.builds(Device, st.sampled_from(["d", "e"]), st.sampled_from(["gpu-1", "gpu-2", "p"]), keys, st.booleans())
claims = st.builds(ClaimView, st.just("n"), keys, st.none() | st.lists(devices, max_size=2).map(tuple), st.just(()), st.none() | names)
slices = st.builds(
    SliceView,
    st.sampled_from(["d", "e"]),
    st.sampled_from(["gpu-1", "gpu-2", "p"]),
    st.none() | st.sampled_from(["gpu-1", "gpu-2"]),
    st.just(("a", "b")),
    st.dictionaries(keys, st.sampled_from(["gpu-1", "gpu-2"]), max_size=2),
)
machines = st.builds(
    MachineView,
    st.just("n"),
    keys,
    keys,
    st.sampled_from(["Running", "Succeeded"]),
    names,
    st.sampled_from([(), ("x",)]),
    st.frozensets(names),
    st.none() | names,
)
volumes = st.builds(VolumeView, st.just("n"), st.sampled_from(["v", "w"]), names, st.booleans())
clusters = st.builds(
    lambda **fields: facts(**{key: tuple(value) for key, value in fields.items()}),
    pods=st.lists(pods.filter(lambda one: bool(one.node)), max_size=4),
    unbound=st.lists(pods.filter(lambda one: not one.node), max_size=4),
    claims=st.lists(claims, max_size=3, unique_by=lambda one: one.name),
    slices=st.lists(slices, max_size=3),
    machines=st.lists(machines, max_size=3),
    volumes=st.lists(volumes, max_size=2, unique_by=lambda one: one.name),
)


@settings(max_examples=400, deadline=None)
@given(clusters)
def test_the_part_of_a_node_shows_the_holders_and_owners_that_the_whole_shows(around: Facts) -> None:
    part = split_by_node(around)
    for name in ("gpu-1", "gpu-2"):
        asked = replace(request(ignore_dra_drivers=("e",)), node=name)
        assert find_holders(part(name), asked) == find_holders(around, asked)
        assert isinstance(around.pods, tuple)
        mine = part(name).pods
        assert not isinstance(mine, Problem)
        assert find_owners(mine, name) == find_owners(around.pods, name)


def test_what_could_not_be_read_stays_so_in_the_part() -> None:
    around = facts(**dict.fromkeys(("pods", "unbound", "claims", "slices", "machines", "volumes"), GONE))
    assert split_by_node(around)("gpu-1") == around
