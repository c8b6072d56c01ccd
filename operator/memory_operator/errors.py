"""The operator's errors: the tree has two branches, try later or wait for a new spec.

MemoryOperatorError
├── TryLater            the same work may succeed later: the queue backs off
│   ├── ClusterUnavailable   no answer, or 5xx
│   ├── Throttled            429, with what Retry-After asks for
│   └── Conflict             somebody else was first: read again
├── Refused             the API server says no to this very request
│   ├── NotFound, Forbidden, Invalid
└── InvalidSpec         the object asks for something that cannot be
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class MemoryOperatorError(Exception):
    """Root of what the operator raises."""


class TryLater(MemoryOperatorError):
    """The same work may succeed later."""

    after_seconds: float | None = None


class ClusterUnavailable(TryLater):
    """The API server did not answer, or answered 5xx; the write may or may not have happened."""


class Throttled(TryLater):
    """The API server asks to come back after `after_seconds`."""

    def __init__(self, message: str, after_seconds: float | None) -> None:
        super().__init__(message)
        self.after_seconds = after_seconds


class Conflict(TryLater):
    """The object has changed, exists already, or another manager holds a field."""


class Refused(MemoryOperatorError):
    """The API server refuses this request; repeating it unchanged is useless."""


class NotFound(Refused):
    """The object, its namespace or its kind does not exist."""


class Forbidden(Refused):
    """RBAC, admission or a quota says no."""


class Invalid(Refused):
    """The object breaks a rule of its schema."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with one field; never its value, which may be a secret."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class InvalidSpec(MemoryOperatorError):
    """A spec that breaks a rule; wait for a new one."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = tuple(problems)
