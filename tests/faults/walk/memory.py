"""The rules of memory over plain lists: what every answer of a store has to be, said as simply as it can be said.

Nothing of the product is used here. A text is unique, so texts stand for rows. Times are counted in steps: a step's own
number is when it began, and what is said to be of another time has a fraction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

FOLD, EXTRACT = "fold", "extract"
MOVED = "moved-"
"""The beginning of the id that an import gives to a turn whose place is taken."""
MOST_LINES = 500
"""Changes of a fact that its history keeps."""
NO_LABELS: Mapping[str, Any] = {
    "kind": "semantic", "category": None, "tags": [], "evidence": None, "importance": None, "pinned": False,
    "expires_at": None, "attributes": {},
}  # fmt: skip
GIVEN_WITH_TEXT = ("category", "tags", "evidence", "importance", "attributes")
"""What goes with the words of whoever gave it."""


@dataclass(frozen=True)
class Who:
    """An agent with its policy, on behalf of a user or of nobody."""

    agent: str
    user: str = ""
    scope: str = "private"
    reads: tuple[str, ...] = ("private", "user", "shared", "session")
    shares: bool = False

    @property
    def pair(self) -> tuple[str, str]:
        """What owns its sessions."""
        return self.agent, self.user

    def readable(self, session: str) -> list[str]:
        """Return the scopes that a call without `scopes` reads."""
        return [scope for scope in self.reads if (scope != "user" or self.user) and (scope != "session" or session)]


@dataclass(frozen=True)
class Place:
    """Where something was said."""

    agent: str
    user: str
    session: str
    workspace: str

    @property
    def rank(self) -> tuple[str, str, str, str]:
        """What the sources of a fact are ordered by: users stand there as hashes."""
        return self.agent, user_hash(self.user), self.session, self.workspace


def user_hash(user: str) -> str:
    """Return under what a user of these walks is stored."""
    if not user:
        return ""
    parts = (b"local", user.encode())
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()


@dataclass
class Turn:
    """A turn as it was written; `name` is its writer's own id of it."""

    place: Place
    seq: int
    text: str
    tokens: int
    said: float
    made: float
    infer: bool = True
    name: str = ""
    indexed: bool = False


@dataclass
class Digest:
    """A version of a session's digest."""

    version: int
    text: str
    upto: int
    made: int


@dataclass
class Session:
    """A conversation. `queued` and `dead` are its jobs by kind, each with whether it was asked for."""

    place: Place
    scope: str
    made: float
    written: float
    has_ended: bool = False
    last_seq: int = 0
    folded: int = 0
    extracted: int = 0
    version: int = 0
    turns: list[Turn] = field(default_factory=list)
    digests: list[Digest] = field(default_factory=list)
    queued: dict[str, bool] = field(default_factory=dict)
    dead: dict[str, bool] = field(default_factory=dict)
    is_to_index: bool = False
    """Whether a job waits that makes vectors of its turns."""

    @property
    def unfolded(self) -> list[Turn]:
        """The turns after the digest."""
        return [turn for turn in self.turns if turn.seq > self.folded]

    @property
    def tokens(self) -> int:
        """The tokens after the digest."""
        return sum(turn.tokens for turn in self.unfolded)

    def window(self, budget: int) -> list[Turn]:
        """Return the newest turns that fit the budget."""
        shown: list[Turn] = []
        for turn in reversed(self.unfolded):
            if sum(other.tokens for other in shown) + turn.tokens > budget:
                break
            shown.insert(0, turn)
        return shown

    def enqueue(self, kind: str, *, forced: bool = False) -> None:
        """Have a job; one that is queued already is the same."""
        self.queued[kind] = forced or self.queued.get(kind, False)


Line = tuple[str, str | None, Place, float]
"""A line of history: what happened, what the fact says since then if that is new, whose words it has, and when."""


@dataclass
class Fact:
    """A fact under one owner key; `sources` are the places that say it, each with the seqs of its turns."""

    id: str
    scope: str
    owner: Place
    text: str
    said: float
    valid_from: float
    made: int
    sources: dict[Place, set[int]]
    lines: list[Line]
    key: str | None = None
    dedupe_key: str | None = None
    labels: dict[str, Any] = field(default_factory=lambda: dict(NO_LABELS))
    valid_to: float | None = None
    successor: str | None = None
    revision: int = 1
    updated: int = 0

    @property
    def is_active(self) -> bool:
        """Whether nothing has taken its place."""
        return self.successor is None

    @property
    def writer(self) -> str:
        """The agent that alone said it, or nobody."""
        agents = {place.agent for place in self.sources}
        return agents.pop() if len(agents) == 1 else ""

    def has_expired(self, now: float) -> bool:
        """Return whether it is past its time."""
        return self.labels["expires_at"] is not None and self.labels["expires_at"] <= now

    def is_shown(self, now: float, as_of: float | None = None) -> bool:
        """Return whether reads see it: now, or as it was known at a time."""
        if as_of is None:
            return self.is_active and not self.has_expired(now)
        ends = self.valid_to is None or self.valid_to > as_of
        return self.valid_from <= as_of and ends and not self.has_expired(as_of)

    def note(self, event: str, text: str | None, place: Place | None, now: int) -> None:
        """Note a change; where no place is given the words are those of the line before."""
        if place is None:
            place = self.lines[-1][2] if self.lines else min(self.sources, key=lambda source: source.rank)
        self.lines = [*self.lines, (event, text, place, now)][-MOST_LINES:]
        self.revision += 1
        self.updated = now


