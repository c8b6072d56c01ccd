"""Merging: what becomes of a candidate beside the facts that its owner has already.

One decision a candidate, made once outside of a transaction and again inside of it under the owner's row lock, by the
same rules: so eight sessions that say one thing leave one fact, and merging a batch twice equals merging it once.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from memory_service.domain.lexical import terms

NEAR_EQUAL = 0.90
"""Cosine from which two statements with the same words, or with one's words within the other's, are one statement.
Sentences that differ in a name or number reach it too, so it never decides alone."""
SAME_SUBJECT = 0.70
"""Cosine from which two statements can be values of one attribute ("lives in Berlin", "lives in Hamburg")."""

_ONE_VALUE_WORDS = (
    "lives live living resides moved address home birthday born age name named nickname favourite favorite prefers "
    "preferred works employer job title role phone number email timezone married engaged partner budget deadline "
    "password language diet size weight height status version default located based"
)
_ONE_VALUE = frozenset(term for word in _ONE_VALUE_WORDS.split() for term in terms(word))
"""Stems that speak of something which has one value at a time."""

_NEGATION = re.compile(
    r"\b(?:not|no longer|never|no more|stopped|quit|ended|cannot|without|isn't|aren't|wasn't|don't|doesn't|didn't|"
    r"won't|can't|hasn't|haven't)\b",
    re.IGNORECASE,
)
_NEGATING_TERMS = frozenset(term for word in ("never", "longer", "stopped", "quit", "ended") for term in terms(word))
_UPDATE = re.compile(r"\b(?:now|no longer|anymore|changed|moved|switched|instead|since|as of|from now on)\b", re.I)
_UPDATE_TERMS = frozenset(term for word in ("now", "changed", "moved", "switched", "instead") for term in terms(word))


@dataclass(frozen=True)
class Newcomer:
    """A candidate, or a fact that a caller saves. `updates` and `contradicts` come from the engine: `updates` is the
    id of a known fact. `by_extraction` says that no person or agent asked for it.
    """

    text: str
    said_at: datetime
    key: str | None = None
    dedupe_key: str | None = None
    updates: str | None = None
    contradicts: bool = False
    by_extraction: bool = True
    expires_at: datetime | None = None


@dataclass(frozen=True)
class Known:
    """A fact of the same owner that may be the same or contradict: found by key, by dedupe key, by text or by meaning.

    `cosine` is None where it is not known. `active` is False for one that has a successor. `is_own` is False for one
    that whoever brings the newcomer may read but not change; `expired` is True for one that is past its time.
    """

    id: str
    text: str
    said_at: datetime
    pinned: bool = False
    key: str | None = None
    dedupe_key: str | None = None
    cosine: float | None = None
    active: bool = True
    is_own: bool = True
    expires_at: datetime | None = None
    expired: bool = False


@dataclass(frozen=True)
class Add:
    """Store it as a new fact."""


@dataclass(frozen=True)
class Replace:
    """Overwrite this fact in place: the caller named it by key. `others` hold the newcomer's other label, and end."""

    id: str
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refuse:
    """Store nothing and say so: the newcomer's label is that of a fact that is not the caller's to change."""

    id: str


@dataclass(frozen=True)
class Supersede:
    """Store it as a new fact that takes this one's place from its `said_at` on."""

    id: str


@dataclass(frozen=True)
class Ignore:
    """Store nothing new.

    `same` and `less`: the fact was said once more, so its `said_at` moves on to the newcomer's if that is later: a
    statement between the two does not replace what was said again after it. With `same` its source is noted too, and
    it lasts as long as the newcomer would.
    `older` and `pinned`: the newcomer does not hold.
    """

    id: str
    reason: Literal["same", "less", "older", "pinned"]


Decision = Add | Replace | Refuse | Supersede | Ignore


