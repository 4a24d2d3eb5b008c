"""The annotation: text and value, whose it is, and whose the cordon is (spec section 4)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubectl_gpu_transition.failures import Usage
from kubectl_gpu_transition.model import Transaction
from kubectl_gpu_transition.modes import Mode
from kubectl_gpu_transition.record import (
    BY_LENGTH,
    LIMIT,
    NAME_LENGTH,
    NAMES,
    as_json,
    check_names,
    decode,
    encode,
    find_foreign_cordon,
    has_own_cordon,
    read_claim,
)
from tests.core.builders import (
    ANNOTATION,
    BASE,
    COMMIT,
    HAMI,
    ID,
    VM,
    entry,
    node,
    ours,
    pushing,
    transaction,
)


def test_the_text_is_the_contracts() -> None:
    assert encode(transaction()) == (
        f'{{"v":1,"id":"{ID}","uid":"uid-1","cluster":"eu/dc1","from":"pod-hami","to":"vm-passthrough","phase":"cordoned",'
        f'"base":"{BASE}","commit":null,"started":"2026-05-01T00:00:00Z","by":"Op@laptop","gpuResources":[],"ignoreDraDrivers":[],'
        '"requireAllocatable":false}'
    )
    assert json.loads(encode(pushing()))["commit"] == COMMIT
    assert as_json(pushing()) == json.loads(encode(pushing()))


@given(
    by=st.text(min_size=1, max_size=40),
    names=st.lists(st.text(max_size=20), max_size=4).map(tuple),
    drivers=st.lists(st.text(max_size=20), max_size=4).map(tuple),
    required=st.booleans(),
    commit=st.sampled_from([None, COMMIT, "0" * 64]),
    modes=st.permutations(list(Mode)),
)
def test_what_is_written_is_read_again(
    by: str, names: tuple[str, ...], drivers: tuple[str, ...], required: bool, commit: str | None, modes: list[Mode]
) -> None:
    if any("\ud800" <= sign <= "\udfff" for sign in "".join((by, *names, *drivers))):
        return
    written = transaction(
        by=by,
        gpu_resources=names,
        ignore_dra_drivers=drivers,
        require_allocatable=required,
        commit=commit,
        phase="pushing" if commit else "cordoned",
        source=modes[0],
        target=modes[1],
    )
    assert decode(encode(written)) == written


def changed(**values: Any) -> str:
    """The record with other values; ``...`` removes a key."""
    raw = {**json.loads(encode(pushing())), **values}
    return json.dumps({key: value for key, value in raw.items() if value is not ...})


UNREADABLE = [
    *("", "x", "{", "[]", "null", '"text"', "[" * 100_000, '{"v":1}'),
    *(changed(v=version) for version in (2, 0, "1", 1.0, True, None, ...)),
    *(
        changed(**{key: value})
        for key in ("id", "uid", "cluster", "from", "to", "phase", "base", "started", "by")
        for value in ("", 1, None, ...)
    ),
    changed(**{"from": "pod-x"}),
    changed(**{"from": "vm-passthrough"}),
    changed(phase="waiting"),
    changed(phase="cordoned"),
    changed(commit=None),
    changed(commit=""),
    changed(commit=1),
    changed(commit="main"),
    changed(base="--upload-pack=x"),
    changed(base=BASE.upper()),
    changed(base=BASE + "\n"),
    changed(id=f"{ID}\nGpu-Transition-Id: x"),
    changed(id="x"),
    changed(gpuResources="x"),
    changed(gpuResources=[1]),
    changed(ignoreDraDrivers=[None]),
    changed(requireAllocatable="yes"),
    changed(requireAllocatable=1),
    changed(extra="x" * LIMIT),
    changed(by="\ud800"),
    changed(gpuResources=["\udfff"]),
    changed(by="x" * (LIMIT - len(changed(gpuResources=..., ignoreDraDrivers=...))), gpuResources=..., ignoreDraDrivers=...),
]


@pytest.mark.parametrize("text", UNREADABLE, ids=lambda text: text[:60])
def test_a_text_is_not_readable_as_a_record(text: str) -> None:
    assert decode(text) is None


def test_a_record_without_the_options_has_none() -> None:
    read = decode(changed(gpuResources=..., ignoreDraDrivers=..., requireAllocatable=..., another="key"))
    assert read == pushing()


def test_a_record_beyond_2_kib_is_a_usage_error_and_so_is_one_that_gets_there_with_the_announcement() -> None:
    room = LIMIT - len(encode(transaction(by="x")))
    announced = len(encode(pushing(by="x"))) - len(encode(transaction(by="x")))
    assert announced > 0
    for size, fits in ((room - announced, True), (room - announced + 1, False), (room, False), (room + 1, False)):
        written = transaction(by="x" * (size + 1))
        if fits:
            assert decode(encode(written)) == written
            assert len(encode(pushing(by=written.by)).encode()) == LIMIT
        else:
            with pytest.raises(Usage) as raised:
                encode(written)
            assert raised.value.id == "annotation-too-large"


def test_the_limit_counts_bytes() -> None:
    with pytest.raises(Usage):
        encode(transaction(by="ü" * 900))


def test_names_that_can_not_fit_are_told_from_the_command_line() -> None:
    check_names("eu/dc1", HAMI, VM, tuple(f"vendor.example/gpu-{number}" for number in range(NAMES)))
    with pytest.raises(Usage):
        check_names("eu/dc1", HAMI, VM, tuple(f"{number}" + "n" * (NAME_LENGTH - 1) for number in range(6)))
    assert (NAMES, NAME_LENGTH, BY_LENGTH) == (16, 316, 128)


# ---------------------------------------------------------------- whose it is

DIRECTION = (HAMI, VM)
CLAIMS = [
    pytest.param(None, DIRECTION, "none", id="no annotation"),
    pytest.param(encode(transaction()), DIRECTION, "ours", id="ours"),
    pytest.param(encode(transaction()), None, "ours", id="ours, for a command without a direction"),
    pytest.param(encode(transaction(source=VM, target=HAMI)), None, "ours", id="any direction, for a command without one"),
    pytest.param(encode(transaction(source=VM, target=HAMI)), DIRECTION, "direction", id="another direction"),
    pytest.param(encode(transaction(target=Mode.POD_HAMI_DRA)), DIRECTION, "direction", id="another target"),
    pytest.param(encode(transaction(cluster="eu/dc2")), DIRECTION, "cluster", id="another cluster"),
    pytest.param(encode(transaction(uid="uid-0")), DIRECTION, "uid", id="another node of the name"),
    pytest.param(encode(transaction(uid="uid-0", cluster="x")), DIRECTION, "uid", id="the uid comes first"),
    pytest.param(changed(v=2), DIRECTION, "version", id="another version"),
    pytest.param('{"v":3}', DIRECTION, "version", id="another version that we can not read"),
    pytest.param('{"v":true}', DIRECTION, "unreadable", id="no version"),
    pytest.param('{"v":1}', DIRECTION, "unreadable", id="our version, not readable"),
    pytest.param("", DIRECTION, "unreadable", id="empty"),
    pytest.param("[" * 100_000, DIRECTION, "unreadable", id="too deep"),
]


@pytest.mark.parametrize(("text", "direction", "kind"), CLAIMS)
def test_the_record_on_the_node_is(text: str | None, direction: tuple[Mode, Mode] | None, kind: str) -> None:
    claim = read_claim(node(annotations={} if text is None else {ANNOTATION: text}), "eu/dc1", direction)
    assert (claim.kind, claim.text) == (kind, text or "")
    assert isinstance(claim.transaction, Transaction) == (kind in ("ours", "direction", "cluster", "uid"))


US, THEM = "kubectl-gpu-transition", "kubectl-cordon"
EARLY, LATE = "2026-05-01T00:00:00Z", "2026-05-01T00:00:01Z"
CORDONS = [
    pytest.param(None, None, id="no managedFields say nothing"),
    pytest.param((), None, id="no entry says nothing"),
    pytest.param((entry(US),), None, id="only ours"),
    pytest.param((entry(THEM),), THEM, id="only theirs"),
    pytest.param((entry(THEM, cordons=False),), None, id="theirs for something else"),
    pytest.param((entry(US, EARLY), entry(THEM, LATE)), THEM, id="theirs is newer"),
    pytest.param((entry(US, LATE), entry(THEM, EARLY)), None, id="ours is newer"),
    pytest.param((entry(US, EARLY), entry(THEM, EARLY)), None, id="of the same second"),
    pytest.param((entry("ancient-changes", LATE),), None, id="old entries that were merged"),
    pytest.param((entry("ancient-changes", LATE), entry(US, EARLY)), None, id="old entries beside ours"),
    pytest.param((entry(US, EARLY), entry(US, LATE), entry(THEM, LATE)), None, id="the newest of ours counts"),
    pytest.param((entry(THEM, EARLY), entry("drainer", LATE)), "drainer", id="the newest of theirs is named"),
]


@pytest.mark.parametrize(("managers", "whose"), CORDONS)
def test_the_cordon_is_somebody_elses(managers: Any, whose: str | None) -> None:
    found = find_foreign_cordon(ours(managers=managers))
    assert (found.manager if found else None) == whose
    assert find_foreign_cordon(node(managers=managers)) is None, "a schedulable node has no cordon"
    signed = any(e.cordons and e.manager == US for e in managers or ())
    assert has_own_cordon(ours(managers=managers)) == (signed and whose is None), "unknown is not ours"
    assert not has_own_cordon(node(managers=managers))
