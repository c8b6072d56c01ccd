"""Reconcile a MemoryStore."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta

from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.cluster.children import Child, existing_claim
from memory_operator.cluster.health import HealthTarget
from memory_operator.cluster.keys import TOKEN_REVIEW, ReconcileKey
from memory_operator.crd import agent_memory, conditions, memory_store, model_api
from memory_operator.crd.agent_memory import AgentMemory
from memory_operator.crd.base import Identity, JsonObject, ObjectKey, identity
from memory_operator.crd.conditions import ConditionType
from memory_operator.crd.memory_store import MemoryStore
from memory_operator.crd.model_api import ModelApi
from memory_operator.desired import access, bindings, config, network
from memory_operator.desired.metadata import Manifest, checksum, store_selector
from memory_operator.desired.plan import ChildKey, desired_digests
from memory_operator.desired.store import StoreInputs, desired_objects
from memory_operator.desired.workload import template_digest
from memory_operator.errors import InvalidSpec, TryLater
from memory_operator.reconcile.access import is_allowed, is_holder
from memory_operator.reconcile.accounts import earlier_accounts, earlier_accounts_of
from memory_operator.reconcile.context import Context, Wanted
from memory_operator.reconcile.pods import pod_trouble
from memory_operator.reconcile.rollouts import UnderWay
from memory_operator.reconcile.strangers import FRESH_SECONDS
from memory_operator.reconcile.tls import AUTHORITY_SECONDS, authority, known_authority
from memory_operator.reconcile.writing import drop_keys, name_conflict, sync_children, write_status
from memory_operator.status.snapshot import ApplyProblem, ModelState, StoreSnapshot
from memory_operator.status.store import refused_status, store_status

_FIRST_HEALTH_SECONDS = 0.3
"""After new bindings: a watch tells the replicas at once, so that the first look usually finds them in use."""
_TURN_SECONDS = 60.0
"""When a store that waits for a place looks again by itself: whoever ends a roll-out wakes it before."""


def typed(context: Context, body: JsonObject) -> MemoryStore:
    """Return a typed store; its spec is read once for each generation, and by all of its agents.

    Raises:
        InvalidSpec: a rule is broken.
    """
    who = identity(body)
    basis = (who.uid, who.generation)
    known = context.specs.get(who.key)
    if known is not None and known[0] == basis:
        return MemoryStore(who, known[1], body.get("status") or {})
    store = memory_store.parse(body)
    context.specs[who.key] = (basis, store.spec)
    return store


def find(context: Context, key: ObjectKey) -> MemoryStore | None:
    """Return a store if it exists and is valid."""
    body = context.cache.body(kinds.MEMORY_STORE, key)
    if body is None:
        return None
    try:
        return typed(context, body)
    except InvalidSpec:
        return None


def health_target(context: Context, key: ObjectKey) -> HealthTarget | None:
    """Return how to ask a store's pods; None when it is gone."""
    body = context.cache.body(kinds.MEMORY_STORE, key)
    if body is None:
        return None
    meta = body["metadata"]
    basis = (meta["uid"], meta.get("generation"))
    known = context.targets.get(key)
    if known is not None and known[0] == basis:
        return known[1]
    store = find(context, key)
    if store is None:
        return None
    host = names.service_host(key.namespace, key.name, context.settings.cluster_domain)
    target = HealthTarget(key, store.scheme, host, known_authority(context, store))
    if store.spec.tls is None:
        context.targets[key] = (basis, target)
    return target


def _models(context: Context, store: MemoryStore) -> tuple[dict[str, ModelApi], tuple[ModelState, ...]]:
    found: dict[str, ModelApi] = {}
    states = []
    for name in store.model_apis:
        body = context.cache.body(kinds.MODEL_API, ObjectKey(store.id.namespace, name))
        if body is None:
            states.append(ModelState(name, False, False, "It does not exist in this namespace."))
            continue
        try:
            found[name] = model_api.parse(body)
        except InvalidSpec as error:
            states.append(ModelState(name, True, False, str(error)))
            continue
        ready = conditions.by_type(body.get("status") or {}).get(ConditionType.READY, {})
        is_ready = {"True": True, "False": False}.get(ready.get("status", "Unknown"))
        states.append(ModelState(name, True, is_ready, ready.get("message") or "It has not been probed yet."))
    return found, tuple(states)


