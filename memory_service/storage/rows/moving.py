"""Export and import of whole rows: self-contained lines, in an order that an import can follow.

A line names owners by their parts, so it means the same in any store. An import never overwrites: a line whose row is
there is skipped, and one that a tombstone of this store names, stored before that erasure, is refused as tombstoned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from memory_service.contract.scopes import Scope
from memory_service.domain.owners import AgentErasure, Owner, PairErasure, PrincipalErasure, SessionErasure
from memory_service.domain.pages import page
from memory_service.errors import InvalidRequest
from memory_service.ports.records import FactSource, OwnerRow, SessionRow
from memory_service.storage.encoding import micros
from memory_service.storage.rows import line_shapes, lines
from memory_service.storage.rows.fact_columns import INSERT as INSERT_FACT
from memory_service.storage.rows.fact_columns import INSERT_HISTORY, INSERT_SOURCE, bare, source_values
from memory_service.storage.rows.facts import FactRows
from memory_service.storage.rows.lines import Line
from memory_service.storage.rows.owners import OwnerKeys
from memory_service.storage.rows.sessions import SessionRows, home_of
from memory_service.storage.rows.turns import INSERT as INSERT_TURN
from memory_service.storage.statements import Link

_Run = Sequence[Mapping[str, Any]]
"""Lines of one type, which are stored together."""

IMPORTED, SKIPPED, TOMBSTONED = "imported", "skipped", "tombstoned"


class Mover:
    """The port's Moving."""

    def __init__(self, link: Link, owners: OwnerKeys, sessions: SessionRows, facts: FactRows) -> None:
        self._link = link
        self._owners = owners
        self._sessions = sessions
        self._facts = facts

    def export(self, *, cursor: str | None, limit: int) -> tuple[Sequence[Mapping[str, Any]], str | None]:
        """Return lines and the next cursor; None at the end.

        Raises:
            InvalidRequest: the cursor is not one of an export.
        """
        stage, after = lines.read_cursor(cursor)
        found: list[Line] = []
        while stage < len(lines.STAGES):
            read = lines.STAGES[stage]
            rows, more = page(
                lambda place, count, read=read: read(self._link, place, count),  # type: ignore[misc]
                after,
                limit=limit - len(found),
                place=lambda line: line.place,
                chars=lambda line: line.chars,
            )
            found += rows
            if more or len(found) >= limit:
                return [dict(line.body) for line in found], lines.cursor(stage, found[-1].place)
            stage, after = stage + 1, None
        return [dict(line.body) for line in found], None

    def restore(self, found: Sequence[Mapping[str, Any]], now: datetime) -> Sequence[str]:
        """Store lines in their order; return of each whether it is imported, skipped or tombstoned.

        Raises:
            InvalidRequest: a line is not one of an export; it names the line, from 0, and the field.
        """
        line_shapes.check(found)
        outcomes: list[str] = []
        for kind, run in _runs(found):
            restore = {
                "principal": self._restore_principals,
                "session": self._restore_sessions,
                "turn": self._restore_turns,
                "digest": self._restore_digests,
                "fact": self._restore_facts,
            }[kind]
            try:
                outcomes += restore(run, now)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise InvalidRequest(
                    f"a {kind} line is not one of an export: a field is missing or of another kind"
                ) from error
        return outcomes

    def _restore_principals(self, run: _Run, now: datetime) -> list[str]:
        marks = [PrincipalErasure(str(line["hash"])).marks for line in run]
        return self._insert(
            "INSERT INTO @principals (hash, display) VALUES (:hash, :display) ON CONFLICT (hash) DO NOTHING"
            " RETURNING hash",
            [
                {"hash": str(line["hash"]), "display": str(line["display"])} if is_spared else TOMBSTONED
                for line, is_spared in zip(run, self._spared(marks, run), strict=True)
            ],
        )

    def _restore_sessions(self, run: _Run, now: datetime) -> list[str]:
        owners = _session_owners(run)
        spared = self._spared([_covering(owner) for owner in owners], run)
        kept = [owner for owner, is_spared in zip(owners, spared, strict=True) if is_spared]
        ids = self._owners.ensure_ids([*kept, *map(home_of, kept)])
        return self._insert(
            "INSERT INTO @sessions (owner_id, home_id, last_seq, window_tokens, window_turns, folded_seq,"
            " extracted_seq, digest_version, index_revision, fact_scope, created_at, last_write_at, ended_at)"
            " VALUES (:owner_id, :home_id, :last_seq, 0, 0, :folded_seq, :extracted_seq, 0, 0, :fact_scope,"
            " :created_at, :last_write_at, :ended_at) ON CONFLICT (owner_id) DO NOTHING RETURNING id",
            [
                {
                    "owner_id": ids[owner],
                    "home_id": ids[home_of(owner)],
                    "last_seq": int(line["last_seq"]),
                    "folded_seq": int(line["folded_seq"]),
                    "extracted_seq": int(line["extracted_seq"]),
                    "fact_scope": Scope(line["fact_scope"]).value,
                    "created_at": int(line["created_at"]),
                    "last_write_at": int(line["last_write_at"]),
                    "ended_at": lines.number(line["ended_at"]),
                }
                if is_spared
                else TOMBSTONED
                for line, owner, is_spared in zip(run, owners, spared, strict=True)
            ],
        )

    def _restore_turns(self, run: _Run, now: datetime) -> list[str]:
        owners = _session_owners(run)
        sessions = self._held_sessions(owners, self._spared([_covering(owner) for owner in owners], run), now)
        rows = [
            TOMBSTONED if session is None else {**lines.turn_values(line, self._link), **_place(session)}
            for line, session in zip(run, sessions, strict=True)
        ]
        outcomes = self._insert(f"{INSERT_TURN} ON CONFLICT DO NOTHING RETURNING seq", rows)
        grown: dict[int, dict[str, int]] = {}
        for session, row, outcome in zip(sessions, rows, outcomes, strict=True):
            if session is not None and not isinstance(row, str) and outcome == IMPORTED:
                sums = grown.setdefault(session.id, {"id": session.id, "seq": 0, "turns": 0, "tokens": 0})
                sums["seq"] = max(sums["seq"], row["seq"])
                if row["seq"] > session.folded_seq:
                    sums["turns"] += 1
                    sums["tokens"] += row["tokens"]
        self._link.run_many(
            "UPDATE @sessions SET index_revision = index_revision + 1,"
            " last_seq = CASE WHEN last_seq < :seq THEN :seq ELSE last_seq END,"
            " window_turns = window_turns + :turns, window_tokens = window_tokens + :tokens WHERE id = :id",
            grown.values(),
        )
        return outcomes

    def _restore_digests(self, run: _Run, now: datetime) -> list[str]:
        owners = _session_owners(run)
        sessions = self._held_sessions(owners, self._spared([_covering(owner) for owner in owners], run), now)
        rows: list[Mapping[str, Any] | str] = []
        newest: dict[int, int] = {}
        for line, session in zip(run, sessions, strict=True):
            version, upto_seq = int(line["version"]), int(line["upto_seq"])
            if session is None:
                rows.append(TOMBSTONED)
            elif session.folded_seq < upto_seq:
                rows.append(SKIPPED)
            else:
                rows.append(
                    {
                        **_place(session),
                        "version": version,
                        "upto_seq": upto_seq,
                        "tokens": int(line["tokens"]),
                        "created_at": int(line["created_at"]),
                        "summary": str(line["summary"]),
                    }
                )
                newest[session.id] = max(version, newest.get(session.id, version))
        outcomes = self._insert(
            "INSERT INTO @digests (owner_id, session_id, version, upto_seq, tokens, created_at, summary)"
            " VALUES (:owner_id, :session_id, :version, :upto_seq, :tokens, :created_at, :summary)"
            " ON CONFLICT DO NOTHING RETURNING version",
            rows,
        )
        self._link.run_many(
            "UPDATE @sessions SET digest_version = :version WHERE id = :id AND digest_version < :version",
            [{"id": session_id, "version": version} for session_id, version in newest.items()],
        )
        return outcomes

    def _restore_facts(self, run: _Run, now: datetime) -> list[str]:
        owners = [lines.fact_owner(line) for line in run]
        # Looked for before the tombstones: a fact that is deleted in between has left one.
        known = self._known_facts(run)
        deleted = self._deleted_facts(run)
        spared = [
            is_spared and deleted.get(str(line["id"]), -1) < int(line["created_at"])
            for line, is_spared in zip(run, self._spared([_covering(owner) for owner in owners], run), strict=True)
        ]
        sources = self._sources(run, spared)
        fresh: list[tuple[Owner, Mapping[str, Any], Sequence[FactSource]]] = []
        places: list[Mapping[str, Any] | str] = []
        for line, owner, kept in zip(run, owners, sources, strict=True):
            if kept is None:
                places.append(TOMBSTONED)
            elif str(line["id"]) in known:
                places.append(SKIPPED)
            else:
                fresh.append((owner, line, kept))
                places.append(line)
        stored = iter(self._store_facts(fresh))
        return [place if isinstance(place, str) else next(stored) for place in places]

    def _store_facts(self, fresh: Sequence[tuple[Owner, Mapping[str, Any], Sequence[FactSource]]]) -> list[str]:
        ids = self._owners.ensure_ids([owner for owner, _, _ in fresh])
        histories = self._histories([line for _, line, _ in fresh])
        rows = [
            {**lines.fact_values(line, self._link), **({} if keeps else bare(line["text"])), "owner_id": ids[owner]}
            for (owner, line, _), (_, keeps) in zip(fresh, histories, strict=True)
        ]
        found = self._link.row_of_each(
            f"{INSERT_FACT} ON CONFLICT DO NOTHING RETURNING owner_id, row_id",
            [{**row, "text_hash": self._facts.text_hash(row["text"])} for row in rows],
        )
        stored = [
            ({"owner_id": place[0], "fact_id": place[1]}, history, kept)
            for place, (_, _, kept), (history, _) in zip(found, fresh, histories, strict=True)
            if place is not None
        ]
        self._link.run_many(
            INSERT_SOURCE, [{**place, **source_values(source)} for place, _, kept in stored for source in kept]
        )
        self._link.run_many(INSERT_HISTORY, [{**place, **row} for place, history, _ in stored for row in history])
        self._owners.revise(place["owner_id"] for place, _, _ in stored)
        return [SKIPPED if place is None else IMPORTED for place in found]

    def _histories(self, found: Sequence[Mapping[str, Any]]) -> list[tuple[Sequence[Mapping[str, Any]], bool]]:
        """Return of each fact the lines that no erasure has taken, and whether what its text came with is kept."""
        histories = [[lines.history_values(one) for one in line["history"]] for line in found]
        spared = iter(
            self._spared_at(
                [
                    (_covering_source(FactSource(row["agent"], row["principal"], row["session"])), row["at"])
                    for history in histories
                    for row in history
                ]
            )
        )
        marked = [[(row, next(spared)) for row in history] for history in histories]
        return [([row for row, is_spared in history if is_spared], not history or history[-1][1]) for history in marked]

    def _sources(self, run: _Run, spared: Sequence[bool]) -> list[Sequence[FactSource] | None]:
        """Return the sources of each fact that no erasure has taken; None where the fact is gone itself."""
        named = [
            [lines.fact_source(source) for source in line["sources"]] if is_spared else []
            for line, is_spared in zip(run, spared, strict=True)
        ]
        kept = iter(
            self._spared_at(
                [
                    (_covering_source(source), int(line["created_at"]))
                    for line, sources in zip(run, named, strict=True)
                    for source in sources
                ]
            )
        )
        left = [[source for source in sources if next(kept)] for sources in named]
        return [
            rest if is_spared and (rest or not sources) else None
            for rest, sources, is_spared in zip(left, named, spared, strict=True)
        ]

    def _known_facts(self, run: _Run) -> set[str]:
        found = self._link.rows("SELECT id FROM @facts WHERE id IN [:ids]", {"ids": [str(line["id"]) for line in run]})
        return {row[0] for row in found}

    def _deleted_facts(self, run: _Run) -> dict[str, int]:
        """Return when facts of these ids were deleted one by one."""
        by_key = {self._facts.tombstone(str(line["id"])): str(line["id"]) for line in run}
        found = self._link.rows("SELECT key, erased_at FROM @tombstones WHERE key IN [:keys]", {"keys": sorted(by_key)})
        return {by_key[row[0]]: row[1] for row in found}

    def _held_sessions(self, owners: Sequence[Owner], spared: Sequence[bool], now: datetime) -> list[SessionRow | None]:
        """Return the sessions of what is spared; one whose line did not come first is made, empty and private."""
        wanted = {owner for owner, is_spared in zip(owners, spared, strict=True) if is_spared}
        held = dict(self._sessions.lock_many(wanted))
        for owner in sorted(wanted - set(held)):
            held[owner] = self._sessions.ensure(owner, Scope.PRIVATE, now)
        return [held[owner] if is_spared else None for owner, is_spared in zip(owners, spared, strict=True)]

    def _insert(self, sql: str, rows: Sequence[Mapping[str, Any] | str]) -> list[str]:
        """Insert rows and return what became of each; a string is what is known of one already."""
        found = iter(self._link.row_of_each(sql, [row for row in rows if not isinstance(row, str)]))
        return [row if isinstance(row, str) else SKIPPED if next(found) is None else IMPORTED for row in rows]

    def _spared(self, marks: Sequence[Sequence[Owner]], run: _Run) -> list[bool]:
        return self._spared_at([(some, int(line["created_at"])) for some, line in zip(marks, run, strict=True)])

    def _spared_at(self, covered: Sequence[tuple[Sequence[Owner], int]]) -> list[bool]:
        """Return of each (marks, time of storing) whether no erasure came later; none comes before the commit.

        Only the marks of what is spared are made where they are missing: what was erased is not named again.
        """
        found = self._owners.find(_marks(marks for marks, _ in covered))
        spared = [not _is_erased(found, marks, at) for marks, at in covered]
        held = self._owners.hold(
            _marks(marks for (marks, _), is_spared in zip(covered, spared, strict=True) if is_spared)
        )
        return [
            is_spared and not _is_erased(held, marks, at)
            for (marks, at), is_spared in zip(covered, spared, strict=True)
        ]


