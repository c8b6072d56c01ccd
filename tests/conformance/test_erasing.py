"""Erasure: everything of a subject goes at once, nothing else does, and it beats work in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from memory_service.contract.scopes import Scope
from memory_service.contract.sessions import JobKind
from memory_service.contract.verbs import ErasureStatus
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
from memory_service.ports.records import (
    DigestRow,
    FactChange,
    FactSource,
    ItemFilters,
    JobDraft,
    PurgeStep,
    ReceiptRow,
    StoredAnswer,
)
from memory_service.ports.storage import Transaction
from memory_service.storage.encoding import micros
from tests.fakes.corpora import link_of
from tests.fakes.stores import AGENT, ALICE, BOB, OTHER_AGENT, Store, fact, pair_of, session_of, turn, uid, vector


async def erase(store: Store, erasure: Erasure, *, receipt_id: str = "receipt") -> Mapping[str, int]:
    def work(tx: Transaction) -> ReceiptRow:
        return tx.erasing.erase(erasure, receipt_id=receipt_id, asked_by=pair_of(principal=ALICE), now=tx.now())

    return (await store.storage.transact(work)).erased


def live(tx: Transaction, agent: str, principal: str, session: str, workspace: str = "") -> None:
    """Store one of everything for a session of an agent and a principal."""
    owner = session_of(session, agent=agent, principal=principal, workspace=workspace)
    name = f"{agent[-5:]}-{principal[:1]}-{session}-{workspace}"
    source = FactSource(agent, principal, session, workspace, (1,))
    tx.owners.share([agent_mark(agent), pair_of(agent=agent, principal=principal), owner])
    row = tx.sessions.ensure(owner, Scope.PRIVATE, tx.now())
    tx.turns.append(row, [turn(f"turn {name} {n}") for n in range(3)], tx.now())
    indexed = tx.turns.unindexed(row.id, limit=1)
    tx.turns.store_vectors(row.id, {indexed[0].id: vector(1)})
    tx.digests.append(DigestRow(row.id, 1, f"digest {name}", 1, 2, tx.now()), folded_from=0, keep=5)
    draft = JobDraft(JobKind.EXTRACT, f"extract:{row.id}", tx.now(), session_id=row.id, owner_id=row.home_id)
    tx.jobs.enqueue(draft, tx.now())
    owners = {
        "private": pair_of(agent=agent, principal=principal, workspace=workspace),
        "session": owner,
        "shared": Owner(Scope.SHARED, workspace=workspace),
    }
    if principal:
        owners["user"] = Owner(Scope.USER, principal=principal, workspace=workspace)
    for scope, fact_owner in owners.items():
        tx.facts.add(
            fact(f"{scope} {name}", fact_owner, source=source, vector=vector(2)),
            fact_id=f"{scope}-{name}",
            actor="t",
            now=tx.now(),
        )


LIVES = [
    (AGENT, ALICE, "s1", ""),
    (AGENT, ALICE, "s1", "w"),
    (AGENT, ALICE, "s2", ""),
    (AGENT, BOB, "s1", ""),
    (AGENT, "", "s1", ""),
    (OTHER_AGENT, ALICE, "s1", ""),
]


async def populate(store: Store) -> None:
    for life in LIVES:
        await store.storage.transact(lambda tx, life=life: live(tx, *life))


async def remaining(store: Store) -> tuple[set[str], set[tuple[str, str, str, str]]]:
    """Return the ids of all facts and the sessions that still have turns."""

    def read(tx: Transaction) -> tuple[set[str], set[tuple[str, str, str, str]]]:
        rows = tx.facts.list_all(filters=ItemFilters(now=store.clock.now()), limit=1_000, after=None)
        sessions = set()
        for agent, principal, name, workspace in LIVES:
            row = tx.sessions.find(session_of(name, agent=agent, principal=principal, workspace=workspace))
            if row is not None and len(tx.turns.between(row, after=0, upto=None, limit=10)) == 3:
                sessions.add((agent, principal, name, workspace))
        return {row.id for row in rows}, sessions

    return await store.storage.read(read)


def ids(
    *lives: tuple[str, str, str, str], scopes: tuple[str, ...] = ("private", "session", "shared", "user")
) -> set[str]:
    return {
        f"{scope}-{agent[-5:]}-{principal[:1]}-{session}-{workspace}"
        for agent, principal, session, workspace in lives
        for scope in scopes
        if principal or scope != "user"
    }


@pytest.mark.parametrize(
    ("erasure", "gone", "kept_scopes"),
    [
        (SessionErasure(AGENT, ALICE, "s1"), LIVES[0:2], ()),
        (SessionErasure(AGENT, "", "s1"), LIVES[4:5], ()),
        (PairErasure(AGENT, ALICE), LIVES[0:3], ("user", "shared")),
        (PairErasure(AGENT, ""), LIVES[4:5], ("user", "shared")),
        (PrincipalErasure(ALICE), [*LIVES[0:3], LIVES[5]], ()),
        (AgentErasure(AGENT), LIVES[0:5], ()),
        (SessionErasure(AGENT, ALICE, "%"), [], ()),
        (PrincipalErasure(""), [], ()),
        (AgentErasure(""), [], ()),
    ],
)
async def test_an_erasure_takes_its_subject_and_nothing_else(
    store: Store, erasure: Erasure, gone: list[tuple[str, str, str, str]], kept_scopes: tuple[str, ...]
) -> None:
    await populate(store)
    everything, sessions = await remaining(store)
    assert (everything, sessions) == (ids(*LIVES), set(LIVES))
    erased = await erase(store, erasure)
    facts_left, sessions_left = await remaining(store)
    assert sessions_left == set(LIVES) - set(gone)
    assert facts_left == (ids(*LIVES) - ids(*gone)) | ids(*gone, scopes=kept_scopes)
    facts_gone = len(everything) - len(facts_left)
    assert erased == {
        "turns": 3 * len(gone), "episodes": 3 * len(gone), "digests": len(gone), "sessions": len(gone),
        "jobs": len(gone), "facts": facts_gone, "history": facts_gone, "vectors": len(gone) + facts_gone, "answers": 0,
    }  # fmt: skip
    again = await erase(store, erasure, receipt_id="again")
    assert set(again.values()) == {0}


COUNTED: Mapping[str, str] = {
    "turns": "SELECT COUNT(*) FROM @turns",
    "episodes": "SELECT COUNT(*) FROM @turns",
    "sessions": "SELECT COUNT(*) FROM @sessions",
    "digests": "SELECT COUNT(*) FROM @digests",
    "facts": "SELECT COUNT(*) FROM @facts",
    "history": "SELECT COUNT(*) FROM @fact_history",
    "jobs": "SELECT COUNT(*) FROM @jobs WHERE kind <> 'purge'",
    "answers": "SELECT COUNT(*) FROM @idempotency",
    "vectors": "SELECT (SELECT COUNT(*) FROM @turns WHERE vector IS NOT NULL)"
    " + (SELECT COUNT(*) FROM @facts WHERE vector IS NOT NULL)",
}
"""How many rows of each kind of a receipt the tables have."""


@pytest.mark.parametrize(
    "erasure",
    [
        SessionErasure(AGENT, ALICE, "s1"),
        PairErasure(AGENT, ALICE),
        PrincipalErasure(ALICE),
        AgentErasure(AGENT),
        None,
    ],
    ids=["session", "pair", "principal", "agent", "fact"],
)
@pytest.mark.parametrize("by_import", [False, True], ids=["here", "import"])
async def test_a_receipt_counts_what_the_tables_lost(store: Store, erasure: Erasure | None, by_import: bool) -> None:
    """With facts of several sources and lines, rows without a vector, jobs of every state and answers of everybody."""

    def more(tx: Transaction) -> None:
        shared = Owner(Scope.SHARED)
        for number, (agent, principal, name, workspace) in enumerate(LIVES):
            home = pair_of(agent=agent, principal=principal, workspace=workspace)
            source = FactSource(agent, principal, name, workspace)
            tx.facts.add(
                fact(f"plain {number}", shared, source=source), fact_id=uid(f"p{number}"), actor="t", now=tx.now()
            )
            tx.facts.change(uid(f"p{number}"), FactChange({"pinned": True}), event="corrected", actor="t", now=tx.now())
            if number:
                tx.facts.add_source(uid(f"p{number - 1}"), source)
            for key in ("", uid(f"p{number}"), uid("p0")):
                tx.idempotency.begin(home, route="r", key=f"k{key}", body_hash="h", now=tx.now())
                answer = StoredAnswer("h", 200, "said", (key,) if key else ())
                tx.idempotency.finish(home, route="r", key=f"k{key}", answer=answer)
            session = tx.sessions.find(session_of(name, agent=agent, principal=principal, workspace=workspace))
            assert session is not None
            for kind in (JobKind.FOLD, JobKind.INDEX_TURNS):
                place = {"session_id": session.id, "owner_id": session.home_id}
                tx.jobs.enqueue(JobDraft(kind, f"{kind}:{session.id}", tx.now(), **place), tx.now())

    def count(tx: Transaction) -> dict[str, int]:
        found = {name: link_of(tx).row(sql) for name, sql in COUNTED.items()}
        return {name: int(row[0]) for name, row in found.items() if row is not None}

    await populate(store)
    await store.storage.transact(more)
    job = await store.storage.transact(
        lambda tx: tx.jobs.claim(
            kinds=[JobKind.FOLD], lease=timedelta(seconds=30), worker="w", max_crashes=6, now=tx.now()
        )
    )
    assert job is not None
    before = await store.storage.read(count)
    if by_import:
        lines, _ = await store.storage.read(lambda tx: tx.moving.export(cursor=None, limit=1_000))
        line = line_of(erasure, lines) if erasure is not None else {"type": "deleted", "id": uid("p0")}
        erased = await store.storage.transact(
            lambda tx: tx.moving.restore([{**line, "created_at": micros(tx.now())}], tx.now()).erased
        )
    elif erasure is None:
        erased = await store.storage.transact(lambda tx: tx.facts.delete(uid("p0")))
    else:
        erased = await erase(store, erasure)
    after = await store.storage.read(count)
    lost = {name: before[name] - after[name] for name in COUNTED}
    assert {**dict.fromkeys(COUNTED, 0), **erased} == lost
    assert lost["facts"] > 0
    assert lost["answers"] > 0


def line_of(erasure: Erasure, lines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the line by which another store tells that it has carried out an erasure."""
    (mark,) = erasure.marks
    named = (mark.agent, mark.principal, mark.session)
    (subject,) = [
        line
        for line in lines
        if line["type"] == "subject"
        and (line["agent"], line["principal"], line["session"]) == named
        and line["scope"] == mark.scope
    ]
    return {"type": "erased", "hashes": subject["hashes"]}


