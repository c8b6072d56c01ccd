"""What only the external backend has: connections that are lost, replicas, and other schemas in one database."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import psycopg
import pytest

from memory_service.contract.health import Part, Reason
from memory_service.contract.scopes import Scope
from memory_service.contract.sessions import JobKind
from memory_service.domain.owners import AgentErasure, Owner
from memory_service.errors import InFlight, Misconfigured, StorageUnavailable
from memory_service.ports.records import FactChange, FactSource, JobDraft, JobRow
from memory_service.ports.storage import Transaction
from memory_service.storage.connections import Connection, Connections
from memory_service.storage.external import ExternalStorage
from memory_service.storage.postgres_link import PostgresLink
from memory_service.storage.transaction import RowTransaction
from tests.conformance.test_costs import recorded
from tests.fakes.postgres import PostgresServer, binaries, terminate_connections
from tests.fakes.stores import (
    AGENT,
    ALICE,
    BOB,
    SCHEMA,
    Backends,
    Store,
    external_config,
    fact,
    pair_of,
    session_of,
    turn,
    uid,
)
from tests.packaging.pages import blocks


@pytest.fixture
async def external(backends: Backends, tmp_path: Path) -> AsyncIterator[Store]:
    """An open external store."""
    async with backends.external(tmp_path) as config:
        store = Store(config)
        await store.open()
        yield store
        await store.close()


@pytest.fixture
async def replicas(external: Store) -> AsyncIterator[list[Store]]:
    """Three processes' worth of stores on one schema."""
    others = [Store(external.config), Store(external.config)]
    for other in others:
        await other.open()
    yield [external, *others]
    for other in others:
        await other.close()


def append(tx: Transaction, text: str, session: str = "s1") -> int:
    row = tx.sessions.ensure(session_of(session), Scope.PRIVATE, tx.now())
    return tx.turns.append(row, [turn(text)], tx.now())[0]


async def texts(store: Store, session: str = "s1") -> list[str]:
    def read(tx: Transaction) -> list[str]:
        row = tx.sessions.find(session_of(session))
        return [] if row is None else [one.text for one in tx.turns.window(row, limit=10_000)]

    return await store.storage.read(read)


def link_of(tx: Transaction) -> PostgresLink:
    assert isinstance(tx, RowTransaction)
    assert isinstance(tx.link, PostgresLink)
    return tx.link


async def test_terminated_connections_are_not_noticed_by_callers(external: Store) -> None:
    """Every connection is terminated again and again during traffic; each write is stored once."""
    done = asyncio.Event()

    async def writer(number: int) -> None:
        for step in range(8):
            await external.storage.transact(partial(append, text=f"{number}-{step}"))
            await texts(external)

    async def terminator() -> int:
        rounds = 0
        while not done.is_set():
            try:
                await asyncio.wait_for(done.wait(), 0.2)
            except TimeoutError:
                await asyncio.to_thread(terminate_connections, str(external.config.dsn))
                rounds += 1
        return rounds

    killing = asyncio.ensure_future(terminator())
    results = await asyncio.gather(*(writer(number) for number in range(4)), return_exceptions=True)
    done.set()
    await killing
    stored = await texts(external)
    assert len(stored) == len(set(stored))
    if not any(results):
        assert len(stored) == 32
    assert {type(result) for result in results} <= {type(None), StorageUnavailable}


async def test_one_lost_connection_is_answered_by_running_the_work_again(external: Store) -> None:
    runs: list[int] = []

    def work(tx: Transaction) -> int:
        runs.append(1)
        seq = append(tx, "once")
        if len(runs) == 1:
            terminate_connections(str(external.config.dsn))
        return seq

    assert await external.storage.transact(work) == 1
    assert len(runs) == 2
    assert await texts(external) == ["once"]

    def read(tx: Transaction) -> int:
        runs.append(1)
        if len(runs) == 3:
            terminate_connections(str(external.config.dsn))
        return len(tx.owners.find([pair_of()]))

    assert await external.storage.read(read) == 1
    assert len(runs) == 4


