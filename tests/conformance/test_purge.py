"""Stage two of erasure: after a purge no file of the store holds what was erased; until then it says what it awaits."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from memory_service.contract.config import StorageType
from memory_service.contract.health import Part
from memory_service.contract.scopes import Scope
from memory_service.domain.owners import Owner, PairErasure, SessionErasure
from memory_service.ports.records import DigestRow, FactChange, FactSource, PurgeStep
from memory_service.ports.storage import Transaction
from memory_service.storage.encoding import vector_bytes
from memory_service.storage.purge import rewrite_postgres
from tests.fakes.corpora import link_of, searches_of
from tests.fakes.stores import AGENT, ALICE, SCHEMA, Backends, Store, fact, pair_of, session_of, turn, uid, vector

SECRET = "xqzwv"
"""What every word of the erased text begins with; no other text has it."""


@pytest.fixture
async def store(store: Store) -> Store:
    """A store without the dead rows that a test before this one left."""
    if store.config.type is StorageType.EXTERNAL:
        await asyncio.to_thread(truncate, str(store.config.dsn))
    return store


def truncate(dsn: str) -> None:
    """Give every table that holds rows of owners a new, empty file."""
    with psycopg.connect(dsn) as connection:
        tables = connection.execute(
            "SELECT string_agg(CAST(c.oid AS regclass)::text, ', ') FROM pg_class AS c"
            " WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
            " AND c.relname NOT IN ('meta', 'migrations')",
            [SCHEMA],
        ).fetchone()
        assert tables is not None
        connection.execute(f"TRUNCATE {tables[0]}".encode())


def secret(number: int) -> str:
    return f"{SECRET}{number}"


def needles() -> list[bytes]:
    """Return what must be gone: text, the rest of a stem that an index stored by its difference, and vectors."""
    vectors = [vector_bytes(vector(1_000 + number)) for number in range(0, 150, 7)]
    # pgvector stores little-endian float32 on this machine as SQLite's rows do; half a vector is found as well.
    return [SECRET.encode(), SECRET[1:].encode(), *vectors, *[data[8:24] for data in vectors]]


def fill(tx: Transaction, owner: Owner, text: Callable[[int], str], first_vector: int, first_fact: int) -> None:
    """Store turns, a digest and facts of one pair, with vectors."""
    session = tx.sessions.ensure(owner, Scope.PRIVATE, tx.now())
    tx.turns.append(session, [turn(f"{text(n)} said {text(n + 1)}") for n in range(150)], tx.now())
    rows = tx.turns.unindexed(session.id, limit=200)
    tx.turns.store_vectors(session.id, {row.id: vector(first_vector + n) for n, row in enumerate(rows)})
    tx.digests.append(DigestRow(session.id, 1, text(1) * 3, 10, 5, tx.now()), folded_from=0, keep=3)
    pair = pair_of(principal=owner.principal)
    for n in range(150):
        draft = fact(
            f"{text(n)} is {text(n + 2)}", pair, vector=vector(first_vector + n), category=text(3), tags=(text(4),)
        )
        tx.facts.add(draft, fact_id=f"00000000-0000-4000-8000-{first_fact + n:012d}", actor="test", now=tx.now())


async def fill_both(store: Store) -> None:
    """Store what will be erased, said without a principal, and what stays, Alice's."""
    await store.storage.transact(lambda tx: fill(tx, session_of(), secret, 1_000, 1))
    chooser = random.Random(3)
    plain = [f"plain{chooser.randrange(10**9)}" for _ in range(200)]
    await store.storage.transact(lambda tx: fill(tx, session_of(principal=ALICE), plain.__getitem__, 5_000, 1_000))


async def erase(store: Store, receipt: str = "r1") -> None:
    erasure = PairErasure(session_of().agent, "")
    await store.storage.transact(lambda tx: tx.erasing.erase(erasure, receipt_id=receipt, asked_by=None, now=tx.now()))
    await store.wait_for_running_transactions()


def files_of(store: Store) -> Mapping[Path, bytes]:
    """Return every file that carries the store: the data folder, or the database's tables and indexes."""
    if store.config.type is StorageType.LOCAL:
        folder = Path(str(store.config.data_dir))
    else:
        with psycopg.connect(str(store.config.dsn), autocommit=True) as connection:
            connection.execute("CHECKPOINT")
            place = connection.execute(
                "SELECT current_setting('data_directory'), oid FROM pg_database WHERE datname = current_database()"
            ).fetchone()
        assert place is not None
        folder = Path(place[0]) / "base" / str(place[1])
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def holding(store: Store, sought: Sequence[bytes]) -> set[str]:
    return {path.name for path, content in files_of(store).items() if any(needle in content for needle in sought)}


