"""The external backend: Postgres + pgvector, any number of replicas.

Every statement works through PgBouncer in transaction mode: nothing is set for a session, nothing is prepared, every
name carries its schema. A lost connection is answered by running the work once more on a fresh one. When it is lost
during COMMIT, a row that the transaction left (`commits`) says whether it was stored, so nothing is stored twice.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import psycopg
from psycopg import sql

from memory_service.contract.config import StorageConfig
from memory_service.contract.health import Part, PartHealth, Reason
from memory_service.contract.sessions import Diagnostics
from memory_service.errors import MemoryServiceError, Misconfigured, StorageUnavailable
from memory_service.ports.models import Clock
from memory_service.ports.records import PurgeStep
from memory_service.ports.storage import Transaction
from memory_service.storage import counting, errors, migration
from memory_service.storage.commits import LIMITS, Attempt
from memory_service.storage.connections import Connection, Connections
from memory_service.storage.errors import LostRace
from memory_service.storage.postgres_errors import from_postgres, is_lost, may_run_again
from memory_service.storage.postgres_link import PostgresLink, register_vectors
from memory_service.storage.postgres_tables import PostgresTables, vectors_schema
from memory_service.storage.search import SearchIndex
from memory_service.storage.statements import Statements
from memory_service.storage.threads import Threads, Watch, Writing
from memory_service.storage.transaction import RowTransaction

T = TypeVar("T")

logger = logging.getLogger(__name__)

_BEGIN_READ = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {LIMITS}"
_RUNS = 3
"""How often work runs that lost against other transactions."""
MIGRATE_AGAIN_SECONDS = (0.1, 0.3, 1.0, 2.0)
"""How long a migration that lost to traffic rests before it begins again."""
_HEALTH_SECONDS = 2.0
_END_SECONDS = 5.0
"""How long work that runs is waited for as the store is closed, before its connections end."""
_MAY_NOT_REWRITE = (
    "the role of the DSN may not write tables of the schema {!r} anew, so no erasure is ever purged; let it own"
    " them, or from Postgres 17 on GRANT MAINTAIN ON ALL TABLES IN SCHEMA"
)


class ExternalStorage:
    """The port's Storage over one schema of a Postgres database. `migrate` opens it."""

    def __init__(
        self,
        config: StorageConfig,
        *,
        identity: migration.Identity,
        clock: Clock,
        searches: SearchIndex,
        creates: bool = True,
    ) -> None:
        self.schema = config.schema_name
        self._creates = creates
        self.searches = searches
        self._identity = identity
        self._clock = clock
        self._vectors = "public"
        self._statements = Statements(postgres=True, schema=self.schema)
        self._commits = f'"{self.schema}".commits'
        self._connections = Connections(config, self._prepare)
        threads, watch = max(2, config.pool_size), Watch(self._connections.end_unless_answered)
        self._readers = Threads(threads // 2, "read", watch)
        self._writers = Threads(threads - threads // 2, "write", watch)
        self._urgent = Threads(1, "urgent", watch)
        self._apart = Threads(1, "apart", watch)
        self._meta: Mapping[str, str] = {}
        self._refusal: Misconfigured | None = None
        self._warning = ""
        self._state = Reason.STARTING
        self._since = clock.now()
        self._opening = asyncio.Lock()
        self._stopping = threading.Event()
        self._server_started = 0

    async def migrate(self) -> None:
        """Bring the schema up to date and open the store; safe to repeat, as when the DSN comes late."""
        async with self._opening:
            if self._is_open:
                return
            if self._stopping.is_set():
                raise self._not_open()
            self._move_to(Reason.MIGRATING)
            try:
                await self._migrate_beside_traffic()
            except Misconfigured as error:
                self._refusal = error
                self._move_to(Reason(error.reason))
                raise
            except MemoryServiceError:
                self._move_to(Reason.STORAGE_UNREACHABLE)
                raise
            self._refusal = None
            self._move_to(Reason.OK)

    async def transact(self, work: Callable[[Transaction], T], *, urgent: bool = False) -> T:
        """Run `work` in one transaction and commit it durably before returning; `urgent` work has its own thread."""
        self._require_open()
        return await (self._urgent if urgent else self._writers).write(partial(self._transact, work))

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` over one consistent snapshot."""
        self._require_open()
        return await self._readers.run(partial(self._read, work))

    async def outside(self, work: Callable[[Connection], T]) -> T:
        """Run `work` with an autocommit connection of its own, outside of any transaction, such as VACUUM."""
        self._require_open()
        return await self._apart.run(partial(self._outside, self._connections.connect_for_long, work))

    async def health(self) -> Mapping[str, PartHealth]:
        """Return the parts `storage` and `schema`, from a real query with a timeout; never raises."""
        state, message = self._state, "" if self._refusal is None else self._refusal.detail
        if self._is_open:
            try:
                await asyncio.wait_for(self.read(lambda tx: tx.owners.principal_name("")), _HEALTH_SECONDS)
                self._move_to(Reason.OK)
                state, message = Reason.OK, ""
            except StorageUnavailable as error:
                self._move_to(Reason(error.reason))
                state, message = self._state, error.detail
            except (MemoryServiceError, TimeoutError) as error:
                self._move_to(Reason.STORAGE_UNREACHABLE)
                state, message = Reason.STORAGE_UNREACHABLE, f"the database does not answer: {type(error).__name__}"
        wrong_schema = state in {Reason.SCHEMA_TOO_NEW, Reason.SCHEMA_MISMATCH, Reason.EMBEDDING_MISMATCH}
        good = PartHealth(ok=True, reason=Reason.OK, since=self._since)
        bad = PartHealth(ok=False, reason=state, message=message, since=self._since)
        return {
            Part.STORAGE: good if state is Reason.OK or wrong_schema else bad,
            Part.SCHEMA: good.model_copy(update={"message": self._warning}) if self._is_open else bad,
        }

    async def purge(self) -> PurgeStep:
        """Carry the bytes of erased rows out of tables and indexes."""
        from memory_service.storage.purge import purge_external

        return await purge_external(self)

    async def rebuild_index(self) -> None:
        """Make the vector indexes anew from the rows."""
        from memory_service.storage.purge import rebuild_external_index

        await rebuild_external_index(self)

    async def reconcile_index(self) -> int:
        """The database keeps its indexes itself."""
        return 0

    async def diagnostics(self) -> Diagnostics:
        """Count everything."""

        def count(tx: Transaction) -> Diagnostics:
            assert isinstance(tx, RowTransaction)
            size = tx.link.row(
                "SELECT CAST(COALESCE(SUM(pg_total_relation_size(c.oid)), 0) AS BIGINT) FROM pg_class AS c"
                " WHERE c.relnamespace = to_regnamespace(:schema) AND c.relkind = 'r'",
                {"schema": f'"{self.schema}"'},
            )
            return counting.diagnostics(
                tx, backend="external", meta=self._meta, bytes_on_disk=0 if size is None else int(size[0])
            )

        return await self.read(count)

    async def schemas_left_behind(self) -> Sequence[str]:
        """Name schemas in this database that nobody has opened since an earlier store of the same name and cluster."""
        if not self._identity.store_name:
            return ()
        self._require_open()
        look = partial(self._outside, self._connections.connect, self._left_behind)
        return await self._readers.run(look)  # beside a purge, which may take long

    async def close(self) -> None:
        """Finish what runs and close connections."""
        async with self._opening:
            self._stopping.set()
            threads = (self._writers, self._urgent, self._readers, self._apart)
            ending = asyncio.gather(*(asyncio.to_thread(one.shutdown) for one in threads))
            while not (await asyncio.wait({ending}, timeout=_END_SECONDS))[0]:
                self._connections.cut()  # again, where what was cut has begun anew
            await ending
            self._connections.close()
            self.searches.close()
            self._move_to(Reason.STARTING)

    @property
    def _is_open(self) -> bool:
        return bool(self._meta) and not self._stopping.is_set()

    def _prepare(self, connection: Connection) -> None:
        if self._meta:
            register_vectors(connection, self._vectors)

    async def _migrate_beside_traffic(self) -> None:
        """Migrate; where traffic of older replicas was first (a deadlock undid everything), do it again."""
        for pause in MIGRATE_AGAIN_SECONDS:
            try:
                return await self._writers.run(self._migrate)
            except LostRace:
                await asyncio.sleep(pause)
        try:
            return await self._writers.run(self._migrate)
        except LostRace as error:
            detail = "older replicas' writes were first while the schema was to change; it is tried again"
            raise errors.unavailable(detail, reason=Reason.MIGRATING) from error

    def _migrate(self) -> None:
        try:
            connection = self._connections.connect()
            try:
                with connection.transaction():
                    tables = PostgresTables(connection, self.schema, self._identity.dimension)
                    tables.lock()
                    if not self._creates and not tables.are_there():
                        raise errors.no_store(f"the schema {self.schema!r} of this database", "storage.schema")
                    steps = migration.migrations("postgres")
                    meta = migration.bring_up_to_date(tables, steps, self._identity)
                self._vectors = vectors_schema(connection) or "public"
                self._warning = "" if tables.may_be_rewritten() else _MAY_NOT_REWRITE.format(self.schema)
            finally:
                connection.close()
        except psycopg.Error as error:
            raise from_postgres(error) from error
        if self._warning:
            logger.warning("erasures cannot be purged", extra={"reason": self._warning})
        self._statements = Statements(postgres=True, schema=self.schema, vectors=self._vectors)
        self._meta = meta

    def _move_to(self, state: Reason) -> None:
        if state is not self._state:
            self._state = state
            self._since = self._clock.now()

    def _require_open(self) -> None:
        if self._is_open:
            return
        if self._refusal is not None:
            raise self._refusal
        raise self._not_open()

    def _not_open(self) -> StorageUnavailable:
        return errors.unavailable(f"the schema {self.schema!r} is not open", reason=self._state)

    def _link(self, connection: Connection) -> PostgresLink:
        return PostgresLink(
            connection,
            self._statements,
            self._clock,
            dimension=self._identity.dimension,
            embedding_model=self._identity.embedding_model,
            hmac_key=bytes.fromhex(self._meta["hmac_key"]),
        )

    def _transact(self, work: Callable[[Transaction], T], writing: Writing) -> T:
        was_lost = False
        for run in range(1, _RUNS + 1):
            connection = self._take()
            link = self._link(connection)
            tx = RowTransaction(link, self.searches, writes=True)
            attempt: Attempt[T] = Attempt(link, writing)
            try:
                result = attempt.run(partial(self._on_this_server, link, partial(work, tx)))
            except psycopg.Error as error:
                if is_lost(error, connection):
                    self._connections.suspect()
                    # A server that only reads has refused the COMMIT; otherwise its answer is what was lost.
                    is_unknown = attempt.is_unknown and not isinstance(error, psycopg.errors.ReadOnlySqlTransaction)
                    if is_unknown and attempt.was_stored(self._connections, self._commits, self._stopping):
                        return self._stored(tx, attempt.result)
                    connection.close()  # one that leads to a server that only reads is as good as lost
                    if was_lost:
                        raise from_postgres(error) from error
                    was_lost = True
                elif not may_run_again(error) or run == _RUNS:
                    raise from_postgres(error) from error
            else:
                return self._stored(tx, result)
            finally:
                self._end(connection)
        raise errors.unavailable("the database was lost and other writes were first; nothing was stored")

    def _on_this_server(self, link: PostgresLink, work: Callable[[], T]) -> T:
        self._note_server(link.server_started)
        return work()

    def _note_server(self, started: int) -> None:
        """Forget what is kept of another server's rows: one that lost the last of them counts up to the same states."""
        if started != self._server_started:
            self._server_started = started
            self.searches.clear()

    def _stored(self, tx: RowTransaction, result: T) -> T:
        if tx.has_erased:
            self.searches.clear()
        return result

    def _read(self, work: Callable[[Transaction], T]) -> T:
        for is_last in (False, True):
            connection = self._take()
            try:
                link = self._link(connection)
                link.begin(_BEGIN_READ)
                self._note_server(link.server_started)
                result = work(RowTransaction(link, self.searches, writes=False))
                link.end()
                return result
            except psycopg.Error as error:
                if is_last or not is_lost(error, connection):
                    raise from_postgres(error) from error
                connection.close()
                self._connections.suspect()
            finally:
                self._end(connection)
        raise AssertionError("the last attempt returns or raises")

    def _left_behind(self, connection: Connection) -> Sequence[str]:
        found = connection.execute(
            "SELECT n.nspname FROM pg_namespace AS n WHERE n.nspname <> %s"
            " AND EXISTS (SELECT 1 FROM pg_class AS c WHERE c.relnamespace = n.oid AND c.relname = 'meta')"
            " AND EXISTS (SELECT 1 FROM pg_class AS c WHERE c.relnamespace = n.oid AND c.relname = 'commits')"
            " AND has_schema_privilege(n.oid, 'USAGE') ORDER BY n.nspname",
            (self.schema,),
        ).fetchall()
        left = []
        for (name,) in found:
            query = sql.SQL("SELECT value FROM {}.meta WHERE key = 'store_name'").format(sql.Identifier(name))
            try:
                store = connection.execute(query).fetchone()
            except psycopg.ProgrammingError:
                continue  # not a table of ours, or not ours to read
            if store == (self._identity.store_name,):
                left.append(name)
        return left

    def _take(self) -> Connection:
        try:
            return self._connections.take()
        except Misconfigured as error:
            raise _without_dsn(error) from error

    def _outside(self, connect: Callable[[], Connection], work: Callable[[Connection], T]) -> T:
        try:
            with connect() as connection:
                return work(connection)
        except Misconfigured as error:
            raise _without_dsn(error) from error
        except psycopg.Error as error:
            raise from_postgres(error) from error

    def _end(self, connection: Connection) -> None:
        """Roll back what is still open and give the connection back, whatever happened."""
        try:
            if not connection.closed and connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                connection.execute("ROLLBACK")
        except psycopg.Error:
            connection.close()
        self._connections.give(connection)


def _without_dsn(error: Misconfigured) -> StorageUnavailable:
    """Return the outage that it is when a store that was open has no DSN any more, or a wrong one."""
    return errors.unavailable(error.detail, reason=Reason(error.reason))
