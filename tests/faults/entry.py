"""The test entry point: the product's own process, with a clock read from a file and steps that a test can stop at.

    python -m tests.faults.entry serve FOLDER

FOLDER holds `config.json` (a ServiceConfig), `shift` (seconds that the clock is ahead), `steps` (appended to: every
step that was reached) and, where a test wants it, `at` (a step and its detail) with `do`: `kill` ends this process
there as kill -9 does, `hold` waits there until the file is gone. `next.sqlite.sql` and `next.postgres.sql` make this
process the next version: one that has them as its last migration. `knows` makes it an earlier one, which knows so many
of the migrations. `exact_rows` holds the rows above which an owner is large, so that the local vector index holds it;
the index's writes are steps then. `taken` (appended to) has every request that the application was given; while there
is a file `hold-requests`, none of them goes on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from memory_service.contract.config import ServiceConfig
from memory_service.ports.process import Step
from memory_service.process import serve, work
from memory_service.storage import migration

HOLD_SECONDS = 60


class FileClock:
    """The system's time plus the seconds in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def now(self) -> datetime:
        """Return the shifted time."""
        return datetime.now(UTC) + self.shift()

    def shift(self) -> timedelta:
        """Return the seconds in the file."""
        return timedelta(seconds=float(self._path.read_text() or 0))


class FileSteps:
    """Notes each step in a file, and does there what the test asked for, once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def reach(self, step: Step, detail: str = "") -> None:
        """Note the step."""
        self.note(f"{step.value} {detail}".strip())

    def note(self, name: str) -> None:
        """Note the step of this name."""
        with (self._folder / "steps").open("a") as steps:
            steps.write(name + "\n")
        at = self._folder / "at"
        if not at.exists() or at.read_text() != name:
            return
        if (self._folder / "do").read_text() == "kill":
            at.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        (self._folder / "held").touch()
        deadline = time.monotonic() + HOLD_SECONDS
        while at.exists() and time.monotonic() < deadline:
            time.sleep(0.005)


def become_another_version(folder: Path) -> None:
    """Forget the migrations that an earlier version does not know, or add the next version's, where the folder says."""
    ours = migration.migrations
    knows = folder / "knows"
    known = int(knows.read_text()) if knows.exists() else None

    def known_here(dialect: str) -> Sequence[migration.Migration]:
        steps, file = ours(dialect)[:known], folder / f"next.{dialect}.sql"
        if not file.exists():
            return steps
        sql = file.read_text()
        return [*steps, migration.Migration(len(steps) + 1, "next", sql, int(sql.split("\n", 1)[0].split(": ")[1]))]

    migration.migrations = known_here  # type: ignore[assignment]


def note_requests(folder: Path) -> None:
    """Have every request noted and, while the test wants it, held before the application answers it."""
    ours = serve.create_app

    def noted(*arguments: Any) -> ASGIApp:
        application = ours(*arguments)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            with (folder / "taken").open("a") as taken:
                taken.write(f"{scope['method']} {scope['path']}\n")
            while (folder / "hold-requests").exists():  # noqa: ASYNC110 - another process removes it
                await asyncio.sleep(0.005)
            await application(scope, receive, send)

        return app

    serve.create_app = noted  # type: ignore[assignment]


def mirror_owners(folder: Path, steps: FileSteps) -> None:
    """Have the vector index hold owners with more rows than the folder says, where it says so."""
    file = folder / "exact_rows"
    if not file.exists():
        return
    from memory_service.storage import search
    from tests.faults import mirrors

    search.local_search = partial(search.local_search, exact_rows=int(file.read_text()))
    mirrors.watch(steps.note)


def main() -> int:
    """Serve, or work, as the product does."""
    mode, folder = sys.argv[1], Path(sys.argv[2])
    config = ServiceConfig.model_validate_json((folder / "config.json").read_text())
    steps = FileSteps(folder)
    become_another_version(folder)
    note_requests(folder)
    mirror_owners(folder, steps)
    run = serve.run if mode == "serve" else work.run
    return run(config, clock=FileClock(folder / "shift"), steps=steps)


if __name__ == "__main__":
    sys.exit(main())