async def test_work_that_loses_its_connection_every_time_is_told_that_nothing_was_stored(external: Store) -> None:
    def work(tx: Transaction) -> None:
        append(tx, "never")
        terminate_connections(str(external.config.dsn))
        append(tx, "never")

    with pytest.raises(StorageUnavailable, match="nothing was stored"):
        await external.storage.transact(work)
    assert await texts(external) == []


class LostAnswer:
    """A connection whose COMMIT is carried out, or never arrives, while its answer is lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dsn: str, *, arrives: bool) -> None:
        self.times = 0
        commit = PostgresLink.commit

        def lossy(link: PostgresLink, token: str) -> None:
            if self.times == 0:
                self.times += 1
                if arrives:
                    commit(link, token)
                terminate_connections(dsn)
            commit(link, token)

        monkeypatch.setattr(PostgresLink, "commit", lossy)


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_commit_whose_answer_is_lost_is_stored_once(
    external: Store, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    lost = LostAnswer(monkeypatch, str(external.config.dsn), arrives=arrives)
    assert await external.storage.transact(lambda tx: append(tx, "once")) == 1
    assert lost.times == 1
    monkeypatch.undo()
    assert await texts(external) == ["once"]


async def test_a_commit_that_the_server_is_still_at_is_waited_for(
    external: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is given up while the transaction is open; it is carried out after the database was asked twice."""
    commit, connect = PostgresLink.commit, Connections.connect
    unsettled: list[tuple[PostgresLink, str]] = []
    asked: list[int] = []

    def lossy(link: PostgresLink, token: str) -> None:
        if unsettled or asked:
            return commit(link, token)
        unsettled.append((link, token))
        raise psycopg.OperationalError("the answer is lost")

    def counted(connections: Connections) -> Connection:
        if unsettled:
            asked.append(1)
            if len(asked) == 3:
                commit(*unsettled.pop())
        return connect(connections)

    monkeypatch.setattr(PostgresLink, "commit", lossy)
    monkeypatch.setattr(Connections, "connect", counted)
    runs: list[int] = []

    def work(tx: Transaction) -> int:
        runs.append(1)
        return append(tx, "once")

    assert await external.storage.transact(work) == 1
    assert (len(asked), len(runs)) == (3, 1)
    assert await texts(external) == ["once"]


async def test_only_a_transaction_that_wrote_leaves_a_mark_of_its_commit(external: Store) -> None:
    def marks(tx: Transaction) -> int:
        found = link_of(tx).row("SELECT COUNT(*) FROM @commits")
        assert found is not None
        return int(found[0])

    before = await external.storage.read(marks)
    await external.storage.transact(lambda tx: tx.owners.find([pair_of()]))
    assert await external.storage.read(marks) == before
    await external.storage.transact(partial(append, text="one"))
    assert await external.storage.read(marks) == before + 1


async def test_a_killed_server_loses_nothing_that_was_acknowledged(own_server: PostgresServer) -> None:
    store = Store(external_config(own_server.dsn))
    await store.open()
    acknowledged: list[str] = []
    progress, stop = asyncio.Event(), asyncio.Event()

    async def writer(number: int) -> None:
        step = 0
        while not stop.is_set():
            text = f"{number}-{step}"
            step += 1
            try:
                await store.storage.transact(partial(append, text=text, session=f"s{number}"))
            except StorageUnavailable:
                continue
            acknowledged.append(text)
            progress.set()

    async def more() -> None:
        """Wait until twenty more writes are acknowledged."""
        enough = len(acknowledged) + 20
        while len(acknowledged) < enough:
            progress.clear()
            await asyncio.wait_for(progress.wait(), 60)

    writers = [asyncio.ensure_future(writer(number)) for number in range(4)]
    for _ in range(2):
        await more()
        await asyncio.to_thread(own_server.kill)
        health = await store.storage.health()
        assert health[Part.STORAGE].reason is Reason.STORAGE_UNREACHABLE
        assert health[Part.SCHEMA].ok
        await asyncio.to_thread(own_server.start)
    await more()
    stop.set()
    await asyncio.gather(*writers)
    stored = [text for number in range(4) for text in await texts(store, f"s{number}")]
    assert set(acknowledged) <= set(stored)
    assert len(stored) == len(set(stored))
    assert (await store.storage.health())[Part.STORAGE].ok
    await store.close()


