"""Cursors give back what they carry, and refuse what no route made."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from memory_service.errors import InvalidRequest
from memory_service.operations.cursors import decode_cursor, encode_cursor, time_of, time_part


def test_a_cursor_gives_back_a_time_to_the_microsecond() -> None:
    moment = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
    micros, number = decode_cursor(encode_cursor(time_part(moment), 7), int, int)
    assert (time_of(micros), number) == (moment, 7)


@pytest.mark.parametrize("micros", [2**61, -(2**61)])
def test_a_time_that_no_calendar_has_is_refused(micros: int) -> None:
    (part,) = decode_cursor(encode_cursor(micros), int)
    with pytest.raises(InvalidRequest, match="next_cursor"):
        time_of(part)
