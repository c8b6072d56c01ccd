"""Which bindings a store's replicas are known to use.

A replica reports the revision of the rows that it uses. The revisions that we wrote are numbered here, so that a
replica that is a few revisions behind is still known to hold the rows that were there already. A new process knows
the present revision only, which is enough to converge.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from memory_operator.crd.base import ObjectKey
from memory_service.contract.bindings import bindings_revision

_REMEMBERED: Final = 256
"""Revisions of a store; a replica further behind counts as not knowing a row until it catches up."""


@dataclass
class _Rows:
    current: dict[str, str] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    revisions: OrderedDict[str, int] = field(default_factory=OrderedDict)
    revision: str = ""
    number: int = 0


class Ledger:
    """The revisions of all stores' bindings, and who waits for one."""

    def __init__(self) -> None:
        self._rows: dict[ObjectKey, _Rows] = {}
        self._waiting: defaultdict[ObjectKey, set[ObjectKey]] = defaultdict(set)

    def record(self, store: ObjectKey, rows: Mapping[str, str]) -> bool:
        """Note that these rows have been written; return whether they are new."""
        known = self._rows.setdefault(store, _Rows())
        if known.revision and known.current == rows:
            return False
        known.number += 1
        known.since = {
            key: known.since[key] if known.current.get(key) == text else known.number for key, text in rows.items()
        }
        known.current = dict(rows)
        known.revision = bindings_revision(rows)
        known.revisions[known.revision] = known.number
        known.revisions.move_to_end(known.revision)
        while len(known.revisions) > _REMEMBERED:
            known.revisions.popitem(last=False)
        return True

    def forget(self, store: ObjectKey) -> None:
        """Forget a store that is gone."""
        self._rows.pop(store, None)
        self._waiting.pop(store, None)

    def revision(self, store: ObjectKey) -> str | None:
        """Return the revision that was written last; None when nothing was."""
        known = self._rows.get(store)
        return known.revision if known else None

    def knows(self, store: ObjectKey, revision: str) -> bool:
        """Whether this process has written this revision."""
        known = self._rows.get(store)
        return known is not None and revision in known.revisions

    def holds(self, store: ObjectKey, key: str, text: str, reported: Iterable[str]) -> bool | None:
        """Whether all reported revisions hold this row; None when nobody has reported, or nothing was written yet."""
        revisions = list(reported)
        known = self._rows.get(store)
        if not revisions or known is None:
            return None
        if known.current.get(key) != text:
            return False
        return all(known.revisions.get(revision, 0) >= known.since[key] for revision in revisions)

    def wait(self, store: ObjectKey, agent: ObjectKey) -> None:
        """Note that an agent waits for this store's replicas to use its row."""
        self._waiting[store].add(agent)

    def woken(self, store: ObjectKey) -> list[ObjectKey]:
        """Return the agents that wait for a store and forget them; who still waits says so again."""
        return sorted(self._waiting.pop(store, ()))

    def is_awaited(self, store: ObjectKey) -> bool:
        """Whether any agent waits for a store."""
        return bool(self._waiting.get(store))
