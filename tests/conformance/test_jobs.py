"""The durable queue: due jobs run once at a time, nothing is lost, nobody starves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from memory_service.contract.scopes import Scope
from memory_service.contract.sessions import JobKind, JobState
from memory_service.ports.records import JobDraft, JobRow
from memory_service.ports.storage import Transaction
from tests.fakes.stores import ALICE, BOB, Store, pair_of, session_of

LEASE = timedelta(seconds=30)
KINDS = tuple(JobKind)


def draft(
    store: Store, key: str = "k", *, kind: JobKind = JobKind.FOLD, lane: str | None = None, **fields: object
) -> JobDraft:
    values = {"run_at": store.clock.now() - timedelta(seconds=1), **fields}
    return JobDraft(kind=kind, dedupe_key=key, lane=lane, **values)  # type: ignore[arg-type]


async def enqueue(store: Store, *drafts: JobDraft) -> list[str]:
    return await store.storage.transact(lambda tx: [tx.jobs.enqueue(one, tx.now()) for one in drafts])


async def claim(store: Store, kinds: Sequence[JobKind] = KINDS) -> JobRow | None:
    return await store.storage.transact(
        lambda tx: tx.jobs.claim(kinds=kinds, lease=LEASE, worker="w", max_crashes=6, now=tx.now())
    )


async def is_any_due(store: Store) -> bool:
    return await store.storage.read(lambda tx: tx.jobs.is_any_due(lease=LEASE))


async def claimed(store: Store) -> JobRow:
    job = await claim(store)
    assert job is not None
    return job


async def fail(
    store: Store, job: JobRow, *, error: str = "x", is_own: bool = True, retry_at: datetime | None = None
) -> bool:
    return await store.storage.transact(
        lambda tx: tx.jobs.fail(job, error=error, is_own=is_own, retry_at=retry_at, now=tx.now())
    )


async def crash(store: Store) -> None:
    """Let the lease of a claimed job expire, and wait out what it is put off for."""
    await claimed(store)
    store.clock.advance(LEASE + timedelta(seconds=1))
    assert await claim(store, [JobKind.PURGE]) is None
    store.clock.advance(timedelta(minutes=1))


async def get(store: Store, job_id: str) -> JobRow:
    job = await store.storage.read(lambda tx: tx.jobs.get(job_id))
    assert job is not None
    return job


async def test_a_job_is_claimed_once_and_finished_by_its_holder(store: Store) -> None:
    (job_id,) = await enqueue(store, draft(store, payload={"force": True}, request_id="r-1"))
    claims = await asyncio.gather(*(claim(store) for _ in range(8)))
    (job,) = [job for job in claims if job is not None]
    assert (job.id, job.state, job.attempts, job.payload, job.request_id) == (
        job_id, JobState.RUNNING, 0, {"force": True}, "r-1",
    )  # fmt: skip
    assert await store.storage.transact(lambda tx: tx.jobs.finish(job, tx.now()))
    assert not await store.storage.transact(lambda tx: tx.jobs.finish(job, tx.now()))
    done = await get(store, job_id)
    assert (done.state, done.lease_token) == (JobState.DONE, None)
    assert done.finished_at is not None


async def test_a_second_draft_of_a_queued_job_is_that_job(store: Store) -> None:
    first, second, other = await enqueue(store, draft(store), draft(store), draft(store, kind=JobKind.EXTRACT))
    assert first == second != other
    await claimed(store)
    await claimed(store)
    assert await enqueue(store, draft(store)) != [first]


async def test_a_draft_that_says_where_to_read_on_tells_the_queued_job(store: Store) -> None:
    (job_id,) = await enqueue(store, draft(store))
    assert await enqueue(store, draft(store, payload={"place": 7}), draft(store)) == [job_id, job_id]
    assert (await get(store, job_id)).payload == {"place": 7}


async def test_drafts_at_the_same_time_leave_one_job(store: Store) -> None:
    ids = await asyncio.gather(*(enqueue(store, draft(store)) for _ in range(12)))
    assert len({job_id for (job_id,) in ids}) == 1


async def test_an_earlier_draft_moves_a_waiting_job_forward_but_never_past_its_backoff(store: Store) -> None:
    later = store.clock.now() + timedelta(hours=1)
    (job_id,) = await enqueue(store, draft(store, run_at=later))
    assert await claim(store) is None
    await enqueue(store, draft(store))
    job = await claimed(store)
    assert job.id == job_id
    await fail(store, job, error="ModelUnavailable", retry_at=later)
    await enqueue(store, draft(store))
    assert await claim(store) is None


async def test_a_job_waits_until_it_is_due(store: Store) -> None:
    await enqueue(store, draft(store, run_at=store.clock.now() + timedelta(minutes=5)))
    assert await claim(store) is None
    store.clock.advance(timedelta(minutes=6))
    assert await claim(store) is not None


async def test_a_look_tells_whether_a_claim_would_find_anything(store: Store) -> None:
    assert not await is_any_due(store)
    await enqueue(store, draft(store, run_at=store.clock.now() + timedelta(minutes=5)))
    assert not await is_any_due(store)
    store.clock.advance(timedelta(minutes=6))
    assert await is_any_due(store)
    await claimed(store)
    assert not await is_any_due(store)
    store.clock.advance(LEASE + timedelta(seconds=1))
    assert await is_any_due(store), "its lease expired"
    await fail(store, await claimed(store))
    assert not await is_any_due(store), "it is dead"


async def test_jobs_are_claimed_by_kind_in_the_order_they_are_due(store: Store) -> None:
    now = store.clock.now()
    await enqueue(
        store,
        draft(store, "b", run_at=now - timedelta(seconds=5)),
        draft(store, "a", run_at=now - timedelta(seconds=9)),
        draft(store, "c", kind=JobKind.EMBED, run_at=now - timedelta(seconds=99)),
    )
    assert await claim(store, [JobKind.PURGE]) is None
    first, second = await claim(store, [JobKind.FOLD]), await claim(store, [JobKind.FOLD])
    assert first is not None
    assert second is not None
    assert first.run_at < second.run_at
    assert await claim(store, [JobKind.FOLD]) is None


async def test_a_busy_session_does_not_starve_the_rest(store: Store) -> None:
    now = store.clock.now()
    await enqueue(store, draft(store, "noisy", lane="noisy", run_at=now - timedelta(seconds=9)))
    await enqueue(
        store, *(draft(store, f"quiet-{n}", lane=f"quiet-{n}", run_at=now - timedelta(seconds=8 - n)) for n in range(3))
    )
    order = []
    for _ in range(4):
        job = await claimed(store)
        order.append(job.lane)
        await enqueue(store, draft(store, "noisy", lane="noisy", run_at=store.clock.now()))
        await store.storage.transact(lambda tx, job=job: tx.jobs.finish(job, tx.now()))
    assert order == ["noisy", "quiet-0", "quiet-1", "quiet-2"]


async def test_jobs_of_one_lane_never_run_at_the_same_time(store: Store) -> None:
    await enqueue(store, *(draft(store, f"k{n}", lane="session:1") for n in range(6)), draft(store, "free"))
    claims = [job for job in await asyncio.gather(*(claim(store) for _ in range(8))) if job is not None]
    assert sorted(str(job.lane) for job in claims) == ["None", "session:1"]
    (held,) = [job for job in claims if job.lane is not None]
    assert await claim(store) is None
    await store.storage.transact(lambda tx: tx.jobs.finish(held, tx.now()))
    following = await claimed(store)
    assert following.lane == "session:1"


async def test_many_workers_run_every_job_once(store: Store) -> None:
    await enqueue(store, *(draft(store, f"k{n}", lane=f"lane-{n % 7}") for n in range(40)))
    ran: list[str] = []
    running: set[str] = set()

    async def worker() -> None:
        idle = 0
        while idle < 40 and len(ran) < 40:
            job = await claim(store)
            if job is None:
                idle += 1
                await asyncio.sleep(0)
                continue
            assert job.lane not in running
            running.add(str(job.lane))
            ran.append(job.id)
            running.discard(str(job.lane))
            assert await store.storage.transact(lambda tx, job=job: tx.jobs.finish(job, tx.now()))

    await asyncio.gather(*(worker() for _ in range(8)))
    assert len(ran) == len(set(ran)) == 40


async def test_an_expired_lease_lets_another_worker_claim_and_counts_an_attempt(store: Store) -> None:
    await enqueue(store, draft(store, lane="l"))
    lost = await claimed(store)
    store.clock.advance(LEASE + timedelta(seconds=1))
    again = await claimed(store)
    assert (again.id, again.attempts) == (lost.id, 1)
    assert again.lease_token != lost.lease_token
    assert not await store.storage.transact(lambda tx: tx.jobs.renew(lost, lease=LEASE, now=tx.now()))
    assert not await store.storage.transact(lambda tx: tx.jobs.finish(lost, tx.now()))
    assert not await store.storage.transact(lambda tx: tx.jobs.release(lost, tx.now()))
    assert not await fail(store, lost)
    assert await store.storage.transact(lambda tx: tx.jobs.finish(again, tx.now()))


async def test_a_lease_that_a_clock_wrote_before_it_was_set_back_is_none(store: Store) -> None:
    """A process dies while its clock is hours ahead: its lanes are everybody's."""
    store.clock.advance(timedelta(hours=6))
    (job_id,) = await enqueue(store, draft(store, lane="purge"))
    lost = await claimed(store)
    store.clock.advance(-timedelta(hours=6))
    assert await is_any_due(store)
    taken = await claimed(store)
    assert (taken.id, taken.attempts, taken.crashes) == (job_id, 0, 0)
    assert not await store.storage.transact(lambda tx: tx.jobs.finish(lost, tx.now()))


