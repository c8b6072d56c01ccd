"""Search: an owner's own rows are found, all of them, whatever others have; both backends find the same."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory_service.contract.items import FactStatus
from memory_service.contract.scopes import FactKind, Kind, Scope
from memory_service.domain.owners import Owner, PairErasure, SessionErasure
from memory_service.ports.records import FactChange, OwnerRow, Pool, SearchQuery, SessionRow
from memory_service.ports.storage import Transaction
from memory_service.storage.search import reading
from memory_service.storage.search.kept import KeptTurns
from memory_service.storage.transaction import RowTransaction
from tests.conformance.test_costs import recorded
from tests.fakes.corpora import (
    NOW,
    add_facts,
    add_owner,
    add_turns,
    link_of,
    multiply_facts,
    query,
    searches_of,
    units,
    words,
)
from tests.fakes.pools import term_counts
from tests.fakes.stores import (
    ALICE,
    OTHER_AGENT,
    Backends,
    Store,
    fact,
    pair_of,
    session_of,
    turn,
    vector,
)

COLUMNS = ("row_ids", "session_ids", "seqs", "roles", "said_at", "lengths", "cosines", "passes")


async def write(store: Store, owner: Owner, *texts: str) -> None:
    def work(tx: Transaction) -> None:
        session = tx.sessions.ensure(owner, Scope.PRIVATE, tx.now())
        tx.turns.append(session, [turn(text) for text in texts], tx.now())

    await store.storage.transact(work)


def home_of(tx: Transaction, owner: Owner) -> OwnerRow:
    return tx.owners.find([owner])[owner]


def session_row(tx: Transaction, owner: Owner) -> SessionRow:
    found = tx.sessions.find(owner)
    assert found is not None
    return found


async def episodes(store: Store, asked: SearchQuery, *, of: Owner | None = None, session: Owner | None = None) -> Pool:
    return await store.storage.read(
        lambda tx: tx.search.episodes(
            [home_of(tx, of or pair_of())], asked, session=None if session is None else session_row(tx, session)
        )
    )


async def facts(store: Store, asked: SearchQuery, owner: Owner | None = None) -> Pool:
    return await store.storage.read(lambda tx: tx.search.facts(home_of(tx, owner or pair_of()), asked))


def by_row(pool: Pool) -> dict[int, tuple[Any, ...]]:
    """Return a pool's rows by id, so that two pools compare whatever their order is."""
    columns = [np.nan_to_num(getattr(pool, name), nan=-1.0).tolist() for name in COLUMNS]
    columns.append(term_counts(pool).tolist())
    rows = zip(*columns, strict=True)
    return {row[0]: tuple(tuple(value) if isinstance(value, list) else value for value in row) for row in rows}


def statistics(pool: Pool) -> tuple[Any, ...]:
    return pool.population, pool.total_length, pool.document_counts.tolist(), pool.exact


def same(first: Pool, second: Pool) -> bool:
    return by_row(first) == by_row(second) and statistics(first) == statistics(second)


async def test_turns_are_found_by_words_from_the_write_on_and_by_meaning_when_their_vectors_come(store: Store) -> None:
    await write(store, session_of(), "green tea", "black coffee tea tea")
    asked = query(vector(1), "tea", "coffee", "none")
    pool = await episodes(store, asked)
    assert term_counts(pool).tolist() == [[1, 0, 0], [2, 1, 0]]
    assert pool.document_counts.tolist() == [2, 1, 0]
    assert np.isnan(pool.cosines).all()

    def index(tx: Transaction) -> None:
        session = session_row(tx, session_of())
        late = tx.turns.unindexed(session.id, limit=10)
        tx.turns.store_vectors(session.id, {late[0].id: vector(1), late[1].id: -vector(1)})

    await store.storage.transact(index)
    assert (await episodes(store, asked)).cosines.tolist() == [1.0, 0.0]
    assert np.isnan((await episodes(store, query(None, "tea"))).cosines).all()


