"""The machine's clock: how long ago a time was that anybody may have written."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from kubectl_gpu_transition.adapters.clock import SystemClock
from kubectl_gpu_transition.adapters.signals import FLAG


def test_seconds_since_a_time() -> None:
    clock = SystemClock(FLAG)
    assert 0 <= (clock.seconds_since(clock.now()) or 0) <= 5
    hour_ago = (datetime.now(timezone.utc) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert 3600 <= (clock.seconds_since(hour_ago) or 0) <= 3605
    assert clock.seconds_since("9999-12-31T23:59:59Z") == 0


@pytest.mark.parametrize("text", ["", "long ago", "2026-05-01T00:00:00", "2026-13-01T00:00:00Z"])
def test_what_is_no_time_has_no_age(text: str) -> None:
    assert SystemClock(FLAG).seconds_since(text) is None
