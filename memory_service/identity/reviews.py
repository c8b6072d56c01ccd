"""TokenReview: whether a token that looks good still belongs to a living pod."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from dataclasses import dataclass, field

from memory_service.contract.config import Revocation
from memory_service.errors import Unauthenticated, Unavailable
from memory_service.identity.authenticator import Monotonic, Now
from memory_service.identity.kube_api import KubeApi, KubeUnavailable, TokenVerdict

logger = logging.getLogger(__name__)

GOOD_SECONDS = 45.0
"""The API server itself remembers for 10 s, so a removed pod's token is refused within 55 s."""
BAD_SECONDS = 10.0
"""A refused token is asked about again that soon, in case the refusal was a passing one."""
RETRY_SECONDS = 5.0
"""While there are no verdicts, how often one is asked for: an outage must not cost every call a timeout."""
MAX_TOKENS = 10_000


@dataclass
class _Entry:
    verdict: TokenVerdict | None = None
    asked_at: float = float("-inf")
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Reviews:
    """Asks the API server about tokens that passed the local check, and remembers the answers by the token's hash."""

    def __init__(self, api: KubeApi, *, revocation: Revocation, now: Now, monotonic: Monotonic) -> None:
        self._api = api
        self._revocation = revocation
        self._now = now
        self._monotonic = monotonic
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._failed_at: float | None = None
        self._available: bool | None = None

    @property
    def available(self) -> bool | None:
        """Whether the last attempt gave a verdict; None before the first."""
        return self._available

    async def check(self, token: str, *, audience: str, username: str, expires_at: float) -> None:
        """Return when the token may be used for this audience; no answer is remembered past its `exp`.

        Raises:
            Unauthenticated: the API server refuses it, knows it as another's, or not for this audience.
            Unavailable: there is no verdict, and revocation is `required`.
        """
        entry = self._entry(hashlib.sha256(f"{audience}\0{token}".encode()).digest())
        async with entry.asking:
            if not self._is_fresh(entry, expires_at):
                await self._ask(entry, token, audience)
        verdict = entry.verdict
        if verdict is None:
            return
        if not verdict.authenticated:
            raise Unauthenticated("the API server refuses the token: its pod is gone or it was revoked")
        if audience not in verdict.audiences:
            raise Unauthenticated(f"the API server does not take the token for the audience {audience!r}")
        if verdict.username != username:
            raise Unauthenticated("the API server knows the token as another ServiceAccount's")

    def _entry(self, key: bytes) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry()
            if len(self._entries) > MAX_TOKENS:
                self._entries.popitem(last=False)
        self._entries.move_to_end(key)
        return entry

    def _is_fresh(self, entry: _Entry, expires_at: float) -> bool:
        if entry.verdict is None or self._now().timestamp() >= expires_at:
            return False
        lasts = GOOD_SECONDS if entry.verdict.authenticated else BAD_SECONDS
        return self._monotonic() - entry.asked_at < lasts

    async def _ask(self, entry: _Entry, token: str, audience: str) -> None:
        """Put a new verdict into the entry.

        Where there is none, a good verdict that has grown old is dropped and a refusal stays: a revoked token does
        not come back because the API server is away.
        """
        asked_at = self._monotonic()
        error: KubeUnavailable | None = None
        if self._failed_at is None or asked_at - self._failed_at >= RETRY_SECONDS:
            try:
                entry.verdict = await self._api.review(token, audience)
            except KubeUnavailable as failure:
                error = failure
            else:
                entry.asked_at = asked_at
                self._failed_at = None
                self._available = True
                return
            if self._available is not False:
                logger.warning("no verdicts on tokens", extra={"revocation": self._revocation.value})
            self._failed_at = self._monotonic()
            self._available = False
        if entry.verdict is not None and entry.verdict.authenticated:
            entry.verdict = None
        if entry.verdict is None and self._revocation is Revocation.REQUIRED:
            raise Unavailable(
                "whether the token is revoked cannot be told, and identity.revocation is `required`; ask again later",
                reason="RevocationUnavailable",
                retry_after=RETRY_SECONDS,
            ) from error
