"""The local vector index under faults: what it holds, the steps at which it writes, and a store that is killed at each.

    python -m tests.faults.mirrors FOLDER

lives through an index being made, brought up to the rows and made anew by a purge; then again as often as that has
steps, killed at one more each time. Each killed store is opened again and its index compared with its rows.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memory_service.contract.config import StorageConfig, StorageType
from memory_service.contract.scopes import Scope
from memory_service.domain.owners import Owner
from memory_service.ports.records import OwnerRow
from memory_service.ports.storage import Transaction
from memory_service.storage import chroma
from memory_service.storage.local import DATABASE
from tests.fakes.corpora import add_facts, add_owner, add_turns, link_of, searches_of, units
from tests.fakes.stores import AGENT, DIMENSION, Store

HOME = OwnerRow(31, Owner(Scope.PRIVATE, AGENT), 0, None)
EXACT_ROWS = 20
ROWS = 30

Row = tuple[str, int]
"""A tier and the id of a row in it."""
Rows = dict[Row, tuple[int, int, NDArray[np.float32]]]
"""Rows with their owner, session and vector."""


def folders(data: Path) -> list[Path]:
    """Return the folders of an index."""
    return sorted(data.glob("chroma-*"))


def stored(data: Path) -> Rows:
    """Return all rows of a data folder that have a vector."""
    with closing(sqlite3.connect(data / DATABASE)) as connection:
        found = list(connection.execute("SELECT 'fact', row_id, owner_id, 0, vector FROM facts"))
        found += list(connection.execute("SELECT 'episode', id, owner_id, session_id, vector FROM turns"))
    return {
        (tier, row_id): (owner, session, np.frombuffer(vector, np.float32))
        for tier, row_id, owner, session, vector in found
        if vector is not None
    }


def mirrored(folder: Path) -> Rows:
    """Return what Chroma has in a folder that nobody has open, nearly all of it found by its own vector."""
    rows: Rows = {}
    client = chroma._client(folder)
    for tier in chroma.TIERS:
        collection = client.get_collection(f"memory-{tier}", embedding_function=None)
        found: Any = collection.get(include=["embeddings", "metadatas"])
        assert len(found["ids"]) == len(set(found["ids"])) == collection.count()
        if not found["ids"]:
            continue
        nearest: Any = collection.query(query_embeddings=found["embeddings"], n_results=1, include=["distances"])
        found_by_itself = sum(distances[0] < 1e-3 for distances in nearest["distances"])
        assert found_by_itself >= 0.98 * len(found["ids"]), "vectors are not found by themselves"
        for row_id, vector, about in zip(found["ids"], found["embeddings"], found["metadatas"], strict=True):
            rows[tier, int(row_id)] = about["owner"], about["session"], np.asarray(vector, np.float32)
    client.close()
    return rows


def assert_mirrors(data: Path, *, where: str) -> None:
    """Assert that the only index of a closed data folder has its rows: no less, no more, and as they are."""
    (folder,) = folders(data)
    rows, index = stored(data), mirrored(folder)
    assert rows, "there is nothing to compare"
    missing, ghosts = sorted(rows.keys() - index.keys()), sorted(index.keys() - rows.keys())
    assert (missing, ghosts) == ([], []), f"missing from the index, and in it alone, after {where}"
    other = [row for row, (owner, session, _) in rows.items() if index[row][:2] != (owner, session)]
    other += [row for row, (*_, vector) in rows.items() if not np.allclose(index[row][2], vector, atol=1e-5)]
    assert other == [], f"in the index with another owner or vector after {where}"


def watch(note: Callable[[str], None]) -> None:
    """Have it noted in this process where an index writes: before and after Chroma, and after its ledger."""
    client = chroma._client

    class Ledger(sqlite3.Connection):
        def __exit__(self, *error: Any) -> Any:
            super().__exit__(*error)
            note("ledger-written")
            return False

    def watched(verb: Callable[..., None]) -> Callable[..., None]:
        def write(**given: Any) -> None:
            note("index-writes")
            verb(**given)
            note("index-written")

        return write

    def watched_client(path: Path) -> Any:
        made: Any = client(path)
        get = made.get_or_create_collection

        def get_watched(*given: Any, **named: Any) -> Any:
            collection = get(*given, **named)
            collection.upsert, collection.delete = watched(collection.upsert), watched(collection.delete)
            return collection

        made.get_or_create_collection = get_watched
        return made

    def connect(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(path, check_same_thread=False, factory=Ledger)

    chroma._client, chroma._connect = watched_client, connect


def _opened(data: Path) -> Store:
    return Store(StorageConfig(type=StorageType.LOCAL, data_dir=str(data)))


async def _fill(data: Path) -> None:
    def fill(tx: Transaction) -> None:
        add_owner(tx, HOME.id)
        for session in (1, 2):
            add_turns(tx, HOME, session, ["w"] * ROWS, list(units(session, ROWS, DIMENSION)), first_id=session * 1_000)
        add_facts(tx, HOME, ["f"] * ROWS, list(units(9, ROWS, DIMENSION)), first_id=5_000)

    store = _opened(data)
    await store.open()
    await store.storage.transact(fill)
    await store.close()


async def _live(data: Path) -> None:
    def change(tx: Transaction) -> None:
        link = link_of(tx)
        add_turns(tx, HOME, 3, ["late"] * 4, list(units(72, 4, DIMENSION)), first_id=3_000)
        link.run("DELETE FROM @turns WHERE session_id = 2")
        link.run("DELETE FROM @sessions WHERE id = 2")
        link.run("DELETE FROM @facts WHERE row_id >= 5025")
        new = link.vector_in(units(81, 1, DIMENSION)[0])
        link.run("UPDATE @facts SET vector = :new WHERE row_id = 5003", {"new": new})
        link.run("UPDATE @owners SET revision = revision + 1 WHERE id = :id", {"id": HOME.id})

    store = _opened(data)
    await store.open()
    searches_of(store).limit_exact(EXACT_ROWS)
    await store.storage.reconcile_index()
    await store.storage.transact(change)
    await store.storage.reconcile_index()
    assert (await store.storage.purge()).done
    await store.close()


async def _open_again(data: Path) -> None:
    store = _opened(data)
    await store.open()
    searches_of(store).limit_exact(EXACT_ROWS)
    await store.storage.reconcile_index()
    await store.close()
    assert_mirrors(data, where="a kill")


def _forked(work: Callable[[], None]) -> int:
    """Do something in a process of its own, since Chroma's threads outlive no fork; return how it ended."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        work()
    except BaseException:  # noqa: BLE001 - this process ends here, with what its parent has to know
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        os._exit(1)
    os._exit(0)


def _live_until(data: Path, last: int, note: Path) -> None:
    passed = 0

    def reach(name: str) -> None:
        nonlocal passed
        passed += 1
        note.write_text(f"{passed} {name}")
        if passed == last:
            os.kill(os.getpid(), signal.SIGKILL)

    watch(reach)
    asyncio.run(_live(data))


def main() -> int:
    """Kill a store at each step of its index's life; print the steps."""
    import chromadb  # noqa: F401 - once, for every process that is forked off

    base = Path(sys.argv[1])
    filled, data, note = base / "filled", base / "data", base / "note"
    assert _forked(lambda: asyncio.run(_fill(filled))) == 0
    shutil.copytree(filled, data)
    assert _forked(lambda: _live_until(data, 0, note)) == 0
    assert _forked(lambda: assert_mirrors(data, where="a life without a kill")) == 0
    for last in range(1, int(note.read_text().split()[0]) + 1):
        shutil.rmtree(data)
        shutil.copytree(filled, data)
        assert _forked(lambda last=last: _live_until(data, last, note)) == signal.SIGKILL  # type: ignore[misc]
        print(note.read_text(), flush=True)  # noqa: T201 - the answer
        if _forked(lambda: asyncio.run(_open_again(data))):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
