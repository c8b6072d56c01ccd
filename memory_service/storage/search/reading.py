"""Rows of one owner out of the database, as columns: the SQL that fills and checks the in-memory index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memory_service.storage.search.columns import FOREVER, KINDS, Facts, Rows, Vectors
from memory_service.storage.statements import Link
from memory_service.storage.states import COLUMNS as STATE
from memory_service.storage.states import REAL, OwnerState, state

_KIND_CODES = {kind: code for code, kind in enumerate(KINDS)}
_POSTGRES_VECTOR_HEADER = 4
"""pgvector's binary form: dimension and an unused word of 2 bytes each, then big-endian float32."""

VECTOR = "[[{vectors}.vector_send(vector)|vector]]"
"""The column expression whose values `vectors_from` takes."""


class SessionState(NamedTuple):
    """How far a session's turns and their vectors are.

    Its last seq and its index revision only grow; the revision with late vectors, and with turns that are deleted or
    imported.
    """

    session_id: int
    last_seq: int
    index_revision: int
    changed: int

    def is_before(self, other: SessionState) -> bool:
        """Whether the session has gone back since, as on a server that lost its last transactions."""
        return self.last_seq < other.last_seq or self.index_revision < other.index_revision


_SESSION = "id, last_seq, index_revision, changed"
"""The columns of SessionState."""


@dataclass(frozen=True)
class Batch:
    """Rows with their stems and with the vectors that they have; `slots` number the rows that the vectors belong to."""

    rows: Rows
    terms: Sequence[str]
    slots: NDArray[np.int64]
    vectors: Vectors


def states(link: Link, owner_ids: Sequence[int]) -> dict[int, OwnerState]:
    """Return the state of each owner that exists."""
    found = link.rows(f"SELECT o.id, {STATE} FROM @owners AS o WHERE o.id IN [:ids]", {"ids": list(owner_ids)})
    return {row[0]: state(row[1:]) for row in found}


def changed_sessions(link: Link, home_id: int, *, since: int) -> list[SessionState]:
    """Return the sessions of a home pair whose turns changed under a number from `since` on."""
    found = link.rows(
        f"SELECT {_SESSION} FROM @sessions WHERE home_id = :home AND changed >= :since AND {REAL}",
        {"home": home_id, "since": since},
    )
    return [SessionState(*row) for row in found]


def session_state(link: Link, home_id: int, session_id: int) -> SessionState | None:
    """Return one session of a home pair, or None where it is not one of theirs."""
    found = link.row(
        f"SELECT {_SESSION} FROM @sessions WHERE home_id = :home AND id = :session",
        {"home": home_id, "session": session_id},
    )
    return None if found is None else SessionState(*found)


def count_turns(link: Link, home_id: int, *, upto: int) -> int:
    """Return how many turns a home pair has, but look no further than `upto`."""
    found = link.row(
        "SELECT COUNT(*) FROM (SELECT 1 FROM @turns WHERE owner_id = :home LIMIT :upto) AS counted",
        {"home": home_id, "upto": upto},
    )
    return 0 if found is None else int(found[0])


def count_session_turns(link: Link, home_id: int, session_id: int, *, upto: int) -> int:
    """Return how many turns a session has, but look no further than `upto`."""
    found = link.row(
        "SELECT COUNT(*) FROM (SELECT 1 FROM @turns WHERE owner_id = :home AND session_id = :session LIMIT :upto)"
        " AS counted",
        {"home": home_id, "session": session_id, "upto": upto},
    )
    return 0 if found is None else int(found[0])


def count_facts(link: Link, owner_id: int, *, upto: int) -> int:
    """Return how many facts of an owner can ever count, but look no further than `upto`."""
    found = link.row(
        "SELECT COUNT(*) FROM (SELECT 1 FROM @facts WHERE owner_id = :owner AND status IN ('active', 'superseded')"
        " LIMIT :upto) AS counted",
        {"owner": owner_id, "upto": upto},
    )
    return 0 if found is None else int(found[0])


_TURN = f"id, session_id, seq, role, said_at, length, terms, {VECTOR}"


def all_turns(link: Link, home_id: int) -> Batch:
    """Return all turns of a home pair, oldest row first."""
    return _turns(link, f"SELECT {_TURN} FROM @turns WHERE owner_id = :home ORDER BY id", {"home": home_id})


def session_turns(link: Link, home_id: int, session_id: int, *, after_seq: int) -> Batch:
    """Return the turns of a session after a seq, in order."""
    return _turns(
        link,
        f"SELECT {_TURN} FROM @turns WHERE owner_id = :home AND session_id = :session AND seq > :after ORDER BY seq",
        {"home": home_id, "session": session_id, "after": after_seq},
    )


def turns(link: Link, home_ids: Sequence[int], row_ids: Sequence[int]) -> Batch:
    """Return those of the named rows that are turns of these home pairs, oldest row first."""
    return _turns(
        link,
        f"SELECT {_TURN} FROM @turns WHERE owner_id IN [:homes] AND id IN [:ids] ORDER BY id",
        {"homes": list(home_ids), "ids": list(row_ids)},
    )


