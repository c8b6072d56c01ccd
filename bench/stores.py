"""Stores for the benchmarks: a Postgres, configurations of both backends, rows straight into their tables."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np

from bench.embedding import SYNTHETIC, synthetic
from bench.vectors import DIMENSION
from memory_service.contract.config import ServiceConfig
from memory_service.domain.lexical import terms
from memory_service.observability.process import SystemClock
from memory_service.storage import open_storage
from memory_service.storage.transaction import RowTransaction
from tests.fakes.postgres import PostgresServer, fresh_database

AGENT = "kaos://agent/local/agent-{number}"
BACKENDS = ("local", "external")
Json = dict[str, Any]


@contextmanager
def postgres(folder: Path) -> Iterator[PostgresServer]:
    """Run a Postgres that keeps what it commits: fsync, full pages and synchronous commits are on."""
    server = PostgresServer(folder / "postgres", durable=True)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def storage(backend: str, folder: Path, server: PostgresServer | None) -> Iterator[Json]:
    """Yield the storage section of an empty store."""
    if backend == "local":
        yield {"dataDir": str(folder / "data")}
        return
    assert server is not None
    with fresh_database(server.dsn) as dsn:
        yield {"type": "external", "dsn": dsn}


def config(storage_section: Json, endpoint: int | None, model: str = SYNTHETIC, **more: Any) -> Json:
    """Return a service's configuration whose texts are embedded by the endpoint on a port, or built in."""
    models: Json = {}
    if endpoint is not None:
        models = {"embedding": {"url": f"http://127.0.0.1:{endpoint}/v1", "model": model, "dimensions": DIMENSION}}
    return {"storage": storage_section, "models": models, **more}


def transact(config_of: Json, works: Iterator[Callable[[RowTransaction], Any]]) -> list[Any]:
    """Open the store of a configuration in this process and run each work in a transaction of its own."""
    given = ServiceConfig.model_validate(config_of)
    embedding = given.models.embedding

    async def run() -> list[Any]:
        store = open_storage(
            given.storage,
            embedding_model=cast("str", embedding.model),
            dimension=cast("int", embedding.dimensions),
            clock=SystemClock(),
        )
        await store.migrate()
        try:
            return [await store.transact(cast("Any", work)) for work in works]
        finally:
            await store.close()

    return asyncio.run(run())


def owner_of(tx: RowTransaction, number: int) -> int:
    """Return the number of an agent's own owner, made if needed."""
    from memory_service.contract.scopes import Scope
    from memory_service.domain.owners import Owner

    return tx.owners.ensure(Owner(Scope.PRIVATE, AGENT.format(number=number))).id


_FACT = (
    "INSERT INTO @facts (owner_id, id, kind, status, text_hash, said_at, valid_from, pinned, revision, created_at,"
    " updated_at, tags, length, terms, embedding_model, vector, text, attributes)"
    " VALUES (:owner, :id, 'semantic', 'active', :hash, :at, :at, 0, 1, :at, :at, '[]', :length, :terms, :model,"
    " :vector, :text, '{}')"
)


def facts(number: int, texts: Sequence[str], *, asked: str | None = None) -> Callable[[RowTransaction], None]:
    """Return a work that stores active facts of an agent, with random vectors.

    The one that will be `asked` for has the vector that the endpoint gives its text; that is slow to make for all.
    """

    def work(tx: RowTransaction) -> None:
        owner = owner_of(tx, number)
        vectors = _random(len(texts), number)
        if asked is not None:
            vectors[texts.index(asked)] = synthetic([asked])[0]
        chooser = random.Random(f"{number} {texts[0]}")
        rows = []
        for position, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
            stems = terms(text)
            rows.append(
                {
                    "owner": owner,
                    "id": str(uuid.UUID(int=chooser.getrandbits(128), version=4)),
                    "hash": f"{texts[0]} {position}",
                    "at": 1_700_000_000_000_000 + position,
                    "length": len(stems),
                    "terms": " ".join(stems),
                    "model": SYNTHETIC,
                    "vector": tx.link.vector_in(vector),
                    "text": text,
                }
            )
        tx.link.run_many(_FACT, rows)
        tx.owners.revise([owner])

    return work


def without_vector_index(
    works: Iterable[Callable[[RowTransaction], Any]], *, again: bool = True
) -> Iterator[Callable[[RowTransaction], Any]]:
    """Yield works between others that drop the vector index of facts on Postgres and make it anew: far faster."""
    yield lambda tx: tx.link.run("[[DROP INDEX @facts_vector|SELECT 1]]")
    yield from works
    if again:
        yield _index


def _index(tx: RowTransaction) -> None:
    for sql in (
        "[[SET LOCAL maintenance_work_mem = '512MB'|SELECT 1]]",
        "[[SET LOCAL statement_timeout = 0|SELECT 1]]",
        "[[CREATE INDEX facts_vector ON @facts USING hnsw (vector {vectors}.vector_cosine_ops)|SELECT 1]]",
    ):
        tx.link.run(sql)


def _random(count: int, seed: int) -> Any:
    values = np.random.default_rng(seed).standard_normal((count, DIMENSION), dtype=np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)
