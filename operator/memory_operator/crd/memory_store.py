"""MemoryStore: one memory service and its data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, ValidationError

from memory_operator import names
from memory_operator.crd.base import (
    SERVICE_NAME,
    DnsLabel,
    DnsName,
    Identity,
    JsonObject,
    Key,
    LabelSelector,
    ObjectKey,
    ObjectName,
    Quantity,
    identity,
    parse_spec,
)
from memory_operator.crd.quantity import value
from memory_operator.errors import InvalidSpec, Problem
from memory_service.contract.base import FileModel
from memory_service.contract.config import EngineName, Revocation, ServiceAccountRef, StorageType
from memory_service.contract.scopes import FailureMode

_DURATION: Final = re.compile(r"^([0-9]{1,6}d)?([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?$")
DEFAULT_TOKEN_BUDGET: Final = 4096


def duration(text: str) -> timedelta:
    """Return the time that `30d`, `12h30m` or `45s` names."""
    match = _DURATION.match(text)
    if match is None or not text:
        raise ValueError("expected a duration such as 30d, 12h or 45m")
    days, hours, minutes, seconds = (int(part[:-1]) if part else 0 for part in match.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


def _checked_duration(text: str) -> str:
    if duration(text) <= timedelta():
        raise ValueError("expected a duration above zero, such as 30d, 12h or 45m")
    return text


Duration = Annotated[str, AfterValidator(_checked_duration)]


def _above_zero(size: str | int) -> str | int:
    if value(size) <= 0:
        raise ValueError("expected a size above zero, such as 5Gi")
    return size


class RetentionPolicy(StrEnum):
    """What becomes of a local store's claim when the store is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class PersistentVolume(FileModel):
    """The claim that a local store asks for."""

    size: Annotated[Quantity, AfterValidator(_above_zero)] = "5Gi"
    storage_class_name: DnsName | None = None
    access_mode: str = Field(default="ReadWriteOnce", pattern=r"^(ReadWriteOnce|ReadWriteOncePod)$")


class LocalStorage(FileModel):
    """SQLite and Chroma on one volume."""

    persistent_volume: PersistentVolume = PersistentVolume()
    persistent_volume_claim_retention_policy: RetentionPolicy = RetentionPolicy.RETAIN


class SecretKeyRef(FileModel):
    """One key of a Secret in the same namespace; the operator names it and never reads it."""

    name: DnsName
    key: Key


class ConnectionSecretRef(FileModel):
    """The Secret with the Postgres URL."""

    name: DnsName
    key: Key = "uri"


class ExternalStorage(FileModel):
    """Postgres with pgvector."""

    connection_secret_ref: ConnectionSecretRef
    schema_name: str | None = Field(default=None, alias="schema", pattern=r"^[a-z_][a-z0-9_]{0,50}$")


class Storage(FileModel):
    """Where memory lives."""

    type: StorageType
    local: LocalStorage | None = None
    external: ExternalStorage | None = None


class ChatModel(FileModel):
    """The model that folds and extracts."""

    model_api: ObjectName = Field(alias="modelAPI")
    model: str = Field(min_length=1, max_length=256)


class EmbeddingModel(FileModel):
    """The model that makes vectors."""

    model_api: ObjectName = Field(alias="modelAPI")
    model: str = Field(min_length=1, max_length=256)
    dimensions: int = Field(ge=1, le=4096)


class Models(FileModel):
    """The models that a store uses."""

    summarization: ChatModel | None = None
    embedding: EmbeddingModel | None = None


class Extraction(FileModel):
    """How facts are extracted."""

    concurrency: int = Field(default=4, ge=1, le=64)
    max_retries: int = Field(default=5, ge=0, le=100)
    system_prompt: str | None = None


class ShortTerm(FileModel):
    """The window."""

    token_budget: int = Field(default=DEFAULT_TOKEN_BUDGET, ge=1)
    hard_event_cap: int = Field(default=2000, ge=1)


