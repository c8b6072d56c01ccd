"""Who a user or an agent is to this client: the same under every token that an issuer gives them.

A token is read without being verified, so a subject is only a name for what lies on this machine. What it may do is
the service's to say: no entry goes out under a token that did not come with it, unless the service has said that its
own was genuine.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Any

LEEWAY_SECONDS = 30.0
"""How far an issuer's clock may be from this machine's, as in the service."""


def subject_of(user: str | None) -> str:
    """Return the name that all tokens of one issuer and subject have in common; any other text names itself."""
    claims = _claims(user)
    named = [claims.get("iss"), claims.get("sub")]
    return json.dumps(named if all(isinstance(part, str) for part in named) else user)


def agent_of(token: str | None, claimed: str | None, store: str | None) -> str:
    """Return the name under which what an agent tells a store waits on this machine.

    A token names its issuer and subject, which outlive it; a static token names itself, by its hash. Without one the
    agent is who it claims to be. `store` is the name that it is bound by, or the address where it has none.
    """
    claims = _claims(token)
    named = [claims.get("iss"), claims.get("sub")]
    if token is None:
        who: dict[str, Any] = {"claims": claimed}
    elif all(isinstance(part, str) for part in named):
        who = {"issuer": named[0], "subject": named[1]}
    else:
        who = {"token": hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()}
    return json.dumps({"store": store, **who})


def unseen_agent_of(token_file: str, claimed: str | None, store: str | None) -> str:
    """Return the name for what an agent tells a store before the file that was named for its token has one.

    No agent with a token has it, and none without: what it claims only tells those apart who share a folder and name
    their files alike.
    """
    return json.dumps({"store": store, "token_file": token_file, "claims": claimed})


def expires_at(user: str | None) -> float | None:
    """Return the time of day in seconds at which a token ends; None for what is no token or has no end."""
    moment = _claims(user).get("exp")
    return float(moment) if isinstance(moment, int | float) else None


def audiences_of(token: str) -> tuple[str, ...]:
    """Return whom a token is for; nobody for what is no token or does not say."""
    named = _claims(token).get("aud")
    return tuple(item for item in (named if isinstance(named, list) else [named]) if isinstance(item, str))


def _claims(token: str | None) -> dict[str, Any]:
    parts = token.split(".") if token is not None else []
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1].encode("ascii") + b"=" * (-len(parts[1]) % 4)))
    except (binascii.Error, UnicodeError, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}
