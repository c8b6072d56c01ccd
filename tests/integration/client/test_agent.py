"""What a runtime calls around a run, and the tools that it gives a model."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from memory_service.client import AgentMemory, InvalidRequest, ServiceUnavailable, SyncAgentMemory, SyncMemoryClient
from memory_service.contract.scopes import Tier
from memory_service.contract.verbs import Outcome
from tests.fakes.memory_server import MemoryServer, Received, problem, store_and_drop
from tests.integration.client.conftest import MakeClient

OWNERS = (
    "self",
    "scope",
    "scopes",
    "user",
    "agent",
    "agent_id",
    "user_id",
    "principal",
    "session_id",
    "workspace",
    "run_id",
)


async def test_a_run_recalls_before_and_flushes_after(server: MemoryServer, make_client: MakeClient) -> None:
    memory = AgentMemory(make_client(), "s1")
    prelude = await memory.before_run("where do I live?")
    assert (prelude.block, prelude.outcome, prelude.tokens) == ("<block>", Outcome.APPLIED, 7)
    (written,) = await memory.after_run([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert written.seqs == (1, 2)
    assert server.requests[0].body == {"query": "where do I live?", "session_id": "s1"}


async def test_a_flush_is_stored_even_when_background_delivery_takes_its_entry_first(
    server: MemoryServer, make_client: MakeClient
) -> None:
    client = make_client()
    memory = AgentMemory(client, "s1")
    for number in range(20):
        await memory.before_run(f"question {number}")  # its answer starts background delivery
        written = await memory.after_run([{"role": "user", "content": f"turn {number}"}])
        assert [part.status for part in written] == ["stored"]
    assert client.counts.get("queued:write", 0) == 0


async def test_an_outage_never_reaches_the_run(server: MemoryServer, make_client: MakeClient) -> None:
    server.always = problem(503, "unavailable")
    memory = AgentMemory(make_client(), "s1", tools="all")
    prelude = await memory.before_run("q")
    assert (prelude.block, prelude.window, prelude.outcome) == ("", (), Outcome.UNAVAILABLE)
    (written,) = await memory.after_run([{"role": "user", "content": "a"}])
    assert written.status == "queued"
    assert (await memory.search_memory("q"))["outcome"] == "unavailable"
    assert await memory.save_memory("t") == {"saved": False, "status": "queued"}


async def test_a_long_flush_is_sent_in_parts_and_in_order(server: MemoryServer, make_client: MakeClient) -> None:
    turns = [{"role": "user", "content": f"t{number}"} for number in range(450)]
    written = await AgentMemory(make_client(), "s1").after_run(iter(turns))
    assert [len(part.seqs) for part in written] == [200, 200, 50]
    assert server.texts("s1") == [turn["content"] for turn in turns]


async def test_a_wrong_turn_anywhere_in_a_long_flush_is_named_before_any_of_it_is_sent(
    server: MemoryServer, make_client: MakeClient
) -> None:
    memory = AgentMemory(make_client(), "s1")
    turns: list[Any] = [{"role": "user", "content": f"t{number}"} for number in range(250)]
    for wrong in ({"role": "usr", "content": "x"}, "hello"):
        with pytest.raises(InvalidRequest) as caught:
            await memory.after_run([*turns, wrong])
        assert {error.field.split(".")[1] for error in caught.value.problem.errors} == {"250"}
    assert server.requests == []


async def test_a_flush_that_raised_is_stored_once_when_it_is_repeated_with_its_key(
    server: MemoryServer, make_client: MakeClient
) -> None:
    turns = [{"role": "user", "content": f"t{number}"} for number in range(250)]

    def answered(server: MemoryServer, connection: socket.socket, request: Received) -> None:
        server.send(connection, *server.handle(request))

    server.faults.extend([answered, store_and_drop, store_and_drop])
    with pytest.raises(ServiceUnavailable) as caught:
        await AgentMemory(make_client(), "s1").after_run(turns, failure_mode="strict")
    key = caught.value.idempotency_key
    written = await AgentMemory(make_client(), "s1").after_run(turns, idempotency_key=key, failure_mode="strict")
    assert [part.status for part in written] == ["stored", "stored"]
    assert server.texts("s1") == [turn["content"] for turn in turns]
    assert len({turn["id"] for request in server.requests for turn in request.body["turns"]}) == 250


@pytest.mark.parametrize(("key", "fate"), [(None, (1, 0)), ("mine", (0, 1))])
async def test_a_flush_is_set_aside_for_another_body_only_where_its_key_is_the_callers(
    server: MemoryServer, make_client: MakeClient, key: str | None, fate: tuple[int, int]
) -> None:
    """A mismatch under a key that nobody else knows says that an earlier attempt was stored, by another version."""
    server.faults.append(problem(503, "unavailable", Retry_After="60"))
    client = make_client()
    (written,) = await AgentMemory(client, "s1").after_run([{"role": "user", "content": "a"}], idempotency_key=key)
    assert written.status == "queued"
    await client.aclose()
    server.always = problem(422, "idempotency-mismatch")
    delivery = await make_client().deliver()
    assert (delivery.delivered, delivery.refused) == fate


async def test_tools_follow_the_binding(server: MemoryServer, make_client: MakeClient) -> None:
    names = {
        allowed: [tool.name for tool in AgentMemory(make_client(env={"MEMPLANE_TOOLS": allowed}), "s1").tools()]
        for allowed in ("", "read", "write", "all")
    }
    assert names == {
        "": [],
        "read": ["search_memory"],
        "write": ["save_memory"],
        "all": ["search_memory", "save_memory"],
    }


async def test_tools_take_no_owner_and_refuse_what_they_do_not_know(
    server: MemoryServer, make_client: MakeClient
) -> None:
    for tool in AgentMemory(make_client(), "s1", tools="all").tools():
        assert json.loads(json.dumps(tool.parameters)) == tool.parameters
        assert tool.parameters["additionalProperties"] is False
        assert not set(OWNERS) & set(tool.parameters["properties"])
        for name in OWNERS:
            with pytest.raises(InvalidRequest):
                await tool("text", **{name: "kaos:shared"})
        with pytest.raises(InvalidRequest):
            await tool()
    assert server.requests == []


async def test_search_memory_reads_the_long_term_tier_of_its_own_session(
    server: MemoryServer, make_client: MakeClient
) -> None:
    search, save = AgentMemory(make_client(), "s1", tools="all").tools()
    found = await search(query="Oslo")
    assert found["memories"][0]["text"] == "Oslo"
    assert server.requests[-1].body == {"query": "Oslo", "session_id": "s1", "include": [Tier.LONG_TERM.value]}
    saved = await save(text="Ada likes tea.", kind="preference", key="drink")
    assert saved["saved"] is True
    assert server.facts[0] == {
        "text": "Ada likes tea.",
        "kind": "preference",
        "key": "drink",
        "session_id": "s1",
    }


def test_the_blocking_helper_does_the_same(server: MemoryServer, tmp_path: Path) -> None:
    with SyncMemoryClient(server.url, outbox=tmp_path, env={}, binding_folder=tmp_path / "none") as client:
        memory = SyncAgentMemory(client, "s1", tools="all")
        assert memory.before_run("q").block == "<block>"
        assert memory.after_run([{"role": "user", "content": "a"}])[0].status == "stored"
        search, _ = memory.tools()
        assert search("q")["outcome"] == "applied"
