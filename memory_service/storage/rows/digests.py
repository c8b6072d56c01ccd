"""Digests: append-only versions of a session's narrative, each committed together with the window's new start."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from memory_service.ports.records import DigestRow
from memory_service.storage.encoding import micros, moment
from memory_service.storage.rows.turns import HOME
from memory_service.storage.statements import Link, Row

_SELECT = (
    "SELECT d.session_id, d.version, d.summary, d.upto_seq, d.tokens, d.created_at FROM @digests AS d"
    f" WHERE d.owner_id = {HOME} AND d.session_id = :session_id ORDER BY d.version DESC LIMIT :limit"
)


class DigestRows:
    """The port's Digests."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def latest(self, session_id: int) -> DigestRow | None:
        """Return the newest version."""
        found = self._link.row(_SELECT, {"session_id": session_id, "limit": 1})
        return None if found is None else _digest_row(found)

    def list(self, session_id: int, *, limit: int) -> Sequence[DigestRow]:
        """Return kept versions, newest first."""
        return [_digest_row(row) for row in self._link.rows(_SELECT, {"session_id": session_id, "limit": limit})]

    def append(self, digest: DigestRow, *, folded_from: int, keep: int) -> bool:
        """Commit a version and move the window's start; False, and nothing is stored, when somebody else was first."""
        moved = self._link.row(
            "UPDATE @sessions SET folded_seq = :upto, digest_version = :version"
            " WHERE id = :session_id AND folded_seq = :folded_from AND folded_seq <= :upto"
            " AND last_seq >= :upto AND digest_version < :version RETURNING home_id",
            {
                "session_id": digest.session_id,
                "upto": digest.upto_seq,
                "version": digest.version,
                "folded_from": folded_from,
            },
        )
        if moved is None:
            return False
        place = {"owner_id": moved[0], "session_id": digest.session_id}
        self._shrink_window(place, folded_from, digest.upto_seq)
        self._link.run(
            "INSERT INTO @digests (owner_id, session_id, version, upto_seq, tokens, created_at, summary)"
            " VALUES (:owner_id, :session_id, :version, :upto, :tokens, :created_at, :summary)",
            {
                **place,
                "version": digest.version,
                "upto": digest.upto_seq,
                "tokens": digest.tokens,
                "created_at": micros(digest.created_at),
                "summary": digest.summary,
            },
        )
        self._link.run(
            "DELETE FROM @digests WHERE owner_id = :owner_id AND session_id = :session_id AND version <= :oldest",
            {**place, "oldest": digest.version - max(keep, 1)},
        )
        return True

    def expire(self, *, before: datetime, limit: int) -> int:
        """Delete versions made before a time, oldest first; return how many."""
        doomed = self._link.rows(
            "SELECT owner_id, session_id, version FROM @digests WHERE created_at < :before"
            " ORDER BY created_at, session_id, version LIMIT :limit",
            {"before": micros(before), "limit": limit},
        )
        self._link.run_many(
            "DELETE FROM @digests WHERE owner_id = :owner_id AND session_id = :session_id AND version = :version",
            [{"owner_id": row[0], "session_id": row[1], "version": row[2]} for row in doomed],
        )
        return len(doomed)

    def _shrink_window(self, place: dict[str, int], after: int, upto: int) -> None:
        folded = self._link.row(
            "SELECT COUNT(*), CAST(COALESCE(SUM(tokens), 0) AS BIGINT) FROM @turns"
            " WHERE owner_id = :owner_id AND session_id = :session_id AND seq > :after AND seq <= :upto",
            {**place, "after": after, "upto": upto},
        )
        turns, tokens = folded if folded is not None else (0, 0)
        self._link.run(
            "UPDATE @sessions SET window_turns = window_turns - :turns, window_tokens = window_tokens - :tokens"
            " WHERE id = :session_id",
            {"session_id": place["session_id"], "turns": turns, "tokens": tokens},
        )


def _digest_row(found: Row) -> DigestRow:
    return DigestRow(found[0], found[1], found[2], found[3], found[4], moment(found[5]))
