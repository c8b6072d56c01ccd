"""One operator process from start to end: wait for the Lease, fill the caches, watch and work, hand over."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import aiohttp
import kopf

from memory_operator.cluster.cache import Cache
from memory_operator.cluster.client import KubernetesCluster, api_client
from memory_operator.cluster.election import Election, LeadershipLost
from memory_operator.cluster.health import AddressResolver, HttpHealthReader, host_port
from memory_operator.cluster.keys import ReconcileKey
from memory_operator.cluster.probing import HttpModelProber
from memory_operator.cluster.watching import KubernetesWatcher
from memory_operator.crd.base import ObjectKey
from memory_operator.errors import MemoryOperatorError
from memory_operator.handlers import children
from memory_operator.handlers.watches import kopf_settings, registry
from memory_operator.metrics import Metrics
from memory_operator.pacing import Backoff, TokenBucket
from memory_operator.probes import Vitals, keep_ticking, serving
from memory_operator.queue import WorkQueue
from memory_operator.reconcile.context import Context
from memory_operator.reconcile.controller import LISTS_AT_ONCE, resync, run_workers
from memory_operator.reconcile.gauges import ObjectGauges
from memory_operator.reconcile.monitor import HealthMonitor, ModelMonitor
from memory_operator.settings import OperatorSettings

logger = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS = 0.5
_LONGEST_RETRY_SECONDS = 120.0
_LOOKS_AT_WHAT_IS_REFUSED = 4
"""A new leader begins without a namespace that it may not read, but not for a permission that is a moment late."""


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


def resolver(context: Context) -> AddressResolver:
    """Return where a store's pods are, by its EndpointSlices; or the stub of a scale run."""
    stub = context.settings.health_address

    def addresses(store: ObjectKey) -> list[str]:
        if stub:
            return [stub] if context.cache.addresses(store) else []
        return [host_port(address) for address in context.cache.addresses(store)]

    return addresses


