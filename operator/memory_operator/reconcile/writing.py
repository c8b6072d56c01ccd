"""Writes of a reconcile: children by plan, status if it changed, and few events."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC
from typing import Any, Final

from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.cluster.children import Child
from memory_operator.cluster.keys import ReconcileKey
from memory_operator.crd import conditions
from memory_operator.crd.base import Identity, JsonObject, ObjectKey
from memory_operator.crd.conditions import ConditionType, Reason
from memory_operator.desired.metadata import Manifest
from memory_operator.desired.ownership import desired_digest
from memory_operator.desired.plan import ChildKey, plan
from memory_operator.desired.volume import without_growth
from memory_operator.errors import Invalid, MemoryOperatorError, Refused
from memory_operator.reconcile.accounts import claimed_elsewhere
from memory_operator.reconcile.context import Context
from memory_operator.status.announcements import Announcement, announcements
from memory_operator.status.snapshot import ApplyProblem

logger = logging.getLogger(__name__)

_FIXED: Final = {kinds.DEPLOYMENT.name: "spec.selector", kinds.ROLE_BINDING.name: "roleRef"}
"""What of an object no apply can change. People delete it: a Deployment takes its pods along, and of RoleBindings the
operator may delete none.
"""


def _is_ours(owner: Identity, live: Mapping[str, Any]) -> bool:
    """Whether an object that the caches do not show may be taken: ours with lost labels, or a kept claim."""
    meta = live["metadata"]
    controllers = [item["uid"] for item in meta.get("ownerReferences") or () if item.get("controller")]
    if controllers:
        return bool(controllers[0] == owner.uid)
    labels = meta.get("labels") or {}
    label = names.STORE_LABEL if owner.kind == names.MEMORY_STORE else names.AGENT_LABEL
    if labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY and labels.get(label) == owner.name:
        return True
    return any(entry.get("manager") == names.FIELD_MANAGER for entry in meta.get("managedFields") or ())


def _problem(key: ChildKey, error: Refused, *, is_expansion: bool = False) -> ApplyProblem:
    reason = Reason.VOLUME_EXPANSION_REFUSED if is_expansion else Reason.APPLY_FAILED
    message = f"{key[0]} {key[1]!r}: {error}"
    fixed = _FIXED.get(key[0])
    if fixed is not None and isinstance(error, Invalid) and f"{fixed}:" in str(error):
        message += f". Somebody has made it with another {fixed}: delete it, and it is made again."
    return ApplyProblem(key[0], key[1], reason, message)


def note_refused(context: Context, owner: ReconcileKey, key: ChildKey, error: Refused) -> None:
    """Have a reconcile count as refused, and log what of its owner the API server did not take."""
    context.refused.add(owner)
    fields = {"kind": key[0], "object": str(owner.object), "child": key[1], "error": f"{type(error).__name__}: {error}"}
    logger.warning("object refused", extra=fields)


def name_conflict(key: ChildKey) -> ApplyProblem:
    """Return that somebody else has a name that we need."""
    message = f"{key[0]} {key[1]!r} exists and belongs to somebody else; rename it, or this object."
    return ApplyProblem(key[0], key[1], Reason.NAME_CONFLICT, message)


async def sync_children(
    context: Context,
    owner: Identity,
    desired: Mapping[ChildKey, str],
    held: Collection[ChildKey],
    objects: Callable[[], Iterable[Manifest]],
) -> tuple[ApplyProblem, ...]:
    """Make the cluster hold what is desired of one object; return what the API server refused.

    `desired` are the digests of `objects`, which are asked for only when one of them has to be written.

    Raises:
        TryLater: the API server could not do it now; what was written stays, the rest follows with the retry.
    """
    own_key = ReconcileKey(owner.kind, owner.key)
    children = context.cache.children(own_key)
    for key in desired:
        if key not in children:
            other = context.cache.child(kinds.ALL[key[0]], ObjectKey(owner.namespace, key[1]))
            if other is not None:
                children[key] = other
    observed = {key: child.observed for key, child in children.items()}
    todo = plan(owner.uid, desired, held, observed)
    problems = [name_conflict(key) for key in todo.conflicts if children[key].owner != own_key]
    manifests = {(item["kind"], item["metadata"]["name"]): item for item in objects()} if todo.apply else {}
    for key in todo.apply:
        kind = kinds.ALL[key[0]]
        try:
            if key not in children:
                now = context.now().timestamp()
                live = await context.strangers.find(
                    context.cluster, kind, owner.namespace, key[1], at_least=int(owner.version or 0), now=now
                )
                if live is not None and not _is_ours(owner, live):
                    problems.append(name_conflict(key))
                    continue
            elif children[key].is_immutable and observed[key].controller_uid == owner.uid:
                await _clear_away(context, children[key])
            elif observed[key].applied_digest == desired[key]:
                context.metrics.drift.labels(key[0]).inc()
            if key in children and observed[key].is_paused:
                await _resume(context, children[key])
            await apply(context, manifests[key], desired[key])
        except Refused as error:
            note_refused(context, own_key, key, error)
            problems.append(await _refused(context, own_key, manifests[key], children.get(key), error))
    for kind_name, name in todo.delete:
        if kind_name == kinds.SERVICE_ACCOUNT.name and claimed_elsewhere(context, owner.key, name):
            continue
        kind, child = kinds.ALL[kind_name], children[(kind_name, name)]
        await context.cluster.delete(kind, owner.namespace, name, child.uid)
        context.metrics.writes.labels(kind_name, "delete").inc()
        context.cache.remove(kind, child.key, child.uid)
    return tuple(problems)


async def _refused(
    context: Context, own_key: ReconcileKey, manifest: Manifest, there: Child | None, error: Refused
) -> ApplyProblem:
    """Return what of an object is refused. Of a claim that may not grow all else is applied.

    What becomes of the memory with its store must not wait for a volume that never grows.
    """
    key = (manifest["kind"], manifest["metadata"]["name"])
    claim = there.claim if there is not None else None
    rest = without_growth(manifest, claim.requested) if claim is not None else None
    if there is None or rest is None:
        return _problem(key, error)
    digest = desired_digest(rest)
    try:
        if digest not in (there.observed.digest, there.observed.accepted_digest):
            await apply(context, rest, digest)
    except Refused as other:
        note_refused(context, own_key, key, other)
        return _problem(key, other)
    return _problem(key, error, is_expansion=True)


async def _resume(context: Context, workload: Child) -> None:
    """Take back that somebody has paused a Deployment: a field of nobody's, which an apply leaves as it is."""
    kind = kinds.DEPLOYMENT
    meta = {"name": workload.key.name, "namespace": workload.key.namespace, "resourceVersion": str(workload.version)}
    live = await context.cluster.patch(kind, {"metadata": meta, "spec": {"paused": None}})
    context.metrics.writes.labels(kind.name, "patch").inc()
    context.cache.put(kind, live)
    logger.warning("deployment resumed", extra={"child": workload.key.name})


