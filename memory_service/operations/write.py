"""`write`: append turns to a session, with the work that they cause, in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from memory_service.contract.limits import MAX_SESSIONS
from memory_service.contract.verbs import WriteRequest, WriteResponse
from memory_service.domain import scopes
from memory_service.domain.callers import Caller
from memory_service.errors import FieldProblem, LimitExceeded
from memory_service.operations.enqueue import extract_job, fold_job, index_job
from memory_service.operations.generations import SecondsHere, share_generation
from memory_service.operations.moments import Moment
from memory_service.operations.once import RequestKey, once
from memory_service.operations.services import Services
from memory_service.operations.turns import said_then, turn_draft
from memory_service.ports.process import Step
from memory_service.ports.records import SessionRow, TurnDraft
from memory_service.ports.storage import Transaction

_LARGE_CHARS = 20_000
"""Batches above this are counted and stemmed in a thread, so that the loop is free for others; judgement."""


async def write(
    services: Services,
    caller: Caller,
    request: WriteRequest,
    *,
    request_key: RequestKey | None = None,
    request_id: str | None = None,
    seconds_here: SecondsHere = lambda: 0.0,
) -> WriteResponse:
    """Store turns and the jobs that they cause; both are durable when this returns.

    Raises:
        Erased: the turns belong to a state that was erased meanwhile.
        LimitExceeded: the session would be one too many.
        ScopeUnresolved: the facts of these turns would have no owner.
        StorageUnavailable: nothing was stored.
    """
    owner = scopes.session_owner(caller, request.session_id, request.workspace)
    fact_scope = scopes.write_owner(caller, None, request.session_id, request.workspace).scope
    services.steps.reach(Step.WRITE_RECEIVED)
    size = sum(len(turn.content or "") + 100 * len(turn.parts or ()) for turn in request.turns)
    drafts = await asyncio.to_thread(_drafts, services, request) if size > _LARGE_CHARS else _drafts(services, request)

    written: set[int] = set()
    """The seqs that this call itself gave: a repeat writes nothing."""

    def work(tx: Transaction) -> WriteResponse:
        written.clear()

        def append() -> WriteResponse:
            generation = share_generation(
                tx,
                caller,
                request.session_id,
                given=request.generation,
                queued_seconds=request.queued_seconds,
                seconds_here=seconds_here,
            )
            if caller.principal is not None:
                tx.owners.name_principal(caller.principal)
            moment = Moment.of(tx, seconds_here, queued_seconds=request.queued_seconds)
            session = tx.sessions.ensure(owner, fact_scope, moment.now)
            if session.last_seq == 0 and tx.sessions.is_beyond(session, MAX_SESSIONS):
                raise _too_many_sessions()
            if request.queued_seconds is not None:
                moment = _going_on(tx, session, moment)
            said = [
                said_then(draft, moment.said_at(turn.said_at))
                for draft, turn in zip(drafts, request.turns, strict=True)
            ]
            seqs = tx.turns.append(session, said, moment.now)
            written.update(seq for seq in seqs if seq > session.last_seq)
            after = _after(session, seqs, said)
            jobs = _enqueue(tx, services, after, request_id) if after.last_seq > session.last_seq else []
            return WriteResponse(
                session_id=request.session_id,
                seqs=tuple(seqs),
                jobs=tuple(jobs),
                scheduled=bool(jobs),
                generation=generation,
            )

        return once(tx, scopes.home_owner(caller), request_key, WriteResponse, append)

    answer = await services.storage.transact(work)
    services.steps.reach(Step.WRITE_STORED)
    if answer.jobs:
        services.wake()
    services.meter.count("turns_written", len(written))
    return answer


def _too_many_sessions() -> LimitExceeded:
    return LimitExceeded(
        f"an agent has at most {MAX_SESSIONS} sessions on behalf of one user in one workspace; forget some, or go on in"
        " one that is there",
        [FieldProblem("session_id", f"one of the {MAX_SESSIONS} sessions that there are", None)],
    )


def _drafts(services: Services, request: WriteRequest) -> list[TurnDraft]:
    """Return the turns as they will be stored if the database's clock is this one; it has the last word."""
    moment = Moment.at(services.clock.now(), queued_seconds=request.queued_seconds)
    return [
        turn_draft(turn, counter=services.counter, said_at=moment.said_at(turn.said_at), infer=request.infer)
        for turn in request.turns
    ]


def _going_on(tx: Transaction, session: SessionRow, moment: Moment) -> Moment:
    last = tx.turns.between(session, after=session.last_seq - 1, upto=None, limit=1)
    return moment.after(last[0].said_at) if last else moment


def _after(session: SessionRow, seqs: Sequence[int], drafts: Sequence[TurnDraft]) -> SessionRow:
    """Return the session, which this transaction holds, with the totals that appending has given it."""
    fresh: dict[int, int] = {}
    for seq, draft in zip(seqs, drafts, strict=True):
        if seq > session.last_seq:
            fresh.setdefault(seq, draft.tokens)  # of turns with one id the first is stored
    return replace(
        session,
        last_seq=max([session.last_seq, *fresh]),
        window_turns=session.window_turns + len(fresh),
        window_tokens=session.window_tokens + sum(fresh.values()),
    )


def _enqueue(tx: Transaction, services: Services, session: SessionRow, request_id: str | None) -> list[str]:
    now = tx.now()
    drafts = (
        index_job(services.config, session, now, request_id),
        fold_job(services, session, now, request_id),
        extract_job(services, session, now, request_id),
    )
    return [tx.jobs.enqueue(draft, now) for draft in drafts if draft is not None]
