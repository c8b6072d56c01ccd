"""The file of an outbox: a SQLite database that its owner alone can read, opened anew for every call.

`synchronous=FULL` and a rollback journal put an entry on the disk before its transaction ends, and `secure_delete`,
with a vacuum when the last entry goes, leaves no bytes of what was deleted.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from memory_service.client.entries import NOBODY, lane_of
from memory_service.client.errors import OutboxUnusable
from memory_service.client.subjects import subject_of

_SCHEMA_VERSION = 3
_TABLES = (
    """CREATE TABLE IF NOT EXISTS entries (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        lane TEXT NOT NULL,
        session_id TEXT,
        user TEXT,
        verb TEXT NOT NULL,
        body TEXT NOT NULL,
        generation TEXT,
        idempotency_key TEXT NOT NULL,
        has_own_key INTEGER NOT NULL,
        queued_at REAL NOT NULL,
        size INTEGER NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0,
        state TEXT NOT NULL DEFAULT 'waiting',
        problem TEXT,
        subject TEXT NOT NULL,
        agent TEXT NOT NULL,
        set_aside_at REAL,
        UNIQUE (agent, subject, verb, idempotency_key)
    )""",
    "CREATE INDEX IF NOT EXISTS entries_by_state ON entries (state, lane, id)",
    "CREATE INDEX IF NOT EXISTS entries_by_agent ON entries (agent, state)",
    "CREATE TABLE IF NOT EXISTS counts (name TEXT PRIMARY KEY, value INTEGER NOT NULL)",
)
_CARRY_OVER = (
    "DROP INDEX IF EXISTS entries_by_state",
    "ALTER TABLE entries RENAME TO older_entries",
    *_TABLES,
    "INSERT INTO entries SELECT id, lane_of(user, session_id), session_id, user, verb, body, generation,"
    " idempotency_key, has_own_key, queued_at, size, attempts, state, problem, subject_of(user), nobody(),"
    " CASE state WHEN 'refused' THEN queued_at END FROM older_entries",
    "DROP TABLE older_entries",
)
"""From versions 1 and 2, which did not say whose an entry is; the keys of 1 were unique over all users and verbs."""


@contextmanager
def opened(path: Path, *, busy_seconds: float, create: bool = False) -> Iterator[sqlite3.Connection]:
    """Open the file; with `create` it is made, and its folder with it. Waits `busy_seconds` for other processes.

    Raises:
        OutboxUnusable: it cannot be used.
    """
    with translated(path.parent):
        if create and not is_there(path):
            make_private(path)
        _require_own(path)
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=busy_seconds, isolation_level=None)) as db:
            for pragma in ("journal_mode=DELETE", "synchronous=FULL", "secure_delete=ON"):
                db.execute(f"PRAGMA {pragma}")
            if db.execute("PRAGMA user_version").fetchone()[0] != _SCHEMA_VERSION:
                _make_tables(db, path)
            db.create_function("lane_of", 3, lane_of, deterministic=True)
            yield db


def is_there(path: Path) -> bool:
    """Whether there is such a file.

    Raises:
        OutboxUnusable: this user may not look.
    """
    with translated(path.parent):
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


def locked(path: Path) -> sqlite3.Connection | None:
    """Take a lock that the system gives back when its holder dies: close what is returned. None when it is held.

    Raises:
        OutboxUnusable: the file cannot be used.
    """
    with translated(path.parent):
        make_private(path)
        lock = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            lock.close()
            if _is_busy(error):
                return None
            raise
        return lock


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end, or roll back on an error; inside of another one, a part of it."""
    is_part = db.in_transaction
    db.execute("SAVEPOINT part" if is_part else "BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK TO part" if is_part else "ROLLBACK")
        if is_part:
            db.execute("RELEASE part")
        raise
    db.execute("RELEASE part" if is_part else "COMMIT")


def shrink(db: sqlite3.Connection) -> None:
    """Give back the file's free pages once nothing is left, so that nothing sent can be read from the disk.

    Inside of a transaction that is left to its end.
    """
    if not db.in_transaction and db.execute("SELECT 1 FROM entries LIMIT 1").fetchone() is None:
        try:
            db.execute("VACUUM")
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise


def make_private(path: Path) -> None:
    """Make an empty file that only its owner can read, if none is there; SQLite gives its journal the same mode.

    One that is there is not opened: to close it would give back the locks that this process has on it.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if path.is_symlink():
            raise


@contextmanager
def translated(folder: Path) -> Iterator[None]:
    """Turn what a disk, a database or damaged content raises into `OutboxUnusable`."""
    try:
        yield
    except (sqlite3.Error, OSError, ValueError) as error:
        raise OutboxUnusable(
            f"the outbox {str(folder)!r} cannot be used: {error}. Give it a folder that this user can write, "
            "for example by MEMPLANE_OUTBOX_DIR"
        ) from error


def _make_tables(db: sqlite3.Connection, path: Path) -> None:
    with transaction(db):
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > _SCHEMA_VERSION:
            raise OutboxUnusable(
                f"the outbox {str(path)!r} was made by a newer version; use that one, or name another folder"
            )
        db.create_function("subject_of", 1, subject_of, deterministic=True)
        db.create_function("lane_of", 2, lane_of, deterministic=True)
        db.create_function("nobody", 0, lambda: NOBODY, deterministic=True)
        is_older = 0 < version < _SCHEMA_VERSION
        for statement in _CARRY_OVER if is_older else _TABLES if version == 0 else ():
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")


def _require_own(path: Path) -> None:
    """Refuse a file that another user has put there, as can be done in a temporary folder: it could be read by them."""
    if hasattr(os, "geteuid") and path.lstat().st_uid != os.geteuid():
        raise PermissionError(f"{path.name} belongs to another user")


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
