"""Erasure, stage two: the bytes of erased rows leave the disk. Every step may be repeated, and says what it waits for.

SQLite: full-text segments are merged, the file is written anew, and the log is emptied; `secure_delete` alone leaves
stale cells. Chroma: a new folder is made from the rows and the old one deleted. Postgres: tables and partitions that
lost rows are written anew with their indexes, one short lock at a time. What the write-ahead log, replicas and backups
keep follows their own retention.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from memory_service.errors import StorageFull
from memory_service.ports.records import PurgeStep
from memory_service.storage.search import SearchIndex
from memory_service.storage.sqlite_errors import primary_code
from memory_service.storage.statements import Link

if TYPE_CHECKING:
    import psycopg


T = TypeVar("T")

Waiting = Literal["lock", "snapshot", "space"]

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


_TABLES = """
SELECT c.oid::bigint, c.relname, c.relispartition, COALESCE(s.n_tup_del, 0)
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_stat_all_tables AS s ON s.relid = c.oid
WHERE n.nspname = %s AND c.relkind = 'r'
ORDER BY c.relname
"""


def rewrite_postgres(
    connection: psycopg.Connection[Any], schema: str, *, lock_seconds: float = LOCK_SECONDS
) -> PurgeStep:
    """Write tables anew that lost rows since they were last written anew; `connection` commits by itself.

    Partitions are told apart by the server's count of deleted rows, which an erasure has reported before it is
    answered; the count starts again after a crash of the server, and then every partition is written anew. Tables
    that are not partitioned carry little and are written anew each time.
    """
    from psycopg import errors

    kept = _marks(connection, schema)
    epoch = _epoch(connection)
    known: dict[str, Any] = kept["tables"] if epoch is not None and kept.get("epoch") == epoch else {}
    reached: dict[str, int] = dict(known)
    waiting: set[Waiting] = set()
    connection.execute("SELECT set_config('lock_timeout', %s, false)", [f"{int(lock_seconds * 1000)}ms"])
    try:
        for _, name, is_partition, deleted in connection.execute(_TABLES, [schema]).fetchall():
            if is_partition and known.get(name) == deleted:
                continue
            try:
                left = _rewrite(connection, schema, name)
            except errors.LockNotAvailable:
                waiting.add("lock")
            except errors.DiskFull:
                waiting.add("space")
            else:
                if left:
                    waiting.add("snapshot")
                elif is_partition:
                    reached[name] = deleted
    finally:
        if not connection.closed:
            connection.execute("SELECT set_config('lock_timeout', '0', false)")
    if epoch is not None:
        _keep_marks(connection, schema, {"epoch": epoch, "tables": reached})
    return PurgeStep(done=not waiting, waiting_for=tuple(sorted(waiting)))


def _rewrite(connection: psycopg.Connection[Any], schema: str, table: str) -> int:
    """Write one table anew; return how many dead rows an older snapshot made it keep."""
    from psycopg import sql

    kept: list[int] = []

    def listen(notice: psycopg.errors.Diagnostic) -> None:
        # The report's first number is the count; its words depend on the server's language.
        number = re.search(r"\d+", notice.message_detail or "")
        if number is not None:
            kept.append(int(number.group()))

    connection.add_notice_handler(listen)
    try:
        connection.execute(sql.SQL("VACUUM (FULL, VERBOSE) {}").format(sql.Identifier(schema, table)))
    finally:
        connection.remove_notice_handler(listen)
    return sum(kept)


def _epoch(connection: psycopg.Connection[Any]) -> str | None:
    """Return since when the server counts deletions; None where it does not, or only late (before Postgres 15)."""
    found = connection.execute(
        "SELECT current_setting('track_counts') = 'on'"
        " AND to_regproc('pg_catalog.pg_stat_force_next_flush') IS NOT NULL,"
        " (SELECT stats_reset::text FROM pg_catalog.pg_stat_bgwriter)"
    ).fetchone()
    assert found is not None, "a SELECT without FROM has one row"
    return str(found[1]) if found[0] else None


def _marks(connection: psycopg.Connection[Any], schema: str) -> dict[str, Any]:
    from psycopg import sql

    found = connection.execute(
        sql.SQL("SELECT value FROM {} WHERE key = 'purged'").format(sql.Identifier(schema, "meta"))
    ).fetchone()
    marks: dict[str, Any] = {"tables": {}} if found is None else json.loads(found[0])
    return marks


def _keep_marks(connection: psycopg.Connection[Any], schema: str, marks: dict[str, Any]) -> None:
    from psycopg import sql

    connection.execute(
        sql.SQL(
            "INSERT INTO {} (key, value) VALUES ('purged', %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        ).format(sql.Identifier(schema, "meta")),
        [json.dumps(marks)],
    )


_VECTOR_INDEXES = """
SELECT c.relname
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_am AS a ON a.oid = c.relam
WHERE n.nspname = %s AND c.relkind = 'i' AND a.amname = 'hnsw'
ORDER BY c.relname
"""


async def rebuild_external_index(storage: External) -> None:
    """Make pgvector's indexes anew, one partition at a time and beside traffic."""
    schema = storage.schema
    await storage.outside(lambda connection: _reindex(connection, schema))


def _reindex(connection: psycopg.Connection[Any], schema: str) -> None:
    from psycopg import sql

    for (name,) in connection.execute(_VECTOR_INDEXES, [schema]).fetchall():
        connection.execute(sql.SQL("REINDEX INDEX CONCURRENTLY {}").format(sql.Identifier(schema, name)))
