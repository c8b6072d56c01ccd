"""How many stores are rolled out at once by something else than a change of their own spec.

A new release of the operator, another default image, or a ModelAPI that many stores name changes the pod templates of
all of them in one moment. Each store that would be rolled out for such a reason takes one of a few places, and the
others keep their pods, and the configuration that those pods have, until a place is free. A store whose own spec has
changed never waits: somebody wants it now. A roll-out that misses its deadline gives its place back.

A place is held from the moment it is given until the roll-out has ended: what the Deployment controller says of one
pod that ends before the next begins looks, for as long as that pod takes, like a roll-out that is over. Who is rolled
out in a process that takes over is seen in the cluster.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from memory_operator.crd.base import ObjectKey
from memory_operator.desired.workload import PROGRESS_DEADLINE_SECONDS
from memory_operator.pacing import is_young

_PATIENCE_SECONDS: Final = float(PROGRESS_DEADLINE_SECONDS)
"""How long a place lasts without a word of the Deployment controller: pods that a quota refuses may never come."""


@dataclass(frozen=True)
class UnderWay:
    """What the cluster shows of roll-outs."""

    rolling: Collection[ObjectKey] = ()
    """Stores that the Deployment controller says are rolled out; it ends that itself when they miss their deadline."""
    unfinished: Collection[ObjectKey] = ()
    """Stores that lack pods of the newest template, or have older ones."""


class Rollouts:
    """Places for the roll-outs of stores; a limit of 0 is none."""

    def __init__(self) -> None:
        self._waiting: dict[ObjectKey, None] = {}
        self._places: dict[ObjectKey, datetime] = {}
        """Since when a store has a place, or was first seen unfinished."""

    def may_begin(self, store: ObjectKey, under_way: UnderWay, limit: int, now: datetime) -> bool:
        """Take a place for a store, until `end`; without one it waits, first come, first served."""
        if limit and len(self._busy(under_way, now) - {store}) >= limit:
            self._waiting.setdefault(store)
            return False
        self._waiting.pop(store, None)
        self._places[store] = now
        return True

    def end(self, store: ObjectKey) -> None:
        """Give a store's place back, if it has one."""
        self._places.pop(store, None)

    def forget(self, store: ObjectKey) -> None:
        """Forget that a store waits: it is gone, or has nothing to wait for any more."""
        self._waiting.pop(store, None)

    def woken(self, under_way: UnderWay, limit: int, now: datetime) -> list[ObjectKey]:
        """Return as many stores that wait as there are free places, and forget them; who finds none waits again."""
        free = max(0, limit - len(self._busy(under_way, now))) if limit else len(self._waiting)
        found = list(self._waiting)[:free]
        for store in found:
            del self._waiting[store]
        return found

    def _busy(self, under_way: UnderWay, now: datetime) -> set[ObjectKey]:
        for store in under_way.unfinished:
            self._places.setdefault(store, now)
        ages = {store: (now - since).total_seconds() for store, since in self._places.items()}
        return {*under_way.rolling, *(store for store, age in ages.items() if is_young(age, _PATIENCE_SECONDS))}

    def __len__(self) -> int:
        return len(self._waiting)
