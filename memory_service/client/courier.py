"""Decides when what waits in the outbox goes out: in order within a lane, one process at a time, lanes side by side.

What becomes of a single entry is the carrier's to say. Only entries of this client's own agent are touched.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from memory_service.client.carrier import STAMPS, Carrier, Way
from memory_service.client.clerk import Clerk
from memory_service.client.entries import Entry
from memory_service.client.errors import OutboxError
from memory_service.client.exchange import Counts, Exchange
from memory_service.client.outbox import BUSY_SECONDS, Outbox
from memory_service.client.results import Delivery
from memory_service.client.wire import Request

logger = logging.getLogger(__name__)
T = TypeVar("T")

MAX_PAUSE_SECONDS = 30.0
_MAX_LOOK_SECONDS = 1.0
"""How long a call waits for an outbox that another process holds, within a fifth of the time that it has left: whatever
the outbox is like, there is time to send."""
_LAST_SECONDS = 5.0
"""How long turns that the service did not take wait for their turn to be queued."""
_POLL_SECONDS = 0.02
_TALLY = {"delivered": 0, "refused": 0, "erased": 0}


class Courier:
    """Delivers one outbox through one exchange. Use it from one event loop at a time.

    Args:
        who: gives the agent whose entries are put and delivered.
        unseen: the name that it has until its token is seen; what waits under that is its own from then on.
        seconds: that one entry may take.
    """

    def __init__(
        self,
        outbox: Outbox,
        exchange: Exchange,
        counts: Counts,
        *,
        who: Callable[[], str],
        unseen: str | None = None,
        seconds: float,
    ) -> None:
        self.outbox = outbox
        self._exchange = exchange
        self._counts = counts
        self._who = who
        self._unseen = unseen
        self._last_agent: str | None = None
        self._seconds = seconds
        self._clerk = Clerk(outbox.together)
        self.carrier = Carrier(outbox, exchange, counts, self._clerk)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lanes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._task: asyncio.Task[None] | None = None
        self._may_hold_entries: bool | None = None
        self._is_closed = False

    @property
    def agent(self) -> str:
        """Whose entries these are."""
        self._last_agent = self._who()
        return self._last_agent

    async def ask(self, look: Callable[[Outbox], T], *, deadline: float | None = None) -> T:
        """Return what a look at the outbox gives, off the event loop; leaves most of the time to `deadline`.

        Raises:
            OutboxError: the outbox cannot be used, or is held by somebody else for too long.
        """
        look = self._own_first(look)
        if deadline is None:
            return await self._clerk.do(lambda: look(self.outbox), seconds=_LAST_SECONDS, busy_seconds=BUSY_SECONDS)
        left = max(0.0, deadline - self._exchange.clock())
        busy = min(_MAX_LOOK_SECONDS, left / 5)
        hasty = self.outbox.within(busy)
        return await self._clerk.do(lambda: look(hasty), seconds=left / 2, busy_seconds=busy)

    def _own_first(self, look: Callable[[Outbox], T]) -> Callable[[Outbox], T]:
        """Return a look that finds what waited for the token among the agent's own.

        The agent is the one that the caller was told last, so that both mean the same lanes.
        """
        agent, unseen = self._last_agent, self._unseen
        if agent is None or unseen is None or agent == unseen:
            return look

        def own(box: Outbox) -> T:
            box.adopt(agent, of=unseen)
            return look(box)

        return own

    async def waiting(self, lane: str, *, deadline: float | None = None) -> int:
        """Return how many entries of a lane wait; costs one look at the folder while nothing was ever put there."""
        return await self.ask(lambda box: box.waiting(lane), deadline=deadline) if self.outbox.exists else 0

    async def put(self, request: Request[Any], *, deadline: float | None = None, **where: Any) -> int:
        """Keep a request in the outbox.

        Raises:
            InvalidRequest: its key is that of another request, which is still there; nothing was added.
            OutboxError: nothing was added.
        """
        self.carrier.began(request, where.get("user"))
        body = {name: value for name, value in (request.body or {}).items() if name not in STAMPS}
        verb, key, agent = request.verb, str(request.idempotency_key), self.agent
        entry_id = await self.ask(
            lambda box: box.put(
                verb="write" if verb == "write" else "remember", body=body, idempotency_key=key, agent=agent, **where
            ),
            deadline=deadline,
        )
        self._may_hold_entries = True
        return entry_id

    async def deliver(self) -> Delivery:
        """Deliver what waits, lane by lane, until the service is unavailable; leaves lanes that others deliver now.

        Raises:
            OutboxError: the outbox cannot be used.
        """
        self._enter_loop()
        tally = await self._deliver_all()
        agent = self.agent
        mine, all_ = await self.ask(lambda box: (box.waiting(agent=agent), box.waiting()))
        return Delivery(**tally, waiting=mine, waiting_for_others=all_ - mine)

    async def deliver_lane(self, lane: str, *, deadline: float, fresh: int | None = None) -> None:
        """Deliver one lane by `deadline` on the exchange's clock.

        `fresh` is an entry that was put by this very call, which is sent as a call of now, and the last one of it.

        Raises:
            OutboxError: the outbox cannot be used.
        """
        self._enter_loop()
        await self._deliver(lane, dict(_TALLY), fresh=fresh, deadline=deadline)

    async def adopt(self) -> int:
        """Make the entries of other agents, and of none, this agent's; return how many.

        Raises:
            OutboxError: the outbox cannot be used.
        """
        agent = self.agent
        adopted = await self.ask(lambda box: box.adopt(agent))
        self._may_hold_entries = True
        return adopted

    def kick(self) -> None:
        """Start delivering in the background unless that runs already or nothing was put; never raises."""
        self._enter_loop()
        if self._is_closed or (self._task is not None and not self._task.done()):
            return
        if self._may_hold_entries is None:
            try:
                self._may_hold_entries = self.outbox.exists
            except OutboxError:
                self._may_hold_entries = False
                self._cannot()
        if self._may_hold_entries:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="memplane-courier")

    async def aclose(self) -> None:
        """Stop delivering; what waits stays in the outbox."""
        self._is_closed = True
        task, self._task = self._task, None
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait([task])

    def _enter_loop(self) -> None:
        """Leave behind what belongs to an event loop that is gone."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._task, self._lanes = loop, None, WeakValueDictionary()

    def _cannot(self) -> None:
        logger.warning("the outbox cannot be delivered", exc_info=True)
        self._counts.add("unavailable", "deliver")

    async def _run(self) -> None:
        """Deliver everything, and come back until nothing is left."""
        pause = 1.0
        while True:
            self._may_hold_entries = False
            try:
                tally = await self._deliver_all()
                waiting = await self._mine()
            except OutboxError:
                self._may_hold_entries = None
                self._cannot()
                return
            if waiting == 0:
                if not self._may_hold_entries:
                    return
                continue
            pause = 1.0 if tally["delivered"] else min(MAX_PAUSE_SECONDS, pause * 2)
            await self._exchange.sleep(max(pause, self._exchange.breaker.seconds_until_probe()))

    async def _mine(self) -> int:
        agent = self.agent
        return await self.ask(lambda box: box.waiting(agent=agent))

    async def _deliver_all(self) -> dict[str, int]:
        tally, agent = dict(_TALLY), self.agent
        await self.ask(lambda box: box.drop_expired())
        for lane in await self.ask(lambda box: box.lanes(agent)):
            if await self._deliver(lane, tally) is Way.LATER:
                break
        return tally

    async def _deliver(
        self, lane: str, tally: dict[str, int], *, fresh: int | None = None, deadline: float | None = None
    ) -> Way:
        async with self._lanes.setdefault(lane, asyncio.Lock()):
            lock = await self._right_to(lane, deadline)
            if lock is None:
                return Way.NEXT_LANE
            try:
                return await self._deliver_alone(lane, tally, fresh, deadline)
            finally:
                lock.close()

    async def _deliver_alone(self, lane: str, tally: dict[str, int], fresh: int | None, deadline: float | None) -> Way:
        after, way = 0, Way.NEXT
        while way is Way.NEXT and after != fresh:
            entry = await self._next(after, lane, deadline)
            if entry is None:
                break
            after, by = entry.id, self._exchange.clock() + self._seconds
            way = await self.carrier.carry(
                entry, tally, is_fresh=entry.id == fresh, deadline=by if deadline is None else min(by, deadline)
            )
        return way

    async def _next(self, after: int, lane: str, deadline: float | None) -> Entry | None:
        return await self.ask(lambda box: box.next_waiting(after, lane), deadline=deadline)

    async def _right_to(self, lane: str, deadline: float | None) -> sqlite3.Connection | None:
        """Return the right to deliver a lane, by `deadline` or at once; None when another process keeps it."""
        while (lock := await self._lock(lane, deadline)) is None:
            if deadline is None or self._exchange.clock() >= deadline:
                return None
            await asyncio.sleep(_POLL_SECONDS)
        return lock

    async def _lock(self, lane: str, deadline: float | None) -> sqlite3.Connection | None:
        taking = asyncio.ensure_future(self.ask(lambda box: box.try_lock(lane), deadline=deadline))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(_give_back)
            raise


def _give_back(taken: asyncio.Future[sqlite3.Connection | None]) -> None:
    """Close a lock that came when nobody waited for it any more."""
    if not taken.cancelled() and taken.exception() is None and (lock := taken.result()) is not None:
        lock.close()
