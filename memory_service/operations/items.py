"""How facts and turns are answered as items."""

from __future__ import annotations

from memory_service.contract.items import Item
from memory_service.contract.limits import MAX_ATTRIBUTES_BYTES
from memory_service.contract.scopes import Kind, Scope
from memory_service.ports.records import FactRow, TurnRow


def fact_item(row: FactRow, *, score: float | None = None, explain: dict[str, float] | None = None) -> Item:
    """Return a fact as an item."""
    # Under `shared` everybody reads, so nothing is said there about whose conversation a fact comes from.
    source = row.sources[0] if row.sources and row.owner.scope is not Scope.SHARED else None
    return Item(
        id=row.id,
        tier="fact",
        kind=Kind(row.kind.value),
        text=row.text,
        score=score,
        scope=row.owner.scope,
        said_at=row.said_at,
        session_id=(source.session or None) if source is not None else None,
        seqs=source.seqs if source is not None else (),
        key=row.key,
        workspace=row.owner.workspace or None,
        valid_from=row.valid_from,
        valid_to=row.valid_to,
        category=row.category,
        tags=row.tags,
        evidence=row.evidence,
        importance=row.importance,
        pinned=row.pinned,
        status=row.status,
        superseded_by=row.superseded_by,
        expires_at=row.expires_at,
        attributes=dict(row.attributes),
        revision=row.revision,
        explain=explain,
    )


def fact_chars(row: FactRow) -> int:
    """Return about how many characters a stored fact has on a page."""
    return len(row.text) + len(row.evidence or "") + MAX_ATTRIBUTES_BYTES * bool(row.attributes)


def episode_id(row_id: int) -> str:
    """Return what an answer calls a turn that was found again."""
    return f"episode-{row_id}"


def episode_item(
    row: TurnRow,
    *,
    session_id: str,
    scope: Scope,
    workspace: str = "",
    score: float | None = None,
    explain: dict[str, float] | None = None,
) -> Item:
    """Return an archived turn as an item; its id is stable and names nothing that the caller may not read."""
    return Item(
        id=episode_id(row.id),
        tier="episode",
        kind=Kind.EPISODE,
        text=row.text,
        score=score,
        scope=scope,
        said_at=row.said_at,
        session_id=session_id,
        seqs=(row.seq,),
        role=row.role.value,
        workspace=workspace or None,
        explain=explain,
    )
