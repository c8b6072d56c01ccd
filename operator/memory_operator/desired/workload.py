"""A store's pods: restricted by PodSecurity's measure, one at a time in local mode, spread in external mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from memory_operator import names
from memory_operator.crd.base import JsonObject
from memory_operator.crd.memory_store import MemoryStore
from memory_operator.crd.model_api import ModelApi
from memory_operator.crd.quantity import resources
from memory_operator.desired.access import account_name
from memory_operator.desired.bindings import MOUNTED_PARTS, config_map_names
from memory_operator.desired.config import (
    BINDINGS_DIRECTORY,
    CONFIG_DIRECTORY,
    CONFIG_FILE,
    DATA_DIRECTORY,
    DSN_DIRECTORY,
    DSN_FILE,
    GRACE_SECONDS,
    ISSUERS_DIRECTORY,
    KEY_FILE,
    TLS_DIRECTORY,
    issuer_ca_file,
    key_directory,
)
from memory_operator.desired.metadata import (
    Manifest,
    canonical_json,
    checksum,
    child,
    earlier,
    store_labels,
    store_selector,
)
from memory_operator.settings import OperatorSettings

CONTAINER: Final = "memory"
USER_ID: Final = 65532
_DEFAULT_RESOURCES: Final[JsonObject] = {"requests": {"cpu": "100m", "memory": "384Mi"}}
_API_TOKEN_DIRECTORY: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_SECONDS: Final = 3607
DRAIN_SECONDS: Final = 5
"""How long a pod that is told to end goes on serving: until every node has heard that it is no longer an endpoint."""
PROGRESS_DEADLINE_SECONDS: Final = 600
"""After how long without progress a roll-out counts as stuck."""


def _secret_volume(name: str, secret: str, items: Mapping[str, str]) -> JsonObject:
    """Return an optional volume: the pod starts without its Secret, and the health report names what is missing."""
    source: JsonObject = {"secretName": secret, "optional": True, "defaultMode": 0o440}
    if items:
        source["items"] = [{"key": key, "path": path} for key, path in items.items()]
    return {"name": name, "secret": source}


def _api_token() -> JsonObject:
    return {
        "name": "kube-api",
        "projected": {
            "defaultMode": 0o444,
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": _TOKEN_SECONDS}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {
                    "downwardAPI": {
                        "items": [
                            {
                                "path": "namespace",
                                "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                            }
                        ]
                    }
                },
            ],
        },
    }


def _issuer_cas(store: MemoryStore) -> list[JsonObject]:
    """Return where the CAs of the users' issuers come from; one that is missing is named by the service in its log."""
    return [
        {
            "configMap": {
                "name": issuer.ca_config_map_ref.name,
                "optional": True,
                "items": [{"key": issuer.ca_config_map_ref.key, "path": issuer_ca_file(number)}],
            }
        }
        for number, issuer in enumerate(store.spec.identity.users.issuers)
        if issuer.ca_config_map_ref is not None
    ]


def _volumes(store: MemoryStore, models: Mapping[str, ModelApi]) -> list[tuple[JsonObject, str]]:
    """Return each volume with the path at which it is mounted."""
    name = store.id.name
    bindings = [{"configMap": {"name": part, "optional": True}} for part in config_map_names(name, 0)[:MOUNTED_PARTS]]
    config: JsonObject = {"name": "config", "configMap": {"name": names.config(name), "defaultMode": 0o444}}
    volumes: list[tuple[JsonObject, str]] = [
        (config, CONFIG_DIRECTORY),
        ({"name": "bindings", "projected": {"defaultMode": 0o444, "sources": bindings}}, BINDINGS_DIRECTORY),
        (_api_token(), _API_TOKEN_DIRECTORY),
        ({"name": "tmp", "emptyDir": {}}, "/tmp"),
    ]
    if store.is_local:
        data: JsonObject = {"name": "data", "persistentVolumeClaim": {"claimName": names.volume_claim(name)}}
        volumes.append((data, DATA_DIRECTORY))
    elif external := store.spec.storage.external:
        secret = external.connection_secret_ref
        volumes.append((_secret_volume("dsn", secret.name, {secret.key: DSN_FILE}), DSN_DIRECTORY))
    for number, model_name in enumerate(store.model_apis):
        if key := models[model_name].spec.api_key_secret_ref:
            volume = _secret_volume(f"key-{number}", key.name, {key.key: KEY_FILE})
            volumes.append((volume, key_directory(model_name)))
    if cas := _issuer_cas(store):
        volumes.append(({"name": "issuers", "projected": {"defaultMode": 0o444, "sources": cas}}, ISSUERS_DIRECTORY))
    if store.spec.tls:
        volumes.append((_secret_volume("tls", store.spec.tls.secret_ref.name, {}), TLS_DIRECTORY))
    return volumes


