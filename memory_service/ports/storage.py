"""The storage port: one interface, two implementations, one conformance suite.

Every method that touches memory takes its owner, or a row that was found under one. An empty owner set returns nothing.
Methods never commit: `Storage.transact` runs a function and commits once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from memory_service.contract.health import PartHealth
from memory_service.contract.sessions import Diagnostics
from memory_service.ports.conversations import Digests, Sessions, Turns
from memory_service.ports.erasing import Erasing, Receipts
from memory_service.ports.facts import Facts
from memory_service.ports.jobs import Jobs
from memory_service.ports.moving import Moving
from memory_service.ports.owners import Idempotency, Owners
from memory_service.ports.records import PurgeStep
from memory_service.ports.searching import Search

T = TypeVar("T")


class Transaction(Protocol):
    """Everything that one commit may hold."""

    owners: Owners
    sessions: Sessions
    turns: Turns
    digests: Digests
    facts: Facts
    jobs: Jobs
    receipts: Receipts
    idempotency: Idempotency
    erasing: Erasing
    search: Search
    moving: Moving

    def now(self) -> datetime:
        """Return the time that job due times compare with: the database's plus the clock's shift."""


class Storage(Protocol):
    """A backend."""

    async def transact(self, work: Callable[[Transaction], T], *, urgent: bool = False) -> T:
        """Run `work` in one transaction and commit it durably before returning.

        `urgent` work does not queue behind writes of this process that wait for rows which others hold; it is for what
        must not be late and takes no owner's lock, such as the renewal of a lease.

        `work` must be safe to run again from the start: it is, once, when the connection is lost before the commit.
        Whatever it raises rolls everything back.

        Raises:
            StorageUnavailable: nothing was stored; or the database does not say so in time, which `detail` tells.
        """

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` over one consistent snapshot; it must not write."""

    async def migrate(self) -> None:
        """Bring the schema up to date; refuses one that is too new or made for another embedding.

        Raises:
            Misconfigured: with what is wrong and what to do.
        """

    async def health(self) -> Mapping[str, PartHealth]:
        """Return the parts `storage` and `schema`, from a real query with a timeout; never raises."""

    async def purge(self) -> PurgeStep:
        """Carry the bytes of erased rows off the disk: a step that may be repeated."""

    async def rebuild_index(self) -> None:
        """Make the vector index anew from the rows."""

    async def reconcile_index(self) -> int:
        """Bring the vector index up to the rows (local: Chroma); return how many rows it moved."""

    async def diagnostics(self) -> Diagnostics:
        """Count everything."""

    async def schemas_left_behind(self) -> Sequence[str]:
        """Name schemas in this database that nobody has opened since an earlier store of the same name and cluster."""

    async def close(self) -> None:
        """Finish what runs, close connections and give the folder's lock back; repeating it does nothing.

        Everything after it, `migrate` too, raises StorageUnavailable, and `health` says that nothing is open.
        """
