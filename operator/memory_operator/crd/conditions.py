"""Conditions: their types, their reasons, and a merge that moves `lastTransitionTime` only when the status changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from memory_service.contract.health import Reason as HealthReason

STARTING: Final = frozenset({HealthReason.STARTING, HealthReason.MIGRATING})
"""Reasons of what is not ready yet and has nothing wrong with it."""

_MESSAGE_LIMIT = 1024
"""Characters of a message that are kept; the schema allows 32,768, and a person reads one sentence."""


class ConditionType(StrEnum):
    """What a condition is about."""

    READY = "Ready"
    PROGRESSING = "Progressing"
    STORAGE_READY = "StorageReady"
    MODELS_READY = "ModelsReady"
    EXTRACTION_HEALTHY = "ExtractionHealthy"
    EMBEDDING_CURRENT = "EmbeddingCurrent"
    REVOCATION_AVAILABLE = "RevocationAvailable"
    PAUSED = "Paused"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    ACCEPTED = "Accepted"
    STORE_RESOLVED = "StoreResolved"
    MEMORY_DEGRADED = "MemoryDegraded"


class Reason(StrEnum):
    """Why a condition is as it is, where the service's health report does not say so with its own codes."""

    OK = "Ok"
    AVAILABLE = "Available"
    RECONCILING = "Reconciling"
    INVALID_SPEC = "InvalidSpec"
    APPLY_FAILED = "ApplyFailed"
    NAME_CONFLICT = "NameConflict"
    PAUSED = "Paused"
    TERMINATING = "Terminating"
    WAITING_FOR_MODEL_API = "WaitingForModelAPI"
    MODEL_API_NOT_FOUND = "ModelAPINotFound"
    MODEL_API_NOT_READY = "ModelAPINotReady"
    SCALED_TO_ZERO = "ScaledToZero"
    ROLLOUT_IN_PROGRESS = "RolloutInProgress"
    ROLLOUT_COMPLETE = "RolloutComplete"
    ROLLOUT_WAITING = "RolloutWaiting"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    WORKLOAD_UNAVAILABLE = "WorkloadUnavailable"
    HEALTH_UNKNOWN = "HealthUnknown"
    HEALTH_UNREACHABLE = "HealthUnreachable"
    VOLUME_PENDING = "VolumePending"
    VOLUME_RESIZING = "VolumeResizing"
    VOLUME_EXPANSION_REFUSED = "VolumeExpansionRefused"
    VOLUME_LARGER_THAN_SPEC = "VolumeLargerThanSpec"
    VOLUME_BEING_DELETED = "VolumeBeingDeleted"
    VOLUME_LOST = "VolumeLost"
    VOLUME_REPLACED = "VolumeReplaced"
    NOT_REPORTED = "NotReported"
    NOT_CONFIGURED = "NotConfigured"
    LOCAL_MEMORY = "LocalMemory"
    ACCEPTED = "Accepted"
    BOUND = "Bound"
    BINDING_PENDING = "BindingPending"
    WAITING_FOR_STORE = "WaitingForStore"
    STORE_NOT_FOUND = "StoreNotFound"
    STORE_NOT_READY = "StoreNotReady"
    STORE_UNREACHABLE = "StoreUnreachable"
    STORE_NOT_ALLOWED = "StoreNotAllowed"
    SERVICE_ACCOUNT_TAKEN = "ServiceAccountTaken"
    CA_NOT_FOUND = "CANotFound"
    MEMORY_HEALTHY = "MemoryHealthy"
    REACHABLE = "Reachable"
    UNREACHABLE = "Unreachable"
    PROBE_DISABLED = "ProbeDisabled"
    ADDRESS_REFUSED = "AddressRefused"


@dataclass(frozen=True)
class Condition:
    """One condition without its time; `status` is None when nobody knows yet."""

    type: ConditionType
    status: bool | None
    reason: str
    message: str = ""


def status_text(status: bool | None) -> str:
    """Return `True`, `False` or `Unknown`."""
    return "Unknown" if status is None else str(status)


def timestamp(moment: datetime) -> str:
    """Return a time as Kubernetes writes it: UTC, whole seconds."""
    return moment.astimezone(UTC).replace(microsecond=0).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> datetime:
    """Return the aware time that a Kubernetes timestamp names."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def listed(body: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    """Return the conditions of an object that may not exist."""
    return ((body or {}).get("status") or {}).get("conditions") or ()


def by_type(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return an object's conditions by their type."""
    return {item["type"]: item for item in status.get("conditions") or ()}


def is_true(status: Mapping[str, Any], kind: ConditionType) -> bool:
    """Whether an object's status has this condition with the status `True`."""
    return by_type(status).get(kind, {}).get("status") == "True"


def kept(previous: Mapping[str, Any], kind: ConditionType) -> Condition | None:
    """Return a condition of a status as it is there, to say it once more; None when it is not."""
    old = by_type(previous).get(kind)
    if old is None:
        return None
    status = {"True": True, "False": False}.get(old["status"])
    return Condition(kind, status, old["reason"], old.get("message", ""))


def merge(
    previous: Mapping[str, Any], conditions: Iterable[Condition], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """Return the conditions to write, sorted by type; a time stays while the condition's status stays."""
    before = by_type(previous)
    merged = []
    for condition in sorted(conditions, key=lambda item: item.type):
        old = before.get(condition.type)
        status = status_text(condition.status)
        is_same = old is not None and old["status"] == status and "lastTransitionTime" in old
        merged.append(
            {
                "type": str(condition.type),
                "status": status,
                "reason": str(condition.reason),
                "message": condition.message[:_MESSAGE_LIMIT],
                "lastTransitionTime": old["lastTransitionTime"] if is_same and old else timestamp(now),
                "observedGeneration": generation,
            }
        )
    return merged
