"""What an agent's runtime gets from the service through the real client."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from memory_service.client import AgentMemory, MemoryClient, Prelude
from memory_service.contract.config import EngineName, ExtractionConfig, ShortTermConfig
from tests.integration.service.conftest import Start
from tests.integration.service.harness import HOSTILE_TEXT, Service

PAGE = Path(__file__).parents[3] / "docs/how-to/write-an-agent.md"

TOOL_TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "What does the weather do in Oslo?", "name": "Ada"},
    {
        "role": "assistant",
        "content": None,
        "parts": [
            {"type": "text", "text": "Let me look. \u2603 <b>"},
            {
                "type": "tool_call",
                "id": "call-1",
                "name": "weather",
                "arguments": {"city": "Oslo", "days": [1, 2.5, None, True], "deep": {"e": {"é": "\U0001f327"}}},
            },
        ],
    },
    {
        "role": "tool",
        "parts": [
            {"type": "tool_result", "id": "call-1", "content": {"rain": [0.5, 12], "note": 'a "quoted" one'}},
            {"type": "image", "url": "https://example.com/map.png", "media_type": "image/png", "alt": "a map"},
        ],
    },
    {"role": "assistant", "content": "It rains."},
]


def client_of(service: Service, folder: Path) -> MemoryClient:
    """Return the real client, before a service that is in this process."""
    return MemoryClient(
        "http://127.0.0.1",
        token="helper-token",
        outbox=folder / "outbox",
        env={},
        binding_folder=folder / "no-binding",
        transport=httpx.ASGITransport(service.app),
    )


async def test_turns_with_tools_come_back_to_the_next_run_as_they_were(service: Service, tmp_path: Path) -> None:
    async with client_of(service, tmp_path) as client:
        memory = AgentMemory(client, "s1")
        (written,) = await memory.after_run(TOOL_TURNS)
        assert written.status == "stored"
        prelude = await memory.before_run("And tomorrow?")
    assert [turn.role.value for turn in prelude.window] == [turn["role"] for turn in TOOL_TURNS]
    for turn, given in zip(prelude.window, TOOL_TURNS, strict=True):
        parts = [part.model_dump(mode="json") for part in turn.parts or ()]
        for part, sent in zip(parts, given.get("parts", ()), strict=True):
            assert {name: part[name] for name in sent} == sent
        assert turn.name == given.get("name")
        assert not turn.truncated
        if given.get("content") is not None:
            assert turn.content == given["content"]
    again = [turn.model_dump(mode="json", include={"role", "content", "parts", "name"}) for turn in prelude.window]
    async with client_of(service, tmp_path) as client:
        memory = AgentMemory(client, "s2")
        await memory.after_run(again)
        repeated = (await memory.before_run("And tomorrow?")).window
    assert [turn.parts for turn in repeated] == [turn.parts for turn in prelude.window]


@pytest.mark.parametrize("storage", ["local"], indirect=True)
async def test_a_client_without_a_token_sees_that_the_service_lives_and_is_ready(
    service: Service, tmp_path: Path
) -> None:
    async with MemoryClient(
        "http://127.0.0.1",
        outbox=None,
        env={"MEMPLANE_TOKEN_FILE": str(tmp_path / "none")},
        binding_folder=tmp_path / "no-binding",
        transport=httpx.ASGITransport(service.app),
    ) as client:
        assert await client.health.live()
        assert await client.health.ready()


@pytest.mark.parametrize("storage", ["local"], indirect=True)
async def test_what_was_folded_forges_no_section_of_the_prompt_that_the_guide_builds(
    start: Start, tmp_path: Path
) -> None:
    service = await start(
        chat=True,
        engine=EngineName.NATIVE,
        short_term=ShortTermConfig(token_budget=60),
        extraction=ExtractionConfig(idle_seconds=10**8),
    )
    guide: dict[str, Any] = {"Prelude": Prelude}
    page = PAGE.read_text(encoding="utf-8")
    found = re.search(r"^SYSTEM = .*?(?=^async def ask_model)", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    exec(found.group(), guide)
    async with client_of(service, tmp_path) as client:
        memory = AgentMemory(client, "s1")
        await memory.after_run([{"role": "user", "content": text} for text in (HOSTILE_TEXT, "and so it goes " * 15)])
        await service.work()
        prelude = await memory.before_run("walnut")
    assert HOSTILE_TEXT in prelude.summary
    system = guide["prompt"](prelude, "hello")[0]["content"]
    assert prelude.digest in system
    assert system.count("<memory>") == system.count("</memory>") == 1 + bool(prelude.block)
    assert not any(line.startswith(("#", "```", "ignore")) for line in system.splitlines())
