"""Services as processes, on both backends."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples.model_server import DIMENSION
from memory_service.contract.config import EngineName
from memory_service.storage.local import DATABASE
from tests.fakes.model_server import CHAT, Gate, ModelServer
from tests.fakes.postgres import PostgresServer
from tests.faults.processes import Service


@dataclass
class World:
    """What a fault test works with: a way to make services, their model endpoint and, externally, their Postgres."""

    backend: str
    model: ModelServer
    postgres: PostgresServer | None
    folder: Path
    services: list[Service]
    engine: EngineName = EngineName.NATIVE

    def gate(self) -> Gate:
        """Hold the next chat request until the test opens the gate."""
        gate = Gate()
        self.model.script(CHAT, gate)
        return gate

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Return what a query finds in the tables themselves, which it names with an `@`."""
        if self.postgres is not None:
            with psycopg.connect(self.postgres.dsn) as connection:
                return connection.execute(statement.replace("@", "memplane.").encode()).fetchall()
        with closing(sqlite3.connect(self.folder / "data" / DATABASE)) as connection:
            return list(connection.execute(statement.replace("@", "")))

    def service(self, name: str = "service", **changes: dict[str, Any]) -> Service:
        """Return a service that is not started yet; all of one world share one store."""
        if self.postgres is not None:
            storage: dict[str, Any] = {"type": "external", "dsn": self.postgres.dsn}
        else:
            storage = {"type": "local", "dataDir": str(self.folder / "data")}
        config: dict[str, Any] = {
            "storage": storage,
            "engine": self.engine.value,
            "models": {
                "chat": {"url": self.model.url, "model": "rules", "maxRetries": 0, "timeoutSeconds": 300},
                "embedding": {
                    "url": self.model.url,
                    "model": "hash",
                    "dimensions": DIMENSION,
                    "maxRetries": 0,
                },
            },
            "shortTerm": {"tokenBudget": 60},
            "extraction": {"minTurns": 6, "maxRetries": 5},
            "worker": {"leaseSeconds": 2, "pollSeconds": 0.2, "sweepSeconds": 3600},
            "server": {"port": 0, "graceSeconds": 10},
        }
        for part, values in changes.items():
            config[part] = {**config.get(part, {}), **values}
        made = Service(self.folder / name, config)
        self.services.append(made)
        return made


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """A model endpoint that answers by rules."""
    with ModelServer() as server:
        yield server


@pytest.fixture(params=["local", "external"])
def world(request: pytest.FixtureRequest, model: ModelServer, tmp_path: Path) -> Iterator[World]:
    """A store on each backend; the external one has a Postgres of its own with fsync on."""
    postgres = PostgresServer(tmp_path / "postgres", durable=True) if request.param == "external" else None
    if postgres is not None:
        postgres.start()
    made = World(request.param, model, postgres, tmp_path, [])
    yield made
    for service in made.services:
        service.close()
    if postgres is not None:
        postgres.stop()


@pytest.fixture
def external(model: ModelServer, tmp_path: Path) -> Iterator[World]:
    """A store on a Postgres of its own."""
    postgres = PostgresServer(tmp_path / "postgres", durable=True)
    postgres.start()
    made = World("external", model, postgres, tmp_path, [])
    yield made
    for service in made.services:
        service.close()
    postgres.stop()
