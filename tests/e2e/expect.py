"""What the end-to-end tests expect of every run: a report that keeps the contract, a refusal that names its reason, nothing touched.

The lists here repeat the contract (its sections 2, 3 and 10) on purpose: what the program says of itself proves nothing.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jsonschema

from tests.harness.kube import Json
from tests.harness.world import ADMIN, ANNOTATION, Result, World, zipapp_path

# Every check of the contract, in its order.
CHECKS = (
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
    "access",
    "live-gates",
    "source-owner",
    "gpu-stack",
    "generator-input",
)
STEPS = ("preflight", "cordon", "recheck", "edit", "push", "wait", "uncordon")
_OUTCOMES = {
    0: {"ready", "completed", "abandoned", "already-at-target", "ok"},
    1: {"bug"},
    2: {"usage-error"},
    3: {"blocked", "failed-before-cordon"},
    4: {"failed-cordoned", "ended-elsewhere"},
    130: {"interrupted"},
}

_MANAGER = "kubectl-gpu-transition"

Words = str | Iterable[str]


# Reports


def show(result: Result) -> str:
    """A run in short, for a test that fails: its checks and steps in a line each, and what it said."""
    try:
        report = result.report
        lines = [f"{item['status']}  {item['name']}: {item['message']} -> {item['remedy']}" for item in report["checks"]]
        lines += [f"{item['status']}  {item['name']}: {item['message']}" for item in report["steps"] if item["status"] != "pending"]
        out = "\n".join([f"outcome {report['outcome']}, error {report['error']}", *lines])
    except (AssertionError, ValueError):
        out = result.out
    return f"{' '.join(result.argv[2:])}\nexit code {result.code} after {result.seconds:.1f} s\n--- out\n{out}\n--- err\n{result.err}"


@functools.cache
def schema() -> Json:
    """The JSON Schema that the program ships."""
    done = subprocess.run([sys.executable, zipapp_path(), "version", "--schema"], capture_output=True, check=True, timeout=60)
    found: Json = json.loads(done.stdout)
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def validate(report: Json) -> Json:
    """The report, after a look that it is as the schema and the contract say."""
    jsonschema.Draft202012Validator(schema()).validate(report)
    assert report["outcome"] in _OUTCOMES[report["exitCode"]], f"outcome {report['outcome']} with exit code {report['exitCode']}"
    names = [check["name"] for check in report["checks"]]
    assert names == [name for name in CHECKS if name in names], f"not in the contract's order, or twice: {names}"
    for check in report["checks"]:
        assert check["message"], f"{check['name']} says nothing"
        assert check["status"] != "fail" or check["remedy"], f"{check['name']} fails without a remedy: {check['message']}"
    assert [step["name"] for step in report["steps"]] == list(STEPS)
    assert (report["error"] is None) == (report["exitCode"] == 0)
    return report


def report_of(result: Result) -> Json:
    """The one document on standard output, checked, with the exit code of the process."""
    report = validate(result.report)
    assert report["exitCode"] == result.code, show(result)
    return report


def statuses(result: Result) -> dict[str, str]:
    """The status of each check that the report has."""
    return {check["name"]: check["status"] for check in result.report["checks"]}


def failing(result: Result) -> list[str]:
    """The names of the checks that fail, in the report's order."""
    return [name for name, status in statuses(result).items() if status == "fail"]


def assert_passes(result: Result) -> Json:
    """A preview that finds nothing wrong; its report."""
    assert result.code == 0, show(result)
    report = report_of(result)
    assert report["outcome"] == "ready" and failing(result) == []
    return report


def assert_blocked(result: Result, name: str, message: Words = (), remedy: Words = (), *, beside: Iterable[str] = ()) -> Json:
    """A run that this check alone has stopped, saying these words; the check. ``beside`` names others that can not but fail with it."""
    assert result.code == 3, show(result)
    report = report_of(result)
    assert report["outcome"] == "blocked"
    assert [other for other in failing(result) if other not in beside] == [name], show(result)
    check = result.check(name)
    assert_says(check["message"], message)
    assert_says(check["remedy"], remedy)
    assert name in report["error"]["message"]
    assert report["transaction"] is None or report["resumed"] or name == "cordon"
    assert all(step["status"] in ("pending", "skipped") for step in report["steps"][1:])
    return check


