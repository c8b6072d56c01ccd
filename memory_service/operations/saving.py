"""Saves one fact beside those that its owner has, under the owner's row lock; used by remember, batch and extract."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Literal

from memory_service.contract.scopes import Scope
from memory_service.domain import lexical, merging
from memory_service.errors import FieldProblem, Forbidden
from memory_service.ports.records import FactChange, FactDraft, FactRow, FactSource, Vector
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
    """Store, replace, supersede or ignore; the caller holds the owner's lock (`owners.lock`).

    Raises:
        Forbidden: the draft's label is that of another agent's fact under `shared`.
    """
    found = _rivals(tx, draft, newcomer.updates, now)
    decision = merging.decide(newcomer, [known for known, _ in found.values()])
    match decision:
        case merging.Add():
            return tx.facts.add(draft, fact_id=str(uuid.uuid4()), actor=actor, now=now), "added"
        case merging.Replace(fact_id, others):
            for other in others:
                valid_to = found[other][1].ends_for(draft.valid_from)
                tx.facts.supersede(other, successor_id=fact_id, valid_to=valid_to, actor=actor, now=now)
            return _replace(tx, draft, fact_id, actor=actor, now=now), "replaced"
        case merging.Refuse(fact_id):
            raise _not_ones_own(draft, found[fact_id][1])
        case merging.Supersede(fact_id):
            new_id = str(uuid.uuid4())
            old = found[fact_id][1]
            if newcomer.by_extraction:
                if not _goes_with(old, draft) and _is_filed(tx, old, besides=actor):
                    return tx.facts.add(draft, fact_id=new_id, actor=actor, now=now), "added"
                draft = _filed_as(draft, old)
            valid_to = old.ends_for(draft.valid_from)
            tx.facts.supersede(fact_id, successor_id=new_id, valid_to=valid_to, actor=actor, now=now)
            if draft.dedupe_key is None:
                draft = replace(draft, dedupe_key=old.dedupe_key)
            return tx.facts.add(draft, fact_id=new_id, actor=actor, now=now), "superseded"
        case merging.Ignore(fact_id, reason):
            row = found[fact_id][1]
            if reason == "same":
                # Only who said all of it is a source: what says less keeps nothing alive that an erasure takes.
                tx.facts.add_source(row.id, draft.source)
            if reason in ("same", "less"):
                row = _said_again(tx, draft, row, lasts=not newcomer.by_extraction, actor=actor, now=now)
            return row, "ignored"


def settle_late(tx: Transaction, row: FactRow, vector: Vector, *, actor: str, now: datetime) -> None:
    """Let the newer of two statements hold where one had no vector when it was saved, so that nobody compared them; the
    caller holds the owner's lock.

    Both keep their ids and all that somebody gave them: what is labelled, pinned or ends by itself stays as it is.
    """
    if len(row.sources) != 1 or row.valid_to is not None:
        return
    (source,) = row.sources
    similar = tx.facts.similar(row.owner, vector, limit=SIMILAR_FACTS + 1)
    found = {
        other.id: (_known(row.said_at, source, other, cosine, now), other)
        for other, cosine in similar
        if other.id != row.id
    }
    newcomer = merging.Newcomer(text=row.text, said_at=row.said_at, key=row.key, expires_at=row.expires_at)
    while True:
        match merging.decide(newcomer, [known for known, _ in found.values()]):
            case merging.Supersede(fact_id):
                _, old = found.pop(fact_id)
                new = row
            case merging.Ignore(fact_id, "older"):
                old, new = row, found[fact_id][1]
            case _:
                return
        if _is_plain(old):
            valid_to = old.ends_for(new.valid_from)
            tx.facts.supersede(old.id, successor_id=new.id, valid_to=valid_to, actor=actor, now=now)
        if old is row:
            return


def _is_plain(row: FactRow) -> bool:
    given = (row.key, row.dedupe_key, row.expires_at)
    return not (row.tags or row.attributes or row.pinned) and all(value is None for value in given)


def writer(row: FactRow) -> str:
    """Return the agent that said a fact, or nobody where several did: then it is not one agent's to change."""
    agents = {source.agent for source in row.sources}
    return agents.pop() if len(agents) == 1 else ""


def _not_ones_own(draft: FactDraft, row: FactRow) -> Forbidden:
    name = "key" if draft.key is not None and draft.key == row.key else "dedupe_key"
    return Forbidden(
        f"the fact with this `{name}` in scope 'shared' is not {draft.source.agent!r}'s to replace; save under another"
        f" `{name}`, or ask its writer or an admin",
        [FieldProblem(name, "one that no other agent's fact has", getattr(draft, name))],
    )


