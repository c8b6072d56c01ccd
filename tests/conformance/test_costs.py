"""What an operation costs: indexes are used, and no cost grows with what lies beside."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from memory_service.contract.scopes import Kind, Scope
from memory_service.contract.sessions import JobKind, JobState
from memory_service.domain.owners import (
    AgentErasure,
    AgentPairs,
    Owner,
    PairErasure,
    PrincipalErasure,
    PrincipalPairs,
    SessionErasure,
    agent_mark,
)
from memory_service.ports.records import (
    DigestRow,
    FactChange,
    FactSource,
    ItemFilters,
    JobDraft,
    StoredAnswer,
)
from memory_service.ports.storage import Transaction
from memory_service.storage.transaction import RowTransaction
from tests.fakes.stores import AGENT, ALICE, Store, fact, pair_of, session_of, turn, uid, vector

_WHOLE_TABLE = re.compile(
    r"Seq Scan on (?P<postgres>\w+)"
    r"|SCAN (?P<sqlite>(?!json_each|CONSTANT|t VIRTUAL)\w+)(?! USING (COVERING )?INDEX)(?! VIRTUAL)\b"
)

Statement = tuple[str, dict[str, Any]]


@contextmanager
def recorded(tx: Transaction) -> Iterator[list[Statement]]:
    """Collect the statements that a transaction runs."""
    assert isinstance(tx, RowTransaction)
    link: Any = tx.link
    statements: list[Statement] = []
    execute, run_many, row_of_each = link._execute, link.run_many, link.row_of_each

    def noting(sql: str, parameters: Mapping[str, Any] | None) -> object:
        statements.append((sql, dict(parameters or {})))
        return execute(sql, parameters)

    def noting_many(sql: str, parameters: Iterable[Mapping[str, Any]]) -> None:
        sets = list(parameters)
        statements.extend((sql, dict(one)) for one in sets[:1])
        run_many(sql, sets)

    def noting_each(sql: str, parameters: Iterable[Mapping[str, Any]]) -> object:
        sets = list(parameters)
        statements.extend((sql, dict(one)) for one in sets[:1])
        link._execute = execute
        try:
            return row_of_each(sql, sets)
        finally:
            link._execute = noting

    link._execute, link.run_many, link.row_of_each = noting, noting_many, noting_each
    try:
        yield statements
    finally:
        link._execute, link.run_many, link.row_of_each = execute, run_many, row_of_each


async def test_an_append_costs_the_same_whatever_the_window_holds(store: Store) -> None:
    def append(tx: Transaction, count: int) -> list[str]:
        with recorded(tx) as statements:
            tx.owners.share([agent_mark(AGENT), pair_of(), session_of()])
            session = tx.sessions.ensure(session_of(), Scope.PRIVATE, tx.now())
            tx.turns.append(session, [turn(f"t{n}", client_id=None) for n in range(count)], tx.now())
        return [sql for sql, _ in statements]

    await store.storage.transact(lambda tx: append(tx, 1))
    small = await store.storage.transact(lambda tx: append(tx, 1))
    await store.storage.transact(lambda tx: append(tx, 2_000))
    large = await store.storage.transact(lambda tx: append(tx, 1))
    assert small == large
    assert len(small) <= 6
    assert not [sql for sql in large if "SUM(" in sql or "COUNT(" in sql]


def conversation(tx: Transaction) -> None:
    """Write a turn as an agent does, and read what it reads."""
    owner = session_of(principal=ALICE)
    tx.owners.share([agent_mark(AGENT), pair_of(principal=ALICE), owner])
    tx.idempotency.begin(pair_of(principal=ALICE), route="r", key="k", body_hash="h", now=tx.now())
    session = tx.sessions.ensure(owner, Scope.SHARED, tx.now())
    tx.turns.append(session, [turn("a b", client_id="1"), turn("c", client_id="2")], tx.now())
    tx.jobs.enqueue(JobDraft(JobKind.FOLD, "k", tx.now(), session_id=session.id, owner_id=session.home_id), tx.now())
    tx.idempotency.finish(pair_of(principal=ALICE), route="r", key="k", answer=StoredAnswer("h", 200, "{}"))
    session = tx.sessions.lock(session.id) or session
    tx.turns.window(session, limit=10)
    tx.turns.between(session, after=0, upto=5, limit=10)
    unindexed = tx.turns.unindexed(session.id, limit=10)
    tx.turns.store_vectors(session.id, {row.id: vector(1) for row in unindexed})
    tx.turns.get([session.home_id], [row.id for row in unindexed])
    homes = list(tx.owners.find([pair_of(principal=ALICE)]).values())
    tx.turns.list(homes, session=None, after=0, limit=10)
    tx.digests.append(DigestRow(session.id, 1, "d", 1, 1, tx.now()), folded_from=0, keep=3)
    tx.digests.latest(session.id)
    tx.sessions.list(homes, limit=10, before=(tx.now(), 5))
    tx.sessions.partitions(owner)
    tx.sessions.get_many({session.id})
    tx.sessions.waiting_for_extraction(idle_before=tx.now(), limit=5)
    tx.sessions.advance_extracted(session.id, from_seq=0, to_seq=1)
    tx.owners.pairs(AgentPairs(AGENT))
    tx.owners.pairs(PrincipalPairs(ALICE))
    tx.owners.get(session.home_id)
    tx.owners.find_searched([pair_of(principal=ALICE), owner])
    tx.turns.expire(before=tx.now() - timedelta(days=1), limit=5)
    tx.digests.expire(before=tx.now() - timedelta(days=1), limit=5)


def facts(tx: Transaction) -> None:
    """Save, find, change and delete facts."""
    owner = Owner(Scope.USER, principal=ALICE)
    tx.owners.lock(owner)
    tx.facts.by_key(owner, "k")
    tx.facts.by_dedupe_key(owner, "d")
    tx.facts.by_text(owner, "text")
    row = tx.facts.add(fact("text", owner, key="k", dedupe_key="d"), fact_id=uid("f"), actor="t", now=tx.now())
    for number in range(2, 6):
        tx.facts.add_source(uid("f"), FactSource(AGENT, ALICE, f"s{number}"))
    tx.facts.store_vectors({uid("f"): (1, vector(1))})
    tx.facts.change(uid("f"), FactChange({"text": "x"}, terms=("x",)), event="corrected", actor="t", now=tx.now())
    tx.facts.by_row_ids([tx.owners.ensure(owner).id], [row.row_id])
    tx.facts.ids([tx.owners.ensure(owner).id], [row.row_id])
    tx.facts.history(uid("f"))
    every = ItemFilters(
        now=tx.now(), kinds=frozenset({Kind.SEMANTIC}), categories=frozenset({"c"}), tags=frozenset({"t"}),
        since=tx.now(), until=tx.now(), min_importance=0.5,
    )  # fmt: skip
    tx.facts.list(list(tx.owners.find([owner]).values()), filters=every, limit=5, after=3)
    tx.facts.list_all(filters=every, limit=5, after=3)
    tx.facts.without_vector(limit=5)
    tx.facts.count_active()
    tx.facts.expire(now=tx.now(), facts_before=tx.now() - timedelta(days=1), limit=5)
    tx.facts.delete("f")


def jobs(tx: Transaction) -> None:
    """Work as a worker and an operator do."""
    tx.jobs.enqueue(JobDraft(JobKind.FOLD, "k", tx.now() - timedelta(minutes=1), lane="l"), tx.now())
    assert tx.jobs.is_any_due(lease=timedelta(seconds=9))
    job = tx.jobs.claim(kinds=[JobKind.FOLD], lease=timedelta(seconds=9), worker="w", max_crashes=6, now=tx.now())
    assert job is not None
    tx.jobs.renew(job, lease=timedelta(seconds=9), now=tx.now())
    tx.jobs.fail(job, error="x", is_own=True, retry_at=tx.now(), now=tx.now())
    tx.jobs.is_running(JobKind.FOLD, 1, tx.now())
    tx.jobs.list(homes=None, state=JobState.DEAD, session=None, limit=5, before=(tx.now(), "x"))
    tx.jobs.list(homes=None, state=None, session=None, limit=5, before=None)
    tx.jobs.forget_done(before=tx.now(), limit=5)
    tx.receipts.unpurged(limit=5)
    tx.idempotency.expire(before=tx.now() - timedelta(days=1), limit=5)
    tx.idempotency.forget_commits(before=tx.now() - timedelta(days=1), limit=5)


def erasures(tx: Transaction) -> None:
    """Erase subjects of every shape."""
    for number, erasure in enumerate(
        (SessionErasure(AGENT, ALICE, "s"), PairErasure(AGENT, ALICE), PrincipalErasure(ALICE), AgentErasure(AGENT))
    ):
        tx.erasing.erase(erasure, receipt_id=f"r{number}", asked_by=None, now=tx.now())


def moving(tx: Transaction) -> None:
    """Read pages of an export, store what they hold, and erase what another store has erased."""
    assert isinstance(tx, RowTransaction)
    conversation(tx)
    facts(tx)
    for stage in (1, 2, 3, 4, 5, 6, 8):
        tx.moving.export(cursor=f"[{stage}, 1]", limit=5)
    tx.facts.delete(uid("f"))
    tx.moving.export(cursor='[7, "0"]', limit=5)
    lines = exported(tx)
    subjects = [_elsewhere(line) for line in lines if line["type"] == "subject"]
    tx.moving.restore([*lines, *subjects], tx.now())
    for line in subjects:
        told = {"type": "erased", "hashes": line["hashes"], "created_at": tx.link.now_micros()}
        tx.moving.restore([told], tx.now())


def _elsewhere(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a line as another store exports it: who is in it has other hashes there."""
    if line["type"] != "subject":
        return line
    return {**line, "hashes": [hashlib.sha256(key.encode()).hexdigest() for key in line["hashes"]]}


