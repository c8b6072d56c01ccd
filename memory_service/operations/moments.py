"""When something was said that does not say it itself: as its request came, less the time that it was queued before."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from memory_service.contract.limits import MAX_QUEUED_SECONDS
from memory_service.operations.generations import SecondsHere
from memory_service.ports.storage import Transaction

ON_THE_WAY = timedelta(seconds=10)
"""How much earlier than it seems something queued may have been said: an outbox counts until it sends, and a delivery
may take its time to arrive. Statements that are no further apart are taken in the order in which they come, which is an
outbox's own. Above what a client waits for one delivery; judgement."""


@dataclass(frozen=True)
class Moment:
    """When what a request brings was said, by the transaction's clock; never later than `now`.

    `earliest` takes all of the waiting as it was told. `default` is the `said_at` of what names none: where an outbox
    could not tell how long it kept something, it is now. `rank` is what `default` counts as beside other statements.
    """

    now: datetime
    earliest: datetime
    default: datetime
    rank: datetime

    @classmethod
    def of(cls, tx: Transaction, seconds_here: SecondsHere, *, queued_seconds: float | None = None) -> Moment:
        """Return the moment of a request that arrived `seconds_here` ago, and was queued before if it says so."""
        # Asked for before the time: so nothing seems to be said before it came, and what is answered before another
        # request comes was said before that one, whatever comes between these two lines.
        here = seconds_here()
        return cls.at(tx.now(), here=here, queued_seconds=queued_seconds)

    @classmethod
    def at(cls, now: datetime, *, here: float = 0.0, queued_seconds: float | None) -> Moment:
        """Return the moment of a request that is `here` seconds old at a time, and was queued before if it says so."""
        earliest = now - timedelta(seconds=here + (queued_seconds or 0.0))
        if queued_seconds is None:
            return cls(now, earliest, earliest, earliest)
        if queued_seconds >= MAX_QUEUED_SECONDS:
            return cls(now, earliest, now, earliest)
        return cls(now, earliest, earliest, min(earliest + ON_THE_WAY, now))

    def said_at(self, given: datetime | None) -> datetime:
        """Return when something was said. A time to come would outlast every later statement, so it is now."""
        return self.default if given is None else min(given, self.now)

    def ranked_at(self, given: datetime | None) -> datetime:
        """Return when it counts as said where two statements do not agree."""
        return self.rank if given is None else min(given, self.now)

    def after(self, last: datetime) -> Moment:
        """Return the moment of what goes on with a conversation whose last turn was said at `last`: an outbox's turns
        keep their order.
        """
        if not self.default < last <= self.rank:
            return self
        return Moment(self.now, self.earliest, last, self.rank)
