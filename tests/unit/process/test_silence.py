"""A connection that sends no request is not held for ever, and one that is used is never closed for it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.config import HTTPProtocolType

from memory_service.contract.config import ServiceConfig
from memory_service.observability.metrics import PrometheusMeter
from memory_service.process import loops, serve
from memory_service.process.silence import Silence
from tests.fakes.kube_api import make_certificates
from tests.fakes.raw_server import read_whole, serving, until

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"


@asynccontextmanager
async def connected(server: uvicorn.Server, port: int, *sends: bytes) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Yield one connection for each text, which was sent over it and which the server has."""
    made = [await asyncio.open_connection("127.0.0.1", port) for _ in sends]
    for (_, writer), data in zip(made, sends, strict=True):
        writer.write(data)
    await until(lambda: len(server.server_state.connections) == len(sends))
    yield [reader for reader, _ in made]
    for _, writer in made:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def ended(reader: asyncio.StreamReader) -> bool:
    """Return whether the server has closed a connection without a word."""
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("http", ["httptools", "h11"])
async def test_only_a_connection_that_has_owed_a_head_for_its_time_is_closed(http: HTTPProtocolType) -> None:
    sends = (b"", b"POST / HTTP/1.1\r\nHost", HEAD, HEAD + b"{}")
    async with serving(http) as (server, port), connected(server, port, *sends) as readers:
        assert (await readers[3].readline()).startswith(b"HTTP/1.1 204")
        connections = server.server_state.connections
        await until(lambda: len(Silence(limit_seconds=0).too_long(connections, 0)) == 2)
        silence = Silence(limit_seconds=10)
        assert silence.too_long(connections, 0) == []
        assert silence.too_long(connections, 9.9) == []
        closed = silence.too_long(connections, 10)
        assert len(closed) == 2
        for one in closed:
            one.transport.abort()
        assert [await ended(readers[number]) for number in (0, 1)] == [True, True]
        assert len(connections) == 2


async def test_a_connection_that_was_answered_meanwhile_begins_anew() -> None:
    class Used:
        cycle: object = None
        timeout_keep_alive_task = None

    class Answered:
        response_complete = True

    silence, used = Silence(limit_seconds=10), Used()
    assert silence.too_long([used], 0) == []
    used.cycle = Answered()
    assert silence.too_long([used], 10) == []
    assert silence.too_long([used], 19) == []
    assert silence.too_long([used], 20) == [used]


@pytest.mark.parametrize("run", [asyncio.run, loops.run])
def test_a_tls_handshake_that_says_nothing_is_ended_and_one_that_is_made_goes_on(
    run: Callable[[Coroutine[Any, Any, None]], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "HEAD_SECONDS", 0.2)
    make_certificates(tmp_path)
    both = str(tmp_path / "server.pem")
    config = ServiceConfig.model_validate({"server": {"tls": {"certFile": both, "keyFile": both}}})
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))

    async def scenario() -> None:
        server = serve.Server(serve.server_settings(read_whole, config, PrometheusMeter()))
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            running = asyncio.create_task(server.serve(sockets=[listener]))
            await server.listens.wait()
            port = int(listener.getsockname()[1])
            made, used = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
            async with asyncio.timeout(30):
                for said in (b"", b"\x16\x03\x01"):
                    silent, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(said)
                    assert await ended(silent)
                    writer.close()
                used.write(HEAD + b"{}")
                assert (await made.readline()).startswith(b"HTTP/1.1 204")
            used.close()
            server.should_exit = server.force_exit = True
            await running

    run(scenario())


def test_no_connection_becomes_one_of_another_protocol_than_these() -> None:
    config = serve.server_settings(read_whole, ServiceConfig(), PrometheusMeter())
    config.load()
    assert config.ws_protocol_class is None
