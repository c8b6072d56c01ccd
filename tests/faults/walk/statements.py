"""What becomes of a statement beside those that its owner has already, over plain lists."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from tests.faults.walk.memory import NO_LABELS, Fact, Place, PlainMemory

_SUBJECT = re.compile(r"([A-Z]\w*'s favourite boat) is ")
_LIKES = re.compile(r"I like (\w+ trains of q\d+n\d+)")
_BOAT = re.compile(r"[A-Z]\w*'s favourite boat is q\d+n\d+")
ON_THE_WAY = 0.1
"""By how much what was queued may have been said later than it seems, in steps."""


def subject(text: str) -> str:
    """Return of what one thing a statement gives the value, if it does."""
    found = _SUBJECT.match(text)
    return found[1] if found is not None else ""


def stated(turn: str) -> list[tuple[str, str, str | None]]:
    """Return the statements that a turn makes, each with its kind and its category."""
    likes = [(f"The user likes {what}", "preference", "taste") for what in _LIKES.findall(turn)]
    return [*likes, *((boat, "semantic", None) for boat in _BOAT.findall(turn))]


@dataclass
class Saying:
    """A statement that comes. `rank` is when it counts as said where two do not agree."""

    text: str
    place: Place
    said: float
    rank: float
    key: str | None = None
    dedupe_key: str | None = None
    labels: dict[str, Any] = field(default_factory=lambda: dict(NO_LABELS))
    seqs: tuple[int, ...] = ()
    is_extracted: bool = False


Action = tuple[str, Fact | None]


def decide(memory: PlainMemory, scope: str, owner: Place, saying: Saying, now: int) -> Action:
    """Return `refused`, or what is done and to which fact: same, older, replaced, superseded, added."""
    known = sorted(memory.facts_under(scope, owner), key=lambda fact: (not fact.is_active, fact.id))
    active = [fact for fact in known if fact.is_active]
    labelled = [fact for fact in active if fact.key is not None and fact.key == saying.key]
    labelled += [
        fact
        for fact in active
        if fact.dedupe_key is not None and fact.dedupe_key == saying.dedupe_key and fact not in labelled
    ]
    for fact in labelled:
        if not _is_own(scope, saying, fact):
            return "refused", fact
        if not fact.has_expired(now) and saying.rank < fact.said:
            return "older", fact
    if labelled:
        return "replaced", labelled[0]
    holding = [fact for fact in known if not fact.has_expired(now) and (saying.key is None or fact.key is None)]
    for fact in holding:
        if fact.text == saying.text and (fact.is_active or saying.rank <= fact.said):
            if saying.key is None:
                return "same", fact
            if fact.is_active and _is_own(scope, saying, fact):
                return "replaced", fact
    about = subject(saying.text)
    rivals = [fact for fact in holding if fact.is_active and about and subject(fact.text) == about]
    rivals = [fact for fact in rivals if fact.text != saying.text]
    return _against(scope, saying, rivals[0]) if rivals else ("added", None)


def _against(scope: str, saying: Saying, rival: Fact) -> Action:
    """Return what is done where another value is known: the newer one holds."""
    if saying.rank < rival.said:
        return "older", rival
    is_later = saying.rank > rival.said or _is_said_before(rival, saying)
    may_end = _is_own(scope, saying, rival) and not (rival.labels["pinned"] and saying.is_extracted)
    return ("superseded", rival) if is_later and rival.key is None and may_end else ("added", None)


def _is_said_before(fact: Fact, saying: Saying) -> bool:
    return bool(saying.seqs) and all(
        (place.agent, place.user, place.session) == (saying.place.agent, saying.place.user, saying.place.session)
        and bool(seqs)
        and max(seqs) < max(saying.seqs)
        for place, seqs in fact.sources.items()
    )


def _is_own(scope: str, saying: Saying, fact: Fact) -> bool:
    return scope != "shared" or fact.writer == saying.place.agent


def save(memory: PlainMemory, scope: str, owner: Place, saying: Saying, *, now: int, fact_id: str) -> tuple[str, Fact]:
    """Do what `decide` says; return the action as an answer names it, and the fact. A new one has the given id."""
    action, fact = decide(memory, scope, owner, saying, now)
    match action, fact:
        case "same", Fact():
            fact.sources.setdefault(saying.place, set()).update(saying.seqs)
            _said_again(fact, saying, now)
            return "ignored", fact
        case "older", Fact():
            memory.ghosts.append(saying.text)
            return "ignored", fact
        case "replaced", Fact():
            for other in memory.facts_under(scope, owner):
                named = other.dedupe_key is not None and other.dedupe_key == saying.dedupe_key
                if named and other is not fact and other.is_active:
                    supersede(other, fact.id, saying.said, now)
            _replace(memory, fact, saying, now)
            return "replaced", fact
        case "superseded", Fact():
            supersede(fact, fact_id, saying.said, now)
            saying.dedupe_key = saying.dedupe_key or fact.dedupe_key
    assert action in ("added", "superseded")
    return action, add(memory, scope, owner, saying, now=now, fact_id=fact_id)


def add(memory: PlainMemory, scope: str, owner: Place, saying: Saying, *, now: int, fact_id: str) -> Fact:
    """Store a statement as a new fact."""
    fact = Fact(
        fact_id, scope, owner, saying.text, saying.said, saying.said, now, {saying.place: set(saying.seqs)},
        [("added", saying.text, saying.place, now)], saying.key, saying.dedupe_key, dict(saying.labels), updated=now,
    )  # fmt: skip
    memory.facts.append(fact)
    return fact


def supersede(fact: Fact, successor: str, valid_from: float, now: int) -> None:
    """Let another fact take one's place."""
    fact.successor, fact.valid_to = successor, max(fact.valid_from, valid_from)
    fact.note("superseded", None, None, now)


def correct(memory: PlainMemory, fact: Fact, fields: dict[str, Any], now: int) -> None:
    """Change fields of a fact in place."""
    text = fields.get("text", fact.text)
    if text != fact.text:
        memory.ghosts.append(fact.text)
    fact.note("corrected", text if text != fact.text else None, None, now)
    fact.text = text
    fact.labels |= {name: value for name, value in fields.items() if name != "text"}


def _said_again(fact: Fact, saying: Saying, now: int) -> None:
    lasts, expires = fact.labels["expires_at"], saying.labels["expires_at"]
    outlives = not saying.is_extracted and lasts is not None and (expires is None or expires > lasts)
    if saying.said > fact.said or outlives:
        fact.note("restated", None, None, now)
    if outlives:
        fact.labels["expires_at"] = expires
    fact.said = max(fact.said, saying.said)


def _replace(memory: PlainMemory, fact: Fact, saying: Saying, now: int) -> None:
    if fact.text != saying.text:
        memory.ghosts.append(fact.text)
    fact.note("replaced", saying.text if saying.text != fact.text else None, saying.place, now)
    fact.text, fact.said, fact.valid_from = saying.text, saying.said, saying.said
    fact.key, fact.dedupe_key, fact.labels = saying.key, saying.dedupe_key, dict(saying.labels)
    fact.sources = {saying.place: set(saying.seqs)}
