"""What the benchmarks stand on: processes with a clock of their CPU, a lean HTTP client, and arms that take turns."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 120.0
IDLE_SECONDS = 3.0
"""A connection that was not used for this long is opened anew: servers close idle ones after 5 s."""
_LISTENING = re.compile(r"listening on https?://[^ ]*:(\d+)")


def cpu_seconds(*pids: int) -> float:
    """Return the processor time that processes have used, all their threads together, to the nanosecond."""
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found


def resident_mib(pid: int) -> float:
    """Return the memory that a process has resident now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


@dataclass
class Started:
    """A process that serves on a port of loopback."""

    pid: int
    port: int
    seconds_to_listen: float


@contextmanager
def started(
    command: Sequence[str], *, environment: Mapping[str, str] | None = None, port: int | None = None
) -> Iterator[Started]:
    """Run a server until the end of the block. Without `port` it says itself where it listens."""
    with tempfile.TemporaryFile("w+") as log:
        began = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=tempfile.gettempdir(),
            env={**_clean_environment(), "PYTHONPATH": str(ROOT), **(environment or {})},
        )
        try:
            found = port if port is not None and _answers(process, port) else _port(process, log)
            yield Started(process.pid, found, time.perf_counter() - began)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("MEMPLANE_")}


def _said(log: Any) -> str:
    with open(f"/proc/self/fd/{log.fileno()}") as again:
        return again.read()


def _port(process: subprocess.Popen[bytes], log: Any) -> int:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        found = _LISTENING.search(said := _said(log))
        if found:
            return int(found[1])
        if process.poll() is not None:
            raise SystemExit(f"bench: a server ended before it listened:\n{said[-3000:]}")
        time.sleep(0.005)
    raise SystemExit(f"bench: a server did not listen within {START_SECONDS:g} s:\n{_said(log)[-3000:]}")


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return True
    return False


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def memory_folder() -> str | None:
    """Return a folder in memory, for what measures CPU and not the disk; None, the usual one, where there is none."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextmanager
def memplane(folder: Path, config: Mapping[str, Any], *, worker: bool = True) -> Iterator[Started]:
    """Serve a store with this configuration; `worker=False` leaves background work undone."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "memplane.json"
    file.write_text(json.dumps({"server": {"port": 0}, **config}))
    module = ["memory_service.cli", "serve", "--config", str(file)] if worker else ["bench.serving", str(file)]
    with started([sys.executable, "-m", *module]) as server:
        yield server


class Wire:
    """One HTTP connection that spends next to nothing: a header and body in one segment, one answer at a time."""

    def __init__(self, port: int, headers: Mapping[str, str] | None = None) -> None:
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        self._port = port
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port), 120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._used = time.monotonic()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return the parsed answer; anything but 2xx ends the run."""
        status, answer = self.send(self.request(method, path, body))
        if not 200 <= status < 300:
            raise SystemExit(f"bench: {method} {path} was answered {status}: {answer[:500]!r}")
        return json.loads(answer) if answer else None

    def request(self, method: str, path: str, body: Any = None) -> bytes:
        """Return the bytes of a request, so that they can be made before the clock runs."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Type: application/json\r\n"
        return f"{head}{self._headers}Content-Length: {len(data)}\r\n\r\n".encode() + data

    def send(self, request: bytes) -> tuple[int, bytes]:
        """Send prepared bytes and return the status and the body."""
        if time.monotonic() - self._used > IDLE_SECONDS:
            self._socket.close()
            self._connect()
        self._socket.sendall(request)
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._read()
        head, body = data[:end].lower(), data[end + 4 :]
        at = head.index(b"content-length:") + 15
        size = int(head[at:].split(b"\r\n", 1)[0])
        pieces, have = [body], len(body)
        while have < size:
            pieces.append(self._read())
            have += len(pieces[-1])
        self._used = time.monotonic()
        return int(data[9:12]), b"".join(pieces)

    def _read(self) -> bytes:
        read = self._socket.recv(262_144)
        if not read:
            raise SystemExit("bench: a server closed its connection")
        return read

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


@dataclass
class Load:
    """What clients at once got done."""

    operations: int
    seconds: float
    milliseconds: list[float]

    @property
    def per_second(self) -> float:
        """Operations in a second."""
        return self.operations / self.seconds

    def percentile(self, share: float) -> float:
        """Return the milliseconds within which this share of the operations ended."""
        ordered = sorted(self.milliseconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def at_once(works: Sequence[Callable[[int], None]], *, seconds: float) -> Load:
    """Run each work again and again in a thread of its own, for some seconds; a work is given the number of its run."""
    taken: list[list[float]] = [[] for _ in works]
    failures: list[BaseException] = []
    gate = threading.Barrier(len(works) + 1)

    def client(number: int) -> None:
        gate.wait()
        try:
            for run in range(sys.maxsize):
                start = time.perf_counter()
                if start > deadline:
                    return
                works[number](run)
                taken[number].append((time.perf_counter() - start) * 1000)
        except BaseException as error:  # noqa: BLE001 - told to the caller
            failures.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(len(works))]
    deadline = float("inf")
    for thread in threads:
        thread.start()
    began = time.perf_counter()
    deadline = began + seconds
    gate.wait()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    every = [value for some in taken for value in some]
    return Load(len(every), time.perf_counter() - began, every)


@dataclass(frozen=True)
class Seen:
    """What repeated measurements of one thing gave."""

    values: tuple[float, ...]

    @property
    def least(self) -> float:
        """The smallest."""
        return min(self.values)

    @property
    def median(self) -> float:
        """The one in the middle."""
        return statistics.median(self.values)


def in_turns(arms: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Seen]:
    """Measure every arm once a round, A B A B, so that a noisy minute is everybody's."""
    values: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, arm in arms.items():
            values[name].append(arm())
    return {name: Seen(tuple(found)) for name, found in values.items()}


def ratio(ours: Seen, theirs: Seen) -> Seen:
    """Return ours over theirs, round by round."""
    return Seen(tuple(one / other for one, other in zip(ours.values, theirs.values, strict=True)))
