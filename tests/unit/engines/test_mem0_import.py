"""Importing Mem0 leaves no trace: not in a home, not in loggers, not on the network, and not before it is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import logging, os, socket, sys, threading
def refuse(*_, **__): raise AssertionError("a socket to the network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
logging.getLogger("urllib3").setLevel(logging.INFO)
before = {name: logging.getLogger(name).level for name in ("posthog", "urllib3")}
import memory_service.engines
from memory_service.engines.mem0 import library
assert "mem0" not in sys.modules
environment = dict(os.environ)
library.load()
library.load()
assert "mem0" in sys.modules
assert {name: logging.getLogger(name).level for name in before} == before
assert not logging.getLogger("mem0.memory.main").isEnabledFor(logging.CRITICAL)
assert dict(os.environ) == {**environment, "MEM0_TELEMETRY": "False"}
assert threading.active_count() == 1
"""


def _run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={"PATH": "", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_mem0_is_imported_quietly_with_a_home_that_does_not_exist(tmp_path: Path) -> None:
    done = _run(PROGRAM, HOME="/nonexistent", TMPDIR=str(tmp_path), MEM0_TELEMETRY="True")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
    assert os.listdir(tmp_path) == []


def test_mem0_is_imported_where_nothing_can_be_written(tmp_path: Path) -> None:
    """Read-only root file systems; here the temporary folder cannot be made, whoever runs this."""
    blocked = """
import tempfile
def refuse(*_, **__): raise OSError(30, "Read-only file system")
tempfile.mkdtemp = tempfile.NamedTemporaryFile = refuse
"""
    done = _run(blocked + PROGRAM, HOME=str(tmp_path / "none"))
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
    assert os.listdir(tmp_path) == []


def test_a_missing_mem0_is_named_with_what_to_do() -> None:
    program = """
import sys
sys.modules["mem0"] = None
from memory_service.engines.mem0 import library
from memory_service.errors import Misconfigured
try:
    library.load()
except Misconfigured as error:
    assert "'native'" in str(error) and "memplane[service]" in str(error), error
else:
    raise AssertionError
"""
    done = _run(program, HOME="/nonexistent")
    assert (done.returncode, done.stderr) == (0, "")
