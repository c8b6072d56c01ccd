"""The two backends as a test sees them: opened over fresh data, opened again, with time that can be moved."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import psycopg

from memory_service.contract.config import StorageConfig, StorageType
from memory_service.contract.scopes import FactKind, Scope
from memory_service.contract.turns import Role
from memory_service.domain.owners import Owner
from memory_service.ports.records import FactDraft, FactSource, TurnDraft, Vector
from memory_service.ports.storage import Storage
from memory_service.storage import open_storage
from tests.fakes.postgres import fresh_database, template, wait_for_running_transactions

MODEL = "test-embedding"
DIMENSION = 8
SCHEMA = "memplane_test"
TEMPLATE = "memplane_template"

AGENT = "kaos://agent/team/helper"
OTHER_AGENT = "kaos://agent/team/other"
ALICE = "a" * 64
BOB = "b" * 64


class MovableClock:
    """The system's time plus a shift that a test moves."""

    def __init__(self) -> None:
        self._shift = timedelta()

    def now(self) -> datetime:
        """Return the shifted time."""
        return datetime.now(UTC) + self._shift

    def shift(self) -> timedelta:
        """Return how far it was moved."""
        return self._shift

    def advance(self, by: timedelta) -> None:
        """Move on."""
        self._shift += by


@dataclass
class Store:
    """One store on one backend."""

    config: StorageConfig
    clock: MovableClock = field(default_factory=MovableClock)
    model: str = MODEL
    dimension: int = DIMENSION
    cluster: str = ""
    storage: Storage = field(init=False)

    async def open(self) -> None:
        """Open the store and bring its schema up to date."""
        self.storage = open_storage(
            self.config,
            embedding_model=self.model,
            dimension=self.dimension,
            clock=self.clock,
            cluster=self.cluster,
        )
        await self.storage.migrate()

    async def reopen(self) -> None:
        """Close the store and open it again, as a restart does."""
        await self.storage.close()
        await self.open()

    async def close(self) -> None:
        """Close the store."""
        await self.storage.close()

    async def wait_for_running_transactions(self) -> None:
        """Wait for whatever other tests write on the same server now: it holds back purges, and rows that are kept."""
        await wait_for_other_tests(self.config)


async def wait_for_other_tests(config: StorageConfig) -> None:
    """Wait for whatever other tests write now on the server of a store, if it has one."""
    if config.type is StorageType.EXTERNAL:
        await asyncio.to_thread(wait_for_running_transactions, str(config.dsn))


class Backends:
    """Makes fresh stores of both kinds for one process of a test run.

    Making a schema takes seconds, so a process copies one database and empties it between tests.
    """

    def __init__(self, shared: Path, dsn: str) -> None:
        self._shared = shared
        self._dsn = dsn
        self._stack = ExitStack()
        self._database: str | None = None

    @asynccontextmanager
    async def local(self, folder: Path) -> AsyncIterator[StorageConfig]:
        """Yield a configuration over an empty folder."""
        yield StorageConfig(type=StorageType.LOCAL, data_dir=str(folder / "data"))

    @asynccontextmanager
    async def external(self, folder: Path) -> AsyncIterator[StorageConfig]:
        """Yield a configuration over a database that holds an empty, migrated schema."""
        database = await asyncio.to_thread(self._empty_database)
        yield external_config(database)

    @asynccontextmanager
    async def another(self, kind: str, folder: Path) -> AsyncIterator[StorageConfig]:
        """Yield a configuration of a store beside the first one, with a key and, externally, a database of its own."""
        if kind == "local":
            async with self.local(folder) as config:
                yield config
            return
        await asyncio.to_thread(template, self._shared, self._dsn, TEMPLATE, _migrate)
        database = fresh_database(self._dsn, copy_of=TEMPLATE)
        dsn = await asyncio.to_thread(database.__enter__)
        try:
            await asyncio.to_thread(_give_key, dsn)
            yield external_config(dsn)
        finally:
            await asyncio.to_thread(database.__exit__, None, None, None)

    @asynccontextmanager
    async def unmade(self, kind: str, folder: Path) -> AsyncIterator[StorageConfig]:
        """Yield a configuration of a store that nobody has made yet: its first migration is still to come."""
        if kind == "local":
            async with self.local(folder) as config:
                yield config
            return
        database = fresh_database(self._dsn)
        dsn = await asyncio.to_thread(database.__enter__)
        try:
            yield external_config(dsn)
        finally:
            await asyncio.to_thread(database.__exit__, None, None, None)

    def close(self) -> None:
        """Drop the database."""
        self._stack.close()

    def _empty_database(self) -> str:
        if self._database is None:
            template(self._shared, self._dsn, TEMPLATE, _migrate)
            self._database = self._stack.enter_context(fresh_database(self._dsn, copy_of=TEMPLATE))
        with psycopg.connect(self._database) as connection:
            for table in _EMPTIED:
                connection.execute(f"DELETE FROM {SCHEMA}.{table}")
        return self._database


