"""An outcome as the contract's document (spec section 10) and as text (section 11). Pure; nothing else formats results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from kubectl_gpu_transition.failures import Failure
from kubectl_gpu_transition.holders import describe_holder
from kubectl_gpu_transition.model import NodeStatus, NodeView, Outcome, Owner
from kubectl_gpu_transition.modes import LABEL_ACTIVE, LABEL_CONFIG, LABEL_EXPECTED, Mode
from kubectl_gpu_transition.plan import STEPS, apply_command, describe_transaction
from kubectl_gpu_transition.record import as_json, find_foreign_cordon

API_VERSION = "gpu-transition.kube-dc.com/v1"

# C0, DEL, C1, the marks that reorder or hide text on a terminal, and lone surrogates, which JSON can hold and
# UTF-8 can not.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def clean(text: str) -> str:
    """Text from elsewhere on one line, without control characters: safe to show, and never a line of its own."""
    return _CONTROL.sub("", text.replace("\n", " ").replace("\t", " "))


def indented(text: str, width: int) -> str:
    """Text whose further lines (a hook's output, say) stand below its first, clearly a part of it."""
    return ("\n" + " " * width).join(clean(line) for line in text.split("\n"))


def document(outcome: Outcome) -> dict[str, Any]:
    """The TransitionReport, of a status the StatusReport. Keys are always there; lists are in a fixed order."""
    request = outcome.request
    if request.command == "status":
        return _status_document(outcome)
    return {
        "apiVersion": API_VERSION,
        "kind": "TransitionReport",
        "command": request.command or None,
        "cluster": request.cluster or None,
        "node": request.node or None,
        "from": _mode(request.source),
        "to": _mode(request.target),
        "outcome": outcome.word,
        "exitCode": outcome.exit_code,
        "resumed": outcome.resumed,
        "checks": [{"name": c.name, "status": c.status, "message": c.message, "remedy": c.remedy} for c in outcome.checks],
        "holders": [
            {
                "namespace": h.namespace,
                "kind": h.kind,
                "name": h.name,
                "pods": list(h.pods),
                "resources": list(h.resources),
                "terminating": h.terminating,
                "bound": h.bound,
            }
            for h in outcome.holders
        ],
        "plan": None
        if outcome.plan is None
        else {
            "file": outcome.plan.file,
            "patch": [dict(operation) for operation in outcome.plan.patch],
            "diff": outcome.plan.diff,
            "message": outcome.plan.message,
            "remote": outcome.plan.remote,
            "branch": outcome.plan.branch,
        },
        "transaction": None if outcome.transaction is None else as_json(outcome.transaction),
        "live": None if outcome.node is None else _live(outcome.node, outcome.owners),
        "steps": [
            {"name": s.name, "status": s.status, "started": s.started, "seconds": round(s.seconds, 3), "message": s.message}
            for s in outcome.steps
        ],
        "waitingFor": list(outcome.waiting_for),
        "error": _error(outcome),
        "resumeCommand": outcome.resume_command,
    }


def _status_document(outcome: Outcome) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "StatusReport",
        "command": "status",
        "cluster": outcome.request.cluster or None,
        "outcome": outcome.word,
        "exitCode": outcome.exit_code,
        "error": _error(outcome),
        "nodes": [
            {
                "node": status.name,
                "fleetMode": status.fleet_mode,
                "live": None if status.live is None else _live(status.live, status.owners),
                "cordonedBy": status.cordoned_by,
                "transaction": None if status.transaction is None else as_json(status.transaction),
                "transactionAgeSeconds": status.age,
                "commitInBranch": status.in_branch,
                "holders": status.holders,
                "next": status.next,
            }
            for status in outcome.nodes
        ],
    }


def _error(outcome: Outcome) -> dict[str, Any] | None:
    error = outcome.error
    if error is None:
        return None
    identifier = error.id if isinstance(error, Failure) else "bug"
    return {"id": identifier, "step": outcome.error_step or "preflight", "message": describe_error(error)}


