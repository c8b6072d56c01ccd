"""The external backend's connections: kept while idle, made when needed, and an outage that is noticed once.

There are never more than threads that use them, so nothing waits for a connection, unless the server gives this store
fewer. While the database does not answer, one caller at a time tries to connect and the others are told at once: an
outage must not fill the threads.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from weakref import WeakSet

import psycopg

from memory_service.contract.config import StorageConfig
from memory_service.contract.health import Reason
from memory_service.errors import Misconfigured, StorageUnavailable
from memory_service.storage.errors import unavailable
from memory_service.storage.postgres_errors import from_connecting, from_postgres, has_no_connection_left
from memory_service.storage.statements import Row

Connection = psycopg.Connection[Row]

CONNECT_SECONDS = 3
_QUIET_SECONDS = 0.5
"""How long after a failed connect nobody tries again; recovery is noticed this much later at most."""
_GIVEN_BACK_SECONDS = 5.0
"""How long is waited for a connection of ours where the server has none left for this role."""
_LOOK_AGAIN_SECONDS = 0.2
_SILENCES = 3
"""How often in a row the server must leave a new connection unanswered before long work loses its own, too: one that
has too much to do lets somebody wait for longer than that now and then.
"""
_KEPT_SECONDS = 1_800
"""Age at which an idle connection is replaced, so that rotated passwords and moved servers are followed."""


def dsn(config: StorageConfig) -> str:
    """Return the DSN as it is now: its file may change at any time.

    Raises:
        Misconfigured: there is none yet.
    """
    if config.dsn_file is not None:
        try:
            text = Path(config.dsn_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise Misconfigured(
                f"the file {config.dsn_file!r} that holds the DSN cannot be read; mount the Secret that it comes from",
                reason=Reason.SECRET_MISSING,
            ) from error
        if text:
            return text
    elif config.dsn:
        return config.dsn
    raise Misconfigured(
        "external storage has no DSN; set storage.dsnFile, MEMPLANE_DSN_FILE or MEMPLANE_DSN",
        reason=Reason.SECRET_MISSING,
    )


class Connections:
    """Idle connections of one store."""

    def __init__(self, config: StorageConfig, prepare: Callable[[Connection], None]) -> None:
        self._config = config
        self._prepare = prepare
        self._lock = threading.Lock()
        self._was_given = threading.Condition(self._lock)
        self._idle: list[tuple[Connection, float]] = []
        self._used: dict[Connection, float] = {}
        """Those that somebody has, with when they were made."""
        self._made: WeakSet[Connection] = WeakSet()
        self._long: WeakSet[Connection] = WeakSet()
        """Those whose work begins at the start when it is cut short, and that nobody waits for."""
        self._silences = 0
        self._failed: tuple[float, str] | None = None
        """When the last connect failed, and why, until one succeeds."""
        self._trying = threading.Lock()
        self._closed = False

    def take(self) -> Connection:
        """Return an idle connection, or a new one.

        Raises:
            StorageUnavailable: the database does not answer.
            Misconfigured: there is no DSN, or it is not one.
        """
        began = time.monotonic()
        while True:
            connection = self._take_idle()
            if connection is not None:
                return connection
            try:
                return self._connect_unless_down()
            except _NoneLeft as error:
                with self._was_given:
                    if not self._idle:
                        self._was_given.wait(_LOOK_AGAIN_SECONDS)
                    has_some = bool(self._used or self._idle)
                # Without any of ours, others hold them all, or some of ours are just being made.
                if time.monotonic() - began > (_GIVEN_BACK_SECONDS if has_some else _QUIET_SECONDS):
                    raise unavailable(str(error), retry_after=2) from error

    def give(self, connection: Connection) -> None:
        """Keep a connection for the next caller, or close one that is not fit to be kept."""
        idle = not connection.closed and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        with self._was_given:
            born = self._used.pop(connection, time.monotonic())
            self._was_given.notify()
            if idle and not self._closed:
                self._idle.append((connection, born))
                return
        connection.close()

    def suspect(self) -> None:
        """Close every idle connection: one of them turned out to be lost, and its like may be too."""
        with self._lock:
            lost, self._idle = self._idle, []
        for connection, _ in lost:
            connection.close()

    def end_unless_answered(self) -> None:
        """Ask the server for one connection more; where it does not even answer that, end those in use: a server that
        is frozen keeps what waits for it until it is gone on with, and no limit of its own can end that.
        """
        try:
            self._connected().close()
        except (StorageUnavailable, Misconfigured) as error:
            if not isinstance(error.__cause__, psycopg.errors.ConnectionTimeout):
                self._silences = 0
                return  # it answers: that it lets nobody in says nothing of those that are in
            self._failed = time.monotonic(), error.detail
            self._silences += 1
            self.suspect()
            self.cut(spared=self._long if self._silences < _SILENCES else ())

    def cut(self, *, spared: Collection[Connection] = ()) -> None:
        """End all connections, those too that others wait on: they see that the server has gone."""
        with self._lock:
            made = [connection for connection in self._made if connection not in spared]
        for connection in made:
            _cut(connection)

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it is given back."""
        self._closed = True
        self.suspect()

    def connect_for_long(self) -> Connection:
        """Return a new connection for long work; see `connect`."""
        connection = self.connect()
        with self._lock:
            self._long.add(connection)
        return connection

    def connect(self) -> Connection:
        """Return a new connection, in autocommit mode: transactions are begun and ended by hand.

        Raises:
            StorageUnavailable: the database does not answer, or refuses.
            Misconfigured: there is no DSN, or it is not one.
        """
        connection = self._connected()
        try:
            self._prepare(connection)
        except psycopg.Error as error:
            connection.close()
            raise from_postgres(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _connected(self) -> Connection:
        try:
            connection = psycopg.connect(
                dsn(self._config),
                autocommit=True,
                prepare_threshold=None,
                client_encoding="UTF8",
                connect_timeout=CONNECT_SECONDS,
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
                tcp_user_timeout=20_000,
                application_name="memplane",
            )
        except psycopg.ProgrammingError as error:
            raise Misconfigured(
                "the DSN is not a Postgres URL or connection string", reason=Reason.STORAGE_UNREACHABLE
            ) from error
        except psycopg.Error as error:
            raise from_connecting(error) from error
        self._silences = 0
        with self._lock:
            self._made.add(connection)
        return connection

    def _connect_unless_down(self) -> Connection:
        failed = self._failed
        probing = failed is not None
        if failed is not None:
            failed_at, detail = failed
            is_quiet = time.monotonic() - failed_at < _QUIET_SECONDS
            if is_quiet or not self._trying.acquire(blocking=False):
                raise unavailable(detail, retry_after=2)
        try:
            connection = self.connect()
        except StorageUnavailable as error:
            if isinstance(error.__cause__, psycopg.Error) and has_no_connection_left(error.__cause__):
                raise _NoneLeft(error.detail) from error
            self._failed = time.monotonic(), error.detail
            raise
        finally:
            if probing:
                self._trying.release()
        self._failed = None
        with self._lock:
            self._used[connection] = time.monotonic()
        return connection

    def _take_idle(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection, born = self._idle.pop()
                if not connection.closed and time.monotonic() - born < _KEPT_SECONDS:
                    self._used[connection] = born
                    return connection
            connection.close()


class _NoneLeft(Exception):
    """The server answers, and has no connection left for this role."""


def _cut(connection: Connection) -> None:
    """End a connection that another thread may wait on."""
    if connection.closed:
        return
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.pgconn.socket)) as own:
        own.shutdown(socket.SHUT_RDWR)
