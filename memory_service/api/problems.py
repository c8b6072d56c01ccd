"""The one table from exception to Problem. Operations and domain know no status codes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from fastapi import Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from memory_service.contract.expectations import counted, expectation, field_name
from memory_service.contract.limits import MAX_ERRORS
from memory_service.contract.problems import (
    PROBLEM_MEDIA_TYPE,
    PROBLEM_PREFIX,
    FieldError,
    Problem,
    ProblemKind,
)
from memory_service.errors import (
    Conflict,
    Erased,
    Forbidden,
    IdempotencyMismatch,
    InFlight,
    InvalidRequest,
    LimitExceeded,
    MemoryServiceError,
    Misconfigured,
    NotFound,
    Overloaded,
    RequestError,
    ScopeUnresolved,
    StorageFull,
    Unauthenticated,
    Unavailable,
)
from memory_service.observability.logs import request_id

STATUS: dict[ProblemKind, tuple[int, str]] = {
    ProblemKind.INVALID_REQUEST: (422, "A field of the request is wrong"),
    ProblemKind.SCOPE_UNRESOLVED: (400, "The call names no owner"),
    ProblemKind.UNAUTHENTICATED: (401, "The caller did not prove who it is"),
    ProblemKind.FORBIDDEN: (403, "The caller may not do this"),
    ProblemKind.NOT_FOUND: (404, "There is no such thing"),
    ProblemKind.METHOD_NOT_ALLOWED: (405, "The route does not take this method"),
    ProblemKind.CONFLICT: (409, "Somebody else was first"),
    ProblemKind.IDEMPOTENCY_IN_FLIGHT: (409, "The same request is being carried out"),
    ProblemKind.IDEMPOTENCY_MISMATCH: (422, "The Idempotency-Key was used for another body"),
    ProblemKind.ERASED: (410, "What the call builds on was erased"),
    ProblemKind.TOO_SLOW: (408, "The body came too slowly"),
    ProblemKind.TOO_LARGE: (413, "The body is too large"),
    ProblemKind.UNSUPPORTED_MEDIA_TYPE: (415, "The body is not JSON"),
    ProblemKind.LIMIT_EXCEEDED: (422, "More than a documented limit"),
    ProblemKind.QUOTA_EXCEEDED: (429, "The owner's quota is used up"),
    ProblemKind.HEADERS_TOO_LARGE: (431, "The headers are too large"),
    ProblemKind.UNAVAILABLE: (503, "Something that the service needs does not answer"),
    ProblemKind.OVERLOADED: (503, "The service is busy"),
    ProblemKind.STORAGE_FULL: (507, "No space is left"),
    ProblemKind.INTERNAL: (500, "The service failed"),
}
"""Status and title of each kind of Problem; docs/reference/problems.md is tested against it."""

_KINDS: tuple[tuple[type[MemoryServiceError], ProblemKind], ...] = (
    (ScopeUnresolved, ProblemKind.SCOPE_UNRESOLVED),
    (Unauthenticated, ProblemKind.UNAUTHENTICATED),
    (Forbidden, ProblemKind.FORBIDDEN),
    (NotFound, ProblemKind.NOT_FOUND),
    (Erased, ProblemKind.ERASED),
    (IdempotencyMismatch, ProblemKind.IDEMPOTENCY_MISMATCH),
    (LimitExceeded, ProblemKind.LIMIT_EXCEEDED),
    (InvalidRequest, ProblemKind.INVALID_REQUEST),
    (InFlight, ProblemKind.IDEMPOTENCY_IN_FLIGHT),
    (Conflict, ProblemKind.CONFLICT),
    (Overloaded, ProblemKind.OVERLOADED),
    (StorageFull, ProblemKind.STORAGE_FULL),
    (Unavailable, ProblemKind.UNAVAILABLE),
    (Misconfigured, ProblemKind.UNAVAILABLE),
)
"""Most specific first."""

_QUOTABLE = frozenset({"enum", "literal_error", "int_parsing", "float_parsing", "bool_parsing", "datetime_parsing"})
"""Errors whose input should have been a word of ours; anything else may be somebody's text."""