async def test_a_delay_that_a_clock_wrote_before_it_was_set_back_is_over(store: Store) -> None:
    store.clock.advance(timedelta(hours=6))
    (job_id,) = await enqueue(store, draft(store))
    job = await claimed(store)
    await fail(store, job, error="ModelUnavailable", is_own=False, retry_at=store.clock.now() + timedelta(minutes=15))
    store.clock.advance(-timedelta(hours=6))
    assert await is_any_due(store)
    taken = await claimed(store)
    assert (taken.id, taken.attempts) == (job_id, 1)


async def test_a_clock_that_is_corrected_by_seconds_takes_no_job_from_its_worker(store: Store) -> None:
    await enqueue(store, draft(store))
    job = await claimed(store)
    store.clock.advance(-timedelta(seconds=30))
    assert not await is_any_due(store)
    assert await claim(store) is None
    assert await store.storage.transact(lambda tx: tx.jobs.renew(job, lease=LEASE, now=tx.now()))


async def test_a_job_that_kills_its_worker_each_time_waits_longer_each_time_and_is_dead_in_the_end(
    store: Store,
) -> None:
    (job_id,) = await enqueue(store, draft(store, lane="l"))
    waits = []
    for crashes in range(1, 7):
        waited = 0
        while await claim(store) is None:
            store.clock.advance(timedelta(seconds=1))
            waited += 1
        waits.append(waited)
        assert (await get(store, job_id)).attempts == crashes - 1
        store.clock.advance(LEASE + timedelta(seconds=1))
    assert await claim(store) is None
    assert waits[:2] == [0, 0]
    assert waits == sorted(waits)
    assert waits[-1] > 4
    job = await get(store, job_id)
    assert (job.state, job.attempts) == (JobState.DEAD, 6)
    assert job.error is not None
    assert job.error.startswith("lease expired, time 6")
    assert await store.storage.transact(lambda tx: tx.jobs.retry(job_id, tx.now()))
    assert (await claimed(store)).id == job_id


