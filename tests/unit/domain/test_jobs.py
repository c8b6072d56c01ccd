"""When failed work is tried again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from memory_service.domain.jobs import FIRST_DELAY, LONGEST_ASKED_DELAY, LONGEST_DELAY, retry_at

NOW = datetime(2024, 3, 1, tzinfo=UTC)


def delay(failures: int, seed: str = "job", retry_after: timedelta | None = None) -> timedelta:
    at = retry_at(failures=failures, max_failures=1_000, now=NOW, seed=seed, retry_after=retry_after)
    assert at is not None
    return at - NOW


def test_work_that_failed_as_often_as_allowed_is_given_up() -> None:
    assert retry_at(failures=5, max_failures=5, now=NOW, seed="job") is None
    assert retry_at(failures=4, max_failures=5, now=NOW, seed="job") is not None
    assert retry_at(failures=10_000, max_failures=None, now=NOW, seed="job") is not None


@given(st.integers(1, 999), st.text(max_size=20))
def test_a_delay_is_between_a_half_and_the_whole_of_its_doubling(failures: int, seed: str) -> None:
    whole = min(FIRST_DELAY * 2 ** min(failures - 1, 20), LONGEST_DELAY)
    assert whole / 2 <= delay(failures, seed) <= whole


def test_the_same_job_gets_the_same_time_and_others_get_others() -> None:
    assert delay(3, "a") == delay(3, "a")
    assert len({delay(3, f"job{number}") for number in range(50)}) == 50


def test_an_endpoints_own_wait_is_kept_within_the_bound() -> None:
    for asked in (timedelta(seconds=60), timedelta(minutes=50)):
        assert asked <= delay(1, retry_after=asked) <= asked + FIRST_DELAY
    assert LONGEST_ASKED_DELAY <= delay(1, retry_after=timedelta(days=9)) <= LONGEST_ASKED_DELAY + FIRST_DELAY
    assert delay(8, retry_after=timedelta(seconds=1)) == delay(8)


def test_jobs_that_an_endpoint_put_off_together_come_back_one_after_another() -> None:
    assert len({delay(1, f"job{number}", timedelta(minutes=30)) for number in range(50)}) == 50
