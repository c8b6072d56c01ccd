"""Carries entries from the outbox to the service: in order within a lane, one process at a time, once by effect.

An entry leaves the outbox only when the service has it (a 2xx, or proof that an earlier attempt was stored), when
what it was said to was erased (410), or when it is set aside because the service refused it. A credential that is not
taken any more is an outage, not a refusal: entries wait for a newer one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

from memory_service.client.errors import (
    ContractError,
    Erased,
    OutboxError,
    Refuser,
    ServiceUnavailable,
    UnavailableReason,
)
from memory_service.client.exchange import Counts, Exchange, refusal
from memory_service.client.outbox import Entry, Outbox
from memory_service.client.results import Delivery
from memory_service.client.subjects import LEEWAY_SECONDS, expires_at, subject_of
from memory_service.client.wire import USER_HEADER, Request
from memory_service.contract.problems import PROBLEM_PREFIX, UNEXPIRED_TOKEN, Problem, ProblemKind
from memory_service.contract.verbs import MAX_QUEUED_SECONDS, RememberResponse, WriteResponse

logger = logging.getLogger(__name__)
T = TypeVar("T")

Stored = WriteResponse | RememberResponse

MAX_ATTEMPTS = 50
"""Times that the service itself may fail on an entry (500) before it is set aside and frees its lane."""
MAX_PAUSE_SECONDS = 30.0


KEPT_USERS = 1_000
"""Users whose newest tokens are remembered: the last one that the service took, and the last one of any call."""
KEPT_FATES = 1_000
"""Fates of entries that are remembered for the calls that put them; a call asks for its own at once."""


@dataclass(slots=True)
class _Round:
    """One way through what waits, and how far it is: a lane that failed is left alone until the next one."""

    lane: str | None = None
    fresh: int | None = None
    deadline: float | None = None
    gives_way: bool = False
    after: int = 0
    blocked: set[str] = field(default_factory=set)
    is_cut: bool = False


class Courier:
    """Delivers one outbox through one exchange. Use it from one event loop at a time."""

    def __init__(self, outbox: Outbox, exchange: Exchange, counts: Counts, *, seconds: float) -> None:
        self.outbox = outbox
        self._exchange = exchange
        self._counts = counts
        self._seconds = seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._may_hold_entries: bool | None = None
        self._calls_waiting = 0
        self._is_closed = False
        self._fates: dict[_Name, Stored | ContractError] = {}
        self._put_at: dict[_Name, float] = {}
        self._users: dict[str, tuple[str | None, str | None]] = {}

    async def waiting(self, lane: str | None = None) -> int:
        """Return how many entries wait; costs one look at the folder while nothing was ever put there."""
        return await asyncio.to_thread(self.outbox.waiting, lane) if self.outbox.exists else 0

    async def put(self, request: Request[Any], **where: Any) -> int:
        """Keep a request in the outbox.

        Raises:
            InvalidRequest: its key is that of another request, which is still there; nothing was added.
            OutboxError: nothing was added.
        """
        name, began = _name(request, where.get("user")), self._exchange.clock()
        self._fates.pop(name, None)
        body = {name: value for name, value in (request.body or {}).items() if name not in _STAMPS}
        entry_id = await asyncio.to_thread(
            lambda: self.outbox.put(
                verb="write" if request.verb == "write" else "remember",
                body=body,
                idempotency_key=str(request.idempotency_key),
                **where,
            )
        )
        self._may_hold_entries = True
        self._put_at.setdefault(name, began)
        while len(self._put_at) > KEPT_FATES:
            del self._put_at[next(iter(self._put_at))]
        return entry_id

    async def deliver(
        self,
        *,
        lane: str | None = None,
        fresh: int | None = None,
        deadline: float | None = None,
    ) -> Delivery:
        """Deliver what waits, in one lane or in all, until the service is unavailable or `deadline` has come.

        Args:
            lane: the only lane to look at.
            fresh: an entry that was put by this very call, which is sent as a call of now.
            deadline: on the exchange's clock; without one, each entry has its own.

        Raises:
            OutboxError: the outbox cannot be used.
        """
        self._enter_loop()
        turn = self._turn
        self._calls_waiting += 1
        try:
            await turn.acquire()
        finally:
            self._calls_waiting -= 1
        try:
            done = await self._alone(_Round(lane, fresh, deadline))
        finally:
            turn.release()
        return done.model_copy(update={"waiting": await self.waiting(lane)})

    def fate(self, request: Request[Any], user: str | None) -> Stored | ContractError | None:
        """Return what became of a request since it was last put, whichever call of this courier delivered it."""
        return self._fates.get(_name(request, user))

    def _note(self, entry: Entry, fate: Stored | ContractError) -> None:
        self._fates[entry.subject, entry.verb, entry.idempotency_key] = fate
        while len(self._fates) > KEPT_FATES:
            del self._fates[next(iter(self._fates))]

    def kick(self) -> None:
        """Start delivering in the background unless that runs already or nothing was put."""
        self._enter_loop()
        if self._is_closed or (self._task is not None and not self._task.done()):
            return
        if self._may_hold_entries is None:
            self._may_hold_entries = self.outbox.exists
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
            self._loop, self._turn, self._task, self._calls_waiting = loop, asyncio.Lock(), None, 0

    async def _run(self) -> None:
        """Deliver everything, giving way between two entries: a call for one session is not behind all others'."""
        pause = 1.0
        round_ = _Round(gives_way=True)
        while True:
            self._may_hold_entries = False
            try:
                async with self._turn:
                    done = await self._alone(round_)
                waiting = await self.waiting()
            except OutboxError:
                logger.warning("the outbox cannot be delivered", exc_info=True)
                self._counts.add("unavailable", "deliver")
                return
            if waiting == 0 and not self._may_hold_entries:
                return
            if round_.is_cut:
                round_.is_cut = False
                continue
            round_ = _Round(gives_way=True)
            if waiting == 0:
                continue
            pause = 1.0 if done.delivered else min(MAX_PAUSE_SECONDS, pause * 2)
            await self._exchange.sleep(max(pause, self._exchange.breaker.seconds_until_probe()))

    async def _lock(self) -> sqlite3.Connection | None:
        taking = asyncio.ensure_future(asyncio.to_thread(self.outbox.try_lock))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            lock = await taking
            if lock is not None:
                lock.close()
            raise

    async def _alone(self, round_: _Round) -> Delivery:
        """Deliver what is left of a round, unless another process delivers now."""
        lock = await self._lock()
        if lock is None:
            return Delivery()
        try:
            return await self._deliver(round_)
        finally:
            lock.close()

    async def _deliver(self, round_: _Round) -> Delivery:
        tally = {"delivered": 0, "refused": 0, "erased": 0}
        has_begun = False
        while (entry := await asyncio.to_thread(self.outbox.next_waiting, round_.after, round_.lane)) is not None:
            if round_.gives_way and has_begun and self._calls_waiting > 0:
                round_.is_cut = True
                break
            has_begun = True
            round_.after = entry.id
            if entry.lane in round_.blocked:
                continue
            by = self._exchange.clock() + self._seconds
            try:
                answer = await self._send(
                    entry,
                    is_fresh=entry.id == round_.fresh,
                    deadline=by if round_.deadline is None else min(by, round_.deadline),
                )
                self._note(entry, answer)
                tally["delivered"] += await self._settle(entry, self.outbox.delivered, "delivered")
            except Erased as error:
                if error.refuser is not Refuser.SERVICE:
                    break
                self._note(entry, error)
                logger.warning("queued turns dropped: erased meanwhile", extra={"entry": entry.id})
                tally["erased"] += await self._settle(entry, self.outbox.drop_erased, "erased")
            except ContractError as error:
                if error.refuser is Refuser.BETWEEN:
                    # A proxy's word is no verdict on an entry: keep everything and come back.
                    break
                if error.problem.kind == ProblemKind.IDEMPOTENCY_MISMATCH and entry.has_own_key:
                    # Nobody else has this key, and it is stored together with its effect: an earlier attempt, whose
                    # body said otherwise how long it had waited, was stored.
                    tally["delivered"] += await self._settle(entry, self.outbox.delivered, "delivered")
                    continue
                self._note(entry, error)
                if error.status == HTTPStatus.UNAUTHORIZED:
                    if not _is_about_the_user(error):
                        # The agent's own token is not taken: that is no word on any entry.
                        break
                    if _has_expired_since(entry, error):
                        # It was good when it was queued: the lane waits for a newer token of this user.
                        round_.blocked.add(entry.lane)
                        continue
                tally["refused"] += await self._set_aside(entry, error.problem, refusal(error))
            except ServiceUnavailable as error:
                if error.reason is UnavailableReason.SERVICE_ERROR:
                    round_.blocked.add(entry.lane)
                    await asyncio.to_thread(self.outbox.attempted, entry.id)
                    if entry.attempts + 1 >= MAX_ATTEMPTS:
                        tally["refused"] += await self._set_aside(entry, _worn_out(error), {"reason": error.reason})
                elif error.reason is UnavailableReason.IN_FLIGHT:
                    round_.blocked.add(entry.lane)
                else:
                    break
        return Delivery(**tally)

    async def _send(self, entry: Entry, *, is_fresh: bool, deadline: float) -> Stored:
        """Send an entry under the token that it came with, and under newer ones of its user once that has expired.

        Only the service's word that a token was genuine lets another one speak for its entry: anybody can write an
        issuer and a subject into a token.
        """
        request = self._request(entry, is_fresh=is_fresh)
        try:
            return await self._exchange.call(request, user=entry.user, deadline=deadline, patient=False)
        except ContractError as error:
            if not _has_expired_since(entry, error):
                raise
            expired = error
        last = await asyncio.to_thread(self.outbox.newest_user, entry.subject)
        for user in dict.fromkeys((*self._users.get(entry.subject, ()), last)):
            if user is None or user == entry.user:
                continue
            try:
                return await self._exchange.call(request, user=user, deadline=deadline, patient=False)
            except ContractError as error:
                if error.status != HTTPStatus.UNAUTHORIZED:
                    raise
        raise expired

    def meet(self, user: str | None, *, is_accepted: bool) -> None:
        """Know the token that a call came with: it may have to speak for what its user said under an older one."""
        if user is None:
            return
        subject = subject_of(user)
        accepted, _ = self._users.pop(subject, (None, None))
        self._users[subject] = (user if is_accepted else accepted, user)
        while len(self._users) > KEPT_USERS:
            del self._users[next(iter(self._users))]

    def _request(self, entry: Entry, *, is_fresh: bool) -> Request[Stored]:
        body = dict(entry.body)
        if not is_fresh:
            if entry.generation is not None:
                body["generation"] = entry.generation
            body["queued_seconds"] = self._age(entry)
        answer: Any = WriteResponse if entry.verb == "write" else RememberResponse
        path = "/v1/write" if entry.verb == "write" else "/v1/facts"
        return Request(entry.verb, "POST", path, answer, body=body, idempotency_key=entry.idempotency_key)

    def _age(self, entry: Entry) -> float:
        """Return for how many seconds an entry has waited, and rather too many: what was erased stays erased.

        A clock that was set back cannot tell, so what seems to come from the future counts as oldest; of what this
        process itself has put, its monotonic clock knows better.
        """
        age = self._exchange.wall() - entry.queued_at
        if age < 0:
            return MAX_QUEUED_SECONDS
        put_at = self._put_at.get((entry.subject, entry.verb, entry.idempotency_key))
        if put_at is not None:
            age = max(age, self._exchange.clock() - put_at)
        return min(math.ceil(age * 1_000) / 1_000, MAX_QUEUED_SECONDS)

    async def _settle(self, entry: Entry, how: Callable[[int], None], name: str) -> int:
        await asyncio.to_thread(how, entry.id)
        self._counts.add(name, entry.verb)
        return 1

    async def _set_aside(self, entry: Entry, problem: Problem, fields: dict[str, Any]) -> int:
        await asyncio.to_thread(self.outbox.set_aside, entry.id, problem)
        logger.warning("a queued request was refused and is kept aside", extra={"entry": entry.id, **fields})
        self._counts.add("refused", entry.verb)
        return 1


def _is_about_the_user(error: ContractError) -> bool:
    return any(field.field == USER_HEADER for field in error.problem.errors)


def _has_expired_since(entry: Entry, error: ContractError) -> bool:
    """Whether an entry's token is genuine by the service's word, and was still good when the entry was queued."""
    until = expires_at(entry.user)
    return (
        any(field.field == USER_HEADER and field.expected == UNEXPIRED_TOKEN for field in error.problem.errors)
        and until is not None
        and entry.queued_at < until + LEEWAY_SECONDS
    )


_Name = tuple[str, str, str]
"""What the service tells requests apart by: subject, verb and key. An id would not do: a folder that was emptied
begins again at 1."""


def _name(request: Request[Any], user: str | None) -> _Name:
    return subject_of(user), request.verb, str(request.idempotency_key)


_STAMPS = ("generation", "queued_seconds")
"""Fields that say when a request was made; each attempt states its own."""


def _worn_out(error: ServiceUnavailable) -> Problem:
    return Problem(
        type=f"{PROBLEM_PREFIX}{ProblemKind.INTERNAL}",
        title="Failed too often",
        status=500,
        detail=f"the service failed {MAX_ATTEMPTS} times on this entry: {error.detail}",
    )
