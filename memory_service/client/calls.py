"""One call of a verb: its deadline, its failure mode, its counts, and what views of one client share."""

from __future__ import annotations

from http import HTTPStatus
from typing import TypeVar

from memory_service.client.binding import BindingSource
from memory_service.client.courier import Courier
from memory_service.client.deadlines import Deadlines
from memory_service.client.errors import ContractError, Refuser, ServiceUnavailable, UnavailableReason, invalid
from memory_service.client.exchange import Counts, Exchange
from memory_service.client.outbox import Outbox
from memory_service.client.subjects import subject_of
from memory_service.client.wire import Request
from memory_service.contract.scopes import FailureMode
from memory_service.contract.verbs import Degraded

T = TypeVar("T")

MAX_GENERATIONS = 10_000
"""Sessions whose last generation is kept in memory; one that was dropped counts as never answered."""


class Shared:
    """What a client and its views on behalf of users have in common."""

    def __init__(
        self,
        *,
        source: BindingSource,
        exchange: Exchange,
        outbox: Outbox | None,
        deadlines: Deadlines,
        failure_mode: FailureMode | None,
        counts: Counts,
    ) -> None:
        self.source = source
        self.exchange = exchange
        self.deadlines = deadlines
        self.failure_mode = failure_mode
        self.counts = counts
        self.courier = (
            Courier(
                outbox,
                exchange,
                counts,
                who=source.agent,
                unseen=source.unseen_agent(),
                seconds=deadlines.write,
            )
            if outbox is not None
            else None
        )
        self._generations: dict[tuple[str, str | None], str] = {}
        self.is_closed = False

    def generation(self, user: str | None, session_id: str | None) -> str | None:
        """Return the generation of the last answer, None when there was none or it was dropped."""
        return self._generations.get((subject_of(user), session_id))

    def learn(self, user: str | None, session_id: str | None, generation: str | None) -> None:
        """Keep the generation of an answer for entries that may be queued later."""
        if generation is None:
            return
        place = (subject_of(user), session_id)
        self._generations.pop(place, None)
        self._generations[place] = generation
        if len(self._generations) > MAX_GENERATIONS:
            del self._generations[next(iter(self._generations))]

    def unlearn(self, user: str | None) -> None:
        """Drop the generations of a user: something was erased."""
        subject = subject_of(user)
        for place in [place for place in self._generations if place[0] == subject]:
            del self._generations[place]


class Verbs:
    """Calls of one client; the groups below and the client itself are made of it."""

    def __init__(self, shared: Shared, user: str | None) -> None:
        self._shared = shared
        self._user = user

    def _deadline(self, seconds: float | None, default: float) -> float:
        return self._shared.exchange.clock() + (default if seconds is None else seconds)

    async def _ask(self, request: Request[T], *, seconds: float | None = None, admin: bool = False) -> T:
        """Send a request whose outage raises."""
        shared = self._shared
        default = shared.deadlines.admin if admin else shared.deadlines.other
        return await self._call(request, self._deadline(seconds, default), patient=True)

    async def _call(self, request: Request[T], deadline: float, *, patient: bool) -> T:
        shared = self._shared
        try:
            if shared.is_closed:
                raise ServiceUnavailable("the client is closed; make a new one", reason=UnavailableReason.CLOSED)
            answer = await shared.exchange.call(request, user=self._user, deadline=deadline, patient=patient)
        except ServiceUnavailable as error:
            shared.counts.add("unavailable", request.verb)
            error.idempotency_key = request.idempotency_key
            raise
        except ContractError:
            shared.counts.add("refused", request.verb)
            raise
        if shared.courier is not None:
            if not request.is_open:
                shared.courier.carrier.meet(self._user, is_accepted=True)
            shared.courier.kick()
        return answer

    def _is_strict(self, failure_mode: FailureMode | str | None) -> bool:
        chosen = failure_mode or self._shared.failure_mode or self._shared.source.current().failure_mode
        try:
            return FailureMode(chosen) is FailureMode.STRICT
        except ValueError as error:
            raise invalid(f"failure_mode {chosen!r}: `soft` or `strict` is expected") from error


def outage_of(error: ContractError | ServiceUnavailable) -> ServiceUnavailable | None:
    """Return the outage that an error is to a soft caller; None for one that is the caller's own.

    A refusal that something between has made is one: the service said nothing. A request that is too large for what
    is between stays refused.
    """
    if isinstance(error, ServiceUnavailable):
        return error
    if error.refuser is not Refuser.BETWEEN or error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return None
    return ServiceUnavailable(error.problem.detail, reason=UnavailableReason.BAD_ANSWER)


def missing(error: ServiceUnavailable) -> Degraded:
    """Return how an answer tells of an outage."""
    return Degraded(part="service", reason=error.reason.value)
