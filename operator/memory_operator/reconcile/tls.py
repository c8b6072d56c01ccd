"""The CA of a store that serves TLS: named in its spec, copied to its agents, trusted for its health reports."""

from __future__ import annotations

from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.cluster.keys import ReconcileKey
from memory_operator.crd.base import ObjectKey
from memory_operator.crd.memory_store import MemoryStore, MemoryStoreSpec
from memory_operator.reconcile.context import Context

AUTHORITY_SECONDS = 60.0
"""How often a ConfigMap that is not ours, and so not watched, is read again."""


def _named(store: MemoryStoreSpec, namespace: str) -> ObjectKey | None:
    reference = store.tls.ca_config_map_ref if store.tls else None
    return ObjectKey(namespace, reference.name) if reference else None


def forget_unnamed(context: Context) -> None:
    """Forget the CAs that no store names any more."""
    named = {_named(spec, key.namespace) for key, (_, spec) in context.specs.items()}
    for key in context.authorities.keys() - named:
        del context.authorities[key]


async def authority(context: Context, store: MemoryStore) -> str | None:
    """Return the CA that a store's certificate is checked against; None without TLS or when it cannot be found."""
    if store.spec.tls is None:
        return None
    if store.spec.tls.ca_bundle is not None:
        return store.spec.tls.ca_bundle
    reference = store.spec.tls.ca_config_map_ref
    assert reference is not None, "one of the two is there in a valid spec"
    key = ObjectKey(store.id.namespace, reference.name)
    now = context.now().timestamp()
    known = context.authorities.get(key)
    if known is not None and now - known[0] < AUTHORITY_SECONDS - 1:
        return known[1]
    live = await context.cluster.get(kinds.CONFIG_MAP, key.namespace, key.name)
    text = ((live or {}).get("data") or {}).get(reference.key)
    context.authorities[key] = (now, text)
    if known is None or known[1] != text:
        agents = context.cache.agents_of(store.key)
        context.enqueue(ReconcileKey(names.AGENT_MEMORY, agent) for agent in agents)
    return text
