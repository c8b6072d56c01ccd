"""A certificate that cannot be served with is a sentence that says what to do, before anything listens."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from memory_service.contract.config import TlsConfig
from memory_service.errors import Misconfigured
from memory_service.process.certificates import Renewal, check_certificate
from tests.fakes.kube_api import make_certificates


@pytest.fixture
def good(tmp_path: Path) -> TlsConfig:
    make_certificates(tmp_path)
    both = str(tmp_path / "server.pem")
    return TlsConfig(cert_file=both, key_file=both)


def test_a_certificate_with_its_key_is_taken(good: TlsConfig) -> None:
    check_certificate(good)


@pytest.mark.parametrize(("part", "name"), [("cert_file", "server.tls.certFile"), ("key_file", "server.tls.keyFile")])
def test_a_file_that_is_missing_is_named(good: TlsConfig, tmp_path: Path, part: str, name: str) -> None:
    missing = str(tmp_path / "nothing.pem")
    with pytest.raises(Misconfigured, match="cannot be read") as refused:
        check_certificate(good.model_copy(update={part: missing}))
    assert name in refused.value.detail
    assert missing in refused.value.detail
    assert refused.value.reason == "SecretMissing"


@pytest.mark.parametrize("part", ["cert_file", "key_file"])
def test_a_file_that_holds_something_else_is_refused(good: TlsConfig, tmp_path: Path, part: str) -> None:
    other = tmp_path / "other.pem"
    other.write_text("not a certificate")
    with pytest.raises(Misconfigured, match="not a certificate and its key"):
        check_certificate(good.model_copy(update={part: str(other)}))


def served(context: ssl.SSLContext) -> bytes | None:
    """Return the certificate that a new connection is shown, or None where none can be made."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    client = trusting.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return None
    return client.getpeercert(binary_form=True)


@pytest.fixture
def pairs(tmp_path: Path) -> list[str]:
    """The texts of two certificates, each with its key."""
    texts = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        make_certificates(folder)
        texts.append((folder / "server.pem").read_text())
    return texts


@pytest.fixture
def tls(tmp_path: Path, pairs: list[str]) -> TlsConfig:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_text(pairs[0])
    key.write_text(pairs[0])
    return TlsConfig(cert_file=str(certificate), key_file=str(key))


def served_with(tls: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.cert_file, tls.key_file)
    return context


def test_while_a_renewed_certificate_and_its_key_do_not_fit_the_last_good_pair_is_served(
    tls: TlsConfig, pairs: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    context = served_with(tls)
    renewal, first = Renewal(context, tls), served(context)
    assert first is not None
    Path(tls.cert_file).write_text(pairs[1])
    renewal.look()
    renewal.look()
    assert served(context) == first
    assert [record.message for record in caplog.records] == ["renewed certificate not usable, the last one stays"]
    Path(tls.key_file).unlink()
    renewal.look()
    assert served(context) == first
    Path(tls.key_file).write_text(pairs[1])
    renewal.look()
    assert served(context) not in (first, None)


def test_a_renewed_pair_is_used_though_its_files_are_as_old_as_the_last_ones(tls: TlsConfig, pairs: list[str]) -> None:
    context = served_with(tls)
    renewal, first = Renewal(context, tls), served(context)
    for name in (tls.cert_file, tls.key_file):
        seen = Path(name).stat()
        Path(name).write_text(pairs[1])
        os.utime(name, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    renewal.look()
    assert served(context) not in (first, None)
