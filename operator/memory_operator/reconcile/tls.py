"""The CA of a store that serves TLS: named in its spec, copied to its agents, trusted for its health reports."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.cluster.keys import ReconcileKey
from memory_operator.crd.base import ObjectKey
from memory_operator.crd.memory_store import MemoryStore, MemoryStoreSpec
from memory_operator.pacing import is_young
from memory_operator.reconcile.context import Context, Source

AUTHORITY_SECONDS = 60.0
"""How often a ConfigMap that is not ours, and so not watched, is read again."""


def _source(spec: MemoryStoreSpec, namespace: str) -> Source | None:
    """Return where a store's CA is read; None where the spec holds it itself, or there is no TLS."""
    reference = spec.tls.ca_config_map_ref if spec.tls else None
    return (ObjectKey(namespace, reference.name), reference.key) if reference else None


def _named(context: Context) -> Iterator[tuple[Source, ObjectKey]]:
    """Yield each CA that a store names, with the store."""
    for store, (_, spec) in context.specs.items():
        source = _source(spec, store.namespace)
        if source is not None:
            yield source, store


def forget_unnamed(context: Context) -> None:
    """Forget the CAs that no store names any more."""
    for source in context.authorities.keys() - {source for source, _ in _named(context)}:
        del context.authorities[source]


def known_authority(context: Context, store: MemoryStore) -> str | None:
    """Return the CA of a store as it was last read; None without TLS or when none was."""
    source = _source(store.spec, store.id.namespace)
    if source is None:
        return store.spec.tls.ca_bundle if store.spec.tls else None
    _, text = context.authorities.get(source, (0.0, None))
    return text


async def authority(context: Context, store: MemoryStore) -> str | None:
    """Return the CA that a store's certificate is checked against; None without TLS or when it cannot be found.

    A change of it is told to the agents of every store that names it.
    """
    source = _source(store.spec, store.id.namespace)
    if source is None:
        return known_authority(context, store)
    now = context.now().timestamp()
    known = context.authorities.get(source)
    if known is not None and is_young(now - known[0], AUTHORITY_SECONDS - 1):
        return known[1]
    config_map, key = source
    live = await context.cluster.get(kinds.CONFIG_MAP, config_map.namespace, config_map.name)
    text = ((live or {}).get("data") or {}).get(key)
    context.authorities[source] = (now, text)
    if known is None or known[1] != text:
        stores = [named_by for named, named_by in _named(context) if named == source]
        agents = itertools.chain.from_iterable(map(context.cache.agents_of, stores))
        context.enqueue(ReconcileKey(names.AGENT_MEMORY, agent) for agent in agents)
    return text
