"""One builder per verb: what is asked, and the model of its answer. No I/O, no clock, no configuration.

Fields in what we send are checked as strictly as the service does.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from memory_service.client import errors
from memory_service.client.cleaning import storable_json
from memory_service.client.wire import Empty, Request
from memory_service.contract import health
from memory_service.contract.base import Wire
from memory_service.contract.ids import IDEMPOTENCY_KEY_PATTERN, Id, SessionId
from memory_service.contract.items import Item
from memory_service.contract.problems import FieldError
from memory_service.contract.scopes import Scope
from memory_service.contract.sessions import (
    AdminEraseRequest,
    Diagnostics,
    ExportPage,
    ImportRequest,
    ImportResponse,
    Job,
    JobsResponse,
    JobState,
    ReplayRequest,
    ReplayResponse,
    SessionAction,
    SessionActionResponse,
    SessionDetail,
    SessionsResponse,
    TurnsResponse,
)
from memory_service.contract.turns import NewTurn
from memory_service.contract.verbs import (
    FactBatchRequest,
    FactBatchResponse,
    FactPatch,
    ForgetRequest,
    ForgetResponse,
    HistoryResponse,
    ListRequest,
    ListResponse,
    NewFact,
    RecallRequest,
    RecallResponse,
    Receipt,
    RememberRequest,
    RememberResponse,
    SupersedeRequest,
    WriteRequest,
    WriteResponse,
)

ModelT = TypeVar("ModelT", bound=BaseModel)

_TURN_IDS = uuid.UUID("5b0a3a52-8d0f-5c0e-9a3e-6d656d706c61")


class Ready(Wire):
    """What /readyz answers: whether the service can serve, and each part's reason when it says so."""

    ready: bool
    parts: dict[str, Any] = Field(default_factory=dict)


def new_key() -> str:
    """Return a new idempotency key."""
    return str(uuid.uuid4())


def turn_id(idempotency_key: str, index: int) -> str:
    """Return the id of a turn that has none: the same for a repeat with the same key, so that it is stored once."""
    return uuid.uuid5(_TURN_IDS, f"{idempotency_key}/{index}").hex


def _checked(model: type[ModelT], what: str, **fields: Any) -> ModelT:
    """Return the model of the fields that are given (not None); values are cleaned first, but for bare numbers.

    A number that JSON does not have is null inside of what is kept, and refused where it says what is wanted.
    """
    given = {
        name: value if isinstance(value, BaseModel | datetime | float) else _plain(value)
        for name, value in fields.items()
        if value is not None
    }
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise errors.from_validation(error, what) from error