def _probe(store: MemoryStore, path: str, period: int, failures: int, timeout: int) -> JsonObject:
    return {
        "httpGet": {"path": path, "port": "http", "scheme": store.scheme.upper()},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": timeout,
    }


def _container(store: MemoryStore, mounts: list[JsonObject], settings: OperatorSettings) -> JsonObject:
    wanted = store.spec.container
    content: JsonObject = {
        "name": CONTAINER,
        "image": wanted.image or settings.service_image,
        "imagePullPolicy": wanted.image_pull_policy or settings.image_pull_policy,
        "command": ["memplane"],
        "args": ["serve", "--config", f"{CONFIG_DIRECTORY}/{CONFIG_FILE}"],
        "ports": [
            {"name": "http", "containerPort": names.PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": names.METRICS_PORT, "protocol": "TCP"},
        ],
        "readinessProbe": _probe(store, "/readyz", period=2, failures=2, timeout=2),
        "livenessProbe": _probe(store, "/healthz", period=10, failures=6, timeout=5),
        # On a node that is short of CPU a start takes longer than a hang may: the others are judged after it.
        "startupProbe": _probe(store, "/healthz", period=1, failures=300, timeout=5),
        "resources": resources(wanted.resources or _DEFAULT_RESOURCES),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        },
        "volumeMounts": mounts,
    }
    if not store.is_local:
        # Another pod takes over, and callers are sent to it a moment later than this one is told to end.
        content["lifecycle"] = {"preStop": {"sleep": {"seconds": DRAIN_SECONDS}}}
    if wanted.env:
        content["env"] = [dict(item) for item in wanted.env]
    return content


def _spread(store: MemoryStore) -> list[JsonObject]:
    if store.spec.topology_spread_constraints:
        return [dict(item) for item in store.spec.topology_spread_constraints]
    if store.is_local:
        return []
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": store_selector(store.id.name)},
        }
        for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    ]


def _pod(store: MemoryStore, models: Mapping[str, ModelApi], settings: OperatorSettings) -> JsonObject:
    spec = store.spec
    volumes = _volumes(store, models)
    mounts = [
        {"name": volume["name"], "mountPath": path, **({} if volume["name"] in ("data", "tmp") else {"readOnly": True})}
        for volume, path in volumes
    ]
    pod: JsonObject = {
        "serviceAccountName": account_name(store),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS + 5 + (0 if store.is_local else DRAIN_SECONDS),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(store, mounts, settings)],
        "volumes": [volume for volume, _ in volumes],
    }
    optional: JsonObject = {
        "nodeSelector": dict(spec.node_selector),
        "tolerations": [dict(item) for item in spec.tolerations],
        "affinity": spec.affinity,
        "topologySpreadConstraints": _spread(store),
        "priorityClassName": spec.priority_class_name,
        "imagePullSecrets": [dict(item) for item in spec.image_pull_secrets],
    }
    pod.update({key: value for key, value in optional.items() if value})
    return pod


def deployment(
    store: MemoryStore,
    models: Mapping[str, ModelApi],
    config_text: str,
    settings: OperatorSettings,
    earlier_accounts: Sequence[str] = (),
) -> Manifest:
    """Return the Deployment of a store; a changed configuration changes its pod template."""
    name = store.id.name
    strategy: JsonObject = {"type": "Recreate"}
    if not store.is_local:
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    annotations = {**store.spec.pod_annotations, names.CONFIG_CHECKSUM_ANNOTATION: checksum(config_text)}
    template = {
        "metadata": {"labels": store_labels(name) | store.spec.pod_labels, "annotations": annotations},
        "spec": _pod(store, models, settings),
    }
    return child(
        store.id,
        "apps/v1",
        "Deployment",
        names.memory(name),
        store_labels(name),
        annotations={
            names.TEMPLATE_ANNOTATION: checksum(canonical_json(template)),
            names.GENERATION_ANNOTATION: str(store.id.generation),
            **earlier(names.EARLIER_ACCOUNTS_ANNOTATION, earlier_accounts),
        },
        spec={
            "replicas": store.replicas,
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": PROGRESS_DEADLINE_SECONDS,
            "strategy": strategy,
            "selector": {"matchLabels": store_selector(name)},
            "template": template,
        },
    )


def template_digest(manifest: Manifest) -> str:
    """Return the digest of the pod template that a store's Deployment asks for."""
    return str(manifest["metadata"]["annotations"][names.TEMPLATE_ANNOTATION])


def disruption_budget(store: MemoryStore) -> list[Manifest]:
    """Return the budget that keeps one pod up through a drain; none for a single pod, which it would pin."""
    if store.replicas < 2:
        return []
    return [
        child(
            store.id,
            "policy/v1",
            "PodDisruptionBudget",
            names.memory(store.id.name),
            store_labels(store.id.name),
            spec={
                "minAvailable": 1,
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": {"matchLabels": store_selector(store.id.name)},
            },
        )
    ]