async def test_all_own_facts_are_found_among_100_000_nearer_foreign_ones_thirty_times_in_a_row(store: Store) -> None:
    """Promise 5: your own facts are found however many others there are."""
    aim = units(1, 1, store.dimension)[0]
    near = units(2, 1_000, store.dimension, near=aim)
    far = units(3, 31, store.dimension)

    def fill(tx: Transaction) -> Sequence[OwnerRow]:
        mine, other = add_owner(tx, 101), add_owner(tx, 207)
        add_facts(tx, mine, ["own"] * 31, list(far), first_id=1)
        add_facts(tx, other, [""] * 1_000, list(near), first_id=1_000)
        multiply_facts(tx, other, have=1_000, want=100_000)
        return mine, other

    mine, _ = await store.storage.transact(fill)
    asked = query(aim, limit=31)

    def search(tx: Transaction) -> list[Pool]:
        # So few rows of one's own are cheaper to sort; the index is what must be right here.
        link_of(tx).row("[[SELECT set_config('enable_sort', 'off', true)|SELECT 1]]")
        return [tx.search.facts(mine, asked) for _ in range(30)]

    for limit in (20_000, 20):
        searches_of(store).limit_exact(limit)
        pools = await store.storage.read(search)
        assert [sorted(pool.row_ids.tolist()) for pool in pools] == [list(range(1, 32))] * 30
        assert {pool.population for pool in pools} == {31}
    assert await store.storage.read(lambda tx: _nearest_first(tx, search)) in (None, {"facts_vector"})
    stored = await store.storage.read(lambda tx: link_of(tx).row("SELECT COUNT(*) FROM @facts"))
    assert stored == (100_031,)


def _nearest_first(tx: Transaction, search: Callable[[Transaction], object]) -> set[str] | None:
    """Return the index that Postgres finds the nearest rows with, under the name that all partitions share."""
    link = link_of(tx)
    if not link.is_postgres:
        return None
    assert link.row("SELECT COUNT(DISTINCT tableoid) FROM @facts") == (1,), "the foreign rows are out of the way"
    with recorded(tx) as statements:
        search(tx)
    sql, parameters = next(found for found in statements if "<=>" in found[0])
    plan = "\n".join(line for (line,) in link.rows(f"EXPLAIN {sql}", parameters))
    return {re.sub(r"_\d+_", "_", name).removesuffix("_idx") for name in re.findall(r"Index Scan using (\S+)", plan)}


def corpus(tx: Transaction) -> tuple[OwnerRow, OwnerRow]:
    """Two home pairs with sessions of turns, and facts; some rows have no vector yet."""
    chooser = random.Random(7)
    homes = add_owner(tx, 11), add_owner(tx, 12)
    for session in range(1, 9):
        vectors: list[Any] = list(units(session, 60, 8))
        vectors[session] = None
        add_turns(tx, homes[session % 2], session, [words(chooser) for _ in vectors], vectors, first_id=session * 1_000)
    for home in homes:
        vectors = list(units(home.id, 90, 8))
        vectors[5] = None
        add_facts(tx, home, [words(chooser) for _ in vectors], vectors, first_id=home.id * 1_000)
    return homes


