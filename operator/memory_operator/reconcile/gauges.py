"""How many objects have which condition, as the caches have counted."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from memory_operator.cluster.cache import Cache


class ObjectGauges(Collector):
    """`memplane_operator_objects{kind,condition,status,reason}`."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the counts of now."""
        family = GaugeMetricFamily(
            "memplane_operator_objects",
            "Objects by kind and by what a condition says, and why.",
            labels=["kind", "condition", "status", "reason"],
        )
        for labels, count in self._cache.told().items():
            family.add_metric(list(labels), count)
        yield family
