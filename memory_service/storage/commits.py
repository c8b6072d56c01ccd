"""One run of a write on Postgres, and how a COMMIT is settled whose answer never came.

A transaction that writes leaves a row with a random token, in the round trip that commits it. The token decides: it is
there, or nothing is. Which of the server's processes ran the transaction, and since when, only tells whether it is
still at it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Generic, TypeVar

import psycopg

from memory_service.errors import MemoryServiceError
from memory_service.storage.connections import Connections
from memory_service.storage.errors import unavailable
from memory_service.storage.postgres_link import PostgresLink
from memory_service.storage.threads import Writing

T = TypeVar("T")

LIMITS = (
    "SET LOCAL statement_timeout = '60s'; SET LOCAL lock_timeout = '5s';"
    " SET LOCAL idle_in_transaction_session_timeout = '60s'; SET LOCAL plan_cache_mode = force_custom_plan"
)
"""Bounds of every transaction. A row that somebody holds for 5 s is somebody stuck, or a request that is repeated."""

_BEGIN = f"BEGIN ISOLATION LEVEL READ COMMITTED; {LIMITS}"
_SETTLE_SECONDS = 10.0
"""How long an unknown COMMIT is asked about before its caller is told that nothing is known."""
_LOOK_AGAIN_SECONDS = 0.1


class Attempt(Generic[T]):
    """One run of a write. After an error, `is_unknown` says that COMMIT was sent and not answered."""

    def __init__(self, link: PostgresLink, writing: Writing) -> None:
        self._link = link
        self._writing = writing
        self._token = str(uuid.uuid4())
        self._was_sent = False
        self._result: list[T] = []

    @property
    def is_unknown(self) -> bool:
        """Whether COMMIT was sent and no answer came."""
        return self._was_sent

    @property
    def result(self) -> T:
        """What the work returned."""
        return self._result[0]

    def run(self, work: Callable[[], T]) -> T:
        """Run the work and commit it."""
        self._link.begin(_BEGIN)
        self._result = [work()]
        self._was_sent = True
        self._writing.commit_sent = time.monotonic()
        try:
            self._link.commit(self._token)
        finally:
            self._writing.commit_sent = None  # one that is lost is settled, which takes its own time
        self._was_sent = False
        return self.result

    def was_stored(self, connections: Connections, commits_table: str, stopping: threading.Event) -> bool:
        """Ask the database, until it answers or for 10 s.

        Raises:
            StorageUnavailable: it does not answer; the write may be stored or not.
        """
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            try:
                known = self._ask(connections, commits_table)
            except (psycopg.Error, MemoryServiceError):
                known = None
            if known is not None:
                return known
            if time.monotonic() > deadline or stopping.wait(_LOOK_AGAIN_SECONDS):
                raise unavailable(
                    "the database was lost while it stored this write, which may be stored or not;"
                    " repeat it with the same Idempotency-Key or turn ids"
                )

    def _ask(self, connections: Connections, commits_table: str) -> bool | None:
        with connections.connect() as connection:
            # Asked first: what has ended by then is visible to the next statement. Where the server hides since when a
            # process is at its transaction, as from another role, it may be this one.
            active = connection.execute(
                "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
                " AND (CAST(EXTRACT(EPOCH FROM xact_start) * 1000000 AS BIGINT) = %s"
                " OR (xact_start IS NULL AND (query = '<insufficient privilege>' OR state = 'disabled')))",
                self._link.server_process,
            ).fetchone()
            token = connection.execute(f"SELECT 1 FROM {commits_table} WHERE token = %s", (self._token,)).fetchone()
            may_follow = connection.execute("SELECT pg_is_in_recovery()").fetchone() != (False,)
        if token is not None:
            return True
        # A standby may not have heard of the COMMIT yet, and be promoted with it.
        return False if active is None and not may_follow else None
