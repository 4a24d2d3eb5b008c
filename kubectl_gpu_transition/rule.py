"""The rule edit: the bytes of a NodeFeatureRule in, the same bytes with four scalars changed out, or a refusal with its line.

Source: contract section 8; the generated layout is in the field facts, 1.4.

- *Why bytes.* People review this file. A library that loads and dumps YAML moves quotes, comments and line ends, and the diff of
  one node becomes the diff of a fleet. Here the parser only says *where* the four scalars are; they are replaced in the text.
- *Why not one big parse.* At 2,650 nodes that takes more than ten seconds. A block that is character for character what the
  generator writes, and agrees with itself, is recognised by one regular expression; runs of such blocks are cut out, each for a
  one-line stand-in. What is left (the header, this node's block, whatever a person wrote) is parsed as YAML.
- *Why that can not be fooled.* What looks like a block may stand in a literal scalar or in another list. So each stand-in must
  come back from the parser as an item of ``/spec/rules``, exactly where it was put; there, it opens and closes what the block
  does: the block's lines are all deeper than its dash, and what follows is not (the expression looks ahead for that). A run
  whose stand-in does not come back is parsed as the text that it is.
- *Why it is believed.* The result is read again from its bytes: its block must equal the RFC 6902 patch applied to the block
  before, and all other characters must be the old ones.

It must never guess: what is ambiguous, or what two YAML readers could take differently, is refused. It must never return an edit
that it has not read back, touch a file, or look at the clock.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, NamedTuple

import jsonpatch
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kubectl_gpu_transition.modes import LABEL_ACTIVE, LABEL_CONFIG, LABEL_EXPECTED, LABELS, MODES, Mode, find_mode, label_values

_LIMIT = 3 * 1024 * 1024  # bytes; twice what one Kubernetes object can hold
_DEPTH = 64  # levels of nesting; a rule has eight
_STAND_IN = "    - x\n"
_NAME = r"[a-z0-9][a-z0-9.-]{0,252}"
_FILLING = r"(?: *(?:#[^\n]*)?\r?\n)*"  # blank lines and comments
_LAYOUT = rf"""
    - name: (?P<node>{_NAME})-(?P<mode>{"|".join(mode.value for mode in Mode)})
      labels:
        {re.escape(LABEL_ACTIVE)}: (?P=mode)
        {re.escape(LABEL_EXPECTED)}: (?P=mode)
        {re.escape(LABEL_CONFIG)}: (?P<config>[a-z-]+)
      matchFeatures:
        - feature: system\.name
          matchExpressions:
            nodename:
              op: In
              value: \["(?P=node)"\]
        - feature: pci\.device
          matchExpressions:
            vendor:
              op: In
              value: \["10de"\]
            class:
              op: In
              value: \["0300", "0302"\]""".lstrip("\n").replace("\n", r"\r?\n")
# A block ends here only if what follows is no deeper than its dash.
_GENERATED = re.compile(rf"(?m)^{_LAYOUT}(?:\r?\n|\Z)(?={_FILLING}(?: {{0,4}}[^ #\r\n]| *(?:#[^\n]*)?\Z))")
_BETWEEN = re.compile(_FILLING)
_PLAIN = re.compile("[\n -~]*")  # what nearly all files are made of, told quickly
# A tab outside comments, a CR alone, what is not printable, a line break to some readers only (NEL, LS, PS), a byte order mark.
_FOREIGN = re.compile("(?m)^[^#\t\n]*\t|\r(?!\n)|[^\t\n\r -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_JSON_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq")}
# The parser and its constructors let all of these through on bad input.
_PARSER_ERRORS = (YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, AssertionError, RecursionError)
_TEXT = "tag:yaml.org,2002:str"
_OLD_BOOLEANS = {"y", "n", "yes", "no", "on", "off"}
_FEATURES = {"system.name": ("nodename",), "pci.device": ("vendor", "class")}


class RuleError(Exception):
    """The rule can not be read or edited, and nothing was changed.

    ``kind``: absent, duplicate, shape, drift, encoding, documents, yaml or other-writer. ``line`` counts line feeds from 1, None
    where no line is to blame. ``message`` starts with the line where there is one.
    """

    def __init__(self, kind: str, message: str, line: int | None = None) -> None:
        self.kind, self.line = kind, line
        self.message = message if line is None else f"line {line}: {message}"
        super().__init__(self.message)


@dataclass(frozen=True)
class Block:
    """A node's block: the rule's name, its mode, its index in ``/spec/rules`` (from 0) and the line that it starts on (from 1)."""

    node: str
    name: str
    mode: Mode
    index: int
    line: int


@dataclass(frozen=True)
class Edit:
    """A checked edit: the file before and after, the RFC 6902 patch from the document's root, a unified diff, the block before."""

    before: bytes
    after: bytes
    patch: tuple[Mapping[str, object], ...]
    diff: str
    block: Block


