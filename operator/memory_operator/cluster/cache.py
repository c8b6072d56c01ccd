"""What the watches have told: our own objects whole, their children as the little that a reconcile reads.

A child is kept as a digest of our fields in it, its owner, and a few facts of its kind; so thousands of stores fit
into a small process. Versions decide what is newer: an answer to a write and its echo in a watch are one change.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.cluster.children import Child, child_of
from memory_operator.cluster.keys import TOKEN_REVIEW, ReconcileKey, key_of, version
from memory_operator.cluster.kinds import Kind
from memory_operator.crd import conditions
from memory_operator.crd.agent_memory import MemoryType
from memory_operator.crd.base import JsonObject, ObjectKey
from memory_operator.crd.conditions import ConditionType
from memory_operator.desired.plan import ChildKey

_CONDITIONS: Final = 1024
"""How many different conditions are kept for all objects; what is said more seldom is kept with each of them."""


@dataclass(frozen=True, slots=True)
class _Slice:
    """What is kept of an EndpointSlice."""

    uid: str
    version: int
    owner: ReconcileKey | None
    addresses: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Namespace:
    """What is kept of a namespace."""

    uid: str
    version: int
    labels: Mapping[str, str]


def _shared(value: Any) -> Any:
    """Return a value of which each text is kept once: thousands of objects say the same in the same words."""
    if isinstance(value, str):
        return sys.intern(value)
    if isinstance(value, dict):
        return {sys.intern(name): _shared(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_shared(inner) for inner in value]
    return value


@functools.lru_cache(maxsize=_CONDITIONS)
def _condition(items: tuple[tuple[str, Any], ...]) -> Mapping[str, Any]:
    """Return the one condition that says this; nobody changes what is kept."""
    return {sys.intern(name): _shared(value) for name, value in items}


_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp")
_SHARED_METADATA: Final = ("deletionTimestamp", "labels")


def _stripped(body: Mapping[str, Any]) -> JsonObject:
    given = body["metadata"]
    meta = {name: given[name] for name in _METADATA if name in given}
    meta |= {name: _shared(given[name]) for name in _SHARED_METADATA if name in given}
    kept = {"kind": sys.intern(body["kind"]), "metadata": meta, "spec": _shared(body.get("spec") or {})}
    status = body.get("status")
    if status:
        kept["status"] = _shared({name: value for name, value in status.items() if name != "conditions"})
        kept["status"]["conditions"] = [_condition(tuple(item.items())) for item in conditions.listed(body)]
    return kept


def _discard(index: dict[ObjectKey, set[ObjectKey]], at: ObjectKey, key: ObjectKey) -> None:
    """Take a key out of an index, and its place with the last one: names come and go for as long as we run."""
    found = index[at]
    found.discard(key)
    if not found:
        del index[at]


def _addresses(body: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(address for endpoint in body.get("endpoints") or () for address in endpoint["addresses"])


class Cache:
    """Everything that a reconcile reads. `put` and `remove` return the keys that should be looked at."""

    def __init__(self) -> None:
        self._own: dict[str, dict[ObjectKey, JsonObject]] = {kind.name: {} for kind in kinds.OWN}
        self._told: Counter[tuple[str, str, str, str]] = Counter()
        self._children: dict[str, dict[ObjectKey, Child]] = defaultdict(dict)
        self._by_owner: dict[ReconcileKey, dict[ChildKey, Child]] = defaultdict(dict)
        self._rolling: set[ObjectKey] = set()
        self._unfinished: set[ObjectKey] = set()
        self._slices: dict[ObjectKey, _Slice] = {}
        self._slices_of: dict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        self._namespaces: dict[str, _Namespace] = {}
        self._agents_of_store: dict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        self._agents_of_account: dict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        self._store_of_agent: dict[ObjectKey, ObjectKey] = {}
        self._account_of_agent: dict[ObjectKey, ObjectKey] = {}
        self._stores_of_model: dict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        self._models_of_store: dict[ObjectKey, set[ObjectKey]] = {}

    # --- reading ---------------------------------------------------------------------------------------------------

    def body(self, kind: Kind, key: ObjectKey) -> JsonObject | None:
        """Return one of our objects."""
        return self._own[kind.name].get(key)

    def keys(self, kind: Kind) -> list[ObjectKey]:
        """Return all of our objects of a kind."""
        return sorted(self._own[kind.name])

    def bodies(self, kind: Kind) -> Iterator[JsonObject]:
        """Return all of our objects of a kind, whole."""
        yield from self._own[kind.name].values()

    def told(self) -> dict[tuple[str, str, str, str], int]:
        """Return how many of our objects say what: by kind, type of condition, its status and its reason."""
        return {key: count for key, count in sorted(self._told.items()) if count}

    def children(self, owner: ReconcileKey) -> dict[ChildKey, Child]:
        """Return what exists of one of our objects, by kind and name."""
        return dict(self._by_owner.get(owner, {}))

    def child(self, kind: Kind, key: ObjectKey) -> Child | None:
        """Return one child."""
        return self._children[kind.name].get(key)

    def rolling_stores(self) -> frozenset[ObjectKey]:
        """Return the stores of which the Deployment controller says that their pods are being replaced."""
        return frozenset(self._rolling)

    def unfinished_stores(self) -> frozenset[ObjectKey]:
        """Return the stores that lack pods of the newest template or have older ones, for however long."""
        return frozenset(self._unfinished)

    def agents_of(self, store: ObjectKey) -> list[ObjectKey]:
        """Return the AgentMemories that name a store."""
        return sorted(self._agents_of_store.get(store, ()))

    def has_agents(self, store: ObjectKey) -> bool:
        """Whether any AgentMemory names a store."""
        return bool(self._agents_of_store.get(store))

    def agents_with_account(self, account: ObjectKey) -> list[ObjectKey]:
        """Return the AgentMemories that claim a ServiceAccount."""
        return sorted(self._agents_of_account.get(account, ()))

    def account_of(self, agent: ObjectKey) -> ObjectKey | None:
        """Return the ServiceAccount that an AgentMemory claims; a local one claims none."""
        return self._account_of_agent.get(agent)

    def stores_of_model(self, model: ObjectKey) -> list[ObjectKey]:
        """Return the stores that name a ModelAPI."""
        return sorted(self._stores_of_model.get(model, ()))

    def namespace_labels(self, namespace: str) -> dict[str, str] | None:
        """Return a namespace's labels; None where they are not known: not yet, or because no namespace is watched."""
        known = self._namespaces.get(namespace)
        return dict(known.labels) if known else None

    def addresses(self, store: ObjectKey) -> tuple[str, ...]:
        """Return the addresses of a store's pods, of those that are not ready too."""
        found: set[str] = set()
        for item in self._slices_of.get(store, ()):
            found |= self._slices[item].addresses
        return tuple(sorted(found))

    def knows(self, kind: Kind, body: Mapping[str, Any]) -> bool:
        """Whether one of our objects, or a namespace, is here, as new as this or newer."""
        if kind == kinds.NAMESPACE:
            namespace = self._namespaces.get(body["metadata"]["name"])
            return namespace is not None and namespace.version >= version(body)
        own = self._own[kind.name].get(key_of(body))
        return own is not None and version(own) >= version(body)

    # --- writing ---------------------------------------------------------------------------------------------------

    def put(self, kind: Kind, body: Mapping[str, Any]) -> set[ReconcileKey]:
        """Take what is known of an object; nothing changes when that is not newer than what is here."""
        if kind in kinds.OWN:
            return self._put_own(kind, body)
        if kind == kinds.ENDPOINT_SLICE:
            return self._put_slice(body)
        if kind == kinds.NAMESPACE:
            return self._put_namespace(body)
        return self._put_child(kind, body)

    def remove(self, kind: Kind, key: ObjectKey, uid: str | None = None) -> set[ReconcileKey]:
        """Forget an object, unless another one has taken its name (`uid`)."""
        if kind in kinds.OWN:
            body = self._own[kind.name].get(key)
            if body is None or (uid is not None and body["metadata"]["uid"] != uid):
                return set()
            self._keep_own(kind, key, None)
            return self._index(kind, key, None)
        if kind == kinds.ENDPOINT_SLICE:
            return self._remove_slice(key)
        if kind == kinds.NAMESPACE:
            known = self._namespaces.get(key.name)
            if known is None or uid not in (None, known.uid):
                return set()
            del self._namespaces[key.name]
            return self._in_namespace(key.name)
        child = self._children[kind.name].get(key)
        if child is None or (uid is not None and child.uid != uid):
            return set()
        self._drop_child(child)
        return self._interested(child)

    def accept(self, kind: Kind, body: Mapping[str, Any], desired_digest: str) -> None:
        """Take the answer to an apply: this desired digest is what the server made of the object."""
        child = child_of(body, kind)
        observed = replace(child.observed, accepted_digest=desired_digest, applied_digest=desired_digest)
        accepted = replace(child, observed=observed)
        old = self._children[kind.name].get(child.key)
        if old is None or old.version <= child.version:
            self._keep_child(accepted)

    def missing(self, kind: Kind, there: Mapping[ObjectKey, str], at: int) -> list[tuple[ObjectKey, str]]:
        """Return what is here, is not younger than a complete list (each object's UID), and is not in it."""
        found = []
        for key, uid, seen in self._known(kind):
            if there.get(key) != uid and seen <= at:
                found.append((key, uid))
        return found

    def _known(self, kind: Kind) -> list[tuple[ObjectKey, str, int]]:
        if kind in kinds.OWN:
            return [(key, body["metadata"]["uid"], version(body)) for key, body in self._own[kind.name].items()]
        if kind == kinds.ENDPOINT_SLICE:
            return [(key, item.uid, item.version) for key, item in self._slices.items()]
        if kind == kinds.NAMESPACE:
            return [(ObjectKey("", name), item.uid, item.version) for name, item in self._namespaces.items()]
        return [(child.key, child.uid, child.version) for child in self._children[kind.name].values()]

    def _put_own(self, kind: Kind, body: Mapping[str, Any]) -> set[ReconcileKey]:
        key = key_of(body)
        old = self._own[kind.name].get(key)
        if self.knows(kind, body):
            return set()
        kept = _stripped(body)
        self._keep_own(kind, key, kept)
        if old is not None and _relevant(kind, old) == _relevant(kind, kept):
            return {ReconcileKey(kind.name, key)}
        return self._index(kind, key, kept)

    def _keep_own(self, kind: Kind, key: ObjectKey, body: JsonObject | None) -> None:
        """Keep one of our objects, or none any more, and count what it says: counting all at a scrape takes long."""
        objects = self._own[kind.name]
        for item in conditions.listed(objects.get(key)):
            self._told[(kind.name, item["type"], item["status"], item["reason"])] -= 1
        for item in conditions.listed(body):
            self._told[(kind.name, item["type"], item["status"], item["reason"])] += 1
        if body is None:
            del objects[key]
        else:
            objects[key] = body

    def _index(self, kind: Kind, key: ObjectKey, body: JsonObject | None) -> set[ReconcileKey]:
        found = {ReconcileKey(kind.name, key)}
        if kind == kinds.AGENT_MEMORY:
            found |= self._index_agent(key, body)
        elif kind == kinds.MEMORY_STORE:
            wanted = {ObjectKey(key.namespace, name) for name in _named_models(body)} if body else set()
            for model in self._models_of_store.pop(key, set()) - wanted:
                _discard(self._stores_of_model, model, key)
            for model in wanted:
                self._stores_of_model[model].add(key)
            if wanted:
                self._models_of_store[key] = wanted
            found |= {ReconcileKey(names.AGENT_MEMORY, agent) for agent in self.agents_of(key)}
            found.add(TOKEN_REVIEW)
        else:
            found |= {ReconcileKey(names.MEMORY_STORE, store) for store in self.stores_of_model(key)}
        return found

    def _index_agent(self, key: ObjectKey, body: JsonObject | None) -> set[ReconcileKey]:
        found: set[ReconcileKey] = set()
        store, account = _claims(key, body) if body else (None, None)
        old_store = self._store_of_agent.pop(key, None)
        if old_store is not None:
            _discard(self._agents_of_store, old_store, key)
            found.add(ReconcileKey(names.MEMORY_STORE, old_store))
        if store is not None:
            self._store_of_agent[key] = store
            self._agents_of_store[store].add(key)
            found.add(ReconcileKey(names.MEMORY_STORE, store))
        old_account = self._account_of_agent.pop(key, None)
        if old_account is not None:
            _discard(self._agents_of_account, old_account, key)
        if account is not None:
            self._account_of_agent[key] = account
            self._agents_of_account[account].add(key)
        for claimed in {old_account, account} - {None}:
            assert claimed is not None
            rivals = self._agents_of_account.get(claimed, set())
            if len(rivals | {key}) > 1:
                found |= {ReconcileKey(names.AGENT_MEMORY, rival) for rival in rivals}
                found |= {
                    ReconcileKey(names.MEMORY_STORE, self._store_of_agent[rival])
                    for rival in rivals
                    if rival in self._store_of_agent
                }
        return found

    def _put_slice(self, body: Mapping[str, Any]) -> set[ReconcileKey]:
        key = key_of(body)
        old = self._slices.get(key)
        if old is not None and old.version >= version(body):
            return set()
        store = (body["metadata"].get("labels") or {}).get(names.STORE_LABEL)
        owner = ReconcileKey(names.MEMORY_STORE, ObjectKey(key.namespace, store)) if store else None
        self._remove_slice(key)
        self._slices[key] = _Slice(body["metadata"]["uid"], version(body), owner, _addresses(body))
        if owner is None:
            return set()
        self._slices_of[owner.object].add(key)
        return {owner} if old is None or old.addresses != self._slices[key].addresses else set()

    def _remove_slice(self, key: ObjectKey) -> set[ReconcileKey]:
        old = self._slices.pop(key, None)
        if old is None or old.owner is None:
            return set()
        _discard(self._slices_of, old.owner.object, key)
        return {old.owner}

    def _put_namespace(self, body: Mapping[str, Any]) -> set[ReconcileKey]:
        name, labels = body["metadata"]["name"], dict(body["metadata"].get("labels") or {})
        old = self._namespaces.get(name)
        if self.knows(kinds.NAMESPACE, body):
            return set()
        self._namespaces[name] = _Namespace(body["metadata"]["uid"], version(body), labels)
        if old is not None and old.labels == labels:
            return set()
        return self._in_namespace(name)

    def _in_namespace(self, name: str) -> set[ReconcileKey]:
        """Return what a selector of namespaces may mean: the agents of one, and their stores."""
        agents = [key for key in self._own[names.AGENT_MEMORY] if key.namespace == name]
        found = {ReconcileKey(names.AGENT_MEMORY, key) for key in agents}
        return found | {
            ReconcileKey(names.MEMORY_STORE, self._store_of_agent[key]) for key in agents if key in self._store_of_agent
        }

    def _put_child(self, kind: Kind, body: Mapping[str, Any]) -> set[ReconcileKey]:
        key = key_of(body)
        old = self._children[kind.name].get(key)
        if old is not None and old.version >= version(body):
            return set()
        child = child_of(body, kind)
        if old is not None and old.uid == child.uid:
            before, observed = old.observed, replace(child.observed, applied_digest=old.observed.applied_digest)
            if before.digest == observed.digest:
                observed = replace(observed, accepted_digest=before.accepted_digest)
            child = replace(child, observed=observed)
        self._keep_child(child)
        is_same = old is not None and replace(old, version=child.version) == child
        found = set() if is_same else self._interested(child)
        if old is not None and old.owner is not None and old.owner != child.owner:
            found.add(old.owner)
        return found

    def _keep_child(self, child: Child) -> None:
        old = self._children[child.kind].get(child.key)
        if old is not None:
            self._drop_child(old)
        self._children[child.kind][child.key] = child
        if child.owner is not None:
            self._by_owner[child.owner][(child.kind, child.key.name)] = child
            if child.owner.kind == names.MEMORY_STORE and child.deployment is not None:
                if child.deployment.is_rolling:
                    self._rolling.add(child.owner.object)
                if child.deployment.is_unfinished:
                    self._unfinished.add(child.owner.object)

    def _drop_child(self, child: Child) -> None:
        self._children[child.kind].pop(child.key, None)
        if child.owner is not None:
            siblings = self._by_owner[child.owner]
            siblings.pop((child.kind, child.key.name), None)
            if not siblings:
                del self._by_owner[child.owner]
            if child.owner.kind == names.MEMORY_STORE and child.deployment is not None:
                self._rolling.discard(child.owner.object)
                self._unfinished.discard(child.owner.object)

    def _interested(self, child: Child) -> set[ReconcileKey]:
        if child.kind == kinds.CLUSTER_ROLE_BINDING.name:
            return {TOKEN_REVIEW}
        return {child.owner} if child.owner is not None else set()


