"""The headers that say who calls, read strictly: one value each, of bounded size, never logged."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field

from memory_service.contract.limits import MAX_PRINCIPAL_CHARS, MAX_TOKEN_CHARS
from memory_service.errors import FieldProblem, Unauthenticated
from memory_service.identity.authenticator import Headers

AUTHORIZATION = "Authorization"
USER_HEADER = "X-Memplane-User"
AGENT_HEADER = "X-Memplane-Agent"


@dataclass(frozen=True)
class Credentials:
    """What a request brought. The values are secrets and stay out of `repr`."""

    bearer: str | None = field(default=None, repr=False)
    user: str | None = field(default=None, repr=False)
    agent: str | None = None


def read_credentials(headers: Headers) -> Credentials:
    """Return the values of the three headers as they came; an empty value is not an absent one.

    Raises:
        Unauthenticated: a header is given twice, is too long, or `Authorization` is not `Bearer <token>`.
    """
    found: dict[str, str] = {}
    wanted = {name.lower(): name for name in (AUTHORIZATION, USER_HEADER, AGENT_HEADER)}
    for name, value in headers:
        known = wanted.get(name.lower())
        if known is None:
            continue
        if known in found:
            raise Unauthenticated(f"{known} is given twice; send it once")
        if len(value) > MAX_TOKEN_CHARS:
            raise Unauthenticated(f"{known} has {len(value)} characters; at most {MAX_TOKEN_CHARS} are read")
        found[known] = value
    return Credentials(_bearer(found.get(AUTHORIZATION)), found.get(USER_HEADER), found.get(AGENT_HEADER))


def _bearer(value: str | None) -> str | None:
    if value is None:
        return None
    scheme, _, token = value.strip().partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or not token.isascii() or any(c.isspace() for c in token):
        raise Unauthenticated("Authorization is not of the form `Bearer <token>`")
    return token


def header_text(name: str, value: str) -> str:
    """Return a header's value as text: servers hand the bytes over as Latin-1, clients mean UTF-8.

    Raises:
        Unauthenticated: the bytes are not UTF-8.
    """
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeEncodeError:
        return value
    except UnicodeDecodeError as error:
        raise Unauthenticated(
            f"{name} is not UTF-8; send plain text as UTF-8", [FieldProblem(name, "UTF-8 text", None)]
        ) from error


def principal_flaw(text: str) -> str | None:
    """Return what keeps a name from being a principal's, or None. What is left is taken literally."""
    if not text.strip():
        return "is empty"
    if len(text) > MAX_PRINCIPAL_CHARS:
        return f"has {len(text)} characters; at most {MAX_PRINCIPAL_CHARS} are taken"
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        return "holds a control character"
    return None
