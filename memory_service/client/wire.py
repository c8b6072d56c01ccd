"""What goes over the wire: a request, and the answer that is read by it.

`Request.parse` turns an answer into its model or into the exception that says what to do. Fields that a newer service
added to an answer are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from memory_service.client import errors
from memory_service.client.errors import ServiceUnavailable, UnavailableReason
from memory_service.contract.problems import FieldError, Problem, ProblemKind

T = TypeVar("T")

AUTHORIZATION = "Authorization"
AGENT_HEADER = "X-Memplane-Agent"
USER_HEADER = "X-Memplane-User"
IDEMPOTENCY_HEADER = "Idempotency-Key"

MAX_RETRY_AFTER_SECONDS = 3_600.0


_FIELD_VALUE = re.compile(rb"(?:[^\x00\s]+(?:[ \t]+[^\x00\s]+)*)?")


def require_carried(name: str, value: str | None) -> None:
    """Refuse what no HTTP header can carry: a line break, white space at an end, half a character.

    Raises:
        InvalidRequest: it names the header; the value is not repeated.
    """
    try:
        is_carried = value is None or _FIELD_VALUE.fullmatch(value.encode()) is not None
    except UnicodeEncodeError:
        is_carried = False
    if not is_carried:
        expected = "a text without line breaks, white space at its ends and broken characters"
        raise errors.invalid(
            f"the header {name} cannot carry what it was given", (FieldError(field=name, expected=expected),)
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer as it came. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """One request. `body` is JSON-ready; `idempotency_key` is set on every verb that changes something."""

    verb: str
    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    answer: type[T]
    query: tuple[tuple[str, str], ...] = ()
    body: Mapping[str, Any] | None = None
    idempotency_key: str | None = None
    allow_statuses: tuple[int, ...] = field(default=())
    """Statuses of 400 and above whose body may be an answer all the same; where it is none, the status counts."""
    is_open: bool = False
    """Whether anybody may ask: it is sent without a word of who does, and no token has to be there for it."""

    @property
    def content(self) -> bytes | None:
        """The body as sent: compact JSON in UTF-8."""
        if self.body is None:
            return None
        return json.dumps(self.body, ensure_ascii=False, separators=(",", ":")).encode()

    @property
    def headers(self) -> dict[str, str]:
        """The headers that come from the request itself."""
        headers = {"Accept": "application/json"}
        if self.body is not None:
            headers["Content-Type"] = "application/json"
        if self.idempotency_key is not None:
            headers[IDEMPOTENCY_HEADER] = self.idempotency_key
        return headers

    def parse(self, answer: Answer, now: datetime) -> T:
        """Return the answer's model. `now` is only for a Retry-After that names a date.

        Raises:
            ContractError: the request was refused.
            ServiceUnavailable: the service cannot serve it now, or what came is no answer of a memory service.
        """
        status = answer.status
        if 200 <= status < 300:
            return self._model(answer)
        if status in self.allow_statuses:
            with suppress(ServiceUnavailable):
                return self._model(answer)
        retry_after = retry_after_seconds(answer.headers.get("retry-after"), now)
        if status < 400:
            raise ServiceUnavailable(
                f"{self.method} {self.path} was answered {status}: something else than a memory service is there; "
                "check the endpoint",
                reason=UnavailableReason.BAD_ANSWER,
            )
        problem = _problem(answer)
        detail = problem.detail if problem is not None else f"{self.method} {self.path} was answered {status}"
        if status == 429:
            raise ServiceUnavailable(detail, reason=UnavailableReason.QUOTA_EXCEEDED, retry_after=retry_after or 1.0)
        if status == 409 and problem is not None and problem.kind == ProblemKind.IDEMPOTENCY_IN_FLIGHT:
            raise ServiceUnavailable(detail, reason=UnavailableReason.IN_FLIGHT, retry_after=retry_after or 1.0)
        if status == 507:
            raise ServiceUnavailable(detail, reason=UnavailableReason.STORAGE_FULL, retry_after=retry_after)
        if status in (408, 502, 503, 504):
            raise ServiceUnavailable(detail, reason=UnavailableReason.OVERLOADED, retry_after=retry_after)
        if status >= 500:
            raise ServiceUnavailable(detail, reason=UnavailableReason.SERVICE_ERROR, retry_after=retry_after)
        if problem is None:
            raise errors.unreported(status, f"{detail}, without a problem document; check the endpoint")
        raise errors.from_problem(problem)

    def _model(self, answer: Answer) -> T:
        try:
            return TypeAdapter(self.answer).validate_json(answer.content, extra="ignore")
        except ValidationError as error:
            raise ServiceUnavailable(
                f"{self.method} {self.path} was answered {answer.status} with a body that is no "
                f"{self.answer.__name__}; check the endpoint and the service's version",
                reason=UnavailableReason.BAD_ANSWER,
            ) from error


def _problem(answer: Answer) -> Problem | None:
    try:
        return Problem.model_validate_json(answer.content, extra="ignore")
    except ValidationError:
        return None


def retry_after_seconds(value: str | None, now: datetime) -> float | None:
    """Return the seconds that a Retry-After header asks to wait, within an hour; None if it says nothing usable."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - now).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    if not seconds >= 0:
        return 0.0 if seconds < 0 else None
    return min(seconds, MAX_RETRY_AFTER_SECONDS)
