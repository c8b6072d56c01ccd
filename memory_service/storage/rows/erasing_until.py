"""An erasure of another store, carried out here: what was stored until then goes, what was stored after it stays.

Facts that were made here since then of turns from before go with those turns, and so do digests of the sessions that
had such turns: what is left of a session is in its window again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from memory_service.domain.owners import Erasure
from memory_service.storage.encoding import moment
from memory_service.storage.rows.erasing import Eraser, Held, said_alone, said_there
from memory_service.storage.rows.facts import FactRows
from memory_service.storage.statements import Link
from memory_service.storage.states import CHANGE

_OLD = (
    "(f.created_at <= :until OR (f.said_at <= :until AND EXISTS (SELECT 1 FROM @fact_sources AS d"
    " WHERE d.owner_id = f.owner_id AND d.fact_id = f.row_id AND d.seqs <> '[]')))"
)
"""A fact that was stored until then, or made of turns that were said until then."""
_SOURCES = "SELECT 1 FROM @fact_sources AS s WHERE s.owner_id = f.owner_id AND s.fact_id = f.row_id"


class EraserUntil:
    """Erases of a subject what was stored until a moment."""

    def __init__(self, link: Link, eraser: Eraser, facts: FactRows) -> None:
        self._link = link
        self._eraser = eraser
        self._facts = facts

    def erase(self, erasure: Erasure, *, until: int) -> Mapping[str, int]:
        """Delete what the subject had until a moment, in microseconds; return how many rows of each kind."""
        held = self._eraser.hold(erasure)
        counts = Counter(jobs=self._eraser.erase_jobs(held))
        counts.update(self._erase_sessions(held, until))
        counts["answers"] += self._eraser.erase_answers(erasure, held)
        counts.update(self._erase_facts(erasure, held, until))
        left = self._left(held)
        self._eraser.move_on(erasure, held, until, named=[*left, *held.marks] if left else ())
        return counts

    def _erase_sessions(self, held: Held, until: int) -> Mapping[str, int]:
        rows: dict[str, Any] = {"sessions": held.sessions, "homes": held.homes, "until": until}
        within = "owner_id IN [:homes] AND session_id IN [:sessions]"
        old = f"{within} AND created_at <= :until"
        touched = self._link.rows(
            f"SELECT session_id FROM @turns WHERE {old} UNION"
            " SELECT id FROM @sessions WHERE id IN [:sessions] AND created_at <= :until",
            rows,
        )
        rows["touched"] = [row[0] for row in touched]
        vectors = self._link.row(f"SELECT COUNT(*) FROM @turns WHERE {old} AND vector IS NOT NULL", rows)
        turns = self._link.run(f"DELETE FROM @turns WHERE {old}", rows)
        digests = self._link.run("DELETE FROM @digests WHERE owner_id IN [:homes] AND session_id IN [:touched]", rows)
        left = "FROM @turns AS t WHERE t.owner_id = @sessions.home_id AND t.session_id = @sessions.id"
        sessions = self._link.run(
            f"DELETE FROM @sessions WHERE id IN [:touched] AND created_at <= :until AND NOT EXISTS (SELECT 1 {left})",
            rows,
        )
        self._link.run(
            "UPDATE @sessions SET folded_seq = 0, digest_version = 0, index_revision = index_revision + 1,"
            f" {CHANGE}, window_turns = (SELECT COUNT(*) {left}),"
            f" window_tokens = (SELECT CAST(COALESCE(SUM(t.tokens), 0) AS BIGINT) {left}) WHERE id IN [:touched]",
            rows,
        )
        vector_count = 0 if vectors is None else int(vectors[0])
        return {"turns": turns, "episodes": turns, "digests": digests, "sessions": sessions, "vectors": vector_count}

    def _erase_facts(self, erasure: Erasure, held: Held, until: int) -> Mapping[str, int]:
        named, place = said_there(erasure, "s")
        alone = said_alone(named).replace("{column}", "row_id")
        doomed = {
            (row[0], row[1])
            for where, parameters in (("f.owner_id IN [:owners]", {"owners": held.owners}), (alone, place))
            for row in self._link.rows(
                f"SELECT f.owner_id, f.row_id FROM @facts AS f WHERE {where} AND {_OLD}",
                {**parameters, "until": until},
            )
        }
        counts = Counter(self._facts.discard(sorted(doomed)))
        self._link.run(
            f"DELETE FROM @fact_sources AS s WHERE {named} AND {_of_a_fact('s', _OLD)}",
            {**place, "until": until},
        )
        said, place = said_there(erasure, "h")
        made_of_it = f"f.created_at > :until AND f.said_at <= :until AND NOT EXISTS ({_SOURCES} AND {named})"
        lines = f"{said} AND (h.at <= :until OR {_of_a_fact('h', made_of_it)})"
        parameters = {**place, "until": until}
        self._eraser.strip_facts(lines, parameters, moment(until))
        counts["history"] += self._link.run(f"DELETE FROM @fact_history AS h WHERE {lines}", parameters)
        return counts

    def _left(self, held: Held) -> list[int]:
        """Return the owners that have rows still, or that facts are from."""
        found = self._link.rows(
            "SELECT o.id FROM @owners AS o WHERE o.id IN [:ids] AND ("
            "EXISTS (SELECT 1 FROM @sessions AS c WHERE c.owner_id = o.id)"
            " OR EXISTS (SELECT 1 FROM @sessions AS c WHERE c.home_id = o.id)"
            " OR EXISTS (SELECT 1 FROM @facts AS f WHERE f.owner_id = o.id)"
            " OR (o.session <> '' AND EXISTS (SELECT 1 FROM @fact_sources AS s WHERE s.agent = o.agent"
            " AND s.principal = o.principal AND s.session = o.session)))",
            {"ids": held.owners},
        )
        return [row[0] for row in found]


def _of_a_fact(alias: str, condition: str) -> str:
    """Return the condition that a row is of a fact `f` of which `condition` holds."""
    return (
        f"EXISTS (SELECT 1 FROM @facts AS f WHERE f.owner_id = {alias}.owner_id AND f.row_id = {alias}.fact_id"
        f" AND {condition})"
    )
