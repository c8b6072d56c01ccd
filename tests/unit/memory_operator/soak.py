"""An operator that lives long: rounds of objects that come, change, fail and go, and a count of what it keeps.

A round has a namespace of its own, in which everything happens that an operator keeps something of. After the round
nothing of it exists any more, and an operator that forgets what is gone keeps as much as before.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.cluster.health import HealthTarget, HealthUnavailable
from memory_operator.cluster.kinds import Kind
from memory_operator.crd.base import ObjectKey
from memory_operator.crd.conditions import Reason
from memory_operator.crd.model_api import ModelApi
from memory_operator.errors import ClusterUnavailable, Conflict, Throttled
from memory_operator.metrics import Metrics
from memory_operator.reconcile.controller import resync
from memory_operator.reconcile.monitor import HealthMonitor, ModelMonitor
from memory_operator.status.snapshot import ProbeResult
from memory_service.contract.health import HealthReport
from tests.unit.memory_operator.world import World, report

Json = dict[str, Any]
PREFIX = "round-"
_LONGEST_DELAY_SECONDS = 400
"""Longer than any delay that the operator sets itself."""
_EXTERNAL: Json = {"type": "external", "external": {"connectionSecretRef": {"name": "db"}}}
_TEMPLATE: Json = {"template": {"spec": {"containers": [{"name": "agent", "image": "agent:1"}]}}}


class Soak:
    """One operator process with its monitors, and a cluster in memory."""

    def __init__(self) -> None:
        self.world = World()
        context, clock = self.world.context, self.world.clock.monotonic
        self.is_silent = False
        self.health = HealthMonitor(context, self, context.cache.addresses, clock)
        self.models = ModelMonitor(context, self, clock)

    # --- what the operator asks --------------------------------------------------------------------------------------

    async def touch(self, address: str) -> None:
        if self.is_silent:
            raise HealthUnavailable("did not answer in time")

    async def read(self, target: HealthTarget, address: str) -> HealthReport:
        await self.touch(address)
        return report(self.world.context.ledger.revision(target.store) or "")

    async def probe(self, model: ModelApi) -> ProbeResult:
        return ProbeResult(Reason.REACHABLE, "Answers HTTP 2xx.")

    # --- what happens ------------------------------------------------------------------------------------------------

    @property
    def events(self) -> int:
        """How many watch events the operator has taken."""
        return sum(
            int(sample.value)
            for family in self.world.context.metrics.events.collect()
            for sample in family.samples
            if sample.name.endswith("_total")
        )

    async def live(self, seconds: float) -> None:
        """Let the operator and its monitors work for a time."""
        world = self.world
        end = world.clock.seconds + seconds
        await world.settle()
        while world.clock.seconds < end:
            await self.health.advance()
            await self.models.advance()
            dues = (self.health.next_due, self.models.next_due, world.context.queue.next_due())
            step = max(0.25, min((due for due in dues if due is not None), default=seconds))
            await world.settle(min(step, end - world.clock.seconds))

    async def round(self, number: int) -> None:
        """Have everything happen in a new namespace, and nothing left of it."""
        namespace = f"{PREFIX}{number}"
        self._make(namespace)
        await self.live(5)
        self._provision(namespace)
        await self.live(20)
        await self._change(namespace)
        await self._fail(namespace)
        await resync(self.world.context)
        await self.live(5)
        await self._end(namespace)

    def _make(self, namespace: str) -> None:
        world = self.world
        world.cluster.make(kinds.NAMESPACE, {"metadata": {"name": namespace, "labels": {"team": "a"}}})
        for name in ("ca-one", "ca-two"):
            meta = {"name": name, "namespace": namespace}
            world.cluster.make(kinds.CONFIG_MAP, {"metadata": meta, "data": {"ca.crt": name}})
        world.put(kinds.MODEL_API, "chat", {"baseURL": "http://models/v1"}, namespace)
        models = {"summarization": {"modelAPI": "chat", "model": "m"}}
        world.store("notes", namespace)
        world.store("pg", namespace, storage=_EXTERNAL, models=models)
        world.store("sealed", namespace, storage=_EXTERNAL, tls=_sealed("ca-one"))
        world.agent("run", namespace, agent=_TEMPLATE)
        world.agent("plain", namespace, memoryStore="pg")
        world.agent("named", namespace, memoryStore="pg", agent={"serviceAccountName": "one"})
        world.agent("rival", namespace, agent={"serviceAccountName": "one"})
        world.agent("default", namespace)
        world.agent("waits", namespace, memoryStore="nowhere", agent=_TEMPLATE)
        world.agent("sealed-agent", namespace, memoryStore="sealed")

    def _provision(self, namespace: str) -> None:
        world = self.world
        world.bind_claim("notes", namespace)
        for name in ("notes", "pg", "sealed"):
            replicas = world.get(kinds.DEPLOYMENT, names.memory(name), namespace)["spec"]["replicas"]
            world.pods(names.memory(name), replicas, namespace)
            meta = {"name": f"{name}-1", "namespace": namespace, "labels": {names.STORE_LABEL: name}}
            world.cluster.make(kinds.ENDPOINT_SLICE, {"metadata": meta, "endpoints": [{"addresses": ["10.0.0.1"]}]})

    async def _change(self, namespace: str) -> None:
        world = self.world
        world.store("notes", namespace, shortTerm={"tokenBudget": 2048})
        world.store("sealed", namespace, storage=_EXTERNAL, tls=_sealed("ca-two"))
        world.store("pg", namespace, storage=_EXTERNAL)
        world.agent("named", namespace, memoryStore="notes", agent={"serviceAccountName": "two"})
        slice_key = ObjectKey(namespace, "pg-1")
        world.cluster.edit(
            kinds.ENDPOINT_SLICE, slice_key, lambda live: live.update(endpoints=[{"addresses": ["10.0.0.2"]}])
        )
        await self.live(15)
        world.cluster.remove(kinds.SERVICE, namespace, names.memory("notes"))
        await self.live(5)

    async def _fail(self, namespace: str) -> None:
        world, chance = self.world, random.Random(7)

        def refuse(number: int) -> None:
            if chance.random() < 0.5:
                raise chance.choice([ClusterUnavailable("500"), Throttled("429", 1.0), Conflict("409")])

        self.is_silent = True
        world.pods(names.memory("notes"), 0, namespace)
        await self.live(30)
        world.cluster.before_write = refuse
        world.store("notes", namespace, shortTerm={"tokenBudget": 1024})
        await self.live(60)
        world.cluster.before_write = lambda number: None
        self.is_silent = False
        world.pods(names.memory("notes"), 1, namespace)
        await self.live(130)

    async def _end(self, namespace: str) -> None:
        """Delete all, a part of it while no watch sees it, and let every delay pass."""
        world = self.world
        self.is_silent = True
        world.agent("last", namespace, memoryStore="sealed")
        await self.live(3)
        unseen = {
            (kinds.MEMORY_STORE.name, "pg"),
            (kinds.AGENT_MEMORY.name, "plain"),
            (kinds.NAMESPACE.name, namespace),
        }
        world.filter = lambda kind, event, body: (kind.name, body["metadata"]["name"]) not in unseen
        for kind in (kinds.AGENT_MEMORY, kinds.MODEL_API, kinds.MEMORY_STORE):
            for name in self._names(kind, namespace):
                world.cluster.remove(kind, namespace, name)
                await world.settle()
        self._clear(namespace)
        await self.live(5)
        world.filter = lambda kind, event, body: True
        await resync(world.context)
        await self.live(5)
        # What was made for a store that nobody had seen go, the cluster takes away.
        self._clear(namespace)
        await self.live(_LONGEST_DELAY_SECONDS)
        await resync(world.context)
        await self.live(5)
        self.is_silent = False
        world.cluster.writes.clear()

    def _clear(self, namespace: str) -> None:
        world = self.world
        world.cluster.collect_garbage()
        for kind_name, key in list(world.cluster.objects):
            if key.namespace == namespace:
                kind = kinds.EVENT if kind_name == kinds.EVENT.name else kinds.ALL[kind_name]
                world.cluster.remove(kind, namespace, key.name)
        world.cluster.remove(kinds.NAMESPACE, "", namespace)

    def _names(self, kind: Kind, namespace: str) -> list[str]:
        found = (key for name, key in self.world.cluster.objects if name == kind.name)
        return sorted(key.name for key in found if key.namespace == namespace)

    # --- what is kept ------------------------------------------------------------------------------------------------

    def kept(self) -> dict[str, int]:
        """How many entries there are in each container that the operator keeps, by where it is; empty ones aside."""
        counts: Counter[str] = Counter()
        for path, container in self._containers():
            counts[path] += len(container)
        metrics = self.world.context.metrics
        counts["metrics"] = sum(len(family.samples) for family in metrics.registry.collect())
        return {path: count for path, count in sorted(counts.items()) if count}

    def traces(self) -> list[str]:
        """Where anything of a round is kept."""
        found = set()
        for path, container in self._containers():
            for entry in container:
                if PREFIX in repr(entry):
                    found.add(path)
        metrics = self.world.context.metrics
        if PREFIX in metrics.text().decode():
            found.add("metrics")
        return sorted(found)

    def _containers(self) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        roots = {"context": self.world.context, "health": self.health, "models": self.models}
        for name, root in roots.items():
            yield from _containers(root, name, seen)


def _sealed(ca: str) -> Json:
    return {"secretRef": {"name": "tls"}, "caConfigMapRef": {"name": ca}}


def _containers(thing: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield every container below a thing of the operator's; what it was given (a cluster, a clock) is not its own."""
    if id(thing) in seen or isinstance(thing, str | bytes | Metrics):
        return
    seen.add(id(thing))
    if isinstance(thing, Mapping | set | frozenset | deque | list | tuple):
        yield path, thing
        for inner in thing.values() if isinstance(thing, Mapping) else thing:
            yield from _containers(inner, f"{path}[]", seen)
    elif type(thing).__module__.startswith("memory_operator."):
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        inside = {**getattr(thing, "__dict__", {}), **{name: getattr(thing, name) for name in slots}}
        for name, inner in inside.items():
            yield from _containers(inner, f"{path}.{name}", seen)
