"""The worker: a few tasks that claim, run and finish jobs until they are told to stop."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

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
from memory_service.worker.bell import Bell
from memory_service.worker.registry import MODEL, OPERATIONS, QUICK

T = TypeVar("T")

logger = logging.getLogger(__name__)

SWEEPS_PER_UPKEEP = 20
"""Expiry and the vector index are looked after with every so many sweeps: every ten minutes by default."""
GATHER_SECONDS = 0.1
"""How long what was enqueued waits for more: of a burst of writes each session has one job then, not one a turn."""
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
        self._bells = {QUICK: Bell(), MODEL: Bell()}
        self._gathering: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def wake(self) -> None:
        """Tell the worker that a job was enqueued; may be called from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._gather, loop)

    def stop(self) -> None:
        """Take no more jobs."""
        self._stopping.set()
        self._ring()

    async def run(self, *, grace: timedelta) -> None:
        """Claim and run jobs until `stop`, then give those in hand `grace` to finish and hand the rest back."""
        self._loop = asyncio.get_running_loop()
        config = self._services.config
        slots = [QUICK] * config.worker.concurrency + [MODEL] * config.extraction.concurrency
        tasks = [asyncio.create_task(self._slot(kinds), name=f"worker-{n}") for n, kinds in enumerate(slots)]
        tasks.append(asyncio.create_task(self._sweeps(), name="worker-sweep"))
        tasks.append(asyncio.create_task(self._polls(), name="worker-poll"))
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

    async def _slot(self, kinds: tuple[JobKind, ...]) -> None:
        """Run jobs while there are any, then wait for the bell. One that finds a job lets the next one look."""
        bell = self._bells[kinds]
        while not self._stopping.is_set():
            job = await self._shielded("claim", self._claim(kinds))
            if job is not None:
                bell.ring()
                await self._shielded("job", self._carry_out(job))
            elif not self._stopping.is_set():
                await bell.heard()
        bell.ring()

    async def _shielded(self, what: str, doing: Awaitable[T]) -> T | None:
        """Do something that is tried again later anyway: whatever is wrong with it now ends no task of the worker."""
        try:
            return await doing
        except StorageUnavailable as error:
            reason = error.reason
            logger.warning("storage is away", extra={"doing": what, "reason": reason})
        except Exception as error:  # the worker loop
            reason = type(error).__name__
            logger.exception("the worker goes on", extra={"doing": what})
        self._services.meter.count("worker_failures", doing=what, reason=reason)
        return None

    def _gather(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._gathering is None:
            self._gathering = loop.call_later(GATHER_SECONDS, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        self._ring()

    def _ring(self) -> None:
        for bell in self._bells.values():
            bell.ring()

    async def _polls(self) -> None:
        """Look for what became due, or what others enqueued."""
        while await self._goes_on_after(self._services.config.worker.poll_seconds):
            # A look that locks and writes nothing: a claim costs several of it, and there is one for each bell.
            look = self._services.storage.read(lambda tx: tx.jobs.is_any_due(lease=self._lease()))
            if await self._shielded("poll", look):
                self._ring()

    async def _goes_on_after(self, seconds: float) -> bool:
        """Wait; return whether no end was asked for meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return True
        return False

    async def _claim(self, kinds: Sequence[JobKind]) -> JobRow | None:
        lease = self._lease()

        def claim(tx: Transaction) -> JobRow | None:
            return tx.jobs.claim(
                kinds=kinds, lease=lease, worker=self._name, max_crashes=self._max_failures(), now=tx.now()
            )

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
            await self._settle(lambda tx: tx.jobs.release(job, tx.now()))
            # Not before: what keeps the lease may notice meanwhile, and a task that it ends is counted where it ends.
            meter.count("jobs", kind=kind, outcome="lost")
        except Unavailable as error:
            await self._failed(job, error.reason, error.detail, is_own=False, wait=timedelta(seconds=error.retry_after))
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

    async def _failed(
        self, job: JobRow, reason: str, detail: str, *, is_own: bool = True, wait: timedelta | None = None
    ) -> None:
        """Put a job back with a backoff, for `wait` at least; after as many failures of its own as allowed it is dead.

        An outage is not the job's own failure: it never makes it dead, and what it waited for one does not lengthen
        the wait after its own next failure.
        """
        failures = 1 + (job.failures if is_own else job.attempts)
        max_failures = self._max_failures() if is_own else None

        def fail(tx: Transaction) -> bool:
            now = tx.now()
            retry_at = retries.retry_at(
                failures=failures, max_failures=max_failures, now=now, seed=job.id, retry_after=wait
            )
            dead.append(retry_at is None)
            return tx.jobs.fail(job, error=f"{reason}: {detail}", is_own=is_own, retry_at=retry_at, now=now)

        dead: list[bool] = []
        await self._settle(fail)
        outcome = "dead" if dead and dead[-1] else "failed"
        self._services.meter.count("jobs", kind=job.kind.value, outcome=outcome)
        logger.warning("job failed", extra={"job_id": job.id, "kind": job.kind.value, "reason": reason})

    async def _settle(self, work: Callable[[Transaction], bool]) -> None:
        """Write how a job ended; where that cannot be, its lease runs out and counts as the attempt."""
        await self._shielded("settle", self._services.storage.transact(work))

    async def _keep_lease(self, job: JobRow, running: asyncio.Task[None]) -> None:
        lease = self._lease()
        while True:
            await asyncio.sleep(lease.total_seconds() / RENEWALS_PER_LEASE)
            held = await self._shielded(
                "renew",
                self._services.storage.transact(lambda tx: tx.jobs.renew(job, lease=lease, now=tx.now()), urgent=True),
            )
            if held is False:
                running.cancel()
                return

    async def _sweeps(self) -> None:
        for number in itertools.count():
            if self._stopping.is_set():
                return
            await self._shielded("sweep", sweep(self._services, upkeep=number % SWEEPS_PER_UPKEEP == 0))
            await self._goes_on_after(self._services.config.worker.sweep_seconds)

    def _max_failures(self) -> int:
        return 1 + self._services.config.extraction.max_retries

    def _lease(self) -> timedelta:
        return timedelta(seconds=self._services.config.worker.lease_seconds)
