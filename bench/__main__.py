"""Runs the benchmarks and writes docs/reference/benchmarks.md with its plots.

python -m bench [--quick] [--largest ROWS] [NAME ...]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import sqlite3
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from bench import report

BENCHMARKS = ("write_cost", "recall_cost", "throughput", "growth", "starting")
"""The files with a `run`, in the order of the page."""

HEAD = """# Benchmarks

Written by `make bench`; a section each is a file in `bench/`, and `python -m bench NAME` writes one of them anew.
`make bench QUICK=1` is a small run that only shows that everything works: it prints, and writes no page.

```sh example
make bench
```

How to read it: figures of a section come from one run on one machine and change with the machine; ratios of arms that
took turns in the same run (A B A B) are what holds elsewhere. `least` is the smallest of the rounds, `median` the one
in the middle. CPU is the processor time of the processes named, all threads together, however long they waited; on a
machine that does other things as well the same work takes more of it, so targets in milliseconds are held against the
least. `write_cost` and `recall_cost` keep their data in memory where the system has a folder there, since they measure
CPU and not the disk; that of the others lies {folder}. Every text
that is embedded is embedded by one endpoint on loopback for all systems, from a cache: a run measures memory systems,
not a model. No system was given a chat model. A target that is missed says by how much.

{versions}
"""


def _versions() -> str:
    names = ("memplane", "fastapi", "uvicorn", "pydantic", "mem0ai", "chromadb", "psycopg", "numpy")
    found = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    return (
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {found}; "
        f"{len(os.sched_getaffinity(0))} cores, {platform.system()}."
    )


def _folder() -> str:
    """Say what the data folder is on: in memory, the disk's time is not part of wall times."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    here = tempfile.gettempdir()
    on = max((mount for mount in mounts if f"{here}/".startswith(f"{mount[0].rstrip('/')}/")), key=lambda m: len(m[0]))
    return "in memory too, so that the disk's time is in no figure" if on[1] == "tmpfs" else "on a disk"


def main() -> int:
    """Run the named benchmarks, or all."""
    arguments = argparse.ArgumentParser(prog="python -m bench", description="Run benchmarks and write their page.")
    arguments.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all without one")
    arguments.add_argument("--quick", action="store_true", help="a small run that prints and writes no page")
    arguments.add_argument("--largest", type=int, metavar="ROWS", help="the most rows that `growth` goes up to")
    given = arguments.parse_args()
    unknown = set(given.names) - set(BENCHMARKS)
    if unknown:
        arguments.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    head = HEAD.format(folder=_folder(), versions=_versions())
    found = {}
    for name in given.names or BENCHMARKS:
        began = time.monotonic()
        print(f"==> {name}", flush=True)
        when = f"Measured on {datetime.now(UTC).date().isoformat()}, from a load average of {os.getloadavg()[0]:.1f}."
        options = {"largest": given.largest} if name == "growth" and given.largest else {}
        section = importlib.import_module(f"bench.{name}").run(quick=given.quick, **options)
        found[name] = replace(section, when=when)
        print(found[name].markdown(name), flush=True)
        print(f"==> {name} took {time.monotonic() - began:.0f} s", flush=True)
        if not given.quick:
            report.write(head, found, BENCHMARKS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
