"""Which fields of a live object are ours, and whether they still say what we want.

Server-side apply records in `managedFields` the fields that a manager has applied. The part of a live object under
our own entry is therefore what we wanted when we last applied, with the values of today: an edit moves a field's
ownership away, a removed label is missing, a field that we no longer render is still there. Comparing digests of it
finds every drift, ignores what others add, and lets the cache keep a digest in place of an object. Digests are never
written anywhere: they are built from `hash`, which costs a third of a text and its SHA-256, and mean nothing elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from memory_operator import names
from memory_operator.desired.metadata import Manifest


def _matching(items: list[Any], key: Mapping[str, Any]) -> Any:
    for item in items:
        if isinstance(item, dict) and all(item.get(name) == value for name, value in key.items()):
            return item
    return None


def _view(live: Any, owned: Mapping[str, Any]) -> Any:
    """Return the part of a live value that this set of fields covers; an empty set is all of it."""
    if not owned or set(owned) == {"."}:
        return live if not owned else ({} if isinstance(live, dict) else live)
    if isinstance(live, dict):
        return {
            path[2:]: _view(live[path[2:]], inner)
            for path, inner in owned.items()
            if path.startswith("f:") and path[2:] in live
        }
    if isinstance(live, list):
        found = []
        for path, inner in owned.items():
            if path.startswith("k:"):
                item = _matching(live, json.loads(path[2:]))
                if item is not None:
                    found.append(_view(item, inner))
            elif path.startswith("v:"):
                value = json.loads(path[2:])
                if value in live:
                    found.append(value)
            elif path.startswith("i:"):
                found.append(_view(live[int(path[2:])], inner))
        return found
    return live


def _mark(value: Any) -> int:
    """Return a number that is the same for equal values, within this process.

    The order of keys does not count, nor that of lists of objects: their order on the server is not ours.
    """
    if isinstance(value, str):
        return hash(value)
    if isinstance(value, dict):
        return hash(frozenset([(key, _mark(item)) for key, item in value.items()]))
    if isinstance(value, list):
        marks = [_mark(item) for item in value]
        if all(isinstance(item, dict) for item in value):
            marks.sort()
        return hash(("list", *marks))
    return hash(("scalar", repr(value)))


def _digest(content: Mapping[str, Any]) -> str:
    return f"{_mark(content):x}"


def desired_digest(manifest: Manifest) -> str:
    """Return the digest of what we want."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key not in ("name", "namespace")}
    content = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind", "metadata")}
    return _digest({**content, "metadata": metadata} if metadata else content)


def _owned(live: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the fields of this object that our last apply has set; None when we never applied it."""
    for entry in live["metadata"].get("managedFields") or ():
        is_apply = entry.get("manager") == names.FIELD_MANAGER and entry.get("operation") == "Apply"
        if is_apply and not entry.get("subresource"):
            return entry.get("fieldsV1") or {}
    return None


def live_digest(live: Mapping[str, Any]) -> str:
    """Return the digest of what our last apply left in this object; empty when we never applied it."""
    owned = _owned(live)
    return "" if owned is None else _digest(_view(live, owned))


def is_ours(live: Mapping[str, Any], *path: str) -> bool:
    """Whether our last apply has set this field."""
    owned = _owned(live)
    for name in path:
        owned = (owned or {}).get(f"f:{name}")
    return owned is not None
