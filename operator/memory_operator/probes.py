"""The operator's own HTTP server: /livez, /readyz and /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from memory_operator.metrics import Metrics

_LAG_LIMIT_SECONDS = 5.0
_LAG_STRIKES = 3
_TICK_SECONDS = 1.0


@dataclass
class Vitals:
    """What the probes answer from; whoever knows sets it."""

    clock: Callable[[], float]
    metrics: Metrics
    has_synced: bool = False
    is_standby: bool = True
    resynced_at: float | None = None
    resync_limit_seconds: float = 900
    _strikes: int = field(default=0)
    _ticked_at: float | None = field(default=None)

    def tick(self) -> None:
        """Note that the event loop runs; called once a second."""
        now = self.clock()
        lag = max(0.0, now - self._ticked_at - _TICK_SECONDS) if self._ticked_at is not None else 0.0
        self._ticked_at = now
        self._strikes = self._strikes + 1 if lag > _LAG_LIMIT_SECONDS else 0
        self.metrics.loop_lag_seconds.set(lag)

    def sickness(self) -> list[str]:
        """Return why the process should be started again."""
        found = []
        if self._strikes >= _LAG_STRIKES:
            found.append(f"the event loop was more than {_LAG_LIMIT_SECONDS:.0f} s late {self._strikes} times in a row")
        if self.resynced_at is not None and self.clock() - self.resynced_at > self.resync_limit_seconds:
            found.append("no resync has ended for three intervals")
        return found

    def unreadiness(self) -> list[str]:
        """Return why the process is not ready; a standby is."""
        return [] if self.is_standby or self.has_synced else ["the caches are not filled yet"]


def _answer(reasons: Iterable[str]) -> web.Response:
    found = list(reasons)
    return web.Response(text="\n".join(found) or "ok", status=503 if found else 200)


@asynccontextmanager
async def serving(vitals: Vitals, host: str, port: int) -> AsyncIterator[int]:
    """Serve the probes and metrics; give the port (0 picks one)."""

    async def livez(_: web.Request) -> web.Response:
        return _answer(vitals.sickness())

    async def readyz(_: web.Request) -> web.Response:
        return _answer([*vitals.sickness(), *vitals.unreadiness()])

    async def metrics(_: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=vitals.metrics.text(), headers=headers)

    application = web.Application()
    application.add_routes(
        [web.get("/livez", livez), web.get("/readyz", readyz), web.get("/metrics", metrics)],
    )
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def keep_ticking(vitals: Vitals) -> None:
    """Measure the event loop's lag until cancelled."""
    while True:
        vitals.tick()
        await asyncio.sleep(_TICK_SECONDS)
