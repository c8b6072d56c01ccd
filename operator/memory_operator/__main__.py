"""`python -m memory_operator`: read the settings, run, and end with a code that says how it went.

0: told to stop, and the Lease was handed over. 1: leadership was lost, or something broke. 2: a setting is wrong.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
from collections.abc import Coroutine
from typing import Any

from memory_operator import logs, process
from memory_operator.cluster.election import LeadershipLost
from memory_operator.settings import InvalidSettings, from_environment

logger = logging.getLogger("memory_operator")

_CLOSE_SECONDS = 5.0


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop where that is installed: its TLS and its sockets cost a good part less of the CPU."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end. All is handed over then: connections to a dead API server do not hold the process any longer."""
    runner, code = asyncio.Runner(loop_factory=_new_loop), 1
    try:
        runner.run(work)
        code = 0
    finally:
        limit = threading.Timer(_CLOSE_SECONDS, os._exit, (code,))
        limit.daemon = True
        limit.start()
        runner.close()
        limit.cancel()


def main() -> int:
    """Run the operator and return the exit code."""
    try:
        settings = from_environment(os.environ)
    except InvalidSettings as error:
        sys.stderr.write(f"{error}\n")
        return 2
    logs.configure(settings.log_level)
    # What was imported stays, and a cache of thousands of objects is no garbage: neither is walked through each time.
    # What was in use in one look is garbage by the next but one; with rarer looks it would pile up for days.
    gc.freeze()
    gc.set_threshold(20_000, 5, 10)
    try:
        _run(process.run(settings))
    except LeadershipLost as error:
        logger.error("leadership lost", extra={"why": str(error)})
        return 1
    except KeyboardInterrupt:
        return 0
    except Exception:
        logger.exception("operator ended")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
