"""What only the external backend has: servers that follow, fail over, let few in, or hold several stores."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from memory_service.contract.config import StorageConfig, StorageType
from memory_service.contract.health import Part
from memory_service.domain.owners import PairErasure
from memory_service.errors import StorageUnavailable
from memory_service.ports.records import ItemFilters, PurgeStep, SearchQuery
from memory_service.ports.storage import Transaction
from memory_service.storage import connections, external, threads
from memory_service.storage.commits import Attempt
from memory_service.storage.connections import Connections
from memory_service.storage.external import ExternalStorage
from memory_service.storage.postgres_tables import vectors_schema
from memory_service.storage.purge import rewrite_postgres
from memory_service.storage.threads import Writing
from tests.conformance.test_external_only import append
from tests.fakes.identity_world import eventually
from tests.fakes.postgres import PostgresServer, fresh_database
from tests.fakes.stores import AGENT, SCHEMA, Backends, Store, external_config, pair_of


async def found(store: Store) -> list[str]:
    """Return the texts that a search of all that the pair has said comes to."""

    def search(tx: Transaction) -> list[str]:
        homes = list(tx.owners.find([pair_of()]).values())
        pool = tx.search.episodes(homes, SearchQuery((), None, ItemFilters(now=tx.now())), session=None)
        rows = tx.turns.get([home.id for home in homes], pool.row_ids.tolist())
        assert len(rows) == len(pool.row_ids), "what was found is there"
        return sorted(row.turn.text for row in rows.values())

    return await store.storage.read(search)


async def test_after_a_failover_that_lost_the_last_writes_memory_is_what_the_new_server_has(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    file = tmp_path / "dsn"
    file.write_text(own_server.dsn)
    store = Store(StorageConfig(type=StorageType.EXTERNAL, dsn_file=str(file), schema_name=SCHEMA))
    await store.open()
    await store.storage.transact(partial(append, text="kept"))
    other = own_server.copy(tmp_path / "other", follows=False)
    try:
        await store.storage.transact(partial(append, text="lost"))
        assert await found(store) == ["kept", "lost"]
        own_server.kill()
        file.write_text(other.dsn)
        await store.storage.transact(partial(append, text="new"))
        assert await found(store) == ["kept", "new"]
    finally:
        await store.close()
        other.stop()


async def test_a_lost_commit_is_not_settled_by_a_standby_that_has_not_heard_of_it(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    store = Store(external_config(own_server.dsn))
    await store.open()
    standby = own_server.copy(tmp_path / "standby", follows=True)
    try:
        with psycopg.connect(standby.dsn, autocommit=True) as admin:
            admin.execute("SELECT pg_wal_replay_pause()")
            attempt = await asyncio.to_thread(_committed, store)
            there = Connections(external_config(standby.dsn), lambda _: None)
            assert attempt._ask(there, f"{SCHEMA}.commits") is None
            admin.execute("SELECT pg_wal_replay_resume()")

            async def is_known() -> bool:
                return attempt._ask(there, f"{SCHEMA}.commits") is True

            await eventually(is_known, 60)
    finally:
        await store.close()
        standby.stop()


def _committed(store: Store) -> Attempt[None]:
    """Return the attempt of a write that is committed."""
    storage = store.storage
    assert isinstance(storage, ExternalStorage)
    with storage._connections.connect() as connection:
        link = storage._link(connection)
        attempt: Attempt[None] = Attempt(link, Writing())
        attempt.run(lambda: _write_a_principal(link.connection))
        return attempt


def _write_a_principal(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    connection.execute(f"INSERT INTO {SCHEMA}.principals (hash, display) VALUES ('h', 'd')")


class Watched(psycopg.Connection[Any]):
    """A connection on which something happens before each table is written anew, and something else after it."""

    before: Callable[[], None]
    after: Callable[[], None]

    def execute(self, query: Any, *arguments: Any, **options: Any) -> psycopg.Cursor[Any]:
        is_rewrite = isinstance(query, sql.Composed) and query.as_string().startswith("CLUSTER")
        if is_rewrite:
            self.before()
        done = super().execute(query, *arguments, **options)
        if is_rewrite:
            self.after()
        return done


async def test_a_purge_is_not_done_where_a_standby_came_as_it_began_and_had_gone_as_it_ended(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    store = Store(external_config(own_server.dsn))
    await store.open()
    await store.storage.transact(partial(append, text="xqzwv"))
    standby = own_server.copy(tmp_path / "standby", follows=True)
    try:
        with psycopg.connect(standby.dsn) as reader:
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT 1")
            erasure = PairErasure(AGENT, "")
            await store.storage.transact(
                lambda tx: tx.erasing.erase(erasure, receipt_id="r", asked_by=None, now=tx.now())
            )
            with Watched.connect(own_server.dsn, autocommit=True) as purging:
                purging.before = partial(tell_of_snapshots, standby, own_server, "on")
                purging.after = partial(tell_of_snapshots, standby, own_server, "off")
                step = await asyncio.to_thread(rewrite_postgres, purging, SCHEMA)
                assert step == PurgeStep(done=False, waiting_for=("snapshot",))
                assert await asyncio.to_thread(is_in_files, own_server, b"xqzwv")
        assert await store.storage.purge() == PurgeStep(done=True)
        assert not await asyncio.to_thread(is_in_files, own_server, b"xqzwv")
    finally:
        await store.close()
        standby.stop()


def tell_of_snapshots(standby: PostgresServer, primary: PostgresServer, whether: str) -> None:
    """Have a standby tell its primary of its snapshots, or have it stop, and wait until that has heard of it."""
    with psycopg.connect(standby.dsn, autocommit=True) as admin:
        admin.execute(f"ALTER SYSTEM SET hot_standby_feedback = {whether}".encode())
        admin.execute("SELECT pg_reload_conf()")
    heard = "SELECT backend_xmin IS NOT NULL FROM pg_stat_activity WHERE backend_type = 'walsender'"
    with psycopg.connect(primary.dsn, autocommit=True) as admin:
        while admin.execute(heard).fetchone() != (whether == "on",):
            pass


def is_in_files(server: PostgresServer, sought: bytes) -> bool:
    """Return whether any file of the server's databases has this."""
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("CHECKPOINT")
    base = server.folder / "data" / "base"
    return any(sought in path.read_bytes() for path in base.rglob("*") if path.is_file())


