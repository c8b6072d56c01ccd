"""The operator as a process of its own, and pods' health reports from a stub."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from e2e.cluster.clusters import LocalCluster
from memory_operator.cluster import kinds
from memory_operator.cluster.client import Cluster, KubernetesCluster, api_client
from memory_operator.desired.bindings import PART_BYTES
from memory_operator.pacing import TokenBucket
from memory_service.contract.bindings import bindings_revision


@dataclass
class Reports:
    """Answers for every pod: ready, and using the bindings that are in the cluster now. `down` stores do not answer."""

    address: str = ""
    down: set[str] = field(default_factory=set)
    _switch: Callable[[bool], None] = lambda is_on: None

    @contextmanager
    def silent(self) -> Iterator[None]:
        """A time in which nothing listens, as when the pods' network is cut: they stay Ready."""
        self._switch(False)
        try:
            yield
        finally:
            self._switch(True)

    async def answer(self, host: str, cluster: Cluster) -> dict[str, Any] | None:
        """The report of the store that a Host header names."""
        service, namespace = host.split(".")[:2]
        store = service.removesuffix("-memory")
        if store in self.down:
            return None
        rows: dict[str, str] = {}
        number = 0
        is_full = True
        while is_full and (found := await cluster.get(kinds.CONFIG_MAP, namespace, f"{store}-bindings-{number}")):
            rows |= found.get("data") or {}
            is_full = sum(map(len, (found.get("data") or {}).values())) > PART_BYTES / 2
            number += 1
        part = {"ok": True, "reason": "Ok", "message": "", "since": "2026-01-01T00:00:00Z"}
        names = ("storage", "models", "embedding", "jobs", "schema", "bindings", "secrets")
        return {
            "version": "1.0",
            "replica": "pod",
            "ready": True,
            "parts": dict.fromkeys(names, part),
            "counters": {"facts": 3, "pending": 0, "oldest_seconds": 0, "dead": 0},
            "bindings_revision": bindings_revision(rows),
            "revocation_available": True,
        }


@contextmanager
def _on_a_thread(run: Callable[[threading.Event, asyncio.Event], Coroutine[Any, Any, None]]) -> Iterator[None]:
    """Run something on a loop and a thread of its own: it says when it is open, and is told when all is over."""
    loop, is_open, is_over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(run(is_open, is_over)))
    thread.start()
    try:
        assert is_open.wait(10)
        yield
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join(10)
        loop.close()


