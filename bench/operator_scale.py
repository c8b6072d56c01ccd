"""How the operator does with many objects: stores and bindings on fake nodes, health reports from a stub.

    python bench/operator_scale.py --stores 100 --bindings 500
    python bench/operator_scale.py --stores 1000 --bindings 5000 --outage 1000
    python bench/operator_scale.py --growth

The last writes docs/reference/operator-scale.md, where the columns are explained, and its plot anew; on two free cores
it ends within half an hour, for a size that is not all Ready after --limit seconds is told with what was reached. The
objects are there before the operator starts, so the time to Ready is the operator's and the cluster's, not that of
whoever creates them. The cluster (etcd, API server, controllers, scheduler, fake kubelet) and the operator share this
machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

from bench.report import Plot  # noqa: E402
from e2e.cluster import local  # noqa: E402
from e2e.cluster.clusters import LocalCluster  # noqa: E402
from e2e.cluster.tiers import Tier  # noqa: E402
from memory_operator import names  # noqa: E402
from memory_operator.cluster import kinds  # noqa: E402
from memory_operator.cluster.client import KubernetesCluster, api_client  # noqa: E402
from memory_operator.cluster.kinds import Kind  # noqa: E402
from memory_operator.crd import conditions  # noqa: E402
from memory_operator.errors import Conflict  # noqa: E402
from memory_operator.pacing import TokenBucket  # noqa: E402
from tests.integration.operator.processes import OperatorProcess, serving_reports  # noqa: E402

Json = dict[str, Any]
USER = "system:serviceaccount:memplane-system:memplane-operator"
NAMESPACES = 10
CREATORS = 16
PROBES = 200
TICKS = os.sysconf("SC_CLK_TCK")
ROLE = ROOT / "tests" / "integration" / "operator" / "role.yaml"


@dataclass
class Outage:
    """A store of many bindings that went and came back."""

    bindings: int
    seconds: float
    writes: int
    most: int
    """Status writes of the binding that had most."""
    events: int
    back_seconds: float
    back_writes: int


@dataclass
class Row:
    """One line of the table."""

    stores: int
    bindings: int
    ready: int
    """Objects that were Ready at the end: all of them, unless the time was up before."""
    seconds: float
    cpu_seconds: float
    resident_mib: float
    p50_ms: float
    p99_ms: float
    writes: int
    requests: int
    cluster_cpu_seconds: float = 0.0
    load: float = 0.0
    cores: int = 0
    outage: Outage | None = None

    @property
    def is_reached(self) -> bool:
        """Whether everything became Ready in time; if not, latencies were not measured."""
        return self.ready == self.stores + self.bindings


class NotReached(Exception):
    """Something was not so in time; the message says what."""


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def cluster_cpu_seconds(server: LocalCluster) -> float:
    """Return the processor time that the cluster's own programs have used."""
    mark, total = f"{server.audit.path.parent}/".encode(), 0.0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "cmdline").read_bytes():
                total += cpu_seconds(int(entry.name))
        except OSError:
            continue
    return total


def ready_told(operator: OperatorProcess, kind: Kind) -> int:
    """Return how many objects the operator counts as Ready: asking it costs the API server nothing."""
    pattern = rf'memplane_operator_objects{{condition="Ready",kind="{kind.name}",reason="\w+",status="True"}} (\S+)'
    return sum(int(float(count)) for count in re.findall(pattern, operator.metrics()))


