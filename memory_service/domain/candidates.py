"""What a ranking chooses from: rows as columns, where the query's words are, and how turns stand to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from memory_service.domain.weights import DEFAULT_WEIGHTS

Floats = NDArray[np.float64]


class Columns(Protocol):
    """Candidates of one tier under one owner key, as columns; `ports.records.Pool` is one, and says what they mean."""

    @property
    def tier(self) -> Literal["fact", "episode"]: ...
    @property
    def row_ids(self) -> NDArray[np.int64]: ...
    @property
    def session_ids(self) -> NDArray[np.int64]: ...
    @property
    def seqs(self) -> NDArray[np.int64]: ...
    @property
    def roles(self) -> NDArray[np.int8]: ...
    @property
    def said_at(self) -> NDArray[np.float64]: ...
    @property
    def lengths(self) -> NDArray[np.float32]: ...
    @property
    def hits(self) -> Hits: ...
    @property
    def cosines(self) -> NDArray[np.float32]: ...
    @property
    def passes(self) -> NDArray[np.bool_]: ...
    @property
    def population(self) -> int: ...
    @property
    def total_length(self) -> float: ...
    @property
    def document_counts(self) -> NDArray[np.int64]: ...
    @property
    def talk(self) -> Talk | None: ...


@dataclass(frozen=True)
class Hits:
    """Where a query's terms occur: cell by cell the row, the number of the term and how often.

    `width` is the number of terms. The cells of a row are in the order of the terms; a row without any has none.
    """

    rows: NDArray[np.int64]
    terms: NDArray[np.int64]
    counts: Floats
    width: int


@dataclass(frozen=True)
class Talk:
    """How turns stand to each other. No query has a part in it, so that it is worked out once for rows that are kept.

    `order` sorts the rows by session and seq. `near` has, for each distance from 1 on, whether a turn in that order and
    the one so many places later are so far apart in one session, as 1 or 0. `sessions` numbers each row's session, and
    `session_lengths` are the sessions' stems over their mean.
    """

    order: slice | NDArray[np.intp]
    near: tuple[Floats, ...]
    sessions: NDArray[np.int64]
    session_lengths: Floats

    @classmethod
    def of(
        cls,
        session_ids: NDArray[np.int64],
        seqs: NDArray[np.int64],
        lengths: NDArray[np.float32],
        *,
        reach: int = len(DEFAULT_WEIGHTS.neighbours),
    ) -> Talk:
        """Work it out, `reach` turns far."""
        order = _conversation_order(session_ids, seqs)
        sessions, seqs = session_ids[order], seqs[order]
        near = tuple(
            ((sessions[distance:] == sessions[:-distance]) & (seqs[distance:] - seqs[:-distance] == distance)).astype(
                np.float64
            )
            for distance in range(1, reach + 1)
        )
        starts = np.concatenate(([True], sessions[1:] != sessions[:-1]))
        numbers = np.empty(len(sessions), np.int64)
        numbers[order] = np.cumsum(starts) - 1
        totals = np.bincount(numbers, lengths).astype(np.float64)
        return cls(order, near, numbers, totals / max(float(totals.mean()), 1e-9))


def _conversation_order(sessions: NDArray[np.int64], seqs: NDArray[np.int64]) -> slice | NDArray[np.intp]:
    """Return what sorts the rows by session and seq."""
    step = sessions[1:] - sessions[:-1]
    if bool(np.all((step > 0) | ((step == 0) & (seqs[1:] > seqs[:-1])))):
        return slice(None)
    return np.lexsort((seqs, sessions))