def _is_filed(tx: Transaction, row: FactRow, *, besides: str) -> bool:
    """Return whether somebody gave a fact labels; a category and an importance may be those of an extraction."""
    if row.tags or row.attributes:
        return True
    is_rated = row.category is not None or row.importance is not None
    return is_rated and any(line.actor != besides for line in tx.facts.history(row.id))


def _goes_with(row: FactRow, draft: FactDraft) -> bool:
    """Return whether every erasure of what gave a fact its labels erases the draft as well."""
    place = (draft.source.agent, draft.source.principal)
    return all(
        (source.agent, source.principal) == place and source.session in ("", draft.source.session)
        for source in row.sources
    )


def _filed_as(draft: FactDraft, row: FactRow) -> FactDraft:
    """Return what extraction found with what somebody gave the fact that it takes the place of: nobody asked for that
    to go. An evidence is of the old words and stays with them.
    """
    draft = replace(draft, expires_at=draft.expires_at or row.expires_at)
    if not _goes_with(row, draft):
        return draft
    category, tags = draft.category or row.category, draft.tags or row.tags
    return replace(
        draft,
        category=category,
        tags=tags,
        importance=row.importance if draft.importance is None else draft.importance,
        attributes=draft.attributes or row.attributes,
        terms=lexical.terms(lexical.fact_index_text(draft.text, key=draft.key, category=category, tags=tags)),
    )


def _said_again(tx: Transaction, draft: FactDraft, row: FactRow, *, lasts: bool, actor: str, now: datetime) -> FactRow:
    """Let a known fact count as said when it was said last and, if `lasts`, last as long as what says the same would:
    an expiry that somebody set is not extraction's to move.
    """
    fields: dict[str, datetime | None] = {}
    if draft.said_at > row.said_at:
        fields["said_at"] = draft.said_at
    if lasts and merging.outlives(draft.expires_at, row.expires_at):
        fields["expires_at"] = draft.expires_at
    return tx.facts.change(row.id, FactChange(fields), event="restated", actor=actor, now=now) if fields else row


def _replace(tx: Transaction, draft: FactDraft, fact_id: str, *, actor: str, now: datetime) -> FactRow:
    fields = {name: getattr(draft, name) for name in _REPLACED}
    change = FactChange(fields=fields, terms=draft.terms, vector=draft.vector, source=draft.source)
    return tx.facts.change(fact_id, change, event="replaced", actor=actor, now=now)


def _rivals(
    tx: Transaction, draft: FactDraft, updates: str | None, now: datetime
) -> dict[str, tuple[merging.Known, FactRow]]:
    rows: dict[str, tuple[FactRow, float | None]] = {}
    if draft.vector is not None:
        rows.update(
            {row.id: (row, cosine) for row, cosine in tx.facts.similar(draft.owner, draft.vector, limit=SIMILAR_FACTS)}
        )
    named = [
        tx.facts.by_key(draft.owner, draft.key) if draft.key is not None else None,
        tx.facts.by_dedupe_key(draft.owner, draft.dedupe_key) if draft.dedupe_key is not None else None,
        tx.facts.get(updates) if updates is not None else None,
    ]
    for row in (*named, *tx.facts.by_text(draft.owner, draft.text)):
        if row is not None and row.owner == draft.owner:
            rows.setdefault(row.id, (row, None))
    return {
        fact_id: (_known(draft.said_at, draft.source, row, cosine, now), row) for fact_id, (row, cosine) in rows.items()
    }


def _known(said_at: datetime, said_in: FactSource, row: FactRow, cosine: float | None, now: datetime) -> merging.Known:
    return merging.Known(
        id=row.id,
        text=row.text,
        said_at=row.said_at,
        pinned=row.pinned,
        key=row.key,
        dedupe_key=row.dedupe_key,
        cosine=cosine,
        active=row.valid_to is None,
        is_own=row.owner.scope is not Scope.SHARED or writer(row) == said_in.agent,
        expires_at=row.expires_at,
        expired=row.expires_at is not None and row.expires_at <= now,
        said_before=row.said_at == said_at and _is_earlier(row.sources, said_in),
    )


def _is_earlier(sources: Sequence[FactSource], source: FactSource) -> bool:
    """Return whether all sources are turns of one session that end before those of another source do."""
    mine = (source.agent, source.principal, source.session)
    return bool(source.seqs) and all(
        (other.agent, other.principal, other.session) == mine and other.seqs and max(other.seqs) < max(source.seqs)
        for other in sources
    )
