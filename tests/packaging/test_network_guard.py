"""The guard in tests/conftest.py refuses what it should."""

from __future__ import annotations

import socket

import pytest

from tests.conftest import NetworkUsed


def test_a_test_that_reaches_outside_fails() -> None:
    with socket.socket() as sock, pytest.raises(NetworkUsed):
        sock.connect(("192.0.2.1", 80))


def test_a_test_may_reach_loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()[:2]):
        pass
