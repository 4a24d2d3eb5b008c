"""The transaction annotation: text to value and back (spec section 4). Anything that can not be read is not ours."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from kubectl_gpu_transition.failures import Usage
from kubectl_gpu_transition.model import ANNOTATION, FIELD_MANAGER, FieldEntry, NodeView, Transaction
from kubectl_gpu_transition.modes import Mode, find_mode

LIMIT = 2048  # bytes of the annotation's value
BY_LENGTH = 128  # characters of who began it
NAMES = 16  # --gpu-resource names in it
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
NAME_LENGTH = 316  # of one of them: 253 for the domain, "/", and 62 to spare below the API's own limits


def as_json(transaction: Transaction) -> dict[str, Any]:
    """The annotation as data, keys in the contract's order."""
    return {
        "v": 1,
        "id": transaction.id,
        "uid": transaction.uid,
        "cluster": transaction.cluster,
        "from": transaction.source.value,
        "to": transaction.target.value,
        "phase": transaction.phase,
        "base": transaction.base,
        "commit": transaction.commit,
        "started": transaction.started,
        "by": transaction.by,
        "gpuResources": list(transaction.gpu_resources),
        "ignoreDraDrivers": list(transaction.ignore_dra_drivers),
        "requireAllocatable": transaction.require_allocatable,
    }


def _as_text(transaction: Transaction) -> str:
    return json.dumps(as_json(transaction), separators=(",", ":"), ensure_ascii=False)


def encode(transaction: Transaction) -> str:
    """The annotation's value: compact JSON. Raises Usage where it, or what it becomes when the push is announced, is beyond 2 KiB."""
    announced = replace(transaction, phase="pushing", commit=transaction.commit or transaction.base)
    texts = [_as_text(transaction), _as_text(announced)]  # the second must not turn out too long after the cordon
    if max(len(text.encode()) for text in texts) > LIMIT:
        raise Usage("annotation-too-large", f"the transaction does not fit into {LIMIT} bytes", "name fewer or shorter --gpu-resource")
    return texts[0]


def decode(text: str) -> Transaction | None:
    """The transaction of an annotation's value with ``v`` 1, or None where it is not readable as one."""
    raw = _load(text)
    if raw is None or type(raw.get("v")) is not int or raw["v"] != 1 or len(text.encode("utf-8", "surrogatepass")) > LIMIT:
        return None
    words = [raw.get(key) for key in ("id", "uid", "cluster", "from", "to", "phase", "base", "started", "by")]
    commit, gpus, drivers = raw.get("commit"), raw.get("gpuResources", []), raw.get("ignoreDraDrivers", [])
    lists = isinstance(gpus, list) and isinstance(drivers, list) and all(isinstance(name, str) for name in [*gpus, *drivers])
    required = raw.get("requireAllocatable", False)
    if not all(isinstance(word, str) and word for word in words) or not lists or not isinstance(required, bool):
        return None
    source, target = find_mode(raw["from"]), find_mode(raw["to"])
    if source is None or target is None or source is target or raw["phase"] not in ("cordoned", "pushing"):
        return None
    if not (commit is None or isinstance(commit, str)) or (raw["phase"] == "pushing") != bool(commit):
        return None
    # These go into a commit message and to git: nothing but what this program writes there.
    if not _ID.fullmatch(raw["id"]) or not all(_COMMIT.fullmatch(name) for name in (raw["base"], commit) if name):
        return None
    read = Transaction(
        raw["id"],
        raw["uid"],
        raw["cluster"],
        source,
        target,
        raw["phase"],
        raw["base"],
        commit,
        raw["started"],
        raw["by"],
        tuple(gpus),
        tuple(drivers),
        required,
    )
    try:
        encode(read)  # what could not be written again (too long, no text) was not written by this program
    except (Usage, UnicodeEncodeError):
        return None
    return read


@dataclass(frozen=True)
class Claim:
    """What the node's annotation means to a command. ``kind``: ``none``, ``ours``, ``direction``, ``cluster``, ``version``, ``uid`` or
    ``unreadable``. ``text`` is its exact value, which guards every later write."""

    kind: str
    text: str
    transaction: Transaction | None


def check_names(cluster: str, source: Mode, target: Mode, names: tuple[str, ...], drivers: tuple[str, ...] = ()) -> None:
    """Whether names from the command line fit into a record whose other parts are as long as they commonly get. Raises Usage."""
    uid = "0" * 36
    started, by = "2000-01-01T00:00:00Z", "x" * BY_LENGTH
    encode(Transaction(uid, uid, cluster, source, target, "cordoned", "0" * 40, None, started, by, names, drivers))


def _load(text: str) -> dict[str, Any] | None:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return raw if isinstance(raw, dict) else None


def _has_other_version(text: str) -> bool:
    raw = _load(text)
    return raw is not None and type(raw.get("v")) is int and raw["v"] != 1


def read_claim(node: NodeView, cluster: str, direction: tuple[object, object] | None) -> Claim:
    """Whose annotation the node carries. ``direction`` is the command's (from, to), or None for a command that has none (abandon)."""
    text = node.annotations.get(ANNOTATION)
    if text is None:
        return Claim("none", "", None)
    transaction = decode(text)
    if transaction is None:
        return Claim("version" if _has_other_version(text) else "unreadable", text, None)
    if transaction.uid != node.uid:
        return Claim("uid", text, transaction)
    if transaction.cluster != cluster:
        return Claim("cluster", text, transaction)
    if direction is not None and direction != (transaction.source, transaction.target):
        return Claim("direction", text, transaction)
    return Claim("ours", text, transaction)


def has_own_cordon(node: NodeView) -> bool:
    """Whether the managedFields show that this program made the node's cordon, and nobody after it; where they do not tell, it did not."""
    mine = any(entry.cordons and entry.manager == FIELD_MANAGER for entry in node.managers or ())
    return node.unschedulable and mine and find_foreign_cordon(node) is None


def find_foreign_cordon(node: NodeView) -> FieldEntry | None:
    """The managedFields entry which shows that somebody else cordoned after ours was lifted, or None (spec section 4).

    Times are RFC 3339 UTC with seconds as the API server writes them, so their text sorts as they do. ``ancient-changes`` is where
    servers merge old entries and names nobody.
    """
    if not node.unschedulable or node.managers is None:
        return None
    ours = [entry.time for entry in node.managers if entry.cordons and entry.manager == FIELD_MANAGER]
    others = [entry for entry in node.managers if entry.cordons and entry.manager not in (FIELD_MANAGER, "ancient-changes")]
    later = [entry for entry in others if not ours or max(ours) < entry.time]
    return max(later, key=lambda entry: (entry.time, entry.manager)) if later else None
