"""`fold`: the oldest turns of a window become the next version of the session's digest."""

from __future__ import annotations

import logging

from memory_service.domain import digest as digests
from memory_service.domain import window
from memory_service.operations.background.held import HeldJob, LeaseLost
from memory_service.operations.enqueue import fold_job
from memory_service.operations.turns import said_turns
from memory_service.ports.models import UnparseableAnswer
from memory_service.ports.process import Step
from memory_service.ports.records import DigestRow, JobDraft
from memory_service.ports.storage import Transaction

logger = logging.getLogger(__name__)

MAX_FOLD_TURNS = 500
"""Turns that one fold reads; the rest follows in the next one."""


async def fold(held: HeldJob) -> None:
    """Summarise the previous digest and the turns that leave the window; commit both ends in one transaction.

    The turns stay in the window until the version that contains them is committed. An empty answer keeps the previous
    digest and fails the job.

    Raises:
        ModelUnavailable: nothing was stored.
        UnparseableAnswer: the model answered nothing that could be a digest.
    """
    services, config, session_id = held.services, held.services.config, held.job.session_id
    chat = services.chat
    if session_id is None or chat is None:
        return await held.drop()

    def read(tx: Transaction) -> window.FoldInput | None:
        session = tx.sessions.get(session_id)
        if session is None:
            return None
        turns = tx.turns.between(session, after=session.folded_seq, upto=None, limit=MAX_FOLD_TURNS)
        return window.FoldInput(session, turns, tx.digests.latest(session_id))

    found = await services.storage.read(read)
    held.reach(Step.TURNS_READ)
    if found is None:
        return await held.drop()
    taken = window.fold_range(
        [turn.tokens for turn in found.turns],
        window_tokens=found.session.window_tokens,
        window_turns=found.session.window_turns,
        trigger_tokens=config.compaction_trigger,
        target_tokens=config.compaction_target,
        event_cap=config.short_term.hard_event_cap,
        force=bool(held.job.payload.get("force")),
    )
    if taken == 0:
        return await held.drop()
    turns = found.turns[:taken]
    previous = found.digest.summary if found.digest is not None else ""
    summary = previous
    for prompt_turns in digests.chunks(
        said_turns(turns),
        counter=services.counter,
        context_tokens=chat.context_tokens,
        digest_tokens=config.medium_term.digest_tokens,
    ):
        messages = digests.messages(summary, prompt_turns, system_prompt=config.medium_term.system_prompt)
        answer = await chat.complete(messages, max_tokens=config.medium_term.digest_tokens)
        services.meter.count("model_tokens", answer.usage.input_tokens, direction="input", purpose="fold")
        services.meter.count("model_tokens", answer.usage.output_tokens, direction="output", purpose="fold")
        accepted = digests.accept(answer.text, counter=services.counter, max_tokens=config.medium_term.digest_tokens)
        if accepted is None:
            raise UnparseableAnswer("the model answered with an empty summary; the previous digest is kept")
        summary = accepted
    held.reach(Step.MODEL_ANSWERED)

    def store(tx: Transaction) -> JobDraft | None:
        now = tx.now()
        version = DigestRow(
            session_id=session_id,
            version=(found.digest.version if found.digest is not None else 0) + 1,
            summary=summary,
            upto_seq=turns[-1].seq,
            tokens=services.counter.count(summary),
            created_at=now,
        )
        if not tx.digests.append(
            version, folded_from=found.session.folded_seq, keep=config.medium_term.digest_retention
        ):
            raise LeaseLost(held.job.id)
        session = tx.sessions.get(session_id)
        return fold_job(services, session, now, held.job.request_id) if session is not None else None

    await held.store(store, then=lambda following: following)
    services.meter.count("turns_folded", len(turns))
    logger.info("window folded", extra={"job_id": held.job.id, "turns": len(turns), "upto_seq": turns[-1].seq})
    return None
