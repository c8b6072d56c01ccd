"""`sessions`: look at conversations, end them, flush and compact them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from memory_service.contract.sessions import (
    Digest,
    JobKind,
    SessionActionResponse,
    SessionDetail,
    SessionsResponse,
    SessionSummary,
    TurnsResponse,
)
from memory_service.contract.verbs import Degraded
from memory_service.domain import scopes
from memory_service.domain.callers import Caller
from memory_service.errors import NotFound
from memory_service.operations.cursors import decode_cursor, encode_cursor, time_of, time_part
from memory_service.operations.enqueue import extract_job, fold_job, index_job
from memory_service.operations.once import RequestKey, once
from memory_service.operations.services import Services
from memory_service.operations.turns import shown_answer, turn_answer, turn_page
from memory_service.operations.windows import read_window
from memory_service.ports.records import DigestRow, JobDraft, SessionRow
from memory_service.ports.storage import Transaction


async def list_sessions(
    services: Services, caller: Caller, *, workspace: str | None, cursor: str | None, limit: int
) -> SessionsResponse:
    """Return the caller's sessions of one workspace partition, newest write first.

    A session that is written to moves to the front while others page on. So the last pages are of all that were written
    to since shortly before the first one: such a session may come twice, none is left out.
    """
    home = scopes.home_owner(caller, workspace)
    place = _Place.read(cursor) if cursor is not None else None

    def read(tx: Transaction) -> SessionsResponse:
        homes = list(tx.owners.find([home]).values())
        began = tx.now() - _WRITES_UNDER_WAY if place is None else place.began
        if place is None or place.written_at is not None:
            before = None if place is None or place.written_at is None else (place.written_at, place.number)
            rows = tx.sessions.list(homes, limit=limit + 1, before=before)
        else:
            rows = tx.sessions.written_since(homes, began, after=place.number, limit=limit + 1)
        shown, following = rows[:limit], None
        if len(rows) > limit:
            is_again = place is not None and place.written_at is None
            following = _Place(began, None if is_again else shown[-1].last_write_at, shown[-1].id)
        elif place is not None and place.written_at is not None:
            following = _Place(began, None, 0)
        return SessionsResponse(
            sessions=tuple(session_summary(row) for row in shown),
            next_cursor=following.cursor() if following is not None else None,
        )

    return await services.storage.read(read)


_WRITES_UNDER_WAY = timedelta(seconds=10)
"""How long before a list began a write may have taken its time that was not there yet when the first page was read."""


@dataclass(frozen=True)
class _Place:
    """Where a page ended: when the list began, and the last session; without a time of it those written to since then
    are gone through once more.
    """

    began: datetime
    written_at: datetime | None
    number: int

    @classmethod
    def read(cls, cursor: str) -> _Place:
        began, written_at, number = (int(part) for part in decode_cursor(cursor, int, int, int))
        return cls(time_of(began), time_of(written_at) if written_at else None, number)

    def cursor(self) -> str:
        return encode_cursor(time_part(self.began), time_part(self.written_at) if self.written_at else 0, self.number)


async def get_session(services: Services, caller: Caller, session_id: str, *, workspace: str | None) -> SessionDetail:
    """Return a session with its window and its kept digests."""

    def read(tx: Transaction) -> SessionDetail:
        session = _own_session(tx, caller, session_id, workspace)
        view = read_window(tx, session, services.config, services.counter)
        digests = tx.digests.list(session.id, limit=services.config.medium_term.digest_retention)
        return SessionDetail(
            session=session_summary(session),
            window=tuple(shown_answer(shown) for shown in view.turns),
            digests=tuple(_digest_answer(row) for row in digests),
            degraded=(Degraded(part="short_term", reason="WindowCut"),) if view.cut else (),
        )

    return await services.storage.read(read)


async def read_turns(
    services: Services, caller: Caller, session_id: str, *, workspace: str | None, after: int, limit: int
) -> TurnsResponse:
    """Return every turn kept of a session after a seq, in order and whole."""

    def read(tx: Transaction) -> TurnsResponse:
        session = _own_session(tx, caller, session_id, workspace)
        rows, more = turn_page(tx, session, after=after, limit=limit)
        return TurnsResponse(turns=tuple(turn_answer(row) for row in rows), next_after=rows[-1].seq if more else None)

    return await services.storage.read(read)


async def end_session(
    services: Services,
    caller: Caller,
    session_id: str,
    *,
    workspace: str | None,
    request_id: str | None,
    request_key: RequestKey | None = None,
) -> SessionActionResponse:
    """Mark a session as ended and extract what waits, however short it was; a later write opens it again."""

    def work(tx: Transaction) -> SessionActionResponse:
        session = _own_session(tx, caller, session_id, workspace)
        tx.sessions.end(session.id, tx.now())
        return _scheduled(tx, session_id, [extract_job(services, session, tx.now(), request_id, force=True)])

    return await _act(services, caller, request_key, work)


async def flush_session(
    services: Services,
    caller: Caller,
    session_id: str,
    *,
    workspace: str | None,
    request_id: str | None,
    request_key: RequestKey | None = None,
) -> SessionActionResponse:
    """Index and extract what waits now, without ending the session."""

    def work(tx: Transaction) -> SessionActionResponse:
        session = _own_session(tx, caller, session_id, workspace)
        now = tx.now()
        drafts = [
            index_job(services.config, session, now, request_id),
            extract_job(services, session, now, request_id, force=True),
        ]
        return _scheduled(tx, session_id, drafts)

    return await _act(services, caller, request_key, work)


async def compact_session(
    services: Services,
    caller: Caller,
    session_id: str,
    *,
    workspace: str | None,
    request_id: str | None,
    request_key: RequestKey | None = None,
) -> SessionActionResponse:
    """Fold the window down to its target now; `busy` while a fold of this session is running.

    Nothing is scheduled for a window that is within its target already.
    """

    def work(tx: Transaction) -> SessionActionResponse:
        session = _own_session(tx, caller, session_id, workspace)
        if tx.jobs.is_running(JobKind.FOLD, session.id, tx.now()):
            return SessionActionResponse(session_id=session_id, jobs=(), scheduled=False, busy=True)
        return _scheduled(tx, session_id, [fold_job(services, session, tx.now(), request_id, force=True)])

    return await _act(services, caller, request_key, work)


def session_summary(row: SessionRow) -> SessionSummary:
    """Return a session as it is answered."""
    return SessionSummary(
        session_id=row.owner.session,
        workspace=row.owner.workspace or None,
        created_at=row.created_at,
        last_write_at=row.last_write_at,
        ended_at=row.ended_at,
        last_seq=row.last_seq,
        turns=row.window_turns,
        tokens=row.window_tokens,
        digest_version=row.digest_version,
    )


def _digest_answer(row: DigestRow) -> Digest:
    return Digest(
        version=row.version, summary=row.summary, upto_seq=row.upto_seq, tokens=row.tokens, created_at=row.created_at
    )


def _own_session(tx: Transaction, caller: Caller, session_id: str, workspace: str | None) -> SessionRow:
    session = tx.sessions.find(scopes.session_owner(caller, session_id, workspace))
    if session is None:
        raise NotFound(f"no session {session_id!r} of this agent and user; write a turn to start it")
    return session


def _scheduled(tx: Transaction, session_id: str, drafts: list[JobDraft | None]) -> SessionActionResponse:
    now = tx.now()
    jobs = tuple(tx.jobs.enqueue(draft, now) for draft in drafts if draft is not None)
    return SessionActionResponse(session_id=session_id, jobs=jobs, scheduled=bool(jobs))


async def _act(
    services: Services,
    caller: Caller,
    request_key: RequestKey | None,
    work: Callable[[Transaction], SessionActionResponse],
) -> SessionActionResponse:
    home = scopes.home_owner(caller)
    answer = await services.storage.transact(
        lambda tx: once(tx, home, request_key, SessionActionResponse, lambda: work(tx))
    )
    if answer.jobs:
        services.wake()
    return answer
