"""`python -m memory_operator`: read the settings, run, and end with a code that says how it went.

0: told to stop, and the Lease was handed over. 1: leadership was lost, or something broke. 2: a setting is wrong.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from memory_operator import logs, process
from memory_operator.cluster.election import LeadershipLost
from memory_operator.settings import InvalidSettings, from_environment

logger = logging.getLogger("memory_operator")


def main() -> int:
    """Run the operator and return the exit code."""
    try:
        settings = from_environment(os.environ)
    except InvalidSettings as error:
        sys.stderr.write(f"{error}\n")
        return 2
    logs.configure(settings.log_level)
    try:
        asyncio.run(process.run(settings))
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
