"""Migrating Postgres: the schema, pgvector, meta and migrations are made by hand, all else by the numbered files."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
from psycopg import sql

from memory_service.contract.health import Reason
from memory_service.errors import Misconfigured
from memory_service.storage.migration import Migration
from memory_service.storage.statements import Row

_MAINTAIN = 170_000
"""The server version from which on a right to maintain a table may be granted."""


class PostgresTables:
    """The Tables of `migration` over one connection inside a transaction that the caller commits."""

    def __init__(self, connection: psycopg.Connection[Row], schema: str, dimension: int) -> None:
        self._connection = connection
        self._schema = schema
        self._dimension = dimension

    def lock(self) -> None:
        """Let one process at a time migrate this schema; given back at the end of the transaction."""
        self._connection.execute("SET LOCAL lock_timeout = 0")
        self._connection.execute("SET LOCAL statement_timeout = 0")
        self._connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"memplane.migrate.{self._schema}",)
        )

    def are_there(self) -> bool:
        """Return whether a store was made in this schema."""
        return self._connection.execute("SELECT to_regclass(%s)", (f'"{self._schema}".meta',)).fetchone() != (None,)

    def may_be_rewritten(self) -> bool:
        """Return whether this role may write the tables anew: it owns them or, from Postgres 17 on, maintains them."""
        others = "NOT pg_has_role(c.relowner, 'USAGE')"
        if self._connection.info.server_version >= _MAINTAIN:
            others += " AND NOT has_table_privilege(c.oid, 'MAINTAIN')"
        found = self._connection.execute(
            "SELECT 1 FROM pg_catalog.pg_class AS c WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind = 'r'"
            f" AND {others} LIMIT 1".encode(),
            (f'"{self._schema}"',),
        )
        return found.fetchone() is None

    def meta(self) -> Mapping[str, str]:
        """Return the store's meta; schema, extension and tables are made if they are missing."""
        self._require_utf8()
        if vectors_schema(self._connection) is None:
            self._make_extension()
        if not self.are_there():
            self._make_schema()
        found = self._connection.execute(self._named("SELECT key, value FROM {schema}.meta")).fetchall()
        return {row[0]: row[1] for row in found}

    def applied(self) -> Mapping[int, str]:
        """Return the hashes of applied migrations by number."""
        found = self._connection.execute(self._named("SELECT number, sha256 FROM {schema}.migrations")).fetchall()
        return {row[0]: row[1] for row in found}

    def apply(self, migration: Migration) -> None:
        """Run a migration's statements."""
        vectors = vectors_schema(self._connection)
        text = migration.sql
        for name, value in {
            "schema": f'"{self._schema}"',
            "schema_name": self._schema,
            "vectors": f'"{vectors}"',
            "vector": f'"{vectors}".vector({self._dimension})',
            "dimension": str(self._dimension),
        }.items():
            text = text.replace("{" + name + "}", value)
        self._connection.execute(text.encode())
        self._connection.execute(
            self._named("INSERT INTO {schema}.migrations (number, name, sha256) VALUES (%s, %s, %s)"),
            (migration.number, migration.name, migration.sha256),
        )

    def set_meta(self, values: Mapping[str, str]) -> None:
        """Write meta values."""
        for key, value in values.items():
            self._connection.execute(
                self._named(
                    "INSERT INTO {schema}.meta (key, value) VALUES (%s, %s)"
                    " ON CONFLICT (key) DO UPDATE SET value = excluded.value"
                ),
                (key, value),
            )

    def _named(self, text: str) -> sql.Composed:
        return sql.SQL(text).format(schema=sql.Identifier(self._schema))

    def _require_utf8(self) -> None:
        encoding = self._connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise Misconfigured(
                f"the database has the encoding {encoding}, which cannot hold every text; make it anew with"
                " CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
                reason=Reason.SCHEMA_MISMATCH,
            )

    def _make_schema(self) -> None:
        try:
            if self._connection.execute("SELECT to_regnamespace(%s)", (f'"{self._schema}"',)).fetchone() == (None,):
                self._connection.execute(self._named("CREATE SCHEMA IF NOT EXISTS {schema}"))
            self._connection.execute(
                self._named(
                    "CREATE TABLE {schema}.meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);"
                    " CREATE TABLE {schema}.migrations"
                    " (number BIGINT PRIMARY KEY, name TEXT NOT NULL, sha256 TEXT NOT NULL)"
                )
            )
        except psycopg.errors.InsufficientPrivilege as error:
            raise Misconfigured(
                f"the role of the DSN may not make the schema {self._schema!r} or tables in it; as an administrator of"
                f' this database run CREATE SCHEMA "{self._schema}" AUTHORIZATION with that role',
                reason=Reason.SCHEMA_MISMATCH,
            ) from error

    def _make_extension(self) -> None:
        # One at a time in the whole database, since two at once fail; and never in the schema of a store, which comes
        # first in the search path of a role of its name: dropped with that store, it would take all others' vectors.
        self._connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('memplane.migrate', 0))")
        has_public = self._connection.execute("SELECT to_regnamespace('public')").fetchone() != (None,)
        where = " SCHEMA public" if has_public else ""
        try:
            self._connection.execute(f"CREATE EXTENSION IF NOT EXISTS vector{where}".encode())
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.FeatureNotSupported) as error:
            raise Misconfigured(
                "the database has no pgvector, or this role may not create it; install pgvector on the server and run"
                " CREATE EXTENSION vector as an administrator of this database",
                reason=Reason.SCHEMA_MISMATCH,
            ) from error
        except psycopg.errors.UndefinedFile as error:
            raise Misconfigured(
                "the database server has no pgvector; install it on the server, then start again",
                reason=Reason.SCHEMA_MISMATCH,
            ) from error


def vectors_schema(connection: psycopg.Connection[Row]) -> str | None:
    """Return the schema in which pgvector lives, or None where it is not installed."""
    found = connection.execute(
        "SELECT n.nspname FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace"
        " WHERE e.extname = 'vector'"
    ).fetchone()
    return None if found is None else str(found[0])
