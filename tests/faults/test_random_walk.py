"""Promises 2 and 4, and no lost turn: whatever 50 identities do in whatever order, every answer is the plain lists'.

`STEPS` is how many steps are taken over both backends together, `SEED` which. As many as by default take three to four
minutes on two cores; `make soak` takes a million.
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

from memory_service import bootstrap
from memory_service.contract.config import ServiceConfig, StorageConfig, StorageType
from tests.fakes.postgres import PostgresServer, fresh_database
from tests.fakes.stores import MovableClock
from tests.faults import random_walk
from tests.faults.random_walk import HashEmbedder, Opener, Store

STEPS = int(os.environ.get("STEPS", "20000"))
SEED = int(os.environ.get("SEED", "1"))


@pytest.fixture(autouse=True)
def hash_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embed without an endpoint."""

    def open_hash_embedder(config: object, counter: object, clock: Any) -> HashEmbedder:
        return HashEmbedder(clock)

    monkeypatch.setattr(bootstrap, "open_embedder", open_hash_embedder)


@pytest.fixture(params=["local", "external"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Open two empty stores with the same callers: two folders, or two schemas of one database."""
    tokens = random_walk.tokens_file(tmp_path)
    if request.param == "local":
        yield partial(_two_folders, tmp_path, tokens)
        return
    postgres = PostgresServer(tmp_path / "postgres")
    postgres.start()
    try:
        yield partial(_two_schemas, postgres.dsn, tokens)
    finally:
        postgres.stop()


@asynccontextmanager
async def _two_folders(folder: Path, tokens: Path) -> AsyncIterator[list[Store]]:
    with tempfile.TemporaryDirectory(dir=folder) as walk:
        storage = [StorageConfig(type=StorageType.LOCAL, data_dir=f"{walk}/{name}") for name in ("a", "b")]
        async with _started(storage, tokens) as stores:
            yield stores


@asynccontextmanager
async def _two_schemas(dsn: str, tokens: Path) -> AsyncIterator[list[Store]]:
    with fresh_database(dsn) as database:
        storage = [
            StorageConfig(type=StorageType.EXTERNAL, dsn=database, schema_name=name, pool_size=2)
            for name in ("store_a", "store_b")
        ]
        async with _started(storage, tokens) as stores:
            yield stores


@asynccontextmanager
async def _started(storage: list[StorageConfig], tokens: Path) -> AsyncIterator[list[Store]]:
    configs: list[ServiceConfig] = [random_walk.walk_config(part, tokens) for part in storage]
    async with random_walk.started(configs, MovableClock()) as stores:
        yield stores


@pytest.mark.parametrize("steps", [max(1, STEPS // 2)], ids=[f"{max(1, STEPS // 2)}-steps-of-seed-{SEED}"])
async def test_every_answer_to_fifty_identities_over_two_stores_is_that_of_plain_lists(
    opener: Opener, steps: int
) -> None:
    assert len(random_walk.IDENTITIES) == 50
    walk, failure = await random_walk.walked(SEED, range(1, steps + 1), opener)
    if failure is None:
        assert steps < 1_000 or set(walk.kinds) == random_walk.STEP_NAMES
        return
    tail = "\n".join(walk.taken[-5:])
    words, message = await random_walk.shrunk(SEED, range(1, len(walk.taken) + 1), opener)
    pytest.fail(
        f"SEED={SEED} STEPS={STEPS}: {type(failure).__name__}: {failure}\nThe last steps:\n{tail}\n"
        f"The shortest walk that goes wrong ({message}):\n" + "\n".join(words[-40:])
    )
