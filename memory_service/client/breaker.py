"""A circuit breaker: a dead service costs one timeout, then answers are fast until a probe finds it alive.

The state machine is pure (`admit`, `succeeded`, `failed`, `abandoned` take a state and a time and return a state);
`Breaker` holds one state and a clock. Which failures count is the caller's decision.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

FIRST_DELAY_SECONDS = 1.0
"""Chosen so that a restart of the service (about 3 s) costs an agent two or three probes."""
MAX_DELAY_SECONDS = 30.0
"""The longest that an agent stays forgetful after the service is back, unless the service asked for longer."""
MAX_RETRY_AFTER_SECONDS = 3_600.0
SPREAD = 0.2
"""Up to this share is added to a delay of our own, so that many agents do not probe in the same moment."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How the delays grow and how long a probe may stay unanswered before another one is let through."""

    first_delay: float = FIRST_DELAY_SECONDS
    max_delay: float = MAX_DELAY_SECONDS
    probe_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class State:
    """Closed while `failures` is 0. `epoch` moves on with each opening, so that late failures are told apart."""

    failures: int = 0
    open_until: float = 0.0
    probe_until: float | None = None
    epoch: int = 0

    @property
    def is_closed(self) -> bool:
        return self.failures == 0


@dataclass(frozen=True, slots=True)
class Admission:
    """Leave to make one call; give it back with the result."""

    epoch: int
    is_probe: bool


def admit(state: State, now: float, rules: Rules) -> tuple[Admission | None, State]:
    """Return leave to call, or None for a fast answer, and the next state."""
    if state.is_closed:
        return Admission(state.epoch, is_probe=False), state
    if now < state.open_until:
        return None, state
    if state.probe_until is not None and now < state.probe_until:
        return None, state
    return Admission(state.epoch, is_probe=True), replace(state, probe_until=now + rules.probe_seconds)


def succeeded(state: State) -> State:
    """Return the closed state: something answered, whichever call it was."""
    return State(epoch=state.epoch)


def failed(
    state: State, admission: Admission, now: float, rules: Rules, *, retry_after: float | None = None, spread: float = 0
) -> State:
    """Return the open state.

    A call that was let through before the breaker opened says nothing new when it fails later, so a burst of
    calls in flight grows the delay once.
    """
    if admission.epoch != state.epoch or (not state.is_closed and not admission.is_probe):
        return state
    failures = state.failures + 1
    if retry_after is not None:
        delay = min(max(0.0, retry_after), MAX_RETRY_AFTER_SECONDS)
    else:
        # The exponent is capped, so that years of outage do not overflow a float.
        delay = min(rules.max_delay, rules.first_delay * 2.0 ** min(failures - 1, 30)) * (1 + SPREAD * spread)
    return State(failures=failures, open_until=now + delay, probe_until=None, epoch=state.epoch + 1)


def abandoned(state: State, admission: Admission) -> State:
    """Return the state after a call that was cancelled: a probe's place is free again."""
    if admission.is_probe and admission.epoch == state.epoch:
        return replace(state, probe_until=None)
    return state


def seconds_until_probe(state: State, now: float) -> float:
    """Return how long to wait before a call can be let through, 0 when it can now."""
    if state.is_closed:
        return 0.0
    return max(0.0, state.open_until - now, (state.probe_until or 0.0) - now)


class Breaker:
    """One state and a clock. Not for use from several threads at once."""

    def __init__(
        self,
        *,
        rules: Rules | None = None,
        clock: Callable[[], float] = time.monotonic,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self._rules = rules or Rules()
        self._clock = clock
        self._spread = spread
        self.state = State()

    def admit(self) -> Admission | None:
        """Return leave to make one call, or None while the service is taken for dead."""
        admission, self.state = admit(self.state, self._clock(), self._rules)
        return admission

    def succeeded(self) -> None:
        """Record that the service answered."""
        self.state = succeeded(self.state)

    def failed(self, admission: Admission, retry_after: float | None = None) -> None:
        """Record that the call had no answer, or one that asks to come back after `retry_after` seconds."""
        self.state = failed(
            self.state, admission, self._clock(), self._rules, retry_after=retry_after, spread=self._spread()
        )

    def abandoned(self, admission: Admission) -> None:
        """Record that the call was given up by its caller."""
        self.state = abandoned(self.state, admission)

    def seconds_until_probe(self) -> float:
        """Return how long to wait before a call can be let through."""
        return seconds_until_probe(self.state, self._clock())
