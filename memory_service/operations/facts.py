"""`facts`: look at one fact, correct it, supersede it, delete it; always inside the caller's own scopes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

from pydantic import BaseModel

from memory_service.contract.items import FactStatus, Item
from memory_service.contract.verbs import (
    ErasureStatus,
    FactPatch,
    ForgetResponse,
    HistoryEntry,
    HistoryResponse,
    NewFact,
    RememberResponse,
    SupersedeRequest,
)
from memory_service.domain import lexical, scopes
from memory_service.domain.callers import Caller
from memory_service.errors import Conflict, Forbidden, NotFound
from memory_service.operations.background.embed import embed_job
from memory_service.operations.generations import SecondsHere, share_generation
from memory_service.operations.items import fact_item
from memory_service.operations.moments import Moment
from memory_service.operations.once import RequestKey, once
from memory_service.operations.remember import check_expiry, check_room, embed_or_wait, fact_draft
from memory_service.operations.saving import writer
from memory_service.operations.services import Services
from memory_service.ports.records import FactChange, FactRow, Vector
from memory_service.ports.storage import Transaction

M = TypeVar("M", bound=BaseModel)


async def get_fact(services: Services, caller: Caller, fact_id: str) -> Item:
    """Return a fact; another owner's is not there."""
    return await services.storage.read(lambda tx: fact_item(_readable(tx, caller, fact_id)))


async def fact_history(services: Services, caller: Caller, fact_id: str) -> HistoryResponse:
    """Return a fact's changes, oldest first."""

    def read(tx: Transaction) -> HistoryResponse:
        row = _readable(tx, caller, fact_id)
        entries = tuple(
            HistoryEntry(at=line.at, event=line.event, text=line.text, actor=line.actor)
            for line in tx.facts.history(row.id)
        )
        return HistoryResponse(id=row.id, entries=entries)

    return await services.storage.read(read)


async def patch_fact(
    services: Services, caller: Caller, fact_id: str, patch: FactPatch, *, request_key: RequestKey | None = None
) -> Item:
    """Correct a fact in place; its history keeps what it said before.

    Raises:
        Conflict: it has another revision than the patch expects.
    """
    vector: Vector | None = None
    if patch.text is not None:
        (vector,) = await embed_or_wait(services, [patch.text])

    def work(tx: Transaction) -> Item:
        row = _held(tx, caller, fact_id)
        now = tx.now()
        fields = {name: getattr(patch, name) for name in patch.model_fields_set - {"revision"}}
        merged = {name: fields.get(name, getattr(row, name)) for name in ("text", "category", "tags")}
        terms = None
        if fields.keys() & merged.keys():
            terms = lexical.terms(
                lexical.fact_index_text(merged["text"], key=row.key, category=merged["category"], tags=merged["tags"])
            )
        same_text = merged["text"] == row.text
        change = FactChange(fields=fields, terms=terms, vector=None if same_text else vector, keeps_vector=same_text)
        changed = tx.facts.change(
            fact_id, change, event="corrected", actor=caller.subject, now=now, expected_revision=patch.revision
        )
        if not changed.has_vector:
            tx.jobs.enqueue(embed_job(tx), now)
        return fact_item(changed)

    return await _once(services, caller, request_key, Item, work, carries=lambda answer: [answer.id])


async def supersede_fact(
    services: Services,
    caller: Caller,
    fact_id: str,
    request: SupersedeRequest,
    *,
    request_key: RequestKey | None = None,
    seconds_here: SecondsHere = lambda: 0.0,
) -> RememberResponse:
    """Put a new statement in a fact's place, under its key; the old one keeps its validity and names its successor.

    Raises:
        Conflict: the fact has a successor already.
        InvalidRequest: the new statement has expired.
        LimitExceeded: it would be one too many of its owner.
    """
    (vector,) = await embed_or_wait(services, [request.text])

    def work(tx: Transaction) -> RememberResponse:
        generation = share_generation(tx, caller, None, given=None, queued_seconds=None)
        row = _held(tx, caller, fact_id)
        if row.status is not FactStatus.ACTIVE:
            raise Conflict(f"fact {fact_id} is {row.status.value}; supersede its successor {row.superseded_by!r}")
        moment = Moment.of(tx, seconds_here)
        now = moment.now
        place = {"workspace": row.owner.workspace or None, "session_id": row.owner.session or None}
        new = NewFact(**{**request.model_dump(), **place, "key": row.key})
        if new.dedupe_key is None:
            new = new.model_copy(update={"dedupe_key": row.dedupe_key})
        check_expiry(new, moment.earliest, "")
        draft = fact_draft(caller, new, row.owner, vector, moment.said_at(new.said_at))
        tx.facts.supersede(
            fact_id,
            successor_id=(new_id := str(uuid.uuid4())),
            valid_to=row.ends_for(draft.valid_from),
            actor=caller.subject,
            now=now,
        )
        added = tx.facts.add(draft, fact_id=new_id, actor=caller.subject, now=now)
        check_room(tx, added)
        if vector is None:
            tx.jobs.enqueue(embed_job(tx), now)
        return RememberResponse(**fact_item(added).model_dump(), generation=generation, action="superseded")

    return await _once(services, caller, request_key, RememberResponse, work, carries=lambda answer: [answer.id])


async def delete_fact(
    services: Services, caller: Caller, fact_id: str, *, request_key: RequestKey | None = None
) -> ForgetResponse:
    """Delete a fact with its history and vector, and leave a receipt: its bytes are purged like an erasure's."""
    receipt_id = str(uuid.uuid4())

    def work(tx: Transaction) -> ForgetResponse:
        _held(tx, caller, fact_id)
        erased = tx.facts.delete(fact_id)
        receipt = tx.receipts.add(receipt_id, asked_by=scopes.home_owner(caller), erased=erased, now=tx.now())
        return ForgetResponse(receipt_id=receipt.id, status=ErasureStatus.ERASED, erased=dict(erased))

    answer = await _once(services, caller, request_key, ForgetResponse, work)
    services.embedder.forget_queries()
    return answer


async def _once(
    services: Services,
    caller: Caller,
    request_key: RequestKey | None,
    model: type[M],
    work: Callable[[Transaction], M],
    *,
    carries: Callable[[M], Sequence[str]] = lambda answer: (),
) -> M:
    home = scopes.home_owner(caller)
    answer = await services.storage.transact(
        lambda tx: once(tx, home, request_key, model, lambda: work(tx), carries=carries)
    )
    services.wake()
    return answer


def _readable(tx: Transaction, caller: Caller, fact_id: str) -> FactRow:
    row = tx.facts.get(fact_id)
    if row is None or not scopes.may_read(caller, row.owner, writer(row)):
        raise NotFound(f"no fact {fact_id!r} in the scopes of this agent and user")
    return row


def _changeable(tx: Transaction, caller: Caller, fact_id: str) -> FactRow:
    row = _readable(tx, caller, fact_id)
    if not scopes.may_change(caller, row.owner, writer(row)):
        raise Forbidden(f"fact {fact_id!r} can be read but not changed by {caller.agent!r}; ask its writer or an admin")
    return row


def _held(tx: Transaction, caller: Caller, fact_id: str) -> FactRow:
    """Return a fact that may be changed as it is once no other writer can change it."""
    tx.owners.lock(_changeable(tx, caller, fact_id).owner)
    return _changeable(tx, caller, fact_id)
