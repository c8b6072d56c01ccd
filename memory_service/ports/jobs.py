"""The storage port: the durable queue of background work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from memory_service.contract.sessions import JobKind, JobState
from memory_service.ports.records import JobDraft, JobRow, OwnerRow, SessionRow


class Jobs(Protocol):
    """The durable queue."""

    def enqueue(self, draft: JobDraft, now: datetime) -> str:
        """Enqueue, or return the id of the queued job with the same kind and dedupe key."""

    def claim(
        self, *, kinds: Sequence[JobKind], lease: timedelta, worker: str, max_crashes: int, now: datetime
    ) -> JobRow | None:
        """Take the job that is due longest and whose lane is free; expired leases come back first, an attempt each.

        So does, without one, what a clock that has been set back since left held or put off for longer than can be.
        A job whose lease expired `max_crashes` times is dead, whatever else it was tried for in between.
        """

    def is_any_due(self, *, lease: timedelta) -> bool:
        """Return whether a job is due, or is to be taken back first: else a claim, of whatever kind, finds nothing."""

    def renew(self, job: JobRow, *, lease: timedelta, now: datetime) -> bool:
        """Lengthen the lease; False when it is no longer ours."""

    def finish(self, job: JobRow, now: datetime) -> bool:
        """Mark as done, its dead twins too; False, and the caller must roll back, when the lease is no longer ours."""

    def fail(self, job: JobRow, *, error: str, is_own: bool, retry_at: datetime | None, now: datetime) -> bool:
        """Put back with a failed attempt, or mark as dead when `retry_at` is None; False when not ours any more.

        `is_own`: the failure is the job's, not an outage's. Of one kind and dedupe key the newest job alone is dead.
        """

    def release(self, job: JobRow, now: datetime) -> bool:
        """Hand back without an attempt (drain)."""

    def get(self, job_id: str) -> JobRow | None:
        """Return a job by id; the caller checks its owner."""

    def list(
        self,
        *,
        homes: Sequence[OwnerRow] | None,
        state: JobState | None,
        session: Sequence[SessionRow] | None,
        limit: int,
        before: tuple[datetime, str] | None,
    ) -> Sequence[JobRow]:
        """Return jobs, newest first; `homes` None is the admin's view over all owners."""

    def is_running(self, kind: JobKind, session_id: int, now: datetime) -> bool:
        """Return whether a worker holds a job of this kind for a session."""

    def retry(self, job_id: str, now: datetime) -> bool:
        """Put a dead job back with its counts cleared; False when it is not dead."""

    def replay(self, state: JobState, now: datetime) -> int:
        """Put every job of a state back; return how many."""

    def counts(self, now: datetime) -> tuple[Mapping[JobState, int], float]:
        """Return jobs that are not done by state, and the age in seconds of the oldest one that is due."""

    def forget_done(self, *, before: datetime, limit: int) -> int:
        """Delete finished jobs; return how many."""