def peak_mib(pid: int) -> float:
    """Return the most memory that a process has had resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def store(namespace: str, name: str) -> Json:
    """Return a store with one pod."""
    storage = {"type": "external", "external": {"connectionSecretRef": {"name": "db"}}}
    return _object(kinds.MEMORY_STORE, namespace, name, {"storage": storage, "replicas": 1})


def binding(namespace: str, name: str, memory_store: str) -> Json:
    """Return a binding without a workload."""
    return _object(kinds.AGENT_MEMORY, namespace, name, {"memoryStore": memory_store})


def _object(kind: Kind, namespace: str, name: str, spec: Json) -> Json:
    return {
        "apiVersion": names.API_VERSION,
        "kind": kind.name,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


async def at_once(jobs: Iterable[Callable[[], Awaitable[object]]]) -> None:
    """Do all jobs, some at a time."""
    pending = iter(list(jobs))

    async def work() -> None:
        for job in pending:
            await job()

    await asyncio.gather(*(work() for _ in range(CREATORS)))


async def create(cluster: KubernetesCluster, objects: Iterable[tuple[Kind, Json]]) -> None:
    """Create objects."""
    await at_once(partial(cluster.create, kind, body) for kind, body in objects)


async def ready(cluster: KubernetesCluster, kind: Kind) -> int:
    """Return how many objects of a kind are Ready."""
    listing = await cluster.list(kind, None, "")
    return sum(conditions.is_true(item.get("status") or {}, conditions.ConditionType.READY) for item in listing.items)


async def until(what: str, seconds: float, check: Callable[[], Awaitable[bool]], pause: float = 1.0) -> float:
    """Wait until something is so and return how long that took."""
    began = time.monotonic()
    while not await check():
        if time.monotonic() - began > seconds:
            raise NotReached(f"{what}: not so after {seconds:.0f} s")
        await asyncio.sleep(pause)
    return time.monotonic() - began


async def change(cluster: KubernetesCluster, kind: Kind, namespace: str, name: str, fields: Json) -> Json:
    """Set fields of an object's spec and return it; the operator may write its status in between."""
    while True:
        body = await cluster.get(kind, namespace, name)
        assert body is not None
        try:
            return await cluster.replace(kind, {**body, "spec": {**body["spec"], **fields}})
        except Conflict:
            continue


async def change_to_status(cluster: KubernetesCluster, agents: list[tuple[str, str]]) -> list[float]:
    """Change bindings one after another; return the seconds until each status tells of the new generation."""
    found = []
    for namespace, name in agents:
        changed = await change(cluster, kinds.AGENT_MEMORY, namespace, name, {"failureMode": "strict"})
        generation, began = changed["metadata"]["generation"], time.monotonic()

        async def is_seen(namespace: str = namespace, name: str = name, generation: int = generation) -> bool:
            body = await cluster.get(kinds.AGENT_MEMORY, namespace, name)
            return ((body or {}).get("status") or {}).get("observedGeneration") == generation

        found.append(await until(f"the status of {name}", 120, is_seen, pause=0.005) if not await is_seen() else 0.0)
        found[-1] = time.monotonic() - began
    return sorted(found)


async def outage(cluster: KubernetesCluster, server: LocalCluster, namespace: str, count: int) -> Outage:
    """Scale a store of many bindings to zero and back; return when all bindings said so, and what was written."""
    await create(cluster, [(kinds.MEMORY_STORE, store(namespace, "outage"))])
    agents = [(kinds.AGENT_MEMORY, binding(namespace, f"outage-{number}", "outage")) for number in range(count)]
    await create(cluster, agents)

    async def told(status: str) -> bool:
        listing = await cluster.list(kinds.AGENT_MEMORY, namespace, "")
        found = [
            conditions.by_type(item.get("status") or {})
            for item in listing.items
            if item["spec"]["memoryStore"] == "outage"
        ]
        return (
            sum(
                by_type.get("MemoryDegraded", {}).get("status") == status and by_type["Ready"]["status"] == "True"
                for by_type in found
            )
            == count
        )

    async def scale(replicas: int, status: str) -> tuple[float, Counter[str], int]:
        mark = server.audit.mark()
        await change(cluster, kinds.MEMORY_STORE, namespace, "outage", {"replicas": replicas})
        seconds = await until("all bindings", 120, partial(told, status), pause=0.5)
        await asyncio.sleep(5)
        writes = server.audit.writes(mark, user=USER)
        statuses = Counter(write.name for write in writes if write.resource == "agentmemories")
        return seconds, statuses, sum(write.resource == "events" for write in writes)

    await until("the bindings of the outage", 600, partial(told, "False"), pause=2)
    seconds, writes, events = await scale(0, "True")
    back_seconds, back_writes, _ = await scale(1, "False")
    return Outage(count, seconds, writes.total(), max(writes.values()), events, back_seconds, back_writes.total())


