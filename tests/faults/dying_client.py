"""A client that dies as by kill -9 at one step after the other of its outbox.

    python -m tests.faults.dying_client URL FOLDER SCENARIO

A step is what the code does: every statement by which the outbox changes its file, COMMIT among them, and the moments
before a request is sent and after it is answered. Life N, in `FOLDER/N`, is ended at its step N; the first life that
has not so many ends by itself, and the program with it. `FOLDER/N/steps` has the steps of a life, whose session is
`SCENARIO-N`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from memory_service.client import AgentMemory, Deadlines, MemoryClient

TURNS = ("one", "two")


class Dying(httpx.AsyncHTTPTransport):
    """The network, whose use is a step."""

    def __init__(self, reach: Callable[[str], None]) -> None:
        super().__init__(verify=False)
        self._reach = reach

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request."""
        self._reach(f"send {request.url.path}")
        answer = await super().handle_async_request(request)
        self._reach(f"answered {request.url.path}")
        return answer


class Away(httpx.AsyncBaseTransport):
    """A network that leads nowhere."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Fail."""
        raise httpx.ConnectError("away", request=request)


def client(url: str, folder: Path, transport: httpx.AsyncBaseTransport) -> MemoryClient:
    """Return a client whose outbox lies in a folder."""
    deadlines = Deadlines(recall=20, write=20, other=20, admin=20)
    options: dict[str, Any] = {"env": {}, "binding_folder": folder / "none", "deadlines": deadlines}
    return MemoryClient(url, store="team", outbox=folder / "outbox", transport=transport, **options)


async def flush(url: str, folder: Path, session: str, reach: Callable[[str], None]) -> None:
    """Keep two turns in the outbox, send them, and delete what was delivered."""
    async with client(url, folder, Dying(reach)) as made:
        await AgentMemory(made, session).after_run([{"role": "user", "content": text} for text in TURNS])


async def deliver(url: str, folder: Path, session: str, reach: Callable[[str], None]) -> None:
    """Deliver two entries that an outage has left."""
    async with client(url, folder, Dying(reach)) as made:
        await made.deliver()


async def leave(url: str, folder: Path, session: str) -> None:
    """Write two turns while the service is away."""
    async with client(url, folder, Away()) as made:
        for text in TURNS:
            await made.write(session, [{"role": "user", "content": text}])


def live(url: str, folder: Path, scenario: str, number: int) -> None:
    """Live until the step of this number."""
    session, reached = f"{scenario}-{number}", itertools.count(1)

    def reach(step: str) -> None:
        if step.startswith(("SELECT", "PRAGMA")):
            return
        with (folder / "steps").open("a") as steps:
            steps.write(step.split("\n", maxsplit=1)[0] + "\n")
        if next(reached) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    if scenario == "deliver":
        asyncio.run(leave(url, folder, session))
    connect = sqlite3.connect

    def watched(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_trace_callback(reach)
        return connection

    sqlite3.connect = watched  # type: ignore[assignment]
    asyncio.run({"flush": flush, "deliver": deliver}[scenario](url, folder, session, reach))


def main() -> int:
    """Live again and again."""
    url, folder, scenario = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    for number in itertools.count(1):
        mine = folder / str(number)
        mine.mkdir(parents=True)
        child = os.fork()
        if child == 0:
            live(url, mine, scenario, number)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != -signal.SIGKILL:
            return status
    return 1


if __name__ == "__main__":
    sys.exit(main())
