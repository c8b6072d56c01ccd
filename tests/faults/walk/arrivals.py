"""What an import of one agent's memory does to plain lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace

from tests.faults.walk.memory import (
    GIVEN_WITH_TEXT,
    MOST_LINES,
    MOVED,
    NO_LABELS,
    Digest,
    Fact,
    PlainMemory,
    Session,
    Turn,
)


class Arrivals:
    """What of another store's lists comes into a store's; `outcomes` counts what became of each line."""

    def __init__(self, target: PlainMemory, now: int) -> None:
        self._target = target
        self._now = now
        self._new: set[str] = set()
        self.outcomes: Counter[str] = Counter()

    def session(self, line: Session) -> None:
        """Take a session with the digest that its window goes on from; one that is there keeps its own."""
        newest = next((digest for digest in line.digests if digest.version == line.version), None)
        here = self._target.sessions.get(line.place)
        if self._target.is_tombstoned(line.place, line.made):
            self._count("tombstoned")
        elif here is not None:
            self._count("skipped" if newest is None or _has(here, newest) else "left_out")
        else:
            self._target.sessions[line.place] = replace(
                line,
                turns=[],
                queued={},
                dead={},
                is_to_index=False,
                digests=[] if newest is None else [replace(newest)],
                folded=0 if newest is None else newest.upto,
                version=0 if newest is None else newest.version,
            )
            self._count("imported")

    def turn(self, line: Turn) -> None:
        """Take a turn; one whose place is taken goes to the end."""
        if self._target.is_tombstoned(line.place, line.made):
            self._count("tombstoned")
            return
        row = self._target.ensure(line.place, "private", self._now)
        if any(turn.text == line.text for turn in row.turns):
            self._count("skipped")
            return
        turn = replace(line)
        if any(other.seq == turn.seq for other in row.turns):
            turn.seq = row.last_seq + 1
        if not turn.name or any(other.name == turn.name for other in row.turns):
            turn.name = "" if turn.seq == line.seq and not turn.name else MOVED
        row.last_seq = max(row.last_seq, turn.seq)
        row.turns.append(turn)
        row.turns.sort(key=lambda other: other.seq)
        self._target.turns.append(turn)
        self._count("imported")

    def digest(self, line: Digest, session: Session) -> None:
        """Take a version before the one that came with its session."""
        if self._target.is_tombstoned(session.place, line.made):
            self._count("tombstoned")
            return
        row = self._target.ensure(session.place, "private", self._now)
        if _has(row, line):
            self._count("skipped")
        elif (
            row.version <= line.version or row.folded < line.upto or any(d.version == line.version for d in row.digests)
        ):
            self._count("left_out")
        else:
            row.digests.append(replace(line))
            row.digests.sort(key=lambda digest: digest.version)
            self._count("imported")

    def fact(self, line: Fact) -> None:
        """Take a fact, or what is new of it."""
        target = self._target
        sources = {
            place: set(seqs) for place, seqs in line.sources.items() if not target.has_lost_source(place, line.made)
        }
        is_gone = target.is_tombstoned(line.owner, line.made) or line.id in target.tombstones
        if is_gone or (line.sources and not sources):
            self._count("tombstoned")
            return
        here = target.fact(line.id)
        if here is not None and here.updated >= line.updated:
            for place, seqs in sources.items():
                here.sources.setdefault(place, seqs)
            self._count("skipped" if here.text == line.text else "left_out")
            return
        fact = deepcopy(line)
        fact.sources = sources
        fact.lines = [one for one in line.lines if not target.has_lost_source(one[2], one[3])]
        if line.lines and (not fact.lines or fact.lines[-1] != line.lines[-1]):
            fact.key = fact.dedupe_key = None
            fact.labels |= {name: deepcopy(NO_LABELS[name]) for name in GIVEN_WITH_TEXT}
        if here is not None:
            target.facts.remove(here)
            if here.text != fact.text:
                target.ghosts.append(here.text)
            fact.lines = sorted([*fact.lines, *(one for one in here.lines if one not in fact.lines)], key=_when)
            fact.lines = fact.lines[-MOST_LINES:]
            for place, seqs in here.sources.items():
                fact.sources.setdefault(place, seqs)
        self._settle(fact)
        target.facts.append(fact)
        self._new.add(fact.id)
        self._count("imported")

    def _settle(self, fact: Fact) -> None:
        """Let one fact of each label live: what was said later."""
        if not fact.is_active:
            return
        rivals = [
            rival
            for rival in self._target.facts_under(fact.scope, fact.owner)
            if rival.is_active and (_shares(fact.key, rival.key) or _shares(fact.dedupe_key, rival.dedupe_key))
        ]
        later = [rival for rival in rivals if rival.said > fact.said and not rival.has_expired(self._now)]
        if later:
            winner = max(later, key=lambda rival: (rival.said, rival.id))
            fact.successor, fact.valid_to = winner.id, max(fact.valid_from, winner.valid_from)
            return
        for rival in rivals:
            rival.successor, rival.valid_to = fact.id, max(rival.valid_from, fact.valid_from)
            if rival.id not in self._new:
                rival.note("superseded", None, None, self._now)

    def deleted(self, fact_ids: Iterable[str]) -> None:
        """Delete what was deleted by itself where the lines come from."""
        for fact_id in fact_ids:
            here = self._target.fact(fact_id)
            if here is not None:
                self._target.facts.remove(here)
                self._target.ghosts.append(here.text)
                self._count("erased")
            else:
                self._count("skipped" if fact_id in self._target.tombstones else "imported")
            self._target.tombstones.add(fact_id)

    def _count(self, outcome: str) -> None:
        self.outcomes[outcome] += 1


def _has(session: Session, digest: Digest) -> bool:
    return any(
        (one.version, one.text, one.upto) == (digest.version, digest.text, digest.upto) for one in session.digests
    )


def _shares(one: str | None, other: str | None) -> bool:
    return one is not None and one == other


def _when(line: tuple[object, object, object, float]) -> float:
    return line[3]


def restored(memory: PlainMemory, now: int) -> PlainMemory:
    """Return what a store has that was empty and took everything."""
    whole = PlainMemory(erasures=list(memory.erasures))
    arrivals = Arrivals(whole, now)
    sessions = list(memory.sessions.values())
    for session in sessions:
        arrivals.session(session)
    for turn in memory.turns:
        arrivals.turn(turn)
    for session in sessions:
        for digest in session.digests:
            if digest.version < session.version:
                arrivals.digest(digest, session)
    for fact in memory.facts:
        arrivals.fact(fact)
    whole.tombstones = set(memory.tombstones)
    return whole
