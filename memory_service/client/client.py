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
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import httpx

from memory_service.client import requests
from memory_service.client.binding import BindingSource, ProjectedBinding, ResolvedBinding
from memory_service.client.breaker import Breaker
from memory_service.client.courier import Courier
from memory_service.client.errors import (
    ContractError,
    InvalidRequest,
    OutboxError,
    ServiceUnavailable,
    UnavailableReason,
    invalid,
)
from memory_service.client.exchange import Count, Counts, Exchange, refusal
from memory_service.client.outbox import Outbox, lane_of
from memory_service.client.requests import Request, TurnLike
from memory_service.client.results import Delivery, Forgotten, Recalled, Remembered, SessionActed, Written
from memory_service.client.transport import Transport
from memory_service.contract.health import HealthReport
from memory_service.contract.items import Filters, Item
from memory_service.contract.scopes import FactKind, FailureMode, Scope, Tier
from memory_service.contract.sessions import (
    Diagnostics,
    ExportPage,
    ImportResponse,
    Job,
    JobsResponse,
    JobState,
    ReplayResponse,
    SessionDetail,
    SessionsResponse,
    TurnsResponse,
)
from memory_service.contract.verbs import (
    Degraded,
    FactBatchResponse,
    ForgetResponse,
    HistoryResponse,
    ListResponse,
    NewFact,
    Outcome,
    RecallMode,
    Receipt,
    RememberResponse,
    WriteResponse,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")

MAX_GENERATIONS = 10_000
"""Sessions whose last generation is kept in memory; one that was dropped counts as never answered."""


class Place(Enum):
    """Where an outbox lies when its caller does not say."""

    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds that a call may take in all, by kind.

    A recall's allows for the two seconds that a service waits for an embedding before it goes on with words alone.
    """

    recall: float = 4.0
    write: float = 5.0
    other: float = 15.0
    admin: float = 120.0


class _Shared:
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
        self.courier = Courier(outbox, exchange, counts, seconds=deadlines.write) if outbox is not None else None
        self.generations: dict[tuple[str | None, str | None], str] = {}
        self.is_closed = False

    def learn(self, user: str | None, session_id: str | None, generation: str | None) -> None:
        """Keep the generation of an answer for entries that may be queued later."""
        if generation is None:
            return
        self.generations.pop((user, session_id), None)
        self.generations[user, session_id] = generation
        if len(self.generations) > MAX_GENERATIONS:
            del self.generations[next(iter(self.generations))]

    def unlearn(self, user: str | None) -> None:
        """Drop the generations of a user: something was erased."""
        for key in [key for key in self.generations if key[0] == user]:
            del self.generations[key]


class _Verbs:
    """Calls of one client; the groups below and the client itself are made of it."""

    def __init__(self, shared: _Shared, user: str | None) -> None:
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
            shared.courier.kick()
        return answer

    def _is_strict(self, failure_mode: FailureMode | str | None) -> bool:
        chosen = failure_mode or self._shared.failure_mode or self._shared.source.current().failure_mode
        try:
            return FailureMode(chosen) is FailureMode.STRICT
        except ValueError as error:
            raise invalid(f"failure_mode {chosen!r}: `soft` or `strict` is expected") from error


class Facts(_Verbs):
    """Inspect, correct and delete single facts."""

    async def get(self, fact_id: str) -> Item:
        """Return one fact."""
        return await self._ask(requests.facts_get(fact_id))

    async def patch(self, /, fact_id: str, *, idempotency_key: str | None = None, **changes: Any) -> Item:
        """Correct one fact and return it; with `revision` a fact that changed meanwhile raises Conflict."""
        return await self._ask(requests.facts_patch(fact_id, idempotency_key=idempotency_key, **changes))

    async def delete(self, fact_id: str, *, idempotency_key: str | None = None) -> ForgetResponse:
        """Delete one fact and return the receipt; nothing reads it any more when this returns."""
        return await self._ask(requests.facts_delete(fact_id, idempotency_key=idempotency_key))

    async def list(
        self,
        *,
        scope: Scope | str | None = None,
        session_id: str | None = None,
        workspace: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> ListResponse:
        """Return one page of facts."""
        return await self._ask(
            requests.facts_list(scope=scope, session_id=session_id, workspace=workspace, cursor=cursor, limit=limit)
        )

    async def batch(
        self,
        facts: Iterable[NewFact | Mapping[str, Any]],
        *,
        generation: str | None = None,
        idempotency_key: str | None = None,
    ) -> FactBatchResponse:
        """Save facts together, all or none."""
        return await self._ask(requests.facts_batch(facts, generation=generation, idempotency_key=idempotency_key))

    async def history(self, fact_id: str) -> HistoryResponse:
        """Return a fact's changes, oldest first."""
        return await self._ask(requests.facts_history(fact_id))

    async def supersede(self, /, fact_id: str, text: str, *, idempotency_key: str | None = None, **fields: Any) -> Item:
        """Put another statement in a fact's place and return it; the old one keeps its validity and its successor."""
        return await self._ask(requests.facts_supersede(fact_id, text, idempotency_key=idempotency_key, **fields))


class Sessions(_Verbs):
    """Look at sessions, and end, flush or compact them."""

    async def list(self, *, cursor: str | None = None, limit: int | None = None) -> SessionsResponse:
        """Return one page of the caller's sessions, newest write first."""
        return await self._ask(requests.sessions_list(cursor=cursor, limit=limit))

    async def get(self, session_id: str, *, workspace: str | None = None) -> SessionDetail:
        """Return a session with its window and digests."""
        return await self._ask(requests.sessions_get(session_id, workspace=workspace))

    async def turns(
        self, session_id: str, *, after: int | None = None, limit: int | None = None, workspace: str | None = None
    ) -> TurnsResponse:
        """Return turns past the seq `after`, in order; every turn that was kept, not the window alone."""
        return await self._ask(requests.sessions_turns(session_id, after=after, limit=limit, workspace=workspace))

    async def end(
        self, session_id: str, *, workspace: str | None = None, failure_mode: FailureMode | str | None = None
    ) -> SessionActed:
        """Say that the conversation is over, so that it is remembered however short it was."""
        return await self._act("end", session_id, workspace, failure_mode)

    async def compact(
        self, session_id: str, *, workspace: str | None = None, failure_mode: FailureMode | str | None = None
    ) -> SessionActed:
        """Fold older turns into the digest now; `busy` when that runs already."""
        return await self._act("compact", session_id, workspace, failure_mode)

    async def flush(
        self, session_id: str, *, workspace: str | None = None, failure_mode: FailureMode | str | None = None
    ) -> SessionActed:
        """Extract facts from the turns that wait, without ending the session."""
        return await self._act("flush", session_id, workspace, failure_mode)

    async def _act(
        self,
        action: Literal["end", "compact", "flush"],
        session_id: str,
        workspace: str | None,
        failure_mode: FailureMode | str | None,
    ) -> SessionActed:
        request = requests.sessions_act(action, session_id, workspace=workspace)
        strict = self._is_strict(failure_mode)
        try:
            answer = await self._ask(request)
        except ServiceUnavailable as error:
            if strict:
                raise
            logger.warning("session action not asked for", extra={"action": action, "reason": error.reason})
            return SessionActed(session_id=session_id, jobs=(), scheduled=False, degraded=(_degraded(error),))
        return SessionActed.model_validate(answer.model_dump())


class Jobs(_Verbs):
    """The state of background work."""

    async def list(
        self,
        *,
        state: JobState | str | None = None,
        session_id: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> JobsResponse:
        """Return one page of jobs, newest first."""
        return await self._ask(requests.jobs_list(state=state, session_id=session_id, cursor=cursor, limit=limit))

    async def get(self, job_id: str) -> Job:
        """Return one job."""
        return await self._ask(requests.jobs_get(job_id))

    async def retry(self, job_id: str, *, idempotency_key: str | None = None) -> Job:
        """Put a dead job back into the queue."""
        return await self._ask(requests.jobs_retry(job_id, idempotency_key=idempotency_key))


class Receipts(_Verbs):
    """What became of erasures."""

    async def get(self, receipt_id: str) -> Receipt:
        """Return how far an erasure is: erased, then purged."""
        return await self._ask(requests.receipts_get(receipt_id))


class Health(_Verbs):
    """Whether the service lives, can serve, and how its parts are."""

    async def live(self) -> bool:
        """Return whether the process answers; never raises on an outage."""
        try:
            await self._ask(requests.health_live(), seconds=self._shared.deadlines.recall)
        except ServiceUnavailable:
            return False
        return True

    async def ready(self) -> bool:
        """Return whether the service can serve; never raises on an outage."""
        try:
            return (await self._ask(requests.health_ready(), seconds=self._shared.deadlines.recall)).ready
        except ServiceUnavailable:
            return False

    async def report(self) -> HealthReport:
        """Return one replica's view of itself; for the operator and admins."""
        return await self._ask(requests.health_report())


class Admin(_Verbs):
    """Store-wide verbs, for listed admins only."""

    async def erase(
        self,
        *,
        principal: str | None = None,
        agent: str | None = None,
        session: str | None = None,
        idempotency_key: str | None = None,
    ) -> ForgetResponse:
        """Erase a principal, an agent, or an agent's session, over the whole store."""
        request = requests.admin_erase(
            principal=principal, agent=agent, session=session, idempotency_key=idempotency_key
        )
        return await self._ask(request, admin=True)

    async def list(self, *, cursor: str | None = None, limit: int | None = None) -> ListResponse:
        """Return one page of everything in the store."""
        return await self._ask(requests.admin_list(cursor=cursor, limit=limit), admin=True)

    async def diagnostics(self) -> Diagnostics:
        """Return totals of the store."""
        return await self._ask(requests.admin_diagnostics(), admin=True)

    async def replay(
        self, state: JobState | str = JobState.DEAD, *, idempotency_key: str | None = None
    ) -> ReplayResponse:
        """Put every job of a state back into the queue."""
        return await self._ask(requests.admin_replay(state, idempotency_key=idempotency_key), admin=True)

    async def export_page(self, *, cursor: str | None = None, limit: int | None = None) -> ExportPage:
        """Return one page of an export."""
        return await self._ask(requests.admin_export(cursor=cursor, limit=limit), admin=True)

    async def import_lines(
        self, lines: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> ImportResponse:
        """Import lines of an export; a line that was imported before is skipped."""
        return await self._ask(requests.admin_import(lines, idempotency_key=idempotency_key), admin=True)


class MemoryClient(_Verbs):
    """A store's verbs, for one event loop. `SyncMemoryClient` has the same for code without one.

    Args:
        endpoint: the service's URL; left out, it is found as `binding` says.
        store: the store's name, which finds its endpoint and its binding.
        namespace: the store's namespace, when it is not the agent's own.
        token: the agent's token; left out, the file `token` of the binding folder, read again when it changes.
        token_file: another file for it.
        agent: the identity to claim where the service runs without authentication.
        user: on whose behalf: a user's token, or a plain name where the service runs without authentication.
        failure_mode: `soft` or `strict`; left out, the binding's.
        outbox: a folder or an Outbox; None keeps nothing on disk, so that soft writes in an outage are dropped
            (logged and counted). Left out: MEMPLANE_OUTBOX_DIR, else a folder of this store and agent in the
            platform's state folder.
        deadlines: seconds that calls may take.
        on_count: called with a count's name and the verb; see `Counts`.
        transport: an httpx transport to send through instead of the network.
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
            outbox = Path(named) if named else _outbox_folder(env, store, endpoint, agent)
        if outbox is not None and not isinstance(outbox, Outbox):
            outbox = Outbox(outbox, wall=wall)
        super().__init__(
            _Shared(
                source=source,
                exchange=Exchange(
                    source, transport=Transport(transport), breaker=breaker, clock=clock, wall=wall, sleep=sleep
                ),
                outbox=outbox,
                deadlines=deadlines or Deadlines(),
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
        _Verbs.__init__(view, self._shared, user)
        view._make_groups()
        return view

    def _make_groups(self) -> None:
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
            return Recalled(outcome=Outcome.UNAVAILABLE, degraded=(_degraded(error),))
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
        key = str(request.idempotency_key)
        answer, degraded = await self._append(
            request,
            session_id,
            generation=generation,
            has_own_key=idempotency_key is None,
            failure_mode=failure_mode,
            durable=durable,
            timeout_seconds=timeout_seconds,
        )
        if answer is None:
            return Written(status=_kept(degraded), session_id=session_id, degraded=degraded, idempotency_key=key)
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
        answer, degraded = await self._append(
            request,
            session_id,
            generation=generation,
            has_own_key=idempotency_key is None,
            failure_mode=failure_mode,
            timeout_seconds=timeout_seconds,
        )
        sent_key = str(request.idempotency_key)
        if answer is None:
            return Remembered(status=_kept(degraded), degraded=degraded, idempotency_key=sent_key)
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
        queued = self.outbox
        last_id = 0
        if queued is not None and queued.exists:
            last_id = await asyncio.to_thread(queued.last_id)
        try:
            answer = await self._call(
                request, self._deadline(timeout_seconds, self._shared.deadlines.other), patient=True
            )
        except ServiceUnavailable as error:
            if strict:
                raise
            logger.warning("nothing is known to be erased", extra={"reason": error.reason})
            return Forgotten(status="not_erased", degraded=(_degraded(error),))
        self._shared.unlearn(self._user)
        if queued is not None and last_id:
            await asyncio.to_thread(
                lambda: queued.discard(
                    user=self._user, session_id=session_id, every_session=session_id is None, up_to=last_id
                )
            )
        return Forgotten(status=answer.status.value, receipt_id=answer.receipt_id, erased=answer.erased)

    async def deliver(self) -> Delivery:
        """Deliver what waits in the outbox now, as far as the service takes it; background delivery goes on too.

        Raises:
            OutboxError: the outbox cannot be used.
        """
        return await self._shared.courier.deliver() if self._shared.courier is not None else Delivery()

    async def _append(
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
        """Return the answer of a write or a remember; or None and why it was queued or dropped."""
        shared = self._shared
        strict = self._is_strict(failure_mode)
        deadline = self._deadline(timeout_seconds, shared.deadlines.write)
        where = {
            "user": self._user,
            "session_id": session_id,
            "has_own_key": has_own_key,
            "generation": generation or shared.generations.get((self._user, session_id)),
        }
        try:
            answer: Any = None
            if durable and shared.courier is not None and not shared.is_closed:
                answer = await self._write_through(shared.courier, request, where, deadline, strict)
            if answer is None:
                await self._clear_lane(request, session_id, deadline)
                answer = await self._call(request, deadline, patient=strict)
        except ServiceUnavailable as error:
            if strict:
                error.idempotency_key = request.idempotency_key
                raise
            return None, await self._queue(request, where, error)
        shared.learn(self._user, session_id, answer.generation)
        return answer, ()

    async def _write_through(
        self, courier: Courier, request: Request[Any], where: dict[str, Any], deadline: float, strict: bool
    ) -> WriteResponse | RememberResponse | None:
        """Queue a request, then deliver it; None when the outbox does not take it.

        Raises:
            ContractError: it was refused; it is not queued any more.
            ServiceUnavailable: it is not delivered; it stays queued unless the caller is told (`strict`).
        """
        try:
            entry_id = await courier.put(request, **where)
        except OutboxError:
            logger.warning("the outbox took no turns; they are sent without it", exc_info=True)
            self._shared.counts.add("unqueued", request.verb)
            return None
        lane = lane_of(where["user"], where["session_id"])
        reason = "the turns are queued; the service did not take them in time"
        try:
            async with asyncio.timeout(max(0.0, deadline - self._shared.exchange.clock())):
                await courier.deliver(lane=lane, fresh=entry_id, deadline=deadline)
        except (TimeoutError, OutboxError) as error:
            reason = f"{reason}: {error or type(error).__name__}"
        result = courier.fate(entry_id)
        if isinstance(result, ContractError):
            self._shared.counts.add("refused", request.verb)
            await asyncio.to_thread(lambda: courier.outbox.discard(entry_id=entry_id))
            raise result
        if result is not None:
            return result
        if strict:
            await asyncio.to_thread(lambda: courier.outbox.discard(entry_id=entry_id))
        self._shared.counts.add("unavailable", request.verb)
        raise ServiceUnavailable(reason, reason=UnavailableReason.UNREACHABLE)

    async def _clear_lane(self, request: Request[Any], session_id: str | None, deadline: float) -> None:
        """Deliver what waits before this request.

        Raises:
            ServiceUnavailable: something still waits, so this request must wait too.
        """
        courier = self._shared.courier
        if courier is None or self._shared.is_closed:
            return
        lane = lane_of(self._user, session_id)
        try:
            waiting = await courier.waiting(lane)
            if waiting:
                async with asyncio.timeout(max(0.0, deadline - self._shared.exchange.clock())):
                    waiting = (await courier.deliver(lane=lane, deadline=deadline)).waiting
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
            except OutboxError as problem:
                reason = type(problem).__name__
                logger.exception("turns were neither stored nor queued", extra={"reason": reason})
            else:
                counts.add("queued", request.verb)
                logger.warning("queued in the outbox", extra={"verb": request.verb, "reason": error.reason})
                if not self._shared.is_closed:
                    courier.kick()
                return (_degraded(error),)
        else:
            logger.error("turns were neither stored nor queued", extra={"reason": reason})
        counts.add("dropped", request.verb)
        return (_degraded(error), Degraded(part=_OUTBOX, reason=reason))


_OUTBOX = "outbox"


def _kept(degraded: tuple[Degraded, ...]) -> Literal["queued", "dropped"]:
    return "dropped" if any(item.part == _OUTBOX for item in degraded) else "queued"


def _degraded(error: ServiceUnavailable) -> Degraded:
    return Degraded(part="service", reason=error.reason.value)


def _outbox_folder(env: Mapping[str, str], store: str | None, endpoint: str | None, agent: str | None) -> Path:
    """Return the outbox folder of this store and agent; one folder is never shared between two agents."""
    identity = "\n".join(
        (store or "", endpoint or env.get("MEMPLANE_ENDPOINT", ""), agent or env.get("AGENT_IDENTITY", ""))
    )
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    state = env.get("XDG_STATE_HOME") or env.get("LOCALAPPDATA")
    base = Path(state) if state else Path(env.get("HOME") or tempfile.gettempdir(), ".local", "state")
    if not os.access(_nearest(base), os.W_OK):
        # A read-only home, as in pods; the temporary folder is what is left. The user's number keeps users apart.
        base = Path(tempfile.gettempdir(), f"memplane-{os.getuid() if hasattr(os, 'getuid') else 'user'}")
    return base / "memplane" / "outbox" / name


def _nearest(folder: Path) -> Path:
    """Return the nearest parent that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
