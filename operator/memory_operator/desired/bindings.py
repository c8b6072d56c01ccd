"""A store's bindings: one row for each agent, laid out over ConfigMaps that each stay below the 1 MiB limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from memory_operator import names
from memory_operator.crd.agent_memory import AgentMemory
from memory_operator.crd.memory_store import MemoryStore
from memory_operator.desired.metadata import Manifest, canonical_json, child, store_labels
from memory_service.contract.bindings import Binding, BindingPolicy, ClientParams
from memory_service.contract.scopes import FailureMode

PART_BYTES: Final = 900_000
"""Bytes of keys and rows in one ConfigMap; the API server's limit is 1,048,576 for the whole object."""
MOUNTED_PARTS: Final = 8
"""Parts that every pod mounts, present or not, so that a growing store never restarts."""
MAX_PARTS: Final = 64
"""Parts that the service follows."""


def policy(agent: AgentMemory, store: MemoryStore | None) -> BindingPolicy:
    """Return what this agent may do in this store; what it leaves open is the store's default, once that is known."""
    spec, default = agent.spec, store.spec.default_failure_mode if store is not None else FailureMode.SOFT
    return BindingPolicy(
        scope=spec.scope,
        read_scopes=spec.read_scopes,
        tools=spec.tools,
        failure_mode=spec.failure_mode or default,
        share_across_users=spec.share_across_users,
        client_params=ClientParams(
            token_budget=spec.client_params.token_budget, rolling_summary=spec.client_params.rolling_summary
        ),
    )


def row(agent: AgentMemory, store: MemoryStore, earlier_account: str | None = None) -> tuple[str, str]:
    """Return the ConfigMap key and the JSON text of an agent's binding.

    With an earlier ServiceAccount: the same binding for the pods that still have that one.
    """
    allowed = policy(agent, store)
    binding = Binding(
        **{name: getattr(allowed, name) for name in BindingPolicy.model_fields},
        agent=names.agent_identity(agent.id.namespace, agent.id.name),
        namespace=agent.id.namespace,
        service_account=earlier_account or agent.service_account,
        created_at=agent.id.created_at,
    )
    text = canonical_json(binding.model_dump(mode="json", by_alias=True))
    if earlier_account is not None:
        return names.earlier_row(agent.id.namespace, agent.id.name, earlier_account), text
    return names.binding_row(agent.id.namespace, agent.id.name), text


def layout(
    rows: Mapping[str, str], placement: Mapping[str, int], part_bytes: int = PART_BYTES
) -> dict[int, dict[str, str]]:
    """Return the rows of each part, from 0 to the last one that has any: a service follows them up to the first gap.

    A row stays in the part in which it is (`placement`) as long as it fits: a row that moved would be missing
    from both parts for a moment, and its agent would be refused.
    """
    parts: dict[int, dict[str, str]] = {0: {}}
    sizes: dict[int, int] = {0: 0}
    homeless = []
    for key in sorted(rows):
        size = len(key.encode()) + len(rows[key].encode())
        number = placement.get(key)
        if number is not None and sizes.get(number, 0) + size <= part_bytes:
            parts.setdefault(number, {})[key] = rows[key]
            sizes[number] = sizes.get(number, 0) + size
        else:
            homeless.append((key, size))
    first_open = 0
    for key, size in homeless:
        while sizes.get(first_open, 0) + size > part_bytes and parts.get(first_open):
            first_open += 1
        parts.setdefault(first_open, {})[key] = rows[key]
        sizes[first_open] = sizes.get(first_open, 0) + size
    return {number: parts.get(number, {}) for number in range(max(parts) + 1)}


def part_number(store: str, config_map: str) -> int | None:
    """Return which part of a store's bindings a ConfigMap of this name is; None when it is none."""
    prefix, _, number = config_map.rpartition("-")
    is_part = prefix == names.bindings_prefix(store) and number.isascii() and number.isdecimal()
    return int(number) if is_part and len(number) <= len(str(MAX_PARTS)) and int(number) < MAX_PARTS else None


def config_maps(store: MemoryStore, parts: Mapping[int, Mapping[str, str]]) -> list[Manifest]:
    """Return the ConfigMaps that hold these parts."""
    manifests = []
    for number, rows in parts.items():
        manifest = child(
            store.id, "v1", "ConfigMap", names.bindings(store.id.name, number), store_labels(store.id.name)
        )
        if rows:
            manifest["data"] = dict(rows)
        manifests.append(manifest)
    return manifests


def config_map_names(store: str, count: int) -> list[str]:
    """Return the names that the pods may read: those that exist, those they mount, and the next one."""
    return [names.bindings(store, number) for number in range(max(MOUNTED_PARTS, count + 1))]
