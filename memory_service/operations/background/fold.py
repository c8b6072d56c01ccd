"""`fold`: the oldest turns of a window become the next version of the session's digest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from memory_service.domain import digest as digests
from memory_service.domain import window
from memory_service.errors import ModelRefused
from memory_service.operations.background.held import HeldJob, LeaseLost
from memory_service.operations.background.portions import chars_of_job, place_in, place_of
from memory_service.operations.background.refused import leave_out
from memory_service.operations.enqueue import fold_is_due, fold_job
from memory_service.operations.services import Services
from memory_service.operations.turns import turn_page
from memory_service.ports.models import Chat, Message, Truncated, UnparseableAnswer
from memory_service.ports.process import Step
from memory_service.ports.records import DigestRow, JobDraft, SessionRow, TurnRow
from memory_service.ports.storage import Transaction

logger = logging.getLogger(__name__)

MAX_FOLD_TURNS = 500
"""Turns that one fold reads; the rest follows in the next one."""
MAX_PARTS = 4
"""Parts of a model's context that one fold asks about; of a longer turn the rest follows in the next one."""
NOTHING_TAKEN = "Messages of this time could not be summarised."
"""The digest of turns that the model refuses, every one of them."""


@dataclass(frozen=True)
class _Found:
    session: SessionRow
    folded: Sequence[TurnRow]
    is_more: bool
    digest: DigestRow | None


async def fold(held: HeldJob) -> None:
    """Summarise the previous digest and the turns that leave the window; commit both ends in one transaction.

    The turns stay in the window until the version that contains them is committed. An empty answer keeps the previous
    digest and fails the job. A turn that the model refuses is left out of the digest.

    Raises:
        ModelUnavailable: nothing was stored.
        UnparseableAnswer: the model answered nothing that could be a digest.
    """
    services, config, session_id = held.services, held.services.config, held.job.session_id
    chat = services.chat
    if session_id is None or chat is None:
        return await held.drop()

    def read(tx: Transaction) -> _Found | None:
        session = tx.sessions.get(session_id)
        if session is None:
            return None
        folded, is_more = _folded(tx, services, session, chars_of_job(chat))
        return _Found(session, folded, is_more, tx.digests.latest(session_id))

    found = await services.storage.read(read)
    held.reach(Step.TURNS_READ)
    is_forced = bool(held.job.payload.get("force"))
    if found is None or not (fold_is_due(services, found.session) or is_forced):
        return await held.drop()
    turns = found.folded
    if not turns:
        return await held.drop()
    begin = place_of(held.job, turns[-1].seq)
    prior = found.digest.summary if found.digest is not None else ""
    summary, end = await _summarise(services, chat, prior, turns, begin)
    upto_seq = turns[-1].seq if end is None else found.session.folded_seq
    held.reach(Step.MODEL_ANSWERED)

    def store(tx: Transaction) -> JobDraft | None:
        now = tx.now()
        version = DigestRow(
            session_id=session_id,
            version=found.session.digest_version + 1,
            summary=summary,
            upto_seq=upto_seq,
            tokens=services.counter.count(summary),
            created_at=now,
        )
        if not tx.digests.append(
            version, folded_from=found.session.folded_seq, keep=config.medium_term.digest_retention
        ):
            raise LeaseLost(held.job.id)
        session = tx.sessions.get(session_id)
        if session is None:
            return None
        following = fold_job(
            services, session, now, held.job.request_id, force=end is not None or (is_forced and found.is_more)
        )
        if following is None or end is None:
            return following
        return replace(following, payload={**following.payload, **place_in(turns[-1].seq, end)})

    await held.store(store, then=lambda following: following)
    services.meter.count("turns_folded", len(turns) if end is None else 0)
    logger.info("window folded", extra={"job_id": held.job.id, "turns": len(turns), "upto_seq": upto_seq})
    return None