async def purge_until_done(store: Store) -> PurgeStep:
    await store.wait_for_running_transactions()
    for _ in range(20):
        step = await store.storage.purge()
        if step.done:
            return step
    raise AssertionError(f"the purge still waits for {step.waiting_for}")


async def analyze(store: Store) -> None:
    """Let the database take its samples, as its own housekeeping does."""
    await cast("Any", store.storage).outside(lambda connection: connection.execute("ANALYZE"))


async def test_a_byte_search_finds_nothing_of_what_was_erased_once_it_is_purged(store: Store) -> None:
    await fill_both(store)
    await analyze(store)
    assert await asyncio.to_thread(holding, store, needles())
    await erase(store)
    assert await purge_until_done(store) == PurgeStep(done=True)
    assert await asyncio.to_thread(holding, store, needles()) == set()
    kept = [b"plain", vector_bytes(vector(5_010)), vector_bytes(vector(5_149))]
    for needle in kept:
        assert await asyncio.to_thread(holding, store, [needle])


async def test_a_byte_search_finds_nothing_after_a_purge_of_an_indexed_owner(store: Store) -> None:
    searches_of(store).limit_exact(100)
    await fill_both(store)
    await store.storage.reconcile_index()
    await erase(store)
    await purge_until_done(store)
    assert await asyncio.to_thread(holding, store, needles()) == set()
    home = pair_of(principal=ALICE)
    found = await store.storage.read(lambda tx: tx.facts.similar(home, vector(5_010), limit=1))
    assert found[0][1] == pytest.approx(1.0)


async def test_an_erased_session_leaves_the_others_of_its_pair(store: Store) -> None:
    await fill_both(store)
    await store.storage.transact(lambda tx: fill(tx, session_of("s2"), lambda n: f"other{n}", 9_000, 2_000))
    erasure = SessionErasure(session_of().agent, "", "s1")
    await store.storage.transact(lambda tx: tx.erasing.erase(erasure, receipt_id="r", asked_by=None, now=tx.now()))
    await purge_until_done(store)
    sought = [vector_bytes(vector(1_000 + n)) for n in range(0, 150, 11)]
    left = await store.storage.read(
        lambda tx: link_of(tx).row("SELECT COUNT(*) FROM @turns WHERE terms LIKE :some", {"some": f"{SECRET}%"})
    )
    assert left == (0,)
    assert await asyncio.to_thread(holding, store, [sought[0]]) == set()
    assert await asyncio.to_thread(holding, store, [b"other3 said"])


async def test_a_purge_may_be_repeated_and_a_later_erasure_is_purged_too(store: Store) -> None:
    await fill_both(store)
    await erase(store)
    await purge_until_done(store)
    assert (await store.storage.purge()).done
    await store.storage.transact(lambda tx: fill(tx, session_of(), secret, 1_000, 1))
    await erase(store, "r2")
    await purge_until_done(store)
    assert await asyncio.to_thread(holding, store, needles()) == set()


async def forget_session(store: Store, name: str) -> None:
    erasure = SessionErasure(AGENT, "", name)
    await store.storage.transact(lambda tx: tx.erasing.erase(erasure, receipt_id=name, asked_by=None, now=tx.now()))


async def test_what_a_fact_that_others_said_too_loses_is_gone_once_it_is_purged(store: Store) -> None:
    said_first, said_later = FactSource(AGENT, "", "s1"), FactSource(AGENT, "", "s2")

    def save(tx: Transaction) -> None:
        draft = fact(
            "plain words", pair_of(), source=said_first,
            evidence=f"{SECRET} said so", attributes={"note": f"{SECRET}note"}, tags=(f"{SECRET}tag",),
        )  # fmt: skip
        tx.facts.add(draft, fact_id=uid("f"), actor="test", now=tx.now())
        tx.facts.add_source(uid("f"), said_later)

    await forget_session(store, "s0")
    await purge_until_done(store)
    await store.storage.transact(save)
    await forget_session(store, "s1")
    await purge_until_done(store)
    assert await asyncio.to_thread(holding, store, [SECRET.encode()]) == set()
    kept = await store.storage.read(lambda tx: tx.facts.get(uid("f")))
    assert kept is not None
    assert (kept.text, kept.evidence, kept.tags) == ("plain words", None, ())


