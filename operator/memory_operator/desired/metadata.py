"""Name, labels and owner reference of every child; the only place that spells them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from memory_operator import names
from memory_operator.crd.base import Identity, JsonObject

Manifest = dict[str, Any]


def store_labels(store: str) -> dict[str, str]:
    """Return the labels of a store's children."""
    return {
        names.NAME_LABEL: "memplane",
        names.COMPONENT_LABEL: "store",
        names.INSTANCE_LABEL: store,
        names.MANAGED_BY_LABEL: names.MANAGED_BY,
        names.STORE_LABEL: store,
    }


def store_selector(store: str) -> dict[str, str]:
    """Return the labels that select a store's pods; they can never change."""
    return {names.STORE_LABEL: store, names.COMPONENT_LABEL: "store"}


def agent_labels(agent: str) -> dict[str, str]:
    """Return the labels of an agent's children."""
    return {
        names.NAME_LABEL: "memplane",
        names.COMPONENT_LABEL: "agent",
        names.INSTANCE_LABEL: agent,
        names.MANAGED_BY_LABEL: names.MANAGED_BY,
        names.AGENT_LABEL: agent,
    }


def owner_reference(owner: Identity) -> JsonObject:
    """Return the reference that makes the garbage collector remove a child with its owner."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def child(
    owner: Identity,
    api_version: str,
    kind: str,
    name: str,
    labels: Mapping[str, str],
    *,
    annotations: Mapping[str, str] | None = None,
    is_owned: bool = True,
    **content: Any,
) -> Manifest:
    """Return a child of this owner, in the owner's namespace."""
    metadata: JsonObject = {"name": name, "namespace": owner.namespace, "labels": dict(labels)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    if is_owned:
        metadata["ownerReferences"] = [owner_reference(owner)]
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


def earlier(annotation: str, values: Sequence[str]) -> dict[str, str]:
    """Return the annotation that keeps, over a restart of the operator, what pods of earlier templates have."""
    return {annotation: ",".join(values)} if values else {}


def checksum(text: str) -> str:
    """Return a short digest of a text, for annotations."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def canonical_json(content: object) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
