"""Turns that wait in the outbox arrive once, in order, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from memory_service.client import Deadlines, InvalidRequest, MemoryClient, ServiceUnavailable
from memory_service.client.breaker import Breaker
from memory_service.client.carrier import MAX_ATTEMPTS
from memory_service.client.outbox import Outbox
from memory_service.contract.limits import MAX_QUEUED_SECONDS
from memory_service.contract.problems import GOOD_TOKEN, UNEXPIRED_TOKEN
from memory_service.contract.verbs import Outcome
from tests.fakes.memory_server import Fault, MemoryServer, Received, hang, problem, store_and_drop, store_and_hang
from tests.integration.client.conftest import MakeClient

SHORT = Deadlines(recall=0.3, write=0.3, other=0.3, admin=0.3)


def turn(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


class Clock:
    """Time that only its sleeps and its owner move; sleeping lets the rest of the loop run."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def box(client: MemoryClient) -> Outbox:
    assert client.outbox is not None
    return client.outbox


async def test_queued_turns_arrive_by_themselves_when_the_service_is_back(
    server: MemoryServer, make_client: MakeClient
) -> None:
    clock = Clock()
    client = make_client(clock=clock, sleep=clock.sleep)
    server.faults.extend([problem(503, "unavailable")] * 3)
    assert (await client.write("s1", [turn("one")])).status == "queued"
    await asyncio.to_thread(server.wait_until, lambda s: s.texts("s1") == ["one"])


async def test_turns_of_a_session_never_overtake_those_that_wait(server: MemoryServer, make_client: MakeClient) -> None:
    client = make_client(outbox=None, deadlines=SHORT)
    queue = make_client(deadlines=SHORT, breaker=Breaker(clock=Clock()))
    server.faults.append(hang)
    for text in ("one", "two", "three"):
        assert (await queue.write("s1", [turn(text)])).status == "queued"
    await queue.aclose()
    assert (await client.write("s2", [turn("other session")])).status == "stored"
    later = make_client()
    assert (await later.write("s1", [turn("four")])).status == "stored"
    assert server.texts("s1") == ["one", "two", "three", "four"]


async def test_a_write_of_unknown_outcome_is_stored_once(server: MemoryServer, make_client: MakeClient) -> None:
    server.faults.append(store_and_hang)
    client = make_client(deadlines=SHORT, breaker=Breaker(clock=Clock()))
    assert (await client.write("s1", [turn("one")])).status == "queued"
    assert server.texts("s1") == ["one"]
    await client.aclose()
    again = make_client()
    assert (await again.deliver()).delivered == 1
    assert server.texts("s1") == ["one"]
    assert box(again).waiting() == 0
    assert box(again).refused() == ()


async def test_a_fact_of_unknown_outcome_is_stored_once(server: MemoryServer, make_client: MakeClient) -> None:
    server.faults.extend([store_and_drop, store_and_drop])
    client = make_client(breaker=Breaker(clock=Clock()))
    assert (await client.remember("Ada lives in Oslo.")).status == "queued"
    await client.aclose()
    assert (await make_client().deliver()).delivered == 1
    assert [fact["text"] for fact in server.facts] == ["Ada lives in Oslo."]


async def test_a_key_that_two_users_and_two_verbs_share_loses_nothing_in_an_outage(
    server: MemoryServer, make_client: MakeClient
) -> None:
    client = make_client(breaker=Breaker(clock=Clock()))
    server.faults.append(problem(503, "unavailable"))
    for user in ("ada", "bob"):
        assert (await client.as_user(user).write(user, [turn(user)], idempotency_key="msg-1")).status == "queued"
    assert (await client.as_user("ada").remember("Ada likes tea", idempotency_key="msg-1")).status == "queued"
    with pytest.raises(InvalidRequest, match="another request with this key"):
        await client.as_user("ada").write("ada", [turn("else")], idempotency_key="msg-1")
    with pytest.raises(InvalidRequest, match="another request with this key"):
        await client.as_user("ada").write("ada", [turn("else")], idempotency_key="msg-1", durable=True)
    await client.aclose()
    assert (await make_client().deliver()).delivered == 3
    assert (server.texts("ada"), server.texts("bob")) == (["ada"], ["bob"])
    assert [fact["text"] for fact in server.facts] == ["Ada likes tea"]


