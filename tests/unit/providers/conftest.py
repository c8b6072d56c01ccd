"""A clock that stands still, and sleeps that only remember how long they would have been."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from memory_service.providers import OfflineTokenCounter
from memory_service.providers.endpoint import Retrying
from tests.fakes.model_server import ModelServer


@dataclass
class StillClock:
    """Time that moves only when told to."""

    at: datetime = datetime(2026, 5, 1, 12, tzinfo=UTC)

    def now(self) -> datetime:
        """Return the time."""
        return self.at

    def shift(self) -> timedelta:
        """Return no difference to the system's time; nobody here asks a database."""
        return timedelta(0)

    def advance(self, seconds: float) -> None:
        """Move on."""
        self.at += timedelta(seconds=seconds)


@dataclass
class NoSleep:
    """Remembers the waits that were asked for, and takes the middle of every random range."""

    waited: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        """Do not wait."""
        self.waited.append(seconds)

    def retrying(self, max_retries: int) -> Retrying:
        """Return the policy that uses this sleep."""
        return Retrying(max_retries, sleep=self.sleep, uniform=lambda low, high: (low + high) / 2)


@pytest.fixture
def clock() -> StillClock:
    """Time at rest."""
    return StillClock()


@pytest.fixture
def no_sleep() -> NoSleep:
    """Waits that take no time."""
    return NoSleep()


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A model endpoint on loopback."""
    with ModelServer() as running:
        yield running


@pytest.fixture(scope="session")
def counter() -> OfflineTokenCounter:
    """The token counter, loaded once."""
    return OfflineTokenCounter()
