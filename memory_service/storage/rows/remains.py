"""Where bytes of what was erased remain: on Postgres, noted with the erasure, and taken off as tables are written anew.

What was updated, replaced or has expired leaves a dead row like what was deleted. So an erasure notes the partitions
of every owner whom it touches, and not the rows that it took. SQLite's file is written anew as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from memory_service.storage.statements import Link

ANSWERS = ("idempotency",)
FACTS = ("facts", "fact_sources", "fact_history")
EVERY = ("turns", "digests", *FACTS, *ANSWERS)
"""The tables that are split by owner."""
NAMES = ("owners", "principals", "sessions")
"""The tables that say who there is; they are not split."""

_NOTE = "INSERT INTO @unpurged (name, xid) SELECT name, pg_current_xact_id() FROM "
_ONCE = " ON CONFLICT (name, xid) DO NOTHING"
_NOTE_PARTITIONS = (
    f"{_NOTE}(SELECT t.name || '_' || r.number AS name FROM unnest(CAST(:tables AS TEXT[])) AS t (name),"
    " (SELECT number FROM generate_series(0, 15) AS p (number) WHERE EXISTS"
    " (SELECT 1 FROM unnest(CAST(:owners AS BIGINT[])) AS o (id)"
    f" WHERE satisfies_hash_partition(CAST('@turns' AS regclass), 16, p.number, o.id))) AS r) AS n{_ONCE}"
)
"""Every table that is split has the same partitions as `turns`."""


class Remains:
    """Notes, in the transaction that erases, what a purge is to write anew."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def note(self, tables: Sequence[str], owner_ids: Collection[int]) -> None:
        """Note the partitions of these owners, by number, in tables that are split."""
        if self._link.is_postgres:
            self._link.run(_NOTE_PARTITIONS, {"tables": list(tables), "owners": sorted(owner_ids)})

    def note_whole(self, tables: Sequence[str]) -> None:
        """Note tables that are not split."""
        if self._link.is_postgres:
            self._link.run(f"{_NOTE}unnest(CAST(:tables AS TEXT[])) AS t (name){_ONCE}", {"tables": list(tables)})
