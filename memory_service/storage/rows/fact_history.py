"""What became of facts: a line for each change, with the source of its text, so that an erasure takes it along."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from memory_service.domain import histories
from memory_service.ports.records import FactSource, HistoryRow
from memory_service.storage.encoding import micros, moment
from memory_service.storage.rows import fact_sources
from memory_service.storage.statements import Link

INSERT = (
    "INSERT INTO @fact_history (owner_id, fact_id, at, event, actor, agent, principal, session, text)"
    " VALUES (:owner_id, :fact_id, :at, :event, :actor, :agent, :principal, :session, :text)"
)


class FactHistory:
    """The histories of facts; a fact's place is its owner and its row id."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def of(self, fact_id: str) -> Sequence[HistoryRow]:
        """Return a fact's changes, oldest first."""
        found = self._link.rows(
            "SELECT h.at, h.event, h.text, h.actor FROM @facts AS f JOIN @fact_history AS h"
            " ON h.owner_id = f.owner_id AND h.fact_id = f.row_id WHERE f.id = :id ORDER BY h.id",
            {"id": fact_id},
        )
        return [HistoryRow(moment(row[0]), row[1], row[2] or None, row[3]) for row in found]

    def note(
        self,
        place: tuple[int, int],
        event: str,
        text: str,
        *,
        actor: str,
        now: datetime,
        source: FactSource | None,
    ) -> None:
        """Write a line of history with the source of its text: the given one, else that of the line before.

        Where the line before was erased, the text is that of those who said it too. `text` is empty where it is that
        of the line before. The oldest lines make room.
        """
        owner_id, row_id = place
        lines = self._link.rows(
            "SELECT id, LENGTH(text), agent, principal, session FROM @fact_history"
            " WHERE owner_id = :owner_id AND fact_id = :fact_id ORDER BY id DESC",
            {"owner_id": owner_id, "fact_id": row_id},
        )
        if source is None:
            left = (lines[0][2:] if lines else None) or self._link.row(
                "SELECT agent, principal, session FROM @fact_sources WHERE owner_id = :owner_id AND fact_id = :fact_id"
                " ORDER BY agent, principal, session LIMIT 1",
                {"owner_id": owner_id, "fact_id": row_id},
            )
            origin = left or ("", "", "")
        else:
            origin = fact_sources.place(source)[:3]
        self.write(place, event, text, actor=actor, now=now, origin=origin)
        keeps = histories.kept([len(text), *(line[1] for line in lines)]) - 1
        if keeps < len(lines):
            self._link.run(
                "DELETE FROM @fact_history WHERE owner_id = :owner_id AND fact_id = :fact_id AND id <= :last",
                {"owner_id": owner_id, "fact_id": row_id, "last": lines[keeps][0]},
            )

    def write(
        self, place: tuple[int, int], event: str, text: str, *, actor: str, now: datetime, origin: Sequence[str]
    ) -> None:
        """Write a line; `origin` is the agent, the principal and the session of its text."""
        self._link.run(
            INSERT,
            {
                "owner_id": place[0],
                "fact_id": place[1],
                "at": micros(now),
                "event": event,
                "actor": actor,
                **dict(zip(("agent", "principal", "session"), origin, strict=True)),
                "text": text,
            },
        )
