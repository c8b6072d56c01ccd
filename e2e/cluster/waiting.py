"""Waiting for a condition with a limit: the only way anything here lets time pass."""

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

from .errors import NotInTime

T = TypeVar("T")


def until(
    what: str,
    check: Callable[[], T | None],
    *,
    seconds: float = 30,
    every_seconds: float = 0.1,
    ignoring: tuple[type[Exception], ...] = (),
    explain: Callable[[], str] | None = None,
) -> T:
    """Call `check` until it returns something true, and return that.

    Exceptions named in `ignoring` count as "not yet". When the limit passes, `explain` is asked once for what a
    person would want to see (the end of a log, an object's status).

    Raises:
        NotInTime: the limit passed; the message has the last exception or the last false value.
    """
    limit = monotonic() + seconds
    while True:
        last: object
        try:
            value = check()
            if value:
                return value
            last = value
        except ignoring as error:
            last = error
        if monotonic() > limit:
            more = f"\n{explain()}" if explain else ""
            raise NotInTime(f"{what} did not come within {seconds:g} s; last seen: {last!r}{more}")
        sleep(every_seconds)