def _mode(mode: Mode | None) -> str | None:
    return mode.value if mode else None


def _live(node: NodeView, owners: Iterable[Owner]) -> dict[str, Any]:
    return {
        "ready": node.ready == "True",
        "unschedulable": node.unschedulable,
        "activeMode": node.labels.get(LABEL_ACTIVE),
        "expectedMode": node.labels.get(LABEL_EXPECTED),
        "workloadConfig": node.labels.get(LABEL_CONFIG),
        "owners": [{"namespace": o.namespace, "name": o.name, "ready": o.ready, "terminating": o.terminating} for o in owners],
    }


def describe_error(error: BaseException) -> str:
    """What failed, in words."""
    return error.message if isinstance(error, Failure) else f"a bug in this program: {type(error).__name__}: {error}"


_COLOURS = {"PASS": "32", "DONE": "32", "WARN": "33", "FAIL": "31", "SKIP": "2"}


def _line(word: str, name: str, message: str, colour: bool) -> str:
    shown = f"\x1b[{_COLOURS[word]}m{word}\x1b[0m" if colour and word in _COLOURS else word
    return f"{shown}  {name:<16} {indented(message, 23)}".rstrip()


def text(outcome: Outcome, colour: bool) -> list[str]:
    """The report's lines: checks, plan of a preview or steps of the others, outcome, what to do next."""
    if outcome.request.command == "status":
        return _status_text(outcome)
    lines = []
    for check in outcome.checks:
        lines.append(_line(check.status.upper(), check.name, check.message, colour))
        if check.remedy and check.status in ("fail", "warn"):
            lines.append(f"{'':<23}-> {clean(check.remedy)}")
    if outcome.request.command == "preview":
        lines += _plan_text(outcome, colour)
    elif outcome.checks and (outcome.error is None or any(step.status in ("done", "failed") for step in outcome.steps[1:])):
        lines.append("")
        for step in outcome.steps:
            word = {"done": "DONE", "failed": "FAIL", "skipped": "SKIP", "pending": "SKIP"}[step.status]
            spent = f"{step.seconds:.1f} s" if step.status in ("done", "failed") else ""
            lines.append(
                _line(word, step.name, f"{spent:>7}  {step.message or ('not reached' if step.status == 'pending' else '')}", colour)
            )
    lines += ["", f"{outcome.word}: {_summary(outcome)}"]
    lines += [clean(note) for note in outcome.notes]
    return [line for line in lines if line is not None]


_COLUMNS = ("NODE", "FLEET", "LIVE", "READY", "CORDON", "OWNERS", "HOLDERS")


