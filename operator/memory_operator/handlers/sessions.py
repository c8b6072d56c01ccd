"""The connections over which kopf lists and watches: what the caches know already is left out of its answers.

Two in three events of our own objects are echoes of status writes of which the answer has been taken, and at a start
all objects have just been listed. kopf spends some twenty times as long on an event as reading it does, only for a
handler to find that nothing is new; so the answers are looked through before it sees them. Bookmarks and all that
cannot be read go through, and a kopf that reads its answers in another way hears everything, as it would without this.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import fields
from typing import Any, cast

import aiohttp
import kopf
import orjson

from memory_operator.cluster import kinds
from memory_operator.cluster.cache import Cache
from memory_operator.cluster.kinds import Kind
from memory_operator.crd.base import JsonObject

REST_SECONDS = 10.0
"""Before the same credentials are tried again."""
IsKnown = Callable[[JsonObject], bool]
"""Whether an object is in the caches, as new as this or newer."""


def _is_news(line: bytes, is_known: IsKnown) -> bool:
    """Whether a line of a watch says what nobody knows yet."""
    try:
        event = orjson.loads(line)
        return event["type"] not in ("ADDED", "MODIFIED") or not is_known(event["object"])
    except (ValueError, KeyError, TypeError):
        return True


class _News:
    """The content of a watch without the lines that say nothing new."""

    def __init__(self, content: aiohttp.StreamReader, is_known: IsKnown) -> None:
        self._content = content
        self._is_known = is_known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Give whole lines, some at a time."""
        rest = b""
        async for piece in self._content.iter_chunked(size):
            *lines, rest = (rest + piece).split(b"\n")
            news = [line for line in lines if line and _is_news(line, self._is_known)]
            if news:
                yield b"\n".join([*news, b""])
        if rest:
            yield rest


def _reading(cache: Cache) -> type[aiohttp.ClientResponse]:
    """Return the class of the answers that kopf reads."""
    by_plural = {kind.plural: kind for kind in kinds.MADE_BY_PEOPLE}

    class Response(aiohttp.ClientResponse):
        """An answer of the API server without what is known."""

        @property
        def _kind(self) -> Kind | None:
            return by_plural.get(self.url.name)

        def _is_known(self, body: JsonObject) -> bool:
            return self._kind is not None and cache.knows(self._kind, body)

        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            """Begin to read the answer."""
            await super().start(connection)
            if self._kind is not None and self.url.query.get("watch") == "true":
                self.content = cast("aiohttp.StreamReader", _News(self.content, self._is_known))
            return self

        async def json(self, **how: Any) -> Any:
            """Return the content; of a list, the items that are new."""
            content = await super().json(**how)
            if self._kind is not None and isinstance(content, dict) and content.get("items"):
                content["items"] = [item for item in content["items"] if not self._is_known(item)]
            return content

    return Response


def session(info: kopf.ConnectionInfo, cache: Cache) -> kopf.AiohttpSession:
    """Return connections with these credentials; kopf closes them, and logs in anew when they are refused."""
    connections = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        proxy=info.proxy_url,
        trust_env=info.trust_env,
        response_class=_reading(cache),
    )
    common: Mapping[str, Any] = {
        item.name: getattr(info, item.name) for item in fields(kopf.AiohttpSession) if item.name != "aiohttp_session"
    }
    return kopf.AiohttpSession(aiohttp_session=connections, **common)


class Sessions:
    """Gives kopf its connections each time it logs in.

    kopf asks again when the API server has refused them. Equal credentials are refused again, so those are given only
    after a rest: a token that is dead must not become a storm of requests.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        rest_seconds: float = REST_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cache = cache
        self._rest_seconds = rest_seconds
        self._sleep = sleep
        self._given: kopf.ConnectionInfo | None = None

    async def open(self, info: kopf.ConnectionInfo) -> kopf.AiohttpSession:
        """Return connections with these credentials, at once if they are others than the last ones."""
        if info == self._given:
            await self._sleep(self._rest_seconds)
        self._given = info
        return session(info, self._cache)
