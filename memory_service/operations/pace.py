"""Has work that others wait for take its rests: a purge holds the writes of a local store, and tables of Postgres."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

REST = 4
"""How many times as long as it took something rests: it has a fifth of the time at most. Judgement."""
SHORTEST_REST = timedelta(milliseconds=50)
"""What would rest for less does not rest; it costs more to come again."""


class Pace:
    """When one kind of work may begin again in this process. Not for several at once."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self._rests_until = monotonic()

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Do the work inside; however it ends, it rests after it."""
        started = self.monotonic()
        try:
            yield
        finally:
            ended = self.monotonic()
            rest = (ended - started) * REST
            self._rests_until = ended + (rest if rest >= SHORTEST_REST.total_seconds() else 0.0)

    def rest(self) -> timedelta:
        """Return how long the work is to rest still; nothing, where it may begin."""
        return timedelta(seconds=max(0.0, self._rests_until - self.monotonic()))
