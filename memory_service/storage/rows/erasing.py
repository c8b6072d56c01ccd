"""Erasure, stage one: everything of a subject goes in one transaction, in statements over sets.

The order keeps it ahead of work in flight. First the marks and every owner of the subject are locked: writers share
the marks, so what they wrote is committed and seen. Then sessions are locked and jobs go: a worker that still wants to
finish one finds it gone and rolls back. Then rows go.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from memory_service.contract.scopes import Scope
from memory_service.domain.owners import (
    AgentErasure,
    Erasure,
    Owner,
    PairErasure,
    PrincipalErasure,
    SessionErasure,
)
from memory_service.ports.records import ReceiptRow
from memory_service.storage.encoding import micros
from memory_service.storage.rows import fact_columns
from memory_service.storage.rows.idempotency import FORGET
from memory_service.storage.rows.owners import OwnerKeys
from memory_service.storage.rows.receipts import ReceiptRows
from memory_service.storage.rows.remains import ANSWERS, EVERY, FACTS, NAMES, Remains
from memory_service.storage.statements import LOCK, Link


@dataclass(frozen=True)
class Held:
    """What an erasure holds against everybody else, by number; `touched` are other owners that have facts of it."""

    marks: list[int]
    owners: list[int]
    touched: list[int]
    sessions: list[int]
    homes: list[int]


class Eraser:
    """The port's Erasing."""

    def __init__(self, link: Link, owners: OwnerKeys, receipts: ReceiptRows) -> None:
        self._link = link
        self._owners = owners
        self._receipts = receipts
        self._remains = Remains(link)
        self.has_erased = False

    def erase(self, erasure: Erasure, *, receipt_id: str, asked_by: Owner | None, now: datetime) -> ReceiptRow:
        """Delete every tier of the subject, move generations on, note when, and leave a receipt."""
        held = self.hold(erasure)
        counts = {"jobs": self.erase_jobs(held)}
        counts |= self._erase_sessions(held.sessions, held.homes)
        counts["answers"] = self.erase_answers(erasure, held)
        facts = self._erase_facts(erasure, held.owners, now)
        counts |= {**facts, "vectors": counts["vectors"] + facts["vectors"]}
        cited = self._cited(held.owners) if isinstance(erasure, PairErasure) else ()
        self.move_on(erasure, held, micros(now), named=cited)
        return self._receipts.add(receipt_id, asked_by=asked_by, erased=counts, now=now)

    def hold(self, erasure: Erasure) -> Held:
        """Hold everything of the subject until the transaction ends, in the order of this module."""
        marks = [self._owners.ensure_id(mark) for mark in erasure.marks]
        owners = self._lock_owners(erasure, marks)
        touched = self._lock_touched(erasure)
        held = Held(marks, owners, touched, *self._lock_sessions(owners))
        self._note_remains(erasure, held)
        return held

    def move_on(self, erasure: Erasure, held: Held, at: int, *, named: Collection[int]) -> None:
        """Move generations on, note on the marks when, and blank every covered owner but those that stay `named`.

        Whatever an erasure covers has its mark among its own: a time on more than the marks would say that more was
        asked for, as an erasure of each session of a pair.
        """
        if isinstance(erasure, PrincipalErasure) and not named:
            self._link.run("DELETE FROM @principals WHERE hash = :hash", {"hash": erasure.principal})
        self._owners.revise({*held.owners, *held.touched, *held.homes})
        self._link.run("UPDATE @owners SET removals = removals + 1 WHERE id IN [:ids]", {"ids": held.homes})
        self._link.run("UPDATE @owners SET generation = generation + 1 WHERE id IN [:ids]", {"ids": held.owners})
        self._link.run(
            "UPDATE @owners SET erased_at = :at WHERE id IN [:ids] AND (erased_at IS NULL OR erased_at < :at)",
            {"ids": held.marks, "at": at},
        )
        self._link.run(
            "UPDATE @owners SET agent = '', principal = '', session = '', workspace = '' WHERE id IN [:ids]",
            {"ids": sorted({*held.owners} - {*named})},
        )
        self.has_erased = True

    def _cited(self, owner_ids: list[int]) -> list[int]:
        """Return the sessions among owners that facts of others are from: an erasure may still name them."""
        found = self._link.rows(
            "SELECT o.id FROM @owners AS o WHERE o.id IN [:ids] AND o.session <> '' AND EXISTS"
            " (SELECT 1 FROM @fact_sources AS s WHERE s.agent = o.agent AND s.principal = o.principal"
            " AND s.session = o.session)",
            {"ids": owner_ids},
        )
        return [row[0] for row in found]

    def _lock_owners(self, erasure: Erasure, marks: list[int]) -> list[int]:
        """Hold the marks and every owner that the erasure covers, against writers that share them."""
        where, parameters = _covered_owners(erasure)
        found = self._link.rows(
            f"SELECT id FROM @owners WHERE id IN [:marks] OR ({where}) ORDER BY id [[FOR UPDATE]]",
            {**parameters, "marks": marks},
        )
        return [row[0] for row in found]

    def _lock_touched(self, erasure: Erasure) -> list[int]:
        """Hold the other owners that have facts from the subject."""
        where, parameters = said_there(erasure, "s")
        found = self._link.rows(
            "SELECT id FROM @owners WHERE id IN (SELECT s.owner_id FROM @fact_sources AS s"
            f" WHERE {where}) ORDER BY id {LOCK}",
            parameters,
        )
        return [row[0] for row in found]

    def _note_remains(self, erasure: Erasure, held: Held) -> None:
        """Note what carries bytes of the subject: its owners' rows, and facts of others that it has a part in.

        A session's own rows are facts, if it ever had any; its turns are its home's. A text that somebody has replaced
        since is in its lines of history, and in no source.
        """
        if not self._link.is_postgres:
            return
        owners = self._link.rows(
            "SELECT id, scope FROM @owners WHERE id IN [:ids] AND (scope <> 'session' OR revision > 0)",
            {"ids": held.owners},
        )
        lines, place = said_there(erasure, "h")
        replaced = self._link.rows(f"SELECT DISTINCT h.owner_id FROM @fact_history AS h WHERE {lines}", place)
        sessions = {owner_id for owner_id, scope in owners if scope == Scope.SESSION}
        self._remains.note(EVERY, {*held.homes, *(row[0] for row in owners)} - sessions)
        self._remains.note(FACTS, {*sessions, *held.touched, *(row[0] for row in replaced)})
        self._remains.note_whole(NAMES)

    def _lock_sessions(self, owner_ids: list[int]) -> tuple[list[int], list[int]]:
        """Hold the subject's sessions, its own and those whose home it is; return them and their homes."""
        found = self._link.rows(
            "SELECT id, home_id FROM @sessions WHERE owner_id IN [:owners] OR home_id IN [:owners]"
            " ORDER BY id [[FOR UPDATE]]",
            {"owners": owner_ids},
        )
        return [row[0] for row in found], sorted({row[1] for row in found})

    def erase_jobs(self, held: Held) -> int:
        """Delete the subject's jobs; return how many."""
        jobs = self._link.run(
            "DELETE FROM @jobs WHERE owner_id IN [:owners] OR session_id IN [:sessions]",
            {"owners": held.owners, "sessions": held.sessions},
        )
        if jobs:
            self._remains.note_whole(("jobs",))
        return jobs

    def _erase_sessions(self, session_ids: list[int], home_ids: list[int]) -> dict[str, int]:
        rows = {"sessions": session_ids, "homes": home_ids}
        within = "owner_id IN [:homes] AND session_id IN [:sessions]"
        vectors = self._count(f"SELECT COUNT(*) FROM @turns WHERE {within} AND vector IS NOT NULL", rows)
        turns = self._link.run(f"DELETE FROM @turns WHERE {within}", rows)
        digests = self._link.run(f"DELETE FROM @digests WHERE {within}", rows)
        sessions = self._link.run("DELETE FROM @sessions WHERE id IN [:sessions]", {"sessions": session_ids})
        return {"turns": turns, "episodes": turns, "digests": digests, "sessions": sessions, "vectors": vectors}

    def _erase_facts(self, erasure: Erasure, owner_ids: list[int], now: datetime) -> dict[str, int]:
        """Delete the facts that the subject owns or that come from it alone; others lose it as a source.

        A fact that others said too keeps its text, and nothing else that the subject gave it.
        """
        named, place = said_there(erasure, "s")
        alone = said_alone(named)
        counts = {"facts": 0, "history": 0, "vectors": 0}
        owned: Mapping[str, Any] = {"owners": owner_ids}
        for where, parameters in (("f.owner_id IN [:owners]", owned), (alone, place)):
            by_row, by_fact = where.replace("{column}", "row_id"), where.replace("{column}", "fact_id")
            counts["vectors"] += self._count(
                f"SELECT COUNT(*) FROM @facts AS f WHERE {by_row} AND f.vector IS NOT NULL", parameters
            )
            counts["history"] += self._link.run(f"DELETE FROM @fact_history AS f WHERE {by_fact}", parameters)
            counts["facts"] += self._link.run(f"DELETE FROM @facts AS f WHERE {by_row}", parameters)
        self._link.run("DELETE FROM @fact_sources WHERE owner_id IN [:owners]", owned)
        self._link.run(f"DELETE FROM @fact_sources AS s WHERE {named}", place)
        lines, place = said_there(erasure, "h")
        self.strip_facts(lines, place, now)
        counts["history"] += self._link.run(f"DELETE FROM @fact_history AS h WHERE {lines}", place)
        return counts

    def strip_facts(self, lines: str, place: Mapping[str, Any], now: datetime) -> None:
        """Leave nothing but the text of the facts whose newest line of history is the subject's."""
        found = self._link.rows(
            "SELECT f.owner_id, f.row_id, f.text FROM @fact_history AS h JOIN @facts AS f"
            f" ON f.owner_id = h.owner_id AND f.row_id = h.fact_id WHERE {lines}"
            " AND h.id = (SELECT MAX(n.id) FROM @fact_history AS n WHERE n.owner_id = h.owner_id"
            " AND n.fact_id = h.fact_id) AND (f.key IS NOT NULL OR f.dedupe_key IS NOT NULL OR f.category IS NOT NULL"
            " OR f.tags <> '[]' OR f.evidence IS NOT NULL OR f.importance IS NOT NULL OR f.attributes <> '{}')",
            place,
        )
        rows = [
            {**fact_columns.bare(text), "owner_id": owner_id, "row_id": row_id, "now": micros(now)}
            for owner_id, row_id, text in found
        ]
        assignments = ", ".join(f"{column} = :{column}" for column in fact_columns.bare(""))
        self._link.run_many(
            f"UPDATE @facts SET {assignments}, revision = revision + 1,"
            " updated_at = CASE WHEN updated_at < :now THEN :now ELSE updated_at END"
            " WHERE owner_id = :owner_id AND row_id = :row_id",
            rows,
        )

    def erase_answers(self, erasure: Erasure, held: Held) -> int:
        """Delete the subject's stored answers, and whoever was given them those that carry what it said."""
        owned = {"owners": held.owners}
        erased = self._link.run("DELETE FROM @idempotency WHERE owner_id IN [:owners]", owned)
        given = self._link.rows(FORGET.replace("{facts}", "f.owner_id IN [:owners]"), owned)
        for table in ("fact_sources", "fact_history"):
            said, place = said_there(erasure, "s")
            facts = _named_in(table, said).replace("{column}", "row_id")
            given += self._link.rows(FORGET.replace("{facts}", facts), place)
        self._remains.note(ANSWERS, {row[0] for row in given})
        self._remains.note_whole(("answered_facts",))
        return erased + len(given)

    def _count(self, sql: str, parameters: Mapping[str, Any]) -> int:
        found = self._link.row(sql, parameters)
        return 0 if found is None else int(found[0])


