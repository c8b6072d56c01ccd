"""Sends one request and reads its whole answer within one deadline; the edge where httpx's errors end.

The deadline covers connecting, sending and reading together: a peer that sends a byte now and then does not stretch
it. Redirects are not followed and proxy variables are not read, so that only the configured endpoint is called.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from memory_service.client.errors import ServiceUnavailable, UnavailableReason, invalid
from memory_service.client.wire import Answer, Request, require_carried
from memory_service.contract.certificates import certificates

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""More than any answer of the service, whose pages end at two million characters."""
MAX_LATENESS_SECONDS = 0.3
"""How late an event loop may notice that the time is over; one that is later was blocked by other work."""
_LIMITS = httpx.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=20)


class BrokenOff(ServiceUnavailable):
    """The connection ended before the answer did, as a kept-alive one does when the service restarts."""


class Overslept(ServiceUnavailable):
    """The time was over before anybody looked: this process was busy with something else, the service may be well."""


class Transport:
    """A pool of connections, made again when the event loop or the trusted authority changes."""

    def __init__(self, over: httpx.AsyncBaseTransport | None = None) -> None:
        self._over = over
        self._pool: httpx.AsyncClient | None = None
        self._made_for: tuple[object, ...] = ()
        self._in_flight: set[asyncio.Timeout] = set()
        self._is_closed = False

    async def send(
        self, request: Request[Any], *, endpoint: str, headers: Mapping[str, str], ca: str | None, seconds: float
    ) -> Answer:
        """Return the answer, whatever its status.

        Raises:
            ServiceUnavailable: there was none within `seconds`, or it is too large.
            InvalidRequest: the request cannot be put on the wire, for example a header with a line break.
        """
        if self._is_closed:
            raise _closed()
        url = endpoint.rstrip("/") + request.path
        began = asyncio.get_running_loop().time()
        try:
            async with self._timeout(seconds):
                pool = self._connections(endpoint, ca)
                async with pool.stream(
                    request.method,
                    url,
                    params=list(request.query) or None,
                    content=request.content,
                    headers=_encoded({**request.headers, **headers}),
                ) as answer:
                    content = bytearray()
                    async for chunk in answer.aiter_bytes():
                        content += chunk
                        if len(content) > MAX_ANSWER_BYTES:
                            raise ServiceUnavailable(
                                f"the answer is longer than {MAX_ANSWER_BYTES} bytes",
                                reason=UnavailableReason.BAD_ANSWER,
                            )
                    return Answer(answer.status_code, dict(answer.headers), bytes(content))
        except (TimeoutError, httpx.TimeoutException) as error:
            if self._is_closed:
                raise _closed() from error
            is_late = asyncio.get_running_loop().time() - began - seconds > MAX_LATENESS_SECONDS
            raise (Overslept if is_late else ServiceUnavailable)(
                f"{endpoint} did not answer {request.verb} within {seconds:g} s", reason=UnavailableReason.TIMEOUT
            ) from error
        except httpx.LocalProtocolError as error:
            raise invalid(f"{request.verb} was not sent: it cannot be put into HTTP") from error
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise ServiceUnavailable(
                f"the endpoint {endpoint!r} is no URL that can be called: http:// or https:// and a host are expected",
                reason=UnavailableReason.UNREACHABLE,
            ) from error
        except (httpx.RemoteProtocolError, httpx.DecodingError, httpx.ReadError, httpx.StreamError) as error:
            raise BrokenOff(
                f"{endpoint} broke off its answer to {request.verb}: {type(error).__name__}",
                reason=UnavailableReason.BAD_ANSWER,
            ) from error
        except (httpx.HTTPError, OSError, RuntimeError, ValueError, OverflowError, ExceptionGroup) as error:
            # The last four are what the layers below raise for closed loops, closed pools, odd hosts and odd ports.
            raise ServiceUnavailable(
                f"{endpoint} cannot be reached: {error or type(error).__name__}", reason=UnavailableReason.UNREACHABLE
            ) from error

    async def aclose(self) -> None:
        """Close the connections, and end the calls that wait for an answer."""
        self._is_closed = True
        pool, self._pool = self._pool, None
        if pool is not None and self._made_for[0] is asyncio.get_running_loop():
            for timeout in self._in_flight:
                if not timeout.expired():
                    timeout.reschedule(asyncio.get_running_loop().time())
            await pool.aclose()

    @asynccontextmanager
    async def _timeout(self, seconds: float) -> AsyncIterator[None]:
        async with asyncio.timeout(seconds) as timeout:
            self._in_flight.add(timeout)
            try:
                yield
            finally:
                self._in_flight.discard(timeout)

    def _connections(self, endpoint: str, ca: str | None) -> httpx.AsyncClient:
        secure = endpoint.startswith("https:")
        made_for = (asyncio.get_running_loop(), secure, ca)
        if self._pool is None or self._made_for != made_for:
            # A pool of another loop cannot be closed from this one; its sockets go with its memory.
            verify: ssl.SSLContext | bool = _trust(ca) if secure else False
            self._pool = httpx.AsyncClient(
                transport=self._over,
                verify=verify,
                limits=_LIMITS,
                timeout=None,
                follow_redirects=False,
                trust_env=False,
            )
            self._made_for = made_for
        return self._pool


def _closed() -> ServiceUnavailable:
    return ServiceUnavailable("the client is closed; make a new one", reason=UnavailableReason.CLOSED)


def _trust(ca: str | None) -> ssl.SSLContext:
    """Return what checks a store's certificate: by its own authority, else by the system's."""
    if ca is None:
        return ssl.create_default_context()
    if not (found := certificates(ca)):
        raise ssl.SSLError("the CA of the binding holds no certificate")
    return ssl.create_default_context(cadata=found)


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return header values in UTF-8: a principal may have any name.

    Raises:
        InvalidRequest: a value cannot be carried.
    """
    for name, value in headers.items():
        require_carried(name, value)
    return [(name.encode(), value.encode()) for name, value in headers.items()]
