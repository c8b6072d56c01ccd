"""A cluster in memory with the operator's caches, queue and clocks; a test moves time and says what pods report."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.cluster.cache import Cache
from memory_operator.cluster.keys import ReconcileKey
from memory_operator.cluster.kinds import Kind
from memory_operator.crd import conditions
from memory_operator.crd.base import ObjectKey
from memory_operator.handlers.watches import take
from memory_operator.pacing import Backoff
from memory_operator.queue import WorkQueue
from memory_operator.reconcile.context import Context
from memory_operator.reconcile.controller import resync, work_once
from memory_operator.settings import OperatorSettings
from memory_operator.status.snapshot import HealthState, ProbeResult
from memory_service.contract.health import Counters, HealthReport, Part, PartHealth, Reason
from tests.fakes.kube_cluster import FakeCluster

Json = dict[str, Any]
START = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
SETTINGS = OperatorSettings(token_review_role="memplane-token-review", pod_name="me")
_ROUNDS = 500


class Killed(BaseException):
    """The process ends here: nothing may catch it."""


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.set_back = timedelta()
        """How far the wall clock was set back; the monotonic one never is."""

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds) - self.set_back


def report(revision: str = "", *, ready: bool = True, failing: dict[Part, Reason] | None = None) -> HealthReport:
    """What a replica says of itself."""
    bad = failing or {}
    parts = {
        part: PartHealth(ok=part not in bad, reason=bad.get(part, Reason.OK), message=f"{part} says so", since=START)
        for part in Part
    }
    return HealthReport(
        version="1.0",
        replica="pod-0",
        ready=ready,
        parts=parts,
        counters=Counters(facts=7),
        bindings_revision=revision,
        revocation_available=True,
        embedding_model="minilm",
        embedding_dimensions=384,
    )


class World:
    """One operator process and its cluster. `restart` gives a new process that knows nothing."""

    def __init__(self, settings: OperatorSettings = SETTINGS, cluster: FakeCluster | None = None) -> None:
        self.settings = settings
        self.clock = Clock()
        self.cluster = cluster or FakeCluster(self.clock.now)
        self.cluster.now = self.clock.now
        self.filter: Callable[[Kind, str, Json], bool] = lambda kind, event, body: True
        self.cluster.watchers.append(self._seen)
        self.start()

    def start(self) -> None:
        """Begin with empty caches."""
        backoff: Backoff[ReconcileKey] = Backoff(0.5, 120, lambda: 0.5)
        queue = WorkQueue(self.clock.monotonic, backoff)
        self.events: list[tuple[Kind, str, Json]] = []
        self.context = Context(self.settings, self.cluster, Cache(), queue, self.clock.now)
        self.context.watch_model = self._probe
        self.answers: dict[str, ProbeResult] = {}

    def _seen(self, kind: Kind, event: str, body: Json) -> None:
        watched = kinds.watched(self.settings)
        labels = body["metadata"].get("labels") or {}
        selector = watched.get(kind)
        if selector is None:
            return
        key, _, value = selector.partition("=")
        is_selected = not selector or (key in labels and (not value or labels[key] == value))
        known = self.context.cache.child(
            kind, ObjectKey(body["metadata"].get("namespace", ""), body["metadata"]["name"])
        )
        if not is_selected and known is not None:
            event, is_selected = "DELETED", True
        if is_selected and self.filter(kind, event, body):
            self.events.append((kind, event, copy.deepcopy(body)))

    def _probe(self, model: ObjectKey) -> None:
        body = self.context.cache.body(kinds.MODEL_API, model)
        answer = self.answers.get(model.name)
        if body is not None and answer is not None:
            self.context.probes[model] = (body["metadata"]["generation"], answer)
            self.context.queue.add(ReconcileKey(names.MODEL_API, model))

    async def restart(self) -> None:
        """Start a new process and fill its caches from lists."""
        self.start()
        await resync(self.context)

    async def settle(self, seconds: float = 0) -> None:
        """Deliver all events and reconcile until nothing is left, then move time on and do so again."""
        await self._drain()
        end = self.clock.seconds + seconds
        while self.clock.seconds < end:
            due = self.context.queue.next_due()
            step = end - self.clock.seconds if due is None else min(due, end - self.clock.seconds)
            self.clock.seconds += max(step, 0.001)
            await self._drain()

    async def _drain(self) -> None:
        for _ in range(_ROUNDS):
            while self.events:
                take(self.context, *self.events.pop(0))
            key = self.context.queue.take()
            if key is None:
                return
            await work_once(self.context, key)
        raise AssertionError("the operator does not come to rest")

    # --- what people and the cluster do ------------------------------------------------------------------------------

    def put(self, kind: Kind, name: str, spec: Json, namespace: str = "a") -> ObjectKey:
        """Apply one of our objects as a person does."""
        manifest = {
            "apiVersion": names.API_VERSION,
            "kind": kind.name,
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
        key = ObjectKey(namespace, name)
        if (kind.name, key) in self.cluster.objects:
            self.cluster.edit(kind, key, lambda live: live.update(spec=copy.deepcopy(spec)))
        else:
            self.cluster.make(kind, manifest)
        return key

    def store(self, name: str = "notes", namespace: str = "a", **spec: Any) -> ObjectKey:
        """Apply a MemoryStore."""
        return self.put(kinds.MEMORY_STORE, name, {"storage": {"type": "local"}, **spec}, namespace)

    def agent(self, name: str = "helper", namespace: str = "a", **spec: Any) -> ObjectKey:
        """Apply an AgentMemory of the store `notes`."""
        return self.put(kinds.AGENT_MEMORY, name, {"memoryStore": "notes", **spec}, namespace)

    def pods(self, name: str, ready: int, namespace: str = "a") -> None:
        """Have the Deployment controller say how many pods are ready."""
        key = ObjectKey(namespace, name)

        def change(live: Json) -> None:
            replicas = live["spec"]["replicas"]
            live["status"] = {
                "observedGeneration": live["metadata"]["generation"],
                "replicas": replicas,
                "updatedReplicas": replicas,
                "readyReplicas": ready,
                "availableReplicas": ready,
                "conditions": [
                    {
                        "type": "Available",
                        "status": "True" if ready == replicas else "False",
                        "reason": "MinimumReplicas",
                        "lastTransitionTime": conditions.timestamp(self.clock.now()),
                    }
                ],
            }

        self.cluster.edit(kinds.DEPLOYMENT, key, change)

    def bind_claim(self, store: str = "notes", namespace: str = "a") -> None:
        """Have the volume provisioner bind a store's claim."""

        def change(live: Json) -> None:
            size = live["spec"]["resources"]["requests"]["storage"]
            live["status"] = {"phase": "Bound", "capacity": {"storage": size}}

        self.cluster.edit(kinds.CLAIM, ObjectKey(namespace, names.volume_claim(store)), change)

    def says(self, store: ObjectKey, *reports: HealthReport, unreachable: bool = False) -> None:
        """Have a store's pods report."""
        since = self.clock.now() if unreachable else None
        counters = reports[0].counters if reports else None
        self.context.health[store] = HealthState(
            tuple(reports), ("did not answer",) if unreachable else (), since, counters
        )
        self.context.queue.add(ReconcileKey(names.MEMORY_STORE, store))
        self.context.enqueue(ReconcileKey(names.AGENT_MEMORY, agent) for agent in self.context.ledger.woken(store))

    async def ready_store(self, name: str = "notes", **spec: Any) -> ObjectKey:
        """Bring up a store until it is Ready."""
        key = self.store(name, **spec)
        await self.settle()
        await self.make_ready(key)
        return key

    async def make_ready(self, key: ObjectKey) -> None:
        """Have a store's pods run, report and use the newest bindings."""
        if ("PersistentVolumeClaim", ObjectKey(key.namespace, names.volume_claim(key.name))) in self.cluster.objects:
            self.bind_claim(key.name, key.namespace)
        deployment = self.get(kinds.DEPLOYMENT, names.memory(key.name), key.namespace)
        self.pods(names.memory(key.name), deployment["spec"]["replicas"], key.namespace)
        await self.settle()
        self.says(key, report(self.context.ledger.revision(key) or ""))
        await self.settle()

    # --- what a test looks at ----------------------------------------------------------------------------------------

    def get(self, kind: Kind, name: str, namespace: str = "a") -> Json:
        """An object that must be there."""
        return self.cluster.objects[(kind.name, ObjectKey(namespace, name))]

    def find(self, kind: Kind, name: str, namespace: str = "a") -> Json | None:
        """An object, or None."""
        return self.cluster.objects.get((kind.name, ObjectKey(namespace, name)))

    def condition(self, kind: Kind, key: ObjectKey, name: str) -> tuple[str, str] | None:
        """The status and reason of a condition."""
        found = conditions.by_type(self.get(kind, key.name, key.namespace).get("status") or {}).get(name)
        return (found["status"], found["reason"]) if found else None

    def of_store(self, key: ObjectKey, name: str) -> tuple[str, str] | None:
        """A MemoryStore's condition."""
        return self.condition(kinds.MEMORY_STORE, key, name)

    def of_agent(self, key: ObjectKey, name: str) -> tuple[str, str] | None:
        """An AgentMemory's condition."""
        return self.condition(kinds.AGENT_MEMORY, key, name)

    def writes_since(self, count: int) -> list[tuple[str, str, str]]:
        """The writes after the first `count`."""
        return self.cluster.writes[count:]
