"""The thread that works on an outbox."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from memory_service.client.clerk import Clerk
from memory_service.client.errors import OutboxFull, OutboxUnusable
from memory_service.client.outbox import Outbox
from tests.unit.client.test_outbox import drain, put


class Gate:
    """Keeps a clerk busy, so that what is asked of it meanwhile is done together."""

    def __init__(self, clerk: Clerk) -> None:
        self._open = threading.Event()
        self._begun = threading.Event()
        self._held = asyncio.ensure_future(clerk.do(self._wait, seconds=20, busy_seconds=1))

    def _wait(self) -> None:
        self._begun.set()
        self._open.wait(20)

    async def begun(self) -> None:
        await asyncio.to_thread(self._begun.wait, 20)

    async def open(self) -> None:
        self._open.set()
        await self._held


async def test_jobs_that_wait_for_each_other_are_one_transaction(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, max_entries=4)
    put(outbox, "first")
    seen: list[int] = []

    def count_from_elsewhere() -> None:
        with closing(sqlite3.connect(tmp_path / "outbox.sqlite3")) as db:
            seen.append(db.execute("SELECT count(*) FROM entries").fetchone()[0])

    clerk = Clerk(outbox.together)
    gate = Gate(clerk)
    await gate.begun()
    jobs = [lambda: put(outbox, "k1"), count_from_elsewhere, lambda: put(outbox, "k2"), lambda: put(outbox, "k3")]
    asked = [asyncio.ensure_future(clerk.do(job, seconds=20, busy_seconds=1)) for job in jobs]
    asked.append(asyncio.ensure_future(clerk.do(lambda: put(outbox, "one too many"), seconds=20, busy_seconds=1)))
    await asyncio.sleep(0)
    await gate.open()
    *_, refused = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(refused, OutboxFull), "a job that fails is its own caller's alone"
    assert seen == [1], "nothing is told before everything is on the disk"
    assert drain(outbox) == ["first", "k1", "k2", "k3"]
    assert outbox.counts() == {"queued": 4, "overflowed": 1}


async def test_a_disk_that_keeps_nothing_of_several_jobs_tells_every_caller(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    put(outbox, "first")
    clerk = Clerk(outbox.together)
    gate = Gate(clerk)
    await gate.begun()
    asked = [
        asyncio.ensure_future(clerk.do(lambda key=key: put(outbox, key), seconds=20, busy_seconds=0.01))  # type: ignore[misc]
        for key in ("k1", "k2")
    ]
    await asyncio.sleep(0)
    with closing(sqlite3.connect(tmp_path / "outbox.sqlite3", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        await gate.open()
        results = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(result) for result in results] == [OutboxUnusable, OutboxUnusable]
    assert drain(outbox) == ["first"]


async def test_jobs_that_could_not_begin_together_are_each_done_alone(tmp_path: Path) -> None:
    """Together they wait for other processes as long as the hastiest of them may."""
    outbox = Outbox(tmp_path)
    waited: list[float] = []

    @contextmanager
    def held(busy_seconds: float) -> Iterator[None]:
        waited.append(busy_seconds)
        raise OutboxUnusable("another process has it")
        yield

    clerk = Clerk(held)
    gate = Gate(clerk)
    await gate.begun()
    hasty = asyncio.ensure_future(clerk.do(outbox.waiting, seconds=20, busy_seconds=0.01))
    patient = asyncio.ensure_future(clerk.do(lambda: put(outbox, "k1"), seconds=20, busy_seconds=2))
    await asyncio.sleep(0)
    await gate.open()
    assert await hasty == 0
    await patient
    assert waited == [0.01]
    assert drain(outbox) == ["k1"]


async def test_a_job_whose_time_is_over_before_it_began_is_not_done(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    clerk = Clerk(outbox.together)
    gate = Gate(clerk)
    await gate.begun()
    with pytest.raises(OutboxUnusable, match="no time"):
        await clerk.do(lambda: put(outbox, "late"), seconds=0, busy_seconds=1)
    await gate.open()
    assert await clerk.do(outbox.waiting, seconds=20, busy_seconds=1) == 0
