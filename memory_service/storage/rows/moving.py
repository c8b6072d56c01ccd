"""Export and import of whole rows: self-contained lines, in an order that an import can follow.

A line names owners by their parts, so it means the same in any store. A line is skipped only where the store has what
it says. A turn whose place another one has moves to the end; facts are merged as by a save; a session and its digests
that go on in this store are left out. What was stored before an erasure that this store knows of, its own or another
one's, stays away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from memory_service.contract.scopes import Scope
from memory_service.domain.owners import Owner, PrincipalErasure, covering
from memory_service.domain.pages import page
from memory_service.errors import InvalidRequest
from memory_service.ports.records import Restored, SessionRow
from memory_service.storage.rows import line_shapes, lines
from memory_service.storage.rows.erasing_until import EraserUntil
from memory_service.storage.rows.facts import FactRows
from memory_service.storage.rows.lines import Line
from memory_service.storage.rows.moved_erasures import ErasureMover
from memory_service.storage.rows.moved_facts import FactMover
from memory_service.storage.rows.moved_turns import TurnMover
from memory_service.storage.rows.owners import OwnerKeys
from memory_service.storage.rows.sessions import SessionRows, home_of
from memory_service.storage.rows.sparing import Sparing
from memory_service.storage.statements import Link

_Run = Sequence[Mapping[str, Any]]
"""Lines of one type, which are stored together."""

IMPORTED, SKIPPED, TOMBSTONED, LEFT_OUT = "imported", "skipped", "tombstoned", "left_out"

_INSERT_DIGEST = (
    "INSERT INTO @digests (owner_id, session_id, version, upto_seq, tokens, created_at, summary)"
    " VALUES (:owner_id, :session_id, :version, :upto_seq, :tokens, :created_at, :summary)"
)


class Mover:
    """The port's Moving."""

    def __init__(
        self, link: Link, owners: OwnerKeys, sessions: SessionRows, facts: FactRows, eraser: EraserUntil
    ) -> None:
        self._link = link
        self._owners = owners
        self._sessions = sessions
        self._sparing = Sparing(owners)
        self._turns = TurnMover(link)
        self._facts = FactMover(link, owners, facts, self._sparing)
        self._erasures = ErasureMover(link, owners, eraser)

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

    def restore(self, found: Sequence[Mapping[str, Any]], now: datetime) -> Restored:
        """Store lines in their order, and carry out the erasures among them.

        Raises:
            InvalidRequest: a line is not one of an export; it names the line, from 0, and the field.
        """
        line_shapes.check(found, embedding_model=self._link.embedding_model, dimension=self._link.dimension)
        outcomes: list[str] = []
        self._erasures.erased.clear()
        self._facts.erased.clear()
        for kind, run in _runs(found):
            restore = {
                "principal": self._restore_principals,
                "session": self._restore_sessions,
                "turn": self._restore_turns,
                "digest": self._restore_digests,
                "fact": self._facts.restore,
                "deleted": self._facts.delete,
                "erased": self._erasures.erase,
                "subject": self._erasures.know,
            }[kind]
            try:
                outcomes += restore(run, now)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise InvalidRequest(
                    f"a {kind} line is not one of an export: a field is missing or of another kind"
                ) from error
        erased = Counter(self._erasures.erased)
        erased.update(self._facts.erased)
        return Restored(outcomes, dict(erased))

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
        spared = self._spared([covering(owner) for owner in owners], run)
        kept = [owner for owner, is_spared in zip(owners, spared, strict=True) if is_spared]
        ids = self._owners.ensure_ids([*kept, *map(home_of, kept)])
        made = iter(
            self._link.row_of_each(
                "INSERT INTO @sessions (owner_id, home_id, last_seq, window_tokens, window_turns, folded_seq,"
                " extracted_seq, digest_version, index_revision, fact_scope, created_at, last_write_at, ended_at)"
                " VALUES (:owner_id, :home_id, :last_seq, 0, 0, :folded_seq, :extracted_seq, :digest_version, 0,"
                " :fact_scope, :created_at, :last_write_at, :ended_at) ON CONFLICT (owner_id) DO NOTHING RETURNING id",
                [
                    {**lines.session_values(line), "owner_id": ids[owner], "home_id": ids[home_of(owner)]}
                    for line, owner, is_spared in zip(run, owners, spared, strict=True)
                    if is_spared
                ],
            )
        )
        new = [next(made) is not None if is_spared else False for is_spared in spared]
        held = self._sessions.lock_many(set(kept))
        self._link.run_many(
            _INSERT_DIGEST,
            [
                {**_place(held[owner]), **lines.digest_values(line["digest"])}
                for line, owner, is_new in zip(run, owners, new, strict=True)
                if is_new and line["digest"] is not None
            ],
        )
        folded = [
            (held[owner], line["digest"])
            for line, owner, is_spared in zip(run, owners, spared, strict=True)
            if is_spared and line["digest"] is not None
        ]
        alike = iter(self._are_alike(folded))
        outcomes = []
        for line, is_spared, is_new in zip(run, spared, new, strict=True):
            is_alike = next(alike) if is_spared and line["digest"] is not None else True
            outcomes.append(TOMBSTONED if not is_spared else IMPORTED if is_new else SKIPPED if is_alike else LEFT_OUT)
        return outcomes

    def _restore_turns(self, run: _Run, now: datetime) -> list[str]:
        owners = _session_owners(run)
        sessions = self._held_sessions(owners, self._spared([covering(owner) for owner in owners], run), now)
        rows = [
            (session, {**lines.turn_values(line, self._link), **_place(session)})
            for line, session in zip(run, sessions, strict=True)
            if session is not None
        ]
        stored = iter(self._turns.restore(rows))
        return [TOMBSTONED if session is None else IMPORTED if next(stored) else SKIPPED for session in sessions]

    def _restore_digests(self, run: _Run, now: datetime) -> list[str]:
        """Store versions before the one that came with their session, or that it has made here since."""
        owners = _session_owners(run)
        sessions = self._held_sessions(owners, self._spared([covering(owner) for owner in owners], run), now)
        rows: list[Mapping[str, Any] | str] = []
        for line, session in zip(run, sessions, strict=True):
            values = lines.digest_values(line)
            if session is None:
                rows.append(TOMBSTONED)
            elif session.digest_version <= values["version"] or session.folded_seq < values["upto_seq"]:
                rows.append(LEFT_OUT)
            else:
                rows.append({**_place(session), **values})
        outcomes = self._insert(f"{_INSERT_DIGEST} ON CONFLICT DO NOTHING RETURNING version", rows)
        there = [
            index
            for index, (session, outcome) in enumerate(zip(sessions, outcomes, strict=True))
            if session is not None and outcome in (SKIPPED, LEFT_OUT)
        ]
        held = [(session, run[index]) for index in there if (session := sessions[index]) is not None]
        for index, is_alike in zip(there, self._are_alike(held), strict=True):
            outcomes[index] = SKIPPED if is_alike else LEFT_OUT
        return outcomes

    def _are_alike(self, digests: Sequence[tuple[SessionRow, Mapping[str, Any]]]) -> list[bool]:
        """Return of each digest whether its session has it."""
        found = self._link.row_of_each(
            "SELECT d.upto_seq, d.summary FROM @digests AS d"
            " WHERE d.owner_id = :owner_id AND d.session_id = :session_id AND d.version = :version",
            [{**_place(session), "version": int(digest["version"])} for session, digest in digests],
        )
        return [row == (digest["upto_seq"], digest["summary"]) for row, (_, digest) in zip(found, digests, strict=True)]

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
        return self._sparing.spared([(some, int(line["created_at"])) for some, line in zip(marks, run, strict=True)])


def _runs(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, _Run]]:
    """Yield lines of one type that follow each other, no fact twice among them."""
    kind, run, ids = "", list[Mapping[str, Any]](), set[str]()
    for line in found:
        this, name = str(line.get("type")), str(line.get("id"))
        if run and (this != kind or (this in ("fact", "deleted") and name in ids)):
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