async def test_a_fact_that_others_said_too_loses_the_source_only(store: Store) -> None:
    shared = Owner(Scope.SHARED)
    mine, theirs = FactSource(AGENT, ALICE, "s1", "", (1,)), FactSource(AGENT, BOB, "s9", "", (4,))

    def work(tx: Transaction) -> None:
        tx.facts.add(fact("we all say", shared, source=mine), fact_id="both", actor="t", now=tx.now())
        tx.facts.add_source("both", theirs)

    await store.storage.transact(work)
    assert (await erase(store, PrincipalErasure(ALICE)))["facts"] == 0
    kept = await store.storage.read(lambda tx: tx.facts.get("both"))
    assert kept is not None
    assert kept.sources == (theirs,)
    assert (await erase(store, SessionErasure(AGENT, BOB, "s9"), receipt_id="r2"))["facts"] == 1


async def test_a_fact_that_many_sessions_said_goes_with_the_last_of_them(store: Store) -> None:
    sessions = [f"s{number}" for number in range(1, 8)]

    def work(tx: Transaction) -> None:
        tx.facts.add(fact("we say it again", pair_of(principal=ALICE)), fact_id="often", actor="t", now=tx.now())
        for session in sessions[1:]:
            tx.facts.add_source("often", FactSource(AGENT, ALICE, session))

    await store.storage.transact(work)
    gone = [
        (await erase(store, SessionErasure(AGENT, ALICE, session), receipt_id=session))["facts"]
        for session in ["s4", "s7", "s1", "s3", "s2", "s6", "s5"]
    ]
    assert gone == [0, 0, 0, 0, 0, 0, 1]


