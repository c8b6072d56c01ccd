"""A certificate that cannot be served with is a sentence that says what to do, before anything listens."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory_service.contract.config import TlsConfig
from memory_service.errors import Misconfigured
from memory_service.process.serve import check_certificate
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
