"""What the end-to-end tests of apply say about the world after a run: completed to the letter, or safe and able to go on.

Responsible for reading the node, the log of requests, the branch and the checkout, and for telling the program's writes apart; what goes
wrong in between is each test's own.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from tests.harness.backend import ApiRequest
from tests.harness.kube import Json
from tests.harness.world import ANNOTATION, CONFIGS, NODES, OWNERS, Result, World, gpu_node, mode_labels

from .expect import report_of

RECORD_PATH = "/metadata/annotations/kube-dc.com~1gpu-transition"
CORDON_PATH = "/spec/unschedulable"
OPERATOR = "fleet operator <operator@fleet.example>"
# A command line that is given word by word: nothing of what ``World.run`` adds by itself.
AS_PRINTED: dict[str, Any] = dict.fromkeys(("cluster", "node", "repo", "kubeconfig", "from_", "to", "settle", "timeout", "yes"))


# The program's writes, as a proxy or the log of the server shows them


class _Patch(Protocol):
    """What requests of both have in common."""

    @property
    def verb(self) -> str: ...
    @property
    def query(self) -> dict[str, str]: ...
    @property
    def json(self) -> Any: ...


def _operations(request: _Patch) -> list[Json]:
    """The operations of a patch that is to be carried out, empty for every other request."""
    if request.verb != "patch" or "dryRun" in request.query or not isinstance(request.json, list):
        return []
    return request.json


def _record_in(request: _Patch) -> Json | None:
    values = [item["value"] for item in _operations(request) if item["path"] == RECORD_PATH and item["op"] in ("add", "replace")]
    return json.loads(values[0]) if values else None


def is_cordon(request: _Patch) -> bool:
    """The first patch: cordon and record in one."""
    return any(item["op"] == "add" and item["path"] == CORDON_PATH for item in _operations(request)) and _record_in(request) is not None


def is_recordon(request: _Patch) -> bool:
    """The cordon that is made again under the record that is there."""
    return any(item["op"] == "add" and item["path"] == CORDON_PATH for item in _operations(request)) and _record_in(request) is None


def is_announcement(request: _Patch) -> bool:
    """The record going to phase pushing."""
    return (_record_in(request) or {}).get("phase") == "pushing"


def is_taking_back(request: _Patch) -> bool:
    """The record going back to phase cordoned."""
    return (_record_in(request) or {}).get("phase") == "cordoned" and not is_cordon(request)


def is_uncordon(request: _Patch) -> bool:
    """The patch that gives the node back."""
    return any(item["op"] == "remove" and item["path"] == CORDON_PATH for item in _operations(request))


class _Logged:
    """A request of the server's log, with the names that a proxy's has."""

    def __init__(self, request: ApiRequest) -> None:
        self.verb, self.query, self.json, self.code = request["verb"], request["query"], request["requestObject"], request["code"]


def accepted(world: World, kind: Any, name: str | None = None) -> list[ApiRequest]:
    """The writes of one of the kinds above to a node that the server accepted."""
    path = f"{NODES}/{name or world.name}"
    return [request for request in world.writes() if request["path"] == path and request["code"] < 300 and kind(_Logged(request))]


# After a run


def assert_completed(
    world: World,
    result: Result | None,
    target: str = "vm-passthrough",
    *,
    node: str | None = None,
    checkout: Path | None = None,
    advanced: bool = True,
    author: str = OPERATOR,
    reason: str | None = None,
    resumed: bool = False,
    others: int = 0,
) -> Json:
    """The transition is complete: node, requests, branch and checkout are what the contract says, to the letter; the transaction.

    ``advanced`` says whether the checkout was moved forward too, ``others`` how many other transitions the branch has. ``result`` is None
    where the run's output could not be read.
    """
    name = node or world.name
    source = world.fleet.nodes[name]
    uncordon = assert_given_back(world, name, target)
    record: Json = json.loads(next(item["value"] for item in uncordon if item["op"] == "test" and item["path"] == RECORD_PATH))
    assert (record["cluster"], record["from"], record["to"]) == (world.cluster, source, target)
    _assert_node(world, name, target)
    commit = assert_one_commit(world, record["id"], name, source, target, author=author, reason=reason, others=others)
    if advanced:
        assert_checkout_is_at(world, commit, checkout)
    if result is not None:
        report = report_of(result)
        assert (result.code, report["outcome"], report["resumed"]) == (0, "completed", resumed), str(result)
        assert report["transaction"] == record
        assert {step["status"] for step in report["steps"]} <= ({"done", "skipped"} if resumed else {"done"})
        assert (report["error"], report["resumeCommand"], report["waitingFor"], report["holders"]) == (None, None, [], [])
        namespace, owner = OWNERS[target]
        assert report["live"] == {
            "ready": True,
            "unschedulable": False,
            "activeMode": target,
            "expectedMode": target,
            "workloadConfig": CONFIGS[target],
            "owners": [{"namespace": namespace, "name": owner, "ready": True, "terminating": False}],
        }
    return record


def assert_given_back(world: World, name: str, target: str) -> list[Json]:
    """One uncordon was accepted, and it was guarded by all that the contract names; its operations."""
    uncordons = accepted(world, is_uncordon, name)
    assert len(uncordons) == 1, [request["requestObject"] for request in uncordons]
    assert uncordons[0]["query"] == {"fieldManager": "kubectl-gpu-transition"}
    operations: list[Json] = uncordons[0]["requestObject"]
    tests = {item["path"]: item["value"] for item in operations if item["op"] == "test"}
    labels = {f"/metadata/labels/{key.replace('/', '~1')}": value for key, value in mode_labels(target).items()}
    uid = world.node(name)["metadata"]["uid"]
    assert tests == {"/metadata/uid": uid, RECORD_PATH: tests[RECORD_PATH], CORDON_PATH: True, **labels}
    others = [(item["op"], item["path"]) for item in operations if item["op"] != "test"]
    assert sorted(others) == [("remove", RECORD_PATH), ("remove", CORDON_PATH), ("replace", "/metadata/resourceVersion")]
    assert next(item["value"] for item in operations if item["path"] == "/metadata/resourceVersion").isdigit()
    return operations


def _assert_node(world: World, name: str, target: str) -> None:
    def is_clear_of_taints() -> bool:
        taints = world.node(name)["spec"].get("taints") or []
        return all(taint["key"] != "node.kubernetes.io/unschedulable" for taint in taints)

    node = world.node(name)
    assert "unschedulable" not in node["spec"]
    assert ANNOTATION not in node["metadata"]["annotations"]
    # The control plane itself keeps old names of the labels for system and architecture.
    labels = {key: value for key, value in node["metadata"]["labels"].items() if not key.startswith("beta.kubernetes.io/")}
    assert labels == gpu_node(name, target)["metadata"]["labels"]
    assert world.owners(name) == [OWNERS[target][1]]
    world.wait_until(is_clear_of_taints, "the server to take its taint off")


def assert_one_commit(
    world: World, id: str, node: str, source: str, target: str, *, author: str = OPERATOR, reason: str | None = None, others: int = 0
) -> str:
    """The branch has exactly one commit with the id: the operator's, of that one file, with nothing but the four scalars changed."""
    fleet = world.fleet
    commits = fleet.commits_with(id)
    assert len(commits) == 1
    assert len(fleet.transition_commits()) == 1 + others
    commit = commits[0]
    assert fleet.modes()[node] == target
    people = fleet.git("log", "-1", "--format=%an <%ae>|%cn <%ce>|%P", commit, cwd=fleet.remote).split("|")
    assert people[:2] == [author, author]
    body = f"Cluster: {world.cluster}\nFrom: {source}\nTo: {target}\n" + (f"Reason: {reason}\n" if reason else "")
    assert fleet.message(commit).rstrip("\n") == f"feat(gpu): transition {node} to {target}\n\n{body}\nGpu-Transition-Id: {id}"
    changed = fleet.git("diff", "--raw", "--no-renames", "--no-abbrev", people[2], commit, cwd=fleet.remote).splitlines()
    assert [re.sub(" [0-9a-f]{40}", "", line) for line in changed] == [f":100644 100644 M\t{fleet.rule_path}"]
    assert fleet.rule_at(commit) == move_block(fleet.rule_at(people[2]), node, source, target)
    return commit


