"""How soon a service is ready, what it holds in memory while it rests, and how many modules each mode loads."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.machine import ROOT, Seen, Wire, cpu_seconds, memplane, resident_mib
from bench.report import Section, Table, Target
from bench.stores import BACKENDS, config, postgres, storage

READY_SECONDS = 3.0
_REST_SECONDS = 5.0


def _client_mib() -> tuple[float, float]:
    """Return the milliseconds and MiB that importing the client takes in a fresh interpreter."""
    code = (
        "import time, resource; began = time.process_time(); import memory_service.client;"
        " print((time.process_time() - began) * 1000, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    milliseconds, mib = said.split()
    return float(milliseconds), float(mib)


def _started(folder: Path, settings: dict[str, Any]) -> tuple[float, float, float, float]:
    """Return seconds to ready, CPU seconds until then, resting MiB, and CPU milliseconds a second at rest."""
    with memplane(folder, settings) as server:
        wire = Wire(server.port)
        assert wire.send(wire.request("GET", "/readyz"))[0] == 200
        began = cpu_seconds(server.pid)
        time.sleep(_REST_SECONDS)
        rest = (cpu_seconds(server.pid) - began) / _REST_SECONDS * 1000
        return server.seconds_to_listen, began, resident_mib(server.pid), rest


def run(*, quick: bool) -> Section:
    """Measure each mode."""
    rounds = 2 if quick else 5
    rows, targets = [], []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(postgres(folder))
        for backend in BACKENDS:
            place = folder / backend
            settings = config(stack.enter_context(storage(backend, place, database)), None)
            found = [_started(place, settings) for _ in range(rounds + 1)][1:]  # the first one makes the schema
            seconds, cpu, mib, rest = (Seen(tuple(values)) for values in zip(*found, strict=True))
            rows.append(
                (
                    backend,
                    f"{seconds.least:.2f}",
                    f"{seconds.median:.2f}",
                    f"{cpu.median:.2f}",
                    f"{mib.median:.0f}",
                    f"{rest.median:.1f}",
                )
            )
            targets.append(
                Target.at_most(f"ready after its start, {backend},", READY_SECONDS, seconds.median, unit=" s")
            )
    milliseconds, mib = (Seen(tuple(values)) for values in zip(*(_client_mib() for _ in range(rounds)), strict=True))
    return Section(
        "Starting and resting",
        "The service with its built-in embedder over a store that is there already: from the start of its process "
        "until it listens and `/readyz` answers 200, then at rest for five seconds. Which libraries a "
        "mode loads is a test "
        "(`tests/integration/service/test_loaded_modules.py`), as is that the client loads none of the server's "
        "(`tests/packaging/test_layout.py`).",
        targets,
        [
            Table(
                "Starting and resting",
                (
                    "backend",
                    "ready s, least",
                    "ready s, median",
                    "CPU s until ready",
                    "MiB at rest",
                    "CPU ms a second at rest",
                ),
                rows,
            ),
            Table(
                "Importing the client in a fresh interpreter",
                ("CPU ms, least", "CPU ms, median", "MiB"),
                [(f"{milliseconds.least:.0f}", f"{milliseconds.median:.0f}", f"{mib.median:.0f}")],
            ),
        ],
    )
