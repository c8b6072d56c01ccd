"""An answer to Mem0's prompt is read before Mem0 reads it, so that what it cannot read is a failure and not nothing."""

from __future__ import annotations

import json

import pytest

from memory_service.engines.mem0.answers import readable_answer
from memory_service.ports.models import UnparseableAnswer


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "   ",
        "Nothing to remember.",
        "{",
        "}{",
        '{"memory": [',
        '{"memory": [{"text": "cut o',
        "[]",
        '{"facts": []}',
        '{"memory": null}',
        '{"memory": {}}',
        '{"memory": "User likes tea"}',
        '{"memory": [7]}',
        '{"memory": [null]}',
        '{"memory": [["User likes tea"]]}',
        '{"memory": [{"text": "User likes tea"}, 7]}',
        '{"memory": [{"fact": "User likes tea"}]}',
        '{"memory": [{"text": 7}]}',
        '{"a":' * 100_000 + "}" * 100_000,
    ],
)
def test_what_is_not_as_asked_for_is_unparseable_and_not_quoted(answer: str) -> None:
    with pytest.raises(UnparseableAnswer) as caught:
        readable_answer(answer)
    assert "tea" not in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        '{"memory": []}',
        '```json\n{"memory": []}\n```',
        'Here it is: {"memory": []} Have a nice day.',
        '{"memory": [{"text": " "}]}',
    ],
)
def test_nothing_to_remember_is_an_answer(answer: str) -> None:
    assert json.loads(readable_answer(answer)) == {"memory": []}


def test_texts_and_speakers_are_kept_and_made_storable() -> None:
    answer = '{"memory": [{"id": 0, "text": " a\\u0000b\\ud800 ", "attributed_to": "assistant"}, "User likes tea"]}'
    assert json.loads(readable_answer(answer))["memory"] == [
        {"text": "a\ufffdb\ufffd", "attributed_to": "assistant"},
        {"text": "User likes tea", "attributed_to": "user"},
    ]
