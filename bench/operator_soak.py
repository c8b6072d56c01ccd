"""Whether the operator's memory stays flat: rounds of objects that come, change, fail and go, in one process.

    python bench/operator_soak.py --events 50000

A round is that of tests/unit/memory_operator/soak.py: some two hundred watch events in a namespace of its own, an API
server that refuses, pods that are silent, deletions that no watch sees, resyncs. The cluster is in memory, in the same
process, and forgets what is deleted. Printed is what grew after the warm-up for each 1,000 events: resident memory,
and what Python has allocated. What the operator must not keep is asserted by tests/unit/memory_operator/test_soak.py;
this prints and decides nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import sys
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

from tests.unit.memory_operator.soak import Soak  # noqa: E402

PAGE = os.sysconf("SC_PAGE_SIZE")
LINES = 12


@dataclass(frozen=True)
class Sample:
    """What there was after so many events."""

    events: int
    entries: int
    resident_kib: float
    traced_kib: float
    cpu_seconds: float


def sample(soak: Soak) -> Sample:
    """Count after a full collection, so that what is left is kept by somebody."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    traced = tracemalloc.get_traced_memory()[0] / 1024
    return Sample(soak.events, sum(soak.kept().values()), pages * PAGE / 1024, traced, time.process_time())


async def measure(events: int, warm_up: int) -> None:
    """Run rounds until so many events have come, and print a line every now and then."""
    soak, number = Soak(), 0

    async def until(count: int) -> Sample:
        nonlocal number
        while soak.events < count:
            number += 1
            await soak.round(number)
        return sample(soak)

    await until(warm_up)
    first = last = sample(soak)
    print("events   kept entries   RSS KiB   allocated KiB   CPU s")
    for line in range(LINES + 1):
        last = await until(warm_up + (events - warm_up) * line // LINES)
        print(
            f"{last.events:>6,}   {last.entries:>12,}   {last.resident_kib:>7,.0f}   {last.traced_kib:>13,.0f}"
            f"   {last.cpu_seconds:>5,.1f}",
            flush=True,
        )
    thousands = max(0.001, (last.events - first.events) / 1000)
    print(
        f"for each 1,000 events after the first {first.events:,}: "
        f"RSS {(last.resident_kib - first.resident_kib) / thousands:+.1f} KiB, "
        f"allocated {(last.traced_kib - first.traced_kib) / thousands:+.1f} KiB, "
        f"kept entries {(last.entries - first.entries) / thousands:+.2f}"
    )


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description="Whether the operator's memory stays flat.")
    parser.add_argument("--events", type=int, default=20_000, help="watch events to take")
    parser.add_argument("--warm-up", type=int, default=3_000, help="events before the first count")
    parser.add_argument("--no-trace", action="store_true", help="only RSS: tracing costs twice the time")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if not arguments.no_trace:
        tracemalloc.start()
    asyncio.run(measure(arguments.events, arguments.warm_up))


if __name__ == "__main__":
    main()
