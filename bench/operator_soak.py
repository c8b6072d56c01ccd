"""Whether the operator's memory stays flat: rounds of objects that come, change, fail and go.

    python bench/operator_soak.py --events 50000
    python bench/operator_soak.py --process 12

The first runs in this process, against a cluster in memory that forgets what is deleted. A round is that of
tests/unit/memory_operator/soak.py: some two hundred watch events in a namespace of its own, an API server that refuses,
pods that are silent, deletions that no watch sees, resyncs. The second is a real operator with its client and its
watches, against a real API server: a round makes ten stores with fifty bindings in a namespace, waits until all are
Ready, scales the stores to nothing and back, and deletes the namespace. Python looks for garbage once 20,000 objects
more than before are there, and each fifth time among what was in use the last time: a process grows by some MiB, for
some 15,000 events, before it is level.

Printed is what grew for each 1,000 events after the warm-up, of a process in the second half of its rounds: resident
memory and, with --trace, what Python has allocated. What the operator must not keep is asserted by
tests/unit/memory_operator/test_soak.py; this prints and decides nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import sys
import tempfile
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

from e2e.cluster import local  # noqa: E402
from e2e.cluster.clusters import LocalCluster  # noqa: E402
from e2e.cluster.tiers import Tier  # noqa: E402
from tests.integration.operator.processes import OperatorProcess, serving_reports  # noqa: E402
from tests.integration.operator.test_process import agent, store  # noqa: E402
from tests.unit.memory_operator.soak import Soak  # noqa: E402

PAGE = os.sysconf("SC_PAGE_SIZE")
LINES = 12
ROLE = ROOT / "tests" / "integration" / "operator" / "role.yaml"
STORES, BINDINGS = 10, 50


@dataclass(frozen=True)
class Sample:
    """What there was after so many events."""

    events: int
    entries: int
    resident_kib: float
    traced_kib: float
    cpu_seconds: float


@dataclass(frozen=True)
class Told:
    """What a process was like after so many events."""

    events: int
    resident_kib: float


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
    sys.stdout.write("events   kept entries   RSS KiB   allocated KiB   CPU s\n")
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


def told(operator: OperatorProcess) -> Told:
    """Read how large a process is and how many events it has taken."""
    pages = int(Path(f"/proc/{operator.pid}/statm").read_text(encoding="ascii").split()[1])
    lines = operator.metrics().splitlines()
    events = sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith("memplane_operator_watch_events_total{")
    )
    return Told(int(events), pages * PAGE / 1024)


def process_round(server: LocalCluster, number: int) -> None:
    """Have stores and bindings come, go away, come back and go."""
    with server.new_namespace(f"soak-{number}") as made:
        kubectl = made.kubectl
        names = [f"store-{index}" for index in range(STORES)]
        bindings = [agent(f"agent-{index}", names[index % STORES]) for index in range(BINDINGS)]
        kubectl.apply(*(store(name, replicas=1) for name in names), *bindings)
        kinds = ("memorystores", "agentmemories")
        for kind in kinds:
            kubectl("wait", kind, "--all", "--for=condition=Ready", "--timeout=300s", timeout_seconds=310)
        for replicas, degraded in ((0, "True"), (1, "False")):
            kubectl("scale", "memorystore", "--all", f"--replicas={replicas}")
            condition = f"--for=condition=MemoryDegraded={degraded}"
            kubectl("wait", "agentmemories", "--all", condition, "--timeout=300s", timeout_seconds=310)


def measure_process(rounds: int) -> None:
    """Run rounds against a process, and print a line for each."""
    server = local.start(Tier.CONTROL_PLANE)
    try:
        for file in (*sorted((ROOT / "crds").glob("*.yaml")), ROLE):
            server.kubectl.apply(file)
        with tempfile.TemporaryDirectory() as folder, serving_reports(server) as reports:
            account = server.kubeconfig_of("memplane-system", "memplane-operator")
            operator = OperatorProcess(server, account, Path(folder), "soak", reports, RESYNC_SECONDS="30")
            try:
                operator.wait_to_lead()
                sys.stdout.write(" events   RSS KiB\n")
                seen = []
                for number in range(1, rounds + 1):
                    process_round(server, number)
                    seen.append(told(operator))
                    sys.stdout.write(f"{seen[-1].events:>7,}   {seen[-1].resident_kib:>7,.0f}\n")
                    sys.stdout.flush()
            finally:
                operator.stop()
    finally:
        server.take_down()
    first, last = seen[len(seen) // 2], seen[-1]
    thousands = max(0.001, (last.events - first.events) / 1000)
    grown = (last.resident_kib - first.resident_kib) / thousands
    sys.stdout.write(f"for each 1,000 events after the first {first.events:,}: RSS {grown:+.1f} KiB\n")


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description="Whether the operator's memory stays flat.")
    parser.add_argument("--events", type=int, default=20_000, help="watch events to take")
    parser.add_argument("--warm-up", type=int, default=3_000, help="events before the first count")
    parser.add_argument("--trace", action="store_true", help="also what Python has allocated; takes twice the time")
    parser.add_argument("--process", type=int, metavar="ROUNDS", help="a real operator against a real API server")
    arguments = parser.parse_args()
    if arguments.process:
        measure_process(arguments.process)
        return
    logging.disable(logging.CRITICAL)
    if arguments.trace:
        tracemalloc.start()
    asyncio.run(measure(arguments.events, arguments.warm_up))


if __name__ == "__main__":
    main()
