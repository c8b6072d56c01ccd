"""`sessions`: look at conversations, end them, flush and compact them."""

from __future__ import annotations

from collections.abc import Callable

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
from memory_service.domain.pages import page
from memory_service.errors import NotFound
from memory_service.operations.cursors import decode_cursor, encode_cursor, time_of, time_part
from memory_service.operations.enqueue import extract_job, fold_job, index_job
from memory_service.operations.once import RequestKey, once
from memory_service.operations.services import Services
from memory_service.operations.turns import shown_answer, turn_answer, turn_chars
from memory_service.operations.windows import read_window
from memory_service.ports.records import DigestRow, JobDraft, SessionRow
from memory_service.ports.storage import Transaction


async def list_sessions(
    services: Services, caller: Caller, *, workspace: str | None, cursor: str | None, limit: int
) -> SessionsResponse:
    """Return the caller's sessions of one workspace partition, newest write first."""
    home = scopes.home_owner(caller, workspace)
    before = None
    if cursor is not None:
        micros, number = decode_cursor(cursor, int, int)
        before = (time_of(micros), int(number))

    def read(tx: Transaction) -> SessionsResponse:
        homes = list(tx.owners.find([home]).values())
        rows = tx.sessions.list(homes, limit=limit + 1, before=before)
        more = len(rows) > limit
        rows = rows[:limit]
        last = rows[-1] if rows else None
        return SessionsResponse(
            sessions=tuple(session_summary(row) for row in rows),
            next_cursor=encode_cursor(time_part(last.last_write_at), last.id) if more and last else None,
        )

    return await services.storage.read(read)


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
        rows, more = page(
            lambda place, count: tx.turns.between(session, after=place, upto=None, limit=count),
            after,
            limit=limit,
            place=lambda row: row.seq,
            chars=turn_chars,
        )
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
