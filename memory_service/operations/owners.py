"""Finds the rows of what a read plan names; what was never stored is simply not there."""

from __future__ import annotations

from memory_service.domain import scopes
from memory_service.domain.owners import AgentPairs, PrincipalPairs
from memory_service.ports.records import OwnerRow, SessionRow
from memory_service.ports.storage import Transaction


def resolve_owners(tx: Transaction, readable: tuple[scopes.Readable, ...]) -> list[OwnerRow]:
    """Return the owners that exist among these; none where nothing was ever stored."""
    found: dict[int, OwnerRow] = {}
    for entry in readable:
        if isinstance(entry, AgentPairs | PrincipalPairs):
            rows = tx.owners.pairs(entry)
        else:
            rows = list(tx.owners.find([entry]).values())
        found.update({row.id: row for row in rows})
    return list(found.values())


def resolve_sessions(tx: Transaction, readable: tuple[scopes.Readable, ...]) -> list[SessionRow]:
    """Return the sessions that exist among these session-scope owners."""
    found = [tx.sessions.find(entry) for entry in readable if not isinstance(entry, AgentPairs | PrincipalPairs)]
    return [row for row in found if row is not None]
