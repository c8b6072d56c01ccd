"""Saves one fact beside those that its owner has, under the owner's row lock; used by remember, batch and extract."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Literal

from memory_service.domain import merging
from memory_service.ports.records import FactChange, FactDraft, FactRow
from memory_service.ports.storage import Transaction

Action = Literal["added", "replaced", "superseded", "ignored"]

SIMILAR_FACTS = 10
"""Nearest facts that a newcomer is compared with; a statement has few rivals, judgement."""

_REPLACED = (
    "text", "kind", "said_at", "valid_from", "key", "dedupe_key", "category", "tags", "evidence", "importance",
    "pinned", "expires_at", "attributes",
)  # fmt: skip


def save_fact(
    tx: Transaction, draft: FactDraft, newcomer: merging.Newcomer, *, actor: str, now: datetime
) -> tuple[FactRow, Action]:
    """Store, replace, supersede or ignore; the caller holds the owner's lock (`owners.lock`)."""
    found = _rivals(tx, draft)
    decision = merging.decide(newcomer, [known for known, _ in found.values()])
    match decision:
        case merging.Add():
            return tx.facts.add(draft, fact_id=str(uuid.uuid4()), actor=actor, now=now), "added"
        case merging.Replace(fact_id):
            return _replace(tx, draft, fact_id, actor=actor, now=now), "replaced"
        case merging.Supersede(fact_id):
            row = tx.facts.add(draft, fact_id=str(uuid.uuid4()), actor=actor, now=now)
            tx.facts.supersede(fact_id, successor_id=row.id, valid_to=draft.valid_from, actor=actor, now=now)
            return row, "superseded"
        case merging.Ignore(fact_id, reason):
            row = found[fact_id][1]
            if reason == "same":
                # Only who said all of it is a source: what says less keeps nothing alive that an erasure takes.
                tx.facts.add_source(row.id, draft.source)
            if reason in ("same", "less"):
                row = _said_again(tx, draft, row, actor=actor, now=now)
            return row, "ignored"


def _said_again(tx: Transaction, draft: FactDraft, row: FactRow, *, actor: str, now: datetime) -> FactRow:
    """Let a known fact count as said when it was said last."""
    if draft.said_at <= row.said_at:
        return row
    return tx.facts.change(row.id, FactChange({"said_at": draft.said_at}), event="restated", actor=actor, now=now)


def _replace(tx: Transaction, draft: FactDraft, fact_id: str, *, actor: str, now: datetime) -> FactRow:
    fields = {name: getattr(draft, name) for name in _REPLACED}
    change = FactChange(fields=fields, terms=draft.terms, vector=draft.vector, source=draft.source)
    return tx.facts.change(fact_id, change, event="replaced", actor=actor, now=now)


def _rivals(tx: Transaction, draft: FactDraft) -> dict[str, tuple[merging.Known, FactRow]]:
    rows: dict[str, tuple[FactRow, float | None]] = {}
    if draft.vector is not None:
        rows.update(
            {row.id: (row, cosine) for row, cosine in tx.facts.similar(draft.owner, draft.vector, limit=SIMILAR_FACTS)}
        )
    labelled = [
        tx.facts.by_key(draft.owner, draft.key) if draft.key is not None else None,
        tx.facts.by_dedupe_key(draft.owner, draft.dedupe_key) if draft.dedupe_key is not None else None,
    ]
    for row in (*labelled, *tx.facts.by_text(draft.owner, draft.text)):
        if row is not None:
            rows.setdefault(row.id, (row, None))
    return {fact_id: (_known(row, cosine), row) for fact_id, (row, cosine) in rows.items()}


def _known(row: FactRow, cosine: float | None) -> merging.Known:
    return merging.Known(
        id=row.id,
        text=row.text,
        said_at=row.said_at,
        pinned=row.pinned,
        key=row.key,
        dedupe_key=row.dedupe_key,
        cosine=cosine,
        active=row.valid_to is None,
    )