@contextmanager
def serving_reports(server: LocalCluster) -> Iterator[Reports]:
    """Serve reports on a thread of its own."""
    reports = Reports()

    async def run(is_open: threading.Event, is_over: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        async with api_client({"KUBECONFIG": str(server.kubeconfig)}) as api:
            cluster = KubernetesCluster(api, timeout_seconds=30, bucket=TokenBucket(1000, 1000, time.monotonic()))

            async def report(request: web.Request) -> web.Response:
                answer = await reports.answer(request.headers["Host"], cluster)
                return web.json_response(answer, status=200 if answer else 503)

            async def listen(port: int) -> web.AppRunner:
                application = web.Application()
                application.add_routes([web.get("/v1/health/report", report)])
                runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
                await runner.setup()
                await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
                return runner

            runner = await listen(0)
            port = runner.addresses[0][1]
            reports.address = f"127.0.0.1:{port}"

            async def turn(is_on: bool) -> None:
                nonlocal runner
                if is_on:
                    runner = await listen(port)
                else:
                    await runner.cleanup()

            reports._switch = lambda is_on: asyncio.run_coroutine_threadsafe(turn(is_on), loop).result(10)
            is_open.set()
            await is_over.wait()
            await runner.cleanup()

    with _on_a_thread(run):
        yield reports


class Gate:
    """A way to the API server that can go dead: connections stay open, and nothing comes back through them."""

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self._target = (host, port)
        self._frozen: set[int] = set()
        self._opened = 0
        self._pumps: set[asyncio.Task[None]] = set()

    async def _carry(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while data := await reader.read(65536):
                    if number not in self._frozen:
                        writer.write(data)
                        await writer.drain()
        finally:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._opened += 1
        number = self._opened
        try:
            there, here = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        for one, other in ((reader, here), (there, writer)):
            pump = asyncio.create_task(self._carry(number, one, other))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    def freeze(self) -> None:
        """Carry nothing more through the connections that are open now; new ones work."""
        self._frozen = set(range(self._opened + 1))

    async def run(self, is_open: threading.Event, is_over: asyncio.Event) -> None:
        """Stand open until the end."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        is_open.set()
        await is_over.wait()
        server.close()
        pumps = list(self._pumps)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        await asyncio.sleep(0)  # aborted connections are closed in the next turn of the loop


@contextmanager
def gate(server: LocalCluster) -> Iterator[Gate]:
    """A gate before the API server, on a thread of its own."""
    url = urlsplit(server.server)
    made = Gate(str(url.hostname), int(url.port or 443))
    with _on_a_thread(made.run):
        yield made


class OperatorProcess:
    """One operator, with the permissions of its own ServiceAccount; `changed` are settings, in capitals."""

    def __init__(
        self,
        server: LocalCluster,
        kubeconfig: Path,
        folder: Path,
        name: str,
        reports: Reports,
        *,
        wrapper: Sequence[str] = (),
        **changed: str,
    ) -> None:
        self.name = name
        self._server = server
        self._log = folder / f"{name}.log"
        root = Path(__file__).resolve().parents[3]
        settings = {
            "POD_NAME": name,
            "BIND_ADDRESS": "127.0.0.1",
            "PORT": "0",
            "TOKEN_REVIEW_ROLE": "memplane-token-review",
            "HEALTH_ADDRESS": reports.address,
            "SERVICE_IMAGE": "localhost/memplane:test",
            **changed,
        }
        environment = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": f"{root}:{root / 'operator'}",
            "PYTHONWARNINGS": "error",
            **{f"MEMPLANE_OPERATOR_{key}": value for key, value in settings.items()},
        }
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, *wrapper, "-m", "memory_operator"], env=environment, stdout=log, stderr=log
            )

    def log(self) -> list[dict[str, Any]]:
        """What it has logged."""
        lines = self._log.read_text().splitlines()
        return [json.loads(line) if line.startswith("{") else {"message": line} for line in lines]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def metrics(self) -> str:
        """What it tells Prometheus."""
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            return str(answer.read().decode())

    def requests(self) -> int:
        """How many requests it has sent to the API server."""
        lines = [
            line for line in self.metrics().splitlines() if line.startswith("memplane_operator_api_requests_total{")
        ]
        return sum(int(float(line.rpartition(" ")[2])) for line in lines)

    def text(self) -> str:
        """The end of its log."""
        return "\n".join(self._log.read_text().splitlines()[-40:])

    @property
    def is_leading(self) -> bool:
        """Whether it has said that it leads."""
        return any(line["message"] == "leading" for line in self.log())

    @property
    def led_at(self) -> datetime:
        """When it said that it leads."""
        return next(datetime.fromisoformat(line["time"]) for line in self.log() if line["message"] == "leading")

    @property
    def url(self) -> str | None:
        """Where its probes are."""
        found = [line["port"] for line in self.log() if line["message"] == "serving probes"]
        return f"http://127.0.0.1:{found[0]}" if found else None

    def wait_to_lead(self, seconds: float = 60) -> None:
        """Wait until it leads."""
        self._server.wait_until(f"{self.name} leads", lambda: self.is_leading, seconds=seconds, explain=self.text)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it and return its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self._process.wait(30)


@contextmanager
def leading(
    server: LocalCluster, kubeconfig: Path, folder: Path, name: str, reports: Reports, **changed: str
) -> Iterator[OperatorProcess]:
    """An operator that leads, and is told to stop in the end and does so well."""
    operator = OperatorProcess(server, kubeconfig, folder, name, reports, **changed)
    try:
        operator.wait_to_lead()
        yield operator
    finally:
        code = operator.stop()
    assert code == 0, operator.text()
