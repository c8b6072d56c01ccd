"""Every name that the operator puts into a cluster, spelled once."""

from __future__ import annotations

import hashlib
from typing import Final

GROUP: Final = "memplane.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

MEMORY_STORE: Final = "MemoryStore"
AGENT_MEMORY: Final = "AgentMemory"
MODEL_API: Final = "ModelAPI"

FIELD_MANAGER: Final = "memplane-operator"
STATUS_FIELD_MANAGER: Final = "memplane-operator-status"
EVENT_COMPONENT: Final = "memplane-operator"

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "memplane"
NAME_LABEL: Final = "app.kubernetes.io/name"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
STORE_LABEL: Final = f"{GROUP}/store"
AGENT_LABEL: Final = f"{GROUP}/agent"

CONFIG_CHECKSUM_ANNOTATION: Final = f"{GROUP}/config-checksum"
TEMPLATE_ANNOTATION: Final = f"{GROUP}/template"
"""On a store's Deployment: a digest of the pod template that we asked for."""
GENERATION_ANNOTATION: Final = f"{GROUP}/store-generation"
"""On a store's Deployment: the generation of the store that it was applied for."""
ENDPOINT_ANNOTATION: Final = f"{GROUP}/endpoint"
MODELS_ANNOTATION: Final = f"{GROUP}/models"
"""On a store's configuration: the specs of the ModelAPIs that it was made of, by name."""
AUDIENCE_ANNOTATION: Final = f"{GROUP}/audience"
"""On an agent's ConfigMap: the audience of the store that it names."""
EARLIER_ACCOUNTS_ANNOTATION: Final = f"{GROUP}/earlier-accounts"
"""On a Deployment: the ServiceAccounts that pods of earlier templates may still have, separated by commas."""
EARLIER_AUDIENCES_ANNOTATION: Final = f"{GROUP}/earlier-audiences"
"""On an agent's Deployment: those of other stores that pods of earlier templates may still have, by commas too."""
MANAGED_SELECTOR: Final = f"{MANAGED_BY_LABEL}={MANAGED_BY}"
NAMESPACE_NAME_LABEL: Final = "kubernetes.io/metadata.name"

PORT: Final = 8800
METRICS_PORT: Final = 8801
"""Serves the metrics of a store and nothing else, so that who scrapes reaches no memory and agents reach no metrics."""
OPERATOR_AUDIENCE: Final = "memplane:operator"
MAX_NAME_LENGTH: Final = 52
"""Of our own objects, so that the names of their children fit into 63 characters."""


def memory(store: str) -> str:
    """Return the name of a store's Deployment, Service, ServiceAccount, Role and disruption budget."""
    return f"{store}-memory"


def config(store: str) -> str:
    """Return the name of the ConfigMap with a store's service configuration."""
    return f"{store}-memory-config"


def volume_claim(store: str) -> str:
    """Return the name of the claim that holds a local store's data."""
    return f"{store}-memory-data"


def bindings_prefix(store: str) -> str:
    """Return what the names of a store's bindings ConfigMaps start with; `-<n>` follows."""
    return f"{store}-bindings"


def bindings(store: str, number: int) -> str:
    """Return the name of a store's bindings ConfigMap of that number."""
    return f"{bindings_prefix(store)}-{number}"


def binding_row(namespace: str, name: str) -> str:
    """Return the ConfigMap key of an AgentMemory's row; a namespace has no dot, so that it names one object."""
    return f"{namespace}.{name}.json"


def earlier_row(namespace: str, name: str, account: str) -> str:
    """Return the ConfigMap key of the row for an earlier ServiceAccount of an AgentMemory; no name has two dots."""
    return f"{namespace}.{name}..{hashlib.sha256(account.encode()).hexdigest()[:16]}.json"


def agent_binding(name: str) -> str:
    """Return the name of the ConfigMap that an agent's pod mounts."""
    return f"{name}-memory"


def agent_identity(namespace: str, name: str) -> str:
    """Return the identity of a bound agent."""
    return f"kaos://agent/{namespace}/{name}"


def audience(namespace: str, store: str) -> str:
    """Return the audience that an agent's token must have."""
    return f"memplane:{namespace}/{store}"


def admin_audience(namespace: str, store: str) -> str:
    """Return the audience that an admin's token must have."""
    return f"memplane-admin:{namespace}/{store}"


def service_host(namespace: str, store: str, cluster_domain: str) -> str:
    """Return the stable DNS name of a store; certificates are checked against it."""
    return f"{memory(store)}.{namespace}.svc.{cluster_domain}"


def schema(uid: str) -> str:
    """Return the database schema of a store that names none."""
    return f"memplane_{uid.replace('-', '')}"
