"""What a provider knows about its endpoint, for the health report."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from memory_service.contract.health import Reason
from memory_service.ports.models import Clock


@dataclass(frozen=True)
class ProviderState:
    """How the last call went. `since` is when `ok` became what it is; `ok` is None before the first call."""

    ok: bool | None
    reason: Reason
    message: str
    since: datetime
    last_ok_at: datetime | None = None
    last_failed_at: datetime | None = None


class StateRecorder:
    """Keeps a provider's state. Messages name what failed, never what was sent or answered."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._state = ProviderState(ok=None, reason=Reason.STARTING, message="not used yet", since=clock.now())

    @property
    def state(self) -> ProviderState:
        """How the last call went."""
        return self._state

    def succeeded(self) -> None:
        """Record a call that gave what was asked for."""
        now, old = self._clock.now(), self._state
        since = old.since if old.ok else now
        self._state = ProviderState(True, Reason.OK, "", since, now, old.last_failed_at)

    def failed(self, reason: Reason, message: str) -> None:
        """Record a call that did not."""
        now, old = self._clock.now(), self._state
        since = old.since if old.ok is False and old.reason is reason else now
        self._state = ProviderState(False, reason, message, since, old.last_ok_at, now)

    def forget(self) -> None:
        """Record that what the last call told is no longer so, and that the next one will tell."""
        old = self._state
        self._state = ProviderState(
            None, Reason.STARTING, "not used yet", self._clock.now(), old.last_ok_at, old.last_failed_at
        )
