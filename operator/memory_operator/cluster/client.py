"""The API server: the few calls that the operator makes, paced, with a timeout, and with errors of our own.

`Cluster` is the port; `KubernetesCluster` speaks to a real API server through the official client: its configuration,
credentials and connections. It asks the client's transport itself, for the layers above cost as much as the request.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import orjson
from kubernetes.aio import client as kube_client
from kubernetes.aio import config as kube_config
from kubernetes.aio.client.exceptions import ApiException

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

PAGE_SIZE: Final = 200
"""Objects of a list that are in memory at once: a page of Deployments is some 10 MiB while it is read."""
_STRANGERS: Final = 500
_BUFFER_BYTES: Final = 2**17
"""What is buffered of an answer at most is twice as much, of each of a dozen watches."""
_JSON: Final = "application/json"
_MERGE: Final = "application/merge-patch+json"
_APPLY: Final = "application/apply-patch+yaml; charset=utf-8"
_ASTRAL: Final = re.compile(r"\\\\|\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")
"""In JSON a character beyond U+FFFF; a backslash that is a character is passed over."""
_ABOUT: Final = re.compile(r"(?:Invalid value|Unsupported value|Duplicate value|Not found): ")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_GOT: Final = re.compile(r"got &value\..*", re.DOTALL)
_HARMLESS_LENGTH: Final = 3
"""A value so short is no secret, and cutting it out of a sentence would spoil words."""
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

    def pages(self, kind: Kind, namespace: str | None, selector: str) -> AsyncIterator[Listing]:
        """Return the same page by page, at least one; all of them are of one version."""

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

    async def patch(self, kind: Kind, manifest: JsonObject) -> JsonObject:
        """Merge a manifest into an object, where None removes, and return it.

        `Conflict` when it is not of the manifest's resourceVersion any more.
        """

    async def create(self, kind: Kind, manifest: JsonObject) -> JsonObject:
        """Create an object; `Conflict` when it exists."""

    async def replace(self, kind: Kind, manifest: JsonObject) -> JsonObject:
        """Replace an object; `Conflict` when it is not of the manifest's resourceVersion any more."""


def _yaml(manifest: JsonObject) -> bytes:
    """Return a manifest as what server-side apply reads: JSON, but YAML knows no pairs of surrogates."""

    def character(found: re.Match[str]) -> str:
        high, low = found.groups()
        if high is None:
            return found[0]
        return f"\\U{0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00):08x}"

    plain = orjson.dumps(manifest)
    if plain.isascii() and b"\x7f" not in plain:
        return plain
    # What YAML does not take as it is, orjson cannot be told to escape.
    text = json.dumps(manifest, separators=(",", ":"))
    return (_ASTRAL.sub(character, text) if "\\ud" in text else text).encode("ascii")


def _message(error: ApiException) -> str:
    """Return what the API server says, without the values that it repeats: they may be secrets."""
    body = error.body
    try:
        content = orjson.loads(body) if isinstance(body, str | bytes) else {}
    except ValueError:
        content = {}
    if not isinstance(content, dict) or not content.get("message"):
        return str(error.reason or "no reason given")
    message, details = str(content["message"]), content.get("details") or {}
    causes = details.get("causes") or ()
    if not causes:
        return _GOT.sub("got another type", without_values(message))
    subject = f"{details.get('kind', 'object')} {details.get('name', '')!r} is invalid"
    return f"{subject}: " + "; ".join(
        f"{item.get('field', '')}: {without_values(str(item.get('message', '')))}" for item in causes
    )


def without_values(text: str) -> str:
    """Return a sentence of the API server without the value that it is about, and without what repeats that value."""
    found = _ABOUT.search(text)
    if found is None:
        return text
    rest = text[found.end() :]
    quoted = _QUOTED.match(rest)
    if quoted is None:
        # A number, or a structure as Go prints it, in which anything may stand; the reason is what comes last.
        why = rest.rpartition(": ")[2] if ": " in rest else ""
    else:
        why = rest[quoted.end() :].removeprefix(": ")
        for value in {quoted[1], quoted[1].replace('\\"', '"')}:
            why = why.replace(value, "…") if len(value) > _HARMLESS_LENGTH else why
        why = without_values(why)
    return text[: found.end() - 2] + (f": {why}" if why else "")


