"""Erasure, stage two: the bytes of erased rows leave the disk. Every step may be repeated, and says what it waits for.

SQLite: full-text segments are merged, the file is written anew, and the log is emptied; `secure_delete` alone leaves
stale cells. Chroma: a new folder is made from the rows and the old one deleted. Postgres: tables and partitions that
erasures have noted are written anew with their indexes, each under a lock that is not waited for long. What the
write-ahead log, replicas and backups keep follows their own retention.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from memory_service.errors import StorageFull
from memory_service.ports.records import PurgeStep
from memory_service.storage.search import SearchIndex
from memory_service.storage.sqlite_errors import primary_code
from memory_service.storage.statements import Link

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql


T = TypeVar("T")

Waiting = Literal["lock", "rights", "snapshot", "space"]

LOCK_SECONDS = 2
"""How long a purge waits for one table; requests queue behind it meanwhile, so it is short and the job comes again."""

_BUSY_MILLISECONDS = 500
_SPARE_BYTES = 1024 * 1024


class Local(Protocol):
    """What a purge needs of the local backend."""

    folder: Path
    searches: SearchIndex

    async def read(self, work: Callable[[Any], T]) -> T:
        """Run `work` over one snapshot."""

    async def outside(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` with the writing connection outside of any transaction."""


