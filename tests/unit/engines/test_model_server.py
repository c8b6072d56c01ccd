"""The rule-based stand-in for a model answers the prompts that the service really sends."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime

import httpx
import pytest

from examples.model_server import chat_answer, facts_in, subject_of, vector_of
from memory_service.contract.turns import Role
from memory_service.domain import digest
from memory_service.ports.models import SaidTurn
from memory_service.providers import OfflineTokenCounter

AT = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "said, facts",
    [
        ("Hi! My dog is called Rex.", ["User's dog is called Rex"]),
        ("my favourite colour is now red", ["User's favourite colour is red"]),
        ("I live in Oslo. I prefer tea.", ["User lives in Oslo", "User prefers tea"]),
        ("Last week I moved from Oslo to Lisbon", ["User moved from Oslo to Lisbon"]),
        ("By the way, I'm allergic to peanuts!", ["User is allergic to peanuts"]),
        ("I work as a nurse", ["User works as a nurse"]),
        ("Remember that the gate code is 1234", ["The gate code is 1234"]),
        ("What is the weather?", []),
        ("", []),
    ],
)
def test_rules_find_what_was_said(said: str, facts: list[str]) -> None:
    assert facts_in(said) == facts


def test_facts_about_one_subject_replace_each_other() -> None:
    assert subject_of("User lives in Oslo") == subject_of("User moved from Oslo to Lisbon")
    assert subject_of("User's favourite colour is teal") == subject_of("User's favourite colour is red")
    assert subject_of("User prefers tea") != subject_of("User prefers chess")


def test_a_digest_holds_the_notes_so_far_and_what_was_said_since() -> None:
    counter = OfflineTokenCounter()
    turns = [
        SaidTurn(1, Role.USER, 'I said "hi"\nand more', None, AT),
        SaidTurn(2, Role.ASSISTANT, "My plan is secret", None, AT),
        SaidTurn(3, Role.USER, "I live in Oslo", "Ann", AT),
    ]
    (lines,) = digest.chunks(turns, context_tokens=8_000, digest_tokens=500, counter=counter)
    asked = digest.prompt("Ann came by.", lines, digest_tokens=500, counter=counter)
    messages = [{"role": "system", "content": asked.system}, {"role": "user", "content": asked.user}]
    summary = chat_answer({"messages": messages})["choices"][0]["message"]["content"]
    assert summary == 'Ann came by.\nThe user said: I said "hi"\nand more\nThe user said: I live in Oslo'
    assert digest.accepted(summary, digest_tokens=500, counter=counter) == summary


def test_texts_that_share_words_have_vectors_near_each_other() -> None:
    tea, more_tea, trains = (vector_of(text) for text in ("green tea", "more green tea", "night trains"))

    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    assert cosine(tea, more_tea) > 0.5 > cosine(tea, trains)
    assert vector_of("") == vector_of("")


@pytest.mark.parametrize("module", ["tests.fakes.model_server", "examples.model_server"])
def test_it_serves_from_the_command_line(module: str) -> None:
    command = [sys.executable, "-m", module, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with httpx.Client(trust_env=False, timeout=20) as client:
                assert client.get(f"{url}/models").json()["data"][0]["id"] == "rules"
                answer = client.post(f"{url}/embeddings", json={"input": ["a", "b"]}).json()
                assert len(answer["data"]) == 2
                asked = {"messages": [{"role": "user", "content": "hello"}]}
                assert json.loads(client.post(f"{url}/chat/completions", json=asked).content)["usage"]
                assert client.post(f"{url}/chat/completions", content=b"no").status_code == 400
                assert client.get(f"{url}/nothing").status_code == 404
        finally:
            process.terminate()
