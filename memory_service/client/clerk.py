"""One thread that does a client's work on its outbox, a job at a time, so that no event loop waits for a disk.

Not the event loop's own executor: that takes no work any more once the main thread has ended, while an agent's other
threads still finish what they say. Where no thread can be started at all, as while the process ends, the work is done
on the spot.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from memory_service.client.errors import OutboxUnusable

T = TypeVar("T")
_Jobs = queue.SimpleQueue[tuple[Callable[[], Any], "Future[Any]"] | None]


class Clerk:
    """Starts its thread with the first job and again after a fork; the thread ends when the clerk is forgotten."""

    def __init__(self) -> None:
        self._jobs: _Jobs | None = None
        self._pid = 0

    async def do(self, work: Callable[[], T], *, seconds: float) -> T:
        """Return what `work` returns; it is begun within `seconds` or not at all.

        Raises:
            OutboxUnusable: it was not begun.
        """
        jobs = self._desk()
        if jobs is None:
            return work()
        job: Future[T] = Future()
        jobs.put((work, job))
        done = asyncio.wrap_future(job)
        try:
            await asyncio.wait([done], timeout=max(0.0, seconds))
        except asyncio.CancelledError:
            job.cancel()
            raise
        if not done.done() and job.cancel():
            raise OutboxUnusable(f"the outbox had no time for this within {seconds:.1f} s: another call holds it up")
        return await done

    def _desk(self) -> _Jobs | None:
        """Return where jobs are put; None when nobody could take them from there."""
        if self._jobs is None or self._pid != os.getpid():
            jobs: _Jobs = queue.SimpleQueue()
            try:
                threading.Thread(target=_work, args=(jobs,), name="memplane-outbox", daemon=True).start()
            except RuntimeError:
                return None
            weakref.finalize(self, jobs.put, None).atexit = False
            self._jobs, self._pid = jobs, os.getpid()
        return self._jobs


def _work(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        work, future = job
        if future.set_running_or_notify_cancel():
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the job
                future.set_exception(error)
            else:
                future.set_result(result)
        del job, work, future