async def test_a_durable_write_is_never_given_what_became_of_an_entry_before_it(
    server: MemoryServer, make_client: MakeClient
) -> None:
    client = make_client(breaker=Breaker(clock=Clock()))
    assert (await client.write("s1", [turn("one")], durable=True, idempotency_key="k")).status == "stored"
    shutil.rmtree(box(client).folder)
    server.faults.append(problem(503, "unavailable"))
    for key in ("other", "k"):
        written = await client.write("s1", [turn("one")], durable=True, idempotency_key=key)
        assert (written.status, written.seqs) == ("queued", ())


async def test_an_entry_filled_before_any_answer_says_how_long_it_waited(
    server: MemoryServer, make_client: MakeClient
) -> None:
    wall = Clock()
    server.faults.append(problem(503, "unavailable", Retry_After="60"))
    client = make_client(wall=wall)
    await client.write("s1", [turn("one")])
    await client.aclose()
    wall.now += 90
    await make_client(wall=wall).deliver()
    assert server.requests[-1].body["queued_seconds"] == 90
    assert "generation" not in server.requests[-1].body


async def test_an_entry_filled_after_an_answer_says_its_generation_too(
    server: MemoryServer, make_client: MakeClient
) -> None:
    wall = Clock()
    server.generation = "g42"
    client = make_client(wall=wall)
    await client.write("s1", [turn("one")])
    server.faults.append(problem(503, "unavailable", Retry_After="60"))
    await client.write("s1", [turn("two")])
    await client.aclose()
    wall.now += 90
    await make_client(wall=wall).deliver()
    assert server.requests[-1].body["generation"] == "g42"
    assert server.requests[-1].body["queued_seconds"] == 90


@pytest.mark.parametrize("is_same_process", [True, False])
async def test_a_clock_that_was_set_back_makes_nothing_younger_than_an_erasure(
    is_same_process: bool, server: MemoryServer, make_client: MakeClient
) -> None:
    clock, wall = Clock(), Clock()
    server.faults.append(problem(503, "unavailable"))
    client = make_client(clock=clock, wall=wall, breaker=Breaker(clock=clock))
    await client.write("s1", [turn("one")])
    if is_same_process:
        clock.now += 900
        wall.now += 30
        await client.deliver()
        assert server.requests[-1].body["queued_seconds"] == 900
    else:
        await client.aclose()
        wall.now -= 3_600
        await make_client(wall=wall).deliver()
        assert server.requests[-1].body["queued_seconds"] == MAX_QUEUED_SECONDS


async def test_what_was_erased_meanwhile_is_dropped_and_counted(server: MemoryServer, make_client: MakeClient) -> None:
    server.faults.append(problem(503, "unavailable", Retry_After="60"))
    client = make_client()
    await client.write("s1", [turn("erase me")])
    await client.aclose()
    later = make_client()
    server.faults.append(problem(410, "erased"))
    delivery = await later.deliver()
    assert (delivery.erased, delivery.waiting) == (1, 0)
    assert later.counts["erased"] == 1
    assert box(later).counts()["erased"] == 1
    assert b"erase me" not in b"".join(path.read_bytes() for path in box(later).folder.iterdir())


@pytest.mark.parametrize("status", [400, 403, 404, 413, 422])
async def test_what_is_refused_is_set_aside_and_those_behind_it_go_on(
    status: int, server: MemoryServer, make_client: MakeClient
) -> None:
    client = make_client()
    server.faults.append(problem(503, "unavailable", Retry_After="60"))
    for text in ("one", "two"):
        await client.write("s1", [turn(text)])
    await client.aclose()
    later = make_client()
    server.faults.append(problem(status, "whatever"))
    delivery = await later.deliver()
    assert (delivery.refused, delivery.delivered, delivery.waiting) == (1, 1, 0)
    assert server.texts("s1") == ["two"]
    (kept,) = box(later).refused()
    assert kept.problem is not None
    assert kept.problem.status == status
    assert box(later).retry_refused() == 1
    assert (await later.deliver()).delivered == 1
    assert sorted(server.texts("s1")) == ["one", "two"]


