"""Erasures of other stores, carried out by an import.

A store hashes whom it erases under a key of its own, which it hands to nobody. So an export says by which hashes its
store knows everybody who is in it, and an import keeps these beside its own: a later line that says only that a hash
was erased reaches the right owner, and means nothing to a store that was never told. One that nobody here is known by
yet is kept as a tombstone, for an older export that comes after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from memory_service.domain.owners import Owner, erasure_of
from memory_service.storage.encoding import micros
from memory_service.storage.rows import lines
from memory_service.storage.rows.erasing_until import EraserUntil
from memory_service.storage.rows.owners import READABLE, OwnerKeys, readable
from memory_service.storage.statements import Link

_Line = Mapping[str, Any]
_NOTE = (
    "INSERT INTO @tombstones AS t (key, erased_at) VALUES (:key, :erased_at) ON CONFLICT (key) DO UPDATE"
    " SET erased_at = excluded.erased_at WHERE t.erased_at < excluded.erased_at RETURNING key"
)


class _Known(NamedTuple):
    """Whom a hash means here; `mark` is blank where everything was erased and nothing was stored since."""

    owner_id: int
    erased_at: int | None
    mark: Owner


class ErasureMover:
    """Learns under which hashes other stores know an owner, and erases here whom they have erased."""

    def __init__(self, link: Link, owners: OwnerKeys, eraser: EraserUntil) -> None:
        self._link = link
        self._owners = owners
        self._eraser = eraser
        self.erased: Counter[str] = Counter()
        """How many rows of each kind the erasures took."""

    def know(self, run: Sequence[_Line], now: datetime) -> list[str]:
        """Keep the hashes of subjects; who was known to be erased by one of them is erased here."""
        marks = [lines.subject_mark(line) for line in run]
        every = [key for line in run for key in line["hashes"]]
        known = {*self._known(every), *map(self._owners.key, marks)}
        told: dict[str, int] = dict(
            self._link.rows("SELECT key, erased_at FROM @tombstones WHERE key IN [:keys]", {"keys": every})
        )
        wanted = [
            mark
            for mark, line in zip(marks, run, strict=True)
            if not known.issuperset(line["hashes"]) or not told.keys().isdisjoint(line["hashes"])
        ]
        # Held as they are: what an erasure of this store has blanked is not named again by a line.
        held = self._owners.hold(wanted) if wanted else {}
        self._name(
            (held[mark].id, key)
            for mark, line in zip(marks, run, strict=True)
            for key in line["hashes"]
            if key not in known
        )
        outcomes = []
        for mark, line in zip(marks, run, strict=True):
            until = max((told.pop(key) for key in line["hashes"] if key in told), default=None)
            if until is not None and self._erase(mark, until):
                outcomes.append("erased")
            else:
                outcomes.append("skipped" if known.issuperset(line["hashes"]) else "imported")
            known.update(line["hashes"])
        # The owner has it from here on.
        self._link.run("DELETE FROM @tombstones WHERE key IN [:keys]", {"keys": every})
        return outcomes

    def erase(self, run: Sequence[_Line], now: datetime) -> list[str]:
        """Erase who is known by one of a line's hashes, up to its time; what nobody is known by is kept for later."""
        known = dict(self._known([key for line in run for key in line["hashes"]]))
        outcomes = []
        for line in run:
            until = min(int(line["created_at"]), micros(now))
            here = {known[key].owner_id: known[key] for key in line["hashes"] if key in known}
            new = [key for key in line["hashes"] if key not in known]
            if not here:
                noted = self._link.row_of_each(_NOTE, [{"key": key, "erased_at": until} for key in new])
                outcomes.append("imported" if any(noted) else "skipped")
                continue
            older = [one for one in here.values() if one.erased_at is None or one.erased_at < until]
            taken = sum(self._erase(one.mark, until) for one in older if one.mark.agent or one.mark.principal)
            self._link.run(
                "UPDATE @owners SET generation = generation + 1, erased_at = :until"
                " WHERE id IN [:ids] AND (erased_at IS NULL OR erased_at < :until)",
                {"ids": sorted(one.owner_id for one in older), "until": until},
            )
            self._name((owner_id, key) for owner_id in list(here)[:1] for key in new)
            for key in line["hashes"]:
                one = known.get(key) or next(iter(here.values()))
                known[key] = one._replace(erased_at=max(until, one.erased_at or until))
            outcomes.append("erased" if taken else "imported" if older or new else "skipped")
        return outcomes

    def _erase(self, mark: Owner, until: int) -> int:
        """Erase here what a mark stands for, and return how many rows went."""
        counts = self._eraser.erase(erasure_of(mark), until=until)
        self.erased.update(counts)
        return sum(counts.values())

    def _name(self, several: Iterable[tuple[int, str]]) -> None:
        self._link.run_many(
            "INSERT INTO @aliases (key, owner_id) VALUES (:key, :owner_id) ON CONFLICT (key) DO NOTHING",
            [{"key": key, "owner_id": owner_id} for owner_id, key in several],
        )

    def _known(self, keys: Sequence[str]) -> Mapping[str, _Known]:
        found = self._link.rows(
            f"SELECT o.key, o.id, o.erased_at, {READABLE} FROM @owners AS o WHERE o.key IN [:keys] UNION ALL"
            f" SELECT a.key, o.id, o.erased_at, {READABLE} FROM @aliases AS a JOIN @owners AS o ON o.id = a.owner_id"
            " WHERE a.key IN [:keys]",
            {"keys": sorted(set(keys))},
        )
        return {row[0]: _Known(row[1], row[2], readable(row[3:])) for row in found}