async def test_an_outage_is_told_at_once_and_does_not_fill_the_threads(own_server: PostgresServer) -> None:
    store = Store(external_config(own_server.dsn))
    await store.open()
    await asyncio.to_thread(own_server.stop)
    results = await asyncio.wait_for(
        asyncio.gather(
            *(store.storage.read(lambda tx: tx.owners.find([])) for _ in range(100)), return_exceptions=True
        ),
        30,
    )
    assert {type(result) for result in results} == {StorageUnavailable}
    await asyncio.to_thread(own_server.start)
    async with asyncio.timeout(60):
        while True:
            try:
                await store.storage.read(lambda tx: tx.owners.find([pair_of()]))
                break
            except StorageUnavailable:
                await asyncio.sleep(0)
    await store.close()


async def test_replicas_run_every_job_once_and_one_of_a_lane_at_a_time(replicas: list[Store]) -> None:
    drafts = [JobDraft(JobKind.FOLD, f"k{n}", replicas[0].clock.now(), lane=f"lane-{n % 5}") for n in range(30)]
    await replicas[0].storage.transact(lambda tx: [tx.jobs.enqueue(draft, tx.now()) for draft in drafts])
    ran: list[str] = []
    running: set[str] = set()

    async def worker(store: Store) -> None:
        def claim(tx: Transaction) -> JobRow | None:
            return tx.jobs.claim(
                kinds=[JobKind.FOLD], lease=timedelta(seconds=60), worker="w", max_crashes=6, now=tx.now()
            )

        while len(ran) < 30:
            job = await store.storage.transact(claim)
            if job is None:
                await asyncio.sleep(0)
                continue
            assert job.lane not in running
            running.add(str(job.lane))
            ran.append(job.id)
            await asyncio.sleep(0)
            running.discard(str(job.lane))
            assert await store.storage.transact(lambda tx, job=job: tx.jobs.finish(job, tx.now()))

    await asyncio.wait_for(asyncio.gather(*(worker(store) for store in replicas for _ in range(3))), 120)
    assert len(ran) == len(set(ran)) == 30


async def test_replicas_append_to_one_session_without_losing_a_turn(replicas: list[Store]) -> None:
    async def writer(store: Store, number: int) -> None:
        for step in range(10):
            await store.storage.transact(partial(append, text=f"{number}-{step}"))

    await asyncio.gather(*(writer(store, number) for number, store in enumerate(replicas * 2)))
    stored = await texts(replicas[0])
    assert len(stored) == len(set(stored)) == 60


async def test_a_request_that_is_still_being_carried_out_elsewhere_is_in_flight(replicas: list[Store]) -> None:
    holding, release = threading.Event(), threading.Event()

    def hold(tx: Transaction) -> None:
        tx.idempotency.begin(pair_of(), route="r", key="k", body_hash="h", now=tx.now())
        holding.set()
        assert release.wait(60)

    held = asyncio.ensure_future(replicas[0].storage.transact(hold))
    await asyncio.to_thread(holding.wait, 60)

    def begin(tx: Transaction) -> object:
        link_of(tx).connection.execute("SET LOCAL lock_timeout = '100ms'")
        return tx.idempotency.begin(pair_of(), route="r", key="k", body_hash="h", now=tx.now())

    try:
        with pytest.raises(InFlight) as refused:
            await replicas[1].storage.transact(begin)
    finally:
        release.set()
        await held
    assert refused.value.retry_after == 1