async def test_a_key_that_the_agent_had_used_before_sets_the_later_words_aside_and_loses_none(
    server: MemoryServer, make_client: MakeClient
) -> None:
    client = make_client(breaker=Breaker(clock=Clock()))
    assert (await client.write("s1", [turn("one")], idempotency_key="k")).status == "stored"
    server.faults.append(problem(503, "unavailable"))
    assert (await client.write("s1", [turn("two")], idempotency_key="k")).status == "queued"
    assert (await client.write("s1", [turn("three")])).status == "queued"
    await client.aclose()
    later = make_client()
    delivery = await later.deliver()
    assert (delivery.refused, delivery.delivered, delivery.waiting) == (1, 1, 0)
    assert server.texts("s1") == ["one", "three"]
    (kept,) = box(later).refused()
    assert (kept.idempotency_key, kept.body["turns"][0]["content"]) == ("k", "two")


@pytest.mark.parametrize("bad", [{"user": "ada\nbob"}, {"idempotency_key": "k\n"}], ids=["user", "key"])
async def test_an_entry_that_no_header_can_carry_is_set_aside_and_holds_nobody_up(
    bad: dict[str, str], server: MemoryServer, make_client: MakeClient
) -> None:
    client = make_client()
    agent = client._shared.source.agent()
    for session, given in (("s1", bad), ("s2", {})):
        body = {"session_id": session, "turns": [{**turn("one"), "id": session}]}
        key = {"idempotency_key": session, **given}
        box(client).put(verb="write", body=body, session_id=session, agent=agent, **key)
    delivery = await client.deliver()
    assert (delivery.refused, delivery.delivered, delivery.waiting) == (1, 1, 0)
    assert (server.texts("s1"), server.texts("s2")) == ([], ["one"])
    assert [kept.session_id for kept in box(client).refused()] == ["s1"]


async def test_a_delivery_deletes_what_was_set_aside_a_month_ago(server: MemoryServer, make_client: MakeClient) -> None:
    wall = Clock()
    client = make_client(wall=wall)
    server.faults.extend([problem(503, "unavailable", Retry_After="60"), problem(422, "whatever")])
    await client.write("s1", [turn("unmistakable")])
    await client.aclose()
    later = make_client(wall=wall)
    assert (await later.deliver()).refused == 1
    wall.now += 29 * 86_400
    await later.deliver()
    assert len(box(later).refused()) == 1
    wall.now += 2 * 86_400
    await later.deliver()
    assert (box(later).refused(), box(later).counts()["expired"]) == ((), 1)
    assert b"unmistakable" not in b"".join(path.read_bytes() for path in box(later).folder.iterdir())


async def test_a_full_disk_of_the_service_is_an_outage_however_long_it_lasts(
    server: MemoryServer, make_client: MakeClient
) -> None:
    client = make_client()
    server.always = problem(507, "storage-full", Retry_After="5")
    written = await client.write("s1", [turn("one")])
    assert (written.status, written.degraded[0].reason) == ("queued", "StorageFull")
    await client.aclose()
    later = make_client()
    for _ in range(MAX_ATTEMPTS + 1):
        assert (await later.deliver()).waiting == 1
    server.always = None
    assert (await later.recall("the disk can be read")).outcome is Outcome.APPLIED
    await later.deliver()
    assert server.texts("s1") == ["one"]
    assert box(later).refused() == ()


async def test_a_refused_token_of_the_agent_holds_everything_and_sets_nothing_aside(
    server: MemoryServer, make_client: MakeClient
) -> None:
    client = make_client()
    server.faults.append(problem(503, "unavailable", Retry_After="60"))
    for session in ("s1", "s2"):
        await client.write(session, [turn("one")])
    await client.aclose()
    server.faults.append(problem(401, "unauthenticated"))
    later = make_client()
    assert (await later.deliver()).waiting == 2
    assert (await later.deliver()).delivered == 2
    assert box(later).refused() == ()