@pytest.mark.parametrize("exact_rows", [20_000, 50])
async def test_both_backends_give_the_same_pools(backends: Backends, tmp_path: Path, exact_rows: int) -> None:
    found: list[list[Pool]] = []
    for open_backend in (backends.local, backends.external):
        async with open_backend(tmp_path) as config:
            store = Store(config)
            await store.open()
            searches_of(store).limit_exact(exact_rows)
            homes = await store.storage.transact(corpus)
            asked = query(units(99, 1, 8)[0], "w0", "w3", "w40", "w250", limit=25)
            late = query(asked.vector, "w3", limit=25, since=datetime.fromtimestamp(1_700_400_000, UTC))

            def search(
                tx: Transaction, homes: Sequence[OwnerRow] = homes, asked: SearchQuery = asked, late: SearchQuery = late
            ) -> list[Pool]:
                session = tx.sessions.get(3)
                return [
                    tx.search.episodes(homes, asked, session=None),
                    tx.search.episodes(homes[:1], asked, session=None),
                    tx.search.episodes(homes, late, session=None),
                    tx.search.episodes(homes, asked, session=session),
                    tx.search.facts(homes[0], asked),
                    tx.search.facts(homes[1], query(None, "w3", limit=25)),
                ]

            found.append(await store.storage.read(search))
            await store.close()
    for local, external in zip(*found, strict=True):
        assert len(local.row_ids)
        assert by_row(local) == by_row(external)
        assert statistics(local) == statistics(external)


async def test_large_owners_are_found_as_if_they_were_read_whole_under_filters_too(store: Store) -> None:
    chooser = random.Random(5)

    def fill(tx: Transaction) -> OwnerRow:
        home, other = add_owner(tx, 21), add_owner(tx, 22)
        for session in range(1, 9):
            vectors = list(units(session, 250, store.dimension))
            owner = home if session <= 4 else other
            add_turns(tx, owner, session, [words(chooser) for _ in vectors], vectors, first_id=session * 1_000)
        return home

    home = await store.storage.transact(fill)
    since = datetime.fromtimestamp(1_700_000_000 + 4_000 * 60, UTC)
    filters: list[dict[str, Any]] = [{}, {"since": since}, {"since": since, "until": since + timedelta(minutes=40)}]
    vectors = units(77, 10, store.dimension)

    async def search(asked: SearchQuery) -> Pool:
        return await store.storage.read(lambda tx: tx.search.episodes([home], asked, session=None))

    whole = [[await search(query(wanted, "w1", "w9", "w77", **given)) for given in filters] for wanted in vectors]
    searches_of(store).limit_exact(50)
    await store.storage.reconcile_index()
    kept, asked_for = 0, 0
    for wanted, exact in zip(vectors, whole, strict=True):
        for given, all_rows in zip(filters, exact, strict=True):
            pool = await search(query(wanted, "w1", "w9", "w77", limit=20, **given))
            assert not pool.exact
            assert statistics(pool)[:3] == statistics(all_rows)[:3]
            rows = by_row(all_rows)
            assert all(rows[row_id] == row for row_id, row in by_row(pool).items())
            passing = np.flatnonzero(all_rows.passes)
            nearest = passing[np.argsort(-all_rows.cosines[passing], kind="stable")[:20]]
            best = set(all_rows.row_ids[nearest].tolist())
            kept += len(best & set(pool.row_ids.tolist()))
            asked_for += len(best)
            beside = {(int(s), int(q)) for s, q in zip(pool.session_ids, pool.seqs, strict=True)}
            chosen = pool.row_ids[np.isin(pool.row_ids, list(best))]
            for row_id in chosen.tolist():
                session, seq = rows[row_id][1], rows[row_id][2]
                assert {(session, n) for n in (seq - 1, seq + 1) if 1 <= n <= 250} <= beside
    assert kept / asked_for >= 0.97


async def test_statistics_are_the_owners_own_whatever_others_have_and_the_filters_say(store: Store) -> None:
    await write(store, session_of(), "tea one", "tea two", "milk")
    before = statistics(await episodes(store, query(None, "tea", "milk")))
    await write(store, session_of(agent=OTHER_AGENT), *["tea"] * 50)
    filtered = await episodes(store, query(None, "tea", "milk", since=NOW))
    assert statistics(filtered) == before == (3, 5.0, [2, 1], True)
    assert not filtered.passes.any()


