"""Three requests to the Kubernetes API: review a token, read the cluster's keys, list and watch one ConfigMap.

Written on httpx, which the service has loaded anyway: the `kubernetes` package costs about two seconds of start and
45 MiB in every replica, and its session follows proxies and .netrc of the environment.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from memory_service.errors import Unavailable
from memory_service.identity.trust import trust

logger = logging.getLogger(__name__)

MAX_RESPONSE_BYTES = 16 * 1024 * 1024
"""An object has at most about 1.5 MiB; more than this is not an API server's answer."""

UNREACHABLE = "KubernetesUnavailable"


class KubeUnavailable(Unavailable):
    """The API server does not answer, or not with what was asked for; ask again later."""


class KubeForbidden(KubeUnavailable):
    """The service's ServiceAccount may not do this; asking again helps only after its roles have changed."""


class KubeGone(KubeUnavailable):
    """The watched history is gone: list again."""


@dataclass(frozen=True)
class TokenVerdict:
    """What TokenReview says. `audiences` are those of the request that the token is good for."""

    authenticated: bool
    username: str = ""
    audiences: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConfigMapState:
    """One ConfigMap at one time: its data, or None while there is no such ConfigMap."""

    data: Mapping[str, str] | None
    resource_version: str


class KubeApi:
    """A client with the service's own token, read again for every request, and the cluster's CA."""

    def __init__(
        self, url: str, *, token_file: str | None, ca_file: str | None, timeout_seconds: float, watch_seconds: float
    ) -> None:
        self.url = url.rstrip("/")
        self._token_file = token_file
        self._ca_file = ca_file
        self._timeout_seconds = timeout_seconds
        self._timeout = httpx.Timeout(timeout_seconds)
        self._watch_seconds = watch_seconds
        self._trust = trust(ca_file, "identity.kubeCaFile")
        self._client = httpx.AsyncClient(
            base_url=self.url, verify=self._trust, timeout=self._timeout, trust_env=False, follow_redirects=False
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def review(self, token: str, audience: str) -> TokenVerdict:
        """Return the API server's verdict on a token for an audience.

        Raises:
            KubeUnavailable: there is no verdict.
        """
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        answer = await self._json("POST", "/apis/authentication.k8s.io/v1/tokenreviews", json=body)
        status = answer.get("status")
        if not isinstance(status, dict):
            raise _strange("TokenReview has no status")
        user = status.get("user")
        username = user.get("username") if isinstance(user, dict) else ""
        audiences = status.get("audiences") or []
        if not isinstance(username, str | None) or not isinstance(audiences, list):
            raise _strange("TokenReview has another shape")
        return TokenVerdict(
            authenticated=status.get("authenticated") is True,
            username=username or "",
            audiences=tuple(audience for audience in audiences if isinstance(audience, str)),
        )

    async def jwks(self, path: str = "/openid/v1/jwks") -> object:
        """Return the cluster's key set as it is served."""
        return await self._json("GET", path)

    async def config_map(self, namespace: str, name: str) -> ConfigMapState:
        """Return a ConfigMap and the version to watch on from, whether it exists or not."""
        answer = await self._json("GET", _config_maps(namespace), params=_only(name))
        version, items = _metadata(answer).get("resourceVersion"), answer.get("items") or []
        if not isinstance(version, str) or not isinstance(items, list):
            raise _strange("the list of ConfigMaps has another shape")
        found = [item for item in items if isinstance(item, dict) and _metadata(item).get("name") == name]
        return ConfigMapState(_data(found[0]) if found else None, version)

    async def watch_config_map(self, namespace: str, name: str, since: str) -> AsyncGenerator[ConfigMapState, None]:
        """Yield the ConfigMap at each of its changes; the end of the stream is normal, go on from the last version.

        Raises:
            KubeGone: `since` is too old; list again.
            KubeUnavailable: the stream broke.
        """
        params = {
            **_only(name),
            "watch": "true",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(self._watch_seconds)),
        }
        timeout = httpx.Timeout(self._timeout_seconds, read=self._watch_seconds + self._timeout_seconds)
        async with self._stream("GET", _config_maps(namespace), params=params, timeout=timeout) as response:
            async for line in _lines(response):
                state = _event(line, name)
                if state is not None:
                    yield state

    async def _json(
        self, method: str, path: str, *, json: object = None, params: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        async with self._stream(method, path, json=json, params=params) as response:
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_RESPONSE_BYTES:
                    raise _strange(f"the answer has more than {MAX_RESPONSE_BYTES} bytes")
        return _object(bytes(body))

    @asynccontextmanager
    async def _stream(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        params: Mapping[str, str] | None = None,
        timeout: httpx.Timeout | None = None,  # noqa: ASYNC109 - handed on to httpx
    ) -> AsyncIterator[httpx.Response]:
        try:
            headers = await asyncio.to_thread(self._authorization)
            async with self._client.stream(
                method, path, json=json, params=params, headers=headers, timeout=timeout or self._timeout
            ) as response:
                _raise_for(response.status_code, f"{method} {path}")
                yield response
        except httpx.ConnectError as error:
            await asyncio.to_thread(self._trust_again)
            raise KubeUnavailable(f"the API server at {self.url} cannot be reached", reason=UNREACHABLE) from error
        except httpx.HTTPError as error:
            raise KubeUnavailable(
                f"the API server at {self.url} does not answer: {type(error).__name__}", reason=UNREACHABLE
            ) from error
        except OSError as error:
            raise KubeUnavailable(
                f"the service's own token {self._token_file!r} cannot be read", reason=UNREACHABLE
            ) from error

    def _authorization(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        return {"Authorization": f"Bearer {Path(self._token_file).read_text(encoding='utf-8').strip()}"}

    def _trust_again(self) -> None:
        """Add what the CA file holds now: a cluster may change its CA while this runs."""
        if self._ca_file is not None:
            try:
                self._trust.load_verify_locations(cafile=self._ca_file)
            except OSError as error:
                logger.warning("CA file not usable", extra={"reason": type(error).__name__})


def _config_maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"


def _only(name: str) -> dict[str, str]:
    """The one form of list and watch that a Role with resourceNames allows."""
    return {"fieldSelector": f"metadata.name={name}"}


def _raise_for(status: int, what: str) -> None:
    if status in (200, 201):
        return
    if status in (401, 403):
        raise KubeForbidden(
            f"{what}: the API server answers {status}; give the service's ServiceAccount the role for it",
            reason=UNREACHABLE,
        )
    if status == 410:
        raise KubeGone(f"{what}: the API server answers 410", reason=UNREACHABLE)
    raise KubeUnavailable(f"{what}: the API server answers {status}", reason=UNREACHABLE)


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    buffer = bytearray()
    async for chunk in response.aiter_bytes():
        buffer += chunk
        if len(buffer) > MAX_RESPONSE_BYTES:
            raise _strange(f"one event has more than {MAX_RESPONSE_BYTES} bytes")
        *whole, rest = bytes(buffer).split(b"\n") if b"\n" in chunk else (bytes(buffer),)
        buffer = bytearray(rest)
        for line in whole:
            if line.strip():
                yield line


def _event(line: bytes, name: str) -> ConfigMapState | None:
    event = _object(line)
    kind, item = event.get("type"), event.get("object")
    if not isinstance(item, dict):
        raise _strange("a watch event has no object")
    if kind == "ERROR":
        _raise_for(item["code"] if isinstance(item.get("code"), int) else 500, "watch")
        raise _strange("a watch event is an error without a code")
    metadata = _metadata(item)
    version = metadata.get("resourceVersion")
    if not isinstance(version, str):
        raise _strange("a watch event has no resourceVersion")
    if kind == "BOOKMARK" or metadata.get("name") != name:
        return None
    return ConfigMapState(None if kind == "DELETED" else _data(item), version)


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _strange("the answer is not JSON") from error
    if not isinstance(value, dict):
        raise _strange("the answer is not a JSON object")
    return value


def _metadata(item: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = item.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _data(item: Mapping[str, Any]) -> Mapping[str, str]:
    data = item.get("data") or {}
    if not isinstance(data, dict):
        raise _strange("a ConfigMap's data has another shape")
    return {key: value for key, value in data.items() if _is_text(key) and _is_text(value)}


def _is_text(value: object) -> bool:
    """JSON can spell lone surrogates, which are no text; an API server never stores them."""
    return isinstance(value, str) and value.encode("utf-8", "replace").decode() == value


def _strange(what: str) -> KubeUnavailable:
    return KubeUnavailable(f"the API server's answer cannot be used: {what}", reason=UNREACHABLE)
