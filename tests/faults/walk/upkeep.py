"""What jobs do to plain lists: digests, facts out of turns, and what goes by its age."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.faults.walk.memory import EXTRACT, FOLD, Digest, Fact, Place, PlainMemory, Session, Turn
from tests.faults.walk.statements import Saying, save, stated

MARKS = 12
"""Turns that a digest names: the last ones."""
TURNS_OF_A_JOB = 40

_NOTES = re.compile(r"(\d+) turns were said, the last ones are ([q\dn ]+)\.")


def notes(prior: str, turns: Sequence[str]) -> str:
    """Return the digest that has these turns too: it counts what was said, and names the last turns by their marks."""
    found = _NOTES.fullmatch(prior)
    count, marks = (int(found[1]), found[2].split()) if found is not None else (0, [])
    marks += [text.rpartition(" ")[2] for text in turns]
    return f"{count + len(turns)} turns were said, the last ones are {' '.join(marks[-MARKS:])}."


@dataclass(frozen=True)
class Upkeep:
    """The marks of the stores of a walk, in tokens, turns, versions and steps."""

    budget: int
    target: int
    min_turns: int
    digests_kept: int
    idle: float
    turns_kept: float
    facts_kept: float

    def after_append(self, session: Session) -> bool:
        """Enqueue what new turns call for; return whether anything is."""
        session.is_to_index = True
        is_over = session.tokens > self.budget
        waits = session.last_seq - session.extracted >= self.min_turns
        if is_over:
            session.enqueue(FOLD)
        if waits:
            session.enqueue(EXTRACT)
        return is_over or waits

    def fold(self, session: Session, now: int) -> bool:
        """Make the next version of a session's digest; return whether the model was asked for one."""
        if session.tokens <= self.budget and not session.queued[FOLD]:
            return False
        turns, left = session.unfolded, session.tokens
        upto = 0
        while upto < len(turns) - 1 and left > self.target:
            left -= turns[upto].tokens
            upto += 1
        if upto == 0:
            return False
        prior = session.digests[-1].text if session.digests else ""
        session.version += 1
        session.folded = turns[upto - 1].seq
        text = notes(prior, [turn.text for turn in turns[:upto]])
        session.digests.append(Digest(session.version, text, session.folded, now))
        session.digests = [one for one in session.digests if one.version > session.version - self.digests_kept]
        return True

    def extract(self, memory: PlainMemory, session: Session, now: int, fact_id: Callable[[str], str]) -> list[str]:
        """Make facts of the turns that wait, and return what was done; `fact_id` gives the id of what says a text."""
        waiting = [turn for turn in session.turns if turn.seq > session.extracted]
        taken = waiting[:TURNS_OF_A_JOB]
        if not taken:
            return []
        session.extracted = taken[-1].seq
        place, scope = session.place, session.scope
        owner = {"user": Place("", place.user, "", place.workspace), "shared": Place("", "", "", place.workspace)}.get(
            scope, place if scope == "session" else Place(place.agent, place.user, "", place.workspace)
        )
        done = [
            save(memory, scope, owner, saying, now=now, fact_id=fact_id(saying.text) or saying.text)[0]
            for saying in sayings([turn for turn in taken if turn.infer], place, now)
        ]
        waits = session.last_seq - session.extracted
        if waits >= self.min_turns or (len(waiting) > len(taken) and waits > 0):
            session.enqueue(EXTRACT)
        return done

    def sweep(self, memory: PlainMemory, now: int) -> None:
        """Enqueue the extraction of sessions that rest, and vectors of turns that came without any."""
        for session in memory.sessions.values():
            session.is_to_index = session.is_to_index or not all(turn.indexed for turn in session.turns)
            has_turns = bool(session.turns) and session.turns[-1].seq > session.extracted
            has_job = EXTRACT in session.queued or EXTRACT in session.dead
            is_idle = session.written < now - self.idle and session.extracted < session.last_seq
            if is_idle and has_turns and not has_job:
                session.enqueue(EXTRACT)

    def expire(self, memory: PlainMemory, now: int) -> int:
        """Delete what is past its time; return how much."""

        def goes(fact: Fact) -> bool:
            return not fact.labels["pinned"] and (fact.has_expired(now) or fact.updated < now - self.facts_kept)

        there = len(memory.facts) + len(memory.turns)
        memory.ghosts += [fact.text for fact in memory.facts if goes(fact)]
        memory.facts = [fact for fact in memory.facts if not goes(fact)]
        before = now - self.turns_kept
        for session in memory.sessions.values():
            self._expire_turns(session, before)
            session.digests = [digest for digest in session.digests if digest.made >= before]
        memory.turns = [turn for turn in memory.turns if turn.made >= before]
        return there - len(memory.facts) - len(memory.turns)

    @staticmethod
    def _expire_turns(session: Session, before: float) -> None:
        gone = [turn.seq for turn in session.turns if turn.made < before]
        if not gone:
            return
        session.turns = [turn for turn in session.turns if turn.made >= before]
        if all(turn.seq > max(gone) for turn in session.turns):
            session.extracted = max(session.extracted, *gone)


def sayings(turns: Sequence[Turn], place: Place, now: int) -> list[Saying]:
    """Return what turns state, each statement once, in the order in which it was said last."""
    found: dict[str, Saying] = {}
    for turn in turns:
        for text, kind, category in stated(turn.text):
            said = min(turn.said, now)
            known = found.get(text)
            if known is None:
                known = found[text] = Saying(text, place, said, said, is_extracted=True)
                known.labels |= {"kind": kind, "category": category}
            known.seqs = (*known.seqs, turn.seq)
            known.said = known.rank = max(known.said, said)
    return sorted(found.values(), key=lambda saying: (saying.said, max(saying.seqs)))