async def test_an_episode_passes_only_filters_that_a_turn_can_meet(store: Store) -> None:
    await write(store, session_of(), "tea")
    said = datetime(2026, 1, 1, tzinfo=UTC)
    accepted: list[dict[str, Any]] = [{}, {"kinds": frozenset({Kind.EPISODE})}, {"since": said, "until": said}]
    refused: list[dict[str, Any]] = [
        {"kinds": frozenset({Kind.SEMANTIC})},
        {"tags": frozenset({"t"})},
        {"categories": frozenset({"c"})},
        {"min_importance": 0.0},
        {"since": said + timedelta(microseconds=1)},
        {"until": said - timedelta(microseconds=1)},
    ]
    for filters in accepted:
        assert (await episodes(store, query(None, "tea", **filters))).passes.tolist() == [True]
    for filters in refused:
        assert (await episodes(store, query(None, "tea", **filters))).passes.tolist() == [False]


@pytest.mark.parametrize("exact_rows", [20_000, 3])
async def test_facts_pass_the_filters_that_they_meet(store: Store, exact_rows: int) -> None:
    searches_of(store).limit_exact(exact_rows)

    def fill(tx: Transaction) -> None:
        day = datetime(2026, 1, 1, tzinfo=UTC)
        drafts = [
            fact("tea", pair_of(), kind=FactKind.PREFERENCE, category="food", tags=("x", "y"), importance=0.9),
            fact("tea", pair_of(), category="travel", tags=("y",), importance=0.1, said_at=day + timedelta(days=1)),
            fact("tea", pair_of(), tags=("z",), said_at=day + timedelta(days=2)),
            fact("milk", pair_of()),
            fact("tea", pair_of(), status=FactStatus.PENDING),
            fact("tea", pair_of(), expires_at=NOW),
        ]
        for number, draft in enumerate(drafts):
            tx.facts.add(draft, fact_id=f"00000000-0000-4000-8000-{number:012d}", actor="test", now=tx.now())

    await store.storage.transact(fill)
    second_day = datetime(2026, 1, 2, tzinfo=UTC)
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 3),
        ({"kinds": frozenset({Kind.PREFERENCE, Kind.EPISODE})}, 1),
        ({"kinds": frozenset({Kind.EPISODE})}, 0),
        ({"categories": frozenset({"food", "other"})}, 1),
        ({"tags": frozenset({"y"})}, 2),
        ({"tags": frozenset({"x", "z"})}, 2),
        ({"tags": frozenset({"unknown"})}, 0),
        ({"min_importance": 0.5}, 1),
        ({"since": second_day}, 2),
        ({"until": second_day}, 2),
        ({"since": second_day, "until": second_day}, 1),
    ]
    for filters, expected in cases:
        pool = await facts(store, query(None, "tea", **filters))
        assert int((pool.passes & (term_counts(pool)[:, 0] > 0)).sum()) == expected, filters
        assert statistics(pool)[:3] == (4, 4.0, [3])


@pytest.mark.parametrize("exact_rows", [20_000, 1])
async def test_facts_are_found_as_they_were_valid_at_the_asked_time(store: Store, exact_rows: int) -> None:
    searches_of(store).limit_exact(exact_rows)
    old, new = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
    start, change = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)

    def fill(tx: Transaction) -> None:
        tx.facts.add(fact("oslo home", pair_of()), fact_id=old, actor="test", now=start)
        tx.facts.add(fact("lisbon home", pair_of(), valid_from=change), fact_id=new, actor="test", now=change)
        tx.facts.supersede(old, successor_id=new, valid_to=change, actor="test", now=change)

    await store.storage.transact(fill)
    times = (None, change, change - timedelta(microseconds=1), start - timedelta(microseconds=1))
    pools = [await facts(store, query(None, "oslo", "lisbon", "home", as_of=time)) for time in times]
    assert [pool.document_counts.tolist() for pool in pools] == [[0, 1, 1], [0, 1, 1], [1, 0, 1], [0, 0, 0]]
    assert [pool.population for pool in pools] == [1, 1, 1, 0]


