"""Every test of this folder that takes `store` runs on both backends, each time over fresh data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.fakes.postgres import PostgresServer, shared_server
from tests.fakes.stores import Backends, Store


def run_folder(factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all processes of this test run share."""
    base = factory.getbasetemp()
    return (base.parent if base.name.startswith("popen-") else base) / "postgres"


@pytest.fixture(scope="session")
def postgres_dsn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The superuser's DSN of the run's Postgres."""
    with shared_server(run_folder(tmp_path_factory)) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def backends(postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backends]:
    """Both backends."""
    shared = run_folder(tmp_path_factory)
    shared.mkdir(parents=True, exist_ok=True)
    both = Backends(shared, postgres_dsn)
    yield both
    both.close()


@pytest.fixture(params=["local", "external"])
async def store(request: pytest.FixtureRequest, backends: Backends, tmp_path: Path) -> AsyncIterator[Store]:
    """An open store without any memory."""
    async with getattr(backends, request.param)(tmp_path) as config:
        opened = Store(config)
        await opened.open()
        yield opened
        await opened.close()


@pytest.fixture(params=["local", "external"])
async def target(request: pytest.FixtureRequest, backends: Backends, tmp_path: Path) -> AsyncIterator[Store]:
    """A second, empty store, of another key."""
    async with backends.another(request.param, tmp_path / "target") as config:
        opened = Store(config)
        await opened.open()
        yield opened
        await opened.close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[PostgresServer]:
    """A server that a test may kill."""
    server = PostgresServer(tmp_path / "server", durable=True)
    server.start()
    yield server
    server.stop()