@dataclass(frozen=True)
class Erasure:
    """What an erasure covers: `kind` is session, pair, principal or agent; unused parts are empty."""

    kind: str
    agent: str = ""
    user: str = ""
    session: str = ""

    def names(self, place: Place) -> bool:
        """Return whether what was said there is the subject's."""
        match self.kind:
            case "session":
                return (place.agent, place.user, place.session) == (self.agent, self.user, self.session)
            case "pair":
                return (place.agent, place.user) == (self.agent, self.user)
            case "principal":
                return place.user == self.user
        return place.agent == self.agent

    def takes_source(self, place: Place) -> bool:
        """Return whether a fact of others loses this place: what a pair gave to others is theirs."""
        return self.kind != "pair" and self.names(place)

    def outdates(self, who: Who, session: str) -> bool:
        """Return whether a call of this caller in this session builds on what was erased."""
        return self.names(Place(who.agent, who.user, session, ""))


@dataclass
class PlainMemory:
    """One store. `tombstones` are the ids of facts that were deleted one by one."""

    sessions: dict[Place, Session] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    erasures: list[tuple[Erasure, int]] = field(default_factory=list)
    tombstones: set[str] = field(default_factory=set)
    ghosts: list[str] = field(default_factory=list)

    def ensure(self, place: Place, scope: str, now: float) -> Session:
        """Return a session, made if it is not there."""
        found = self.sessions.get(place)
        if found is None:
            found = self.sessions[place] = Session(place, scope, now, now)
        return found

    def open(self, place: Place, scope: str, now: float) -> Session:
        """Return a session that is written to: its facts are its agent's, whoever made it."""
        found = self.ensure(place, scope, now)
        found.scope = scope
        return found

    def append(self, session: Session, turns: Iterable[Turn], now: float) -> list[int]:
        """Append turns to a session and return their seqs; one whose writer's id is known has its own already."""
        known = {turn.name: turn.seq for turn in session.turns if turn.name}
        seqs: list[int] = []
        fresh = 0
        for turn in turns:
            if turn.name in known:
                seqs.append(known[turn.name])
                continue
            fresh += 1
            session.last_seq += 1
            turn.seq = session.last_seq
            if turn.name:
                known[turn.name] = turn.seq
            session.turns.append(turn)
            self.turns.append(turn)
            seqs.append(turn.seq)
        if fresh:
            session.written, session.has_ended = now, False
        return seqs

    def texts(self) -> Iterator[str]:
        """Return every text."""
        yield from (fact.text for fact in self.facts)
        yield from (turn.text for turn in self.turns)

    def fact(self, fact_id: str) -> Fact | None:
        """Return a fact by its id."""
        return next((fact for fact in self.facts if fact.id == fact_id), None)

    def owner(self, who: Who, scope: str, session: str, workspace: str) -> Place:
        """Return the owner key of a fact."""
        match scope:
            case "user":
                return Place("", who.user, "", workspace)
            case "shared":
                return Place("", "", "", workspace)
            case "session":
                return Place(who.agent, who.user, session, workspace)
        return Place(who.agent, who.user, "", workspace)

    def facts_under(self, scope: str, owner: Place) -> list[Fact]:
        """Return the facts of one owner key in the order in which they were stored."""
        return [fact for fact in self.facts if fact.scope == scope and fact.owner == owner]

    def readable_facts(self, who: Who, scope: str, session: str, workspace: str) -> list[Fact]:
        """Return the facts that a read of one scope may see, whether or not they still hold, as they were stored."""

        def is_readable(fact: Fact) -> bool:
            owner = fact.owner
            if fact.scope != scope or owner.workspace not in ("", workspace):
                return False
            match scope:
                case "private":
                    return owner.agent == who.agent and (who.shares or owner.user in ("", who.user))
                case "user":
                    return bool(who.user) and owner.user == who.user
                case "session":
                    return (owner.agent, owner.user, owner.session) == (who.agent, who.user, session)
            return True

        return [fact for fact in self.facts if is_readable(fact)]

    def readable_turns(self, who: Who, scope: str, session: str, workspace: str) -> list[Turn]:
        """Return the turns that a read of one scope may see, in the order in which they were stored."""

        def is_readable(turn: Turn) -> bool:
            place = turn.place
            if place.workspace not in ("", workspace):
                return False
            match scope:
                case "private":
                    return place.agent == who.agent and (who.shares or place.user in ("", who.user))
                case "user":
                    return bool(who.user) and place.user == who.user
                case "session":
                    return (place.agent, place.user, place.session) == (who.agent, who.user, session)
            return False

        return [turn for turn in self.turns if is_readable(turn)]

    def may_change(self, who: Who, fact: Fact) -> bool:
        """Return whether a caller may correct or delete a fact that it names by its id."""
        if fact.scope not in (who.scope, "session"):
            return False
        match fact.scope:
            case "shared":
                return fact.writer == who.agent
            case "user":
                return bool(who.user) and fact.owner.user == who.user
        return (fact.owner.agent, fact.owner.user) == who.pair

    def may_read(self, who: Who, fact: Fact) -> bool:
        """Return whether a caller may see a fact that it names by its id."""
        return self.may_change(who, fact) or (
            fact.scope in who.reads
            and fact in self.readable_facts(who, fact.scope, fact.owner.session, fact.owner.workspace)
        )

    def erase(self, erasure: Erasure, now: int) -> dict[str, int]:
        """Erase a subject and return how much went."""
        self.erasures.append((erasure, now))
        gone = [session for place, session in self.sessions.items() if erasure.names(place)]
        turns = [turn for session in gone for turn in session.turns]
        doomed = [fact for fact in self.facts if self._is_covered(erasure, fact)]
        taken = {fact.id for fact in doomed}
        lines = sum(len(fact.lines) for fact in doomed)
        self.facts = [fact for fact in self.facts if fact.id not in taken]
        lines += sum(self._forget_source(erasure, fact, now) for fact in self.facts)
        self.ghosts = [*self.ghosts, *(turn.text for turn in turns), *(fact.text for fact in doomed)][-200:]
        self.turns = [turn for turn in self.turns if not erasure.names(turn.place)]
        for session in gone:
            del self.sessions[session.place]
        return {
            "turns": len(turns),
            "episodes": len(turns),
            "sessions": len(gone),
            "digests": sum(len(session.digests) for session in gone),
            "facts": len(doomed),
            "history": lines,
            "vectors": sum(turn.indexed for turn in turns) + len(doomed),
        }

    @staticmethod
    def _is_covered(erasure: Erasure, fact: Fact) -> bool:
        """Return whether a fact goes: it is the subject's, or comes from the subject alone."""
        return erasure.names(fact.owner) or all(map(erasure.takes_source, fact.sources))

    @staticmethod
    def _forget_source(erasure: Erasure, fact: Fact, now: int) -> int:
        """Take the subject out of a fact of others: its text stays, what else the subject gave it goes."""
        fact.sources = {place: seqs for place, seqs in fact.sources.items() if not erasure.takes_source(place)}
        kept = [line for line in fact.lines if not erasure.takes_source(line[2])]
        if fact.lines and erasure.takes_source(fact.lines[-1][2]):
            bare = {name: NO_LABELS[name] for name in GIVEN_WITH_TEXT}
            given = {name: fact.labels[name] for name in GIVEN_WITH_TEXT}
            if given != bare or fact.key is not None or fact.dedupe_key is not None:
                fact.key = fact.dedupe_key = None
                fact.labels |= bare
                fact.revision += 1
                fact.updated = now
        gone = len(fact.lines) - len(kept)
        fact.lines = kept
        return gone

    def delete(self, fact: Fact) -> None:
        """Delete one fact."""
        self.facts.remove(fact)
        self.tombstones.add(fact.id)
        self.ghosts.append(fact.text)

    def is_outdated(self, who: Who, session: str, known_erasures: int) -> bool:
        """Return whether anything that the caller builds on was erased since it knew of so many erasures."""
        return any(erasure.outdates(who, session) for erasure, _ in self.erasures[known_erasures:])

    def was_erased_since(self, who: Who, session: str, since: float) -> bool:
        """Return whether anything that the caller builds on was erased at a time or later."""
        return any(erasure.outdates(who, session) for erasure, at in self.erasures if at >= since)

    def is_tombstoned(self, place: Place, made: float) -> bool:
        """Return whether what was stored under a place's owner has been erased here since."""
        return any(erasure.names(place) for erasure, at in self.erasures if at >= made)

    def has_lost_source(self, place: Place, made: float) -> bool:
        """Return whether what a place gave to a fact has been erased here since."""
        return any(erasure.takes_source(place) for erasure, at in self.erasures if at >= made)
