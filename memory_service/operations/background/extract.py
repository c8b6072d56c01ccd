"""`extract`: turns become facts, through an engine that only proposes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from memory_service.contract.turns import Role
from memory_service.domain import extraction, lexical, merging, scopes
from memory_service.domain.owners import Owner, covering
from memory_service.errors import ModelRefused
from memory_service.operations.background.held import HeldJob, LeaseLost
from memory_service.operations.background.portions import chars_of_job, place_in, place_of
from memory_service.operations.background.refused import leave_out, vectors_or_none
from memory_service.operations.enqueue import extract_job
from memory_service.operations.saving import SIMILAR_FACTS, save_fact
from memory_service.operations.services import Services
from memory_service.operations.turns import said_turns, turn_page
from memory_service.ports.models import Candidate, Engine, KnownFact, SaidTurn, UnparseableAnswer
from memory_service.ports.process import Step
from memory_service.ports.records import (
    FactDraft,
    FactRow,
    FactSource,
    JobDraft,
    JobRow,
    SessionRow,
    TurnRow,
    Vector,
)
from memory_service.ports.storage import Transaction

logger = logging.getLogger(__name__)

MAX_EXTRACT_TURNS = 40
"""Turns that one extraction reads at most; what waits beyond them follows in the next job."""
CONTEXT_TURNS = 6
"""Earlier turns shown to the engine, so that "yes, that one" can be understood; judgement."""
ACTOR = "extraction"
PLAIN_TURN = SaidTurn(1, Role.USER, "I live in Oslo.", None, datetime(2026, 1, 1, tzinfo=UTC))
"""What any model that can extract at all gives an answer of the right shape to."""


@dataclass(frozen=True)
class _Found:
    session: SessionRow
    turns: Sequence[TurnRow]
    is_more: bool
    context: Sequence[TurnRow]


async def extract(held: HeldJob) -> None:
    """Propose facts from the turns that wait, merge them under their owner's lock and move on, in one transaction.

    A turn that the model refuses is left out; before the job would be dead, so is one without a usable answer.

    Raises:
        ModelUnavailable: nothing was stored; the turns wait.
        UnparseableAnswer: the job failed; the turns wait.
    """
    services, session_id = held.services, held.job.session_id
    engine = services.engine
    if session_id is None or engine is None:
        return await held.drop()
    found = await services.storage.read(lambda tx: _read(tx, session_id, chars_of_job(services.chat)))
    held.reach(Step.TURNS_READ)
    if found is None or not found.turns:
        return await held.drop()
    owner = scopes.fact_owner(found.session.owner, found.session.fact_scope)
    inferable = [turn for turn in found.turns if turn.infer]
    said, following_place = _portion(said_turns(inferable), held.job, chars_of_job(services.chat))
    upto_seq = found.session.extracted_seq if following_place else found.turns[-1].seq
    candidates: Sequence[Candidate] = ()
    refs: Mapping[str, str] = {}
    shown_ids: Mapping[str, str] = {}
    if said:
        known = await _known_facts(services, owner, "\n".join(turn.text for turn in said))
        refs = {f"k{number}": fact.id for number, fact in enumerate(known, start=1)}
        shown_ids = {" ".join(fact.text.split()): fact.id for fact in known}  # as candidates are written
        shown = [KnownFact(ref, fact.text) for ref, fact in zip(refs, known, strict=True)]
        proposing = _Proposing(services, engine, failures=held.job.failures)
        candidates = await proposing.candidates(said, said_turns(found.context), shown)
    held.reach(Step.MODEL_ANSWERED)
    vectors = await vectors_or_none(services, [candidate.text for candidate in candidates], purpose="facts")
    held.reach(Step.VECTORS_MADE)
    actions: list[str] = []

    def store(tx: Transaction) -> JobDraft | None:
        actions.clear()
        tx.owners.share(covering(found.session.owner))
        tx.owners.lock(owner)
        now = tx.now()
        moved = tx.sessions.advance_extracted(session_id, from_seq=found.session.extracted_seq, to_seq=upto_seq)
        if not moved:
            raise LeaseLost(held.job.id)
        for candidate, vector in _in_order(candidates, vectors, found.turns):
            if not _is_still_known(tx, shown_ids.get(candidate.text)):
                continue
            said_at = min(_said_at(candidate, found.turns), now)
            newcomer = merging.Newcomer(
                text=candidate.text,
                said_at=said_at,
                updates=refs.get(candidate.updates) if candidate.updates is not None else None,
                contradicts=candidate.contradicts,
            )
            draft = _draft(owner, found.session.owner, candidate, vector, said_at=said_at, turns=inferable)
            actions.append(save_fact(tx, draft, newcomer, actor=ACTOR, now=now)[1])
        session = tx.sessions.get(session_id)
        if session is None:
            return None
        is_more = bool(following_place) or _is_more(session, found)
        following = extract_job(services, session, now, held.job.request_id, force=is_more)
        return replace(following, payload=following_place) if following is not None and following_place else following

    async with services.turnstile.before(owner):
        await held.store(store, then=lambda following: following)
    for action in actions:
        services.meter.count("facts_written", via="extraction", action=action)
    logger.info(
        "facts extracted",
        extra={"job_id": held.job.id, "turns": len(found.turns), "candidates": len(candidates)},
    )
    return None


def _read(tx: Transaction, session_id: int, most_chars: int) -> _Found | None:
    session = tx.sessions.get(session_id)
    if session is None:
        return None
    turns, is_more = turn_page(tx, session, after=session.extracted_seq, limit=MAX_EXTRACT_TURNS, most_chars=most_chars)
    before = max(0, session.extracted_seq - CONTEXT_TURNS)
    context = tx.turns.between(session, after=before, upto=session.extracted_seq, limit=CONTEXT_TURNS)
    return _Found(session, turns, is_more, context)


def _portion(
    said: Sequence[SaidTurn], job: JobRow, most_chars: int
) -> tuple[Sequence[SaidTurn], Mapping[str, Any] | None]:
    """Return what this job asks about, and where the next one reads on where it is not the end of a long turn."""
    if len(said) != 1:
        return said, None
    (turn,) = said
    begin = place_of(job, turn.seq)
    end = _end_of_portion(turn.text, begin, most_chars // 2)  # counted are its text and its content
    rest = place_in(turn.seq, end) if end < len(turn.text) else None
    return [replace(turn, text=turn.text[begin:end])], rest


def _end_of_portion(text: str, begin: int, most_chars: int) -> int:
    """Return where a portion ends: after a line or a word in its last quarter, if there is one."""
    end = begin + most_chars
    if end >= len(text):
        return len(text)
    for border in ("\n", " "):
        found = text.rfind(border, end - most_chars // 4, end)
        if found >= 0:
            return found + 1
    return end


class _Proposing:
    """Asks an engine about turns, and finds by halves which of them it cannot be asked about.

    A useless answer may be chance: the job fails for the first one, then the turns are asked about alone, and before it
    would fail for good, what got no usable answer is left out like what was refused, if the engine answers others.
    An outage in between is none of these failures.
    """

    def __init__(self, services: Services, engine: Engine, *, failures: int) -> None:
        self._services = services
        self._engine = engine
        self._failures = failures
        self._answers_others: bool | None = None

    async def candidates(
        self, said: Sequence[SaidTurn], context: Sequence[SaidTurn], known: Sequence[KnownFact]
    ) -> Sequence[Candidate]:
        """Return what the engine proposes. Where it fails over a text, it is asked about the turns alone, then about
        halves of them, until what it does not take is left out by itself.

        Raises:
            UnparseableAnswer: the answer could not be used, and the job may fail once more or no answer can be used.
        """
        try:
            return await self._engine.extract(said, context=context, known=known)
        except ModelRefused:
            left_out = "texts_refused"
        except UnparseableAnswer:
            is_alone = not (context or known)
            is_last = self._failures >= self._services.config.extraction.max_retries
            asks_on = (is_last or self._failures > 0) and (not is_alone or (is_last and await self._is_answering()))
            if not asks_on:
                raise
            left_out = "texts_unanswered"
        if context or known:
            return await self.candidates(said, (), ())
        parts = extraction.halved(said)
        if parts is None:
            leave_out(self._services, "extraction", counted=left_out)
            return ()
        return [candidate for part in parts for candidate in await self.candidates(part, (), ())]

    async def _is_answering(self) -> bool:
        """Return whether the engine gives a usable answer to anything: else no turn is at fault."""
        if self._answers_others is None:
            try:
                await self._engine.extract([PLAIN_TURN], context=(), known=())
            except (ModelRefused, UnparseableAnswer):
                self._answers_others = False
            else:
                self._answers_others = True
        return self._answers_others


async def _known_facts(services: Services, owner: Owner, text: str) -> Sequence[FactRow]:
    """Return the owner's facts that are nearest to what was said; none where the embedder refuses that text."""
    try:
        (vector,) = await services.embedder.embed([text])
    except ModelRefused:
        return ()
    return await services.storage.read(
        lambda tx: [row for row, _cosine in tx.facts.similar(owner, vector, limit=SIMILAR_FACTS)]
    )


