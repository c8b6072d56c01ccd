"""Erasures and imports: what was erased in one store comes back in no other, whichever file is imported first."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from memory_service.contract.scopes import Scope
from memory_service.domain.callers import Principal
from memory_service.domain.owners import (
    AgentErasure,
    Erasure,
    Owner,
    PairErasure,
    PrincipalErasure,
    SessionErasure,
    agent_mark,
)
from memory_service.errors import InvalidRequest
from memory_service.ports.records import DigestRow, FactSource, ItemFilters, Restored
from memory_service.ports.storage import Transaction
from memory_service.storage.transaction import RowTransaction
from tests.conformance.test_moving import export, look, populate, restore
from tests.fakes.stores import AGENT, BOB, OTHER_AGENT, Backends, Store, fact, pair_of, session_of, turn, uid

PRINCIPAL = Principal("https://issuer", "alice")
ALICE = PRINCIPAL.hash
SHARED = Owner(Scope.SHARED)
USER = Owner(Scope.USER, principal=ALICE)
Line = Mapping[str, Any]
ERASURES = [
    PrincipalErasure(ALICE),
    AgentErasure(AGENT),
    SessionErasure(AGENT, ALICE, "s1"),
    PairErasure(AGENT, ALICE),
]


def live(tx: Transaction) -> None:
    """Store what `populate` does, under the marks that a write shares."""
    for agent, principal in ((AGENT, ALICE), (AGENT, BOB), (OTHER_AGENT, ALICE)):
        user = Owner(Scope.USER, principal=principal)
        marks = [agent_mark(agent), pair_of(agent=agent, principal=principal), user]
        tx.owners.share([*marks, session_of(agent=agent, principal=principal)])
    populate(tx)
    source = FactSource(AGENT, ALICE, "s1", "", (1,))
    tx.facts.add(fact("for the user", USER, source=source), fact_id=uid("user"), actor="t", now=tx.now())


async def erase(store: Store, erasure: Erasure) -> None:
    await store.storage.transact(
        lambda tx: tx.erasing.erase(erasure, receipt_id=str(uuid.uuid4()), asked_by=None, now=tx.now())
    )


def later(*stores: Store, seconds: int = 60) -> None:
    for store in stores:
        store.clock.advance(timedelta(seconds=seconds))


async def say(store: Store, *texts: str, session: str = "s1", agent: str = AGENT, principal: str = ALICE) -> None:
    """Write turns as a write does: under the marks of every erasure that can cover them."""
    owner = session_of(session, agent=agent, principal=principal)

    def work(tx: Transaction) -> None:
        user = Owner(Scope.USER, principal=principal)
        tx.owners.share([agent_mark(agent), pair_of(agent=agent, principal=principal), user, owner])
        tx.turns.append(tx.sessions.ensure(owner, Scope.PRIVATE, tx.now()), [turn(text) for text in texts], tx.now())

    await store.storage.transact(work)


async def said(store: Store, session: str = "s1", agent: str = AGENT) -> list[tuple[int, str]]:
    def read(tx: Transaction) -> list[tuple[int, str]]:
        row = tx.sessions.find(session_of(session, agent=agent, principal=ALICE))
        if row is None:
            return []
        window = tx.turns.window(row, limit=100)
        assert (row.window_turns, row.window_tokens) == (len(window), sum(one.tokens for one in window))
        return [(one.seq, one.text) for one in tx.turns.between(row, after=0, upto=None, limit=100)]

    return await store.storage.read(read)


async def facts(store: Store) -> list[str]:
    def read(tx: Transaction) -> list[str]:
        found = tx.facts.list_all(filters=ItemFilters(now=tx.now()), limit=100, after=None)
        return sorted(row.text for row in found)

    return await store.storage.read(read)


async def restored(store: Store, lines: Sequence[Line]) -> Restored:
    return await store.storage.transact(lambda tx: tx.moving.restore(lines, tx.now()))


@pytest.mark.parametrize("erasure", ERASURES)
async def test_an_export_from_after_an_erasure_erases_what_an_earlier_import_brought(
    store: Store, target: Store, erasure: Erasure
) -> None:
    await store.storage.transact(live)
    await restore(target, await export(store))
    later(store, target)
    await erase(store, erasure)
    later(store, target)
    found = await restored(target, await export(store))
    assert "erased" in found.outcomes
    assert found.erased["facts"] + found.erased["turns"] > 0
    assert await look(target) == await look(store)
    assert "erased" not in await restore(target, await export(store))


@pytest.mark.parametrize("erasure", ERASURES)
async def test_an_older_export_that_is_imported_after_a_newer_one_brings_nothing_erased(
    store: Store, target: Store, erasure: Erasure
) -> None:
    await store.storage.transact(live)
    older = await export(store)
    later(store, target)
    await erase(store, erasure)
    later(store, target)
    await restore(target, await export(store))
    expected = await look(store)
    assert await look(target) == expected
    assert "tombstoned" in await restore(target, older)
    assert await look(target) == expected


@pytest.mark.parametrize("erasure", ERASURES)
async def test_an_export_from_before_an_erasure_brings_nothing_back_into_its_own_store(
    store: Store, erasure: Erasure
) -> None:
    await store.storage.transact(live)
    older = await export(store)
    later(store)
    await erase(store, erasure)
    expected = await look(store)
    assert set(await restore(store, older)) == {"skipped", "tombstoned"}
    assert await look(store) == expected


@pytest.mark.parametrize("erasure", ERASURES)
async def test_an_older_export_brings_nothing_erased_into_a_copy_of_the_store_either(
    store: Store, target: Store, erasure: Erasure
) -> None:
    """A copy has the key of its original: hashes of the file are its own, whether or not it has met who they mean."""
    key = await store.storage.read(_hmac_key)
    await target.storage.transact(lambda tx: _set_hmac_key(tx, key))
    await target.reopen()
    await store.storage.transact(live)
    older = await export(store)
    later(store, target)
    await erase(store, erasure)
    later(store, target)
    await restore(target, await export(store))
    expected = await look(store)
    assert await look(target) == expected
    assert "tombstoned" in await restore(target, older)
    assert await look(target) == expected
    assert "erased" not in await restore(target, older)


def _hmac_key(tx: Transaction) -> str:
    assert isinstance(tx, RowTransaction)
    return tx.link.hmac_key.hex()


def _set_hmac_key(tx: Transaction, key: str) -> None:
    assert isinstance(tx, RowTransaction)
    tx.link.run("UPDATE @meta SET value = :value WHERE key = 'hmac_key'", {"value": key})


@pytest.mark.parametrize("erasure", ERASURES)
async def test_an_erasure_goes_on_through_a_store_in_between(
    store: Store, target: Store, backends: Backends, tmp_path: Path, erasure: Erasure
) -> None:
    async with backends.another("local", tmp_path / "third") as config:
        third = Store(config)
        await third.open()
        try:
            await store.storage.transact(live)
            await restore(target, await export(store))
            await restore(third, await export(target))
            later(store, target, third)
            await erase(store, erasure)
            later(store, target, third)
            assert "erased" in await restore(third, await export(store))
            assert await look(third) == await look(store)
        finally:
            await third.close()


async def test_an_erasure_in_the_second_store_reaches_the_first_one(store: Store, target: Store) -> None:
    await store.storage.transact(live)
    await restore(target, await export(store))
    later(store, target)
    await erase(target, PrincipalErasure(ALICE))
    later(store, target)
    assert "erased" in await restore(store, await export(target))
    assert await look(store) == await look(target)


async def test_a_restored_backup_is_erased_again_by_a_newer_export_of_its_store(store: Store) -> None:
    """An export keeps a list of erasures; what a restored backup lacks is carried out by importing it."""
    await store.storage.transact(live)
    lines = [line for line in await export(store) if line["type"] == "subject"]
    alice = next(line for line in lines if (line["scope"], line["principal"]) == ("user", ALICE))
    later(store)
    told = {"type": "erased", "hashes": alice["hashes"], "created_at": max(_stored(await export(store)))}
    assert await restore(store, [told]) == ["erased"]
    assert await said(store) == await said(store, agent=OTHER_AGENT) == []
    assert "for the user" not in await facts(store)


def _stored(lines: Sequence[Line]) -> list[int]:
    return [line["created_at"] for line in lines if line["type"] in {"turn", "fact"}]


async def test_what_was_stored_after_an_erasure_stays_when_the_erasure_arrives(store: Store, target: Store) -> None:
    await say(store, "one", "two")
    await restore(target, await export(store))
    later(store, target)
    await say(target, "before, and said in the second store")
    later(store, target)
    await erase(store, SessionErasure(AGENT, ALICE, "s1"))
    later(store, target)
    await say(target, "after")
    assert "erased" in await restore(target, await export(store))
    assert await said(target) == [(4, "after")]
    await say(target, "and on")
    assert await said(target) == [(4, "after"), (5, "and on")]
    assert "erased" not in await restore(target, await export(store))
    assert await said(target) == [(4, "after"), (5, "and on")]


async def test_what_was_said_again_after_an_erasure_moves_with_it(store: Store, target: Store) -> None:
    await store.storage.transact(live)
    await restore(target, await export(store))
    later(store, target)
    await erase(store, PrincipalErasure(ALICE))
    later(store, target)
    await say(store, "I am back")
    await restore(target, await export(store))
    assert await said(target) == [(1, "I am back")]
    later(store, target)
    await erase(store, PrincipalErasure(ALICE))
    later(store, target)
    await restore(target, await export(store))
    assert await said(target) == []


async def test_a_digest_and_a_fact_made_since_of_turns_from_before_an_erasure_go_with_them(
    store: Store, target: Store
) -> None:
    await say(store, "one", "two")
    await restore(target, await export(store))
    later(store, target)
    moment = target.clock.now()
    await erase(store, SessionErasure(AGENT, ALICE, "s1"))
    later(store, target)
    await say(target, "three")

    def work(tx: Transaction) -> None:
        row = tx.sessions.find(session_of(principal=ALICE))
        assert row is not None
        assert tx.digests.append(DigestRow(row.id, 1, "one and two", 2, 2, tx.now()), folded_from=0, keep=5)
        mine, theirs = FactSource(AGENT, ALICE, "s1", "", (1,)), FactSource(AGENT, BOB, "s9")
        early = moment - timedelta(seconds=30)
        for name, text, since in (("early", "of one", early), ("late", "of three", tx.now())):
            draft = fact(text, SHARED, source=mine, said_at=since, valid_from=since, evidence=text)
            tx.facts.add(draft, fact_id=uid(name), actor="t", now=tx.now())
        draft = fact("all say", SHARED, source=mine, said_at=early, valid_from=early, evidence="hers")
        tx.facts.add(draft, fact_id=uid("both"), actor="t", now=tx.now())
        tx.facts.add_source(uid("both"), theirs)

    await target.storage.transact(work)
    await restore(target, await export(store))
    assert await said(target) == [(3, "three")]
    assert await facts(target) == ["all say", "of three"]

    def read(tx: Transaction) -> tuple[Any, ...]:
        row, both = tx.sessions.find(session_of(principal=ALICE)), tx.facts.get(uid("both"))
        assert row is not None
        assert both is not None
        return (
            tx.digests.latest(row.id),
            row.folded_seq,
            [one.agent + one.principal for one in both.sources],
            both.evidence,
        )

    assert await target.storage.read(read) == (None, 0, [AGENT + BOB], None)


async def test_an_erasure_by_hash_tells_a_store_that_was_never_told_of_the_hash_nothing(
    store: Store, target: Store
) -> None:
    await say(store, "one")
    await say(target, "two")
    later(store, target)
    await erase(store, PrincipalErasure(ALICE))
    lines = [line for line in await export(store) if line["type"] == "erased"]
    assert lines
    assert all(set(line) == {"type", "hashes", "created_at"} for line in lines)
    assert set(await restore(target, lines)) == {"imported", "skipped"}
    assert await said(target) == [(1, "two")]


async def test_an_erasure_between_the_pages_of_an_export_is_in_it(store: Store, target: Store) -> None:
    await say(store, "one", "two", "three")
    first, cursor = await store.storage.read(lambda tx: tx.moving.export(cursor=None, limit=8))
    assert any(line["type"] == "turn" for line in first)
    await erase(store, PrincipalErasure(ALICE))
    lines = list(first)
    while cursor is not None:
        page, cursor = await store.storage.read(lambda tx, cursor=cursor: tx.moving.export(cursor=cursor, limit=8))  # type: ignore[misc]
        lines += page
    later(target)
    await restore(target, lines)
    assert await said(target) == []


async def test_an_erasure_from_the_future_of_another_clock_ends_now(store: Store, target: Store) -> None:
    await say(store, "one")
    lines = await export(store)
    await restore(target, lines)
    alice = next(line for line in lines if line["type"] == "subject" and line["scope"] == "user")
    later(store, target)
    await restore(target, [{"type": "erased", "hashes": alice["hashes"], "created_at": 4 * 10**15}])
    later(store, target)
    await say(target, "two")
    await say(store, "two")
    await restore(target, [line for line in await export(store) if line["type"] in {"session", "turn"}])
    assert {text for _, text in await said(target)} == {"two"}


@pytest.mark.parametrize(
    "line",
    [
        {"type": "erased", "hashes": [], "created_at": 1},
        {"type": "erased", "hashes": ["x"], "created_at": 1},
        {"type": "subject", "scope": "shared", "agent": "", "principal": "", "session": "", "hashes": ["0" * 64]},
        {"type": "subject", "scope": "user", "agent": AGENT, "principal": "p", "session": "", "hashes": ["0" * 64]},
        {"type": "subject", "scope": "session", "agent": AGENT, "principal": "p", "session": "", "hashes": ["0" * 64]},
    ],
)
async def test_a_subject_that_no_erasure_names_is_refused(store: Store, line: Line) -> None:
    with pytest.raises(InvalidRequest):
        await restore(store, [line])
