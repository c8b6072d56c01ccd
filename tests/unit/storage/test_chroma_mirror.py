"""The Chroma mirror of large owners: it may lag or be lost, and a search is right all the same."""

from __future__ import annotations

import ctypes
import random
import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory_service.contract.config import StorageConfig, StorageType
from memory_service.contract.scopes import Scope
from memory_service.domain.owners import Owner
from memory_service.ports.records import OwnerRow, Pool
from memory_service.ports.storage import Transaction
from memory_service.storage.chroma import ChromaFolder, Members, Unit
from memory_service.storage.search import large
from memory_service.storage.search.mirror import Mirror
from memory_service.storage.states import CHANGE
from tests.fakes.corpora import add_facts, add_owner, add_turns, link_of, query, searches_of, units, words
from tests.fakes.stores import AGENT, Store

HOME = OwnerRow(31, Owner(Scope.PRIVATE, AGENT), 0, None)
ROWS = 120
M_PERTURB = -6
"""Of glibc: new memory has each byte of a number inverted."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """A local store with one large owner of turns and facts, mirrored."""
    opened = Store(StorageConfig(type=StorageType.LOCAL, data_dir=str(tmp_path / "data")))
    await opened.open()
    searches_of(opened).limit_exact(50)

    def fill(tx: Transaction) -> None:
        chooser = random.Random(1)
        add_owner(tx, HOME.id)
        for session in (1, 2):
            vectors = list(units(session, ROWS, 8))
            add_turns(tx, HOME, session, [words(chooser) for _ in vectors], vectors, first_id=session * 1_000)
        add_facts(tx, HOME, ["f"] * ROWS, list(units(9, ROWS, 8)), first_id=5_000)

    await opened.storage.transact(fill)
    assert await opened.storage.reconcile_index() == 3 * ROWS
    yield opened
    await opened.close()


async def reopen(store: Store) -> None:
    await store.reopen()
    searches_of(store).limit_exact(50)


def mirror_of(store: Store) -> Mirror:
    mirror = searches_of(store).mirror
    assert mirror is not None
    return mirror


def folders(store: Store) -> list[Path]:
    assert store.config.data_dir is not None
    return sorted(Path(store.config.data_dir).glob("chroma-*"))


async def nearest(store: Store, vector: Any, *, tier: str = "episode", limit: int = 10) -> set[int]:
    """Return the ids of the rows that the pool holds and that are nearest."""

    def search(tx: Transaction) -> Pool:
        if tier == "fact":
            return tx.search.facts(HOME, query(vector, limit=limit))
        return tx.search.episodes([HOME], query(vector, limit=limit), session=None)

    pool = await store.storage.read(search)
    assert not pool.exact
    return set(pool.row_ids[np.argsort(-pool.cosines, kind="stable")[:limit]].tolist())


async def truly_nearest(store: Store, vector: Any, *, tier: str = "episode", limit: int = 10) -> set[int]:
    """Return the same from the rows alone."""

    def scan(tx: Transaction) -> list[int]:
        filters = query(vector).filters
        corpus = large.facts_of(HOME.id, filters) if tier == "fact" else large.turns_of([HOME.id], None, filters)
        return large.scan(link_of(tx), corpus, vector, limit)

    return set(await store.storage.read(scan))


async def assert_right(store: Store) -> None:
    for tier in ("episode", "fact"):
        for vector in units(55, 3, 8):
            assert await nearest(store, vector, tier=tier) == await truly_nearest(store, vector, tier=tier)


async def test_a_search_asks_the_mirror_and_not_every_row(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    vector = units(55, 1, 8)[0]
    expected = await truly_nearest(store, vector)

    def refuse(*_: object) -> list[int]:
        raise AssertionError("every vector was read")

    monkeypatch.setattr(large, "scan", refuse)
    assert await nearest(store, vector) == expected
    assert mirror_of(store).is_open


async def test_rows_that_the_mirror_does_not_hold_yet_are_found(store: Store) -> None:
    aim = units(71, 1, 8)[0]

    def add(tx: Transaction) -> None:
        add_turns(tx, HOME, 3, ["late"] * 4, list(units(72, 4, 8, near=aim)), first_id=3_000)
        add_facts(tx, HOME, ["late"], [aim], first_id=6_000)

    await store.storage.transact(add)
    assert {3_000, 3_001, 3_002, 3_003} <= await nearest(store, aim)
    assert 6_000 in await nearest(store, aim, tier="fact")
    assert await store.storage.reconcile_index() == 5
    assert await store.storage.reconcile_index() == 0
    await assert_right(store)


async def test_rows_that_are_gone_are_no_ghosts_before_and_after_reconciling(store: Store) -> None:
    def remove(tx: Transaction) -> None:
        link = link_of(tx)
        link.run("DELETE FROM @turns WHERE session_id = 2")
        link.run("DELETE FROM @sessions WHERE id = 2")
        link.run("DELETE FROM @facts WHERE row_id >= 5060")
        link.run("UPDATE @owners SET revision = revision + 1 WHERE id = :id", {"id": HOME.id})

    await store.storage.transact(remove)
    await assert_right(store)
    assert await store.storage.reconcile_index() == ROWS + ROWS - 60
    await assert_right(store)


def _forget_turns(tx: Transaction, below: int) -> None:
    link_of(tx).run("DELETE FROM @turns WHERE id < :below", {"below": below})
    link_of(tx).run(f"UPDATE @sessions SET index_revision = index_revision + 1, {CHANGE}")


async def test_a_folder_of_which_most_has_gone_is_made_anew_and_grows_no_further(store: Store) -> None:
    made, numbers = set(folders(store)), range(3, 9)
    for session in numbers:
        vectors = list(units(session, ROWS, 8))
        await store.storage.transact(
            lambda tx, session=session, vectors=vectors: add_turns(  # type: ignore[misc]
                tx, HOME, session, ["w"] * ROWS, vectors, first_id=session * 1_000
            )
        )
        await store.storage.transact(lambda tx, below=(session - 1) * 1_000: _forget_turns(tx, below))  # type: ignore[misc]
        await store.storage.reconcile_index()
        await assert_right(store)
        made.update(folders(store))
        (folder,) = folders(store)
        with sqlite3.connect(folder / "ledger.sqlite3") as ledger:
            (residue,), (held,) = (
                ledger.execute(sql).fetchone()
                for sql in ("SELECT value FROM meta WHERE name = 'residue'", "SELECT COUNT(*) FROM members")
            )
        ledger.close()
        assert residue <= held == 3 * ROWS
    assert 1 < len(made) < len(numbers), "each folder lasts until as much has gone as is there"


async def test_a_session_of_which_little_is_left_is_searched_whole(store: Store) -> None:
    vector = units(55, 1, 8)[0]

    def search(tx: Transaction) -> Pool:
        session = tx.sessions.get_many({1})[1]
        return tx.search.episodes([HOME], query(vector), session=session)

    assert not (await store.storage.read(search)).exact
    await store.storage.transact(lambda tx: _forget_turns(tx, 1_000 + ROWS - 10))
    pool = await store.storage.read(search)
    assert pool.exact
    assert sorted(pool.row_ids.tolist()) == list(range(1_000 + ROWS - 10, 1_000 + ROWS))


async def test_an_owner_of_whom_little_is_left_is_mirrored_no_more(store: Store) -> None:
    await store.storage.transact(lambda tx: _forget_turns(tx, 2_000 + ROWS - 10))
    await store.storage.transact(lambda tx: link_of(tx).run("DELETE FROM @facts WHERE row_id > 5010"))
    await store.storage.transact(lambda tx: link_of(tx).run("UPDATE @owners SET revision = revision + 1"))
    await reopen(store)
    await store.storage.reconcile_index()
    assert folders(store) == []


async def test_a_new_vector_of_a_row_replaces_the_old_one(store: Store) -> None:
    aim = units(81, 1, 8)[0]

    def change(tx: Transaction) -> None:
        link = link_of(tx)
        link.run("UPDATE @facts SET vector = :vector WHERE row_id = 5003", {"vector": link.vector_in(aim)})
        link.run("UPDATE @owners SET revision = revision + 1 WHERE id = :id", {"id": HOME.id})

    await store.storage.transact(change)
    assert await store.storage.reconcile_index() == 1
    assert 5_003 in await nearest(store, aim, tier="fact")
    await assert_right(store)


async def test_a_restart_uses_the_folder_that_is_there(store: Store) -> None:
    before = folders(store)
    await reopen(store)
    await assert_right(store)
    assert await store.storage.reconcile_index() == 0
    assert folders(store) == before
    await assert_right(store)


async def test_a_missing_folder_is_made_anew(store: Store) -> None:
    shutil.rmtree(folders(store)[0])
    await assert_right(store)
    assert await store.storage.reconcile_index() == 3 * ROWS
    assert len(folders(store)) == 1
    await assert_right(store)


def _truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 3])


@pytest.mark.parametrize("harm", ["database", "index", "index folder", "ledger", "unfinished"])
async def test_a_torn_folder_is_made_anew(store: Store, harm: str) -> None:
    (folder,) = folders(store)
    # Chroma writes its index files at 1,000 rows; below, everything is in its log.
    await store.storage.transact(
        lambda tx: add_turns(tx, HOME, 9, ["x"] * 1_100, list(units(9, 1_100, 8)), first_id=20_000)
    )
    await store.storage.reconcile_index()
    await store.storage.close()
    match harm:
        case "database":
            _truncate(folder / "chroma.sqlite3")
        case "index":
            for path in folder.glob("*/header.bin"):
                _truncate(path)
        case "index folder":
            for path in folder.glob("*-*"):
                shutil.rmtree(path)
        case "ledger":
            _truncate(folder / "ledger.sqlite3")
        case _:
            (folder / "ledger.sqlite3").unlink()
    await store.open()
    searches_of(store).limit_exact(50)
    await assert_right(store)
    assert await store.storage.reconcile_index() == 3 * ROWS + 1_100
    assert folder not in folders(store)
    assert len(folders(store)) == 1
    await assert_right(store)


def _copy_database(source: Path, target: Path) -> None:
    for path in target.glob("memplane.sqlite3*"):
        path.unlink()
    for path in source.glob("memplane.sqlite3*"):
        shutil.copy2(path, target)


async def test_a_database_older_than_the_folder_shows_no_ghosts(store: Store, tmp_path: Path) -> None:
    assert store.config.data_dir is not None
    data = Path(store.config.data_dir)
    await store.storage.close()
    _copy_database(data, tmp_path)
    await store.open()
    searches_of(store).limit_exact(50)
    aim = units(91, 1, 8)[0]
    await store.storage.transact(lambda tx: add_facts(tx, HOME, ["new"], [aim], first_id=7_000))
    await store.storage.transact(lambda tx: add_turns(tx, HOME, 4, ["new"] * 2, [aim, aim], first_id=7_000))
    await store.storage.reconcile_index()
    assert 7_000 in await nearest(store, aim)
    await store.storage.close()
    _copy_database(tmp_path, data)
    await store.open()
    searches_of(store).limit_exact(50)
    await assert_right(store)
    # The same ids come back with other vectors.
    other, later = units(92, 1, 8)[0], 1_800_000_000_000_000
    await store.storage.transact(lambda tx: add_facts(tx, HOME, ["other"], [other], first_id=7_000, at=later))
    assert await store.storage.reconcile_index() == 3
    await assert_right(store)
    assert 7_000 in await nearest(store, other, tier="fact")


async def test_rebuilding_keeps_one_folder_with_every_row(store: Store) -> None:
    before = folders(store)
    await store.storage.rebuild_index()
    assert len(folders(store)) == 1
    assert folders(store) != before
    await assert_right(store)


async def test_the_mirror_holds_no_text(store: Store) -> None:
    for path in folders(store)[0].rglob("*"):
        if path.is_file():
            assert b"w1 w" not in path.read_bytes()


@pytest.mark.parametrize("rows", [60, 1_150])
def test_no_memory_that_was_not_cleared_gets_into_the_mirrors_files(tmp_path: Path, rows: int) -> None:
    """New memory is filled with a pattern here; elsewhere it has what was freed before, somebody's text maybe."""
    memory, pattern = ctypes.CDLL(None), b"\xaa" * 8
    unit, vectors = Unit("episode", 1, 1), np.array(list(units(3, rows, 8)), np.float32)
    memory.mallopt(M_PERTURB, 0xAA ^ 0xFF)
    try:
        folder = ChromaFolder.create(tmp_path / "chroma-1", 8)
        folder.put(Members(unit, np.arange(1, rows + 1), vectors, [0] * rows))
        folder.complete()
    finally:
        memory.mallopt(M_PERTURB, 0)
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    assert any(path.name == "data_level0.bin" for path in files)
    assert [path.name for path in files if pattern in path.read_bytes()] == []
    for opened in (folder, None):
        folder = opened or ChromaFolder.open(folder.path, 8)
        assert [folder.nearest("episode", [1], None, vectors[place], 1) for place in (0, rows - 1)] == [[1], [rows]]
        folder.close()


async def test_a_store_without_large_owners_opens_no_mirror(tmp_path: Path) -> None:
    small = Store(StorageConfig(type=StorageType.LOCAL, data_dir=str(tmp_path / "small")))
    await small.open()
    home = await small.storage.transact(lambda tx: add_owner(tx, 1))
    await small.storage.transact(lambda tx: add_turns(tx, home, 1, ["w"] * 20, list(units(1, 20, 8)), first_id=1))
    assert await small.storage.reconcile_index() == 0
    assert not folders(small)
    assert not mirror_of(small).is_open
    await small.close()
