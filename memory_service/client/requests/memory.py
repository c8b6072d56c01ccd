"""Requests of the verbs of memory itself: write, recall, remember, list, forget."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from memory_service.client.requests import bodies
from memory_service.client.requests.turns import TurnLike, identified
from memory_service.client.wire import Request
from memory_service.contract.scopes import Scope
from memory_service.contract.verbs import (
    ForgetRequest,
    ForgetResponse,
    ListRequest,
    ListResponse,
    RecallRequest,
    RecallResponse,
    RememberRequest,
    RememberResponse,
    WriteRequest,
    WriteResponse,
)


def write(
    session_id: str,
    turns: Iterable[TurnLike],
    *,
    workspace: str | None = None,
    infer: bool | None = None,
    generation: str | None = None,
    queued_seconds: float | None = None,
    idempotency_key: str | None = None,
) -> Request[WriteResponse]:
    """Append turns to a session. Turns without an id get one made from the idempotency key."""
    key = bodies.checked_key(idempotency_key)
    body = bodies.checked(
        WriteRequest,
        "the write",
        session_id=session_id,
        turns=identified(turns, key),
        workspace=workspace,
        infer=infer,
        generation=generation,
        queued_seconds=queued_seconds,
    )
    return Request("write", "POST", "/v1/write", WriteResponse, body=bodies.sent(body), idempotency_key=key)


def recall(query: str, **options: Any) -> Request[RecallResponse]:
    """Find what is relevant. Options left out (or None) take the binding's and the store's defaults."""
    body = bodies.checked(RecallRequest, "the recall", query=query, **options)
    return Request("recall", "POST", "/v1/recall", RecallResponse, body=bodies.sent(body))


def remember(text: str, *, idempotency_key: str | None = None, **options: Any) -> Request[RememberResponse]:
    """Save a fact now."""
    key = bodies.checked_key(idempotency_key)
    body = bodies.checked(RememberRequest, "the fact", text=text, **options)
    return Request("remember", "POST", "/v1/facts", RememberResponse, body=bodies.sent(body), idempotency_key=key)


def list_items(**options: Any) -> Request[ListResponse]:
    """One page of everything visible at a scope."""
    body = bodies.checked(ListRequest, "the list", **options)
    return Request("list", "POST", "/v1/list", ListResponse, body=bodies.sent(body))


def forget(
    scope: Scope | str | None = None, session_id: str | None = None, *, idempotency_key: str | None = None
) -> Request[ForgetResponse]:
    """Erase the binding's scope, or a session."""
    body = bodies.checked(ForgetRequest, "the erasure", scope=scope, session_id=session_id, confirm=True)
    return Request(
        "forget",
        "POST",
        "/v1/forget",
        ForgetResponse,
        body=bodies.sent(body),
        idempotency_key=bodies.checked_key(idempotency_key),
    )
