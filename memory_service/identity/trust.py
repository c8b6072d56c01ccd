"""Certificate authorities in files that the configuration names, and that may be replaced while the service runs."""

from __future__ import annotations

import ssl

from memory_service.errors import Misconfigured


def trust(ca_file: str | None, setting: str) -> ssl.SSLContext:
    """Return what checks a server's certificate by the authorities of a file alone; without one, by the system's.

    Raises:
        Misconfigured: the file is missing or holds no certificate; the sentence names the setting.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise Misconfigured(
            f"{setting}: the file {ca_file!r} is missing or holds no certificate; give one in PEM",
            reason="CAFileInvalid",
        ) from error