def _remembered(store: MemoryStore, configuration: Child | None) -> dict[str, ModelApi]:
    """Return the ModelAPIs of which a store's configuration was made, as far as they can be read."""
    text = configuration.models if configuration is not None else None
    found = {}
    for name, spec in config.remembered_models(text).items():
        meta = {"namespace": store.id.namespace, "name": name, "uid": checksum(text or ""), "generation": 0}
        meta["creationTimestamp"] = conditions.timestamp(store.id.created_at)
        try:
            found[name] = model_api.parse({"kind": names.MODEL_API, "metadata": meta, "spec": spec})
        except (InvalidSpec, ValueError, TypeError):
            continue
    return found


def _basis(uid: str, generation: int, store: MemoryStore) -> object:
    return (uid, generation, store.key, store.spec.default_failure_mode)


def row(context: Context, agent: AgentMemory, store: MemoryStore) -> tuple[str, str]:
    """Return an agent's row; it is made once for each version of what it depends on."""
    basis = _basis(agent.id.uid, agent.id.generation, store)
    known = context.rows.get(agent.key)
    if known is not None and known[0] == basis:
        return known[1], known[2]
    key, text = bindings.row(agent, store)
    context.rows[agent.key] = (basis, key, text)
    return key, text


def _row_of(context: Context, body: JsonObject, store: MemoryStore) -> tuple[str, str] | None:
    """Return the row of an agent; None when its spec breaks a rule. A row that is known is not made again."""
    meta = body["metadata"]
    known = context.rows.get(ObjectKey(meta["namespace"], meta["name"]))
    if known is not None and known[0] == _basis(meta["uid"], meta.get("generation", 0), store):
        return known[1], known[2]
    try:
        return row(context, agent_memory.parse(body), store)
    except InvalidSpec:
        return None


