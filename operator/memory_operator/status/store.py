"""A MemoryStore's status: ordered checks, the first that fails names the reason.

`Ready` is what callers see: a ready pod that says so in its health report. A check that nobody has made yet in this
process leaves what was known before, so that a new leader never flips a condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from memory_operator import names
from memory_operator.crd import conditions
from memory_operator.crd.base import Identity
from memory_operator.crd.conditions import Condition, ConditionType, Reason
from memory_operator.crd.memory_store import MemoryStore, RetentionPolicy
from memory_operator.crd.quantity import is_larger
from memory_operator.errors import Problem
from memory_operator.status.invalid import invalid_status
from memory_operator.status.snapshot import ClaimState, HealthState, ModelState, StoreSnapshot
from memory_service.contract.health import HealthReport, Part, PartHealth
from memory_service.contract.health import Reason as HealthReason

_BEFORE_A_START: Final = frozenset(
    {Reason.RECONCILING, Reason.WAITING_FOR_MODEL_API, Reason.SCALED_TO_ZERO, *conditions.STARTING}
)
"""Why a store whose pods have not served since somebody asked for them was not ready."""
_SERVING_KINDS: Final = frozenset({"Deployment", "Service"})
"""Kinds without which nobody is served; what else somebody has the name of is told by `Stalled` alone."""
_CLAIM: Final = "PersistentVolumeClaim"
_WAITS_FOR_RESUME: Final = "A change of the pods waits while spec.paused is true."
_TERMINATING: Final = "The store is being deleted; somebody's finalizer holds that up."
_BLOCKING_PARTS: Final = (Part.SECRETS, Part.SCHEMA, Part.STORAGE, Part.EMBEDDING, Part.BINDINGS)
"""Parts that can keep a pod from being ready, the cause before its effects."""


def _failing(reports: Iterable[HealthReport], parts: Sequence[Part]) -> PartHealth | None:
    found = list(reports)
    for part in parts:
        for report in found:
            health = report.parts.get(part)
            if health is not None and not health.ok and health.reason is not HealthReason.NOT_CONFIGURED:
                return health
    return None


def _sentence(health: PartHealth) -> str:
    """Return a report's words as a condition has them."""
    words = health.message.rstrip(".")
    first, _, rest = words.partition(" ")
    # A name of a field or a file stays as it is written.
    return f"{first.capitalize()} {rest}." if first.islower() and first.isalpha() and rest else f"{words}."


def _unknown(previous: Mapping[str, Any], kind: ConditionType) -> Condition:
    kept = conditions.kept(previous, kind)
    return kept or Condition(kind, None, Reason.NOT_REPORTED, "No replica has reported yet.")


def _from_parts(
    previous: Mapping[str, Any], health: HealthState | None, kind: ConditionType, parts: Sequence[Part], message: str
) -> Condition:
    """Return a condition that repeats what the health reports say about some parts."""
    if health is None or not health.considered:
        return _unknown(previous, kind)
    if failing := _failing(health.considered, parts):
        status = None if failing.reason in conditions.STARTING else False
        return Condition(kind, status, failing.reason, _sentence(failing))
    return Condition(kind, True, Reason.OK, message)


def _claim_trouble(store: MemoryStore, snapshot: StoreSnapshot) -> tuple[Reason, str] | None:
    """Return the reason and the sentence of a claim that takes the memory with it; None when it does not."""
    claim, name = snapshot.claim, names.volume_claim(store.id.name)
    if claim is None or (snapshot.is_being_deleted and store.id.uid in claim.owner_uids):
        return None  # one that goes with its store goes as the spec wants it
    if claim.is_being_deleted:
        message = (
            f"The claim {name!r} was deleted and goes with the pod that uses it, at the next restart: "
            "export the memory while it serves."
        )
        return Reason.VOLUME_BEING_DELETED, message
    if claim.phase == "Lost":
        return Reason.VOLUME_LOST, f"The volume of the claim {name!r} does not exist any more."
    return None


def _earlier_claim(previous: Mapping[str, Any], claim: ClaimState) -> str | None:
    """Return the UID of the claim that a store had before this one; None when it is the only one that is known."""
    known = previous.get("volumeClaim") or {}
    earlier = known.get("earlierUid") if known.get("uid") == claim.uid else known.get("uid")
    return str(earlier) if earlier else None


def _volume_claim(store: MemoryStore, previous: Mapping[str, Any], claim: ClaimState | None) -> dict[str, str]:
    """Return which claim a store has and what becomes of it with the store; one that is gone is remembered."""
    if claim is None:
        known = previous.get("volumeClaim") or {}
        return {name: known[name] for name in ("uid", "earlierUid") if name in known}
    policy = RetentionPolicy.DELETE if store.id.uid in claim.owner_uids else RetentionPolicy.RETAIN
    fields = {"uid": claim.uid, "retentionPolicy": str(policy)}
    if earlier := _earlier_claim(previous, claim):
        fields["earlierUid"] = earlier
    return fields


