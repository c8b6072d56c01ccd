"""Every metric of the service, declared once; docs/reference/metrics.md is tested against this list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

M = TypeVar("M", Counter, Gauge, Histogram)

PREFIX = "memplane_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Metric:
    """One metric: its name without the prefix, what it says, and its labels."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


METRICS = (
    Metric("requests", "counter", "HTTP requests by route and status class", ("route", "status")),
    Metric("request_seconds", "histogram", "Time from the first byte to the answer", ("route",)),
    Metric("requests_refused", "counter", "Requests refused before a route was reached", ("reason",)),
    Metric("recalls", "counter", "Recalls by outcome", ("outcome",)),
    Metric("recall_degraded", "counter", "Parts that were missing from a recall", ("part", "reason")),
    Metric("turns_written", "counter", "Turns stored"),
    Metric("turns_indexed", "counter", "Turns given a vector"),
    Metric("turns_folded", "counter", "Turns folded into a digest"),
    Metric(
        "facts_written", "counter", "Facts stored, by where they come from and what became of them", ("via", "action")
    ),
    Metric("facts_embedded", "counter", "Facts given a vector after they were saved"),
    Metric("texts_refused", "counter", "Texts that a model refused, left out of what it was asked for", ("purpose",)),
    Metric(
        "texts_unanswered",
        "counter",
        "Texts that a model gave no usable answer to at the last attempt, left out of what it was asked for",
        ("purpose",),
    ),
    Metric("model_tokens", "counter", "Tokens that model calls used", ("direction", "purpose")),
    Metric("erasures", "counter", "Erasures carried out"),
    Metric("jobs", "counter", "Jobs by kind and how they ended", ("kind", "outcome")),
    Metric("job_seconds", "histogram", "Time a job ran", ("kind",)),
    Metric(
        "worker_failures",
        "counter",
        "Polls, claims, renewals, endings and sweeps that failed, and are tried again",
        ("doing", "reason"),
    ),
    Metric("queue_jobs", "gauge", "Jobs that are not done, by state", ("state",)),
    Metric("queue_oldest_seconds", "gauge", "Age of the oldest due job"),
    Metric("ready", "gauge", "Whether this replica is ready: 1 or 0"),
    Metric("part_ok", "gauge", "Whether a part of the health report is well: 1 or 0", ("part",)),
)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class PrometheusMeter:
    """A Meter over a registry of its own, so that several services can live in one process (tests do)."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry(auto_describe=False)
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        self._labelled: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}
        for metric in METRICS:
            name = PREFIX + metric.name
            if metric.kind == "counter":
                self._counters[metric.name] = Counter(name, metric.help, metric.labels, registry=self._registry)
            elif metric.kind == "gauge":
                self._gauges[metric.name] = Gauge(name, metric.help, metric.labels, registry=self._registry)
            else:
                self._histograms[metric.name] = Histogram(
                    name, metric.help, metric.labels, registry=self._registry, buckets=_SECONDS
                )

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        self._one(self._counters[name], name, labels).inc(amount)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Record one value of a histogram."""
        self._one(self._histograms[name], name, labels).observe(value)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._one(self._gauges[name], name, labels).set(value)

    def _one(self, metric: M, name: str, labels: dict[str, str]) -> M:
        """Return the child of these labels; the library's own look-up checks them anew each time."""
        if not labels:
            return metric
        key = name, tuple(labels.items())
        known: M | None = self._labelled.get(key)
        if known is None:
            known = self._labelled[key] = metric.labels(**labels)
        return known

    def value(self, name: str, **labels: str) -> float:
        """Return a counter's or gauge's value, 0 where it was never touched."""
        metric = next(metric for metric in METRICS if metric.name == name)
        sample = PREFIX + name + ("_total" if metric.kind == "counter" else "")
        return self._registry.get_sample_value(sample, labels) or 0.0

    def render(self) -> bytes:
        """Return the exposition text."""
        return generate_latest(self._registry)