class MediumTerm(FileModel):
    """The digest."""

    enabled: bool | None = None
    compaction_trigger: int | None = Field(default=None, ge=2)
    compaction_target: int | None = Field(default=None, ge=1)
    digest_retention: int = Field(default=20, ge=1)
    system_prompt: str | None = None


class LongTerm(FileModel):
    """Facts and episodes."""

    enabled: bool = True
    episodes: bool = True
    default_top_k: int = Field(default=10, ge=1, le=100)
    score_floor: float | None = Field(default=None, ge=0, le=1)


class Retention(FileModel):
    """How long rows are kept; unset: until they are erased."""

    turns: Duration | None = None
    facts: Duration | None = None


class AllowedNamespaces(FileModel):
    """Namespaces besides the store's own whose agents may bind."""

    names: tuple[DnsLabel, ...] = ()
    selector: LabelSelector | None = None


class Access(FileModel):
    """Who may bind."""

    allowed_namespaces: AllowedNamespaces = AllowedNamespaces()


class ConfigMapKeyRef(FileModel):
    """One key of a ConfigMap in the same namespace."""

    name: DnsName
    key: Key = "ca.crt"


class Issuer(FileModel):
    """An issuer whose JWTs name users."""

    issuer: str
    audiences: tuple[str, ...] = Field(min_length=1)
    jwks_url: str = Field(alias="jwksURL")
    ca_config_map_ref: ConfigMapKeyRef | None = None
    claim: str = "sub"


class Users(FileModel):
    """Whose word counts for who the user is."""

    issuers: tuple[Issuer, ...] = ()


class StoreIdentity(FileModel):
    """Who may call."""

    users: Users = Users()
    admins: tuple[ServiceAccountRef, ...] = ()
    revocation: Revocation = Revocation.PREFERRED
    allow_unauthenticated: bool = False


class TlsSecretRef(FileModel):
    """A Secret of the type kubernetes.io/tls."""

    name: DnsName


class Tls(FileModel):
    """The certificate that the pods serve, and what it is checked against."""

    secret_ref: TlsSecretRef
    ca_bundle: str | None = None
    ca_config_map_ref: ConfigMapKeyRef | None = None


class Container(FileModel):
    """What may be said about the store's container."""

    image: str | None = None
    image_pull_policy: str | None = None
    resources: JsonObject = Field(default_factory=dict)
    env: tuple[JsonObject, ...] = ()


class MemoryStoreSpec(FileModel):
    """What is asked for."""

    engine: EngineName = EngineName.MEM0
    storage: Storage
    replicas: int | None = Field(default=None, ge=0, le=50)
    models: Models = Models()
    extraction: Extraction = Extraction()
    default_failure_mode: FailureMode = FailureMode.SOFT
    short_term: ShortTerm = ShortTerm()
    medium_term: MediumTerm = MediumTerm()
    long_term: LongTerm = LongTerm()
    retention: Retention = Retention()
    access: Access = Access()
    identity: StoreIdentity = StoreIdentity()
    tls: Tls | None = None
    container: Container = Container()
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[JsonObject, ...] = ()
    affinity: JsonObject = Field(default_factory=dict)
    topology_spread_constraints: tuple[JsonObject, ...] = ()
    priority_class_name: str | None = None
    image_pull_secrets: tuple[JsonObject, ...] = ()
    service_account_name: DnsName | None = None
    pod_labels: dict[str, str] = Field(default_factory=dict)
    pod_annotations: dict[str, str] = Field(default_factory=dict)
    paused: bool = False