async def test_a_fact_that_others_said_too_keeps_nothing_but_its_text_of_who_said_it_first(store: Store) -> None:
    shared = Owner(Scope.SHARED)
    mine, theirs = FactSource(AGENT, ALICE, "s1"), FactSource(AGENT, BOB, "s9")
    given = {"key": "k", "dedupe_key": "d", "category": "c", "tags": ("t",), "evidence": "e", "importance": 0.5}

    def work(tx: Transaction) -> None:
        for fact_id, first, second in (("hers", mine, theirs), ("his", theirs, mine)):
            fields = {**given, "key": fact_id, "dedupe_key": fact_id, "attributes": {"a": "b"}}
            tx.facts.add(
                fact("we all say", shared, source=first, vector=vector(1), **fields),
                fact_id=fact_id,
                actor="t",
                now=tx.now(),
            )
            tx.facts.add_source(fact_id, second)
            later = FactChange({"said_at": tx.now()})
            tx.facts.change(fact_id, later, event="restated", actor="t", now=tx.now())

    await store.storage.transact(work)
    await erase(store, PrincipalErasure(ALICE))
    hers, his = await store.storage.read(lambda tx: (tx.facts.get("hers"), tx.facts.get("his")))
    assert hers is not None
    assert his is not None
    assert (hers.text, hers.sources, hers.has_vector) == ("we all say", (theirs,), True)
    assert (hers.key, hers.dedupe_key, hers.category, hers.tags, hers.evidence) == (None, None, None, (), None)
    assert (hers.importance, hers.attributes) == (None, {})
    assert (his.key, his.evidence, his.attributes, his.tags) == ("his", "e", {"a": "b"}, ("t",))
    pinned = FactChange({"pinned": True, "evidence": "his own"})
    await store.storage.transact(lambda tx: tx.facts.change("hers", pinned, event="corrected", actor="t", now=tx.now()))
    await store.storage.transact(lambda tx: tx.facts.add_source("hers", FactSource(OTHER_AGENT, "", "s")))
    await erase(store, PrincipalErasure(BOB), receipt_id="r2")
    hers = await store.storage.read(lambda tx: tx.facts.get("hers"))
    assert hers is not None
    assert hers.evidence is None


