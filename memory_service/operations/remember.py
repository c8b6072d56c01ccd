"""`remember`: save facts now, alone or as a batch; they can be found before the call returns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

from memory_service.contract.limits import MAX_FACTS
from memory_service.contract.verbs import (
    FactBatchRequest,
    FactBatchResponse,
    NewFact,
    RememberRequest,
    RememberResponse,
)
from memory_service.domain import lexical, merging, scopes
from memory_service.domain.callers import Caller
from memory_service.domain.owners import Owner
from memory_service.errors import FieldProblem, InvalidRequest, LimitExceeded, ModelUnavailable
from memory_service.operations.background.embed import embed_job
from memory_service.operations.generations import SecondsHere, share_generation
from memory_service.operations.items import fact_item
from memory_service.operations.moments import Moment
from memory_service.operations.once import RequestKey, once
from memory_service.operations.saving import save_fact
from memory_service.operations.services import Services
from memory_service.ports.process import Step
from memory_service.ports.records import FactDraft, FactRow, FactSource, Vector
from memory_service.ports.storage import Transaction


async def remember(
    services: Services,
    caller: Caller,
    request: RememberRequest,
    *,
    request_key: RequestKey | None = None,
    seconds_here: SecondsHere = lambda: 0.0,
) -> RememberResponse:
    """Save one fact under the binding's scope or the session's; a known `key` or `dedupe_key` overwrites.

    Where the embedder does not answer the fact is found by its words now and by meaning once a job has embedded it.

    Raises:
        Erased: it builds on what was erased meanwhile.
        InvalidRequest: it had expired when it was said.
        StorageUnavailable: nothing was stored.
    """
    (answer,) = (
        await _save(
            services,
            caller,
            [request],
            place="",
            generation=request.generation,
            queued_seconds=request.queued_seconds,
            seconds_here=seconds_here,
            request_key=request_key,
        )
    ).facts
    return answer


async def remember_batch(
    services: Services,
    caller: Caller,
    request: FactBatchRequest,
    *,
    request_key: RequestKey | None = None,
    seconds_here: SecondsHere = lambda: 0.0,
) -> FactBatchResponse:
    """Save several facts, all or none."""
    return await _save(
        services,
        caller,
        request.facts,
        place="facts.{}.",
        generation=request.generation,
        queued_seconds=None,
        seconds_here=seconds_here,
        request_key=request_key,
    )


async def embed_or_wait(services: Services, texts: Sequence[str]) -> Sequence[Vector | None]:
    """Return the texts' vectors, or None for each where the embedder does not answer: a job makes them later.

    Somebody waits for the answer, so the embedder has the time that it has for a query.
    """
    try:
        async with asyncio.timeout(services.config.models.embedding.query_timeout_seconds):
            return await services.embedder.embed(texts, urgent=True)
    except (ModelUnavailable, TimeoutError):
        return [None] * len(texts)


async def _save(
    services: Services,
    caller: Caller,
    facts: Sequence[NewFact],
    *,
    place: str,
    generation: str | None,
    queued_seconds: float | None,
    seconds_here: SecondsHere,
    request_key: RequestKey | None,
) -> FactBatchResponse:
    owners = [scopes.write_owner(caller, fact.scope, fact.session_id, fact.workspace) for fact in facts]
    sessions = {fact.session_id for fact in facts if fact.session_id is not None}
    if len(sessions) > 1:
        raise InvalidRequest(
            "the facts of one batch belong to at most one session; send a batch for each",
            [FieldProblem("facts", "facts of one session", f"facts of {len(sessions)} sessions")],
        )
    session_id = next(iter(sessions), None)
    services.steps.reach(Step.WRITE_RECEIVED, "remember")
    vectors = await embed_or_wait(services, [fact.text for fact in facts])

    actions: list[str] = []
    """What this call itself did: a repeat is given an earlier answer and does nothing."""

    def work(tx: Transaction) -> FactBatchResponse:
        actions.clear()

        def store() -> FactBatchResponse:
            current = share_generation(
                tx,
                caller,
                session_id,
                given=generation,
                queued_seconds=queued_seconds,
                seconds_here=seconds_here,
            )
            if caller.principal is not None:
                tx.owners.name_principal(caller.principal)
            tx.owners.lock_many(sorted(set(owners)))
            moment = Moment.of(tx, seconds_here, queued_seconds=queued_seconds)
            now = moment.now
            saved = []
            last_added: dict[Owner, FactRow] = {}
            for number, (fact, owner, vector) in enumerate(zip(facts, owners, vectors, strict=True)):
                check_expiry(fact, moment.earliest, place.format(number))
                draft = fact_draft(caller, fact, owner, vector, moment.said_at(fact.said_at))
                candidate = newcomer(fact, moment.ranked_at(fact.said_at))
                row, action = save_fact(tx, draft, candidate, actor=caller.subject, now=now)
                if action in ("added", "superseded"):
                    last_added[row.owner] = row
                saved.append(RememberResponse(**fact_item(row).model_dump(), generation=current, action=action))
            for row in last_added.values():
                check_room(tx, row)
            if any(vector is None for vector in vectors):
                tx.jobs.enqueue(embed_job(tx), now)
            actions.extend(answer.action for answer in saved)
            return FactBatchResponse(facts=tuple(saved), generation=current)

        home = scopes.home_owner(caller)
        return once(
            tx, home, request_key, FactBatchResponse, store, carries=lambda answer: [fact.id for fact in answer.facts]
        )

    answer = await services.storage.transact(work)
    services.steps.reach(Step.WRITE_STORED, "remember")
    services.wake()
    for action in actions:
        services.meter.count("facts_written", via="remember", action=action)
    return answer


def check_expiry(fact: NewFact, said_at: datetime, place: str) -> None:
    """Refuse a fact that had expired when it was said: it would be stored and never found.

    Raises:
        InvalidRequest: it names the field; `place` is what stands before its name.
    """
    if fact.expires_at is not None and fact.expires_at <= said_at:
        raise InvalidRequest(
            f"`{place}expires_at` is in the past: the fact would never be found; give a time to come, or leave it out",
            [FieldProblem(f"{place}expires_at", "a time to come", fact.expires_at.isoformat())],
        )


def check_room(tx: Transaction, added: FactRow) -> None:
    """Refuse a fact that is one too many of its owner.

    Raises:
        LimitExceeded: there are as many as there may be.
    """
    if tx.facts.is_beyond(added, MAX_FACTS):
        raise LimitExceeded(
            f"scope {added.owner.scope.value!r} has {MAX_FACTS} facts, superseded ones included, and takes no more; "
            "delete or forget some",
            [FieldProblem("scope", f"one with fewer than {MAX_FACTS} facts", added.owner.scope.value)],
        )


def newcomer(fact: NewFact, said_at: datetime) -> merging.Newcomer:
    """Return a saved fact as merging sees it."""
    return merging.Newcomer(
        text=fact.text,
        said_at=said_at,
        key=fact.key,
        dedupe_key=fact.dedupe_key,
        expires_at=fact.expires_at,
        by_extraction=False,
    )


def fact_draft(caller: Caller, fact: NewFact, owner: Owner, vector: Vector | None, said_at: datetime) -> FactDraft:
    """Return what will be stored for a fact that a caller saves."""
    return FactDraft(
        owner=owner,
        kind=fact.kind,
        text=fact.text,
        terms=lexical.terms(lexical.fact_index_text(fact.text, key=fact.key, category=fact.category, tags=fact.tags)),
        source=FactSource(
            agent=caller.agent,
            principal=caller.principal_hash,
            session=fact.session_id or "",
            workspace=fact.workspace or "",
        ),
        said_at=said_at,
        valid_from=said_at,
        key=fact.key,
        dedupe_key=fact.dedupe_key,
        category=fact.category,
        tags=fact.tags,
        evidence=fact.evidence,
        importance=fact.importance,
        pinned=fact.pinned,
        expires_at=fact.expires_at,
        attributes=fact.attributes,
        vector=vector,
    )
