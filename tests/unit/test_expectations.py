"""What is wrong with a field reads as a sentence of ours, whoever finds it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from memory_service.contract.expectations import counted, expectation, field_name
from memory_service.contract.limits import MAX_FIELD_CHARS
from memory_service.contract.sessions import ErasureSubject
from memory_service.contract.verbs import ForgetRequest, RecallRequest, RememberRequest, WriteRequest


@pytest.mark.parametrize(
    ("model", "value", "field", "sentence"),
    [
        (RememberRequest, {"text": ""}, "text", "must not be empty"),
        (RememberRequest, {}, "text", "is required; send it"),
        (RememberRequest, {"text": "a", "owner": "x"}, "owner", "is not a field here; leave it out"),
        (RememberRequest, {"text": 5}, "text", "a string"),
        (RememberRequest, {"text": "a" * 16_001}, "text", "at most 16000 characters"),
        (RememberRequest, {"text": "a", "tags": ["t"] * 33}, "tags", "at most 32 entries"),
        (RememberRequest, {"text": "a", "tags": [""]}, "tags.0", "must not be empty"),
        (RememberRequest, {"text": "a", "importance": "0.5"}, "importance", "a number"),
        (RememberRequest, {"text": "a", "importance": True}, "importance", "a number"),
        (RememberRequest, {"text": "a", "pinned": 1}, "pinned", "true or false"),
        (RecallRequest, {"query": "a", "top_k": "5"}, "top_k", "a number"),
        (ForgetRequest, {"confirm": 1}, "confirm", "true or false"),
        (RememberRequest, {"text": "a", "importance": 2}, "importance", "at most 1.0"),
        (RecallRequest, {"query": "a", "filters": {"as_of": 1_700_000_000}}, "filters.as_of", "a time as in RFC 3339"),
        (RecallRequest, {"query": "a", "filters": {"as_of": "1700000000"}}, "filters.as_of", "a time as in RFC 3339"),
        (RecallRequest, {"query": "a", "top_k": 0}, "top_k", "at least 1"),
        (
            RecallRequest,
            {"query": "a", "scopes": ["all"]},
            "scopes.0",
            "one of 'private', 'user', 'shared' or 'session'",
        ),
        (
            WriteRequest,
            {"session_id": "a b", "turns": [{"role": "user", "content": "x"}]},
            "session_id",
            "text that matches",
        ),
        (ErasureSubject, {"session": "s"}, "", "`session` needs `agent`: a session id is an agent's own"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_expected(
    model: type[Any], value: dict[str, Any], field: str, sentence: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(value)
    flaw = refused.value.errors()[0]
    assert ".".join(str(part) for part in flaw["loc"]) == field
    assert expectation(flaw).startswith(sentence)


def test_a_list_is_not_called_empty_for_an_entry_that_is_wrong() -> None:
    with pytest.raises(ValidationError) as refused:
        WriteRequest.model_validate({"session_id": "s", "turns": [{"role": "nobody", "content": "x"}]})
    assert [flaw["loc"] for flaw in counted(refused.value.errors())] == [("turns", 0, "role")]
    with pytest.raises(ValidationError) as refused:
        WriteRequest.model_validate({"session_id": "s", "turns": []})
    assert [flaw["loc"] for flaw in counted(refused.value.errors())] == [("turns",)]


@pytest.mark.parametrize(
    ("turn", "field"),
    [
        ({"parts": [{"type": "tool_call", "id": "c", "name": "n", "arguments": 5}]}, "turns.0.parts.0.arguments"),
        ({"parts": [{"type": "tool_call", "id": "c"}]}, "turns.0.parts.0.name"),
        ({"parts": [{"type": "text", "text": "a", "tool_call": 1}]}, "turns.0.parts.0.tool_call"),
        ({"parts": [{"type": "smell"}]}, "turns.0.parts.0"),
        ({"content": "a", "x" * 1_000: 1}, f"turns.0.{'x' * 1_000}"[:MAX_FIELD_CHARS]),
    ],
)
def test_a_field_is_called_what_was_sent_and_no_more_than_its_bound_of_it(turn: dict[str, Any], field: str) -> None:
    given = {"session_id": "s", "turns": [{"role": "user", **turn}]}
    with pytest.raises(ValidationError) as refused:
        WriteRequest.model_validate(given)
    flaws = counted(refused.value.errors())
    assert {field_name(flaw["loc"], given, is_missing=flaw["type"] == "missing") for flaw in flaws} == {field}
