"""The storage port: erasures and their receipts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from memory_service.domain.owners import Erasure, Owner
from memory_service.ports.records import PurgeStep, ReceiptRow


class Erasing(Protocol):
    """Erasure, stage one."""

    def erase(self, erasure: Erasure, *, receipt_id: str, asked_by: Owner | None, now: datetime) -> ReceiptRow:
        """Delete every tier of the subject, move generations on, note when, and leave a receipt."""


class Receipts(Protocol):
    """Erasures and how far they are."""

    def add(self, receipt_id: str, *, asked_by: Owner | None, erased: Mapping[str, int], now: datetime) -> ReceiptRow:
        """Leave a receipt for something that was deleted by id, and enqueue the purge of its bytes."""

    def get(self, receipt_id: str) -> ReceiptRow | None:
        """Return a receipt; the caller checks whose it is."""

    def unpurged(self, *, limit: int) -> Sequence[ReceiptRow]:
        """Return receipts whose bytes are not gone yet, oldest first."""

    def newest_unpurged(self) -> ReceiptRow | None:
        """Return the last of them. Where a purge has written on it what it waits for, no receipt is new."""

    def note_purge(self, receipt_ids: Sequence[str], step: PurgeStep, now: datetime) -> int:
        """Write what a purge reached on receipts that were there before it; return how many are done.

        One may be done where the purge is not: others wait for what does not concern it.
        """