NOW = 1_800_000_000.0


def token(subject: str, expires_at: float) -> str:
    claims = json.dumps({"iss": "https://id.example", "sub": subject, "exp": expires_at})
    return f"e30.{base64.urlsafe_b64encode(claims.encode()).decode().rstrip('=')}.c2lnbmF0dXJl"


def takes(*good: str, expired: tuple[str, ...] = ()) -> Fault:
    """Answer as a service that checks users' tokens."""

    def act(server: MemoryServer, connection: socket.socket, request: Received) -> None:
        user = request.headers.get("x-memplane-user", "")
        if user in good:
            server.send(connection, *server.handle(request))
            return
        expected = UNEXPIRED_TOKEN if user in expired else GOOD_TOKEN
        body = {"type": "https://memplane.dev/problems/unauthenticated", "title": "no", "status": 401, "detail": "no"}
        fields = [{"field": "X-Memplane-User", "expected": expected}]
        server.send(connection, 401, {**body, "errors": fields})

    return act


async def test_what_a_user_said_under_a_token_that_expired_meanwhile_goes_out_under_the_next_one(
    server: MemoryServer, make_client: MakeClient
) -> None:
    old, new, bob = token("ada", NOW + 60), token("ada", NOW + 9_000), token("bob", NOW + 9_000)
    client = make_client(breaker=Breaker(clock=Clock()), wall=lambda: NOW)
    server.faults.append(problem(503, "unavailable"))
    for user, session in ((old, "s1"), (bob, "s2")):
        assert (await client.as_user(user).write(session, [turn("one")])).status == "queued"
    await client.aclose()
    server.always = takes(new, bob, expired=(old,))
    later = make_client(wall=lambda: NOW + 600)
    assert (await later.deliver()).waiting == 1
    assert server.texts("s2") == ["one"]
    written = await later.as_user(new).write("s1", [turn("two")])
    assert written.status == "stored"
    assert server.texts("s1") == ["one", "two"]
    assert box(later).waiting() == 0


@pytest.mark.parametrize("was_good", [False, True], ids=["expired before it was queued", "was never genuine"])
async def test_no_newer_token_speaks_for_words_that_came_under_a_bad_one(
    was_good: bool, server: MemoryServer, make_client: MakeClient
) -> None:
    bad, new = token("ada", NOW + 60 if was_good else NOW - 60), token("ada", NOW + 9_000)
    client = make_client(breaker=Breaker(clock=Clock()), wall=lambda: NOW)
    server.faults.append(problem(503, "unavailable"))
    await client.as_user(bad).write("s1", [turn("not ada's")])
    await client.aclose()
    server.always = takes(new, expired=() if was_good else (bad,))
    later = make_client(wall=lambda: NOW + 600)
    assert (await later.as_user(new).write("s1", [turn("ada's")])).status == "stored"
    assert server.texts("s1") == ["ada's"]
    (kept,) = box(later).refused()
    assert kept.user == bad


async def test_a_proxys_word_is_no_verdict_on_an_entry(server: MemoryServer, make_client: MakeClient) -> None:
    from tests.fakes.memory_server import answer

    client = make_client()
    server.faults.append(problem(503, "unavailable", Retry_After="60"))
    await client.write("s1", [turn("one")])
    await client.aclose()
    server.faults.append(answer(404, b"<html>no such site</html>"))
    later = make_client()
    assert (await later.deliver()).waiting == 1
    assert (await later.deliver()).delivered == 1


async def test_an_entry_that_the_service_fails_on_blocks_its_own_session_alone_and_not_for_ever(
    server: MemoryServer, make_client: MakeClient
) -> None:
    client = make_client(deadlines=SHORT)
    server.faults.append(problem(503, "unavailable", Retry_After="60"))
    for session, text in (("s1", "poison"), ("s1", "behind it"), ("s2", "elsewhere")):
        await client.write(session, [turn(text)])
    await client.aclose()
    later = make_client()
    server.faults.append(problem(500, "internal"))
    assert (await later.deliver()).waiting == 2
    assert server.texts("s2") == ["elsewhere"]
    server.faults.extend([problem(500, "internal")] * (MAX_ATTEMPTS - 1))
    for _ in range(MAX_ATTEMPTS - 1):
        await later.deliver()
    assert len(box(later).refused()) == 1
    await later.deliver()
    assert server.texts("s1") == ["behind it"]


