"""Problem (RFC 9457) and the closed list of its types; docs/reference/problems.md is tested against this list."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from memory_service.contract.base import Wire

PROBLEM_PREFIX = "https://memplane.dev/problems/"
PROBLEM_MEDIA_TYPE = "application/problem+json"


class ProblemKind(StrEnum):
    """The last segment of a Problem's `type`."""

    INVALID_REQUEST = "invalid-request"
    SCOPE_UNRESOLVED = "scope-unresolved"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not-found"
    METHOD_NOT_ALLOWED = "method-not-allowed"
    CONFLICT = "conflict"
    IDEMPOTENCY_IN_FLIGHT = "idempotency-in-flight"
    IDEMPOTENCY_MISMATCH = "idempotency-mismatch"
    ERASED = "erased"
    TOO_SLOW = "too-slow"
    TOO_LARGE = "too-large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported-media-type"
    LIMIT_EXCEEDED = "limit-exceeded"
    QUOTA_EXCEEDED = "quota-exceeded"
    HEADERS_TOO_LARGE = "headers-too-large"
    UNAVAILABLE = "unavailable"
    OVERLOADED = "overloaded"
    STORAGE_FULL = "storage-full"
    INTERNAL = "internal"


GOOD_TOKEN = "a good token of an issuer that this store takes"
UNEXPIRED_TOKEN = "a token that has not expired"
"""What is expected of a user's token that was genuine once, unlike one that was never good."""


class FieldError(Wire):
    """One field that is wrong: where, what was expected, what came (never the text of a turn or a fact)."""

    field: str
    expected: str
    got: Any = None


class Problem(Wire):
    """The body of every answer of 400 and above."""

    type: str
    title: str
    status: int
    detail: str
    errors: tuple[FieldError, ...] = ()
    request_id: str | None = None

    @property
    def kind(self) -> str:
        """The last segment of `type`."""
        return self.type.rsplit("/", 1)[-1]
