"""The health report that the service gives the operator; its reason codes are reused by the conditions."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from memory_service.contract.base import Time, Wire


class Part(StrEnum):
    """The parts of a service that are reported one by one."""

    STORAGE = "storage"
    MODELS = "models"
    EMBEDDING = "embedding"
    JOBS = "jobs"
    SCHEMA = "schema"
    BINDINGS = "bindings"
    SECRETS = "secrets"


class Reason(StrEnum):
    """Why a part is as it is. CamelCase, as Kubernetes conditions want it."""

    OK = "Ok"
    STARTING = "Starting"
    NOT_CONFIGURED = "NotConfigured"
    SECRET_MISSING = "SecretMissing"
    STORAGE_UNREACHABLE = "StorageUnreachable"
    STORAGE_FULL = "StorageFull"
    WAITING_FOR_LOCK = "WaitingForLock"
    MIGRATING = "Migrating"
    SCHEMA_TOO_NEW = "SchemaTooNew"
    SCHEMA_MISMATCH = "SchemaMismatch"
    EMBEDDING_MISMATCH = "EmbeddingMismatch"
    EMBEDDING_UNAVAILABLE = "EmbeddingUnavailable"
    MODEL_UNAVAILABLE = "ModelUnavailable"
    MODEL_UNAUTHORIZED = "ModelUnauthorized"
    JOBS_DEAD = "JobsDead"
    JOBS_LATE = "JobsLate"
    BINDINGS_STALE = "BindingsStale"
    REVOCATION_UNAVAILABLE = "RevocationUnavailable"


class Alive(Wire):
    """The process answers. Nothing else in its place says just this word."""

    status: Literal["alive"]


class PartHealth(Wire):
    """One part: whether it works, why, a sentence, and since when."""

    ok: bool
    reason: Reason
    message: str = ""
    since: Time


class Counters(Wire):
    """Numbers that the store's status shows. `facts` are active facts; seconds are the oldest pending job's age."""

    facts: int = 0
    pending: int = 0
    oldest_seconds: float = 0
    dead: int = 0


class HealthReport(Wire):
    """One replica's view of itself. `ready` is what /readyz answers."""

    version: str
    replica: str
    ready: bool
    parts: dict[Part, PartHealth]
    counters: Counters = Counters()
    bindings_revision: str = ""
    revocation_available: bool | None = None
    schema_name: str = ""
    schemas_left_behind: tuple[str, ...] = ()
    embedding_model: str = ""
    embedding_dimensions: int = 0