async def test_changed_facts_are_found_as_they_are_now(store: Store) -> None:
    name = "00000000-0000-4000-8000-000000000001"
    await store.storage.transact(
        lambda tx: tx.facts.add(fact("tea", pair_of(), vector=vector(1)), fact_id=name, actor="t", now=tx.now())
    )
    asked = query(vector(2), "tea", "coffee")
    assert term_counts(await facts(store, asked)).tolist() == [[1, 0]]
    change = FactChange({"text": "coffee", "importance": 0.5}, terms=("coffee",), vector=vector(2))
    await store.storage.transact(lambda tx: tx.facts.change(name, change, event="corrected", actor="t", now=tx.now()))
    pool = await facts(store, asked)
    assert term_counts(pool).tolist() == [[0, 1]]
    assert pool.cosines.tolist() == [1.0]
    assert pool.document_counts.tolist() == [0, 1]
    await store.storage.transact(lambda tx: tx.facts.delete(name))
    assert (await facts(store, asked)).row_ids.tolist() == []


@pytest.mark.parametrize("exact_rows", [20_000, 1])
async def test_similar_facts_are_the_owners_active_ones_nearest_first(store: Store, exact_rows: int) -> None:
    searches_of(store).limit_exact(exact_rows)

    def fill(tx: Transaction) -> None:
        for number in range(6):
            owner = pair_of() if number < 4 else pair_of(agent=OTHER_AGENT)
            status = FactStatus.PENDING if number == 3 else FactStatus.ACTIVE
            draft = fact(f"f{number}", owner, vector=vector(number), status=status)
            tx.facts.add(draft, fact_id=f"00000000-0000-4000-8000-{number:012d}", actor="t", now=tx.now())

    await store.storage.transact(fill)
    found = await store.storage.read(lambda tx: tx.facts.similar(pair_of(), vector(2), limit=2))
    assert found[0][0].text == "f2"
    assert found[0][1] == pytest.approx(1.0)
    assert len(found) == 2
    assert found[1][1] == pytest.approx(float(np.clip(max(vector(n) @ vector(2) for n in (0, 1)), 0, 1)), abs=2e-6)


async def test_owners_found_to_be_searched_are_not_asked_about_again(store: Store) -> None:
    """What a search finds is the same; one look tells of all owners whether what is kept of them still holds."""
    pair, stranger = pair_of(), pair_of(principal=ALICE)
    asked = query(None, "tea", "oslo")
    await write(store, session_of(), "green tea")
    await store.storage.transact(
        lambda tx: tx.facts.add(fact("oslo home", pair), fact_id="f1", actor="t", now=tx.now())
    )

    def search(tx: Transaction) -> tuple[list[int], list[str]]:
        assert isinstance(tx, RowTransaction)
        rows = tx.owners.find_searched([pair, stranger])
        assert rows == tx.owners.find([pair, stranger])
        assert set(rows) == {pair}
        with recorded(tx) as statements:
            pools = [tx.search.facts(rows[pair], asked), tx.search.episodes([rows[pair]], asked, session=None)]
        return [len(pool.row_ids) for pool in pools], [sql for sql, _ in statements]

    await store.wait_for_running_transactions()
    await store.storage.read(search)
    assert await store.storage.read(search) == ([1, 1], [])
    await write(store, session_of("s2"), "black tea")
    await store.storage.transact(lambda tx: tx.facts.add(fact("oslo job", pair), fact_id="f2", actor="t", now=tx.now()))
    found, statements = await store.storage.read(search)
    assert found == [2, 2]
    assert statements


async def test_a_transaction_that_writes_finds_what_it_has_just_written(store: Store) -> None:
    pair = pair_of()
    asked = query(None, "oslo")

    def work(tx: Transaction) -> list[int]:
        tx.owners.ensure(pair)
        found = []
        for number in range(3):
            row = tx.owners.find_searched([pair])[pair]
            found.append(len(tx.search.facts(row, asked).row_ids))
            tx.facts.add(fact("oslo", pair), fact_id=f"f{number}", actor="t", now=tx.now())
        return found

    assert await store.storage.transact(work) == [0, 1, 2]


