"""How turns and facts go out: behind what waits in the outbox, into it in an outage, and through it when durable."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Literal

from memory_service.client.calls import Verbs, missing, outage_of
from memory_service.client.carrier import Stored
from memory_service.client.courier import Courier
from memory_service.client.entries import lane_of
from memory_service.client.errors import ContractError, OutboxError, ServiceUnavailable, UnavailableReason
from memory_service.client.results import Written
from memory_service.client.wire import USER_HEADER, Request, require_carried
from memory_service.contract.scopes import FailureMode
from memory_service.contract.verbs import Degraded, WriteResponse

logger = logging.getLogger(__name__)
_OUTBOX = "outbox"


class Appends(Verbs):
    """Sends what a session appends, in its order."""

    async def write(
        self,
        request: Request[WriteResponse],
        session_id: str,
        *,
        generation: str | None = None,
        has_own_key: bool,
        failure_mode: FailureMode | str | None,
        durable: bool,
        timeout_seconds: float | None = None,
    ) -> Written:
        """Send turns and say what became of them; `has_own_key` says that nobody but this client knows their key.

        Raises:
            ContractError: they are wrong; nothing was stored or queued.
            ServiceUnavailable: under `strict` only.
        """
        key = str(request.idempotency_key)
        answer, degraded = await self.append(
            request,
            session_id,
            generation=generation,
            has_own_key=has_own_key,
            failure_mode=failure_mode,
            durable=durable,
            timeout_seconds=timeout_seconds,
        )
        if answer is None:
            return Written(status=kept(degraded), session_id=session_id, degraded=degraded, idempotency_key=key)
        return Written(
            status="stored",
            session_id=answer.session_id,
            seqs=answer.seqs,
            jobs=answer.jobs,
            scheduled=answer.scheduled,
            generation=answer.generation,
            degraded=answer.degraded,
            idempotency_key=key,
        )

    async def append(
        self,
        request: Request[Any],
        session_id: str | None,
        *,
        generation: str | None,
        has_own_key: bool,
        failure_mode: FailureMode | str | None,
        durable: bool = False,
        timeout_seconds: float | None,
    ) -> tuple[Any, tuple[Degraded, ...]]:
        """Return the answer of a write or a remember; or None and why it was queued or dropped.

        Raises:
            ContractError: it is wrong; nothing was stored or queued.
            ServiceUnavailable: under `strict` only.
        """
        shared = self._shared
        strict = self._is_strict(failure_mode)
        deadline = self._deadline(timeout_seconds, shared.deadlines.write)
        try:
            require_carried(USER_HEADER, self._user)
        except ContractError:
            shared.counts.add("refused", request.verb)
            raise
        if shared.courier is not None:
            shared.courier.carrier.meet(self._user, is_accepted=False)
        where = {
            "user": self._user,
            "session_id": session_id,
            "has_own_key": has_own_key,
            "generation": generation or shared.generation(self._user, session_id),
        }
        try:
            answer: Any = None
            if durable and shared.courier is not None and not shared.is_closed:
                answer = await self._write_through(shared.courier, request, where, deadline, strict)
            if answer is None:
                await self._clear_lane(request, session_id, deadline)
                answer = await self._call(request, deadline, patient=strict)
        except (ServiceUnavailable, ContractError) as error:
            outage = outage_of(error)
            if isinstance(error, ServiceUnavailable):
                error.idempotency_key = request.idempotency_key
            if strict or outage is None:
                raise
            return None, await self._queue(request, where, outage)
        shared.learn(self._user, session_id, answer.generation)
        return answer, ()

    async def _write_through(
        self, courier: Courier, request: Request[Any], where: dict[str, Any], deadline: float, strict: bool
    ) -> Stored | None:
        """Queue a request, then deliver it; None when the outbox does not take it.

        Raises:
            ContractError: it was refused, and is not queued; or its key is that of another request, which waits.
            ServiceUnavailable: it is not delivered; it stays queued unless the caller is told (`strict`).
        """
        try:
            entry_id = await courier.put(request, deadline=deadline, **where)
        except ContractError:
            self._shared.counts.add("refused", request.verb)
            raise
        except OutboxError:
            logger.warning("the outbox took no turns; they are sent without it", exc_info=True)
            self._shared.counts.add("unqueued", request.verb)
            return None
        detail = "the service did not take them in time"
        result: Stored | ContractError | None = None
        try:
            async with asyncio.timeout(max(0.0, deadline - self._shared.exchange.clock())):
                await courier.deliver_lane(
                    lane_of(self._user, where["session_id"], courier.agent), fresh=entry_id, deadline=deadline
                )
                result = courier.carrier.fate(request, self._user)
                if result is None and not await courier.ask(lambda box: box.is_waiting(entry_id), deadline=deadline):
                    result = await courier.carrier.repeat(
                        request, self._user, generation=where["generation"], deadline=deadline
                    )
        except (TimeoutError, OutboxError, ServiceUnavailable) as error:
            detail = f"{detail}: {str(error) or type(error).__name__}"
        result = result or courier.carrier.fate(request, self._user)
        if result is not None and not isinstance(result, ContractError):
            return result
        is_gone = (strict or result is not None) and await self._discarded(courier, entry_id)
        if result is not None:
            self._shared.counts.add("refused", request.verb)
            raise result
        self._shared.counts.add("unavailable", request.verb)
        after = "nothing is queued, repeat with this error's `idempotency_key`" if is_gone else "the turns are queued"
        raise ServiceUnavailable(f"{after}; {detail}", reason=UnavailableReason.UNREACHABLE)

    async def _discarded(self, courier: Courier, entry_id: int) -> bool:
        """Take an entry out of the outbox again, whose caller is told what became of it; whether that worked."""
        try:
            await courier.ask(lambda box: box.discard(entry_id=entry_id))
        except OutboxError:
            logger.warning("what the caller was told of stays in the outbox", exc_info=True)
            return False
        return True

    async def _clear_lane(self, request: Request[Any], session_id: str | None, deadline: float) -> None:
        """Deliver what waits before this request.

        Raises:
            ServiceUnavailable: something still waits, so this request must wait too.
        """
        courier = self._shared.courier
        if courier is None or self._shared.is_closed:
            return
        lane = lane_of(self._user, session_id, courier.agent)
        try:
            waiting = await courier.waiting(lane, deadline=deadline)
            if waiting:
                async with asyncio.timeout(max(0.0, deadline - self._shared.exchange.clock())):
                    await courier.deliver_lane(lane, deadline=deadline)
                    # The token may have come meanwhile, and what waits has moved on to its agent's lane.
                    lane = lane_of(self._user, session_id, courier.agent)
                    waiting = await courier.waiting(lane, deadline=deadline)
        except TimeoutError:
            waiting = 1
        except OutboxError:
            # An outbox that cannot be read holds nobody up; its own failure was logged where it was found.
            logger.warning("the outbox cannot be read", exc_info=True)
            return
        if waiting:
            self._shared.counts.add("unavailable", request.verb)
            raise ServiceUnavailable(
                "earlier turns of this session still wait in the outbox", reason=UnavailableReason.UNREACHABLE
            )

    async def _queue(
        self, request: Request[Any], where: dict[str, Any], error: ServiceUnavailable
    ) -> tuple[Degraded, ...]:
        courier, counts = self._shared.courier, self._shared.counts
        reason = "OutboxDisabled"
        if courier is not None:
            try:
                await courier.put(request, **where)
            except ContractError:
                counts.add("refused", request.verb)
                raise
            except OutboxError as problem:
                reason = type(problem).__name__
                logger.exception("turns were neither stored nor queued", extra={"reason": reason})
            else:
                counts.add("queued", request.verb)
                logger.warning("queued in the outbox", extra={"verb": request.verb, "reason": error.reason})
                if not self._shared.is_closed:
                    courier.kick()
                return (missing(error),)
        else:
            logger.error("turns were neither stored nor queued", extra={"reason": reason})
        counts.add("dropped", request.verb)
        return (missing(error), Degraded(part=_OUTBOX, reason=reason))


def kept(degraded: tuple[Degraded, ...]) -> Literal["queued", "dropped"]:
    """Return what became of an append that the service did not take."""
    return "dropped" if any(item.part == _OUTBOX for item in degraded) else "queued"
