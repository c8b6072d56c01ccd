"""The two things that no watch tells: what a store's pods say of themselves, and whether a ModelAPI answers.

Both are polled: soon while something is not ready, seldom else. Between two reports of a store with agents its pods
are touched, which is cheap, so that pods that stay Ready and cannot be reached are noticed as soon as those that
fail. What is found is put where a reconcile reads it, and the object is enqueued when it matters.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta

from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.cluster.health import AddressResolver, HealthReader, HealthTarget, HealthUnavailable
from memory_operator.cluster.keys import ReconcileKey
from memory_operator.cluster.kinds import Kind
from memory_operator.cluster.probing import ModelProber
from memory_operator.crd import conditions, model_api
from memory_operator.crd.base import ObjectKey
from memory_operator.crd.conditions import ConditionType, Reason
from memory_operator.crd.model_api import ModelApi
from memory_operator.errors import InvalidSpec
from memory_operator.metrics import Metrics
from memory_operator.pacing import Backoff
from memory_operator.queue import WorkQueue
from memory_operator.reconcile.context import Context
from memory_operator.reconcile.store import health_target
from memory_operator.status.snapshot import HealthState
from memory_service.contract.health import Counters, HealthReport

logger = logging.getLogger(__name__)

_CATCH_UP_SECONDS = (0.7, 1.0, 2.0)
"""Delays of the polls after new bindings, until the replicas use them; then the interval of what is not ready."""

_SLACK_SECONDS = 0.2
"""A report that is due so soon is asked for now."""
_DOUBT_SECONDS = 1.5
"""After a poll or a probe that nobody answered: a second one soon, so that one lost packet is never the last word."""
_PROBES_AT_ONCE = 8


def _counters(reports: tuple[HealthReport, ...]) -> Counters | None:
    """Return the store's numbers: replicas of one database count the same rows, so that the largest is right."""
    if not reports:
        return None
    return Counters(
        facts=max(report.counters.facts for report in reports),
        pending=max(report.counters.pending for report in reports),
        oldest_seconds=max(report.counters.oldest_seconds for report in reports),
        dead=max(report.counters.dead for report in reports),
    )


def _significant(state: HealthState | None) -> object:
    """Return what of a health state changes a status, its numbers aside."""
    if state is None:
        return None
    reports = [report.model_copy(update={"counters": Counters()}) for report in state.reports]
    return (reports, state.unreachable_since, () if reports else state.failures)


