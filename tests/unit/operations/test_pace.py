"""A purge rests in proportion to what it took."""

from __future__ import annotations

from datetime import timedelta

import pytest

from memory_service.operations.pace import Pace


class Watch:
    """A monotonic clock that a test moves."""

    seconds = 1_000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.seconds


def test_the_first_time_it_begins_at_once() -> None:
    assert Pace(monotonic=Watch()).rest() == timedelta()


@pytest.mark.parametrize("fails", [False, True])
def test_it_rests_four_times_as_long_as_it_took_however_it_ended(fails: bool) -> None:
    watch = Watch()
    pace = Pace(monotonic=watch)
    try:
        with pace.measured():
            watch.seconds += 10
            if fails:
                raise OSError
    except OSError:
        assert fails
    assert pace.rest() == timedelta(seconds=40)
    watch.seconds += 39
    assert pace.rest() == timedelta(seconds=1)
    watch.seconds += 2
    assert pace.rest() == timedelta()


def test_what_took_no_time_does_not_rest() -> None:
    watch = Watch()
    pace = Pace(monotonic=watch)
    with pace.measured():
        watch.seconds += 0.01
    assert pace.rest() == timedelta()
