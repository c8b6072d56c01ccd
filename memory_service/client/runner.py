"""An event loop in a thread of its own, for calls from code that has none."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from memory_service.client.errors import ServiceUnavailable, UnavailableReason

T = TypeVar("T")
Ending = Callable[[], Coroutine[Any, Any, None]]

_ENDING_SECONDS = 8.0
"""How long calls in flight have to end by themselves once `ending` has cut what they wait for: as long as what they
still put into the outbox may wait for others."""


class Runner:
    """Starts its loop with the first call and again after a fork; ends it when it is closed, or forgotten.

    Args:
        ending: closes what the calls share; it must not refer to the runner, which would then never be forgotten.
    """

    def __init__(self, ending: Ending) -> None:
        self._ending = ending
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._end: Callable[[], object] | None = None
        self._pid = 0
        self._is_closed = False

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Return what `call` returns; an interrupt here cancels it there. Safe from several threads.

        Raises:
            ServiceUnavailable: the runner was closed, and the call did not end by itself.
        """
        with self._lock:
            future = None if self._is_closed else asyncio.run_coroutine_threadsafe(call, self._running())
        if future is None:
            return _run_alone(call)
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            if not self._is_closed:
                raise
            raise ServiceUnavailable("the client was closed meanwhile", reason=UnavailableReason.CLOSED) from error
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the calls in flight, stop the loop and wait for its thread; a later call has a loop for itself."""
        with self._lock:
            is_running = self._loop is not None and self._pid == os.getpid()
            was_closed, self._is_closed = self._is_closed, True
        if is_running and self._end is not None and self._thread is not None:
            self._end()
            self._thread.join()
            self._loop = None
        elif not was_closed:
            _run_alone(self._ending())

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._pid != os.getpid():
            self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
            self._thread = threading.Thread(target=_serve, args=(self._loop,), name="memplane-client", daemon=True)
            self._thread.start()
            end = weakref.finalize(self, _end, self._loop, self._ending, self._pid)
            end.atexit = False
            self._end = end
        return self._loop


def _run_alone(call: Coroutine[Any, Any, T]) -> T:
    """Run one call on a loop that ends with it: in a thread, since the caller's may have a loop of its own."""
    alone = Runner(_nothing)
    try:
        return alone.run(call)
    finally:
        alone.close()


async def _nothing() -> None:
    """Close nothing."""


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _end(loop: asyncio.AbstractEventLoop, ending: Ending, pid: int) -> None:
    """Have a loop end soon; blocks nobody, so that a garbage collector may call it from wherever it is."""
    if pid == os.getpid() and not loop.is_closed():
        asyncio.run_coroutine_threadsafe(_finish(ending), loop)


async def _finish(ending: Ending) -> None:
    try:
        await ending()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, late = await asyncio.wait(others, timeout=_ENDING_SECONDS)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=_ENDING_SECONDS)
    finally:
        asyncio.get_running_loop().stop()