class _Rounds:
    """Looks at objects whenever their time has come, some of them at once."""

    def __init__(
        self,
        kind: Kind,
        look: Callable[[ObjectKey], Awaitable[float | None]],
        clock: Callable[[], float],
        at_once: int,
        metrics: Metrics,
    ) -> None:
        """`look` returns in how many seconds to look again, None when there is nothing to see."""
        self._kind = kind
        self._look = look
        self._at_once = at_once
        self._metrics = metrics
        self._queue: WorkQueue[ObjectKey] = WorkQueue(clock, Backoff(1, 60, random.random))

    @property
    def next_due(self) -> float | None:
        """In how many seconds the next look is due; None when nothing is watched."""
        return self._queue.next_due()

    async def advance(self) -> None:
        """Look at each object whose time has come, once."""
        while (key := self._queue.take()) is not None:
            await self._look_once(key)

    async def _look_once(self, key: ObjectKey) -> None:
        try:
            seconds = await self._look(key)
        except Exception:
            # Whatever one object has brought about: the others are looked at as before.
            delay = self._queue.retry(key)
            self._metrics.look_failures.labels(self._kind.name).inc()
            fields = {"kind": self._kind.name, "object": str(key), "seconds": round(delay, 2)}
            logger.exception("look failed", extra=fields)
        else:
            self._queue.succeed(key)
            if seconds is not None:
                self._queue.add_after(key, seconds)
        finally:
            self._queue.done(key)

    async def _work(self) -> None:
        while True:
            await self._look_once(await self._queue.get())

    async def run(self) -> None:
        """Look until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._at_once):
                group.create_task(self._work())


class HealthMonitor(_Rounds):
    """Polls the stores."""

    def __init__(
        self, context: Context, reader: HealthReader, resolver: AddressResolver, clock: Callable[[], float]
    ) -> None:
        super().__init__(kinds.MEMORY_STORE, self.look, clock, context.settings.health_concurrency, context.metrics)
        self._context = context
        self._reader = reader
        self._resolver = resolver
        self._clock = clock
        self._counted_at: dict[ObjectKey, float] = {}
        self._catching_up: dict[ObjectKey, int] = {}
        self._report_due: dict[ObjectKey, float] = {}
        context.watch_health = self.watch

    def watch(self, store: ObjectKey, seconds: float) -> None:
        """Have a store asked after some seconds, or earlier when that was planned."""
        if seconds < min(_CATCH_UP_SECONDS):
            self._catching_up[store] = 0
        self._report_due[store] = min(self._report_due.get(store, float("inf")), self._clock() + seconds)
        self._queue.add_after(store, seconds)

    def _interval(self, store: ObjectKey, state: HealthState) -> float:
        settings, ledger = self._context.settings, self._context.ledger
        if state.unreachable_since is not None:
            patience = timedelta(seconds=settings.hysteresis_seconds)
            return (
                _DOUBT_SECONDS if state.is_in_doubt(self._context.now(), patience) else settings.unready_health_seconds
            )
        revision = ledger.revision(store)
        is_behind = any(report.ready and report.bindings_revision != revision for report in state.reports)
        if is_behind and ledger.is_awaited(store):
            step = self._catching_up.get(store, 0)
            self._catching_up[store] = step + 1
            if step < len(_CATCH_UP_SECONDS):
                return _CATCH_UP_SECONDS[step]
            return settings.unready_health_seconds
        body = self._context.cache.body(kinds.MEMORY_STORE, store) or {}
        is_ready = conditions.is_true(body.get("status") or {}, ConditionType.READY)
        are_well = state.reports and all(report.ready for report in state.reports) and not state.failures
        seconds = settings.health_seconds if is_ready and are_well else settings.unready_health_seconds
        return seconds * (0.9 + 0.2 * random.random())

    async def look(self, store: ObjectKey) -> float | None:
        """Have a report when one is due, and a touch of the pods else; return when to look again."""
        context, started_at = self._context, self._context.now()
        longest = context.settings.touch_seconds if context.cache.has_agents(store) else float("inf")
        left = self._report_due.get(store, float("-inf")) - self._clock()
        if left > _SLACK_SECONDS and (longest > left or await self._is_touchable(store)):
            return min(left, longest)
        if self._is_told_enough(store):
            return _CATCH_UP_SECONDS[-1]
        self._report_due.pop(store, None)
        pause = await self.poll(store, started_at)
        if pause is None:
            self._report_due.pop(store, None)
            return None
        self._report_due[store] = min(self._report_due.get(store, float("inf")), self._clock() + pause)
        return min(pause, longest)

    def _is_told_enough(self, store: ObjectKey) -> bool:
        """Whether the last good report still waits for its reconcile, and nobody for a newer one."""
        context, state = self._context, self._context.health.get(store)
        is_good = state is not None and bool(state.reports) and not state.failures
        is_waiting = context.queue.is_waiting(ReconcileKey(names.MEMORY_STORE, store))
        return is_good and is_waiting and not context.ledger.is_awaited(store)

    async def _is_touchable(self, store: ObjectKey) -> bool:
        """Whether a connection can be opened to any pod of a store; True when it has none."""
        addresses = self._resolver(store)
        if len(addresses) == 1:
            return await self._touch(addresses[0])
        touched = await asyncio.gather(*(self._touch(address) for address in addresses))
        return not addresses or any(touched)

    async def _touch(self, address: str) -> bool:
        try:
            await self._reader.touch(address)
        except HealthUnavailable:
            self._context.metrics.health_reads.labels("untouchable").inc()
            return False
        return True

    async def poll(self, store: ObjectKey, asked_at: datetime | None = None) -> float | None:
        """Ask all pods of a store once; return when to ask again, None when the store is gone.

        `asked_at` is since when a store that does not answer is silent: now, or when touching it began.
        """
        context = self._context
        target = health_target(context, store)
        if target is None:
            self._forget(store)
            return None
        old = context.health.get(store)
        state = await self._ask(target, old, asked_at or context.now())
        now = self._clock()
        are_numbers_due = now - self._counted_at.get(store, float("-inf")) >= context.settings.counters_seconds
        fresh = _counters(state.considered)
        if are_numbers_due or old is None or old.counters is None:
            state = replace(state, counters=fresh)
            if fresh is not None:
                self._counted_at[store] = now
        else:
            state = replace(state, counters=old.counters)
        if context.cache.body(kinds.MEMORY_STORE, store) is None:
            self._forget(store)
            return None
        context.health[store] = state
        if _significant(old) != _significant(state) or (old and old.counters) != state.counters:
            context.queue.add(ReconcileKey(names.MEMORY_STORE, store))
        old_revisions = {report.bindings_revision for report in old.reports} if old else set()
        revision = context.ledger.revision(store)
        revisions = {report.bindings_revision for report in state.reports}
        if revisions != old_revisions or revision in revisions:
            context.enqueue(ReconcileKey(names.AGENT_MEMORY, agent) for agent in context.ledger.woken(store))
        return self._interval(store, state)

    def _forget(self, store: ObjectKey) -> None:
        self._counted_at.pop(store, None)
        self._catching_up.pop(store, None)

    async def _ask(self, target: HealthTarget, old: HealthState | None, asked_at: datetime) -> HealthState:
        addresses = self._resolver(target.store)
        answers = await asyncio.gather(*(self._read(target, address) for address in addresses))
        reports = tuple(
            sorted((item for item in answers if isinstance(item, HealthReport)), key=lambda item: item.replica)
        )
        failures = tuple(sorted({item for item in answers if isinstance(item, str)}))
        unreachable_since: datetime | None = None
        if not reports and addresses:
            unreachable_since = (old.unreachable_since if old else None) or asked_at
        return HealthState(reports, failures, unreachable_since)

    async def _read(self, target: HealthTarget, address: str) -> HealthReport | str:
        try:
            report = await self._reader.read(target, address)
        except HealthUnavailable as error:
            self._context.metrics.health_reads.labels("failed").inc()
            return str(error)
        except Exception as error:
            # Whatever it is: what the pod said last must not stand for it.
            self._context.metrics.health_reads.labels("failed").inc()
            logger.exception("store not asked", extra={"object": str(target.store)})
            return f"could not be asked ({type(error).__name__})"
        self._context.metrics.health_reads.labels("ok").inc()
        return report


def _was_reachable(model: ModelApi) -> bool:
    """Whether the last that was told of this very spec is that it answers."""
    is_current = model.status.get("observedGeneration") == model.id.generation
    return is_current and conditions.is_true(model.status, ConditionType.READY)


class ModelMonitor(_Rounds):
    """Probes the ModelAPIs."""

    def __init__(self, context: Context, prober: ModelProber, clock: Callable[[], float]) -> None:
        super().__init__(kinds.MODEL_API, self.poll, clock, _PROBES_AT_ONCE, context.metrics)
        self._context = context
        self._prober = prober
        self._doubted: set[ObjectKey] = set()
        context.watch_model = self._queue.add

    async def poll(self, key: ObjectKey) -> float | None:
        """Probe a ModelAPI once; return when to probe again, None when there is nothing to probe."""
        context = self._context
        body = context.cache.body(kinds.MODEL_API, key)
        try:
            model = model_api.parse(body) if body is not None else None
        except InvalidSpec:
            model = None
        if model is None or model.spec.probe is model_api.Probe.NONE:
            self._doubted.discard(key)
            return None
        result = await self._prober.probe(model)
        if result.reason is Reason.UNREACHABLE and key not in self._doubted and _was_reachable(model):
            self._doubted.add(key)
            return _DOUBT_SECONDS
        self._doubted.discard(key)
        known = (model.id.generation, result)
        if context.probes.get(key) != known:
            context.probes[key] = known
            context.queue.add(ReconcileKey(names.MODEL_API, key))
        seconds = context.settings.probe_seconds
        return seconds * (0.9 + 0.2 * random.random()) if result.is_reachable else seconds / 3
