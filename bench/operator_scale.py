"""How the operator does with many objects: stores and bindings on fake nodes, health reports from a stub.

    python bench/operator_scale.py --stores 100 --bindings 500
    python bench/operator_scale.py --stores 1000 --bindings 5000 --outage 1000

The objects are there before the operator starts, so the time to Ready is the operator's and the cluster's, not that of
whoever creates them. The cluster (etcd, API server, controllers, scheduler, fake kubelet) and the operator share this
machine's cores. The table's columns are explained in docs/reference/operator-grade.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

from e2e.cluster import local  # noqa: E402
from e2e.cluster.clusters import LocalCluster  # noqa: E402
from e2e.cluster.tiers import Tier  # noqa: E402
from memory_operator import names  # noqa: E402
from memory_operator.cluster import kinds  # noqa: E402
from memory_operator.cluster.client import KubernetesCluster, api_client  # noqa: E402
from memory_operator.cluster.kinds import Kind  # noqa: E402
from memory_operator.crd import conditions  # noqa: E402
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
class Row:
    """One line of the table."""

    stores: int
    bindings: int
    seconds: float
    cpu_seconds: float
    resident_mib: float
    p50_ms: float
    p99_ms: float
    writes: int
    requests: int
    outage_seconds: float | None = None
    outage_writes: int | None = None


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


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
            raise SystemExit(f"{what}: not so after {seconds:.0f} s")
        await asyncio.sleep(pause)
    return time.monotonic() - began


async def change_to_status(cluster: KubernetesCluster, agents: list[tuple[str, str]]) -> list[float]:
    """Change bindings one after another; return the seconds until each status tells of the new generation."""
    found = []
    for namespace, name in agents:
        body = await cluster.get(kinds.AGENT_MEMORY, namespace, name)
        assert body is not None
        body["spec"]["failureMode"] = "strict"
        generation = (await cluster.replace(kinds.AGENT_MEMORY, body))["metadata"]["generation"]
        began = time.monotonic()

        async def is_seen(namespace: str = namespace, name: str = name, generation: int = generation) -> bool:
            body = await cluster.get(kinds.AGENT_MEMORY, namespace, name)
            return ((body or {}).get("status") or {}).get("observedGeneration") == generation

        found.append(await until(f"the status of {name}", 30, is_seen, pause=0.005) if not await is_seen() else 0.0)
        found[-1] = time.monotonic() - began
    return sorted(found)


async def outage(cluster: KubernetesCluster, server: LocalCluster, namespace: str, count: int) -> tuple[float, int]:
    """Scale a store of many bindings to zero; return after how long all of them say so, and the writes it took."""
    await create(cluster, [(kinds.MEMORY_STORE, store(namespace, "outage"))])
    agents = [(kinds.AGENT_MEMORY, binding(namespace, f"outage-{number}", "outage")) for number in range(count)]
    await create(cluster, agents)

    async def degraded(status: str) -> int:
        listing = await cluster.list(kinds.AGENT_MEMORY, namespace, "")
        found = [
            conditions.by_type(item.get("status") or {}).get("MemoryDegraded", {}).get("status")
            for item in listing.items
            if item["spec"]["memoryStore"] == "outage"
        ]
        return found.count(status)

    async def all_well() -> bool:
        return await degraded("False") == count

    async def all_degraded() -> bool:
        return await degraded("True") == count

    await until("the bindings of the outage", 300, all_well)
    mark = server.audit.mark()
    body = await cluster.get(kinds.MEMORY_STORE, namespace, "outage")
    assert body is not None
    body["spec"]["replicas"] = 0
    await cluster.replace(kinds.MEMORY_STORE, body)
    seconds = await until("the outage", 60, all_degraded, pause=0.2)
    writes = server.audit.writes(mark, user=USER, where=lambda write: write.resource == "agentmemories")
    return seconds, len(writes)


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
            mark, began = server.audit.mark(), time.monotonic()
            operator = OperatorProcess(server, kubeconfig, folder, "scale", reports, wrapper=wrapper)
            try:

                async def all_ready() -> bool:
                    return await ready(cluster, kinds.MEMORY_STORE) >= len(stores) and await ready(
                        cluster, kinds.AGENT_MEMORY
                    ) >= len(agents)

                await until("everything Ready", arguments.limit, all_ready, pause=2.0)
                seconds, cpu = time.monotonic() - began, cpu_seconds(operator.pid)
                writes = server.audit.writes(mark, user=USER, where=lambda write: write.resource != "leases")
                sample = [item[:2] for item in agents[:: max(1, len(agents) // PROBES)]]
                latencies = await change_to_status(cluster, sample)
                row = Row(
                    stores=len(stores),
                    bindings=len(agents),
                    seconds=seconds,
                    cpu_seconds=cpu,
                    resident_mib=peak_mib(operator.pid),
                    p50_ms=1000 * latencies[len(latencies) // 2],
                    p99_ms=1000 * latencies[int(len(latencies) * 0.99)],
                    writes=len(writes),
                    requests=operator.requests(),
                )
                if arguments.outage:
                    row.outage_seconds, row.outage_writes = await outage(cluster, server, spaces[0], arguments.outage)
            except SystemExit:
                sys.stderr.write(operator.text() + "\n")
                raise
            finally:
                operator.stop()
    return row


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    heads = ("stores", "bindings", "s to Ready", "CPU s", "RSS MiB", "p50 ms", "p99 ms", "writes", "requests")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---:|" * len(heads)]
    for row in rows:
        cells = (
            f"{row.stores}",
            f"{row.bindings}",
            f"{row.seconds:.0f}",
            f"{row.cpu_seconds:.1f}",
            f"{row.resident_mib:.0f}",
            f"{row.p50_ms:.0f}",
            f"{row.p99_ms:.0f}",
            f"{row.writes}",
            f"{row.requests}",
        )
        lines.append("| " + " | ".join(cells) + " |")
        if row.outage_seconds is not None:
            lines.append(f"\nAn outage was told to all in {row.outage_seconds:.1f} s by {row.outage_writes} writes.")
    return "\n".join(lines)


def main() -> None:
    """Run the sizes that were asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", type=int, default=50)
    parser.add_argument("--bindings", type=int, default=250)
    parser.add_argument("--outage", type=int, default=0, help="also an outage of one store with this many bindings")
    parser.add_argument("--limit", type=float, default=900, help="give up after this many seconds")
    parser.add_argument("--profile", help="write the operator's cProfile into this file; it is slower then")
    arguments = parser.parse_args()
    server = local.start(Tier.CONTROL_PLANE)
    try:
        with tempfile.TemporaryDirectory() as folder:
            row = asyncio.run(measure(server, arguments, Path(folder)))
    finally:
        server.take_down()
    sys.stdout.write(table([row]) + "\n")


if __name__ == "__main__":
    main()
