"""Lets one job of this process at a time store under an owner.

Jobs that merge facts hold their owner's row until they commit. Without this every one of them would wait for it inside
of a storage thread: as many as there are, and neither a write nor the renewal of a lease would find one free.
"""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from memory_service.domain.owners import Owner


class Turnstile:
    """One lock for each owner that somebody stores under."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[Owner, asyncio.Lock] = WeakValueDictionary()

    def before(self, owner: Owner) -> asyncio.Lock:
        """Return the lock to hold while storing under an owner; the loop goes on meanwhile."""
        lock = self._locks.get(owner)
        if lock is None:
            lock = self._locks[owner] = asyncio.Lock()
        return lock
