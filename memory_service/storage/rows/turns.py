"""Turns as they were said. A row carries its stems and, once indexed, its vector."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from memory_service.ports.records import ROLES, Episode, OwnerRow, SessionRow, TurnDraft, TurnRow, Vector
from memory_service.storage.encoding import dump_parts, join_terms, load_parts, micros, moment
from memory_service.storage.statements import LOCK, Link, Row
from memory_service.storage.states import CHANGE

COLUMNS = (
    "t.id, t.session_id, t.seq, t.role, COALESCE(t.content, t.text), t.text, t.parts, t.name, t.said_at,"
    " t.tokens, t.client_id, t.infer"
)
INSERT = (
    "INSERT INTO @turns (owner_id, session_id, seq, client_id, role, infer, tokens, said_at, created_at,"
    " length, terms, indexed, vector, name, text, content, parts)"
    " VALUES (:owner_id, :session_id, :seq, :client_id, :role, :infer, :tokens, :said_at, :created_at,"
    " :length, :terms, :indexed, :vector, :name, :text, :content, :parts)"
)
HOME = "(SELECT s.home_id FROM @sessions AS s WHERE s.id = :session_id)"
"""The partition key of a session's rows, where only the session's number is known."""

_MOVE = (
    "UPDATE @sessions SET last_seq = last_seq + :new_turns, window_turns = window_turns + :new_turns,"
    f" window_tokens = window_tokens + :new_tokens, last_write_at = :created_at, ended_at = NULL, {CHANGE}"
    " WHERE id = :session_id RETURNING last_seq"
)
"""Moves a session's totals; the last of the new turns gets what it returns."""

_APPEND_ONE = f"WITH moved AS ({_MOVE}) {INSERT.replace(':seq,', '(SELECT last_seq FROM moved),')} RETURNING seq"

_IN_SESSION = f"SELECT {COLUMNS} FROM @turns AS t WHERE t.owner_id = :owner_id AND t.session_id = :session_id"


