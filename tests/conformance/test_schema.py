"""Schemas: the same on both backends, made once, and refused with a sentence when they are not ours to serve."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from memory_service.contract.health import Part, Reason
from memory_service.errors import Misconfigured, StorageUnavailable
from memory_service.ports.storage import Transaction
from memory_service.storage import migration, open_storage
from memory_service.storage.transaction import RowTransaction
from tests.fakes.stores import DIMENSION, MODEL, Backends, Store


def _tables(dialect: str) -> dict[str, list[str]]:
    """Return the columns of every table that the migrations of a dialect make, in order."""
    found: dict[str, list[str]] = {}
    for step in migration.migrations(dialect):
        text = re.sub(r"--.*", "", step.sql).replace("{schema}.", "")
        for name, body in re.findall(r"CREATE TABLE (\w+) \(\n(.*?)\n\)", text, re.DOTALL):
            lines = [line.strip() for line in body.splitlines()]
            found[name] = [
                line.split()[0] for line in lines if line and not line.startswith(("PRIMARY", "UNIQUE", "FOREIGN"))
            ]
    return found


def test_both_dialects_make_the_same_tables_but_for_what_postgres_notes_of_its_purge() -> None:
    sqlite, postgres = _tables("sqlite"), _tables("postgres")
    assert len(sqlite) > 10
    assert postgres.pop("unpurged")
    assert {name: sorted(columns) for name, columns in sqlite.items()} == {
        name: sorted(columns) for name, columns in postgres.items()
    }


def test_both_dialects_have_the_same_migrations() -> None:
    sqlite, postgres = migration.migrations("sqlite"), migration.migrations("postgres")
    assert [(step.number, step.name, step.min_reader) for step in sqlite] == [
        (step.number, step.name, step.min_reader) for step in postgres
    ]


async def test_the_tables_of_a_store_are_those_of_its_migrations(store: Store) -> None:
    names = await store.storage.read(columns_of)
    expected = {name: set(columns) for name, columns in _tables("sqlite").items()}
    assert {name: names.get(name) for name in expected} == expected


def columns_of(tx: object) -> dict[str, set[str]]:
    assert isinstance(tx, RowTransaction)
    found: dict[str, set[str]] = {}
    for table, column in tx.link.rows(
        "[[SELECT CAST(table_name AS TEXT), CAST(column_name AS TEXT) FROM information_schema.columns"
        " WHERE table_schema = 'memplane_test'"
        "|SELECT m.name, c.name FROM sqlite_schema AS m JOIN pragma_table_info(m.name) AS c WHERE m.type = 'table']]"
    ):
        found.setdefault(table, set()).add(column)
    return found


async def test_opening_again_changes_nothing(store: Store) -> None:
    before = await store.storage.diagnostics()
    await store.reopen()
    await store.storage.migrate()
    after = await store.storage.diagnostics()
    assert (after.schema_version, after.counts) == (before.schema_version, before.counts)


async def test_a_closed_store_says_that_it_is_not_open(store: Store) -> None:
    await store.close()
    storage = store.storage
    uses: list[Callable[[], Awaitable[object]]] = [
        storage.migrate,
        storage.purge,
        storage.rebuild_index,
        storage.diagnostics,
        lambda: storage.read(lambda tx: tx.owners.principal_name("")),
        lambda: storage.transact(lambda tx: tx.owners.principal_name("")),
        lambda: storage.transact(lambda tx: tx.owners.principal_name(""), urgent=True),
    ]
    for use in uses:
        with pytest.raises(StorageUnavailable, match="is not open") as refused:
            await use()
        assert refused.value.reason == Reason.STARTING
    health = await storage.health()
    assert {health[part].reason for part in (Part.STORAGE, Part.SCHEMA)} == {Reason.STARTING}
    await storage.close()


@pytest.mark.parametrize(("model", "dimension"), [("other", DIMENSION), (MODEL, DIMENSION + 1)])
async def test_another_embedding_is_refused_with_both_names(store: Store, model: str, dimension: int) -> None:
    await store.close()
    wrong = Store(store.config, model=model, dimension=dimension)
    with pytest.raises(Misconfigured, match=f"{MODEL}.*{DIMENSION}") as refused:
        await wrong.open()
    assert refused.value.reason == Reason.EMBEDDING_MISMATCH
    health = await wrong.storage.health()
    assert health[Part.SCHEMA].reason is Reason.EMBEDDING_MISMATCH
    assert not health[Part.SCHEMA].ok
    with pytest.raises(Misconfigured):
        await wrong.storage.read(lambda tx: None)
    await wrong.close()
    await store.open()


def _set_meta(tx: object, key: str, value: str) -> None:
    assert isinstance(tx, RowTransaction)
    tx.link.run(
        "INSERT INTO @meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        {"key": key, "value": value},
    )


async def test_a_schema_that_needs_a_newer_version_is_refused(store: Store) -> None:
    await store.storage.transact(lambda tx: _set_meta(tx, "min_reader_version", "99"))
    with pytest.raises(Misconfigured, match=r"99.*newer version") as refused:
        await store.reopen()
    assert refused.value.reason == Reason.SCHEMA_TOO_NEW
    assert (await store.storage.health())[Part.SCHEMA].reason is Reason.SCHEMA_TOO_NEW
    await _repair(store, "min_reader_version", "1")


async def test_a_newer_schema_that_we_can_still_read_is_served(store: Store) -> None:
    await store.storage.transact(lambda tx: _set_meta(tx, "schema_version", "99"))
    await store.reopen()
    assert (await store.storage.diagnostics()).schema_version == 99
    await store.storage.transact(lambda tx: _set_meta(tx, "schema_version", str(len(migration.migrations("sqlite")))))


async def test_another_stores_schema_is_refused_unless_it_is_adopted(store: Store) -> None:
    await store.storage.transact(lambda tx: _set_meta(tx, "store_uid", "uid-1"))
    ours = store.config
    store.config = ours.model_copy(update={"store_uid": "uid-2"})
    with pytest.raises(Misconfigured, match=r"uid-1.*uid-2"):
        await store.reopen()
    store.config = ours
    await store.reopen()
    await store.storage.transact(lambda tx: _set_meta(tx, "store_uid", ""))


async def test_an_edited_migration_is_noticed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def edited(dialect: str) -> list[migration.Migration]:
        first, *rest = original(dialect)
        return [replace(first, sql=first.sql + "-- edited\n"), *rest]

    original = migration.migrations
    monkeypatch.setattr(migration, "migrations", edited)
    with pytest.raises(Misconfigured, match="not the one of this version"):
        await store.reopen()
    monkeypatch.undo()
    await store.reopen()


@pytest.mark.parametrize("kind", ["local", "external"])
async def test_a_store_that_is_only_to_be_read_is_never_made(kind: str, backends: Backends, tmp_path: Path) -> None:
    async with backends.another(kind, tmp_path) as config:
        store = Store(config.model_copy(update={"schema_name": "not_there_yet"}))
        absent = open_storage(
            store.config, embedding_model=MODEL, dimension=DIMENSION, clock=store.clock, creates=False
        )
        for _ in range(2):
            with pytest.raises(Misconfigured, match="no store is in"):
                await absent.migrate()
        await absent.close()
        await store.open()
        await store.close()
        present = open_storage(
            store.config, embedding_model=MODEL, dimension=DIMENSION, clock=store.clock, creates=False
        )
        await present.migrate()
        assert await present.read(lambda tx: tx.owners.principal_name("")) is None
        await present.close()


async def test_before_it_is_migrated_a_store_says_that_it_is_starting(store: Store) -> None:
    early = open_storage(store.config, embedding_model=MODEL, dimension=DIMENSION, clock=store.clock)
    with pytest.raises(StorageUnavailable):
        await early.read(lambda tx: None)
    with pytest.raises(StorageUnavailable):
        await early.transact(lambda tx: None)
    assert {part: health.reason for part, health in (await early.health()).items()} == {
        Part.STORAGE: Reason.STARTING,
        Part.SCHEMA: Reason.STARTING,
    }
    await early.close()


async def test_a_working_store_is_healthy_and_counts_itself(store: Store) -> None:
    health = await store.storage.health()
    assert {part: (one.ok, one.reason) for part, one in health.items()} == {
        Part.STORAGE: (True, Reason.OK),
        Part.SCHEMA: (True, Reason.OK),
    }
    found = await store.storage.diagnostics()
    assert (found.embedding_model, found.dimension) == (MODEL, DIMENSION)
    assert found.schema_version == len(migration.migrations("sqlite"))
    assert found.bytes_on_disk > 0
    assert await store.storage.schemas_left_behind() == ()


async def test_a_read_cannot_write(store: Store) -> None:
    with pytest.raises(StorageUnavailable):
        await store.storage.read(lambda tx: _set_meta(tx, "x", "y"))
    await store.storage.read(lambda tx: None)


async def test_a_read_sees_one_snapshot(store: Store) -> None:
    started, written = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(tx: object) -> tuple[str | None, str | None]:
        assert isinstance(tx, RowTransaction)
        first = tx.owners.principal_name("p")
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(written.wait(), loop).result(30)
        return first, tx.owners.principal_name("p")

    reading = asyncio.ensure_future(store.storage.read(slow))
    await started.wait()
    await store.storage.transact(lambda tx: _name(tx, "p"))
    written.set()
    assert await reading == (None, None)
    assert await store.storage.read(lambda tx: tx.owners.principal_name("p")) == "name"


async def test_a_read_does_not_wait_for_another_read(store: Store) -> None:
    started, may_end = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(tx: Transaction) -> str | None:
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result(30)
        return tx.owners.principal_name("p")

    reading = asyncio.ensure_future(store.storage.read(slow))
    await started.wait()
    try:
        async with asyncio.timeout(20):
            assert await store.storage.read(lambda tx: tx.owners.principal_name("p")) is None
        assert not reading.done()
    finally:
        may_end.set()
    assert await reading is None


def _name(tx: object, principal: str) -> None:
    assert isinstance(tx, RowTransaction)
    tx.link.run("INSERT INTO @principals (hash, display) VALUES (:hash, 'name')", {"hash": principal})


async def _repair(store: Store, key: str, value: str) -> None:
    """Write meta past the check that refuses it."""
    check = migration.check
    migration.check = lambda *arguments, **named: None  # type: ignore[assignment]
    try:
        await store.reopen()
    finally:
        migration.check = check
    await store.storage.transact(lambda tx: _set_meta(tx, key, value))


def test_a_mode_loads_only_its_own_libraries(repository: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from datetime import UTC, datetime, timedelta\n"
        "from memory_service.contract.config import StorageConfig\n"
        "from memory_service.storage import open_storage\n"
        "class Clock:\n"
        "    def now(self): return datetime.now(UTC)\n"
        "    def shift(self): return timedelta()\n"
        "place = {'local': {'data_dir': sys.argv[2]}, 'external': {'dsn': 'postgresql://nowhere.invalid/x'}}\n"
        "config = StorageConfig(type=sys.argv[1], **place[sys.argv[1]])\n"
        "open_storage(config, embedding_model='m', dimension=8, clock=Clock())\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules} & {'psycopg', 'chromadb', 'sqlalchemy'}))\n"
    )
    loaded = {
        kind: subprocess.run(
            [sys.executable, "-c", code, kind, str(tmp_path)],
            cwd=repository,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for kind in ("local", "external")
    }
    assert loaded == {"local": [], "external": ["psycopg"]}