class Operator:
    """One process; `run` ends when `stop` is set or leadership is lost."""

    def __init__(self, settings: OperatorSettings, cluster: KubernetesCluster, metrics: Metrics) -> None:
        self._settings = settings
        self._cluster = cluster
        self._metrics = metrics
        self.stop = asyncio.Event()
        self.election = Election(cluster, settings, monotonic=time.monotonic, now=utc_now)
        self.vitals = Vitals(time.monotonic, metrics, resync_limit_seconds=3 * settings.resync_seconds)
        backoff: Backoff[ReconcileKey] = Backoff(_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS, random.random)
        queue = WorkQueue(time.monotonic, backoff)
        self.context = Context(settings, cluster, Cache(), queue, utc_now, metrics)
        metrics.registry.register(ObjectGauges(self.context.cache))

    def end(self) -> None:
        """Have it stop. What kopf says from now on is about requests that this very end breaks off."""
        logging.getLogger("kopf").setLevel(logging.CRITICAL)
        self.stop.set()

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until the process is to stop."""
        try:
            await asyncio.wait_for(self.stop.wait(), seconds)
        except TimeoutError:
            return

    async def _wait_for_lease(self) -> bool:
        """Return True once this process leads, False when it is to stop before that."""
        while not self.stop.is_set():
            try:
                if await self.election.try_to_lead():
                    return True
            except MemoryOperatorError as error:
                logger.warning("lease not readable", extra={"error": f"{type(error).__name__}: {error}"})
            await self._pause(self._settings.standby_seconds * (0.9 + 0.2 * random.random()))
        return False

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._settings.retry_seconds)
            timeout = self._settings.renew_deadline_seconds / 2
            try:
                await asyncio.wait_for(self.election.try_to_lead(), timeout)
            except (TimeoutError, MemoryOperatorError) as error:
                logger.warning("lease not renewed", extra={"error": type(error).__name__})
            if not self.election.is_leader:
                raise LeadershipLost("the Lease could not be renewed in time")

    async def _keep_resyncing(self) -> None:
        while True:
            await asyncio.sleep(self._settings.resync_seconds * (0.9 + 0.2 * random.random()))
            try:
                ghosts = await resync(self.context)
            except MemoryOperatorError as error:
                logger.warning("resync failed", extra={"error": type(error).__name__})
                continue
            except Exception:
                # The caches are followed by watches all the same; `livez` says so when it lasts.
                logger.exception("resync failed")
                continue
            self.vitals.resynced_at = time.monotonic()
            if ghosts:
                logger.info("resync found vanished objects", extra={"ghosts": ghosts})

    async def _watch(self) -> None:
        settings = self._settings
        ready = asyncio.Event()
        before = asyncio.all_tasks()
        watches = await kopf.spawn_tasks(
            registry=registry(self.context),
            settings=kopf_settings(settings),
            clusterwide=settings.is_cluster_wide,
            namespaces=settings.watch_namespaces,
            stop_flag=self.stop,
            ready_flag=ready,
            standalone=True,
        )
        # kopf has taken the signals, and would wait for watches to end, for seconds, before anybody else is told.
        on_signals(self.end)
        await kopf.run_tasks(watches, ignored=before)
        self.stop.set()

    async def _first_sync(self) -> None:
        """Fill the caches before anything is decided, however often that has to be tried."""
        backoff: Backoff[str] = Backoff(_FIRST_RETRY_SECONDS, 10, random.random)
        looks = 0
        while not self.stop.is_set():
            looks += 1
            try:
                await resync(self.context, LISTS_AT_ONCE)
            except MemoryOperatorError as error:
                logger.warning("first sync failed", extra={"error": f"{type(error).__name__}: {error}"})
                if not self.election.is_leader:
                    raise LeadershipLost("the Lease ended before the caches were filled") from error
                await self._pause(backoff.next("sync"))
            else:
                if not self.context.unlisted or looks >= _LOOKS_AT_WHAT_IS_REFUSED:
                    return
                await self._pause(backoff.next("sync"))

    async def _lead(self, health_session: aiohttp.ClientSession, model_session: aiohttp.ClientSession) -> None:
        context, settings = self.context, self._settings
        reader = HttpHealthReader(health_session, settings)
        health = HealthMonitor(context, reader, resolver(context), time.monotonic)
        watcher = KubernetesWatcher(self._cluster, settings.watch_silence_seconds)
        models = ModelMonitor(context, HttpModelProber(model_session), time.monotonic)
        self.vitals.is_standby = False
        self._metrics.is_leader.set(1)
        keeper = asyncio.create_task(self._keep_lease(), name="lease")
        tasks: list[asyncio.Task[Any]] = [keeper]
        writers: list[asyncio.Task[Any]] = []
        try:
            await _first_of(self._first_sync(), keeper)
            self.vitals.has_synced, self.vitals.resynced_at = True, time.monotonic()
            logger.info("leading", extra={"namespaces": ",".join(settings.watch_namespaces) or "all"})
            jobs: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
                "workers": lambda: run_workers(context),
                "resync": self._keep_resyncing,
                "health": health.run,
                "models": models.run,
                "children": lambda: children.run(context, watcher),
                "watches": self._watch,
            }
            started = {name: asyncio.create_task(job(), name=name) for name, job in jobs.items()}
            writers = [task for name, task in started.items() if name != "watches"]
            tasks += started.values()
            stopping = asyncio.create_task(self.stop.wait(), name="stop")
            tasks.append(stopping)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task
        finally:
            self._metrics.is_leader.set(0)
            self.stop.set()
            # Nobody waits for watches to end: the Lease is free as soon as nothing writes any more.
            await _end([*writers, keeper])
            await self._release()
            await _end(tasks)

    async def run(self) -> None:
        """Lead when it is this process's turn, until told to stop; then let go of the Lease.

        Raises:
            LeadershipLost: another process may lead now.
        """
        async with AsyncExitStack() as stack:
            settings = self._settings
            port = await stack.enter_async_context(serving(self.vitals, settings.bind_address, settings.port))
            logger.info("serving probes", extra={"port": port})
            health_session = await stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
            model_session = await stack.enter_async_context(HttpModelProber.session())
            ticking = asyncio.create_task(keep_ticking(self.vitals), name="ticks")
            try:
                if await self._wait_for_lease():
                    await self._lead(health_session, model_session)
            finally:
                await _end([ticking])
                await self._release()

    async def _release(self) -> None:
        try:
            await asyncio.wait_for(self.election.release(), 2)
        except (TimeoutError, MemoryOperatorError) as error:
            logger.warning("lease not released", extra={"error": type(error).__name__})


def on_signals(call: Callable[[], None]) -> None:
    """Have SIGTERM and SIGINT call something, whoever had them before; in another thread than the main one, nothing."""
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, call)


async def _first_of(work: Coroutine[Any, Any, None], guard: asyncio.Task[None]) -> None:
    """Wait for some work, unless the guard ends before, which raises what it raised."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task, guard], return_when=asyncio.FIRST_COMPLETED)
        if guard.done():
            await guard
        await task
    finally:
        await _end([task])


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def run(settings: OperatorSettings, environment: Mapping[str, str] = os.environ) -> None:
    """Run the operator against the cluster that the environment names, until SIGTERM or SIGINT."""
    metrics = Metrics()
    async with api_client(environment) as api:
        bucket = TokenBucket(settings.requests_per_second, settings.request_burst, time.monotonic())
        cluster = KubernetesCluster(
            api,
            timeout_seconds=settings.request_timeout_seconds,
            bucket=bucket,
            observer=lambda verb, code: metrics.requests.labels(verb, code).inc(),
        )
        operator = Operator(settings, cluster, metrics)
        on_signals(operator.end)
        await operator.run()
