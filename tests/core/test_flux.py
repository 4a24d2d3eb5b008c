"""What keeps a change from arriving through Flux (spec section 3, ``flux``)."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_gpu_transition.facts import Condition
from kubectl_gpu_transition.flux import find_troubles
from kubectl_gpu_transition.model import Problem
from tests.core.builders import READY, facts, kustomization, source

BASE = ("flux-system", "infra")


def conditions(**kinds: tuple[str, str]) -> dict[str, Condition]:
    return {kind: Condition(status, reason, "words") for kind, (status, reason) in kinds.items()}


STATES: list[Any] = [
    pytest.param({}, None, None, id="sound"),
    pytest.param({"suspended": True}, "is suspended", None, id="suspended, though Ready"),
    pytest.param({"conditions": conditions(Stalled=("True", "InvalidPath"))}, "is stalled: InvalidPath: words", None, id="stalled"),
    pytest.param({"conditions": conditions(Ready=("False", "BuildFailed"))}, "has failed: BuildFailed: words", None, id="failed"),
    pytest.param(
        {"conditions": conditions(Ready=("False", "HealthCheckFailed"), Reconciling=("True", "ProgressingWithRetry"))},
        "has failed: HealthCheckFailed",
        None,
        id="failed, and tried again",
    ),
    pytest.param({"conditions": conditions(Ready=("Unknown", "Progressing"))}, None, "has not been reconciled yet", id="not yet"),
    pytest.param(
        {"conditions": conditions(Ready=("Unknown", "Progressing"), Reconciling=("True", "Progressing"))},
        None,
        "is still reconciling",
        id="at it",
    ),
    pytest.param({"conditions": conditions(Ready=("False", "DependencyNotReady"))}, None, "waits for a dependency", id="behind another"),
    pytest.param({"conditions": {}}, None, "has not been reconciled yet", id="no word yet"),
    pytest.param({"observed": False}, None, "has changed and is not reconciled yet", id="changed since"),
]


def judge(found: Any) -> tuple[list[tuple[str, str]], list[str]]:
    assert not isinstance(found, Problem)
    return found


@pytest.mark.parametrize(("state", "failure", "warning"), STATES)
@pytest.mark.parametrize("which", ["Kustomization", "GitRepository", "dependency"])
def test_each_object_on_the_way_is_judged(which: str, state: dict[str, Any], failure: str | None, warning: str | None) -> None:
    if which == "GitRepository":
        at = facts(source=source(**state))
        what, where = ("GitRepository flux-system/flux-system", "source git flux-system -n flux-system")
    elif which == "Kustomization":
        at = facts(kustomization=kustomization(**state))
        what, where = ("Kustomization flux-system/gpu-node-mode", "kustomization gpu-node-mode -n flux-system")
    else:
        made = (kustomization(depends_on=(BASE,)), kustomization(name="infra", **{"conditions": READY, **state}))
        at = facts(kustomizations=made)
        what, where = ("Kustomization flux-system/infra", "kustomization infra -n flux-system")
    failures, warnings = judge(find_troubles(at))
    assert [text for text, _ in failures if not text.startswith(what)] == [] == [text for text in warnings if not text.startswith(what)]
    assert (len(failures), len(warnings)) == (failure is not None, warning is not None)
    if failure:
        assert failure in failures[0][0]
        assert failures[0][1].endswith(where)
    if warning:
        assert warning in warnings[0]


def test_a_dependency_that_does_not_exist_is_a_failure() -> None:
    failures, _ = judge(find_troubles(facts(kustomization=kustomization(depends_on=(BASE,)))))
    assert "depends on flux-system/infra, which does not exist" in failures[0][0]


def test_dependencies_of_dependencies_count_and_a_circle_ends() -> None:
    first = kustomization(depends_on=(BASE,))
    second = kustomization(name="infra", depends_on=(("flux-system", "crds"),))
    third = kustomization(name="crds", depends_on=(("flux-system", "gpu-node-mode"),), suspended=True)
    failures, warnings = judge(find_troubles(facts(kustomizations=(first, second, third))))
    assert [text for text, _ in failures] == ["Kustomization flux-system/crds is suspended"]
    assert warnings == []


def test_what_can_not_be_read_is_a_problem() -> None:
    gone = Problem("no answer")
    assert find_troubles(facts(kustomizations=gone)) == gone
    assert find_troubles(facts(sources=gone)) == gone