async def test_a_text_that_another_session_replaced_is_gone_once_its_own_session_is_purged(store: Store) -> None:
    def save(tx: Transaction) -> None:
        draft = fact(f"{SECRET} every morning", pair_of(), source=FactSource(AGENT, "", "s1"), key="k")
        tx.facts.add(draft, fact_id=uid("f"), actor="test", now=tx.now())

    def replace(tx: Transaction) -> None:
        change = FactChange({"text": "nothing"}, terms=("nothing",), source=FactSource(AGENT, "", "s2"))
        tx.facts.change(uid("f"), change, event="replaced", actor="test", now=tx.now())

    await forget_session(store, "s0")
    await purge_until_done(store)
    await store.storage.transact(save)
    await store.storage.transact(replace)
    await forget_session(store, "s1")
    await purge_until_done(store)
    assert await asyncio.to_thread(holding, store, [SECRET.encode()]) == set()
    kept = await store.storage.read(lambda tx: tx.facts.get(uid("f")))
    assert kept is not None
    assert kept.text == "nothing"


async def test_a_fact_that_was_deleted_by_its_id_is_gone_once_it_is_purged(store: Store) -> None:
    await purge_until_done(store)
    await store.storage.transact(
        lambda tx: tx.facts.add(fact(f"{SECRET} is told", pair_of()), fact_id=uid("f"), actor="test", now=tx.now())
    )
    await store.storage.transact(lambda tx: tx.facts.delete(uid("f")))
    await purge_until_done(store)
    assert await asyncio.to_thread(holding, store, [SECRET.encode()]) == set()


@contextmanager
def old_snapshot(store: Store) -> Iterator[None]:
    """Hold a snapshot from before whatever follows, as a long report of somebody else does."""
    if store.config.type is StorageType.LOCAL:
        path = next(Path(str(store.config.data_dir)).glob("*.sqlite3"))
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM turns").fetchone()
        try:
            yield
        finally:
            reader.close()
        return
    with psycopg.connect(str(store.config.dsn)) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT COUNT(*) FROM pg_class")
        yield
        connection.rollback()


async def test_a_purge_waits_for_a_snapshot_that_still_sees_what_was_erased(store: Store) -> None:
    await fill_both(store)
    with old_snapshot(store):
        await erase(store)
        step = await store.storage.purge()
        assert not step.done
        assert set(step.waiting_for) <= {"snapshot", "lock"}
        assert step.waiting_for
    await purge_until_done(store)
    assert await asyncio.to_thread(holding, store, needles()) == set()


async def test_a_purge_waits_for_a_table_that_is_being_read(backends: Backends, tmp_path: Path) -> None:
    async with backends.external(tmp_path) as config:
        store = Store(config)
        await store.open()
        await fill_both(store)
        await erase(store)
        with psycopg.connect(str(config.dsn)) as holder:
            holder.execute(f"LOCK TABLE {config.schema_name}.facts IN ACCESS SHARE MODE")
            rewrite = partial(rewrite_postgres, schema=config.schema_name, lock_seconds=0.05)
            step = await cast("Any", store.storage).outside(rewrite)
            holder.rollback()
        # A snapshot that another table still waits for may be named too, as whoever holds the lock has one.
        assert not step.done
        assert "lock" in step.waiting_for
        assert await purge_until_done(store) == PurgeStep(done=True)
        assert await asyncio.to_thread(holding, store, needles()) == set()
        await store.close()


@pytest.fixture
async def external(backends: Backends, tmp_path: Path) -> AsyncIterator[Store]:
    """An open external store that holds what will be erased, and what stays."""
    async with backends.external(tmp_path) as config:
        await asyncio.to_thread(truncate, str(config.dsn))
        store = Store(config)
        await store.open()
        await fill_both(store)
        yield store
        await store.close()


