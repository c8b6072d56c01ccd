"""How fast, how often and how long: a token bucket for requests, a backoff with jitter, and what is still young."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


def is_young(age_seconds: float, limit_seconds: float) -> bool:
    """Whether something is less than so many seconds old.

    What lies in the future is not: a clock was set back, or another program's is ahead, and how old it is nobody knows.
    """
    return 0 <= age_seconds < limit_seconds


class TokenBucket:
    """Lets `burst` calls through at once and `rate` a second after that."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = now

    def reserve(self, now: float) -> float:
        """Take one token and return how many seconds to wait before using it; 0 when there was one."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = max(self._at, now)
        self._tokens -= 1
        return 0.0 if self._tokens >= 0 else -self._tokens / self._rate


class Backoff(Generic[Key]):
    """Doubles the delay of a key that keeps failing, from `first` to `longest` seconds, with jitter of ±20 %."""

    def __init__(self, first: float, longest: float, random: Callable[[], float]) -> None:
        self._first = first
        self._longest = longest
        self._random = random
        self._failures: dict[Key, int] = {}

    def next(self, key: Key) -> float:
        """Count a failure of this key and return the delay before its next try."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay: float = min(self._longest, self._first * 2.0 ** min(failures, 30))
        return delay * (0.8 + 0.4 * self._random())

    def reset(self, key: Key) -> None:
        """Forget the failures of this key."""
        self._failures.pop(key, None)

    def failures(self, key: Key) -> int:
        """Return how often this key has failed in a row."""
        return self._failures.get(key, 0)
