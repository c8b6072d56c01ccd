"""The memory service's configuration: a store's spec as the ServiceConfig that its pods read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import yaml

from memory_operator import names
from memory_operator.crd.memory_store import Duration, MemoryStore, duration
from memory_operator.crd.model_api import ModelApi
from memory_operator.desired.metadata import Manifest, canonical_json, child, store_labels
from memory_operator.settings import OperatorSettings
from memory_service.contract.config import (
    AuthMode,
    BindingsConfig,
    ChatConfig,
    EmbeddingConfig,
    ExtractionConfig,
    IdentityConfig,
    LongTermConfig,
    MediumTermConfig,
    ModelsConfig,
    RetentionConfig,
    ServerConfig,
    ServiceAccountRef,
    ServiceConfig,
    ShortTermConfig,
    StorageConfig,
    TlsConfig,
    UserIssuer,
    UsersConfig,
)

CONFIG_DIRECTORY: Final = "/etc/memplane"
CONFIG_FILE: Final = "config.yaml"
DATA_DIRECTORY: Final = "/var/lib/memplane"
BINDINGS_DIRECTORY: Final = "/run/memplane/bindings"
DSN_DIRECTORY: Final = "/run/memplane/dsn"
DSN_FILE: Final = "uri"
KEYS_DIRECTORY: Final = "/run/memplane/keys"
KEY_FILE: Final = "key"
TLS_DIRECTORY: Final = "/run/memplane/tls"
ISSUERS_DIRECTORY: Final = "/run/memplane/issuers"
LOCK_WAIT_SECONDS: Final = 300
GRACE_SECONDS: Final = 25


_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""libyaml's, where PyYAML was built with it, as its wheels are: the same text in a tenth of the time."""


def key_directory(model_api: str) -> str:
    """Return the folder in which a ModelAPI's key is mounted."""
    return f"{KEYS_DIRECTORY}/{model_api}"


def issuer_ca_file(number: int) -> str:
    """Return the name under which the CA of an issuer of users is mounted, by its place in the spec."""
    return f"{number}.crt"


def _key_file(model: ModelApi) -> str | None:
    return f"{key_directory(model.id.name)}/{KEY_FILE}" if model.spec.api_key_secret_ref else None


def _seconds(text: Duration | None) -> float | None:
    return None if text is None else duration(text).total_seconds()


def schema_name(store: MemoryStore) -> str:
    """Return the database schema of an external store."""
    external = store.spec.storage.external
    return (external.schema_name if external else None) or names.schema(store.id.uid)


def _storage(store: MemoryStore) -> StorageConfig:
    """Return where memory lives.

    The service refuses data of a store with another UID. Only a schema that is named after the UID must be this
    store's own: a claim that was kept, or a schema that the spec names, is adopted from a store that was before.
    By the store's name the service finds schemas that stores before it have left.
    """
    kind = store.spec.storage.type
    if store.is_local:
        return StorageConfig(type=kind, data_dir=DATA_DIRECTORY, lock_wait_seconds=LOCK_WAIT_SECONDS)
    external = store.spec.storage.external
    is_adopted = external is not None and external.schema_name is not None
    return StorageConfig.model_validate(
        {
            "type": kind,
            "dsnFile": f"{DSN_DIRECTORY}/{DSN_FILE}",
            "lockWaitSeconds": LOCK_WAIT_SECONDS,
            "schema": schema_name(store),
            "storeUid": "" if is_adopted else store.id.uid,
            "storeName": f"{store.id.namespace}/{store.id.name}",
        }
    )


def _models(store: MemoryStore, models: Mapping[str, ModelApi]) -> ModelsConfig:
    chat, embedding = ChatConfig(), EmbeddingConfig()
    if wanted := store.spec.models.summarization:
        api = models[wanted.model_api]
        chat = ChatConfig(
            url=api.spec.base_url,
            model=wanted.model,
            api_key_file=_key_file(api),
            headers=api.spec.headers,
            timeout_seconds=api.spec.timeout_seconds,
        )
    if vectors := store.spec.models.embedding:
        api = models[vectors.model_api]
        embedding = EmbeddingConfig(
            url=api.spec.base_url,
            model=vectors.model,
            dimensions=vectors.dimensions,
            api_key_file=_key_file(api),
            headers=api.spec.headers,
        )
    return ModelsConfig(chat=chat, embedding=embedding)


