"""One thread that does a client's work on its outbox, in order, so that no event loop waits for a disk.

Not the event loop's own executor: that takes no work any more once the main thread has ended, while an agent's other
threads still finish what they say. Where no thread can be started at all, as while the process ends, the work is done
on the spot. Jobs that wait for each other are done together, as one transaction: a disk takes as long for one as for
many, and a job is done when the disk has it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from memory_service.client.errors import OutboxError, OutboxUnusable

T = TypeVar("T")
Together = Callable[[float], AbstractContextManager[None]]
"""Makes the work inside one transaction; takes the seconds that it may wait for other processes."""

MAX_JOBS_TOGETHER = 64


@dataclass(slots=True, eq=False)
class _Job:
    work: Callable[[], Any]
    busy_seconds: float
    done: Future[Any] = field(default_factory=Future)
    result: Any = None
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.work()
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the job
            self.error = error

    def tell(self) -> None:
        if self.error is not None:
            self.done.set_exception(self.error)
        else:
            self.done.set_result(self.result)


_Jobs = queue.SimpleQueue[_Job | None]


class Clerk:
    """Starts its thread with the first job and again after a fork; the thread ends when the clerk is forgotten."""

    def __init__(self, together: Together) -> None:
        self._together = together
        self._jobs: _Jobs | None = None
        self._pid = 0

    async def do(self, work: Callable[[], T], *, seconds: float, busy_seconds: float) -> T:
        """Return what `work` returns; it is begun within `seconds` or not at all.

        Raises:
            OutboxUnusable: it was not begun, or other processes did not let it within `busy_seconds`.
        """
        jobs = self._desk()
        if jobs is None:
            return work()
        job = _Job(work, busy_seconds)
        jobs.put(job)
        done: asyncio.Future[T] = asyncio.wrap_future(job.done)
        try:
            await asyncio.wait([done], timeout=max(0.0, seconds))
        except asyncio.CancelledError:
            job.done.cancel()
            raise
        if not done.done() and job.done.cancel():
            raise OutboxUnusable(f"the outbox had no time for this within {seconds:.1f} s: other calls hold it up")
        return await done

    def _desk(self) -> _Jobs | None:
        """Return where jobs are put; None when nobody could take them from there."""
        if self._jobs is None or self._pid != os.getpid():
            jobs: _Jobs = queue.SimpleQueue()
            thread = threading.Thread(target=_work, args=(jobs, self._together), name="memplane-outbox", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return None
            weakref.finalize(self, jobs.put, None).atexit = False
            self._jobs, self._pid = jobs, os.getpid()
        return self._jobs


def _work(jobs: _Jobs, together: Together) -> None:
    # Nothing here may hold on to a job while it waits: the clerk is forgotten with the last one, and so ends this.
    while (first := jobs.get()) is not None:
        _run(_batch(jobs, first), together)
        del first


def _batch(jobs: _Jobs, first: _Job) -> list[_Job]:
    """Return a job and those that wait behind it, but for those that were given up."""
    batch = [first]
    while len(batch) < MAX_JOBS_TOGETHER and not jobs.empty():
        if (job := jobs.get()) is None:
            jobs.put(None)
            break
        batch.append(job)
    return [job for job in batch if job.done.set_running_or_notify_cancel()]


def _run(batch: list[_Job], together: Together) -> None:
    has_begun = False
    try:
        with together(min(job.busy_seconds for job in batch)) if len(batch) > 1 else nullcontext():
            has_begun = True
            for job in batch:
                job.run()
    except OutboxError as error:
        for job in batch:
            if has_begun:
                job.error = job.error or error
            else:  # together they waited as long as the hastiest may
                job.run()
    for job in batch:
        job.tell()
