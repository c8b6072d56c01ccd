"""Conversations: who owns them, where their window starts, and running totals, so that no append counts anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from memory_service.contract.scopes import Scope
from memory_service.domain.owners import Owner
from memory_service.ports.records import OwnerRow, SessionRow
from memory_service.storage.encoding import micros, moment, moment_or_none
from memory_service.storage.rows.owners import READABLE, OwnerKeys, readable
from memory_service.storage.statements import Link, Row

_COLUMNS = (
    "s.id, s.home_id, s.last_seq, s.window_tokens, s.window_turns, s.folded_seq, s.extracted_seq,"
    " s.created_at, s.last_write_at, s.ended_at, s.digest_version, s.fact_scope"
)
_SELECT = f"SELECT {_COLUMNS}, {READABLE} FROM @sessions AS s JOIN @owners AS o ON o.id = s.owner_id"
_LOCK_SESSION = "[[FOR NO KEY UPDATE OF s]]"


def home_of(owner: Owner) -> Owner:
    """Return the private pair that a session-scope owner belongs to."""
    return Owner(Scope.PRIVATE, owner.agent, owner.principal, "", owner.workspace)


class SessionRows:
    """The port's Sessions."""

    def __init__(self, link: Link, owners: OwnerKeys) -> None:
        self._link = link
        self._owners = owners

    def ensure(self, owner: Owner, fact_scope: Scope, now: datetime) -> SessionRow:
        """Return the session of a session-scope owner, made if needed, locked until the transaction ends."""
        owner_id = self._owners.ensure_id(owner)
        home_id = self._owners.ensure_id(home_of(owner))
        found = self._of_owner(owner_id)
        if found is None:
            self._link.run(
                "INSERT INTO @sessions (owner_id, home_id, last_seq, window_tokens, window_turns, folded_seq,"
                " extracted_seq, digest_version, index_revision, fact_scope, created_at, last_write_at)"
                " VALUES (:owner_id, :home_id, 0, 0, 0, 0, 0, 0, 0, :fact_scope, :now, :now)"
                " ON CONFLICT (owner_id) DO NOTHING",
                {"owner_id": owner_id, "home_id": home_id, "fact_scope": fact_scope.value, "now": micros(now)},
            )
            found = self._of_owner(owner_id)
            assert found is not None, "the marks of its erasures are shared, so none can have taken the row"
        row = _session_row(found, owner)
        if row.fact_scope is not fact_scope:
            self._link.run(
                "UPDATE @sessions SET fact_scope = :fact_scope WHERE id = :id",
                {"id": row.id, "fact_scope": fact_scope.value},
            )
            row = replace(row, fact_scope=fact_scope)
        return row

    def is_beyond(self, session: SessionRow, most: int) -> bool:
        """Return whether the pair of a session has more than so many; a store that never had them is not asked."""
        if session.id <= most:
            return False  # Numbers are given in order: no more than this one have been.
        (count,) = self._link.rows(
            "SELECT COUNT(*) FROM (SELECT 1 FROM @sessions WHERE home_id = :home LIMIT :limit) AS counted",
            {"home": session.home_id, "limit": most + 1},
        )
        return int(count[0]) > most

    def find(self, owner: Owner) -> SessionRow | None:
        """Return the session, or None."""
        found = self._link.row(
            f"SELECT {_COLUMNS} FROM @sessions AS s JOIN @owners AS o ON o.id = s.owner_id WHERE o.key = :key",
            {"key": self._owners.key(owner)},
        )
        return None if found is None else _session_row(found, owner)

    def get(self, session_id: int) -> SessionRow | None:
        """Return a session by its number."""
        found = self._link.row(f"{_SELECT} WHERE s.id = :id", {"id": session_id})
        return None if found is None else _readable_session(found)

    def get_many(self, session_ids: Collection[int]) -> Mapping[int, SessionRow]:
        """Return sessions by their numbers."""
        if not session_ids:
            return {}
        found = self._link.rows(f"{_SELECT} WHERE s.id IN [:ids]", {"ids": sorted(session_ids)})
        return {row[0]: _readable_session(row) for row in found}

    def lock(self, session_id: int) -> SessionRow | None:
        """Return a session by its number, held until the transaction ends."""
        found = self._link.row(f"{_SELECT} WHERE s.id = :id {_LOCK_SESSION}", {"id": session_id})
        return None if found is None else _readable_session(found)

    def lock_many(self, owners: Collection[Owner]) -> Mapping[Owner, SessionRow]:
        """Return the sessions of these owners by owner, held until the transaction ends."""
        if not owners:
            return {}
        by_key = {self._owners.key(owner): owner for owner in owners}
        found = self._link.rows(
            f"SELECT {_COLUMNS}, o.key FROM @sessions AS s JOIN @owners AS o ON o.id = s.owner_id"
            f" WHERE o.key IN [:keys] ORDER BY s.id {_LOCK_SESSION}",
            {"keys": sorted(by_key)},
        )
        return {by_key[row[12]]: _session_row(row, by_key[row[12]]) for row in found}

    def list(
        self, homes: Sequence[OwnerRow], *, limit: int, before: tuple[datetime, int] | None
    ) -> Sequence[SessionRow]:
        """Return sessions of these pairs, newest write first."""
        if not homes:
            return []
        where = ""
        parameters: dict[str, Any] = {"homes": [home.id for home in homes], "limit": limit}
        if before is not None:
            where = " AND (s.last_write_at < :before OR (s.last_write_at = :before AND s.id < :before_id))"
            parameters |= {"before": micros(before[0]), "before_id": before[1]}
        found = self._link.rows(
            f"{_SELECT} WHERE s.home_id IN [:homes]{where} ORDER BY s.last_write_at DESC, s.id DESC LIMIT :limit",
            parameters,
        )
        return [_readable_session(row) for row in found]

    def written_since(
        self, homes: Sequence[OwnerRow], moment: datetime, *, after: int, limit: int
    ) -> Sequence[SessionRow]:
        """Return sessions of these pairs that were written to since a moment, by row id, after one."""
        if not homes:
            return []
        found = self._link.rows(
            f"{_SELECT} WHERE s.home_id IN [:homes] AND s.last_write_at >= :moment AND s.id > :after"
            " ORDER BY s.id LIMIT :limit",
            {"homes": [home.id for home in homes], "moment": micros(moment), "after": after, "limit": limit},
        )
        return [_readable_session(row) for row in found]

    def partitions(self, owner: Owner) -> Sequence[SessionRow]:
        """Return the sessions of this session id in every workspace partition of its agent and principal."""
        found = self._link.rows(
            f"{_SELECT} WHERE o.agent = :agent AND o.principal = :principal AND o.session = :session"
            " AND o.scope = 'session' ORDER BY s.id",
            {"agent": owner.agent, "principal": owner.principal, "session": owner.session},
        )
        return [_readable_session(row) for row in found]

    def end(self, session_id: int, now: datetime) -> None:
        """Mark a session as ended."""
        self._link.run("UPDATE @sessions SET ended_at = :now WHERE id = :id", {"id": session_id, "now": micros(now)})

    def advance_extracted(self, session_id: int, *, from_seq: int, to_seq: int) -> bool:
        """Move `extracted_seq` on; False when it no longer is `from_seq`."""
        changed = self._link.run(
            "UPDATE @sessions SET extracted_seq = :to_seq WHERE id = :id AND extracted_seq = :from_seq",
            {"id": session_id, "from_seq": from_seq, "to_seq": to_seq},
        )
        return changed == 1

    def waiting_for_extraction(self, *, idle_before: datetime, limit: int) -> Sequence[SessionRow]:
        """Return sessions that rest with turns to extract and have no queued, running or dead job for it."""
        found = self._link.rows(
            f"{_SELECT} WHERE s.extracted_seq < s.last_seq AND s.last_write_at < :before"
            " AND NOT EXISTS (SELECT 1 FROM @jobs AS j WHERE j.session_id = s.id AND j.kind = 'extract'"
            " AND j.state IN ('queued', 'running', 'dead'))"
            " AND EXISTS (SELECT 1 FROM @turns AS t WHERE t.owner_id = s.home_id AND t.session_id = s.id"
            " AND t.seq > s.extracted_seq)"
            " ORDER BY s.last_write_at, s.id LIMIT :limit",
            {"before": micros(idle_before), "limit": limit},
        )
        return [_readable_session(row) for row in found]

    def waiting_for_index(self, *, limit: int) -> Sequence[SessionRow]:
        """Return sessions that have turns without a vector and no queued, running or dead index_turns job."""
        found = self._link.rows(
            f"{_SELECT} WHERE s.id IN (SELECT DISTINCT t.session_id FROM @turns AS t WHERE t.indexed = 0"
            " AND NOT EXISTS (SELECT 1 FROM @jobs AS j WHERE j.session_id = t.session_id"
            " AND j.kind = 'index_turns' AND j.state IN ('queued', 'running', 'dead')) LIMIT :limit) ORDER BY s.id",
            {"limit": limit},
        )
        return [_readable_session(row) for row in found]

    def _of_owner(self, owner_id: int) -> Row | None:
        return self._link.row(
            f"SELECT {_COLUMNS} FROM @sessions AS s WHERE s.owner_id = :owner_id {_LOCK_SESSION}",
            {"owner_id": owner_id},
        )


def _readable_session(found: Row) -> SessionRow:
    return _session_row(found, readable(found[12:]))


def _session_row(found: Row, owner: Owner) -> SessionRow:
    return SessionRow(
        id=found[0],
        owner=owner,
        home_id=found[1],
        last_seq=found[2],
        window_tokens=found[3],
        window_turns=found[4],
        folded_seq=found[5],
        extracted_seq=found[6],
        created_at=moment(found[7]),
        last_write_at=moment(found[8]),
        ended_at=moment_or_none(found[9]),
        digest_version=found[10],
        fact_scope=Scope(found[11]),
    )
