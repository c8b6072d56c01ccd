"""The admin's verbs: over the whole store, for listed admins only."""

from __future__ import annotations

import uuid
from collections import Counter

from memory_service.contract.sessions import (
    AdminEraseRequest,
    Diagnostics,
    ExportPage,
    ImportRequest,
    ImportResponse,
    JobState,
    ReplayResponse,
)
from memory_service.contract.verbs import ForgetResponse, ListResponse
from memory_service.domain import scopes
from memory_service.domain.callers import Caller, CallerKind
from memory_service.domain.pages import page
from memory_service.errors import Forbidden
from memory_service.operations.cursors import decode_cursor, encode_cursor
from memory_service.operations.forget import erase
from memory_service.operations.items import fact_chars, fact_item
from memory_service.operations.services import Services
from memory_service.ports.records import ItemFilters
from memory_service.ports.storage import Transaction


async def admin_erase(services: Services, caller: Caller, request: AdminEraseRequest) -> ForgetResponse:
    """Erase everything of a principal, an agent or a session, under every owner key of the store."""
    return await erase(services, scopes.subject_erasure(caller, request.subject), caller)


async def admin_list(services: Services, caller: Caller, *, cursor: str | None, limit: int) -> ListResponse:
    """Return active facts of the whole store in the order in which they were stored."""
    _admins_only(caller)
    after = int(decode_cursor(cursor, int)[0]) if cursor is not None else 0

    def read(tx: Transaction) -> ListResponse:
        filters = ItemFilters(now=tx.now())
        rows, more = page(
            lambda place, count: tx.facts.list_all(filters=filters, limit=count, after=place or None),
            after,
            limit=limit,
            place=lambda row: row.row_id,
            chars=fact_chars,
        )
        return ListResponse(
            items=tuple(fact_item(row) for row in rows), next_cursor=encode_cursor(rows[-1].row_id) if more else None
        )

    return await services.storage.read(read)


async def diagnostics(services: Services, caller: Caller) -> Diagnostics:
    """Count everything in the store."""
    _admins_only(caller)
    return await services.storage.diagnostics()


async def replay(services: Services, caller: Caller, state: JobState) -> ReplayResponse:
    """Put every job of a state back into the queue."""
    _admins_only(caller)
    count = await services.storage.transact(lambda tx: tx.jobs.replay(state, tx.now()))
    services.wake()
    return ReplayResponse(replayed=count)


async def export_page(services: Services, caller: Caller, *, cursor: str | None, limit: int) -> ExportPage:
    """Return one page of everything, in an order that an import can follow."""
    _admins_only(caller)
    lines, following = await services.storage.read(lambda tx: tx.moving.export(cursor=cursor, limit=limit))
    return ExportPage(lines=tuple(dict(line) for line in lines), next_cursor=following)


async def import_lines(services: Services, caller: Caller, request: ImportRequest) -> ImportResponse:
    """Store lines of an export, all or none; what was erased, here or where they come from, stays away.

    What was deleted where the lines come from is deleted here, with a receipt for its bytes.
    """
    _admins_only(caller)
    receipt_id = str(uuid.uuid4())

    def work(tx: Transaction) -> ImportResponse:
        now = tx.now()
        restored = tx.moving.restore(request.lines, now)
        outcomes = Counter(restored.outcomes)
        if outcomes["erased"]:
            tx.receipts.add(receipt_id, asked_by=None, erased=restored.erased, now=now)
        return ImportResponse(
            imported=outcomes["imported"],
            skipped=outcomes["skipped"],
            tombstoned=outcomes["tombstoned"],
            left_out=outcomes["left_out"],
            erased=outcomes["erased"],
            receipt_id=receipt_id if outcomes["erased"] else None,
        )

    answer = await services.storage.transact(work)
    if answer.erased:
        services.embedder.forget_queries()
    services.wake()
    return answer


def _admins_only(caller: Caller) -> None:
    if caller.kind is not CallerKind.ADMIN:
        raise Forbidden("this route is for the store's listed admins; ask for a token with the admin audience")