async def outage_if_reached(cluster: KubernetesCluster, server: LocalCluster, space: str, count: int) -> Outage | None:
    """Return what an outage was like; None, with a line that says so, when one of its states was not reached."""
    try:
        return await outage(cluster, server, space, count)
    except NotReached as error:
        sys.stderr.write(f"outage: {error}\n")
        return None


async def measure(server: LocalCluster, arguments: argparse.Namespace, folder: Path) -> Row:
    """Bring everything up and return what it took."""
    for file in sorted((ROOT / "crds").glob("*.yaml")):
        server.kubectl.apply(file)
    for name in ("memorystores", "agentmemories", "modelapis"):
        server.kubectl("wait", "--for=condition=Established", f"crd/{name}.memplane.dev", "--timeout=60s")
    server.kubectl.apply(ROLE)
    server.wait_until(
        "the operator's account",
        lambda: server.kubectl.in_namespace("memplane-system").find("serviceaccount", "memplane-operator"),
    )
    kubeconfig = server.kubeconfig_of("memplane-system", "memplane-operator")
    spaces = [f"scale-{number}" for number in range(NAMESPACES)]
    for space in spaces:
        server.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
    async with api_client({"KUBECONFIG": str(server.kubeconfig)}) as api:
        cluster = KubernetesCluster(api, timeout_seconds=60, bucket=TokenBucket(5000, 5000, time.monotonic()))
        stores = [(spaces[number % NAMESPACES], f"store-{number}") for number in range(arguments.stores)]
        agents = [
            (stores[number % len(stores)][0], f"agent-{number}", stores[number % len(stores)][1])
            for number in range(arguments.bindings)
        ]
        await create(cluster, [(kinds.MEMORY_STORE, store(*item)) for item in stores])
        await create(cluster, [(kinds.AGENT_MEMORY, binding(*item)) for item in agents])
        with serving_reports(server) as reports:
            wrapper = ("-m", "cProfile", "-o", arguments.profile) if arguments.profile else ()
            mark, began, cluster_began = server.audit.mark(), time.monotonic(), cluster_cpu_seconds(server)
            operator = OperatorProcess(server, kubeconfig, folder, "scale", reports, wrapper=wrapper)
            try:

                async def all_ready() -> bool:
                    if not operator.is_alive:
                        raise SystemExit("the operator has ended")
                    if operator.url is None or ready_told(operator, kinds.AGENT_MEMORY) < len(agents):
                        return False
                    return ready_told(operator, kinds.MEMORY_STORE) >= len(stores)

                try:
                    await until("everything Ready", arguments.limit, all_ready, pause=1.0)
                except NotReached as error:
                    sys.stderr.write(f"{error}\n")
                seconds, cpu = time.monotonic() - began, cpu_seconds(operator.pid)
                cluster_cpu = cluster_cpu_seconds(server) - cluster_began
                load = os.getloadavg()[0]
                counts = [await ready(cluster, kind) for kind in (kinds.MEMORY_STORE, kinds.AGENT_MEMORY)]
                writes = server.audit.writes(mark, user=USER, where=lambda write: write.resource != "leases")
                sample = [item[:2] for item in agents[:: max(1, len(agents) // PROBES)]]
                is_reached = counts == [len(stores), len(agents)]
                latencies = await change_to_status(cluster, sample) if is_reached else [math.nan]
                row = Row(
                    stores=len(stores),
                    bindings=len(agents),
                    ready=sum(counts),
                    seconds=seconds,
                    cpu_seconds=cpu,
                    resident_mib=peak_mib(operator.pid),
                    p50_ms=1000 * latencies[len(latencies) // 2],
                    p99_ms=1000 * latencies[int(len(latencies) * 0.99)],
                    writes=len(writes),
                    requests=operator.requests(),
                    cluster_cpu_seconds=cluster_cpu,
                    load=load,
                    cores=len(os.sched_getaffinity(0)),
                )
                if arguments.outage and is_reached:
                    row.outage = await outage_if_reached(cluster, server, spaces[0], arguments.outage)
            except SystemExit:
                sys.stderr.write(operator.text() + "\n")
                raise
            finally:
                operator.stop()
    return row


HEADS = (
    "stores",
    "bindings",
    "Ready",
    "s to Ready",
    "CPU s",
    "RSS MiB",
    "p50 ms",
    "p99 ms",
    "writes",
    "requests",
    "cluster CPU s",
    "load",
)
"""Of the table."""


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "---:|" * len(HEADS)]
    for row in rows:
        cells = (
            f"{row.stores:,}",
            f"{row.bindings:,}",
            f"{row.ready:,}",
            f"{row.seconds:.0f}" if row.is_reached else f"more than {row.seconds:.0f}",
            f"{row.cpu_seconds:.1f}",
            f"{row.resident_mib:.0f}",
            f"{row.p50_ms:.0f}" if row.is_reached else "",
            f"{row.p99_ms:.0f}" if row.is_reached else "",
            f"{row.writes:,}",
            f"{row.requests:,}",
            f"{row.cluster_cpu_seconds:.0f}",
            f"{row.load:.1f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    for row in rows:
        if row.outage is not None:
            lines.append("\n" + outage_text(row.outage))
    return "\n".join(lines)


def outage_text(seen: Outage) -> str:
    """Return a sentence about an outage."""
    return (
        f"A store with {seen.bindings:,} bindings was scaled to zero: all of them said `MemoryDegraded` after "
        f"{seen.seconds:.1f} s, by {seen.writes:,} status writes, {seen.most} at most for one binding, and "
        f"{seen.events} Events. Scaled up again, all were well after {seen.back_seconds:.1f} s, by "
        f"{seen.back_writes:,} writes."
    )


def page(rows: list[Row]) -> str:
    """Return the page with a table, the plot and what of the targets was met."""
    largest = rows[-1]
    return PAGE.format(
        table=table(rows),
        cores=largest.cores,
        stores=f"{largest.stores:,}",
        bindings=f"{largest.bindings:,}",
        per_write=f"{1000 * largest.cpu_seconds / largest.writes:.1f}",
        outage_beside=OUTAGE_BESIDE,
        targets="\n".join(targets(largest, next((row.outage for row in reversed(rows) if row.outage), None))),
    )


def targets(row: Row, seen: Outage | None) -> list[str]:
    """Return a line of a table for each target: what was wanted, what was seen, and by how much it was missed."""
    wanted: list[tuple[str, float, float, str]] = [
        ("everything Ready", 120, row.seconds, "s"),
        ("CPU of the operator until then", 60, row.cpu_seconds, "s"),
        ("resident memory", 160, row.resident_mib, "MiB"),
        ("a change until its status, p99", 1000, row.p99_ms, "ms"),
    ]
    of_outage: list[tuple[str, float, float, str]] = []
    if seen is not None:
        name = f"an outage told to {seen.bindings:,} bindings"
        of_outage = [(name, 15, seen.seconds, "s"), ("status writes of one binding then", 1, seen.most, "")]
    lines = ["| target | at most | seen | met |", "|---|---:|---:|---|"]
    for name, limit, value, unit in (*wanted, *of_outage):
        met = "yes" if value <= limit else f"no: {value / limit:.1f} times as much"
        if (name, limit, value, unit) in wanted:
            if row.stores < FULL_SIZE:
                met = "open: the full size was not run"
            elif not row.is_reached:
                met = f"no: {row.ready:,} of {row.stores + row.bindings:,} objects were Ready when the time was up"
        elif seen is not None and seen.bindings < OUTAGE_BINDINGS:
            met = "open: the full size was not run"
        told = "" if math.isnan(value) else f"{value:.3g} {unit}"
        lines.append(f"| {name} | {limit:g} {unit} | {told} | {met} |")
    return lines


PAGE = """# The operator and many objects

This page is written by `make bench-operator`; change the benchmark, not the page. It makes stores (external, one pod)
and five bindings without a workload for each of them, on fake nodes with health reports from a stub, then starts the
operator and measures until everything is Ready.

{table}

![How it grows](plots/operator-scale.svg)

`Ready` is how many objects were so when the size ended, `s to Ready` is from the start of the operator's process.
`CPU s` and `RSS MiB` (the peak) are of that process alone. `p50` and `p99` are from the answer to a change of a binding
until its status tells of it. `writes` are from the API server's audit log, the Lease aside; `requests` are all that the
operator sent. `cluster CPU s` is what etcd, the API server, its controllers, the scheduler and the fake kubelet used in
the same time, and `load` how many processes of the machine wanted its {cores} cores at the end: where it is above
{cores}, other work shared them, and times and CPU are
upper bounds. The outage is of one more store, beside {outage_beside} others.

What there is to write: for a store eight objects, two statuses (`Ready=Unknown` at once, then what it is) and one
Event; for a binding one object and one or two statuses. The operator uses {per_write} ms of CPU for each write, what
it reads and hears included.

## Targets

They are for 1,000 stores and 5,000 bindings; what stands here was seen with {stores} and {bindings}.

{targets}

The benchmark prints and never decides: what is asserted stands in the tests.
"""
REFERENCE = ROOT / "docs" / "reference"
FULL_SIZE = 1000
SIZES = (50, 100, 250, FULL_SIZE)
BINDINGS_EACH = 5
OUTAGE_BESIDE, OUTAGE_BINDINGS = 100, 1000
"""An outage is measured with this many other stores, so that it is measured even where the full size is too much."""


def run(arguments: argparse.Namespace) -> Row:
    """Measure one size on a cluster of its own."""
    server = local.start(Tier.CONTROL_PLANE)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(measure(server, arguments, Path(folder)))
    finally:
        server.take_down()


def read(text: str) -> Row:
    """Return a row that was kept."""
    content = json.loads(text)
    content["outage"] = Outage(**content["outage"]) if content["outage"] else None
    return Row(**content)


def grow(arguments: argparse.Namespace) -> list[Row]:
    """Measure every size and write the page; with `--keep`, sizes that are in that file are not measured again."""
    kept: dict[int, Row] = {}
    if arguments.keep and arguments.keep.exists():
        kept = {row.stores: row for row in map(read, arguments.keep.read_text().splitlines())}
    for size in arguments.sizes:
        if size in kept:
            continue
        arguments.stores, arguments.bindings = size, BINDINGS_EACH * size
        arguments.outage = OUTAGE_BINDINGS if size == OUTAGE_BESIDE else 0
        kept[size] = run(arguments)
        sys.stderr.write(table([kept[size]]) + "\n")
        if arguments.keep:
            with arguments.keep.open("a") as file:
                file.write(json.dumps(asdict(kept[size])) + "\n")
    rows = [kept[size] for size in sorted(kept)]
    (REFERENCE / "operator-scale.md").write_text(page(rows))
    series = {
        "seconds until all is Ready": [(row.stores, row.seconds) for row in rows if row.is_reached],
        "CPU seconds of the operator": [(row.stores, row.cpu_seconds) for row in rows],
        "MiB resident": [(row.stores, row.resident_mib) for row in rows],
    }
    title, across = "How the operator grows", f"stores, each with {BINDINGS_EACH} bindings"
    Plot("operator-scale", title, across, "s or MiB", series, logarithmic=False).save()
    return rows


def main() -> None:
    """Run the sizes that were asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", type=int, default=50)
    parser.add_argument("--bindings", type=int, default=250)
    parser.add_argument("--outage", type=int, default=0, help="also an outage of one store with this many bindings")
    parser.add_argument("--limit", type=float, default=720, help="seconds until a size is told with what was reached")
    parser.add_argument("--profile", help="write the operator's cProfile into this file; it is slower then")
    parser.add_argument("--growth", action="store_true", help="measure all sizes and write the page")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="the numbers of stores of --growth")
    parser.add_argument("--keep", type=Path, help="a file of rows: go on from it where a run of --growth ended")
    arguments = parser.parse_args()
    sys.stdout.write(table(grow(arguments) if arguments.growth else [run(arguments)]) + "\n")


if __name__ == "__main__":
    main()