_EMPTIED = (
    "turns", "digests", "fact_sources", "fact_history", "facts", "jobs", "receipts", "idempotency", "commits",
    "tombstones", "principals", "sessions", "aliases", "owners", "unpurged",
)  # fmt: skip


def external_config(dsn: str, *, schema: str = SCHEMA, pool_size: int = 8, store_uid: str = "") -> StorageConfig:
    """Return a configuration of an external store."""
    return StorageConfig(
        type=StorageType.EXTERNAL, dsn=dsn, schema_name=schema, pool_size=pool_size, store_uid=store_uid
    )


def _give_key(dsn: str) -> None:
    """Give a copied database a key of its own, as a store has that was never another one."""
    with psycopg.connect(dsn) as connection:
        connection.execute(f"UPDATE {SCHEMA}.meta SET value = %s WHERE key = 'hmac_key'", (secrets.token_hex(32),))


def _migrate(dsn: str) -> None:
    async def migrate() -> None:
        store = Store(external_config(dsn))
        await store.open()
        await store.close()

    asyncio.run(migrate())


def session_of(name: str = "s1", *, agent: str = AGENT, principal: str = "", workspace: str = "") -> Owner:
    """Return the owner key of a session."""
    return Owner(Scope.SESSION, agent, principal, name, workspace)


def pair_of(*, agent: str = AGENT, principal: str = "", workspace: str = "") -> Owner:
    """Return a private pair."""
    return Owner(Scope.PRIVATE, agent, principal, "", workspace)


def turn(text: str, *, role: Role = Role.USER, client_id: str | None = None, tokens: int = 3) -> TurnDraft:
    """Return a turn whose words are its stems."""
    return TurnDraft(
        role=role,
        content=text,
        text=text,
        parts=None,
        name=None,
        said_at=datetime(2026, 1, 1, tzinfo=UTC),
        tokens=tokens,
        terms=tuple(text.split()),
        client_id=client_id,
    )


def fact(text: str, owner: Owner, *, source: FactSource | None = None, **fields: object) -> FactDraft:
    """Return a fact that was said in session s1 of its agent, for its principal, if nothing else is given."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    said_in = source or FactSource(owner.agent or AGENT, owner.principal, owner.session or "s1", owner.workspace, (1,))
    values: dict[str, object] = {
        "owner": owner,
        "kind": FactKind.SEMANTIC,
        "text": text,
        "terms": tuple(text.split()),
        "source": said_in,
        "said_at": moment,
        "valid_from": moment,
        **fields,
    }
    return FactDraft(**values)  # type: ignore[arg-type]


def uid(name: str) -> str:
    """Return the id of a fact that a test calls by a name."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def vector(seed: int, dimension: int = DIMENSION) -> Vector:
    """Return a unit vector."""
    values = np.random.default_rng(seed).standard_normal(dimension).astype(np.float32)
    return (values / np.linalg.norm(values)).astype(np.float32)
