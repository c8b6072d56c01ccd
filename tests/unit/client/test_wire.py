"""The parser of answers: a model, a refusal or an outage, whatever comes."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_service.client import errors, requests
from memory_service.client.errors import ContractError, ServiceUnavailable, UnavailableReason
from memory_service.client.wire import Answer, retry_after_seconds
from memory_service.contract.problems import PROBLEM_PREFIX, Problem, ProblemKind

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def problem(status: int, kind: str) -> bytes:
    return json.dumps(
        {"type": PROBLEM_PREFIX + kind, "title": kind, "status": status, "detail": "d", "new": 1}
    ).encode()


def test_fields_that_a_newer_service_added_are_ignored() -> None:
    body = b'{"outcome": "applied", "usage": {"tokens": 1, "cost": 2}, "mood": "fine"}'
    assert requests.recall("q").parse(Answer(200, {}, body), NOW).usage.tokens == 1


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, {}, b"<html>hello</html>"),
        Answer(200, {}, b""),
        Answer(200, {}, b"null"),
        Answer(200, {}, b'{"outcome": "unheard of"}'),
        Answer(204, {}, b""),
        Answer(301, {"location": "http://elsewhere"}, b""),
        Answer(502, {}, b"bad gateway"),
        Answer(500, {}, problem(500, "internal")),
        Answer(503, {}, problem(503, "unavailable")),
        Answer(429, {}, problem(429, "quota-exceeded")),
        Answer(599, {}, b"\xff\xfe"),
    ],
)
def test_what_is_no_answer_of_a_memory_service_is_unavailable(answer: Answer) -> None:
    with pytest.raises(ServiceUnavailable):
        requests.recall("q").parse(answer, NOW)


@given(status=st.integers(100, 999), body=st.binary(max_size=200), retry=st.text(max_size=20))
def test_any_garbage_becomes_one_of_two_exceptions(status: int, body: bytes, retry: str) -> None:
    with pytest.raises((ContractError, ServiceUnavailable)) as caught:
        requests.write("s1", [{"role": "user", "content": "hello"}]).parse(
            Answer(status, {"retry-after": retry}, body), NOW
        )
    is_refusal = 400 <= status < 500 and status not in (408, 429)
    assert isinstance(caught.value, ContractError) == is_refusal


@pytest.mark.parametrize("kind", list(ProblemKind))
def test_each_problem_of_the_contract_has_its_exception(kind: ProblemKind) -> None:
    statuses = {
        ProblemKind.UNAUTHENTICATED: 401,
        ProblemKind.FORBIDDEN: 403,
        ProblemKind.NOT_FOUND: 404,
        ProblemKind.METHOD_NOT_ALLOWED: 405,
        ProblemKind.CONFLICT: 409,
        ProblemKind.IDEMPOTENCY_IN_FLIGHT: 409,
        ProblemKind.ERASED: 410,
        ProblemKind.TOO_LARGE: 413,
        ProblemKind.UNSUPPORTED_MEDIA_TYPE: 415,
        ProblemKind.HEADERS_TOO_LARGE: 431,
        ProblemKind.QUOTA_EXCEEDED: 429,
        ProblemKind.UNAVAILABLE: 503,
        ProblemKind.OVERLOADED: 503,
        ProblemKind.STORAGE_FULL: 503,
        ProblemKind.INTERNAL: 500,
    }
    status = statuses.get(kind, 422)
    with pytest.raises((ContractError, ServiceUnavailable)) as caught:
        requests.recall("q").parse(Answer(status, {}, problem(status, kind)), NOW)
    tries_again = status >= 500 or status == 429 or kind is ProblemKind.IDEMPOTENCY_IN_FLIGHT
    assert isinstance(caught.value, ServiceUnavailable) == tries_again
    if isinstance(caught.value, ContractError):
        assert caught.value.problem.kind == kind


def test_an_unknown_problem_goes_by_its_status() -> None:
    unknown = Problem(type=PROBLEM_PREFIX + "brand-new", title="t", status=403, detail="d")
    assert isinstance(errors.from_problem(unknown), errors.NotAllowed)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("-1", 0.0),
        ("1e9", 3600.0),
        ("nan", None),
        ("soon", None),
        ("Sat, 31 Jan 2026 12:00:10 GMT", 10.0),
        ("Sat, 31 Jan 2026 11:00:00 GMT", 0.0),
        (None, None),
    ],
)
def test_retry_after_is_read_in_both_its_forms_and_bounded(value: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(value, NOW) == seconds


def test_a_quota_without_a_date_still_asks_to_wait() -> None:
    with pytest.raises(ServiceUnavailable) as caught:
        requests.recall("q").parse(Answer(429, {}, b""), NOW)
    assert caught.value.retry_after == 1.0
    assert caught.value.reason is UnavailableReason.QUOTA_EXCEEDED
