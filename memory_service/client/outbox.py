"""The outbox: turns and facts that wait on this machine until the service takes them.

It is one SQLite file in a folder: an entry is on the disk before `put` returns, and a crash at any step leaves all of
an entry or nothing. Fsynced files would give the same durability, but counting, bounding and moving entries aside would
each be a protocol of its own. Empty databases beside it are the locks that let one process at a time deliver a lane;
the system releases them when their holder dies.

Several agents may share a folder: every entry says whose it is. Every call opens the file for itself, so that processes
may fork. Calls block; run them off an event loop.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Self

from memory_service.client.entries import COLUMNS, NOBODY, UNREADABLE, Entry, entry_of, lane_of, remains_of
from memory_service.client.errors import OutboxFull, reused_key
from memory_service.client.outbox_file import is_there, locked, opened, shrink, transaction, translated
from memory_service.client.subjects import subject_of
from memory_service.contract.problems import Problem

MAX_ENTRIES = 10_000
MAX_BYTES = 64 * 1024 * 1024
"""Bytes of all entries' bodies together, those set aside included. A day of one busy agent's turns, by judgement."""
MAX_DAYS_SET_ASIDE = 30.0
"""Days that a refused entry waits for a person. Nobody can tell whether what it says was erased meanwhile."""
BUSY_SECONDS = 2.0
"""How long a call waits for other processes that hold the file."""

CountName = Literal["queued", "delivered", "refused", "erased", "discarded", "overflowed", "expired"]


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
        with suppress(OSError):  # a working directory that is gone
            self.folder = self.folder.absolute()
        self._file = self.folder / "outbox.sqlite3"
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._wall = wall
        self._busy_seconds = BUSY_SECONDS
        self._shared = threading.local()

    def within(self, busy_seconds: float) -> Self:
        """Return the same outbox for a caller who has less time for other processes that hold it."""
        hasty = copy.copy(self)
        hasty._busy_seconds = min(busy_seconds, self._busy_seconds)
        return hasty

    @contextmanager
    def together(self, busy_seconds: float) -> Iterator[None]:
        """Make the calls inside, of this thread, one transaction: all that they change is on the disk at its end.

        A call that fails changes nothing, and the others go on.

        Raises:
            OutboxUnusable: nothing of it was kept.
        """
        if not self.exists:
            yield
            return
        with opened(self._file, busy_seconds=busy_seconds) as db:
            with transaction(db):
                self._shared.db = db
                try:
                    yield
                finally:
                    del self._shared.db
            shrink(db)

    @property
    def exists(self) -> bool:
        """Whether anything was ever put here; costs one look at the folder.

        Raises:
            OutboxUnusable: this user may not look.
        """
        return is_there(self._file)

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
        agent: str = NOBODY,
    ) -> int:
        """Keep a request and return its entry's id; it is on the disk when this returns. Safe to repeat.

        A key is unique for its agent, user and verb, as it is in the service. A repeat of what was set aside waits
        again.

        Raises:
            InvalidRequest: the key is that of another request, which is still here; nothing was added.
            OutboxFull: nothing was added.
            OutboxUnusable: nothing was added.
        """
        with translated(self.folder):
            text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
            size = len(text.encode())
        subject = subject_of(user)
        with self._open(create=True) as db, transaction(db):
            known = db.execute(
                "SELECT id, body FROM entries WHERE agent = ? AND subject = ? AND verb = ? AND idempotency_key = ?",
                (agent, subject, verb, idempotency_key),
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
                    " has_own_key, queued_at, size, subject, agent) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        lane_of(user, session_id, agent),
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
                        agent,
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
        """Return the first waiting entry past the id `after`, of one lane or of any; what is damaged is set aside."""
        while self.exists:
            with self._open() as db:
                row = db.execute(
                    f"SELECT {COLUMNS} FROM entries WHERE state = 'waiting' AND id > ? AND (? IS NULL OR lane = ?)"
                    " ORDER BY id LIMIT 1",
                    (after, lane, lane),
                ).fetchone()
            if row is None:
                break
            try:
                return entry_of(row)
            except ValueError:
                self.set_aside(row[0], UNREADABLE)
        return None

    def lanes(self, agent: str) -> tuple[str, ...]:
        """Return the lanes in which an agent's entries wait, the longest waiting first."""
        if not self.exists:
            return ()
        with self._open() as db:
            rows = db.execute(
                "SELECT lane FROM entries WHERE agent = ? AND state = 'waiting' GROUP BY lane ORDER BY min(id)",
                (agent,),
            ).fetchall()
        return tuple(row[0] for row in rows)

    def waiting(self, lane: str | None = None, agent: str | None = None) -> int:
        """Return how many entries wait, in one lane or of one agent or in all."""
        if not self.exists:
            return 0
        with self._open() as db:
            row = db.execute(
                "SELECT count(*) FROM entries WHERE state = 'waiting' AND (? IS NULL OR lane = ?)"
                " AND (? IS NULL OR agent = ?)",
                (lane, lane, agent, agent),
            ).fetchone()
        return int(row[0])

    def is_waiting(self, entry_id: int) -> bool:
        """Whether an entry still waits."""
        if not self.exists:
            return False
        with self._open() as db:
            query = "SELECT 1 FROM entries WHERE id = ? AND state = 'waiting'"
            return db.execute(query, (entry_id,)).fetchone() is not None

    def newest_user(self, subject: str, agent: str) -> str | None:
        """Return the token or name that a subject's last entry of an agent came with."""
        with self._open() as db:
            row = db.execute(
                "SELECT user FROM entries WHERE subject = ? AND agent = ? ORDER BY id DESC LIMIT 1", (subject, agent)
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
                f"SELECT {COLUMNS} FROM entries WHERE state = 'refused' ORDER BY id LIMIT ?", (limit,)
            ).fetchall()
        return tuple(remains_of(row) for row in rows)

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
        with self._open() as db, transaction(db):
            db.execute("UPDATE entries SET attempts = attempts + 1 WHERE id = ?", (entry_id,))

    def set_aside(self, entry_id: int, problem: Problem) -> None:
        """Keep an entry that the service refused, out of the way of those behind it, for a month."""
        with self._open() as db, transaction(db):
            moved = db.execute(
                "UPDATE entries SET state = 'refused', problem = ?, set_aside_at = ?"
                " WHERE id = ? AND state = 'waiting'",
                (problem.model_dump_json(), self._wall(), entry_id),
            )
            if moved.rowcount:
                _count(db, "refused")

    def retry_refused(self) -> int:
        """Let everything that was set aside wait again, after its cause was mended; return how many entries."""
        if not self.exists:
            return 0
        with self._open() as db, transaction(db):
            return db.execute(_WAIT_AGAIN).rowcount

    def drop_expired(self) -> int:
        """Delete what was set aside more than `MAX_DAYS_SET_ASIDE` ago; return how many entries."""
        return self._delete("state = 'refused' AND set_aside_at < ?", (self._wall() - MAX_DAYS_SET_ASIDE * 86_400,))

    def adopt(self, agent: str, *, of: str | None = None) -> int:
        """Give an agent what waits or was set aside for others or for nobody, or for one; return how many entries.

        An entry whose key the agent has used itself is left where it is.
        """
        if not self.exists:
            return 0
        where, values = ("agent != ?", (agent,)) if of is None else ("agent = ?", (of,))
        with self._open() as db:
            if db.execute(f"SELECT 1 FROM entries WHERE {where} LIMIT 1", values).fetchone() is None:
                return 0
            with transaction(db):
                return db.execute(
                    f"UPDATE OR IGNORE entries SET agent = ?, lane = lane_of(user, session_id, ?) WHERE {where}",
                    (agent, agent, *values),
                ).rowcount

    def discard(
        self,
        *,
        entry_id: int | None = None,
        user: str | None = None,
        session_id: str | None = None,
        every_session: bool = False,
        up_to: int = 2**62,
        agent: str | None = None,
    ) -> int:
        """Delete entries unsent: one, a session's, or with `every_session` all of a user's; return how many.

        `up_to` spares what was put after the entry with that id, `agent` what other agents put.
        """
        mine = "subject = ? AND id <= ? AND (? IS NULL OR agent = ?)"
        whose = (subject_of(user), up_to, agent, agent)
        if entry_id is not None:
            return self._delete("id = ?", (entry_id,), "discarded")
        if session_id is not None:
            return self._delete(f"{mine} AND session_id = ?", (*whose, session_id), "discarded")
        if every_session:
            return self._delete(mine, whose, "discarded")
        raise ValueError("name an entry or a session, or say every_session=True")

    def try_lock(self, lane: str) -> sqlite3.Connection | None:
        """Take the right to deliver a lane: close what is returned to give it back. None when somebody else has it.

        A lane shares its lock with one in 256 others, so that a folder has no more files than that.
        """
        return locked(self.folder / f"delivering-{hashlib.sha256(lane.encode()).hexdigest()[:2]}.lock")

    def _settle(self, entry_id: int, name: CountName) -> None:
        self._delete("id = ?", (entry_id,), name)

    def _delete(self, where: str, values: tuple[Any, ...], name: CountName = "expired") -> int:
        if not self.exists:
            return 0
        with self._open() as db:
            if db.execute(f"SELECT 1 FROM entries WHERE {where} LIMIT 1", values).fetchone() is None:
                return 0
            with transaction(db):
                gone = db.execute(f"DELETE FROM entries WHERE {where}", values).rowcount
                if gone:
                    _count(db, name, gone)
            shrink(db)
        return gone

    @contextmanager
    def _open(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        db = getattr(self._shared, "db", None)
        if db is not None:
            with translated(self.folder):
                yield db
            return
        with opened(self._file, busy_seconds=self._busy_seconds, create=create) as db:
            yield db


_WAIT_AGAIN = (
    "UPDATE entries SET state = 'waiting', problem = NULL, attempts = 0, set_aside_at = NULL WHERE state = 'refused'"
)


def _count(db: sqlite3.Connection, name: CountName, by: int = 1) -> None:
    db.execute(
        "INSERT INTO counts (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + ?",
        (name, by, by),
    )
