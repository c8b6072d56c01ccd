"""Conversations below every mark are remembered, texts that look like a model's own are texts, and turns stay whole."""

from __future__ import annotations

import pytest

from memory_service.contract.config import EngineName
from tests.integration.service.conftest import Start
from tests.integration.service.harness import Service, item_texts, window_texts

SIX_TURNS = (
    ("user", "Hello there"),
    ("assistant", "Hello, how can I help?"),
    ("user", "My dog is called Rex"),
    ("assistant", "A fine name."),
    ("user", "I live in Oslo"),
    ("assistant", "Noted."),
)


async def _six_turns(service: Service) -> None:
    turns = [{"role": role, "content": text} for role, text in SIX_TURNS]
    await service.agent().post("/v1/write", {"session_id": "s1", "turns": turns})


@pytest.mark.parametrize("engine", list(EngineName))
async def test_a_short_conversation_is_remembered_once_it_has_ended(start: Start, engine: EngineName) -> None:
    service = await start(chat=True, engine=engine)
    await _six_turns(service)
    await service.work()
    assert await service.agent().texts() == []
    ended = await service.agent().post("/v1/sessions/s1/end")
    assert ended["scheduled"]
    await service.work()
    assert sorted(await service.agent().texts()) == ["User lives in Oslo", "User's dog is called Rex"]
    found = await service.agent().recall("what is the dog called", session_id="s2")
    assert "User's dog is called Rex" in item_texts(found)
    assert found["outcome"] == "applied"


@pytest.mark.parametrize("engine", list(EngineName))
async def test_a_short_conversation_is_remembered_once_it_has_been_idle(start: Start, engine: EngineName) -> None:
    service = await start(chat=True, engine=engine)
    await _six_turns(service)
    await service.pass_time(seconds=service.config.extraction.idle_seconds - 60)
    assert await service.agent().texts() == []
    await service.pass_time(seconds=120)
    assert sorted(await service.agent().texts()) == ["User lives in Oslo", "User's dog is called Rex"]
    await service.pass_time(hours=1)
    assert len(await service.agent().texts()) == 2


async def test_without_a_chat_model_a_conversation_is_found_again_as_episodes(service: Service) -> None:
    await _six_turns(service)
    await service.work()
    found = await service.agent().recall("what is my dog called", session_id="another")
    assert "My dog is called Rex" in item_texts(found)
    assert {item["tier"] for item in found["long_term"]["items"]} == {"episode"}
    assert window_texts(found) == []
