"""Key sets (JWKS): where they come from, how long they count, and which of their keys may check a token."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from memory_service.errors import Misconfigured, Unavailable
from memory_service.identity.authenticator import Monotonic
from memory_service.identity.trust import trust

logger = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "PS256", "ES256")
"""Signatures only: nothing that takes a shared secret, and never `none`."""

KEYS_SECONDS = 600.0
"""How long a key set counts before it is read again; a key that was taken out is trusted that much longer."""
UNKNOWN_KEY_SECONDS = 10.0
"""How often at most a token of no known key makes the set be read again: anybody can send one."""
RETRY_SECONDS = 1.0
MAX_KEYS_BYTES = 1024 * 1024
MAX_KEYS = 100
MIN_RSA_BITS = 2_048

Fetch = Callable[[], Awaitable[object]]
"""Reads a key set as parsed JSON; raises Unavailable when that does not work."""


@dataclass(frozen=True)
class VerifyKey:
    """One public key of a set: its id (may be empty), the algorithms that it may check, the key."""

    kid: str
    algorithms: tuple[str, ...]
    key: RSAPublicKey | EllipticCurvePublicKey


class KeySet:
    """The keys of one issuer, read when needed and kept while their source is away."""

    def __init__(self, fetch: Fetch, *, monotonic: Monotonic) -> None:
        self._fetch = fetch
        self._monotonic = monotonic
        self._keys: Sequence[VerifyKey] = ()
        self._read_at = float("-inf")
        self._tried_at = float("-inf")
        self._reading = asyncio.Lock()

    async def candidates(self, kid: str | None, algorithm: str) -> Sequence[VerifyKey]:
        """Return the keys that may have made such a signature; none when the set has no such key.

        Raises:
            Unavailable: the set was never read and cannot be read now.
        """
        is_old = self._monotonic() - self._read_at >= KEYS_SECONDS
        if is_old and not (self._keys and self._reading.locked()):
            await self._read(RETRY_SECONDS if not self._keys else UNKNOWN_KEY_SECONDS)
        found = self._matching(kid, algorithm)
        if not found:
            await self._read(UNKNOWN_KEY_SECONDS)
            found = self._matching(kid, algorithm)
        return found

    async def renewed(self, kid: str | None, algorithm: str) -> Sequence[VerifyKey]:
        """Return the keys to try where no candidate had made a signature; none when the set is the one they came from.

        An issuer may give its keys no ids, or a new key the id of the last one.
        """
        before = self._keys
        await self._read(UNKNOWN_KEY_SECONDS)
        return [] if self._keys is before else self._matching(kid, algorithm)

    def _matching(self, kid: str | None, algorithm: str) -> Sequence[VerifyKey]:
        return [
            key for key in self._keys if algorithm in key.algorithms and (kid is None or not key.kid or key.kid == kid)
        ]

    async def _read(self, at_most_every: float) -> None:
        asked_at = self._monotonic()
        async with self._reading:
            if self._tried_at >= asked_at or self._monotonic() - self._tried_at < at_most_every:
                self._raise_without_keys()
                return
            self._tried_at = self._monotonic()
            try:
                document = await self._fetch()
                self._keys = parse_keys(document)
            except Unavailable as error:
                logger.warning("key set not readable", extra={"reason": error.reason, "error": error.detail})
                self._raise_without_keys()
                return
            self._read_at = self._tried_at

    def _raise_without_keys(self) -> None:
        if not self._keys and self._read_at == float("-inf"):
            raise Unavailable(
                "the issuer's keys cannot be read, so no token can be checked; ask again later",
                reason="KeysUnavailable",
                retry_after=RETRY_SECONDS,
            )


def parse_keys(document: object) -> Sequence[VerifyKey]:
    """Return the keys of a JWKS that may check signatures; others are left out.

    Raises:
        Unavailable: it is not a JWKS.
    """
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise Unavailable("the key set has no `keys`", reason="KeysUnavailable")
    keys = []
    for entry in entries[:MAX_KEYS]:
        key = _parse_key(entry) if isinstance(entry, dict) else None
        if key is not None:
            keys.append(key)
    return keys


def _parse_key(entry: Mapping[str, Any]) -> VerifyKey | None:
    kid = entry.get("kid", "")
    if not isinstance(kid, str) or entry.get("use", "sig") != "sig":
        return None
    match entry.get("kty"):
        case "RSA":
            possible: tuple[str, ...] = ("RS256", "PS256")
        case "EC" if entry.get("crv") == "P-256":
            possible = ("ES256",)
        case _:
            return None
    allowed = tuple(name for name in possible if entry.get("alg", name) == name)
    if not allowed:
        return None
    try:
        key = jwt.PyJWK.from_dict(dict(entry), algorithm=allowed[0]).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if isinstance(key, RSAPublicKey) and key.key_size >= MIN_RSA_BITS:
        return VerifyKey(kid, allowed, key)
    if isinstance(key, EllipticCurvePublicKey):
        return VerifyKey(kid, allowed, key)
    return None


def file_keys(path: str) -> Fetch:
    """Return what reads a key set from a file."""

    async def fetch() -> object:
        try:
            data = await asyncio.to_thread(Path(path).read_bytes)
            return json.loads(data)
        except (OSError, ValueError, RecursionError) as error:
            raise Unavailable(f"the key set {path!r} cannot be read", reason="KeysUnavailable") from error

    return fetch


def private_url_keys(url: str, ca_file: str, setting: str, *, timeout_seconds: float) -> Fetch:
    """Return what reads a key set from a URL whose certificate is checked by one file, as it is at each reading.

    Raises:
        Misconfigured: the file cannot be used now; later that is a reading that fails.
    """
    trust(ca_file, setting)

    async def fetch() -> object:
        try:
            trusted = await asyncio.to_thread(trust, ca_file, setting)
        except Misconfigured as error:
            raise Unavailable(error.detail, reason="KeysUnavailable") from error
        async with httpx.AsyncClient(verify=trusted, timeout=timeout_seconds) as client:
            return await url_keys(url, client)()

    return fetch


def url_keys(url: str, client: httpx.AsyncClient) -> Fetch:
    """Return what reads a key set from a URL without any token; the client's timeout holds."""

    async def fetch() -> object:
        try:
            async with client.stream("GET", url, follow_redirects=False) as response:
                if response.status_code != 200:
                    raise Unavailable(f"{url} answers {response.status_code}", reason="KeysUnavailable")
                body = bytearray()
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_KEYS_BYTES:
                        raise Unavailable(f"{url} has more than {MAX_KEYS_BYTES} bytes", reason="KeysUnavailable")
            return json.loads(bytes(body))
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
            raise Unavailable(f"the key set at {url} cannot be read", reason="KeysUnavailable") from error

    return fetch
