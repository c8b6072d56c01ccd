"""Kept rows of many owners under one bound of memory: the least recently searched go first, and so do idle ones."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from memory_service.storage.search.columns import Snapshot
from memory_service.storage.search.kept import Kept, S
from memory_service.storage.statements import Link


class Key(NamedTuple):
    """What kept rows are of: a tier of an owner, or one session of it (0: the whole)."""

    tier: str
    owner_id: int
    session_id: int = 0


@dataclass
class _Entry:
    kept: Kept[Any]
    used_at: float
    nbytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Cache:
    """Rows that committed reads have seen. Safe to use from several threads."""

    def __init__(self, *, max_bytes: int, idle: timedelta, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Keep at most `max_bytes`, besides the owner that was searched last, and nothing unused for `idle`."""
        self._max_bytes = max_bytes
        self._idle_seconds = idle.total_seconds()
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """About how much memory is in use."""
        with self._lock:
            return sum(entry.nbytes for entry in self._entries.values())

    def __contains__(self, key: Key) -> bool:
        """Whether rows are kept under a key."""
        with self._lock:
            return key in self._entries

    def snapshot(
        self, key: Key, state: S, link: Link, make: Callable[[], Kept[S]], own: dict[Key, Kept[Any]] | None
    ) -> Snapshot:
        """Return the rows of `key` in exactly this state.

        `own` holds rows that only this transaction may see: it has changed some, and may yet be rolled back.
        None means that it changes nothing, so that what it reads is kept for others; but a read that began before
        a newer state was kept reads for itself.
        """
        entry = self._entry(key, make)
        with entry.lock:
            kept: Kept[S] = entry.kept
            if kept.state == state:
                return kept.snapshot()
            is_older = kept.state is not None and kept.state.follows(state)
            if own is None and not is_older:
                kept.bring_up(link, state)
                entry.nbytes = kept.index.nbytes
                found = kept.snapshot()
                self._make_room(key)
                return found
            mine: Kept[S] | None = None if own is None else own.get(key)
            if mine is None:
                mine = make() if is_older or kept.state is None else kept.copy()
        if mine.state != state:
            mine.bring_up(link, state)
        if own is not None:
            own[key] = mine
        return mine.snapshot()

    def drop(self, owner_ids: Collection[int]) -> None:
        """Forget everything of some owners."""
        with self._lock:
            for key in [key for key in self._entries if key.owner_id in owner_ids]:
                del self._entries[key]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()

    def _entry(self, key: Key, make: Callable[[], Kept[Any]]) -> _Entry:
        now = self._monotonic()
        with self._lock:
            while self._entries:
                oldest = next(iter(self._entries))
                if self._entries[oldest].used_at > now - self._idle_seconds:
                    break
                del self._entries[oldest]
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(make(), now)
            entry.used_at = now
            self._entries.move_to_end(key)
            return entry

    def _make_room(self, key: Key) -> None:
        with self._lock:
            total = sum(entry.nbytes for entry in self._entries.values())
            for other in list(self._entries):
                if total <= self._max_bytes:
                    break
                if other != key:
                    total -= self._entries.pop(other).nbytes