async def test_a_session_of_another_pair_gives_nothing(store: Store) -> None:
    await write(store, session_of(), "mine")
    await write(store, session_of(principal=ALICE), "hers")
    await write(store, session_of("s2"), "other session")
    asked = query(None, "mine", "hers")
    assert len((await episodes(store, asked, session=session_of())).row_ids) == 1
    assert len((await episodes(store, asked)).row_ids) == 2
    assert not len((await episodes(store, asked, session=session_of(principal=ALICE))).row_ids)
    empty = await store.storage.read(lambda tx: tx.search.episodes([], asked, session=None))
    assert (len(empty.row_ids), empty.population, term_counts(empty).shape) == (0, 0, (0, 2))


async def test_erased_rows_vanish_at_once(store: Store) -> None:
    await write(store, session_of(), "tea one", "tea two")
    await write(store, session_of("s2"), "tea three")
    await store.storage.transact(
        lambda tx: tx.facts.add(
            fact("tea", pair_of()), fact_id="00000000-0000-4000-8000-000000000001", actor="t", now=NOW
        )
    )
    asked = query(None, "tea")
    assert (await episodes(store, asked)).population == 3
    assert (await facts(store, asked)).population == 1
    homes = await store.storage.read(lambda tx: home_of(tx, pair_of()))
    session = SessionErasure(session_of().agent, "", "s1")
    await store.storage.transact(lambda tx: tx.erasing.erase(session, receipt_id="r1", asked_by=None, now=tx.now()))
    left = await store.storage.read(lambda tx: tx.search.episodes([homes], asked, session=None))
    assert statistics(left) == (1, 2.0, [1], True)
    assert (await store.storage.read(lambda tx: tx.search.facts(homes, asked))).population == 0
    pair = PairErasure(session_of().agent, "")
    await store.storage.transact(lambda tx: tx.erasing.erase(pair, receipt_id="r2", asked_by=None, now=tx.now()))
    gone = await store.storage.read(lambda tx: tx.search.episodes([homes], asked, session=None))
    assert statistics(gone) == (0, 0.0, [0], True)
    assert searches_of(store).cache.nbytes < 10_000


async def test_what_is_rolled_back_is_never_found(store: Store) -> None:
    await write(store, session_of(), "tea")
    asked = query(None, "tea", "milk")
    assert (await episodes(store, asked)).population == 1

    class Undone(Exception):
        pass

    def work(tx: Transaction) -> None:
        session = tx.sessions.ensure(session_of(), Scope.PRIVATE, tx.now())
        tx.turns.append(session, [turn("milk")], tx.now())
        inside = tx.search.episodes([home_of(tx, pair_of())], asked, session=None)
        assert inside.document_counts.tolist() == [1, 1]
        raise Undone

    with pytest.raises(Undone):
        await store.storage.transact(work)
    assert (await episodes(store, asked)).document_counts.tolist() == [1, 0]
    await write(store, session_of(), "coffee")
    assert (await episodes(store, asked)).document_counts.tolist() == [1, 0]


