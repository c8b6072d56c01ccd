"""Reconcile an AgentMemory."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.cluster.keys import ReconcileKey
from memory_operator.crd import agent_memory, conditions
from memory_operator.crd.agent_memory import AgentMemory
from memory_operator.crd.base import ObjectKey, identity
from memory_operator.crd.conditions import ConditionType, parse_timestamp
from memory_operator.crd.memory_store import MemoryStore
from memory_operator.desired import network
from memory_operator.desired.agent import AgentInputs, default_endpoint, desired_objects, snippet
from memory_operator.desired.plan import desired_digests
from memory_operator.errors import InvalidSpec
from memory_operator.reconcile.access import is_allowed, rival
from memory_operator.reconcile.accounts import earlier_accounts
from memory_operator.reconcile.context import Context
from memory_operator.reconcile.pods import pod_trouble
from memory_operator.reconcile.store import find, row
from memory_operator.reconcile.tls import authority
from memory_operator.reconcile.writing import drop_keys, sync_children, write_status
from memory_operator.status.agent import agent_status, refused_status, terminating_status
from memory_operator.status.snapshot import AgentSnapshot, StoreView


def _store_view(context: Context, key: ObjectKey) -> StoreView | None:
    """Return what a store's status says, also while it is being deleted; None when the store does not exist."""
    body = context.cache.body(kinds.MEMORY_STORE, key)
    if body is None:
        return None
    ready = conditions.by_type(body.get("status") or {}).get(ConditionType.READY)
    if ready is None:
        return StoreView(None, "Reconciling", "The store is new.", identity(body).created_at)
    status = {"True": True, "False": False}.get(ready["status"])
    return StoreView(status, ready["reason"], ready["message"], parse_timestamp(ready["lastTransitionTime"]))


def _acknowledged(context: Context, agent: AgentMemory, store: MemoryStore) -> bool | None:
    """Whether every ready replica of the store uses this agent's row."""
    health = context.health.get(store.key)
    reports = [report for report in (health.reports if health else ()) if report.ready]
    key, text = row(context, agent, store)
    return context.ledger.holds(store.key, key, text, [report.bindings_revision for report in reports])


async def reconcile_agent(context: Context, key: ObjectKey) -> float | None:
    """Make an agent's objects and status as they should be; return after how many seconds to look again."""
    body = context.cache.body(kinds.AGENT_MEMORY, key)
    if body is None:
        context.rows.pop(key, None)
        context.pods.pop(ReconcileKey(names.AGENT_MEMORY, key), None)
        return None
    who, previous, now = identity(body), body.get("status") or {}, context.now()
    if body["metadata"].get("deletionTimestamp"):
        await write_status(context, who, previous, terminating_status(who, previous, now))
        return None
    try:
        agent = agent_memory.parse(body)
    except InvalidSpec as error:
        await write_status(context, who, previous, refused_status(who, previous, error.problems, now))
        return None
    own_key = ReconcileKey(who.kind, key)
    children = context.cache.children(own_key)
    view = _store_view(context, agent.store) if agent.store else None
    store = find(context, agent.store) if agent.store and view else None
    allowed = store is None or is_allowed(context, store, key.namespace)
    taken_by = rival(context, agent)
    is_bindable = store is not None and allowed and taken_by is None
    ca = await authority(context, store) if store and is_bindable else None
    deployment_key = (kinds.DEPLOYMENT.name, key.name)
    workload = children.get(deployment_key)
    has_started = workload is not None or bool(previous.get("started"))
    is_free = agent.store is None or not agent.spec.wait_for_dependencies
    is_store_ready = view is not None and view.ready is True and is_bindable
    may_start = has_started or is_free or is_store_ready
    endpoint = network.endpoint(store, context.settings) if store and allowed else previous.get("endpoint")
    folder = children.get((kinds.CONFIG_MAP.name, names.agent_binding(key.name)))
    audience = names.audience(agent.store.namespace, agent.store.name) if agent.store else None
    if previous.get("audience") != audience and not (store and allowed):
        endpoint = default_endpoint(agent, context.settings)
    selector = {names.AGENT_LABEL: key.name}
    is_there = workload is not None and workload.observed.controller_uid == who.uid
    earlier, accounts_after = await earlier_accounts(
        context, workload if is_there else None, agent.service_account, selector
    )
    earlier_audiences = workload.audiences_beside(audience) if workload and is_there else ()
    earlier_before = workload.earlier_accounts if workload else ()
    inputs = AgentInputs(
        agent=agent,
        settings=context.settings,
        store=store if is_bindable else None,
        folder_audience=folder.audience if folder else None,
        ca=ca,
        endpoint=endpoint or default_endpoint(agent, context.settings),
        started_endpoint=workload.started_endpoint if workload else None,
        earlier_accounts=earlier,
        earlier_audiences=earlier_audiences,
        may_start=may_start,
    )
    objects, held = desired_objects(inputs)
    problems = await sync_children(context, who, desired_digests(objects), held, lambda: objects)
    config_maps = [item for item in objects if item["kind"] == kinds.CONFIG_MAP.name]
    problems += await drop_keys(context, who, {item["metadata"]["name"]: item["data"] for item in config_maps})
    workload = context.cache.children(own_key).get(deployment_key)
    if agent.store is not None and (workload.earlier_accounts if workload else ()) != earlier_before:
        # Which pods are which agent has changed.
        context.enqueue([ReconcileKey(names.MEMORY_STORE, agent.store)])
    deployment = workload.deployment if workload else None
    trouble, pods_after = await pod_trouble(context, own_key, deployment, selector, now)
    acknowledged = _acknowledged(context, agent, store) if store and is_bindable else None
    snapshot = AgentSnapshot(
        store=view,
        is_allowed=allowed,
        are_labels_known=context.cache.namespace_labels(key.namespace) is not None,
        holder=taken_by,
        is_acknowledged=acknowledged,
        deployment=replace(deployment, trouble=trouble) if deployment else None,
        has_pods_of_an_earlier_store=bool(earlier_audiences),
        has_started=workload is not None or bool(previous.get("started")),
        is_ca_missing=bool(store and store.spec.tls and is_bindable and ca is None),
        endpoint=inputs.endpoint,
        snippet=snippet(agent) if agent.store and agent.spec.agent.workload_ref else None,
        problems=problems,
    )
    hysteresis = timedelta(seconds=context.settings.hysteresis_seconds)
    result = agent_status(agent, snapshot, now, hysteresis)
    if agent.store is not None and is_bindable and acknowledged is not True:
        context.ledger.wait(agent.store, key)
    await write_status(context, who, previous, result.content)
    again = [pods_after, accounts_after, context.settings.refused_seconds if problems else None]
    if result.look_again_after is not None:
        again.append(result.look_again_after.total_seconds() + 0.05)
    return min((seconds for seconds in again if seconds is not None), default=None)
