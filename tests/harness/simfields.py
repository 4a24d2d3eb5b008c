"""What Kubernetes does to one object, as pure functions: patches, managedFields and selectors.

Each behaviour was tried on kube-apiserver v1.20.2; ``tests/e2e/test_api_conformance.py`` proves that both
servers answer alike. Names of the Go code that is copied are given where there is one.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

Json = dict[str, Any]
Path = tuple[str, ...]
Owner = tuple[str, str, str]


class PatchFailed(Exception):
    """A JSON patch that can not be applied: the server's 422 does not tell why (a failed ``test`` looks like a bad operation)."""


# JSON patch (RFC 6902 as evanphx/json-patch v4 reads it)


def json_patch(document: Json, operations: list[Any]) -> Json:
    """Apply a JSON patch to a copy of `document`; PatchFailed when an operation fails."""
    result = copy.deepcopy(document)
    for operation in operations:
        if not isinstance(operation, dict):
            raise PatchFailed
        _operate(result, operation)
    return result


def _operate(document: Json, operation: Json) -> None:
    kind, value = operation.get("op"), operation.get("value")
    holder, key = _find(document, operation.get("path"))
    match kind:
        case "add":
            _add(holder, key, copy.deepcopy(value))
        case "remove":
            _take(holder, key)
        case "replace":
            # an absent member of a map may be replaced, unlike in RFC 6902
            if isinstance(holder, list):
                _take(holder, key)
            _add(holder, key, copy.deepcopy(value))
        case "test":
            # an absent member of a map equals null; a map that is absent itself has no members
            found = holder.get(key) if isinstance(holder, dict) else holder[_index(holder, key, len(holder) - 1)]
            if not _same(found, value):
                raise PatchFailed
        case "move":
            _add(holder, key, _take(*_find(document, operation.get("from"))))
        case "copy":
            source, name = _find(document, operation.get("from"))
            found = source.get(name) if isinstance(source, dict) else source[_index(source, name, len(source) - 1)]
            _add(holder, key, copy.deepcopy(found))
        case _:
            raise PatchFailed


def _find(document: Json, pointer: Any) -> tuple[Any, str]:
    """The map or list that holds what the pointer names, and the last part of the pointer."""
    if not isinstance(pointer, str) or not pointer.startswith("/"):
        raise PatchFailed
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/")]
    holder: Any = document
    for part in parents:
        if isinstance(holder, dict):
            holder = holder.get(part)
        elif isinstance(holder, list):
            holder = holder[_index(holder, part, len(holder) - 1)]
    if not isinstance(holder, dict | list):
        raise PatchFailed
    return holder, last


def _index(items: list[Any], key: str, most: int) -> int:
    if not re.fullmatch(r"0|[1-9][0-9]*", key) or int(key) > most:
        raise PatchFailed
    return int(key)


def _add(holder: Any, key: str, value: Any) -> None:
    if isinstance(holder, dict):
        holder[key] = value
    else:
        holder.insert(len(holder) if key == "-" else _index(holder, key, len(holder)), value)


def _take(holder: Any, key: str) -> Any:
    if isinstance(holder, list):
        return holder.pop(_index(holder, key, len(holder) - 1))
    if key not in holder:
        raise PatchFailed
    return holder.pop(key)


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


# Merge patch (RFC 7386) and strategic merge patch


