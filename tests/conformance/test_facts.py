"""Facts: their fields, sources, history and vectors, always under one owner."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from functools import partial

import numpy as np
import pytest

from memory_service.contract.items import FactStatus
from memory_service.contract.limits import MAX_HISTORY_CHARS, MAX_HISTORY_LINES, MAX_SOURCE_SEQS
from memory_service.contract.scopes import FactKind, Kind, Scope
from memory_service.domain.owners import Owner
from memory_service.errors import Conflict
from memory_service.ports.records import FactChange, FactDraft, FactRow, FactSource, ItemFilters, Vector
from memory_service.ports.storage import Transaction
from tests.fakes.stores import AGENT, ALICE, BOB, OTHER_AGENT, Store, fact, pair_of, vector

MINE = pair_of(principal=ALICE)
THEN = datetime(2026, 1, 1, tzinfo=UTC)


async def add(store: Store, draft: FactDraft) -> FactRow:
    fact_id = str(uuid.uuid4())
    return await store.storage.transact(lambda tx: tx.facts.add(draft, fact_id=fact_id, actor="tester", now=tx.now()))


async def change(store: Store, fact_id: str, what: FactChange, *, revision: int | None = None) -> FactRow:
    return await store.storage.transact(
        lambda tx: tx.facts.change(
            fact_id, what, event="corrected", actor="editor", now=tx.now(), expected_revision=revision
        )
    )


async def listed(
    store: Store, *owners: Owner, after: int | None = None, limit: int = 100, **filters: object
) -> list[str]:
    def read(tx: Transaction) -> list[str]:
        rows = list(tx.owners.find(owners).values())
        chosen = ItemFilters(now=store.clock.now(), **filters)  # type: ignore[arg-type]
        return [row.text for row in tx.facts.list(rows, filters=chosen, limit=limit, after=after)]

    return await store.storage.read(read)


async def test_a_fact_comes_back_with_every_field(store: Store) -> None:
    draft = fact(
        "likes green tea",
        MINE,
        kind=FactKind.PREFERENCE,
        key="tea",
        dedupe_key="d",
        category="drink",
        tags=("hot", "ü"),
        evidence="said so",
        importance=0.25,
        pinned=True,
        status=FactStatus.PENDING,
        expires_at=THEN + timedelta(days=400),
        attributes={"n": [1, {"ü": None}]},
        vector=vector(1),
        source=FactSource(AGENT, ALICE, "s1", "", (3, 4)),
    )
    row = await add(store, draft)
    for name in (
        "owner", "kind", "text", "said_at", "valid_from", "key", "dedupe_key", "category", "tags", "evidence",
        "importance", "pinned", "status", "expires_at", "attributes",
    ):  # fmt: skip
        assert getattr(row, name) == getattr(draft, name), name
    assert row.sources == (draft.source,)
    assert (row.revision, row.valid_to, row.superseded_by, row.has_vector) == (1, None, None, True)
    assert await store.storage.read(lambda tx: tx.facts.get(row.id)) == row
    owner = await store.storage.read(lambda tx: tx.owners.find([row.owner])[row.owner])
    for owners, known in (([owner.id, 999], {row.row_id: row}), ([999], {}), ([], {})):
        read = partial(lambda tx, owners: tx.facts.by_row_ids(owners, [row.row_id, 999]), owners=owners)
        assert await store.storage.read(read) == known
        ids = await store.storage.read(
            partial(lambda tx, owners: tx.facts.ids(owners, [row.row_id, 999]), owners=owners)
        )
        assert ids == {row_id: fact.id for row_id, fact in known.items()}
    assert await store.storage.read(lambda tx: tx.facts.get("unknown")) is None


async def test_a_fact_is_found_by_its_labels_under_its_owner_only(store: Store) -> None:
    row = await add(store, fact("x", MINE, key="k", dedupe_key="d"))
    assert await store.storage.read(lambda tx: tx.facts.by_key(MINE, "k")) == row
    assert await store.storage.read(lambda tx: tx.facts.by_dedupe_key(MINE, "d")) == row
    for owner in (pair_of(principal=BOB), pair_of(), Owner(Scope.SHARED), pair_of(principal=ALICE, workspace="w")):
        assert await store.storage.read(lambda tx, owner=owner: tx.facts.by_key(owner, "k")) is None
        assert await store.storage.read(lambda tx, owner=owner: tx.facts.by_dedupe_key(owner, "d")) is None
        assert await store.storage.read(lambda tx, owner=owner: tx.facts.by_text(owner, "x")) == []
    assert await store.storage.read(lambda tx: tx.facts.by_key(MINE, "%")) is None


async def test_a_key_is_held_by_one_active_fact_of_an_owner(store: Store) -> None:
    first = await add(store, fact("old", MINE, key="k"))
    with pytest.raises(Conflict):
        await add(store, fact("new", MINE, key="k"))
    await add(store, fact("other owner", pair_of(principal=BOB), key="k"))

    def replace(tx: Transaction) -> None:
        tx.facts.supersede(first.id, successor_id="next", valid_to=THEN, actor="t", now=tx.now())
        tx.facts.add(fact("new", MINE, key="k"), fact_id="next", actor="t", now=tx.now())

    await store.storage.transact(replace)
    current = await store.storage.read(lambda tx: tx.facts.by_key(MINE, "k"))
    assert current is not None
    assert current.text == "new"
    other = await add(store, fact("third", MINE))
    with pytest.raises(Conflict):
        await change(store, other.id, FactChange({"key": "k"}))


async def test_the_same_key_saved_at_once_leaves_one_fact(store: Store) -> None:
    results = await asyncio.gather(
        *(add(store, fact(f"t{n}", MINE, key="k")) for n in range(8)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["Conflict"] * 7 + ["FactRow"]


async def test_one_writer_at_a_time_merges_under_the_owners_lock(store: Store) -> None:
    def say(tx: Transaction, number: int) -> bool:
        tx.owners.lock(MINE)
        if tx.facts.by_text(MINE, "I like tea"):
            return False
        tx.facts.add(fact("I like  TEA.", MINE), fact_id=f"id-{number}", actor="t", now=tx.now())
        return True

    said = await asyncio.gather(*(store.storage.transact(lambda tx, n=n: say(tx, n)) for n in range(8)))
    assert said.count(True) == 1


async def test_a_text_is_known_again_superseded_or_not_newest_first(store: Store) -> None:
    old = await add(store, fact("Lives in Oslo.", MINE))
    await store.storage.transact(
        lambda tx: tx.facts.supersede(old.id, successor_id="n", valid_to=THEN, actor="t", now=tx.now())
    )
    new = await add(store, fact("lives  in oslo", MINE))
    found = await store.storage.read(lambda tx: tx.facts.by_text(MINE, "LIVES IN OSLO"))
    assert [row.id for row in found] == [new.id, old.id]
    assert await store.storage.read(lambda tx: tx.facts.by_text(MINE, "lives in Oslo with cats")) == []


async def test_a_change_moves_the_revision_and_keeps_what_it_does_not_name(store: Store) -> None:
    row = await add(store, fact("old text", MINE, category="c", tags=("t",), vector=vector(1)))
    changed = await change(
        store, row.id, FactChange({"text": "new text", "importance": 1.0, "tags": ("a", "b")}, terms=("new", "text"))
    )
    assert (changed.text, changed.category, changed.tags, changed.importance) == ("new text", "c", ("a", "b"), 1.0)
    assert (changed.revision, changed.has_vector) == (2, False)
    assert changed.updated_at >= row.updated_at
    history = await store.storage.read(lambda tx: tx.facts.history(row.id))
    assert [(line.event, line.text, line.actor) for line in history] == [
        ("added", "old text", "tester"),
        ("corrected", "new text", "editor"),
    ]


async def test_a_history_repeats_no_text_that_did_not_change_and_keeps_the_newest_lines(store: Store) -> None:
    row = await add(store, fact("x" * 16_000, MINE))
    for number in range(MAX_HISTORY_LINES + 3):
        await change(store, row.id, FactChange({"pinned": bool(number % 2)}))
    history = await store.storage.read(lambda tx: tx.facts.history(row.id))
    assert (len(history), {line.text for line in history}) == (MAX_HISTORY_LINES, {None})
    for number in range(70):
        text = f"{number} " + "y" * 15_990
        await change(store, row.id, FactChange({"text": text}, terms=("y",)))
    history = await store.storage.read(lambda tx: tx.facts.history(row.id))
    assert sum(len(line.text or "") for line in history) <= MAX_HISTORY_CHARS
    assert (history[-1].text or "").startswith("69 ")
    assert len(history) == 62


@pytest.mark.parametrize(
    ("what", "has_vector"),
    [
        (FactChange({"category": "x"}), True),
        (FactChange({"category": "x"}, terms=("a",)), False),
        (FactChange({"category": "x"}, terms=("a",), keeps_vector=True), True),
        (FactChange({"text": "y"}, terms=("y",), vector=vector(2)), True),
    ],
)
async def test_new_terms_take_their_vector_with_them(store: Store, what: FactChange, has_vector: bool) -> None:
    row = await add(store, fact("x", MINE, vector=vector(1)))
    assert (await change(store, row.id, what)).has_vector is has_vector


async def test_a_change_of_another_revision_is_refused(store: Store) -> None:
    row = await add(store, fact("x", MINE))
    await change(store, row.id, FactChange({"pinned": True}), revision=1)
    with pytest.raises(Conflict):
        await change(store, row.id, FactChange({"pinned": False}), revision=1)
    with pytest.raises(Conflict):
        await change(store, "unknown", FactChange({"pinned": False}))
    results = await asyncio.gather(
        *(change(store, row.id, FactChange({"importance": n / 10}), revision=2) for n in range(6)),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["Conflict"] * 5 + ["FactRow"]


async def test_a_superseded_fact_keeps_its_validity_and_names_its_successor(store: Store) -> None:
    old = await add(store, fact("lives in Oslo", MINE))
    new = await add(store, fact("lives in Lisbon", MINE))
    until = THEN + timedelta(days=9)
    await store.storage.transact(
        lambda tx: tx.facts.supersede(old.id, successor_id=new.id, valid_to=until, actor="t", now=tx.now())
    )
    row = await store.storage.read(lambda tx: tx.facts.get(old.id))
    assert row is not None
    assert (row.status, row.valid_to, row.superseded_by) == (FactStatus.SUPERSEDED, until, new.id)
    assert await listed(store, MINE) == ["lives in Lisbon"]
    assert await listed(store, MINE, as_of=until - timedelta(days=1)) == ["lives in Oslo", "lives in Lisbon"]
    assert await listed(store, MINE, as_of=THEN - timedelta(days=1)) == []


async def test_sources_are_added_joined_and_replaced(store: Store) -> None:
    row = await add(store, fact("x", MINE, source=FactSource(AGENT, ALICE, "s1", "", (1,))))
    for source in (FactSource(AGENT, ALICE, "s2", "w", (9,)), FactSource(AGENT, ALICE, "s1", "", (2, 1))):
        await store.storage.transact(lambda tx, source=source: tx.facts.add_source(row.id, source))
    found = await store.storage.read(lambda tx: tx.facts.get(row.id))
    assert found is not None
    assert set(found.sources) == {FactSource(AGENT, ALICE, "s1", "", (1, 2)), FactSource(AGENT, ALICE, "s2", "w", (9,))}
    alone = FactSource(AGENT, ALICE, "s3", "", (5,))
    assert (await change(store, row.id, FactChange({}, source=alone))).sources == (alone,)


async def test_a_fact_of_many_sessions_is_read_with_the_first_two_of_its_sources_and_the_last(store: Store) -> None:
    often = await add(store, fact("x", MINE, source=FactSource(AGENT, ALICE, "s00")))
    twice = await add(store, fact("y", MINE, source=FactSource(AGENT, ALICE, "s1", "", (4,))))

    def say_again(tx: Transaction) -> None:
        for number in range(1, 40):
            tx.facts.add_source(often.id, FactSource(AGENT, ALICE, f"s{number:02}"))
        tx.facts.add_source(often.id, FactSource(OTHER_AGENT, BOB, "s"))
        tx.facts.add_source(twice.id, FactSource(AGENT, ALICE, "s2"))

    await store.storage.transact(say_again)
    owner = await store.storage.read(lambda tx: tx.owners.find([MINE])[MINE])
    ends = (FactSource(AGENT, ALICE, "s00"), FactSource(AGENT, ALICE, "s01"), FactSource(OTHER_AGENT, BOB, "s"))
    both = (FactSource(AGENT, ALICE, "s1", "", (4,)), FactSource(AGENT, ALICE, "s2"))
    for row_ids in ([often.row_id], [often.row_id, twice.row_id], [twice.row_id]):
        read = partial(lambda tx, row_ids: tx.facts.by_row_ids([owner.id], row_ids), row_ids=row_ids)
        found = await store.storage.read(read)
        expected = {often.row_id: ends, twice.row_id: both}
        assert {row_id: row.sources for row_id, row in found.items()} == {row: expected[row] for row in row_ids}


async def test_a_source_names_its_last_turns(store: Store) -> None:
    row = await add(store, fact("x", MINE, source=FactSource(AGENT, ALICE, "s1", "", (1,))))
    await store.storage.transact(
        lambda tx: tx.facts.add_source(row.id, FactSource(AGENT, ALICE, "s1", "", tuple(range(2, MAX_SOURCE_SEQS + 4))))
    )
    found = await store.storage.read(lambda tx: tx.facts.get(row.id))
    assert found is not None
    assert [source.seqs for source in found.sources] == [tuple(range(4, MAX_SOURCE_SEQS + 4))]


async def test_filters_choose_among_an_owners_facts(store: Store) -> None:
    await add(store, fact("a", MINE, kind=FactKind.SEMANTIC, category="c1", tags=("x", "y"), importance=0.9))
    await add(
        store, fact("b", MINE, kind=FactKind.PREFERENCE, category="c2", tags=("y%",), said_at=THEN + timedelta(1))
    )
    await add(store, fact("c", MINE, kind=FactKind.EPISODIC, expires_at=store.clock.now() + timedelta(hours=1)))
    await add(store, fact("pending", MINE, status=FactStatus.PENDING))
    await add(store, fact("foreign", pair_of(principal=BOB), category="c1", tags=("x",), importance=1))
    assert await listed(store, MINE) == ["a", "b", "c"]
    assert await listed(store, MINE, kinds=frozenset({Kind.PREFERENCE, Kind.EPISODE})) == ["b"]
    assert await listed(store, MINE, kinds=frozenset()) == []
    assert await listed(store, MINE, categories=frozenset({"c1", "c2"})) == ["a", "b"]
    assert await listed(store, MINE, tags=frozenset({"x", "zzz"})) == ["a"]
    assert await listed(store, MINE, tags=frozenset({"y%"})) == ["b"]
    assert await listed(store, MINE, tags=frozenset({"%"})) == []
    assert await listed(store, MINE, since=THEN + timedelta(hours=1)) == ["b"]
    assert await listed(store, MINE, until=THEN) == ["a", "c"]
    assert await listed(store, MINE, min_importance=0.5) == ["a"]
    assert await listed(store, MINE, as_of=store.clock.now() + timedelta(hours=2)) == ["a", "b"]
    store.clock.advance(timedelta(hours=2))
    assert await listed(store, MINE) == ["a", "b"]
    assert await listed(store) == []


async def test_facts_are_listed_page_by_page_in_the_order_they_were_stored(store: Store) -> None:
    for number in range(7):
        await add(store, fact(f"t{number}", MINE if number % 2 else pair_of(principal=BOB)))

    def page(tx: Transaction, after: int | None) -> list[FactRow]:
        return list(tx.facts.list_all(filters=ItemFilters(now=store.clock.now()), limit=3, after=after))

    texts: list[str] = []
    after = None
    while rows := await store.storage.read(lambda tx, after=after: page(tx, after)):
        texts += [row.text for row in rows]
        after = rows[-1].row_id
    assert texts == [f"t{number}" for number in range(7)]
    assert await listed(store, MINE, limit=2) == ["t1", "t3"]
    assert await store.storage.read(lambda tx: tx.facts.count_active()) == 7


async def test_vectors_are_stored_for_the_revision_they_were_made_from(store: Store) -> None:
    one, two, three = [await add(store, fact(text, MINE)) for text in ("one", "two", "three")]
    await change(store, two.id, FactChange({"text": "zwei"}, terms=("zwei",)))
    await store.storage.transact(lambda tx: tx.facts.delete(three.id))
    waiting = await store.storage.read(lambda tx: tx.facts.without_vector(limit=10))
    assert [row.text for row in waiting] == ["one", "zwei"]
    vectors = {row.id: (1, vector(n)) for n, row in enumerate((one, two, three))}
    for _ in range(2):
        assert await store.storage.transact(lambda tx: tx.facts.store_vectors(vectors)) == 1
    assert [row.text for row in await store.storage.read(lambda tx: tx.facts.without_vector(limit=10))] == ["zwei"]


async def test_a_fact_that_gets_no_vector_waits_for_none_until_its_text_changes(store: Store) -> None:
    async def waiting() -> list[str]:
        return [row.text for row in await store.storage.read(lambda tx: tx.facts.without_vector(limit=10))]

    row = await add(store, fact("one", MINE))
    assert await store.storage.transact(lambda tx: tx.facts.store_vectors({row.id: (1, None)})) == 1
    assert await waiting() == []
    await change(store, row.id, FactChange({"text": "zwei"}, terms=("zwei",)))
    assert await waiting() == ["zwei"]


async def test_the_nearest_facts_of_an_owner_come_nearest_first(store: Store) -> None:
    def leaning(cosine: float) -> Vector:
        values = np.zeros(8, np.float32)
        values[0], values[1] = cosine, np.sqrt(1 - cosine**2)
        return values

    query = leaning(1.0)
    for text, cosine in (("far", 0.1), ("near", 0.9), ("middle", 0.5), ("opposite", -0.8)):
        await add(store, fact(text, MINE, vector=leaning(cosine)))
    await add(store, fact("foreign", pair_of(principal=BOB), vector=query))
    await add(store, fact("pending", MINE, vector=query, status=FactStatus.PENDING))
    await add(store, fact("without", MINE))
    found = await store.storage.read(lambda tx: tx.facts.similar(MINE, query, limit=3))
    assert [(row.text, round(cosine, 4)) for row, cosine in found] == [("near", 0.9), ("middle", 0.5), ("far", 0.1)]
    assert await store.storage.read(lambda tx: tx.facts.similar(pair_of(), query, limit=3)) == []


async def test_the_nearest_facts_include_those_of_the_same_transaction(store: Store) -> None:
    def work(tx: Transaction) -> list[str]:
        tx.owners.lock(MINE)
        tx.facts.add(fact("just added", MINE, vector=vector(5)), fact_id="f", actor="t", now=tx.now())
        return [row.text for row, _ in tx.facts.similar(MINE, vector(5), limit=3)]

    assert await store.storage.transact(work) == ["just added"]


async def test_a_deleted_fact_is_gone_with_its_history(store: Store) -> None:
    row = await add(store, fact("x", MINE, key="k"))
    for _ in range(2):
        await store.storage.transact(lambda tx: tx.facts.delete(row.id))
    assert await store.storage.read(lambda tx: tx.facts.get(row.id)) is None
    assert await store.storage.read(lambda tx: tx.facts.history(row.id)) == []
    await add(store, fact("again", MINE, key="k"))


async def test_facts_past_their_time_expire_unless_they_are_pinned(store: Store) -> None:
    soon = store.clock.now() + timedelta(minutes=1)
    await add(store, fact("expires", MINE, expires_at=soon))
    await add(store, fact("expires too", MINE, expires_at=soon))
    await add(store, fact("pinned", MINE, expires_at=soon, pinned=True))
    await add(store, fact("stays", MINE))

    async def expire(limit: int, facts_before: datetime | None = None) -> int:
        return await store.storage.transact(
            lambda tx: tx.facts.expire(now=store.clock.now(), facts_before=facts_before, limit=limit)
        )

    assert await expire(9) == 0
    store.clock.advance(timedelta(hours=1))
    assert [await expire(1), await expire(9), await expire(9)] == [1, 1, 0]
    await add(store, fact("fresh", MINE))
    assert await expire(9, store.clock.now() - timedelta(minutes=30)) == 1
    assert await store.storage.read(lambda tx: tx.facts.count_active()) == 2
