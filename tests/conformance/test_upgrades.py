"""Upgrades: every earlier schema, full, is brought up to date by the real migrations and means what it meant."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from memory_service.contract.scopes import Scope
from memory_service.contract.sessions import JobKind
from memory_service.domain.owners import PairErasure, SessionErasure
from memory_service.ports.records import DigestRow, FactChange, FactSource, JobDraft, Pool, StoredAnswer
from memory_service.ports.storage import Transaction
from memory_service.storage import migration
from tests.conformance.test_moving import PRINCIPAL, export, restore, undated
from tests.conformance.test_purge import fill_both, holding, needles, purge_until_done, secret
from tests.conformance.test_schema import columns_of
from tests.conformance.test_search import home_of
from tests.fakes.corpora import link_of, query, searches_of
from tests.fakes.pools import term_counts
from tests.fakes.stores import (
    AGENT,
    ALICE,
    BOB,
    OTHER_AGENT,
    Backends,
    Store,
    fact,
    pair_of,
    session_of,
    turn,
    uid,
)

LATEST = len(migration.migrations("sqlite"))
SMALL = 50
"""Owners of more rows than this are searched through indexes here; the full ones have 150 turns and 150 facts."""


@pytest.fixture(params=range(1, LATEST))
def schema(request: pytest.FixtureRequest) -> int:
    """How many migrations the version before has."""
    return int(request.param)


@pytest.fixture(params=["local", "external"])
async def upgraded(
    request: pytest.FixtureRequest,
    schema: int,
    backends: Backends,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Store]:
    """A store that was made and filled in an earlier schema, and has been opened by this version since."""
    ours = migration.migrations
    async with backends.unmade(request.param, tmp_path) as config:
        store = Store(config)
        with monkeypatch.context() as patch:
            patch.setattr(migration, "migrations", lambda dialect: ours(dialect)[:schema])
            await store.open()
        await fill_both(store)
        await store.storage.transact(_fill_the_rest)
        assert (await store.storage.diagnostics()).schema_version == schema
        before = await _rows(store)
        assert {name for name, rows in before.items() if not rows} <= {"commits", "unpurged"}, "nothing of a kind"
        await store.reopen()
        assert (await store.storage.diagnostics()).schema_version == LATEST
        after = await _rows(store)
        assert {name: after[name] for name in before} == before, "the upgrade changed what was there"
        yield store
        await store.close()


def _fill_the_rest(tx: Transaction) -> None:
    """Store one of what the full owners have none of, and a session that is erased already."""
    now, pair = tx.now(), pair_of(agent=OTHER_AGENT, principal=BOB)
    tx.owners.name_principal(PRINCIPAL)
    for name in ("s5", "s6"):
        owner = session_of(name, agent=OTHER_AGENT, principal=BOB)
        session = tx.sessions.ensure(owner, Scope.PRIVATE, now)
        tx.turns.append(session, [turn(f"turn {n}", client_id=f"c{n}") for n in range(3)], now)
        tx.digests.append(DigestRow(session.id, 1, "digest", 2, 2, now), folded_from=0, keep=5)
        draft = JobDraft(JobKind.EXTRACT, f"extract:{session.id}", now, session_id=session.id, owner_id=session.home_id)
        tx.jobs.enqueue(draft, now)
    tx.erasing.erase(SessionErasure(OTHER_AGENT, BOB, "s6"), receipt_id="early", asked_by=None, now=now)
    for name in ("kept", "corrected", "ended", "deleted"):
        source = FactSource(OTHER_AGENT, BOB, "s5", "", (1, 2))
        tx.facts.add(fact(name, pair, source=source, key=name, tags=("t",)), fact_id=uid(name), actor="t", now=now)
    tx.facts.add_source(uid("kept"), FactSource(OTHER_AGENT, BOB, "s4"))
    change = FactChange({"text": "corrected since"}, terms=("corrected", "since"))
    tx.facts.change(uid("corrected"), change, event="corrected", actor="t", now=now)
    tx.facts.supersede(uid("ended"), successor_id=uid("kept"), valid_to=now, actor="t", now=now)
    tx.facts.delete(uid("deleted"))
    tx.idempotency.begin(pair, route="r", key="k", body_hash="h", now=now)
    tx.idempotency.finish(pair, route="r", key="k", answer=StoredAnswer("h", 200, "{}", (uid("kept"),)))


async def _rows(store: Store) -> dict[str, list[str]]:
    """Return every row of every table that holds what is remembered."""

    def read(tx: Transaction) -> dict[str, list[str]]:
        return {
            name: sorted(map(repr, link_of(tx).rows(f"SELECT * FROM @{name}", {})))
            for name in sorted(columns_of(tx))
            if name not in ("meta", "migrations") and not re.search(r"^sqlite_|_words|_\d+$", name)
        }

    return await store.storage.read(read)


async def _found(store: Store, principal: str, *terms: str) -> tuple[Pool, Pool]:
    """Return what a search of a pair's turns and of its facts finds by words."""
    asked = query(None, *terms)
    return await store.storage.read(
        lambda tx: (
            tx.search.episodes([home_of(tx, pair_of(principal=principal))], asked, session=None),
            tx.search.facts(home_of(tx, pair_of(principal=principal)), asked),
        )
    )