def _rows(context: Context, store: MemoryStore, held: Collection[str] = ()) -> dict[str, str]:
    """Return the rows of all agents that are bound by right; `held` are those whose right is not looked at again."""
    rows = {}
    for key in context.cache.agents_of(store.key):
        body = context.cache.body(kinds.AGENT_MEMORY, key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            continue
        found = _row_of(context, body, store)
        if found is None or not is_holder(context, key):
            continue
        if is_allowed(context, store, key.namespace) or found[0] in held:
            rows[found[0]] = found[1]
            others = earlier_accounts_of(context, key)
            rows.update(bindings.row(agent_memory.parse(body), store, other) for other in others)
    return rows


def _parts(children: Mapping[ChildKey, Child], store: str) -> dict[int, Child]:
    """Return the ConfigMaps that are there as parts of a store's bindings, whoever has made them."""
    found = {}
    for (kind, name), child in children.items():
        number = bindings.part_number(store, name) if kind == kinds.CONFIG_MAP.name else None
        if number is not None:
            found[number] = child
    return dict(sorted(found.items()))


def _placement(children: Mapping[ChildKey, Child], who: Identity) -> dict[str, int]:
    """Return the part in which each row is now."""
    placement: dict[str, int] = {}
    for number, child in _parts(children, who.name).items():
        if child.observed.controller_uid == who.uid:
            for key in child.data_keys:
                placement.setdefault(key, number)
    return placement


def _uses_unknown_rows(context: Context, store: ObjectKey) -> bool:
    """Whether a ready replica uses rows that this process never wrote: those of an earlier one, or a stranger's."""
    health = context.health.get(store)
    used = {report.bindings_revision for report in health.reports if report.ready} if health else set()
    # Outside of a cluster's identities there are none in use, and their revision is empty.
    return not all(context.ledger.knows(store, revision) for revision in used - {""})


async def _sync_bindings(
    context: Context, who: Identity, parts: Mapping[int, Mapping[str, str]]
) -> tuple[ApplyProblem, ...]:
    """Have the bindings hold what is desired, once that is applied, and nothing else; return what is in the way.

    A service reads every ConfigMap that has the name of a part. One that the caches do not show, for it lacks our
    label, is looked for when a replica uses rows that were never written.
    """
    there = _parts(context.cache.children(ReconcileKey(who.kind, who.key)), who.name)
    wanted = {child.key.name: parts.get(number, {}) for number, child in there.items()}
    problems = await drop_keys(context, who, wanted)
    foreign = {number for number, child in there.items() if number not in parts and not child.observed.controller_uid}
    if _uses_unknown_rows(context, who.key):
        now = context.now().timestamp()
        for number in range(bindings.MOUNTED_PARTS):
            name = names.bindings(who.name, number)
            found = number not in parts and await context.strangers.find(
                context.cluster, kinds.CONFIG_MAP, who.namespace, name, at_least=0, now=now
            )
            foreign |= {number} if found else set()
    taken = [name_conflict((kinds.CONFIG_MAP.name, names.bindings(who.name, number))) for number in sorted(foreign)]
    return (*problems, *taken)


async def _keep_bindings(context: Context, body: JsonObject) -> tuple[ApplyProblem, ...]:
    """Have the bindings of a store with a spec that breaks a rule hold its agents' rows, if there ever were any."""
    store, is_access_known = memory_store.granting(body)
    children = context.cache.children(ReconcileKey(store.id.kind, store.key))
    there = {(kinds.CONFIG_MAP.name, child.key.name) for child in _parts(children, store.id.name).values()}
    if not there and not store.status.get("version"):
        return ()
    placement = _placement(children, store.id)
    rows = _rows(context, store, held=() if is_access_known else placement)
    parts = bindings.layout(rows, placement)
    objects = bindings.config_maps(store, parts)
    digests = desired_digests(objects)
    if body["metadata"].get("deletionTimestamp"):
        digests = {key: digest for key, digest in digests.items() if key in there}
    problems = await sync_children(context, store.id, digests, children.keys() - there, lambda: objects)
    context.ledger.record(store.key, rows)
    return (*problems, *await _sync_bindings(context, store.id, parts))


def _wanted(context: Context, inputs: StoreInputs) -> tuple[Wanted, tuple[Manifest, ...] | None]:
    """Return what is desired of a store, with the objects if they had to be made anew.

    Most reconciles are for its status and find what its objects depend on unchanged.
    """
    store = inputs.store
    basis = (
        (store.id.uid, store.id.generation),
        {name: (model.id.uid, model.id.generation) for name, model in inputs.models.items()},
        inputs.parts,
        inputs.existing_claim,
        inputs.earlier_accounts,
        inputs.may_grow,
        inputs.may_start,
    )
    known = context.wanted.get(store.key)
    if known is not None and known.basis == basis:
        return known, None
    made = desired_objects(inputs)
    templates = (template_digest(item) for item in made.objects if item["kind"] == kinds.DEPLOYMENT.name)
    known = Wanted(basis, desired_digests(made.objects), made.held, next(templates, None))
    context.wanted[store.key] = known
    return known, made.objects


def _is_changed(store: MemoryStore, wanted: Wanted, workload: Child | None) -> bool:
    """Whether other pods are wanted than those of the Deployment that is there."""
    if workload is None or workload.deployment is None:
        return False
    return wanted.template not in (None, workload.template) or workload.deployment.wanted != store.replicas


def _staged(context: Context, store: MemoryStore, wanted: Wanted, workload: Child | None) -> frozenset[ChildKey]:
    """Return what must stay as it is until fewer stores are rolled out: the pods, and the configuration they have."""
    is_rolled = workload is not None and wanted.template not in (None, workload.template)
    is_own_change = workload is not None and workload.store_generation not in (None, str(store.id.generation))
    if not is_rolled or is_own_change:
        context.rollouts.forget(store.key)
        return frozenset()
    if context.rollouts.may_begin(store.key, _under_way(context), context.settings.rollouts_at_once, context.now()):
        return frozenset()
    deployment, configuration = names.memory(store.id.name), names.config(store.id.name)
    return frozenset({(kinds.DEPLOYMENT.name, deployment), (kinds.CONFIG_MAP.name, configuration)})


def _under_way(context: Context) -> UnderWay:
    return UnderWay(context.cache.rolling_stores(), context.cache.unfinished_stores())


def _wake_next(context: Context) -> None:
    """Have stores that wait for a place looked at, as many as there are places."""
    if context.rollouts:
        limit = context.settings.rollouts_at_once
        found = context.rollouts.woken(_under_way(context), limit, context.now())
        context.enqueue(ReconcileKey(names.MEMORY_STORE, store) for store in found)
    context.metrics.rollouts_waiting.set(len(context.rollouts))


def _held_by(states: Iterable[ModelState], models: Collection[str]) -> ModelState | None:
    """Return the ModelAPI without which a store's configuration cannot be made at all, if there is one."""
    return next((state for state in states if state.name not in models), None)


async def reconcile_store(context: Context, key: ObjectKey) -> float | None:
    """Make a store's objects and status as they should be; return after how many seconds to look again."""
    body = context.cache.body(kinds.MEMORY_STORE, key)
    if body is None:
        context.ledger.forget(key)
        context.rollouts.forget(key)
        context.rollouts.end(key)
        context.health.pop(key, None)
        context.targets.pop(key, None)
        context.specs.pop(key, None)
        context.wanted.pop(key, None)
        context.pods.pop(ReconcileKey(names.MEMORY_STORE, key), None)
        _wake_next(context)
        return None
    is_being_deleted = bool(body["metadata"].get("deletionTimestamp"))
    if is_being_deleted:
        context.rollouts.forget(key)
    who, previous, now = identity(body), body.get("status") or {}, context.now()
    try:
        store = typed(context, body)
    except InvalidSpec as error:
        await write_status(context, who, previous, refused_status(who, previous, error.problems, now))
        refused = await _keep_bindings(context, body)
        _wake_next(context)
        return context.settings.refused_seconds if refused else None
    own_key = ReconcileKey(who.kind, key)
    children = context.cache.children(own_key)
    models, states = _models(context, store)
    deployment_key = (kinds.DEPLOYMENT.name, names.memory(key.name))
    is_there = deployment_key in children and children[deployment_key].observed.controller_uid == who.uid
    # One that has once told its version goes on: its Deployment is put back whatever its models do.
    has_started = is_there or bool(previous.get("version"))
    may_start = has_started or all(state.is_found and state.is_ready for state in states)
    if has_started and not all(name in models for name in store.model_apis):
        models = _remembered(store, children.get((kinds.CONFIG_MAP.name, names.config(key.name)))) | models
    claim_key = (kinds.CLAIM.name, names.volume_claim(key.name))
    known_claim = children.get(claim_key)
    await authority(context, store)
    workload = children.get(deployment_key)
    accounts_before = workload.accounts_beside("") if workload else ()
    account, selector = access.account_name(store), store_selector(key.name)
    earlier, accounts_after = await earlier_accounts(context, workload if is_there else None, account, selector)
    problems: tuple[ApplyProblem, ...] = ()
    staged: frozenset[ChildKey] = frozenset()
    waits_for_resume = False
    has_bindings = (kinds.CONFIG_MAP.name, names.bindings(key.name, 0)) in children
    is_left_alone = store.spec.paused or is_being_deleted
    if has_bindings or has_started or not is_left_alone:
        rows = _rows(context, store)
        inputs = StoreInputs(
            store=store,
            settings=context.settings,
            models=models,
            parts=bindings.layout(rows, _placement(children, who)),
            existing_claim=existing_claim(known_claim.claim) if known_claim and known_claim.claim else None,
            earlier_accounts=earlier,
            may_grow=not is_left_alone,
            may_start=may_start,
        )
        wanted, made = _wanted(context, inputs)
        if is_left_alone:
            # Whose memory is whose is no matter of the pods: a permission that is taken back must not stay in force.
            # Nor is what becomes of the memory with the store: the claim alone is not made again.
            written = {(kinds.CONFIG_MAP.name, names.bindings(key.name, number)) for number in inputs.parts}
            written |= {claim_key} & children.keys()
            # What has gone with a store that is being deleted must not come back, and hold that up.
            written &= children.keys() if is_being_deleted else written
            kept = frozenset(wanted.digests) - written
            waits_for_resume = store.spec.paused and is_there and _is_changed(store, wanted, workload)
        else:
            staged = _staged(context, store, wanted, children.get(deployment_key)) & children.keys()
            kept = staged
        kept |= {key for key in wanted.digests if kinds.ALL[key[0]] in context.unserved}
        digests = {name: digest for name, digest in wanted.digests.items() if name not in kept}
        try:
            problems = await sync_children(
                context, who, digests, wanted.held | kept, lambda: made or desired_objects(inputs).objects
            )
        except TryLater:
            context.rollouts.end(key)
            raise
        if context.ledger.record(key, rows):
            context.watch_health(key, _FIRST_HEALTH_SECONDS)
        problems += await _sync_bindings(context, who, inputs.parts)
    children = context.cache.children(own_key)
    workload, claim = children.get(deployment_key), children.get(claim_key)
    deployment = workload.deployment if workload else None
    if (workload.accounts_beside("") if workload else ()) != accounts_before:
        context.enqueue([TOKEN_REVIEW])
    if deployment is None or deployment.has_ended or any(item.kind == kinds.DEPLOYMENT.name for item in problems):
        context.rollouts.end(key)
    trouble, pods_after = await pod_trouble(context, own_key, deployment, selector, now)
    snapshot = StoreSnapshot(
        endpoint=network.endpoint(store, context.settings),
        deployment=replace(deployment, trouble=trouble) if deployment else None,
        claim=claim.claim if claim and store.is_local else None,
        wanted_size=str(store.local.persistent_volume.size) if store.is_local else None,
        health=context.health.get(key),
        models=states,
        waits_for_models=not may_start,
        held_by=_held_by(states, models) if has_started and not is_left_alone else None,
        waits_for_resume=waits_for_resume,
        waits_for_turn=bool(staged),
        is_being_deleted=is_being_deleted,
        problems=problems,
        selector=selector,
        schema_name=None if store.is_local else config.schema_name(store),
    )
    patience = timedelta(seconds=context.settings.hysteresis_seconds)
    await write_status(context, who, previous, store_status(store, snapshot, now, patience))
    told = sum(report.ready for report in snapshot.health.reports) if snapshot.health else 0
    is_news = snapshot.deployment is not None and snapshot.deployment.ready != told
    context.watch_health(key, _FIRST_HEALTH_SECONDS if is_news else context.settings.health_seconds)
    again = [pods_after, accounts_after, FRESH_SECONDS if _uses_unknown_rows(context, key) else None]
    if staged:
        again.append(_TURN_SECONDS)
    _wake_next(context)
    if problems:
        again.append(context.settings.refused_seconds)
    if store.spec.tls and store.spec.tls.ca_config_map_ref:
        again.append(AUTHORITY_SECONDS)
    health = snapshot.health
    if health and health.unreachable_since and health.is_in_doubt(now, patience):
        again.append((patience - (now - health.unreachable_since)).total_seconds() + 0.05)
    return min((seconds for seconds in again if seconds is not None), default=None)
