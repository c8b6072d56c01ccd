"""Every test that takes `start` or `service` runs the whole service on both backends, over fresh data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from memory_service.contract.config import ServiceConfig, StorageConfig
from tests.fakes.model_server import ModelServer
from tests.fakes.postgres import shared_server
from tests.fakes.stores import MovableClock
from tests.integration.service.harness import (
    Asker,
    Service,
    external_storage,
    local_storage,
    models_config,
    static_identity,
    tokens_file,
)

Start = Callable[..., Awaitable[Service]]


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / "postgres"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def postgres_dsn(run_folder: Path) -> Iterator[str]:
    """The superuser's DSN of the run's Postgres."""
    with shared_server(run_folder) as dsn:
        yield dsn


@pytest.fixture
def models() -> Iterator[ModelServer]:
    """A chat and embedding endpoint that answers by rules."""
    with ModelServer() as server:
        yield server


@pytest.fixture
def clock() -> MovableClock:
    """The service's time."""
    return MovableClock()


@pytest.fixture(params=["local", "external"])
async def storage(
    request: pytest.FixtureRequest, run_folder: Path, models: ModelServer, tmp_path: Path
) -> AsyncIterator[StorageConfig]:
    """Empty storage of each kind."""
    if request.param == "local":
        opened = local_storage(tmp_path)
    else:
        opened = external_storage(run_folder, request.getfixturevalue("postgres_dsn"), models.url)
    async with opened as config:
        yield config


@pytest.fixture
async def start(
    storage: StorageConfig, models: ModelServer, clock: MovableClock, tmp_path: Path
) -> AsyncIterator[Start]:
    """Start services; all are stopped in the end. Keyword arguments are parts of the ServiceConfig, and `chat`."""
    async with AsyncExitStack() as running:

        async def start(*, chat: bool = False, chat_options: dict[str, Any] | None = None, **parts: Any) -> Service:
            given: dict[str, Any] = {
                "storage": storage,
                "models": models_config(models.url, chat=chat, **(chat_options or {})),
                "identity": static_identity(tokens_file(tmp_path)),
                **parts,
            }
            service = Service(ServiceConfig(**given), clock, models)
            return await running.enter_async_context(service.running())

        yield start


@pytest.fixture
async def service(start: Start) -> Service:
    """A service without a chat model: episodes, and facts that are saved by hand."""
    return await start()


@pytest.fixture
def agent(service: Service) -> Asker:
    """The agent `helper` on nobody's behalf."""
    return service.agent()