async def test_an_erasure_waits_for_an_import_of_what_it_covers(replicas: list[Store]) -> None:
    source = FactSource(AGENT, "", "s1")
    await replicas[0].storage.transact(
        lambda tx: tx.facts.add(
            fact("said", Owner(Scope.SHARED), source=source), fact_id=uid("f"), actor="t", now=tx.now()
        )
    )
    lines, _ = await replicas[0].storage.read(lambda tx: tx.moving.export(cursor=None, limit=10))
    await replicas[0].storage.transact(lambda tx: tx.facts.delete(uid("f")))
    later = [{**line, "id": uid("again")} for line in lines]
    holding, release = threading.Event(), threading.Event()

    def hold(tx: Transaction) -> list[str]:
        outcomes = list(tx.moving.restore(later, tx.now()).outcomes)
        holding.set()
        assert release.wait(60)
        return outcomes

    def erase(tx: Transaction) -> None:
        link_of(tx).connection.execute("SET LOCAL lock_timeout = '100ms'")
        tx.erasing.erase(AgentErasure(AGENT), receipt_id="r", asked_by=None, now=tx.now())

    held = asyncio.ensure_future(replicas[0].storage.transact(hold))
    await asyncio.to_thread(holding.wait, 60)
    try:
        with pytest.raises(StorageUnavailable):
            await replicas[1].storage.transact(erase)
    finally:
        release.set()
        assert await held == ["imported"]
    await replicas[1].storage.transact(erase)
    assert await replicas[0].storage.read(lambda tx: tx.facts.get(uid("again"))) is None


async def test_writers_that_lock_each_other_are_run_again(external: Store) -> None:
    await external.storage.transact(lambda tx: [append(tx, "x", "a"), append(tx, "x", "b")])
    barrier = threading.Barrier(2)

    def cross(tx: Transaction, first: str, second: str, runs: list[int]) -> None:
        append(tx, f"{first} then {second}", first)
        runs.append(1)
        if len(runs) == 1:
            barrier.wait(60)
        append(tx, f"{first} then {second}", second)

    await asyncio.gather(
        external.storage.transact(partial(cross, first="a", second="b", runs=[])),
        external.storage.transact(partial(cross, first="b", second="a", runs=[])),
    )
    for session in ("a", "b"):
        assert sorted((await texts(external, session))[1:]) == ["a then b", "b then a"]


async def test_an_expiry_takes_owners_before_their_facts_as_a_save_does_and_neither_is_run_again(
    replicas: list[Store],
) -> None:
    owner, past = pair_of(), replicas[0].clock.now() - timedelta(seconds=1)
    await replicas[0].storage.transact(
        lambda tx: tx.facts.add(fact("it ends", owner, expires_at=past), fact_id=uid("f"), actor="t", now=tx.now())
    )
    held, is_awaited = threading.Event(), threading.Event()
    runs: list[str] = []

    def save(tx: Transaction) -> None:
        runs.append("save")
        tx.owners.lock(owner)
        held.set()
        assert is_awaited.wait(60)
        later = FactChange({"expires_at": tx.now() + timedelta(days=1)})
        tx.facts.change(uid("f"), later, event="corrected", actor="t", now=tx.now())

    def expire(tx: Transaction) -> int:
        runs.append("expire")
        return tx.facts.expire(now=tx.now(), facts_before=None, limit=10)

    saving = asyncio.ensure_future(replicas[0].storage.transact(save))
    assert await asyncio.to_thread(held.wait, 60)
    expiring = asyncio.ensure_future(replicas[1].storage.transact(expire))
    await until_one_waits_for_a_lock(replicas[2])
    is_awaited.set()
    await saving
    assert await expiring == 0
    assert runs == ["save", "expire"]
    assert await replicas[0].storage.read(lambda tx: tx.facts.get(uid("f"))) is not None


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0)])
async def test_several_owners_are_locked_in_the_order_of_their_numbers_whatever_they_are_called(
    replicas: list[Store], numbers: tuple[int, int]
) -> None:
    owners = [pair_of(principal=ALICE), pair_of(principal=BOB)]
    made = [owners[number] for number in numbers]
    for owner in made:
        await replicas[0].storage.transact(lambda tx, owner=owner: tx.owners.ensure(owner))
    first, held, goes_on = made[0], threading.Event(), threading.Event()

    def hold(tx: Transaction) -> None:
        tx.owners.lock(first)
        held.set()
        assert goes_on.wait(60)

    def lock(tx: Transaction) -> None:
        tx.owners.lock_many(owners)

    def take_the_last(tx: Transaction) -> None:
        link_of(tx).connection.execute("SET LOCAL lock_timeout = '5s'")
        tx.owners.lock(made[1])

    holding = asyncio.ensure_future(replicas[0].storage.transact(hold))
    assert await asyncio.to_thread(held.wait, 60)
    locking = asyncio.ensure_future(replicas[1].storage.transact(lock))
    await until_one_waits_for_a_lock(replicas[2])
    await replicas[2].storage.transact(take_the_last)
    goes_on.set()
    await asyncio.gather(holding, locking)


