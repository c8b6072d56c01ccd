"""An inverted index of one owner's stems: for each stem the rows that hold it and how often. It holds no text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MIN_TAIL = 4096
"""Postings kept unsorted before they are merged: a search scans them once per term, which takes a few microseconds."""

_STEM_BYTES = 120
"""What a stem costs in the vocabulary, for the cache's bound: a short string and its slot in a dictionary."""


_Postings = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]
"""Stems, rows and counts."""


def lexeme(owner_id: int, stem: str) -> str:
    """Return the word that full-text indexes hold for a stem of an owner: they are entered by owner first."""
    return f"{owner_id}:{stem}"


@dataclass(frozen=True)
class WordsView:
    """The postings at one moment; later additions do not show."""

    vocabulary: dict[str, int]
    offsets: NDArray[np.int64]
    rows: NDArray[np.int32]
    counts: NDArray[np.int32]
    tail_stems: NDArray[np.int64]
    tail_rows: NDArray[np.int32]
    tail_counts: NDArray[np.int32]

    def postings(self, stem: str) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the rows that hold a stem and its count in each, in no particular order."""
        number = self.vocabulary.get(stem)
        if number is None:
            return self.rows[:0], self.counts[:0]
        rows, counts = self.rows[:0], self.counts[:0]
        if number < len(self.offsets) - 1:
            start, end = self.offsets[number], self.offsets[number + 1]
            rows, counts = self.rows[start:end], self.counts[start:end]
        if len(self.tail_stems):
            found = np.flatnonzero(self.tail_stems == number)
            if len(found):
                rows = np.concatenate([rows, self.tail_rows[found]])
                counts = np.concatenate([counts, self.tail_counts[found]])
        return rows, counts


class Words:
    """Postings that grow at the end; rows are numbered by their owner's index."""

    def __init__(self) -> None:
        """Start empty."""
        self._vocabulary: dict[str, int] = {}
        self._sorted = _postings(np.empty(0, np.int64), np.empty(0, np.int64))
        self._offsets = np.zeros(1, np.int64)
        self._tail = self._sorted

    @property
    def nbytes(self) -> int:
        """About how much memory the postings take."""
        arrays = (*self._sorted, *self._tail, self._offsets)
        return sum(array.nbytes for array in arrays) + _STEM_BYTES * len(self._vocabulary)

    def add(self, first_row: int, terms: Sequence[str]) -> None:
        """Add rows `first_row`, `first_row + 1`, ... with their space-joined stems."""
        number = self._vocabulary
        stems = np.array([number.setdefault(stem, len(number)) for stem in " ".join(terms).split()], np.int64)
        sizes = [text.count(" ") + 1 if text else 0 for text in terms]
        rows = np.repeat(np.arange(first_row, first_row + len(terms), dtype=np.int64), sizes)
        added = _postings(stems, rows)
        self._tail = _joined(self._tail, added)
        if len(self._tail[0]) > max(_MIN_TAIL, len(self._sorted[0]) // 4):
            self._merge()

    def view(self) -> WordsView:
        """Return the postings as they are now."""
        _, rows, counts = self._sorted
        return WordsView(self._vocabulary, self._offsets, rows, counts, *self._tail)

    def copy(self) -> Words:
        """Return postings that grow apart from these."""
        other = Words()
        other._vocabulary = dict(self._vocabulary)
        other._sorted, other._offsets, other._tail = self._sorted, self._offsets, self._tail
        return other

    def _merge(self) -> None:
        stems, rows, counts = _joined(self._sorted, self._tail)
        order = np.argsort(stems, kind="stable")
        self._sorted = (stems[order], rows[order], counts[order])
        self._offsets = np.searchsorted(self._sorted[0], np.arange(len(self._vocabulary) + 1)).astype(np.int64)
        self._tail = (stems[:0], rows[:0], counts[:0])


def _postings(stems: NDArray[np.int64], rows: NDArray[np.int64]) -> _Postings:
    keys, counts = np.unique((stems << 32) | rows, return_counts=True)
    return keys >> 32, (keys & 0xFFFFFFFF).astype(np.int32), counts.astype(np.int32)


def _joined(first: _Postings, second: _Postings) -> _Postings:
    return (
        np.concatenate([first[0], second[0]]),
        np.concatenate([first[1], second[1]]),
        np.concatenate([first[2], second[2]]),
    )
