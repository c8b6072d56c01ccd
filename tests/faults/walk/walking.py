"""Takes steps. A step is a number: its own random numbers come from the seed and that number, and it acts on what is
stored when it is taken. So any selection of steps is a walk too, and a failing walk is made shorter by leaving steps
out.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import cast

from tests.faults.walk import correcting, erasing, moving, reading, sessions, together, writing
from tests.faults.walk.arrivals import restored
from tests.faults.walk.memory import Place, Who
from tests.faults.walk.store import IDENTITIES, SESSIONS, WORKSPACES, Opener, Store, equal
from tests.faults.walk.visit import Visit

WORK_EVERY, LOOK_AFTER_EVERY, PURGE_EVERY, RESTART_EVERY = 25, 250, 1_000, 1_500

Step = Callable[[Visit], Awaitable[None]]

STEPS = cast(
    Mapping[Step, float],
    {
        **writing.STEPS, **correcting.STEPS, **reading.STEPS, **sessions.STEPS, **erasing.STEPS, **moving.STEPS,
        **together.STEPS,
    },
)  # fmt: skip


class Walk:
    """One walk over two stores; a third one is empty until the end."""

    def __init__(self, seed: int, stores: Sequence[Store]) -> None:
        self._seed = seed
        *self._stores, self._copy = stores
        self._at_once: set[int] = set()
        self._now = 0
        self.taken: list[str] = []
        self.kinds: dict[str, int] = {}

    @property
    def asked(self) -> set[tuple[str, str]]:
        """Every method and path that was asked for."""
        return {asked for store in self._stores for asked in store.asked}

    @property
    def happened(self) -> Counter[str]:
        """What came of jobs and imports, by name."""
        return sum((store.happened for store in self._stores), Counter())

    async def take(self, number: int) -> None:
        """Take one step.

        Raises:
            WrongAnswer: a store did not answer as its lists do.
        """
        self._begin()
        draw = random.Random(f"{self._seed}-{number}")
        place = draw.randrange(len(self._stores))
        store, other = self._stores[place], self._stores[1 - place]
        who = draw.choice(IDENTITIES)
        if number % RESTART_EVERY == 0:
            await store.stop()
            await store.start()
        step = draw.choices(list(STEPS), weights=list(STEPS.values()))[0]
        name = getattr(step, "__name__", "")
        self.kinds[name] = self.kinds.get(name, 0) + 1
        visit = Visit(store, other, who, draw, self._at_once)
        self.taken.append(f"{number}: store {place}, {who.agent} for {who.user or 'nobody'}: {name}")
        try:
            await step(visit)
        finally:
            self.taken[-1] = " ".join((f"{self.taken[-1]} (step {self._now})", *visit.said))
        if number % WORK_EVERY == 0:
            self._begin()  # what jobs store is later than what the step has erased
            await self._work(number, draw)

    def _begin(self) -> None:
        self._now += 1
        for store in (*self._stores, self._copy):
            store.now = self._now
        self._stores[0].clock.go_to(self._now)

    async def _work(self, number: int, draw: random.Random) -> None:
        is_mute = draw.random() < 0.15
        for store in self._stores:
            await store.work(mute=is_mute)
            if number % LOOK_AFTER_EVERY == 0:
                await store.look_after(purge=number % PURGE_EVERY == 0)

    async def compare_everything(self) -> None:
        """Compare all that is stored, and once more after everything was moved to another store."""
        self.taken.append("the end: everything is compared")
        self._begin()
        for store in self._stores:
            await self._compare(store)
            await store.work()
            await store.look_after(purge=True)
            for asker, receipt, _ in store.receipts[-20:]:
                _, answer = await store.ask(asker, "GET", f"/v1/receipts/{receipt}")
                equal("receipt's status", answer["status"], "purged")
        self.taken.append("the end: everything is moved")
        self._begin()
        last = self._stores[-1]
        await moving.bring(self._copy, await moving.export(last))
        self._copy.memory = restored(last.memory, self._now)
        await self._compare(self._copy)

    async def _compare(self, store: Store) -> None:
        def visit(who: Who) -> Visit:
            return Visit(store, self._stores[0], who, random.Random(1), self._at_once)

        for who, session, workspace in itertools.product(IDENTITIES, SESSIONS, sorted(set(WORKSPACES))):
            place = Place(who.agent, who.user, session, workspace)
            await sessions.whole_session(visit(who), place)
            await sessions.session_detail(visit(who), place)
        await moving.whole_list(visit(IDENTITIES[0]))
        await moving.count(visit(IDENTITIES[0]))
        for fact in store.memory.facts[-500:]:
            for who in [who for who in IDENTITIES if store.memory.may_read(who, fact)][:1]:
                await correcting.fact_by_id(visit(who), fact.id)


async def walked(seed: int, numbers: Sequence[int], opener: Opener) -> tuple[Walk, Exception | None]:
    """Walk over two new stores; return the walk and what went wrong."""
    async with opener() as stores:
        walk = Walk(seed, stores)
        try:
            for number in numbers:
                await walk.take(number)
            await walk.compare_everything()
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is what the caller looks for
            return walk, error
        return walk, None


async def shrunk(seed: int, numbers: Sequence[int], opener: Opener, *, steps: int = 50_000) -> tuple[list[str], str]:
    """Return the shortest walk found that still goes wrong, in words, and how it goes wrong.

    It looks for as long as it has taken fewer than `steps` steps in all.
    """
    best, words, message = list(numbers), ["(the whole walk)"], ""
    left = steps

    async def goes_wrong(chosen: Sequence[int]) -> bool:
        nonlocal best, words, message, left
        walk, error = await walked(seed, chosen, opener)
        left -= len(walk.taken)
        if error is not None:
            best, words = list(chosen[: len(walk.taken)]), walk.taken
            message = f"{type(error).__name__}: {error}"
        return error is not None

    last = 64
    while last < len(best) and left > 0:  # what goes wrong seldom began long before
        if await goes_wrong(best[-last:]):
            break
        last *= 4
    part = max(1, len(best) // 2)
    while left > 0 and part >= 1:
        start = 0
        while start < len(best) and left > 0:
            if not await goes_wrong(best[:start] + best[start + part :]):
                start += part
        part //= 2
    return words, message
