"""`list`: everything visible at one scope, page by page, in the order in which it was stored."""

from __future__ import annotations

from memory_service.contract.scopes import Scope
from memory_service.contract.verbs import ListRequest, ListResponse
from memory_service.domain import scopes
from memory_service.domain.callers import Caller
from memory_service.operations.cursors import decode_cursor, encode_cursor
from memory_service.operations.items import episode_item, fact_item
from memory_service.operations.owners import resolve_owners, resolve_sessions
from memory_service.operations.services import Services
from memory_service.ports.records import ItemFilters, SessionRow
from memory_service.ports.storage import Transaction


async def list_items(services: Services, caller: Caller, request: ListRequest) -> ListResponse:
    """Return a page of facts, then of episodes, as `tiers` asks.

    Raises:
        Forbidden: the scope is not readable by the caller.
        ScopeUnresolved: the scope has no owner in this call.
    """
    scope = request.scope or caller.policy.scope
    (read_of_scope,) = scopes.read_plan(caller, [scope], request.session_id, request.workspace).reads
    tiers = tuple(dict.fromkeys(request.tiers))
    tier, after = tiers[0], 0
    if request.cursor is not None:
        named, number = decode_cursor(request.cursor, str, int)
        tier, after = ("episode" if named == "episode" else "fact"), int(number)

    def read(tx: Transaction) -> ListResponse:
        if tier == "fact":
            owners = resolve_owners(tx, read_of_scope.facts)
            rows = tx.facts.list(
                owners, filters=ItemFilters(now=tx.now()), limit=request.limit + 1, after=after or None
            )
            items = [fact_item(row) for row in rows[: request.limit]]
            if len(rows) > request.limit:
                return ListResponse(
                    items=tuple(items), next_cursor=encode_cursor("fact", rows[request.limit - 1].row_id)
                )
            return ListResponse(
                items=tuple(items), next_cursor=encode_cursor("episode", 0) if "episode" in tiers else None
            )
        return _episodes(tx, scope, read_of_scope.episodes, after=after, limit=request.limit)

    return await services.storage.read(read)


def _episodes(
    tx: Transaction, scope: Scope, episodes: tuple[scopes.Readable, ...], *, after: int, limit: int
) -> ListResponse:
    if scope is Scope.SESSION:
        sessions: list[SessionRow | None] = list(resolve_sessions(tx, episodes))
        homes = [owner for row in sessions if row is not None and (owner := tx.owners.get(row.home_id)) is not None]
    else:
        sessions, homes = [None], list(resolve_owners(tx, episodes))
    rows = sorted(
        (row for session in sessions for row in tx.turns.list(homes, session=session, after=after, limit=limit + 1)),
        key=lambda row: row.id,
    )
    names = tx.sessions.get_many({row.session_id for row in rows[:limit]})
    items = [
        episode_item(row, session_id=found.owner.session, scope=scope, workspace=found.owner.workspace)
        for row in rows[:limit]
        if (found := names.get(row.session_id)) is not None
    ]
    more = len(rows) > limit
    return ListResponse(items=tuple(items), next_cursor=encode_cursor("episode", rows[limit - 1].id) if more else None)
