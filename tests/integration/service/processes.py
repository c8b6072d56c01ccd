"""Real processes of the command line, waited for by what they say."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

LIMIT_SECONDS = 120.0
"""How long a process may take to start or to end on a busy machine."""

LOG_ENTRY = '{"time": '
"""What an entry of the log begins with; the log goes to standard error too."""

_REPOSITORY = Path(__file__).resolve().parents[3]
_LISTENING = re.compile(r"^listening on (http://\S+)$")


@dataclass
class Process:
    """A running `memplane` command; what it says on standard error is kept line by line."""

    popen: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    _new: queue.Queue[str | None] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()

    def _follow(self) -> None:
        assert self.popen.stderr is not None
        with self.popen.stderr as said:
            for line in said:
                self._new.put(line.rstrip("\n"))
        self._new.put(None)

    def clean_up(self) -> None:
        """Kill it if it still runs, and read what it said to the end."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(LIMIT_SECONDS)
        self._follower.join(LIMIT_SECONDS)

    def url(self) -> str:
        """Wait until it listens and return where."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            line = self._new.get(timeout=max(0.1, deadline - time.monotonic()))
            assert line is not None, f"ended without listening: {self.lines}"
            self.lines.append(line)
            found = _LISTENING.match(line)
            if found:
                return found[1]

    def end(self) -> tuple[int, list[str]]:
        """Ask it to end, and return its exit code and all that it said beside its log."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> tuple[int, list[str]]:
        """Wait for its end, and return its exit code and all that it said beside its log."""
        code = self.popen.wait(LIMIT_SECONDS)
        while (line := self._new.get(timeout=LIMIT_SECONDS)) is not None:
            self.lines.append(line)
        return code, [line for line in self.lines if not line.startswith(LOG_ENTRY)]


@contextmanager
def memplane(
    *arguments: str, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> Iterator[Process]:
    """Run `memplane` with these arguments; it is killed in the end if it still runs."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MEMPLANE_")}
    popen = subprocess.Popen(
        [sys.executable, "-m", "memory_service.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**clean, "PYTHONPATH": str(_REPOSITORY), **(environment or {})},
    )
    process = Process(popen)
    try:
        yield process
    finally:
        process.clean_up()
