"""Merging: what becomes of a candidate beside the facts that its owner has already.

One decision a candidate, made once outside of a transaction and again inside of it under the owner's row lock, by the
same rules: so eight sessions that say one thing leave one fact, and merging a batch twice equals merging it once.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from memory_service.domain import statements

NEAR_EQUAL = 0.90
"""Cosine from which two statements with the same words, or of which one goes on where the other ends, are one.
Sentences that differ in a name, a number or a "before" reach it too, so it never decides alone."""
SAME_SUBJECT = 0.70
"""Cosine from which what an engine says that a statement contradicts is believed where the two share no word."""


@dataclass(frozen=True)
class Newcomer:
    """A candidate, or a fact that a caller saves. `updates` and `contradicts` come from the engine: `updates` is the
    id of a known fact, which no longer holds if `contradicts`. `by_extraction` says that no person or agent asked for
    it.
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
    `said_before` is True for one that was said at the newcomer's time, but earlier in its session.
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
    said_before: bool = False


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
    3. The engine says which fact it contradicts, and the two are about one thing: the newer statement holds.
    4. Near in meaning, and the same words or all of them with more after them: the one that says more holds.
    5. Another value of one attribute, or the same statement denied, beyond doubt: the newer statement holds.
    6. Else it is a new fact. Two facts where one would do cost room; a fact that is lost is lost.

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
        is_said = fact.active or newcomer.said_at <= fact.said_at
        is_equal = normal_text(fact.text) == normal_text(newcomer.text)
        if is_said and is_equal and statements.same(fact.text, newcomer.text):
            if newcomer.key is None:
                return Ignore(fact.id, "same")
            if fact.active and fact.is_own:
                return Replace(fact.id)
    for fact in active:
        if newcomer.contradicts and newcomer.updates == fact.id and _is_about(newcomer, fact):
            return _newest(newcomer, fact)
    near = [fact for fact in order if (fact.cosine or 0.0) >= NEAR_EQUAL]
    for fact in near:
        if newcomer.key is None and (fact.active or newcomer.said_at <= fact.said_at):
            if statements.same(newcomer.text, fact.text):
                return Ignore(fact.id, "same")
            outlasts = outlives(newcomer.expires_at, fact.expires_at) and not newcomer.by_extraction
            if statements.says_more(fact.text, newcomer.text) and not outlasts:
                return Ignore(fact.id, "less")
    for fact in near:
        is_later = newcomer.said_at >= fact.said_at
        if fact.active and is_later and fact.key is None and statements.says_more(newcomer.text, fact.text):
            return Supersede(fact.id) if _may_change(newcomer, fact) else Add()
    for fact in active:
        if statements.contradict(newcomer.text, fact.text):
            return _newest(newcomer, fact)
    return Add()


def _is_about(newcomer: Newcomer, fact: Known) -> bool:
    """Return whether two statements can be about one thing: an engine that was talked into it names any fact."""
    return (fact.cosine or 0.0) >= SAME_SUBJECT or statements.share_a_word(newcomer.text, fact.text)


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
    is_later = newcomer.said_at > fact.said_at or fact.said_before
    if not is_later or fact.key is not None or not _may_change(newcomer, fact):
        return Add()
    return Supersede(fact.id)
