"""Whether a ModelAPI answers: one request without a key, no redirects, never a link-local address.

Anything that answers HTTP is reachable, a 401 too: the operator has no key and must not have one; a wrong key is
reported by the service that uses it.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from memory_operator.crd.conditions import Reason
from memory_operator.crd.model_api import ModelApi
from memory_operator.status.snapshot import ProbeResult

_TIMEOUT = aiohttp.ClientTimeout(total=5)


class ModelProber(Protocol):
    """Finds out whether a ModelAPI answers."""

    async def probe(self, model: ModelApi) -> ProbeResult:
        """Return what it answered; never raises."""


class _AddressRefused(OSError):
    """The name leads to an address that must not be asked."""


def _is_refused(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return any(item.is_link_local or item.is_unspecified or item.is_multicast for item in (parsed, mapped) if item)


class GuardedResolver(AbstractResolver):
    """Resolves names and gives only addresses that may be asked, so that the check and the connection are one."""

    def __init__(self, inner: AbstractResolver | None = None) -> None:
        self._inner = inner or ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the allowed addresses of a host."""
        found = [item for item in await self._inner.resolve(host, port, family) if not _is_refused(item["host"])]
        if not found:
            raise _AddressRefused("link-local addresses are not asked")
        return found

    async def close(self) -> None:
        """Close the resolver below."""
        await self._inner.close()


class HttpModelProber:
    """Asks over HTTP; `session` must have been made by `session()`, which guards name resolution."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    @staticmethod
    def session() -> aiohttp.ClientSession:
        """Return a session that connects to allowed addresses only and trusts no proxy of the environment."""
        connector = aiohttp.TCPConnector(resolver=GuardedResolver(), limit=64, force_close=True)
        return aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT, trust_env=False)

    async def probe(self, model: ModelApi) -> ProbeResult:
        """Return what it answered."""
        host = urlsplit(model.spec.base_url).hostname or ""
        try:
            is_refused = _is_refused(host)
        except ValueError:
            is_refused = False
        if is_refused:
            return ProbeResult(Reason.ADDRESS_REFUSED, "Link-local addresses are not asked.")
        try:
            async with self._session.get(
                model.models_url, headers=dict(model.spec.headers), allow_redirects=False
            ) as response:
                return ProbeResult(Reason.REACHABLE, f"Answers HTTP {response.status // 100}xx.")
        except TimeoutError:
            return ProbeResult(Reason.UNREACHABLE, "Does not answer in time.")
        except aiohttp.ClientConnectorDNSError as error:
            if isinstance(error.os_error, _AddressRefused):
                return ProbeResult(Reason.ADDRESS_REFUSED, "Its name leads to a link-local address.")
            return ProbeResult(Reason.UNREACHABLE, "Its name cannot be resolved.")
        except aiohttp.ClientSSLError:
            return ProbeResult(Reason.UNREACHABLE, "Its certificate is not accepted.")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return ProbeResult(Reason.UNREACHABLE, f"Does not answer ({type(error).__name__}).")
