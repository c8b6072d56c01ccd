"""An outbox that cannot be used costs what it would have kept, and nothing else."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memory_service.client import Deadlines, InvalidRequest
from memory_service.client.breaker import Breaker
from memory_service.contract.verbs import Outcome
from tests.fakes.memory_server import MemoryServer, answer, problem
from tests.integration.client.conftest import MakeClient
from tests.integration.client.test_shared_outbox import box, never_probes, turn


async def test_a_folder_that_cannot_be_searched_costs_no_verb_its_answer(
    server: MemoryServer, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_client()
    searched = Path.lstat

    def refuse(path: Path) -> Any:
        if path.name == "outbox.sqlite3":
            raise PermissionError(13, "Permission denied", str(path))
        return searched(path)

    monkeypatch.setattr(Path, "lstat", refuse)
    assert (await client.recall("q")).outcome is Outcome.APPLIED
    assert (await client.write("s1", [turn("one")])).status == "stored"
    assert (await client.write("s1", [turn("two")], durable=True)).status == "stored"
    assert (await client.remember("a fact")).status == "stored"
    assert (await client.forget(session_id="s1")).is_done
    assert client.counts["unqueued"] == 1


async def test_an_outbox_that_somebody_holds_leaves_time_to_send(server: MemoryServer, make_client: MakeClient) -> None:
    left = make_client(breaker=Breaker(clock=lambda: 1_000.0))
    server.faults.append(problem(503, "unavailable"))
    await left.write("other", [turn("left")])
    await left.aclose()
    client = make_client(deadlines=Deadlines(write=4, other=4))
    with closing(sqlite3.connect(box(left).folder / "outbox.sqlite3", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        assert (await client.write("s1", [turn("one")])).status == "stored"
        assert (await client.write("s1", [turn("two")], durable=True)).status == "stored"
        assert (await client.forget(session_id="s2")).is_done
    assert server.texts("s1") == ["one", "two"]


async def test_a_damaged_entry_stops_neither_its_lane_nor_the_others(
    server: MemoryServer, make_client: MakeClient
) -> None:
    left = make_client(breaker=never_probes())
    server.faults.append(problem(503, "unavailable"))
    for session in ("s1", "s2"):
        await left.write(session, [turn("left")])
    await left.aclose()
    with closing(sqlite3.connect(box(left).folder / "outbox.sqlite3")) as db, db:
        db.execute("UPDATE entries SET body = substr(body, 1, 9) WHERE session_id = 's1'")
    client = make_client()
    assert (await client.write("s1", [turn("now")])).status == "stored"
    assert (await client.deliver()).delivered == 1
    assert [len(box(client).refused()), server.texts("s1"), server.texts("s2")] == [1, ["now"], ["left"]]


@pytest.mark.parametrize("user", ["k\udcff", "ada\r\n", " ada"])
async def test_a_user_that_no_header_can_carry_is_refused_in_an_outage_too_and_not_queued(
    user: str, server: MemoryServer, make_client: MakeClient
) -> None:
    server.always = problem(503, "unavailable")
    client = make_client(user=user, breaker=never_probes())
    assert (await client.recall("q")).outcome in (Outcome.REFUSED, Outcome.UNAVAILABLE)
    for durable in (False, True):
        with pytest.raises(InvalidRequest, match="X-Memplane-User"):
            await client.write("s1", [turn("one")], durable=durable)
    assert not box(client).exists


@pytest.mark.parametrize("broken", ["a variable", "a document"])
async def test_a_broken_setting_of_the_agent_itself_sets_nothing_aside(
    broken: str, server: MemoryServer, make_client: MakeClient, tmp_path: Path
) -> None:
    server.always = problem(503, "unavailable")
    left = make_client(breaker=never_probes())
    for session in ("s1", "s2"):
        await left.write(session, [turn("left")])
    await left.aclose()
    server.always = None
    (tmp_path / "nonsense").mkdir()
    (tmp_path / "nonsense" / "team.json").write_text("{ half a docu")
    is_variable = broken == "a variable"
    setting = {"env": {"MEMPLANE_TOOLS": "bogus"}} if is_variable else {"binding_folder": tmp_path / "nonsense"}
    misled = make_client(**setting)
    assert (await misled.deliver()).waiting == 2
    assert (await make_client().deliver()).delivered == 2


async def test_an_entry_that_is_too_large_for_a_proxy_holds_up_its_own_session_alone(
    server: MemoryServer, make_client: MakeClient
) -> None:
    server.faults.append(problem(503, "unavailable"))
    left = make_client(breaker=never_probes())
    for session in ("s1", "s2"):
        await left.write(session, [turn("left")])
    await left.aclose()
    server.faults.append(answer(413, b"<html>too large</html>"))
    client = make_client()
    delivery = await client.deliver()
    assert (delivery.delivered, delivery.waiting, server.texts("s2")) == (1, 1, ["left"])


LATE = """
import sys, threading
from memory_service.client import SyncAgentMemory, SyncMemoryClient

client = SyncMemoryClient(sys.argv[1], outbox=sys.argv[2], env={}, binding_folder=sys.argv[2] + "-none")
memory = SyncAgentMemory(client, "s1")
memory.before_run("warm")

def work():
    threading.main_thread().join()
    print([written.status for written in memory.after_run([{"role": "user", "content": "the last thing said"}])])
    print(client.write("s1", [{"role": "user", "content": "and one more"}]).status)

threading.Thread(target=work).start()
"""


def test_a_thread_that_outlives_the_main_thread_keeps_what_it_says(server: MemoryServer, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LATE, server.url, str(tmp_path / "box")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["['stored']", "stored"], done.stderr
    assert server.texts("s1") == ["the last thing said", "and one more"]


def test_a_process_that_starts_no_thread_any_more_keeps_what_it_says(
    server: MemoryServer, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "memplane-outbox":
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    async def run() -> str:
        client = make_client()
        monkeypatch.setattr(threading.Thread, "start", refuse)
        written = await client.write("s1", [turn("bye")], durable=True)
        monkeypatch.undo()
        await client.aclose()
        return written.status

    assert asyncio.run(run()) == "stored"