@pytest.mark.parametrize(
    "given",
    [
        {"key": "k"},
        {"dedupe_key": "d"},
        {"category": "c"},
        {"tags": ("t",)},
        {"evidence": "e"},
        {"importance": 0.5},
        {"attributes": {"a": "b"}},
    ],
    ids=lambda given: next(iter(given)),
)
async def test_the_one_thing_that_the_erased_gave_a_fact_of_others_goes(store: Store, given: dict[str, object]) -> None:
    mine, theirs = FactSource(AGENT, ALICE, "s1"), FactSource(AGENT, BOB, "s9")

    def work(tx: Transaction) -> None:
        draft = fact("we all say", Owner(Scope.SHARED), source=mine, **given)
        tx.facts.add(draft, fact_id="both", actor="t", now=tx.now())
        tx.facts.add_source("both", theirs)

    def said(tx: Transaction) -> tuple[object, ...]:
        row = tx.facts.get("both")
        assert row is not None
        return tuple(getattr(row, name) for name in given)

    await store.storage.transact(work)
    assert await store.storage.read(said) == tuple(given.values())
    await erase(store, PrincipalErasure(ALICE))
    assert await store.storage.read(said) in ((None,), ((),), ({},))


async def test_an_erasure_tells_every_process_that_facts_of_other_owners_changed(store: Store) -> None:
    """Another process keeps an owner's facts until their revision moves on."""
    shared, elsewhere = Owner(Scope.SHARED), Owner(Scope.SHARED, workspace="w")
    mine, theirs = FactSource(AGENT, ALICE, "s1"), FactSource(AGENT, BOB, "s9")

    def work(tx: Transaction) -> None:
        tx.facts.add(fact("we all say", shared, source=mine, evidence="hers"), fact_id="f", actor="t", now=tx.now())
        tx.facts.add_source("f", theirs)
        tx.facts.add(fact("he says", elsewhere, source=theirs), fact_id="his", actor="t", now=tx.now())

    def revisions(tx: Transaction) -> list[int]:
        rows = link_of(tx).rows("SELECT revision FROM @owners WHERE scope = 'shared' ORDER BY workspace")
        return [row[0] for row in rows]

    await store.storage.transact(work)
    touched, other = await store.storage.read(revisions)
    await erase(store, PrincipalErasure(ALICE))
    assert await store.storage.read(revisions) == [touched + 1, other]


