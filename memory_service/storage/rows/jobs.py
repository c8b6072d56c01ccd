"""The durable queue. Due times and leases compare with the database's clock, so replicas need not agree on theirs.

Two partial unique indexes carry the rules: one queued job per kind and dedupe key, one running job per lane.
A job that must go back while a twin is queued already ends as done and leaves its counts and its age to the twin.
One that succeeds does what its dead twins were to do, so they are done with it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from memory_service.contract.sessions import JobKind, JobState
from memory_service.domain import jobs as retries
from memory_service.ports.records import JobDraft, JobRow, OwnerRow, SessionRow
from memory_service.storage.encoding import dump, micros, moment, moment_or_none
from memory_service.storage.errors import Duplicate
from memory_service.storage.statements import LOCK, Link, Row

_COLUMNS = (
    "j.id, j.kind, j.state, j.attempts, j.run_at, j.created_at, j.finished_at, j.lane, j.session_id, j.owner_id,"
    " j.generation, j.payload, j.error, j.request_id, j.lease_token, j.dedupe_key, j.failures, j.crashes"
)
_SELECT = f"SELECT {_COLUMNS} FROM @jobs AS j"
_HELD = "id = :id AND state = 'running' AND lease_token = :token"
_FREE = "lease_token = NULL, lease_until = NULL, worker = NULL"
_UNTRIED = "attempts = 0, failures = 0, crashes = 0"
_COUNTED = "attempts = :attempts, failures = :failures, crashes = :crashes"
_LOST = "state = 'running' AND (lease_until < {now} OR lease_until > {now} + :longest_lease)"
_NEXT = (
    "q.state = 'queued' AND q.kind = :kind AND q.run_at <= (SELECT {now}) AND (q.lane IS NULL OR NOT EXISTS"
    " (SELECT 1 FROM @jobs AS r WHERE r.state = 'running' AND r.lane IS NOT NULL AND r.lane = q.lane))"
    " ORDER BY q.run_at, q.id LIMIT 1"
)
_KINDS = "(SELECT [[unnest(CAST(:kinds AS TEXT[])) AS kind|value AS kind FROM json_each(:kinds)]]) AS k"
_OF_KIND = "SELECT q.run_at FROM @jobs AS q WHERE q.state = 'queued' AND q.kind = k.kind ORDER BY q.run_at"
_IS_ANY_DUE = f"COALESCE((SELECT MIN(({_OF_KIND} LIMIT 1)) FROM {_KINDS}) <= {{now}}, FALSE)"
_IS_ANY_DOUBTED = f"COALESCE((SELECT MAX(({_OF_KIND} DESC LIMIT 1)) FROM {_KINDS}) > {{now}} + :longest_wait, FALSE)"
_IS_ANY_LOST = f"EXISTS (SELECT 1 FROM @jobs WHERE {_LOST})"
_ALL_KINDS = {"kinds": [kind.value for kind in JobKind]}
_LONGEST_WAIT = {"longest_wait": (retries.LONGEST_WAIT + retries.CLOCK_STEP) // timedelta(microseconds=1)}
_CLAIM_TRIES = 3
_TAKE_BACK_AT_ONCE = 100


@dataclass(frozen=True)
class _Counts:
    """How often a job was tried without its work, and which of these tries were its own fault or crashed."""

    attempts: int = 0
    failures: int = 0
    crashes: int = 0


class JobQueue:
    """The port's Jobs."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def enqueue(self, draft: JobDraft, now: datetime) -> str:
        """Enqueue, or return the id of the queued job with the same kind and dedupe key.

        A queued job that has not failed yet is moved forward when the draft is due earlier. A draft with a payload
        brings it: where to read on, or that it was asked for.
        """
        found = self._link.row(
            "INSERT INTO @jobs AS j (id, kind, state, dedupe_key, lane, attempts, failures, crashes, run_at,"
            " created_at, session_id, owner_id, generation, request_id, payload)"
            " VALUES (:id, :kind, 'queued', :dedupe_key, :lane, 0, 0, 0, :run_at, :now,"
            " :session_id, :owner_id, :generation, :request_id, :payload)"
            " ON CONFLICT (kind, dedupe_key) WHERE state = 'queued' DO UPDATE SET run_at ="
            " CASE WHEN j.attempts = 0 AND excluded.run_at < j.run_at THEN excluded.run_at ELSE j.run_at END,"
            " payload = CASE WHEN excluded.payload = '{}' THEN j.payload ELSE excluded.payload END"
            " RETURNING id",
            {
                "id": str(uuid.uuid4()),
                "kind": draft.kind.value,
                "dedupe_key": draft.dedupe_key,
                "lane": draft.lane,
                "run_at": micros(draft.run_at),
                "now": micros(now),
                "session_id": draft.session_id,
                "owner_id": draft.owner_id,
                "generation": draft.generation,
                "request_id": draft.request_id,
                "payload": dump(dict(draft.payload)),
            },
        )
        assert found is not None
        return str(found[0])

    def claim(
        self, *, kinds: Sequence[JobKind], lease: timedelta, worker: str, max_crashes: int, now: datetime
    ) -> JobRow | None:
        """Take the job that is due longest, whose lane is free.

        Expired leases are taken back first, and so is what a clock wrote that has been set back since.
        """
        self._take_back(lease, max_crashes, now)
        for _ in range(_CLAIM_TRIES):
            try:
                with self._link.savepoint():
                    found = self._claim_one(kinds, lease, worker)
            except Duplicate:
                continue  # another replica took a job of this lane between our look and our update
            return None if found is None else _job_row(found)
        return None

    def is_any_due(self, *, lease: timedelta) -> bool:
        """Return whether a job is due, or is to be taken back first: else a claim, of whatever kind, finds nothing."""
        found = self._link.row(
            f"SELECT {_IS_ANY_DUE} OR {_IS_ANY_DOUBTED} OR {_IS_ANY_LOST}",
            {**_longest_lease(lease), **_LONGEST_WAIT, **_ALL_KINDS},
        )
        assert found is not None
        return bool(found[0])

    def renew(self, job: JobRow, *, lease: timedelta, now: datetime) -> bool:
        """Lengthen the lease; False when it is no longer ours."""
        changed = self._link.run(
            f"UPDATE @jobs SET lease_until = {{now}} + :lease WHERE {_HELD}",
            {**_held(job), "lease": _microseconds(lease)},
        )
        return changed == 1

    def finish(self, job: JobRow, now: datetime) -> bool:
        """Mark as done, its dead twins too; False, and the caller must roll back, when the lease is no longer ours."""
        changed = self._link.run(
            f"UPDATE @jobs SET state = 'done', error = NULL, finished_at = :now, {_FREE} WHERE {_HELD}",
            {**_held(job), "now": micros(now)},
        )
        if changed:
            self._cover_dead_twins(job.id, now)
        return changed == 1

    def fail(self, job: JobRow, *, error: str, is_own: bool, retry_at: datetime | None, now: datetime) -> bool:
        """Put back with a failed attempt, or mark as dead when `retry_at` is None; False when not ours any more.

        `is_own`: the failure is the job's, not an outage's. Of one kind and dedupe key the newest job alone is dead.
        """
        found = self._link.row(f"{_SELECT} WHERE {_HELD.replace('id =', 'j.id =', 1)} {LOCK}", _held(job))
        if found is None:
            return False
        before = _counts(found)
        counts = replace(before, attempts=before.attempts + 1, failures=before.failures + is_own)
        if retry_at is None:
            self._give_up(found, counts, error, now)
        else:
            self._put_back(found, counts, run_at=micros(retry_at), error=error, now=now)
        return True

    def release(self, job: JobRow, now: datetime) -> bool:
        """Hand back without an attempt."""
        found = self._link.row(f"{_SELECT} WHERE {_HELD.replace('id =', 'j.id =', 1)} {LOCK}", _held(job))
        if found is None:
            return False
        self._put_back(found, _counts(found), run_at=found[4], error=found[12], now=now)
        return True

    def get(self, job_id: str) -> JobRow | None:
        """Return a job by id."""
        found = self._link.row(f"{_SELECT} WHERE j.id = :id", {"id": job_id})
        return None if found is None else _job_row(found)

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
        where: list[str] = []
        parameters: dict[str, Any] = {"limit": limit}
        if homes is not None:
            where.append(
                "(j.owner_id IN [:homes] OR j.session_id IN (SELECT s.id FROM @sessions AS s"
                " WHERE s.home_id IN [:homes]))"
            )
            parameters["homes"] = [home.id for home in homes]
        if session is not None:
            where.append("j.session_id IN [:sessions]")
            parameters["sessions"] = [row.id for row in session]
        if state is not None:
            where.append("j.state = :state")
            parameters["state"] = state.value
        if before is not None:
            where.append("(j.created_at < :before OR (j.created_at = :before AND j.id < :before_id))")
            parameters |= {"before": micros(before[0]), "before_id": before[1]}
        conditions = " WHERE " + " AND ".join(where) if where else ""
        found = self._link.rows(f"{_SELECT}{conditions} ORDER BY j.created_at DESC, j.id DESC LIMIT :limit", parameters)
        return [_job_row(row) for row in found]

    def is_running(self, kind: JobKind, session_id: int, now: datetime) -> bool:
        """Return whether a worker holds a job of this kind for a session."""
        found = self._link.row(
            "SELECT 1 FROM @jobs WHERE session_id = :session_id AND kind = :kind AND state = 'running'"
            " AND lease_until >= {now} LIMIT 1",
            {"session_id": session_id, "kind": kind.value},
        )
        return found is not None

    def retry(self, job_id: str, now: datetime) -> bool:
        """Put a dead job back with its counts cleared; False when it is not dead."""
        found = self._link.row(f"{_SELECT} WHERE j.id = :id AND j.state = 'dead' {LOCK}", {"id": job_id})
        if found is None:
            return False
        self._put_back(found, _Counts(), run_at=micros(now), error=None, now=now)
        return True

    def replay(self, state: JobState, now: datetime) -> int:
        """Put every job of a state back; return how many. Of several with one key, one goes back for all."""
        parameters = {"state": state.value, "now": micros(now)}
        if state is JobState.QUEUED:
            return self._link.run(f"UPDATE @jobs SET run_at = :now, {_UNTRIED} WHERE state = :state", parameters)
        replayed = self._link.run(
            f"UPDATE @jobs SET state = 'queued', {_UNTRIED}, run_at = :now, error = NULL, finished_at = NULL, {_FREE}"
            " WHERE id IN (SELECT MIN(j.id) FROM @jobs AS j WHERE j.state = :state AND NOT EXISTS"
            " (SELECT 1 FROM @jobs AS q WHERE q.state = 'queued' AND q.kind = j.kind AND q.dedupe_key = j.dedupe_key)"
            " GROUP BY j.kind, j.dedupe_key)",
            parameters,
        )
        covered = self._link.run(
            f"UPDATE @jobs SET state = 'done', error = NULL, finished_at = :now, {_FREE}"
            " WHERE state = :state AND state <> 'done'",
            parameters,
        )
        return replayed + covered

    def counts(self, now: datetime) -> tuple[Mapping[JobState, int], float]:
        """Return jobs that are not done by state, and how many seconds ago the oldest one was due first.

        Done ones are many, and nobody waits for them. One that failed is late since it was made: its next try is in
        the future, and its work is not done.
        """
        counts = dict.fromkeys((JobState.QUEUED, JobState.RUNNING, JobState.DEAD), 0)
        found = self._link.rows(
            "SELECT state, COUNT(*) FROM @jobs WHERE state IN [:states] GROUP BY state", {"states": list(counts)}
        )
        counts.update({JobState(row[0]): row[1] for row in found})
        oldest = self._link.row(
            "SELECT MIN(CASE WHEN attempts > 0 THEN created_at ELSE run_at END) FROM @jobs WHERE state = 'queued'"
        )
        due_since = None if oldest is None else oldest[0]
        age = 0 if due_since is None else max(0, self._link.now_micros() - due_since)
        return counts, age / 1_000_000

    def forget_done(self, *, before: datetime, limit: int) -> int:
        """Delete finished jobs; return how many."""
        return self._link.run(
            "DELETE FROM @jobs WHERE id IN (SELECT id FROM @jobs WHERE state = 'done' AND finished_at < :before"
            " ORDER BY finished_at LIMIT :limit)",
            {"before": micros(before), "limit": limit},
        )

    def _cover_dead_twins(self, job_id: str, now: datetime) -> None:
        """Let a job stand for those of its kind and key that failed for good before it."""
        self._link.run(
            "UPDATE @jobs SET state = 'done', finished_at = :now WHERE state = 'dead' AND id <> :id"
            " AND (kind, dedupe_key) IN (SELECT j.kind, j.dedupe_key FROM @jobs AS j WHERE j.id = :id)",
            {"id": job_id, "now": micros(now)},
        )

    def _claim_one(self, kinds: Sequence[JobKind], lease: timedelta, worker: str) -> Row | None:
        """Take a job of the kind whose first one is due longest; of the next kind, where others were first.

        Each kind is looked at by itself: behind a long queue of one kind another's jobs are found at once.
        """
        due = self._link.rows(
            "SELECT d.kind FROM (SELECT k.kind,"
            f" (SELECT q.run_at FROM @jobs AS q WHERE {_NEXT.replace(':kind', 'k.kind')}) AS run_at FROM"
            f" {_KINDS}) AS d WHERE d.run_at IS NOT NULL ORDER BY d.run_at",
            {"kinds": [kind.value for kind in kinds]},
        )
        for (kind,) in due:
            found = self._link.row(
                "UPDATE @jobs AS j SET state = 'running', lease_token = :token, lease_until = {now} + :lease,"
                f" worker = :worker WHERE j.id = (SELECT q.id FROM @jobs AS q WHERE {_NEXT}"
                f" [[FOR UPDATE OF q SKIP LOCKED]]) RETURNING {_COLUMNS.replace('j.', '')}",
                {"kind": kind, "token": str(uuid.uuid4()), "lease": _microseconds(lease), "worker": worker},
            )
            if found is not None:
                return found
        return None

    def _take_back(self, lease: timedelta, max_crashes: int, now: datetime) -> None:
        """Put back what nobody holds any more: at once the first time, later after a backoff, in the end as dead.

        Expiries alone are counted: what else a job was tried for, an outage say, makes none the last one or the first.
        A lease that ends later than any can was written by a clock that has been set back since, and a wait of more
        than the longest too. Where replicas have leases of several lengths, a longer one may be cut short by it: its
        worker stores nothing then.
        """
        found = self._link.row(
            f"SELECT {_IS_ANY_LOST}, {_IS_ANY_DOUBTED}", {**_longest_lease(lease), **_LONGEST_WAIT, **_ALL_KINDS}
        )
        assert found is not None
        is_any_lost, is_any_doubted = found
        if is_any_lost:
            self._take_back_lost(lease, max_crashes, now)
        if is_any_lost or is_any_doubted:  # what is put back may have been put off under that clock too
            self._link.run(
                "UPDATE @jobs SET run_at = {now} WHERE state = 'queued' AND kind IN [:kinds]"
                " AND run_at > {now} + :longest_wait",
                {**_LONGEST_WAIT, **_ALL_KINDS},
            )

    def _take_back_lost(self, lease: timedelta, max_crashes: int, now: datetime) -> None:
        lost = self._link.rows(
            f"SELECT {_COLUMNS}, j.lease_until < {{now}} FROM @jobs AS j WHERE {_LOST}"
            " ORDER BY j.lease_until LIMIT :limit [[FOR UPDATE SKIP LOCKED]]",
            {**_longest_lease(lease), "limit": _TAKE_BACK_AT_ONCE},
        )
        for found in lost:
            if found[-1]:
                self._put_back_crashed(found, max_crashes, now)
            else:
                self._put_back(found, _counts(found), run_at=found[4], error=found[12], now=now)

    def _put_back_crashed(self, found: Row, max_crashes: int, now: datetime) -> None:
        before = _counts(found)
        counts = replace(before, attempts=before.attempts + 1, crashes=before.crashes + 1)
        error = f"lease expired, time {counts.crashes}: its worker died, or could not reach the database"
        again = retries.retry_at(failures=counts.crashes, max_failures=max_crashes, now=now, seed=found[0])
        if again is None:
            self._give_up(found, counts, error, now)
        else:
            run_at = found[4] if counts.crashes == 1 else micros(again)
            self._put_back(found, counts, run_at=run_at, error=error, now=now)

    def _give_up(self, found: Row, counts: _Counts, error: str, now: datetime) -> None:
        self._link.run(
            f"UPDATE @jobs SET state = 'dead', {_COUNTED}, error = :error, finished_at = :now, {_FREE} WHERE id = :id",
            {"id": found[0], "error": error, "now": micros(now), **asdict(counts)},
        )
        self._cover_dead_twins(found[0], now)

    def _put_back(self, found: Row, counts: _Counts, *, run_at: int, error: str | None, now: datetime) -> None:
        """Queue a job again, or leave its counts to the twin that was queued while it ran."""
        twin = self._link.row(
            f"SELECT id FROM @jobs WHERE state = 'queued' AND kind = :kind AND dedupe_key = :dedupe_key {LOCK}",
            {"kind": found[1], "dedupe_key": found[15]},
        )
        if twin is None:
            try:
                with self._link.savepoint():
                    self._link.run(
                        f"UPDATE @jobs SET state = 'queued', {_COUNTED}, run_at = :run_at, error = :error,"
                        f" finished_at = NULL, {_FREE} WHERE id = :id",
                        {"id": found[0], "run_at": run_at, "error": error, **asdict(counts)},
                    )
                return
            except Duplicate:
                pass  # a twin was queued meanwhile
            self._put_back(found, counts, run_at=run_at, error=error, now=now)
            return
        self._link.run(
            "UPDATE @jobs SET attempts = CASE WHEN attempts < :attempts THEN :attempts ELSE attempts END,"
            " failures = CASE WHEN failures < :failures THEN :failures ELSE failures END,"
            " crashes = CASE WHEN crashes < :crashes THEN :crashes ELSE crashes END,"
            " run_at = CASE WHEN run_at < :run_at THEN :run_at ELSE run_at END,"
            " created_at = CASE WHEN created_at > :created_at THEN :created_at ELSE created_at END,"
            " payload = CASE WHEN payload = '{}' THEN :payload ELSE payload END,"
            " error = COALESCE(:error, error) WHERE id = :id",
            {
                "id": twin[0],
                "run_at": run_at,
                "created_at": found[5],
                "payload": found[11],
                "error": error,
                **asdict(counts),
            },
        )
        self._link.run(
            f"UPDATE @jobs SET state = 'done', {_COUNTED}, error = :error, finished_at = :now, {_FREE} WHERE id = :id",
            {"id": found[0], "error": error, "now": micros(now), **asdict(counts)},
        )


def _microseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)


def _longest_lease(lease: timedelta) -> dict[str, int]:
    return {"longest_lease": _microseconds(lease + retries.CLOCK_STEP)}


def _held(job: JobRow) -> dict[str, Any]:
    return {"id": job.id, "token": job.lease_token}


def _counts(found: Row) -> _Counts:
    return _Counts(attempts=found[3], failures=found[16], crashes=found[17])


def _job_row(found: Row) -> JobRow:
    return JobRow(
        id=found[0],
        kind=JobKind(found[1]),
        state=JobState(found[2]),
        attempts=found[3],
        failures=found[16],
        crashes=found[17],
        run_at=moment(found[4]),
        created_at=moment(found[5]),
        finished_at=moment_or_none(found[6]),
        lane=found[7],
        session_id=found[8],
        owner_id=found[9],
        generation=found[10],
        payload=json.loads(found[11]),
        error=found[12],
        request_id=found[13],
        lease_token=found[14],
    )