def _storage(store: MemoryStore, previous: Mapping[str, Any], snapshot: StoreSnapshot) -> Condition:
    kind = ConditionType.STORAGE_READY
    for problem in snapshot.problems:
        if problem.kind == _CLAIM:
            return Condition(kind, False, problem.reason, problem.message)
    claim = snapshot.claim
    if gone := _claim_trouble(store, snapshot):
        return Condition(kind, False, *gone)
    if store.is_local and (claim is None or claim.phase != "Bound"):
        message = "The claim is not bound to a volume yet."
        return Condition(kind, False, Reason.VOLUME_PENDING, message)
    told = _from_parts(previous, snapshot.health, kind, (Part.SECRETS, Part.STORAGE, Part.SCHEMA), "Storage answers.")
    if claim is None or told.status is not True:
        return told
    if claim.resize_message or (claim.capacity and is_larger(claim.requested, claim.capacity)):
        detail = claim.resize_message or f"The volume has {claim.capacity} and is growing to {claim.requested}."
        return Condition(kind, True, Reason.VOLUME_RESIZING, detail)
    if _earlier_claim(previous, claim):
        detail = (
            "The claim is another one than this store had before: what it remembers is what this volume holds, "
            "and nothing of the earlier one."
        )
        return Condition(kind, True, Reason.VOLUME_REPLACED, detail)
    if snapshot.wanted_size is not None and is_larger(claim.requested, snapshot.wanted_size):
        detail = f"The adopted claim has {claim.requested}; a claim cannot shrink."
        return Condition(kind, True, Reason.VOLUME_LARGER_THAN_SPEC, detail)
    return told


def _models(store: MemoryStore, previous: Mapping[str, Any], snapshot: StoreSnapshot) -> Condition:
    kind = ConditionType.MODELS_READY
    for model in snapshot.models:
        if not model.is_found:
            return Condition(kind, False, Reason.MODEL_API_NOT_FOUND, f"ModelAPI {model.name!r}: {model.message}")
        if not model.is_ready:
            message = f"ModelAPI {model.name!r}: {model.message}"
            return Condition(kind, model.is_ready, Reason.MODEL_API_NOT_READY, message)
    if not store.model_apis:
        return Condition(kind, True, Reason.NOT_CONFIGURED, "No model is configured: episodes only, built-in embedder.")
    return _from_parts(previous, snapshot.health, kind, (Part.MODELS,), "The models answer.")


def _revocation(previous: Mapping[str, Any], health: HealthState | None) -> Condition:
    kind = ConditionType.REVOCATION_AVAILABLE
    if health is None or not health.considered:
        return _unknown(previous, kind)
    told = [report.revocation_available for report in health.considered]
    if False in told:
        message = "Tokens are checked by signature and lifetime only: TokenReview is not permitted to the store."
        return Condition(kind, False, HealthReason.REVOCATION_UNAVAILABLE, message)
    if None in told:
        return Condition(kind, None, Reason.NOT_REPORTED, "No token has been reviewed yet.")
    return Condition(kind, True, Reason.OK, "Tokens of removed pods are refused.")


def _held_back(model: ModelState) -> str:
    return f"The spec is not applied to the pods yet; it waits for ModelAPI {model.name!r}: {model.message}"


def _progressing(snapshot: StoreSnapshot) -> Condition:
    kind = ConditionType.PROGRESSING
    state = snapshot.deployment
    if snapshot.is_being_deleted:
        return Condition(kind, False, Reason.TERMINATING, _TERMINATING)
    if snapshot.held_by is not None:
        return Condition(kind, False, Reason.WAITING_FOR_MODEL_API, _held_back(snapshot.held_by))
    if state is None:
        if snapshot.waits_for_models:
            return Condition(kind, False, Reason.WAITING_FOR_MODEL_API, "The first start waits for its ModelAPIs.")
        return Condition(kind, None, Reason.RECONCILING, "The Deployment is not there yet.")
    if state.has_missed_deadline:
        return Condition(kind, False, Reason.PROGRESS_DEADLINE_EXCEEDED, state.said(state.message))
    if not state.is_rolled_out:
        message = f"{state.updated} of {state.wanted} pods are of the newest template."
        return Condition(kind, True, Reason.ROLLOUT_IN_PROGRESS, state.said(message))
    if snapshot.waits_for_resume:
        return Condition(kind, False, Reason.PAUSED, _WAITS_FOR_RESUME)
    if snapshot.waits_for_turn:
        message = "A newer pod template waits until other stores have been rolled out."
        return Condition(kind, False, Reason.ROLLOUT_WAITING, message)
    return Condition(kind, False, Reason.ROLLOUT_COMPLETE, "All pods are of the newest template.")