def _folded(
    tx: Transaction, services: Services, session: SessionRow, most_chars: int
) -> tuple[Sequence[TurnRow], bool]:
    """Return the turns that a fold takes, and whether turns of the window were not looked at.

    They are of about so many characters, but never less than one turn, or one call with its results.
    """
    while True:
        turns, is_more = turn_page(tx, session, after=session.folded_seq, limit=MAX_FOLD_TURNS, most_chars=most_chars)
        folded = window.fold_range(
            turns,
            target_tokens=services.config.compaction_target,
            event_cap=services.config.short_term.hard_event_cap,
            tokens_beyond=max(0, session.window_tokens - sum(turn.tokens for turn in turns)) if is_more else 0,
            turns_beyond=max(0, session.window_turns - len(turns)) if is_more else 0,
        )
        if folded or not is_more or len(turns) >= MAX_FOLD_TURNS:
            return folded, is_more
        most_chars *= 2  # what was read is one turn, or a call with its results


async def _summarise(
    services: Services, chat: Chat, prior: str, turns: Sequence[TurnRow], begin: int
) -> tuple[str, int | None]:
    """Return the digest with these turns from their part `begin` on, and the part to read on from; None at the end."""
    config = services.config.medium_term
    summary = prior
    parts = await asyncio.to_thread(
        digests.chunks,
        turns,
        context_tokens=chat.context_tokens,
        digest_tokens=config.digest_tokens,
        counter=services.counter,
        system_prompt=config.system_prompt,
    )
    end = begin + MAX_PARTS
    for lines in parts[begin:end]:
        summary = await _with_lines(services, chat, summary, lines)
    return summary or NOTHING_TAKEN, end if end < len(parts) else None


async def _with_lines(services: Services, chat: Chat, summary: str, lines: Sequence[str]) -> str:
    """Return the summary with these lines. Where the model refuses or is cut off, halves of them are asked about, at
    last of a long line's text.

    A piece of a line that is refused is left out; so are sentences of the summary that are refused without any line.
    All else of the summary stays, also where a line is refused beside it alone.
    """
    try:
        return await _asked(services, chat, summary, lines)
    except (ModelRefused, Truncated) as error:
        parts = _halves(lines)
        if parts is None and isinstance(error, Truncated):
            raise
    if parts is not None:
        for part in parts:
            summary = await _with_lines(services, chat, summary, part)
        return summary
    kept = (await _without_refused(services, chat, summary)).strip()
    if kept != summary:
        return await _with_lines(services, chat, kept, lines)
    leave_out(services, "digest")
    return summary


def _halves(lines: Sequence[str]) -> tuple[Sequence[str], Sequence[str]] | None:
    if len(lines) > 1:
        middle = len(lines) // 2
        return lines[:middle], lines[middle:]
    halves = digests.halved(lines[0]) if lines else None
    return ((halves[0],), (halves[1],)) if halves is not None else None


async def _without_refused(services: Services, chat: Chat, summary: str) -> str:
    """Return the summary without the sentences that the model refuses: with one of them it would refuse every line."""
    if not summary:
        return ""
    try:
        await _asked(services, chat, summary, ())
    except ModelRefused:
        halves = digests.halved_notes(summary)
        if halves is None:
            leave_out(services, "digest")
            return ""
        return "".join([await _without_refused(services, chat, half) for half in halves])
    except UnparseableAnswer:
        pass  # It was not refused.
    return summary


async def _asked(services: Services, chat: Chat, summary: str, lines: Sequence[str]) -> str:
    config = services.config.medium_term
    prompt = digests.prompt(
        summary,
        lines,
        digest_tokens=config.digest_tokens,
        counter=services.counter,
        system_prompt=config.system_prompt,
    )
    messages = (Message("system", prompt.system), Message("user", prompt.user))
    usual = digests.answer_tokens(chat.context_tokens, config.digest_tokens)
    # A model that thinks before it answers needs more than the notes take.
    most = await asyncio.to_thread(
        digests.tokens_left, prompt, context_tokens=chat.context_tokens, counter=services.counter
    )
    for allowed in (usual, most) if most > usual else (usual,):
        answer = await chat.complete(messages, max_tokens=allowed)
        accepted = await asyncio.to_thread(
            digests.accepted,
            answer.text,
            digest_tokens=config.digest_tokens,
            counter=services.counter,
            truncated=answer.truncated,
        )
        if accepted is not None:
            return accepted
        if not answer.truncated:
            raise UnparseableAnswer("the model answered with an empty summary; the previous digest is kept")
    raise Truncated(f"the summary was cut off at {allowed} tokens; the previous digest is kept")
