"""What every reconcile is given."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from memory_operator.cluster.cache import Cache
from memory_operator.cluster.client import Cluster
from memory_operator.cluster.health import HealthTarget
from memory_operator.cluster.keys import TOKEN_REVIEW, ReconcileKey
from memory_operator.cluster.kinds import Kind
from memory_operator.crd.base import JsonObject, ObjectKey
from memory_operator.crd.memory_store import MemoryStoreSpec
from memory_operator.desired.plan import ChildKey
from memory_operator.metrics import Metrics
from memory_operator.queue import WorkQueue
from memory_operator.reconcile.ledger import Ledger
from memory_operator.reconcile.rollouts import Rollouts
from memory_operator.reconcile.strangers import Strangers
from memory_operator.settings import OperatorSettings
from memory_operator.status.snapshot import HealthState, ProbeResult

logger = logging.getLogger(__name__)

_TOKEN_REVIEW_DELAY_SECONDS = 1.0
"""One write for a burst of new stores; until then a store's tokens are checked by signature only."""


@dataclass(frozen=True)
class Wanted:
    """What a store's objects depend on (`basis`), and their digests; the objects are many times as large."""

    basis: object
    digests: Mapping[ChildKey, str]
    held: frozenset[ChildKey]
    template: str | None
    """The digest of its pod template; None while no Deployment is wanted."""


Source: TypeAlias = tuple[ObjectKey, str]
"""A ConfigMap and a key in it."""


@dataclass
class Context:
    """Caches, writers and clocks. What is remembered here is found again by a new process."""

    settings: OperatorSettings
    cluster: Cluster
    cache: Cache
    queue: WorkQueue[ReconcileKey]
    now: Callable[[], datetime]
    metrics: Metrics = field(default_factory=Metrics)
    ledger: Ledger = field(default_factory=Ledger)
    health: dict[ObjectKey, HealthState] = field(default_factory=dict)
    probes: dict[ObjectKey, tuple[int, ProbeResult]] = field(default_factory=dict)
    """By ModelAPI: the generation that was probed, and what it answered."""
    targets: dict[ObjectKey, tuple[object, HealthTarget]] = field(default_factory=dict)
    """By MemoryStore without TLS: its UID and generation, and how its pods are asked."""
    specs: dict[ObjectKey, tuple[object, MemoryStoreSpec]] = field(default_factory=dict)
    """By MemoryStore: its UID and generation, and its spec, read."""
    wanted: dict[ObjectKey, Wanted] = field(default_factory=dict)
    """By MemoryStore: what its objects were last made of, and what came of it."""
    authorities: dict[Source, tuple[float, str | None]] = field(default_factory=dict)
    """By ConfigMap and key in it: when it was read, and the CA that it held."""
    strangers: Strangers = field(default_factory=Strangers)
    rollouts: Rollouts = field(default_factory=Rollouts)
    rows: dict[ObjectKey, tuple[object, str, str]] = field(default_factory=dict)
    """By AgentMemory: what its row was made of, its key and its text."""
    pods: dict[ReconcileKey, tuple[datetime, str]] = field(default_factory=dict)
    """By owner of a workload that does not get on: when its pods were looked at, and what keeps them."""
    listed: dict[tuple[Kind, str | None], int] = field(default_factory=dict)
    """By kind and namespace (None: all): the version of its last complete list."""
    unlisted: set[tuple[Kind, str | None]] = field(default_factory=set)
    """By kind and namespace: what the API server would not list last; what is known of it stays as it was."""
    unserved: set[Kind] = field(default_factory=set)
    """Optional kinds that the API server does not know: nothing is made of them until a resync finds them."""
    followed: dict[tuple[Kind, str | None], int] = field(default_factory=dict)
    """By kind and namespace: up to which version its events have been taken."""
    refused: set[ReconcileKey] = field(default_factory=set)
    """Of what is being reconciled: that of which the API server has refused an object."""
    watch_health: Callable[[ObjectKey, float], None] = lambda store, seconds: None
    """Has a store's health read after some seconds."""
    watch_model: Callable[[ObjectKey], None] = lambda model: None
    """Has a ModelAPI probed."""

    def take(self, kind: Kind, body: JsonObject) -> set[ReconcileKey]:
        """Take an object of a list or a watch and return what it concerns; one that cannot be read ends neither."""
        try:
            return self.cache.put(kind, body)
        except Exception:
            self.metrics.lost_changes.labels(kind.name).inc()
            logger.exception("object not taken", extra={"kind": kind.name})
            return set()

    def mark_served(self, kind: Kind, *, is_served: bool) -> None:
        """Take down whether the API server knows an optional kind."""
        if is_served == (kind not in self.unserved):
            return
        self.metrics.kinds_missing.labels(kind.name).set(not is_served)
        if is_served:
            self.unserved.discard(kind)
            logger.info("kind served again", extra={"kind": kind.name})
        else:
            self.unserved.add(kind)
            logger.warning("kind not served", extra={"kind": kind.name})

    def enqueue(self, keys: Iterable[ReconcileKey], *, in_background: bool = False) -> None:
        """Have these objects looked at; in the background: after those that somebody has changed."""
        add = self.queue.add_in_background if in_background else self.queue.add
        for key in keys:
            if key == TOKEN_REVIEW:
                if self.settings.token_review_role and self.settings.is_cluster_wide:
                    self.queue.add_after(key, _TOKEN_REVIEW_DELAY_SECONDS)
            else:
                add(key)