def decide(newcomer: Newcomer, known: Sequence[Known]) -> Decision:
    """Return what to do with a newcomer, whatever the order of `known`.

    1. The same key, or the same dedupe key: the newer statement holds.
    2. The same text: known already; one without a key becomes the newcomer's if that has one.
    3. The engine says which fact it updates: the newer statement holds.
    4. Near in meaning and in words: the one that says more holds.
    5. Near in meaning, same attribute of one value, other value (or the same statement negated): the newer one holds.
    6. Else it is a new fact.

    Extraction never changes a pinned fact, and nobody one that is another's: a contradiction is stored beside it.
    What has expired counts by its label alone.
    """
    order = sorted(known, key=lambda fact: (-(fact.cosine or 0.0), fact.id))
    active = [fact for fact in order if fact.active]
    labelled = [fact for fact in active if _same_label(newcomer, fact)]
    if labelled:
        return _by_labels(newcomer, labelled)
    order = [fact for fact in order if not fact.expired]
    active = [fact for fact in active if not fact.expired]
    if newcomer.key is not None:
        # What is saved under a key is to be found under it, whatever else says the same: only a fact without a key
        # can become it.
        order = [fact for fact in order if fact.key is None]
        active = [fact for fact in active if fact.key is None]
    for fact in order:
        # A repeat of what was superseded is old news, unless it was said again after that.
        if normal_text(fact.text) == normal_text(newcomer.text) and (fact.active or newcomer.said_at <= fact.said_at):
            if newcomer.key is None:
                return Ignore(fact.id, "same")
            if fact.active and fact.is_own:
                return Replace(fact.id)
    for fact in active:
        if newcomer.updates == fact.id:
            return _newest(newcomer, fact)
    mine = terms(newcomer.text)
    near = [
        (fact, terms(fact.text))
        for fact in order
        if (fact.cosine or 0.0) >= NEAR_EQUAL and _is_negated(newcomer.text) == _is_negated(fact.text)
    ]
    for fact, theirs in near:
        if newcomer.key is None and _is_within(mine, theirs) and (fact.active or newcomer.said_at <= fact.said_at):
            if mine == theirs:
                return Ignore(fact.id, "same")
            if not outlives(newcomer.expires_at, fact.expires_at):
                return Ignore(fact.id, "less")
    for fact, theirs in near:
        says_more = bool(theirs) and mine != theirs and _is_within(theirs, mine)
        if fact.active and says_more and newcomer.said_at >= fact.said_at and fact.key is None:
            return Supersede(fact.id) if _may_change(newcomer, fact) else Add()
    for fact in active:
        if (fact.cosine or 0.0) >= SAME_SUBJECT and _contradict(newcomer.text, frozenset(mine), fact.text):
            return _newest(newcomer, fact)
    return Add()


def _is_within(some: Sequence[str], whole: Sequence[str]) -> bool:
    """Return whether the words of one statement stand in the other in the same order: who did what to whom is kept."""
    rest = iter(whole)
    return all(word in rest for word in some)


def normal_text(text: str) -> str:
    """Return a text without the differences that make no other statement: case, white space, the final stop, and how
    Unicode composes a letter.
    """
    return " ".join(unicodedata.normalize("NFC", text).casefold().split()).rstrip(".!。 ")


def _same_label(newcomer: Newcomer, fact: Known) -> bool:
    return (newcomer.key is not None and newcomer.key == fact.key) or (
        newcomer.dedupe_key is not None and newcomer.dedupe_key == fact.dedupe_key
    )


def outlives(one: datetime | None, other: datetime | None) -> bool:
    """Return whether one time of expiry is later than another; None is never."""
    return other is not None and (one is None or one > other)


def _may_change(newcomer: Newcomer, fact: Known) -> bool:
    return fact.is_own and not (fact.pinned and newcomer.by_extraction)


def _by_labels(newcomer: Newcomer, found: Sequence[Known]) -> Decision:
    """Replace the fact with the newcomer's key; another one with its dedupe key ends, so that both name one fact."""
    first, *others = sorted(found, key=lambda fact: newcomer.key is None or fact.key != newcomer.key)
    decisions = [_by_label(newcomer, fact) for fact in (first, *others)]
    for decision in decisions:
        if not isinstance(decision, Replace):
            return decision
    return Replace(first.id, tuple(fact.id for fact in others))


def _by_label(newcomer: Newcomer, fact: Known) -> Decision:
    if not fact.is_own:
        return Refuse(fact.id)
    if fact.expired:
        return Replace(fact.id)
    if fact.pinned and newcomer.by_extraction:
        return Ignore(fact.id, "pinned")
    if newcomer.said_at < fact.said_at:
        return Ignore(fact.id, "older")
    if newcomer.text == fact.text and newcomer.by_extraction:
        return Ignore(fact.id, "same")
    return Replace(fact.id)


def _newest(newcomer: Newcomer, fact: Known) -> Decision:
    """Let the newer of two statements hold. What has a key changes by its key alone."""
    if newcomer.said_at < fact.said_at:
        return Ignore(fact.id, "older")
    if newcomer.said_at == fact.said_at or fact.key is not None or not _may_change(newcomer, fact):
        return Add()
    return Supersede(fact.id)


def _is_negated(text: str) -> bool:
    return _NEGATION.search(text.replace("’", "'")) is not None


def _contradict(text: str, mine: frozenset[str], other: str) -> bool:
    theirs = frozenset(terms(other))
    noise = _UPDATE_TERMS | _NEGATING_TERMS
    left, right = mine - noise, theirs - noise
    common = left & right
    if _is_negated(text) != _is_negated(other):
        return bool(common) and (left <= right or right <= left)
    if not common or not 0 < len(left - right) <= 3 or not 0 < len(right - left) <= 3:
        return False
    # Same frame, other value: the frame has to name an attribute that has one value, and to be most of the shorter.
    return bool(common & _ONE_VALUE) and 2 * len(common) >= min(len(left), len(right))
