"""Everything that a store needs in the cluster, in the order in which it is applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from memory_operator import names
from memory_operator.crd.memory_store import MemoryStore
from memory_operator.crd.model_api import ModelApi
from memory_operator.desired import access, bindings, config, network, volume, workload
from memory_operator.desired.metadata import Manifest
from memory_operator.settings import OperatorSettings


@dataclass(frozen=True)
class StoreInputs:
    """What a store's objects depend on."""

    store: MemoryStore
    settings: OperatorSettings
    models: Mapping[str, ModelApi] = field(default_factory=dict)
    """The ModelAPIs that it names, by name, as they are, or as they were when they last were valid."""
    parts: Mapping[int, Mapping[str, str]] = field(default_factory=lambda: bindings.layout({}, {}))
    """The bindings: for each part, ConfigMap key to JSON text."""
    existing_claim: volume.ExistingClaim | None = None
    earlier_accounts: tuple[str, ...] = ()
    """ServiceAccounts that pods of earlier templates may still have: they keep what those pods need."""
    may_grow: bool = True
    """Whether an existing claim may be made larger."""
    may_start: bool = True
    """Whether the Deployment may be made or changed: False until the ModelAPIs are ready for the first time."""


@dataclass(frozen=True)
class Desired:
    """What should exist. `held` objects are neither changed nor removed: what they need is missing for now."""

    objects: tuple[Manifest, ...]
    held: frozenset[tuple[str, str]] = frozenset()


def desired_objects(inputs: StoreInputs) -> Desired:
    """Return a store's objects in the order in which they are applied."""
    store, settings = inputs.store, inputs.settings
    objects: list[Manifest] = [
        *access.service_account(store),
        *access.bindings_role(
            store, bindings.config_map_names(store.id.name, len(inputs.parts)), inputs.earlier_accounts
        ),
        *bindings.config_maps(store, inputs.parts),
        network.service(store),
    ]
    if settings.network_policies:
        objects.append(network.network_policy(store, settings))
    if store.is_local:
        objects.append(volume.claim(store, inputs.existing_claim, may_grow=inputs.may_grow))
    objects += workload.disruption_budget(store)
    held = {("ServiceAccount", account) for account in (access.account_name(store), *inputs.earlier_accounts)}
    if all(name in inputs.models for name in store.model_apis):
        text = config.config_text(config.service_config(store, inputs.models, settings))
        objects.append(config.config_map(store, inputs.models, text))
        if inputs.may_start:
            objects.append(workload.deployment(store, inputs.models, text, settings, inputs.earlier_accounts))
    else:
        held.add(("ConfigMap", names.config(store.id.name)))
    if objects[-1]["kind"] != "Deployment":
        held.add(("Deployment", names.memory(store.id.name)))
    if settings.service_monitors:
        objects.append(network.service_monitor(store, settings))
    return Desired(tuple(objects), frozenset(held))