def find_block(data: bytes, node: str) -> Block:
    """The one block of exactly this node, of the generated shape and agreeing with itself; else RuleError.

    Whether another rule writes this node's labels is not asked here but before an edit: what is in force stays readable.
    """
    return _Document(data, node).locate(node)[0]


def read_block(data: bytes, node: str) -> object:
    """The value of the node's block, as JSON would have it. Raises RuleError as ``find_block`` does."""
    return _Document(data, node).locate(node)[1]


def edit_block(data: bytes, node: str, source: Mode, target: Mode, path: str) -> Edit:
    """Move the node's block from ``source`` to ``target``; ``path`` is the file's path in the repository, for the diff.

    Raises RuleError as ``find_block`` does, ``drift`` for a block that is not in ``source``, and ``other-writer`` for another rule of
    the file that may write the node's labels: one whose ``nodename`` does not exclude the node by an ``In`` list (contract section 3).
    """
    document = _Document(data, node)
    block, value, spans = document.locate(node)
    if target is source or MODES[target].refused:
        raise RuleError("shape", f"a rule can not be moved from {source.value} to {target.value}", block.line)
    if block.mode is not source:
        raise RuleError("drift", f"the block of {node} is in mode {block.mode.value}, not {source.value}", block.line)
    writer = document.other_writer(block)
    if writer is not None:
        raise RuleError("other-writer", f"this rule may write the mode labels of node {node} as well", writer)

    keys = ("name", *("labels/" + label.replace("~", "~0").replace("/", "~1") for label in LABELS))
    old, new = ((f"{node}-{mode.value}", *(label_values(mode)[label] for label in LABELS)) for mode in (source, target))
    patch = tuple(
        {"op": op, "path": f"/spec/rules/{block.index}/{key}", "value": value}
        for op, values in (("test", old), ("replace", new))
        for key, value in zip(keys, values, strict=True)
    )
    after = _replace(document.text, spans, [f"{quote}{text}{quote}" for (_, _, quote), text in zip(spans, new, strict=True)])

    # A mapping with the index as its key stands for the list, so that the patch is applied as it is shown.
    wanted = jsonpatch.apply_patch({"spec": {"rules": {str(block.index): value}}}, patch)["spec"]["rules"][str(block.index)]
    moved, found, moved_spans = _Document(after.encode(), node).locate(node)
    if (
        moved != Block(node, new[0], target, block.index, block.line)
        or found != wanted
        or _replace(after, moved_spans, [document.text[start:end] for start, end, _ in spans]) != document.text
    ):
        raise RuleError("shape", f"the edited block of node {node} does not read back as the patch says", block.line)
    return Edit(data, after.encode(), patch, _diff(document.text, after, path), block)


def list_blocks(data: bytes) -> tuple[tuple[str, str], ...]:
    """Node and mode of each block that can be told, in the file's order. Raises RuleError if the file can not be read.

    For listings: a mode may be unknown or refused, a node may come twice; ``drift`` is the mode of a block that contradicts itself.
    """
    document = _Document(data, None)
    found = list(document.generated)
    for item in document.items:
        name, *labels = (_said(_entry(item.node, *path)) for path in (["name"], *(["labels", label] for label in LABELS)))
        mode = find_mode(str(labels[0]))
        agrees = labels == list(label_values(mode).values()) if mode else labels[0] == labels[1]
        for node in (_said(part) for op, parts in _nodenames(*_terms(item.node)) if op == "In" for part in parts):
            if node and labels[0]:
                found.append((item.at, node, labels[0] if agrees and name == f"{node}-{labels[0]}" else "drift"))
    return tuple((node, mode) for _, node, mode in sorted(found, key=lambda entry: entry[0]))


def object_name(data: bytes) -> str:
    """``metadata.name`` of the NodeFeatureRule. Raises RuleError, ``shape`` where there is none."""
    name = _said(_entry(_Document(data, None).root, "metadata", "name"))
    if not name:
        raise RuleError("shape", "the NodeFeatureRule has no metadata.name")
    return name


class _Item(NamedTuple):
    """A rule that was parsed: its index in ``/spec/rules``, and itself as node and as value."""

    at: int
    node: Node
    value: object