def _is_start(previous: Mapping[str, Any]) -> bool:
    ready = conditions.by_type(previous).get(ConditionType.READY)
    return ready is None or ready["reason"] in _BEFORE_A_START


def _unready_pods(previous: Mapping[str, Any], snapshot: StoreSnapshot, wanted: int) -> Condition:
    kind = ConditionType.READY
    health = snapshot.health
    if health is not None and (failing := _failing(health.reports, _BLOCKING_PARTS)):
        return Condition(kind, False, failing.reason, _sentence(failing))
    state = snapshot.deployment
    if state is not None and state.has_missed_deadline:
        return Condition(kind, False, Reason.PROGRESS_DEADLINE_EXCEEDED, state.said(state.message))
    message = f"0 of {wanted} pods are ready."
    if _is_start(previous) and not (state and state.trouble):
        return Condition(kind, False, HealthReason.STARTING, message)
    return Condition(kind, False, Reason.WORKLOAD_UNAVAILABLE, state.said(message) if state else message)


def _ready(
    store: MemoryStore, previous: Mapping[str, Any], snapshot: StoreSnapshot, now: datetime, patience: timedelta
) -> Condition:
    if snapshot.is_being_deleted and (snapshot.deployment is None or snapshot.deployment.ready == 0):
        return Condition(ConditionType.READY, False, Reason.TERMINATING, _TERMINATING)
    return _serving(store, previous, snapshot, now, patience)


def _serving(
    store: MemoryStore, previous: Mapping[str, Any], snapshot: StoreSnapshot, now: datetime, patience: timedelta
) -> Condition:
    kind = ConditionType.READY
    for problem in snapshot.problems:
        if problem.reason is Reason.NAME_CONFLICT and problem.kind in _SERVING_KINDS:
            return Condition(kind, False, problem.reason, problem.message)
    state = snapshot.deployment
    if (store.replicas if state is None else state.wanted) == 0:
        return Condition(kind, False, Reason.SCALED_TO_ZERO, "The store is scaled to zero.")
    if state is None:
        if snapshot.held_by is not None:
            return Condition(kind, False, Reason.WAITING_FOR_MODEL_API, _held_back(snapshot.held_by))
        if snapshot.waits_for_models:
            blocked = next(model for model in snapshot.models if not (model.is_found and model.is_ready))
            message = f"Waits for ModelAPI {blocked.name!r}: {blocked.message}"
            return Condition(kind, blocked.is_ready, Reason.WAITING_FOR_MODEL_API, message)
        for problem in snapshot.problems:
            return Condition(kind, False, problem.reason, problem.message)
        return Condition(kind, None, Reason.RECONCILING, "The store's objects are being made.")
    if state.ready == 0:
        for problem in snapshot.problems:
            if problem.kind == _CLAIM and problem.reason is not Reason.VOLUME_EXPANSION_REFUSED:
                return Condition(kind, False, problem.reason, problem.message)
        if state.observed_generation == 0:
            return Condition(kind, None, Reason.RECONCILING, "The Deployment has not been looked at yet.")
        return _unready_pods(previous, snapshot, state.wanted)
    health = snapshot.health
    if health is None or (not health.reports and health.unreachable_since is None):
        message = "Waits for the first health report."
        kept = conditions.kept(previous, kind)
        return kept if kept and kept.status else Condition(kind, None, Reason.HEALTH_UNKNOWN, message)
    if not health.reports and health.unreachable_since is not None:
        if health.is_in_doubt(now, patience) and (kept := conditions.kept(previous, kind)):
            return kept
        why = health.failures[0] if health.failures else "no address"
        return Condition(kind, None, Reason.HEALTH_UNREACHABLE, f"Ready pods do not give a health report: {why}.")
    if not any(report.ready for report in health.reports):
        return _unready_pods(previous, snapshot, state.wanted)
    return Condition(kind, True, Reason.AVAILABLE, f"{state.ready} of {state.wanted} pods are ready.")


def _stalled(store: MemoryStore, snapshot: StoreSnapshot) -> Condition | None:
    kind = ConditionType.STALLED
    if gone := _claim_trouble(store, snapshot):
        return Condition(kind, True, *gone)
    for problem in snapshot.problems:
        return Condition(kind, True, problem.reason, problem.message)
    state = snapshot.deployment
    if state is not None and state.has_missed_deadline:
        return Condition(kind, True, Reason.PROGRESS_DEADLINE_EXCEEDED, state.said(state.message))
    return None


