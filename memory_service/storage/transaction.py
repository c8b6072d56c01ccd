"""What one commit may hold: the port's Transaction over one connection."""

from __future__ import annotations

from datetime import datetime

from memory_service.ports.conversations import Digests, Sessions, Turns
from memory_service.ports.erasing import Erasing, Receipts
from memory_service.ports.facts import Facts
from memory_service.ports.jobs import Jobs
from memory_service.ports.moving import Moving
from memory_service.ports.owners import Idempotency, Owners
from memory_service.ports.searching import Search
from memory_service.storage import encoding
from memory_service.storage.rows.digests import DigestRows
from memory_service.storage.rows.erasing import Eraser
from memory_service.storage.rows.erasing_until import EraserUntil
from memory_service.storage.rows.facts import FactRows
from memory_service.storage.rows.idempotency import Answers
from memory_service.storage.rows.jobs import JobQueue
from memory_service.storage.rows.moving import Mover
from memory_service.storage.rows.owners import OwnerKeys
from memory_service.storage.rows.receipts import ReceiptRows
from memory_service.storage.rows.sessions import SessionRows
from memory_service.storage.rows.turns import TurnRows
from memory_service.storage.search import SearchIndex
from memory_service.storage.statements import Link


class RowTransaction:
    """A Transaction of the port. The nouns share one Link and lean on `owners` for keys and locks."""

    def __init__(self, link: Link, searches: SearchIndex, *, writes: bool) -> None:
        self.link = link
        self.owners: Owners = (owners := OwnerKeys(link, keeps=not writes))
        search = searches.over(link, committed=not writes, states=owners.states)
        self.search: Search = search
        self.sessions: Sessions = (sessions := SessionRows(link, owners))
        self._turns = turns = TurnRows(link)
        self.turns: Turns = turns
        self.digests: Digests = DigestRows(link)
        self._facts = facts = FactRows(link, owners, search)
        self.facts: Facts = facts
        self.jobs: Jobs = (jobs := JobQueue(link))
        self.receipts: Receipts = (receipts := ReceiptRows(link, jobs))
        self.idempotency: Idempotency = Answers(link, owners)
        self._eraser = Eraser(link, owners, receipts)
        self.erasing: Erasing = self._eraser
        self.moving: Moving = Mover(link, owners, sessions, facts, EraserUntil(link, self._eraser, facts))

    @property
    def has_erased(self) -> bool:
        """Whether this transaction erased something: what was kept in memory must go after its commit."""
        return self._eraser.has_erased or self._facts.has_deleted or self._turns.has_deleted

    def now(self) -> datetime:
        """Return the time that due times compare with."""
        return encoding.moment(self.link.now_micros())
