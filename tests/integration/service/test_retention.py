"""Retention: what is past its time goes, whatever waited for it, and stands in nobody's way."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from memory_service.contract.config import (
    EngineName,
    ExtractionConfig,
    RetentionConfig,
    ServiceConfig,
    ShortTermConfig,
    StorageConfig,
)
from memory_service.operations.background import upkeep
from tests.fakes.model_server import CHAT, ModelServer
from tests.fakes.stores import MovableClock
from tests.integration.service.conftest import Start
from tests.integration.service.harness import Service, models_config, static_identity, tokens_file

DAY = 86_400


async def test_conversations_whose_turns_expired_unextracted_keep_no_other_from_being_remembered(
    storage: StorageConfig, models: ModelServer, clock: MovableClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store runs for months without a chat model, then one is configured."""
    monkeypatch.setattr(upkeep, "SWEEP_SESSIONS", 2)

    def configured(*, chat: bool) -> Service:
        config = ServiceConfig(
            storage=storage,
            models=models_config(models.url, chat=chat),
            identity=static_identity(tokens_file(tmp_path)),
            retention=RetentionConfig(turns_seconds=DAY),
        )
        return Service(config, clock, models)

    async with configured(chat=False).running() as service:
        for number in range(5):
            await service.agent().write("I live in Oslo", session=f"old{number}")
        await service.work()
        await service.pass_time(days=3)
        assert await service.agent().texts() == []
    async with configured(chat=True).running() as service:
        await service.agent("other").write("My dog is called Rex", session="fresh")
        await service.work()
        await service.pass_time(hours=1)
        assert await service.agent("other").texts(tiers=["fact"]) == ["User's dog is called Rex"]
        assert models.counts[CHAT] == 1
        for _ in range(3):
            clock.advance(timedelta(seconds=30))
            assert await upkeep.sweep(service.services, upkeep=False) == 0, "a store at rest makes no jobs"


async def test_a_conversation_of_which_a_part_expired_is_remembered_for_the_rest(start: Start) -> None:
    service = await start(
        chat=True,
        engine=EngineName.NATIVE,
        extraction=ExtractionConfig(idle_seconds=3 * DAY),
        retention=RetentionConfig(turns_seconds=5 * DAY),
    )
    agent = service.agent()
    await agent.write("I live in Oslo")
    await service.pass_time(days=2.5)
    await agent.write("My dog is called Rex")
    service.clock.advance(timedelta(days=2.7))
    await upkeep.sweep(service.services)
    await service.work()
    await service.pass_time(days=1)
    assert await agent.texts(tiers=["fact"]) == ["User's dog is called Rex"]


async def test_what_expired_turns_said_is_in_no_digest_and_the_session_goes_on_folding(start: Start) -> None:
    service = await start(
        chat=True,
        engine=EngineName.NATIVE,
        short_term=ShortTermConfig(token_budget=60),
        retention=RetentionConfig(turns_seconds=DAY),
    )
    agent = service.agent()
    for number in range(8):
        await agent.write(f"My secret number{number} is kept on the long green shelf by the door", session="s1")
    await service.work()
    assert "secret" in (await agent.recall("what is kept where", session_id="s1"))["medium_term"]["summary"]
    await service.pass_time(days=400)
    await service.work()
    assert "secret" not in str(await agent.recall("what is kept where", session_id="s1", scopes=["session"]))
    assert "secret" not in str(await agent.get("/v1/sessions/s1"))
    for number in range(8):
        await agent.write(f"The newer thing{number} is kept on the long red shelf by the wall", session="s1")
    await service.work()
    assert "newer" in (await agent.recall("what is kept where", session_id="s1"))["medium_term"]["summary"]