def _reconciling(store: MemoryStore, snapshot: StoreSnapshot) -> Condition | None:
    kind = ConditionType.RECONCILING
    state = snapshot.deployment
    if snapshot.is_being_deleted:
        return Condition(kind, True, Reason.TERMINATING, _TERMINATING)
    if snapshot.held_by is not None:
        return Condition(kind, True, Reason.WAITING_FOR_MODEL_API, _held_back(snapshot.held_by))
    if state is None and not snapshot.waits_for_models:
        return Condition(kind, True, Reason.RECONCILING, "The store's objects are being made.")
    if snapshot.waits_for_resume:
        return Condition(kind, True, Reason.PAUSED, _WAITS_FOR_RESUME)
    if state is not None and (not state.is_rolled_out or state.wanted != store.replicas):
        return Condition(kind, True, Reason.ROLLOUT_IN_PROGRESS, state.said("The pods are being replaced."))
    return None


def _numbers(store: MemoryStore, previous: Mapping[str, Any], snapshot: StoreSnapshot) -> dict[str, Any]:
    health, state = snapshot.health, snapshot.deployment
    fields: dict[str, Any] = {
        "replicas": state.replicas if state else 0,
        "readyReplicas": state.ready if state else 0,
        "selector": ",".join(f"{key}={value}" for key, value in sorted(snapshot.selector.items())),
    }
    if health is not None and health.counters is not None:
        counters = health.counters
        fields["facts"] = counters.facts
        fields["queue"] = {
            "pending": counters.pending,
            "oldestSeconds": int(counters.oldest_seconds),
            "dead": counters.dead,
        }
    if health is not None and health.considered:
        report = health.considered[0]
        fields["version"] = report.version
        if report.embedding_model:
            fields["embedding"] = {"model": report.embedding_model, "dimensions": report.embedding_dimensions}
        if report.schemas_left_behind:
            fields["schemasLeftBehind"] = sorted(report.schemas_left_behind)
    for name in ("facts", "queue", "version", "embedding", "schemasLeftBehind"):
        if name not in fields and name in previous and not (health is not None and health.considered):
            fields[name] = previous[name]
    if store.is_local and (volume_claim := _volume_claim(store, previous, snapshot.claim)):
        fields["volumeClaim"] = volume_claim
    if snapshot.schema_name is not None:
        fields["schema"] = snapshot.schema_name
    return fields


def store_status(store: MemoryStore, snapshot: StoreSnapshot, now: datetime, patience: timedelta) -> dict[str, Any]:
    """Return a valid store's status; `patience` is how long replicas may be silent before it counts."""
    previous = store.status
    jobs = (Part.JOBS,)
    # Both at once would be read as that it still gets on.
    stalled = _stalled(store, snapshot)
    found: list[Condition | None] = [
        _ready(store, previous, snapshot, now, patience),
        _progressing(snapshot),
        _storage(store, previous, snapshot),
        _models(store, previous, snapshot),
        _from_parts(previous, snapshot.health, ConditionType.EXTRACTION_HEALTHY, jobs, "Jobs are done in time."),
        _from_parts(
            previous,
            snapshot.health,
            ConditionType.EMBEDDING_CURRENT,
            (Part.EMBEDDING,),
            "All vectors are of the configured model.",
        ),
        _revocation(previous, snapshot.health),
        stalled or _reconciling(store, snapshot),
    ]
    if store.spec.paused:
        message = (
            "spec.paused is true: the store runs on, its objects are not changed, but for the bindings and the owner "
            "of the claim."
        )
        found.append(Condition(ConditionType.PAUSED, True, Reason.PAUSED, message))
    observed = store.id.generation if snapshot.held_by is None else previous.get("observedGeneration", 0)
    merged = conditions.merge(previous, (item for item in found if item), observed, now)
    return {
        "observedGeneration": observed,
        "endpoint": snapshot.endpoint,
        "conditions": merged,
        **_numbers(store, previous, snapshot),
    }


def refused_status(
    who: Identity, previous: Mapping[str, Any], problems: Sequence[Problem], now: datetime
) -> dict[str, Any]:
    """Return the status of a store with a spec that breaks a rule; what runs is left alone, and told as before."""
    told_anew = (ConditionType.READY, ConditionType.STALLED, ConditionType.RECONCILING)
    kept = [conditions.kept(previous, kind) for kind in ConditionType if kind not in told_anew]
    return invalid_status(who, previous, problems, now, kept=[item for item in kept if item is not None])
