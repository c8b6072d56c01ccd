"""Receipts of erasures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

from memory_service.contract.verbs import ErasureStatus
from memory_service.domain.owners import Owner
from memory_service.ports.records import JobDraft, PurgeStep, ReceiptRow
from memory_service.storage.encoding import dump, load_strings, micros, moment, moment_or_none
from memory_service.storage.rows.jobs import JobQueue
from memory_service.storage.rows.remains import Remains
from memory_service.storage.statements import Link, Row

_SELECT = "SELECT id, agent, principal, status, erased, erased_at, purged_at, waiting_for FROM @receipts"


class ReceiptRows:
    """The port's Receipts."""

    def __init__(self, link: Link, jobs: JobQueue) -> None:
        self._link = link
        self._jobs = jobs
        self._remains = Remains(link)

    def add(self, receipt_id: str, *, asked_by: Owner | None, erased: Mapping[str, int], now: datetime) -> ReceiptRow:
        """Leave a receipt, and enqueue the purge of the bytes; whatever is to be purged was noted before."""
        receipt = ReceiptRow(
            id=receipt_id,
            agent=asked_by.agent if asked_by else "",
            principal=asked_by.principal if asked_by else "",
            status=ErasureStatus.ERASED,
            erased=erased,
            erased_at=now,
            purged_at=None,
            waiting_for=(),
        )
        self._link.run(
            "INSERT INTO @receipts (id, agent, principal, status, erased, erased_at, purged_at, waiting_for)"
            " VALUES (:id, :agent, :principal, 'erased', :erased, :erased_at, NULL, '[]')",
            {
                "id": receipt.id,
                "agent": receipt.agent,
                "principal": receipt.principal,
                "erased": dump(dict(receipt.erased)),
                "erased_at": micros(receipt.erased_at),
            },
        )
        self._remains.note_receipt(receipt_id)
        self._jobs.enqueue(JobDraft.of_purge(now), now)
        return receipt

    def get(self, receipt_id: str) -> ReceiptRow | None:
        """Return a receipt."""
        found = self._link.row(f"{_SELECT} WHERE id = :id", {"id": receipt_id})
        return None if found is None else _receipt_row(found)

    def unpurged(self, *, limit: int) -> Sequence[ReceiptRow]:
        """Return receipts whose bytes are not gone yet, oldest first."""
        found = self._link.rows(
            f"{_SELECT} WHERE status = 'erased' ORDER BY erased_at, id LIMIT :limit", {"limit": limit}
        )
        return [_receipt_row(row) for row in found]

    def newest_unpurged(self) -> ReceiptRow | None:
        """Return the last of them. Where a purge has written on it what it waits for, no receipt is new."""
        found = self._link.row(f"{_SELECT} WHERE status = 'erased' ORDER BY erased_at DESC, id DESC LIMIT 1")
        return None if found is None else _receipt_row(found)

    def note_purge(self, receipt_ids: Sequence[str], step: PurgeStep, now: datetime) -> int:
        """Write what a purge reached; return how many receipts are done."""
        settled = self._remains.settled(receipt_ids) if self._link.is_postgres else []
        purged = list(receipt_ids) if step.done else settled
        self._remains.drop_receipts(purged)
        self._link.run(
            "UPDATE @receipts SET waiting_for = :waiting_for WHERE id IN [:ids] AND status = 'erased'",
            {"ids": list(receipt_ids), "waiting_for": dump(list(step.waiting_for))},
        )
        return self._link.run(
            "UPDATE @receipts SET status = 'purged', purged_at = :now, waiting_for = '[]'"
            " WHERE id IN [:ids] AND status = 'erased'",
            {"ids": purged, "now": micros(now)},
        )


def _receipt_row(found: Row) -> ReceiptRow:
    return ReceiptRow(
        id=found[0],
        agent=found[1],
        principal=found[2],
        status=ErasureStatus(found[3]),
        erased=json.loads(found[4]),
        erased_at=moment(found[5]),
        purged_at=moment_or_none(found[6]),
        waiting_for=load_strings(found[7]),
    )
