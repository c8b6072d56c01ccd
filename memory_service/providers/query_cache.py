"""Vectors of recent queries, so that a question that is asked again at once is embedded once."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta

from memory_service.ports.records import Vector

MAX_QUERIES = 256
"""Judgement: some thousand bytes each, and more than the sessions that one replica serves in a minute."""
KEPT_FOR = timedelta(seconds=60)
"""Judgement: a turn recalls several times within seconds; later repeats are rare."""


class QueryCache:
    """The newest query vectors, by a digest of the query (the text itself is not kept). For one event loop."""

    def __init__(
        self,
        *,
        max_queries: int = MAX_QUERIES,
        kept_for: timedelta = KEPT_FOR,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_queries = max_queries
        self._kept_seconds = kept_for.total_seconds()
        self._monotonic = monotonic
        self._entries: OrderedDict[bytes, tuple[float, Vector]] = OrderedDict()
        self._generation = 0

    @property
    def generation(self) -> int:
        """Moves on with every `clear`; give it to `put` to drop a vector that was asked for before an erasure."""
        return self._generation

    def get(self, text: str) -> Vector | None:
        """Return the query's vector if it is still kept."""
        key = _key(text)
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self._monotonic() - entry[0] > self._kept_seconds:
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return entry[1]

    def put(self, text: str, vector: Vector, *, generation: int) -> None:
        """Keep a query's vector, unless the cache was cleared since `generation`."""
        if generation != self._generation:
            return
        key = _key(text)
        self._entries[key] = (self._monotonic(), vector)
        self._entries.move_to_end(key)
        while len(self._entries) > self._max_queries:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget every query; called by every erasure."""
        self._generation += 1
        self._entries.clear()


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