def _relevant(kind: Kind, body: JsonObject) -> object:
    """Return what others read of one of our objects: its spec's age and, but for a binding, whether it is ready."""
    meta = body["metadata"]
    basis = (meta["uid"], meta.get("generation"), meta.get("deletionTimestamp"))
    if kind == kinds.AGENT_MEMORY:
        return basis
    ready = conditions.by_type(body.get("status") or {}).get(ConditionType.READY, {})
    message = "" if ready.get("status") == "True" else ready.get("message")
    return (*basis, ready.get("status"), ready.get("reason"), ready.get("lastTransitionTime"), message)


def _named_models(body: JsonObject) -> set[str]:
    models = body["spec"].get("models") or {}
    return {model["modelAPI"] for model in models.values() if isinstance(model, dict) and "modelAPI" in model}


def _claims(key: ObjectKey, body: JsonObject) -> tuple[ObjectKey | None, ObjectKey | None]:
    """Return the store that an AgentMemory names and the ServiceAccount that it claims; a local one claims none."""
    spec = body["spec"]
    store = spec.get("memoryStore")
    if store is None or spec.get("type") == MemoryType.LOCAL:
        return None, None
    account = (spec.get("agent") or {}).get("serviceAccountName") or key.name
    namespace = spec.get("memoryStoreNamespace") or key.namespace
    return ObjectKey(namespace, store), ObjectKey(key.namespace, account)
