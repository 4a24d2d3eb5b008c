"""README.md against the program: its worked run is a real one, and its tables name what there is."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from kubectl_gpu_transition.cli import read_schema
from kubectl_gpu_transition.modes import MODES
from tests.harness.backend import Backend
from tests.harness.world import World
from tests.readme import README, play, shape, shown_runs


def column(heading: str) -> list[str]:
    """First cells of the tables under a heading, without their back quotes."""
    section = README.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    tables = re.findall(r"(?m)^\|.*\n\|-.*\n((?:\|.*\n)+)", section + "\n")
    return [re.split(r" \| ", row.strip("| "))[0].strip("`") for table in tables for row in table.splitlines()]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH")
def test_the_worked_run_is_what_the_program_prints(backend: Backend, world: World) -> None:
    if backend.name == "sim":  # the README was written on it, and says so nowhere: what is shown is the same on both
        assert {name: shape(text) for name, text in play(world).items()} == {name: shape(text) for name, text in shown_runs().items()}
    else:
        assert play(world).keys() == shown_runs().keys()


def test_the_table_of_checks_has_every_check_in_order() -> None:
    schema = json.loads(read_schema())
    assert column("The checks") == schema["$defs"]["transition"]["properties"]["checks"]["items"]["properties"]["name"]["enum"]


def test_the_table_of_modes_has_every_mode() -> None:
    assert column("The modes") == [mode.value for mode in MODES]


def test_the_table_of_exit_codes_has_every_code() -> None:
    assert column("Exit codes") == [
        str(code) for code in json.loads(read_schema())["$defs"]["transition"]["properties"]["exitCode"]["enum"]
    ]
