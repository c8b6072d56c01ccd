"""On Postgres a search finds what its own snapshot holds, in whatever order the transactions around it end."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from memory_service.contract.scopes import Scope
from memory_service.domain.owners import SessionErasure
from memory_service.storage.commits import LIMITS
from memory_service.storage.search import SearchIndex
from memory_service.storage.states import CHANGE
from memory_service.storage.transaction import RowTransaction
from tests.conformance.test_search import by_row, home_of, statistics, write
from tests.fakes.corpora import query, searches_of
from tests.fakes.stores import AGENT, Backends, Store, pair_of, session_of, turn, vector

_ASKED = query(vector(7), "w0", "w1", "w2")
_open: list[Open] = []


@pytest.fixture
async def external(backends: Backends, tmp_path: Path) -> AsyncIterator[Store]:
    """An open external store."""
    async with backends.external(tmp_path) as config:
        store = Store(config)
        await store.open()
        yield store
        for one in list(_open):
            one.end()
        await store.close()


class Open:
    """A transaction that stays open for as long as a test wants."""

    def __init__(self, store: Store, *, writes: bool) -> None:
        """Begin it; one that only reads has its snapshot from here on."""
        self._storage = cast("Any", store.storage)
        self._connection = self._storage._take()
        self.link = self._storage._link(self._connection)
        level = "READ COMMITTED" if writes else "REPEATABLE READ READ ONLY"
        self.link.begin(f"BEGIN ISOLATION LEVEL {level}; {LIMITS}")
        self._store = store
        self.tx = RowTransaction(self.link, searches_of(store), writes=writes)
        _open.append(self)

    def end(self, *, commits: bool = False) -> None:
        """Commit it, or roll it back."""
        _open.remove(self)
        if commits:
            self._connection.execute("COMMIT")
        self._storage._end(self._connection)

    def finds(self) -> tuple[Any, ...]:
        """Return what a search finds through what is kept."""
        pool = self.tx.search.episodes([home_of(self.tx, pair_of())], _ASKED, session=None)
        return by_row(pool), statistics(pool)

    def holds(self) -> tuple[Any, ...]:
        """Return what a search finds that reads everything anew."""
        search = SearchIndex().over(self.link, committed=True)
        pool = search.episodes([home_of(self.tx, pair_of())], _ASKED, session=None)
        return by_row(pool), statistics(pool)


def _append(writer: Open, session: str, *texts: str) -> None:
    row = writer.tx.sessions.ensure(session_of(session), Scope.PRIVATE, writer.tx.now())
    writer.tx.turns.append(row, [turn(text) for text in texts], writer.tx.now())


def _look(store: Store) -> tuple[Any, ...]:
    reader = Open(store, writes=False)
    found, held = reader.finds(), reader.holds()
    reader.end()
    assert found == held
    return found


async def test_a_turn_whose_transaction_began_first_and_ended_last_is_found(external: Store) -> None:
    await write(external, session_of("a"), "w0")
    first, second = Open(external, writes=True), Open(external, writes=True)
    _append(first, "a", "w1")
    _append(second, "b", "w2")
    second.end(commits=True)
    assert _look(external)[1][2] == [1, 0, 1]
    before = Open(external, writes=False)
    first.end(commits=True)
    assert _look(external)[1][2] == [1, 1, 1]
    assert before.finds()[1][2] == [1, 0, 1]
    before.end()
    assert _look(external)[1][2] == [1, 1, 1]


async def test_numbers_that_a_dump_brought_from_another_database_hide_nothing(external: Store) -> None:
    await write(external, session_of("a"), "w0")
    await write(external, session_of("b"), "w0")
    with psycopg.connect(external.config.dsn, autocommit=True) as connection:
        connection.execute(f'UPDATE "{external.config.schema_name}".sessions SET changed = 1000000000000')
    assert _look(external)[1][2] == [2, 0, 0]
    await write(external, session_of("a"), "w1")
    assert _look(external)[1][2] == [2, 1, 0]
    await write(external, session_of("b"), "w2")
    assert _look(external)[1][2] == [2, 1, 1]


@pytest.mark.parametrize("seed", range(6))
async def test_every_snapshot_finds_what_it_holds_whatever_runs_beside_it(external: Store, seed: int) -> None:
    chooser = random.Random(seed)
    names = [f"s{number}" for number in range(5)]
    for name in names:
        await write(external, session_of(name), *(f"w{chooser.randrange(3)} {name}" for _ in range(4)))
    writers: dict[str, Open] = {}
    readers: list[Open] = []

    def change(name: str) -> None:
        writer = Open(external, writes=True)
        session = writer.tx.sessions.find(session_of(name))
        kind = chooser.randrange(4) if session is not None else 0
        if kind == 1:
            late = writer.tx.turns.unindexed(session.id, limit=2)
            writer.tx.turns.store_vectors(session.id, {row.id: vector(row.id) for row in late})
        elif kind == 2:
            writer.link.run(
                f"UPDATE @sessions SET index_revision = index_revision + 1, {CHANGE} WHERE id = {session.id}"
            )
            writer.link.run(
                f"DELETE FROM @turns WHERE owner_id = {session.home_id} AND session_id = {session.id}"
                f" AND seq <= {session.last_seq - chooser.randrange(3)}"
            )
        elif kind == 3:
            erasure = SessionErasure(AGENT, "", name)
            writer.tx.erasing.erase(erasure, receipt_id=str(chooser.random()), asked_by=None, now=writer.tx.now())
            return writer.end(commits=chooser.random() < 0.7)
        else:
            _append(writer, name, *(f"w{chooser.randrange(3)} {name}" for _ in range(chooser.randrange(1, 4))))
        writers[name] = writer
        return None

    for _ in range(80):
        free = [name for name in names if name not in writers]
        match chooser.randrange(6):
            case 0 | 1 if free and len(writers) < 3:
                change(chooser.choice(free))
            case 2 | 3 if writers:
                writers.pop(chooser.choice(sorted(writers))).end(commits=chooser.random() < 0.8)
            case 4 if len(readers) < 3:
                readers.append(Open(external, writes=False))
            case 5 if readers:
                reader = readers[chooser.randrange(len(readers))]
                assert reader.finds() == reader.holds()
                if chooser.random() < 0.5:
                    readers.remove(reader)
                    reader.end()
            case _:
                _look(external)
    for one in list(_open):
        one.end()
    _look(external)
