"""How many stores are rolled out at once by something else than a change of their own spec.

A new release of the operator, another default image, or a ModelAPI that many stores name changes the pod templates of
all of them in one moment. Each store that would be rolled out for such a reason takes one of a few places, and the
others keep their pods, and the configuration that those pods have, until a place is free. A store whose own spec has
changed never waits: somebody wants it now. A roll-out that misses its deadline gives its place back.

Who is rolled out is seen in the cluster; what is remembered here is only who waits and who is about to begin.
"""

from __future__ import annotations

from collections.abc import Collection

from memory_operator.crd.base import ObjectKey


class Rollouts:
    """Places for the roll-outs of stores; a limit of 0 is none."""

    def __init__(self) -> None:
        self._waiting: dict[ObjectKey, None] = {}
        self._beginning: set[ObjectKey] = set()

    def may_begin(self, store: ObjectKey, rolling: Collection[ObjectKey], limit: int) -> bool:
        """Take a place for a store, until `begun`; without one it waits, first come, first served."""
        busy = {*rolling, *self._beginning} - {store}
        if limit and len(busy) >= limit:
            self._waiting.setdefault(store)
            return False
        self._waiting.pop(store, None)
        self._beginning.add(store)
        return True

    def begun(self, store: ObjectKey) -> None:
        """Give the place back: from now on the cluster shows whether the store is being rolled out."""
        self._beginning.discard(store)

    def forget(self, store: ObjectKey) -> None:
        """Forget a store that is gone, or that has nothing to wait for any more."""
        self._waiting.pop(store, None)

    def woken(self, rolling: Collection[ObjectKey], limit: int) -> list[ObjectKey]:
        """Return as many stores that wait as there are free places, and forget them; who finds none waits again."""
        free = max(0, limit - len({*rolling, *self._beginning})) if limit else len(self._waiting)
        found = list(self._waiting)[:free]
        for store in found:
            del self._waiting[store]
        return found

    def __len__(self) -> int:
        return len(self._waiting)