def _remembered(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of what was said, in one order."""
    return undated([line for line in lines if line["type"] in ("session", "turn", "digest", "fact")])


def _holding(pool: Pool) -> set[int]:
    """Return the rows of a pool that have one of the words."""
    return set(pool.row_ids[term_counts(pool).sum(axis=1) > 0].tolist())


async def test_a_full_store_of_an_earlier_schema_is_searched_exported_and_erased_as_one_of_this_version(
    upgraded: Store, backends: Backends, tmp_path: Path
) -> None:
    asked = (secret(7), secret(70), secret(149))
    whole = await _found(upgraded, "", *asked)
    searches_of(upgraded).limit_exact(SMALL)
    await upgraded.storage.reconcile_index()
    large = await _found(upgraded, "", *asked)
    for all_rows, some in zip(whole, large, strict=True):
        assert (all_rows.exact, some.exact) == (True, False)
        assert some.document_counts.tolist() == all_rows.document_counts.tolist()
        assert _holding(some) == _holding(all_rows)
        assert len(_holding(some)) >= 5

    lines = await export(upgraded, 100)
    counts = Counter(line["type"] for line in lines)
    expected = {"principal": 1, "session": 3, "turn": 303, "fact": 303, "deleted": 1}
    assert {name: counts[name] for name in expected} == expected
    async with backends.another("local", tmp_path / "target") as config:
        target = Store(config)
        await target.open()
        outcomes = Counter(await restore(target, lines))
        assert outcomes["imported"] >= sum(expected.values())
        assert set(outcomes) <= {"imported", "skipped"}
        assert _remembered(await export(target, 100)) == _remembered(lines)
        await target.close()

    erased = await upgraded.storage.transact(
        lambda tx: tx.erasing.erase(PairErasure(AGENT, ""), receipt_id="late", asked_by=None, now=tx.now()).erased
    )
    assert erased == {
        "turns": 150, "episodes": 150, "digests": 1, "sessions": 1, "jobs": 0, "facts": 150, "history": 150,
        "vectors": 300, "answers": 0,
    }  # fmt: skip
    await purge_until_done(upgraded)
    assert await asyncio.to_thread(holding, upgraded, needles()) == set()
    turns, facts = await _found(upgraded, ALICE, "said", "is")
    assert len(_holding(turns)) == len(_holding(facts)) == 150
    counted = (await upgraded.storage.diagnostics()).counts
    assert (counted["turns"], counted["facts"], counted["sessions"]) == (153, 153, 2)
