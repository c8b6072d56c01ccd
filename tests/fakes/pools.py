"""A pool's words as a table, as people read them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memory_service.domain.candidates import Hits
from memory_service.ports.records import Pool


def hits_of(table: NDArray[np.generic]) -> Hits:
    """Return the cells that are not zero of a table with a row for each row and a column for each term."""
    terms, rows = np.nonzero(table.T)
    return Hits(rows, terms, table[rows, terms].astype(np.float64), table.shape[1])


def term_counts(pool: Pool) -> NDArray[np.float64]:
    """Return how often each term (column) occurs in each row: what `hits_of` takes."""
    table = np.zeros((len(pool.row_ids), pool.hits.width))
    table[pool.hits.rows, pool.hits.terms] = pool.hits.counts
    return table
