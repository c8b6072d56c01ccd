"""An AgentMemory's status. A store's trouble moves `MemoryDegraded` only: the agent stays as ready as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from memory_operator import names
from memory_operator.crd import conditions
from memory_operator.crd.agent_memory import AgentMemory
from memory_operator.crd.base import Identity
from memory_operator.crd.conditions import Condition, ConditionType, Reason
from memory_operator.errors import Problem
from memory_operator.pacing import is_young
from memory_operator.status.invalid import invalid_status
from memory_operator.status.snapshot import AgentSnapshot, StoreView


@dataclass(frozen=True)
class AgentStatus:
    """What to write, and when to look again although nothing happens."""

    content: dict[str, Any]
    look_again_after: timedelta | None = None


def _accepted(agent: AgentMemory, snapshot: AgentSnapshot) -> Condition:
    kind = ConditionType.ACCEPTED
    if snapshot.holder is not None:
        message = (
            f"ServiceAccount {agent.service_account!r} is bound by {snapshot.holder!r}, which is older; "
            "one account can prove one agent."
        )
        return Condition(kind, False, Reason.SERVICE_ACCOUNT_TAKEN, message)
    if agent.store is not None and snapshot.store is not None and not snapshot.is_allowed:
        message = f"MemoryStore {str(agent.store)!r} does not allow the namespace {agent.id.namespace!r}."
        if not snapshot.are_labels_known:
            message += " It would have to name it: the operator does not know its labels."
        return Condition(kind, False, Reason.STORE_NOT_ALLOWED, message)
    return Condition(kind, True, Reason.ACCEPTED, "The binding is valid.")


def _trouble(agent: AgentMemory, snapshot: AgentSnapshot) -> Condition | None:
    """Return why memory is degraded, before hysteresis; None when it is not."""
    kind = ConditionType.MEMORY_DEGRADED
    store = snapshot.store
    if store is None:
        return Condition(kind, True, Reason.STORE_NOT_FOUND, f"MemoryStore {str(agent.store)!r} does not exist.")
    if not snapshot.is_allowed:
        return Condition(kind, True, Reason.STORE_NOT_ALLOWED, "The store does not allow this namespace.")
    if snapshot.holder is not None:
        return Condition(kind, True, Reason.SERVICE_ACCOUNT_TAKEN, "Another binding has the ServiceAccount.")
    if snapshot.is_ca_missing:
        return Condition(kind, True, Reason.CA_NOT_FOUND, "The ConfigMap with the store's CA does not exist.")
    if store.ready is None and store.reason == Reason.HEALTH_UNREACHABLE:
        return Condition(kind, True, Reason.STORE_UNREACHABLE, store.message)
    if store.ready is not True:
        return Condition(kind, True, Reason.STORE_NOT_READY, f"{store.reason}: {store.message}")
    if snapshot.has_pods_of_an_earlier_store:
        message = "Pods that were made for the earlier store ask neither until they are replaced."
        return Condition(kind, True, Reason.ROLLOUT_IN_PROGRESS, message)
    return None


def _changed_at(store: StoreView | None) -> datetime | None:
    return store.since if store is not None else None


def _degraded(
    agent: AgentMemory, snapshot: AgentSnapshot, now: datetime, hysteresis: timedelta
) -> tuple[Condition, timedelta | None]:
    """Return `MemoryDegraded` and, while a change is too young to count, when it will be old enough."""
    kind = ConditionType.MEMORY_DEGRADED
    if agent.store is None:
        return Condition(kind, False, Reason.LOCAL_MEMORY, "Memory is the agent's own."), None
    trouble = _trouble(agent, snapshot)
    wanted = trouble or Condition(kind, False, Reason.MEMORY_HEALTHY, "The store is ready.")
    old = conditions.by_type(agent.status).get(kind)
    is_flip = old is not None and old["status"] != conditions.status_text(wanted.status)
    # A store that cannot be reached has been given its time before its status said so: no second one here.
    is_state_of_store = wanted.reason in (Reason.STORE_NOT_READY, Reason.MEMORY_HEALTHY)
    changed_at = _changed_at(snapshot.store)
    if old is not None and is_flip and is_state_of_store and changed_at is not None:
        age = now - changed_at
        if is_young(age.total_seconds(), hysteresis.total_seconds()):
            kept = Condition(kind, old["status"] == "True", old["reason"], old.get("message", ""))
            return kept, hysteresis - age
    store = snapshot.store
    is_between = store is not None and (store.ready is None or store.reason in conditions.STARTING)
    if old is not None and is_between and not is_flip and wanted.reason == old["reason"] == Reason.STORE_NOT_READY:
        # A store that starts, or of which nothing is known for a moment, has nothing new to say to a thousand agents.
        return Condition(kind, True, old["reason"], old.get("message", "")), None
    return wanted, None


def _is_of_same_store(agent: AgentMemory) -> bool:
    """Whether the last status was about the store that the spec names: of another one nothing is known yet."""
    audience = names.audience(agent.store.namespace, agent.store.name) if agent.store else None
    return bool(agent.status.get("audience") == audience)


def _is_bound(agent: AgentMemory, snapshot: AgentSnapshot) -> bool:
    was_bound = bool(agent.status.get("bound")) and _is_of_same_store(agent)
    return was_bound or snapshot.is_acknowledged is True


def _workload(snapshot: AgentSnapshot) -> Condition | None:
    """Return why an agent that the operator runs is not ready; None when it is."""
    kind = ConditionType.READY
    for problem in snapshot.problems:
        return Condition(kind, False, problem.reason, problem.message)
    state = snapshot.deployment
    if state is None:
        return Condition(kind, None, Reason.RECONCILING, "The Deployment is not there yet.")
    if state.ready < min(1, state.wanted):
        status = None if state.observed_generation == 0 else False
        return Condition(kind, status, Reason.WORKLOAD_UNAVAILABLE, state.said(f"0 of {state.wanted} pods are ready."))
    return None


def _waiting(agent: AgentMemory, snapshot: AgentSnapshot) -> Condition | None:
    """Return what the first binding waits for; None when it has happened or need not."""
    kind = ConditionType.READY
    if agent.store is None or not agent.spec.wait_for_dependencies or _is_bound(agent, snapshot):
        return None
    store = snapshot.store
    if store is None:
        message = f"MemoryStore {str(agent.store)!r} does not exist yet."
        return Condition(kind, False, Reason.WAITING_FOR_STORE, message)
    if store.ready is not True:
        message = f"MemoryStore {str(agent.store)!r} is not ready: {store.message}"
        return Condition(kind, False, Reason.WAITING_FOR_STORE, message)
    return Condition(kind, None, Reason.BINDING_PENDING, "The store does not use this binding yet.")


def _ready(agent: AgentMemory, snapshot: AgentSnapshot, accepted: Condition) -> Condition:
    kind = ConditionType.READY
    was_ready = conditions.is_true(agent.status, kind) and _is_of_same_store(agent)
    if accepted.status is False and not was_ready:
        return Condition(kind, False, accepted.reason, accepted.message)
    is_run_by_us = agent.spec.agent.template is not None
    waiting = _waiting(agent, snapshot)
    if waiting is not None and not was_ready:
        return waiting
    if is_run_by_us and (unready := _workload(snapshot)):
        return unready
    for problem in snapshot.problems:
        return Condition(kind, False, problem.reason, problem.message)
    if agent.store is None:
        return Condition(kind, True, Reason.LOCAL_MEMORY, "Memory is the agent's own.")
    message = "The agent is bound." if _is_bound(agent, snapshot) else "The agent may start before its store."
    return Condition(kind, True, Reason.BOUND, message)


def _transient(agent: AgentMemory, snapshot: AgentSnapshot, accepted: Condition) -> list[Condition]:
    found = []
    if accepted.status is False and accepted.reason != Reason.STORE_NOT_ALLOWED:
        found.append(Condition(ConditionType.STALLED, True, accepted.reason, accepted.message))
    elif snapshot.problems:
        problem = snapshot.problems[0]
        found.append(Condition(ConditionType.STALLED, True, problem.reason, problem.message))
    elif snapshot.deployment is not None and snapshot.deployment.has_missed_deadline:
        message = snapshot.deployment.said(snapshot.deployment.message)
        found.append(Condition(ConditionType.STALLED, True, Reason.PROGRESS_DEADLINE_EXCEEDED, message))
    elif agent.store is not None and snapshot.is_acknowledged is False:
        message = "The store does not use this binding yet."
        found.append(Condition(ConditionType.RECONCILING, True, Reason.BINDING_PENDING, message))
    elif snapshot.deployment is not None and not snapshot.deployment.is_rolled_out:
        message = snapshot.deployment.said("The pods are being replaced.")
        found.append(Condition(ConditionType.RECONCILING, True, Reason.ROLLOUT_IN_PROGRESS, message))
    return found


def agent_status(agent: AgentMemory, snapshot: AgentSnapshot, now: datetime, hysteresis: timedelta) -> AgentStatus:
    """Return a valid AgentMemory's status."""
    accepted = _accepted(agent, snapshot)
    degraded, look_again_after = _degraded(agent, snapshot, now, hysteresis)
    found = [accepted, degraded, _ready(agent, snapshot, accepted), *_transient(agent, snapshot, accepted)]
    content: dict[str, Any] = {
        "observedGeneration": agent.id.generation,
        "agentIdentity": names.agent_identity(agent.id.namespace, agent.id.name),
        "serviceAccountName": agent.service_account,
    }
    if agent.store is not None:
        if snapshot.store is None:
            message = f"MemoryStore {str(agent.store)!r} does not exist."
            resolved = Condition(ConditionType.STORE_RESOLVED, False, Reason.STORE_NOT_FOUND, message)
        else:
            resolved = Condition(ConditionType.STORE_RESOLVED, True, Reason.OK, "The store exists.")
        found.append(resolved)
        content["audience"] = names.audience(agent.store.namespace, agent.store.name)
        content["bindingConfigMap"] = names.agent_binding(agent.id.name)
        if _is_bound(agent, snapshot):
            content["bound"] = True
    if agent.spec.agent.template is not None and snapshot.deployment is not None:
        content["replicas"] = snapshot.deployment.replicas
        content["selector"] = f"{names.AGENT_LABEL}={agent.id.name}"
    if snapshot.endpoint is not None:
        content["endpoint"] = snapshot.endpoint
    if snapshot.has_started:
        content["started"] = True
    if snapshot.snippet is not None:
        content["snippet"] = snapshot.snippet
    content["conditions"] = conditions.merge(agent.status, found, agent.id.generation, now)
    return AgentStatus(content, look_again_after)


