"""Imports into a store that is used already: nothing that was said is lost, nothing that differs counts as there."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from memory_service.contract.items import FactStatus
from memory_service.contract.scopes import Scope
from memory_service.ports.records import DigestRow, FactChange, FactRow, FactSource
from memory_service.ports.storage import Transaction
from tests.conformance import test_moving
from tests.conformance.test_moving import Line, restore
from tests.fakes.stores import AGENT, Store, fact, pair_of, session_of, turn

MINE, THEIRS = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"


@pytest.fixture
def target(target: Store) -> Store:
    """A second store, in which a minute has gone by."""
    target.clock.advance(timedelta(minutes=1))
    return target


async def export(store: Store, limit: int = 3) -> list[Line]:
    """Return the lines of an export but for those of who is in it."""
    return [line for line in await test_moving.export(store, limit) if line["type"] != "subject"]


async def write(store: Store, *texts: str, client_ids: Sequence[str | None] | None = None) -> None:
    """Write turns that are said at once."""
    ids = client_ids or [None] * len(texts)

    def work(tx: Transaction) -> None:
        session = tx.sessions.ensure(session_of(), Scope.PRIVATE, tx.now())
        tx.turns.append(session, [turn(text, client_id=one) for text, one in zip(texts, ids, strict=True)], tx.now())

    await store.storage.transact(work)
    store.clock.advance(timedelta(seconds=1))


async def fold(store: Store, version: int, upto: int, *, keep: int = 5) -> None:
    def work(tx: Transaction) -> None:
        session = tx.sessions.ensure(session_of(), Scope.PRIVATE, tx.now())
        digest = DigestRow(session.id, version, f"digest {version}", upto, 2, tx.now())
        assert tx.digests.append(digest, folded_from=session.folded_seq, keep=keep)

    await store.storage.transact(work)


async def conversation(store: Store) -> tuple[list[tuple[int, str]], list[int], list[str]]:
    """Return what was said, what of it is in the window, and the digests, newest first."""

    def read(tx: Transaction) -> Any:
        session = tx.sessions.find(session_of())
        assert session is not None
        said = [(row.seq, row.text) for row in tx.turns.between(session, after=0, upto=None, limit=100)]
        window = tx.turns.window(session, limit=100)
        assert (session.window_turns, session.window_tokens) == (len(window), sum(row.tokens for row in window))
        digests = tx.digests.list(session.id, limit=10)
        newest = tx.digests.latest(session.id)
        assert session.folded_seq == (0 if newest is None else newest.upto_seq) <= session.last_seq
        return said, [row.seq for row in window], [digest.summary for digest in digests]

    return await store.storage.read(read)


async def save(store: Store, fact_id: str, text: str, *, said: timedelta = timedelta(0), **fields: Any) -> None:
    def work(tx: Transaction) -> None:
        draft = fact(text, pair_of(), **fields)
        moment = draft.said_at + said
        tx.facts.add(
            fact(text, pair_of(), **{**fields, "said_at": moment, "valid_from": moment}),
            fact_id=fact_id, actor="t", now=tx.now(),
        )  # fmt: skip

    await store.storage.transact(work)


async def change(store: Store, fact_id: str, text: str) -> None:
    await store.storage.transact(
        lambda tx: tx.facts.change(
            fact_id, FactChange({"text": text}, terms=(text,)), event="corrected", actor="t", now=tx.now()
        )
    )
    store.clock.advance(timedelta(seconds=1))


async def facts(store: Store) -> dict[str, FactRow]:
    def read(tx: Transaction) -> dict[str, FactRow]:
        found = {fact_id: tx.facts.get(fact_id) for fact_id in (MINE, THEIRS)}
        return {fact_id: row for fact_id, row in found.items() if row is not None}

    return await store.storage.read(read)


async def test_a_turn_whose_place_another_one_has_goes_to_the_end_and_those_after_it_follow(
    store: Store, target: Store
) -> None:
    await write(store, "I live in Lisbon.")
    await restore(target, await export(store))
    await write(store, "My allergy: peanuts.", client_ids=["c2"])
    await write(store, "The meeting is on Friday.")
    await write(target, "Hello again.")
    lines = await export(store)
    assert await restore(target, lines) == ["skipped", "skipped", "imported", "imported"]
    there = await conversation(target)
    assert there == (
        [(1, "I live in Lisbon."), (2, "Hello again."), (3, "My allergy: peanuts."), (4, "The meeting is on Friday.")],
        [1, 2, 3, 4],
        [],
    )
    assert await restore(target, lines) == ["skipped"] * 4
    for line in lines:
        assert await restore(target, [line]) == ["skipped"]
    assert await conversation(target) == there
    await write(target, "And on.")
    assert (await conversation(target))[0][-1] == (5, "And on.")


async def test_turns_of_one_write_that_say_the_same_all_move(store: Store, target: Store) -> None:
    await write(store, "yes", "yes", "no")
    await write(target, "yes", "maybe")
    lines = await export(store)
    assert await restore(target, lines + lines[1:]) == ["skipped"] + ["imported"] * 3 + ["skipped"] * 3
    assert await restore(target, lines) == ["skipped"] * 4
    assert [text for _, text in (await conversation(target))[0]] == ["yes", "maybe", "yes", "yes", "no"]


async def test_a_turn_whose_id_another_text_has_is_kept_and_one_that_was_delivered_to_both_is_there(
    store: Store, target: Store
) -> None:
    await write(store, "first", "both", client_ids=["c1", "c2"])
    await write(target, "both", "second", client_ids=["c2", "c1"])
    lines = await export(store)
    assert await restore(target, lines) == ["skipped", "imported", "skipped"]
    assert [text for _, text in (await conversation(target))[0]] == ["both", "second", "first"]
    assert await restore(target, lines) == ["skipped"] * 3


@pytest.mark.parametrize(("said", "winner"), [(5, MINE), (-5, THEIRS)])
async def test_of_two_facts_with_one_key_the_one_that_was_said_later_holds_and_the_other_is_superseded(
    store: Store, target: Store, said: int, winner: str
) -> None:
    loser = THEIRS if winner == MINE else MINE
    await save(store, MINE, "The office is in Lisbon", said=timedelta(days=said), key="office")
    await save(target, THEIRS, "The office is in Porto", key="office")
    lines = await export(store)
    assert await restore(target, lines) == ["imported"]
    found = await facts(target)
    assert (found[winner].status, found[loser].status) == (FactStatus.ACTIVE, FactStatus.SUPERSEDED)
    assert (found[loser].superseded_by, found[loser].valid_to) == (winner, found[winner].valid_from if said > 0 else
        max(found[loser].valid_from, found[winner].valid_from))  # fmt: skip
    assert await restore(target, lines) == ["skipped"]
    assert await facts(target) == found


async def test_a_fact_that_took_anothers_key_while_it_was_exported_is_imported_too(store: Store, target: Store) -> None:
    await save(store, MINE, "The office is in Lisbon", key="office")
    lines = await export(store)
    await store.storage.transact(lambda tx: tx.facts.delete(MINE))
    await save(store, THEIRS, "The office is in Porto", said=timedelta(days=1), key="office", dedupe_key="d")
    lines += await export(store)
    facts_of = [line for line in lines if line["type"] == "fact"]
    assert await restore(target, facts_of) == ["imported"] * 2
    found = await facts(target)
    assert [found[name].status for name in (MINE, THEIRS)] == [FactStatus.SUPERSEDED, FactStatus.ACTIVE]


async def test_a_fact_that_was_corrected_between_two_exports_is_corrected_by_the_second_import(
    store: Store, target: Store
) -> None:
    await save(store, MINE, "Kim lives in Lisbon")
    await restore(target, await export(store))
    store.clock.advance(timedelta(seconds=1))
    await change(store, MINE, "Kim lives in Oslo")
    lines = await export(store)
    assert await restore(target, lines) == ["imported"]
    assert (await facts(target))[MINE].text == "Kim lives in Oslo"
    assert await restore(target, lines) == ["skipped"]


async def test_a_correction_that_was_made_here_stays_and_its_line_does_not_count_as_there(
    store: Store, target: Store
) -> None:
    await save(store, MINE, "Kim lives in Lisbon")
    lines = await export(store)
    await restore(target, lines)
    await change(target, MINE, "Kim lives in Oslo")
    await store.storage.transact(lambda tx: tx.facts.add_source(MINE, FactSource(AGENT, "", "s9")))
    assert await restore(target, await export(store)) == ["left_out"]
    found = (await facts(target))[MINE]
    assert (found.text, [source.session for source in found.sources]) == ("Kim lives in Oslo", ["s1", "s9"])
    store.clock.advance(timedelta(hours=1))
    await change(store, MINE, "Kim lives in Bergen")
    assert await restore(target, await export(store)) == ["imported"]
    texts = [row.text for row in await target.storage.read(lambda tx: tx.facts.history(MINE))]
    assert texts == ["Kim lives in Lisbon", "Kim lives in Oslo", "Kim lives in Bergen"]


async def test_a_fact_that_was_deleted_between_two_exports_goes_by_the_second_import(
    store: Store, target: Store
) -> None:
    await save(store, MINE, "Kim has diabetes")
    first = await export(store)
    await restore(target, first)
    await change(target, MINE, "Kim has asthma")
    await store.storage.transact(lambda tx: tx.facts.delete(MINE))
    lines = await export(store, 1)
    assert await restore(target, lines) == ["erased"]
    assert await facts(target) == {}
    assert await restore(target, lines) == ["skipped"]
    assert await restore(target, first) == ["tombstoned"]
    assert [line["id"] for line in await export(target)] == [MINE]


@pytest.mark.parametrize("keep", [1, 5])
async def test_a_session_that_folds_while_it_is_exported_keeps_its_digest_and_every_turn_after_it(
    store: Store, target: Store, keep: int
) -> None:
    await write(store, *"abcdefgh")
    await fold(store, 1, 3)
    page, cursor = await store.storage.read(lambda tx: tx.moving.export(cursor=None, limit=3))
    assert [line["type"] for line in page] == ["subject", "subject", "session"]
    lines = list(page)
    for version, upto in ((2, 5), (3, 7)):
        await fold(store, version, upto, keep=keep)
    while cursor is not None:
        page, cursor = await store.storage.read(
            lambda tx, at=cursor: tx.moving.export(cursor=at, limit=2)  # type: ignore[misc]
        )
        lines += page
    outcomes = await restore(target, lines)
    assert (await conversation(target))[1:] == ([4, 5, 6, 7, 8], ["digest 1"])
    assert outcomes == ["imported"] * 11 + ([] if keep == 1 else ["skipped", "left_out"])
    assert await restore(target, lines) == ["skipped"] * 11 + outcomes[11:]


async def test_older_digests_come_along(store: Store, target: Store) -> None:
    await write(store, *"abcd")
    for version in (1, 2, 3):
        await fold(store, version, version)
    assert set(await restore(target, await export(store))) == {"imported"}
    assert (await conversation(target))[1:] == ([4], ["digest 3", "digest 2", "digest 1"])


async def test_a_session_that_goes_on_here_hides_no_turn_behind_a_digest_of_the_other_store(
    store: Store, target: Store
) -> None:
    await write(store, *"ab")
    await restore(target, await export(store))
    await write(store, *"cd")
    await fold(store, 1, 3)
    await fold(store, 2, 4)
    await write(target, *"xyz")
    await fold(target, 1, 2)
    outcomes = await restore(target, await export(store))
    assert outcomes == ["left_out", "skipped", "skipped", "imported", "imported", "left_out"]
    said, window, digests = await conversation(target)
    assert [text for _, text in said] == ["a", "b", "x", "y", "z", "c", "d"]
    assert (window, digests) == ([3, 4, 5, 6, 7], ["digest 1"])
