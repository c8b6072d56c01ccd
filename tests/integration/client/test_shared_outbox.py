"""One outbox folder of several agents, processes, lanes and stores."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memory_service.client import Delivery, MemoryClient, ServiceUnavailable
from memory_service.client.breaker import Breaker
from memory_service.client.entries import lane_of
from memory_service.client.outbox import Outbox
from tests.fakes.memory_server import MemoryServer, Received, problem, store_and_drop
from tests.integration.client.conftest import MakeClient


def turn(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def box(client: MemoryClient) -> Outbox:
    assert client.outbox is not None
    return client.outbox


def never_probes() -> Breaker:
    return Breaker(clock=lambda: 1_000.0)


@pytest.mark.parametrize(
    ("ada", "news"),
    [
        ({"token": "static-ada"}, {"token": "static-news"}),
        ({"agent": "kaos://agent/local/ada"}, {"agent": "kaos://agent/local/news"}),
        ({"token": "same", "store": "team"}, {"token": "same", "store": "other"}),
        ({"token": "static-ada"}, {}),
    ],
    ids=["tokens", "claims", "stores", "a token and none"],
)
async def test_what_one_agent_queued_never_goes_out_as_another_agents(
    ada: dict[str, str], news: dict[str, str], server: MemoryServer, make_client: MakeClient
) -> None:
    server.always = problem(503, "unavailable")
    client = make_client(**ada, breaker=never_probes())
    assert (await client.remember("the vault code is 4711")).status == "queued"
    assert (await client.write("s1", [turn("my salary")], durable=True)).status == "queued"
    await client.aclose()
    server.always = None
    server.requests.clear()
    other = make_client(**news)
    assert await other.deliver() == Delivery(waiting_for_others=2)
    assert (await other.write("s1", [turn("hello")], durable=True)).status == "stored"
    assert (await other.forget(session_id="s1")).is_done
    assert (server.texts("s1"), server.facts) == (["hello"], [])
    assert (await make_client(**ada).deliver()).delivered == 2
    assert [fact["text"] for fact in server.facts] == ["the vault code is 4711"]


async def test_what_waits_under_a_static_token_that_was_replaced_goes_out_when_it_is_adopted(
    server: MemoryServer, make_client: MakeClient
) -> None:
    server.always = problem(503, "unavailable")
    client = make_client(token="old", breaker=never_probes())
    await client.write("s1", [turn("one")])
    await client.aclose()
    server.always = None
    renewed = make_client(token="new")
    assert (await renewed.deliver()).waiting_for_others == 1
    assert await renewed.adopt() == 1
    assert (await renewed.deliver()).delivered == 1
    assert server.texts("s1") == ["one"]


async def test_many_agents_of_a_process_end_their_runs_side_by_side(
    server: MemoryServer, make_client: MakeClient
) -> None:
    """Each of them is answered only when all of them were asked."""
    everybody_asked = threading.Barrier(8)

    def wait_for_all(server: MemoryServer, connection: socket.socket, request: Received) -> None:
        everybody_asked.wait(20)
        server.send(connection, *server.handle(request))

    server.always = wait_for_all
    # A named store, and so the same lanes in every run: no two of these eight share one of the 256 locks.
    client = make_client(store="team", failure_mode="strict")
    agent = client._shared.source.agent()
    locks = {hashlib.sha256(lane_of(f"u{n}", "s1", agent).encode()).digest()[0] for n in range(8)}
    assert len(locks) == 8
    writes = [client.as_user(f"u{n}").write("s1", [turn("x")], durable=True) for n in range(8)]
    assert [written.status for written in await asyncio.gather(*writes)] == ["stored"] * 8


async def something_waits(outbox: Outbox) -> None:
    """Wait until something is in an outbox."""
    async with asyncio.timeout(30):
        while await asyncio.to_thread(outbox.waiting) < 1:  # noqa: ASYNC110 - another thread puts the entry
            await asyncio.sleep(0)


async def test_a_lane_that_another_process_delivers_is_waited_for(
    server: MemoryServer, make_client: MakeClient
) -> None:
    client = make_client(failure_mode="strict")
    lane = lane_of(None, "s1", client._shared.source.agent())
    lock = Outbox(box(client).folder).try_lock(lane)
    assert lock is not None
    with closing(lock):
        writing = asyncio.create_task(client.write("s1", [turn("one")], durable=True))
        await something_waits(box(client))
        assert server.requests == []
    assert (await writing).status == "stored"


async def test_what_another_process_delivered_meanwhile_is_answered_as_stored(
    server: MemoryServer, make_client: MakeClient
) -> None:
    client, other = make_client(failure_mode="strict"), make_client()
    lane = lane_of(None, "s1", client._shared.source.agent())
    lock = Outbox(box(client).folder).try_lock(lane)
    assert lock is not None
    with closing(lock):
        writing = asyncio.create_task(client.write("s1", [turn("one")], durable=True))
        await something_waits(box(client))
        courier = other._shared.courier
        assert courier is not None
        await courier._deliver_alone(lane, {"delivered": 0, "refused": 0, "erased": 0}, None, None)
    written = await writing
    assert (written.status, written.seqs) == ("stored", (1,))
    assert server.texts("s1") == ["one"]


async def test_a_strict_write_that_raises_says_that_nothing_is_queued_and_its_key_repeats_it_once(
    server: MemoryServer, make_client: MakeClient
) -> None:
    client = make_client(failure_mode="strict")
    server.faults.extend([store_and_drop, store_and_drop])
    with pytest.raises(ServiceUnavailable, match="nothing is queued") as caught:
        await client.write("s1", [turn("pay")], durable=True)
    assert box(client).waiting() == 0
    again = make_client(failure_mode="strict")
    key = caught.value.idempotency_key
    assert (await again.write("s1", [turn("pay")], durable=True, idempotency_key=key)).status == "stored"
    assert server.texts("s1") == ["pay"]


def test_the_folder_is_named_by_who_the_agent_claims_to_be(tmp_path: Path) -> None:
    folders = {
        box(
            MemoryClient.bind("s", token=token, agent="kaos://agent/a/one", env={"XDG_STATE_HOME": str(tmp_path)})
        ).folder
        for token in ("old", "new")
    }
    assert len(folders) == 1, "what waited before a token was replaced is found"
