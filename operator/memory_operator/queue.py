"""The work queue: keys wait once however often they are added, and one worker at a time has a key.

A key that is added while a worker has it runs again when that worker is done. The clock is given, so that tests move
it; only `get` waits, on the event loop. A key that becomes ready wakes one worker, and one timer stands for all delays:
waking everybody each time costs more than the work itself when there are many workers.

There are two lanes. What a start or a resync adds is thousands of keys of which hardly one has changed: they wait in
the background, and a key that somebody has just changed goes before them. One take in eight is from the background
whatever waits, so that it comes to its end too.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from memory_operator.pacing import Backoff

Key = TypeVar("Key", bound=Hashable)

_BACKGROUND_TURN = 8
"""Each so many takes the background goes first."""
_RING_SECONDS = 0.1
"""Delays that end so soon after the last ring wait for the next: a process that is woken for each of hundreds a second
spends more on waking than on what it is woken for."""
_STALE_FROM = 64
"""Delays that nobody waits for any more are left alone below so many."""


class WorkQueue(Generic[Key]):
    """Deduplicating queue with delays and a backoff for each key."""

    def __init__(self, clock: Callable[[], float], backoff: Backoff[Key]) -> None:
        self._clock = clock
        self._backoff = backoff
        self._ready: deque[Key] = deque()
        self._background: deque[Key] = deque()
        self._in_background: set[Key] = set()
        self._turn = 0
        self._queued: dict[Key, float] = {}
        self._running: set[Key] = set()
        self._again: set[Key] = set()
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._sequence = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.Handle | None = None
        self._rings_at = 0.0
        self._rang_at = float("-inf")

    def __len__(self) -> int:
        return len(self._queued)

    def is_waiting(self, key: Key) -> bool:
        """Whether a key is ready and waits for a worker."""
        return key in self._queued

    @property
    def oldest_seconds(self) -> float:
        """How long the key that is next has been ready; 0 when there is none, or only in the background."""
        return self._clock() - self._queued[self._ready[0]] if self._ready else 0.0

    def add(self, key: Key) -> None:
        """Make a key ready now; a delay that it had is forgotten."""
        self._due.pop(key, None)
        if key in self._running:
            self._again.add(key)
        elif key in self._in_background:
            self._in_background.discard(key)
            self._ready.append(key)
            if not self._in_background:
                self._background.clear()
        elif key not in self._queued:
            self._queued[key] = self._clock()
            self._ready.append(key)
            self._wake_one()

    def add_in_background(self, key: Key) -> None:
        """Make a key ready behind all that somebody has changed; nothing happens when it is ready already."""
        if key in self._running:
            self._again.add(key)
        elif key not in self._queued:
            self._due.pop(key, None)
            self._queued[key] = self._clock()
            self._in_background.add(key)
            self._background.append(key)
            self._wake_one()

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
        if len(self._heap) > _STALE_FROM + 2 * len(self._due):
            self._drop_stale()
        if self._waiters:
            self._set_timer()

    def _drop_stale(self) -> None:
        """Keep of the delays those that still hold: a key that is changed all the time leaves one behind each time."""
        holding = {entry[2]: entry for entry in self._heap if self._due.get(entry[2]) == entry[0]}
        self._heap = list(holding.values())
        heapq.heapify(self._heap)

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
        if not self._queued:
            return None
        self._turn += 1
        is_turn = bool(self._in_background) and self._turn % _BACKGROUND_TURN == 0
        key = self._ready.popleft() if self._ready and not is_turn else self._pop_background()
        del self._queued[key]
        self._running.add(key)
        return key

    def _pop_background(self) -> Key:
        """Return the first key of the background that has not been called forward."""
        key = self._background.popleft()
        while key not in self._in_background:
            key = self._background.popleft()
        self._in_background.discard(key)
        return key

    def done(self, key: Key) -> None:
        """Give a key back; it is ready again at once if it was added meanwhile."""
        self._running.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _set_timer(self) -> None:
        """Have the key with the earliest delay made ready in time, as long as somebody waits."""
        seconds = self.next_due()
        if seconds is None:
            return
        loop = asyncio.get_running_loop()
        at = max(loop.time() + seconds, self._rang_at + _RING_SECONDS)
        if self._timer is not None:
            if self._rings_at <= at:
                return
            self._timer.cancel()
        self._timer, self._rings_at = loop.call_at(at, self._ring), at

    def _ring(self) -> None:
        self._timer, self._rang_at = None, self._rings_at
        self._release_due()
        if self._waiters:
            self._set_timer()

    async def get(self) -> Key:
        """Wait for a ready key and hold it until `done`."""
        while True:
            key = self.take()
            if key is not None:
                return key
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            self._set_timer()
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()
                raise