async def _clear_away(context: Context, child: Child) -> None:
    """Delete an object of ours that somebody has made unchangeable, so that it can be made again."""
    kind = kinds.ALL[child.kind]
    await context.cluster.delete(kind, child.key.namespace, child.key.name, child.uid)
    context.metrics.writes.labels(kind.name, "delete").inc()
    context.metrics.drift.labels(kind.name).inc()
    context.cache.remove(kind, child.key, child.uid)
    logger.warning("immutable object deleted", extra={"kind": kind.name, "child": child.key.name})


async def drop_keys(
    context: Context, owner: Identity, wanted: Mapping[str, Collection[str]]
) -> tuple[ApplyProblem, ...]:
    """Take out of an object's ConfigMaps (by name) every key that is not wanted in them; return what was refused.

    Fields of other managers stay elsewhere. Here they count: each key of a store's bindings is an agent's permission,
    and each of an agent's folder a store to which it would show its token.
    """
    kind, problems = kinds.CONFIG_MAP, []
    children = context.cache.children(ReconcileKey(owner.kind, owner.key))
    for name, keys in wanted.items():
        child = children.get((kind.name, name))
        if child is None or child.observed.controller_uid != owner.uid:
            continue
        foreign = dict.fromkeys(sorted(set(child.data_keys).difference(keys)))
        if not foreign:
            continue
        meta = {"name": name, "namespace": owner.namespace, "resourceVersion": str(child.version)}
        try:
            live = await context.cluster.patch(kind, {"metadata": meta, "data": foreign, "binaryData": foreign})
        except Refused as error:
            note_refused(context, ReconcileKey(owner.kind, owner.key), (kind.name, name), error)
            problems.append(_problem((kind.name, name), error))
            continue
        context.metrics.writes.labels(kind.name, "patch").inc()
        context.metrics.drift.labels(kind.name).inc()
        context.cache.put(kind, live)
        logger.warning("keys of somebody else removed", extra={"child": name, "count": len(foreign)})
    return tuple(problems)


