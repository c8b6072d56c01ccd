"""Sends one entry of the outbox and settles what became of it.

An entry leaves the outbox only when the service has it (a 2xx, or proof that an earlier attempt was stored), when
what it was said to was erased (410), or when it is set aside because the service refused it. A credential that is not
taken any more is an outage, not a refusal: entries wait for a newer one. So is whatever keeps this client from sending
anything at all: its own token, its binding, its environment.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, TypeVar

from memory_service.client.clerk import Clerk
from memory_service.client.entries import Entry
from memory_service.client.errors import (
    ContractError,
    Erased,
    Refuser,
    ServiceUnavailable,
    UnavailableReason,
)
from memory_service.client.exchange import Counts, Exchange, refusal
from memory_service.client.outbox import BUSY_SECONDS, Outbox
from memory_service.client.subjects import LEEWAY_SECONDS, expires_at, subject_of
from memory_service.client.wire import IDEMPOTENCY_HEADER, USER_HEADER, Request
from memory_service.contract.limits import MAX_QUEUED_SECONDS
from memory_service.contract.problems import PROBLEM_PREFIX, UNEXPIRED_TOKEN, Problem, ProblemKind
from memory_service.contract.verbs import RememberResponse, WriteResponse

logger = logging.getLogger(__name__)
T = TypeVar("T")

Stored = WriteResponse | RememberResponse

MAX_ATTEMPTS = 50
"""Times that an entry itself may fail (500, or too large for something between) before it frees its lane."""
KEPT_USERS = 1_000
"""Users whose newest tokens are remembered: the last one that the service took, and the last one of any call."""
KEPT_FATES = 1_000
"""Fates of entries that are remembered for the calls that put them; a call asks for its own at once."""
_SETTLING_SECONDS = 10.0
"""How long what became of an entry waits for its turn to be written down; it is sent again where it is not."""


class Way(Enum):
    """How a delivery goes on after one entry."""

    NEXT = auto()
    NEXT_LANE = auto()
    LATER = auto()


class Carrier:
    """Carries entries of one outbox through one exchange, in whatever order it is told to."""

    def __init__(self, outbox: Outbox, exchange: Exchange, counts: Counts, clerk: Clerk) -> None:
        self._outbox = outbox
        self._exchange = exchange
        self._counts = counts
        self._clerk = clerk
        self._fates: dict[_Name, Stored | ContractError] = {}
        self._put_at: dict[_Name, float] = {}
        self._users: dict[str, tuple[str | None, str | None]] = {}

    def began(self, request: Request[Any], user: str | None) -> None:
        """Know when a request that is put into the outbox was made; what is known of an earlier one is forgotten."""
        name = _name(request, user)
        self._fates.pop(name, None)
        self._put_at.setdefault(name, self._exchange.clock())
        _shorten(self._put_at, KEPT_FATES)

    def fate(self, request: Request[Any], user: str | None) -> Stored | ContractError | None:
        """Return what became of a request since it was last put, whichever call of this client delivered it."""
        return self._fates.get(_name(request, user))

    def meet(self, user: str | None, *, is_accepted: bool) -> None:
        """Know the token that a call came with: it may have to speak for what its user said under an older one."""
        if user is None:
            return
        subject = subject_of(user)
        accepted, _ = self._users.pop(subject, (None, None))
        self._users[subject] = (user if is_accepted else accepted, user)
        _shorten(self._users, KEPT_USERS)

    async def repeat(
        self, request: Request[Any], user: str | None, *, generation: str | None, deadline: float
    ) -> Stored | ContractError:
        """Ask again for what another process has sent: the same key has the same answer.

        Raises:
            ServiceUnavailable: there was none.
        """
        waited = self._exchange.clock() - self._put_at.get(_name(request, user), self._exchange.clock())
        body = _stamped(request.body or {}, generation, max(0.0, waited))
        again = replace(request, body=body)
        try:
            answer: Stored = await self._exchange.call(again, user=user, deadline=deadline, patient=False)
        except ContractError as error:
            return error
        return answer

    async def carry(self, entry: Entry, tally: dict[str, int], *, is_fresh: bool, deadline: float) -> Way:
        """Send an entry and settle it, counting into `tally`: delivered, refused, erased."""
        try:
            answer = await self._send(entry, is_fresh=is_fresh, deadline=deadline)
        except Erased as error:
            return await self._erased(entry, tally, error)
        except ContractError as error:
            return await self._refused(entry, tally, error)
        except ServiceUnavailable as error:
            if error.reason is UnavailableReason.SERVICE_ERROR:
                return await self._failed(entry, tally, error)
            return Way.NEXT_LANE if error.reason is UnavailableReason.IN_FLIGHT else Way.LATER
        self._note(entry, answer)
        await self._settle(entry, tally, self._outbox.delivered, "delivered")
        return Way.NEXT

    async def _erased(self, entry: Entry, tally: dict[str, int], error: ContractError) -> Way:
        if error.refuser is not Refuser.SERVICE:
            return Way.LATER
        self._note(entry, error)
        logger.warning("queued turns dropped: erased meanwhile", extra={"entry": entry.id})
        await self._settle(entry, tally, self._outbox.drop_erased, "erased")
        return Way.NEXT

    async def _refused(self, entry: Entry, tally: dict[str, int], error: ContractError) -> Way:
        if error.refuser is Refuser.BETWEEN:
            # A proxy's word is no verdict on an entry: keep everything and come back. One that an entry is too large
            # for concerns that entry alone.
            is_too_large = error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            return await self._failed(entry, tally, error) if is_too_large else Way.LATER
        if error.refuser is Refuser.CLIENT and not _is_about_the_entry(error):
            # The agent's own token, binding or environment cannot be used: that is no word on any entry.
            return Way.LATER
        if error.problem.kind == ProblemKind.IDEMPOTENCY_MISMATCH and entry.has_own_key:
            # Nobody else has this key, and it is stored together with its effect: an earlier attempt was stored.
            await self._settle(entry, tally, self._outbox.delivered, "delivered")
            return Way.NEXT
        self._note(entry, error)
        if error.status == HTTPStatus.UNAUTHORIZED:
            if not _is_about_the_user(error):
                # The agent's own token is not taken: that is no word on any entry.
                return Way.LATER
            if _has_expired_since(entry, error):
                # It was good when it was queued: the lane waits for a newer token of this user.
                return Way.NEXT_LANE
        await self._set_aside(entry, tally, error.problem, refusal(error))
        return Way.NEXT

    async def _failed(self, entry: Entry, tally: dict[str, int], error: ServiceUnavailable | ContractError) -> Way:
        await self._ask(lambda: self._outbox.attempted(entry.id))
        if entry.attempts + 1 >= MAX_ATTEMPTS:
            await self._set_aside(entry, tally, _worn_out(error), {"attempts": MAX_ATTEMPTS})
        return Way.NEXT_LANE

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
        last = await self._ask(lambda: self._outbox.newest_user(entry.subject, entry.agent))
        for user in dict.fromkeys((*self._users.get(entry.subject, ()), last)):
            if user is None or user == entry.user:
                continue
            try:
                return await self._exchange.call(request, user=user, deadline=deadline, patient=False)
            except ContractError as error:
                if error.status != HTTPStatus.UNAUTHORIZED:
                    raise
        raise expired

    def _request(self, entry: Entry, *, is_fresh: bool) -> Request[Stored]:
        body = dict(entry.body) if is_fresh else _stamped(entry.body, entry.generation, self._age(entry))
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
        return age

    def _note(self, entry: Entry, fate: Stored | ContractError) -> None:
        self._fates[entry.subject, entry.verb, entry.idempotency_key] = fate
        _shorten(self._fates, KEPT_FATES)

    async def _settle(self, entry: Entry, tally: dict[str, int], how: Callable[[int], None], name: str) -> None:
        await self._ask(lambda: how(entry.id))
        self._counts.add(name, entry.verb)
        tally[name] += 1

    async def _ask(self, work: Callable[[], T]) -> T:
        return await self._clerk.do(work, seconds=_SETTLING_SECONDS, busy_seconds=BUSY_SECONDS)

    async def _set_aside(self, entry: Entry, tally: dict[str, int], problem: Problem, fields: dict[str, Any]) -> None:
        await self._ask(lambda: self._outbox.set_aside(entry.id, problem))
        logger.warning("a queued request was refused and is kept aside", extra={"entry": entry.id, **fields})
        self._counts.add("refused", entry.verb)
        tally["refused"] += 1


STAMPS = ("generation", "queued_seconds")
"""Fields that say when a request was made; each attempt states its own."""


def _stamped(body: Mapping[str, Any], generation: str | None, seconds: float) -> dict[str, Any]:
    stamps = {"generation": generation} if generation is not None else {}
    return {**body, **stamps, "queued_seconds": min(math.ceil(seconds * 1_000) / 1_000, MAX_QUEUED_SECONDS)}


def _is_about_the_user(error: ContractError) -> bool:
    return any(field.field == USER_HEADER for field in error.problem.errors)


def _is_about_the_entry(error: ContractError) -> bool:
    return any(field.field in (USER_HEADER, IDEMPOTENCY_HEADER) for field in error.problem.errors)


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


def _shorten(kept: dict[Any, Any], most: int) -> None:
    while len(kept) > most:
        del kept[next(iter(kept))]


def _worn_out(error: ServiceUnavailable | ContractError) -> Problem:
    return Problem(
        type=f"{PROBLEM_PREFIX}{ProblemKind.INTERNAL}",
        title="Failed too often",
        status=500,
        detail=f"this entry failed {MAX_ATTEMPTS} times: {error}",
    )
