"""What only the local backend has: a folder with a lock, and writes that share a commit."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from memory_service.contract.config import StorageConfig, StorageType
from memory_service.contract.health import Part, Reason
from memory_service.contract.scopes import Scope
from memory_service.errors import FolderLocked, Misconfigured, StorageFull
from memory_service.ports.storage import Transaction
from memory_service.storage.local import DATABASE, LocalStorage
from memory_service.storage.sqlite_link import SqliteLink
from memory_service.storage.transaction import RowTransaction
from tests.fakes.identity_world import eventually
from tests.fakes.stores import Store, session_of, turn


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Store]:
    """An open local store."""
    store = Store(StorageConfig(type=StorageType.LOCAL, data_dir=str(tmp_path / "data")))
    await store.open()
    yield store
    await store.close()


def append(tx: Transaction, text: str, session: str = "s1") -> None:
    row = tx.sessions.ensure(session_of(session), Scope.PRIVATE, tx.now())
    tx.turns.append(row, [turn(text)], tx.now())


async def texts(store: Store, session: str = "s1") -> list[str]:
    def read(tx: Transaction) -> list[str]:
        row = tx.sessions.find(session_of(session))
        return [] if row is None else [one.text for one in tx.turns.window(row, limit=10_000)]

    return await store.storage.read(read)


def link_of(tx: Transaction) -> SqliteLink:
    assert isinstance(tx, RowTransaction)
    assert isinstance(tx.link, SqliteLink)
    return tx.link


async def test_a_read_that_takes_long_holds_up_no_other(local: Store) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def long(_: Transaction) -> str:
        begun.set()
        assert may_end.wait(60)
        return "long"

    await local.storage.transact(lambda tx: append(tx, "hello"))
    reading = asyncio.create_task(local.storage.read(long))
    try:
        assert await asyncio.to_thread(begun.wait, 60)
        assert await asyncio.gather(*(texts(local) for _ in range(8))) == [["hello"]] * 8
        assert not reading.done()
    finally:
        may_end.set()
    assert await reading == "long"


async def test_a_second_process_is_refused_with_a_sentence_that_says_what_to_do(local: Store) -> None:
    second = Store(local.config)
    with pytest.raises(FolderLocked, match=rf"pid {os.getpid()}.*--data-dir.*--lock-wait") as refused:
        await second.open()
    assert refused.value.reason == Reason.WAITING_FOR_LOCK
    await second.close()
    await local.storage.transact(lambda tx: append(tx, "still served"))


async def test_a_process_that_waits_gets_the_folder_when_it_is_given_back(tmp_path: Path) -> None:
    first = Store(StorageConfig(data_dir=str(tmp_path)))
    await first.open()
    await first.storage.transact(lambda tx: append(tx, "from the first"))
    second = Store(StorageConfig(data_dir=str(tmp_path), lock_wait_seconds=60))
    opening = asyncio.ensure_future(second.open())
    await asyncio.sleep(0)
    assert (await second.storage.health())[Part.STORAGE].reason is Reason.STARTING, "nothing is waited for yet"

    async def is_looked_at() -> bool:
        return (await second.storage.health())[Part.STORAGE].reason is not Reason.STARTING

    await eventually(is_looked_at)
    health = (await second.storage.health())[Part.STORAGE]
    assert (health.ok, health.reason) == (False, Reason.WAITING_FOR_LOCK)
    assert "another process" in health.message
    await first.close()
    await opening
    assert await texts(second) == ["from the first"]
    await second.close()


async def test_a_killed_process_leaves_no_lock_and_every_acknowledged_turn(tmp_path: Path, repository: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from tests.conformance.test_local_only import append\n"
        "from tests.fakes.stores import Store\n"
        "from memory_service.contract.config import StorageConfig\n"
        "async def main():\n"
        "    store = Store(StorageConfig(data_dir=sys.argv[1]))\n"
        "    await store.open()\n"
        "    for number in range(10_000):\n"
        "        await store.storage.transact(lambda tx: append(tx, str(number)))\n"
        "        print(number, flush=True)\n"
        "asyncio.run(main())\n"
    )

    def write_until_killed() -> list[str]:
        command = [sys.executable, "-c", code, str(tmp_path)]
        with subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            printed = [process.stdout.readline().strip() for _ in range(20)]
            process.send_signal(signal.SIGKILL)
            return printed + process.stdout.read().split()

    acknowledged = await asyncio.to_thread(write_until_killed)
    store = Store(StorageConfig(data_dir=str(tmp_path)))
    await store.open()
    stored = await texts(store)
    assert stored[: len(acknowledged)] == acknowledged
    assert len(stored) <= len(acknowledged) + 1
    await store.close()


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(StorageConfig(data_dir=str(tmp_path / "file" / "data")))
    with pytest.raises(Misconfigured, match=r"data folder .*file/data"):
        await store.open()
    await store.close()


async def test_writes_that_wait_together_share_a_commit(local: Store) -> None:
    commits: list[str] = []

    def trace(statement: str) -> None:
        if statement == "COMMIT":
            commits.append(statement)

    await local.storage.transact(lambda tx: link_of(tx).connection.set_trace_callback(trace))
    await asyncio.gather(*(local.storage.transact(lambda tx, n=n: append(tx, str(n))) for n in range(64)))
    await local.storage.transact(lambda tx: link_of(tx).connection.set_trace_callback(None))
    assert sorted(map(int, await texts(local))) == list(range(64))
    assert len(commits) < 40


async def test_a_write_is_answered_only_after_its_commit(local: Store) -> None:
    assert isinstance(local.storage, LocalStorage)
    await local.storage.transact(lambda tx: append(tx, "durable"))
    with sqlite3.connect(local.storage.path) as other:
        assert other.execute("SELECT text FROM turns").fetchall() == [("durable",)]
    other.close()


async def test_the_database_is_durable_and_wipes_what_it_deletes(local: Store) -> None:
    def pragmas(tx: Transaction) -> list[object]:
        connection = link_of(tx).connection
        names = ("journal_mode", "synchronous", "secure_delete", "foreign_keys")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert await local.storage.transact(pragmas) == ["wal", 2, 1, 1]


async def test_without_space_everything_that_shared_the_commit_is_refused_and_nothing_is_stored(local: Store) -> None:
    await local.storage.transact(lambda tx: append(tx, "before"))

    def limit(tx: Transaction, pages: int) -> None:
        link_of(tx).connection.execute(f"PRAGMA max_page_count = {pages}")

    await local.storage.transact(lambda tx: limit(tx, 1))
    results = await asyncio.gather(
        *(local.storage.transact(lambda tx, n=n: append(tx, "x" * 50_000, f"full-{n}")) for n in range(6)),
        return_exceptions=True,
    )
    assert {type(result) for result in results} == {StorageFull}
    await local.storage.transact(lambda tx: limit(tx, 1_000_000))
    for number in range(6):
        assert await texts(local, f"full-{number}") == []
    await local.storage.transact(lambda tx: append(tx, "after"))
    assert await texts(local) == ["before", "after"]


async def test_a_caller_that_goes_away_leaves_the_writer_working(local: Store) -> None:
    waiting = [asyncio.ensure_future(local.storage.transact(lambda tx, n=n: append(tx, str(n)))) for n in range(20)]
    await asyncio.sleep(0)
    for task in waiting[::2]:
        task.cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    answered = [str(n) for n, result in enumerate(results) if result is None]
    assert set(answered) <= set(await texts(local))
    await local.storage.transact(lambda tx: append(tx, "goes on"))


async def test_work_outside_of_transactions_has_the_writers_connection_to_itself(local: Store) -> None:
    assert isinstance(local.storage, LocalStorage)
    await local.storage.transact(lambda tx: append(tx, "a"))

    def vacuum(connection: sqlite3.Connection) -> bool:
        assert not connection.in_transaction
        connection.execute("VACUUM")
        return True

    writes = [asyncio.ensure_future(local.storage.transact(lambda tx, n=n: append(tx, str(n)))) for n in range(5)]
    assert await local.storage.outside(vacuum)
    await asyncio.gather(*writes)
    assert len(await texts(local)) == 6


async def test_no_file_of_the_folder_is_open_to_others(local: Store) -> None:
    assert isinstance(local.storage, LocalStorage)
    assert local.storage.folder.stat().st_mode & 0o077 == 0
    assert (local.storage.folder / DATABASE).exists()