async def test_a_crash_after_an_outage_is_the_first_one(store: Store) -> None:
    (job_id,) = await enqueue(store, draft(store))
    for _ in range(9):
        job = await claimed(store)
        await fail(store, job, is_own=False, retry_at=store.clock.now())
    await claimed(store)
    store.clock.advance(LEASE + timedelta(seconds=1))
    assert (await claimed(store)).id == job_id


async def test_an_outage_between_crashes_does_not_make_the_next_one_the_first(store: Store) -> None:
    (job_id,) = await enqueue(store, draft(store))
    for _ in range(5):
        await crash(store)
        await fail(store, await claimed(store), is_own=False, retry_at=store.clock.now())
    assert (await get(store, job_id)).state is JobState.QUEUED
    await crash(store)
    job = await get(store, job_id)
    assert (job.state, job.attempts, job.crashes, job.failures) == (JobState.DEAD, 11, 6, 0)


async def test_what_a_job_fails_of_itself_is_counted_apart_from_outages_and_crashes(store: Store) -> None:
    (job_id,) = await enqueue(store, draft(store))
    counts = []
    for is_own in (False, True, False, True):
        await fail(store, await claimed(store), is_own=is_own, retry_at=store.clock.now())
        job = await get(store, job_id)
        counts.append((job.attempts, job.failures, job.crashes))
    assert counts == [(1, 0, 0), (2, 1, 0), (3, 1, 0), (4, 2, 0)]
    await crash(store)
    job = await claimed(store)
    assert (job.attempts, job.failures, job.crashes) == (5, 2, 1)
    await fail(store, job)
    job = await get(store, job_id)
    assert (job.state, job.attempts, job.failures, job.crashes) == (JobState.DEAD, 6, 3, 1)


