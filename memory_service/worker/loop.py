"""The worker: a few tasks that claim, run and finish jobs until they are told to stop."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta

from memory_service.contract.sessions import JobKind
from memory_service.domain import jobs as retries
from memory_service.errors import MemoryServiceError, StorageUnavailable, Unavailable
from memory_service.operations.background.held import HeldJob, LeaseLost
from memory_service.operations.background.upkeep import sweep
from memory_service.operations.services import Services
from memory_service.ports.models import UnparseableAnswer
from memory_service.ports.process import Step
from memory_service.ports.records import JobRow
from memory_service.ports.storage import Transaction
from memory_service.worker.registry import MODEL, OPERATIONS, QUICK

logger = logging.getLogger(__name__)

SWEEPS_PER_UPKEEP = 20
"""Expiry and the vector index are looked after with every so many sweeps: every ten minutes by default."""
RENEWALS_PER_LEASE = 3
"""A lease is renewed this often within its length, so that one slow renewal does not lose it."""


class Worker:
    """Runs jobs of one process. `run` ends after `stop`, once jobs in hand are finished or handed back."""

    def __init__(
        self,
        services: Services,
        *,
        name: str,
        operations: Mapping[JobKind, Callable[[HeldJob], Awaitable[None]]] = OPERATIONS,
    ) -> None:
        self._services = services
        self._name = name
        self._operations = operations
        self._stopping = asyncio.Event()
        self._work_there = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def wake(self) -> None:
        """Tell the worker that a job was enqueued; may be called from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._work_there.set)

    def stop(self) -> None:
        """Take no more jobs."""
        self._stopping.set()
        self._work_there.set()

    async def run(self, *, grace: timedelta) -> None:
        """Claim and run jobs until `stop`, then give those in hand `grace` to finish and hand the rest back."""
        self._loop = asyncio.get_running_loop()
        config = self._services.config
        slots: list[Sequence[JobKind]] = [QUICK] * max(1, config.worker.concurrency // 2)
        slots += [MODEL] * config.extraction.concurrency
        tasks = [asyncio.create_task(self._slot(kinds), name=f"worker-{n}") for n, kinds in enumerate(slots)]
        tasks.append(asyncio.create_task(self._sweeps(), name="worker-sweep"))
        try:
            await self._stopping.wait()
            await asyncio.wait(tasks, timeout=grace.total_seconds())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def run_due(self, kinds: Sequence[JobKind] = (*QUICK, *MODEL), *, limit: int = 10_000) -> int:
        """Run jobs that are due, one after another, until none is; return how many. Tests step a service with it."""
        for done in range(limit):
            job = await self._claim(kinds)
            if job is None:
                return done
            await self._carry_out(job)
        return limit

    async def _slot(self, kinds: Sequence[JobKind]) -> None:
        while not self._stopping.is_set():
            try:
                job = await self._claim(kinds)
            except StorageUnavailable as error:
                logger.warning("no job could be claimed", extra={"reason": error.reason})
                await self._rest()
                continue
            if job is None:
                await self._rest()
            else:
                await self._carry_out(job)

    async def _rest(self) -> None:
        """Wait for new work, for a due time (polled) or for the end."""
        if self._stopping.is_set():
            return
        self._work_there.clear()
        try:
            async with asyncio.timeout(self._services.config.worker.poll_seconds):
                await self._work_there.wait()
        except TimeoutError:
            return

    async def _claim(self, kinds: Sequence[JobKind]) -> JobRow | None:
        lease = self._lease()

        def claim(tx: Transaction) -> JobRow | None:
            return tx.jobs.claim(kinds=kinds, lease=lease, worker=self._name, now=tx.now())

        job = await self._services.storage.transact(claim)
        if job is not None:
            self._services.steps.reach(Step.JOB_CLAIMED, job.kind.value)
        return job

    async def _carry_out(self, job: JobRow) -> None:
        """Run one job. Every way that it can end is a state in the database."""
        running = asyncio.create_task(self._operate(job), name=f"job-{job.id}")
        keeping = asyncio.create_task(self._keep_lease(job, running), name=f"lease-{job.id}")
        try:
            # Waits without taking part: that the job was cancelled, since its lease is lost, does not cancel this task.
            await asyncio.wait({running})
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await self._settle(lambda tx: tx.jobs.release(job, tx.now()))
            raise
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        if running.cancelled():
            self._services.meter.count("jobs", kind=job.kind.value, outcome="lost")
        else:
            running.result()

    async def _operate(self, job: JobRow) -> None:
        held = HeldJob(self._services, job)
        meter, kind = self._services.meter, job.kind.value
        started = asyncio.get_running_loop().time()
        try:
            await self._operations[job.kind](held)
        except LeaseLost:
            meter.count("jobs", kind=kind, outcome="lost")
            await self._settle(lambda tx: tx.jobs.release(job, tx.now()))
        except Unavailable as error:
            await self._failed(job, error.reason, error.detail, patient=True)
        except UnparseableAnswer as error:
            await self._failed(job, "UnparseableAnswer", str(error))
        except MemoryServiceError as error:
            await self._failed(job, type(error).__name__, "the job cannot be carried out as it is")
        except Exception as error:  # the worker loop: whatever a job raises becomes its state
            logger.exception("job failed", extra={"job_id": job.id, "kind": kind})
            await self._failed(job, type(error).__name__, "unexpected; the log has the traceback")
        else:
            meter.count("jobs", kind=kind, outcome="done")
        meter.observe("job_seconds", asyncio.get_running_loop().time() - started, kind=kind)

    async def _failed(self, job: JobRow, reason: str, detail: str, *, patient: bool = False) -> None:
        """Put a job back with a backoff; `patient`: an outage is not the job's fault, so it never makes it dead."""
        attempts = sys.maxsize if patient else 1 + self._services.config.extraction.max_retries

        def fail(tx: Transaction) -> bool:
            now = tx.now()
            retry_at = retries.retry_at(attempts=job.attempts + 1, max_attempts=attempts, now=now, seed=job.id)
            dead.append(retry_at is None)
            return tx.jobs.fail(job, error=f"{reason}: {detail}", retry_at=retry_at, now=now)

        dead: list[bool] = []
        await self._settle(fail)
        outcome = "dead" if dead and dead[-1] else "failed"
        self._services.meter.count("jobs", kind=job.kind.value, outcome=outcome)
        logger.warning("job failed", extra={"job_id": job.id, "kind": job.kind.value, "reason": reason})

    async def _settle(self, work: Callable[[Transaction], bool]) -> None:
        """Write how a job ended; where the database is away, its lease runs out and counts as the attempt."""
        try:
            await self._services.storage.transact(work)
        except StorageUnavailable as error:
            self._services.meter.count("jobs_unsettled", reason=error.reason)

    async def _keep_lease(self, job: JobRow, running: asyncio.Task[None]) -> None:
        lease = self._lease()
        while True:
            await asyncio.sleep(lease.total_seconds() / RENEWALS_PER_LEASE)
            try:
                held = await self._services.storage.transact(
                    lambda tx: tx.jobs.renew(job, lease=lease, now=tx.now()), urgent=True
                )
            except StorageUnavailable:
                continue
            if not held:
                running.cancel()
                return

    async def _sweeps(self) -> None:
        pause = self._services.config.worker.sweep_seconds
        for number in itertools.count():
            if self._stopping.is_set():
                return
            try:
                await sweep(self._services, upkeep=number % SWEEPS_PER_UPKEEP == 0)
            except StorageUnavailable as error:
                self._services.meter.count("sweeps_missed", reason=error.reason)
            try:
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    def _lease(self) -> timedelta:
        return timedelta(seconds=self._services.config.worker.lease_seconds)
