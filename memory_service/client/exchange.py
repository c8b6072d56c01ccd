"""One request to the store that an agent is bound to: who asks, whether to ask at all, and when to ask again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from memory_service.client.binding import BindingSource, ResolvedBinding
from memory_service.client.breaker import Admission, Breaker
from memory_service.client.errors import ContractError, NotAllowed, Refuser, ServiceUnavailable, UnavailableReason
from memory_service.client.transport import BrokenOff, Overslept, Transport
from memory_service.client.wire import AGENT_HEADER, AUTHORIZATION, USER_HEADER, Answer, Request

logger = logging.getLogger(__name__)
T = TypeVar("T")

MAX_ATTEMPTS = 3
"""Times that one call is sent while the service asks to come back within the call's own deadline."""

_ALIVE = (
    UnavailableReason.QUOTA_EXCEEDED,
    UnavailableReason.STORAGE_FULL,
    UnavailableReason.IN_FLIGHT,
    UnavailableReason.SERVICE_ERROR,
)
"""Answers that say no to this call and nothing about the next one of another kind: a full disk can be read."""

Count = Callable[[str, str], None]


class Counts:
    """Named counts of what did not go well: refused, unavailable, queued, delivered, dropped, erased.

    `on_count` is called with the name and the verb, for a metrics library of the agent's own; what it
    raises is logged.
    """

    def __init__(self, on_count: Count | None = None) -> None:
        self.by_name: Counter[str] = Counter()
        self._on_count = on_count

    def add(self, name: str, verb: str) -> None:
        """Count one."""
        self.by_name[name] += 1
        if self._on_count is not None:
            try:
                self._on_count(name, verb)
            except Exception:  # code of the agent's own, whose failure must not end its memory
                logger.warning("on_count failed", extra={"count": name, "verb": verb}, exc_info=True)


