"""Reads and checks the generation of everything that a call builds on, inside its transaction."""

from __future__ import annotations

from memory_service.domain import generations, scopes
from memory_service.domain.callers import Caller
from memory_service.ports.storage import Transaction


def share_generation(
    tx: Transaction,
    caller: Caller,
    session_id: str | None,
    *,
    given: str | None,
    queued_seconds: float | None,
) -> str:
    """Hold erasures off until the transaction ends, check what the caller builds on, and return the generation now.

    Raises:
        Erased: something that the caller builds on was erased meanwhile; nothing may be stored.
        InvalidRequest: the generation was not given to this caller.
    """
    rows = tx.owners.share(scopes.generation_owners(caller, session_id))
    numbers = {owner: row.generation for owner, row in rows.items()}
    if given is not None:
        generations.check(given, numbers, scopes.home_owner(caller))
    if queued_seconds is not None:
        generations.check_queued(queued_seconds, tx.now(), [row.erased_at for row in rows.values()])
    return generations.encode(numbers)


def read_generation(tx: Transaction, caller: Caller, session_id: str | None) -> str:
    """Return the generation of a read; an owner that has no row yet counts as 0."""
    owners = scopes.generation_owners(caller, session_id)
    found = tx.owners.find(owners)
    return generations.encode({owner: found[owner].generation if owner in found else 0 for owner in owners})
