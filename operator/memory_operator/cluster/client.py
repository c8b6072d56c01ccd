"""The API server: the few calls that the operator makes, paced, with a timeout, and with errors of our own.

`Cluster` is the port; `KubernetesCluster` speaks to a real API server through the official async dynamic client.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import client as kube_client
from kubernetes.aio import config as kube_config
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.dynamic.client import DynamicClient
from kubernetes.aio.dynamic.resource import Resource

from memory_operator import names
from memory_operator.cluster.kinds import Kind
from memory_operator.crd.base import JsonObject
from memory_operator.errors import (
    ClusterUnavailable,
    Conflict,
    Forbidden,
    Invalid,
    MemoryOperatorError,
    NotFound,
    Refused,
    Throttled,
)
from memory_operator.pacing import TokenBucket

PAGE_SIZE: Final = 500
_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_IN_CLUSTER_TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
Observer = Callable[[str, str], None]
"""Told of each request: verb and status code (`error` when there was no answer)."""


@dataclass(frozen=True)
class Listing:
    """All objects of a kind, and how new the list is."""

    items: tuple[JsonObject, ...]
    resource_version: int


class Cluster(Protocol):
    """What the operator asks of an API server. Every call may raise a `MemoryOperatorError`."""

    async def get(self, kind: Kind, namespace: str, name: str) -> JsonObject | None:
        """Return an object, or None when it does not exist."""

    async def list(self, kind: Kind, namespace: str | None, selector: str) -> Listing:
        """Return the objects of a namespace, or of all of them (None), that have these labels."""

    async def list_unmanaged(self, kind: Kind, namespace: str) -> Listing | None:
        """Return the objects of a namespace without our label, metadata only; None when they are too many."""

    async def apply(self, kind: Kind, manifest: JsonObject) -> JsonObject:
        """Make an object as this manifest says by server-side apply and return it.

        Fields of other managers stay; fields that we applied before and that the manifest lacks go.
        """

    async def apply_status(self, kind: Kind, manifest: JsonObject) -> JsonObject:
        """Write the status of one of our objects and return the object."""

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete an object of this UID; nothing happens when it is gone already."""

    async def create(self, kind: Kind, manifest: JsonObject) -> JsonObject:
        """Create an object; `Conflict` when it exists."""

    async def replace(self, kind: Kind, manifest: JsonObject) -> JsonObject:
        """Replace an object; `Conflict` when it is not of the manifest's resourceVersion any more."""


def _message(error: ApiException) -> str:
    body = error.body
    try:
        content = json.loads(body) if isinstance(body, str | bytes) else {}
    except ValueError:
        content = {}
    if isinstance(content, dict) and content.get("message"):
        return str(content["message"])
    return str(error.reason or "no reason given")


def _retry_after(error: ApiException) -> float | None:
    text = (error.headers or {}).get("Retry-After")
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def translated(error: ApiException) -> MemoryOperatorError:
    """Return our error for one of the client's."""
    status, message = int(error.status or 0), _message(error)
    match status:
        case 404:
            return NotFound(message)
        case 409:
            return Conflict(message)
        case 410:
            return Conflict(message)
        case 429:
            return Throttled(message, _retry_after(error))
        case 401 | 403:
            return Forbidden(message)
        case 400 | 413 | 422:
            return Invalid(message)
        case _ if 400 <= status < 500:
            return Refused(message)
        case _:
            return ClusterUnavailable(message)


