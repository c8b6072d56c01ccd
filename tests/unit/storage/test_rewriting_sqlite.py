"""Writing the database anew: it begins nothing that would fill the disk and leaves the connection as it was."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory_service.ports.records import PurgeStep
from memory_service.storage.purge import rewrite_sqlite
from memory_service.storage.sqlite_link import connect


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    opened = connect(tmp_path / "it's.sqlite3")
    opened.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)")
    opened.execute("CREATE VIRTUAL TABLE kept USING fts5(words, content='', detail=none)")
    for number in range(500):
        opened.execute("INSERT INTO t VALUES (?, ?)", (number, f"secret{number} " * 20))
        opened.execute("INSERT INTO kept (rowid, words) VALUES (?, ?)", (number, f"secret{number}"))
    opened.execute("DELETE FROM t")
    for number in range(500):
        opened.execute("INSERT INTO kept (kept, rowid, words) VALUES ('delete', ?, ?)", (number, f"secret{number}"))
    yield opened
    opened.close()


def content(connection: sqlite3.Connection) -> bytes:
    path = Path(connection.execute("SELECT file FROM pragma_database_list").fetchone()[0])
    return b"".join(file.read_bytes() for file in path.parent.iterdir())


def test_no_byte_of_deleted_rows_and_words_is_left(connection: sqlite3.Connection) -> None:
    assert b"secret" in content(connection)
    assert rewrite_sqlite(connection) == PurgeStep(done=True)
    assert b"secret" not in content(connection)
    assert connection.execute("PRAGMA temp_store").fetchone() == (2,)
    assert connection.execute("PRAGMA busy_timeout").fetchone() == (5000,)


def test_nothing_is_begun_without_the_space_for_it(connection: sqlite3.Connection) -> None:
    before = connection.execute("PRAGMA schema_version").fetchone()
    step = rewrite_sqlite(connection, free_bytes=lambda _: 1_000)
    assert step == PurgeStep(done=False, waiting_for=("space",))
    assert connection.execute("PRAGMA schema_version").fetchone() == before
    assert rewrite_sqlite(connection).done


def test_a_reader_of_the_old_state_is_waited_for(connection: sqlite3.Connection) -> None:
    path = connection.execute("SELECT file FROM pragma_database_list").fetchone()[0]
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT COUNT(*) FROM t").fetchone()
    assert rewrite_sqlite(connection) == PurgeStep(done=False, waiting_for=("snapshot",))
    reader.close()
    assert rewrite_sqlite(connection) == PurgeStep(done=True)
    assert b"secret" not in content(connection)
