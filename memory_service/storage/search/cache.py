"""Kept rows of many owners under one bound of memory: the least recently searched go first, and so do idle ones."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, NamedTuple, TypeVar

from memory_service.storage.search.columns import Snapshot
from memory_service.storage.search.kept import Kept, S
from memory_service.storage.statements import Link


class Key(NamedTuple):
    """What kept rows are of: a tier of an owner, or one session of it (0: the whole)."""

    tier: str
    owner_id: int
    session_id: int = 0


T = TypeVar("T")

_ENTRY_BYTES = 8 * 1024
"""What an entry costs besides its rows: its columns are some forty objects, however few rows they have."""


class Memo(Generic[T]):
    """Values that hold for one state of something. Safe to use from several threads."""

    def __init__(self, *, size: int = 10_000) -> None:
        """Forget everything when more than `size` values are known: they are cheap to find again."""
        self._size = size
        self._lock = threading.Lock()
        self._known: dict[object, tuple[object, T]] = {}

    def get(self, key: object, state: object) -> T | None:
        """Return the value of this state, or None."""
        with self._lock:
            known = self._known.get(key)
        return known[1] if known is not None and known[0] == state else None

    def put(self, key: object, state: object, value: T) -> None:
        """Note the value of a state, in place of that of another."""
        with self._lock:
            if len(self._known) >= self._size:
                self._known.clear()
            self._known[key] = (state, value)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._known.clear()


@dataclass
class Own:
    """One transaction: when it began, whether all that it sees is committed, and the rows that it keeps for itself."""

    ticket: int
    committed: bool
    kept: dict[Key, Kept[Any]] = field(default_factory=dict)


@dataclass
class _Entry:
    kept: Kept[Any]
    used_at: float
    ticket: int = 0
    nbytes: int = _ENTRY_BYTES
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
        self._empty: Memo[Snapshot] = Memo()
        self._nothing: dict[str, Snapshot] = {}

    @property
    def nbytes(self) -> int:
        """About how much memory is in use."""
        with self._lock:
            return sum(entry.nbytes for entry in self._entries.values())

    def __contains__(self, key: Key) -> bool:
        """Whether rows are kept under a key."""
        with self._lock:
            return key in self._entries

    def snapshot(self, key: Key, state: S, link: Link, make: Callable[[], Kept[S]], own: Own) -> Snapshot:
        """Return the rows of `key` in exactly this state.

        What a transaction reads is kept for others unless it may be rolled back, or began before the one that read
        the state kept now: such a transaction reads for itself. Of what has no rows only that is kept.
        """
        empty = self._empty.get(key, state)
        if empty is not None:
            return empty
        entry = self._entry(key, make)
        with entry.lock:
            kept: Kept[S] = entry.kept
            if kept.state == state:
                return kept.snapshot()
            if own.committed and own.ticket >= entry.ticket:
                kept.bring_up(link, state)
                if not len(kept.index):
                    return self._keep_nothing(key, entry, make)
                entry.nbytes = kept.nbytes + _ENTRY_BYTES
                entry.ticket = own.ticket
                found = kept.snapshot()
                self._make_room(key)
                return found
            mine: Kept[S] | None = own.kept.get(key)
            if mine is None:
                mine = own.kept[key] = kept.copy() if kept.state is not None else make()
        if mine.state != state:
            mine.bring_up(link, state)
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
        self._empty.clear()

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

    def _keep_nothing(self, key: Key, entry: _Entry, make: Callable[[], Kept[Any]]) -> Snapshot:
        with self._lock:
            if self._entries.get(key) is entry:
                del self._entries[key]
            nothing = self._nothing.setdefault(key.tier, make().snapshot())
        self._empty.put(key, entry.kept.state, nothing)
        return nothing

    def _make_room(self, key: Key) -> None:
        with self._lock:
            total = sum(entry.nbytes for entry in self._entries.values())
            for other in list(self._entries):
                if total <= self._max_bytes:
                    break
                if other != key:
                    total -= self._entries.pop(other).nbytes
