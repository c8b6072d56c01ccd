"""The outbox: turns and facts that wait on this machine until the service takes them.

It is one SQLite file in a folder, with `synchronous=FULL` and a rollback journal: an entry is on the disk before
`put` returns, a crash at any step leaves all of an entry or nothing, and deleted entries leave no bytes behind
(`secure_delete`, and a vacuum when the last one goes). Fsynced files would give the same durability, but counting,
bounding and moving entries aside would each be a protocol of its own. A second, empty database serves as the lock
that lets one process at a time deliver; the system releases it when its holder dies.

Every call opens the file for itself, so that processes may fork. Calls block; run them off an event loop.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from memory_service.client.errors import OutboxFull, OutboxUnusable, reused_key
from memory_service.client.subjects import subject_of
from memory_service.contract.problems import Problem

MAX_ENTRIES = 10_000
MAX_BYTES = 64 * 1024 * 1024
"""Bytes of all entries' bodies together, those set aside included. A day of one busy agent's turns, by judgement."""
_BUSY_SECONDS = 10.0
_SCHEMA_VERSION = 2
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
        UNIQUE (subject, verb, idempotency_key)
    )""",
    "CREATE INDEX IF NOT EXISTS entries_by_state ON entries (state, lane, id)",
    "CREATE TABLE IF NOT EXISTS counts (name TEXT PRIMARY KEY, value INTEGER NOT NULL)",
)

_CARRY_OVER = (
    "DROP INDEX IF EXISTS entries_by_state",
    "ALTER TABLE entries RENAME TO entries_of_1",
    *_TABLES,
    "INSERT INTO entries SELECT id, lane_of(user, session_id), session_id, user, verb, body, generation,"
    " idempotency_key, has_own_key, queued_at, size, attempts, state, problem, subject_of(user) FROM entries_of_1",
    "DROP TABLE entries_of_1",
)
"""From version 1, whose keys were unique over all users and verbs."""

