"""Where a page ends: at its rows, or sooner at its text, so that no page takes a process's memory. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from memory_service.contract.limits import MAX_PAGE_CHARS

T = TypeVar("T")
P = TypeVar("P")

ROWS_AT_ONCE = 32
"""Rows that are read together: of the longest ones that there may be, what a small pod has memory for."""


def page(
    read: Callable[[P, int], Sequence[T]],
    after: P,
    *,
    limit: int,
    place: Callable[[T], P],
    chars: Callable[[T], int],
    most_chars: int = MAX_PAGE_CHARS,
) -> tuple[list[T], bool]:
    """Return rows in order and whether more follow; `read` gives rows after a place, at least so many if there are.

    A page ends before the row that is beyond `limit` or `most_chars`, but never before its first row, nor between two
    rows of one place.
    """
    found: list[T] = []
    spent = 0
    while True:
        wanted = min(ROWS_AT_ONCE, limit + 1 - len(found))
        rows = read(after, max(1, wanted))
        for row in rows:
            spent += chars(row)
            is_next = bool(found) and place(row) != place(found[-1])
            if is_next and (len(found) >= limit or spent > most_chars):
                return found, True
            found.append(row)
        if len(rows) < wanted or not rows:
            return found, False
        after = place(rows[-1])