@pytest.mark.parametrize("seed", range(4))
async def test_kept_rows_equal_rows_read_anew_after_any_changes(store: Store, seed: int) -> None:
    chooser = random.Random(seed)
    sessions = [session_of(f"s{number}") for number in range(3)]
    names = [f"00000000-0000-4000-8000-{number:012d}" for number in range(8)]
    await write(store, sessions[0], "w1")
    await store.storage.transact(lambda tx: tx.owners.ensure(pair_of()))

    def late(tx: Transaction, owner: Owner) -> None:
        session = tx.sessions.find(owner)
        if session is not None:
            turns = tx.turns.unindexed(session.id, limit=50)
            some = [row.id for row in turns if chooser.random() < 0.5]
            tx.turns.store_vectors(session.id, {row_id: vector(row_id) for row_id in some})

    def change_fact(tx: Transaction, name: str) -> None:
        if tx.facts.get(name) is None:
            text = words(chooser, 4, 20)
            given = vector(chooser.randrange(99)) if chooser.random() < 0.5 else None
            tx.facts.add(fact(text, pair_of(), vector=given), fact_id=name, actor="t", now=tx.now())
        elif chooser.random() < 0.4:
            tx.facts.delete(name)
        else:
            text = words(chooser, 4, 20)
            change = FactChange({"text": text, "category": text[:2]}, terms=tuple(text.split()))
            tx.facts.change(name, change, event="corrected", actor="t", now=tx.now())

    asked = query(vector(7), "w0", "w1", "w5", categories=None)
    for step in range(40):
        match chooser.randrange(8):
            case 0 | 1 | 2:
                await write(store, chooser.choice(sessions), *[words(chooser, 5, 20) for _ in range(3)])
            case 3 | 4:
                owner = chooser.choice(sessions)
                await store.storage.transact(lambda tx, owner=owner: late(tx, owner))
            case 5 | 6:
                name = chooser.choice(names)
                await store.storage.transact(lambda tx, name=name: change_fact(tx, name))
            case _:
                erasure = SessionErasure(sessions[0].agent, "", chooser.choice(sessions[1:]).session)
                await store.storage.transact(
                    lambda tx, erasure=erasure, step=step: tx.erasing.erase(
                        erasure, receipt_id=f"r{step}", asked_by=None, now=tx.now()
                    )
                )
        kept = [await episodes(store, asked), await facts(store, asked)]
        searches_of(store).clear()
        anew = [await episodes(store, asked), await facts(store, asked)]
        assert all(same(first, second) for first, second in zip(kept, anew, strict=True)), step
        if chooser.random() < 0.7:
            # What is kept grows from here; otherwise it starts from what was just read.
            continue
        searches_of(store).clear()


async def test_turns_past_their_retention_are_no_longer_found(store: Store) -> None:
    await write(store, session_of(), "tea", "milk")
    asked = query(None, "tea", "milk")
    assert (await episodes(store, asked)).population == 2

    earlier = timedelta(seconds=1)
    assert await store.storage.transact(lambda tx: tx.turns.expire(before=tx.now() + earlier, limit=1)) == 1
    assert statistics(await episodes(store, asked)) == (1, 1.0, [0, 1], True)


async def test_a_search_after_a_write_reads_of_the_session_that_changed_alone(store: Store) -> None:
    asked = query(None, "tea")

    def rows_read(tx: Transaction) -> int:
        home = home_of(tx, pair_of())
        with recorded(tx) as statements:
            tx.search.episodes([home], asked, session=None)
        return sum(len(link_of(tx).rows(sql, parameters)) for sql, parameters in statements)

    async def after_a_write() -> int:
        await write(store, session_of("s0"), "tea")
        await store.wait_for_running_transactions()
        return await store.storage.read(rows_read)

    await write(store, session_of("s0"), "tea")
    await episodes(store, asked)
    await after_a_write()
    beside_none = await after_a_write()
    for number in range(1, 61):
        await write(store, session_of(f"s{number}"), "milk")
    await store.wait_for_running_transactions()
    await episodes(store, asked)
    assert await after_a_write() == beside_none


async def test_turns_past_their_retention_leave_the_memory_of_the_search(store: Store) -> None:
    await write(store, session_of(), *["tea"] * 9)
    await write(store, session_of("other"), "milk", "coffee")
    home = await store.storage.read(lambda tx: home_of(tx, pair_of()).id)
    elsewhere = KeptTurns(home)  # of a replica that has deleted nothing itself

    def look(tx: Transaction) -> tuple[int, int]:
        elsewhere.bring_up(link_of(tx), reading.states(link_of(tx), [home])[home].home)
        return len(elsewhere.index), elsewhere.index.dead

    assert (await episodes(store, query())).population == 11
    assert await store.storage.read(look) == (11, 0)
    later = timedelta(seconds=1)
    for limit, slots in ((5, (11, 5)), (1, (5, 0)), (4, (1, 0))):
        await store.storage.transact(lambda tx, limit=limit: tx.turns.expire(before=tx.now() + later, limit=limit))
        assert searches_of(store).cache.nbytes == 0
        assert await store.storage.read(look) == slots
    assert (await episodes(store, query())).population == 1


