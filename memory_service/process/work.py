"""The working process: jobs only, for stores on Postgres that split serving from working."""

from __future__ import annotations

from datetime import timedelta

from memory_service.bootstrap import Runtime
from memory_service.contract.config import ServiceConfig, StorageType
from memory_service.contract.health import Reason
from memory_service.errors import Misconfigured
from memory_service.observability.logs import set_up_logging
from memory_service.ports.models import Clock
from memory_service.ports.process import Steps
from memory_service.process import loops
from memory_service.process.lives import opens_before, stop_on_signals, working


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
    return loops.run(_work(config, clock, steps))


async def _work(config: ServiceConfig, clock: Clock | None, steps: Steps | None) -> int:
    stop = stop_on_signals()
    async with Runtime(config, clock=clock, steps=steps) as runtime:
        if await opens_before(stop, runtime):
            async with working(runtime, grace=timedelta(seconds=config.server.grace_seconds)):
                await stop.wait()
    return 0
