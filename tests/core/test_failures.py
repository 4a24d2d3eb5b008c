"""Which exit code and which outcome a failure has, before and after the node is in our hands (spec section 2, design section 6)."""

from __future__ import annotations

import inspect

import pytest

from kubectl_gpu_transition import failures
from kubectl_gpu_transition.failures import (
    Drift,
    EndedElsewhere,
    Expired,
    Failure,
    Forbidden,
    Interrupted,
    LostGuard,
    Malformed,
    Missing,
    NodeGone,
    Refused,
    RefusedByServer,
    RemoteMoved,
    RemoteRejected,
    UnknownOutcome,
    Unreachable,
    Usage,
    exit_code,
    outcome_word,
)

# failure, exit code before, outcome before, outcome from then on; the exit code from then on is 4 for every one of them
TABLE = [
    (Usage, 2, "usage-error", "failed-cordoned"),
    (Refused, 3, "blocked", "failed-cordoned"),
    (Expired, 3, "blocked", "failed-cordoned"),
    (Drift, 3, "blocked", "failed-cordoned"),
    (EndedElsewhere, 3, "blocked", "ended-elsewhere"),
    (Unreachable, 3, "failed-before-cordon", "failed-cordoned"),
    (Forbidden, 3, "failed-before-cordon", "failed-cordoned"),
    (Missing, 3, "failed-before-cordon", "failed-cordoned"),
    (Malformed, 3, "failed-before-cordon", "failed-cordoned"),
    (LostGuard, 3, "failed-before-cordon", "failed-cordoned"),
    (RefusedByServer, 3, "failed-before-cordon", "failed-cordoned"),
    (RemoteMoved, 3, "failed-before-cordon", "failed-cordoned"),
    (RemoteRejected, 3, "failed-before-cordon", "failed-cordoned"),
    (NodeGone, 3, "failed-before-cordon", "failed-cordoned"),
    (UnknownOutcome, 4, "failed-cordoned", "failed-cordoned"),
    (Interrupted, 130, "interrupted", "failed-cordoned"),
]


@pytest.mark.parametrize(("kind", "code", "before", "after"), TABLE)
def test_the_stage_says_what_a_failure_means(kind: type[Failure], code: int, before: str, after: str) -> None:
    error = kind("some-id", "what happened", "what to do")
    assert (error.id, error.message, error.remedy, str(error)) == ("some-id", "what happened", "what to do", "what happened")
    assert (exit_code(error, in_hands=False), outcome_word(error, in_hands=False)) == (code, before)
    assert (exit_code(error, in_hands=True), outcome_word(error, in_hands=True)) == (4, after)


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("y"), type("New", (Failure,), {})("id", "m")])
def test_anything_else_is_a_bug(error: Exception) -> None:
    assert (exit_code(error, in_hands=False), exit_code(error, in_hands=True)) == (1, 4)
    assert outcome_word(error, in_hands=True) == "failed-cordoned"
    if not isinstance(error, Failure):
        assert outcome_word(error, in_hands=False) == "bug"


def test_the_table_has_every_failure() -> None:
    kinds = {kind for _, kind in inspect.getmembers(failures, inspect.isclass) if issubclass(kind, Failure) and kind is not Failure}
    assert kinds == {row[0] for row in TABLE}
