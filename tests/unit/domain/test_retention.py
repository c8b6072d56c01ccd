"""How long rows are kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from memory_service.domain.retention import cut_off

NOW = datetime(2024, 3, 1, tzinfo=UTC)


def test_without_an_age_nothing_goes() -> None:
    assert cut_off(NOW, None) is None


def test_an_age_gives_the_time_before_which_rows_go() -> None:
    assert cut_off(NOW, 60) == NOW - timedelta(minutes=1)


@pytest.mark.parametrize("age", [1e11, 1e18, 1e300])
def test_an_age_longer_than_history_keeps_everything(age: float) -> None:
    assert cut_off(NOW, age) is None
