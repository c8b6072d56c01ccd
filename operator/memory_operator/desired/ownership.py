"""Which fields of a live object are ours, and whether they still say what we want.

Server-side apply records in `managedFields` the fields that a manager has applied. The part of a live object under
our own entry is therefore what we wanted when we last applied, with the values of today: an edit moves a field's
ownership away, a removed label is missing, a field that we no longer render is still there. Comparing digests of it
finds every drift, ignores what others add, and lets the cache keep a digest in place of an object. Digests are never
written anywhere: they are built from `hash`, which costs a third of a text and its SHA-256, and mean nothing elsewhere.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from memory_operator import names
from memory_operator.desired.metadata import Manifest

_read = functools.lru_cache(maxsize=1024)(json.loads)
"""The keys of list items in field sets are the same few in all objects; nobody changes what is read."""


def _matching(items: list[Any], key: Mapping[str, Any]) -> Any:
    for item in items:
        if isinstance(item, dict) and key.items() <= item.items():
            return item
    return None


def _mark(value: Any) -> int:
    """Return a number that is the same for equal values, within this process.

    The order of keys does not count, nor that of lists of objects: their order on the server is not ours.
    """
    if isinstance(value, str):
        return hash(value)
    if isinstance(value, dict):
        # Most values are texts: a call for each of them would be most of the work.
        return hash(frozenset([(key, hash(item) if type(item) is str else _mark(item)) for key, item in value.items()]))
    if isinstance(value, list | tuple):
        return _mark_of_list(value, [_mark(item) for item in value])
    # By its text: 1 and True are not the same, and -1 and -2 have one hash.
    return hash(("scalar", repr(value)))


def _mark_of_list(items: Sequence[Any], marks: list[int]) -> int:
    if all(isinstance(item, dict) for item in items):
        marks.sort()
    return hash(("list", *marks))


def _mark_of_ours(live: Any, owned: Mapping[str, Any]) -> int:
    """Return the mark of the part of a live value that this set of fields covers; an empty set is all of it."""
    if not owned:
        return _mark(live)
    if isinstance(live, dict):
        found = []
        for path, inner in owned.items():
            name = path[2:]
            if name in live and path.startswith("f:"):
                item = live[name]
                is_text = not inner and type(item) is str
                found.append((name, hash(item) if is_text else _mark_of_ours(item, inner)))
        return hash(frozenset(found))
    if isinstance(live, list) and owned.keys() != {"."}:
        items, marks = [], []
        for path, inner in owned.items():
            item = _item(live, path)
            if item is not None:
                items.append(item)
                marks.append(_mark_of_ours(item, {} if path.startswith("v:") else inner))
        return _mark_of_list(items, marks)
    return _mark(live)


def _item(live: list[Any], path: str) -> Any:
    """Return the item of a live list that a path of a field set names; None when it is not there."""
    match path[:2]:
        case "k:":
            return _matching(live, _read(path[2:]))
        case "v:":
            value = _read(path[2:])
            return value if value in live else None
        case "i:":
            return live[int(path[2:])]
        case _:
            return None


def _digest(mark: int) -> str:
    return f"{mark:x}"


def desired_digest(manifest: Manifest) -> str:
    """Return the digest of what we want."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key not in ("name", "namespace")}
    content = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind", "metadata")}
    return _digest(_mark({**content, "metadata": metadata} if metadata else content))


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
    return "" if owned is None else _digest(_mark_of_ours(live, owned))


def is_ours(live: Mapping[str, Any], *path: str) -> bool:
    """Whether our last apply has set this field."""
    return _within(_owned(live), path) is not None


def own_annotations(live: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the annotations of this object that our last apply has set: what somebody else writes there is no word of
    ours, and grants nothing.
    """
    ours = _within(_owned(live), ("metadata", "annotations")) or {}
    there = live["metadata"].get("annotations") or {}
    return {name: text for name, text in there.items() if f"f:{name}" in ours}


def _within(owned: Mapping[str, Any] | None, path: Sequence[str]) -> Mapping[str, Any] | None:
    for name in path:
        owned = (owned or {}).get(f"f:{name}")
    return owned