@pytest.mark.parametrize("way", ["retry", "replay", "replay queued"])
async def test_a_job_that_a_person_puts_back_begins_with_nothing_counted(store: Store, way: str) -> None:
    (job_id,) = await enqueue(store, draft(store))
    await crash(store)
    await fail(store, await claimed(store), retry_at=store.clock.now() if way == "replay queued" else None)
    state = JobState.QUEUED if way == "replay queued" else JobState.DEAD
    await store.storage.transact(
        lambda tx: tx.jobs.retry(job_id, tx.now()) if way == "retry" else tx.jobs.replay(state, tx.now())
    )
    job = await claimed(store)
    assert (job.id, job.attempts, job.failures, job.crashes) == (job_id, 0, 0, 0)


async def test_a_renewed_lease_is_kept(store: Store) -> None:
    await enqueue(store, draft(store))
    job = await claimed(store)
    store.clock.advance(timedelta(seconds=20))
    assert await store.storage.transact(lambda tx: tx.jobs.renew(job, lease=LEASE, now=tx.now()))
    store.clock.advance(timedelta(seconds=20))
    assert await claim(store) is None
    assert await store.storage.transact(lambda tx: tx.jobs.finish(job, tx.now()))


async def test_a_failed_job_waits_for_its_retry_and_dies_without_one(store: Store) -> None:
    await enqueue(store, draft(store))
    job = await claimed(store)
    retry_at = store.clock.now() + timedelta(minutes=1)
    assert await fail(store, job, error="ModelUnavailable", retry_at=retry_at)
    assert (await get(store, job.id)).error == "ModelUnavailable"
    assert await claim(store) is None
    store.clock.advance(timedelta(minutes=2))
    again = await claimed(store)
    assert again.attempts == 1
    assert await fail(store, again, error="UnparseableAnswer")
    dead = await get(store, job.id)
    assert (dead.state, dead.attempts, dead.error) == (JobState.DEAD, 2, "UnparseableAnswer")
    assert await claim(store) is None


async def test_a_job_that_is_handed_back_has_no_attempt_more(store: Store) -> None:
    await enqueue(store, draft(store))
    job = await claimed(store)
    assert await store.storage.transact(lambda tx: tx.jobs.release(job, tx.now()))
    again = await claimed(store)
    assert (again.id, again.attempts) == (job.id, 0)


