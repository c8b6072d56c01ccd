"""A Link over one psycopg connection, and how vectors travel: pgvector's binary form, both ways."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import psycopg
from psycopg import pq
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.types import TypeInfo

from memory_service.ports.models import Clock
from memory_service.ports.records import Vector
from memory_service.storage.errors import Duplicate, LockTimeout
from memory_service.storage.statements import Row, Statements

_HEADER = struct.Struct(">HH")
_CLOCK = (
    "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT), pg_backend_pid(),"
    " CAST(EXTRACT(EPOCH FROM transaction_timestamp()) * 1000000 AS BIGINT),"
    " CAST(EXTRACT(EPOCH FROM pg_postmaster_start_time()) * 1000000 AS BIGINT)"
)
_MARK = "INSERT INTO @commits (token, at)"


@dataclass(frozen=True)
class PgVector:
    """A vector as a parameter."""

    values: Vector


class _VectorDumper(Dumper):
    format = pq.Format.BINARY

    def dump(self, obj: PgVector) -> Buffer:
        values = np.ascontiguousarray(obj.values, dtype=">f4")
        return _HEADER.pack(len(values), 0) + values.tobytes()


class _VectorLoader(Loader):
    format = pq.Format.BINARY

    def load(self, data: Buffer) -> Vector:
        return np.frombuffer(bytes(data)[_HEADER.size :], dtype=">f4").astype(np.float32)


def register_vectors(connection: psycopg.Connection[Row], vectors: str) -> None:
    """Teach a connection pgvector's type, which lives in the schema `vectors`."""
    info = TypeInfo.fetch(connection, f'"{vectors}".vector')
    if info is None:
        return
    dumper = type("VectorDumper", (_VectorDumper,), {"oid": info.oid})
    connection.adapters.register_dumper(PgVector, dumper)
    connection.adapters.register_loader(info.oid, _VectorLoader)


class PostgresLink:
    """The Link of the external backend."""

    is_postgres = True

    def __init__(
        self,
        connection: psycopg.Connection[Row],
        statements: Statements,
        clock: Clock,
        *,
        dimension: int,
        embedding_model: str,
        hmac_key: bytes,
    ) -> None:
        self.connection = connection
        self.dimension = dimension
        self.embedding_model = embedding_model
        self.hmac_key = hmac_key
        self._statements = statements
        self._shift = clock.shift() // timedelta(microseconds=1)
        self._began: tuple[int, int] | None = None
        self.server_process = (0, 0)
        """The number of the server's process and the microseconds when it began the transaction."""
        self.server_started = 0
        """The microseconds when the server started that began the transaction: another server has another."""
        # One for all statements: making one costs a third of what a small statement does.
        self._cursor = connection.cursor(binary=True)

    def begin(self, sql: str) -> None:
        """Begin a transaction, and note the database's time in the same round trip: every transaction asks for it."""
        self._cursor.execute(f"{sql}; {_CLOCK}", binary=False)
        while self._cursor.nextset():
            pass
        found = self._cursor.fetchone()
        assert found is not None
        self._began = int(found[0]) + self._shift, time.monotonic_ns()
        self.server_process = int(found[1]), int(found[2])
        self.server_started = int(found[3])

    def commit(self, token: str) -> None:
        """Commit; a transaction that has written anything leaves the token, a UUID, in `commits`."""
        mark, _ = self._statements.translate(_MARK)
        values = f"SELECT '{token}', {self.now_micros()} WHERE pg_current_xact_id_if_assigned() IS NOT NULL"
        self._cursor.execute(f"{mark} {values}; COMMIT", binary=False)

    def end(self) -> None:
        """End a transaction that only read."""
        self._cursor.execute("ROLLBACK", binary=False)

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Return all rows."""
        return self._execute(sql, parameters).fetchall()

    def row(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Row | None:
        """Return the first row, or None."""
        return self._execute(sql, parameters).fetchone()

    def run(self, sql: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Carry out a statement and return how many rows it changed."""
        return self._execute(sql, parameters).rowcount

    def run_many(self, sql: str, parameters: Iterable[Mapping[str, Any]]) -> None:
        """Carry out a statement once per mapping, in one round trip."""
        sets = list(parameters)
        if len(sets) == 1:
            self.run(sql, sets[0])
        elif sets:
            text, _ = self._statements.translate(sql)
            with self.connection.cursor() as cursor:
                cursor.executemany(text, sets)

    def row_of_each(self, sql: str, parameters: Iterable[Mapping[str, Any]]) -> list[Row | None]:
        """Carry out a statement once per mapping, in one round trip, and return the first row of each, or None."""
        sets = list(parameters)
        if not sets:
            return []
        text, _ = self._statements.translate(sql)
        with self.connection.cursor(binary=True) as cursor:
            cursor.executemany(text, sets, returning=True)
            found = [cursor.fetchone()]
            while cursor.nextset():
                found.append(cursor.fetchone())
        return found

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what happens inside, and only that, when it raises."""
        self.connection.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            if not self.connection.closed:
                self.connection.execute("ROLLBACK TO SAVEPOINT part")
            raise
        self.connection.execute("RELEASE SAVEPOINT part")

    def vector_in(self, vector: Vector | None) -> PgVector | None:
        """Return the parameter that stores a vector."""
        return None if vector is None else PgVector(vector)

    def vector_out(self, value: Any) -> Vector | None:
        """Return a stored vector as float32."""
        return value if value is None else np.asarray(value, dtype=np.float32)

    def now_micros(self) -> int:
        """Return the database's time with the clock's shift: asked for as the transaction began, then moved on by this
        process's clock.
        """
        assert self._began is not None, "a link is used inside a transaction"
        micros, at = self._began
        return micros + (time.monotonic_ns() - at) // 1_000

    def _execute(self, sql: str, parameters: Mapping[str, Any] | None) -> psycopg.Cursor[Row]:
        """Carry out a statement; its rows are to be fetched before the next one."""
        text, names = self._statements.translate(sql)
        values = dict(parameters or {})
        if "clock_shift" in names:
            values["clock_shift"] = self._shift
        try:
            return self._cursor.execute(text, values)
        except psycopg.errors.UniqueViolation as error:
            raise Duplicate from error
        except psycopg.errors.LockNotAvailable as error:
            raise LockTimeout from error
