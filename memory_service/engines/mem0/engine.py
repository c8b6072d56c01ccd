"""The Mem0 engine: Mem0 2.2.1 as a library, with our parts and without its side effects."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from memory_service.contract.health import Reason
from memory_service.contract.turns import Role
from memory_service.domain import extraction
from memory_service.domain.merging import normal_text
from memory_service.engines.asking import in_halves, said, whole_answer
from memory_service.engines.batches import batches, room_in, shortened
from memory_service.engines.bridge import Bridge
from memory_service.engines.mem0 import library, prompting
from memory_service.engines.mem0.answers import readable_answer
from memory_service.engines.sources import likely_sources
from memory_service.errors import Misconfigured, ModelRefused
from memory_service.ports.models import Candidate, Chat, Embedder, KnownFact, SaidTurn, TokenCounter

MAX_KNOWN = 10
"""Known facts in a prompt, as many as Mem0 itself would look up; of more, the nearest to the conversation."""
PROMPT_TOKENS = 8_000
"""Upper bound of Mem0's own prompt, which every request carries (a test counts it)."""
LEAST_TURN_TOKENS = 512
LEAST_CONTEXT_TOKENS = 12_000
"""Mem0's prompt, an answer, some known facts and `LEAST_TURN_TOKENS` of conversation fit in this."""
NEAREST_BY_TOKENS = 2_000
"""Tokens at the end of a conversation that known facts are compared with."""


class Mem0Engine:
    """Runs Mem0's extraction in threads of its own; Mem0 is imported by the first call, or by `warm`.

    Mem0 sees the turns, earlier turns of the same session and the facts that a call is given, and no id of anybody.
    """

    def __init__(
        self,
        chat: Chat,
        embedder: Embedder,
        counter: TokenCounter,
        *,
        system_prompt: str | None = None,
        concurrency: int = 4,
    ) -> None:
        """Take the parts.

        Raises:
            Misconfigured: the chat model's context is too short for Mem0's prompt.
        """
        if chat.context_tokens < LEAST_CONTEXT_TOKENS:
            raise Misconfigured(
                f"the engine 'mem0' needs a chat model with contextTokens of at least {LEAST_CONTEXT_TOKENS}, "
                f"got {chat.context_tokens}; choose another model or set the engine to 'native'",
                reason=Reason.NOT_CONFIGURED,
            )
        self._chat = chat
        self._embedder = embedder
        self._counter = counter
        self._system_prompt = system_prompt
        self._room = room_in(chat.context_tokens)
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="mem0")

    async def warm(self) -> None:
        """Import Mem0, so that the first call does not wait for it; safe to repeat.

        Raises:
            Misconfigured: it is not installed.
        """
        await asyncio.get_running_loop().run_in_executor(self._threads, library.load)

    async def extract(
        self,
        turns: Sequence[SaidTurn],
        *,
        context: Sequence[SaidTurn],
        known: Sequence[KnownFact],
        max_facts: int | None = None,
    ) -> Sequence[Candidate]:
        """Return what is worth knowing later from `turns`, each candidate once.

        Mem0 does not say which turns a fact comes from: `seqs` are those that share most words with it.

        Raises:
            ModelUnavailable: try again later.
            UnparseableAnswer: an answer could not be used.
            Misconfigured: Mem0 is not installed.
        """
        new = said(turns)
        if not new or max_facts == 0:
            return []
        near = await self._nearest(new, known)
        wanted = prompting.instructions(self._system_prompt, max_facts)
        earlier = shortened(said(context), self._counter)
        found: list[Candidate] = []
        for part in await asyncio.to_thread(batches, new, self._left(earlier, near, wanted), self._counter):
            before = tuple(earlier)

            async def ask(asked: tuple[SaidTurn, ...], before: tuple[SaidTurn, ...] = before) -> list[Candidate]:
                return await self._ask(asked, before, near, wanted)

            found += await in_halves(part, ask)
            earlier = shortened((*before, *part), self._counter)
        return extraction.cleaned(found, seqs={turn.seq for turn in new}, refs=(), max_facts=max_facts)

    async def close(self) -> None:
        """Stop the threads; what is queued is dropped, what runs is waited for."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    async def _nearest(self, turns: Sequence[SaidTurn], known: Sequence[KnownFact]) -> Sequence[KnownFact]:
        """Return the known facts that are nearest to the turns, in the order they were given; none where the embedder
        refuses one of these texts.
        """
        if len(known) <= MAX_KNOWN:
            return known
        spoken = "\n".join(turn.text for turn in turns)
        recent = self._counter.cut(spoken[-NEAREST_BY_TOKENS * 4 :], NEAREST_BY_TOKENS)
        try:
            topic, *vectors = await self._embedder.embed([recent, *(fact.text for fact in known)])
        except ModelRefused:
            return ()
        similarity = np.stack(vectors) @ topic
        nearest = sorted(np.argsort(-similarity, kind="stable")[:MAX_KNOWN].tolist())
        return [known[index] for index in nearest]

    def _left(self, earlier: Sequence[SaidTurn], known: Sequence[KnownFact], wanted: str) -> int:
        """Return the tokens that are left in a prompt for new turns."""
        around = [
            wanted,
            *(message["content"] for message in prompting.earlier(earlier)),
            *(row["data"] for _, row in prompting.payloads(known, self._counter)),
        ]
        used = PROMPT_TOKENS + sum(self._counter.count(text) + 16 for text in around)
        return max(LEAST_TURN_TOKENS, self._room.prompt_tokens - used)

    async def _ask(
        self,
        turns: tuple[SaidTurn, ...],
        context: tuple[SaidTurn, ...],
        known: Sequence[KnownFact],
        wanted: str,
    ) -> list[Candidate]:
        bridge = Bridge(asyncio.get_running_loop())

        async def answer(system: str, user: str) -> str:
            return readable_answer(await whole_answer(self._chat, system, user, max_tokens=self._room.answer_tokens))

        def run() -> list[Candidate]:
            library.load()
            from memory_service.engines.mem0 import parts

            task = parts.Task(
                messages=prompting.messages(turns),
                earlier=prompting.earlier(context),
                known=prompting.payloads(known, self._counter),
                observation_date=prompting.observation_date(turns),
                instructions=wanted,
                ask=lambda system, user: bridge.wait_for(lambda: answer(system, user)),
            )
            shown = {normal_text(row["data"]): fact for (_, row), fact in zip(task.known, known, strict=True)}
            found = []
            for memory in parts.extract(task):
                echoed = shown.get(normal_text(memory.text))
                if echoed is not None and not extraction.is_said_in(echoed.text, turns):
                    continue  # a session that has not said it must not become its source
                text = memory.text if echoed is None else echoed.text
                found.append(Candidate(text, seqs=likely_sources(text, turns, role=_role(memory.attributed_to))))
            return found

        running = asyncio.get_running_loop().run_in_executor(self._threads, run)
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            bridge.abandon()
            running.cancel()
            raise
        if bridge.failure is not None:
            # Mem0 wraps what our parts raise in exceptions of its own, or goes on without an answer.
            running.exception()
            raise bridge.failure from bridge.failure.__cause__
        return running.result()


def _role(attributed_to: str) -> Role:
    return Role.ASSISTANT if attributed_to == "assistant" else Role.USER
