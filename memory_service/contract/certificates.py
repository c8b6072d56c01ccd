"""Certificates in a text: bundles carry comments in any language, which the TLS library of Python does not read."""

from __future__ import annotations

import re

_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----[ \t\r\nA-Za-z0-9+/=]+-----END CERTIFICATE-----")


def certificates(text: str) -> str:
    """Return the certificates of a PEM bundle, each on lines of its own, and nothing else; empty when it holds none."""
    return "".join(f"{block}\n" for block in _BLOCK.findall(text))