class _Document:
    """A rule file that was read. ``items`` are the rules that were parsed, among them each that is about the node ``keep``;
    ``generated`` those that were recognised: index, node, mode. Places (``mark.index``) are places in ``left``, the text in which
    stand-ins replace runs of recognised blocks.
    """

    def __init__(self, data: bytes, keep: str | None) -> None:
        self.text = _decode(data)
        blocks = [
            block
            for block in _GENERATED.finditer(self.text)
            if block["node"] != keep and block["config"] == MODES[Mode(block["mode"])].config
        ]
        while True:
            runs = self._cut(blocks)
            self.root, value = self._parse()
            self.rules = _entry(self.root, "spec", "rules")
            places = {node.start_mark.index for node in _parts(self.rules)}
            confirmed = [block for at, run in runs.items() if at in places for block in run]
            if len(confirmed) == len(blocks):
                break
            blocks = confirmed  # fewer each time round, so this ends
        if [_said(_entry(self.root, key)) for key in ("apiVersion", "kind")] != ["nfd.k8s-sigs.io/v1alpha1", "NodeFeatureRule"]:
            raise RuleError("shape", "not a NodeFeatureRule of nfd.k8s-sigs.io/v1alpha1", self._line(self.root))
        # No value at all is what the generator writes for no nodes.
        if self.rules is None or not isinstance(value["spec"]["rules"], list | None):
            raise RuleError("shape", "spec.rules is not a list", self._line(self.rules or self.root))
        self.items: list[_Item] = []
        self.generated: list[tuple[int, str, str]] = []
        at = 0
        for node, item in zip(_parts(self.rules), value["spec"]["rules"] or (), strict=True):
            run = runs.get(node.start_mark.index, ())
            self.generated += [(at + offset, block["node"], block["mode"]) for offset, block in enumerate(run)]
            if not run:
                self.items.append(_Item(at, node, item))
            at += len(run) or 1

    def locate(self, node: str) -> tuple[Block, object, list[tuple[int, int, str]]]:
        """The node's block, its value, and its four scalars: start and end in the text, and the quote. Raises RuleError."""
        naming = [
            (item, op) for item in self.items for op, names in _nodenames(*_terms(item.node)) if any(name.value == node for name in names)
        ]
        # Another operator makes a block this node's only if no list does: a rule for all but this node is not its block.
        found = {item.at: item for item, op in naming if op == "In"} or {item.at: item for item, _ in naming}
        if not found or not re.fullmatch(_NAME, node):
            for item in self.items:
                if _said(_entry(item.node, "name")) in [f"{node}-{mode.value}" for mode in Mode]:
                    raise RuleError("drift", f"the block named after node {node} does not list it", self._line(item.node))
            raise RuleError("absent", f"no block lists node {node}")
        item, *others = found.values()
        line = self._line(item.node)
        if others:
            raise RuleError("duplicate", f"node {node} is in another block already, on line {line}", self._line(others[0].node))
        scalars = self._check_shape(item.node, node)
        name, *labels = (scalar.value for scalar in scalars)
        mode = find_mode(labels[0])
        if mode is None or name != f"{node}-{mode.value}" or labels != list(label_values(mode).values()):
            why = "does not agree with itself" if mode else "has a mode that is not known"
            says = ", ".join(f"{key} {text}" for key, text in zip(("name", *LABELS), (name, *labels), strict=True))
            raise RuleError("drift", f"the block of node {node} {why}: {says}", line)
        if MODES[mode].refused:
            raise RuleError("shape", f"mode {mode.value} is not supported: {MODES[mode].refused}", line)
        return Block(node, name, mode, item.at, line), item.value, [self._span(scalar) for scalar in scalars]

    def other_writer(self, block: Block) -> int | None:
        """The line of another rule that may write the labels of the block's node."""
        for item in self.items:
            labels, *templates = (_entry(item.node, key) for key in ("labels", "labelsTemplate", "varsTemplate"))
            written = [key.value for key, _ in labels.value] if isinstance(labels, MappingNode) else []
            writes = any(label in place for label in LABELS for place in (written, *(_said(text) or "" for text in templates)))
            always, *either = (_excludes(terms, block.node) for terms in _terms(item.node))  # one of the latter is enough
            if writes and item.at != block.index and not always and not (either and all(either)):
                return self._line(item.node)
        return None

    def _cut(self, blocks: Sequence[re.Match[str]]) -> dict[int, list[re.Match[str]]]:
        """Replace these blocks, those with only comments between them as one run; returns the runs by their stand-in's place."""
        groups: list[list[re.Match[str]]] = []
        for block in blocks:
            if groups and _BETWEEN.fullmatch(self.text, groups[-1][-1].end(), block.start()):
                groups[-1].append(block)
            else:
                groups.append([block])
        self.left, self.gaps, runs = "", [(0, 0)], {}  # gaps: where what is left starts, in left and in text
        for group in groups:
            self.left += self.text[self.gaps[-1][1] : group[0].start()] + _STAND_IN
            self.gaps.append((len(self.left), group[-1].end()))
            runs[len(self.left) - len("x\n")] = group
        self.left += self.text[self.gaps[-1][1] :]
        return runs

    def _origin(self, place: int) -> int:
        """The place in the text of a place in ``left``."""
        left, text = self.gaps[bisect_right(self.gaps, (place, len(self.text))) - 1]
        return text + place - left

    def _line(self, at: Node | int) -> int:
        return self.text.count("\n", 0, self._origin(at if isinstance(at, int) else at.start_mark.index)) + 1

    def _parse(self) -> tuple[Node, Any]:
        """``left`` as nodes (for their places) and as values. Raises RuleError for whatever the parser does not like."""
        yaml = YAML(typ="safe", pure=True)
        yaml.max_depth = _DEPTH
        yaml.composer.warn_double_anchors = False
        at = 0
        try:
            root = yaml.compose(self.left)
            if root is None:
                raise RuleError("shape", "the rule file is empty")
            for visits, node in enumerate(_walk(root)):
                at = node.start_mark.index
                if visits > len(self.left) + 16:  # a node takes a character at least, if there are no aliases
                    raise RuleError("yaml", "aliases that multiply, or that lead back to themselves", self._line(at))
                if node.tag not in _JSON_TAGS:  # merge keys can multiply too; sets and the like are no JSON
                    raise RuleError("yaml", "a merge key, or a tag that is not of JSON", self._line(at))
                if isinstance(node, ScalarNode):
                    yaml.constructor.construct_object(node)  # here its line is still known
            return root, yaml.constructor.construct_document(root)
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            at = at if mark is None else mark.index
            if error.context == "expected a single document in the stream":
                raise RuleError("documents", "a second document starts here", self._line(at)) from error
            raise RuleError("yaml", f"not readable as YAML: {error.problem or error.context}", self._line(at)) from error
        except _PARSER_ERRORS as error:
            raise RuleError("yaml", f"not readable as YAML: {error}", self._line(at)) from error

    def _check_shape(self, item: Node, node: str) -> list[ScalarNode]:
        """The four scalars of a block of the generated shape, in any quotes, layout and key order. Raises RuleError."""
        for part in (self.root, _entry(self.root, "spec"), self.rules, *_walk(item)):
            # The place of an anchored or tagged node is that of the anchor or tag; an alias gives the node that it stands for.
            if part is not None and self.left.startswith(("&", "!"), part.start_mark.index):
                raise self._refuse(part, "an anchor, an alias or a tag")
        fields = self._fields(item, ("name", "labels", "matchFeatures"))
        labels = self._fields(fields["labels"], LABELS)
        expected = dict(_FEATURES)
        for term in self._list(fields["matchFeatures"]):
            parts = self._fields(term, ("feature", "matchExpressions"))
            attributes = expected.pop(self._text(parts["feature"]).value, None)
            if attributes is None:
                raise self._refuse(parts["feature"], "a feature that the generator does not write, or not twice")
            for attribute, match in self._fields(parts["matchExpressions"], attributes, 1).items():
                test = self._fields(match, ("op", "value"))
                if self._text(test["op"]).value != "In":
                    raise self._refuse(test["op"], "an operator other than In")
                values = [self._text(value).value for value in self._list(test["value"])]
                if attribute == "nodename" and values != [node]:
                    raise self._refuse(test["value"], f"it lists more than node {node}")
        return [self._text(scalar) for scalar in (fields["name"], *(labels[label] for label in LABELS))]

    def _refuse(self, node: Node, why: str) -> RuleError:
        return RuleError("shape", f"the block is not of the generated shape: {why}", self._line(node))

    def _fields(self, node: Node, keys: tuple[str, ...], least: int = 0) -> dict[str, Node]:
        """The values of a mapping that has these keys and no others; ``least`` of them are enough, by default all."""
        fields = {str(key.value): (key, value) for key, value in node.value} if isinstance(node, MappingNode) else {}
        for name, (key, _) in fields.items():
            if name not in keys:
                raise self._refuse(key, f"it has {name}")
        if len(fields) < (least or len(keys)):
            raise self._refuse(node, f"it has no {', '.join(key for key in keys if key not in fields)}")
        return {name: value for name, (_, value) in fields.items()}

    def _list(self, node: Node) -> list[Node]:
        if not isinstance(node, SequenceNode):
            raise self._refuse(node, "something else where a list should be")
        return _parts(node)

    def _text(self, node: Node) -> ScalarNode:
        # The cluster's reader knows the truth values of YAML 1.1, ruamel those of 1.2.
        if not isinstance(node, ScalarNode) or node.tag != _TEXT or (not node.style and node.value.lower() in _OLD_BOOLEANS):
            raise self._refuse(node, "something else where text should be")
        return node

    def _span(self, node: ScalarNode) -> tuple[int, int, str]:
        start, end = self._origin(node.start_mark.index), self._origin(node.end_mark.index)
        if "\n" in self.text[start:end]:  # every literal and folded scalar is, so that the style is a quote or none
            raise self._refuse(node, "a value over several lines")
        return start, end, node.style or ""


