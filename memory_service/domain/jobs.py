"""When failed work is tried again, and when it is given up."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta

FIRST_DELAY = timedelta(seconds=2)
"""Before the second attempt. Long enough for a restarted endpoint, short enough that a user does not notice."""
LONGEST_DELAY = timedelta(minutes=15)
"""The bound on a wait: an endpoint that comes back after an hour is found again within this time."""
LONGEST_ASKED_DELAY = timedelta(hours=1)
"""The bound on a wait that an endpoint asked for: a quota of an hour is back by then, one of a month is looked at."""

LONGEST_WAIT = LONGEST_ASKED_DELAY + FIRST_DELAY
"""The longest that `retry_at` puts anything off."""
CLOCK_STEP = timedelta(minutes=1)
"""How far a clock may be set back before what was written under it is doubted: more than is corrected in passing."""


def retry_at(
    *,
    failures: int,
    max_failures: int | None,
    now: datetime,
    seed: str,
    retry_after: timedelta | None = None,
) -> datetime | None:
    """Return when to try again after `failures` tries that failed, or None: give it up, a person must look.

    Counted are tries that failed of one cause, so that an outage's do not lengthen what follows another. Without
    `max_failures` it is never given up.

    Delays double from `FIRST_DELAY` to `LONGEST_DELAY`. Each is between a half and the whole of it: the seed (the
    job's id) decides, so that jobs that failed together do not come back together, and a repeat gives the same time.
    An endpoint's own `retry_after` is waited for, up to `LONGEST_ASKED_DELAY`, and up to `FIRST_DELAY` beyond it, so
    that its jobs do not come back together either.
    """
    if max_failures is not None and failures >= max_failures:
        return None
    doublings = min(max(failures, 1) - 1, 32)
    delay = min(FIRST_DELAY * float(2**doublings), LONGEST_DELAY)
    digest = hashlib.sha256(f"{seed}\x00{failures}".encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    delay = delay / 2 + delay / 2 * share
    if retry_after is not None and retry_after > delay:
        delay = min(retry_after, LONGEST_ASKED_DELAY) + FIRST_DELAY * share
    return now + delay