@pytest.mark.parametrize(
    "erasure",
    [
        SessionErasure(AGENT, ALICE, "ada@example.org"),
        PairErasure(AGENT, ALICE),
        PrincipalErasure(ALICE),
        AgentErasure(AGENT),
    ],
    ids=["session", "pair", "principal", "agent"],
)
async def test_an_erased_owner_keeps_no_name(store: Store, erasure: Erasure) -> None:
    owner = session_of("ada@example.org", principal=ALICE, workspace="team of ada")

    def numbers(tx: Transaction) -> list[int]:
        tx.sessions.ensure(owner, Scope.PRIVATE, tx.now())
        tx.facts.add(fact("she says", owner), fact_id="f", actor="t", now=tx.now())
        tx.owners.share(erasure.marks)
        session = [owner, *([] if isinstance(erasure, SessionErasure) else [pair_of(principal=ALICE)])]
        return [tx.owners.ensure(named).id for named in [*session, *erasure.marks]]

    def names(tx: Transaction) -> set[tuple[str, ...]]:
        rows = link_of(tx).rows(
            "SELECT agent, principal, session, workspace FROM @owners WHERE id IN [:ids]", {"ids": erased}
        )
        return {tuple(row) for row in rows}

    erased = await store.storage.transact(numbers)
    assert ("", "", "", "") not in await store.storage.read(names)
    await erase(store, erasure)
    assert await store.storage.read(names) == {("", "", "", "")}


async def test_a_line_of_history_is_erased_with_the_source_of_its_text(store: Store) -> None:
    shared = Owner(Scope.SHARED)
    mine, theirs = FactSource(AGENT, ALICE, "s1"), FactSource(AGENT, BOB, "s2")

    def work(tx: Transaction) -> None:
        tx.facts.add(fact("hers", shared, source=mine), fact_id="f", actor="t", now=tx.now())
        tx.facts.change("f", FactChange({"pinned": True}), event="corrected", actor="t", now=tx.now())
        his = FactChange({"text": "his"}, terms=("his",), source=theirs)
        tx.facts.change("f", his, event="replaced", actor="t", now=tx.now())

    await store.storage.transact(work)
    assert (await erase(store, PrincipalErasure(ALICE)))["history"] == 2
    lines = await store.storage.read(lambda tx: tx.facts.history("f"))
    assert [line.text for line in lines] == ["his"]