async def until_one_waits_for_a_lock(store: Store) -> None:
    """Return once a transaction of this database waits for what another one holds."""

    def is_waiting(tx: Transaction) -> bool:
        sql = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return link_of(tx).row(sql) is not None

    async with asyncio.timeout(60):
        while not await store.storage.read(is_waiting):
            pass


async def test_two_stores_in_one_database_see_nothing_of_each_other(external: Store) -> None:
    other = Store(external_config(str(external.config.dsn), schema="other_store"))
    await other.open()
    await external.storage.transact(lambda tx: append(tx, "mine"))
    assert await texts(other) == []
    await other.storage.transact(lambda tx: append(tx, "theirs"))
    assert await texts(external) == ["mine"]
    await other.close()


async def test_a_schema_that_an_earlier_store_of_the_same_name_and_cluster_left_is_named(external: Store) -> None:
    def store(number: int, name: str = "team/memory", cluster: str = "here") -> Store:
        config = external_config(str(external.config.dsn), schema=f"store_{number}")
        return Store(config.model_copy(update={"store_name": name}), cluster=cluster)

    stores = [store(1), store(2, "team/other"), store(3, cluster="there"), store(4)]
    for one in stores:
        await one.open()
    last = stores[3].storage
    assert await last.schemas_left_behind() == ["store_1"]
    assert await stores[2].storage.schemas_left_behind() == [], "another cluster's store has left nothing here"
    for adopting in (store(1, cluster="there"), store(1), store(1, cluster=""), store(1), store(1, "")):
        await adopting.open()
        is_own = adopting.cluster == "here" and adopting.config.store_name
        assert await last.schemas_left_behind() == (["store_1"] if is_own else []), "it is of whoever opened it last"
        if not is_own:
            assert "store_4" not in await adopting.storage.schemas_left_behind()
        await adopting.close()
    for one in stores:
        await one.close()
    with psycopg.connect(str(external.config.dsn)) as connection:
        for number in range(1, len(stores) + 1):
            connection.execute(f"DROP SCHEMA store_{number} CASCADE")


async def test_a_look_for_schemas_that_were_left_waits_for_no_purge(external: Store) -> None:
    store = Store(external.config.model_copy(update={"store_name": "team/memory"}), cluster="here")
    await store.open()
    storage = store.storage
    assert isinstance(storage, ExternalStorage)
    begun, may_end = threading.Event(), threading.Event()

    def long(_connection: object) -> bool:
        begun.set()
        return may_end.wait(60)

    purging = asyncio.ensure_future(storage.outside(long))
    assert await asyncio.to_thread(begun.wait, 60)
    assert await asyncio.wait_for(storage.schemas_left_behind(), 30) == []
    may_end.set()
    assert await purging
    await store.close()


