"""One SQL text for both databases: a small common subset, translated once and kept.

    :name                 a parameter
    @table                a table of this store (schema-qualified on Postgres)
    IN [:ids]             membership in a list parameter
    [[postgres|sqlite]]   the one place where the two differ; `[[postgres]]` is nothing on SQLite
    {vectors}             the schema of pgvector's operators, as in OPERATOR({vectors}.<=>)
    {now}                 the time that due times compare with: the database's clock plus the shift, or the clock's

Neither `[[` nor `:word` may stand in a string literal; `@word` in one is the name of the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from memory_service.ports.records import Vector

Row = tuple[Any, ...]

_EITHER = re.compile(r"\[\[(?P<postgres>.*?)(?:\|(?P<sqlite>.*?))?\]\]", re.DOTALL)
_LIST = re.compile(r"IN \[:(?P<name>[a-z_]+)\]")
_TABLE = re.compile(r"@(?P<name>[a-z_]+)")
_PARAMETER = re.compile(r"(?<!:):(?P<name>[a-z_]+)")

LOCK = "[[FOR NO KEY UPDATE]]"
"""Hold a row against other writers until the transaction ends; SQLite has one writer anyway."""


class Link(Protocol):
    """A connection inside a transaction. It never commits.

    `rows`, `row` and `run` take the common SQL of this module. List parameters are Python lists. They raise Duplicate
    for a row that a unique index has already, LockTimeout for one that another transaction holds too long, and the
    driver's own errors for the rest.
    """

    is_postgres: bool
    dimension: int
    embedding_model: str
    hmac_key: bytes

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Return all rows."""

    def row(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Row | None:
        """Return the first row, or None."""

    def run(self, sql: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Carry out a statement and return how many rows it changed."""

    def run_many(self, sql: str, parameters: Iterable[Mapping[str, Any]]) -> None:
        """Carry out a statement once per mapping."""

    def row_of_each(self, sql: str, parameters: Iterable[Mapping[str, Any]]) -> list[Row | None]:
        """Carry out a statement once per mapping and return the first row of each, or None."""

    def savepoint(self) -> AbstractContextManager[None]:
        """Undo what happens inside, and only that, when it raises."""

    def vector_in(self, vector: Vector | None) -> Any:
        """Return the parameter that stores a vector."""

    def vector_out(self, value: Any) -> Vector | None:
        """Return a stored vector as float32."""

    def now_micros(self) -> int:
        """Return `{now}`."""


class Statements:
    """Translates for one database and keeps every translation: texts are constants of modules, so there are few."""

    def __init__(self, *, postgres: bool, schema: str = "", vectors: str = "public") -> None:
        self._postgres = postgres
        self._vectors = vectors
        self._prefix = f'"{schema}".' if postgres else ""
        self._known: dict[str, tuple[str, frozenset[str]]] = {}

    def translate(self, sql: str) -> tuple[str, frozenset[str]]:
        """Return the database's own text and the names of its parameters."""
        known = self._known.get(sql)
        if known is None:
            known = self._known[sql] = self._translated(sql)
        return known

    def _translated(self, sql: str) -> tuple[str, frozenset[str]]:
        side = "postgres" if self._postgres else "sqlite"
        text = _EITHER.sub(lambda found: found[side] or "", sql)
        replace: Callable[[re.Match[str]], str]
        if self._postgres:
            clock = "(CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT) + :clock_shift)"
            text = text.replace("{now}", clock).replace("{vectors}", f'"{self._vectors}"').replace("%", "%%")
            text = _LIST.sub(lambda found: f"= ANY(:{found['name']})", text)
        else:
            text = text.replace("{now}", ":clock_now")
            text = _LIST.sub(lambda found: f"IN (SELECT value FROM json_each(:{found['name']}))", text)
        text = _TABLE.sub(lambda found: self._prefix + found["name"], text)
        names = frozenset(found["name"] for found in _PARAMETER.finditer(text))
        if self._postgres:
            replace = lambda found: f"%({found['name']})s"  # noqa: E731
            text = _PARAMETER.sub(replace, text)
        return text, names