def assert_warns(result: Result, name: str, message: Words = (), remedy: Words = ()) -> Json:
    """A preview that this check does not stop but warns about; the check."""
    assert_passes(result)
    check = result.check(name)
    assert check["status"] == "warn", show(result)
    assert_says(check["message"], message)
    if remedy:
        assert_says(check["remedy"], remedy)
    return check


def assert_usage_error(result: Result, *words: str) -> None:
    """A run that ended for its arguments, with one error line that says these words."""
    assert result.code == 2, show(result)
    assert_one_error(result, *words)


def assert_one_error(result: Result, *words: str) -> None:
    """One ``error:`` line on standard error that says these words, with what to do below it; no traceback."""
    lines = [line for line in result.err.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, show(result)
    assert "Traceback" not in result.err + result.out, show(result)
    assert_says(result.err, words)


def assert_says(text: str | None, words: Words) -> None:
    """The text has each of these words in it."""
    for word in [words] if isinstance(words, str) else words:
        assert text and word in text, f"{word!r} is not in {text!r}"


def without_times(text: str) -> str:
    """A report's text with every time and length taken out."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME", text)
    return re.sub(r"(\"?seconds\"?: )[0-9.]+", r"\1N", text)


# The world


def transaction(world: World, **changes: Any) -> dict[str, Any]:
    """The record of a transaction of the world's node, as an earlier run would have left it."""
    return {
        "v": 1,
        "id": str(uuid.uuid4()),
        "uid": world.node()["metadata"]["uid"],
        "cluster": world.cluster,
        "from": "pod-hami",
        "to": "vm-passthrough",
        "phase": "cordoned",
        "base": world.fleet.head(),
        "commit": None,
        "started": "2026-01-02T03:04:05Z",
        "by": "fleet operator@workstation",
        "gpuResources": [],
        "ignoreDraDrivers": [],
        "requireAllocatable": False,
        **changes,
    }


def leave_transaction(world: World, record: dict[str, Any], *, cordoned: bool = True) -> None:
    """Put the record on the node, and the cordon, as the program writes them."""
    text = json.dumps(record, separators=(",", ":"))
    change: dict[str, Any] = {"metadata": {"annotations": {ANNOTATION: text}}}
    if cordoned:
        change["spec"] = {"unschedulable": True}
    world.patch_node(change, manager=_MANAGER)


@dataclass(frozen=True)
class Before:
    """What a run must not touch, as it was: the node, the checkout, the remote, the home and temporary directories; and when."""

    mark: Any
    node: Json | None
    files: dict[str, dict[str, str]]


def look(world: World) -> Before:
    """The world as it is now, for ``assert_untouched``."""
    return Before(world.backend.mark(), _node(world), _files(world))


def assert_untouched(world: World, before: Before, *, user: str = ADMIN) -> None:
    """The program has sent no write since then; node, checkout (``.git`` included), remote, home and temporary files are as they were."""
    assert world.writes(since=before.mark, user=user) == []
    assert _node(world) == before.node
    for name, files in _files(world).items():
        changed = {path for path in files.keys() | before.files[name].keys() if files.get(path) != before.files[name].get(path)}
        assert not changed, f"changed in the {name}: {sorted(changed)}"


def assert_only_read(world: World, before: Before, *, user: str = ADMIN) -> None:
    """The program has sent nothing but reads since then, not even a dry run."""
    requests = world.requests(since=before.mark, user=user)
    assert requests, "no request was logged"
    assert {request["verb"] for request in requests} <= {"get", "list", "watch"}


def _node(world: World) -> Json | None:
    """What people and programs put on the node; taints of the node's condition and cordon are the control plane's own."""
    nodes = [node for node in world.kube.list("/api/v1/nodes") if node["metadata"]["name"] == world.name]
    for node in nodes:
        metadata, spec = node["metadata"], dict(node["spec"])
        spec["taints"] = [taint for taint in spec.get("taints", []) if not taint["key"].startswith("node.kubernetes.io/")]
        keep = {key: metadata.get(key) for key in ("uid", "labels", "annotations", "deletionTimestamp")}
        return {**keep, "spec": spec}
    return None


def _files(world: World) -> dict[str, dict[str, str]]:
    fleet = world.fleet
    places = {"checkout": fleet.checkout, "remote": fleet.remote, "home": world.home, "temporary files": world.scratch}
    return {name: fleet.snapshot(place) for name, place in places.items()}
