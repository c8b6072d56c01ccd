"""The operator's metrics, in a registry of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_DURATION_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """What the operator counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.reconciles = Counter(
            "memplane_operator_reconciles_total",
            "Reconciles by kind and result.",
            ["kind", "result"],
            registry=registry,
        )
        self.reconcile_seconds = Histogram(
            "memplane_operator_reconcile_seconds",
            "Duration of a reconcile.",
            ["kind"],
            buckets=_DURATION_BUCKETS,
            registry=registry,
        )
        self.queue_depth = Gauge("memplane_operator_queue_depth", "Keys that are ready.", registry=registry)
        self.queue_seconds = Gauge(
            "memplane_operator_queue_oldest_seconds", "Age of the key that is next.", registry=registry
        )
        self.retries = Counter("memplane_operator_retries_total", "Reconciles put off.", ["kind"], registry=registry)
        self.requests = Counter(
            "memplane_operator_api_requests_total", "Requests to the API server.", ["verb", "code"], registry=registry
        )
        self.writes = Counter("memplane_operator_writes_total", "Objects written.", ["kind", "verb"], registry=registry)
        self.drift = Counter(
            "memplane_operator_drift_corrections_total",
            "Objects put back after somebody else changed them.",
            ["kind"],
            registry=registry,
        )
        self.ghosts = Counter(
            "memplane_operator_ghosts_total", "Vanished objects found by a resync.", ["kind"], registry=registry
        )
        self.events = Counter("memplane_operator_watch_events_total", "Watch events.", ["kind"], registry=registry)
        self.watch_failures = Counter(
            "memplane_operator_watch_failures_total",
            "Watches that broke off or were silent for too long, and were opened anew.",
            ["kind", "reason"],
            registry=registry,
        )
        self.lists_refused = Counter(
            "memplane_operator_lists_refused_total",
            "Lists of one served namespace that the API server refused; the others are served on.",
            ["kind"],
            registry=registry,
        )
        self.kinds_missing = Gauge(
            "memplane_operator_kinds_missing",
            "1 for a kind that the settings ask for and that the API server does not serve; it is looked for again.",
            ["kind"],
            registry=registry,
        )
        self.lost_changes = Counter(
            "memplane_operator_lost_changes_total",
            "Objects of a list or a watch that could not be taken; the next list brings them again.",
            ["kind"],
            registry=registry,
        )
        self.look_failures = Counter(
            "memplane_operator_look_failures_total",
            "Looks at the pods of a store, or at a ModelAPI, that failed for a reason nobody has thought of.",
            ["kind"],
            registry=registry,
        )
        self.lost_events = Counter(
            "memplane_operator_lost_events_total", "Kubernetes Events not posted.", ["reason"], registry=registry
        )
        self.health_reads = Counter(
            "memplane_operator_health_reads_total", "Health reports asked for.", ["result"], registry=registry
        )
        self.rollouts_waiting = Gauge(
            "memplane_operator_rollouts_waiting", "Stores that wait to be rolled out.", registry=registry
        )
        self.is_leader = Gauge("memplane_operator_leader", "1 while this process leads.", registry=registry)
        self.loop_lag_seconds = Gauge(
            "memplane_operator_loop_lag_seconds", "How late the event loop ran last.", registry=registry
        )
        self.resync_timestamp = Gauge(
            "memplane_operator_resync_timestamp_seconds", "When the last resync ended.", registry=registry
        )

    def text(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self.registry)
