"""Who a user is to this client: the same person under every token that an issuer gives them.

A token is read without being verified, so a subject is only a name for what lies on this machine. What it may do is
the service's to say: no entry goes out under a token that did not come with it, unless the service has said that its
own was genuine.
"""

from __future__ import annotations

import base64
import binascii
import json


def subject_of(user: str | None) -> str:
    """Return the name that all tokens of one issuer and subject have in common; any other text names itself."""
    parts = user.split(".") if user is not None else []
    if len(parts) == 3:
        try:
            claims = json.loads(base64.urlsafe_b64decode(parts[1].encode("ascii") + b"=" * (-len(parts[1]) % 4)))
        except (binascii.Error, UnicodeError, ValueError, RecursionError):
            claims = None
        if isinstance(claims, dict):
            named = [claims.get("iss"), claims.get("sub")]
            if all(isinstance(part, str) for part in named):
                return json.dumps(named)
    return json.dumps(user)