class External(Protocol):
    """What a purge needs of the external backend."""

    schema: str

    async def outside(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Run `work` in a storage thread with an autocommit connection of its own."""


async def purge_local(storage: Local) -> PurgeStep:
    """Carry erased bytes out of the data folder."""
    storage.searches.clear()
    if storage.searches.mirror is not None:
        try:
            await _with_mirror(storage, storage.searches.mirror.purge)
        except StorageFull:
            return PurgeStep(done=False, waiting_for=("space",))
    return await storage.outside(rewrite_sqlite)


async def rebuild_local_index(storage: Local) -> None:
    """Make the Chroma mirror anew from the rows."""
    if storage.searches.mirror is not None:
        await _with_mirror(storage, storage.searches.mirror.rebuild)


async def reconcile_local_index(storage: Local) -> int:
    """Bring the Chroma mirror up to the rows; return how many rows moved."""
    if storage.searches.mirror is None:
        return 0
    return await _with_mirror(storage, storage.searches.mirror.reconcile)


async def _with_mirror(storage: Local, work: Callable[[Any], T]) -> T:
    """Run work of the mirror in a thread; each of its reads is a short snapshot in the storage's own threads."""
    loop = asyncio.get_running_loop()

    def read(part: Callable[[Link], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(storage.read(lambda tx: part(tx.link)), loop).result()

    return await asyncio.to_thread(work, read)


def rewrite_sqlite(connection: sqlite3.Connection, *, free_bytes: Callable[[Path], int] | None = None) -> PurgeStep:
    """Write the database anew without what was deleted, and empty its log.

    It needs free space for two copies of the live rows: the new file is made beside the old one and goes through the
    log. Where there is less nothing is begun, so that a purge never fills the disk.
    """
    path = Path(connection.execute("SELECT file FROM pragma_database_list WHERE name = 'main'").fetchone()[0])
    for (name,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE VIRTUAL TABLE%USING fts5%'"
    ).fetchall():
        connection.execute(f'INSERT INTO "{name}" ("{name}") VALUES (\'optimize\')')
    pages, unused, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    free = free_bytes(path.parent) if free_bytes is not None else shutil.disk_usage(path.parent).free
    if free < 2 * (pages - unused) * size + _SPARE_BYTES:
        return PurgeStep(done=False, waiting_for=("space",))
    waits = connection.execute("PRAGMA busy_timeout").fetchone()[0]
    temporary = connection.execute("PRAGMA temp_store").fetchone()[0]
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
    # The copy is made in a file of the data folder: memory may be too small for it, and /tmp may be memory.
    connection.execute("PRAGMA temp_store = FILE")
    connection.execute(f"PRAGMA temp_store_directory = '{str(path.parent).replace(chr(39), chr(39) * 2)}'")
    try:
        connection.execute("VACUUM")
        busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except sqlite3.OperationalError as error:
        waiting: dict[str, Waiting] = {"SQLITE_BUSY": "lock", "SQLITE_LOCKED": "lock", "SQLITE_FULL": "space"}
        if primary_code(error) not in waiting:
            raise
        return PurgeStep(done=False, waiting_for=(waiting[primary_code(error)],))
    finally:
        connection.execute(f"PRAGMA temp_store = {temporary}")
        connection.execute(f"PRAGMA busy_timeout = {waits}")
    return PurgeStep(done=True) if not busy else PurgeStep(done=False, waiting_for=("snapshot",))


async def purge_external(storage: External) -> PurgeStep:
    """Carry erased bytes out of the schema's tables and indexes."""
    schema = storage.schema
    return await storage.outside(lambda connection: rewrite_postgres(connection, schema))


_HELD = """
held AS (
    SELECT max(age) + COALESCE(CAST(current_setting('vacuum_defer_cleanup_age', true) AS INTEGER), 0) AS age FROM (
        SELECT age(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS xid))
        UNION ALL SELECT age(backend_xmin) FROM pg_catalog.pg_stat_activity
            WHERE pid <> pg_backend_pid() AND (datname IS NULL OR datname = current_database())
            AND pid NOT IN (SELECT pid FROM pg_catalog.pg_stat_progress_vacuum)
        UNION ALL SELECT age(xmin) FROM pg_catalog.pg_replication_slots
    ) AS snapshots (age)
)
"""
"""How old the oldest snapshot is that may see a row of this database, or is taken to be (before Postgres 16). A plain
VACUUM holds nothing back.
"""
_IS_HELD = "(u.xid < pg_snapshot_xmax(pg_current_snapshot()) AND age(CAST(u.xid AS xid)) BETWEEN 0 AND held.age)"
"""Whether a snapshot is as old as a note. A transaction that this server has not come to yet was another server's, as
in a restored backup: no snapshot here sees it.
"""
_LEFT = f"""
WITH {_HELD}
SELECT u.name, i.relname, array_agg(CAST(u.xid AS TEXT)) FILTER (WHERE NOT {_IS_HELD}), bool_or({_IS_HELD})
FROM {{unpurged}} AS u CROSS JOIN held
JOIN pg_catalog.pg_class AS c ON c.relname = u.name AND c.relnamespace = to_regnamespace(%s)
JOIN pg_catalog.pg_index AS x ON x.indrelid = c.oid AND x.indisprimary
JOIN pg_catalog.pg_class AS i ON i.oid = x.indexrelid
GROUP BY u.name, i.relname
ORDER BY u.name
"""
"""What is to be written anew, with the index that names its order, the notes that no snapshot is as old as, and whether
there are others.
"""
_DROP = f"""
WITH held AS (
    SELECT age(relfrozenxid) AS age FROM pg_catalog.pg_class
    WHERE relname = %(name)s AND relnamespace = to_regnamespace(%(schema)s)
)
DELETE FROM {{unpurged}} AS u USING held
WHERE u.name = %(name)s AND u.xid = ANY(CAST(%(erasures)s AS xid8[])) AND NOT {_IS_HELD}
"""
"""Drops the notes of a table that has been written anew. What the rewrite itself took for the oldest snapshot decides;
Postgres keeps it as the table's `relfrozenxid`, and nothing in the table died before it. A standby may come with old
snapshots of its own after `_LEFT`, and be gone again by now: what it kept is in the new file.
"""


def rewrite_postgres(
    connection: psycopg.Connection[Any], schema: str, *, lock_seconds: float = LOCK_SECONDS
) -> PurgeStep:
    """Write anew what erasures have noted as carrying their bytes; `connection` commits by itself.

    A note goes in the transaction that has written its table anew, so that neither is without the other. Each goes by
    itself: what died in a table after an erasure, and what another erasure still waits for, keeps none of its bytes.
    Where every note has a snapshot that still sees what was erased nothing is written: it would stay.
    """
    from psycopg import errors, sql

    waiting: set[Waiting] = set()
    notes = sql.Identifier(schema, "unpurged")
    with _bounded(connection, lock_seconds):
        left = connection.execute(sql.SQL(_LEFT).format(unpurged=notes), [f'"{schema}"']).fetchall()
    for name, order, erasures, are_others_held in left:
        if are_others_held:
            waiting.add("snapshot")
        if not erasures:
            continue
        try:
            with _bounded(connection, lock_seconds):
                if _rewrite(connection, schema, name, order):
                    written = {"name": name, "schema": f'"{schema}"', "erasures": erasures}
                    dropped = connection.execute(sql.SQL(_DROP).format(unpurged=notes), written).rowcount
                    if dropped < len(erasures):
                        waiting.add("snapshot")
                else:
                    waiting.add("rights")
        except (errors.LockNotAvailable, errors.DeadlockDetected):
            waiting.add("lock")
        except errors.DiskFull:
            waiting.add("space")
        except errors.InsufficientPrivilege:
            waiting.add("rights")
    return PurgeStep(done=not waiting, waiting_for=tuple(sorted(waiting)))


@contextmanager
def _bounded(connection: psycopg.Connection[Any], lock_seconds: float) -> Iterator[None]:
    """Run a transaction that waits for locks as long as this, and may take as long as it must.

    Its limits are its own: PgBouncer gives each transaction another connection of the server.
    """
    limits = {"lock_timeout": f"{int(lock_seconds * 1000)}ms", "statement_timeout": "0"}
    if connection.info.server_version >= 170000:
        limits["transaction_timeout"] = "0"
    texts = [f"SET LOCAL {name} = '{value}'" for name, value in limits.items()]
    connection.execute("; ".join(["BEGIN ISOLATION LEVEL READ COMMITTED", *texts]).encode())
    try:
        yield
    except BaseException:
        if not connection.closed:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _rewrite(connection: psycopg.Connection[Any], schema: str, table: str, order: str) -> bool:
    """Write a table anew with its indexes, in the order of one of them; False where the role may not.

    VACUUM FULL does the same, but in no transaction. Both skip with a warning what a role may not write anew.
    """
    from psycopg import sql

    name = sql.Identifier(schema, table)
    # Waited for first: whoever wrote to the table has ended before the snapshot that decides what is dead.
    connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(name))
    before = _file(connection, name)
    connection.execute(sql.SQL("CLUSTER {} USING {}").format(name, sql.Identifier(order)))
    return _file(connection, name) != before


def _file(connection: psycopg.Connection[Any], table: sql.Identifier) -> int:
    from psycopg import sql

    found = connection.execute(
        sql.SQL("SELECT pg_relation_filenode(CAST({} AS regclass))").format(sql.Literal(table.as_string()))
    ).fetchone()
    assert found is not None, "a SELECT without FROM has one row"
    return int(found[0])


_VECTOR_INDEXES = """
SELECT c.relname
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_am AS a ON a.oid = c.relam
WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind = 'i' AND a.amname = 'hnsw'
ORDER BY c.relname
"""


async def rebuild_external_index(storage: External) -> None:
    """Make pgvector's indexes anew, one partition at a time: readers go on, its writers wait."""
    schema = storage.schema
    await storage.outside(lambda connection: _reindex(connection, schema))


def _reindex(connection: psycopg.Connection[Any], schema: str) -> None:
    from psycopg import sql

    for (name,) in connection.execute(_VECTOR_INDEXES, [f'"{schema}"']).fetchall():
        # Not CONCURRENTLY: one that is cut short leaves an index behind that every write keeps up.
        with _bounded(connection, LOCK_SECONDS):
            connection.execute(sql.SQL("REINDEX INDEX {}").format(sql.Identifier(schema, name)))
