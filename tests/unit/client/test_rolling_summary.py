"""What a binding says about the digest reaches the wire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from memory_service.client import MemoryClient


@pytest.mark.parametrize(
    ("binding", "tiers"),
    [({"MEMPLANE_ROLLING_SUMMARY": "false"}, ["short_term", "long_term"]), ({}, None)],
)
async def test_a_binding_without_a_rolling_summary_asks_for_no_digest(
    binding: dict[str, str], tiers: list[str] | None, tmp_path: Path
) -> None:
    asked: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        return httpx.Response(200, json={"outcome": "no_matches"})

    env = {**binding, "MEMPLANE_ENDPOINT": "http://127.0.0.1:9"}
    transport = httpx.MockTransport(answer)
    async with MemoryClient(env=env, outbox=None, transport=transport, binding_folder=tmp_path / "none") as client:
        await client.recall("anything", session_id="s")
        await client.recall("anything", session_id="s", include=["medium_term"])
    assert asked[0].get("include") == tiers
    assert asked[1]["include"] == ["medium_term"], "who names tiers gets them"