def merge_patch(document: Any, patch: Any) -> Any:
    """Apply a merge patch to a copy."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


# Lists that are merged by a key: `patchMergeKey` in k8s.io/api, for the types served here. The same lists are associative in
# managedFields (`x-kubernetes-list-map-keys`), ports there with two keys. Taints and tolerations are atomic.
MERGE_KEYS = {
    "conditions": ("type",),
    "addresses": ("type",),
    "ownerReferences": ("uid",),
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "imagePullSecrets": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "protocol"),
    "hostAliases": ("ip",),
    "podIPs": ("ip",),
    "resourceClaims": ("name",),
}
SETS = {"finalizers"}
ATOMIC_MAPS = {"selector", "labelSelector"}


def strategic_patch(document: Any, patch: Any, field: str = "") -> Any:
    """Apply a strategic merge patch to a copy: lists with a merge key are merged, other lists replaced."""
    if isinstance(patch, list):
        if field in SETS:
            return [*(document or []), *(item for item in patch if item not in (document or []))]
        if field not in MERGE_KEYS:
            return copy.deepcopy(patch)
        return _merge_list(list(document or []), patch, MERGE_KEYS[field][0])
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    if patch.get("$patch") == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [item for item in result.get(name) or [] if item not in value]
        elif key.startswith("$"):
            continue  # $setElementOrder and $retainKeys: the order of what is there stays
        elif value is None or (isinstance(value, dict) and value.get("$patch") == "delete"):
            result.pop(key, None)
        else:
            result[key] = strategic_patch(result.get(key), value, key)
    return result


def _merge_list(items: list[Any], patch: list[Any], key: str) -> list[Any]:
    """New elements go first, as the server puts them (``mergeSliceWithSpecialElements`` and the ordering after it)."""
    added = []
    for element in patch:
        at = next((i for i, item in enumerate(items) if item.get(key) == element.get(key)), None)
        if element.get("$patch") == "delete":
            if at is not None:
                items.pop(at)
        elif at is None:
            added.append(strategic_patch({}, element))
        else:
            items[at] = strategic_patch(items[at], element)
    return added + items


# managedFields (sigs.k8s.io/structured-merge-diff, apiserver/pkg/endpoints/handlers/fieldmanager)

# Never owned by anybody: `stripSet` in stripmeta.go.
_STRIPPED = {("f:apiVersion",), ("f:kind",), ("f:metadata",)} | {
    ("f:metadata", f"f:{name}")
    for name in ("name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation", "resourceVersion")
}
_CONTAINER = object()
MAX_UPDATE_MANAGERS = 10
ANCIENT = "ancient-changes"


def _flatten(value: Any, path: Path, field: str, typed: bool) -> Iterator[tuple[Path, Any]]:
    """Every path of an object with its value, _CONTAINER for what has parts of its own."""
    if isinstance(value, dict) and value and not (typed and field in ATOMIC_MAPS):
        yield path, _CONTAINER
        for name, part in value.items():
            if path != ("f:metadata",) or name != "managedFields":
                yield from _flatten(part, (*path, f"f:{name}"), name, typed)
    elif isinstance(value, list) and value and typed and field in SETS:
        yield path, _CONTAINER
        for part in value:
            yield (*path, f"v:{json.dumps(part)}"), part
    elif isinstance(value, list) and value and typed and field in MERGE_KEYS:
        yield path, _CONTAINER
        for part in value:
            keys = {key: part[key] for key in sorted(MERGE_KEYS[field]) if key in part}
            yield from _flatten(part, (*path, f"k:{json.dumps(keys, separators=(',', ':'))}"), "", typed)
    else:
        yield path, value


def compare(old: Json, new: Json, typed: bool) -> tuple[set[Path], set[Path]]:
    """The paths that were added or changed, and those that were removed (``TypedValue.Compare``)."""
    before = dict(_flatten(old, (), "", typed))
    after = dict(_flatten(new, (), "", typed))
    taken = {path for path, value in after.items() if path not in before or _changed(before[path], value)}
    removed = set(before) - set(after)
    return taken - _STRIPPED - {()}, removed - _STRIPPED - {()}


def _changed(old: Any, new: Any) -> bool:
    return old is not _CONTAINER and new is not _CONTAINER and not _same(old, new)


def decode_fields(tree: Json, path: Path = ()) -> Iterator[Path]:
    """The paths of a fieldsV1 tree."""
    for name, part in tree.items():
        if name == ".":
            yield path
        elif not part:
            yield (*path, name)
        else:
            yield from decode_fields(part, (*path, name))


def encode_fields(paths: Iterable[Path]) -> Json:
    """A fieldsV1 tree; ``.`` stands for a container that is owned along with some of its parts."""
    tree: Json = {}
    for path in sorted(paths):
        at = tree
        for depth, name in enumerate(path):
            if name not in at:
                at[name] = {}
            elif depth < len(path) - 1 and not at[name]:
                at[name]["."] = {}
            at = at[name]
    return tree


def applied_fields(given: Json, typed: bool) -> set[Path]:
    """What a manager owns by applying this object: the leaves and the elements of lists (``ToFieldSet``)."""
    found = {path for path, value in _flatten(given, (), "", typed) if value is not _CONTAINER or "".join(path[-1:]).startswith("k:")}
    return found - _STRIPPED - {()}


def without(obj: Json, paths: Iterable[Path]) -> Json:
    """A copy without these members of maps."""
    result = copy.deepcopy(obj)
    for path in paths:
        holder: Any = result
        for part in path[:-1]:
            holder = holder.get(part[2:]) if isinstance(holder, dict) else None
        if isinstance(holder, dict):
            holder.pop(path[-1][2:], None)
    return result


def owned_fields(obj: Json) -> dict[Owner, tuple[set[Path], str]]:
    """What each manager of an object owns, and since when."""
    entries = obj["metadata"].get("managedFields") or []
    return {
        (entry["manager"], entry["operation"], entry["apiVersion"]): (set(decode_fields(entry["fieldsV1"])), entry["time"])
        for entry in entries
        if entry
    }


def track(old: Json, new: Json, manager: str, api_version: str, now: str, typed: bool, applied: set[Path] | None = None) -> list[Json]:
    """The managedFields of `new` after an update of `old` by `manager` (``Updater.Update`` and what wraps it).

    `old` has no uid on a create: then it is what Go writes of an empty object, which nobody owns. An entry's time moves only when
    its manager gets a field that it did not own. `applied` makes it an apply of these fields.
    """
    given = new["metadata"].get("managedFields")
    owned = {} if given == [{}] else owned_fields(new) or owned_fields(old)
    if not owned and "uid" in old["metadata"] and applied is None:
        return []  # ``skipNonAppliedManager``: what has no managedFields gets none by an update
    taken, removed = compare(old, new, typed)
    me = (manager, "Update" if applied is None else "Apply", api_version)
    mine, since = owned.pop(me, (set[Path](), now))
    result = {who: (paths - taken - removed, time) for who, (paths, time) in owned.items()}
    if applied is None:
        result[me] = ((mine | taken) - removed, since if taken <= mine else now)
    else:
        result[me] = (applied, since if applied == mine and not taken else now)
    kept = {who: (paths, time) for who, (paths, time) in result.items() if paths}
    _cap(kept)
    rank = sorted(kept.items(), key=lambda item: (item[0][1], item[1][1], item[0][0]))
    return [
        {
            "manager": who[0],
            "operation": who[1],
            "apiVersion": who[2],
            "time": time,
            "fieldsType": "FieldsV1",
            "fieldsV1": encode_fields(paths),
        }
        for who, (paths, time) in rank
    ]


def _cap(owned: dict[Owner, tuple[set[Path], str]]) -> None:
    """Merge the oldest Update entries into one while there are too many (``capUpdateManagers``)."""
    updaters = sorted((who for who in owned if who[1] == "Update"), key=lambda who: (owned[who][1], who[0]))
    count = len(updaters)
    first: dict[str, Owner] = {}
    for who in updaters:
        if count <= MAX_UPDATE_MANAGERS:
            return
        version = who[2]
        bucket = (ANCIENT, "Update", version)
        if version not in first:
            first[version] = who
            continue
        if bucket not in owned:
            owned[bucket] = owned.pop(first[version])
        paths, time = owned.pop(who)
        owned[bucket] = (owned[bucket][0] | paths, time)
        count -= 1


# Selectors


Selector = Callable[[Mapping[str, str]], bool]


class BadSelector(Exception):
    """A selector that can not be parsed; the message is the server's."""


