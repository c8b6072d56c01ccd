"""`list`: everything visible at one scope, page by page, in the order in which it was stored."""

from __future__ import annotations

from memory_service.contract.scopes import Scope
from memory_service.contract.verbs import ListRequest, ListResponse
from memory_service.domain import scopes
from memory_service.domain.callers import Caller
from memory_service.domain.pages import page
from memory_service.operations.cursors import decode_cursor, encode_cursor
from memory_service.operations.items import episode_item, fact_chars, fact_item
from memory_service.operations.owners import resolve_owners, resolve_sessions
from memory_service.operations.services import Services
from memory_service.operations.turns import turn_chars
from memory_service.ports.records import ItemFilters, SessionRow, TurnRow
from memory_service.ports.storage import Transaction


async def list_items(services: Services, caller: Caller, request: ListRequest) -> ListResponse:
    """Return a page of facts, then of episodes, as `tiers` asks; facts come first in whatever order it names them.

    Raises:
        Forbidden: the scope is not readable by the caller.
        ScopeUnresolved: the scope has no owner in this call.
    """
    scope = request.scope or caller.policy.scope
    (read_of_scope,) = scopes.read_plan(caller, [scope], request.session_id, request.workspace).reads
    tiers = frozenset(request.tiers)
    tier, after = ("fact" if "fact" in tiers else "episode"), 0
    if request.cursor is not None:
        named, number = decode_cursor(request.cursor, str, int)
        tier, after = ("episode" if named == "episode" else "fact"), int(number)

    def read(tx: Transaction) -> ListResponse:
        if tier == "fact":
            owners = resolve_owners(tx, read_of_scope.facts)
            filters = ItemFilters(now=tx.now())
            rows, more = page(
                lambda place, count: tx.facts.list(owners, filters=filters, limit=count, after=place or None),
                after,
                limit=request.limit,
                place=lambda row: row.row_id,
                chars=fact_chars,
            )
            items = [fact_item(row) for row in rows]
            if more:
                return ListResponse(items=tuple(items), next_cursor=encode_cursor("fact", rows[-1].row_id))
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

    def read(place: int, count: int) -> list[TurnRow]:
        found = (row for session in sessions for row in tx.turns.list(homes, session=session, after=place, limit=count))
        return sorted(found, key=lambda row: row.id)[:count]

    rows, more = page(read, after, limit=limit, place=lambda row: row.id, chars=turn_chars)
    names = tx.sessions.get_many({row.session_id for row in rows})
    items = [
        episode_item(row, session_id=found.owner.session, scope=scope, workspace=found.owner.workspace)
        for row in rows
        if (found := names.get(row.session_id)) is not None
    ]
    return ListResponse(items=tuple(items), next_cursor=encode_cursor("episode", rows[-1].id) if more else None)