def _status_text(outcome: Outcome) -> list[str]:
    """A line a node in columns, below it what is unfinished and what to do next; then how many there are."""
    rows = [_COLUMNS, *(_row(status) for status in outcome.nodes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = []
    for row, status in zip(rows, (None, *outcome.nodes), strict=True):
        lines.append("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())
        if status is not None and status.transaction is not None:
            branch = {True: "in the branch", False: "not in the branch", None: "not known to be in the branch"}[status.in_branch]
            age = "" if status.age is None else f", {status.age // 3600}h{status.age // 60 % 60:02d}m old"
            lines.append(f"  transaction {clean(describe_transaction(status.transaction))}{age}; its commit is {branch}")
        if status is not None and status.next:
            lines.append(f"  -> {clean(status.next)}")
    unfinished = sum(status.next is not None for status in outcome.nodes)
    summary = _summary(outcome) if outcome.error else f"{len(outcome.nodes)} nodes, {unfinished or 'none'} with something left to do"
    return [*(lines if outcome.nodes else []), "", f"{outcome.word}: {summary}", *(clean(note) for note in outcome.notes)]


def _row(status: NodeStatus) -> tuple[str, ...]:
    """The columns of a node; ``?`` is what could not be read, ``-`` what there is none of."""
    node, holders = status.live, "?" if status.holders is None else str(status.holders)
    if node is None:
        return clean(status.name), status.fleet_mode or "?", "-", "-", "-", "-", "-"
    active, expected = (node.labels.get(label) or "-" for label in (LABEL_ACTIVE, LABEL_EXPECTED))
    live = active if active == expected else f"{active}, expected {expected}"
    owners = [f"{o.name} ({'terminating' if o.terminating else 'Ready' if o.ready else 'not Ready'})" for o in status.owners]
    cordon = (status.cordoned_by or "?") if node.unschedulable else "-"
    words = (status.name, status.fleet_mode or "?", live, node.ready, cordon, ", ".join(owners) or "-", holders)
    return tuple(clean(word) for word in words)


def _plan_text(outcome: Outcome, colour: bool) -> list[str]:
    plan, request = outcome.plan, outcome.request
    if plan is None or request.source is None or request.target is None or outcome.error is not None:
        return []
    lines = ["", f"Plan: {' -> '.join(STEPS)}", f"  push one commit to {clean(plan.branch)} of {clean(plan.remote)}:", ""]
    lines += [f"    {clean(line)}".rstrip() for line in plan.message.rstrip().split("\n")]
    lines += ["", f"  that changes {clean(plan.file)} by this RFC 6902 patch:", ""]
    lines += [f"    {clean(json.dumps(dict(operation)))}" for operation in plan.patch]
    lines += ["", "  in other words:", ""]
    for line in plan.diff.rstrip("\n").split("\n"):
        code = {"+": "32", "-": "31", "@": "36"}.get(line[:1])
        shown = clean(line)
        lines.append(f"    \x1b[{code}m{shown}\x1b[0m" if colour and code else f"    {shown}")
    if not outcome.resumed:
        lines += ["", f"Next: {apply_command(request, request.source, request.target, resume=False)}"]
    else:
        lines += ["", f"Next: {apply_command(request, request.source, request.target, resume=True)}"]
    return lines


def _summary(outcome: Outcome) -> str:
    request = outcome.request
    target = request.target.value if request.target else "the target"
    source = request.source.value if request.source else "where it was"
    if outcome.error is not None:
        return indented(describe_error(outcome.error), 2)
    return {
        "ready": f"no check fails; nothing was changed. {request.node} can go from {source} to {target}",
        "completed": f"{request.node} is in {target} and schedulable ({sum(step.seconds for step in outcome.steps):.0f} s)",
        "already-at-target": f"{request.node} is already in {target}; nothing was changed",
        "abandoned": f"the transaction of {request.node} is given up; the node is in {source}",
    }[outcome.word]


def failure_text(outcome: Outcome) -> list[str]:
    """What an operator reads after a failure, in this order and nothing after it: what failed, what is true now, what to inspect, the
    command that goes on. Empty after a success."""
    error = outcome.error
    if error is None:
        return []
    lines = [clean(outcome.headline)] if outcome.headline else []
    lines.append(f"error: {indented(describe_error(error), 7)}")
    if isinstance(error, Failure) and error.remedy:
        lines.append(f"  remedy: {clean(error.remedy)}")
    if outcome.facts:
        lines += ["What is true now:", *(f"  {clean(fact)}" for fact in outcome.facts)]
    if outcome.waiting_for:
        lines += ["Still missing:", *(f"  {clean(item)}" for item in outcome.waiting_for)]
    if outcome.holders and outcome.exit_code == 4:
        lines += ["Holders:", *(f"  {clean(describe_holder(holder))}" for holder in outcome.holders)]
    if outcome.inspect:
        lines += ["Look at:", *(f"  {clean(command)}" for command in outcome.inspect)]
    if outcome.way_back:
        lines += ["If the target can not come up, take the change back:", f"  {clean(outcome.way_back)}"]
    if outcome.resume_command:
        foreign = outcome.node is not None and find_foreign_cordon(outcome.node) is not None  # then uncordoning by hand is right
        warn = outcome.request.command == "apply" and not foreign
        lines += ["Do not uncordon it by hand; go on with:" if warn else "Go on with:", f"  {clean(outcome.resume_command)}"]
    return lines