def exported(tx: Transaction) -> list[Mapping[str, Any]]:
    """Return everything there is, as an import takes it."""
    found, _ = tx.moving.export(cursor=None, limit=10_000)
    return [json.loads(json.dumps(line)) for line in found]


@pytest.mark.parametrize("work", [conversation, facts, jobs, erasures, moving])
async def test_no_statement_reads_a_whole_table(target: Store, work: Callable[[Transaction], None]) -> None:
    """A database of its own: plans go by the pages and the counts that earlier tests left in a shared one."""

    def explain(tx: Transaction) -> dict[str, list[str]]:
        assert isinstance(tx, RowTransaction)
        with recorded(tx) as statements:
            work(tx)
        tx.link.rows("[[SELECT set_config('enable_seqscan', 'off', true)|SELECT 1]]")
        scans: dict[str, list[str]] = {}
        for sql, parameters in statements:
            plan = tx.link.rows(f"[[EXPLAIN|EXPLAIN QUERY PLAN]] {sql}", parameters)
            text = "\n".join(str(row[-1]) for row in plan)
            found = [next(name for name in match.groups() if name) for match in _WHOLE_TABLE.finditer(text)]
            if found:
                scans[sql] = found
        return scans

    assert await target.storage.transact(explain) == {}


async def test_a_claim_is_a_few_statements_however_long_the_queue_is(store: Store) -> None:
    drafts = [JobDraft(JobKind.FOLD, f"k{n}", store.clock.now() - timedelta(seconds=1)) for n in range(500)]
    await store.storage.transact(lambda tx: [tx.jobs.enqueue(draft, tx.now()) for draft in drafts])

    def claim(tx: Transaction) -> int:
        with recorded(tx) as statements:
            tx.jobs.claim(kinds=[JobKind.FOLD], lease=timedelta(seconds=9), worker="w", max_crashes=6, now=tx.now())
        return len(statements)

    assert await store.storage.transact(claim) <= 3


