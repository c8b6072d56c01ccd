"""Requests of a store's admins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from memory_service.client import errors
from memory_service.client.requests import bodies
from memory_service.client.wire import Request
from memory_service.contract.sessions import (
    AdminEraseRequest,
    Diagnostics,
    ExportPage,
    ImportRequest,
    ImportResponse,
    JobState,
    ReplayRequest,
    ReplayResponse,
)
from memory_service.contract.verbs import ForgetResponse, ListResponse


def erase(
    *,
    principal: str | None = None,
    agent: str | None = None,
    session: str | None = None,
    idempotency_key: str | None = None,
) -> Request[ForgetResponse]:
    """Erase a principal, an agent or an agent's session over the whole store."""
    subject = {
        name: value
        for name, value in (("principal", principal), ("agent", agent), ("session", session))
        if value is not None
    }
    body = bodies.checked(AdminEraseRequest, "the erasure", subject=subject)
    return Request(
        "admin.erase",
        "POST",
        "/v1/admin/erase",
        ForgetResponse,
        body=bodies.sent(body),
        idempotency_key=bodies.checked_key(idempotency_key),
    )


def list(*, cursor: str | None = None, limit: int | None = None) -> Request[ListResponse]:
    """One page of everything in the store."""
    return Request("admin.list", "GET", "/v1/admin/list", ListResponse, query=bodies.query(cursor=cursor, limit=limit))


def diagnostics() -> Request[Diagnostics]:
    """Totals of the store."""
    return Request("admin.diagnostics", "GET", "/v1/admin/diagnostics", Diagnostics)


def replay(state: JobState | str = JobState.DEAD, *, idempotency_key: str | None = None) -> Request[ReplayResponse]:
    """Put every job of a state back into the queue."""
    body = bodies.checked(ReplayRequest, "the replay", state=state)
    return Request(
        "admin.replay",
        "POST",
        "/v1/admin/jobs/replay",
        ReplayResponse,
        body=bodies.sent(body),
        idempotency_key=bodies.checked_key(idempotency_key),
    )


def export(*, cursor: str | None = None, limit: int | None = None) -> Request[ExportPage]:
    """One page of an export."""
    return Request(
        "admin.export", "GET", "/v1/admin/export", ExportPage, query=bodies.query(cursor=cursor, limit=limit)
    )


def import_lines(lines: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None) -> Request[ImportResponse]:
    """Import lines of an export; a line that was imported before is skipped."""
    given = {"lines": tuple(lines)}
    try:
        body = ImportRequest.model_validate(given)
    except ValidationError as error:
        raise errors.from_validation(error, "the import", given) from error
    return Request(
        "admin.import",
        "POST",
        "/v1/admin/import",
        ImportResponse,
        body=bodies.sent(body),
        idempotency_key=bodies.checked_key(idempotency_key),
    )
