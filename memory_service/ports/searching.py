"""The storage port: candidates of a recall, by owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from memory_service.ports.records import OwnerRow, Pool, SearchQuery, SessionRow


class Search(Protocol):
    """Candidates by owner."""

    def facts(self, owner: OwnerRow, query: SearchQuery) -> Pool:
        """Return the owner's facts as candidates; only those valid at `as_of` count."""

    def episodes(self, homes: Sequence[OwnerRow], query: SearchQuery, *, session: SessionRow | None) -> Pool:
        """Return turns of these pairs (of one session of theirs) as candidates of one owner key."""