async def test_a_dump_is_restored_by_the_commands_of_the_page(
    external: Store, tmp_path: Path, repository: Path
) -> None:
    dsn, schema = str(external.config.dsn), external.config.schema_name
    page = blocks(repository / "docs/how-to/backup-and-restore.md")
    lines = [line for block in page if block.about == "example" for line in block.body.splitlines()]
    lines = [line.replace("memplane_0123456789abcdef0123456789abcdef", schema) for line in lines]

    async def follow(words: str) -> None:
        (command,) = [line for line in lines if words in line and not line.startswith("kubectl")]
        environment = {**os.environ, "URI": dsn, "PATH": f"{binaries()}{os.pathsep}{os.environ['PATH']}"}
        done = await asyncio.to_thread(
            subprocess.run, ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"

    named = external.config.model_copy(update={"store_name": "team/memory"})
    restored = Store(named, clock=external.clock, cluster="here")
    await restored.open()
    await restored.storage.transact(lambda tx: append(tx, "before"))
    await follow("pg_dump ")
    await restored.storage.transact(lambda tx: append(tx, "lost"))
    await restored.storage.close()
    await follow("ALTER SCHEMA")
    await follow("pg_restore ")
    await restored.open()
    assert await texts(restored) == ["before"]
    assert await restored.storage.schemas_left_behind() == ["before_restore"]
    await restored.storage.transact(lambda tx: append(tx, "after"))
    assert await texts(restored) == ["before", "after"]
    health = await restored.storage.health()
    assert [(part.ok, part.message) for part in health.values()] == [(True, "")] * 2, "the role owns what it restored"
    await follow("DROP SCHEMA")
    assert await texts(restored) == ["before", "after"]
    await restored.close()


async def test_replicas_that_start_together_make_the_schema_once(external: Store) -> None:
    stores = [Store(external_config(str(external.config.dsn), schema="fresh")) for _ in range(3)]
    await asyncio.gather(*(store.open() for store in stores))
    keys = {store.storage._meta["hmac_key"] for store in stores if isinstance(store.storage, ExternalStorage)}
    assert len(keys) == 1
    for store in stores:
        await store.close()
    with psycopg.connect(str(external.config.dsn)) as connection:
        connection.execute("DROP SCHEMA fresh CASCADE")


async def test_without_a_dsn_the_store_waits_for_its_secret(external: Store, tmp_path: Path) -> None:
    file = tmp_path / "dsn"
    store = Store(external.config.model_copy(update={"dsn": None, "dsn_file": str(file)}))
    with pytest.raises(Misconfigured, match="Secret"):
        await store.open()
    assert (await store.storage.health())[Part.STORAGE].reason is Reason.SECRET_MISSING
    file.write_text(f"{external.config.dsn}\n")
    await store.storage.migrate()
    assert (await store.storage.health())[Part.STORAGE].ok
    await store.close()


async def test_a_dsn_that_is_none_is_refused_without_showing_it(external: Store) -> None:
    store = Store(external.config.model_copy(update={"dsn": "secret-password is not a dsn"}))
    with pytest.raises(Misconfigured) as refused:
        await store.open()
    assert "secret-password" not in str(refused.value)
    await store.close()


async def test_nothing_is_set_for_a_session_and_nothing_is_prepared(external: Store) -> None:
    """PgBouncer in transaction mode hands a connection to somebody else between two transactions."""
    for _ in range(12):
        await external.storage.transact(lambda tx: append(tx, "x"))
        await texts(external)

    def look(connection: psycopg.Connection[tuple[object, ...]]) -> tuple[object, ...]:
        shown = connection.execute("SELECT current_setting('search_path'), current_setting('statement_timeout')")
        row = shown.fetchone()
        assert row is not None
        return row

    def inside(tx: Transaction) -> int:
        row = link_of(tx).connection.execute("SELECT COUNT(*) FROM pg_prepared_statements").fetchone()
        assert row is not None
        return int(row[0])

    assert isinstance(external.storage, ExternalStorage)
    assert await external.storage.outside(look) == ('"$user", public', "0")
    assert await external.storage.read(inside) == 0


async def test_no_transaction_is_left_open(external: Store) -> None:
    def fails(tx: Transaction) -> None:
        append(tx, "x")
        raise LookupError

    for work in (fails, lambda tx: link_of(tx).run("SELECT 1/0")):
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it is, nothing may stay open
            await external.storage.transact(work)
    await texts(external)
    with psycopg.connect(str(external.config.dsn)) as connection:
        states = connection.execute(
            "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'memplane'"
        ).fetchall()
    assert {row[0] for row in states} == {"idle"}


async def test_tables_that_carry_text_are_split_by_owner(external: Store) -> None:
    with psycopg.connect(str(external.config.dsn)) as connection:
        found = connection.execute(
            "SELECT c.relname, pg_get_partkeydef(c.oid),"
            " (SELECT COUNT(*) FROM pg_inherits AS i WHERE i.inhparent = c.oid)"
            " FROM pg_class AS c WHERE c.relkind = 'p' AND c.relnamespace = to_regnamespace(%s)",
            (SCHEMA,),
        ).fetchall()
    assert {row[0] for row in found} == {"turns", "digests", "facts", "fact_sources", "fact_history", "idempotency"}
    assert {row[1:] for row in found} == {("HASH (owner_id)", 16)}


async def test_a_lease_is_renewed_while_every_writer_waits_for_rows_that_others_hold(external: Store) -> None:
    """Replicas that hold an owner for seconds must not cost this one the jobs that it is working on."""

    def begin(tx: Transaction) -> JobRow | None:
        append(tx, "first")
        tx.jobs.enqueue(JobDraft(JobKind.FOLD, "k", tx.now()), tx.now())
        return tx.jobs.claim(kinds=[JobKind.FOLD], lease=timedelta(seconds=30), worker="w", max_crashes=6, now=tx.now())

    job = await external.storage.transact(begin)
    assert job is not None
    dsn = external.config.dsn
    assert dsn is not None
    with psycopg.connect(dsn) as other:
        other.execute(f'SELECT 1 FROM "{SCHEMA}".sessions FOR UPDATE')
        writes = [asyncio.create_task(external.storage.transact(lambda tx: append(tx, "later"))) for _ in range(20)]
        renewed = await external.storage.transact(
            lambda tx: tx.jobs.renew(job, lease=timedelta(seconds=30), now=tx.now()), urgent=True
        )
        assert renewed
        assert not any(write.done() for write in writes)
        other.rollback()
    await asyncio.gather(*writes)
    assert len(await texts(external)) == 21


async def test_rows_of_an_owner_are_looked_for_in_its_own_partition_alone(external: Store) -> None:
    await external.storage.transact(lambda tx: append(tx, "one"))

    def plans(tx: Transaction) -> list[list[str]]:
        home = next(iter(tx.owners.find([pair_of()]).values())).id
        found = []
        for fetch in (tx.turns.get, tx.facts.by_row_ids):
            with recorded(tx) as statements:
                fetch([home], [1, 2])
            sql, parameters = statements[0]
            plan = link_of(tx).rows(f"EXPLAIN {sql}", parameters)
            found.append([line for (line,) in plan if re.search(r"(?:Scan|on) .*(?:turns|facts)_\d+", line)])
        return found

    for partitions in await external.storage.read(plans):
        assert len({re.search(r"(?:turns|facts)_\d+", line)[0] for line in partitions}) == 1, partitions  # type: ignore[index]


async def test_a_dsn_that_goes_and_comes_back_is_an_outage(backends: Backends, tmp_path: Path) -> None:
    async with backends.external(tmp_path) as given:
        file = tmp_path / "dsn"
        file.write_text(str(given.dsn))
        store = Store(given.model_copy(update={"dsn": None, "dsn_file": str(file)}))
        await store.open()
        await store.storage.transact(lambda tx: append(tx, "before"))
        for broken in ("", "not a DSN"):
            file.write_text(broken)
            terminate_connections(str(given.dsn))
            with pytest.raises(StorageUnavailable):
                await texts(store)
            with pytest.raises(StorageUnavailable):
                await store.storage.transact(lambda tx: append(tx, "never"))
            with pytest.raises(StorageUnavailable):
                await store.storage.outside(lambda connection: connection.execute("SELECT 1"))
            assert not (await store.storage.health())[Part.STORAGE].ok
        file.write_text(str(given.dsn))
        assert await texts(store) == ["before"]
        assert (await store.storage.health())[Part.STORAGE].ok
        await store.close()
