"""One step under way."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.faults.walk.memory import Fact, Place, PlainMemory, Turn, Who
from tests.faults.walk.statements import subject
from tests.faults.walk.store import SESSIONS, TICK, WORKSPACES, Json, Store, equal

GOLDEN = 0.618
"""Fractions of steps from this are far from each other in steps that follow each other."""
MOST_VALUES = 5
"""Values of one thing that an owner may have at a time: nearest facts are compared, and there are ten."""


@dataclass
class Visit:
    """Somebody who asks a store for something; what is asked comes out of `draw`."""

    store: Store
    other: Store
    who: Who
    draw: random.Random
    at_once: set[int]
    """Steps in which several asked at once, so that what was stored then has no order."""
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    said: list[str] = field(default_factory=list)

    @property
    def memory(self) -> PlainMemory:
        """The lists of the store."""
        return self.store.memory

    @property
    def now(self) -> int:
        """The step's number in time."""
        return self.store.now

    def by(self, who: Who) -> Visit:
        """Return the same step by somebody else."""
        return Visit(self.store, self.other, who, self.draw, self.at_once, self.numbers, self.said)

    def note(self, what: object) -> None:
        """Note what is done, for whoever reads a failing walk."""
        self.said.append(str(what))

    def chance(self, share: float) -> bool:
        """Draw whether something happens."""
        return self.draw.random() < share

    def session(self, *, or_none: bool = False) -> str:
        """Draw a session."""
        return self.draw.choice(("", *SESSIONS) if or_none else SESSIONS)

    def workspace(self) -> str:
        """Draw a workspace."""
        return self.draw.choice(WORKSPACES)

    def place(self, session: str, workspace: str) -> Place:
        """Return a place of the caller."""
        return Place(*self.who.pair, session, workspace)

    def mark(self) -> str:
        """Return a word that nobody has said yet."""
        return f"q{self.now}n{next(self.numbers)}"

    def text(self, kind: str) -> str:
        """Return a text that nobody has said yet."""
        return f"{kind} {self.draw.choice(('green', 'small', 'old'))} thing of {self.mark()}"

    def boat(self, facts: Sequence[Fact]) -> str | None:
        """Return a new value of what the caller has one of, unless these facts give it too many already."""
        name = self.who.agent.title().replace("-", "")
        about = f"{name}'s favourite boat"
        values = sum(subject(fact.text) == about for fact in facts)
        return f"{about} is {self.mark()}" if values < MOST_VALUES else None

    @property
    def fraction(self) -> float:
        """A part of a step that no step near this one has."""
        return round(0.2 + 0.6 * (self.now * GOLDEN % 1), 4)

    async def ask(self, method: str, path: str, body: Json | None = None, **query: Any) -> tuple[int, Json]:
        """Ask as the caller."""
        return await self.store.ask(self.who, method, path, body, **query)

    async def change(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        """Ask for a change as the caller, sometimes under a key, and sometimes twice at once, which is once."""
        if not self.chance(0.3):
            return await self.ask(method, path, body)
        key = f"change-{self.now}-{next(self.numbers)}"
        if not self.chance(0.3):
            return await self.store.ask(self.who, method, path, body, key)
        first, second = await asyncio.gather(*(self.store.ask(self.who, method, path, body, key) for _ in range(2)))
        equal("status of the same request", second[0], first[0])
        if first[0] < 300:
            equal("answer to the same request", second[1], first[1])
        return first

    def build_on(self, session: str, body: Json, *, may_wait: bool = True) -> bool:
        """Have a call say on what it builds, sometimes; return whether that was erased."""
        choice = self.draw.random()
        generations = self.store.generations
        known = generations.get((self.who, session)) or generations.get((self.who, ""))
        if choice < 0.4 and known is not None:
            body["generation"], erasures = known
            knows_session = (self.who, session) in generations
            return self.memory.is_outdated(self.who, session if knows_session else "", erasures)
        if choice < 0.5 and may_wait:
            waited = self.draw.randrange(20)
            body["queued_seconds"] = (waited + self.fraction) * TICK.total_seconds()
            return self.memory.was_erased_since(self.who, session, self.now - waited)
        return False

    def know(self, session: str, answer: Json) -> None:
        """Keep what the caller knows from an answer."""
        self.store.generations[self.who, session] = (answer["generation"], len(self.memory.erasures))

    def waited(self, body: Json) -> float:
        """Return how long ago a call says that it was said, in steps."""
        return float(body.get("queued_seconds", 0.0)) / TICK.total_seconds()


def compare_order(visit: Visit, what: str, found: Sequence[str], expected: Sequence[tuple[float, str]]) -> None:
    """Compare texts with rows of the lists, each given with the step that stored it: what was stored at once may stand
    in any order.
    """
    wanted: list[str] = []
    for made, group in itertools.groupby(expected, key=lambda row: row[0]):
        rows = [text for _, text in group]
        same = list(found[len(wanted) : len(wanted) + len(rows)])
        wanted += same if made in visit.at_once and sorted(same) == sorted(rows) else rows
    equal(what, list(found), wanted)


def named(**values: str) -> Json:
    """Return the fields that have a value."""
    return {name: value for name, value in values.items() if value}


def rows_of(items: Sequence[Fact | Turn]) -> list[tuple[float, str]]:
    """Return facts or turns as `compare_order` takes them."""
    return [(item.made, item.text) for item in items]
