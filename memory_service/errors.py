"""The service's exceptions, by what a caller can do about them.

MemoryServiceError
├── RequestError             fix the request; it will fail again as it is
│   ├── InvalidRequest       a field is wrong
│   ├── ScopeUnresolved      no owner can be named for this call
│   ├── Unauthenticated      prove who you are
│   ├── Forbidden            the binding or the role does not allow it
│   ├── NotFound             no such thing, or another owner's
│   ├── Erased               written against a state that was erased meanwhile
│   ├── IdempotencyMismatch  the key was used for another body
│   └── LimitExceeded        more than a documented limit
├── Conflict                 read again, then repeat
│   └── InFlight             the same request is being carried out; wait `retry_after`
├── Unavailable              try again later
│   ├── StorageUnavailable
│   │   └── StorageFull
│   ├── ModelUnavailable
│   │   └── ModelRefused     the endpoint is well and does not take this text
│   └── Overloaded
└── Misconfigured            call a person: configuration, schema or data folder is wrong
    └── FolderLocked         another process serves this folder
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FieldProblem:
    """One wrong field: `field` as the caller spelled it, what was expected, what came (never remembered text)."""

    field: str
    expected: str
    got: Any = None


class MemoryServiceError(Exception):
    """Root of everything that the service raises on purpose."""


class RequestError(MemoryServiceError):
    """The request is wrong; repeating it does not help."""

    def __init__(self, detail: str, errors: Sequence[FieldProblem] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = tuple(errors)


class InvalidRequest(RequestError):
    """A field is wrong."""


class ScopeUnresolved(RequestError):
    """No owner can be named for this call, so nothing was read or written."""


class Unauthenticated(RequestError):
    """The caller did not prove who it is."""


class Forbidden(RequestError):
    """The caller is known and may not do this."""


class NotFound(RequestError):
    """There is no such thing, or it is another owner's."""


class Erased(RequestError):
    """The request was made against a state that has been erased since."""


class IdempotencyMismatch(RequestError):
    """The idempotency key was used for another body."""


class LimitExceeded(RequestError):
    """More than a documented limit."""


class Conflict(MemoryServiceError):
    """Somebody else was first: read again, then repeat."""

    def __init__(self, detail: str, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after


class InFlight(Conflict):
    """The same request is being carried out."""


class Unavailable(MemoryServiceError):
    """Something that the service needs does not answer; `reason` is a code of contract.health.Reason or alike."""

    def __init__(self, detail: str, *, reason: str, retry_after: float = 1.0) -> None:
        super().__init__(detail)
        self.detail = detail
        self.reason = reason
        self.retry_after = retry_after


class StorageUnavailable(Unavailable):
    """The database or the data folder does not answer; nothing was stored."""


class StorageFull(StorageUnavailable):
    """No space is left; nothing was stored."""


class ModelUnavailable(Unavailable):
    """A model endpoint does not answer, or not with what was asked for."""


class ModelRefused(ModelUnavailable):
    """A model endpoint that answers others does not take this text, however often it is asked."""


class Overloaded(Unavailable):
    """More requests are in flight than the service takes."""


class Misconfigured(MemoryServiceError):
    """A person must change the configuration, the schema or the data folder; `reason` as in Unavailable."""

    def __init__(self, detail: str, *, reason: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.reason = reason


class FolderLocked(Misconfigured):
    """Another process serves this data folder."""
