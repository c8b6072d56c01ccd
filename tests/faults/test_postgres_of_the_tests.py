"""The Postgres of the tests does not outlive them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.fakes.postgres import PostgresServer

_LIMIT_SECONDS = 60
_USER = """
import sys
from pathlib import Path
from tests.fakes.postgres import shared_server
with shared_server(Path(sys.argv[1])) as dsn:
    print(dsn, flush=True)
    sys.stdin.read()
"""


@contextmanager
def user(folder: Path, repository: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a process that uses the shared server of a folder, as each worker of a parallel run does, and the DSN."""
    with subprocess.Popen(
        [sys.executable, "-c", _USER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=repository,
        env={name: value for name, value in os.environ.items() if name != "MEMPLANE_TEST_POSTGRES_DSN"},
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, None], ids=["killed", "ended", "done"])
def test_a_shared_server_ends_with_the_last_process_that_uses_it(
    ending: signal.Signals | None, tmp_path: Path, repository: Path
) -> None:
    def end(process: subprocess.Popen[str]) -> None:
        if ending is None:
            assert process.stdin is not None
            process.stdin.close()
        else:
            process.send_signal(ending)
        process.wait(_LIMIT_SECONDS)

    with ExitStack() as users:
        first, dsn = users.enter_context(user(tmp_path, repository))
        second, same = users.enter_context(user(tmp_path, repository))
        assert dsn == same
        pid = PostgresServer(tmp_path).pid()
        assert pid is not None
        server = os.pidfd_open(pid)
        users.callback(os.close, server)
        end(first)
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        end(second)
        assert select.select([server], [], [], _LIMIT_SECONDS)[0], "the server runs on"
