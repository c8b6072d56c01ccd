"""What the running process lends to the operations: counters, and named steps that a fault test can stop at."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Meter(Protocol):
    """Counts and measures; names and labels are listed in docs/reference/metrics.md."""

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Record one value of a distribution, in seconds or a plain number as the name says."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a level."""


class Step(StrEnum):
    """The numbered steps from a request to what follows; between any two a crash must lose and repeat nothing."""

    WRITE_RECEIVED = "1-write-received"
    WRITE_STORED = "2-write-stored"
    JOB_CLAIMED = "3-job-claimed"
    TURNS_READ = "4-turns-read"
    MODEL_ANSWERED = "5-model-answered"
    VECTORS_MADE = "6-vectors-made"
    JOB_STORED = "7-job-stored"


class Steps(Protocol):
    """Told of every step that is reached; the product's does nothing."""

    def reach(self, step: Step, detail: str = "") -> None:
        """Note a step; `detail` is a job kind, or a verb other than `write`."""
