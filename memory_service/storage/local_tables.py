"""Migrating SQLite: meta and migrations are made by hand, all else by the numbered files."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import TypeVar

from memory_service.storage.migration import Migration

T = TypeVar("T")


class SqliteTables:
    """The Tables of `migration` over one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def in_one_transaction(self, work: Callable[[], T]) -> T:
        """Run `work` and commit; whatever it raises undoes everything, tables included."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            result = work()
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        return result

    def meta(self) -> Mapping[str, str]:
        """Return the store's meta."""
        self._connection.execute("CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS migrations"
            " (number INTEGER PRIMARY KEY, name TEXT NOT NULL, sha256 TEXT NOT NULL)"
        )
        return dict(self._connection.execute("SELECT key, value FROM meta").fetchall())

    def applied(self) -> Mapping[int, str]:
        """Return the hashes of applied migrations by number."""
        return dict(self._connection.execute("SELECT number, sha256 FROM migrations").fetchall())

    def apply(self, migration: Migration) -> None:
        """Run a migration's statements one by one: `executescript` would commit first."""
        statement = ""
        for line in migration.sql.splitlines(keepends=True):
            statement += line
            if sqlite3.complete_statement(statement):
                self._connection.execute(statement)
                statement = ""
        self._connection.execute(
            "INSERT INTO migrations (number, name, sha256) VALUES (?, ?, ?)",
            (migration.number, migration.name, migration.sha256),
        )

    def set_meta(self, values: Mapping[str, str]) -> None:
        """Write meta values."""
        self._connection.executemany(
            "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            list(values.items()),
        )