def _covered_owners(erasure: Erasure) -> tuple[str, dict[str, str]]:
    """Return the condition on `@owners` for every owner whose rows go, in every workspace.

    A session-scope owner without a session is a mark and no owner; only the erasures that name it move it.
    """
    match erasure:
        case SessionErasure(agent, principal, session):
            where = "agent = :agent AND principal = :principal AND session = :session AND session <> ''"
            return where, {"agent": agent, "principal": principal, "session": session}
        case PairErasure(agent, principal):
            where = (
                "agent = :agent AND principal = :principal AND agent <> '' AND (scope <> 'session' OR session <> '')"
            )
            return where, {"agent": agent, "principal": principal}
        case PrincipalErasure(principal):
            return "principal = :principal AND principal <> ''", {"principal": principal}
        case AgentErasure(agent):
            return "agent = :agent AND agent <> ''", {"agent": agent}


def said_alone(named: str) -> str:
    """Return the condition that `f` is a fact of sources for which `named` holds over `s`, and of no other."""
    return (
        _named_in("fact_sources", named)
        + " AND NOT EXISTS (SELECT 1 FROM @fact_sources AS s WHERE s.owner_id = f.owner_id"
        " AND s.fact_id = f.{column} AND NOT (" + named + "))"
    )


def _named_in(table: str, condition: str) -> str:
    """Return the condition that `f` is a fact of rows of a table, for which `condition` holds over `s`.

    Two comparisons and not one of pairs: SQLite misses rows of pairs where an index names the row's number.
    """
    return (
        f"f.owner_id IN (SELECT s.owner_id FROM @{table} AS s WHERE {condition})"
        f" AND f.{{column}} IN (SELECT s.fact_id FROM @{table} AS s WHERE {condition})"
    )


def said_there(erasure: Erasure, alias: str) -> tuple[str, dict[str, str]]:
    """Return the condition that a source, or the source of a line of history, is the subject's.

    A pair's facts are those under its own owners: what it gave to `user` or `shared` is that owner's.
    """
    match erasure:
        case SessionErasure(agent, principal, session):
            where = f"{alias}.agent = :agent AND {alias}.principal = :principal AND {alias}.session = :session"
            return f"{where} AND {alias}.session <> ''", {"agent": agent, "principal": principal, "session": session}
        case PairErasure():
            return f"{alias}.owner_id = 0", {}  # nobody's number
        case PrincipalErasure(principal):
            return f"{alias}.principal = :principal AND {alias}.principal <> ''", {"principal": principal}
        case AgentErasure(agent):
            return f"{alias}.agent = :agent AND {alias}.agent <> ''", {"agent": agent}
