"""Databases as people have them: other encodings, roles with few rights, standbys, and DSNs that lead nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from memory_service.contract.scopes import Scope
from memory_service.errors import Misconfigured, StorageUnavailable
from memory_service.ports.storage import Transaction
from memory_service.storage.postgres_errors import from_connecting
from tests.fakes.postgres import fresh_database
from tests.fakes.stores import Store, external_config, session_of, turn

TEXT = "œuvre 東京 😀 €5"


def append(tx: Transaction) -> None:
    tx.turns.append(tx.sessions.ensure(session_of("s1"), Scope.PRIVATE, tx.now()), [turn(TEXT)], tx.now())


async def write_and_read(dsn: str) -> str:
    """Return what a store in this database says after one turn."""
    store = Store(external_config(dsn))
    await store.open()
    try:
        await store.storage.transact(append)

        def read(tx: Transaction) -> str:
            row = tx.sessions.find(session_of("s1"))
            assert row is not None
            return tx.turns.window(row, limit=1)[0].text

        return await store.storage.read(read)
    finally:
        await store.close()


async def refusal(dsn: str) -> Misconfigured | StorageUnavailable:
    """Return why a store cannot be opened in this database."""
    store = Store(external_config(dsn))
    try:
        with pytest.raises((Misconfigured, StorageUnavailable)) as refused:
            await store.open()
        assert isinstance(refused.value, Misconfigured | StorageUnavailable)
        return refused.value
    finally:
        await store.close()


@contextmanager
def database(dsn: str, options: str) -> Iterator[str]:
    """Make a database from the barest template, with options of CREATE DATABASE."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE odd TEMPLATE template0 {options}")
    try:
        yield make_conninfo(dsn, dbname="odd")
    finally:
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute("DROP DATABASE odd WITH (FORCE)")


@contextmanager
def role(dsn: str, name: str = "limited") -> Iterator[str]:
    """Make a role that may log in and nothing else, and yield the DSN with it."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
    try:
        yield make_conninfo(dsn, user=name)
    finally:
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP OWNED BY {0} CASCADE; DROP ROLE {0}").format(sql.Identifier(name)))


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_cannot_hold_every_text_is_refused_with_what_to_do(
    postgres_dsn: str, encoding: str
) -> None:
    with database(postgres_dsn, f"ENCODING '{encoding}' LOCALE 'C'") as dsn:
        refused = await refusal(dsn)
    assert isinstance(refused, Misconfigured)
    assert (refused.reason, encoding in refused.detail, "ENCODING 'UTF8'" in refused.detail) == (
        "SchemaMismatch",
        True,
        True,
    )


async def test_the_encoding_that_a_database_gives_its_clients_is_not_taken(postgres_dsn: str) -> None:
    with fresh_database(postgres_dsn) as dsn:
        with psycopg.connect(dsn, autocommit=True) as admin:
            name = sql.Identifier(admin.info.dbname)
            admin.execute(sql.SQL("ALTER DATABASE {} SET client_encoding = 'LATIN1'").format(name))
        assert await write_and_read(dsn) == TEXT


async def test_a_role_that_owns_a_schema_made_for_it_needs_no_other_right(postgres_dsn: str) -> None:
    with fresh_database(postgres_dsn) as dsn, role(dsn) as limited:
        refused = await refusal(limited)
        assert isinstance(refused, Misconfigured)
        assert "pgvector" in refused.detail
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute("CREATE EXTENSION vector")
        refused = await refusal(limited)
        assert isinstance(refused, Misconfigured)
        assert "CREATE SCHEMA" in refused.detail
        with psycopg.connect(dsn, autocommit=True) as admin:
            schema = sql.Identifier(external_config(dsn).schema_name)
            admin.execute(sql.SQL("CREATE SCHEMA {} AUTHORIZATION limited").format(schema))
        assert await write_and_read(limited) == TEXT


async def test_a_database_that_only_reads_is_told_as_such(postgres_dsn: str) -> None:
    with fresh_database(postgres_dsn) as dsn:
        with psycopg.connect(dsn, autocommit=True) as admin:
            name = sql.Identifier(admin.info.dbname)
            admin.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
        refused = await refusal(dsn)
    assert isinstance(refused, StorageUnavailable)
    assert "primary" in refused.detail


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"dbname": "nowhere"}, "no such database"),
        ({"user": "nobody"}, "refuses the role or its password"),
        ({"port": "1"}, "nothing answers"),
    ],
)
async def test_a_dsn_that_leads_nowhere_says_which_part_of_it_is_wrong(
    postgres_dsn: str, wrong: dict[str, str], said: str
) -> None:
    refused = await refusal(make_conninfo(postgres_dsn, **wrong))
    assert isinstance(refused, StorageUnavailable)
    assert said in refused.detail
    assert "OperationalError" not in refused.detail


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        ("failed to resolve host 'db': [Errno -2] Name or service not known", "host of the DSN is not known"),
        ("connection failed: FATAL:  sorry, too many clients already", "no connection left"),
        ("connection failed: SSL error: certificate verify failed", "TLS to the database fails"),
        ("die Verbindung ist fehlgeschlagen", "no connection to the database (OperationalError)"),
    ],
)
def test_what_the_driver_says_of_a_failed_connection_is_told_in_words_of_ours(driver: str, said: str) -> None:
    told = from_connecting(psycopg.OperationalError(driver)).detail
    assert said in told
    assert driver not in told
