"""The NodeFeatureRule as it is in the cluster: what it asks for the node, and who else writes the node's mode labels. Pure.

NFD runs the rules of all objects in the order of their names, and a later one overwrites labels of an earlier one (node-feature-
discovery: pkg/nfd-master/nfd-master.go, processNodeFeatureRule).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kubectl_gpu_transition.facts import Facts, RuleObject
from kubectl_gpu_transition.model import Problem
from kubectl_gpu_transition.modes import LABEL_ACTIVE, LABELS, Mode, find_mode, label_values
from kubectl_gpu_transition.rule import RuleError, object_name

# Flux skips an object with one of these (fluxcd/kustomize-controller: docs/spec/v1/kustomizations.md), whatever the case of the value.
_SKIPPED = {"kustomize.toolkit.fluxcd.io/reconcile": "disabled", "kustomize.toolkit.fluxcd.io/ssa": "ignore"}


def read_name(rule: bytes | Problem | None) -> str | None:
    """The name of the object that a rule file makes, None where that can not be told."""
    if not isinstance(rule, bytes):
        return None
    try:
        return object_name(rule)
    except RuleError:
        return None


def find_object(facts: Facts, name: str) -> RuleObject | Problem | None:
    """The live rule of that name, None where it does not exist, a Problem where the rules could not be read."""
    if isinstance(facts.rules, Problem):
        return facts.rules
    return next((found for found in facts.rules if found.name == name), None)


def find_blocks(found: RuleObject, node: str) -> list[Mapping[str, Any]]:
    """The rules of the object that list the node by an ``In`` list of ``nodename``."""
    return [rule for rule in found.rules if any(node in names for names in _lists(rule.get("matchFeatures")))]


def find_live_mode(facts: Facts, name: str, node: str) -> Mode | Problem | None:
    """The mode that the live rule asks for this node; None where the object does not exist, a Problem where it can not be told."""
    found = find_object(facts, name)
    if found is None or isinstance(found, Problem):
        return found
    blocks = find_blocks(found, node)
    if len(blocks) != 1:
        return Problem(f"the live NodeFeatureRule {name} has {len(blocks)} blocks for {node}")
    labels = blocks[0].get("labels")
    mode = find_mode(str(labels.get(LABEL_ACTIVE))) if isinstance(labels, Mapping) else None
    if mode is None or not isinstance(labels, Mapping) or any(labels.get(key) != value for key, value in label_values(mode).items()):
        return Problem(f"the live NodeFeatureRule {name} does not agree with itself about {node}")
    return mode


def find_missing_rule(facts: Facts, name: str | None, node: str, mode: Mode, ignore_missing: bool) -> list[str]:
    """What condition 7 of spec section 7 lacks in the cluster: the live rule has to ask for the mode. A rule that does not exist is
    lacking unless ``ignore_missing`` (then the tip's rule alone counts)."""
    if name is None:
        return ["the name of the live rule can not be told from the rule at the tip"]
    live = find_live_mode(facts, name, node)
    if live is None:
        return [] if ignore_missing else [f"the live NodeFeatureRule {name} does not exist"]
    if isinstance(live, Problem):
        return [f"the live rule can not be read: {live.message}"]
    return [] if live is mode else [f"the live rule asks for {live.value}: Flux has not applied the tip's yet, or it is being taken back"]


def find_exclusion(found: RuleObject) -> str | None:
    """The annotation that keeps Flux from changing the object, or None."""
    return next(
        (f"{key}: {found.annotations[key]}" for key, value in _SKIPPED.items() if found.annotations.get(key, "").lower() == value), None
    )


def find_other_writers(facts: Facts, name: str, node: str) -> tuple[str, ...] | Problem:
    """Rules beside the node's own block that may write one of its three labels, in words, sorted; ``name`` is the fleet's object."""
    if isinstance(facts.rules, Problem):
        return facts.rules
    found = []
    for one in facts.rules:
        own = find_blocks(one, node) if one.name == name else []
        for rule in one.rules:
            if rule not in own and _writes(rule) and not _excludes(rule, node):
                found.append(f"rule {rule.get('name')!r} of NodeFeatureRule {one.name}")
    return tuple(sorted(found))


def _writes(rule: Mapping[str, Any]) -> bool:
    labels = rule.get("labels")
    templates = " ".join(str(rule.get(key) or "") for key in ("labelsTemplate", "varsTemplate"))
    return any(label in templates or (isinstance(labels, Mapping) and label in labels) for label in LABELS)


def _excludes(rule: Mapping[str, Any], node: str) -> bool:
    """Whether the rule can not match this node: an ``In`` list of nodename leaves it out, in what must match or in every alternative."""
    either = [part for part in rule.get("matchAny") or () if isinstance(part, Mapping)]
    always = any(node not in names for names in _lists(rule.get("matchFeatures")))
    return always or (bool(either) and all(any(node not in names for names in _lists(part.get("matchFeatures"))) for part in either))


def _lists(terms: Any) -> Iterator[list[str]]:
    """The ``In`` lists for ``system.name``'s nodename among these terms, all of which must match."""
    for term in terms if isinstance(terms, list | tuple) else ():
        if isinstance(term, Mapping) and term.get("feature") == "system.name":
            expressions = term.get("matchExpressions")
            match = expressions.get("nodename") if isinstance(expressions, Mapping) else None
            if isinstance(match, Mapping) and match.get("op") == "In" and isinstance(match.get("value"), list | tuple):
                yield [str(name) for name in match["value"]]
