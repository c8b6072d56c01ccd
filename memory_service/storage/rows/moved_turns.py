"""Turns of an import: each goes to its own seq, or to the end of its session where another turn has that.

What a turn moved to is found again by its client id: one that had none, or whose own another turn has, gets one that is
made from all that it is, so that importing it again finds it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from memory_service.ports.records import SessionRow
from memory_service.storage.encoding import dump
from memory_service.storage.rows.turns import INSERT
from memory_service.storage.statements import Link, Row
from memory_service.storage.states import CHANGE

Values = Mapping[str, Any]
"""The columns of a turn, its session's among them."""

_IN_SESSION = "FROM @turns AS t WHERE t.owner_id = :owner_id AND t.session_id = :session_id"
_NAMED = f"(SELECT t.seq {_IN_SESSION} AND t.client_id IS NOT NULL AND t.client_id = :{{name}})"
_TAKEN = (
    f"SELECT (SELECT t.created_at {_IN_SESSION} AND t.seq = :seq),"
    f" {_NAMED.format(name='client_id')}, {_NAMED.format(name='mark')}"
)
_SAID = ("role", "name", "text", "content", "parts")
_TEXT = f"SELECT {', '.join('t.' + name for name in _SAID)} {_IN_SESSION} AND t.seq = :seq"


class _Taken(NamedTuple):
    """What a session has in the place of a turn: when the one at its seq was stored, and the seqs of its two names."""

    created_at: int | None
    client_id: int | None
    mark: int | None


class TurnMover:
    """Stores turns of an import in sessions that this transaction holds."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def restore(self, rows: Sequence[tuple[SessionRow, Values]]) -> list[bool]:
        """Store what is not there yet, in order; return of each whether it was stored."""
        marked = [{**values, "mark": _mark(values)} for _, values in rows]
        places = _places(marked, self._there(marked), {session.id: session.last_seq for session, _ in rows})
        stored = [
            (session, {**values, **place})
            for (session, values), place in zip(rows, places, strict=True)
            if place is not None
        ]
        self._link.run_many(INSERT, [values for _, values in stored])
        self._grow(stored)
        return [place is not None for place in places]

    def _there(self, rows: Sequence[Values]) -> list[_Taken | None]:
        """Return what has each turn's place; None where that is the turn itself."""
        taken = [_Taken(*found) for found in self._link.row_of_each(_TAKEN, rows) if found is not None]
        alike = [
            (index, {**row, "seq": found.client_id or row["seq"]})
            for index, (row, found) in enumerate(zip(rows, taken, strict=True))
            if found.mark is None and (found.client_id is not None or found.created_at == row["created_at"])
        ]
        texts = self._link.row_of_each(_TEXT, [row for _, row in alike])
        same = {
            index for (index, row), text in zip(alike, texts, strict=True) if text is not None and _is_said(text, row)
        }
        return [None if found.mark is not None or index in same else found for index, found in enumerate(taken)]

    def _grow(self, stored: Sequence[tuple[SessionRow, Values]]) -> None:
        grown: dict[int, dict[str, int]] = {}
        for session, row in stored:
            sums = grown.setdefault(session.id, {"id": session.id, "seq": 0, "turns": 0, "tokens": 0})
            sums["seq"] = max(sums["seq"], row["seq"])
            if row["seq"] > session.folded_seq:
                sums["turns"] += 1
                sums["tokens"] += row["tokens"]
        self._link.run_many(
            f"UPDATE @sessions SET index_revision = index_revision + 1, {CHANGE},"
            " last_seq = CASE WHEN last_seq < :seq THEN :seq ELSE last_seq END,"
            " window_turns = window_turns + :turns, window_tokens = window_tokens + :tokens WHERE id = :id",
            grown.values(),
        )


def _places(
    rows: Sequence[Values], there: Sequence[_Taken | None], last_seqs: Mapping[int, int]
) -> list[Mapping[str, Any] | None]:
    """Return the seq and client id of each turn; None where it is there already. Pure.

    A session's turns stay in their order among themselves: once one has moved to the end, those after it follow.
    """
    last, filled, named = dict(last_seqs), set[tuple[int, int]](), dict[tuple[int, str], Values]()
    places: list[Mapping[str, Any] | None] = []
    for row, found in zip(rows, there, strict=True):
        session, seq, client_id = row["session_id"], row["seq"], row["client_id"]
        rival = None if client_id is None else named.get((session, client_id))
        is_known = (session, row["mark"]) in named or (
            rival is not None and all(rival[name] == row[name] for name in _SAID)
        )
        if found is None or is_known:
            places.append(None)
            continue
        if found.created_at is not None or (session, seq) in filled:
            seq = last[session] + 1
        if client_id is None or found.client_id is not None or rival is not None:
            client_id = None if seq == row["seq"] and client_id is None else row["mark"]
        last[session] = max(last[session], seq)
        filled.add((session, seq))
        named[(session, row["mark"])] = row
        if client_id is not None:
            named[(session, client_id)] = row
        places.append({"seq": seq, "client_id": client_id})
    return places


def _mark(row: Values) -> str:
    """Return a client id for a turn that has to move, the same one whenever it is imported."""
    named = [row[name] for name in ("seq", "client_id", "said_at", "created_at", *_SAID)]
    return f"moved-{hashlib.sha256(dump(named).encode()).hexdigest()[:32]}"


def _is_said(text: Row, row: Values) -> bool:
    return list(text) == [row[name] for name in _SAID]