def _identity(store: MemoryStore, settings: OperatorSettings) -> IdentityConfig:
    identity = store.spec.identity
    return IdentityConfig(
        auth=AuthMode.NONE if identity.allow_unauthenticated else AuthMode.CLUSTER,
        audience=names.audience(store.id.namespace, store.id.name),
        admin_audience=names.admin_audience(store.id.namespace, store.id.name),
        operator_audience=names.OPERATOR_AUDIENCE,
        operator=ServiceAccountRef(namespace=settings.namespace, name=settings.service_account),
        admins=identity.admins,
        users=UsersConfig(
            issuers=tuple(
                UserIssuer(
                    issuer=item.issuer,
                    audiences=item.audiences,
                    jwks_url=item.jwks_url,
                    jwks_ca_file=f"{ISSUERS_DIRECTORY}/{issuer_ca_file(number)}" if item.ca_config_map_ref else None,
                    claim=item.claim,
                )
                for number, item in enumerate(identity.users.issuers)
            )
        ),
        revocation=identity.revocation,
        allow_unauthenticated=identity.allow_unauthenticated,
    )


def service_config(store: MemoryStore, models: Mapping[str, ModelApi], settings: OperatorSettings) -> ServiceConfig:
    """Return the configuration of a store's pods; `models` holds every ModelAPI that it names."""
    spec = store.spec
    return ServiceConfig(
        storage=_storage(store),
        engine=spec.engine,
        models=_models(store, models),
        extraction=ExtractionConfig(
            concurrency=spec.extraction.concurrency,
            max_retries=spec.extraction.max_retries,
            system_prompt=spec.extraction.system_prompt,
        ),
        short_term=ShortTermConfig(
            token_budget=spec.short_term.token_budget, hard_event_cap=spec.short_term.hard_event_cap
        ),
        medium_term=MediumTermConfig(
            enabled=spec.medium_term.enabled,
            compaction_trigger=spec.medium_term.compaction_trigger,
            compaction_target=spec.medium_term.compaction_target,
            digest_retention=spec.medium_term.digest_retention,
            system_prompt=spec.medium_term.system_prompt,
        ),
        long_term=LongTermConfig(
            enabled=spec.long_term.enabled,
            episodes=spec.long_term.episodes,
            default_top_k=spec.long_term.default_top_k,
            score_floor=spec.long_term.score_floor,
        ),
        retention=RetentionConfig(
            turns_seconds=_seconds(spec.retention.turns),
            facts_seconds=_seconds(spec.retention.facts),
        ),
        identity=_identity(store, settings),
        bindings=BindingsConfig(
            directory=BINDINGS_DIRECTORY,
            namespace=store.id.namespace,
            config_map_prefix=names.bindings_prefix(store.id.name),
        ),
        server=ServerConfig(
            host="0.0.0.0",
            port=names.PORT,
            metrics_port=names.METRICS_PORT,
            tls=TlsConfig(cert_file=f"{TLS_DIRECTORY}/tls.crt", key_file=f"{TLS_DIRECTORY}/tls.key")
            if spec.tls
            else None,
            grace_seconds=GRACE_SECONDS,
        ),
    )


def config_text(config: ServiceConfig) -> str:
    """Return the configuration as YAML, without what is at its default."""
    content = config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return str(yaml.dump(content, Dumper=_Dumper, sort_keys=True, default_flow_style=False, allow_unicode=True))


def remembered_models(text: str | None) -> Mapping[str, Mapping[str, Any]]:
    """Return the specs of the ModelAPIs of which a configuration was made, by name; none of what says nothing."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def config_map(store: MemoryStore, models: Mapping[str, ModelApi], text: str) -> Manifest:
    """Return the ConfigMap that the pods mount as their configuration.

    It remembers its ModelAPIs: what else changes of a store need not wait for one that is gone.
    """
    used = {
        name: models[name].spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        for name in store.model_apis
    }
    return child(
        store.id,
        "v1",
        "ConfigMap",
        names.config(store.id.name),
        store_labels(store.id.name),
        annotations={names.MODELS_ANNOTATION: canonical_json(used)} if used else None,
        data={CONFIG_FILE: text},
    )
