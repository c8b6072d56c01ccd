"""Clients that are closed, used after that, or forgotten."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from memory_service.client import ServiceUnavailable, SyncMemoryClient, UnavailableReason
from memory_service.contract.verbs import Outcome
from tests.fakes.memory_server import MemoryServer, hang
from tests.integration.client.conftest import MakeClient

TURN = {"role": "user", "content": "I live in Oslo."}


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"outbox": tmp_path / "outbox", "env": {}, "binding_folder": tmp_path / "none"}


def test_calls_of_other_threads_end_when_the_client_is_closed(server: MemoryServer, options: dict[str, Any]) -> None:
    server.always = hang
    with ThreadPoolExecutor(3) as pool:
        with SyncMemoryClient(server.url, **options) as client:
            recalling = pool.submit(client.recall, "q")
            writing = pool.submit(client.write, "s1", [TURN])
            listing = pool.submit(client.facts.list)
            server.wait_until(lambda s: len(s.requests) == 3)
        assert [part.reason for part in recalling.result(20).degraded] == ["ClientClosed"]
        assert writing.result(20).status == "queued"
        with pytest.raises(ServiceUnavailable) as caught:
            listing.result(20)
    assert caught.value.reason is UnavailableReason.CLOSED


async def test_a_call_in_flight_ends_when_the_client_is_closed_and_makes_no_connection_anew(
    server: MemoryServer, make_client: MakeClient
) -> None:
    server.always = hang
    client = make_client()
    recalling = asyncio.create_task(client.recall("q"))
    await asyncio.to_thread(server.wait_until, lambda s: len(s.requests) == 1)
    await client.aclose()
    recalled = await recalling
    assert (recalled.outcome, recalled.degraded[0].reason) == (Outcome.UNAVAILABLE, "ClientClosed")
    assert client._shared.exchange._transport._pool is None


@pytest.mark.parametrize("was_used", [False, True])
def test_a_closed_client_answers_as_in_an_outage_and_leaves_no_thread(
    was_used: bool, server: MemoryServer, options: dict[str, Any]
) -> None:
    client = SyncMemoryClient(server.url, **options)
    if was_used:
        assert client.recall("q").outcome is Outcome.APPLIED
    client.close()
    client.close()
    before = len(server.requests)
    assert client.recall("q").degraded[0].reason == "ClientClosed"
    assert client.write("s1", [TURN]).status == "queued"
    with pytest.raises(ServiceUnavailable):
        client.facts.list()
    assert len(server.requests) == before
    assert [thread.name for thread in threading.enumerate() if thread.name == "memplane-client"] == []


def test_clients_that_are_forgotten_leave_no_threads_and_no_connections(
    server: MemoryServer, options: dict[str, Any]
) -> None:
    earlier = set(threading.enumerate())

    def ours() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread not in earlier and "memplane" in thread.name]

    def use() -> None:
        client = SyncMemoryClient(server.url, **options)
        assert client.write("s1", [TURN], durable=True).status == "stored"

    def ended() -> int:
        gc.collect()
        for thread in ours():
            thread.join(20)
        assert ours() == []
        return len(os.listdir("/dev/fd"))

    use()
    descriptors = ended()
    for _ in range(5):
        use()
    assert ended() <= descriptors + 5  # the server's ends of the connections may still be open