async def test_generations_move_on_and_survive_the_names(store: Store) -> None:
    await populate(store)
    marks = [
        agent_mark(AGENT), pair_of(principal=ALICE), Owner(Scope.USER, principal=ALICE), session_of(principal=ALICE),
    ]  # fmt: skip

    async def generations() -> list[int]:
        rows = await store.storage.transact(lambda tx: tx.owners.share(marks))
        return [rows[mark].generation for mark in marks]

    assert await generations() == [0, 0, 0, 0]
    await erase(store, SessionErasure(AGENT, ALICE, "s1"), receipt_id="1")
    assert await generations() == [0, 0, 0, 1]
    await erase(store, PairErasure(AGENT, ALICE), receipt_id="2")
    agent, pair, user, _ = await generations()
    assert (agent, pair, user) == (0, 1, 0)
    await erase(store, PrincipalErasure(ALICE), receipt_id="3")
    agent, _, user, _ = await generations()
    assert (agent, user) == (0, 1)
    await erase(store, AgentErasure(AGENT), receipt_id="4")
    assert (await generations())[0] == 1
    before = await generations()
    await store.reopen()
    assert await generations() == before


async def test_an_erasure_of_what_was_never_stored_moves_its_mark(store: Store) -> None:
    await erase(store, PairErasure(AGENT, ALICE))
    rows = await store.storage.transact(lambda tx: tx.owners.share([pair_of(principal=ALICE)]))
    row = rows[pair_of(principal=ALICE)]
    assert row.generation == 1
    assert row.erased_at is not None
    assert abs(row.erased_at - store.clock.now()) < timedelta(minutes=1)


async def test_an_erased_principal_leaves_no_name(store: Store) -> None:
    principal = Principal("https://issuer", "alice")

    def work(tx: Transaction) -> None:
        tx.owners.name_principal(principal)
        live(tx, AGENT, principal.hash, "s1")

    await store.storage.transact(work)
    await erase(store, PrincipalErasure(principal.hash))
    assert await store.storage.read(lambda tx: tx.owners.principal_name(principal.hash)) is None


async def test_an_erased_owner_can_be_written_to_again(store: Store) -> None:
    await populate(store)
    await erase(store, PrincipalErasure(ALICE))
    await store.storage.transact(lambda tx: live(tx, AGENT, ALICE, "s1"))
    facts_left, sessions_left = await remaining(store)
    assert LIVES[0] in sessions_left
    assert ids(LIVES[0]) <= facts_left
    assert (await erase(store, PrincipalErasure(ALICE), receipt_id="second"))["turns"] == 3
    assert LIVES[0] not in (await remaining(store))[1]


async def test_a_worker_that_was_overtaken_by_an_erasure_stores_nothing(store: Store) -> None:
    await store.storage.transact(lambda tx: live(tx, AGENT, ALICE, "s1"))
    job = await store.storage.transact(
        lambda tx: tx.jobs.claim(
            kinds=[JobKind.EXTRACT], lease=timedelta(seconds=30), worker="w", max_crashes=6, now=tx.now()
        )
    )
    assert job is not None
    await erase(store, SessionErasure(AGENT, ALICE, "s1"))

    class LeaseLost(Exception):
        pass

    def finish(tx: Transaction) -> None:
        tx.facts.add(fact("too late", pair_of(principal=ALICE)), fact_id="late", actor="t", now=tx.now())
        if not tx.jobs.finish(job, tx.now()):
            raise LeaseLost

    with pytest.raises(LeaseLost):
        await store.storage.transact(finish)
    assert await store.storage.read(lambda tx: tx.facts.get("late")) is None