@dataclass(frozen=True)
class MemoryStore:
    """A MemoryStore whose spec keeps all rules."""

    id: Identity
    spec: MemoryStoreSpec
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> ObjectKey:
        """Its namespace and name."""
        return self.id.key

    @property
    def is_local(self) -> bool:
        """Whether it keeps its data on a volume of its own."""
        return self.spec.storage.type is StorageType.LOCAL

    @property
    def replicas(self) -> int:
        """How many pods it asks for: unless it says so, 1 in local mode and 2 in external mode."""
        if self.spec.replicas is not None:
            return self.spec.replicas
        return 1 if self.is_local else 2

    @property
    def local(self) -> LocalStorage:
        """Its local storage, with defaults."""
        return self.spec.storage.local or LocalStorage()

    @property
    def scheme(self) -> str:
        """`https` when its pods serve TLS."""
        return "https" if self.spec.tls else "http"

    @property
    def model_apis(self) -> tuple[str, ...]:
        """The names of the ModelAPIs that it uses, each once."""
        models = self.spec.models
        return tuple(sorted({model.model_api for model in (models.summarization, models.embedding) if model}))


def _problems(name: str, spec: MemoryStoreSpec) -> list[Problem]:
    found = []

    def expect(holds: bool, path: str, message: str) -> None:
        if not holds:
            found.append(Problem(path, message))

    message = "must begin with a letter and have letters, digits and dashes only: a Service is named after it"
    expect(SERVICE_NAME.fullmatch(name) is not None, "metadata.name", message)
    storage = spec.storage
    if storage.type is StorageType.LOCAL:
        expect(storage.external is None, "spec.storage.external", "must not be set when the type is local")
        expect(spec.replicas in (None, 0, 1), "spec.replicas", "must be 0 or 1 when the storage type is local")
    else:
        expect(storage.local is None, "spec.storage.local", "must not be set when the type is external")
        expect(storage.external is not None, "spec.storage.external", "is required when the type is external")
    budget = spec.short_term.token_budget
    trigger = spec.medium_term.compaction_trigger or budget
    target = spec.medium_term.compaction_target or max(1, trigger // 2)
    expect(
        0 < target < trigger <= budget or budget == 1,
        "spec.mediumTerm",
        "0 < compactionTarget < compactionTrigger <= shortTerm.tokenBudget is expected, defaults included",
    )
    if spec.medium_term.enabled:
        expect(
            spec.models.summarization is not None,
            "spec.mediumTerm.enabled",
            "needs models.summarization",
        )
    if spec.tls:
        has_one = (spec.tls.ca_bundle is None) != (spec.tls.ca_config_map_ref is None)
        expect(has_one, "spec.tls", "exactly one of caBundle and caConfigMapRef is expected")
    for label in sorted(spec.pod_labels):
        is_free = label != names.COMPONENT_LABEL and not label.startswith(f"{names.GROUP}/")
        expect(is_free, f"spec.podLabels.{label}", "must not be set: by it the operator finds the pods")
    for number, issuer in enumerate(spec.identity.users.issuers):
        expect(
            issuer.ca_config_map_ref is None or issuer.jwks_url.startswith("https://"),
            f"spec.identity.users.issuers[{number}].caConfigMapRef",
            "needs a jwksURL that begins with https://",
        )
    return found


def parse(body: Mapping[str, Any]) -> MemoryStore:
    """Return the typed store.

    Raises:
        InvalidSpec: a rule is broken; nothing of the store may be changed before it has a new spec.
    """
    spec = parse_spec(MemoryStoreSpec, body)
    if problems := _problems(body["metadata"]["name"], spec):
        raise InvalidSpec(problems)
    return MemoryStore(identity(body), spec, body.get("status") or {})


def granting(body: Mapping[str, Any]) -> tuple[MemoryStore, bool]:
    """Return a store of which nothing is read but who may bind and how, and whether its spec says who may.

    That holds whatever rule the rest of its spec breaks: who has lost a permission must not wait until it is right.
    """
    given = body.get("spec") or {}
    spec, is_access_known = MemoryStoreSpec(storage=Storage(type=StorageType.LOCAL)), True
    try:
        spec = spec.model_copy(update={"access": Access.model_validate(given.get("access") or {})})
    except ValidationError:
        is_access_known = False
    if given.get("defaultFailureMode") in set(FailureMode):
        spec = spec.model_copy(update={"default_failure_mode": FailureMode(given["defaultFailureMode"])})
    return MemoryStore(identity(body), spec, body.get("status") or {}), is_access_known
