"""The native engine: a short prompt of our own; its answer may also say that a fact updates or contradicts another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from memory_service.contract.health import Reason
from memory_service.domain import extraction
from memory_service.engines.asking import in_halves, said, whole_answer
from memory_service.engines.batches import batches, room_in, shortened
from memory_service.errors import Misconfigured
from memory_service.ports.models import Candidate, Chat, KnownFact, SaidTurn, TokenCounter, UnparseableAnswer

KNOWN_FACT_TOKENS = 160
LEAST_CONTEXT_TOKENS = 1_024
"""The instructions, an answer and `LEAST_TURN_TOKENS` of conversation fit in this."""
LEAST_TURN_TOKENS = 64
"""Where the prompt leaves less than this for the new turns, earlier turns and then known facts are left out of it."""


class NativeEngine:
    """Asks a chat model with the prompt of `domain.extraction`, once for each part of the turns that fits it."""

    def __init__(self, chat: Chat, counter: TokenCounter, *, system_prompt: str | None = None) -> None:
        """Take the parts.

        Raises:
            Misconfigured: the chat model's context is too short for the instructions.
        """
        if chat.context_tokens < LEAST_CONTEXT_TOKENS:
            raise Misconfigured(
                f"the engine 'native' needs a chat model with contextTokens of at least {LEAST_CONTEXT_TOKENS}, "
                f"got {chat.context_tokens}; choose another model",
                reason=Reason.NOT_CONFIGURED,
            )
        self._chat = chat
        self._counter = counter
        self._system_prompt = system_prompt
        self._room = room_in(chat.context_tokens)

    async def extract(
        self,
        turns: Sequence[SaidTurn],
        *,
        context: Sequence[SaidTurn],
        known: Sequence[KnownFact],
        max_facts: int | None = None,
    ) -> Sequence[Candidate]:
        """Return what is worth knowing later from `turns`, each candidate once.

        Raises:
            ModelUnavailable: try again later.
            UnparseableAnswer: an answer could not be used.
        """
        new = said(turns)
        if not new or max_facts == 0:
            return []
        shown = list(known)
        earlier = shortened(said(context), self._counter)
        found: list[Candidate] = []
        left, earlier, shown = self._fitting(earlier, shown, max_facts)
        for part in await asyncio.to_thread(batches, new, left, self._counter):
            before = tuple(earlier)

            async def ask(asked: tuple[SaidTurn, ...], before: tuple[SaidTurn, ...] = before) -> list[Candidate]:
                return await self._ask(asked, before, shown, max_facts)

            found += await in_halves(part, ask)
            earlier = shortened((*before, *part), self._counter) if before else ()
        return extraction.cleaned(
            found, seqs={turn.seq for turn in new}, refs={fact.ref for fact in known}, max_facts=max_facts
        )

    async def warm(self) -> None:
        """Do nothing: there is nothing to load."""

    async def close(self) -> None:
        """Hold nothing."""

    def _fitting(
        self, earlier: tuple[SaidTurn, ...], known: list[KnownFact], max_facts: int | None
    ) -> tuple[int, tuple[SaidTurn, ...], list[KnownFact]]:
        """Return the tokens that are left for new turns beside the earlier turns and known facts that go in."""
        wanted = max(LEAST_TURN_TOKENS, self._room.prompt_tokens // 3)
        for context, facts in ((earlier, known), ((), known), ((), known[: len(known) // 2]), ((), [])):
            frame = extraction.prompt(
                (), context=context, known=self._short(facts), max_facts=max_facts, system_prompt=self._system_prompt
            )
            used = self._counter.count(frame.system) + self._counter.count(frame.user)
            left = self._room.prompt_tokens - used
            if left >= wanted or not (context or facts):
                break
        return max(LEAST_TURN_TOKENS, left), context, list(facts)

    def _short(self, known: Sequence[KnownFact]) -> list[KnownFact]:
        return [replace(fact, text=self._counter.cut(fact.text, KNOWN_FACT_TOKENS)) for fact in known]

    async def _ask(
        self,
        turns: tuple[SaidTurn, ...],
        context: tuple[SaidTurn, ...],
        known: Sequence[KnownFact],
        max_facts: int | None,
    ) -> list[Candidate]:
        asked = extraction.prompt(
            turns, context=context, known=self._short(known), max_facts=max_facts, system_prompt=self._system_prompt
        )
        answer = await whole_answer(self._chat, asked.system, asked.user, max_tokens=self._room.answer_tokens)
        try:
            facts = extraction.parse(answer)
        except extraction.UnusableAnswer as error:
            raise UnparseableAnswer(str(error)) from error
        whole = {fact.ref: fact.text for fact in known}
        candidates = []
        for fact in facts:
            said_in = [turn for turn in turns if turn.seq in fact.seqs] or turns
            restated = whole.get(fact.restates) if fact.restates is not None else None
            if restated is not None and not fact.text:
                if extraction.is_said_in(restated, said_in):
                    seqs = tuple(turn.seq for turn in said_in)
                    candidates.append(Candidate(text=restated, seqs=seqs, updates=fact.restates))
                continue
            candidates.append(
                Candidate(
                    text=fact.text,
                    kind=fact.kind,
                    seqs=fact.seqs,
                    category=fact.category,
                    importance=fact.importance,
                    updates=fact.updates,
                    contradicts=fact.contradicts,
                )
            )
        return candidates