async def test_an_erasure_among_writes_leaves_only_what_was_written_after_it(store: Store) -> None:
    marks = [
        agent_mark(AGENT),
        pair_of(principal=ALICE),
        Owner(Scope.USER, principal=ALICE),
        session_of(principal=ALICE),
    ]

    def write(tx: Transaction, number: int) -> tuple[int, int]:
        generation = tx.owners.share(marks)[marks[2]].generation
        row = tx.sessions.ensure(session_of(principal=ALICE), Scope.PRIVATE, tx.now())
        tx.turns.append(row, [turn(f"{generation}")], tx.now())
        tx.facts.add(fact(f"{generation}", pair_of(principal=ALICE)), fact_id=f"f{number}", actor="t", now=tx.now())
        return generation, number

    async def writer(start: int) -> None:
        for step in range(12):
            await store.storage.transact(partial(write, number=start * 100 + step))

    async def eraser() -> None:
        for step in range(3):
            await erase(store, PrincipalErasure(ALICE), receipt_id=f"r{step}")

    await asyncio.gather(*(writer(number) for number in range(4)), eraser())
    await store.storage.transact(lambda tx: write(tx, 9_999))

    def read(tx: Transaction) -> set[str]:
        session = tx.sessions.find(session_of(principal=ALICE))
        assert session is not None
        turns = {row.text for row in tx.turns.between(session, after=0, upto=None, limit=1_000)}
        facts = tx.facts.list_all(filters=ItemFilters(now=store.clock.now()), limit=1_000, after=None)
        return turns | {row.text for row in facts}

    assert await store.storage.read(read) == {"3"}


async def test_a_thousand_facts_are_erased_in_one_go(store: Store) -> None:
    def work(tx: Transaction) -> None:
        for number in range(1_000):
            owner = pair_of(principal=ALICE) if number % 2 else Owner(Scope.SHARED)
            draft = fact(f"secret {number}", owner, source=FactSource(AGENT, ALICE, f"s{number % 10}"))
            tx.facts.add(draft, fact_id=f"f{number}", actor="t", now=tx.now())
        tx.facts.add(
            fact("kept", Owner(Scope.SHARED), source=FactSource(AGENT, BOB, "s")), fact_id="k", actor="t", now=tx.now()
        )

    await store.storage.transact(work)
    erased = await erase(store, PrincipalErasure(ALICE))
    assert (erased["facts"], erased["history"]) == (1_000, 1_000)
    assert (await remaining(store))[0] == {"k"}


async def test_answers_that_carry_what_was_said_go_with_it_whoever_was_given_them(store: Store) -> None:
    by_user, shared = Owner(Scope.USER, principal=ALICE), Owner(Scope.SHARED)
    there, elsewhere = FactSource(AGENT, ALICE, "s1"), FactSource(AGENT, ALICE, "s2")
    homes = [pair_of(principal=ALICE), pair_of(agent=OTHER_AGENT, principal=BOB)]
    facts = ("said there", "replaced since", "also elsewhere", "not there")

    def save(tx: Transaction) -> None:
        for fact_id, owner in (("said there", by_user), ("replaced since", by_user), ("also elsewhere", shared)):
            tx.facts.add(fact(fact_id, owner, source=there), fact_id=fact_id, actor="t", now=tx.now())
        anew = FactChange({"text": "anew"}, terms=("anew",), source=elsewhere)
        tx.facts.change("replaced since", anew, event="replaced", actor="t", now=tx.now())
        tx.facts.add_source("also elsewhere", elsewhere)
        tx.facts.add(fact("not there", by_user, source=elsewhere), fact_id="not there", actor="t", now=tx.now())
        for home in homes:
            for key in (*facts, ""):
                tx.idempotency.begin(home, route="r", key=f"k{key}", body_hash="h", now=tx.now())
                answer = StoredAnswer("h", 200, "secret", (key,) if key else ())
                tx.idempotency.finish(home, route="r", key=f"k{key}", answer=answer)

    def kept(tx: Transaction) -> set[str]:
        return {
            key
            for key in (*facts, "")
            for home in homes
            if tx.idempotency.begin(home, route="r", key=f"k{key}", body_hash="h", now=tx.now()) is not None
        }

    await store.storage.transact(save)
    assert (await erase(store, SessionErasure(AGENT, ALICE, "s1")))["answers"] == 6
    assert await store.storage.transact(kept) == {"not there", ""}


