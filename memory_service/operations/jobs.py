"""`jobs`: the state of background work, for its owner."""

from __future__ import annotations

from collections.abc import Sequence

from memory_service.contract.sessions import Job, JobsResponse, JobState
from memory_service.domain import scopes
from memory_service.domain.callers import Caller
from memory_service.errors import Conflict, NotFound
from memory_service.operations.cursors import decode_cursor, encode_cursor, time_of, time_part
from memory_service.operations.once import RequestKey, once
from memory_service.operations.services import Services
from memory_service.ports.records import JobRow, SessionRow
from memory_service.ports.storage import Transaction


async def list_jobs(
    services: Services,
    caller: Caller,
    *,
    state: JobState | None,
    session_id: str | None,
    workspace: str | None,
    cursor: str | None,
    limit: int,
) -> JobsResponse:
    """Return the caller's jobs of one workspace partition, newest first."""
    home = scopes.home_owner(caller, workspace)
    before = None
    if cursor is not None:
        micros, job_id = decode_cursor(cursor, int, str)
        before = (time_of(micros), str(job_id))

    def read(tx: Transaction) -> JobsResponse:
        homes = list(tx.owners.find([home]).values())
        sessions: list[SessionRow] | None = None
        if session_id is not None:
            session = tx.sessions.find(scopes.session_owner(caller, session_id, workspace))
            sessions = [session] if session is not None else []
        rows = tx.jobs.list(homes=homes, state=state, session=sessions, limit=limit + 1, before=before)
        more = len(rows) > limit
        rows = rows[:limit]
        names = _session_names(tx, rows)
        last = rows[-1] if rows else None
        return JobsResponse(
            jobs=tuple(job_answer(row, names) for row in rows),
            next_cursor=encode_cursor(time_part(last.created_at), last.id) if more and last else None,
        )

    return await services.storage.read(read)


async def get_job(services: Services, caller: Caller, job_id: str) -> Job:
    """Return one job of the caller."""

    def read(tx: Transaction) -> Job:
        row = _own_job(tx, caller, job_id)
        return job_answer(row, _session_names(tx, [row]))

    return await services.storage.read(read)


async def retry_job(services: Services, caller: Caller, job_id: str, *, request_key: RequestKey | None = None) -> Job:
    """Put a dead job of the caller back into the queue.

    Raises:
        Conflict: the job is not dead.
    """

    def work(tx: Transaction) -> Job:
        row = _own_job(tx, caller, job_id)
        if not tx.jobs.retry(job_id, tx.now()):
            raise Conflict(f"job {job_id} is {row.state.value}, not dead; only dead jobs are retried by hand")
        again = tx.jobs.get(job_id) or row
        return job_answer(again, _session_names(tx, [again]))

    home = scopes.home_owner(caller)
    answer = await services.storage.transact(lambda tx: once(tx, home, request_key, Job, lambda: work(tx)))
    services.wake()
    return answer


def job_answer(row: JobRow, session_names: dict[int, str]) -> Job:
    """Return a job as it is answered."""
    return Job(
        id=row.id,
        kind=row.kind,
        state=row.state,
        attempts=row.attempts,
        error=row.error,
        session_id=session_names.get(row.session_id) if row.session_id is not None else None,
        created_at=row.created_at,
        run_at=row.run_at,
        finished_at=row.finished_at,
    )


def _session_names(tx: Transaction, rows: Sequence[JobRow]) -> dict[int, str]:
    found = tx.sessions.get_many({row.session_id for row in rows if row.session_id is not None})
    return {number: session.owner.session for number, session in found.items()}


def _own_job(tx: Transaction, caller: Caller, job_id: str) -> JobRow:
    row = tx.jobs.get(job_id)
    owner = tx.owners.get(row.owner_id) if row is not None and row.owner_id is not None else None
    if row is None or owner is None or not scopes.owns(caller, owner.owner):
        raise NotFound(f"no job {job_id!r} of this agent and user")
    return row
