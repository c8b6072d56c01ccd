"""Promises 2 and 4, and no lost turn: whatever 50 identities do in whatever order, every answer is the plain lists'.

`STEPS` is how many steps are taken over both backends together, `SEED` which. Every route of the service is in some
step. As many as by default take three to four minutes on two cores; `make soak` takes a million.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import compile_path

from memory_service import bootstrap
from memory_service.api.app import create_api
from memory_service.contract.config import ServiceConfig, StorageConfig, StorageType
from tests.fakes.postgres import PostgresServer, fresh_database
from tests.faults.walk.models import HashEmbedder, WalkChat
from tests.faults.walk.store import IDENTITIES, Opener, StepClock, Store, started, tokens_file, walk_config
from tests.faults.walk.walking import STEPS, shrunk, walked

LENGTH = int(os.environ.get("STEPS", "20000"))
SEED = int(os.environ.get("SEED", "1"))
LONG = 5_000
"""Steps in which everything happens that can happen."""
HAPPENS = {
    "folded", "fold failed", "extract failed", "extracted: added", "extracted: superseded", "extracted: ignored",
    "expired", "import: imported", "import: skipped", "import: tombstoned",
}  # fmt: skip


@pytest.fixture(autouse=True)
def known_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have models without endpoints."""

    def open_hash_embedder(config: object, counter: object, clock: Any) -> HashEmbedder:
        return HashEmbedder(clock)

    def open_walk_chat(config: object, clock: Any) -> WalkChat:
        return WalkChat(clock)

    monkeypatch.setattr(bootstrap, "open_embedder", open_hash_embedder)
    monkeypatch.setattr(bootstrap, "open_chat", open_walk_chat)


@pytest.fixture(params=["local", "external"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Open three empty stores with the same callers: folders, or schemas of one database."""
    tokens = tokens_file(tmp_path)
    if request.param == "local":
        yield partial(_folders, tmp_path, tokens)
        return
    postgres = PostgresServer(tmp_path / "postgres")
    postgres.start()
    try:
        yield partial(_schemas, postgres.dsn, tokens)
    finally:
        postgres.stop()


@asynccontextmanager
async def _folders(folder: Path, tokens: Path) -> AsyncIterator[list[Store]]:
    with tempfile.TemporaryDirectory(dir=folder) as walk:
        storage = [StorageConfig(type=StorageType.LOCAL, data_dir=f"{walk}/{name}") for name in ("a", "b", "c")]
        async with _started(storage, tokens) as stores:
            yield stores


@asynccontextmanager
async def _schemas(dsn: str, tokens: Path) -> AsyncIterator[list[Store]]:
    with fresh_database(dsn) as database:
        storage = [
            StorageConfig(type=StorageType.EXTERNAL, dsn=database, schema_name=name, pool_size=2)
            for name in ("store_a", "store_b", "store_c")
        ]
        async with _started(storage, tokens) as stores:
            yield stores


@asynccontextmanager
async def _started(storage: list[StorageConfig], tokens: Path) -> AsyncIterator[list[Store]]:
    configs: list[ServiceConfig] = [walk_config(part, tokens) for part in storage]
    async with started(configs, StepClock()) as stores:
        yield stores


def not_asked(asked: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the methods and the routes of the service that nobody has asked for."""
    routes = {(method, path) for path, route in create_api(None).openapi()["paths"].items() for method in route}
    return {
        (method, path)
        for method, path in routes
        if not any(name == method.upper() and compile_path(path)[0].match(one) for name, one in asked)
    }


@pytest.mark.parametrize("steps", [max(1, LENGTH // 2)], ids=[f"{max(1, LENGTH // 2)}-steps-of-seed-{SEED}"])
async def test_every_answer_to_fifty_identities_over_two_stores_is_that_of_plain_lists(
    opener: Opener, steps: int
) -> None:
    assert len(IDENTITIES) == 50
    walk, failure = await walked(SEED, range(1, steps + 1), opener)
    if failure is None:
        if steps >= LONG:
            assert set(walk.kinds) == {getattr(step, "__name__", "") for step in STEPS}
            assert not_asked(walk.asked) == set()
            assert {name for name, count in walk.happened.items() if count} >= HAPPENS
        return
    tail = "\n".join(walk.taken[-5:])
    words, message = await shrunk(SEED, range(1, len(walk.taken) + 1), opener)
    pytest.fail(
        f"SEED={SEED} STEPS={LENGTH}: {type(failure).__name__}: {failure}\nThe last steps:\n{tail}\n"
        f"The shortest walk that goes wrong ({message}):\n" + "\n".join(words[-40:])
    )
