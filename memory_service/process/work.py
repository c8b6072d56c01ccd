"""The working process: jobs only, for stores on Postgres that split serving from working."""

from __future__ import annotations

import asyncio
import signal
import socket
from datetime import timedelta

from memory_service.bootstrap import Runtime
from memory_service.contract.config import ServiceConfig, StorageType
from memory_service.contract.health import Reason
from memory_service.errors import Misconfigured
from memory_service.observability.logs import set_up_logging
from memory_service.ports.models import Clock
from memory_service.ports.process import Steps
from memory_service.worker.loop import Worker


def run(config: ServiceConfig, *, clock: Clock | None = None, steps: Steps | None = None) -> int:
    """Carry jobs out until SIGTERM or SIGINT; return the exit code.

    Raises:
        Misconfigured: a person must change the configuration or the schema first.
    """
    if config.storage.type is StorageType.LOCAL:
        raise Misconfigured(
            "`work` is for stores on Postgres, and no DSN is configured; a local store does its own work where it is"
            " served: give --dsn or MEMPLANE_DSN_FILE, or run `memplane serve`",
            reason=Reason.NOT_CONFIGURED.value,
        )
    set_up_logging()
    return asyncio.run(_work(config, clock, steps))


async def _work(config: ServiceConfig, clock: Clock | None, steps: Steps | None) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    async with Runtime(config, clock=clock, steps=steps) as runtime:
        stopped = asyncio.create_task(stop.wait(), name="stop")
        opened = asyncio.create_task(runtime.wait_open(), name="open")
        await asyncio.wait({stopped, opened}, return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            opened.cancel()
            await asyncio.gather(opened, return_exceptions=True)
            return 0
        opened.result()
        worker = Worker(runtime.services(), name=socket.gethostname())
        runtime.on_wake(worker.wake)
        working = asyncio.create_task(worker.run(grace=timedelta(seconds=config.server.grace_seconds)), name="worker")
        await stopped
        worker.stop()
        await working
    return 0
