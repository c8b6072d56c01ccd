"""The kinds that the operator reads or writes. A fixed table: no discovery, no cache file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from memory_operator import names
from memory_operator.settings import OperatorSettings


@dataclass(frozen=True)
class Kind:
    """One kind of object."""

    group: str
    version: str
    name: str
    plural: str
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As a manifest has it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        return self.name


MEMORY_STORE: Final = Kind(names.GROUP, names.VERSION, names.MEMORY_STORE, "memorystores")
AGENT_MEMORY: Final = Kind(names.GROUP, names.VERSION, names.AGENT_MEMORY, "agentmemories")
MODEL_API: Final = Kind(names.GROUP, names.VERSION, names.MODEL_API, "modelapis")

CONFIG_MAP: Final = Kind("", "v1", "ConfigMap", "configmaps")
SERVICE: Final = Kind("", "v1", "Service", "services")
SERVICE_ACCOUNT: Final = Kind("", "v1", "ServiceAccount", "serviceaccounts")
CLAIM: Final = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
NAMESPACE: Final = Kind("", "v1", "Namespace", "namespaces", is_namespaced=False)
POD: Final = Kind("", "v1", "Pod", "pods")
DEPLOYMENT: Final = Kind("apps", "v1", "Deployment", "deployments")
ROLE: Final = Kind("rbac.authorization.k8s.io", "v1", "Role", "roles")
ROLE_BINDING: Final = Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
CLUSTER_ROLE_BINDING: Final = Kind(
    "rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", is_namespaced=False
)
NETWORK_POLICY: Final = Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
DISRUPTION_BUDGET: Final = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
ENDPOINT_SLICE: Final = Kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
SERVICE_MONITOR: Final = Kind("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors")
LEASE: Final = Kind("coordination.k8s.io", "v1", "Lease", "leases")
EVENT: Final = Kind("events.k8s.io", "v1", "Event", "events")

OWN: Final = (MODEL_API, MEMORY_STORE, AGENT_MEMORY)
"""Each after those that it needs."""
MADE_BY_PEOPLE: Final = (*OWN, NAMESPACE)
"""kopf watches these; all others are what the operator makes."""
CHILDREN: Final = (
    SERVICE_ACCOUNT,
    ROLE,
    ROLE_BINDING,
    CONFIG_MAP,
    SERVICE,
    NETWORK_POLICY,
    CLAIM,
    DISRUPTION_BUDGET,
    DEPLOYMENT,
    SERVICE_MONITOR,
)
OPTIONAL: Final = frozenset({SERVICE_MONITOR})
"""Kinds of other people, which a cluster may not have, or not yet."""
ALL: Final = {
    kind.name: kind for kind in (*OWN, *CHILDREN, POD, ENDPOINT_SLICE, NAMESPACE, CLUSTER_ROLE_BINDING, LEASE)
}


def watched(settings: OperatorSettings) -> dict[Kind, str]:
    """Return the kinds to watch with the label selector of each; empty: all of its objects."""
    found = dict.fromkeys(OWN, "")
    for kind in CHILDREN:
        if kind == SERVICE_MONITOR and not settings.service_monitors:
            continue
        if kind == NETWORK_POLICY and not settings.network_policies:
            continue
        found[kind] = names.MANAGED_SELECTOR
    found[ENDPOINT_SLICE] = names.STORE_LABEL
    if settings.is_cluster_wide:
        found[NAMESPACE] = ""
        if settings.token_review_role:
            found[CLUSTER_ROLE_BINDING] = names.MANAGED_SELECTOR
    return found


def places(kind: Kind, settings: OperatorSettings) -> tuple[str | None, ...]:
    """Return the namespaces in which a kind is listed and watched; None: all of them at once."""
    return settings.watch_namespaces if kind.is_namespaced and settings.watch_namespaces else (None,)
