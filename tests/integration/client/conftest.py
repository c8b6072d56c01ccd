"""A failing service, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memory_service.client import Deadlines, MemoryClient
from tests.fakes.memory_server import MemoryServer

MakeClient = Callable[..., MemoryClient]


@pytest.fixture
def server() -> Iterator[MemoryServer]:
    with MemoryServer() as running:
        yield running


@pytest.fixture
async def make_client(server: MemoryServer, tmp_path: Path) -> AsyncIterator[MakeClient]:
    made: list[MemoryClient] = []

    def make(endpoint: str | None = None, **options: Any) -> MemoryClient:
        given = {"outbox": tmp_path / "outbox", "env": {}, "binding_folder": tmp_path / "binding"} | options
        given.setdefault("deadlines", Deadlines(recall=20, write=20, other=20, admin=20))
        made.append(MemoryClient(endpoint or server.url, **given))
        return made[-1]

    yield make
    for client in made:
        await client.aclose()
