"""The external backend's threads, and how long a caller waits for one that waits for the server.

A thread waits for as long as the server does: one that gave its connection up amid a COMMIT would leave a process of
the server behind, with its locks and one of the connections that the server has. It is the caller who is let go.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from memory_service.errors import StorageUnavailable
from memory_service.storage.errors import unavailable

T = TypeVar("T")

logger = logging.getLogger(__name__)

_SILENT_SECONDS = 3.0
"""How long work waits for the server before it is asked whether it is there at all, and then again."""
_CONFIRM_SECONDS = 5.0
"""How long a COMMIT may be without an answer before its caller is told: it may wait for a standby that is away."""
_BEGIN_SECONDS = 10.0
"""How long a write may wait for a thread."""
_STANDBYS = "look at its standbys (synchronous_standby_names) and its disk"


class Writing:
    """What is known of a write while a thread is at it."""

    commit_sent: float | None = None
    """Since when its COMMIT is without an answer, on the monotonic clock."""


@dataclass
class _Wait:
    """A caller that waits."""

    doing: Future[Any]
    waited: asyncio.Future[Any]
    writing: Writing | None
    began: float
    refusal: StorageUnavailable | None = None


class Watch:
    """Asks the server whether it is there, once at a time, for all threads of one store."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._asking: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Ask, unless that is being done."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(asyncio.to_thread(self._ask))


class Threads:
    """Threads of one kind."""

    def __init__(self, count: int, name: str, watch: Watch) -> None:
        self._count = count
        self._watch = watch
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=f"memplane-{name}")
        self._unconfirmed: set[Future[Any]] = set()
        """Writes that the server has not confirmed in time: no caller waits for them any more, and their threads do."""

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` comes to in a thread."""
        return await self._result(self._executor.submit(work), None)

    async def write(self, work: Callable[[Writing], T]) -> T:
        """Return what a write comes to.

        Raises:
            StorageUnavailable: the server does not confirm it in time, and it may be stored or not; or no thread was
                free in time, and nothing was stored.
        """
        if self._is_stuck:
            raise _stuck()
        writing = Writing()
        return await self._result(self._executor.submit(work, writing), writing)

    def shutdown(self) -> None:
        """Wait until all is done."""
        self._executor.shutdown()

    @property
    def _is_stuck(self) -> bool:
        return len(self._unconfirmed) >= self._count

    async def _result(self, doing: Future[T], writing: Writing | None) -> T:
        one = _Wait(doing, asyncio.wrap_future(doing), writing, time.monotonic())
        watching = asyncio.get_running_loop().call_later(_SILENT_SECONDS, self._look_after, one)
        try:
            found: T = await one.waited
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if one.refusal is None or (task is not None and task.cancelling()):
                raise
            raise one.refusal from None
        finally:
            if doing.done():  # else its caller has gone, and the thread has not
                watching.cancel()
        return found

    def _look_after(self, one: _Wait) -> None:
        if one.doing.done():
            return
        self._watch.ask()
        if one.writing is not None:
            self._let_go(one, one.writing)
        asyncio.get_running_loop().call_later(_SILENT_SECONDS, self._look_after, one)

    def _let_go(self, one: _Wait, writing: Writing) -> None:
        """Count a write that is not confirmed in time, and let its caller go, if that is still there."""
        sent = writing.commit_sent
        is_unconfirmed = sent is not None and time.monotonic() - sent >= _CONFIRM_SECONDS
        if is_unconfirmed and one.doing not in self._unconfirmed:
            if not self._unconfirmed:
                logger.warning("the database does not confirm a write", extra={"detail": _STANDBYS})
            self._unconfirmed.add(one.doing)
            one.doing.add_done_callback(self._unconfirmed.discard)
        if not one.waited.done():
            one.refusal = self._refusal(one.doing, time.monotonic() - one.began, is_unconfirmed=is_unconfirmed)
            if one.refusal is not None:
                one.waited.cancel()

    def _refusal(self, doing: Future[Any], waited: float, *, is_unconfirmed: bool) -> StorageUnavailable | None:
        """Return what the caller of a write is told who has waited for long enough."""
        if self._is_stuck and doing.cancel():
            return _stuck()
        if waited > _BEGIN_SECONDS and doing.cancel():
            return unavailable(
                f"the database is busy: this write has waited for others for {waited:.0f} s; nothing was stored,"
                " repeat soon",
                retry_after=2,
            )
        if not is_unconfirmed:
            return None
        return unavailable(
            f"the database does not confirm this write, which may be stored or not: {_STANDBYS};"
            " repeat it with the same Idempotency-Key or turn ids",
            retry_after=5,
        )


def _stuck() -> StorageUnavailable:
    detail = f"the database confirms no write: {_STANDBYS}; nothing was stored, repeat soon"
    return unavailable(detail, retry_after=5)