def _runs(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, _Run]]:
    """Yield lines of one type that follow each other, no fact twice among them."""
    kind, run, ids = "", list[Mapping[str, Any]](), set[str]()
    for line in found:
        this, name = str(line.get("type")), str(line.get("id"))
        if run and (this != kind or (this == "fact" and name in ids)):
            yield kind, run
            run, ids = [], set()
        kind = this
        run.append(line)
        ids.add(name)
    if run:
        yield kind, run


def _session_owners(run: _Run) -> list[Owner]:
    return [lines.session_owner(line) for line in run]


def _place(session: SessionRow) -> dict[str, int]:
    return {"session_id": session.id, "owner_id": session.home_id}


def _marks(several: Iterable[Sequence[Owner]]) -> list[Owner]:
    return list(dict.fromkeys(mark for marks in several for mark in marks))


def _is_erased(found: Mapping[Owner, OwnerRow], marks: Sequence[Owner], created_at: int) -> bool:
    """Whether one of the marks was erased after something had been stored."""
    rows = (found.get(mark) for mark in marks)
    return any(row is not None and row.erased_at is not None and micros(row.erased_at) >= created_at for row in rows)


def _covering(owner: Owner) -> list[Owner]:
    """Return the marks of every erasure that covers an owner."""
    marks: list[Owner] = []
    if owner.agent:
        marks += AgentErasure(owner.agent).marks + PairErasure(owner.agent, owner.principal).marks
    if owner.principal:
        marks += PrincipalErasure(owner.principal).marks
    if owner.session:
        marks += SessionErasure(owner.agent, owner.principal, owner.session).marks
    return marks


def _covering_source(source: FactSource) -> list[Owner]:
    """Return the marks of every erasure that takes a source away; a pair's takes only what is under its owners."""
    marks: list[Owner] = []
    if source.agent:
        marks += AgentErasure(source.agent).marks
    if source.principal:
        marks += PrincipalErasure(source.principal).marks
    if source.session:
        marks += SessionErasure(source.agent, source.principal, source.session).marks
    return marks