def move_block(rule: bytes, node: str, source: str, target: str) -> bytes:
    """A generated rule with one node's block in another mode, made line by line."""
    lines = rule.decode().split("\n")
    start = lines.index(f"    - name: {node}-{source}")
    for offset, old, new in (
        (0, f"{node}-{source}", f"{node}-{target}"),
        (2, f" {source}", f" {target}"),
        (3, f" {source}", f" {target}"),
        (4, f" {CONFIGS[source]}", f" {CONFIGS[target]}"),
    ):
        assert lines[start + offset].endswith(old)
        lines[start + offset] = lines[start + offset].removesuffix(old) + new
    return "\n".join(lines).encode()


def assert_checkout_is_at(world: World, commit: str, checkout: Path | None = None) -> None:
    """The checkout is clean and whole, and its HEAD, its tracking ref and its branch are this commit; nothing of ours is left in it."""
    fleet, top = world.fleet, checkout or world.fleet.checkout
    assert fleet.git("status", "--porcelain", "--branch", cwd=top) == f"## {fleet.branch}...origin/{fleet.branch}"
    assert fleet.git("rev-parse", "HEAD", "@{upstream}", cwd=top).splitlines() == [commit, commit]
    assert fleet.git("fsck", "--strict", "--no-dangling", "--no-progress", cwd=top) == ""
    assert (top / fleet.rule_path).read_bytes() == fleet.rule_at(commit)
    git_directory = Path(fleet.git("rev-parse", "--absolute-git-dir", cwd=top))
    assert [path.name for path in git_directory.iterdir() if "gpu-transition" in path.name] == []