async def test_turns_that_an_import_puts_into_a_searched_session_are_found(store: Store) -> None:
    await write(store, session_of(), *(f"zeppelin {number}" for number in range(6)))
    lines, _ = await store.storage.read(lambda tx: tx.moving.export(cursor=None, limit=100))
    turns = [line for line in lines if line["type"] == "turn"]
    asked = query(None, "zeppelin")
    whole = statistics(await episodes(store, asked))
    await store.storage.transact(lambda tx: link_of(tx).run("DELETE FROM @turns"))
    searches_of(store).clear()
    assert (await episodes(store, asked)).population == 0
    for some in (turns[2:4], turns[:2], turns[4:]):
        await store.storage.transact(lambda tx, some=some: tx.moving.restore(some, tx.now()))
        found = await episodes(store, asked)
        searches_of(store).clear()
        assert same(found, await episodes(store, asked))
    # An import makes the stems anew, with those of the date; what the test has written has none of these.
    population, _, counts, exact = statistics(await episodes(store, asked))
    assert (population, counts, exact) == (whole[0], whole[2], whole[3])


async def test_turns_that_an_erasure_of_another_store_takes_are_found_no_more_and_later_ones_are(store: Store) -> None:
    await write(store, session_of(), "zeppelin one")
    lines, _ = await store.storage.read(lambda tx: tx.moving.export(cursor=None, limit=100))
    (at,) = [line["created_at"] for line in lines if line["type"] == "turn"]
    (subject,) = [line for line in lines if line["type"] == "subject" and line["session"]]
    store.clock.advance(timedelta(minutes=1))
    await write(store, session_of(), "zeppelin two")
    asked = query(None, "zeppelin")
    assert (await episodes(store, asked)).population == 2
    elsewhere = {**subject, "hashes": ["0" * 64]}
    told = {"type": "erased", "hashes": elsewhere["hashes"], "created_at": at}
    restored = await store.storage.transact(lambda tx: tx.moving.restore([elsewhere, told], tx.now()))
    assert list(restored.outcomes) == ["imported", "erased"]
    found = await episodes(store, asked)
    assert found.population == 1
    searches_of(store).clear()
    assert same(found, await episodes(store, asked))


async def test_an_expiry_that_finds_nothing_leaves_what_is_kept_of_every_owner(store: Store) -> None:
    await write(store, session_of(), "tea")
    await episodes(store, query(None, "tea"))
    kept = searches_of(store).cache.nbytes
    assert kept > 0
    await store.storage.transact(lambda tx: tx.facts.expire(now=tx.now(), facts_before=None, limit=5))
    assert searches_of(store).cache.nbytes == kept


@pytest.mark.parametrize("exact_rows", [20_000, 2])
async def test_what_had_expired_at_the_asked_time_is_not_found(store: Store, exact_rows: int) -> None:
    searches_of(store).limit_exact(exact_rows)
    ends = store.clock.now() + timedelta(minutes=1)

    def save(tx: Transaction) -> None:
        for name in ("a", "b", "c"):
            draft = fact(f"code {name}", pair_of(), expires_at=ends, pinned=True)
            tx.facts.add(draft, fact_id=name, actor="t", now=tx.now())

    await store.storage.transact(save)
    for moment, count in ((ends - timedelta(seconds=1), 3), (ends, 0), (ends + timedelta(days=1), 0)):
        assert (await facts(store, query(None, "code", as_of=moment))).population == count
