"""Whose certificate a client accepts: that of the binding's own authority, and no other one in its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from memory_service.client import requests
from memory_service.client.errors import ServiceUnavailable
from memory_service.client.transport import Transport
from tests.fakes.kube_api import make_certificates

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


@pytest.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_ANSWER)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=make_certificates(tmp_path))
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def ask(endpoint: str, ca: str | None) -> int:
    transport = Transport()
    try:
        request = requests.write("s1", [{"role": "user", "content": "x"}], idempotency_key="k")
        return (await transport.send(request, endpoint=endpoint, headers={}, ca=ca, seconds=5)).status
    finally:
        await transport.aclose()


async def test_a_bundle_with_comments_in_any_language_is_an_authority(endpoint: str, tmp_path: Path) -> None:
    assert await ask(endpoint, f"# Autoridad Raíz de la compañía\n{(tmp_path / 'ca.crt').read_text()}# 終わり\n") == 200


@pytest.mark.parametrize("ca", ["", "# Raíz\n", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"])
async def test_what_is_no_certificate_is_no_authority(endpoint: str, ca: str) -> None:
    with pytest.raises(ServiceUnavailable, match="cannot be reached"):
        await ask(endpoint, ca)
