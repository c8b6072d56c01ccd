"""The storage port: owner keys, and the answers that are kept under them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from memory_service.domain.callers import Principal
from memory_service.domain.owners import AgentPairs, Owner, PrincipalPairs
from memory_service.ports.records import OwnerRow, StoredAnswer


class Owners(Protocol):
    """Owner keys and their generations."""

    def find(self, owners: Sequence[Owner]) -> Mapping[Owner, OwnerRow]:
        """Return the rows of these owners; one under which nothing was ever stored is left out."""

    def find_searched(self, owners: Sequence[Owner]) -> Mapping[Owner, OwnerRow]:
        """Like `find`, for owners whose rows are about to be searched: one look for both."""

    def get(self, owner_id: int) -> OwnerRow | None:
        """Return an owner by its number."""

    def ensure(self, owner: Owner) -> OwnerRow:
        """Return the owner's row, made if it is not there."""

    def share(self, owners: Sequence[Owner]) -> Mapping[Owner, OwnerRow]:
        """Like `ensure` for each, and keep erasures (not other writers) waiting until the transaction ends.

        Every write shares its `scopes.generation_owners` first, so that none is stored against a state erased
        meanwhile, and an extraction what covers its session; an erasure locks its `marks` and the
        owners under them, then others that it touches, then sessions.
        """

    def lock(self, owner: Owner) -> OwnerRow:
        """Like `ensure`, and hold the row until the transaction ends: one writer merges at a time."""

    def lock_many(self, owners: Sequence[Owner]) -> Mapping[Owner, OwnerRow]:
        """Like `lock`, for several owners, in the one order in which everybody locks owners."""

    def pairs(self, pairs: AgentPairs | PrincipalPairs) -> Sequence[OwnerRow]:
        """Return the private pairs of an agent, or of a principal over all agents, in one workspace partition."""

    def name_principal(self, principal: Principal) -> None:
        """Keep the shown form of a principal beside its hash."""

    def principal_name(self, principal_hash: str) -> str | None:
        """Return `<issuer>#<subject>`, or None when it was erased."""


class Idempotency(Protocol):
    """Answers under idempotency keys, per agent, principal and route; kept 24 h, erased with their owner
    and with every fact that they carry.
    """

    def begin(self, owner: Owner, *, route: str, key: str, body_hash: str, now: datetime) -> StoredAnswer | None:
        """Claim the key in this transaction, or return the answer that it has.

        Raises:
            InFlight: another transaction has held the key for 5 s.
        """

    def finish(self, owner: Owner, *, route: str, key: str, answer: StoredAnswer) -> None:
        """Write the answer of a claimed key."""

    def expire(self, *, before: datetime, limit: int) -> int:
        """Delete old answers; return how many."""

    def forget_commits(self, *, before: datetime, limit: int) -> int:
        """Delete marks of old commits, of which a backend may keep one for each transaction; return how many."""
