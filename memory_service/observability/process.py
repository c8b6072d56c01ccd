"""The product's clock and step hooks: the system's time, and nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from memory_service.ports.process import Step


class SystemClock:
    """The system's time, unshifted."""

    def now(self) -> datetime:
        """Return the current time in UTC."""
        return datetime.now(UTC)

    def shift(self) -> timedelta:
        """Return how far this clock is from the system's: not at all."""
        return timedelta()


class NoSteps:
    """Steps that nobody waits at."""

    def reach(self, step: Step, detail: str = "") -> None:
        """Do nothing."""
