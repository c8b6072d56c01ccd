"""What is shown of a setting: nothing that may open something. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit


def masked(path: Sequence[str], value: Any) -> Any:
    """Return a setting's value as it may be shown."""
    if value is None:
        return None
    if path[-1] == "dsn":
        return masked_dsn(str(value))
    if "headers" in path:
        return "***"
    return masked_url(value) if isinstance(value, str) and "://" in value else value


def masked_url(url: str) -> str:
    """Return a URL without what may open something: a name or a password before the host, the values of its query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "***"
    _, at, host = parts.netloc.rpartition("@")
    query = re.sub(r"=[^&;]*", "=***", parts.query) if "=" in parts.query else "***" if parts.query else ""
    fragment = "***" if parts.fragment else ""
    return urlunsplit((parts.scheme, f"{'***@' if at else ''}{host}", parts.path, query, fragment))


def masked_dsn(dsn: str) -> str:
    """Return a Postgres URL or key-value string without its password."""
    if "://" not in dsn:
        return re.sub(r"(?i)(\w*(?:password|passfile)\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", r"\1***", dsn)
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return "***"
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    netloc = f"{name}{':***' if colon else ''}{at}{host}"
    query = re.sub(r"(?i)((?:^|&)[^=&]*password=)[^&]*", r"\1***", parts.query)
    return urlunsplit((parts.scheme, netloc, parts.path, query, ""))
