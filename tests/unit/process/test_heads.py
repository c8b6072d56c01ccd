"""No head of a request is taken in beyond its limit, however it comes, and no body counts as one."""

from __future__ import annotations

import asyncio

import pytest

from memory_service.contract.config import ServiceConfig
from memory_service.contract.limits import MAX_HEADER_BYTES
from memory_service.observability.metrics import PrometheusMeter
from memory_service.process import serve
from memory_service.process.heads import bounded_heads
from tests.fakes.raw_server import read_whole, serving

ENDLESS = {
    "many headers": (b"GET / HTTP/1.1\r\n", b"x-more: " + b"a" * 1_000 + b"\r\n"),
    "one header": (b"GET / HTTP/1.1\r\nx-long: ", b"a" * 1_000),
    "a path": (b"GET /", b"a" * 1_000),
    "a query": (b"GET /?q=", b"a" * 1_000),
    "a name": (b"GET / HTTP/1.1\r\n", b"a" * 1_000),
    "what follows a body": (
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
        b"x: " + b"a" * 1_000 + b"\r\n",
    ),
    "the line before a chunk": (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"1;" + b"a" * 1_000),
}
MOST_SENT = 64 * 1024 * 1024


@pytest.mark.parametrize("kind", ENDLESS)
async def test_a_head_that_never_ends_is_refused_after_its_limit_and_counted(kind: str) -> None:
    meter = PrometheusMeter()
    begin, more = ENDLESS[kind]
    async with serving(bounded_heads(meter)) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begin)
        sent = 0
        answer = asyncio.create_task(reader.read())
        while not answer.done() and sent < MOST_SENT:
            writer.write(more)
            sent += len(more)
            try:
                await writer.drain()
            except ConnectionError:
                break
        try:
            said = await answer
        except ConnectionError:
            said = b""  # what was sent after the refusal met a closed socket
        writer.close()
    assert sent < MOST_SENT
    assert said.startswith(b"HTTP/1.1 431 ") or not said
    assert meter.value("requests_refused", reason="headers-too-large") == 1


async def test_the_refusal_of_a_head_is_a_problem_that_names_the_limit() -> None:
    async with serving(bounded_heads(PrometheusMeter())) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n")
        await writer.drain()
        head = b""
        while not head:  # piece by piece, since only what comes after the first read is counted
            writer.write(b"x-more: " + b"a" * 1_000 + b"\r\n")
            await writer.drain()
            try:
                async with asyncio.timeout(0.01):
                    head = await reader.readuntil(b"\r\n\r\n")
            except TimeoutError:
                continue
        body = await reader.read()
        writer.close()
    assert head.startswith(b"HTTP/1.1 431 ")
    assert b"connection: close" in head
    assert b"headers-too-large" in body
    assert str(MAX_HEADER_BYTES).encode() in body


async def test_bodies_of_one_connection_are_no_part_of_a_head_and_each_head_counts_by_itself() -> None:
    body = b"a" * (4 * MAX_HEADER_BYTES)
    head = b"POST / HTTP/1.1\r\nhost: x\r\nx-some: " + b"a" * (MAX_HEADER_BYTES // 2)
    head += b"\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with serving(bounded_heads(PrometheusMeter())) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(5):
            for at in range(0, len(head), 1_000):
                writer.write(head[at : at + 1_000])
                await writer.drain()
            writer.write(body)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
        writer.close()


def test_both_ports_of_the_service_bound_heads() -> None:
    for plain in (False, True):
        config = serve.server_settings(read_whole, ServiceConfig(), PrometheusMeter(), plain=plain)
        config.load()
        assert issubclass(config.http_protocol_class, bounded_heads(PrometheusMeter()).__base__)  # type: ignore[arg-type]
