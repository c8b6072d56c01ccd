"""The serving process: binds, opens the service, says where it listens, and drains on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from memory_service.api.app import create_app, create_metrics_app
from memory_service.bootstrap import Runtime, runs_worker
from memory_service.contract.config import ServiceConfig, TlsConfig
from memory_service.contract.limits import HEAD_SECONDS
from memory_service.errors import Misconfigured
from memory_service.observability.logs import set_up_logging
from memory_service.ports.models import Clock
from memory_service.ports.process import Meter, Steps
from memory_service.process import loops
from memory_service.process.certificates import check_certificate, follow_certificate
from memory_service.process.heads import bounded_heads
from memory_service.process.lives import opens_before, stop_on_signals, working
from memory_service.process.silence import allow_open_files, close_silent


def run(config: ServiceConfig, *, clock: Clock | None = None, steps: Steps | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code.

    Raises:
        Misconfigured: a person must change the configuration, the schema or the data folder first.
    """
    set_up_logging()
    return loops.run(_serve(config, clock, steps))


class Server(uvicorn.Server):
    """A uvicorn server whose signals are the process's business: it is told when to stop, and tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and say so."""
        await super().startup([])  # what listens is made here: uvicorn sets no limit to TLS handshakes
        tls = self.config.ssl
        limit_seconds = None if tls is None else HEAD_SECONDS
        for one in sockets or ():
            listening = await asyncio.get_running_loop().create_server(
                self._connection, sock=one, ssl=tls, ssl_handshake_timeout=limit_seconds, backlog=self.config.backlog
            )
            self.servers.append(listening)
        self.listens.set()

    def _connection(self) -> asyncio.Protocol:
        settings: Any = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        return self.config.http_protocol_class(**settings)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


async def _serve(config: ServiceConfig, clock: Clock | None, steps: Steps | None) -> int:
    stop = stop_on_signals()
    allow_open_files()
    if config.server.tls is not None:
        check_certificate(config.server.tls)
    listener = _bind(config.server.host, config.server.port)
    async with Runtime(config, clock=clock, steps=steps) as runtime:
        server = Server(server_settings(create_app(runtime), config, runtime.meter))
        async with contextlib.AsyncExitStack() as running:
            await running.enter_async_context(_listening(server, listener, config.server.tls, runtime.meter))
            if config.server.metrics_port is not None:
                metrics = Server(server_settings(create_metrics_app(runtime), config, runtime.meter, plain=True))
                side = _bind(config.server.host, config.server.metrics_port)
                await running.enter_async_context(_listening(metrics, side, None, runtime.meter))
            if await opens_before(stop, runtime):
                if runs_worker(config):
                    # Left before the servers are: no job is taken any more while requests finish.
                    grace = timedelta(seconds=config.server.grace_seconds / 2)
                    await running.enter_async_context(working(runtime, grace=grace))
                _announce(config, listener)
                await stop.wait()
    return 0


@contextlib.asynccontextmanager
async def _listening(
    server: Server, listener: socket.socket, tls: TlsConfig | None, meter: Meter
) -> AsyncIterator[None]:
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    beside: list[asyncio.Task[None]] = []
    try:
        listens = asyncio.create_task(server.listens.wait())
        await asyncio.wait({serving, listens}, return_when=asyncio.FIRST_COMPLETED)
        listens.cancel()
        if serving.done():
            serving.result()
        beside.append(asyncio.create_task(close_silent(lambda: server.server_state.connections, meter), name="silence"))
        if tls is not None and server.config.ssl is not None:
            beside.append(asyncio.create_task(follow_certificate(server.config.ssl, tls), name="certificate"))
        yield
    finally:
        server.should_exit = True
        await serving
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


def server_settings(app: ASGIApp, config: ServiceConfig, meter: Meter, *, plain: bool = False) -> uvicorn.Config:
    """Return how an application is served; `plain` is without TLS."""
    tls = None if plain else config.server.tls
    return uvicorn.Config(
        app,
        lifespan="off",
        http=bounded_heads(meter),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, int(config.server.grace_seconds)),
        ssl_certfile=tls.cert_file if tls else None,
        ssl_keyfile=tls.key_file if tls else None,
    )


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise Misconfigured(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port, or 0 for any free one",
            reason="NotConfigured",
        ) from error
    listener.set_inheritable(True)
    return listener


def _announce(config: ServiceConfig, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if config.server.tls is not None else "http"
    sys.stderr.write(f"listening on {scheme}://{shown}:{port}\n")
    sys.stderr.flush()
