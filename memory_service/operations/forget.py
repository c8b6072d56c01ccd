"""`forget` and receipts: erase what the caller owns, and say how far it is."""

from __future__ import annotations

import uuid

from memory_service.contract.verbs import ErasureStatus, ForgetRequest, ForgetResponse, Receipt
from memory_service.domain import scopes
from memory_service.domain.callers import Caller, CallerKind
from memory_service.domain.owners import Erasure
from memory_service.errors import NotFound
from memory_service.operations.once import RequestKey, once
from memory_service.operations.services import Services
from memory_service.ports.process import Step
from memory_service.ports.records import ReceiptRow
from memory_service.ports.storage import Transaction


async def forget(
    services: Services, caller: Caller, request: ForgetRequest, *, request_key: RequestKey | None = None
) -> ForgetResponse:
    """Erase a scope that the caller owns, every tier at once; nothing reads it again once this returns.

    Raises:
        Forbidden: the scope is not the caller's to erase.
        StorageUnavailable: nothing was erased.
    """
    return await erase(services, scopes.forget_erasure(caller, request.scope, request.session_id), caller, request_key)


async def erase(
    services: Services, erasure: Erasure, caller: Caller, request_key: RequestKey | None = None
) -> ForgetResponse:
    """Erase a subject on behalf of an agent or an admin, and leave a receipt."""
    services.steps.reach(Step.WRITE_RECEIVED, "forget")
    receipt_id = str(uuid.uuid4())
    asked_by = scopes.home_owner(caller) if caller.kind is CallerKind.AGENT else None

    def work(tx: Transaction) -> ForgetResponse:
        def carry_out() -> ForgetResponse:
            row = tx.erasing.erase(erasure, receipt_id=receipt_id, asked_by=asked_by, now=tx.now())
            return ForgetResponse(receipt_id=row.id, status=ErasureStatus.ERASED, erased=dict(row.erased))

        return once(tx, asked_by, request_key, ForgetResponse, carry_out) if asked_by is not None else carry_out()

    answer = await services.storage.transact(work)
    services.steps.reach(Step.WRITE_STORED, "forget")
    services.embedder.forget_queries()
    services.wake()
    services.meter.count("erasures")
    return answer


async def get_receipt(services: Services, caller: Caller, receipt_id: str) -> Receipt:
    """Return the receipt of an erasure that the caller asked for; an admin sees every receipt."""

    def read(tx: Transaction) -> Receipt:
        row = tx.receipts.get(receipt_id)
        own = row is not None and (row.agent, row.principal) == (caller.agent, caller.principal_hash)
        if row is None or not (own or caller.kind is CallerKind.ADMIN):
            raise NotFound(f"no receipt {receipt_id!r} of this agent and user")
        return receipt_answer(row)

    return await services.storage.read(read)


def receipt_answer(row: ReceiptRow) -> Receipt:
    """Return a receipt as it is answered."""
    return Receipt(
        receipt_id=row.id,
        status=row.status,
        erased=dict(row.erased),
        erased_at=row.erased_at,
        purged_at=row.purged_at,
        waiting_for=row.waiting_for,
    )
