"""A service in a network of its own, where nothing answers but what it is configured with, and every other try counts.

`python -m tests.integration.service.alone local|external FOLDER`, in new network and mount namespaces: `local` is
SQLite with the built-in embedder on a read-only disk, `external` is a Postgres and a model endpoint for chat and
embeddings. Prints what came of it as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fakes.model_server import DIMENSION, ModelServer
from tests.fakes.postgres import PostgresServer

LIMIT_SECONDS = 120.0
OUTSIDE = "192.0.2.1"
TURN = {"role": "user", "content": "My dog is called Rex"}
_TRIES = ("Ip:OutNoRoutes", "Ip6OutNoRoutes", "Tcp:AttemptFails", "Udp:NoPorts", "Udp6NoPorts")
"""What the kernel counts by network: packets and connections for addresses without a route, and those nobody took."""


def tries() -> int:
    """Return how often something was looked for that is not here, by address or by name."""
    lines = Path("/proc/net/snmp").read_text().splitlines()
    counts: dict[str, int] = {}
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        kind, *fields = names.split()
        counts |= {f"{kind}{field}": int(value) for field, value in zip(fields, values.split()[1:], strict=True)}
    newer = Path("/proc/net/snmp6")
    if newer.exists():
        counts |= {name: int(value) for name, value in map(str.split, newer.read_text().splitlines())}
    return sum(counts.get(name, 0) for name in _TRIES)


def close_the_network(folder: Path) -> None:
    """Leave loopback alone, with a name server that is not there; fail if the tries are not counted."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    names = folder / "resolv.conf"
    names.write_text(f"nameserver {OUTSIDE}\n")
    subprocess.run(["mount", "--bind", str(names), "/etc/resolv.conf"], check=True)
    for look in (
        lambda: socket.create_connection((OUTSIDE, 80), timeout=1),
        lambda: socket.create_connection(("127.0.0.1", 9), timeout=1),
        lambda: socket.getaddrinfo("example.com", 443),
    ):
        before = tries()
        try:
            look()
        except OSError:
            assert tries() > before, "a try is not counted"
        else:
            raise SystemExit("the network is there")


def make_the_disk_read_only(data: Path) -> None:
    """Leave one folder to write to."""
    for folder in ("/", "/home", "/root", "/tmp", "/var"):
        subprocess.run(["mount", "--bind", "-o", "ro", folder, folder], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], stderr=subprocess.DEVNULL, check=False)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(data)], check=True)
    try:
        Path("/memplane-probe").touch()
    except OSError:
        return
    raise SystemExit("the root is writable")


def used(arguments: Sequence[str], environment: Mapping[str, str], *, facts: Sequence[str]) -> dict[str, Any]:
    """Serve, write, remember, recall and end; wait until a list has these facts."""
    before = tries()
    served = subprocess.Popen(
        [sys.executable, "-B", "-m", "memory_service.cli", "serve", "--port", "0", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert served.stderr is not None
    said: list[str] = []
    ends = threading.Timer(LIMIT_SECONDS, served.kill)
    ends.start()
    while not said or (said[-1] and not said[-1].startswith("listening on ")):
        said.append(served.stderr.readline().strip())
    ends.cancel()
    assert said[-1], said
    url = said.pop().removeprefix("listening on ")
    straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
        with straight.open(request, timeout=60) as answer:
            return json.load(answer)

    ask("/v1/write", {"session_id": "s1", "turns": [TURN]})
    ask("/v1/facts", {"text": "Anna lives in Oslo"})
    ask("/v1/sessions/s1/end", {})
    deadline = time.monotonic() + LIMIT_SECONDS
    while not set(facts) <= {fact["text"] for fact in ask("/v1/facts")["items"]}:
        assert time.monotonic() < deadline, ask("/v1/facts")
        time.sleep(0.1)
    found = ask("/v1/recall", {"query": "in which city is her home"})
    ask("/v1/health/report")
    served.send_signal(signal.SIGTERM)
    code = served.wait(60)
    return {
        "texts": [item["text"] for item in found["long_term"]["items"]],
        "degraded": [part["part"] for part in found["degraded"]],
        "code": code,
        "rest": [line for line in said + served.stderr.read().splitlines() if not line.startswith('{"time": ')],
        "tries": tries() - before,
    }


def local(folder: Path) -> dict[str, Any]:
    """Use a service that needs nothing."""
    data = folder / "data"
    data.mkdir()
    make_the_disk_read_only(data)
    seen = used(["--data-dir", str(data / "store")], {}, facts=["Anna lives in Oslo"])
    return {**seen, "files": [str(path.relative_to(data)) for path in data.rglob("*") if path.is_file()]}


def external(folder: Path) -> dict[str, Any]:
    """Use a service that needs a database and models."""
    postgres = PostgresServer(folder / "postgres")
    with ModelServer() as models:
        postgres.start()
        try:
            environment = {
                "MEMPLANE_DSN": postgres.dsn,
                "MEMPLANE_CHAT_URL": models.url,
                "MEMPLANE_CHAT_MODEL": "rules",
                "MEMPLANE_EMBEDDING_URL": models.url,
                "MEMPLANE_EMBEDDING_MODEL": "rules",
                "MEMPLANE_EMBEDDING_DIMENSIONS": str(DIMENSION),
            }
            seen = used([], environment, facts=["Anna lives in Oslo", "User's dog is called Rex"])
        finally:
            postgres.stop()
        return {**seen, "asked": sorted(models.counts)}


if __name__ == "__main__":
    where = Path(sys.argv[2])
    close_the_network(where)
    print(json.dumps({"local": local, "external": external}[sys.argv[1]](where)))  # noqa: T201 - the answer
