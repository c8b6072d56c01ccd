"""A memory service in a thread, on loopback, that can be made to fail in every way that a network allows.

It stores turns and facts by effect, as the real one does: once per turn id, once per idempotency key.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

NOW = "2026-01-31T12:00:00Z"


@dataclass(frozen=True)
class Received:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


Fault = Callable[["MemoryServer", socket.socket, Received], None]


def answer(status: int, body: Any = None, **headers: str) -> Fault:
    """Answer with a status; a body that is not bytes is sent as JSON."""

    def act(server: MemoryServer, connection: socket.socket, request: Received) -> None:
        server.send(connection, status, body, {name.replace("_", "-"): value for name, value in headers.items()})

    return act


def problem(status: int, kind: str, detail: str = "no", **headers: str) -> Fault:
    """Answer with a Problem."""
    body = {"type": f"https://memplane.dev/problems/{kind}", "title": kind, "status": status, "detail": detail}
    return answer(status, body, **headers)


def hang(server: MemoryServer, connection: socket.socket, request: Received) -> None:
    """Never answer."""
    server.released.wait(30)


def half_close(server: MemoryServer, connection: socket.socket, request: Received) -> None:
    """Say that nothing more will come, and keep the connection."""
    connection.shutdown(socket.SHUT_WR)
    server.released.wait(30)


def drop(server: MemoryServer, connection: socket.socket, request: Received) -> None:
    """Close the connection without an answer."""


def store_and_drop(server: MemoryServer, connection: socket.socket, request: Received) -> None:
    """Do what was asked for and close the connection without saying so."""
    server.handle(request)


def store_and_hang(server: MemoryServer, connection: socket.socket, request: Received) -> None:
    """Do what was asked for and never say so."""
    server.handle(request)
    server.released.wait(30)


def raw(data: bytes) -> Fault:
    """Send these bytes and close."""

    def act(server: MemoryServer, connection: socket.socket, request: Received) -> None:
        connection.sendall(data)

    return act


def trickle(server: MemoryServer, connection: socket.socket, request: Received) -> None:
    """Send an endless body, a byte now and then: each read is quick, the whole is not."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
    while not server.released.wait(0.02):
        connection.sendall(b" ")


@dataclass
class MemoryServer:
    """The fake. `faults` are used up one a request; `always` holds when they are."""

    faults: deque[Fault] = field(default_factory=deque)
    always: Fault | None = None
    requests: list[Received] = field(default_factory=list)
    turns: dict[str, dict[str, tuple[int, str]]] = field(default_factory=dict)
    facts: list[dict[str, Any]] = field(default_factory=list)
    keys: dict[tuple[str, str, str], tuple[str, Any]] = field(default_factory=dict)
    erasures: list[dict[str, Any]] = field(default_factory=list)
    routes: dict[str, Any] = field(default_factory=dict)
    generation: str = "g1"
    released: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)
    port: int = 0

    def __enter__(self) -> Self:
        fake = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError, ValueError):
                    for request in _read(self.rfile):
                        if not fake.take(self.connection, request):
                            return

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            block_on_close = False
            request_queue_size = 64

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Refuse connections from now on."""
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_until(self, is_so: Callable[[MemoryServer], bool], seconds: float = 10) -> None:
        """Wait until something holds; fail when it does not in time."""
        with self.changed:
            assert self.changed.wait_for(lambda: is_so(self), seconds), "it did not happen in time"

    def texts(self, session: str) -> list[str]:
        """What a session holds, in order."""
        return [text for _, text in sorted(self.turns.get(session, {}).values())]

    def take(self, connection: socket.socket, request: Received) -> bool:
        """Answer one request; False when the connection ends with it."""
        with self.changed:
            self.requests.append(request)
            fault = self.faults.popleft() if self.faults else self.always
            self.changed.notify_all()
        if fault is not None:
            fault(self, connection, request)
            return False
        self.send(connection, *self.handle(request))
        return True

    def send(self, connection: socket.socket, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        """Send an answer."""
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(content)}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + content)

    def handle(self, request: Received) -> tuple[int, Any]:
        """Do what was asked for, once per user, route and idempotency key."""
        with self.changed:
            given = request.headers.get("idempotency-key")
            key = None if given is None else (request.headers.get("x-memplane-user", ""), request.path, given)
            when = ("generation", "queued_seconds")  # of these the service takes no notice when it compares bodies
            said = {name: value for name, value in (request.body or {}).items() if name not in when}
            text = json.dumps(said, sort_keys=True)
            if key is not None and key in self.keys:
                known, stored = self.keys[key]
                if known != text:
                    return 422, {
                        "type": "https://memplane.dev/problems/idempotency-mismatch",
                        "title": "mismatch",
                        "status": 422,
                        "detail": "another body",
                    }
                return 200, stored
            status, body = self._route(request)
            if key is not None and status < 300:
                self.keys[key] = (text, body)
            self.changed.notify_all()
            return status, body

    def _route(self, request: Received) -> tuple[int, Any]:
        path = request.path.split("?")[0]
        if f"{request.method} {path}" in self.routes:
            return 200, self.routes[f"{request.method} {path}"]
        match request.method, path:
            case "POST", "/v1/write":
                session = self.turns.setdefault(request.body["session_id"], {})
                seqs = []
                for turn in request.body["turns"]:
                    seq, _ = session.setdefault(turn["id"], (len(session) + 1, turn.get("content")))
                    seqs.append(seq)
                return 202, {
                    "session_id": request.body["session_id"],
                    "seqs": seqs,
                    "jobs": [],
                    "scheduled": True,
                    "generation": self.generation,
                    "degraded": [],
                    "added_later": "a newer service may say more",
                }
            case "POST", "/v1/recall":
                return 200, {
                    "outcome": "applied",
                    "long_term": {"items": [item(request.body["query"])], "block": "<block>"},
                    "usage": {"tokens": 7},
                    "generation": self.generation,
                    "added_later": 1,
                }
            case "POST", "/v1/facts":
                self.facts.append(request.body)
                return 201, {**item(request.body["text"]), "generation": self.generation, "action": "added"}
            case "POST", "/v1/forget":
                self.erasures.append(request.body)
                return 200, {"receipt_id": str(uuid.UUID(int=9)), "status": "erased", "erased": {"turns": 2}}
            case "GET", "/healthz":
                return 200, {"status": "alive"}
            case "GET", "/readyz":
                return 503, {"ready": False, "parts": {}}
        return 404, {
            "type": "https://memplane.dev/problems/not-found",
            "title": "Not found",
            "status": 404,
            "detail": "there is no such thing",
        }


def item(text: str) -> dict[str, Any]:
    """Return a fact as it is answered."""
    return {
        "id": str(uuid.UUID(int=1)),
        "tier": "fact",
        "kind": "semantic",
        "text": text,
        "score": 0.9,
        "scope": "private",
        "said_at": NOW,
    }


def _read(stream: Any) -> Iterator[Received]:
    while first := stream.readline():
        method, path, _ = first.decode("latin-1").split(" ", 2)
        headers: dict[str, str] = {}
        while (line := stream.readline().decode("latin-1").strip()) != "":
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        content = stream.read(int(headers.get("content-length", "0")))
        yield Received(method, path, headers, json.loads(content) if content else None)