class TurnRows:
    """The port's Turns."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.has_deleted = False

    def append(self, session: SessionRow, turns: Sequence[TurnDraft], now: datetime) -> Sequence[int]:
        """Store turns at the end of a locked session; a known client id keeps its own seq."""
        known = self._known(session, [turn.client_id for turn in turns if turn.client_id is not None])
        fresh: list[TurnDraft] = []
        positions: dict[str, int] = {}
        places: list[int | str] = []
        for turn in turns:
            if turn.client_id is None:
                places.append(len(fresh))
            elif turn.client_id in known or turn.client_id in positions:
                places.append(turn.client_id)
                continue
            else:
                positions[turn.client_id] = len(fresh)
                places.append(turn.client_id)
            fresh.append(turn)
        first = self._store(session, fresh, now) if fresh else 0
        known.update({client_id: first + offset for client_id, offset in positions.items()})
        return [known[place] if isinstance(place, str) else first + place for place in places]

    def window(self, session: SessionRow, *, limit: int) -> Sequence[TurnRow]:
        """Return the newest `limit` turns after `folded_seq`, oldest first."""
        found = self._link.rows(
            f"{_IN_SESSION} AND t.seq > :after ORDER BY t.seq DESC LIMIT :limit",
            {**_place(session), "after": session.folded_seq, "limit": limit},
        )
        return [turn_row(row) for row in reversed(found)]

    def between(self, session: SessionRow, *, after: int, upto: int | None, limit: int) -> Sequence[TurnRow]:
        """Return turns with after < seq <= upto, in order."""
        parameters: dict[str, Any] = {**_place(session), "after": after, "limit": limit}
        where = ""
        if upto is not None:
            where = " AND t.seq <= :upto"
            parameters["upto"] = upto
        found = self._link.rows(f"{_IN_SESSION} AND t.seq > :after{where} ORDER BY t.seq LIMIT :limit", parameters)
        return [turn_row(row) for row in found]

    def unindexed(self, session_id: int, *, after: int = 0, limit: int) -> Sequence[TurnRow]:
        """Return turns of a session with after < seq that have no vector yet, oldest first."""
        found = self._link.rows(
            f"SELECT {COLUMNS} FROM @turns AS t WHERE t.owner_id = {HOME} AND t.session_id = :session_id"
            " AND t.indexed = 0 AND t.seq > :after ORDER BY t.seq LIMIT :limit",
            {"session_id": session_id, "after": after, "limit": limit},
        )
        return [turn_row(row) for row in found]

    def store_vectors(self, session_id: int, vectors: Mapping[int, Vector | None]) -> int:
        """Save vectors by row id, None for nothing to embed; turns that were erased meanwhile are skipped."""
        if not vectors:
            return 0
        home = self._link.row("SELECT home_id FROM @sessions WHERE id = :id [[FOR KEY SHARE]]", {"id": session_id})
        if home is None:
            return 0
        place = {"session_id": session_id, "owner_id": home[0]}
        stored = self._link.rows(
            "SELECT id FROM @turns WHERE owner_id = :owner_id AND session_id = :session_id AND id IN [:ids]",
            {**place, "ids": list(vectors)},
        )
        self._link.run_many(
            "UPDATE @turns SET vector = :vector, indexed = 1"
            " WHERE owner_id = :owner_id AND session_id = :session_id AND id = :id",
            [{**place, "id": row[0], "vector": self._link.vector_in(vectors[row[0]])} for row in stored],
        )
        if stored:
            self._link.run(
                f"UPDATE @sessions SET index_revision = index_revision + 1, {CHANGE} WHERE id = :id", {"id": session_id}
            )
        return len(stored)

    def list(
        self, homes: Sequence[OwnerRow], *, session: SessionRow | None, after: int | None, limit: int
    ) -> Sequence[TurnRow]:
        """Return turns of these pairs (of one session of theirs) by row id, after one."""
        if not homes:
            return []
        parameters: dict[str, Any] = {"homes": [home.id for home in homes], "after": after or 0, "limit": limit}
        where = ""
        if session is not None:
            where = " AND t.session_id = :session_id"
            parameters["session_id"] = session.id
        found = self._link.rows(
            f"SELECT {COLUMNS} FROM @turns AS t WHERE t.owner_id IN [:homes]{where} AND t.id > :after"
            " ORDER BY t.id LIMIT :limit",
            parameters,
        )
        return [turn_row(row) for row in found]

    def get(self, homes: Collection[int], row_ids: Sequence[int]) -> Mapping[int, Episode]:
        """Return turns of these owners by row id."""
        if not row_ids or not homes:
            return {}
        # `+` keeps SQLite on the row numbers; on Postgres the owner names the partitions.
        found = self._link.rows(
            f"SELECT {COLUMNS}, o.session, o.workspace FROM @turns AS t JOIN @sessions AS s ON s.id = t.session_id"
            " JOIN @owners AS o ON o.id = s.owner_id WHERE [[|+]]t.owner_id IN [:homes] AND t.id IN [:ids]",
            {"homes": sorted(homes), "ids": list(row_ids)},
        )
        return {row[0]: Episode(turn_row(row), row[12], row[13]) for row in found}

    def expire(self, *, before: datetime, limit: int) -> int:
        """Delete turns stored before a time, oldest first, and take them out of what waits; return how many."""
        doomed = self._link.rows(
            "SELECT owner_id, session_id, id, seq, tokens FROM @turns WHERE created_at < :before"
            " ORDER BY created_at, id LIMIT :limit",
            {"before": micros(before), "limit": limit},
        )
        if not doomed:
            return 0
        self.has_deleted = True
        folded: dict[int, int] = dict(
            self._link.rows(
                f"SELECT id, folded_seq FROM @sessions WHERE id IN [:ids] ORDER BY id {LOCK}",
                {"ids": sorted({row[1] for row in doomed})},
            )
        )
        totals = {session_id: [0, 0] for session_id in folded}
        for _, session_id, _, seq, tokens in doomed:
            if session_id in folded and seq > folded[session_id]:
                totals[session_id][0] += 1
                totals[session_id][1] += tokens
        self._link.run_many(
            f"UPDATE @sessions SET index_revision = index_revision + 1, {CHANGE}, window_turns = window_turns - :turns,"
            " window_tokens = window_tokens - :tokens WHERE id = :id",
            [{"id": session_id, "turns": turns, "tokens": tokens} for session_id, (turns, tokens) in totals.items()],
        )
        deleted = self._link.run(
            "DELETE FROM @turns WHERE owner_id IN [:owners] AND id IN [:ids]",
            {"owners": sorted({row[0] for row in doomed}), "ids": [row[2] for row in doomed]},
        )
        last_deleted: dict[int, int] = {}
        for _, session_id, _, seq, _ in doomed:
            last_deleted[session_id] = max(seq, last_deleted.get(session_id, 0))
        # No further than what went: an import may not have brought the rest of a session yet.
        self._link.run_many(
            "UPDATE @sessions AS s SET extracted_seq = :seq WHERE s.id = :id AND s.extracted_seq < :seq AND NOT EXISTS"
            " (SELECT 1 FROM @turns AS t WHERE t.owner_id = s.home_id AND t.session_id = s.id AND t.seq < :seq)",
            [{"id": session_id, "seq": seq} for session_id, seq in sorted(last_deleted.items())],
        )
        return deleted

    def _known(self, session: SessionRow, client_ids: Sequence[str]) -> dict[str, int]:
        if not client_ids:
            return {}
        found = self._link.rows(
            "SELECT client_id, seq FROM @turns WHERE owner_id = :owner_id AND session_id = :session_id"
            " AND client_id IS NOT NULL AND client_id IN [:client_ids]",
            {**_place(session), "client_ids": list(client_ids)},
        )
        return {row[0]: row[1] for row in found}

    def _store(self, session: SessionRow, turns: Sequence[TurnDraft], now: datetime) -> int:
        """Store turns at the end of a session with its new totals, and return the seq of the first."""
        moved = {
            "session_id": session.id,
            "new_turns": len(turns),
            "new_tokens": sum(turn.tokens for turn in turns),
            "created_at": micros(now),
        }
        if self._link.is_postgres and len(turns) == 1:
            found = self._link.row(_APPEND_ONE, {**_parameters(session, turns[0], now), **moved})
            return _seq(found)
        first = _seq(self._link.row(_MOVE, moved)) - len(turns) + 1
        rows = [{**_parameters(session, turn, now), "seq": first + offset} for offset, turn in enumerate(turns)]
        self._link.run_many(INSERT, rows)
        return first


def _seq(found: Row | None) -> int:
    assert found is not None, "append takes a session that this transaction holds"
    return int(found[0])


def _place(session: SessionRow) -> dict[str, Any]:
    return {"owner_id": session.home_id, "session_id": session.id}


def _parameters(session: SessionRow, turn: TurnDraft, now: datetime) -> dict[str, Any]:
    return {
        **_place(session),
        "client_id": turn.client_id,
        "role": ROLES.index(turn.role),
        "infer": int(turn.infer),
        "tokens": turn.tokens,
        "said_at": micros(turn.said_at),
        "created_at": micros(now),
        "length": len(turn.terms),
        "terms": join_terms(turn.terms),
        "indexed": 0,
        "vector": None,
        "name": turn.name,
        "text": turn.text,
        "content": None if turn.content == turn.text else turn.content,
        "parts": dump_parts(turn.parts),
    }


def turn_row(found: Row) -> TurnRow:
    """Return the turn in COLUMNS."""
    return TurnRow(
        id=found[0],
        session_id=found[1],
        seq=found[2],
        role=ROLES[found[3]],
        content=found[4],
        text=found[5],
        parts=load_parts(found[6]),
        name=found[7],
        said_at=moment(found[8]),
        tokens=found[9],
        client_id=found[10],
        infer=bool(found[11]),
    )
