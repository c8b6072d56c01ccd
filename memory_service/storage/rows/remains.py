"""Where bytes of what was erased remain: on Postgres, noted with the erasure, and taken off as tables are written anew.

What was updated, replaced or has expired leaves a dead row like what was deleted. So an erasure notes the partitions
of every owner whom it touches, and not the rows that it took. SQLite's file is written anew as a whole.

A note names the last transaction that an erased row may have died by: the erasure's own, or a later one that was stored
before the erasure had its locks. Once no snapshot is as old as that, a table that is written anew has none of it. A
receipt has a note too, with its erasure's last transaction, and waits for no table that was noted after it.
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

_LAST = (
    "GREATEST(pg_current_xact_id(), CAST(CAST(CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS TEXT) AS BIGINT) - 1"
    " AS TEXT) AS XID8))"
)
"""The last transaction that has ended or is this one; there is no arithmetic of such numbers."""
_NOTE = f"INSERT INTO @unpurged (name, xid) SELECT name, {_LAST} FROM "
_ONCE = " ON CONFLICT (name, xid) DO NOTHING"
_NOTE_PARTITIONS = (
    f"{_NOTE}(SELECT t.name || '_' || r.number AS name FROM unnest(CAST(:tables AS TEXT[])) AS t (name),"
    " (SELECT number FROM generate_series(0, 15) AS p (number) WHERE EXISTS"
    " (SELECT 1 FROM unnest(CAST(:owners AS BIGINT[])) AS o (id)"
    f" WHERE satisfies_hash_partition(CAST('@turns' AS regclass), 16, p.number, o.id))) AS r) AS n{_ONCE}"
)
"""Every table that is split has the same partitions as `turns`."""
_RECEIPT = "receipt "
"""What the notes of receipts begin with, and no table's name."""
_NOTED = "SELECT name FROM @unpurged WHERE name IN [:names]"
_FIRST = (
    f"(SELECT t.xid FROM @unpurged AS t, place WHERE t.name NOT LIKE '{_RECEIPT}%' AND (t.xid >= place.next) = {{}}"
    " ORDER BY t.xid LIMIT 1)"
)
_WAITING = (
    "WITH place AS (SELECT pg_snapshot_xmax(pg_current_snapshot()) AS next),"
    f" first AS (SELECT {_FIRST.format('FALSE')} AS known, {_FIRST.format('TRUE')} AS unknown)"
    " SELECT r.name FROM @unpurged AS r, place, first WHERE r.name IN [:names] AND"
    " (first.unknown <= r.xid OR (first.known <= r.xid AND r.xid < place.next))"
)
"""Numbers that this server has not come to are another server's, as in a restored backup: they wait for one another."""


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

    def note_receipt(self, receipt_id: str) -> None:
        """Note the receipt of all that this transaction has noted."""
        self.note_whole((_RECEIPT + receipt_id,))

    def settled(self, receipt_ids: Collection[str]) -> list[str]:
        """Return the receipts that wait for no table any more."""
        names = {_RECEIPT + receipt_id: receipt_id for receipt_id in receipt_ids}
        noted = {row[0] for row in self._link.rows(_NOTED, {"names": sorted(names)})}
        settled = sorted(noted - {row[0] for row in self._link.rows(_WAITING, {"names": sorted(noted)})})
        return [names[name] for name in settled]

    def drop_receipts(self, receipt_ids: Collection[str]) -> None:
        """Drop the notes of receipts that are done."""
        if self._link.is_postgres:
            names = sorted(_RECEIPT + receipt_id for receipt_id in receipt_ids)
            self._link.run("DELETE FROM @unpurged WHERE name IN [:names]", {"names": names})