async def test_a_role_that_gets_fewer_connections_than_the_pool_waits_for_its_own(own_server: PostgresServer) -> None:
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        admin.execute("CREATE ROLE few LOGIN SUPERUSER")
    store = Store(external_config(make_conninfo(own_server.dsn, user="few"), pool_size=8))
    await store.open()
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        admin.execute("ALTER ROLE few NOSUPERUSER CONNECTION LIMIT 3")
        admin.execute("GRANT pg_read_all_data, pg_write_all_data TO few")
    try:
        await asyncio.gather(
            *(store.storage.transact(partial(append, text=f"{number:02}")) for number in range(24)),
            *(store.storage.read(lambda tx: tx.owners.principal_name("")) for _ in range(24)),
        )
        assert await found(store) == [f"{number:02}" for number in range(24)]
    finally:
        await store.close()


async def test_pgvector_is_never_made_inside_of_a_store(own_server: PostgresServer) -> None:
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        admin.execute("CREATE ROLE memplane LOGIN SUPERUSER")
        admin.execute("CREATE SCHEMA memplane AUTHORIZATION memplane")
    store = Store(external_config(make_conninfo(own_server.dsn, user="memplane"), schema="memplane"))
    await store.open()
    await store.close()
    with psycopg.connect(own_server.dsn) as admin:
        assert vectors_schema(admin) == "public"


