"""The role in the README is exactly what the program asks for: every command works with it, and each right in it is used and missed."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.harness.world import REJECT, Json, Result, World, pod

README = Path(__file__).parents[2] / "README.md"
Right = tuple[str, str, str]
DRA = "resource.k8s.io"


def read_role(name: str = "gpu-transition") -> list[Json]:
    """The rules of the README's ClusterRole of that name."""
    texts = re.findall(r"```yaml\n(apiVersion: rbac.*?)```", README.read_text(), re.DOTALL)
    roles = {role["metadata"]["name"]: role["rules"] for role in map(YAML(typ="safe", pure=True).load, texts)}
    return list(roles[name])


def rights(rules: list[Json]) -> set[Right]:
    """Each right of these rules: API group, resource, verb."""
    return {right for rule in rules for right in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])}


def without(right: Right) -> list[Json]:
    """The role but for that right."""
    group, resource, verb = right
    kept = []
    for rule in read_role():
        names = {"resourceNames": rule["resourceNames"]} if "resourceNames" in rule else {}
        for other in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"]):
            if other != (group, resource, verb):
                kept.append({"apiGroups": [other[0]], "resources": [other[1]], "verbs": [other[2]], **names})
    return kept


def run(world: World, command: str, *more: str, **options: Any) -> Result:
    return world.run(
        command, "-o", "json", *more, kubeconfig=world.backend.kubeconfig(world.root / "role.kubeconfig", user="operator"), **options
    )


def asked(world: World, since: Any) -> set[Right]:
    """What the operator asked of the server, refusals included."""
    found = set()
    for request in world.requests(since=since, user="operator"):
        path = request["path"].split("/")
        group = path[2] if path[1] == "apis" else ""
        found.add((group, request["resource"], request["verb"]))
        assert request["code"] != 403, request
    return found


def waiting_pod(world: World) -> None:
    """A pod that no node takes, with a volume: only then are the claims of volumes read."""
    made = pod("homeless", None)
    made["spec"]["nodeSelector"] = {"example.com/nowhere": "true"}
    made["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    world.add(made)


def unused(world: World, right: Right) -> bool:
    """Whether the right is not asked for here: what a server does not serve is listed (and found missing), but never watched."""
    versions = ("v1", "v1beta2", "v1beta1")
    return right[0] == DRA and right[2] == "watch" and not any(world.backend.serves(f"{DRA}/{version}") for version in versions)


def test_every_command_needs_exactly_the_role_of_the_readme(world: World) -> None:
    world.backend.add_user("operator", read_role())
    waiting_pod(world)
    since = world.backend.mark()
    assert run(world, "preview").code == 0
    assert run(world, "status").code == run(world, "status", node=None).code == 0
    world.fleet.hook("pre-receive", REJECT)
    assert run(world, "apply").code == 4
    world.fleet.hook("pre-receive", None)
    assert run(world, "abandon").code == 0
    result = run(world, "apply")
    assert result.code == 0, result
    needed = {right for right in rights(read_role()) if not unused(world, right)}
    assert asked(world, since) == needed


@pytest.mark.parametrize("allowed", [True, False])
def test_asking_flux_needs_exactly_one_more_role(world: World, allowed: bool) -> None:
    more = read_role("gpu-transition-reconcile")
    world.backend.add_user("operator", read_role() + (more if allowed else []))
    since = world.backend.mark()
    result = run(world, "apply", "--reconcile")
    assert result.code == 0, result
    sent = {(request["path"].split("/")[2], request["resource"], request["verb"]) for request in world.writes(since=since, user="operator")}
    asked_flux = {right for right in sent if "fluxcd" in right[0]}
    assert asked_flux == (rights(more) if allowed else {("source.toolkit.fluxcd.io", "gitrepositories", "patch")})
    assert ("was not asked to reconcile" in result.err and "403" in result.err) == (not allowed)


@pytest.mark.parametrize("right", sorted(rights(read_role())), ids=lambda right: "-".join(filter(None, right)))
def test_a_right_that_is_missing_is_found_before_the_cordon(world: World, right: Right) -> None:
    """A refusal after the cordon would come at the worst of times; where nothing is blocked by it, a check says so."""
    world.backend.add_user("operator", without(right))
    waiting_pod(world)
    before = world.node()
    result = run(world, "apply", timeout="20s")
    missed = [check for check in result.report["checks"] if right[1] in check["message"] and "403" in check["message"]]
    assert "Traceback" not in result.err
    if unused(world, right):
        assert (result.code, missed) == (0, []), result
        return
    if right[1] in OPTIONAL:
        assert (result.code, [check["status"] for check in missed]) == (0, OPTIONAL[right[1]])
        return
    assert result.code == 3, result
    assert "fail" in {check["status"] for check in missed} <= {"fail", "warn"}, result
    assert all(check["remedy"] for check in missed)
    assert (world.node()["spec"], world.annotation()) == (before["spec"], None)


# What blocks nothing, with the status of the check that asks for it.
OPTIONAL: dict[str, list[str]] = {"configmaps": ["warn"]}
