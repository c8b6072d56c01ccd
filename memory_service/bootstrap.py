"""The one composition root: from a ServiceConfig to a running service, whatever is missing at the moment.

A Runtime opens in the background and keeps trying: a missing Secret, a database that is down or a folder that another
process still holds make it not ready, with a reason, and never end it. Only what no waiting cures is raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from memory_service import __version__
from memory_service.contract.config import AuthMode, ServiceConfig, StorageType, WorkerMode
from memory_service.contract.health import Counters, HealthReport, Part, PartHealth, Reason
from memory_service.contract.sessions import JobState
from memory_service.engines import open_engine
from memory_service.errors import Conflict, Misconfigured, ModelUnavailable, StorageUnavailable, Unavailable
from memory_service.identity.build import cluster_mark, make_authenticator
from memory_service.observability.metered import MeteredChat
from memory_service.observability.metrics import PrometheusMeter
from memory_service.observability.process import NoSteps, SystemClock
from memory_service.operations.services import Services
from memory_service.ports.models import Clock, Embedder
from memory_service.ports.process import Steps
from memory_service.ports.storage import Storage
from memory_service.providers import ProviderState, open_chat, open_counter, open_embedder
from memory_service.storage import open_storage

logger = logging.getLogger(__name__)

OPEN_AGAIN_SECONDS = 2.0
"""How soon a service that could not open its storage tries again."""
_OPENING = "the storage is being opened"
LATE_SECONDS = 300.0
"""Age of the oldest due job from which jobs are reported as late."""
COUNTERS_KEPT = timedelta(seconds=5)
"""How long counted facts and jobs are reported again without counting anew."""
LEFT_BEHIND_KEPT = timedelta(minutes=10)
"""How long schemas that an earlier store left are reported again without a look, which takes a connection."""


class Runtime:
    """One process's service. Enter it, then serve from `services()`; leaving it closes everything.

    A store that is not there is made, unless `creates` is false.
    """

    def __init__(
        self, config: ServiceConfig, *, clock: Clock | None = None, steps: Steps | None = None, creates: bool = True
    ) -> None:
        self.config = config
        self._creates = creates
        self.clock: Clock = clock or SystemClock()
        self.meter = PrometheusMeter()
        self.authenticator = make_authenticator(config, now=self.clock.now)
        self.opened = asyncio.Event()
        self._steps: Steps = steps or NoSteps()
        self._counter = open_counter()
        self._chat = open_chat(config.models.chat, self.clock)
        self._embedder = open_embedder(config.models.embedding, self._counter, self.clock)
        self._engine = (
            open_engine(config, MeteredChat(self._chat, self.meter, "extraction"), self._embedder, self._counter)
            if self._chat is not None
            else None
        )
        self._services: Services | None = None
        self._waiting = PartHealth(ok=False, reason=Reason.STARTING, message=_OPENING, since=self.clock.now())
        self._opening: asyncio.Task[None] | None = None
        self._storage_to_be: Storage | None = None
        self._wakers: list[Callable[[], None]] = []
        self._counted: tuple[datetime, Counters] | None = None
        self._known: dict[Part, PartHealth] = {}
        self._left_behind: tuple[datetime | None, tuple[str, ...]] = (None, ())
        self._look: asyncio.Task[Mapping[Part, PartHealth]] | None = None

    async def __aenter__(self) -> Self:
        """Start telling callers apart and opening the storage.

        Raises:
            Misconfigured: identity cannot work as configured.
        """
        await self.authenticator.__aenter__()
        self._opening = asyncio.create_task(self._open_until_open(), name="open-storage")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close everything in the order in which it is used."""
        for task in (self._look, self._opening):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._services is not None:
            await self._services.storage.close()
        await self._embedder.close()
        if self._engine is not None:
            await self._engine.close()
        if self._chat is not None:
            await self._chat.close()
        await self.authenticator.__aexit__(kind, error, traceback)

    def services(self) -> Services:
        """Return the composed service.

        Raises:
            Unavailable: it is not open yet; the reason is the health report's.
        """
        if self._services is None:
            raise StorageUnavailable(self._waiting.message, reason=self._waiting.reason.value, retry_after=2)
        return self._services

    def on_wake(self, wake: Callable[[], None]) -> None:
        """Have a worker told of enqueued jobs."""
        self._wakers.append(wake)

    async def wait_open(self) -> None:
        """Return once the storage is open.

        Raises:
            Misconfigured: a person must change something first.
        """
        opened = asyncio.create_task(self.opened.wait())
        if self._opening is None:
            raise RuntimeError("enter the runtime first")
        await asyncio.wait({opened, self._opening}, return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        if self._opening.done():
            self._opening.result()

    async def ready(self) -> tuple[bool, Mapping[Part, PartHealth]]:
        """Return whether requests can be served, and every part. Models never make a service unready."""
        parts = await self.parts()
        needed = (Part.STORAGE, Part.SCHEMA, Part.SECRETS)
        return all(parts[part].ok for part in needed) and self.authenticator.state().ready, parts

    async def parts(self) -> Mapping[Part, PartHealth]:
        """Return the health of every part; `since` is when a part took its present reason.

        Callers share the look that is under way: probes are anonymous, and however many there are, the store is read
        for one at a time. Nor does anybody wait for longer than one look, which takes seconds where a database is gone.
        """
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._look_at_all(), name="health")
        return await asyncio.shield(self._look)

    async def _look_at_all(self) -> Mapping[Part, PartHealth]:
        return {part: self._steady(part, health) for part, health in (await self._looked_at()).items()}

    def _steady(self, part: Part, health: PartHealth) -> PartHealth:
        known = self._known.get(part)
        if known is not None and (known.ok, known.reason) == (health.ok, health.reason) and known.since < health.since:
            health = health.model_copy(update={"since": known.since})
        self._known[part] = health
        return health

    async def _looked_at(self) -> Mapping[Part, PartHealth]:
        await self.authenticator.refresh()
        now = self.clock.now()
        identity = self.authenticator.state()
        well = PartHealth(ok=True, reason=Reason.OK, since=now)
        parts: dict[Part, PartHealth] = {
            Part.MODELS: self._provider(self._chat.state if self._chat is not None else None, now),
            Part.EMBEDDING: self._provider(self._embedder.state, now),
            Part.BINDINGS: PartHealth(
                ok=identity.ok, reason=identity.reason, message=identity.message, since=identity.since
            ),
            Part.SECRETS: well,
            Part.JOBS: well,
        }
        if self._services is None:
            await self._look_at_the_lock()
            secret = self._waiting.reason is Reason.SECRET_MISSING
            parts[Part.SECRETS] = self._waiting if secret else well
            parts[Part.STORAGE] = self._waiting
            parts[Part.SCHEMA] = self._waiting
            parts[Part.JOBS] = self._waiting
            return parts
        parts.update({Part(name): health for name, health in (await self._services.storage.health()).items()})
        if parts[Part.STORAGE].ok:
            parts[Part.JOBS] = self._jobs(await self.counters(), now)
        return parts

    async def _look_at_the_lock(self) -> None:
        """A storage that is being opened says itself whether another process holds it."""
        if self._storage_to_be is None:
            return
        storage = (await self._storage_to_be.health())[Part.STORAGE]
        if storage.reason is Reason.WAITING_FOR_LOCK:
            self._wait_for(storage.reason, storage.message)
        elif self._waiting.reason is Reason.WAITING_FOR_LOCK:
            self._wait_for(Reason.STARTING, _OPENING)

    async def counters(self) -> Counters:
        """Return facts and jobs, counted at most every few seconds; zeros while the storage is away."""
        now = self.clock.now()
        if self._counted is not None and timedelta() <= now - self._counted[0] < COUNTERS_KEPT:
            return self._counted[1]
        try:
            services = self.services()
            states, oldest = await services.storage.read(lambda tx: tx.jobs.counts(tx.now()))
            facts = await services.storage.read(lambda tx: tx.facts.count_active())
        except Unavailable:
            return Counters()
        for state, count in states.items():
            self.meter.gauge("queue_jobs", count, state=state.value)
        self.meter.gauge("queue_oldest_seconds", oldest)
        counters = Counters(
            facts=facts,
            pending=states[JobState.QUEUED] + states[JobState.RUNNING],
            oldest_seconds=oldest,
            dead=states[JobState.DEAD],
        )
        self._counted = (now, counters)
        return counters

    async def report(self) -> HealthReport:
        """Return what the operator is told."""
        ready, parts = await self.ready()
        for part, health in parts.items():
            self.meter.gauge("part_ok", float(health.ok), part=part.value)
        self.meter.gauge("ready", float(ready))
        identity = self.authenticator.state()
        left_behind = await self._schemas_left_behind(asks=parts[Part.STORAGE].ok)
        external = self.config.storage.type is StorageType.EXTERNAL
        return HealthReport(
            version=__version__,
            replica=socket.gethostname(),
            ready=ready,
            parts=dict(parts),
            counters=await self.counters(),
            bindings_revision=identity.bindings_revision,
            revocation_available=identity.revocation_available,
            schema_name=self.config.storage.schema_name if external else "",
            schemas_left_behind=left_behind,
            embedding_model=self._embedder.model,
            embedding_dimensions=self._embedder.dimension,
        )

    async def _schemas_left_behind(self, *, asks: bool) -> tuple[str, ...]:
        """Return the schemas of earlier stores of this name: asked for seldom, and never of a database that is away."""
        now = self.clock.now()
        at, known = self._left_behind
        if asks and self._services is not None and not (at is not None and timedelta() <= now - at < LEFT_BEHIND_KEPT):
            with contextlib.suppress(StorageUnavailable):
                known = tuple(await self._services.storage.schemas_left_behind())
                self._left_behind = now, known
        return known

    async def _open_until_open(self) -> None:
        while self._services is None:
            try:
                self._services = await self._compose()
            except StorageUnavailable as error:
                self._wait_for(Reason(error.reason), error.detail)
            except Conflict as error:
                # Traffic of older replicas was first while the schema changed: it is safe to repeat.
                self._wait_for(Reason.MIGRATING, error.detail)
            except Misconfigured as error:
                if self.config.identity.auth is not AuthMode.CLUSTER:
                    raise
                self._wait_for(Reason(error.reason), error.detail)
            if self._services is None:
                await asyncio.sleep(OPEN_AGAIN_SECONDS)
        logger.info("storage open", extra={"storage": self.config.storage.type.value})
        self.opened.set()
        if self._engine is not None:
            await self._engine.warm()

    async def _warm_embedder(self) -> None:
        """Load the model before anybody waits for it; one that is away now may be there at the first call."""
        try:
            await self._embedder.warm()
        except ModelUnavailable as error:
            logger.warning("embedding model not ready", extra={"reason": error.reason})

    async def _compose(self) -> Services:
        storage_config = self.config.storage
        if storage_config.type is StorageType.EXTERNAL and not _has_dsn(storage_config.dsn, storage_config.dsn_file):
            raise StorageUnavailable(
                f"no DSN: {storage_config.dsn_file or 'storage.dsnFile'} does not hold one yet; "
                "create the Secret, or set MEMPLANE_DSN",
                reason=Reason.SECRET_MISSING.value,
            )
        if self._waiting.reason is Reason.SECRET_MISSING:
            self._wait_for(Reason.STARTING, _OPENING)
        storage = _storage(self.config, self._embedder, self.clock, creates=self._creates)
        self._storage_to_be = storage
        try:
            await asyncio.gather(storage.migrate(), asyncio.to_thread(self._counter.warm), self._warm_embedder())
        except BaseException:
            await storage.close()
            raise
        finally:
            self._storage_to_be = None
        return Services(
            config=self.config,
            storage=storage,
            embedder=self._embedder,
            chat=MeteredChat(self._chat, self.meter, "digest") if self._chat is not None else None,
            engine=self._engine,
            counter=self._counter,
            clock=self.clock,
            meter=self.meter,
            steps=self._steps,
            wake=self._wake,
        )

    def _wake(self) -> None:
        for wake in self._wakers:
            wake()

    def _wait_for(self, reason: Reason, message: str) -> None:
        known = self._waiting
        if (known.reason, known.message) != (reason, message):
            logger.warning("storage not open", extra={"reason": reason.value, "detail": message})
            since = known.since if known.reason is reason else self.clock.now()
            self._waiting = PartHealth(ok=False, reason=reason, message=message, since=since)

    @staticmethod
    def _provider(state: ProviderState | None, now: datetime) -> PartHealth:
        if state is None:
            return PartHealth(ok=True, reason=Reason.NOT_CONFIGURED, message="episodes only", since=now)
        if state.ok is None:
            return PartHealth(ok=True, reason=Reason.OK, message=state.message, since=state.since)
        return PartHealth(ok=state.ok, reason=state.reason, message=state.message, since=state.since)

    @staticmethod
    def _jobs(counters: Counters, now: datetime) -> PartHealth:
        if counters.dead:
            message = f"{counters.dead} jobs failed too often; the log says why; mend it, then `memplane admin replay`"
            return PartHealth(ok=False, reason=Reason.JOBS_DEAD, message=message, since=now)
        if counters.oldest_seconds > LATE_SECONDS:
            message = f"the oldest due job has waited for {counters.oldest_seconds:.0f} s"
            return PartHealth(ok=False, reason=Reason.JOBS_LATE, message=message, since=now)
        return PartHealth(ok=True, reason=Reason.OK, since=now)


def _storage(config: ServiceConfig, embedder: Embedder, clock: Clock, *, creates: bool) -> Storage:
    return open_storage(
        config.storage,
        embedding_model=embedder.model,
        dimension=embedder.dimension,
        clock=clock,
        creates=creates,
        cluster=cluster_mark(config),
    )


def _has_dsn(dsn: str | None, dsn_file: str | None) -> bool:
    if dsn:
        return True
    if dsn_file is None:
        return False
    try:
        return bool(Path(dsn_file).read_text(encoding="utf-8").strip())
    except FileNotFoundError:
        return False


async def migrate(config: ServiceConfig) -> None:
    """Bring the schema up to date and end.

    Raises:
        Misconfigured, StorageUnavailable: with what is wrong and what to do.
    """
    counter = open_counter()
    clock = SystemClock()
    embedder = open_embedder(config.models.embedding, counter, clock)
    storage = _storage(config, embedder, clock, creates=True)
    try:
        await storage.migrate()
    finally:
        await storage.close()
        await embedder.close()


def runs_worker(config: ServiceConfig) -> bool:
    """Return whether the serving process carries jobs out."""
    return config.worker.mode is WorkerMode.INLINE
