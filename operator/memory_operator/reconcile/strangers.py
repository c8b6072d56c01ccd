"""Which names are taken by objects that the caches do not show: those without our label.

Before the first apply of a name somebody must have looked whether an object of another owner has it. Asking for each
name is one request for each new object; one list of what does not have our label, of metadata only, answers for all
names of a kind in a namespace, and hardly ever holds anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from memory_operator.cluster.client import Cluster
from memory_operator.cluster.kinds import Kind
from memory_operator.crd.base import JsonObject

FRESH_SECONDS: Final = 2.0
"""How long an answer counts; somebody else's object that is made in this time is not seen, as it is not with a look
before each write, only that there the time is shorter. Server-side apply leaves the fields of others alone."""


class Strangers:
    """Short-lived answers, one request at a time for each kind and namespace."""

    def __init__(self) -> None:
        self._known: dict[tuple[Kind, str], tuple[float, Mapping[str, JsonObject] | None]] = {}
        self._locks: dict[tuple[Kind, str], asyncio.Lock] = {}

    async def find(self, cluster: Cluster, kind: Kind, namespace: str, name: str, now: float) -> JsonObject | None:
        """Return an object of this name that does not have our label; None when there is none."""
        key = (kind, namespace)
        async with self._locks.setdefault(key, asyncio.Lock()):
            known = self._known.get(key)
            if known is None or not 0 <= now - known[0] < FRESH_SECONDS:
                known = (now, await cluster.list_unmanaged(kind, namespace))
                self._forget(now)
                self._known[key] = known
        if known[1] is None:
            return await cluster.get(kind, namespace, name)
        return known[1].get(name)

    def _forget(self, now: float) -> None:
        for key in [key for key, known in self._known.items() if not 0 <= now - known[0] < FRESH_SECONDS]:
            del self._known[key]
            if not self._locks[key].locked():
                del self._locks[key]
