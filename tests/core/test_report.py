"""The document and the text of an outcome (spec sections 10 and 11). The engine's tests fill them; here are the rules of showing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import kubectl_gpu_transition
from kubectl_gpu_transition.failures import Failure, Refused
from kubectl_gpu_transition.model import Check, Holder, Outcome, Owner, Plan, Step
from kubectl_gpu_transition.plan import STEPS
from kubectl_gpu_transition.report import clean, describe_error, document, failure_text, text
from tests.core.builders import HAMI, entry, node, ours, pushing, request
from tests.fakes.world import World, gpu_pod

SCHEMA = json.loads((Path(kubectl_gpu_transition.__file__).parent / "report.schema.json").read_text())
KEYS = [
    "apiVersion",
    "kind",
    "command",
    "cluster",
    "node",
    "from",
    "to",
    "outcome",
    "exitCode",
    "resumed",
    "checks",
    "holders",
    "plan",
    "transaction",
    "live",
    "steps",
    "waitingFor",
    "error",
    "resumeCommand",
]


def validated(outcome: Outcome) -> dict[str, Any]:
    """The document, valid against the schema that is shipped."""
    shown = document(outcome)
    jsonschema.validate(shown, SCHEMA)
    assert list(shown) == KEYS
    return shown


def outcome(**more: Any) -> Outcome:
    values: dict[str, Any] = {"word": "ready", "exit_code": 0, **more}
    asked = values.pop("asked", request())
    return Outcome(asked, [Step(name) for name in STEPS], **values)


HOLDER = Holder("team-a", "Job", "x", ("x-1",), ("nvidia.com/gpu",), True, True, "wait for it")
FULL: dict[str, Any] = {
    "checks": (Check("modes", "pass", "fine"), Check("node", "fail", "lost", "find it")),
    "holders": (HOLDER,),
    "plan": Plan(
        "f", ({"op": "test", "path": "/a", "value": "b"},), "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\n", "subject\n\nbody\n", "origin", "main"
    ),
    "transaction": pushing(),
    "node": ours(),
    "owners": (Owner("gpu-operator", "hami-device-plugin", "p", True, False, True, HAMI),),
    "waiting_for": ("labels 0/3",),
    "resume_command": "kubectl gpu-transition apply",
}


def test_a_document_has_every_key_whatever_happened() -> None:
    bare = validated(Outcome(request(command="", source=None, target=None), [Step(name) for name in STEPS]))
    assert [bare[key] for key in ("command", "from", "to", "plan", "transaction", "live", "error", "resumeCommand")] == [None] * 8
    full = validated(outcome(**FULL, error=Refused("blocked", "no"), error_step="wait", exit_code=4, word="failed-cordoned", resumed=True))
    assert full["error"] == {"id": "blocked", "step": "wait", "message": "no"}
    assert full["live"] == {
        "ready": True,
        "unschedulable": True,
        "activeMode": "pod-hami",
        "expectedMode": "pod-hami",
        "workloadConfig": "container",
        "owners": [{"namespace": "gpu-operator", "name": "hami-device-plugin", "ready": True, "terminating": False}],
    }
    assert full["holders"] == [
        {
            "namespace": "team-a",
            "kind": "Job",
            "name": "x",
            "pods": ["x-1"],
            "resources": ["nvidia.com/gpu"],
            "terminating": True,
            "bound": True,
        }
    ]
    assert full["checks"][0] == {"name": "modes", "status": "pass", "message": "fine", "remedy": None}


def test_a_label_that_is_absent_is_null() -> None:
    shown = validated(outcome(node=node(labels={}, ready="Unknown")))
    assert (shown["live"]["activeMode"], shown["live"]["expectedMode"], shown["live"]["workloadConfig"]) == (None, None, None)
    assert shown["live"]["ready"] is False


def test_a_bug_is_called_one() -> None:
    shown = validated(outcome(error=ValueError("x"), word="bug", exit_code=1))
    assert shown["error"] == {"id": "bug", "step": "preflight", "message": "a bug in this program: ValueError: x"}
    assert describe_error(Failure("a", "b")) == "b"


def run(prepare: Any = None, command: str = "apply", **more: Any) -> tuple[World, Outcome]:
    world = World()
    if prepare is not None:
        prepare(world)
    return world, world.run(command, **more)


def drop(world: World) -> None:
    """Somebody drops the record."""
    world.cluster.annotate("kube-dc.com/gpu-transition", None)


RUNS = [
    pytest.param(None, "apply", {}, id="completed"),
    pytest.param(None, "preview", {}, id="ready"),
    pytest.param(lambda w: w.cluster.add_pod(gpu_pod()), "apply", {}, id="blocked"),
    pytest.param(lambda w: w.cluster.delete(), "preview", {}, id="no node"),
    pytest.param(lambda w: setattr(w.fleet, "rejects", "no"), "apply", {}, id="failed after the cordon"),
    pytest.param(lambda w: w.steering.faults.update({("cluster.patch_node", 2): "refused"}), "apply", {}, id="failed before the cordon"),
    pytest.param(None, "apply", {"yes": False}, id="not confirmed"),
    pytest.param(lambda w: setattr(w.interrupts, "name", "SIGINT"), "apply", {}, id="interrupted"),
    pytest.param(None, "abandon", {}, id="nothing to abandon"),
    pytest.param(
        lambda w: w.steering.before.update({("cluster.watch", 1): lambda: drop(w)}),
        "apply",
        {},
        id="ended elsewhere",
    ),
]


@pytest.mark.parametrize(("prepare", "command", "more"), RUNS)
def test_every_report_is_valid_and_two_runs_over_the_same_state_print_the_same(prepare: Any, command: str, more: dict[str, Any]) -> None:
    first, second = (validated(run(prepare, command, **more)[1]) for _ in range(2))
    assert first == second
    json.dumps(first)


# ---------------------------------------------------------------- the text


def test_checks_are_aligned_with_remedies_below_what_failed() -> None:
    lines = text(outcome(checks=(*FULL["checks"], Check("holders", "warn", "h", "r"), Check("access", "skip", "s", "not shown"))), False)
    assert lines[:6] == [
        "PASS  modes            fine",
        "FAIL  node             lost",
        "                       -> find it",
        "WARN  holders          h",
        "                       -> r",
        "SKIP  access           s",
    ]


def test_steps_are_shown_with_the_time_each_took() -> None:
    steps = [
        Step(name, status, None, seconds, message)
        for name, status, seconds, message in zip(
            STEPS,
            ("done", "done", "failed", "skipped", "pending", "pending", "pending"),
            (1.24, 0.0, 61.0, 0.0, 0.0, 0.0, 0.0),
            ("14 checks", "", "somebody holds", "not needed", "", "", ""),
            strict=True,
        )
    ]
    shown = Outcome(request(), steps, "completed", 0, checks=(Check("modes", "pass", "fine"),))
    lines = text(shown, False)
    assert lines[2:9] == [
        "DONE  preflight          1.2 s  14 checks",
        "DONE  cordon             0.0 s",
        "FAIL  recheck           61.0 s  somebody holds",
        "SKIP  edit                      not needed",
        "SKIP  push                      not reached",
        "SKIP  wait                      not reached",
        "SKIP  uncordon                  not reached",
    ]
    assert lines[-1] == "completed: gpu-1 is in vm-passthrough and schedulable (62 s)"


def test_a_run_that_was_blocked_shows_no_steps() -> None:
    shown = text(run(lambda w: w.cluster.add_pod(gpu_pod()))[1], False)
    assert not any(line.startswith("SKIP  cordon") for line in shown)
    assert shown[-1] == "blocked: 1 check failed: holders"
    abandoned = text(run(None, "abandon")[1], False)
    assert not any(line.startswith("SKIP  cordon  ") and "abandon does not" in line for line in abandoned)


def test_a_preview_shows_the_plan_and_the_next_command() -> None:
    _, seen = run(None, "preview")
    lines = text(seen, False)
    assert "Plan: preflight -> cordon -> recheck -> edit -> push -> wait -> uncordon" in lines
    assert "  push one commit to main of origin (https://git.example/fleet.git):" in lines
    assert "    feat(gpu): transition gpu-1 to vm-passthrough" in lines
    assert "    -    - name: gpu-1-pod-hami" in lines
    assert "    +    - name: gpu-1-vm-passthrough" in lines
    assert '    {"op": "test", "path": "/spec/rules/0/name", "value": "gpu-1-pod-hami"}' in lines
    assert any(line.startswith("Next: kubectl gpu-transition apply eu/dc1 gpu-1") for line in lines)
    assert lines[-1] == "ready: no check fails; nothing was changed. gpu-1 can go from pod-hami to vm-passthrough"
    assert not any("--resume-cordoned" in line for line in lines)


def test_a_preview_of_a_resume_shows_the_command_that_resumes() -> None:
    world = World()
    world.steering.faults["cluster.patch_node", 2] = "dies"
    world.run_to_death()
    world.steering.revive()
    lines = text(world.run("preview", resume=True), False)
    assert any("--resume-cordoned" in line for line in lines if line.startswith("Next:"))


def test_a_preview_that_fails_shows_no_plan() -> None:
    lines = text(run(lambda w: w.cluster.add_pod(gpu_pod()), "preview")[1], False)
    assert not any(line.startswith("Plan:") for line in lines)


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("already-at-target", "is already in vm-passthrough; nothing was changed"),
        ("abandoned", "the transaction of gpu-1 is given up; the node is in pod-hami"),
    ],
)
def test_the_last_line_of_other_ends(word: str, words: str) -> None:
    assert words in text(outcome(word=word), False)[-1]
    assert "the target" in text(outcome(word="already-at-target", asked=request(target=None)), False)[-1]
    assert "where it was" in text(outcome(word="abandoned", asked=request(source=None)), False)[-1]


def test_colours_are_only_added() -> None:
    seen = run(None, "preview")[1]
    plain, coloured = text(seen, False), text(seen, True)
    assert coloured != plain
    assert any(line.startswith("\x1b[32mPASS\x1b[0m") for line in coloured)
    assert any("\x1b[31m-    - name: gpu-1-pod-hami\x1b[0m" in line for line in coloured)
    assert [re.sub("\x1b\\[[0-9]+m", "", line) for line in coloured] == plain
    assert not any("\x1b" in line for line in plain)


HOSTILE = [
    "\x1b[2J",
    "\x00",
    "\x07",
    "\x08",
    "\r",
    "\x7f",
    "\x9b31m",
    "\u202e",
    "\u200b",
    "\u2028",
    "\u2066",
    "\ufeff",
    "\u061c",
    "\ud800",
    "\udfff",
]


@pytest.mark.parametrize("sign", HOSTILE, ids=ascii)
def test_what_comes_from_elsewhere_is_stripped_of_control_characters(sign: str) -> None:
    assert clean(f"a{sign}b").startswith("a")
    assert clean(f"a{sign}b").endswith("b")
    assert sign[0] not in clean(f"a{sign}b")
    hostile = f"x{sign}y"
    shown = outcome(
        checks=(Check("node", "fail", hostile, hostile),),
        holders=(Holder(hostile, "Pod", "n", (hostile,), (hostile,), False, True, hostile),),
        error=Refused("blocked", hostile, hostile),
        exit_code=4,
        word="failed-cordoned",
        headline=hostile,
        facts=[hostile],
        waiting_for=(hostile,),
        inspect=(hostile,),
        way_back=hostile,
        resume_command=hostile,
        notes=[hostile],
    )
    for line in (*text(shown, False), *failure_text(shown)):
        assert sign[0] not in line
        line.encode()


def test_text_in_every_language_stays() -> None:
    assert clean("Grüße, мир, 世界, emoji 🚀") == "Grüße, мир, 世界, emoji 🚀"


def test_text_from_elsewhere_is_never_a_line_of_its_own() -> None:
    assert clean("one\nPASS  modes\ttwo") == "one PASS  modes two"


def test_more_lines_stand_below_the_first() -> None:
    shown = outcome(checks=(Check("access", "fail", "one\ntwo"),), error=Refused("blocked", "hook\nsays no"), word="blocked", exit_code=3)
    assert "FAIL  access           one\n                       two" in text(shown, False)
    assert failure_text(shown)[0] == "error: hook\n       says no"


# ---------------------------------------------------------------- after a failure


def test_after_a_failure_everything_is_in_this_order() -> None:
    shown = outcome(
        error=Refused("x", "what failed", "what to do"),
        headline="THE NODE IS SCHEDULABLE",
        facts=["node: cordoned"],
        waiting_for=("labels 0/3",),
        holders=(HOLDER,),
        inspect=("kubectl get node",),
        way_back="git revert",
        resume_command="kubectl gpu-transition apply",
        exit_code=4,
        word="failed-cordoned",
    )
    assert failure_text(shown) == [
        "THE NODE IS SCHEDULABLE",
        "error: what failed",
        "  remedy: what to do",
        "What is true now:",
        "  node: cordoned",
        "Still missing:",
        "  labels 0/3",
        "Holders:",
        "  team-a/Job/x (terminating): nvidia.com/gpu by x-1",
        "Look at:",
        "  kubectl get node",
        "If the target can not come up, take the change back:",
        "  git revert",
        "Do not uncordon it by hand; go on with:",
        "  kubectl gpu-transition apply",
    ]


def test_after_a_success_there_is_nothing_to_say() -> None:
    assert failure_text(outcome()) == []


def test_a_bare_failure_is_one_line() -> None:
    assert failure_text(outcome(error=ValueError("x"), holders=(HOLDER,), exit_code=1)) == ["error: a bug in this program: ValueError: x"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "Do not uncordon it by hand; go on with:"),
        ({"node": ours()}, "Do not uncordon it by hand; go on with:"),
        ({"node": ours(managers=(entry("kubectl-cordon"),))}, "Go on with:"),
        ({"asked": request(command="abandon")}, "Go on with:"),
        ({"asked": request(command="preview")}, "Go on with:"),
    ],
    ids=["nothing known", "our cordon", "another manager's cordon", "abandon", "preview"],
)
def test_uncordoning_by_hand_is_warned_against_where_it_is_wrong(changes: dict[str, Any], words: str) -> None:
    assert failure_text(outcome(error=Refused("x", "y"), resume_command="go", **changes))[-2:] == [words, "  go"]