class Exchange:
    """Sends requests to one store, through one breaker.

    Args:
        usual_seconds: gives the time that a call of a verb usually has; a timeout counts against the service where
            there was half of it.
    """

    def __init__(
        self,
        source: BindingSource,
        *,
        transport: Transport | None = None,
        breaker: Breaker | None = None,
        usual_seconds: Callable[[str], float] = lambda verb: 0.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._source = source
        self._transport = transport or Transport()
        self.breaker = breaker or Breaker(clock=clock)
        self._usual_seconds = usual_seconds
        self.clock = clock
        self.wall = wall
        self.sleep = sleep
        self._held_until: dict[str, float] = {}

    @property
    def binding(self) -> ResolvedBinding:
        """The binding as it is now."""
        return self._source.current()

    async def call(self, request: Request[T], *, user: str | None, deadline: float, patient: bool) -> T:
        """Return the answer by `deadline` (on the clock); a patient call comes back when the service asks for it.

        Raises:
            ContractError: the request was refused.
            ServiceUnavailable: there was no usable answer.
        """
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return await self._once(request, user, deadline)
            except ServiceUnavailable as error:
                if not patient or attempt == MAX_ATTEMPTS or error.retry_after is None:
                    raise
                wait = max(error.retry_after, self.breaker.seconds_until_probe())
                if error.reason is UnavailableReason.BREAKER_OPEN or self.clock() + wait >= deadline:
                    raise
                await self.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def _once(self, request: Request[T], user: str | None, deadline: float) -> T:
        binding = self._source.current()
        now = self.clock()
        if now >= deadline:
            raise ServiceUnavailable(f"no time is left for {request.verb}", reason=UnavailableReason.TIMEOUT)
        # Read once: what is looked at here is what is sent, whatever becomes of the file meanwhile.
        token = None if request.is_open else self._source.token()
        if self._source.is_foreign(token, binding):
            raise ServiceUnavailable(
                f"the binding names {binding.audience!r} and this pod's token is for another store: it is being moved",
                reason=UnavailableReason.BINDING_MOVED,
            )
        missing = None if request.is_open else self._source.missing(token)
        if missing is not None:
            raise ServiceUnavailable(missing, reason=UnavailableReason.TOKEN_MISSING)
        held = self._held_until.get(request.verb, 0.0) - now
        if held > 0:
            raise ServiceUnavailable(
                f"the service asked to send no {request.verb} for another {held:.1f} s",
                reason=UnavailableReason.QUOTA_EXCEEDED,
                retry_after=held,
            )
        admission = self.breaker.admit()
        if admission is None:
            wait = self.breaker.seconds_until_probe()
            raise ServiceUnavailable(
                f"{binding.endpoint} did not answer lately; the next try is in {wait:.1f} s",
                reason=UnavailableReason.BREAKER_OPEN,
                retry_after=wait,
            )
        is_settled = False
        try:
            answer = await self._answer(request, binding, token, user, deadline)
            result = request.parse(answer, datetime.fromtimestamp(self.wall(), UTC))
            is_settled = True
            self.breaker.succeeded()
            return result
        except ServiceUnavailable as error:
            is_settled = True
            self._settle(request, admission, error, deadline - now)
            raise
        except ContractError as error:
            if error.refuser is not Refuser.CLIENT:
                is_settled = True
                self.breaker.succeeded()
            raise
        finally:
            if not is_settled:
                # Cancelled, or refused before it was sent: nothing is known about the service.
                self.breaker.abandoned(admission)

    def _settle(self, request: Request[Any], admission: Admission, error: ServiceUnavailable, seconds: float) -> None:
        """Tell the breaker what an outage says about the service; `seconds` is the time that the call had."""
        if error.reason in _ALIVE:
            self.breaker.succeeded()
            if error.reason is UnavailableReason.QUOTA_EXCEEDED:
                self._held_until[request.verb] = self.clock() + (error.retry_after or 1.0)
        elif (
            error.reason is UnavailableReason.CLOSED
            or isinstance(error, Overslept)
            or (error.reason is UnavailableReason.TIMEOUT and not seconds >= self._usual_seconds(request.verb) / 2)
        ):
            # Closed, busy with something else, or in more haste than a call of this verb has: nothing is known.
            self.breaker.abandoned(admission)
        else:
            self.breaker.failed(admission, error.retry_after)

    async def _answer(
        self, request: Request[Any], binding: ResolvedBinding, token: str | None, user: str | None, deadline: float
    ) -> Answer:
        answer = await self._send(request, binding, token, user, deadline)
        if answer.status == 401 and token is not None:
            self._source.forget_token()
            renewed = self._source.token()
            if renewed not in (None, token) and not self._source.is_foreign(renewed, binding):
                answer = await self._send(request, binding, renewed, user, deadline)
        return answer

    async def _send(
        self, request: Request[Any], binding: ResolvedBinding, token: str | None, user: str | None, deadline: float
    ) -> Answer:
        headers: dict[str, str] = {}
        if token is not None:
            headers[AUTHORIZATION] = f"Bearer {token}"
        elif binding.agent is not None and not request.is_open:
            # Only the mode `none` listens to this; where a token proves who calls, nothing is claimed.
            headers[AGENT_HEADER] = binding.agent
        if user is not None and not request.is_open:
            headers[USER_HEADER] = user
        for is_last in (False, True):
            try:
                return await self._transport.send(
                    request,
                    endpoint=binding.endpoint,
                    headers=headers,
                    ca=binding.ca,
                    seconds=max(0.0, deadline - self.clock()),
                )
            except BrokenOff:
                # Safe to send again: what changes something carries an idempotency key.
                if is_last:
                    raise
        raise AssertionError("the last attempt returns or raises")


def refusal(error: ContractError) -> dict[str, Any]:
    """Return the fields of a log record about a refused call."""
    return {"problem": error.problem.kind, "status": error.status, "is_denied": isinstance(error, NotAllowed)}
