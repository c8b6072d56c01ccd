"""Requests about single facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from memory_service.client import errors
from memory_service.client.requests import bodies
from memory_service.client.wire import Request
from memory_service.contract.items import Item
from memory_service.contract.scopes import Scope
from memory_service.contract.verbs import (
    FactBatchRequest,
    FactBatchResponse,
    FactPatch,
    ForgetResponse,
    HistoryResponse,
    ListResponse,
    NewFact,
    SupersedeRequest,
)


def get(fact_id: str) -> Request[Item]:
    """One fact."""
    return Request("facts.get", "GET", f"/v1/facts/{bodies.segment('fact_id', fact_id)}", Item)


def patch(fact_id: str, *, idempotency_key: str | None = None, **changes: Any) -> Request[Item]:
    """Correct one fact; what is left out stays, and None clears what can be cleared."""
    path = f"/v1/facts/{bodies.segment('fact_id', fact_id)}"
    given = {name: bodies.plain(value) for name, value in changes.items()}
    try:
        body = FactPatch.model_validate(given)
    except ValidationError as error:
        raise errors.from_validation(error, "the correction", given) from error
    return Request(
        "facts.patch", "PATCH", path, Item, body=bodies.sent(body), idempotency_key=bodies.checked_key(idempotency_key)
    )


def delete(fact_id: str, *, idempotency_key: str | None = None) -> Request[ForgetResponse]:
    """Delete one fact."""
    path = f"/v1/facts/{bodies.segment('fact_id', fact_id)}"
    return Request("facts.delete", "DELETE", path, ForgetResponse, idempotency_key=bodies.checked_key(idempotency_key))


def list(
    *,
    scope: Scope | str | None = None,
    session_id: str | None = None,
    workspace: str | None = None,
    cursor: str | None = None,
    limit: int | None = None,
) -> Request[ListResponse]:
    """One page of facts."""
    query = bodies.query(scope=scope, session_id=session_id, workspace=workspace, cursor=cursor, limit=limit)
    return Request("facts.list", "GET", "/v1/facts", ListResponse, query=query)


def batch(
    facts: Iterable[NewFact | Mapping[str, Any]],
    *,
    generation: str | None = None,
    idempotency_key: str | None = None,
) -> Request[FactBatchResponse]:
    """Save facts together, all or none."""
    given = [bodies.sent(fact) if isinstance(fact, NewFact) else fact for fact in facts]
    body = bodies.checked(FactBatchRequest, "the batch", facts=given, generation=generation)
    return Request(
        "facts.batch",
        "POST",
        "/v1/facts/batch",
        FactBatchResponse,
        body=bodies.sent(body),
        idempotency_key=bodies.checked_key(idempotency_key),
    )


def history(fact_id: str) -> Request[HistoryResponse]:
    """A fact's changes, oldest first."""
    return Request("facts.history", "GET", f"/v1/facts/{bodies.segment('fact_id', fact_id)}/history", HistoryResponse)


def supersede(fact_id: str, text: str, *, idempotency_key: str | None = None, **options: Any) -> Request[Item]:
    """Put another statement in a fact's place; the old one keeps its validity and its successor."""
    path = f"/v1/facts/{bodies.segment('fact_id', fact_id)}/supersede"
    body = bodies.checked(SupersedeRequest, "the statement", text=text, **options)
    return Request(
        "facts.supersede",
        "POST",
        path,
        Item,
        body=bodies.sent(body),
        idempotency_key=bodies.checked_key(idempotency_key),
    )
