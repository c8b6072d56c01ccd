"""Which requests are refused before anybody is asked who they are: pure rules on Host, Origin and content type.

They keep web pages out. A page in a browser can send requests to a service on the same machine, and with a name of its
own that resolves to 127.0.0.1 even read the answers; it cannot choose the Host header, and it cannot send JSON to
another origin without an Origin header.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from memory_service.contract.config import AuthMode
from memory_service.contract.problems import ProblemKind

_BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})


@dataclass(frozen=True)
class HttpRules:
    """What is configured. `health_paths` answer to any Host: probes call them by the pod's address."""

    mode: AuthMode
    allow_unauthenticated: bool = False
    allowed_origins: Collection[str] = ()
    health_paths: Collection[str] = ("/healthz", "/readyz", "/metrics")


@dataclass(frozen=True)
class RequestHead:
    """The parts of a request that the rules look at; None where a header is absent. `has_body`: length is not 0."""

    method: str
    path: str
    host: str | None
    origin: str | None
    content_type: str | None
    has_body: bool
    content_encoding: str | None = None


@dataclass(frozen=True)
class Refusal:
    """Why a request goes no further, as the kind and the sentence of a Problem."""

    kind: ProblemKind
    detail: str


def refusal(head: RequestHead, rules: HttpRules) -> Refusal | None:
    """Return why the request is refused, or None."""
    if rules.mode is AuthMode.NONE and not rules.allow_unauthenticated and head.path not in rules.health_paths:
        host = head.host or ""
        if not is_loopback(host_name(host)):
            return Refusal(
                ProblemKind.FORBIDDEN,
                f"Host {host[:200]!r} is not a loopback name; in the auth mode `none` call the service as "
                "127.0.0.1 or localhost",
            )
    if head.origin is not None and head.origin not in rules.allowed_origins:
        return Refusal(
            ProblemKind.FORBIDDEN,
            f"Origin {head.origin[:200]!r} is not allowed; list it in identity.allowedOrigins if a web page may call",
        )
    if head.has_body and head.method.upper() in _BODY_METHODS and not is_json(head.content_type):
        return Refusal(
            ProblemKind.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Type {(head.content_type or '')[:200]!r} is not taken; send application/json",
        )
    if head.has_body and (head.content_encoding or "identity").strip().lower() != "identity":
        return Refusal(
            ProblemKind.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Encoding {(head.content_encoding or '')[:200]!r} is not taken; send the JSON as it is",
        )
    return None


def is_json(content_type: str | None) -> bool:
    """Return whether a content type is JSON in UTF-8."""
    if content_type is None:
        return False
    essence, *parameters = (part.strip().lower() for part in content_type.split(";"))
    charsets = [value.strip('"') for name, _, value in (p.partition("=") for p in parameters) if name == "charset"]
    is_json_type = essence == "application/json" or (essence.startswith("application/") and essence.endswith("+json"))
    return is_json_type and all(charset in ("utf-8", "utf8") for charset in charsets)


def host_name(host: str) -> str:
    """Return the name or address of a Host header without its port and without brackets."""
    if host.startswith("["):
        name, closing, rest = host[1:].partition("]")
        return name if closing and (not rest or _is_port(rest)) else host
    name, colon, port = host.partition(":")
    return name if not colon or _is_port(colon + port) else host


@lru_cache(maxsize=64)
def is_loopback(name: str) -> bool:
    """Return whether a host name or address stands for this machine and no other, without asking a resolver."""
    if name.lower().removesuffix(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isascii() and text[1:].isdigit() and len(text) <= 6