def _decode(data: bytes) -> str:
    """The text, if it has only characters and line ends that all YAML readers take alike; the line of the first other one."""
    if len(data) > _LIMIT:
        raise RuleError("shape", f"the rule file has {len(data)} bytes, more than {_LIMIT}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RuleError("encoding", "not UTF-8", data.count(b"\n", 0, error.start) + 1) from error
    foreign = None if _PLAIN.fullmatch(text) else _FOREIGN.search(text, 1 if text.startswith("\ufeff") else 0)
    if foreign:
        line = text.count("\n", 0, foreign.end() - 1) + 1
        raise RuleError("encoding", f"the character U+{ord(foreign.group()[-1]):04X} has no place here", line)
    return text


def _walk(root: Node) -> Iterator[Node]:
    """Each node below and with ``root``, once for each way that leads to it: aliases are followed."""
    todo = [root]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, MappingNode):
            todo += (part for pair in node.value for part in pair)
        elif isinstance(node, SequenceNode):
            todo += node.value


def _entry(node: Node | None, *keys: str) -> Node | None:
    """The value at the end of these keys, if all the way is mappings."""
    for key in keys:
        node = next((value for name, value in node.value if name.value == key), None) if isinstance(node, MappingNode) else None
    return node


def _parts(node: Node | None) -> list[Node]:
    return list(node.value) if isinstance(node, SequenceNode) else []


