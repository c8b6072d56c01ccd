"""The work queue: keys wait once however often they are added, and one worker at a time has a key.

A key that is added while a worker has it runs again when that worker is done. The clock is given, so that tests move
it; only `get` waits, on the event loop.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from memory_operator.pacing import Backoff

Key = TypeVar("Key", bound=Hashable)


class WorkQueue(Generic[Key]):
    """Deduplicating queue with delays and a backoff for each key."""

    def __init__(self, clock: Callable[[], float], backoff: Backoff[Key]) -> None:
        self._clock = clock
        self._backoff = backoff
        self._ready: deque[Key] = deque()
        self._queued: dict[Key, float] = {}
        self._running: set[Key] = set()
        self._again: set[Key] = set()
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._sequence = 0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is ready and nobody works; keys with a delay may wait."""
        return not self._ready and not self._running

    @property
    def oldest_seconds(self) -> float:
        """How long the key that is next has been ready."""
        return self._clock() - self._queued[self._ready[0]] if self._ready else 0.0

    def add(self, key: Key) -> None:
        """Make a key ready now; a delay that it had is forgotten."""
        self._due.pop(key, None)
        if key in self._running:
            self._again.add(key)
        elif key not in self._queued:
            self._queued[key] = self._clock()
            self._ready.append(key)
            self._changed.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Make a key ready after a delay; the earlier of two delays counts."""
        if seconds <= 0:
            self.add(key)
            return
        due = self._clock() + seconds
        if key in self._queued or (key in self._due and self._due[key] <= due):
            return
        self._due[key] = due
        self._sequence += 1
        heapq.heappush(self._heap, (due, self._sequence, key))
        self._changed.set()

    def retry(self, key: Key, at_least: float = 0.0) -> float:
        """Make a key that failed ready after its backoff, or later when asked; return the delay."""
        delay = max(self._backoff.next(key), at_least)
        self.add_after(key, delay)
        return delay

    def succeed(self, key: Key) -> None:
        """Forget the failures of a key."""
        self._backoff.reset(key)

    def failures(self, key: Key) -> int:
        """Return how often this key has failed in a row."""
        return self._backoff.failures(key)

    def _release_due(self) -> None:
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                self.add(key)

    def next_due(self) -> float | None:
        """Return how many seconds remain until a delayed key is ready; None when there is none."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return max(0.0, self._heap[0][0] - self._clock()) if self._heap else None

    def take(self) -> Key | None:
        """Return a ready key and hold it until `done`; None when nothing is ready."""
        self._release_due()
        if not self._ready:
            return None
        key = self._ready.popleft()
        del self._queued[key]
        self._running.add(key)
        return key

    def done(self, key: Key) -> None:
        """Give a key back; it is ready again at once if it was added meanwhile."""
        self._running.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)
        self._changed.set()

    async def get(self) -> Key:
        """Wait for a ready key and hold it until `done`."""
        while True:
            key = self.take()
            if key is not None:
                return key
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), self.next_due())
            except TimeoutError:
                continue
