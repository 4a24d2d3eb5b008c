"""Tables of states, each with the check that it stops and what that check has to say about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import pytest

from tests.e2e.expect import Words, assert_blocked, assert_only_read, assert_passes, assert_untouched, look
from tests.harness.world import World


@final
class Options(dict[str, Any]):
    """Options of the program that a state comes with."""


Make = Callable[[World], Any]


@dataclass(frozen=True)
class Row:
    """A state, by what makes it and by options of the program, and the words that the check has for it. No words: the check passes.
    ``beside``: checks that can not but fail with it."""

    make: Make
    message: Words = ()
    remedy: Words = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    beside: tuple[str, ...] = ()


def rows(table: Mapping[str, Row]) -> Any:
    """Each row of the table a test of its own, named by the sentence that is its key."""
    return pytest.mark.parametrize("row", list(table.values()), ids=list(table))


def preview(world: World, row: Row, check: str) -> None:
    """Make the state of the row, and look that the check alone stops a preview, which has only read."""
    made = row.make(world)
    options = {**row.options, **(made if isinstance(made, Options) else {})}
    before = look(world)
    result = world.run("preview", "-o", "json", **options)
    if row.message:
        assert_blocked(result, check, row.message, row.remedy, beside=row.beside)
    else:
        assert_passes(result)
        assert result.check(check)["status"] == "pass"
    assert_only_read(world, before)
    assert_untouched(world, before)


def nothing(_: World) -> None:
    """The usual state."""
