"""`MemoryClient`: a store's verbs for an agent, with memory's outages kept away from the agent.

    async with MemoryClient.bind("team-memory") as memory:
        recalled = await memory.recall("where does Ada live?", session_id="s1")
        await memory.write("s1", [{"role": "user", "content": "I moved to Oslo."}])

What an outage does (no answer, a garbled one, 429, 5xx):

    recall                              never raises: outcome `unavailable`, and `degraded` says why
    write, remember                     soft: queued in the outbox, status `queued`; strict: ServiceUnavailable
    forget                              soft: status `not_erased`; strict: ServiceUnavailable
    sessions.end, .flush, .compact      soft: `degraded`, nothing scheduled; strict: ServiceUnavailable
    all others                          ServiceUnavailable: there is no truthful empty answer

A request that is wrong raises ContractError from every verb but recall, which answers `refused` with the Problem.
The failure mode is the call's, else the client's, else the binding's, else soft.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import httpx

from memory_service.client import requests
from memory_service.client.appends import Appends, kept
from memory_service.client.binding import BindingSource, ProjectedBinding, ResolvedBinding
from memory_service.client.breaker import Breaker
from memory_service.client.calls import Shared, Verbs, missing, outage_of
from memory_service.client.deadlines import Deadlines
from memory_service.client.errors import ContractError, InvalidRequest, OutboxError, ServiceUnavailable
from memory_service.client.exchange import Count, Counts, Exchange, refusal
from memory_service.client.groups import Admin, Facts, Health, Jobs, Receipts, Sessions
from memory_service.client.outbox import Outbox
from memory_service.client.places import Place, outbox_folder
from memory_service.client.requests.turns import TurnLike
from memory_service.client.results import Delivery, Forgotten, Recalled, Remembered, Written
from memory_service.client.transport import Transport
from memory_service.contract.items import Filters
from memory_service.contract.scopes import FactKind, FailureMode, Scope, Tier
from memory_service.contract.verbs import ListResponse, Outcome, RecallMode

logger = logging.getLogger(__name__)


class MemoryClient(Verbs):
    """A store's verbs, for one event loop. `SyncMemoryClient` has the same for code without one.

    Args:
        endpoint: the service's URL; left out, it is found as `binding` says.
        store: the store's name, which finds its endpoint and its binding.
        namespace: the store's namespace, when it is not the agent's own.
        token: the agent's token; left out, the file `token` of the binding folder, read again when it changes.
        token_file: another file for it; it has to hold one when the client is made, and may be away for a while later.
            Left out: MEMPLANE_TOKEN_FILE. While the file that either names has no token, nothing is sent
            but `health.live` and `health.ready` (`TokenMissing`).
        agent: the identity to claim where the service runs without authentication.
        user: on whose behalf: a user's token, or a plain name where the service runs without authentication.
        failure_mode: `soft` or `strict`; left out, the binding's.
        outbox: a folder or an Outbox; None keeps nothing on disk, so that soft writes in an outage are dropped
            (logged and counted). Left out: MEMPLANE_OUTBOX_DIR, else a folder of this store and agent in the
            platform's state folder.
        deadlines: seconds that calls may take.
        on_count: called with a count's name and the verb; see `Counts`.
        transport: an httpx transport to send through instead of the network.

    Raises:
        InvalidRequest: `token_file` is no file with a token that can be read.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        store: str | None = None,
        namespace: str | None = None,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        agent: str | None = None,
        user: str | None = None,
        failure_mode: FailureMode | str | None = None,
        outbox: Outbox | str | os.PathLike[str] | Place | None = Place.DEFAULT,
        deadlines: Deadlines | None = None,
        binding_folder: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        on_count: Count | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        breaker: Breaker | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        env = os.environ if env is None else env
        source = BindingSource(
            store,
            explicit=ProjectedBinding(endpoint=endpoint, namespace=namespace, agent=agent),
            folder=binding_folder,
            env=env,
            token=token,
            token_file=token_file,
        )
        if isinstance(outbox, Place):
            named = env.get("MEMPLANE_OUTBOX_DIR")
            outbox = Path(named) if named else outbox_folder(env, store, endpoint, agent)
        if outbox is not None and not isinstance(outbox, Outbox):
            outbox = Outbox(outbox, wall=wall)
        deadlines = deadlines or Deadlines()
        super().__init__(
            Shared(
                source=source,
                exchange=Exchange(
                    source,
                    transport=Transport(transport),
                    breaker=breaker,
                    usual_seconds=deadlines.of,
                    clock=clock,
                    wall=wall,
                    sleep=sleep,
                ),
                outbox=outbox,
                deadlines=deadlines,
                failure_mode=FailureMode(failure_mode) if failure_mode is not None else None,
                counts=Counts(on_count),
            ),
            user,
        )
        self._make_groups()

    @classmethod
    def bind(cls, store: str, **options: Any) -> Self:
        """Return a client of the store with this name; `options` are those of the class."""
        return cls(store=store, **options)

    def as_user(self, user: str | None) -> MemoryClient:
        """Return a view that acts on behalf of `user`; it shares connections, breaker, outbox and counts."""
        view = MemoryClient.__new__(MemoryClient)
        Verbs.__init__(view, self._shared, user)
        view._make_groups()
        return view

    def _make_groups(self) -> None:
        self._appends = Appends(self._shared, self._user)
        self.facts = Facts(self._shared, self._user)
        self.sessions = Sessions(self._shared, self._user)
        self.jobs = Jobs(self._shared, self._user)
        self.receipts = Receipts(self._shared, self._user)
        self.health = Health(self._shared, self._user)
        self.admin = Admin(self._shared, self._user)

    @property
    def binding(self) -> ResolvedBinding:
        """The binding as it is now: endpoint, where that came from, scope, tools, failure mode."""
        return self._shared.source.current()

    @property
    def outbox(self) -> Outbox | None:
        """The outbox, to look at what was refused; None when the client keeps none."""
        return self._shared.courier.outbox if self._shared.courier is not None else None

    @property
    def counts(self) -> dict[str, int]:
        """How often something did not go well: refused, unavailable, queued, delivered, dropped, erased."""
        return dict(self._shared.counts.by_name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close connections and stop background delivery, for all views; what waits stays in the outbox."""
        self._shared.is_closed = True
        if self._shared.courier is not None:
            await self._shared.courier.aclose()
        await self._shared.exchange.aclose()

    async def recall(
        self,
        query: str,
        *,
        session_id: str | None = None,
        include: Sequence[Tier | str] | None = None,
        top_k: int | None = None,
        token_budget: int | None = None,
        scopes: Sequence[Scope | str] | None = None,
        workspace: str | None = None,
        filters: Filters | Mapping[str, Any] | None = None,
        mode: RecallMode | str | None = None,
        score_floor: float | None = None,
        explain: bool | None = None,
        timeout_seconds: float | None = None,
        raise_contract_errors: bool = False,
    ) -> Recalled:
        """Return what is relevant to `query`; never raises on an outage or, unless asked to, on a refusal.

        What is left out takes the binding's and the store's defaults. `timeout_seconds` bounds the whole call.

        Raises:
            ContractError: only with `raise_contract_errors`.
        """
        try:
            binding = self._shared.source.current()
            if include is None and not binding.rolling_summary:
                include = (Tier.SHORT_TERM, Tier.LONG_TERM)
            request = requests.recall(
                query,
                session_id=session_id,
                include=include,
                top_k=top_k,
                token_budget=token_budget if token_budget is not None else binding.token_budget,
                scopes=scopes,
                workspace=workspace,
                filters=filters,
                mode=mode,
                score_floor=score_floor,
                explain=explain,
            )
        except InvalidRequest as error:
            self._shared.counts.add("refused", "recall")
            return self._refused(error, raise_contract_errors)
        try:
            answer = await self._call(
                request, self._deadline(timeout_seconds, self._shared.deadlines.recall), patient=False
            )
        except ServiceUnavailable as error:
            logger.warning("recall unavailable", extra={"reason": error.reason})
            return Recalled(outcome=Outcome.UNAVAILABLE, degraded=(missing(error),))
        except ContractError as error:
            return self._refused(error, raise_contract_errors)
        self._shared.learn(self._user, session_id, answer.generation)
        return Recalled.model_construct(**dict(answer), problem=None)

    def _refused(self, error: ContractError, should_raise: bool) -> Recalled:
        logger.warning("recall refused", extra=refusal(error))
        if should_raise:
            raise error
        return Recalled(outcome=Outcome.REFUSED, problem=error.problem)

    async def write(
        self,
        session_id: str,
        turns: Iterable[TurnLike],
        *,
        workspace: str | None = None,
        infer: bool | None = None,
        generation: str | None = None,
        idempotency_key: str | None = None,
        failure_mode: FailureMode | str | None = None,
        durable: bool = False,
        timeout_seconds: float | None = None,
    ) -> Written:
        """Append turns to a session, all or none.

        Turns without an id get one made from the idempotency key, so that a repeat with the same key and turns is
        stored once. With `durable` the turns are put into the outbox first, so that they survive a crash of this
        process at any step of the call. Turns of a session never overtake those that wait in the outbox.

        Raises:
            ContractError: the request is wrong; nothing was stored or queued.
            ServiceUnavailable: under `strict` only; repeat with the `idempotency_key` that the error carries.
        """
        request = requests.write(
            session_id,
            turns,
            workspace=workspace,
            infer=infer,
            generation=generation,
            idempotency_key=idempotency_key,
        )
        return await self._appends.write(
            request,
            session_id,
            generation=generation,
            has_own_key=idempotency_key is None,
            failure_mode=failure_mode,
            durable=durable,
            timeout_seconds=timeout_seconds,
        )

    async def remember(
        self,
        text: str,
        *,
        key: str | None = None,
        scope: Scope | str | None = None,
        session_id: str | None = None,
        workspace: str | None = None,
        kind: FactKind | str | None = None,
        category: str | None = None,
        evidence: str | None = None,
        importance: float | None = None,
        tags: Sequence[str] | None = None,
        pinned: bool | None = None,
        dedupe_key: str | None = None,
        expires_at: datetime | None = None,
        said_at: datetime | None = None,
        attributes: Mapping[str, Any] | None = None,
        generation: str | None = None,
        idempotency_key: str | None = None,
        failure_mode: FailureMode | str | None = None,
        timeout_seconds: float | None = None,
    ) -> Remembered:
        """Save a fact; when it is `stored` it can be found before this returns.

        Raises:
            ContractError: the request is wrong; nothing was stored or queued.
            ServiceUnavailable: under `strict` only.
        """
        request = requests.remember(
            text,
            key=key,
            scope=scope,
            session_id=session_id,
            workspace=workspace,
            kind=kind,
            category=category,
            evidence=evidence,
            importance=importance,
            tags=tags,
            pinned=pinned,
            dedupe_key=dedupe_key,
            expires_at=expires_at,
            said_at=said_at,
            attributes=attributes,
            generation=generation,
            idempotency_key=idempotency_key,
        )
        answer, degraded = await self._appends.append(
            request,
            session_id,
            generation=generation,
            has_own_key=idempotency_key is None,
            failure_mode=failure_mode,
            timeout_seconds=timeout_seconds,
        )
        sent_key = str(request.idempotency_key)
        if answer is None:
            return Remembered(status=kept(degraded), degraded=degraded, idempotency_key=sent_key)
        return Remembered(status="stored", fact=answer, idempotency_key=sent_key)

    async def list(
        self,
        *,
        scope: Scope | str | None = None,
        session_id: str | None = None,
        workspace: str | None = None,
        tiers: Sequence[Literal["fact", "episode"]] | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> ListResponse:
        """Return one page of everything visible at a scope, oldest first."""
        return await self._ask(
            requests.list_items(
                scope=scope, session_id=session_id, workspace=workspace, tiers=tiers, cursor=cursor, limit=limit
            )
        )

    async def forget(
        self,
        scope: Scope | str | None = None,
        *,
        session_id: str | None = None,
        idempotency_key: str | None = None,
        failure_mode: FailureMode | str | None = None,
        timeout_seconds: float | None = None,
    ) -> Forgotten:
        """Erase the binding's own scope, or a session; what waits in the outbox for it goes with it.

        Raises:
            ContractError: the request is wrong; nothing was erased.
            ServiceUnavailable: under `strict` only; whether it was erased is unknown: ask again.
        """
        if session_id is not None and scope is None:
            scope = Scope.SESSION
        request = requests.forget(scope, session_id, idempotency_key=idempotency_key)
        strict = self._is_strict(failure_mode)
        courier = self._shared.courier
        last_id = 0
        deadline = self._deadline(timeout_seconds, self._shared.deadlines.other)
        try:
            if courier is not None and courier.outbox.exists:
                last_id = await courier.ask(lambda box: box.last_id(), deadline=deadline)
        except OutboxError:
            self._leave_queued()
        try:
            answer = await self._call(request, deadline, patient=True)
        except (ServiceUnavailable, ContractError) as error:
            outage = outage_of(error)
            if strict or outage is None:
                raise
            logger.warning("nothing is known to be erased", extra={"reason": outage.reason})
            return Forgotten(status="not_erased", degraded=(missing(outage),))
        self._shared.unlearn(self._user)
        try:
            if courier is not None and last_id:
                agent = None if scope is not None and Scope(scope) is Scope.USER else courier.agent
                await courier.ask(
                    lambda box: box.discard(
                        user=self._user,
                        session_id=session_id,
                        every_session=session_id is None,
                        up_to=last_id,
                        agent=agent,
                    )
                )
        except OutboxError:
            self._leave_queued()
        return Forgotten(status=answer.status.value, receipt_id=answer.receipt_id, erased=answer.erased)

    def _leave_queued(self) -> None:
        """Let an erasure go on: what waits for the erased is refused (410) when it is delivered."""
        logger.warning("the outbox cannot be cleared of what is forgotten", exc_info=True)
        self._shared.counts.add("unavailable", "discard")

    async def deliver(self) -> Delivery:
        """Deliver what waits in the outbox now, as far as the service takes it; background delivery goes on too.

        Raises:
            OutboxError: the outbox cannot be used.
        """
        return await self._shared.courier.deliver() if self._shared.courier is not None else Delivery()

    async def adopt(self) -> int:
        """Make this agent's own what others left in the outbox's folder, and return how many entries that were.

        An agent delivers nothing but what it put there itself: under its token's issuer and subject, its static token,
        or its claimed name. This takes over what was put under a static token that is replaced by now, or by a version
        that did not say whose an entry is. Use it only where no other agent's memory can be in the folder.

        Raises:
            OutboxError: the outbox cannot be used.
        """
        return await self._shared.courier.adopt() if self._shared.courier is not None else 0
