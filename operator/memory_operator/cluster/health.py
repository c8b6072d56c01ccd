"""Health reports of a store's pods, asked at each address of its EndpointSlices, the unready ones included."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import aiohttp
from pydantic import ValidationError

from memory_operator import names
from memory_operator.crd.base import ObjectKey
from memory_operator.errors import MemoryOperatorError
from memory_operator.settings import OperatorSettings
from memory_service.contract.certificates import certificates
from memory_service.contract.health import HealthReport

_MAX_BYTES = 256 * 1024


class HealthUnavailable(MemoryOperatorError):
    """An address gave no report; the message says why and names no address."""


@dataclass(frozen=True)
class HealthTarget:
    """A store as something to ask: how, and whose certificate to expect."""

    store: ObjectKey
    scheme: str
    server_name: str
    ca: str | None = None


AddressResolver = Callable[[ObjectKey], Sequence[str]]
"""Returns the `host:port` of each pod of a store."""


class HealthReader(Protocol):
    """Asks one address for its report."""

    async def read(self, target: HealthTarget, address: str) -> HealthReport:
        """Return the report, or raise `HealthUnavailable`."""

    async def touch(self, address: str) -> None:
        """Return when something listens at the address, or raise `HealthUnavailable`; much cheaper than a report."""


def host_port(address: str, port: int = names.PORT) -> str:
    """Return `host:port` of an IP address of either family."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


async def _connect(host: str, port: int) -> None:
    """Open a connection to an IP address and close it.

    A bare socket, for there are hundreds of these a second, and not the loop's `sock_connect`: uvloop's takes longer to
    find out that an address is one than all the rest does.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        code = connection.connect_ex((host, port))
        if code == errno.EINPROGRESS:
            await _writable(connection.fileno())
            code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))


async def _writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    loop.add_writer(descriptor, _set, done)
    try:
        await done
    finally:
        loop.remove_writer(descriptor)


def _set(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


async def _content(response: aiohttp.ClientResponse) -> bytes:
    """Return an answer, however many pieces it comes in, and no more of it than a report may have."""
    content = bytearray()
    async for piece in response.content.iter_any():
        content += piece
        if len(content) > _MAX_BYTES:
            raise HealthUnavailable(f"gave a report of more than {_MAX_BYTES} bytes")
    return bytes(content)


class HttpHealthReader:
    """Asks over HTTP with the operator's own token."""

    def __init__(self, session: aiohttp.ClientSession, settings: OperatorSettings) -> None:
        self._session = session
        self._token_file = Path(settings.token_file)
        self._timeout = aiohttp.ClientTimeout(total=settings.health_timeout_seconds)
        self._contexts: dict[str, ssl.SSLContext] = {}

    def _token(self) -> str | None:
        try:
            return self._token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None

    def _context(self, target: HealthTarget) -> ssl.SSLContext | bool:
        if target.scheme != "https":
            return True
        if target.ca is None:
            raise HealthUnavailable("the store's CA is not known")
        context = self._contexts.get(target.ca)
        if context is None:
            found = certificates(target.ca)
            if not found:
                # Nothing at all would mean the authorities of the system.
                raise HealthUnavailable("the store's CA is not a certificate")
            try:
                context = ssl.create_default_context(cadata=found)
            except ssl.SSLError as error:
                raise HealthUnavailable("the store's CA is not a certificate") from error
            self._contexts = {**dict(list(self._contexts.items())[-63:]), target.ca: context}
        return context

    async def touch(self, address: str) -> None:
        """Return when a connection to the pod at this address can be opened."""
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(self._timeout.total):
                await _connect(host.strip("[]"), int(port))
        except TimeoutError as error:
            raise HealthUnavailable("did not answer in time") from error
        except OSError as error:
            raise HealthUnavailable("refused the connection or broke it off") from error

    async def read(self, target: HealthTarget, address: str) -> HealthReport:
        """Return the report of the pod at this address."""
        headers = {"Accept": "application/json", "Host": f"{target.server_name}:{names.PORT}"}
        if token := self._token():
            headers["Authorization"] = f"Bearer {token}"
        url = f"{target.scheme}://{address}/v1/health/report"
        try:
            async with self._session.get(
                url,
                headers=headers,
                timeout=self._timeout,
                ssl=self._context(target),
                server_hostname=target.server_name if target.scheme == "https" else None,
                allow_redirects=False,
            ) as response:
                content = await _content(response)
                if response.status != 200:
                    raise HealthUnavailable(f"answered {response.status}")
        except TimeoutError as error:
            raise HealthUnavailable("did not answer in time") from error
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            raise HealthUnavailable("its certificate is not accepted") from error
        except (aiohttp.ClientError, OSError) as error:
            raise HealthUnavailable("refused the connection or broke it off") from error
        try:
            return HealthReport.model_validate_json(content)
        except ValidationError as error:
            raise HealthUnavailable("gave a report that cannot be read") from error
