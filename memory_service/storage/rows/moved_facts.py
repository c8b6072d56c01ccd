"""Facts of an import, merged with those that are there as a save would be.

One that is there is taken over where the line is of a later change, and stays as it is otherwise. One whose label
another fact has: what was said later holds, and the other one is kept as superseded by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from memory_service.contract.items import FactStatus
from memory_service.domain import histories
from memory_service.domain.owners import covering
from memory_service.ports.records import FactSource
from memory_service.storage.encoding import micros, moment
from memory_service.storage.rows import fact_history, fact_sources, lines
from memory_service.storage.rows.fact_columns import INSERT, LIVE, bare
from memory_service.storage.rows.facts import FactRows
from memory_service.storage.rows.owners import OwnerKeys
from memory_service.storage.rows.sparing import Sparing, covering_source
from memory_service.storage.statements import LOCK, Link

_ACTOR = "import"
_LABELS = ("key", "dedupe_key")
_LIVE = frozenset({FactStatus.ACTIVE.value, FactStatus.PENDING.value})
_Line = Mapping[str, Any]


@dataclass(frozen=True)
class _Known:
    """A fact that is there."""

    id: str
    owner_id: int
    row_id: int
    changed: tuple[int, int]
    text: str


@dataclass
class _Rival:
    """A live fact that has a label; `values` are its columns where it comes with the same import."""

    id: str
    said_at: int
    valid_from: int
    has_expired: bool
    values: dict[str, Any] | None = None


@dataclass
class _Arrival:
    """A fact that is stored: its columns and what hangs on it."""

    values: dict[str, Any]
    sources: list[FactSource]
    history: list[Mapping[str, Any]]


@dataclass
class _Plan:
    """What becomes of the lines, in their order."""

    outcomes: list[str] = field(default_factory=list)
    arrivals: list[_Arrival] = field(default_factory=list)
    replaced: list[_Known] = field(default_factory=list)
    ended: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Facts that are there and are superseded: by whom, and from when on."""
    said_again: list[tuple[_Known, Sequence[FactSource]]] = field(default_factory=list)
    """Facts that stay as they are, with the sources of their lines."""