@pytest.mark.parametrize("way", ["lease", "fail", "release"])
async def test_a_job_that_goes_back_beside_a_queued_twin_leaves_its_counts_to_it(store: Store, way: str) -> None:
    await enqueue(store, draft(store))
    job = await claimed(store)
    (twin_id,) = await enqueue(store, draft(store))
    assert twin_id != job.id
    ways = {
        "lease": lambda tx: store.clock.advance(LEASE * 2),
        "fail": lambda tx: tx.jobs.fail(job, error="x", is_own=True, retry_at=store.clock.now(), now=tx.now()),
        "release": lambda tx: tx.jobs.release(job, tx.now()),
    }
    await store.storage.transact(ways[way])
    store.clock.advance(timedelta(seconds=1))
    following = await claimed(store)
    assert (following.id, following.attempts, following.failures, following.crashes) == (
        twin_id, way != "release", way == "fail", way == "lease",
    )  # fmt: skip
    assert (await get(store, job.id)).state is JobState.DONE
    assert await claim(store) is None


async def test_a_job_that_goes_back_beside_a_queued_twin_tells_it_where_it_was(store: Store) -> None:
    await enqueue(store, draft(store, payload={"place": 7}))
    job = await claimed(store)
    (twin,) = await enqueue(store, draft(store))
    await fail(store, job, retry_at=store.clock.now())
    assert (await get(store, twin)).payload == {"place": 7}


async def test_a_dead_job_can_be_put_back(store: Store) -> None:
    await enqueue(store, draft(store))
    job = await claimed(store)
    assert not await store.storage.transact(lambda tx: tx.jobs.retry(job.id, tx.now()))
    await fail(store, job)
    assert await store.storage.transact(lambda tx: tx.jobs.retry(job.id, tx.now()))
    again = await claimed(store)
    assert (again.id, again.attempts) == (job.id, 0)
    assert not await store.storage.transact(lambda tx: tx.jobs.retry("unknown", tx.now()))


async def test_all_dead_jobs_are_replayed_and_one_key_is_queued_once(store: Store) -> None:
    for key in ("a", "a", "b", "c"):
        await enqueue(store, draft(store, key))
        job = await claimed(store)
        await fail(store, job)
    await enqueue(store, draft(store, "c"))
    assert await store.storage.transact(lambda tx: tx.jobs.replay(JobState.DEAD, tx.now())) == 3
    counts, _ = await store.storage.read(lambda tx: tx.jobs.counts(tx.now()))
    assert counts == {JobState.QUEUED: 3, JobState.RUNNING: 0, JobState.DEAD: 0}


async def test_of_one_key_the_newest_job_alone_is_dead_and_one_that_succeeds_stands_for_it(store: Store) -> None:
    ids = []
    for _ in range(2):
        ids += await enqueue(store, draft(store))
        job = await claimed(store)
        await fail(store, job)
    await enqueue(store, draft(store, kind=JobKind.EXTRACT))
    job = await claimed(store)
    await fail(store, job)
    assert [(await get(store, job_id)).state for job_id in ids] == [JobState.DONE, JobState.DEAD]
    await enqueue(store, draft(store))
    again = await claimed(store)
    assert await store.storage.transact(lambda tx: tx.jobs.finish(again, tx.now()))
    states = [(await get(store, job_id)).state for job_id in (*ids, again.id, job.id)]
    assert states == [JobState.DONE, JobState.DONE, JobState.DONE, JobState.DEAD]


async def test_counts_say_how_late_the_oldest_due_job_is(store: Store) -> None:
    counts, age = await store.storage.read(lambda tx: tx.jobs.counts(tx.now()))
    assert (set(counts.values()), age) == ({0}, 0)
    await enqueue(store, draft(store, run_at=store.clock.now() + timedelta(seconds=30)), draft(store, "x"))
    store.clock.advance(timedelta(seconds=90))
    counts, age = await store.storage.read(lambda tx: tx.jobs.counts(tx.now()))
    assert counts[JobState.QUEUED] == 2
    assert 90 <= age < 100


async def test_a_job_that_fails_is_late_since_it_was_made_though_its_next_try_is_to_come(store: Store) -> None:
    await enqueue(store, draft(store, run_at=store.clock.now()))
    for minutes in (1, 10, 60):
        job = await claimed(store)
        later = store.clock.now() + timedelta(minutes=minutes)
        await fail(store, job, retry_at=later)
        store.clock.advance(timedelta(minutes=minutes))
    _, age = await store.storage.read(lambda tx: tx.jobs.counts(tx.now()))
    assert age >= 71 * 60
    job = await claimed(store)
    await enqueue(store, draft(store, run_at=store.clock.now()))
    later = store.clock.now() + timedelta(minutes=5)
    await fail(store, job, retry_at=later)
    _, age = await store.storage.read(lambda tx: tx.jobs.counts(tx.now()))
    assert age >= 71 * 60, "its twin stands for it"