CountName = Literal["queued", "delivered", "refused", "erased", "discarded", "overflowed"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One request that waits, or that was set aside with the Problem that refused it.

    Entries of one lane are delivered in order. `user` is the token or name that it came with, `subject` whose that is.
    `has_own_key` says that the client made the idempotency key, so that nobody else can have used it.
    """

    id: int
    lane: str
    session_id: str | None
    user: str | None
    verb: Literal["write", "remember"]
    body: Mapping[str, Any]
    generation: str | None
    idempotency_key: str
    has_own_key: bool
    queued_at: float
    attempts: int
    problem: Problem | None
    subject: str


def lane_of(user: str | None, session_id: str | None) -> str:
    """Return the order that an entry belongs to: one per user and session, whatever token the user has now."""
    return json.dumps([subject_of(user), session_id])


class Outbox:
    """A durable, bounded queue in `folder`, shared by all processes that name the same folder.

    Args:
        folder: made with mode 0700 when the first entry is put; its files have mode 0600.
        max_entries: entries kept, those set aside included.
        max_bytes: bytes of their bodies.
        wall: the time of day in seconds; entries outlive the process, so a monotonic clock would not do.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.folder = Path(folder)
        self._file = self.folder / "outbox.sqlite3"
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._wall = wall

    @property
    def exists(self) -> bool:
        """Whether anything was ever put here; costs one look at the folder."""
        return self._file.exists()

    def put(
        self,
        *,
        verb: Literal["write", "remember"],
        body: Mapping[str, Any],
        idempotency_key: str,
        has_own_key: bool = True,
        user: str | None = None,
        session_id: str | None = None,
        generation: str | None = None,
    ) -> int:
        """Keep a request and return its entry's id; it is on the disk when this returns. Safe to repeat.

        A key is unique for its user and verb, as it is in the service. A repeat of what was set aside waits again.

        Raises:
            InvalidRequest: the key is that of another request, which is still here; nothing was added.
            OutboxFull: nothing was added.
            OutboxUnusable: nothing was added.
        """
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        size = len(text.encode())
        subject = subject_of(user)
        with self._open(create=True) as db, _transaction(db):
            known = db.execute(
                "SELECT id, body FROM entries WHERE subject = ? AND verb = ? AND idempotency_key = ?",
                (subject, verb, idempotency_key),
            ).fetchone()
            if known is not None:
                if json.loads(known[1]) != json.loads(text):
                    raise reused_key()
                db.execute(f"{_WAIT_AGAIN} AND id = ?", (known[0],))
                return int(known[0])
            count, total = db.execute("SELECT count(*), coalesce(sum(size), 0) FROM entries").fetchone()
            is_full = count + 1 > self._max_entries or total + size > self._max_bytes
            if not is_full:
                cursor = db.execute(
                    "INSERT INTO entries (lane, session_id, user, verb, body, generation, idempotency_key,"
                    " has_own_key, queued_at, size, subject) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        lane_of(user, session_id),
                        session_id,
                        user,
                        verb,
                        text,
                        generation,
                        idempotency_key,
                        int(has_own_key),
                        self._wall(),
                        size,
                        subject,
                    ),
                )
                _count(db, "queued")
                assert cursor.lastrowid is not None
                return cursor.lastrowid
            _count(db, "overflowed")
        raise OutboxFull(
            f"the outbox {str(self.folder)!r} holds {count} entries and {total} bytes; it may hold "
            f"{self._max_entries} and {self._max_bytes}. Bring the service back, or look at what was refused and "
            "discard it"
        )

    def next_waiting(self, after: int = 0, lane: str | None = None) -> Entry | None:
        """Return the first waiting entry past the id `after`, of one lane or of any."""
        if not self.exists:
            return None
        with self._open() as db:
            row = db.execute(
                f"SELECT {_COLUMNS} FROM entries WHERE state = 'waiting' AND id > ? AND (? IS NULL OR lane = ?)"
                " ORDER BY id LIMIT 1",
                (after, lane, lane),
            ).fetchone()
        return None if row is None else _entry(row)

    def waiting(self, lane: str | None = None) -> int:
        """Return how many entries wait, in one lane or in all."""
        if not self.exists:
            return 0
        with self._open() as db:
            row = db.execute(
                "SELECT count(*) FROM entries WHERE state = 'waiting' AND (? IS NULL OR lane = ?)", (lane, lane)
            ).fetchone()
        return int(row[0])

    def newest_user(self, subject: str) -> str | None:
        """Return the token or name that a subject's last entry came with."""
        with self._open() as db:
            row = db.execute(
                "SELECT user FROM entries WHERE subject = ? ORDER BY id DESC LIMIT 1", (subject,)
            ).fetchone()
        return None if row is None else row[0]

    def last_id(self) -> int:
        """Return the highest id that an entry has now, 0 for none."""
        if not self.exists:
            return 0
        with self._open() as db:
            return int(db.execute("SELECT coalesce(max(id), 0) FROM entries").fetchone()[0])

    def refused(self, limit: int = 100) -> tuple[Entry, ...]:
        """Return the entries that were set aside, oldest first."""
        if not self.exists:
            return ()
        with self._open() as db:
            rows = db.execute(
                f"SELECT {_COLUMNS} FROM entries WHERE state = 'refused' ORDER BY id LIMIT ?", (limit,)
            ).fetchall()
        return tuple(_entry(row) for row in rows)

    def counts(self) -> dict[str, int]:
        """Return what happened here since the folder was made, by all processes."""
        if not self.exists:
            return {}
        with self._open() as db:
            return {str(name): int(value) for name, value in db.execute("SELECT name, value FROM counts")}

    def delivered(self, entry_id: int) -> None:
        """Delete an entry that the service has stored."""
        self._settle(entry_id, "delivered")

    def drop_erased(self, entry_id: int) -> None:
        """Delete an entry whose session or owner was erased after it was queued."""
        self._settle(entry_id, "erased")

    def attempted(self, entry_id: int) -> None:
        """Count an attempt that the service itself failed."""
        with self._open() as db, _transaction(db):
            db.execute("UPDATE entries SET attempts = attempts + 1 WHERE id = ?", (entry_id,))

    def set_aside(self, entry_id: int, problem: Problem) -> None:
        """Keep an entry that the service refused, out of the way of those behind it."""
        with self._open() as db, _transaction(db):
            moved = db.execute(
                "UPDATE entries SET state = 'refused', problem = ? WHERE id = ? AND state = 'waiting'",
                (problem.model_dump_json(), entry_id),
            )
            if moved.rowcount:
                _count(db, "refused")

    def retry_refused(self) -> int:
        """Let everything that was set aside wait again, after its cause was mended; return how many entries."""
        if not self.exists:
            return 0
        with self._open() as db, _transaction(db):
            return db.execute(_WAIT_AGAIN).rowcount

    def discard(
        self,
        *,
        entry_id: int | None = None,
        user: str | None = None,
        session_id: str | None = None,
        every_session: bool = False,
        up_to: int = 2**62,
    ) -> int:
        """Delete entries unsent: one, a session's, or with `every_session` all of a user's; return how many.

        `up_to` spares what was put after the entry with that id.
        """
        if not self.exists:
            return 0
        where: str
        values: tuple[str | int | None, ...]
        if entry_id is not None:
            where, values = "id = ?", (entry_id,)
        elif session_id is not None:
            where, values = "subject = ? AND session_id = ? AND id <= ?", (subject_of(user), session_id, up_to)
        elif every_session:
            where, values = "subject = ? AND id <= ?", (subject_of(user), up_to)
        else:
            raise ValueError("name an entry or a session, or say every_session=True")
        with self._open() as db:
            with _transaction(db):
                gone = db.execute(f"DELETE FROM entries WHERE {where}", values).rowcount
                if gone:
                    _count(db, "discarded", gone)
            _shrink(db)
        return gone

    @contextmanager
    def delivering(self) -> Iterator[bool]:
        """Hold the right to deliver; yields False when another process, or another thread, holds it."""
        lock = self.try_lock()
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.close()

    def try_lock(self) -> sqlite3.Connection | None:
        """Take the right to deliver: close what is returned to give it back. None when somebody else has it."""
        with _translated(self.folder):
            self._make_folder()
            path = self.folder / "delivering.lock"
            _make_private(path)
            lock = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
            try:
                lock.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError as error:
                lock.close()
                if _is_busy(error):
                    return None
                raise
            return lock

    def _settle(self, entry_id: int, name: CountName) -> None:
        with self._open() as db:
            with _transaction(db):
                if db.execute("DELETE FROM entries WHERE id = ?", (entry_id,)).rowcount:
                    _count(db, name)
            _shrink(db)

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextmanager
    def _open(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        with _translated(self.folder):
            if create and not self.exists:
                self._make_folder()
                _make_private(self._file)
            _require_own(self._file)
            uri = f"{self._file.absolute().as_uri()}?mode=rw"
            with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)) as db:
                for pragma in ("journal_mode=DELETE", "synchronous=FULL", "secure_delete=ON"):
                    db.execute(f"PRAGMA {pragma}")
                if db.execute("PRAGMA user_version").fetchone()[0] != _SCHEMA_VERSION:
                    _make_tables(db, self._file)
                yield db


