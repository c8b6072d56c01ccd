"""What the lives of both processes share: they wait for the service to open, work, and stop on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from datetime import timedelta

from memory_service.bootstrap import Runtime
from memory_service.worker.loop import Worker


def stop_on_signals() -> asyncio.Event:
    """Return an event of the running loop that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    return stop


async def opens_before(stop: asyncio.Event, runtime: Runtime) -> bool:
    """Wait until the service is open; False when the process is told to stop first.

    Raises:
        Misconfigured: it never will be until a person changes something.
    """
    stopped = asyncio.create_task(stop.wait(), name="stop")
    opened = asyncio.create_task(runtime.wait_open(), name="open")
    await asyncio.wait({stopped, opened}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if opened.done():
        opened.result()
        return True
    opened.cancel()
    await asyncio.gather(opened, return_exceptions=True)
    return False


@contextlib.asynccontextmanager
async def working(runtime: Runtime, *, grace: timedelta) -> AsyncIterator[None]:
    """Carry jobs out meanwhile. On leaving no new job is taken, and those that run have `grace` to finish."""
    worker = Worker(runtime.services(), name=socket.gethostname())
    runtime.on_wake(worker.wake)
    running = asyncio.create_task(worker.run(grace=grace), name="worker")
    try:
        yield
    finally:
        worker.stop()
        await running
