"""A Link over one SQLite connection, and how such a connection is opened."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memory_service.ports.models import Clock
from memory_service.ports.records import Vector
from memory_service.storage.encoding import micros, vector_bytes, vector_from_bytes
from memory_service.storage.errors import Duplicate
from memory_service.storage.statements import Row, Statements

_PRAGMAS = (
    "PRAGMA busy_timeout = 5000",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA secure_delete = ON",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -16000",
)

_DUPLICATES = frozenset({"SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY"})


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a connection whose transactions are begun and ended by hand; it may move between threads."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    for pragma in _PRAGMAS:
        connection.execute(pragma)
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


class SqliteLink:
    """The Link of the local backend."""

    is_postgres = False

    def __init__(
        self,
        connection: sqlite3.Connection,
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
        self._clock = clock

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Return all rows."""
        return self._execute(sql, parameters).fetchall()

    def row(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Row | None:
        """Return the first row, or None; the statement runs to its end."""
        found = self._execute(sql, parameters).fetchall()
        return found[0] if found else None

    def run(self, sql: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Carry out a statement and return how many rows it changed."""
        return self._execute(sql, parameters).rowcount

    def run_many(self, sql: str, parameters: Iterable[Mapping[str, Any]]) -> None:
        """Carry out a statement once per mapping."""
        text, _ = self._statements.translate(sql)
        self.connection.executemany(text, list(parameters))

    def row_of_each(self, sql: str, parameters: Iterable[Mapping[str, Any]]) -> list[Row | None]:
        """Carry out a statement once per mapping and return the first row of each, or None."""
        return [self.row(sql, one) for one in parameters]

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what happens inside, and only that, when it raises."""
        self.connection.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK TO part")
                self.connection.execute("RELEASE part")
            raise
        self.connection.execute("RELEASE part")

    def vector_in(self, vector: Vector | None) -> bytes | None:
        """Return the parameter that stores a vector."""
        return None if vector is None else vector_bytes(vector)

    def vector_out(self, value: Any) -> Vector | None:
        """Return a stored vector as float32."""
        return None if value is None else vector_from_bytes(value)

    def now_micros(self) -> int:
        """Return the clock's time."""
        return micros(self._clock.now())

    def _execute(self, sql: str, parameters: Mapping[str, Any] | None) -> sqlite3.Cursor:
        text, names = self._statements.translate(sql)
        values = {
            name: json.dumps(value) if isinstance(value, list) else value for name, value in (parameters or {}).items()
        }
        if "clock_now" in names:
            values["clock_now"] = self.now_micros()
        try:
            return self.connection.execute(text, values)
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorname in _DUPLICATES:
                raise Duplicate from error
            raise