def refused_status(
    who: Identity, previous: Mapping[str, Any], problems: Sequence[Problem], now: datetime
) -> dict[str, Any]:
    """Return the status of an AgentMemory with a spec that breaks a rule; what runs is left alone."""
    return invalid_status(who, previous, problems, now, refused=(ConditionType.ACCEPTED, ConditionType.READY))


def terminating_status(who: Identity, previous: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the status of an AgentMemory that somebody's finalizer holds in deletion: it is bound no more."""
    message = "The binding is being deleted; somebody's finalizer holds that up. The store has forgotten it."
    told_anew = (ConditionType.READY, ConditionType.STALLED, ConditionType.RECONCILING, ConditionType.MEMORY_DEGRADED)
    found = [
        Condition(ConditionType.READY, False, Reason.TERMINATING, message),
        Condition(ConditionType.RECONCILING, True, Reason.TERMINATING, message),
        *(item for kind in ConditionType if kind not in told_anew and (item := conditions.kept(previous, kind))),
    ]
    if "audience" in previous:
        found.append(Condition(ConditionType.MEMORY_DEGRADED, True, Reason.TERMINATING, message))
    return {
        **{name: value for name, value in previous.items() if name != "bound"},
        "observedGeneration": who.generation,
        "conditions": conditions.merge(previous, found, who.generation, now),
    }
