"""Which bindings count: the store allows the namespace, and no older binding has the ServiceAccount."""

from __future__ import annotations

from memory_operator.cluster import kinds
from memory_operator.crd.agent_memory import AgentMemory
from memory_operator.crd.base import ObjectKey
from memory_operator.crd.memory_store import MemoryStore
from memory_operator.reconcile.context import Context


def is_allowed(context: Context, store: MemoryStore, namespace: str) -> bool:
    """Whether agents of a namespace may bind to a store; its own namespace always may.

    Where a namespace's labels are not known no selector matches: "not in", and an empty one, would match anything.
    """
    if namespace == store.id.namespace:
        return True
    allowed = store.spec.access.allowed_namespaces
    if namespace in allowed.names:
        return True
    labels = context.cache.namespace_labels(namespace)
    return allowed.selector is not None and labels is not None and allowed.selector.matches(labels)


def holder(context: Context, account: ObjectKey) -> ObjectKey | None:
    """Return the AgentMemory to which a ServiceAccount belongs: the oldest, and by name of two of one second."""
    claims = []
    for key in context.cache.agents_with_account(account):
        body = context.cache.body(kinds.AGENT_MEMORY, key)
        if body is not None and not body["metadata"].get("deletionTimestamp"):
            claims.append((body["metadata"]["creationTimestamp"], key.name, key))
    return min(claims)[2] if claims else None


def rival(context: Context, agent: AgentMemory) -> str | None:
    """Return the name of the older binding that has an agent's ServiceAccount; None when it is the agent's own."""
    if agent.store is None:
        return None
    found = holder(context, ObjectKey(agent.id.namespace, agent.service_account))
    return None if found in (None, agent.key) else found.name if found else None


def is_holder(context: Context, agent: ObjectKey) -> bool:
    """Whether the ServiceAccount that an agent claims is its own."""
    account = context.cache.account_of(agent)
    return account is None or holder(context, account) in (None, agent)
