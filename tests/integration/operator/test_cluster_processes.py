"""When a program of the test cluster counts as ended: its ports must be free for the one that is started after it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from e2e.cluster.processes import end, started_at

WITHOUT_ITS_FIRST_THREAD = """
import ctypes, signal, socket, threading
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
threading.Thread(target=signal.sigwait, args=({signal.SIGUSR1},)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def headless() -> Iterator[subprocess.Popen[str]]:
    """A process whose first thread has ended; another one still holds a port."""
    process = subprocess.Popen([sys.executable, "-c", WITHOUT_ITS_FIRST_THREAD], stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def test_a_process_has_not_ended_before_its_last_thread(headless: subprocess.Popen[str]) -> None:
    assert headless.stdout is not None
    port = int(headless.stdout.readline())
    began = started_at(headless.pid)
    while state_of(headless.pid) != "Z":
        assert headless.poll() is None
    assert began is not None
    assert started_at(headless.pid) == began
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", port)).close()
    end([headless.pid], grace_seconds=0)
    assert started_at(headless.pid) is None
    socket.create_server(("127.0.0.1", port)).close()


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]
