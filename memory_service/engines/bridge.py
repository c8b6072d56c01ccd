"""Calling our async providers from a library that blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

T = TypeVar("T")


class Abandoned(Exception):
    """The caller has left; whatever the library still wants is refused."""


class Bridge:
    """Lets one thread wait for coroutines of one event loop, until the caller leaves.

    `failure` is the first exception that a coroutine raised, for libraries that swallow or wrap it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._pending: Future[Any] | None = None
        self._abandoned = False
        self.failure: BaseException | None = None

    def wait_for(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `start()` on the loop and return its result; blocking, for one thread at a time.

        Raises:
            Abandoned: the caller has left.
        """
        with self._lock:
            if self._abandoned:
                raise Abandoned
            pending = asyncio.run_coroutine_threadsafe(start(), self._loop)
            self._pending = pending
        try:
            failure = pending.exception()
        except CancelledError as error:
            raise Abandoned from error
        if failure is not None:
            self.failure = self.failure or failure
            raise failure
        return pending.result()

    def abandon(self) -> None:
        """Cancel what is waited for and refuse what comes; the thread then ends by itself."""
        with self._lock:
            self._abandoned = True
            if self._pending is not None:
                self._pending.cancel()
