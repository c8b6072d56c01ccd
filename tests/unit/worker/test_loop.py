"""When a worker looks for jobs, and that nothing ends it but being told to."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from memory_service.contract.config import ExtractionConfig, ServiceConfig, WorkerConfig
from memory_service.contract.sessions import JobKind
from memory_service.errors import Conflict, Misconfigured, ModelUnavailable, StorageUnavailable
from memory_service.ports.models import UnparseableAnswer
from memory_service.worker import loop
from memory_service.worker.loop import Worker
from memory_service.worker.registry import MODEL, QUICK

HOUR = 3_600.0


@dataclasses.dataclass
class Looks:
    """A storage that says whether a job is due, and has none; it counts who looked, and can be in trouble."""

    of: Counter[tuple[JobKind, ...]] = dataclasses.field(default_factory=Counter)
    trouble: Exception | None = None
    is_due: bool = False
    polls: int = 0

    async def transact(self, work: Callable[[Any], Any], *, urgent: bool = False) -> Any:
        assert not urgent
        jobs = SimpleNamespace(claim=self._claim)
        return work(SimpleNamespace(jobs=jobs, now=lambda: datetime.now(UTC)))

    async def read(self, work: Callable[[Any], Any]) -> Any:
        return work(SimpleNamespace(jobs=SimpleNamespace(is_any_due=self._is_any_due)))

    def _is_any_due(self, **_: Any) -> bool:
        self.polls += 1
        if self.trouble is not None:
            raise self.trouble
        return self.is_due

    def _claim(self, *, kinds: tuple[JobKind, ...], **_: Any) -> None:
        self.of[kinds] += 1
        if self.trouble is not None:
            raise self.trouble


@dataclasses.dataclass
class Counts:
    of: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)

    def count(self, name: str, _amount: float = 1, **labels: str) -> None:
        self.of[name, labels["doing"]] += 1


@asynccontextmanager
async def working(looks: Looks, counts: Counts, *, poll_seconds: float = HOUR) -> AsyncIterator[Worker]:
    """Run a worker whose sweeps are left out, once every one of its tasks has looked."""
    config = ServiceConfig(worker=WorkerConfig(poll_seconds=poll_seconds, sweep_seconds=HOUR))
    services = SimpleNamespace(config=config, storage=looks, meter=counts)
    worker = Worker(cast(Any, services), name="test")
    async with asyncio.timeout(30):
        running = asyncio.create_task(worker.run(grace=timedelta(seconds=1)))
        await until(lambda: looks.of[QUICK] >= 4 and looks.of[MODEL] >= 4)
        try:
            yield worker
        finally:
            worker.stop()
            await running


async def until(there: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not there():  # noqa: ASYNC110 - what a test waits for has no event
            await asyncio.sleep(0)


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def no_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sweep(*_: Any, **__: Any) -> int:
        return 0

    monkeypatch.setattr(loop, "sweep", sweep)


async def test_a_burst_of_writes_makes_one_task_of_each_kind_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "GATHER_SECONDS", 0.01)
    looks = Looks()
    async with working(looks, Counts()) as worker:
        before = looks.of.copy()
        for _ in range(200):
            worker.wake()
        await until(lambda: looks.of[QUICK] > before[QUICK] and looks.of[MODEL] > before[MODEL])
        await settle()
        assert looks.of - before == Counter({QUICK: 1, MODEL: 1})


@pytest.mark.parametrize(("others", "of_models"), [(1, 1), (2, 3), (5, 2)])
async def test_as_many_jobs_run_at_once_as_are_configured(others: int, of_models: int) -> None:
    looks = Looks()
    config = ServiceConfig(
        worker=WorkerConfig(poll_seconds=HOUR, sweep_seconds=HOUR, concurrency=others),
        extraction=ExtractionConfig(concurrency=of_models),
    )
    services = SimpleNamespace(config=config, storage=looks, meter=Counts())
    worker = Worker(cast(Any, services), name="test")
    running = asyncio.create_task(worker.run(grace=timedelta(seconds=1)))
    await until(lambda: looks.of[QUICK] >= others and looks.of[MODEL] >= of_models)
    await settle()
    assert looks.of == Counter({QUICK: others, MODEL: of_models})
    worker.stop()
    await running


async def test_an_idle_worker_polls_with_one_look_and_claims_nothing() -> None:
    looks = Looks()
    async with working(looks, Counts(), poll_seconds=0.01):
        before = looks.of.copy()
        await until(lambda: looks.polls >= 5)
        assert looks.of == before


async def test_a_poll_that_finds_something_due_has_one_task_of_each_kind_claim() -> None:
    looks = Looks(is_due=True)
    async with working(looks, Counts(), poll_seconds=0.01):
        before, polls = looks.of.copy(), looks.polls
        await until(lambda: looks.of[QUICK] >= before[QUICK] + 5)
        await settle()
        for kinds in (QUICK, MODEL):
            assert 1 <= looks.of[kinds] - before[kinds] <= looks.polls - polls


async def test_a_poll_that_fails_is_made_again() -> None:
    looks, counts = Looks(), Counts()
    async with working(looks, counts, poll_seconds=0.01):
        looks.trouble = StorageUnavailable("away", reason="StorageUnreachable")
        await until(lambda: counts.of["worker_failures", "poll"] >= 2)
        looks.trouble, looks.is_due, before = None, True, looks.of[QUICK]
        await until(lambda: looks.of[QUICK] > before)


@pytest.mark.parametrize(
    "trouble",
    [
        StorageUnavailable("away", reason="StorageUnreachable"),
        Misconfigured("no DSN", reason="SecretMissing"),
        Conflict("another was first"),
        OverflowError("a date"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_no_trouble_ends_a_task_of_the_worker(trouble: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "GATHER_SECONDS", 0)
    looks, counts = Looks(trouble=trouble), Counts()
    async with working(looks, counts) as worker:
        looks.trouble = None
        before = looks.of.copy()
        for more in range(1, 4):
            worker.wake()
            await until(lambda more=more: looks.of[QUICK] >= before[QUICK] + more)
            await settle()
        assert looks.of[MODEL] >= before[MODEL] + 3
    assert counts.of["worker_failures", "claim"] == 8


async def test_a_sweep_that_fails_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps = 0

    async def sweep(*_: Any, **__: Any) -> int:
        nonlocal sweeps
        sweeps += 1
        raise OverflowError

    async def at_once(*_: Any) -> bool:
        await asyncio.sleep(0)
        return True

    monkeypatch.setattr(loop, "sweep", sweep)
    monkeypatch.setattr(Worker, "_goes_on_after", at_once)
    counts = Counts()
    async with working(Looks(), counts):
        await until(lambda: sweeps >= 3)
    assert counts.of["worker_failures", "sweep"] >= 3


AWAY = ModelUnavailable("no answer", reason="ModelUnavailable", retry_after=0)
FIRST, TENTH = timedelta(seconds=2), timedelta(minutes=15)


@pytest.mark.parametrize(
    ("error", "attempts", "failures", "longest_wait"),
    [
        (UnparseableAnswer("prose"), 10, 0, FIRST),
        (UnparseableAnswer("prose"), 12, 4, FIRST * 16),
        (UnparseableAnswer("prose"), 5, 5, None),
        (KeyError("unexpected"), 5, 5, None),
        (AWAY, 0, 0, FIRST),
        (AWAY, 10, 0, TENTH),
        (AWAY, 500, 5, TENTH),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, Exception) else str(given),
)
async def test_what_a_job_fails_of_itself_decides_how_long_it_waits_then_and_when_it_is_dead(
    error: Exception, attempts: int, failures: int, longest_wait: timedelta | None
) -> None:
    """By default the sixth failure of its own is a job's last."""
    now = datetime(2024, 3, 1, tzinfo=UTC)
    job = SimpleNamespace(id="j", kind=JobKind.EXTRACT, attempts=attempts, failures=failures, crashes=0)
    queue = [job, None]
    written: list[tuple[bool, datetime | None]] = []

    def fail(_job: object, *, error: str, is_own: bool, retry_at: datetime | None, now: datetime) -> bool:
        written.append((is_own, retry_at))
        return True

    async def transact(work: Callable[[Any], Any], *, urgent: bool = False) -> Any:
        jobs = SimpleNamespace(claim=lambda **_: queue.pop(0), fail=fail)
        return work(SimpleNamespace(jobs=jobs, now=lambda: now))

    async def raises(_held: object) -> None:
        raise error

    meter = SimpleNamespace(count=lambda *_, **__: None, observe=lambda *_, **__: None)
    steps = SimpleNamespace(reach=lambda *_: None)
    storage = SimpleNamespace(transact=transact)
    services = SimpleNamespace(config=ServiceConfig(), storage=storage, meter=meter, steps=steps)
    worker = Worker(cast(Any, services), name="test", operations={JobKind.EXTRACT: raises})
    assert await worker.run_due() == 1
    ((is_own, retry_at),) = written
    assert is_own is (error is not AWAY)
    if longest_wait is None:
        assert retry_at is None
    else:
        assert retry_at is not None
        assert longest_wait / 2 <= retry_at - now <= longest_wait


async def test_each_twentieth_sweep_has_upkeep_beginning_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with_upkeep: list[bool] = []

    async def sweep(_services: object, *, upkeep: bool) -> int:
        with_upkeep.append(upkeep)
        if len(with_upkeep) == 41:
            worker.stop()
        return 0

    monkeypatch.setattr(loop, "sweep", sweep)
    worker = Worker(cast(Any, SimpleNamespace(config=ServiceConfig())), name="test")
    monkeypatch.setattr(worker, "_goes_on_after", AsyncMock(return_value=True))
    await worker._sweeps()
    assert [number for number, upkeep in enumerate(with_upkeep) if upkeep] == [0, 20, 40]