def _said(node: Node | None) -> str | None:
    return str(node.value) if isinstance(node, ScalarNode) and node.tag == _TEXT else None


def _terms(rule: Node) -> list[Node | None]:
    """A rule's ``matchFeatures``, then that of each alternative of its ``matchAny``."""
    return [_entry(part, "matchFeatures") for part in (rule, *_parts(_entry(rule, "matchAny")))]


def _nodenames(*terms: Node | None) -> Iterator[tuple[str | None, list[Node]]]:
    """Operator and values of each match on the node's name in these ``matchFeatures``; no operator where there is no list."""
    for term in chain.from_iterable(map(_parts, terms)):
        value = _entry(term, "matchExpressions", "nodename", "value")
        if value is not None and _said(_entry(term, "feature")) == "system.name":
            op = _said(_entry(term, "matchExpressions", "nodename", "op"))
            yield (op, _parts(value)) if isinstance(value, SequenceNode) else (None, [value])


def _excludes(terms: Node | None, node: str) -> bool:
    """Whether an ``In`` list of these terms, which must all match, leaves the node out."""
    lists = [names for op, names in _nodenames(terms) if op == "In" and names]
    return any(all(_said(name) not in (None, node) for name in names) for names in lists)


def _replace(text: str, spans: Sequence[tuple[int, int, str]], values: Sequence[str]) -> str:
    pieces, rest = [], 0
    for (start, end, _), value in sorted(zip(spans, values, strict=True)):
        pieces += [text[rest:start], value]
        rest = end
    return "".join((*pieces, text[rest:]))


def _diff(before: str, after: str, path: str) -> str:
    """A unified diff of texts that differ within lines only, as one hunk: looking for more would take longer than the edit."""
    old, new = before.split("\n"), after.split("\n")
    changed = [number for number, line in enumerate(old) if line != new[number]]
    first, last = max(changed[0] - 3, 0), min(changed[-1] + 4, len(old) - (not old[-1]))
    hunk = []
    for same, numbers in groupby(range(first, last), lambda number: old[number] == new[number]):
        block = list(numbers)
        for sign, lines in ((" ", old),) if same else (("-", old), ("+", new)):
            hunk += [f"{sign}{lines[n]}\n" + ("\\ No newline at end of file\n" if n == len(old) - 1 else "") for n in block]
    span = f"{first + 1},{last - first}"
    return f"--- a/{path}\n+++ b/{path}\n@@ -{span} +{span} @@\n" + "".join(hunk)