class FactMover:
    """Stores facts of an import."""

    def __init__(self, link: Link, owners: OwnerKeys, facts: FactRows, sparing: Sparing) -> None:
        self._link = link
        self._owners = owners
        self._facts = facts
        self._sparing = sparing
        self.erased: Counter[str] = Counter()
        """How many rows of each kind the deletions took."""

    def restore(self, run: Sequence[_Line], now: datetime) -> list[str]:
        """Store the facts that no erasure has taken; return of each line what became of it, in the port's words."""
        owners = [lines.fact_owner(line) for line in run]
        spared = self._sparing.spared(
            [(covering(owner), int(line["created_at"])) for owner, line in zip(owners, run, strict=True)]
        )
        # Held first: nobody saves, changes or deletes a fact of these owners from here on.
        held = self._owners.lock_many([owner for owner, is_spared in zip(owners, spared, strict=True) if is_spared])
        deleted = self._deleted(run)
        spared = [
            is_spared and deleted.get(str(line["id"]), -1) < int(line["created_at"])
            for line, is_spared in zip(run, spared, strict=True)
        ]
        sources = self._sources(run, spared)
        places = [None if kept is None else (held[owner].id, kept) for owner, kept in zip(owners, sources, strict=True)]
        plan = self._plan(run, places, micros(now))
        self._store(plan, now)
        return plan.outcomes

    def delete(self, run: Sequence[_Line], now: datetime) -> list[str]:
        """Delete facts that were deleted where the lines come from, whatever became of them here."""
        ids = {"ids": [str(line["id"]) for line in run]}
        # Owners before their rows, as everybody locks them who saves.
        owners = self._link.rows("SELECT owner_id FROM @facts WHERE id IN [:ids]", ids)
        self._owners.lock_ids([row[0] for row in owners])
        found = self._link.rows(
            f"SELECT owner_id, row_id, id FROM @facts WHERE id IN [:ids] ORDER BY row_id {LOCK}", ids
        )
        self.erased.update(self._facts.discard([(row[0], row[1]) for row in found]))
        gone = {row[2] for row in found}
        noted = self._link.row_of_each(
            "INSERT INTO @tombstones (key, erased_at) VALUES (:key, :erased_at) ON CONFLICT (key) DO NOTHING"
            " RETURNING key",
            [{"key": str(line["id"]), "erased_at": int(line["created_at"])} for line in run],
        )
        return [
            "erased" if str(line["id"]) in gone else "skipped" if row is None else "imported"
            for line, row in zip(run, noted, strict=True)
        ]

    def _plan(self, run: Sequence[_Line], places: Sequence[tuple[int, Sequence[FactSource]] | None], now: int) -> _Plan:
        plan = _Plan()
        known, rivals = self._known(run), self._rivals(run, places, now)
        histories = iter(self._histories([line for line, place in zip(run, places, strict=True) if place is not None]))
        for line, place in zip(run, places, strict=True):
            if place is None:
                plan.outcomes.append("tombstoned")
                continue
            owner_id, sources = place
            history, keeps = next(histories)
            there = known.get(str(line["id"]))
            if there is not None and there.owner_id != owner_id:
                plan.outcomes.append("left_out")
                continue
            if there is not None and there.changed >= (int(line["updated_at"]), int(line["revision"])):
                plan.said_again.append((there, sources))
                plan.outcomes.append("skipped" if there.text == line["text"] else "left_out")
                continue
            values = {
                **lines.fact_values(line, self._link), **({} if keeps else bare(line["text"])), "owner_id": owner_id,
            }  # fmt: skip
            if there is not None:
                plan.replaced.append(there)
                for label in [label for label, rival in rivals.items() if rival.id == values["id"]]:
                    del rivals[label]
            self._settle(values, rivals, plan, now)
            plan.arrivals.append(_Arrival(values, list(sources), list(history)))
            plan.outcomes.append("imported")
        return plan

    def _settle(
        self, values: dict[str, Any], rivals: dict[tuple[int, str, str], _Rival], plan: _Plan, now: int
    ) -> None:
        """Let one fact of each label live: what was said later."""
        if values["status"] not in _LIVE:
            return
        labels = [(values["owner_id"], name, values[name]) for name in _LABELS if values[name] is not None]
        found = {rival.id: rival for label in labels if (rival := rivals.get(label)) is not None}
        later = [rival for rival in found.values() if rival.said_at > values["said_at"] and not rival.has_expired]
        if later:
            winner = max(later, key=lambda rival: (rival.said_at, rival.id))
            _end(values, winner.id, winner.valid_from)
            return
        for rival in found.values():
            if rival.values is None:
                plan.ended[rival.id] = (values["id"], max(rival.valid_from, values["valid_from"]))
            else:
                _end(rival.values, values["id"], values["valid_from"])
            for label in [label for label, holder in rivals.items() if holder.id == rival.id]:
                del rivals[label]
        has_expired = values["expires_at"] is not None and values["expires_at"] <= now
        mine = _Rival(values["id"], values["said_at"], values["valid_from"], has_expired, values)
        rivals.update(dict.fromkeys(labels, mine))

    def _store(self, plan: _Plan, now: datetime) -> None:
        self._keep_what_is_here(plan)
        for fact_id, (successor, valid_to) in plan.ended.items():
            self._facts.supersede(fact_id, successor_id=successor, valid_to=moment(valid_to), actor=_ACTOR, now=now)
        self._facts.discard([(known.owner_id, known.row_id) for known in plan.replaced])
        found = self._link.row_of_each(
            f"{INSERT} RETURNING owner_id, row_id",
            [
                {**arrival.values, "text_hash": self._facts.text_hash(arrival.values["text"])}
                for arrival in plan.arrivals
            ],
        )
        stored = [
            ({"owner_id": place[0], "fact_id": place[1]}, arrival)
            for place, arrival in zip(found, plan.arrivals, strict=True)
            if place is not None
        ]
        self._link.run_many(
            fact_sources.INSERT,
            [{**place, **fact_sources.values(source)} for place, arrival in stored for source in arrival.sources],
        )
        self._link.run_many(
            fact_history.INSERT, [{**place, **row} for place, arrival in stored for row in arrival.history]
        )
        self._owners.revise(place["owner_id"] for place, _ in stored)

    def _keep_what_is_here(self, plan: _Plan) -> None:
        """Join the sources of both sides, and keep the changes that were made here of facts that are taken over."""
        arrivals = {arrival.values["id"]: arrival for arrival in plan.arrivals}
        here = self._sources_here([*plan.replaced, *(known for known, _ in plan.said_again)])
        changes = self._changes_here(plan.replaced)
        for known in plan.replaced:
            arrival = arrivals[known.id]
            seen = {_change(row) for row in arrival.history}
            arrival.history += [row for row in changes.get(known.row_id, []) if _change(row) not in seen]
            arrival.history.sort(key=lambda row: int(row["at"]))
            arrival.sources += _missing(here.get(known.row_id, []), arrival.sources)
        for arrival in plan.arrivals:
            keeps = histories.kept([len(row["text"]) for row in reversed(arrival.history)])
            del arrival.history[: len(arrival.history) - keeps]
        self._link.run_many(
            fact_sources.INSERT,
            [
                {"owner_id": known.owner_id, "fact_id": known.row_id, **fact_sources.values(source)}
                for known, sources in plan.said_again
                for source in _missing(sources, here.get(known.row_id, []))
            ],
        )

    def _sources_here(self, several: Sequence[_Known]) -> Mapping[int, list[FactSource]]:
        columns = "agent, principal, session, workspace, seqs"
        found: dict[int, list[FactSource]] = {}
        for row in self._link.rows(
            f"SELECT fact_id, {columns} FROM @fact_sources WHERE owner_id IN [:owners] AND fact_id IN [:ids]",
            _in(several),
        ):
            found.setdefault(row[0], []).append(fact_sources.source(row[1:]))
        return found

    def _changes_here(self, several: Sequence[_Known]) -> Mapping[int, list[Mapping[str, Any]]]:
        columns = ", ".join(lines.HISTORY_KEYS)
        found: dict[int, list[Mapping[str, Any]]] = {}
        for row in self._link.rows(
            f"SELECT fact_id, {columns} FROM @fact_history WHERE owner_id IN [:owners] AND fact_id IN [:ids]"
            " ORDER BY fact_id, id",
            _in(several),
        ):
            found.setdefault(row[0], []).append(dict(zip(lines.HISTORY_KEYS, row[1:], strict=True)))
        return found

    def _known(self, run: Sequence[_Line]) -> Mapping[str, _Known]:
        found = self._link.rows(
            "SELECT id, owner_id, row_id, updated_at, revision, text FROM @facts WHERE id IN [:ids]",
            {"ids": [str(line["id"]) for line in run]},
        )
        return {row[0]: _Known(row[0], row[1], row[2], (row[3], row[4]), row[5]) for row in found}

    def _rivals(
        self, run: Sequence[_Line], places: Sequence[tuple[int, Sequence[FactSource]] | None], now: int
    ) -> dict[tuple[int, str, str], _Rival]:
        """Return the live facts that have one of the lines' labels, by owner and label."""
        owners = sorted({place[0] for place in places if place is not None})
        rivals: dict[tuple[int, str, str], _Rival] = {}
        for name in _LABELS:
            for row in self._link.rows(
                f"SELECT f.owner_id, f.{name}, f.id, f.said_at, f.valid_from, f.expires_at FROM @facts AS f"
                f" WHERE f.owner_id IN [:owners] AND f.{name} IS NOT NULL AND f.{name} IN [:labels] AND {LIVE}",
                {"owners": owners, "labels": sorted({str(line[name]) for line in run if line[name] is not None})},
            ):
                rivals[(row[0], name, row[1])] = _Rival(
                    row[2], row[3], row[4], has_expired=row[5] is not None and row[5] <= now
                )
        return rivals

    def _histories(self, found: Sequence[_Line]) -> list[tuple[Sequence[Mapping[str, Any]], bool]]:
        """Return of each fact the lines that no erasure has taken, and whether what its text came with is kept."""
        histories = [[lines.history_values(one) for one in line["history"]] for line in found]
        spared = iter(
            self._sparing.spared(
                [
                    (covering_source(FactSource(row["agent"], row["principal"], row["session"])), row["at"])
                    for history in histories
                    for row in history
                ]
            )
        )
        marked = [[(row, next(spared)) for row in history] for history in histories]
        return [([row for row, is_spared in history if is_spared], not history or history[-1][1]) for history in marked]

    def _sources(self, run: Sequence[_Line], spared: Sequence[bool]) -> list[Sequence[FactSource] | None]:
        """Return the sources of each fact that no erasure has taken; None where the fact is gone itself."""
        named = [
            [lines.fact_source(source) for source in line["sources"]] if is_spared else []
            for line, is_spared in zip(run, spared, strict=True)
        ]
        kept = iter(
            self._sparing.spared(
                [
                    (covering_source(source), int(line["created_at"]))
                    for line, sources in zip(run, named, strict=True)
                    for source in sources
                ]
            )
        )
        left = [[source for source in sources if next(kept)] for sources in named]
        return [
            rest if is_spared and (rest or not sources) else None
            for rest, sources, is_spared in zip(left, named, spared, strict=True)
        ]

    def _deleted(self, run: Sequence[_Line]) -> Mapping[str, int]:
        """Return when facts of these ids were deleted one by one."""
        return dict(
            self._link.rows(
                "SELECT key, erased_at FROM @tombstones WHERE key IN [:keys]",
                {"keys": [str(line["id"]) for line in run]},
            )
        )


def _in(several: Sequence[_Known]) -> Mapping[str, Any]:
    return {"owners": sorted({known.owner_id for known in several}), "ids": [known.row_id for known in several]}


def _end(values: dict[str, Any], successor: str, valid_from: int) -> None:
    """Make a fact that comes a superseded one."""
    values |= {
        "status": FactStatus.SUPERSEDED.value,
        "valid_to": max(values["valid_from"], valid_from),
        "superseded_by": successor,
    }


def _change(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("at", "event", "actor", "text"))


def _missing(sources: Sequence[FactSource], known: Sequence[FactSource]) -> list[FactSource]:
    places = {fact_sources.place(source) for source in known}
    return [source for source in sources if fact_sources.place(source) not in places]
