"""How objects are called in the caches and in the queue, and which of two versions of one is newer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from memory_operator.cluster import kinds
from memory_operator.crd.base import ObjectKey


class ReconcileKey(NamedTuple):
    """What the queue holds: one object of ours, or the one ClusterRoleBinding (an empty name)."""

    kind: str
    object: ObjectKey


TOKEN_REVIEW = ReconcileKey(kinds.CLUSTER_ROLE_BINDING.name, ObjectKey("", ""))
"""The one ClusterRoleBinding."""


def version(body: Mapping[str, Any]) -> int:
    """Return an object's resourceVersion; the API server's are comparable numbers."""
    return int(body["metadata"]["resourceVersion"])


def key_of(body: Mapping[str, Any]) -> ObjectKey:
    """Return an object's namespace and name."""
    return object_key(body["metadata"].get("namespace", ""), body["metadata"]["name"])


def object_key(namespace: str, name: str) -> ObjectKey:
    """Return a key of which each text is kept once: it stands in many places."""
    return ObjectKey(sys.intern(namespace), sys.intern(name))