async def apply(context: Context, manifest: Manifest, digest: str) -> JsonObject:
    """Apply one object, of this digest, and take the answer into the cache."""
    kind = kinds.ALL[manifest["kind"]]
    live = await context.cluster.apply(kind, manifest)
    context.metrics.writes.labels(kind.name, "apply").inc()
    context.cache.accept(kind, live, digest)
    logger.info("object applied", extra={"kind": kind.name, "child": manifest["metadata"]["name"]})
    return live


def _comparable(status: Mapping[str, Any]) -> JsonObject:
    """Return a status in which the order of the conditions does not count."""
    return {**status, "conditions": sorted(status.get("conditions") or (), key=lambda item: str(item["type"]))}


async def write_status(context: Context, who: Identity, previous: Mapping[str, Any], status: Mapping[str, Any]) -> None:
    """Write a status if it differs from the one that is there, and have those who read it look again.

    Of a start that is under way they hear behind all that somebody has changed: each of them would write that it waits,
    and soon after that it does not, where thousands are made at once.
    """
    if _comparable(previous) == _comparable(status):
        return
    kind = kinds.ALL[who.kind]
    manifest: JsonObject = {
        "apiVersion": names.API_VERSION,
        "kind": who.kind,
        "metadata": {"name": who.name, "namespace": who.namespace, "resourceVersion": who.version},
        "status": dict(status),
    }
    live = await context.cluster.apply_status(kind, manifest)
    context.metrics.writes.labels(who.kind, "status").inc()
    changed = context.cache.put(kind, live)
    is_start = not any(conditions.is_true(item, ConditionType.READY) for item in (previous, status))
    context.enqueue(changed - {ReconcileKey(who.kind, who.key)}, in_background=is_start)
    for announcement in announcements(who.kind, previous, status):
        await _post_event(context, who, announcement)


async def _post_event(context: Context, who: Identity, announcement: Announcement) -> None:
    condition = announcement.condition
    basis = "/".join((who.uid, condition["type"], condition["reason"], condition["lastTransitionTime"]))
    name = f"{who.name}.{hashlib.sha256(basis.encode()).hexdigest()[:16]}"
    event: JsonObject = {
        "apiVersion": kinds.EVENT.api_version,
        "kind": "Event",
        "metadata": {"name": name, "namespace": who.namespace},
        "eventTime": context.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": f"{names.GROUP}/operator",
        "reportingInstance": context.settings.pod_name,
        "action": "Reconcile",
        "reason": announcement.reason,
        "note": announcement.note,
        "type": announcement.severity,
        "regarding": {
            "apiVersion": names.API_VERSION,
            "kind": who.kind,
            "name": who.name,
            "namespace": who.namespace,
            "uid": who.uid,
        },
    }
    try:
        await context.cluster.create(kinds.EVENT, event)
    except MemoryOperatorError as error:
        context.metrics.lost_events.labels(type(error).__name__).inc()
        logger.debug("event not posted", extra={"error": type(error).__name__})
