"""Stage two of erasure: after a purge no file of the store holds what was erased; until then it says what it awaits."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from memory_service.contract.config import StorageType
from memory_service.contract.scopes import Scope
from memory_service.domain.owners import Owner, PairErasure, SessionErasure
from memory_service.ports.records import DigestRow, PurgeStep
from memory_service.ports.storage import Transaction
from memory_service.storage.encoding import vector_bytes
from memory_service.storage.purge import rewrite_postgres
from tests.fakes.corpora import link_of, searches_of
from tests.fakes.stores import ALICE, Backends, Store, fact, pair_of, session_of, turn, vector

SECRET = "xqzwv"
"""What every word of the erased text begins with; no other text has it."""


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
