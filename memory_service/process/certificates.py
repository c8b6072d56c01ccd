"""The certificate that is served with: checked before anything listens, followed while it is renewed."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from memory_service.contract.config import TlsConfig
from memory_service.contract.health import Reason
from memory_service.errors import Misconfigured

logger = logging.getLogger(__name__)

CERTIFICATE_CHECK_SECONDS = 5.0
"""How soon a renewed certificate is used."""


def check_certificate(tls: TlsConfig) -> None:
    """Raise Misconfigured where the certificate and its key cannot be served with."""
    for name, path in (("server.tls.certFile", tls.cert_file), ("server.tls.keyFile", tls.key_file)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise Misconfigured(
                f"the file {path!r} of {name} cannot be read: {error.strerror}; mount the Secret that it comes from",
                reason=Reason.SECRET_MISSING,
            ) from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.cert_file, tls.key_file)
    except ssl.SSLError as error:
        raise Misconfigured(
            f"server.tls.certFile {tls.cert_file!r} and server.tls.keyFile {tls.key_file!r} are not a certificate and"
            f" its key in PEM: {error.reason or error}",
            reason=Reason.NOT_CONFIGURED,
        ) from error


async def follow_certificate(context: ssl.SSLContext, tls: TlsConfig) -> None:
    """Keep a served context at the certificate that its files hold, until cancelled."""
    renewal = Renewal(context, tls)
    while True:
        await asyncio.sleep(CERTIFICATE_CHECK_SECONDS)
        await asyncio.to_thread(renewal.look)


class Renewal:
    """Brings a renewed certificate into a context that is served with: new connections use it, old ones go on."""

    def __init__(self, context: ssl.SSLContext, tls: TlsConfig) -> None:
        self._context = context
        self._tls = tls
        self._used = self._told = _contents(tls)

    def look(self) -> None:
        """Use what the files hold now, if it is a certificate and its key; otherwise the last good pair stays."""
        contents = _contents(self._tls)
        if contents == self._used:
            return
        try:
            # The context would take a certificate first and then refuse a key that does not fit, and be left with none.
            check_certificate(self._tls)
            self._context.load_cert_chain(self._tls.cert_file, self._tls.key_file)
        except (Misconfigured, OSError, ssl.SSLError) as error:
            if contents != self._told:
                detail = error.detail if isinstance(error, Misconfigured) else str(error)
                logger.warning("renewed certificate not usable, the last one stays", extra={"error": detail})
            self._told = contents
            return
        self._used = self._told = contents
        logger.info("certificate renewed")


def _contents(tls: TlsConfig) -> tuple[bytes | None, ...]:
    found: list[bytes | None] = []
    for name in (tls.cert_file, tls.key_file):
        try:
            found.append(Path(name).read_bytes())
        except OSError:
            found.append(None)
    return tuple(found)
