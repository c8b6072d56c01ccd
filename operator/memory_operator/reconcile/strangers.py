"""Which names are taken by objects that the caches do not show: those without our label.

Before the first apply of a name somebody must have looked whether an object of another owner has it. Asking for each
name is one request for each new object; one list of what does not have our label, of metadata only, answers for all
names of a kind in a namespace, and hardly ever holds anything.
"""

from __future__ import annotations

import asyncio
from typing import Final

from memory_operator.cluster.client import Cluster, Listing
from memory_operator.cluster.kinds import Kind
from memory_operator.crd.base import JsonObject
from memory_operator.pacing import is_young

FRESH_SECONDS: Final = 5.0
"""How long an answer counts at most."""


class Strangers:
    """Short-lived answers, one request at a time for each kind and namespace."""

    def __init__(self) -> None:
        self._known: dict[tuple[Kind, str], tuple[float, Listing | None]] = {}
        self._locks: dict[tuple[Kind, str], asyncio.Lock] = {}

    async def find(
        self, cluster: Cluster, kind: Kind, namespace: str, name: str, *, at_least: int, now: float
    ) -> JsonObject | None:
        """Return an object of this name that does not have our label; None when there is none.

        What was there before version `at_least`, that of the object for which the name is needed, is always seen.
        """
        key = (kind, namespace)
        async with self._locks.setdefault(key, asyncio.Lock()):
            known = self._known.get(key)
            if known is None or not is_young(now - known[0], FRESH_SECONDS) or _is_older(known[1], at_least):
                known = (now, await cluster.list_unmanaged(kind, namespace))
                self.forget(now)
                self._known[key] = known
        if known[1] is None:
            return await cluster.get(kind, namespace, name)
        return next((item for item in known[1].items if item["metadata"]["name"] == name), None)

    def forget(self, now: float) -> None:
        """Forget the answers that do not count any more."""
        for key in [key for key, known in self._known.items() if not is_young(now - known[0], FRESH_SECONDS)]:
            del self._known[key]
        for key in [key for key, lock in self._locks.items() if key not in self._known and not lock.locked()]:
            del self._locks[key]


def _is_older(listing: Listing | None, version: int) -> bool:
    return listing is not None and listing.resource_version < version
