"""Builders of requests and the parser of answers."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_service.client import errors, requests
from memory_service.client.cleaning import storable_json, storable_text
from memory_service.client.errors import ContractError, ServiceUnavailable, UnavailableReason
from memory_service.client.requests import Answer, retry_after_seconds
from memory_service.contract.problems import PROBLEM_PREFIX, Problem, ProblemKind
from memory_service.contract.turns import NewTurn

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
FACT = "00000000-0000-0000-0000-000000000001"
TURN = {"role": "user", "content": "hello"}


def problem(status: int, kind: str) -> bytes:
    return json.dumps(
        {"type": PROBLEM_PREFIX + kind, "title": kind, "status": status, "detail": "d", "new": 1}
    ).encode()


def test_turns_without_an_id_get_the_same_one_for_the_same_key() -> None:
    first = requests.write("s1", [TURN, TURN], idempotency_key="k")
    again = requests.write("s1", [TURN, TURN], idempotency_key="k")
    other = requests.write("s1", [TURN, TURN], idempotency_key="l")
    assert first.content == again.content
    ids = [turn["id"] for turn in first.body["turns"]]
    assert len(set(ids)) == 2
    assert not set(ids) & {turn["id"] for turn in other.body["turns"]}


def test_a_turns_own_id_is_kept() -> None:
    assert requests.write("s1", [{**TURN, "id": "mine"}]).body["turns"][0]["id"] == "mine"
    assert requests.write("s1", [NewTurn(id="mine", role="user", content="x")]).body["turns"][0]["id"] == "mine"


def test_only_what_was_given_is_sent_so_that_the_stores_defaults_apply() -> None:
    assert requests.recall("q").body == {"query": "q"}
    assert requests.remember("t", idempotency_key="k").body == {"text": "t"}


@pytest.mark.parametrize(
    "request_",
    [
        requests.write("s1", [TURN]),
        requests.remember("t"),
        requests.forget(),
        requests.facts_patch(FACT, text="t"),
        requests.facts_delete(FACT),
        requests.facts_batch([{"text": "t"}]),
        requests.facts_supersede(FACT, "t"),
        requests.sessions_act("end", "s1"),
        requests.jobs_retry(FACT),
        requests.admin_erase(principal="local#ada"),
        requests.admin_replay(),
        requests.admin_import([{"a": 1}]),
    ],
    ids=lambda request_: request_.verb,
)
def test_whatever_changes_something_carries_an_idempotency_key(request_: requests.Request[object]) -> None:
    assert request_.headers["Idempotency-Key"]


def test_a_wrong_field_is_named_and_never_sent() -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        requests.write("not a session", [{"role": "nobody", "content": "x"}])
    assert {e.field for e in caught.value.problem.errors} >= {"session_id", "turns.0.role"}
    assert caught.value.refuser is errors.Refuser.CLIENT


def test_remembered_text_is_not_repeated_in_an_error() -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        requests.remember("secret words " * 10_000)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("fact_id", ["../admin/list", "", "a/b", "*", "x?y=z", FACT.upper() + "/", FACT + "\n"])
def test_an_id_cannot_leave_its_place_in_the_path(fact_id: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        requests.facts_get(fact_id)


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
        requests.write("s1", [TURN]).parse(Answer(status, {"retry-after": retry}, body), NOW)
    is_refusal = 400 <= status < 500 and status != 429
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


def test_nul_and_lone_surrogates_are_replaced_and_pairs_are_joined() -> None:
    assert storable_text("a\x00b\ud800c\ud83d\ude00") == "a\ufffdb\ufffdc\U0001f600"


ODD = st.text(alphabet=st.one_of(st.characters(), st.characters(categories=["Cs"]), st.just("\x00")), max_size=30)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), ODD),
    lambda below: st.one_of(st.lists(below, max_size=4), st.dictionaries(ODD, below, max_size=4)),
    max_leaves=20,
)


@given(text=ODD, arguments=st.dictionaries(ODD, JSON, max_size=4), result=JSON)
def test_no_turn_is_lost_for_a_character_or_a_number(text: str, arguments: dict[str, object], result: object) -> None:
    turn = {
        "role": "assistant",
        "content": text,
        "name": text,
        "parts": [
            {"type": "tool_call", "id": "c1", "name": "t", "arguments": arguments},
            {"type": "tool_result", "id": "c1", "content": result},
        ],
    }
    sent = requests.write("s1", [turn])
    assert json.loads(sent.content or b"")["session_id"] == "s1"


def test_what_nests_too_deeply_is_kept_as_text() -> None:
    deep: object = "the heart of it"
    for _ in range(200):
        deep = [deep]
    sent = requests.write("s1", [{"role": "tool", "parts": [{"type": "tool_result", "id": "c", "content": deep}]}])
    assert b"the heart of it" in (sent.content or b"")


def test_what_is_storable_already_stays_as_it_is() -> None:
    value = {"a": [1, 2.5, "text", None, True]}
    assert storable_json(value) == value
