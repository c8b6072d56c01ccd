"""What holds in every test: no telemetry, a writable folder for libraries, and no address but this machine's."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

os.environ.update(
    MEM0_TELEMETRY="False",
    ANONYMIZED_TELEMETRY="False",
    HF_HUB_OFFLINE="1",
    MEM0_DIR=tempfile.mkdtemp(prefix="memplane-mem0-"),
)
atexit.register(shutil.rmtree, os.environ["MEM0_DIR"], ignore_errors=True)
for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
    os.environ.pop(name, None)
for name in [name for name in os.environ if name.startswith("MEMPLANE_") and not name.startswith("MEMPLANE_TEST_")]:
    os.environ.pop(name)

# Examples are bounded in number; how long one takes says more about what else the machine does than about the code.
hypothesis.settings.register_profile(
    "memplane", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("memplane")

_LOOPBACK = ("127.", "::1", "localhost", "198.18.")
"""198.18.0.0/15 is for benchmarks and never routed: the test cluster's bridge on this machine has addresses of it."""


class NetworkUsed(AssertionError):
    """A test, or something that it started in this process, looked for an address outside of this machine."""


_TOGETHER = "tests/integration/operator/"
"""Tests that share one control plane: one worker runs them all. The scheduler looks at ids, for the suffix by which
xdist marks its groups is lost in the structured ids of pytest 9.2."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Return a scheduler that deals out single tests, but for those that belong together."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _TOGETHER if nodeid.startswith(_TOGETHER) else nodeid

    return Scheduler(config, log)


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