def _is_more(session: SessionRow, found: _Found) -> bool:
    """Return whether turns that were waiting when the job began still wait: then they are not left to the sweeper."""
    return found.is_more and session.last_seq > session.extracted_seq


def _is_still_known(tx: Transaction, fact_id: str | None) -> bool:
    """Return False for a repeat of what the engine was shown and somebody deleted or superseded while it answered."""
    row = tx.facts.get(fact_id) if fact_id is not None else None
    return fact_id is None or (row is not None and row.valid_to is None)


def _in_order(
    candidates: Sequence[Candidate], vectors: Sequence[Vector | None], turns: Sequence[TurnRow]
) -> list[tuple[Candidate, Vector | None]]:
    """Return candidates with their vectors in the order in which they were said: a correction comes last."""
    return sorted(
        zip(candidates, vectors, strict=True),
        key=lambda found: (_said_at(found[0], turns), max(found[0].seqs, default=turns[-1].seq)),
    )


def _said_at(candidate: Candidate, turns: Sequence[TurnRow]) -> datetime:
    """Return when a candidate was said: its newest source's time, else the newest turn's."""
    own = [turn.said_at for turn in turns if turn.seq in candidate.seqs]
    return max(own) if own else turns[-1].said_at


def _draft(
    owner: Owner,
    session: Owner,
    candidate: Candidate,
    vector: Vector | None,
    *,
    said_at: datetime,
    turns: Sequence[TurnRow],
) -> FactDraft:
    seqs = candidate.seqs or tuple(turn.seq for turn in turns)
    return FactDraft(
        owner=owner,
        kind=candidate.kind,
        text=candidate.text,
        terms=lexical.terms(lexical.fact_index_text(candidate.text, category=candidate.category)),
        source=FactSource(session.agent, session.principal, session.session, session.workspace, tuple(seqs)),
        said_at=said_at,
        valid_from=said_at,
        category=candidate.category,
        importance=candidate.importance,
        vector=vector,
    )
