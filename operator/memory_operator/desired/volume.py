"""The claim of a local store: kept when the store goes, adopted again, grown and never shrunk."""

from __future__ import annotations

from dataclasses import dataclass

from memory_operator import names
from memory_operator.crd.base import JsonObject
from memory_operator.crd.memory_store import MemoryStore, RetentionPolicy
from memory_operator.crd.quantity import canonical, is_larger
from memory_operator.desired.metadata import Manifest, child, store_labels


@dataclass(frozen=True)
class ExistingClaim:
    """What is fixed in a claim that is there already."""

    size: str
    storage_class_name: str | None
    access_modes: tuple[str, ...]


def claim(store: MemoryStore, existing: ExistingClaim | None, *, may_grow: bool = True) -> Manifest:
    """Return the claim to apply; of an existing one, what cannot change stays as it is."""
    wanted = store.local.persistent_volume
    size, class_name = canonical(wanted.size), wanted.storage_class_name
    modes: tuple[str, ...] = (wanted.access_mode,)
    if existing is not None:
        size = canonical(existing.size) if not may_grow or is_larger(existing.size, size) else size
        class_name, modes = existing.storage_class_name, existing.access_modes
    spec: JsonObject = {"accessModes": list(modes), "resources": {"requests": {"storage": size}}}
    if class_name is not None:
        spec["storageClassName"] = class_name
    return child(
        store.id,
        "v1",
        "PersistentVolumeClaim",
        names.volume_claim(store.id.name),
        store_labels(store.id.name),
        is_owned=store.local.persistent_volume_claim_retention_policy is RetentionPolicy.DELETE,
        spec=spec,
    )


def without_growth(manifest: Manifest, size: str) -> Manifest | None:
    """Return a claim that is to grow as it would be applied at the size that it has; None for one that is not to."""
    if not is_larger(manifest["spec"]["resources"]["requests"]["storage"], size):
        return None
    return {**manifest, "spec": {**manifest["spec"], "resources": {"requests": {"storage": canonical(size)}}}}