@pytest.mark.parametrize("is_analyzed", [False, True])
async def test_a_job_of_one_kind_is_looked_for_among_those_of_its_kind_alone(store: Store, is_analyzed: bool) -> None:
    """Both planners prefer other indexes, with and without statistics, where they may: 100,000 rows a claim."""
    due = store.clock.now() - timedelta(seconds=1)

    class Undone(Exception):
        pass

    def plans(tx: Transaction) -> None:
        for number in range(1_000):
            tx.jobs.enqueue(JobDraft(JobKind.EXTRACT, f"k{number}", due, lane=f"l{number}"), tx.now())
        tx.jobs.enqueue(JobDraft(JobKind.EMBED, "k", due), tx.now())
        assert isinstance(tx, RowTransaction)
        if is_analyzed:
            tx.link.run("ANALYZE @jobs")
        with recorded(tx) as statements:
            tx.jobs.is_any_due(lease=timedelta(seconds=9))
            kinds = [JobKind.EMBED, JobKind.PURGE]
            tx.jobs.claim(kinds=kinds, lease=timedelta(seconds=9), worker="w", max_crashes=6, now=tx.now())
        for sql, parameters in statements:
            lines = tx.link.rows(f"[[EXPLAIN|EXPLAIN QUERY PLAN]] {sql}", parameters)
            looked.append((sql, "\n".join(str(line[-1]) for line in lines)))
        raise Undone

    looked: list[tuple[str, str]] = []
    with pytest.raises(Undone):
        await store.storage.transact(plans)
    by_kind = re.compile(r"jobs_due \(kind=\?|using jobs_due on jobs.*\n\s+Index Cond: \(+kind = [^A]")
    of_queued = [(sql, plan) for sql, plan in looked if "'queued'" in sql]
    assert [(sql, plan) for sql, plan in of_queued if not by_kind.search(plan)] == []
    assert (len(of_queued), len(looked)) == (4, 4)


