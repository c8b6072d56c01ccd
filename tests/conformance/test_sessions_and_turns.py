"""Sessions and turns: what is appended is there, in order, once, at a cost that does not grow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from memory_service.contract.scopes import Scope
from memory_service.contract.sessions import JobKind
from memory_service.contract.turns import Role
from memory_service.domain.owners import Owner
from memory_service.ports.records import DigestRow, JobDraft, SessionRow, TurnDraft, TurnRow
from memory_service.ports.storage import Transaction
from tests.fakes.stores import ALICE, BOB, OTHER_AGENT, Store, pair_of, session_of, turn, vector


def append(tx: Transaction, owner: Owner, turns: Sequence[TurnDraft]) -> Sequence[int]:
    session = tx.sessions.ensure(owner, Scope.PRIVATE, tx.now())
    return tx.turns.append(session, turns, tx.now())


def found(tx: Transaction, owner: Owner) -> SessionRow:
    session = tx.sessions.find(owner)
    assert session is not None
    return session


async def write(store: Store, owner: Owner, *texts: str) -> Sequence[int]:
    return await store.storage.transact(lambda tx: append(tx, owner, [turn(text) for text in texts]))


async def window(store: Store, owner: Owner, limit: int = 100) -> Sequence[TurnRow]:
    return await store.storage.read(lambda tx: tx.turns.window(found(tx, owner), limit=limit))


async def test_turns_come_back_in_order_as_they_were_said(store: Store) -> None:
    said = TurnDraft(
        role=Role.TOOL,
        content="shown",
        text="shown and searched",
        parts=({"type": "tool_call", "id": "1", "name": "f", "arguments": {"ü": [1, None, "\n"]}},),
        name="tool",
        said_at=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        tokens=7,
        terms=("shown", "search"),
        client_id="c-1",
        infer=False,
    )
    assert await store.storage.transact(lambda tx: append(tx, session_of(), [turn("first"), said])) == [1, 2]
    first, second = await window(store, session_of())
    assert (first.seq, first.text, first.content) == (1, "first", "first")
    assert second == TurnRow(
        id=second.id,
        session_id=second.session_id,
        seq=2,
        role=said.role,
        content=said.content,
        text=said.text,
        parts=said.parts,
        name=said.name,
        said_at=said.said_at,
        tokens=said.tokens,
        client_id=said.client_id,
        infer=said.infer,
    )


async def test_a_turn_survives_a_restart(store: Store) -> None:
    await write(store, session_of(), "remember me")
    await store.reopen()
    assert [row.text for row in await window(store, session_of())] == ["remember me"]


async def test_a_known_client_id_is_answered_with_its_seq_and_stored_once(store: Store) -> None:
    owner = session_of()
    drafts = [turn("a", client_id="1"), turn("b"), turn("c", client_id="2"), turn("c again", client_id="2")]
    assert await store.storage.transact(lambda tx: append(tx, owner, drafts)) == [1, 2, 3, 3]
    again = [turn("new"), turn("c", client_id="2"), turn("a", client_id="1")]
    assert await store.storage.transact(lambda tx: append(tx, owner, again)) == [4, 3, 1]
    assert [row.text for row in await window(store, owner)] == ["a", "b", "c", "new"]
    session = await store.storage.read(lambda tx: found(tx, owner))
    assert (session.last_seq, session.window_turns, session.window_tokens) == (4, 4, 12)


async def test_one_client_id_in_two_sessions_is_two_turns(store: Store) -> None:
    for name in ("s1", "s2"):
        written = await store.storage.transact(
            lambda tx, name=name: append(tx, session_of(name), [turn("x", client_id="1")])
        )
        assert written == [1]


async def test_writers_at_the_same_time_lose_and_repeat_nothing(store: Store) -> None:
    owner = session_of()

    async def writer(number: int) -> None:
        for step in range(10):
            await write(store, owner, f"w{number}-{step}a", f"w{number}-{step}b")

    await asyncio.gather(*(writer(number) for number in range(8)))
    rows = await window(store, owner, limit=1_000)
    assert [row.seq for row in rows] == list(range(1, 161))
    assert len({row.text for row in rows}) == 160
    session = await store.storage.read(lambda tx: found(tx, owner))
    assert (session.last_seq, session.window_turns, session.window_tokens) == (160, 160, 480)


async def test_retries_of_one_turn_at_the_same_time_store_it_once(store: Store) -> None:
    owner = session_of()
    seqs = await asyncio.gather(
        *(store.storage.transact(lambda tx: append(tx, owner, [turn("once", client_id="id-1")])) for _ in range(16))
    )
    assert set(map(tuple, seqs)) == {(1,)}
    assert len(await window(store, owner)) == 1


async def test_two_agents_and_two_users_with_one_session_id_have_their_own_sessions(store: Store) -> None:
    owners = [
        session_of(),
        session_of(principal=ALICE),
        session_of(principal=BOB),
        session_of(agent=OTHER_AGENT),
        session_of(workspace="w"),
    ]
    for number, owner in enumerate(owners):
        assert await write(store, owner, f"text {number}") == [1]
    for number, owner in enumerate(owners):
        assert [row.text for row in await window(store, owner)] == [f"text {number}"]
        home = await store.storage.read(lambda tx, owner=owner: tx.owners.get(found(tx, owner).home_id))
        assert home is not None
        assert home.owner == pair_of(agent=owner.agent, principal=owner.principal, workspace=owner.workspace)


async def test_the_partitions_of_a_session_are_its_workspaces_and_nobody_elses(store: Store) -> None:
    mine = [session_of(principal=ALICE), session_of(principal=ALICE, workspace="w1")]
    for owner in [*mine, session_of(principal=BOB, workspace="w1"), session_of("s2", principal=ALICE)]:
        await write(store, owner, "x")
    rows = await store.storage.read(lambda tx: tx.sessions.partitions(session_of(principal=ALICE)))
    assert [row.owner for row in rows] == mine


async def test_the_window_is_the_newest_turns_after_the_fold(store: Store) -> None:
    owner = session_of()
    await write(store, owner, *(f"t{n}" for n in range(1, 11)))
    assert [row.seq for row in await window(store, owner, limit=3)] == [8, 9, 10]
    assert await fold(store, owner, upto=6, folded_from=0)
    assert [row.seq for row in await window(store, owner)] == [7, 8, 9, 10]
    session = await store.storage.read(lambda tx: found(tx, owner))
    assert (session.folded_seq, session.window_turns, session.window_tokens, session.digest_version) == (6, 4, 12, 1)


async def fold(store: Store, owner: Owner, *, upto: int, folded_from: int, keep: int = 20) -> bool:
    def work(tx: Transaction) -> bool:
        session = found(tx, owner)
        digest = DigestRow(session.id, session.digest_version + 1, f"upto {upto}", upto, 5, tx.now())
        return tx.digests.append(digest, folded_from=folded_from, keep=keep)

    return await store.storage.transact(work)


async def test_of_two_folds_of_the_same_turns_one_is_stored(store: Store) -> None:
    owner = session_of()
    await write(store, owner, *(f"t{n}" for n in range(1, 11)))
    results = await asyncio.gather(*(fold(store, owner, upto=5, folded_from=0) for _ in range(8)))
    assert sorted(results) == [False] * 7 + [True]
    session = await store.storage.read(lambda tx: found(tx, owner))
    assert (session.window_turns, session.digest_version) == (5, 1)


async def test_only_the_newest_digests_are_kept_newest_first(store: Store) -> None:
    owner = session_of()
    await write(store, owner, *(f"t{n}" for n in range(1, 11)))
    for upto in range(1, 6):
        assert await fold(store, owner, upto=upto, folded_from=upto - 1, keep=3)
    session = await store.storage.read(lambda tx: found(tx, owner))
    digests = await store.storage.read(lambda tx: tx.digests.list(session.id, limit=10))
    assert [digest.version for digest in digests] == [5, 4, 3]
    latest = await store.storage.read(lambda tx: tx.digests.latest(session.id))
    assert latest is not None
    assert (latest.summary, latest.upto_seq) == ("upto 5", 5)


async def test_a_digest_beyond_the_last_turn_is_refused(store: Store) -> None:
    await write(store, session_of(), "one")
    assert not await fold(store, session_of(), upto=2, folded_from=0)


async def test_turns_between_two_seqs(store: Store) -> None:
    owner = session_of()
    await write(store, owner, *(f"t{n}" for n in range(1, 11)))

    def between(tx: Transaction, after: int, upto: int | None, limit: int) -> list[int]:
        return [row.seq for row in tx.turns.between(found(tx, owner), after=after, upto=upto, limit=limit)]

    assert await store.storage.read(lambda tx: between(tx, 2, 5, 10)) == [3, 4, 5]
    assert await store.storage.read(lambda tx: between(tx, 8, None, 10)) == [9, 10]
    assert await store.storage.read(lambda tx: between(tx, 0, None, 2)) == [1, 2]


async def test_a_write_opens_an_ended_session_again(store: Store) -> None:
    owner = session_of()
    await write(store, owner, "a")
    await store.storage.transact(lambda tx: tx.sessions.end(found(tx, owner).id, tx.now()))
    assert (await store.storage.read(lambda tx: found(tx, owner))).ended_at is not None
    await write(store, owner, "b")
    assert (await store.storage.read(lambda tx: found(tx, owner))).ended_at is None


async def test_extraction_moves_on_only_from_where_it_was(store: Store) -> None:
    owner = session_of()
    await write(store, owner, "a", "b", "c")
    session = await store.storage.read(lambda tx: found(tx, owner))

    def advance(tx: Transaction, from_seq: int, to_seq: int) -> bool:
        return tx.sessions.advance_extracted(session.id, from_seq=from_seq, to_seq=to_seq)

    assert await store.storage.transact(lambda tx: advance(tx, 0, 2))
    assert not await store.storage.transact(lambda tx: advance(tx, 0, 3))
    assert (await store.storage.read(lambda tx: found(tx, owner))).extracted_seq == 2


async def test_idle_sessions_wait_for_extraction_oldest_first(store: Store) -> None:
    for name in ("old", "older-written-again", "extracted"):
        await write(store, session_of(name), "x")
    done = await store.storage.read(lambda tx: found(tx, session_of("extracted")))
    await store.storage.transact(lambda tx: tx.sessions.advance_extracted(done.id, from_seq=0, to_seq=1))
    store.clock.advance(timedelta(hours=1))
    await write(store, session_of("older-written-again"), "y")
    await write(store, session_of("busy"), "y")

    async def waiting() -> list[str]:
        before = store.clock.now() - timedelta(minutes=30)
        rows = await store.storage.read(lambda tx: tx.sessions.waiting_for_extraction(idle_before=before, limit=10))
        return [row.owner.session for row in rows]

    assert await waiting() == ["old"]
    store.clock.advance(timedelta(hours=1))
    assert await waiting() == ["old", "older-written-again", "busy"]


async def test_a_session_whose_job_is_dead_does_not_wait_for_another(store: Store) -> None:
    for name in ("dead", "alive"):
        await write(store, session_of(name), "x")
    session = await store.storage.read(lambda tx: found(tx, session_of("dead")))

    def die(tx: Transaction, kind: JobKind) -> None:
        tx.jobs.enqueue(JobDraft(kind, f"{kind}:{session.id}", tx.now(), session_id=session.id), tx.now())
        job = tx.jobs.claim(kinds=[kind], lease=timedelta(seconds=30), worker="w", max_crashes=6, now=tx.now())
        assert job is not None
        tx.jobs.fail(job, error="x", is_own=True, retry_at=None, now=tx.now())

    for kind in (JobKind.EXTRACT, JobKind.INDEX_TURNS):
        await store.storage.transact(lambda tx, kind=kind: die(tx, kind))
    idle = store.clock.now() + timedelta(hours=1)
    extracted, indexed = await store.storage.read(
        lambda tx: (
            tx.sessions.waiting_for_extraction(idle_before=idle, limit=10),
            tx.sessions.waiting_for_index(limit=10),
        )
    )
    assert [row.owner.session for row in (*extracted, *indexed)] == ["alive", "alive"]


async def test_a_session_whose_job_waits_or_runs_keeps_no_other_from_being_swept(store: Store) -> None:
    for name in ("first", "second"):
        await write(store, session_of(name), "x")
    first = await store.storage.read(lambda tx: found(tx, session_of("first")))
    draft = JobDraft(JobKind.EXTRACT, "extract:first", store.clock.now(), session_id=first.id)
    await store.storage.transact(lambda tx: tx.jobs.enqueue(draft, tx.now()))
    idle = store.clock.now() + timedelta(hours=1)

    async def waiting() -> list[str]:
        rows = await store.storage.read(lambda tx: tx.sessions.waiting_for_extraction(idle_before=idle, limit=1))
        return [row.owner.session for row in rows]

    assert await waiting() == ["second"]
    job = await store.storage.transact(
        lambda tx: tx.jobs.claim(
            kinds=[JobKind.EXTRACT], lease=timedelta(seconds=30), worker="w", max_crashes=6, now=tx.now()
        )
    )
    assert job is not None
    assert await waiting() == ["second"]
    await store.storage.transact(lambda tx: tx.jobs.finish(job, tx.now()))
    assert await waiting() == ["first"]


async def test_sessions_are_listed_newest_write_first_page_by_page(store: Store) -> None:
    for number in range(5):
        await write(store, session_of(f"s{number}"), "x")
    await write(store, session_of("s1"), "newest")
    await write(store, session_of("foreign", principal=BOB), "x")

    def page(tx: Transaction, before: tuple[datetime, int] | None) -> Sequence[SessionRow]:
        return tx.sessions.list(list(tx.owners.find([pair_of()]).values()), limit=2, before=before)

    names: list[str] = []
    before = None
    while rows := await store.storage.read(lambda tx, before=before: page(tx, before)):
        names += [row.owner.session for row in rows]
        before = (rows[-1].last_write_at, rows[-1].id)
    assert names == ["s1", "s4", "s3", "s2", "s0"]
    assert await store.storage.read(lambda tx: tx.sessions.list([], limit=10, before=None)) == []


async def test_a_session_remembers_where_its_facts_go(store: Store) -> None:
    owner = session_of()
    for scope in (Scope.PRIVATE, Scope.SHARED):
        await store.storage.transact(lambda tx, scope=scope: tx.sessions.ensure(owner, scope, tx.now()))
        assert (await store.storage.read(lambda tx: found(tx, owner))).fact_scope is scope


async def test_turns_wait_for_their_vectors_until_they_have_one_or_need_none(store: Store) -> None:
    owner = session_of()
    await write(store, owner, "a", "", "c")
    session = await store.storage.read(lambda tx: found(tx, owner))

    async def waiting() -> list[int]:
        return [row.seq for row in await store.storage.read(lambda tx: tx.turns.unindexed(session.id, limit=10))]

    rows = await store.storage.read(lambda tx: tx.turns.unindexed(session.id, limit=10))
    assert await store.storage.read(lambda tx: tx.sessions.waiting_for_index(limit=5)) == [session]
    vectors = {rows[0].id: vector(1), rows[1].id: None, 999_999: vector(2)}
    assert await store.storage.transact(lambda tx: tx.turns.store_vectors(session.id, vectors)) == 2
    assert await waiting() == [3]
    assert await store.storage.transact(lambda tx: tx.turns.store_vectors(session.id, {rows[2].id: vector(3)})) == 1
    assert await waiting() == []
    assert await store.storage.read(lambda tx: tx.sessions.waiting_for_index(limit=5)) == []


async def test_turns_of_pairs_are_listed_by_row_under_their_owners_only(store: Store) -> None:
    await write(store, session_of(principal=ALICE), "a1", "a2")
    await write(store, session_of("s2", principal=ALICE), "a3")
    await write(store, session_of(principal=BOB), "b1")

    def texts(tx: Transaction, principal: str, session: str | None, after: int | None) -> list[tuple[int, str]]:
        homes = list(tx.owners.find([pair_of(principal=principal)]).values())
        row = None if session is None else found(tx, session_of(session, principal=ALICE))
        return [(r.id, r.text) for r in tx.turns.list(homes, session=row, after=after, limit=10)]

    listed = await store.storage.read(lambda tx: texts(tx, ALICE, None, None))
    assert [text for _, text in listed] == ["a1", "a2", "a3"]
    after = listed[1][0]
    assert [text for _, text in await store.storage.read(lambda tx: texts(tx, ALICE, None, after))] == ["a3"]
    assert [text for _, text in await store.storage.read(lambda tx: texts(tx, ALICE, "s2", None))] == ["a3"]
    assert await store.storage.read(lambda tx: texts(tx, BOB, "s1", None)) == []
    assert await store.storage.read(lambda tx: tx.turns.list([], session=None, after=None, limit=10)) == []
    alice, bob = [
        await store.storage.read(lambda tx, who=who: tx.owners.find([who])[who].id)
        for who in (pair_of(principal=ALICE), pair_of(principal=BOB))
    ]
    for homes, expected in (([alice, bob], [("a2", "s1", "")]), ([bob], []), ([], [])):
        by_row = await store.storage.read(lambda tx, homes=homes: tx.turns.get(homes, [after, 999_999]))
        assert [(row.turn.text, row.session, row.workspace) for row in by_row.values()] == expected


async def test_old_turns_expire_and_leave_the_totals_right(store: Store) -> None:
    owner = session_of()
    await write(store, owner, "old 1", "old 2", "old 3")
    assert await fold(store, owner, upto=1, folded_from=0)
    store.clock.advance(timedelta(days=2))
    await write(store, owner, "new")
    before = store.clock.now() - timedelta(days=1)
    assert await store.storage.transact(lambda tx: tx.turns.expire(before=before, limit=2)) == 2
    assert await store.storage.transact(lambda tx: tx.turns.expire(before=before, limit=2)) == 1
    assert await store.storage.transact(lambda tx: tx.turns.expire(before=before, limit=2)) == 0
    assert [row.text for row in await window(store, owner)] == ["new"]
    session = await store.storage.read(lambda tx: found(tx, owner))
    assert (session.last_seq, session.window_turns, session.window_tokens) == (4, 1, 3)


async def test_turns_that_expire_before_they_were_extracted_are_waited_for_no_longer(store: Store) -> None:
    gone, kept, extracted = session_of("gone"), session_of("kept"), session_of("extracted")
    for owner in (gone, kept, extracted):
        await write(store, owner, "old 1", "old 2", "old 3")
    session = await store.storage.read(lambda tx: found(tx, extracted))
    await store.storage.transact(lambda tx: tx.sessions.advance_extracted(session.id, from_seq=0, to_seq=3))
    store.clock.advance(timedelta(days=2))
    await write(store, kept, "new 4")
    before = store.clock.now() - timedelta(days=1)
    assert await store.storage.transact(lambda tx: tx.turns.expire(before=before, limit=2)) == 2

    async def extracted_seqs() -> list[int]:
        owners = (gone, kept, extracted)
        return [(await store.storage.read(lambda tx, owner=owner: found(tx, owner))).extracted_seq for owner in owners]

    assert await extracted_seqs() == [2, 0, 3]
    assert await store.storage.transact(lambda tx: tx.turns.expire(before=before, limit=100)) == 7
    assert await extracted_seqs() == [3, 3, 3]
    idle = store.clock.now() + timedelta(hours=1)
    rows = await store.storage.read(lambda tx: tx.sessions.waiting_for_extraction(idle_before=idle, limit=9))
    assert [row.owner for row in rows] == [kept]


async def test_a_session_without_a_turn_to_extract_waits_for_nothing(store: Store) -> None:
    """An export may bring a session without the turns that its source has deleted."""
    await write(store, session_of("s1"), "x", "y")
    session = await store.storage.read(lambda tx: found(tx, session_of("s1")))
    before = store.clock.now() + timedelta(hours=1)
    await store.storage.transact(lambda tx: tx.turns.expire(before=before, limit=9))
    await store.storage.transact(lambda tx: tx.sessions.advance_extracted(session.id, from_seq=2, to_seq=0))
    assert await store.storage.read(lambda tx: tx.sessions.waiting_for_extraction(idle_before=before, limit=9)) == []


async def test_digests_expire_by_when_they_were_made_and_the_next_one_has_the_next_version(store: Store) -> None:
    owner, other = session_of(), session_of("s2")
    for one in (owner, other):
        await write(store, one, *(f"t{n}" for n in range(1, 7)))
    for upto in (1, 2):
        assert await fold(store, owner, upto=upto, folded_from=upto - 1)
    store.clock.advance(timedelta(days=2))
    assert await fold(store, other, upto=1, folded_from=0)
    before = store.clock.now() - timedelta(days=1)

    async def expire() -> int:
        return await store.storage.transact(lambda tx: tx.digests.expire(before=before, limit=1))

    assert [await expire() for _ in range(3)] == [1, 1, 0]
    session = await store.storage.read(lambda tx: found(tx, owner))
    assert await store.storage.read(lambda tx: tx.digests.latest(session.id)) is None
    assert (session.digest_version, session.folded_seq, session.window_turns) == (2, 2, 4)
    kept = await store.storage.read(lambda tx: tx.digests.latest(found(tx, other).id))
    assert kept is not None
    assert await fold(store, owner, upto=3, folded_from=2)
    digests = await store.storage.read(lambda tx: tx.digests.list(session.id, limit=9))
    assert [(digest.version, digest.upto_seq) for digest in digests] == [(3, 3)]


async def test_what_raises_leaves_nothing_behind(store: Store) -> None:
    class Stop(Exception):
        pass

    def work(tx: Transaction) -> None:
        append(tx, session_of("broken"), [turn("never")])
        raise Stop

    results = await asyncio.gather(
        *(store.storage.transact(work) for _ in range(3)),
        *(write(store, session_of(f"fine-{n}"), "x") for n in range(3)),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [Stop] * 3 + [list] * 3
    assert await store.storage.read(lambda tx: tx.sessions.find(session_of("broken"))) is None
    assert await store.storage.read(lambda tx: tx.owners.find([session_of("broken")])) == {}


async def test_text_of_any_kind_is_stored_as_it_is(store: Store) -> None:
    texts = [
        "<|endoftext|>",
        "'; DROP TABLE turns; --",
        "100 % :name @turns [[x|y]] {now}",
        "日本語 \U0001f9e0",
        "\\ \t\n",
    ]
    await write(store, session_of(), *texts)
    assert [row.text for row in await window(store, session_of())] == texts