async def test_several_stores_begin_on_one_fresh_database_at_once(own_server: PostgresServer) -> None:
    with fresh_database(own_server.dsn) as dsn:
        stores = [Store(external_config(dsn, schema=f"store_{number}", pool_size=2)) for number in range(4)]
        await asyncio.gather(*(store.open() for store in stores))
        for store in stores:
            await store.storage.transact(partial(append, text="hello"))
            await store.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look after what waits for the server often, and give it little time."""
    monkeypatch.setattr(threads, "_SILENT_SECONDS", 0.1)
    monkeypatch.setattr(threads, "_CONFIRM_SECONDS", 1.0)
    monkeypatch.setattr(external, "_END_SECONDS", 0.5)
    monkeypatch.setattr(connections, "CONNECT_SECONDS", 2)  # the least that the driver takes


async def _unconfirmed(server: PostgresServer) -> Store:
    """Return an open store with one turn, on a server that confirms no COMMIT from now on."""
    store = Store(external_config(server.dsn, pool_size=4))
    await store.open()
    await store.storage.transact(partial(append, text="before"))
    server.wait_for_standby("nobody")
    return store


@pytest.mark.usefixtures("impatient")
async def test_writes_that_no_standby_confirms_are_told_so_and_keep_no_read_and_no_end_waiting(
    own_server: PostgresServer,
) -> None:
    store = await _unconfirmed(own_server)
    writes = [store.storage.transact(partial(append, text=f"{n}", session=f"s{n}")) for n in range(6)]
    lease = store.storage.transact(partial(append, text="urgent", session="u"), urgent=True)
    told = [str(one) for one in await asyncio.gather(*writes, lease, return_exceptions=True)]
    assert [("may be stored or not" in one, "nothing was stored" in one) for one in told] == (
        2 * [(True, False)] + 4 * [(False, True)] + [(True, False)]
    ), "two threads wait for the standby, and one for what is urgent"
    with pytest.raises(StorageUnavailable, match="nothing was stored"):
        await store.storage.transact(partial(append, text="late", session="s9"))
    assert await found(store) == ["before"]
    assert (await store.storage.health())[Part.STORAGE].ok
    await store.close()
    own_server.wait_for_standby("")
    await store.open()

    async def all_there() -> bool:
        return await found(store) == ["0", "1", "before", "urgent"]

    await eventually(all_there)
    await store.close()


@pytest.mark.usefixtures("impatient")
async def test_writes_whose_callers_went_while_no_standby_confirms_them_keep_no_other_waiting(
    own_server: PostgresServer,
) -> None:
    store = await _unconfirmed(own_server)
    writes = [
        asyncio.create_task(store.storage.transact(partial(append, text=f"{n}", session=f"s{n}"))) for n in range(2)
    ]

    async def both_wait() -> bool:
        return await asyncio.to_thread(own_server.waiting_for_standby) == 2

    await eventually(both_wait)
    for write in writes:
        write.cancel()
    assert [type(one) for one in await asyncio.gather(*writes, return_exceptions=True)] == 2 * [asyncio.CancelledError]
    with pytest.raises(StorageUnavailable, match="confirms no write"):
        await store.storage.transact(partial(append, text="late", session="s9"))
    await asyncio.to_thread(own_server.wait_for_standby, "")

    async def both_are_there() -> bool:
        return await found(store) == ["0", "1", "before"]

    await eventually(both_are_there)
    await store.close()


@pytest.mark.usefixtures("impatient")
async def test_a_write_that_a_standby_confirms_late_is_there_and_writes_go_on(own_server: PostgresServer) -> None:
    store = Store(external_config(own_server.dsn, pool_size=2))
    await store.open()
    own_server.wait_for_standby("nobody")
    with pytest.raises(StorageUnavailable, match="may be stored or not"):
        await store.storage.transact(partial(append, text="late"))
    own_server.wait_for_standby("")

    async def goes_on() -> bool:
        try:
            await store.storage.transact(partial(append, text="next"))
        except StorageUnavailable:
            return False
        return True

    await eventually(goes_on)
    assert set(await found(store)) == {"late", "next"}
    await store.close()


@pytest.mark.usefixtures("impatient")
async def test_a_write_that_gets_no_thread_in_time_never_begins(
    backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_BEGIN_SECONDS", 0.3)
    began, may_end = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> int:
        began.set()
        assert may_end.wait(60)
        return append(tx, "first")

    async with backends.external(tmp_path) as config:
        store = Store(config.model_copy(update={"pool_size": 2}))
        await store.open()
        first = asyncio.ensure_future(store.storage.transact(slow))
        await asyncio.to_thread(began.wait)
        with pytest.raises(StorageUnavailable, match="nothing was stored"):
            await store.storage.transact(partial(append, text="second"))
        may_end.set()
        assert await first == 1
        assert await found(store) == ["first"]
        await store.close()


@pytest.mark.usefixtures("impatient")
async def test_a_purge_outlives_a_server_that_lets_nobody_in_for_a_while_and_not_one_that_is_gone(
    own_server: PostgresServer,
) -> None:
    store = Store(external_config(own_server.dsn))
    await store.open()
    storage = store.storage
    assert isinstance(storage, ExternalStorage)
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def long(connection: psycopg.Connection[tuple[object, ...]]) -> bool:
        loop.call_soon_threadsafe(begun.set)
        connection.execute("SELECT pg_advisory_lock(1)")
        return True

    async def is_noticed() -> bool:
        return storage._connections._failed is not None

    holder = psycopg.connect(own_server.dsn, autocommit=True)
    holder.execute("SELECT pg_advisory_lock(1)")
    try:
        purging = asyncio.ensure_future(storage.outside(long))
        await begun.wait()
        own_server.freeze_entrance()
        await eventually(is_noticed)
        own_server.thaw()
        holder.execute("SELECT pg_advisory_unlock(1)")
        assert await purging
        begun.clear()
        holder.execute("SELECT pg_advisory_lock(1)")
        purging = asyncio.ensure_future(storage.outside(long))
        await begun.wait()
        own_server.freeze()
        with pytest.raises(StorageUnavailable):
            await asyncio.wait_for(purging, 60)
    finally:
        own_server.thaw()
        holder.close()
        await store.close()