def _plain(value: Any) -> Any:
    """Return `value` cleaned; models and times inside stay what they are."""
    if isinstance(value, datetime | BaseModel):
        return value
    if isinstance(value, Mapping) and any(isinstance(item, datetime | BaseModel) for item in value.values()):
        return {storable_json(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [_plain(item) for item in value]
    return storable_json(value)


def _json(model: BaseModel) -> dict[str, Any]:
    """Return what is sent: only what was given, so that the service's and the binding's defaults apply."""
    return model.model_dump(mode="json", exclude_unset=True)


def checked_key(key: str | None) -> str:
    """Return an idempotency key, a new one for None.

    Raises:
        InvalidRequest: it is none.
    """
    return _text("idempotency_key", key, IDEMPOTENCY_KEY_PATTERN) if key is not None else new_key()


def _text(name: str, value: str, pattern: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise errors.invalid(
            f"{name} was not sent", (FieldError(field=name, expected=f"a text that matches {pattern}"),)
        )
    return value


def _id(name: str, value: str, kind: Any = Id) -> str:
    """Return a path segment; refuses what does not match the id's published pattern."""
    try:
        return quote(TypeAdapter(kind).validate_python(value), safe="")
    except ValidationError as error:
        raise errors.from_validation(error, name) from error


def _query(**values: Any) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        if value is None:
            continue
        for item in value if isinstance(value, tuple | list) else (value,):
            pairs.append((name, storable_json(str(item))))
    return tuple(pairs)


TurnLike = NewTurn | Mapping[str, Any]
"""A turn to write: a NewTurn, or its fields as a mapping."""


class _Turns(Wire):
    """Turns of one flush, however many."""

    turns: tuple[NewTurn, ...]


def checked_turns(turns: Iterable[TurnLike], key: str) -> tuple[NewTurn, ...]:
    """Return turns with their ids; those without one get theirs from the key.

    Raises:
        InvalidRequest: one is wrong.
    """
    return _checked(_Turns, "the flush", turns=_identified(turns, key)).turns


def _identified(turns: Iterable[TurnLike], key: str) -> list[Any]:
    given: list[Any] = []
    for index, turn in enumerate(turns):
        fields = _json(turn) if isinstance(turn, NewTurn) else dict(turn) if isinstance(turn, Mapping) else turn
        if isinstance(fields, dict) and fields.get("id") is None:
            fields["id"] = turn_id(key, index)
        given.append(fields)
    return given


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
    key = checked_key(idempotency_key)
    body = _checked(
        WriteRequest,
        "the write",
        session_id=session_id,
        turns=_identified(turns, key),
        workspace=workspace,
        infer=infer,
        generation=generation,
        queued_seconds=queued_seconds,
    )
    return Request("write", "POST", "/v1/write", WriteResponse, body=_json(body), idempotency_key=key)


def recall(query: str, **options: Any) -> Request[RecallResponse]:
    """Find what is relevant. Options left out (or None) take the binding's and the store's defaults."""
    body = _checked(RecallRequest, "the recall", query=query, **options)
    return Request("recall", "POST", "/v1/recall", RecallResponse, body=_json(body))


def remember(text: str, *, idempotency_key: str | None = None, **options: Any) -> Request[RememberResponse]:
    """Save a fact now."""
    key = checked_key(idempotency_key)
    body = _checked(RememberRequest, "the fact", text=text, **options)
    return Request("remember", "POST", "/v1/facts", RememberResponse, body=_json(body), idempotency_key=key)


def list_items(**options: Any) -> Request[ListResponse]:
    """One page of everything visible at a scope."""
    body = _checked(ListRequest, "the list", **options)
    return Request("list", "POST", "/v1/list", ListResponse, body=_json(body))


def forget(
    scope: Scope | str | None = None, session_id: str | None = None, *, idempotency_key: str | None = None
) -> Request[ForgetResponse]:
    """Erase the binding's scope, or a session."""
    body = _checked(ForgetRequest, "the erasure", scope=scope, session_id=session_id, confirm=True)
    return Request(
        "forget", "POST", "/v1/forget", ForgetResponse, body=_json(body), idempotency_key=checked_key(idempotency_key)
    )


def facts_get(fact_id: str) -> Request[Item]:
    """One fact."""
    return Request("facts.get", "GET", f"/v1/facts/{_id('fact_id', fact_id)}", Item)


def facts_patch(fact_id: str, *, idempotency_key: str | None = None, **changes: Any) -> Request[Item]:
    """Correct one fact; what is left out stays, and None clears what can be cleared."""
    path = f"/v1/facts/{_id('fact_id', fact_id)}"
    try:
        body = FactPatch.model_validate({name: _plain(value) for name, value in changes.items()})
    except ValidationError as error:
        raise errors.from_validation(error, "the correction") from error
    return Request("facts.patch", "PATCH", path, Item, body=_json(body), idempotency_key=checked_key(idempotency_key))


def facts_delete(fact_id: str, *, idempotency_key: str | None = None) -> Request[ForgetResponse]:
    """Delete one fact."""
    path = f"/v1/facts/{_id('fact_id', fact_id)}"
    return Request("facts.delete", "DELETE", path, ForgetResponse, idempotency_key=checked_key(idempotency_key))


def facts_list(
    *,
    scope: Scope | str | None = None,
    session_id: str | None = None,
    workspace: str | None = None,
    cursor: str | None = None,
    limit: int | None = None,
) -> Request[ListResponse]:
    """One page of facts."""
    query = _query(scope=scope, session_id=session_id, workspace=workspace, cursor=cursor, limit=limit)
    return Request("facts.list", "GET", "/v1/facts", ListResponse, query=query)


def facts_batch(
    facts: Iterable[NewFact | Mapping[str, Any]],
    *,
    generation: str | None = None,
    idempotency_key: str | None = None,
) -> Request[FactBatchResponse]:
    """Save facts together, all or none."""
    given = [_json(fact) if isinstance(fact, NewFact) else fact for fact in facts]
    body = _checked(FactBatchRequest, "the batch", facts=given, generation=generation)
    return Request(
        "facts.batch",
        "POST",
        "/v1/facts/batch",
        FactBatchResponse,
        body=_json(body),
        idempotency_key=checked_key(idempotency_key),
    )


def facts_history(fact_id: str) -> Request[HistoryResponse]:
    """A fact's changes, oldest first."""
    return Request("facts.history", "GET", f"/v1/facts/{_id('fact_id', fact_id)}/history", HistoryResponse)


def facts_supersede(fact_id: str, text: str, *, idempotency_key: str | None = None, **options: Any) -> Request[Item]:
    """Put another statement in a fact's place; the old one keeps its validity and its successor."""
    path = f"/v1/facts/{_id('fact_id', fact_id)}/supersede"
    body = _checked(SupersedeRequest, "the statement", text=text, **options)
    return Request(
        "facts.supersede", "POST", path, Item, body=_json(body), idempotency_key=checked_key(idempotency_key)
    )


def sessions_list(
    *, workspace: str | None = None, cursor: str | None = None, limit: int | None = None
) -> Request[SessionsResponse]:
    """One page of the caller's sessions of a workspace, or of none, newest write first."""
    query = _query(workspace=workspace, cursor=cursor, limit=limit)
    return Request("sessions.list", "GET", "/v1/sessions", SessionsResponse, query=query)


def sessions_get(session_id: str, *, workspace: str | None = None) -> Request[SessionDetail]:
    """A session with its window and digests."""
    path = f"/v1/sessions/{_id('session_id', session_id, SessionId)}"
    return Request("sessions.get", "GET", path, SessionDetail, query=_query(workspace=workspace))


def sessions_turns(
    session_id: str, *, after: int | None = None, limit: int | None = None, workspace: str | None = None
) -> Request[TurnsResponse]:
    """Every turn kept, in order, page by page."""
    path = f"/v1/sessions/{_id('session_id', session_id, SessionId)}/turns"
    return Request(
        "sessions.turns", "GET", path, TurnsResponse, query=_query(after=after, limit=limit, workspace=workspace)
    )


def sessions_act(
    action: Literal["end", "compact", "flush"],
    session_id: str,
    *,
    workspace: str | None = None,
    idempotency_key: str | None = None,
) -> Request[SessionActionResponse]:
    """End, compact or flush a session."""
    path = f"/v1/sessions/{_id('session_id', session_id, SessionId)}/{action}"
    body = _checked(SessionAction, "the action", workspace=workspace)
    return Request(
        f"sessions.{action}",
        "POST",
        path,
        SessionActionResponse,
        body=_json(body),
        idempotency_key=checked_key(idempotency_key),
    )


def jobs_list(
    *,
    state: JobState | str | None = None,
    session_id: str | None = None,
    workspace: str | None = None,
    cursor: str | None = None,
    limit: int | None = None,
) -> Request[JobsResponse]:
    """One page of jobs of a workspace, or of none, newest first."""
    query = _query(state=state, session_id=session_id, workspace=workspace, cursor=cursor, limit=limit)
    return Request("jobs.list", "GET", "/v1/jobs", JobsResponse, query=query)


def jobs_get(job_id: str) -> Request[Job]:
    """One job."""
    return Request("jobs.get", "GET", f"/v1/jobs/{_id('job_id', job_id)}", Job)


def jobs_retry(job_id: str, *, idempotency_key: str | None = None) -> Request[Job]:
    """Put a job back into the queue."""
    path = f"/v1/jobs/{_id('job_id', job_id)}/retry"
    return Request("jobs.retry", "POST", path, Job, body={}, idempotency_key=checked_key(idempotency_key))


def receipts_get(receipt_id: str) -> Request[Receipt]:
    """How far an erasure is."""
    return Request("receipts.get", "GET", f"/v1/receipts/{_id('receipt_id', receipt_id)}", Receipt)


def health_live() -> Request[Empty]:
    """Whether the process answers; touches no store."""
    return Request("health.live", "GET", "/healthz", Empty)


def health_ready() -> Request[Ready]:
    """Whether the service can serve; a service that is not ready answers 503 with the reasons."""
    return Request("health.ready", "GET", "/readyz", Ready, allow_statuses=(503,))


def health_report() -> Request[health.HealthReport]:
    """One replica's view of itself; for the operator and admins."""
    return Request("health.report", "GET", "/v1/health/report", health.HealthReport)


def admin_erase(
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
    body = _checked(AdminEraseRequest, "the erasure", subject=subject)
    return Request(
        "admin.erase",
        "POST",
        "/v1/admin/erase",
        ForgetResponse,
        body=_json(body),
        idempotency_key=checked_key(idempotency_key),
    )


def admin_list(*, cursor: str | None = None, limit: int | None = None) -> Request[ListResponse]:
    """One page of everything in the store."""
    return Request("admin.list", "GET", "/v1/admin/list", ListResponse, query=_query(cursor=cursor, limit=limit))


def admin_diagnostics() -> Request[Diagnostics]:
    """Totals of the store."""
    return Request("admin.diagnostics", "GET", "/v1/admin/diagnostics", Diagnostics)


def admin_replay(
    state: JobState | str = JobState.DEAD, *, idempotency_key: str | None = None
) -> Request[ReplayResponse]:
    """Put every job of a state back into the queue."""
    body = _checked(ReplayRequest, "the replay", state=state)
    return Request(
        "admin.replay",
        "POST",
        "/v1/admin/jobs/replay",
        ReplayResponse,
        body=_json(body),
        idempotency_key=checked_key(idempotency_key),
    )


def admin_export(*, cursor: str | None = None, limit: int | None = None) -> Request[ExportPage]:
    """One page of an export."""
    return Request("admin.export", "GET", "/v1/admin/export", ExportPage, query=_query(cursor=cursor, limit=limit))


def admin_import(lines: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None) -> Request[ImportResponse]:
    """Import lines of an export; a line that was imported before is skipped."""
    try:
        body = ImportRequest.model_validate({"lines": list(lines)})
    except ValidationError as error:
        raise errors.from_validation(error, "the import") from error
    return Request(
        "admin.import",
        "POST",
        "/v1/admin/import",
        ImportResponse,
        body=_json(body),
        idempotency_key=checked_key(idempotency_key),
    )