class KubernetesCluster:
    """A real API server."""

    def __init__(
        self,
        api: kube_client.ApiClient,
        *,
        timeout_seconds: float,
        bucket: TokenBucket,
        observer: Observer = lambda verb, code: None,
    ) -> None:
        self._dynamic = DynamicClient(api)
        self._timeout_seconds = timeout_seconds
        self._bucket = bucket
        self._observer = observer
        self._resources: dict[Kind, Resource] = {}

    def _path(self, kind: Kind, namespace: str | None, name: str | None) -> str:
        resource = self._resources.get(kind)
        if resource is None:
            resource = Resource(
                prefix="apis" if kind.group else "api",
                group=kind.group,
                api_version=kind.version,
                kind=kind.name,
                namespaced=kind.is_namespaced,
                name=kind.plural,
                client=self._dynamic,
            )
            self._resources[kind] = resource
        return str(resource.path(name=name, namespace=namespace if kind.is_namespaced else None))

    async def _request(self, verb: str, path: str, **arguments: Any) -> JsonObject:
        loop = asyncio.get_running_loop()
        wait = self._bucket.reserve(loop.time())
        if wait > 0:
            await asyncio.sleep(wait)
        try:
            response = await self._dynamic.request(
                verb, path, serialize=False, _request_timeout=self._timeout_seconds, **arguments
            )
            content = await response.json()
        except ApiException as error:
            self._observer(verb, str(error.status))
            raise translated(error) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._observer(verb, "error")
            raise ClusterUnavailable(f"{type(error).__name__}: {error}") from error
        self._observer(verb, str(response.status))
        return dict(content)

    async def get(self, kind: Kind, namespace: str, name: str) -> JsonObject | None:
        """Return an object, or None when it does not exist."""
        try:
            return await self._request("get", self._path(kind, namespace, name))
        except NotFound:
            return None

    async def list(self, kind: Kind, namespace: str | None, selector: str) -> Listing:
        """Return the objects of a namespace, or of all of them, that have these labels."""
        items: list[JsonObject] = []
        token: str | None = None
        path = self._path(kind, namespace, None)
        while True:
            page = await self._request("get", path, label_selector=selector or None, limit=PAGE_SIZE, _continue=token)
            for item in page.get("items") or ():
                item.setdefault("apiVersion", kind.api_version)
                item.setdefault("kind", kind.name)
                items.append(item)
            token = page["metadata"].get("continue")
            if not token:
                return Listing(tuple(items), int(page["metadata"]["resourceVersion"]))

    async def list_unmanaged(self, kind: Kind, namespace: str) -> Listing | None:
        """Return the metadata of the objects without our label, unless they do not fit into one page."""
        page = await self._request(
            "get",
            self._path(kind, namespace, None),
            label_selector=f"{names.MANAGED_BY_LABEL}!={names.MANAGED_BY}",
            limit=PAGE_SIZE,
            header_params={"Accept": _METADATA_ONLY},
        )
        if page["metadata"].get("continue"):
            return None
        return Listing(tuple(page.get("items") or ()), int(page["metadata"]["resourceVersion"]))

    async def _apply(self, path: str, manifest: JsonObject, manager: str) -> JsonObject:
        return await self._request(
            "patch",
            path,
            body=manifest,
            content_type="application/apply-patch+yaml",
            field_manager=manager,
            force_conflicts="true",
        )

    async def apply(self, kind: Kind, manifest: JsonObject) -> JsonObject:
        """Make an object as this manifest says."""
        meta = manifest["metadata"]
        return await self._apply(self._path(kind, meta.get("namespace"), meta["name"]), manifest, names.FIELD_MANAGER)

    async def apply_status(self, kind: Kind, manifest: JsonObject) -> JsonObject:
        """Write the status of one of our objects."""
        meta = manifest["metadata"]
        path = self._path(kind, meta["namespace"], meta["name"]) + "/status"
        return await self._apply(path, manifest, names.STATUS_FIELD_MANAGER)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete an object of this UID."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            await self._request("delete", self._path(kind, namespace, name), body=body)
        except NotFound:
            return

    async def create(self, kind: Kind, manifest: JsonObject) -> JsonObject:
        """Create an object."""
        path = self._path(kind, manifest["metadata"].get("namespace"), None)
        return await self._request("post", path, body=manifest, field_manager=names.FIELD_MANAGER)

    async def replace(self, kind: Kind, manifest: JsonObject) -> JsonObject:
        """Replace an object."""
        meta = manifest["metadata"]
        path = self._path(kind, meta.get("namespace"), meta["name"])
        return await self._request("put", path, body=manifest, field_manager=names.FIELD_MANAGER)


class _PlainClient(kube_client.ApiClient):
    """The official client without its walk through every body: ours are plain JSON already."""

    def sanitize_for_serialization(self, obj: Any) -> Any:
        """Return a body as it is."""
        return obj


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment names for the API server, if any."""
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    return getproxies().get(parts.scheme)


@asynccontextmanager
async def api_client(environment: Mapping[str, str]) -> AsyncIterator[kube_client.ApiClient]:
    """Give a client for the cluster of KUBECONFIG, else of the pod, else of the user's kubeconfig."""
    configuration = kube_client.Configuration()
    if not environment.get("KUBECONFIG") and _IN_CLUSTER_TOKEN.exists():
        kube_config.load_incluster_config(client_configuration=configuration)
    else:
        await kube_config.load_kube_config(
            config_file=environment.get("KUBECONFIG"), client_configuration=configuration
        )
    # aiohttp would ask a thread for .netrc and the proxy before every request; the proxy is asked for once here.
    configuration.client_session_kwargs = {"trust_env": False}
    configuration.proxy = configuration.proxy or _proxy(str(configuration.host))
    async with _PlainClient(configuration=configuration) as api:
        yield api
