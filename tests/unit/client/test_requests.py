"""Builders of requests, and what they clean."""

from __future__ import annotations

import json
import math
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_service.client import errors, requests
from memory_service.client.cleaning import storable_json, storable_text
from memory_service.client.wire import Request
from memory_service.contract.turns import NewTurn

FACT = "00000000-0000-0000-0000-000000000001"
TURN = {"role": "user", "content": "hello"}


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
        requests.facts.patch(FACT, text="t"),
        requests.facts.delete(FACT),
        requests.facts.batch([{"text": "t"}]),
        requests.facts.supersede(FACT, "t"),
        requests.sessions.act("end", "s1"),
        requests.jobs.retry(FACT),
        requests.admin.erase(principal="local#ada"),
        requests.admin.replay(),
        requests.admin.import_lines([{"a": 1}]),
    ],
    ids=lambda request_: request_.verb,
)
def test_whatever_changes_something_carries_an_idempotency_key(request_: Request[object]) -> None:
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
        requests.facts.get(fact_id)


def test_nul_and_lone_surrogates_are_replaced_and_pairs_are_joined() -> None:
    assert storable_text("a\x00b\ud800c\ud83d\ude00") == "a\ufffdb\ufffdc\U0001f600"


ODD = st.text(alphabet=st.one_of(st.characters(), st.characters(categories=["Cs"]), st.just("\x00")), max_size=30)
HUGE = st.sampled_from([4_299, 4_300, 5_000]).map(lambda digits: -(10**digits))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), HUGE, st.floats(), ODD),
    lambda below: st.one_of(st.lists(below, max_size=4), st.dictionaries(ODD | HUGE, below, max_size=4)),
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


class Unshowable:
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise KeyError("no text")


@pytest.mark.parametrize("odd", [10**5_000, Unshowable()], ids=["huge", "raises"])
def test_what_has_no_text_is_refused_by_name_and_kept_where_anything_may_stand(odd: Any) -> None:
    with pytest.raises(errors.InvalidRequest) as refused:
        requests.recall("q", filters={odd: datetime.now(UTC)})
    assert [error.field for error in refused.value.problem.errors] == ["filters.(cannot be shown as text)"]
    assert requests.remember("a fact", attributes={"at": {odd: datetime.now(UTC)}}).content
    assert requests.sessions.list(limit=odd).query == (("limit", "(cannot be shown as text)"),)
    deep: Any = odd
    for _ in range(100):
        deep = {"in": deep}
    part = {"type": "tool_result", "id": "c", "content": [{odd: odd}, deep]}
    assert requests.write("s1", [{"role": "tool", "parts": [part]}]).content


def test_what_nests_too_deeply_is_kept_as_text() -> None:
    deep: object = "the heart of it"
    for _ in range(200):
        deep = [deep]
    sent = requests.write("s1", [{"role": "tool", "parts": [{"type": "tool_result", "id": "c", "content": deep}]}])
    assert b"the heart of it" in (sent.content or b"")


@pytest.mark.parametrize("levels", [31, 33, 5_000])
def test_what_nests_too_deeply_in_place_of_a_field_is_refused_by_its_name(levels: int) -> None:
    deep: object = 1
    for _ in range(levels):
        deep = [deep]
    for build in (
        lambda: requests.recall(deep),  # type: ignore[arg-type]
        lambda: requests.recall("q", top_k=deep),  # type: ignore[arg-type]
        lambda: requests.remember(deep),  # type: ignore[arg-type]
        lambda: requests.write("s1", [deep]),  # type: ignore[list-item]
    ):
        with pytest.raises(errors.InvalidRequest):
            build()


def test_what_is_storable_already_stays_as_it_is() -> None:
    value = {"a": [1, 2.5, "text", None, True]}
    assert storable_json(value) == value


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_json_does_not_have_is_refused_where_it_says_what_is_wanted(number: float) -> None:
    for build in (
        lambda: requests.recall("q", score_floor=number),
        lambda: requests.remember("a fact", importance=number),
    ):
        with pytest.raises(errors.InvalidRequest):
            build()


def test_a_key_that_is_no_text_is_refused_like_any_other_wrong_field() -> None:
    with pytest.raises(errors.InvalidRequest, match="idempotency_key"):
        requests.write("s1", [{"role": "user", "content": "a"}], idempotency_key=uuid.uuid4())  # type: ignore[arg-type]
