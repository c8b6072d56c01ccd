"""The local backend: SQLite in one folder, one process, one writer thread with group commit.

Writes that wait at the same time share one COMMIT: each runs in its own savepoint, so a failing one rolls back alone,
and nobody is answered before the COMMIT is on the disk. Reads run beside it, each over a snapshot of its own.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from memory_service.contract.health import Part, PartHealth, Reason
from memory_service.contract.sessions import Diagnostics
from memory_service.errors import Misconfigured, StorageUnavailable
from memory_service.ports.models import Clock
from memory_service.ports.records import PurgeStep
from memory_service.ports.storage import Transaction
from memory_service.storage import counting, errors, migration, sqlite_errors
from memory_service.storage.folder import FolderLock
from memory_service.storage.local_tables import SqliteTables
from memory_service.storage.search import SearchIndex
from memory_service.storage.sqlite_link import SqliteLink, connect
from memory_service.storage.statements import Statements
from memory_service.storage.transaction import RowTransaction

logger = logging.getLogger(__name__)

T = TypeVar("T")

DATABASE = "memplane.sqlite3"
_READERS = 4
_READ_TURN_SECONDS = 0.02
"""How long a read waits for the one before it, and then goes on beside it."""
_GROUP_SECONDS = 0.02
"""A group takes no further write after this long, so that its first one does not wait much longer for its answer."""
_HEALTH_SECONDS = 2.0


@dataclass
class _Write:
    work: Callable[[Transaction], Any]
    future: Future[Any]


class _Outside:
    """Work for the writer thread outside of any transaction, such as VACUUM."""

    def __init__(self, work: Callable[[sqlite3.Connection], Any], future: Future[Any]) -> None:
        self.work = work
        self.future = future


class LocalStorage:
    """The port's Storage over one folder. `migrate` opens it: before, everything else says that it is starting."""

    def __init__(
        self,
        folder: Path,
        *,
        identity: migration.Identity,
        clock: Clock,
        searches: SearchIndex,
        lock_wait_seconds: float = 0,
        creates: bool = True,
    ) -> None:
        self.folder = folder
        self._creates = creates
        self._identity = identity
        self._clock = clock
        self.searches = searches
        self._lock = FolderLock(folder, wait_seconds=lock_wait_seconds)
        self._statements = Statements(postgres=False)
        self._queue: queue.SimpleQueue[_Write | _Outside | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._read_turn = threading.Lock()
        self._meta: Mapping[str, str] = {}
        self._refusal: Misconfigured | None = None
        self._since = clock.now()
        self._state = Reason.STARTING
        self._opening = asyncio.Lock()
        self._erases = False
        self._is_closed = False

    @property
    def path(self) -> Path:
        """The database's file."""
        return self.folder / DATABASE

    async def migrate(self) -> None:
        """Take the folder's lock, open the database and bring its schema up to date; safe to repeat."""
        async with self._opening:
            if self._writer is not None:
                return
            if self._is_closed:
                raise self._not_open()
            try:
                if not self._creates and not self.path.exists():
                    # Before the lock, which makes the folder.
                    raise errors.no_store(f"the folder {str(self.folder)!r}", "--data-dir")
                await asyncio.to_thread(self._lock.take, lambda: self._move_to(Reason.WAITING_FOR_LOCK))
                self._move_to(Reason.MIGRATING)
                await asyncio.to_thread(self._open)
            except Misconfigured as error:
                self._refusal = error
                self._move_to(Reason(error.reason))
                self._lock.give_back()
                raise
            except BaseException:
                self._move_to(Reason.STARTING)
                self._lock.give_back()
                raise
            self._refusal = None
            self._move_to(Reason.OK)

    async def transact(self, work: Callable[[Transaction], T], *, urgent: bool = False) -> T:
        """Run `work` in the writer thread; answered after the COMMIT that it shares is on the disk.

        Nobody else holds rows here, so nothing is more `urgent` than the rest.
        """
        self._require_open()
        future: Future[T] = Future()
        self._queue.put(_Write(work, future))
        return await asyncio.wrap_future(future)

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` over a snapshot, beside the writer."""
        self._require_open()
        assert self._readers is not None
        return await asyncio.wrap_future(self._readers.submit(self._read, work))

    async def outside(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in the writer thread with its connection outside of any transaction; writes wait meanwhile."""
        self._require_open()
        future: Future[T] = Future()
        self._queue.put(_Outside(work, future))
        return await asyncio.wrap_future(future)

    async def health(self) -> Mapping[str, PartHealth]:
        """Return the parts `storage` and `schema`, from a real query; never raises."""
        state, message = self._state, "" if self._refusal is None else self._refusal.detail
        if state is Reason.WAITING_FOR_LOCK and not message:
            message = "waiting for the data folder that another process serves"
        if state is Reason.OK:
            try:
                await asyncio.wait_for(self.read(lambda tx: tx.owners.principal_name("")), _HEALTH_SECONDS)
                if shutil.disk_usage(self.folder).free < 4096:
                    state, message = Reason.STORAGE_FULL, "no space is left for the data folder"
            except (StorageUnavailable, TimeoutError, OSError) as error:
                state, message = Reason.STORAGE_UNREACHABLE, f"the database does not answer: {type(error).__name__}"
        schema_is_known = state not in {Reason.STARTING, Reason.WAITING_FOR_LOCK, Reason.MIGRATING}
        wrong_schema = state in {Reason.SCHEMA_TOO_NEW, Reason.SCHEMA_MISMATCH, Reason.EMBEDDING_MISMATCH}
        good = PartHealth(ok=True, reason=Reason.OK, since=self._since)
        bad = PartHealth(ok=False, reason=state, message=message, since=self._since)
        return {
            Part.STORAGE: good if state is Reason.OK or wrong_schema else bad,
            Part.SCHEMA: good if schema_is_known and not wrong_schema else bad,
        }

    async def purge(self) -> PurgeStep:
        """Carry the bytes of erased rows off the disk."""
        from memory_service.storage.purge import purge_local

        return await purge_local(self)

    async def rebuild_index(self) -> None:
        """Make the vector index anew from the rows."""
        from memory_service.storage.purge import rebuild_local_index

        await rebuild_local_index(self)

    async def reconcile_index(self) -> int:
        """Bring the vector index up to the rows; return how many rows it moved."""
        from memory_service.storage.purge import reconcile_local_index

        return await reconcile_local_index(self)

    async def diagnostics(self) -> Diagnostics:
        """Count everything."""
        size = await asyncio.to_thread(
            lambda: sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
        )
        return await self.read(
            lambda tx: counting.diagnostics(tx, backend="local", meta=self._meta, bytes_on_disk=size)
        )

    async def schemas_left_behind(self) -> Sequence[str]:
        """A folder holds one store."""
        return ()

    async def close(self) -> None:
        """Finish what is queued, close connections and give the folder's lock back."""
        async with self._opening:
            self._is_closed = True
            writer, self._writer = self._writer, None
            readers, self._readers = self._readers, None
            if writer is not None:
                self._queue.put(None)
                await asyncio.to_thread(writer.join)
            if readers is not None:
                await asyncio.to_thread(readers.shutdown)
                await asyncio.to_thread(self.searches.close)
            while not self._idle.empty():
                self._idle.get().close()
            self._lock.give_back()
            self._move_to(Reason.STARTING)

    def link(self, connection: sqlite3.Connection) -> SqliteLink:
        """Return a Link over a connection of this store."""
        return SqliteLink(
            connection,
            self._statements,
            self._clock,
            dimension=self._identity.dimension,
            embedding_model=self._identity.embedding_model,
            hmac_key=bytes.fromhex(self._meta["hmac_key"]),
        )

    def _open(self) -> None:
        try:
            connection = connect(self.path)
            tables = SqliteTables(connection)
            steps = migration.migrations("sqlite")
            try:
                self._meta = tables.in_one_transaction(
                    lambda: migration.bring_up_to_date(tables, steps, self._identity)
                )
                for _ in range(_READERS):
                    self._idle.put(connect(self.path, read_only=True))
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            raise sqlite_errors.from_sqlite(error, str(self.folder)) from error
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="memplane-read")
        self._writer = threading.Thread(target=self._write_all, args=(connection,), name="memplane-write", daemon=True)
        self._writer.start()

    def _move_to(self, state: Reason) -> None:
        if state is not self._state:
            self._state = state
            self._since = self._clock.now()

    def _require_open(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        if self._writer is None:
            raise self._not_open()

    def _not_open(self) -> StorageUnavailable:
        return errors.unavailable(f"the data folder {str(self.folder)!r} is not open", reason=self._state)

    def _read(self, work: Callable[[Transaction], T]) -> T:
        # Python runs one thread at a time and changes it at each call of numpy or SQLite: reads that go on at once
        # take longer, all of them, than one after another. A long one is not waited for.
        has_turn = self._read_turn.acquire(timeout=_READ_TURN_SECONDS)
        try:
            return self._read_snapshot(work)
        finally:
            if has_turn:
                self._read_turn.release()

    def _read_snapshot(self, work: Callable[[Transaction], T]) -> T:
        connection = self._idle.get()
        try:
            connection.execute("BEGIN")
            return work(RowTransaction(self.link(connection), self.searches, writes=False))
        except sqlite3.Error as error:
            raise sqlite_errors.from_sqlite(error, str(self.folder)) from error
        finally:
            try:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            finally:
                self._idle.put(connection)

    def _write_all(self, connection: sqlite3.Connection) -> None:
        """The writer thread: groups of writes until it is told to end."""
        try:
            while (first := self._queue.get()) is not None:
                waiting: _Write | _Outside | None = first
                while waiting is not None:
                    if isinstance(waiting, _Outside):
                        self._run_outside(connection, waiting)
                        break
                    waiting, ends = self._write_group(connection, waiting)
                    if ends:
                        return
        finally:
            connection.close()

    def _write_group(self, connection: sqlite3.Connection, first: _Write) -> tuple[_Write | _Outside | None, bool]:
        """Run writes that wait in one transaction; return what was taken from the queue and is not part of it."""
        group: list[tuple[_Write, Any, BaseException | None]] = []
        following: _Write | _Outside | None = first
        ends = False
        started = time.monotonic()
        try:
            connection.execute("BEGIN IMMEDIATE")
            while isinstance(following, _Write):
                if following.future.set_running_or_notify_cancel():
                    group.append((following, None, None))
                    group[-1] = (following, *self._run_write(connection, following.work))
                following = None
                if time.monotonic() - started > _GROUP_SECONDS:
                    break
                try:
                    following = self._queue.get_nowait()
                except queue.Empty:
                    break
                ends = following is None
            connection.execute("COMMIT")
            if self._erases:
                self._erases = False
                self.searches.clear()
        except BaseException as error:  # noqa: BLE001 - told to everybody in the group; the thread goes on
            self._fail_group(connection, group, following, error)
            return (None if isinstance(following, _Write) else following), ends
        for write, result, failure in group:
            if failure is None:
                write.future.set_result(result)
            else:
                write.future.set_exception(failure)
        return following, ends

    def _run_write(self, connection: sqlite3.Connection, work: Callable[[Transaction], Any]) -> tuple[Any, Any]:
        """Run one write in its savepoint; what it raises is its own, unless the database itself is in trouble."""
        connection.execute("SAVEPOINT one_write")
        try:
            tx = RowTransaction(self.link(connection), self.searches, writes=True)
            result = work(tx)
            self._erases |= tx.has_erased
        except BaseException as error:
            if not connection.in_transaction or (
                isinstance(error, sqlite3.Error) and sqlite_errors.aborts_group(error)
            ):
                raise
            connection.execute("ROLLBACK TO one_write")
            connection.execute("RELEASE one_write")
            own = sqlite_errors.from_sqlite(error, str(self.folder)) if isinstance(error, sqlite3.Error) else error
            if own is not error:
                own.__cause__ = error
            return None, own
        connection.execute("RELEASE one_write")
        return result, None

    def _fail_group(
        self,
        connection: sqlite3.Connection,
        group: Sequence[tuple[_Write, Any, BaseException | None]],
        following: _Write | _Outside | None,
        error: BaseException,
    ) -> None:
        """Undo everything and tell everybody: nothing of the group was stored."""
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        told: BaseException = error
        if isinstance(error, sqlite3.Error):
            told = sqlite_errors.from_sqlite(error, str(self.folder))
            told.__cause__ = error
            logger.warning(
                "a group of writes was rolled back", extra={"writes": len(group), "error": type(told).__name__}
            )
        futures = [write.future for write, _, _ in group]
        if isinstance(following, _Write) and following.future not in futures:
            following.future.set_running_or_notify_cancel()
            futures.append(following.future)
        for future in futures:
            if not future.done():
                future.set_exception(told)

    def _run_outside(self, connection: sqlite3.Connection, outside: _Outside) -> None:
        if not outside.future.set_running_or_notify_cancel():
            return
        try:
            result = outside.work(connection)
        except sqlite3.Error as error:
            told = sqlite_errors.from_sqlite(error, str(self.folder))
            told.__cause__ = error
            outside.future.set_exception(told)
        except BaseException as error:  # noqa: BLE001 - told to whoever asked; the thread goes on
            outside.future.set_exception(error)
        else:
            outside.future.set_result(result)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