async def test_finished_jobs_alone_are_forgotten_after_a_while(store: Store) -> None:
    ids = await enqueue(store, *(draft(store, f"k{n}") for n in range(5)))
    ended = {}
    for way in ("done", "done", "dead", "running"):
        job = await claimed(store)
        ended[job.id] = way
        if way == "done":
            await store.storage.transact(lambda tx, job=job: tx.jobs.finish(job, tx.now()))
        elif way == "dead":
            await fail(store, job)
    store.clock.advance(timedelta(hours=1))
    before = store.clock.now() - timedelta(minutes=1)
    assert await store.storage.transact(lambda tx: tx.jobs.forget_done(before=before, limit=1)) == 1
    assert await store.storage.transact(lambda tx: tx.jobs.forget_done(before=before, limit=9)) == 1
    assert await store.storage.transact(lambda tx: tx.jobs.forget_done(before=before, limit=9)) == 0
    left = await store.storage.read(lambda tx: [job_id for job_id in ids if tx.jobs.get(job_id) is not None])
    assert left == [job_id for job_id in ids if ended.get(job_id) != "done"]


async def test_jobs_are_listed_newest_first_under_their_owners(store: Store) -> None:
    def work(tx: Transaction, principal: str) -> None:
        session = tx.sessions.ensure(session_of(principal=principal), Scope.PRIVATE, tx.now())
        for n in range(3):
            one = draft(store, f"{principal}{n}", session_id=session.id, owner_id=session.home_id)
            tx.jobs.enqueue(one, tx.now())

    for principal in (ALICE, BOB):
        await store.storage.transact(lambda tx, principal=principal: work(tx, principal))
    await enqueue(store, draft(store, "nobody's"))

    def listed(
        tx: Transaction, *, all_owners: bool = False, state: JobState | None = None, in_session: bool = False
    ) -> list[str]:
        homes = None if all_owners else list(tx.owners.find([pair_of(principal=ALICE)]).values())
        session = tx.sessions.find(session_of(principal=ALICE))
        assert session is not None
        found: list[str] = []
        before = None
        while rows := tx.jobs.list(
            homes=homes, state=state, session=[session] if in_session else None, limit=2, before=before
        ):
            found += [row.id for row in rows]
            before = (rows[-1].created_at, rows[-1].id)
        return found

    mine = await store.storage.read(listed)
    assert len(mine) == len(set(mine)) == 3
    assert await store.storage.read(lambda tx: listed(tx, in_session=True)) == mine
    assert len(await store.storage.read(lambda tx: listed(tx, all_owners=True))) == 7
    assert await store.storage.read(lambda tx: listed(tx, state=JobState.DEAD)) == []
    none = await store.storage.read(lambda tx: tx.jobs.list(homes=[], state=None, session=None, limit=9, before=None))
    assert none == []


async def test_a_running_job_of_a_session_is_seen(store: Store) -> None:
    await enqueue(store, draft(store, session_id=7))

    async def running(kind: JobKind, session_id: int) -> bool:
        return await store.storage.read(lambda tx: tx.jobs.is_running(kind, session_id, tx.now()))

    assert not await running(JobKind.FOLD, 7)
    await claimed(store)
    assert await running(JobKind.FOLD, 7)
    assert not await running(JobKind.EXTRACT, 7)
    assert not await running(JobKind.FOLD, 8)
    store.clock.advance(LEASE * 2)
    assert not await running(JobKind.FOLD, 7)


async def test_a_job_is_enqueued_only_with_what_causes_it(store: Store) -> None:
    def fails(tx: Transaction) -> None:
        tx.jobs.enqueue(draft(store), tx.now())
        raise LookupError

    with pytest.raises(LookupError):
        await store.storage.transact(fails)
    assert await claim(store) is None
