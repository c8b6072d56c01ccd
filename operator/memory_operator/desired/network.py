"""How a store is reached: its Service, who may connect, and who may scrape it."""

from __future__ import annotations

from memory_operator import names
from memory_operator.crd.base import JsonObject
from memory_operator.crd.memory_store import MemoryStore
from memory_operator.desired.metadata import Manifest, child, store_labels, store_selector
from memory_operator.settings import OperatorSettings
from memory_service.contract import pods


def endpoint(store: MemoryStore, settings: OperatorSettings) -> str:
    """Return the stable URL of a store; it is the same whatever the store's state."""
    host = names.service_host(store.id.namespace, store.id.name, settings.cluster_domain)
    return f"{store.scheme}://{host}:{names.PORT}"


def service(store: MemoryStore) -> Manifest:
    """Return the Service of a store."""
    return child(
        store.id,
        "v1",
        "Service",
        names.memory(store.id.name),
        store_labels(store.id.name),
        spec={
            "type": "ClusterIP",
            "selector": store_selector(store.id.name),
            "ports": [
                {"name": store.scheme, "port": names.PORT, "targetPort": "http", "protocol": "TCP"},
                {"name": "metrics", "port": names.METRICS_PORT, "targetPort": "metrics", "protocol": "TCP"},
            ],
        },
    )


def _in_namespaces(*namespaces: str) -> JsonObject:
    return {
        "matchExpressions": [{"key": names.NAMESPACE_NAME_LABEL, "operator": "In", "values": sorted(set(namespaces))}]
    }


def _admission(sources: list[JsonObject], port: int) -> JsonObject:
    return {"from": sources, "ports": [{"port": port, "protocol": "TCP"}]}


def network_policy(store: MemoryStore, settings: OperatorSettings) -> Manifest:
    """Return the policy that admits bound agents and the operator to memory, and to metrics those who scrape."""
    bound: JsonObject = {"matchExpressions": [{"key": pods.BINDING_LABEL, "operator": "Exists"}]}
    agents: list[JsonObject] = [{"podSelector": bound}]
    allowed = store.spec.access.allowed_namespaces
    if allowed.names:
        agents.append({"namespaceSelector": _in_namespaces(*allowed.names), "podSelector": bound})
    if allowed.selector is not None:
        agents.append({"namespaceSelector": allowed.selector.manifest(), "podSelector": bound})
    operator: JsonObject = {
        "namespaceSelector": _in_namespaces(settings.namespace),
        "podSelector": {"matchLabels": dict(settings.pod_labels)},
    }
    ingress = [_admission(agents, names.PORT), _admission([operator], names.PORT)]
    if settings.metrics_namespaces:
        scrapers: JsonObject = {"namespaceSelector": _in_namespaces(*settings.metrics_namespaces)}
        ingress.append(_admission([scrapers], names.METRICS_PORT))
    return child(
        store.id,
        "networking.k8s.io/v1",
        "NetworkPolicy",
        names.memory(store.id.name),
        store_labels(store.id.name),
        spec={
            "podSelector": {"matchLabels": store_selector(store.id.name)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    )


def service_monitor(store: MemoryStore, settings: OperatorSettings) -> Manifest:
    """Return the ServiceMonitor by which the Prometheus operator scrapes a store."""
    target: JsonObject = {"port": "metrics", "path": "/metrics"}
    return child(
        store.id,
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        names.memory(store.id.name),
        {**settings.service_monitor_labels, **store_labels(store.id.name)},
        spec={"selector": {"matchLabels": {names.STORE_LABEL: store.id.name}}, "endpoints": [target]},
    )
