"""The rules of memory over plain lists: what every answer of a store has to be, said as simply as it can be said.

Nothing of the product is used here. A text is unique, so texts stand for rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


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


@dataclass
class Turn:
    """A turn as it was written."""

    place: Place
    seq: int
    text: str
    tokens: int
    indexed: bool = False


@dataclass
class Fact:
    """A fact under one owner key; `sources` are the places that say it, `said` is the tick of the last statement."""

    id: str
    scope: str
    owner: Place
    text: str
    key: str
    sources: set[Place]
    lines: list[tuple[str, Place]] = field(default_factory=list)
    said: float = 0.0


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

    def outdates(self, who: Who, session: str) -> bool:
        """Return whether a call of this caller in this session builds on what was erased."""
        return self.names(Place(who.agent, who.user, session, ""))


@dataclass
class PlainMemory:
    """One store."""

    turns: list[Turn] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    erasures: list[tuple[Erasure, int]] = field(default_factory=list)
    ghosts: list[str] = field(default_factory=list)

    def append(self, place: Place, texts: list[tuple[str, int]]) -> list[int]:
        """Append turns to a session and return their numbers."""
        last = max((turn.seq for turn in self.turns_of(place)), default=0)
        seqs = [last + n for n in range(1, len(texts) + 1)]
        self.turns += [Turn(place, seq, text, tokens) for seq, (text, tokens) in zip(seqs, texts, strict=True)]
        return seqs

    def turns_of(self, place: Place) -> list[Turn]:
        """Return a session's turns in order."""
        return [turn for turn in self.turns if turn.place == place]

    def window(self, place: Place, budget: int) -> list[Turn]:
        """Return the newest turns that fit the budget."""
        shown: list[Turn] = []
        for turn in reversed(self.turns_of(place)):
            if sum(other.tokens for other in shown) + turn.tokens > budget:
                break
            shown.insert(0, turn)
        return shown

    def sessions(self) -> Iterator[Place]:
        """Return the sessions that hold a turn."""
        return iter(dict.fromkeys(turn.place for turn in self.turns))

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
        return [fact for fact in self.facts if (fact.scope, fact.owner) == (scope, owner)]

    def readable_facts(self, who: Who, scope: str, session: str, workspace: str) -> list[Fact]:
        """Return the facts that a read of one scope may see, in the order in which they were stored."""

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
        """Return the turns that a read of one scope may see, in the order in which they were written."""

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
                return {place.agent for place in fact.sources} == {who.agent}
            case "user":
                return bool(who.user) and fact.owner.user == who.user
        return (fact.owner.agent, fact.owner.user) == who.pair

    def may_read(self, who: Who, fact: Fact) -> bool:
        """Return whether a caller may see a fact that it names by its id."""
        return self.may_change(who, fact) or (
            fact.scope in who.reads
            and fact in self.readable_facts(who, fact.scope, fact.owner.session, fact.owner.workspace)
        )

    def erase(self, erasure: Erasure, tick: int) -> dict[str, int]:
        """Erase a subject and return how much went."""
        self.erasures.append((erasure, tick))
        gone = [turn for turn in self.turns if erasure.names(turn.place)]
        doomed = [fact for fact in self.facts if self._is_covered(erasure, fact)]
        for fact in self.facts:
            if erasure.kind != "pair":
                fact.sources = {place for place in fact.sources if not erasure.names(place)} or fact.sources
                if fact.lines and erasure.names(fact.lines[-1][1]):
                    fact.key = ""
                fact.lines = [(text, place) for text, place in fact.lines if not erasure.names(place)]
        self.ghosts = [*self.ghosts, *(turn.text for turn in gone), *(fact.text for fact in doomed)][-200:]
        self.turns = [turn for turn in self.turns if not erasure.names(turn.place)]
        self.facts = [fact for fact in self.facts if all(fact is not other for other in doomed)]
        return {
            "turns": len(gone),
            "episodes": len(gone),
            "sessions": len({turn.place for turn in gone}),
            "digests": 0,
            "facts": len(doomed),
            "vectors": sum(turn.indexed for turn in gone) + len(doomed),
        }

    @staticmethod
    def _is_covered(erasure: Erasure, fact: Fact) -> bool:
        """Return whether a fact goes: it is the subject's, or comes from the subject alone."""
        from_it_alone = erasure.kind != "pair" and all(erasure.names(place) for place in fact.sources)
        return erasure.names(fact.owner) or from_it_alone

    def texts(self) -> list[str]:
        """Return every text."""
        return [*(fact.text for fact in self.facts), *(turn.text for turn in self.turns)]

    def delete(self, fact: Fact) -> None:
        """Delete one fact."""
        self.facts.remove(fact)
        self.ghosts.append(fact.text)

    def is_outdated(self, who: Who, session: str, known_erasures: int) -> bool:
        """Return whether anything that the caller builds on was erased since it knew of so many erasures."""
        return any(erasure.outdates(who, session) for erasure, _ in self.erasures[known_erasures:])

    def was_erased_within(self, who: Who, session: str, since_tick: int) -> bool:
        """Return whether anything that the caller builds on was erased at a tick or later."""
        return any(erasure.outdates(who, session) for erasure, tick in self.erasures if tick >= since_tick)
