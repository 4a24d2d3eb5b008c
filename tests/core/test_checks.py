"""The preflight, check by check: when it passes, when it blocks, what it says and what to do (spec section 3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kubectl_gpu_transition.checks import (
    Look,
    evaluate,
    evaluate_abandon,
    is_at_target,
    judge_fleet_cluster,
    judge_gates,
    moot_checks,
    node_checks,
)
from kubectl_gpu_transition.facts import Observation, RuleObject
from kubectl_gpu_transition.holders import find_holders
from kubectl_gpu_transition.kinds import rule_object
from kubectl_gpu_transition.model import Check, CommitFacts, Identity, Problem
from kubectl_gpu_transition.modes import LABEL_ACTIVE, LABEL_CONFIG, Mode, label_values
from kubectl_gpu_transition.record import Claim, read_claim
from kubectl_gpu_transition.resume import judge_tip
from kubectl_gpu_transition.rule import RuleError, edit_block
from tests.core.builders import (
    BASE,
    COMMIT,
    DRA,
    ENV,
    HAMI,
    LATER,
    ROUTE,
    RULE_VM,
    VGPU,
    VM,
    checkout,
    daemon,
    entry,
    facts,
    holder,
    kustomization,
    look,
    node,
    observation,
    ours,
    owner,
    pod,
    pushing,
    request,
    rule_text,
    source,
    tip,
    transaction,
)
from tests.fakes.world import live_rule

NAMES = [
    "modes",
    "cluster-overlay",
    "creation-gates",
    "fleet-checkout",
    "fleet-remote",
    "fleet-identity",
    "fleet-rule",
    "fleet-cluster",
    "flux",
    "live-rule",
    "target-stack",
    "node",
    "live-mode",
    "cordon",
    "holders",
    "other-actors",
]
GONE = Problem("the API server can not be reached", "check the network")


def result(name: str, seen: Look) -> Check:
    return next(check for check in evaluate(seen) if check.name == name)


def seen(**more: Any) -> Look:
    return look(observation(**more))


def resumed(**more: Any) -> Look:
    """A look of a resume whose change is in force."""
    values: dict[str, Any] = {"node": ours(VM, pushing()), "pods": (owner(VM),), "tip": tip(tip=COMMIT, rule=RULE_VM), **more}
    observed = observation(**values)
    claim = read_claim(observed.node, "eu/dc1", (HAMI, VM)) if not isinstance(observed.node, Problem | None) else Claim("none", "", None)
    verdict = judge_tip(pushing(), "gpu-1", observed.tip) if not isinstance(observed.tip, Problem) else None
    return look(observed, request=request(resume=True), claim=claim, verdict=verdict)


def test_a_fit_node_passes_every_check_in_the_contracts_order() -> None:
    checks = evaluate(look())
    assert [check.name for check in checks] == NAMES
    assert {check.status for check in checks} == {"pass"}
    assert all(check.message and check.remedy is None for check in checks)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    everything = observation(
        node=node(VM, ready="False", unschedulable=True, taints=("medik8s.io/drain",)),
        pods=(holder(),),
        kustomization=kustomization(path="clusters/x/gpu-node-modes", suspended=True),
        checkout=checkout(state=Problem("dirty", "commit"), env=b"", rule=RULE_VM, identity=Problem("no identity", "git config")),
        tip=tip(tip=LATER, relation="behind"),
        daemonsets=(),
    )
    edit = RuleError("drift", "the block of gpu-1 is in mode vm-passthrough, not pod-hami", 7)
    failing = {check.name for check in evaluate(look(everything, edit=edit)) if check.status == "fail"}
    assert failing == set(NAMES) - {"modes", "cluster-overlay"}


def test_every_failure_has_something_to_do() -> None:
    for case in FAILING:
        check = result(case.values[0], case.values[1])  # type: ignore[arg-type]
        assert check.remedy, case.id


LIVE = rule_object(live_rule(HAMI))

FAILING = [
    pytest.param(
        "target-stack", seen(daemonsets=GONE), "whether vm-passthrough can come up can not be told: the API", id="DaemonSets unread"
    ),
    pytest.param("target-stack", seen(policies=GONE), "whether vm-passthrough can come up can not be told: the API", id="policies unread"),
    pytest.param("target-stack", seen(daemonsets=()), "there is no DaemonSet nvidia-sandbox-device-plugin-daemonset", id="no stack"),
    pytest.param("modes", look(request=request(source=None, target=None)), "not two different known ones", id="no modes"),
    pytest.param("modes", look(request=request(target=HAMI)), "not two different known ones", id="equal modes"),
    pytest.param("modes", look(request=request(target=VGPU)), "vm-vgpu is not supported: the licensed driver", id="to vm-vgpu"),
    pytest.param("modes", look(request=request(source=VGPU)), "vm-vgpu is not supported: the licensed driver", id="from vm-vgpu"),
    pytest.param(
        "cluster-overlay",
        seen(checkout=checkout(env=None)),
        "clusters/eu/dc1/cluster-config.env does not exist in HEAD of the fleet checkout; known clusters: eu/dc1, us/dc9",
        id="no overlay",
    ),
    pytest.param("cluster-overlay", seen(checkout=checkout(env=None, clusters=())), "known clusters: none", id="no overlays at all"),
    pytest.param("cluster-overlay", seen(checkout=checkout(env=Problem("it is a symlink", "x"))), "symlink", id="an overlay of no use"),
    pytest.param("creation-gates", seen(checkout=checkout(env=b"")), "GPU_VM_CREATION_ENABLED is absent, which means open", id="no gates"),
    pytest.param("creation-gates", seen(checkout=checkout(env=Problem("it is a symlink", "x"))), "symlink", id="gates of no use"),
    pytest.param(
        "creation-gates", seen(checkout=checkout(env=b"GPU=\xff")), "at HEAD is not UTF-8 (byte 4)", id="gates that are not UTF-8"
    ),
    pytest.param("fleet-checkout", seen(checkout=checkout(state=Problem("dirty", "commit"))), "dirty", id="a dirty checkout"),
    pytest.param("fleet-checkout", seen(checkout=checkout(locked=Problem("pid 7", "wait"))), "pid 7", id="a locked checkout"),
    pytest.param("fleet-remote", seen(checkout=checkout(route=Problem("detached", "switch"))), "detached", id="no route"),
    pytest.param("fleet-remote", seen(tip=Problem("no answer", "check")), "no answer", id="a remote that does not answer"),
    pytest.param(
        "fleet-remote", seen(tip=tip(tip=None)), "main of origin (https://git.example/fleet.git) does not exist", id="no such branch"
    ),
    pytest.param("fleet-remote", seen(tip=tip(fetch_tip=Problem("no fetch", "x"))), "no fetch", id="a fetch side that does not answer"),
    pytest.param(
        "fleet-remote",
        seen(checkout=checkout(route=replace(ROUTE, fetch_url="https://mirror", fetch_differs=True)), tip=tip(fetch_tip=LATER)),
        f"the fetch side https://mirror has {LATER[:14]}, not HEAD {BASE[:12]}",
        id="a fetch side that is elsewhere",
    ),
    pytest.param(
        "fleet-remote",
        seen(checkout=checkout(route=replace(ROUTE, fetch_differs=True))),
        "has no such branch",
        id="a fetch side without the branch",
    ),
    pytest.param("fleet-remote", seen(tip=tip(history=Problem("shallow", "unshallow"))), "shallow", id="a history that is not here"),
    pytest.param("fleet-remote", look(push=Problem("read only", "ask")), "read only", id="a push that would not be let in"),
    pytest.param("fleet-identity", seen(checkout=checkout(identity=Problem("none", "git config"))), "none", id="no identity"),
    pytest.param("fleet-rule", look(edit=None), "gpu-node-modes/nodefeaturerule.yaml does not exist in HEAD", id="no rule"),
    pytest.param("fleet-rule", look(edit=Problem("it is a symlink", "x")), "symlink", id="a rule of no use"),
    pytest.param("fleet-rule", look(edit=RuleError("yaml", "no YAML", 3)), "nodefeaturerule.yaml: line 3: no YAML", id="a broken rule"),
    pytest.param(
        "fleet-rule",
        look(observation(checkout=checkout(rule=RULE_VM)), edit=RuleError("drift", "is in mode vm-passthrough", 7)),
        "the fleet's rule already asks for vm-passthrough, and the node is not there",
        id="a rule that is at the target",
    ),
    pytest.param("fleet-cluster", seen(kustomizations=GONE), "can not be reached", id="Flux's objects that can not be read"),
    pytest.param("fleet-cluster", seen(kustomization=None), "gpu-node-mode does not exist in this cluster", id="no Kustomization"),
    pytest.param(
        "fleet-cluster",
        seen(kustomization=kustomization(path="./clusters/eu/dc2/gpu-node-modes")),
        "follows clusters/eu/dc2/gpu-node-modes, not clusters/eu/dc1/gpu-node-modes: it is another cluster",
        id="another cluster",
    ),
    pytest.param("fleet-cluster", seen(source=None), "flux-system/flux-system does not exist", id="no source"),
    pytest.param("fleet-cluster", seen(source=source(ref="prod")), "Flux follows prod, this checkout pushes main", id="another branch"),
    pytest.param("fleet-cluster", seen(source=source(ref="tag main")), "Flux follows tag main", id="no branch but a tag"),
    pytest.param("flux", seen(kustomization=kustomization(suspended=True)), "gpu-node-mode is suspended", id="a suspended Kustomization"),
    pytest.param(
        "flux", seen(source=source(suspended=True)), "GitRepository flux-system/flux-system is suspended", id="a suspended source"
    ),
    pytest.param("flux", seen(kustomizations=GONE), "can not be reached", id="Kustomizations that can not be read"),
    pytest.param("live-rule", seen(asks=VM), "it asks for vm-passthrough", id="a live rule that is ahead"),
    pytest.param("live-rule", seen(rules=()), "does not exist in this cluster", id="no live rule"),
    pytest.param("live-rule", seen(rules=GONE), "can not be reached", id="rules that can not be read"),
    pytest.param(
        "live-rule",
        seen(rules=(replace(LIVE, annotations={"kustomize.toolkit.fluxcd.io/reconcile": "Disabled"}),)),
        "excluded from reconciliation (kustomize.toolkit.fluxcd.io/reconcile: Disabled)",
        id="a live rule that Flux leaves alone",
    ),
    pytest.param(
        "live-rule",
        seen(rules=(LIVE, RuleObject("zz-other", {}, ({"name": "all", "labels": {LABEL_CONFIG: "x"}},)))),
        "may be written by rule 'all' of NodeFeatureRule zz-other as well",
        id="another rule that writes the labels",
    ),
    pytest.param("node", seen(node=GONE), "can not be reached", id="a node that can not be read"),
    pytest.param("node", seen(node=None), "node gpu-1 does not exist in this cluster", id="no such node"),
    pytest.param("node", seen(node=node(ready="Unknown")), "not Ready (Ready is Unknown)", id="a lost node"),
    pytest.param(
        "live-mode", seen(node=node(VM)), f"the node does not run in pod-hami: {LABEL_ACTIVE} is 'vm-passthrough'", id="the other mode"
    ),
    pytest.param(
        "live-mode", seen(node=node(labels={**label_values(HAMI), LABEL_CONFIG: "x"})), f"{LABEL_CONFIG} is 'x'", id="another config"
    ),
    pytest.param("live-mode", seen(node=node(labels={})), "is None, not 'pod-hami'", id="no labels"),
    pytest.param("cordon", seen(node=node(unschedulable=True)), "cordoned, and not by this workflow", id="a cordoned node"),
    pytest.param("holders", seen(pods=GONE), "holders can not be told: the API server", id="pods that can not be read"),
    pytest.param("holders", seen(permitted=GONE), "holders can not be told", id="names that can not be read"),
    pytest.param("holders", seen(pods=(holder("a"), holder("b"))), "2 on the node: team-a/Pod/a: nvidia.com/gpu by a; ", id="holders"),
    pytest.param("other-actors", seen(node=node(taints=("medik8s.io/drain",))), "taint medik8s.io/drain is set", id="a mark"),
    pytest.param(
        "other-actors", seen(pods=(pod(labels={"upgrade.cattle.io/plan": "p"}),)), "of the upgrade plan 'p'", id="an upgrade's pod"
    ),
    pytest.param("other-actors", seen(pods=GONE), "whether another operation is at work can not be told", id="marks that can not be read"),
]


@pytest.mark.parametrize(("name", "at", "words"), FAILING)
def test_it_blocks(name: str, at: Look, words: str) -> None:
    check = result(name, at)
    assert check.status == "fail"
    assert words in check.message


RELATIONS = [
    ("behind", "is behind the remote", "git -C /fleet pull --ff-only"),
    ("ahead", "is ahead of the remote's tip", "push them as any change: git -C /fleet push"),
    ("diverged", "have diverged", "git -C /fleet pull --rebase"),
    ("unknown", "the objects here do not tell more", "git -C /fleet fetch, and compare"),
    ("odd", "the objects here do not tell more", "git -C /fleet fetch, and compare"),
]


@pytest.mark.parametrize(("relation", "words", "remedy"), RELATIONS)
def test_how_head_and_tip_differ_is_told_with_its_own_remedy(relation: str, words: str, remedy: str) -> None:
    check = result("fleet-remote", seen(tip=tip(tip=LATER, relation=relation)))
    assert (check.status, check.remedy) == ("fail", remedy)
    assert words in check.message


OTHERS = [
    pytest.param("modes", look(request=request(source=HAMI, target=DRA)), "warn", id="a pair that is not qualified"),
    pytest.param("target-stack", seen(policies=()), "warn", id="no policy of the operator"),
    pytest.param("target-stack", look(request=request(target=VGPU)), "skip", id="no stack of an unsupported mode"),
    pytest.param("target-stack", look(request=request(target=None)), "skip", id="no stack of no mode"),
    pytest.param("target-stack", seen(node=None), "skip", id="no stack without a node"),
    pytest.param("modes", look(request=request(source=DRA, target=VM)), "warn", id="another such pair"),
    pytest.param("modes", look(request=request(source=VM, target=HAMI)), "pass", id="the qualified pair the other way"),
    pytest.param("cluster-overlay", seen(checkout=checkout(head=None, env=None)), "skip", id="an overlay without a checkout"),
    pytest.param("creation-gates", seen(checkout=checkout(head=None, env=None)), "skip", id="gates without a checkout"),
    pytest.param("creation-gates", seen(checkout=checkout(env=None)), "skip", id="gates without an overlay"),
    pytest.param("fleet-rule", look(observation(checkout=checkout(head=None)), edit=None), "skip", id="a rule without a checkout"),
    pytest.param("fleet-rule", look(observation(checkout=checkout(env=None)), edit=None), "skip", id="a rule of an unknown cluster"),
    pytest.param("fleet-cluster", seen(checkout=checkout(route=Problem("x"))), "skip", id="a cluster without a route"),
    pytest.param("flux", seen(), "pass", id="Flux at work"),
    pytest.param("flux", seen(kustomization=kustomization(conditions={})), "warn", id="Flux not begun yet"),
    pytest.param("flux", seen(kustomization=None), "skip", id="no Flux"),
    pytest.param("live-rule", seen(), "pass", id="a live rule as in the fleet"),
    pytest.param(
        "live-rule", look(observation(rules=()), request=request(ignore_missing_gitops=True)), "warn", id="a missing live rule accepted"
    ),
    pytest.param("live-rule", seen(checkout=checkout(rule=None)), "skip", id="a live rule without one in the fleet"),
    pytest.param("fleet-remote", seen(checkout=checkout(head=None)), "skip", id="a remote without a commit here"),
    pytest.param("fleet-remote", seen(checkout=checkout(branch=None)), "skip", id="a remote without a branch here"),
    pytest.param("fleet-identity", seen(checkout=checkout(head=None, branch=None)), "skip", id="an identity without a checkout"),
    pytest.param(
        "fleet-rule",
        look(edit=RuleError("shape", "can not be moved", 7), request=request(source=VGPU)),
        "skip",
        id="a rule to be moved from a mode that is not supported",
    ),
    pytest.param(
        "fleet-rule",
        look(edit=RuleError("shape", "can not be moved", 7), request=request(target=VGPU)),
        "pass",
        id="a rule to be moved to a mode that is not supported",
    ),
    pytest.param("live-mode", seen(node=None), "skip", id="labels of no node"),
    pytest.param("live-mode", seen(node=GONE), "skip", id="labels of a node that was not read"),
    pytest.param("cordon", seen(node=None), "skip", id="the cordon of no node"),
    pytest.param("holders", seen(node=None), "skip", id="holders on no node"),
    pytest.param("other-actors", seen(node=GONE), "skip", id="marks on a node that was not read"),
    pytest.param(
        "fleet-cluster",
        look(observation(kustomization=None), request=request(ignore_missing_gitops=True)),
        "warn",
        id="no Kustomization, which was said to be so",
    ),
    pytest.param(
        "fleet-cluster",
        look(observation(source=None), request=request(ignore_missing_gitops=True)),
        "warn",
        id="no source, which was said to be so",
    ),
    pytest.param(
        "fleet-cluster",
        look(observation(source=source(ref="prod")), request=request(ignore_missing_gitops=True)),
        "fail",
        id="one that exists and is wrong",
    ),
    pytest.param("fleet-cluster", seen(source=source(url="https://other.example/fleet")), "warn", id="another repository"),
    pytest.param("fleet-cluster", seen(source=source(url="")), "warn", id="a source without a URL"),
    pytest.param(
        "fleet-remote", look(push=Problem("read only", "ask"), request=request(command="preview")), "warn", id="no push in a preview"
    ),
    pytest.param(
        "fleet-remote",
        seen(checkout=checkout(route=replace(ROUTE, fetch_differs=True)), tip=tip(fetch_tip=BASE)),
        "pass",
        id="two sides at the same commit",
    ),
]


@pytest.mark.parametrize(("name", "at", "status"), OTHERS)
def test_it_is(name: str, at: Look, status: str) -> None:
    assert result(name, at).status == status


@pytest.mark.parametrize(
    "path", ["clusters/eu/dc1/gpu-node-modes", "./clusters/eu/dc1/gpu-node-modes/", "clusters/eu/dc1/gpu-node-modes//"]
)
def test_the_path_that_flux_follows_may_be_written_in_these_ways(path: str) -> None:
    assert result("fleet-cluster", seen(kustomization=kustomization(path=path))).status == "pass"


@pytest.mark.parametrize(
    "path", ["", "clusters/eu/dc1", "/clusters/eu/dc1/gpu-node-modes", "clusters/EU/dc1/gpu-node-modes", "x/clusters/eu/dc1/gpu-node-modes"]
)
def test_another_path_is_another_cluster(path: str) -> None:
    assert result("fleet-cluster", seen(kustomization=kustomization(path=path))).status == "fail"


@pytest.mark.parametrize(
    "url",
    [
        "https://git.example/fleet.git",
        "https://git.example/fleet",
        "https://user:token@git.example/fleet/",
        "https://git.example:8443/fleet.git",
        "ssh://git@git.example/fleet.git",
        "ssh://git@git.example:2222/fleet",
        "git@git.example:fleet.git",
        "git.example:fleet",
        "HTTPS://GIT.example/Fleet",
        " https://git.example//fleet.git/ ",
    ],
)
def test_one_repository_has_many_urls(url: str) -> None:
    assert result("fleet-cluster", seen(source=source(url=url))).status == "pass"


def test_the_fetch_side_may_be_what_flux_reads() -> None:
    route = replace(ROUTE, push_url="ssh://git@push.example/fleet", fetch_differs=True)
    at = seen(checkout=checkout(route=route), tip=tip(fetch_tip=BASE))
    assert result("fleet-cluster", at).status == "pass"


def test_the_remedy_for_open_gates_is_the_runbooks_command_and_names_the_comment() -> None:
    command = "kube-dc bootstrap config set eu/dc1 GPU_SHARED_CREATION_ENABLED=false GPU_VM_CREATION_ENABLED=false --yes"
    assert judge_gates(request(), b"", "HEAD").remedy == command
    env = ENV.replace(b"VM_CREATION_ENABLED=false", b"VM_CREATION_ENABLED=false # since May")
    assert judge_gates(request(), env, "HEAD").remedy == f"{command} (it drops # since May: keep a comment on a line of its own)"


def test_the_wrong_direction_is_told() -> None:
    at = look(observation(checkout=checkout(rule=rule_text(gpu_1=DRA))), edit=RuleError("drift", "is in mode pod-hami-dra", 7))
    assert result("fleet-rule", at).remedy == "run it with --from pod-hami-dra if that is the direction you want"
    at = look(edit=RuleError("other-writer", "this rule may write the labels", 9))
    assert result("fleet-rule", at).remedy == "mend the file, as any reviewed change"


def test_a_pod_that_reaches_gpus_without_asking_is_told_of_and_does_not_block() -> None:
    check = result("holders", seen(pods=(pod("snoop", reaches=("host path /dev/nvidia0",)),)))
    assert (check.status, "pod team-a/snoop reaches GPUs" in check.message) == ("warn", True)
    assert check.remedy


@pytest.mark.parametrize(
    ("target", "permitted", "status", "words"),
    [
        (VM, (), "fail", "KubeVirt permits no host device"),
        (VM, (frozenset(),), "fail", "KubeVirt permits no host device"),
        (VM, (frozenset({"x"}),), "pass", ""),
        (VM, GONE, "fail", "what vm-passthrough will offer can not be told"),
        (DRA, (), "pass", ""),
    ],
)
def test_what_can_never_be_allocatable_is_a_dead_end_where_it_is_asked_for(target: Mode, permitted: Any, status: str, words: str) -> None:
    at = look(observation(permitted=permitted), request=request(target=target, require_allocatable=True))
    check = result("target-stack", at)
    assert (check.status, words in check.message) == (status, True), check
    assert result("target-stack", look(at.observation, request=request(target=target))).status == "pass"


def test_author_and_committer_are_both_told_where_they_differ() -> None:
    at = seen(checkout=checkout(identity=Identity("A <a@x>", "C <c@x>")))
    assert result("fleet-identity", at).message == "author A <a@x>, committer C <c@x>"


def test_a_holder_by_a_name_of_the_request_or_of_the_cluster_counts() -> None:
    mine = pod(resources=frozenset({"vendor.example/gpu"}))
    assert result("holders", seen(pods=(mine,))).status == "pass"
    assert result("holders", seen(pods=(mine,), permitted=(frozenset({"vendor.example/gpu"}),))).status == "fail"
    named = look(observation(pods=(mine,)), request=request(gpu_resources=("vendor.example/gpu",)))
    assert result("holders", named).status == "fail"
    assert find_holders(facts(pods=GONE), request()) == GONE


def test_advice_is_given_once_for_each_holder() -> None:
    check = result("holders", seen(pods=(holder("a"), holder("b"))))
    here = f"--kubeconfig {request().kubeconfig}"
    words = [f"ask its owner to stop it: kubectl delete pod -n team-a {name} {here}" for name in ("a", "b")]
    assert check.remedy == "; ".join(words), "and with what makes it act on this cluster alone"


# ---------------------------------------------------------------- a resume whose change is in force


def test_a_fit_resume_passes() -> None:
    assert {check.status for check in evaluate(resumed())} <= {"pass", "warn"}
    assert result("fleet-rule", resumed()).message == f"the tip {COMMIT[:12]} asks for vm-passthrough"
    assert result("live-mode", resumed()).message == "vm-passthrough"


SOFT = [
    ("cluster-overlay", {"checkout": checkout(env=None)}),
    ("fleet-checkout", {"checkout": checkout(state=Problem("dirty"))}),
    ("fleet-checkout", {"checkout": checkout(locked=Problem("pid 7"))}),
    ("fleet-remote", {"checkout": checkout(route=Problem("detached"))}),
    ("fleet-remote", {"tip": tip(tip=COMMIT, rule=RULE_VM, relation="behind")}),
    ("fleet-identity", {"checkout": checkout(identity=Problem("none"))}),
    ("target-stack", {"daemonsets": ()}),
    ("target-stack", {"policies": GONE}),
    ("node", {"node": ours(VM, pushing(), ready="False")}),
    ("live-mode", {"node": ours(HAMI, pushing())}),
    ("live-mode", {"node": ours(VM, pushing(), labels={})}),
    ("holders", {"pods": (holder(),)}),
    ("holders", {"pods": GONE}),
    ("other-actors", {"node": ours(VM, pushing(), taints=("medik8s.io/drain",))}),
    ("other-actors", {"pods": GONE}),
]


@pytest.mark.parametrize(("name", "changes"), SOFT)
def test_with_the_change_in_force_it_warns(name: str, changes: dict[str, Any]) -> None:
    assert result(name, resumed(**changes)).status == "warn"


HARD = [
    ("creation-gates", {"tip": tip(tip=COMMIT, rule=RULE_VM, env=b"")}),
    ("creation-gates", {"tip": tip(tip=COMMIT, rule=RULE_VM, env=None)}),
    ("creation-gates", {"tip": tip(tip=COMMIT, rule=RULE_VM, env=Problem("x"))}),
    ("fleet-cluster", {"kustomization": kustomization(path="clusters/x/gpu-node-modes")}),
    ("node", {"node": None}),
    ("node", {"node": GONE}),
    ("live-mode", {"node": ours(VM, pushing(), labels={**label_values(VM), LABEL_ACTIVE: "pod-hami-dra"})}),
    ("live-mode", {"node": ours(VM, pushing(), labels={**label_values(VM), LABEL_CONFIG: ""})}),
    ("cordon", {"node": ours(VM, pushing(), managers=(entry("kubectl-cordon"),))}),
    ("fleet-remote", {"tip": Problem("no answer")}),
]


@pytest.mark.parametrize(("name", "changes"), HARD)
def test_with_the_change_in_force_it_blocks_all_the_same(name: str, changes: dict[str, Any]) -> None:
    assert result(name, resumed(**changes)).status == "fail"


def test_with_the_change_in_force_the_gates_are_those_of_the_tip() -> None:
    assert result("creation-gates", resumed(checkout=checkout(env=b""))).message == "both creation gates are false at the tip"


def test_a_verdict_that_refuses_is_the_check_of_the_rule() -> None:
    refused = judge_tip(transaction(), "gpu-1", tip(tip=LATER, rule=rule_text(gpu_1=DRA)))
    at = look(observation(node=ours()), claim=Claim("ours", "", transaction()), verdict=refused)
    assert (result("fleet-rule", at).status, result("fleet-rule", at).remedy) == ("fail", refused.remedy)
    unread = judge_tip(transaction(), "gpu-1", tip(tip=LATER, history=Problem("shallow")))
    assert result("fleet-rule", replace(at, verdict=unread)).status == "skip"
    push = judge_tip(transaction(), "gpu-1", tip())
    assert result("fleet-rule", replace(at, verdict=push)).message == "line 7: gpu-1-pod-hami"
    assert not replace(at, verdict=push).waiting


def test_an_orphan_is_the_check_of_the_cordon() -> None:
    at = look(observation(node=node(VM, unschedulable=True)), orphan=CommitFacts(COMMIT, "x", ("y",)))
    assert COMMIT[:12] in result("cordon", at).message


# ---------------------------------------------------------------- other readings of the same look


def test_the_node_checks_are_those_that_need_nothing_else() -> None:
    assert [check.name for check in node_checks(look())] == ["node", "live-mode", "cordon", "other-actors"]


def at_target(**more: Any) -> Observation:
    return observation(**{"node": node(VM), "pods": (owner(VM),), "tip": tip(rule=RULE_VM), "asks": VM, **more})


def is_there(observed: Observation, **more: Any) -> bool:
    asked = request(**more)
    return is_at_target(asked, observed, judge_fleet_cluster(look(observed, request=asked)))


def test_the_node_is_already_there() -> None:
    assert is_there(at_target())
    assert is_there(at_target(pods=(owner(VM), holder())), resume=True), "holders do not matter"
    assert is_there(at_target(tip=tip(rule=RULE_VM, env=b""))), "nor do gates"
    assert is_there(at_target(kustomization=None), ignore_missing_gitops=True)


NOT_THERE = [
    {"node": node(VM, unschedulable=True)},
    {"node": ours(VM, unschedulable=False)},
    {"node": node(VM, annotations={"kube-dc.com/gpu-transition": ""})},
    {"node": node(VM, deleting=True)},
    {"node": node(HAMI)},
    {"node": node(labels={**label_values(VM), LABEL_CONFIG: "container"})},
    {"node": None},
    {"node": GONE},
    {"pods": ()},
    {"pods": (owner(VM, ready=False),)},
    {"pods": (owner(VM), owner(HAMI))},
    {"pods": (owner(VM), daemon("nvidia-device-plugin-daemonset"))},
    {"pods": GONE},
    {"tip": tip()},
    {"asks": HAMI},
    {"rules": ()},
    {"rules": GONE},
    {"tip": tip(rule=None)},
    {"tip": GONE},
    {"kustomizations": GONE},
    {"source": source(ref="prod")},
]


@pytest.mark.parametrize("changes", NOT_THERE, ids=lambda changes: str(changes)[:80])
def test_the_node_is_not_there_yet(changes: dict[str, Any]) -> None:
    assert not is_there(at_target(**changes))


@pytest.mark.parametrize(("source", "target"), [(None, None), (HAMI, None), (VM, VM), (VGPU, VM), (HAMI, VGPU)])
def test_no_node_is_there_without_two_modes_that_are_supported(source: Mode | None, target: Mode | None) -> None:
    assert not is_there(at_target(), source=source, target=target)


def test_what_is_moot_is_skipped() -> None:
    advice = (Check("live-gates", "warn", "open"),)
    moot = moot_checks(look(at_target(), request=request()), advice)
    assert [check.name for check in moot] == [*NAMES, "access", "live-gates"]
    assert {check.name for check in moot if check.status != "skip"} == {"modes", "fleet-cluster"}
    assert [check.name for check in moot_checks(look(at_target(), request=request(command="preview")), ())] == NAMES


# ---------------------------------------------------------------- abandon


def abandoning(**more: Any) -> dict[str, Check]:
    observed = observation(**{"node": ours(), **more})
    claim = Claim("none", "", None) if not hasattr(observed.node, "uid") else read_claim(observed.node, "eu/dc1", None)  # type: ignore[arg-type]
    checks = evaluate_abandon(look(observed, request=request(command="abandon"), claim=claim))
    assert [check.name for check in checks] == ["fleet-remote", "fleet-rule", "fleet-cluster", "cordon", "holders"]
    return {check.name: check for check in checks}


def test_an_abandon_that_may_begin() -> None:
    assert {check.status for check in abandoning().values()} == {"pass"}


@pytest.mark.parametrize(
    ("changes", "name", "status"),
    [
        ({"tip": Problem("no answer")}, "fleet-remote", "fail"),
        ({"tip": Problem("no answer")}, "fleet-rule", "skip"),
        ({"tip": tip(tip=None, rule=None)}, "fleet-remote", "fail"),
        ({"tip": tip(rule=RULE_VM)}, "fleet-rule", "fail"),
        ({"tip": tip(rule=None)}, "fleet-rule", "fail"),
        ({"node": node()}, "fleet-rule", "skip"),
        ({"node": node()}, "cordon", "fail"),
        ({"node": None}, "cordon", "fail"),
        ({"node": GONE}, "cordon", "fail"),
        ({"node": ours(record=pushing())}, "cordon", "fail"),
        ({"node": ours(record=pushing()), "tip": tip(tip=LATER)}, "cordon", "pass"),
        ({"kustomizations": GONE}, "fleet-cluster", "fail"),
        ({"pods": (holder(),)}, "holders", "warn"),
        ({"pods": GONE}, "holders", "fail"),
        ({"permitted": GONE}, "holders", "fail"),
    ],
    ids=str,
)
def test_a_check_of_abandon(changes: dict[str, Any], name: str, status: str) -> None:
    assert abandoning(**changes)[name].status == status


def test_the_edit_that_is_checked_is_the_real_one() -> None:
    edit = edit_block(rule_text(gpu_1=HAMI), "gpu-1", HAMI, VM, "x")
    assert result("fleet-rule", look(edit=edit)).message == f"line {edit.block.line}: gpu-1-pod-hami"
