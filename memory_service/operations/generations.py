"""Reads and checks the generation of everything that a call builds on, inside its transaction."""

from __future__ import annotations

from collections.abc import Callable

from memory_service.domain import generations, scopes
from memory_service.domain.callers import Caller
from memory_service.ports.storage import Transaction

SecondsHere = Callable[[], float]
"""Returns how long ago a request arrived, at the moment it is asked: a body may take its time to come."""


def share_generation(
    tx: Transaction,
    caller: Caller,
    session_id: str | None,
    *,
    given: str | None,
    queued_seconds: float | None,
    seconds_here: SecondsHere = lambda: 0.0,
) -> str:
    """Hold erasures off until the transaction ends, check what the caller builds on, and return the generation now.

    Where it says how long it was queued, that decides about the owners that its generation does not vouch for: what was
    said after an erasure is taken, though its agent had not heard of the erasure yet. `queued_seconds` are those until
    the request arrived; `seconds_here` says how long ago that was.

    Raises:
        Erased: something that the caller builds on was erased meanwhile; nothing may be stored.
        InvalidRequest: the generation was not given to this caller.
    """
    rows = tx.owners.share(scopes.generation_owners(caller, session_id))
    numbers = {owner: row.generation for owner, row in rows.items()}
    home = scopes.home_owner(caller)
    if queued_seconds is not None:
        safe = generations.vouched(given, numbers, home) if given is not None else frozenset()
        erased_at = [row.erased_at for owner, row in rows.items() if owner not in safe]
        generations.check_queued(queued_seconds + seconds_here(), tx.now(), erased_at)
    elif given is not None:
        generations.check(given, numbers, home)
    return generations.encode(numbers)


def read_generation(tx: Transaction, caller: Caller, session_id: str | None) -> str:
    """Return the generation of a read; an owner that has no row yet counts as 0."""
    owners = scopes.generation_owners(caller, session_id)
    found = tx.owners.find(owners)
    return generations.encode({owner: found[owner].generation if owner in found else 0 for owner in owners})