def _retry_after(error: ApiException) -> float | None:
    text = (error.headers or {}).get("Retry-After")
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _refused(answer: aiohttp.ClientResponse, content: bytes) -> MemoryOperatorError:
    """Return our error for an answer that is none of success."""
    error = ApiException(status=answer.status, reason=answer.reason)
    error.body, error.headers = content.decode(errors="replace"), answer.headers
    return translated(error)


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
        self._api = api
        self._host = str(api.configuration.host).rstrip("/")
        self._timeout_seconds = timeout_seconds
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._bucket = bucket
        self._observer = observer

    def _path(self, kind: Kind, namespace: str | None, name: str | None) -> str:
        path = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
        if kind.is_namespaced and namespace is not None:
            path += f"/namespaces/{quote(namespace)}"
        path += f"/{kind.plural}"
        return path if name is None else f"{path}/{quote(name)}"

    def _url(self, path: str, query: Mapping[str, str | int | None] | None) -> str:
        """Return the URL of a path with what is given of a query."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return f"{self._host}{path}?{urlencode(given)}" if given else f"{self._host}{path}"

    async def _headers(self, accept: str, content_type: str) -> dict[str, str]:
        """Return a request's headers; the client reads the token of a pod anew before it ends."""
        settings = await self._api.configuration.auth_settings()
        headers = {**self._api.default_headers, "Accept": accept, "Content-Type": content_type}
        headers.update({item["key"]: item["value"] for item in settings.values() if item["in"] == "header"})
        return headers

    async def _request(
        self,
        verb: str,
        path: str,
        query: Mapping[str, str | int | None] | None = None,
        *,
        body: JsonObject | bytes | None = None,
        accept: str = _JSON,
        content_type: str = _JSON,
    ) -> JsonObject:
        wait = self._bucket.reserve(asyncio.get_running_loop().time())
        if wait > 0:
            await asyncio.sleep(wait)
        try:
            response = await self._api.rest_client.request(
                verb,
                self._url(path, query),
                headers=await self._headers(accept, content_type),
                body=body,
                _request_timeout=self._timeout,
            )
            content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._observer(verb, "error")
            raise ClusterUnavailable(f"{type(error).__name__}: {error}") from error
        self._observer(verb, str(response.status))
        if not 200 <= response.status <= 299:
            raise _refused(response, content)
        try:
            return dict(orjson.loads(content))
        except ValueError as error:
            raise ClusterUnavailable("the answer cannot be read") from error

    async def stream(
        self, kind: Kind, namespace: str | None, query: Mapping[str, str | int | None], silence_seconds: float
    ) -> AsyncIterator[bytes]:
        """Give the pieces of a long answer as they come; one that is silent for longer than that is given up."""
        url = self._url(self._path(kind, namespace, None), query)
        timeout = aiohttp.ClientTimeout(total=None, connect=self._timeout_seconds, sock_read=silence_seconds)
        try:
            answer = await self._api.rest_client.request(
                "get", url, headers=await self._headers(_JSON, _JSON), _request_timeout=timeout
            )
            async with answer.response as response:
                self._observer("watch", str(response.status))
                if response.status != 200:
                    raise _refused(response, await response.read())
                async for piece in response.content.iter_any():
                    yield piece
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._observer("watch", "error")
            raise ClusterUnavailable(f"{type(error).__name__}: {error}") from error

    async def get(self, kind: Kind, namespace: str, name: str) -> JsonObject | None:
        """Return an object, or None when it does not exist."""
        try:
            return await self._request("get", self._path(kind, namespace, name))
        except NotFound:
            return None

    async def list(self, kind: Kind, namespace: str | None, selector: str) -> Listing:
        """Return the objects of a namespace, or of all of them, that have these labels."""
        found = [page async for page in self.pages(kind, namespace, selector)]
        return Listing(tuple(item for page in found for item in page.items), found[-1].resource_version)

    async def pages(self, kind: Kind, namespace: str | None, selector: str) -> AsyncIterator[Listing]:
        """Return the same page by page."""
        token: str | None = None
        path = self._path(kind, namespace, None)
        while True:
            page = await self._request(
                "get", path, {"labelSelector": selector or None, "limit": PAGE_SIZE, "continue": token}
            )
            items = page.get("items") or []
            for item in items:
                item.setdefault("apiVersion", kind.api_version)
                item.setdefault("kind", kind.name)
            yield Listing(tuple(items), int(page["metadata"]["resourceVersion"]))
            token = page["metadata"].get("continue")
            if not token:
                return

    async def list_unmanaged(self, kind: Kind, namespace: str) -> Listing | None:
        """Return the metadata of the objects without our label, unless they do not fit into one page."""
        page = await self._request(
            "get",
            self._path(kind, namespace, None),
            {"labelSelector": f"{names.MANAGED_BY_LABEL}!={names.MANAGED_BY}", "limit": _STRANGERS},
            accept=_METADATA_ONLY,
        )
        if page["metadata"].get("continue"):
            return None
        return Listing(tuple(page.get("items") or ()), int(page["metadata"]["resourceVersion"]))

    async def _apply(self, path: str, manifest: JsonObject, manager: str) -> JsonObject:
        query = {"fieldManager": manager, "force": "true"}
        return await self._request("patch", path, query, body=_yaml(manifest), content_type=_APPLY)

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

    async def patch(self, kind: Kind, manifest: JsonObject) -> JsonObject:
        """Merge a manifest into an object."""
        meta = manifest["metadata"]
        path = self._path(kind, meta.get("namespace"), meta["name"])
        query = {"fieldManager": names.FIELD_MANAGER}
        return await self._request("patch", path, query, body=manifest, content_type=_MERGE)

    async def create(self, kind: Kind, manifest: JsonObject) -> JsonObject:
        """Create an object."""
        path = self._path(kind, manifest["metadata"].get("namespace"), None)
        return await self._request("post", path, {"fieldManager": names.FIELD_MANAGER}, body=manifest)

    async def replace(self, kind: Kind, manifest: JsonObject) -> JsonObject:
        """Replace an object."""
        meta = manifest["metadata"]
        path = self._path(kind, meta.get("namespace"), meta["name"])
        return await self._request("put", path, {"fieldManager": names.FIELD_MANAGER}, body=manifest)


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
    # No cookies, as in Kubernetes' own clients; a watch is read as it comes and needs no buffer for a whole event.
    configuration.client_session_kwargs = {
        "trust_env": False,
        "cookie_jar": aiohttp.DummyCookieJar(),
        "read_bufsize": _BUFFER_BYTES,
    }
    configuration.proxy = configuration.proxy or _proxy(str(configuration.host))
    async with kube_client.ApiClient(configuration=configuration) as api:
        yield api