async def test_a_full_outbox_drops_loudly_and_does_not_raise_under_soft(
    server: MemoryServer, make_client: MakeClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.always = problem(503, "unavailable")
    client = make_client(outbox=Outbox(tmp_path / "small", max_entries=1))
    assert (await client.write("s1", [turn("one")])).status == "queued"
    written = await client.write("s1", [turn("two")])
    assert written.status == "dropped"
    assert [part.reason for part in written.degraded if part.part == "outbox"] == ["OutboxFull"]
    assert client.counts["dropped"] == 1
    assert any(record.levelname == "ERROR" for record in caplog.records)


async def test_forgetting_a_session_takes_what_waits_for_it_along(
    server: MemoryServer, make_client: MakeClient
) -> None:
    client = make_client(deadlines=SHORT)
    server.faults.append(problem(503, "unavailable", Retry_After="60"))
    await client.write("s1", [turn("forget me")])
    await client.aclose()
    other = make_client(outbox=Outbox(box(client).folder))
    other._shared.courier._may_hold_entries = False  # type: ignore[union-attr]
    forgotten = await other.forget(session_id="s1")
    assert forgotten.is_done
    assert server.erasures == [{"scope": "session", "session_id": "s1", "confirm": True}]
    assert box(other).waiting() == 0


@pytest.mark.parametrize("breaks", ["before", "between"])
async def test_a_broken_outbox_keeps_no_erasure_from_its_answer(
    breaks: str, server: MemoryServer, make_client: MakeClient
) -> None:
    client = make_client(breaker=Breaker(clock=Clock()))
    server.faults.append(problem(503, "unavailable"))
    await client.write("s1", [turn("forget me")])
    await client.aclose()
    later = make_client()

    def break_it() -> None:
        (box(later).folder / "outbox.sqlite3").write_bytes(b"no database " * 100)

    def act(of: MemoryServer, connection: socket.socket, request: Received) -> None:
        break_it()
        of.send(connection, *of.handle(request))

    if breaks == "before":
        break_it()
    else:
        server.faults.append(act)
    forgotten = await later.forget(session_id="s1")
    assert forgotten.is_done
    assert len(server.erasures) == 1
    assert later.counts["unavailable"] >= 1


async def test_a_durable_write_is_on_the_disk_before_it_is_sent(server: MemoryServer, make_client: MakeClient) -> None:
    seen: list[int] = []
    client = make_client()

    def look(of: MemoryServer, connection: Any, request: Any) -> None:
        seen.append(box(client).waiting())
        of.send(connection, *of.handle(request))

    server.faults.append(look)
    written = await client.write("s1", [turn("one")], durable=True)
    assert (written.status, written.seqs) == ("stored", (1,))
    assert seen == [1]
    assert box(client).waiting() == 0
    assert "queued_seconds" not in server.requests[0].body


async def test_a_strict_durable_write_that_fails_leaves_nothing_behind(
    server: MemoryServer, make_client: MakeClient
) -> None:
    server.always = problem(503, "unavailable")
    client = make_client(deadlines=SHORT)
    with pytest.raises(ServiceUnavailable):
        await client.write("s1", [turn("one")], durable=True, failure_mode="strict")
    assert box(client).waiting() == 0


async def test_a_durable_write_is_not_kept_waiting_by_what_other_sessions_left(
    server: MemoryServer, make_client: MakeClient
) -> None:
    server.always = problem(503, "unavailable")
    left = make_client(breaker=Breaker(clock=Clock()))
    for session in ("s1", "s2", "s3"):
        await left.write(session, [turn("left")])
    await left.aclose()
    goes_on = threading.Event()

    def slow(server: MemoryServer, connection: socket.socket, request: Received) -> None:
        if request.path == "/v1/write":
            goes_on.wait(30)
        server.send(connection, *server.handle(request))

    server.requests.clear()
    server.always = slow
    client = make_client()
    await client.recall("what starts the delivery")
    await asyncio.to_thread(server.wait_until, lambda s: any(seen.path == "/v1/write" for seen in s.requests))
    writing = asyncio.create_task(client.write("s9", [turn("now")], durable=True))
    async with asyncio.timeout(30):
        while await asyncio.to_thread(box(client).waiting) < 4:  # noqa: ASYNC110 - another thread puts the entry
            await asyncio.sleep(0)
    goes_on.set()
    assert (await writing).status == "stored"
    await asyncio.to_thread(server.wait_until, lambda s: all(s.texts(f"s{number}") for number in (1, 2, 3)))
    written = [seen.body["session_id"] for seen in server.requests if seen.path == "/v1/write"]
    assert written == ["s1", "s9", "s2", "s3"]


async def test_two_clients_of_one_outbox_deliver_each_entry_once(server: MemoryServer, make_client: MakeClient) -> None:
    client = make_client(deadlines=SHORT)
    server.faults.append(problem(503, "unavailable", Retry_After="60"))
    for number in range(20):
        await client.write(f"s{number % 3}", [turn(f"t{number}")])
    await client.aclose()
    before = len(server.requests)
    both = [make_client(), make_client()]
    while any(rounds.waiting for rounds in await asyncio.gather(*(one.deliver() for one in both))):
        pass
    assert len(server.requests) - before == 20
    assert [server.texts(f"s{lane}") for lane in range(3)] == [
        [f"t{number}" for number in range(lane, 20, 3)] for lane in range(3)
    ]


FLUSH = """
import asyncio, sys
from memory_service.client import AgentMemory, Deadlines, MemoryClient

async def main(endpoint, folder):
    options = {"env": {}, "deadlines": Deadlines(write=60), "binding_folder": folder + "-none"}
    client = MemoryClient(endpoint, store="team", outbox=folder, **options)
    memory = AgentMemory(client, "s1")
    print("ready", flush=True)
    await memory.after_run([{"role": "user", "content": text} for text in sys.argv[3:]])

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


@pytest.mark.parametrize("fault", [hang, store_and_hang], ids=["before it was stored", "after it was stored"])
async def test_a_flush_survives_kill_9_of_the_client_and_arrives_once(
    fault: Any, server: MemoryServer, make_client: MakeClient, tmp_path: Path
) -> None:
    server.faults.append(fault)
    folder = tmp_path / "outbox"
    command = [sys.executable, "-c", FLUSH, server.url, os.fspath(folder), "one", "two"]
    flushing = await asyncio.to_thread(subprocess.Popen, command)
    await asyncio.to_thread(server.wait_until, lambda s: len(s.requests) == 1, 60)
    flushing.send_signal(signal.SIGKILL)
    await asyncio.to_thread(flushing.wait)

    assert Outbox(folder).waiting() == 1
    heir = make_client(store="team", outbox=folder)
    await heir.recall("anything")  # the first answer starts the delivery of what an earlier process has left
    await asyncio.to_thread(server.wait_until, lambda s: len(s.requests) >= 3)
    delivered = await heir.deliver()
    assert delivered.waiting == 0
    assert server.texts("s1") == ["one", "two"]
    assert Outbox(folder).refused() == ()


async def test_several_flushes_survive_a_crash_in_order(
    server: MemoryServer, make_client: MakeClient, tmp_path: Path
) -> None:
    server.stop()
    folder = tmp_path / "outbox"
    for text in ("one", "two", "three"):
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", FLUSH, server.url, os.fspath(folder), text], check=True
        )
        assert done.returncode == 0
    with MemoryServer() as revived:
        elsewhere = make_client(revived.url, outbox=folder)
        assert (await elsewhere.deliver()).waiting_for_others == 3, "by its address alone it is another store"
        assert (await make_client(revived.url, store="team", outbox=folder).deliver()).delivered == 3
        assert revived.texts("s1") == ["one", "two", "three"]