def _turns(link: Link, sql: str, parameters: dict[str, Any]) -> Batch:
    found = link.rows(sql, parameters)
    ids, sessions, seqs, roles, said, lengths, terms, vectors = _columns(found, 8)
    rows = Rows(_int64(ids), _int64(sessions), _int64(seqs), np.array(roles, np.int8), _int64(said), _int32(lengths))
    return Batch(rows, terms, *vectors_from(link, vectors))


def turn_ids(link: Link, home_id: int, session_id: int) -> NDArray[np.int64]:
    """Return the row ids of a session's turns."""
    found = link.rows(
        "SELECT id FROM @turns WHERE owner_id = :home AND session_id = :session",
        {"home": home_id, "session": session_id},
    )
    return _int64([row[0] for row in found])


def late_vectors(
    link: Link, home_id: int, session_id: int, *, from_seq: int, upto_seq: int
) -> tuple[NDArray[np.int64], Vectors]:
    """Return the vectors that turns of a session have now, with the turns' row ids."""
    found = link.rows(
        f"SELECT id, {VECTOR} FROM @turns WHERE owner_id = :home AND session_id = :session"
        " AND seq BETWEEN :low AND :high AND vector IS NOT NULL",
        {"home": home_id, "session": session_id, "low": from_seq, "high": upto_seq},
    )
    ids, vectors = _columns(found, 2)
    return _int64(ids), vectors_from(link, vectors)[1]


def facts(link: Link, owner_id: int) -> Rows:
    """Return all facts of an owner that can ever count, without stems and vectors."""
    return _facts(link, [owner_id], None)


def named_facts(link: Link, owner_id: int, row_ids: Sequence[int]) -> Rows:
    """Return those of the named rows that are facts of the owner and can ever count."""
    return _facts(link, [owner_id], row_ids)


def fact_words(link: Link, owner_id: int, rows: Rows) -> Batch:
    """Return facts with their stems and vectors; those deleted since they were listed are left out."""
    found = link.rows(
        f"SELECT row_id, terms, {VECTOR} FROM @facts WHERE owner_id = :owner AND row_id IN [:ids] ORDER BY row_id",
        {"owner": owner_id, "ids": rows.row_ids.tolist()},
    )
    ids, terms, vectors = _columns(found, 3)
    if len(ids) != len(rows):
        rows = rows.take(np.flatnonzero(np.isin(rows.row_ids, ids)))
    return Batch(rows, terms, *vectors_from(link, vectors))


def _facts(link: Link, owner_ids: Sequence[int], row_ids: Sequence[int] | None) -> Rows:
    chosen = "" if row_ids is None else " AND row_id IN [:ids]"
    found = link.rows(
        "SELECT row_id, said_at, length, kind, status, category, tags, importance, valid_from, valid_to, expires_at,"
        " revision, CASE WHEN vector IS NULL THEN 0 ELSE 1 END FROM @facts WHERE owner_id IN [:owners]"
        f" AND status IN ('active', 'superseded'){chosen} ORDER BY row_id",
        {"owners": list(owner_ids), "ids": list(row_ids or ())} if row_ids is not None else {"owners": list(owner_ids)},
    )
    columns = _columns(found, 13)
    ids, said, lengths, kinds, statuses, categories, tags, importance, starts, ends, expiries, revisions, has = columns
    sets: dict[str, frozenset[str]] = {}
    for text in tags:
        if text not in sets:
            sets[text] = frozenset(json.loads(text))
    columns_of_facts = Facts(
        kinds=np.array([_KIND_CODES[kind] for kind in kinds], np.int8),
        is_active=np.array([status == "active" for status in statuses], np.bool_),
        categories=categories,
        tags=[sets[text] for text in tags],
        importance=np.array([np.nan if value is None else value for value in importance], np.float64),
        valid_from=_int64(starts),
        valid_to=_times(ends),
        expires_at=_times(expiries),
        versions=_int64(revisions),
        has_vector=np.array(has, np.bool_),
    )
    none = np.zeros(len(found), np.int64)
    roles = np.full(len(found), -1, np.int8)
    return Rows(_int64(ids), none, none, roles, _int64(said), _int32(lengths), columns_of_facts)


def vectors_from(link: Link, values: Sequence[bytes | None]) -> tuple[NDArray[np.int64], Vectors]:
    """Return which of the values of a `VECTOR` column are there, and these as one array."""
    slots = np.flatnonzero([value is not None for value in values])
    data = b"".join(value for value in values if value is not None)
    if not len(slots):
        return slots, np.empty((0, 0), np.float32)
    table = np.frombuffer(data, np.uint8).reshape(len(slots), -1)
    if link.is_postgres:
        big = np.ascontiguousarray(table[:, _POSTGRES_VECTOR_HEADER:]).view(">f4")
        return slots, big.astype(np.float32)
    return slots, table.view("<f4").astype(np.float32, copy=False)


def _columns(found: Sequence[tuple[Any, ...]], width: int) -> tuple[Sequence[Any], ...]:
    return tuple(zip(*found, strict=True)) if found else ((),) * width


def _int64(values: Sequence[int]) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def _int32(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def _times(values: Sequence[int | None]) -> NDArray[np.int64]:
    return np.array([FOREVER if value is None else value for value in values], np.int64)
