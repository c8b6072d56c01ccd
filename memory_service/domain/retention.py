"""How long rows are kept: cut-off times from the configured ages. None means that nothing goes by age."""

from __future__ import annotations

from datetime import datetime, timedelta

FINISHED_JOBS_KEPT = timedelta(days=1)
"""Done jobs are kept for questions about what happened; they hold no text. An agent makes one with each write, which in
a week would be more than its turns, and a purge of a data folder writes them all anew.
"""
IDEMPOTENCY_KEPT = timedelta(hours=24)


def cut_off(now: datetime, kept_seconds: float | None) -> datetime | None:
    """Return the time before which rows may go, or None where they stay until they are erased.

    An age that reaches before the year 1 keeps everything.
    """
    if kept_seconds is None:
        return None
    try:
        return now - timedelta(seconds=kept_seconds)
    except OverflowError:
        return None
