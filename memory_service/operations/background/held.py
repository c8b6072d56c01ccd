"""A job that this worker holds: its effect is stored only together with its end, and only while it is still held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from memory_service.operations.services import Services
from memory_service.ports.process import Step
from memory_service.ports.records import JobDraft, JobRow
from memory_service.ports.storage import Transaction

T = TypeVar("T")


class LeaseLost(Exception):
    """Another worker has the job by now, or what it was about was erased: nothing was stored, nothing is owed."""


@dataclass(frozen=True)
class HeldJob:
    """A claimed job with the services that it runs in."""

    services: Services
    job: JobRow

    async def store(self, work: Callable[[Transaction], T], *, then: Callable[[T], JobDraft | None] | None = None) -> T:
        """Run `work`, enqueue what follows and finish the job, all in one transaction.

        Raises:
            LeaseLost: the job is no longer ours; everything was rolled back.
        """

        def finish(tx: Transaction) -> T:
            result = work(tx)
            now = tx.now()
            if not tx.jobs.finish(self.job, now):
                raise LeaseLost(self.job.id)
            following = then(result) if then is not None else None
            if following is not None:
                tx.jobs.enqueue(following, now)
            return result

        result = await self.services.storage.transact(finish)
        self.services.steps.reach(Step.JOB_STORED, self.job.kind.value)
        return result

    async def drop(self) -> None:
        """Finish a job that has nothing left to do."""
        await self.store(lambda _tx: None)

    def reach(self, step: Step) -> None:
        """Note a step of this job."""
        self.services.steps.reach(step, self.job.kind.value)