_COLUMNS = (
    "id, lane, session_id, user, verb, body, generation, idempotency_key, has_own_key, queued_at, attempts, problem,"
    " subject"
)
_WAIT_AGAIN = "UPDATE entries SET state = 'waiting', problem = NULL, attempts = 0 WHERE state = 'refused'"


def _entry(row: tuple[Any, ...]) -> Entry:
    return Entry(
        id=row[0],
        lane=row[1],
        session_id=row[2],
        user=row[3],
        verb=row[4],
        body=json.loads(row[5]),
        generation=row[6],
        idempotency_key=row[7],
        has_own_key=bool(row[8]),
        queued_at=row[9],
        attempts=row[10],
        problem=None if row[11] is None else Problem.model_validate_json(row[11]),
        subject=row[12],
    )


def _make_tables(db: sqlite3.Connection, path: Path) -> None:
    with _transaction(db):
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > _SCHEMA_VERSION:
            raise OutboxUnusable(
                f"the outbox {str(path)!r} was made by a newer version; use that one, or name another folder"
            )
        db.create_function("subject_of", 1, subject_of, deterministic=True)
        db.create_function("lane_of", 2, lane_of, deterministic=True)
        for statement in _CARRY_OVER if version == 1 else _TABLES:
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")


def _make_private(path: Path) -> None:
    """Make an empty file that only its owner can read; SQLite gives its journal the same mode."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0), 0o600))


def _require_own(path: Path) -> None:
    """Refuse a file that another user has put there, as can be done in a temporary folder: it could be read by them."""
    if hasattr(os, "geteuid") and path.lstat().st_uid != os.geteuid():
        raise PermissionError(f"{path.name} belongs to another user")


def _count(db: sqlite3.Connection, name: CountName, by: int = 1) -> None:
    db.execute(
        "INSERT INTO counts (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + ?",
        (name, by, by),
    )


def _shrink(db: sqlite3.Connection) -> None:
    """Give back the file's free pages once nothing is left, so that nothing sent can be read from the disk."""
    if db.execute("SELECT 1 FROM entries LIMIT 1").fetchone() is None:
        try:
            db.execute("VACUUM")
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


@contextmanager
def _translated(folder: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise OutboxUnusable(
            f"the outbox {str(folder)!r} cannot be used: {error}. Give it a folder that this user can write, "
            "for example by MEMPLANE_OUTBOX_DIR"
        ) from error