def field_selector(text: str, known: Iterable[str]) -> list[tuple[str, str, bool]]:
    """The terms of a field selector: field, value, whether it must be equal (else different)."""
    terms = []
    for part in filter(None, text.split(",")):
        found = re.fullmatch(r"([^=!]*)(==|!=|=)(.*)", part)
        if not found:
            raise BadSelector(f"invalid selector: '{text}'; can't understand '{part}'")
        if found[1] not in known:
            raise BadSelector(f"field label not supported: {found[1]}")
        terms.append((found[1], found[3], found[2] != "!="))
    return terms


_TERM = re.compile(
    r"\s*(?:(?P<key>[^\s,=!<>()]+)\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)"
    r"|(?P<absent>!)\s*(?P<nokey>[^\s,=!<>()]+)"
    r"|(?P<ekey>[^\s,=!<>()]+)\s*(?:(?P<op>==|=|!=|<|>)\s*(?P<value>[^\s,=!<>()]*))?)\s*(?:,|$)"
)


def label_selector(text: str) -> Selector:
    """A predicate on labels for a selector as in ``labelSelector=`` (equality, sets, existence, order)."""
    terms: list[Selector] = []
    at = 0
    while at < len(text):
        found = _TERM.match(text, at)
        if not found:
            raise BadSelector(f"unable to parse requirement: {text[at:]}")
        terms.append(_requirement(found))
        at = found.end()
    return lambda labels: all(term(labels) for term in terms)


def _requirement(found: re.Match[str]) -> Selector:
    key = found["key"] or found["nokey"] or found["ekey"]
    if found["set"]:
        values = {value.strip() for value in found["values"].split(",")}
        if found["set"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found["absent"]:
        return lambda labels: key not in labels
    value = found["value"]
    match found["op"]:
        case None:
            return lambda labels: key in labels
        case "!=":
            return lambda labels: labels.get(key) != value
        case "<" | ">" as op:
            return lambda labels: _orders(labels.get(key), op, value)
        case _:
            return lambda labels: labels.get(key) == value


def _orders(label: str | None, op: str, bound: str) -> bool:
    if label is None or not label.isdecimal():
        return False
    return int(label) > int(bound) if op == ">" else int(label) < int(bound)
