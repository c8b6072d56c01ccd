"""Upkeep of the whole store: the sweep, what expires, the purge of erased bytes, and the index."""

from __future__ import annotations

import logging
from datetime import timedelta

from memory_service.contract.sessions import JobKind
from memory_service.domain.retention import FINISHED_JOBS_KEPT, IDEMPOTENCY_KEPT, cut_off
from memory_service.operations.background.embed import embed_job
from memory_service.operations.background.held import HeldJob
from memory_service.operations.enqueue import extract_job, index_job, indexes_turns
from memory_service.operations.services import Services
from memory_service.ports.records import JobDraft
from memory_service.ports.storage import Transaction

logger = logging.getLogger(__name__)

SWEEP_SESSIONS = 200
"""Idle sessions that one sweep looks at; the next sweep takes more."""
EXPIRE_ROWS = 500
"""Rows that one expiry deletes per table, so that no transaction is long."""
EXPIRE_COMMITS = 10_000
"""Marks of commits that it deletes: they are small, and there is one for each transaction of a day."""
PURGE_RECEIPTS = 10_000
"""Receipts that one purge settles: all that were there before it began, but for a flood of them."""
PURGE_AGAIN = timedelta(seconds=5), timedelta(minutes=10)
"""How soon a purge that waits for a lock, a snapshot or space tries again, at first and at last."""


async def sweep(services: Services, *, upkeep: bool = True) -> int:
    """Enqueue what the state of the store calls for, whoever should have done it before; return how many jobs.

    Level-based: idle sessions are extracted, facts without a vector embedded, old rows expired and erased bytes purged
    even when the process that owed it died. `upkeep` adds what need not run often: expiry and the vector index.
    Safe to run on every replica at once.
    """

    def wanted(tx: Transaction) -> list[JobDraft]:
        now = tx.now()
        drafts: list[JobDraft | None] = []
        if upkeep:
            drafts += [
                JobDraft(kind=JobKind.EXPIRE, dedupe_key="expire", run_at=now, lane="expire"),
                JobDraft(kind=JobKind.RECONCILE_INDEX, dedupe_key="reconcile_index", run_at=now, lane="vector_index"),
            ]
        if services.engine is not None:
            idle_before = cut_off(now, services.config.extraction.idle_seconds)
            idle = (
                tx.sessions.waiting_for_extraction(idle_before=idle_before, limit=SWEEP_SESSIONS)
                if idle_before is not None
                else ()
            )
            drafts.extend(extract_job(services, session, now, None, force=True) for session in idle)
        if indexes_turns(services.config):
            unindexed = tx.sessions.waiting_for_index(limit=SWEEP_SESSIONS)
            drafts.extend(index_job(services.config, session, now, None) for session in unindexed)
        if tx.facts.without_vector(limit=1):
            drafts.append(embed_job(tx))
        drafts.append(_purge_again(tx, services))
        return [draft for draft in drafts if draft is not None]

    def enqueue(tx: Transaction) -> None:
        for draft in drafts:
            tx.jobs.enqueue(draft, tx.now())

    drafts = await services.storage.read(wanted)
    if drafts:
        await services.storage.transact(enqueue)
        services.wake()
    return len(drafts)


async def expire(held: HeldJob) -> None:
    """Delete what is past its time: facts, turns whether they were folded and extracted or not, digests that tell of
    nothing newer, answers, done jobs.
    """
    retention = held.services.config.retention

    def work(tx: Transaction) -> JobDraft | None:
        now = tx.now()
        facts = tx.facts.expire(now=now, facts_before=cut_off(now, retention.facts_seconds), limit=EXPIRE_ROWS)
        turns = digests = 0
        turns_before = cut_off(now, retention.turns_seconds)
        if turns_before is not None:
            turns = tx.turns.expire(before=turns_before, limit=EXPIRE_ROWS)
            digests = tx.digests.expire(before=turns_before, limit=EXPIRE_ROWS)
        answers = tx.idempotency.expire(before=now - IDEMPOTENCY_KEPT, limit=EXPIRE_ROWS)
        jobs = tx.jobs.forget_done(before=now - FINISHED_JOBS_KEPT, limit=EXPIRE_ROWS)
        commits = tx.idempotency.forget_commits(before=now - IDEMPOTENCY_KEPT, limit=EXPIRE_COMMITS)
        if max(facts, turns, digests, answers, jobs) < EXPIRE_ROWS and commits < EXPIRE_COMMITS:
            return None
        return JobDraft(kind=JobKind.EXPIRE, dedupe_key="expire", run_at=now, lane="expire")

    await held.store(work, then=lambda following: following)


async def purge(held: HeldJob) -> None:
    """Carry the bytes of erased rows off the disk and write it on their receipts; try again while it must wait.

    One purge settles every receipt from before it began. It rests in proportion to what it took, so that whoever
    deletes one fact after another does not keep all others from writing.
    """
    services = held.services
    if services.purges.rest():
        await held.store(lambda tx: _purge_again(tx, services), then=lambda following: following)
        return None
    receipts = await services.storage.read(lambda tx: tx.receipts.unpurged(limit=PURGE_RECEIPTS))
    if not receipts:
        return await held.drop()
    with services.purges.measured():
        step = await services.storage.purge()
    purged: list[int] = []

    def work(tx: Transaction) -> JobDraft | None:
        purged.append(tx.receipts.note_purge([receipt.id for receipt in receipts], step, tx.now()))
        return _purge_again(tx, services)

    await held.store(work, then=lambda following: following)
    if purged[-1]:
        logger.info("erased bytes purged", extra={"job_id": held.job.id, "receipts": purged[-1]})
    return None


async def reconcile_index(held: HeldJob) -> None:
    """Bring the vector index up to the rows."""
    await held.services.storage.reconcile_index()
    await held.drop()


async def rebuild_index(held: HeldJob) -> None:
    """Make the vector index anew from the rows."""
    await held.services.storage.rebuild_index()
    await held.drop()


def _purge_again(tx: Transaction, services: Services) -> JobDraft | None:
    """Return the job that purges what is left, if anything is: once the last purge has rested, and where the newest
    receipt waits for something, as all do then, after a quarter of the time that it has waited.
    """
    newest, now = tx.receipts.newest_unpurged(), tx.now()
    if newest is None:
        return None
    first, last = PURGE_AGAIN
    pause = services.purges.rest()
    if newest.waiting_for:
        pause = max(pause, min(max(first, (now - newest.erased_at) / 4), last))
    return JobDraft.of_purge(now + pause)
