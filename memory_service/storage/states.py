"""What changes whenever an owner's rows change: by it a search knows whether the rows that it keeps still hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class HomeState:
    """What changes whenever the turns of a home pair change.

    Numbers of sessions are never given twice and always grow, so how many there are and their sum name the set; in one
    set of sessions, last seqs (`turns`, summed) and index revisions (`vectors`, summed) only grow. Index revisions move
    with late vectors and with turns that are deleted one by one.
    """

    generation: int
    sessions: int
    numbers: int
    turns: int
    vectors: int


@dataclass(frozen=True)
class FactState:
    """What changes when the facts of an owner change."""

    generation: int
    revision: int


class OwnerState(NamedTuple):
    """Both of one owner."""

    facts: FactState
    home: HomeState


COLUMNS = (
    "o.generation, o.revision, COUNT(s.id), CAST(COALESCE(SUM(s.id), 0) AS BIGINT),"
    " CAST(COALESCE(SUM(s.last_seq), 0) AS BIGINT), CAST(COALESCE(SUM(s.index_revision), 0) AS BIGINT)"
)
"""Of `TABLES`, grouped by `o.id`: what `state` takes."""
TABLES = "@owners AS o LEFT JOIN @sessions AS s ON s.home_id = o.id"


def state(columns: tuple[int, ...]) -> OwnerState:
    """Return the state in COLUMNS."""
    generation, revision, sessions, numbers, turns, vectors = columns
    return OwnerState(FactState(generation, revision), HomeState(generation, sessions, numbers, turns, vectors))
