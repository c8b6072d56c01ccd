"""What holds in every test: no telemetry, a writable folder for libraries, and no address but this machine's."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.update(
    MEM0_TELEMETRY="False",
    ANONYMIZED_TELEMETRY="False",
    HF_HUB_OFFLINE="1",
    MEM0_DIR=tempfile.mkdtemp(prefix="memplane-mem0-"),
)
for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
    os.environ.pop(name, None)
for name in [name for name in os.environ if name.startswith("MEMPLANE_") and not name.startswith("MEMPLANE_TEST_")]:
    os.environ.pop(name)

_LOOPBACK = ("127.", "::1", "localhost", "198.18.")
"""198.18.0.0/15 is for benchmarks and never routed: the test cluster's bridge on this machine has addresses of it."""


class NetworkUsed(AssertionError):
    """A test, or something that it started in this process, looked for an address outside of this machine."""


@pytest.fixture(autouse=True, scope="session")
def only_loopback() -> Iterator[None]:
    """Refuse every connection that is not to this machine; tests/packaging proves that this refuses."""
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

    def check(sock: socket.socket, address: object) -> None:
        if sock.family in (socket.AF_INET, socket.AF_INET6) and isinstance(address, tuple):
            host = str(address[0])
            if not host.startswith(_LOOPBACK):
                raise NetworkUsed(f"a test tried to connect to {host}")

    def guarded(sock: socket.socket, address: object) -> None:
        check(sock, address)
        connect(sock, address)  # type: ignore[arg-type]

    def guarded_ex(sock: socket.socket, address: object) -> int:
        check(sock, address)
        return connect_ex(sock, address)  # type: ignore[arg-type]

    patch = pytest.MonkeyPatch()
    patch.setattr(socket.socket, "connect", guarded)
    patch.setattr(socket.socket, "connect_ex", guarded_ex)
    yield
    patch.undo()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository's root."""
    return Path(__file__).resolve().parent.parent
