"""Keys that were renewed check tokens soon, with and without ids, and nobody can have them read all the time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from memory_service.errors import Unauthenticated
from memory_service.identity.keys import UNKNOWN_KEY_SECONDS, KeySet
from memory_service.identity.tokens import check_token
from tests.fakes.identity_world import Clock
from tests.fakes.kube_api import SigningKey, make_key

ISSUER = "https://id.example"


class Issuer:
    """Publishes one key at a time, under one id or under none, and counts how often it is asked."""

    def __init__(self, kid: str | None) -> None:
        self.asked = 0
        self.key = make_key("ES256", "unused")
        self._kid = kid

    async def fetch(self) -> object:
        self.asked += 1
        entry = {name: value for name, value in self.key.public_jwk.items() if name != "kid"}
        return {"keys": [entry if self._kid is None else {**entry, "kid": self._kid}]}

    def token(self, key: SigningKey | None = None) -> str:
        made = key or self.key
        signed = SigningKey(self._kid or "", made.algorithm, made.private)
        claims: dict[str, Any] = {"iss": ISSUER, "aud": ["shop"], "exp": 2_000_000_000}
        return signed.sign(claims)


@pytest.mark.parametrize("kid", [None, "always the same"])
async def test_a_new_key_without_an_id_of_its_own_is_taken_as_soon_as_keys_are_read_again(kid: str | None) -> None:
    issuer, clock = Issuer(kid), Clock()
    keys = KeySet(issuer.fetch, monotonic=clock.monotonic)

    async def check(token: str) -> str:
        claims = await check_token(token, issuer=ISSUER, keys=keys, now=lambda: datetime(2026, 1, 31, tzinfo=UTC))
        return str(claims.all["iss"])

    assert await check(issuer.token()) == ISSUER
    issuer.key = make_key("ES256", "unused")
    clock.advance(UNKNOWN_KEY_SECONDS)
    assert await check(issuer.token()) == ISSUER
    assert issuer.asked == 2
    forged = issuer.token(make_key("ES256", "unused"))
    clock.advance(UNKNOWN_KEY_SECONDS - 1)
    for _ in range(3):
        with pytest.raises(Unauthenticated, match="not of a key of its issuer"):
            await check(forged)
    assert issuer.asked == 2
    clock.advance(1)
    for _ in range(3):
        with pytest.raises(Unauthenticated, match="not of a key of its issuer"):
            await check(forged)
    assert issuer.asked == 3