async def test_an_import_is_as_many_statements_for_a_thousand_lines_as_for_one_of_each_type(store: Store) -> None:
    def lines_of(tx: Transaction, count: int, name: str) -> list[Mapping[str, Any]]:
        for number in range(count):
            session = tx.sessions.ensure(session_of(f"{name}-{number}", principal=ALICE), Scope.PRIVATE, tx.now())
            tx.turns.append(session, [turn(f"t{number}", client_id=None)], tx.now())
            digest = DigestRow(session.id, 1, "said", 1, 2, tx.now())
            tx.digests.append(digest, folded_from=0, keep=5)
            source = FactSource(AGENT, ALICE, f"{name}-{number}")
            draft = fact(f"{name}-{number}", pair_of(principal=ALICE), source=source)
            tx.facts.add(draft, fact_id=uid(f"{name}-{number}"), actor="t", now=tx.now())
        found = [line for line in exported(tx) if (line["session"] or line.get("text", "")).startswith(name)]
        return [_elsewhere(line) for line in found]

    class Undone(Exception):
        pass

    def undone(tx: Transaction, lines: list[Mapping[str, Any]], count: int, name: str) -> None:
        lines += lines_of(tx, count, name)
        raise Undone

    async def statements(count: int, name: str) -> list[str]:
        lines: list[Mapping[str, Any]] = []
        with pytest.raises(Undone):
            await store.storage.transact(partial(undone, lines=lines, count=count, name=name))

        def restore(tx: Transaction) -> list[str]:
            with recorded(tx) as found:
                assert set(tx.moving.restore(lines, tx.now()).outcomes) == {"imported"}
            return [sql for sql, _ in found]

        return await store.storage.transact(restore)

    await statements(1, "first")
    two = await statements(2, "two")
    assert await statements(250, "many") == two


async def test_an_erasure_is_as_many_statements_for_a_thousand_rows_as_for_one(store: Store) -> None:
    def erase(tx: Transaction, count: int, name: str) -> int:
        session = tx.sessions.ensure(session_of(principal=ALICE), Scope.PRIVATE, tx.now())
        tx.turns.append(session, [turn(f"t{n}") for n in range(count)], tx.now())
        for number in range(count // 10 + 1):
            draft = fact(f"f{number}", Owner(Scope.SHARED), source=FactSource(AGENT, ALICE, "s1"))
            tx.facts.add(draft, fact_id=f"{name}-{number}", actor="t", now=tx.now())
        with recorded(tx) as statements:
            receipt = tx.erasing.erase(PrincipalErasure(ALICE), receipt_id=name, asked_by=None, now=tx.now())
        assert (receipt.erased["turns"], receipt.erased["facts"]) == (count, count // 10 + 1)
        return len(statements)

    await store.storage.transact(lambda tx: erase(tx, 1, "first"))
    one = await store.storage.transact(lambda tx: erase(tx, 1, "one"))
    assert await store.storage.transact(lambda tx: erase(tx, 1_000, "thousand")) == one