def without_objects(snapshot: Mapping[str, str]) -> dict[str, str]:
    """A snapshot of a checkout without its object store, where a commit that nobody refers to may lie."""
    return {path: what for path, what in snapshot.items() if not path.startswith(".git/objects/")}


def assert_safe(
    world: World,
    result: Result,
    error: str,
    *,
    node: str | None = None,
    phase: str = "cordoned",
    pushed: bool = False,
    schedulable: bool = False,
) -> Json:
    """The run failed after its cordon and left everything safe and said so: exit 4, no uncordon, the way on printed last; the report.

    ``error`` is the failure's identifier, ``phase`` what the record on the node says, ``pushed`` whether our commit is in the branch,
    ``schedulable`` whether somebody else uncordoned the node, which then has to be said before anything else.
    """
    name = node or world.name
    report = report_of(result)
    assert (result.code, report["outcome"], report["error"]["id"]) == (4, "failed-cordoned", error), str(result)
    assert accepted(world, is_uncordon, name) == []
    record = world.annotation(name)
    assert record is not None
    assert record["phase"] == phase
    assert record["id"] == report["transaction"]["id"]
    assert world.is_cordoned(name) is not schedulable
    assert len(world.fleet.commits_with(record["id"])) == int(pushed)
    assert "done" not in {step["status"] for step in report["steps"] if step["name"] == "uncordon"}
    lines = failure_lines(result)
    is_warned = lines[0].startswith("THE NODE IS SCHEDULABLE") and name in lines[0]
    assert is_warned is schedulable, lines[0]
    assert lines[int(is_warned)] == f"error: {report['error']['message']}"
    assert_says_what_is_true(lines, name)
    if pushed:  # the way back, where the target can not come up
        assert f"git -C {world.fleet.checkout} revert {world.fleet.commits_with(record['id'])[0]}" in "\n".join(lines)
    assert lines[-1].strip() == report["resumeCommand"]
    words = shlex.split(lines[-1])
    assert words[:5] == ["kubectl", "gpu-transition", "apply", world.cluster, name]
    for flag, value in (("--repo", None), ("--kubeconfig", None), ("--from", record["from"]), ("--to", record["to"])):
        assert value in (None, words[words.index(flag) + 1])
    assert {"--resume-cordoned", "--yes"} <= set(words)
    return report


def failure_lines(result: Result) -> list[str]:
    """What a failure says, from its first line on: the lines of standard error after the progress."""
    lines = result.err.rstrip("\n").split("\n")
    start = max(index for index, line in enumerate(lines) if line.startswith("error: "))
    headlines = ("THE NODE IS SCHEDULABLE", "the node is gone", "whether ")
    return lines[start - 1 if start and lines[start - 1].startswith(headlines) else start :]


def assert_says_what_is_true(lines: list[str], name: str) -> None:
    """Node, annotation, fleet and remote, each on a line of its own, and then the commands to look further, real names filled in."""
    facts = lines.index("What is true now:")
    assert [line.split(":")[0].strip() for line in lines[facts + 1 : facts + 5]] == ["node", "annotation", "fleet", "remote"]
    look = lines.index("Look at:")
    assert facts < look
    assert f"get node {name} " in lines[look + 1]
    assert f"spec.nodeName={name}" in lines[look + 2]


def follow(world: World, result: Result, *args: str, env: Mapping[str, str] | None = None) -> Result:
    """Run the command that a failure printed last, word by word, for a JSON report."""
    words = shlex.split(failure_lines(result)[-1])
    assert words[:2] == ["kubectl", "gpu-transition"]
    return world.run(words[2], *words[3:], "-o", "json", *args, env=env, **AS_PRINTED)


def assert_resumes(
    world: World, result: Result, target: str = "vm-passthrough", *, env: Mapping[str, str] | None = None, advanced: bool = True
) -> Json:
    """The printed command finishes the transaction that the failure left, with exactly one commit that carries its id."""
    left = world.annotation()
    assert left is not None
    resumed = follow(world, result, env=env)
    record = assert_completed(world, resumed, target, resumed=True, advanced=advanced)
    assert record["id"] == left["id"]
    return record