def ask(store: Store, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements as an administrator and return the rows of the last."""
    with psycopg.connect(str(store.config.dsn), autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


async def test_a_purge_trusts_no_counts_of_the_server(external: Store) -> None:
    await purge_until_done(external)
    for number in range(2):
        await erase(external, f"r{number}")
        ask(external, "SELECT pg_stat_reset()")
        await purge_until_done(external)
        assert await asyncio.to_thread(holding, external, needles()) == set()
        await external.storage.transact(lambda tx: fill(tx, session_of(), secret, 1_000, 1))


async def test_an_erasure_that_a_backup_brought_to_another_server_waits_for_no_snapshot(external: Store) -> None:
    await erase(external, "theirs")
    ask(external, f"UPDATE {SCHEMA}.unpurged SET xid = '1000000000000'")
    with old_snapshot(external):
        assert "snapshot" not in (await external.storage.purge()).waiting_for
        await erase(external, "ours")
        step = await external.storage.purge()
        assert await note(external, ["theirs", "ours"], step) == {"ours": ("snapshot",)}
    await purge_until_done(external)


async def test_a_purge_writes_nothing_while_a_snapshot_still_sees_what_was_erased(external: Store) -> None:
    files = f"SELECT pg_relation_filenode(oid) FROM pg_class WHERE relnamespace = '{SCHEMA}'::regnamespace ORDER BY oid"
    with old_snapshot(external):
        await erase(external)
        before = ask(external, files)
        assert await external.storage.purge() == PurgeStep(done=False, waiting_for=("snapshot",))
        assert ask(external, files) == before
    assert await purge_until_done(external) == PurgeStep(done=True)
    assert ask(external, files) != before


async def note(store: Store, receipts: Sequence[str], step: PurgeStep) -> Mapping[str, tuple[str, ...]]:
    """Write what a purge reached; return what each receipt that is not done waits for."""
    await store.storage.transact(lambda tx: tx.receipts.note_purge(receipts, step, tx.now()))
    left = await store.storage.read(lambda tx: tx.receipts.unpurged(limit=100))
    return {receipt.id: receipt.waiting_for for receipt in left}


async def test_a_receipt_waits_for_no_snapshot_that_only_a_later_erasure_has(external: Store) -> None:
    """Else there is one receipt more that waits, and nobody's is ever done, for as long as somebody erases."""
    await erase(external, "first")
    with old_snapshot(external):
        await external.storage.transact(lambda tx: fill(tx, session_of(), "later{}".format, 3_000, 5_000))
        await erase(external, "later")
        step = await external.storage.purge()
        assert step == PurgeStep(done=False, waiting_for=("snapshot",))
        assert await note(external, ["first", "later"], step) == {"later": ("snapshot",)}
        assert await asyncio.to_thread(holding, external, needles()) == set()
        assert await asyncio.to_thread(holding, external, [b"later1"])
    assert await note(external, ["later"], await purge_until_done(external)) == {}
    assert await asyncio.to_thread(holding, external, [b"later1"]) == set()
    assert ask(external, f"SELECT COUNT(*) FROM {SCHEMA}.unpurged") == [(0,)]


async def test_a_purge_is_done_though_a_snapshot_sees_what_others_changed_in_its_tables_since(external: Store) -> None:
    def change(tx: Transaction) -> None:
        link_of(tx).run("UPDATE @facts SET revision = revision + 1")
        link_of(tx).run("UPDATE @turns SET tokens = tokens + 1")

    await erase(external, "first")
    with old_snapshot(external):
        await external.storage.transact(change)
        step = await external.storage.purge()
        assert step == PurgeStep(done=True)
        assert await note(external, ["first"], step) == {}
        assert await asyncio.to_thread(holding, external, needles()) == set()


async def test_a_purge_waits_for_what_still_holds_a_text_that_was_replaced_while_its_erasure_began(
    external: Store,
) -> None:
    """The replacing transaction is younger than the erasure's, and so is one that runs on and keeps the dead row."""
    began, goes_on = threading.Event(), threading.Event()

    def erase_late(tx: Transaction) -> None:
        link_of(tx).row("SELECT pg_current_xact_id()")
        began.set()
        assert goes_on.wait(60)
        tx.erasing.erase(PairErasure(AGENT, ""), receipt_id="r", asked_by=None, now=tx.now())

    def save(tx: Transaction) -> None:
        tx.facts.add(fact("narwhalish", pair_of()), fact_id=uid("n"), actor="test", now=tx.now())

    def replace(tx: Transaction) -> None:
        change = FactChange({"text": "nothing"}, terms=("nothing",))
        tx.facts.change(uid("n"), change, event="replaced", actor="test", now=tx.now())

    await external.storage.transact(save)
    erasing = asyncio.ensure_future(external.storage.transact(erase_late))
    assert await asyncio.to_thread(began.wait, 60)
    with psycopg.connect(str(external.config.dsn)) as between:
        between.execute("SELECT pg_current_xact_id()")
        await external.storage.transact(replace)
        goes_on.set()
        await erasing
        step = await external.storage.purge()
        assert await note(external, ["r"], step) == {"r": ("snapshot",)}
        between.rollback()
    assert await note(external, ["r"], await purge_until_done(external)) == {}
    assert await asyncio.to_thread(holding, external, [b"narwhalish", *needles()]) == set()


async def test_a_receipt_waits_for_a_table_that_is_being_read_and_one_of_other_tables_does_not(
    external: Store,
) -> None:
    await external.storage.transact(
        lambda tx: tx.facts.add(fact("of her own", pair_of(principal=ALICE)), fact_id=uid("f"), actor="t", now=tx.now())
    )

    def delete(tx: Transaction) -> None:
        tx.facts.delete(uid("f"))
        tx.receipts.add("fact", asked_by=None, erased={"facts": 1}, now=tx.now())

    await external.storage.transact(delete)
    await erase(external, "pair")
    with psycopg.connect(str(external.config.dsn)) as holder:
        holder.execute(f"LOCK TABLE {SCHEMA}.turns IN ACCESS SHARE MODE")
        rewrite = partial(rewrite_postgres, schema=SCHEMA, lock_seconds=0.05)
        step = await cast("Any", external.storage).outside(rewrite)
        assert await note(external, ["fact", "pair"], step) == {"pair": ("lock",)}
        holder.rollback()
    assert await note(external, ["pair"], await purge_until_done(external)) == {}


async def test_a_role_that_may_not_write_tables_anew_is_named_and_purges_nothing(external: Store) -> None:
    ask(
        external,
        "DROP ROLE IF EXISTS few_rights",
        "CREATE ROLE few_rights LOGIN",
        f"GRANT USAGE ON SCHEMA {SCHEMA} TO few_rights",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {SCHEMA} TO few_rights",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {SCHEMA} TO few_rights",
    )
    dsn = make_conninfo(str(external.config.dsn), user="few_rights")
    modest = Store(external.config.model_copy(update={"dsn": dsn}))
    await modest.open()
    try:
        health = (await modest.storage.health())[Part.SCHEMA]
        assert health.ok
        assert "let it own them" in health.message
        await erase(modest)
        assert await modest.storage.purge() == PurgeStep(done=False, waiting_for=("rights",))
        assert (await external.storage.health())[Part.SCHEMA].message == ""
        await purge_until_done(external)
        assert await asyncio.to_thread(holding, external, needles()) == set()
    finally:
        await modest.close()
        ask(external, "DROP OWNED BY few_rights", "DROP ROLE few_rights")


async def test_a_purge_takes_as_long_as_it_must_whatever_the_role_allows(external: Store) -> None:
    """An index of the table that is written anew looks at the limit under which it is made again."""
    await erase(external)
    [(table,)] = ask(external, f"SELECT name FROM {SCHEMA}.unpurged WHERE name LIKE 'turns%'")
    ask(
        external,
        f"CREATE FUNCTION {SCHEMA}.limited(BIGINT) RETURNS BIGINT LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN"
        " IF current_setting('statement_timeout') <> '0' THEN RAISE EXCEPTION 'limited'; END IF; RETURN $1; END $$",
        f"CREATE INDEX ON {SCHEMA}.{table} ({SCHEMA}.limited(id))",
    )

    def purge(connection: psycopg.Connection[Any]) -> PurgeStep:
        connection.execute("SET statement_timeout = '50s'")
        return rewrite_postgres(connection, SCHEMA)

    try:
        assert await cast("Any", external.storage).outside(purge) == PurgeStep(done=True)
    finally:
        ask(external, f"DROP FUNCTION {SCHEMA}.limited CASCADE")


async def test_a_purge_sets_nothing_for_a_session_even_when_it_has_waited_for_a_table(external: Store) -> None:
    """PgBouncer in transaction mode hands the connection to somebody else."""
    await erase(external)
    shown = "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"

    def purge(connection: psycopg.Connection[Any]) -> tuple[PurgeStep, Any]:
        return rewrite_postgres(connection, SCHEMA, lock_seconds=0.05), connection.execute(shown).fetchone()

    with psycopg.connect(str(external.config.dsn)) as holder:
        holder.execute(f"LOCK TABLE {SCHEMA}.turns IN ACCESS SHARE MODE")
        step, settings = await cast("Any", external.storage).outside(purge)
        holder.rollback()
    assert "lock" in step.waiting_for
    assert settings == ("0", "0")
    assert (await cast("Any", external.storage).outside(purge))[1] == ("0", "0")
