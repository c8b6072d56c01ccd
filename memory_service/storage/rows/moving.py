"""Export and import of whole rows: self-contained lines, in an order that an import can follow.

A line names owners by their parts, so it means the same in any store. An import never overwrites: a line whose row is
there is skipped, and one that a tombstone of this store names, stored before that erasure, is refused as tombstoned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from memory_service.contract.scopes import Scope
from memory_service.domain.owners import AgentErasure, Owner, PairErasure, PrincipalErasure, SessionErasure
from memory_service.errors import InvalidRequest
from memory_service.ports.records import FactSource
from memory_service.storage.encoding import micros
from memory_service.storage.rows import lines
from memory_service.storage.rows.fact_columns import INSERT as INSERT_FACT
from memory_service.storage.rows.facts import FactRows
from memory_service.storage.rows.lines import Line
from memory_service.storage.rows.owners import OwnerKeys
from memory_service.storage.rows.sessions import SessionRows, home_of
from memory_service.storage.rows.turns import INSERT as INSERT_TURN
from memory_service.storage.statements import Link

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
            page = lines.STAGES[stage](self._link, after, limit - len(found))
            found += page
            if len(found) >= limit:
                return [dict(line.body) for line in found], lines.cursor(stage, found[-1].place)
            stage, after = stage + 1, None
        return [dict(line.body) for line in found], None

    def restore(self, line: Mapping[str, Any], now: datetime) -> str:
        """Store one line; return imported, skipped or tombstoned.

        Raises:
            InvalidRequest: the line is not one of an export.
        """
        restore = {
            "principal": self._restore_principal,
            "session": self._restore_session,
            "turn": self._restore_turn,
            "digest": self._restore_digest,
            "fact": self._restore_fact,
        }.get(str(line.get("type")))
        if restore is None:
            raise InvalidRequest(
                f"line type {str(line.get('type'))[:40]!r} is not known; expected principal, session, turn, digest"
                " or fact, as an export writes them"
            )
        try:
            return restore(line, now)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InvalidRequest(
                f"a {line['type']} line is not one of an export: a field is missing or of another kind"
            ) from error

    def _restore_principal(self, line: Mapping[str, Any], now: datetime) -> str:
        name = str(line["hash"])
        if self._is_erased(PrincipalErasure(name).marks, int(line["created_at"])):
            return TOMBSTONED
        stored = self._link.run(
            "INSERT INTO @principals (hash, display) VALUES (:hash, :display) ON CONFLICT (hash) DO NOTHING",
            {"hash": name, "display": str(line["display"])},
        )
        return IMPORTED if stored else SKIPPED

    def _restore_session(self, line: Mapping[str, Any], now: datetime) -> str:
        owner = lines.session_owner(line)
        if self._is_erased(_covering(owner), int(line["created_at"])):
            return TOMBSTONED
        stored = self._link.run(
            "INSERT INTO @sessions (owner_id, home_id, last_seq, window_tokens, window_turns, folded_seq,"
            " extracted_seq, digest_version, index_revision, fact_scope, created_at, last_write_at, ended_at)"
            " VALUES (:owner_id, :home_id, :last_seq, 0, 0, :folded_seq, :extracted_seq, 0, 0, :fact_scope,"
            " :created_at, :last_write_at, :ended_at) ON CONFLICT (owner_id) DO NOTHING",
            {
                "owner_id": self._owners.ensure_id(owner),
                "home_id": self._owners.ensure_id(home_of(owner)),
                "last_seq": int(line["last_seq"]),
                "folded_seq": int(line["folded_seq"]),
                "extracted_seq": int(line["extracted_seq"]),
                "fact_scope": Scope(line["fact_scope"]).value,
                "created_at": int(line["created_at"]),
                "last_write_at": int(line["last_write_at"]),
                "ended_at": lines.number(line["ended_at"]),
            },
        )
        return IMPORTED if stored else SKIPPED

    def _restore_turn(self, line: Mapping[str, Any], now: datetime) -> str:
        owner = lines.session_owner(line)
        if self._is_erased(_covering(owner), int(line["created_at"])):
            return TOMBSTONED
        session_id, home_id = self._session(owner, now)
        values = lines.turn_values(line, self._link)
        stored = self._link.run(
            f"{INSERT_TURN} ON CONFLICT DO NOTHING", {**values, "session_id": session_id, "owner_id": home_id}
        )
        if stored:
            self._link.run(
                "UPDATE @sessions SET index_revision = index_revision + 1,"
                " last_seq = CASE WHEN last_seq < :seq THEN :seq ELSE last_seq END,"
                " window_turns = window_turns + CASE WHEN :seq > folded_seq THEN 1 ELSE 0 END,"
                " window_tokens = window_tokens + CASE WHEN :seq > folded_seq THEN :tokens ELSE 0 END"
                " WHERE id = :id",
                {"id": session_id, "seq": values["seq"], "tokens": values["tokens"]},
            )
        return IMPORTED if stored else SKIPPED

    def _restore_digest(self, line: Mapping[str, Any], now: datetime) -> str:
        owner = lines.session_owner(line)
        if self._is_erased(_covering(owner), int(line["created_at"])):
            return TOMBSTONED
        session_id, home_id = self._session(owner, now)
        values = {
            "session_id": session_id,
            "version": int(line["version"]),
            "upto_seq": int(line["upto_seq"]),
        }
        fits = self._link.row(
            "SELECT id FROM @sessions WHERE id = :session_id AND folded_seq >= :upto_seq",
            {"session_id": session_id, "upto_seq": values["upto_seq"]},
        )
        if fits is None:
            return SKIPPED
        stored = self._link.run(
            "INSERT INTO @digests (owner_id, session_id, version, upto_seq, tokens, created_at, summary)"
            " VALUES (:owner_id, :session_id, :version, :upto_seq, :tokens, :created_at, :summary)"
            " ON CONFLICT DO NOTHING",
            {
                **values,
                "owner_id": home_id,
                "tokens": int(line["tokens"]),
                "created_at": int(line["created_at"]),
                "summary": str(line["summary"]),
            },
        )
        self._link.run(
            "UPDATE @sessions SET digest_version = :version WHERE id = :session_id AND digest_version < :version",
            {"session_id": session_id, "version": values["version"]},
        )
        return IMPORTED if stored else SKIPPED

    def _restore_fact(self, line: Mapping[str, Any], now: datetime) -> str:
        owner = lines.fact_owner(line)
        created_at = int(line["created_at"])
        if self._is_deleted(str(line["id"]), created_at) or self._is_erased(_covering(owner), created_at):
            return TOMBSTONED
        sources = [lines.fact_source(source) for source in line["sources"]]
        kept = [source for source in sources if not self._is_erased(_covering_source(source), created_at)]
        if sources and not kept:
            return TOMBSTONED
        if self._facts.get(str(line["id"])) is not None:
            return SKIPPED
        return self._store_fact(line, owner, kept)

    def _store_fact(self, line: Mapping[str, Any], owner: Owner, sources: Sequence[FactSource]) -> str:
        owner_id = self._owners.ensure_id(owner)
        values = lines.fact_values(line, self._link)
        found = self._link.row(
            f"{INSERT_FACT} ON CONFLICT DO NOTHING RETURNING row_id",
            {**values, "owner_id": owner_id, "text_hash": self._facts.text_hash(values["text"])},
        )
        if found is None:
            return SKIPPED
        for source in sources:
            self._facts.write_source(owner_id, found[0], source)
        self._link.run_many(
            "INSERT INTO @fact_history (owner_id, fact_id, at, event, actor, agent, principal, session, text)"
            " VALUES (:owner_id, :fact_id, :at, :event, :actor, :agent, :principal, :session, :text)",
            [
                {**values, "owner_id": owner_id, "fact_id": found[0]}
                for values in map(lines.history_values, line["history"])
                if not self._is_erased(
                    _covering_source(FactSource(values["agent"], values["principal"], values["session"])), values["at"]
                )
            ],
        )
        self._owners.revise([owner_id])
        return IMPORTED

    def _session(self, owner: Owner, now: datetime) -> tuple[int, int]:
        """Return the session's number and home; one whose line did not come first is made, empty and private."""
        found = self._sessions.find(owner)
        row = self._sessions.ensure(owner, Scope.PRIVATE if found is None else found.fact_scope, now)
        return row.id, row.home_id

    def _is_erased(self, marks: Sequence[Owner], created_at: int) -> bool:
        """Whether one of the marks was erased after something had been stored."""
        found = self._owners.find(marks).values()
        return any(row.erased_at is not None and micros(row.erased_at) >= created_at for row in found)

    def _is_deleted(self, fact_id: str, created_at: int) -> bool:
        found = self._link.row(
            "SELECT 1 FROM @tombstones WHERE key = :key AND erased_at >= :created_at",
            {"key": self._facts.tombstone(fact_id), "created_at": created_at},
        )
        return found is not None


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
