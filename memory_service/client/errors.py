"""The client's exceptions, by what their catcher can do.

MemoryClientError
├── ContractError            the request was refused; its `problem` says which field and what to do
│   ├── InvalidRequest       a field is wrong, or no owner can be named
│   ├── NotAllowed           401, 403: the token or the binding does not allow it
│   ├── NotFound             no such thing, or another owner's
│   ├── Conflict             409: read again, then repeat
│   ├── Erased               410: written against a state that was erased meanwhile
│   └── LimitExceeded        more than a documented limit
├── ServiceUnavailable       no usable answer; try again after `retry_after`
└── OutboxError              turns could not be kept on this machine
    ├── OutboxFull           the outbox holds all that it may
    └── OutboxUnusable       its folder or file cannot be used
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

from memory_service.contract.expectations import counted, expectation, field_name
from memory_service.contract.problems import PROBLEM_PREFIX, FieldError, Problem, ProblemKind


class UnavailableReason(StrEnum):
    """Why there was no usable answer; these are reason codes of `degraded` too."""

    UNREACHABLE = "ServiceUnreachable"
    TIMEOUT = "ServiceTimeout"
    BAD_ANSWER = "BadAnswer"
    BREAKER_OPEN = "BreakerOpen"
    OVERLOADED = "Overloaded"
    QUOTA_EXCEEDED = "QuotaExceeded"
    STORAGE_FULL = "StorageFull"
    SERVICE_ERROR = "ServiceError"
    IN_FLIGHT = "InFlight"
    BINDING_MOVED = "BindingMoved"
    TOKEN_MISSING = "TokenMissing"
    CLOSED = "ClientClosed"


class MemoryClientError(Exception):
    """Root of everything that the client raises on purpose; comes back from pickle as it was."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self.args, self.__dict__)


def _unpickled(kind: type[MemoryClientError], args: tuple[Any, ...], fields: dict[str, Any]) -> MemoryClientError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class Refuser(StrEnum):
    """Who refused a request."""

    SERVICE = "service"
    BETWEEN = "something between"
    CLIENT = "client"


class ContractError(MemoryClientError):
    """The request was refused: by the service, by a proxy between, or by the client before it was sent."""

    def __init__(self, problem: Problem, *, refuser: Refuser = Refuser.SERVICE) -> None:
        fields = "; ".join(f"{e.field}: {e.expected}" for e in problem.errors)
        super().__init__(f"{problem.title}: {problem.detail}" + (f" ({fields})" if fields else ""))
        self.problem = problem
        self.refuser = refuser

    @property
    def status(self) -> int:
        """The HTTP status; 422 also for what the client refused before sending it."""
        return self.problem.status


class InvalidRequest(ContractError):
    """A field is wrong, or no owner can be named for the call."""


class NotAllowed(ContractError):
    """The token or the binding does not allow it."""


class NotFound(ContractError):
    """There is no such thing, or it is another owner's."""


class Conflict(ContractError):
    """Somebody else was first: read again, then repeat."""


class Erased(ContractError):
    """The request was made against a state that has been erased since."""


class LimitExceeded(ContractError):
    """More than a documented limit."""


class ServiceUnavailable(MemoryClientError):
    """There was no usable answer, so the outcome of a write is unknown.

    Repeat the call with the same turns and `idempotency_key` after `retry_after` seconds (None: when you like);
    what was stored after all is not stored twice.
    """

    def __init__(
        self,
        detail: str,
        *,
        reason: UnavailableReason,
        retry_after: float | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.reason = reason
        self.retry_after = retry_after
        self.idempotency_key = idempotency_key


class OutboxError(MemoryClientError):
    """Turns could not be kept on this machine."""


class OutboxFull(OutboxError):
    """The outbox holds all that it may; nothing was added."""


class OutboxUnusable(OutboxError):
    """The outbox's folder or file cannot be used; nothing was added."""


_BY_KIND: dict[str, type[ContractError]] = {
    ProblemKind.INVALID_REQUEST: InvalidRequest,
    ProblemKind.SCOPE_UNRESOLVED: InvalidRequest,
    ProblemKind.METHOD_NOT_ALLOWED: InvalidRequest,
    ProblemKind.UNSUPPORTED_MEDIA_TYPE: InvalidRequest,
    ProblemKind.IDEMPOTENCY_MISMATCH: InvalidRequest,
    ProblemKind.UNAUTHENTICATED: NotAllowed,
    ProblemKind.FORBIDDEN: NotAllowed,
    ProblemKind.NOT_FOUND: NotFound,
    ProblemKind.CONFLICT: Conflict,
    ProblemKind.IDEMPOTENCY_IN_FLIGHT: Conflict,
    ProblemKind.ERASED: Erased,
    ProblemKind.TOO_LARGE: LimitExceeded,
    ProblemKind.LIMIT_EXCEEDED: LimitExceeded,
    ProblemKind.HEADERS_TOO_LARGE: LimitExceeded,
}
_BY_STATUS: dict[int, type[ContractError]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    410: Erased,
    413: LimitExceeded,
    431: LimitExceeded,
}


def from_problem(problem: Problem) -> ContractError:
    """Return the exception for a Problem; a kind that this version does not know goes by its status."""
    kind = _BY_KIND.get(problem.kind) or _BY_STATUS.get(problem.status, InvalidRequest)
    return kind(problem)


def unreported(status: int, detail: str) -> ContractError:
    """Return the exception for a 4xx whose body is no Problem: a proxy or another program answered."""
    try:
        title = HTTPStatus(status).phrase
    except ValueError:
        title = f"Status {status}"
    problem = Problem(type=f"{PROBLEM_PREFIX}{ProblemKind.INVALID_REQUEST}", title=title, status=status, detail=detail)
    return _BY_STATUS.get(status, InvalidRequest)(problem, refuser=Refuser.BETWEEN)


def invalid(detail: str, errors: Sequence[FieldError] = ()) -> InvalidRequest:
    """Return the exception for a request that the client refuses before sending it."""
    return InvalidRequest(
        Problem(
            type=f"{PROBLEM_PREFIX}{ProblemKind.INVALID_REQUEST}",
            title="Invalid request",
            status=422,
            detail=detail,
            errors=tuple(errors),
        ),
        refuser=Refuser.CLIENT,
    )


def reused_key() -> InvalidRequest:
    """Return the exception for an idempotency key whose first request, another one, still waits on this machine."""
    return InvalidRequest(
        Problem(
            type=f"{PROBLEM_PREFIX}{ProblemKind.IDEMPOTENCY_MISMATCH}",
            title="The Idempotency-Key was used for another body",
            status=422,
            detail="another request with this key waits in the outbox; send a new key with a new body",
            errors=(FieldError(field="idempotency_key", expected="a key that was not used before for this verb"),),
        ),
        refuser=Refuser.CLIENT,
    )


def from_validation(error: ValidationError, what: str, given: Any) -> InvalidRequest:
    """Return the exception for what was given and does not fit the wire's model; values are named, never repeated."""
    fields = tuple(
        FieldError(
            field=field_name(item["loc"], given, is_missing=item["type"] == "missing") or what,
            expected=expectation(item),
        )
        for item in counted(error.errors(include_url=False))
    )
    return invalid(f"{what} was not sent: {len(fields)} field(s) are wrong", fields)
