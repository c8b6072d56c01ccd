"""An API server in memory, for what a real one cannot be told to do: stop after a write, lose a reply, drop an event.

It is held to the real one by `cluster_contract`. It has what the operator leans on: resource versions, generations,
server-side apply with field ownership, status apart from spec, preconditions, label selectors, watch events.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.cluster.client import Listing
from memory_operator.cluster.kinds import Kind
from memory_operator.crd.base import ObjectKey
from memory_operator.crd.quantity import is_larger
from memory_operator.errors import Conflict, Invalid, NotFound

Json = dict[str, Any]
Path = tuple[str, ...]
Watcher = Callable[[Kind, str, Json], None]

_MERGE_KEYS: dict[str, tuple[tuple[str, ...], ...]] = {
    "containers": (("name",),),
    "initContainers": (("name",),),
    "env": (("name",),),
    "volumes": (("name",),),
    "imagePullSecrets": (("name",),),
    "volumeMounts": (("mountPath",),),
    "conditions": (("type",),),
    "ownerReferences": (("uid",),),
    "topologySpreadConstraints": (("topologyKey", "whenUnsatisfiable"),),
    "ports": (("containerPort", "protocol"), ("port", "protocol")),
}
_ATOMIC = {"selector", "podSelector", "roleRef", "fieldRef", "secretKeyRef", "configMapKeyRef", "nodeSelector"}
_ATOMIC_LISTS_BELOW = {"ingress"}
_NOTE_BYTES = 1024


def _merge_key(name: str, items: list[Any]) -> tuple[str, ...] | None:
    for candidate in _MERGE_KEYS.get(name, ()):
        if items and all(isinstance(item, dict) and all(part in item for part in candidate) for item in items):
            return candidate
    return None


def _element(item: Mapping[str, Any], key: Iterable[str]) -> str:
    return "k:" + json.dumps({part: item[part] for part in key}, separators=(",", ":"), sort_keys=True)


def leaves(value: Any, path: Path = ()) -> dict[Path, Any]:
    """Return the paths that an apply of this value owns, with their values."""
    name = path[-1][2:] if path else ""
    if isinstance(value, dict) and value and name not in _ATOMIC:
        found: dict[Path, Any] = {}
        for key, inner in value.items():
            found |= leaves(inner, (*path, f"f:{key}"))
        return found
    if isinstance(value, list) and name not in _ATOMIC_LISTS_BELOW and (key := _merge_key(name, value)):
        found = {}
        for item in value:
            element = (*path, _element(item, key))
            found[(*element, ".")] = None
            found |= leaves(item, element)
        return found
    return {path: value}


def _fields(paths: Iterable[Path]) -> Json:
    tree: Json = {}
    for path in sorted(paths):
        node = tree
        for part in path:
            node = node.setdefault(part, {})
    return tree


def _find(live: Any, path: Path) -> tuple[bool, Any]:
    for part in path:
        if part == ".":
            return True, live
        if part.startswith("f:"):
            if not isinstance(live, dict) or part[2:] not in live:
                return False, None
            live = live[part[2:]]
        else:
            wanted = json.loads(part[2:])
            live = next((item for item in live if all(item.get(k) == v for k, v in wanted.items())), None)
            if live is None:
                return False, None
    return True, live


def _write(live: Json, path: Path, value: Any) -> None:
    node: Any = live
    for position, part in enumerate(path):
        is_last = position == len(path) - 1
        if part == ".":
            return
        if part.startswith("f:"):
            if is_last:
                node[part[2:]] = copy.deepcopy(value)
                return
            follows = path[position + 1]
            node = node.setdefault(part[2:], [] if follows.startswith("k:") else {})
        else:
            wanted = json.loads(part[2:])
            item = next((item for item in node if all(item.get(k) == v for k, v in wanted.items())), None)
            if item is None:
                item = dict(wanted)
                node.append(item)
            node = item


def _erase(live: Json, path: Path) -> None:
    is_item = path[-1] == "."
    target = path[:-1] if is_item else path
    found, node = _find(live, target[:-1])
    if not found:
        return
    last = target[-1]
    if last.startswith("f:"):
        node.pop(last[2:], None)
    elif is_item:
        wanted = json.loads(last[2:])
        node[:] = [item for item in node if not all(item.get(k) == v for k, v in wanted.items())]
    if not node and len(target) > 1 and isinstance(node, dict):
        parent_path = target[:-1]
        if parent_path[-1].startswith("f:"):
            _erase(live, parent_path)


class FakeCluster:
    """Objects by kind and name. `before_write` and `after_write` may raise: a crash before or after the write."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self.now = now
        self.objects: dict[tuple[str, ObjectKey], Json] = {}
        self.writes: list[tuple[str, str, str]] = []
        self.before_write: Callable[[int], None] = lambda number: None
        self.after_write: Callable[[int], None] = lambda number: None
        self.before_read: Callable[[], None] = lambda: None
        self.watchers: list[Watcher] = []
        self._version = 1000
        self._uids = 0
        self._owned: dict[str, dict[tuple[str, str, str], set[Path]]] = {}

    # --- the port --------------------------------------------------------------------------------------------------

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        """Return an object, or None."""
        self.before_read()
        live = self.objects.get((kind.name, ObjectKey(namespace if kind.is_namespaced else "", name)))
        return self._shown(live) if live is not None else None

    async def list(self, kind: Kind, namespace: str | None, selector: str) -> Listing:
        """Return the objects that match."""
        self.before_read()
        found = [
            self._shown(live)
            for (name, key), live in sorted(self.objects.items())
            if name == kind.name and namespace in (None, key.namespace) and _matches(live, selector)
        ]
        return Listing(tuple(found), self._version)

    async def pages(self, kind: Kind, namespace: str | None, selector: str) -> AsyncIterator[Listing]:
        """Return the objects that match, page by page."""
        found = await self.list(kind, namespace, selector)
        half = len(found.items) // 2
        for items in (found.items[:half], found.items[half:]):
            yield Listing(items, found.resource_version)

    async def list_unmanaged(self, kind: Kind, namespace: str) -> Listing | None:
        """Return the metadata of the objects without our label."""
        self.before_read()
        found = [
            {"metadata": self._shown(live)["metadata"]}
            for (name, key), live in self.objects.items()
            if name == kind.name
            and key.namespace == namespace
            and (live["metadata"].get("labels") or {}).get(names.MANAGED_BY_LABEL) != names.MANAGED_BY
        ]
        return Listing(tuple(found), self._version)

    async def apply(self, kind: Kind, manifest: Json) -> Json:
        """Server-side apply by the operator's manager, forced."""
        return self._counted("apply", kind, manifest, lambda: self.apply_as(names.FIELD_MANAGER, kind, manifest))

    async def apply_status(self, kind: Kind, manifest: Json) -> Json:
        """Server-side apply of a status."""
        return self._counted(
            "status", kind, manifest, lambda: self.apply_as(names.STATUS_FIELD_MANAGER, kind, manifest, is_status=True)
        )

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete an object of this UID."""
        manifest = {"metadata": {"namespace": namespace, "name": name}}
        self._counted("delete", kind, manifest, lambda: self.remove(kind, namespace, name, uid))

    async def patch(self, kind: Kind, manifest: Json) -> Json:
        """JSON merge patch by the operator."""
        return self._counted("patch", kind, manifest, lambda: self._patch(kind, manifest))

    async def create(self, kind: Kind, manifest: Json) -> Json:
        """Create an object."""
        return self._counted("create", kind, manifest, lambda: self.make(kind, manifest))

    async def replace(self, kind: Kind, manifest: Json) -> Json:
        """Replace an object of this resourceVersion."""
        return self._counted("replace", kind, manifest, lambda: self._replace(kind, manifest))

    # --- what a test does ------------------------------------------------------------------------------------------

    def make(self, kind: Kind, manifest: Json, manager: str = "someone") -> Json:
        """Create an object as somebody else does."""
        key = self._key(kind, manifest)
        if (kind.name, key) in self.objects:
            raise Conflict(f"{kind} {key} already exists")
        if kind == kinds.EVENT and len(manifest["note"].encode()) > _NOTE_BYTES:
            raise Invalid("note: can have at most 1024 characters")
        live = copy.deepcopy(manifest)
        live.setdefault("apiVersion", kind.api_version)
        live.setdefault("kind", kind.name)
        self._adopt(live)
        self._owned[live["metadata"]["uid"]] = {(manager, "Update", ""): set(leaves(_content(live)))}
        return self._store(kind, key, live, "ADDED")

    def edit(self, kind: Kind, key: ObjectKey, change: Callable[[Json], None], manager: str = "someone") -> Json:
        """Change an object as somebody else does; the fields that differ become theirs."""
        live = self.objects[(kind.name, key)]
        before = copy.deepcopy(live)
        change(live)
        old, new = leaves(_content(before)), leaves(_content(live))
        changed = {path for path, value in new.items() if path not in old or old[path] != value}
        owners = self._owned[live["metadata"]["uid"]]
        for owner in owners:
            statuses = {path for path in owners[owner] if path[:1] == ("f:status",)}
            owners[owner] = ((owners[owner] - changed) & set(new)) | statuses
        owners.setdefault((manager, "Update", ""), set()).update(changed)
        if before.get("spec") != live.get("spec") and "generation" in live["metadata"]:
            live["metadata"]["generation"] += 1
        return self._store(kind, key, live, "MODIFIED")

    def remove(self, kind: Kind, namespace: str, name: str, uid: str | None = None) -> None:
        """Delete an object."""
        key = ObjectKey(namespace if kind.is_namespaced else "", name)
        live = self.objects.get((kind.name, key))
        if live is None:
            return
        if uid is not None and live["metadata"]["uid"] != uid:
            raise Conflict("the UID in the precondition does not match")
        del self.objects[(kind.name, key)]
        self._version += 1
        self._tell(kind, "DELETED", live)
        self._owned.pop(live["metadata"]["uid"], None)

    def collect_garbage(self) -> None:
        """Delete what belongs to owners that are gone, as the controller manager does."""
        while True:
            uids = {live["metadata"]["uid"] for live in self.objects.values()}
            orphans = [
                (kind, key)
                for (kind, key), live in self.objects.items()
                if (owners := live["metadata"].get("ownerReferences")) and not any(o["uid"] in uids for o in owners)
            ]
            if not orphans:
                return
            for kind, key in orphans:
                self.remove(kinds.ALL[kind], key.namespace, key.name)

    def dump(self) -> dict[str, Json]:
        """Return all objects without what differs between two runs: UIDs, versions, times, events, leases."""
        text = {}
        for (kind, key), live in sorted(self.objects.items()):
            if kind in ("Event", "Lease"):
                continue
            shown = json.dumps({k: v for k, v in live.items() if k != "status"}, sort_keys=True)
            for known in self.objects.values():
                shown = shown.replace(known["metadata"]["uid"], known["metadata"]["name"] + "-uid")
            content = json.loads(shown)
            for name in ("resourceVersion", "generation", "creationTimestamp", "managedFields", "uid"):
                content["metadata"].pop(name, None)
            content["conditions"] = sorted(
                (item["type"], item["status"], item["reason"])
                for item in (live.get("status") or {}).get("conditions") or ()
                if "type" in item
            )
            text[f"{kind} {key}"] = content
        return text

    # --- inside ----------------------------------------------------------------------------------------------------

    def _counted(self, verb: str, kind: Kind, manifest: Json, write: Callable[[], Any]) -> Any:
        number = len(self.writes)
        self.before_write(number)
        self.writes.append((verb, kind.name, manifest["metadata"]["name"]))
        result = write()
        self.after_write(number)
        return result

    def _key(self, kind: Kind, manifest: Json) -> ObjectKey:
        namespace = manifest["metadata"].get("namespace", "") if kind.is_namespaced else ""
        return ObjectKey(namespace, manifest["metadata"]["name"])

    def _adopt(self, live: Json) -> None:
        self._uids += 1
        live["metadata"]["uid"] = f"00000000-0000-4000-8000-{self._uids:012d}"
        live["metadata"]["creationTimestamp"] = self.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        if live["kind"] not in ("ConfigMap", "ServiceAccount", "Role", "RoleBinding", "ClusterRoleBinding", "Event"):
            live["metadata"]["generation"] = 1

    def _store(self, kind: Kind, key: ObjectKey, live: Json, event: str) -> Json:
        self._version += 1
        live["metadata"]["resourceVersion"] = str(self._version)
        self.objects[(kind.name, key)] = live
        self._tell(kind, event, live)
        return self._shown(live)

    def _tell(self, kind: Kind, event: str, live: Json) -> None:
        for watcher in self.watchers:
            watcher(kind, event, self._shown(live))

    def _shown(self, live: Json) -> Json:
        shown = copy.deepcopy(live)
        shown["metadata"]["managedFields"] = [
            {
                "manager": manager,
                "operation": operation,
                "subresource": subresource,
                "fieldsType": "FieldsV1",
                "fieldsV1": _fields(paths),
            }
            for (manager, operation, subresource), paths in self._owned.get(live["metadata"]["uid"], {}).items()
            if paths
        ]
        return shown

    def _patch(self, kind: Kind, manifest: Json) -> Json:
        key = self._key(kind, manifest)
        live = self.objects.get((kind.name, key))
        if live is None:
            raise NotFound(f"{kind} {key} does not exist")
        if (
            manifest["metadata"].get("resourceVersion", live["metadata"]["resourceVersion"])
            != live["metadata"]["resourceVersion"]
        ):
            raise Conflict("the object has been modified")
        merged = copy.deepcopy(live)
        _merge(merged, manifest)
        _check(kind, live, merged)
        return self.edit(kind, key, lambda live: _merge(live, manifest), names.FIELD_MANAGER)

    def _replace(self, kind: Kind, manifest: Json) -> Json:
        key = self._key(kind, manifest)
        live = self.objects.get((kind.name, key))
        if live is None:
            raise NotFound(f"{kind} {key} does not exist")
        if manifest["metadata"].get("resourceVersion") != live["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified")
        new = copy.deepcopy(manifest)
        new["metadata"] = {**live["metadata"], **manifest["metadata"]}
        return self._store(kind, key, new, "MODIFIED")

    def apply_as(self, manager: str, kind: Kind, manifest: Json, *, is_status: bool = False) -> Json:
        """Server-side apply by any manager, forced."""
        key = self._key(kind, manifest)
        live = self.objects.get((kind.name, key))
        subresource = "status" if is_status else ""
        if live is None:
            if is_status:
                raise NotFound(f"{kind} {key} does not exist")
            live = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": copy.deepcopy(manifest["metadata"])}
            live["metadata"] = {k: v for k, v in live["metadata"].items() if k in ("name", "namespace")}
            self._adopt(live)
            event, before = "ADDED", None
        else:
            event, before = "MODIFIED", copy.deepcopy(live)
        wanted_version = manifest["metadata"].get("resourceVersion")
        if wanted_version is not None and wanted_version != live["metadata"].get("resourceVersion"):
            raise Conflict("the object has been modified")
        owners = copy.deepcopy(self._owned.get(live["metadata"]["uid"], {}))
        mine = (manager, "Apply", subresource)
        if is_status:
            wanted = leaves({"status": manifest.get("status") or {}})
        else:
            wanted = leaves(_content({k: v for k, v in manifest.items() if k != "status"}))
        new = copy.deepcopy(live)
        others = set().union(*(paths for owner, paths in owners.items() if owner != mine)) if owners else set()
        for path in sorted(owners.get(mine, set()) - set(wanted), key=lambda path: (path[-1] != ".", -len(path))):
            if path not in others:
                _erase(new, path)
        for path, value in wanted.items():
            found, old = _find(new, path)
            if not found or old != value:
                for owner, paths in owners.items():
                    if owner != mine:
                        paths.discard(path)
            _write(new, path, value)
        owners[mine] = set(wanted)
        _check(kind, before, new)
        if before == new and self._owned.get(live["metadata"]["uid"]) == owners:
            return self._shown(live)
        if before is not None and not is_status and before.get("spec") != new.get("spec"):
            new["metadata"]["generation"] = before["metadata"].get("generation", 0) + 1
        self._owned[new["metadata"]["uid"]] = owners
        return self._store(kind, key, new, event)


def _merge(live: Json, patch: Json) -> None:
    """Merge a patch as RFC 7386 says; maps that end up empty are not kept."""
    for name, value in patch.items():
        if isinstance(value, dict):
            inner = live.setdefault(name, {})
            _merge(inner, value)
            if not inner:
                del live[name]
        elif value is None:
            live.pop(name, None)
        else:
            live[name] = value


def _content(live: Json) -> Json:
    meta = {k: v for k, v in live["metadata"].items() if k in ("labels", "annotations", "ownerReferences")}
    rest = {k: v for k, v in live.items() if k not in ("apiVersion", "kind", "metadata", "status")}
    return {**rest, "metadata": meta} if meta else rest


def _matches(live: Json, selector: str) -> bool:
    labels = live["metadata"].get("labels") or {}
    for part in filter(None, selector.split(",")):
        key, separator, value = part.partition("=")
        if key not in labels or (separator and labels[key] != value):
            return False
    return True


def _check(kind: Kind, before: Json | None, new: Json) -> None:
    if before is None:
        return
    frozen = ("data", "binaryData", "immutable") if before.get("immutable") else ()
    if any(before.get(name) != new.get(name) for name in frozen):
        raise Invalid("data: field is immutable when `immutable` is set")
    if kind == kinds.DEPLOYMENT and before["spec"].get("selector") != new["spec"].get("selector"):
        raise Invalid("spec.selector: field is immutable")
    if kind in (kinds.ROLE_BINDING, kinds.CLUSTER_ROLE_BINDING) and before.get("roleRef") != new.get("roleRef"):
        raise Invalid("roleRef: cannot change")
    if kind == kinds.CLAIM:
        size = before["spec"]["resources"]["requests"]["storage"]
        if is_larger(size, new["spec"]["resources"]["requests"]["storage"]):
            raise Invalid("spec.resources.requests.storage: can not be less than status.capacity")
