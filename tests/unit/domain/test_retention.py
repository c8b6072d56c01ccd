"""How long rows are kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from memory_service.domain.retention import cut_off, is_expired

NOW = datetime(2024, 3, 1, tzinfo=UTC)


def test_without_an_age_nothing_goes() -> None:
    assert cut_off(NOW, None) is None


def test_an_age_gives_the_time_before_which_rows_go() -> None:
    assert cut_off(NOW, 60) == NOW - timedelta(minutes=1)


@pytest.mark.parametrize("age", [1e11, 1e18, 1e300])
def test_an_age_longer_than_history_keeps_everything(age: float) -> None:
    assert cut_off(NOW, age) is None


def test_a_fact_goes_at_its_own_time_or_when_it_has_not_changed_for_too_long() -> None:
    old, past = NOW - timedelta(days=9), NOW - timedelta(seconds=1)
    assert is_expired(now=NOW, expires_at=past, changed_at=NOW, pinned=False, kept_seconds=None)
    assert is_expired(now=NOW, expires_at=NOW, changed_at=NOW, pinned=False, kept_seconds=None)
    assert is_expired(now=NOW, expires_at=None, changed_at=old, pinned=False, kept_seconds=86_400)
    assert not is_expired(now=NOW, expires_at=NOW + timedelta(1), changed_at=old, pinned=False, kept_seconds=None)
    assert not is_expired(now=NOW, expires_at=None, changed_at=NOW, pinned=False, kept_seconds=86_400)


def test_a_pinned_fact_stays() -> None:
    old = NOW - timedelta(days=9)
    assert not is_expired(now=NOW, expires_at=old, changed_at=old, pinned=True, kept_seconds=60)
