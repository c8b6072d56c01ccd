"""`index_turns`: vectors of new turns, so that they are found by meaning."""

from __future__ import annotations

from memory_service.domain import lexical, pages
from memory_service.operations.background.held import HeldJob
from memory_service.operations.background.refused import vectors_or_none
from memory_service.operations.enqueue import index_job
from memory_service.operations.turns import turn_chars
from memory_service.ports.process import Step
from memory_service.ports.records import JobDraft, Vector
from memory_service.ports.storage import Transaction

BATCH_TURNS = 64
"""Turns a job embeds at once, or as many long ones as a page holds: some hundred milliseconds of work, so that sessions
take turns; judgement.
"""


async def index_turns(held: HeldJob) -> None:
    """Embed the oldest turns of the session that have no vector; enqueue itself while there are more.

    A turn that the embedder refuses is found by its words alone.

    Raises:
        ModelUnavailable: nothing was stored.
    """
    services, session_id = held.services, held.job.session_id
    if session_id is None:
        return await held.drop()
    turns, is_more = await services.storage.read(
        lambda tx: pages.page(
            lambda after, limit: tx.turns.unindexed(session_id, after=after, limit=limit),
            0,
            limit=BATCH_TURNS,
            place=lambda turn: turn.seq,
            chars=turn_chars,
        )
    )
    held.reach(Step.TURNS_READ)
    if not turns:
        return await held.drop()
    texts = {
        turn.id: lexical.turn_embedding_text(turn.name, turn.role, turn.said_at, turn.content, turn.parts)
        for turn in turns
    }
    embeddable = [row_id for row_id, text in texts.items() if text]
    vectors = await vectors_or_none(services, [texts[row_id] for row_id in embeddable], purpose="turns")
    held.reach(Step.VECTORS_MADE)
    by_row: dict[int, Vector | None] = dict.fromkeys(texts)
    by_row.update(zip(embeddable, vectors, strict=True))

    def store(tx: Transaction) -> JobDraft | None:
        tx.turns.store_vectors(session_id, by_row)
        session = tx.sessions.get(session_id)
        if not is_more or session is None:
            return None
        return index_job(services.config, session, tx.now(), held.job.request_id)

    await held.store(store, then=lambda following: following)
    services.meter.count("turns_indexed", len(turns))
    return None
