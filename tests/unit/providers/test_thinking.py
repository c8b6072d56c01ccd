"""What a model thinks aloud is not its answer."""

from __future__ import annotations

import json

import pytest

from memory_service.providers.thinking import without_thinking


@pytest.mark.parametrize(
    "text",
    [
        "<think>\nShe moved.\n</think>\nAnna moved.",
        "<thinking>She moved.</thinking>Anna moved.",
        "  <think>one</think>\n<think>two</think>\nAnna moved.",
        "She moved, the prompt began the thinking.\n</think>\n\nAnna moved.",
        "She moved.</think>\nAnna moved.",
        "<think>a </think> b\n</think>\nAnna moved.",
        "Anna moved.",
        "Anna moved.\n<think>Is that all?",
    ],
)
def test_the_answer_is_what_is_not_thinking(text: str) -> None:
    assert without_thinking(text).strip() == "Anna moved."


@pytest.mark.parametrize("text", ["<think>", "<think>\nShe moved. ", "<think>a</think>", "\n\n<think>\nShe"])
def test_thinking_without_an_end_is_no_answer(text: str) -> None:
    assert without_thinking(text).strip() == ""


@pytest.mark.parametrize("said", ["What does <think> do?", "</think>", "a </think> b", "<think>x</think>\n"])
def test_a_tag_that_somebody_said_stays(said: str) -> None:
    answer = json.dumps({"facts": [{"text": said}]})
    assert without_thinking(answer) == answer
    assert without_thinking(f"<think>\nShort.\n</think>\n{answer}").strip() == answer
    assert without_thinking("Anna asked what a <think> tag is.") == "Anna asked what a <think> tag is."


@pytest.mark.parametrize(
    "part", ["<think>", "</think>", "\n<think>", "</think>\n", "a <think> ", "<think></think>\n", "\n", "<", " " * 7]
)
def test_megabytes_of_tags_are_read_once(part: str) -> None:
    assert len(without_thinking(part * (4_000_000 // len(part)))) <= 4_000_000
