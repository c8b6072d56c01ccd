"""`embed`: vectors of facts that were saved while the embedder did not answer."""

from __future__ import annotations

from memory_service.contract.sessions import JobKind
from memory_service.operations.background.held import HeldJob
from memory_service.operations.background.refused import vectors_or_none
from memory_service.operations.saving import settle_late
from memory_service.ports.process import Step
from memory_service.ports.records import JobDraft
from memory_service.ports.storage import Transaction

ACTOR = "embedding"
FIRST_REVISION = 1
BATCH_FACTS = 64
"""Facts a job embeds at once; judgement, as for turns."""


async def embed(held: HeldJob) -> None:
    """Embed the oldest facts without a vector, and let the newer hold of two that nobody could compare when the later
    one was saved; enqueue itself while there are more.

    A fact that the embedder refuses stays without one, and waits no longer.

    Raises:
        ModelUnavailable: nothing was stored.
    """
    services = held.services
    facts = await services.storage.read(lambda tx: tx.facts.without_vector(limit=BATCH_FACTS))
    held.reach(Step.TURNS_READ)
    if not facts:
        return await held.drop()
    vectors = await vectors_or_none(services, [fact.text for fact in facts], purpose="facts")
    held.reach(Step.VECTORS_MADE)
    by_id = {fact.id: (fact.revision, vector) for fact, vector in zip(facts, vectors, strict=True)}

    def store(tx: Transaction) -> JobDraft | None:
        owners = {row.owner for row in map(tx.facts.get, by_id) if row is not None}
        tx.owners.lock_many(sorted(owners))
        tx.facts.store_vectors(by_id)
        now = tx.now()
        for fact_id, (revision, vector) in by_id.items():
            row = tx.facts.get(fact_id)
            # What was changed since it was saved says what somebody meant it to say.
            if vector is not None and row is not None and row.revision == revision == FIRST_REVISION:
                settle_late(tx, row, vector, actor=ACTOR, now=now)
        return embed_job(tx) if len(facts) == BATCH_FACTS else None

    await held.store(store, then=lambda following: following)
    services.meter.count("facts_embedded", sum(vector is not None for vector in vectors))
    return None


def embed_job(tx: Transaction) -> JobDraft:
    """Return the job that embeds facts without a vector, whoever they belong to."""
    return JobDraft(kind=JobKind.EMBED, dedupe_key="embed", run_at=tx.now(), lane="embed")
