"""Principals: the users' own tokens, of issuers that the store's owner has listed."""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from memory_service.contract.config import UserIssuer
from memory_service.contract.problems import GOOD_TOKEN, UNEXPIRED_TOKEN
from memory_service.domain.callers import Principal
from memory_service.errors import FieldProblem, Misconfigured, Unauthenticated
from memory_service.identity.authenticator import Monotonic, Now
from memory_service.identity.credentials import USER_HEADER, principal_flaw
from memory_service.identity.keys import Fetch, KeySet, file_keys, private_url_keys, url_keys
from memory_service.identity.tokens import Expired, check_token, unverified_issuer


class Users:
    """Turns a user's JWT into the principal of an agent's call."""

    def __init__(
        self,
        issuers: Sequence[UserIssuer],
        *,
        client: httpx.AsyncClient,
        timeout_seconds: float,
        now: Now,
        monotonic: Monotonic,
    ) -> None:
        self._now = now
        self._issuers: dict[str, tuple[UserIssuer, KeySet]] = {}
        for issuer in issuers:
            if not issuer.issuer or "#" in issuer.issuer or issuer.issuer in self._issuers:
                raise Misconfigured(
                    f"identity.users.issuers: {issuer.issuer!r} is empty, holds a `#` or is listed twice",
                    reason="IssuerInvalid",
                )
            fetch = _key_source(issuer, client, timeout_seconds)
            self._issuers[issuer.issuer] = (issuer, KeySet(fetch, monotonic=monotonic))

    async def principal(self, token: str) -> Principal:
        """Return who the token speaks for.

        Raises:
            Unauthenticated: it is not a good token of a listed issuer for this store; its field says whether it has
                only expired.
            Unavailable: the issuer's keys were never read and cannot be.
        """
        if not self._issuers:
            raise Unauthenticated(
                f"this store takes no users' tokens; leave {USER_HEADER} out, or list their issuer in "
                "identity.users.issuers",
                [FieldProblem(USER_HEADER, "no such header")],
            )
        try:
            return await self._principal(token)
        except Unauthenticated as error:
            expected = UNEXPIRED_TOKEN if isinstance(error, Expired) else GOOD_TOKEN
            raise Unauthenticated(f"{USER_HEADER}: {error.detail}", [FieldProblem(USER_HEADER, expected)]) from error

    async def _principal(self, token: str) -> Principal:
        name = unverified_issuer(token)
        if name not in self._issuers:
            raise Unauthenticated("the token's issuer is not among identity.users.issuers")
        issuer, keys = self._issuers[name]
        claims = await check_token(token, issuer=issuer.issuer, keys=keys, now=self._now)
        if not set(claims.audiences) & set(issuer.audiences):
            raise Unauthenticated(f"the token is for another audience; expected one of {list(issuer.audiences)}")
        subject = claims.all.get(issuer.claim)
        if not isinstance(subject, str):
            raise Unauthenticated(f"the token has no claim {issuer.claim!r} that is a string")
        flaw = principal_flaw(subject) or principal_flaw(f"{issuer.issuer}#{subject}")
        if flaw is not None:
            raise Unauthenticated(f"the token's claim {issuer.claim!r} {flaw}")
        return Principal(issuer.issuer, subject)


def _key_source(issuer: UserIssuer, client: httpx.AsyncClient, timeout_seconds: float) -> Fetch:
    if issuer.jwks_file is not None:
        return file_keys(issuer.jwks_file)
    url = issuer.jwks_url or ""
    if issuer.jwks_ca_file is None:
        return url_keys(url, client)
    setting = f"identity.users.issuers: jwksCaFile of {issuer.issuer!r}"
    return private_url_keys(url, issuer.jwks_ca_file, setting, timeout_seconds=timeout_seconds)
