"""Connections that are held and say nothing: no request has come whole, so no limit of requests bounds them.

The server has a timer for a connection that was answered, and the gate one for a body; this is the one for a head. It
begins when a connection is the server's, which over TLS is after the handshake: that has the same limit of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Callable, Iterable
from typing import Any

from memory_service.contract.limits import HEAD_SECONDS
from memory_service.contract.problems import ProblemKind
from memory_service.ports.process import Meter

LOOK_SECONDS = 2.5
"""How often is looked, and so how much later than allowed a connection may end."""

Connection = Any
"""A protocol of the server: `cycle` is its last request, and `timeout_keep_alive_task` runs when that was answered."""


class Silence:
    """Which connections have owed the head of a request for too long."""

    def __init__(self, *, limit_seconds: float = HEAD_SECONDS) -> None:
        self._limit = limit_seconds
        self._since: dict[tuple[Connection, int], float] = {}

    def too_long(self, connections: Iterable[Connection], now: float) -> list[Connection]:
        """Return those that have waited for a head since `limit_seconds` before `now`, as far as was looked."""
        owing = ((one, id(one.cycle)) for one in connections if _owes_a_head(one))
        self._since = {key: self._since.get(key, now) for key in owing}
        return [one for (one, _), since in self._since.items() if now - since >= self._limit]


async def close_silent(connections: Callable[[], Iterable[Connection]], meter: Meter) -> None:
    """Close connections that have been silent for too long, until cancelled."""
    silence = Silence()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        for one in silence.too_long(connections(), asyncio.get_running_loop().time()):
            meter.count("requests_refused", reason=ProblemKind.TOO_SLOW.value)
            one.transport.abort()


def allow_open_files() -> None:
    """Let this process have as many connections and files open as its machine allows it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems say that there is no limit and then have one
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _owes_a_head(connection: Connection) -> bool:
    last = connection.cycle
    return connection.timeout_keep_alive_task is None and (last is None or bool(last.response_complete))
