"""A page ends at its rows or at its text, and what it leaves out begins the next one."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from memory_service.domain.pages import page

Row = tuple[int, int]
"""A row's place and its length."""


def all_pages(rows: Sequence[Row], limit: int, most_chars: int) -> list[list[Row]]:
    pages: list[list[Row]] = []
    after, more = 0, True
    while more:
        found, more = page(
            lambda place, count: [row for row in rows if row[0] > place][:count],
            after,
            limit=limit,
            place=lambda row: row[0],
            chars=lambda row: row[1],
            most_chars=most_chars,
        )
        pages.append(found)
        after = found[-1][0] if found else after
    return pages


@given(st.lists(st.integers(0, 50), max_size=90), st.integers(1, 40), st.integers(1, 120))
def test_pages_hold_every_row_once_within_their_rows_and_their_text(
    lengths: list[int], limit: int, most_chars: int
) -> None:
    rows = list(enumerate(lengths, start=1))
    pages = all_pages(rows, limit, most_chars)
    assert [row for found in pages for row in found] == rows
    for found in pages:
        assert len(found) <= limit
        assert len(found) == 1 or sum(length for _, length in found) <= most_chars
    assert all(pages) or not rows


def test_rows_of_one_place_stay_on_one_page() -> None:
    digests = [(1, 5), (1, 5), (1, 5), (2, 5)]
    found, more = page(
        lambda after, _count: [row for row in digests if row[0] > after],
        0,
        limit=2,
        place=lambda row: row[0],
        chars=lambda row: row[1],
        most_chars=8,
    )
    assert (found, more) == (digests[:3], True)
