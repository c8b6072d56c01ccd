"""How much of a fact's history is kept: its newest lines. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from memory_service.contract.limits import MAX_HISTORY_CHARS, MAX_HISTORY_LINES


def kept(chars: Sequence[int]) -> int:
    """Return how many lines stay, of lines with so many characters of text each, newest first; the newest one always.

    One fact may be changed without end: its history is one answer, and one line of an export.
    """
    spent = 0
    for number, count in enumerate(chars):
        spent += count
        if number >= MAX_HISTORY_LINES or (number and spent > MAX_HISTORY_CHARS):
            return number
    return len(chars)
