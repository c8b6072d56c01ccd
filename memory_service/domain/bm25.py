"""BM25: how well the words of rows, and of the conversations around them, match those of a query."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memory_service.domain.candidates import Columns, Floats, Talk
from memory_service.domain.weights import Weights


def pool_bm25(pool: Columns, weights: Weights) -> tuple[Floats, Floats]:
    """Return each row's BM25, that of turns smoothed over their conversation, and what of it is not the session's as
    a share of the highest that any text could have for this query.
    """
    size, hits = len(pool.row_ids), pool.hits
    row, term, counts, width = hits.rows, hits.terms, hits.counts, hits.width
    if width == 0:
        return np.zeros(size), np.zeros(size)
    population = max(pool.population, size)
    idf = _idf(population, pool.document_counts.astype(np.float64))
    mean = max(pool.total_length, 1.0) / max(population, 1)
    own = _bm25(row, term, counts, pool.lengths[row].astype(np.float64) / mean, idf, weights.k1, weights.b, size)
    highest = float(idf.sum()) * (weights.k1 + 1)
    if pool.tier == "fact":
        return own, np.minimum(own / highest, 1.0)

    talk = pool.talk
    if talk is None or len(talk.near) < len(weights.neighbours):
        talk = Talk.of(pool.session_ids, pool.seqs, pool.lengths, reach=len(weights.neighbours))
    smoothed = own.copy()
    smoothed[talk.order] += _lent(own[talk.order], talk.near, weights.neighbours)
    normal = np.minimum(smoothed / highest, 1.0)
    count = len(talk.session_lengths)
    if weights.session and count > 1:
        cells = np.bincount(talk.sessions[row] * width + term, counts, count * width)
        totals: Floats = cells.astype(np.float64).reshape(count, width)
        session_idf = _idf(count, (totals > 0).sum(axis=0).astype(np.float64))
        at, which = np.nonzero(totals)
        relative = talk.session_lengths[at]
        whole = _bm25(at, which, totals[at, which], relative, session_idf, weights.k1, weights.session_b, count)
        smoothed = smoothed + (weights.session * whole)[talk.sessions]
    return smoothed, normal


def _idf(population: int, containing: Floats) -> Floats:
    return np.log1p((population - np.minimum(containing, population) + 0.5) / (containing + 0.5))


def _bm25(  # noqa: PLR0917  (columns of one table, and how it is weighed)
    row: NDArray[np.int64],
    term: NDArray[np.int64],
    counts: Floats,
    relative_lengths: Floats,
    idf: Floats,
    k1: float,
    b: float,
    size: int,
) -> Floats:
    """Return BM25 of `size` rows from the cells that are not zero, added up in the order of the cells; the lengths are
    those of the cells' rows.
    """
    cells = idf[term] * counts * (k1 + 1) / (counts + k1 * (1 - b + b * relative_lengths))
    total: Floats = np.bincount(row, cells, size).astype(np.float64, copy=False)
    return total


def _lent(values: Floats, near: Sequence[Floats], shares: Sequence[float]) -> Floats:
    """Return what each turn gets from those around it; `values` are in the order of session and seq."""
    lent = np.zeros(len(values))
    for distance, share in enumerate(shares, start=1):
        if share == 0 or len(values) <= distance:
            continue
        given = share * near[distance - 1]
        lent[distance:] += given * values[:-distance]
        lent[:-distance] += given * values[distance:]
    return lent
