"""Requests about sessions."""

from __future__ import annotations

from typing import Literal

from memory_service.client.requests import bodies
from memory_service.client.wire import Request
from memory_service.contract.ids import SessionId
from memory_service.contract.sessions import (
    SessionAction,
    SessionActionResponse,
    SessionDetail,
    SessionsResponse,
    TurnsResponse,
)


def list(
    *, workspace: str | None = None, cursor: str | None = None, limit: int | None = None
) -> Request[SessionsResponse]:
    """One page of the caller's sessions of a workspace, or of none, newest write first."""
    query = bodies.query(workspace=workspace, cursor=cursor, limit=limit)
    return Request("sessions.list", "GET", "/v1/sessions", SessionsResponse, query=query)


def get(session_id: str, *, workspace: str | None = None) -> Request[SessionDetail]:
    """A session with its window and digests."""
    path = f"/v1/sessions/{bodies.segment('session_id', session_id, SessionId)}"
    return Request("sessions.get", "GET", path, SessionDetail, query=bodies.query(workspace=workspace))


def turns(
    session_id: str, *, after: int | None = None, limit: int | None = None, workspace: str | None = None
) -> Request[TurnsResponse]:
    """Every turn kept, in order, page by page."""
    path = f"/v1/sessions/{bodies.segment('session_id', session_id, SessionId)}/turns"
    return Request(
        "sessions.turns", "GET", path, TurnsResponse, query=bodies.query(after=after, limit=limit, workspace=workspace)
    )


def act(
    action: Literal["end", "compact", "flush"],
    session_id: str,
    *,
    workspace: str | None = None,
    idempotency_key: str | None = None,
) -> Request[SessionActionResponse]:
    """End, compact or flush a session."""
    path = f"/v1/sessions/{bodies.segment('session_id', session_id, SessionId)}/{action}"
    body = bodies.checked(SessionAction, "the action", workspace=workspace)
    return Request(
        f"sessions.{action}",
        "POST",
        path,
        SessionActionResponse,
        body=bodies.sent(body),
        idempotency_key=bodies.checked_key(idempotency_key),
    )
