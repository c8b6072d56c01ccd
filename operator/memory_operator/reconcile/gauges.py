"""How many objects have which condition, counted from the caches when somebody scrapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from memory_operator.cluster import kinds
from memory_operator.cluster.cache import Cache


class ObjectGauges(Collector):
    """`memplane_operator_objects{kind,condition,status}`."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the counts of now."""
        counts: Counter[tuple[str, str, str]] = Counter()
        for kind in kinds.OWN:
            for body in self._cache.bodies(kind):
                for condition in (body.get("status") or {}).get("conditions") or ():
                    counts[(kind.name, condition["type"], condition["status"])] += 1
        family = GaugeMetricFamily(
            "memplane_operator_objects", "Objects by kind and condition.", labels=["kind", "condition", "status"]
        )
        for labels, count in sorted(counts.items()):
            family.add_metric(list(labels), count)
        yield family
