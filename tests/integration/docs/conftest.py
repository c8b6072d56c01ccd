"""What readers of the how-to pages have: a database of their own, and a stand-in for a chat model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.conftest import run_folder
from tests.fakes.model_server import ModelServer
from tests.fakes.postgres import fresh_database, shared_server


@pytest.fixture(scope="session")
def postgres_dsn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The superuser's DSN of the run's Postgres."""
    with shared_server(run_folder(tmp_path_factory)) as dsn:
        yield dsn


@pytest.fixture
def database(postgres_dsn: str) -> Iterator[str]:
    """The DSN of an empty database."""
    with fresh_database(postgres_dsn) as dsn:
        yield dsn


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """A chat model that follows rules."""
    with ModelServer() as server:
        yield server