async def test_answers_that_carry_a_fact_go_when_it_is_deleted_or_expires(store: Store) -> None:
    owner, other = Owner(Scope.SHARED), pair_of(agent=OTHER_AGENT, principal=BOB)

    def save(tx: Transaction) -> None:
        for name in ("deleted", "expired"):
            draft = fact(name, owner, expires_at=tx.now() - timedelta(seconds=1) if name == "expired" else None)
            tx.facts.add(draft, fact_id=name, actor="t", now=tx.now())
            tx.idempotency.begin(other, route="r", key=name, body_hash="h", now=tx.now())
            tx.idempotency.finish(other, route="r", key=name, answer=StoredAnswer("h", 200, "secret", (name,)))

    def go(tx: Transaction) -> list[StoredAnswer | None]:
        tx.facts.delete("deleted")
        assert tx.facts.expire(now=tx.now(), facts_before=None, limit=10) == 1
        return [
            tx.idempotency.begin(other, route="r", key=name, body_hash="h", now=tx.now())
            for name in ("deleted", "expired")
        ]

    await store.storage.transact(save)
    assert await store.storage.transact(go) == [None, None]


async def test_forgetting_under_a_key_keeps_the_keys_answer(store: Store) -> None:
    home = pair_of(principal=ALICE)

    def forget(tx: Transaction) -> StoredAnswer | None:
        known = tx.idempotency.begin(home, route="forget", key="k", body_hash="h", now=tx.now())
        if known is None:
            tx.erasing.erase(PairErasure(AGENT, ALICE), receipt_id="r", asked_by=home, now=tx.now())
            tx.idempotency.finish(home, route="forget", key="k", answer=StoredAnswer("h", 200, "{}"))
        return known

    assert await store.storage.transact(forget) is None
    assert await store.storage.transact(forget) == StoredAnswer("h", 200, "{}")


async def test_a_receipt_says_how_far_the_erasure_is(store: Store) -> None:
    await populate(store)
    erased = await erase(store, SessionErasure(AGENT, ALICE, "s1"))
    (receipt,) = await store.storage.read(lambda tx: tx.receipts.unpurged(limit=5))
    assert (receipt.agent, receipt.principal, receipt.status) == (AGENT, ALICE, ErasureStatus.ERASED)
    assert (receipt.erased, receipt.purged_at, receipt.waiting_for) == (erased, None, ())
    job = await store.storage.transact(
        lambda tx: tx.jobs.claim(
            kinds=[JobKind.PURGE], lease=timedelta(seconds=30), worker="w", max_crashes=6, now=tx.now()
        )
    )
    assert job is not None
    for step in (PurgeStep(False, ("snapshot",)), PurgeStep(True), PurgeStep(False, ("lock",))):
        await store.storage.transact(lambda tx, step=step: tx.receipts.note_purge([receipt.id], step, tx.now()))
    purged = await store.storage.read(lambda tx: tx.receipts.get(receipt.id))
    assert purged is not None
    assert (purged.status, purged.waiting_for) == (ErasureStatus.PURGED, ())
    assert purged.purged_at is not None
    assert await store.storage.read(lambda tx: tx.receipts.unpurged(limit=5)) == []
    assert await store.storage.read(lambda tx: tx.receipts.get("unknown")) is None


async def test_a_receipt_can_be_left_for_what_was_deleted_by_id(store: Store) -> None:
    receipt = await store.storage.transact(
        lambda tx: tx.receipts.add("r", asked_by=pair_of(principal=ALICE), erased={"facts": 1}, now=tx.now())
    )
    assert await store.storage.read(lambda tx: tx.receipts.get("r")) == receipt
    admin = await store.storage.transact(lambda tx: tx.receipts.add("a", asked_by=None, erased={}, now=tx.now()))
    assert (admin.agent, admin.principal) == ("", "")