_WORD = re.compile(r"[A-Za-z0-9_.:+-]{1,40}")
"""What of that is repeated: what somebody said stands where it does not belong as well."""
_LONG_NUMBER = 10**40
"""A number from here on is not repeated."""


def problem(
    kind: ProblemKind, detail: str, errors: Sequence[FieldError] = (), *, retry_after: float | None = None
) -> Response:
    """Return the response of a Problem."""
    status, title = STATUS[kind]
    body = Problem(
        type=PROBLEM_PREFIX + kind.value,
        title=title,
        status=status,
        detail=detail,
        errors=tuple(errors),
        request_id=request_id.get(),
    )
    headers = {"Retry-After": str(max(1, math.ceil(retry_after)))} if retry_after is not None else {}
    if kind is ProblemKind.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = 'Bearer realm="memplane"'
    return Response(body.model_dump_json(), status_code=status, media_type=PROBLEM_MEDIA_TYPE, headers=headers)


def problem_of(error: MemoryServiceError) -> Response:
    """Return the Problem of one of our own exceptions."""
    kind = next((kind for cls, kind in _KINDS if isinstance(error, cls)), ProblemKind.INTERNAL)
    if isinstance(error, RequestError):
        return problem(
            kind, error.detail, [FieldError(field=e.field, expected=e.expected, got=e.got) for e in error.errors]
        )
    if isinstance(error, Conflict):
        return problem(kind, error.detail, retry_after=error.retry_after)
    if isinstance(error, Unavailable):
        return problem(kind, f"{error.reason}: {error.detail}", retry_after=error.retry_after)
    if isinstance(error, Misconfigured):
        return problem(kind, f"{error.reason}: {error.detail}", retry_after=10)
    return problem(kind, "the service failed; nothing of this request was stored unless an answer says so")


def problem_of_validation(error: RequestValidationError) -> Response:
    """Return the Problem that names each wrong field."""
    fields = [_field_error(entry, error.body) for entry in counted(error.errors())]
    shown = "; ".join(f"{field.field}: {field.expected}" for field in fields[:3])
    more = f" (and {len(fields) - 3} more)" if len(fields) > 3 else ""
    return problem(ProblemKind.INVALID_REQUEST, f"{shown}{more}", fields[:MAX_ERRORS])


def problem_of_http(error: HTTPException) -> Response:
    """Return the Problem of what the router refuses by itself."""
    kind = {
        404: ProblemKind.NOT_FOUND,
        405: ProblemKind.METHOD_NOT_ALLOWED,
        408: ProblemKind.TOO_SLOW,
        413: ProblemKind.TOO_LARGE,
        415: ProblemKind.UNSUPPORTED_MEDIA_TYPE,
    }.get(error.status_code, ProblemKind.INVALID_REQUEST)
    response = problem(kind, f"{error.detail}; the routes are listed in /openapi.json")
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


def _field_error(entry: dict[str, Any], body: Any) -> FieldError:
    source, *location = entry["loc"]
    given = entry.get("input")
    if entry["type"] == "json_invalid":
        name, given = "", None
    elif source == "body":
        name = field_name(location, body, is_missing=entry["type"] == "missing")
    else:
        name = ".".join(map(str, location))
    quotable = entry["type"] in _QUOTABLE or isinstance(given, bool | int | float)
    return FieldError(
        field=name or str(source),
        expected=expectation(entry),
        got=_quoted(given) if quotable else _described(given),
    )


def _quoted(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    is_word = isinstance(value, str) and _WORD.fullmatch(value)
    is_short = isinstance(value, float) or (isinstance(value, int) and abs(value) < _LONG_NUMBER)
    return value if is_word or is_short else _described(value)


def _described(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str | list | tuple | dict):
        return f"{type(value).__name__} of length {len(value)}"
    return type(value).__name__
