"""What changes whenever an owner's rows change: by it a search knows whether the rows that it keeps still hold.

Turns are written under their session's row alone, so that conversations of one agent never wait for each other: there
is no counter of a home pair. Each session has the number of the transaction that changed its turns last (`CHANGE`).
Locally writers come one after the other and numbers grow with every change. On Postgres they are transaction ids, and
one with a lower id may commit later: what a snapshot has surely seen are the ids below its oldest running one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple


@dataclass(frozen=True)
class HomeState:
    """What changes whenever the turns of a home pair, or of one session of it, change.

    Equal states are of equal turns. `changed` is the highest number of the sessions, and says nothing while a
    transaction below it may still run: such a state is `unsettled` and equals itself alone. `seen` orders what two
    snapshots have seen; every change below the first of its numbers was seen.
    """

    generation: int
    removals: int
    changed: int
    seen: tuple[int, int, int] = field(compare=False)
    unsettled: object | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Tell an unsettled state from all others."""
        if self.changed >= self.horizon:
            object.__setattr__(self, "unsettled", object())

    @property
    def horizon(self) -> int:
        """The lowest number that a change may have which was not seen."""
        return self.seen[0]

    def of_session(self, changed: int) -> HomeState:
        """Return the state of one session with this number."""
        return replace(self, changed=changed)

    def leads_to(self, later: HomeState) -> bool:
        """Whether that has seen all that this one has, and no session was removed in between."""
        same = (self.generation, self.removals) == (later.generation, later.removals)
        return same and self.seen <= later.seen


@dataclass(frozen=True)
class FactState:
    """What changes when the facts of an owner change."""

    generation: int
    revision: int


class OwnerState(NamedTuple):
    """Both of one owner."""

    facts: FactState
    home: HomeState


CHANGE = (
    "changed = [[pg_current_xact_id()::text::bigint|(SELECT COALESCE(MAX(c.changed), 0) + 1 FROM @sessions AS c"
    " WHERE c.home_id = @sessions.home_id)]]"
)
"""Assigned to each session whose turns, or their vectors, change."""

REAL = (
    "[[changed <= GREATEST(pg_snapshot_xmax(pg_current_snapshot())::text::bigint,"
    " COALESCE(pg_current_xact_id_if_assigned()::text::bigint, 0))|1 = 1]]"
)
"""Holds for numbers of this database; rows that a dump brought from another one may have numbers not given here yet."""

COLUMNS = (
    "o.generation, o.revision, o.removals, COALESCE((SELECT MAX(changed) FROM @sessions WHERE home_id = o.id"
    f" AND {REAL}), 0), [[pg_current_snapshot()::text|'']]"
)
"""Of `@owners AS o`: what `state` takes."""


def state(columns: tuple[int, int, int, int, str]) -> OwnerState:
    """Return the state in COLUMNS."""
    generation, revision, removals, changed, snapshot = columns
    seen = _seen(snapshot) if snapshot else (changed + 1, 0, 0)
    return OwnerState(FactState(generation, revision), HomeState(generation, removals, changed, seen))


def _seen(snapshot: str) -> tuple[int, int, int]:
    """Return numbers that never fall from one snapshot of Postgres to a later one.

    They are the oldest transaction that runs, the first that has not begun, and how few run between them.
    """
    oldest, following, running = snapshot.split(":")
    return int(oldest), int(following), -len(running.split(",")) if running else 0
