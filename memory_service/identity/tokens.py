"""The local check of a JWT: signature, issuer, times and audience, before anybody is asked about it."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import jwt

from memory_service.errors import Unauthenticated
from memory_service.identity.authenticator import Now
from memory_service.identity.keys import ALGORITHMS, KeySet, VerifyKey


class Expired(Unauthenticated):
    """The token's signature and issuer are good, and its time is over."""


LEEWAY = timedelta(seconds=30)
"""How far the issuer's clock may be from ours."""


@dataclass(frozen=True)
class Claims:
    """A token whose signature, issuer and times are good. `audiences` are the token's own."""

    audiences: tuple[str, ...]
    expires_at: float
    all: Mapping[str, Any]


def unverified_issuer(token: str) -> str:
    """Return the `iss` that a token claims, only to choose the keys that it is then checked with.

    Raises:
        Unauthenticated: it is not a JWT.
    """
    parts = token.split(".")
    if len(parts) != 3:
        raise Unauthenticated("the token is not a JWT")
    issuer = _segment(parts[1]).get("iss")
    if not isinstance(issuer, str):
        raise Unauthenticated("the token has no issuer")
    return issuer


async def check_token(token: str, *, issuer: str, keys: KeySet, now: Now) -> Claims:
    """Return a token's claims after everything about it that needs no third party was checked, but its audience.

    Raises:
        Expired: everything else about it is good.
        Unauthenticated: it is not a JWT, or one of the checks fails; the sentence says which.
        Unavailable: the issuer's keys were never read and cannot be.
    """
    parts = token.split(".")
    if len(parts) != 3:
        raise Unauthenticated("the token is not a JWT; send the projected token as it is in its file")
    header = _segment(parts[0])
    algorithm, kid = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS:
        raise Unauthenticated(f"the token's algorithm is not taken; expected one of {', '.join(ALGORITHMS)}")
    if "crit" in header or not header.get("b64", True):
        raise Unauthenticated("the token's header asks for extensions that are not known here")
    if kid is not None and not isinstance(kid, str):
        raise Unauthenticated("the token's key id is not a string")
    claims = _decoded(token, algorithm, await keys.candidates(kid, algorithm))
    if claims is None:
        claims = _decoded(token, algorithm, await keys.renewed(kid, algorithm))
    if claims is None:
        raise Unauthenticated("the token's signature is not of a key of its issuer")
    if claims.get("iss") != issuer:
        raise Unauthenticated(f"the token is of another issuer; expected {issuer!r}")
    return Claims(_audiences(claims), _check_times(claims, now().timestamp()), claims)


def _decoded(token: str, algorithm: str, candidates: Iterable[VerifyKey]) -> Mapping[str, Any] | None:
    """Return the claims under a signature that one of these keys has made, or None."""
    for candidate in candidates:
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                candidate.key,
                algorithms=[algorithm],
                options={
                    "verify_signature": True,
                    "verify_aud": False,
                    "verify_iss": False,
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_sub": False,
                    "verify_jti": False,
                },
            )
        except (jwt.PyJWTError, ValueError, RecursionError):
            continue
        return claims
    return None


def _check_times(claims: Mapping[str, Any], now: float) -> float:
    leeway = LEEWAY.total_seconds()
    expires_at = _moment(claims, "exp")
    if expires_at is None:
        raise Unauthenticated("the token never expires; only tokens with `exp` are taken")
    if now >= expires_at + leeway:
        raise Expired("the token has expired; read its file again, it is renewed there")
    for name in ("nbf", "iat"):
        moment = _moment(claims, name)
        if moment is not None and moment > now + leeway:
            raise Unauthenticated(f"the token is not valid yet (`{name}`); compare the clocks of issuer and service")
    return expires_at


def _moment(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unauthenticated(f"the token's `{name}` is not a time")
    try:
        moment = float(value)
    except OverflowError:
        moment = math.inf
    if not math.isfinite(moment):
        raise Unauthenticated(f"the token's `{name}` is not a time")
    return moment


def _audiences(claims: Mapping[str, Any]) -> tuple[str, ...]:
    value = claims.get("aud")
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(audience, str) for audience in values):
        raise Unauthenticated("the token has no audience")
    return tuple(values)


def _segment(segment: str) -> dict[str, Any]:
    try:
        value = json.loads(base64.urlsafe_b64decode(segment.encode("ascii") + b"=" * (-len(segment) % 4)))
    except (binascii.Error, UnicodeError, ValueError, RecursionError) as error:
        raise Unauthenticated("the token is not a JWT") from error
    if not isinstance(value, dict):
        raise Unauthenticated("the token is not a JWT")
    return value
