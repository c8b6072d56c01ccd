"""Requests about jobs."""

from __future__ import annotations

from memory_service.client.requests import bodies
from memory_service.client.wire import Request
from memory_service.contract.sessions import Job, JobsResponse, JobState


def list(
    *,
    state: JobState | str | None = None,
    session_id: str | None = None,
    workspace: str | None = None,
    cursor: str | None = None,
    limit: int | None = None,
) -> Request[JobsResponse]:
    """One page of jobs of a workspace, or of none, newest first."""
    query = bodies.query(state=state, session_id=session_id, workspace=workspace, cursor=cursor, limit=limit)
    return Request("jobs.list", "GET", "/v1/jobs", JobsResponse, query=query)


def get(job_id: str) -> Request[Job]:
    """One job."""
    return Request("jobs.get", "GET", f"/v1/jobs/{bodies.segment('job_id', job_id)}", Job)


def retry(job_id: str, *, idempotency_key: str | None = None) -> Request[Job]:
    """Put a job back into the queue."""
    path = f"/v1/jobs/{bodies.segment('job_id', job_id)}/retry"
    return Request("jobs.retry", "POST", path, Job, body={}, idempotency_key=bodies.checked_key(idempotency_key))
