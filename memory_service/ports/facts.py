"""The storage port: long-term facts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from memory_service.domain.owners import Owner
from memory_service.ports.records import (
    FactChange,
    FactDraft,
    FactRow,
    FactSource,
    HistoryRow,
    ItemFilters,
    OwnerRow,
    Vector,
)


class Facts(Protocol):
    """Long-term facts."""

    def add(self, draft: FactDraft, *, fact_id: str, actor: str, now: datetime) -> FactRow:
        """Store a fact and the first line of its history."""

    def is_beyond(self, fact: FactRow, most: int) -> bool:
        """Return whether a fact's owner has more than so many; a store that never had them is not asked."""

    def get(self, fact_id: str) -> FactRow | None:
        """Return a fact by id; the caller checks its owner before it says anything about it."""

    def by_row_ids(self, owner_ids: Collection[int], row_ids: Sequence[int]) -> Mapping[int, FactRow]:
        """Return facts of these owners that a Pool named."""

    def ids(self, owner_ids: Collection[int], row_ids: Sequence[int]) -> Mapping[int, str]:
        """Return the ids of facts of these owners that a Pool named, by row id."""

    def by_key(self, owner: Owner, key: str) -> FactRow | None:
        """Return the active or pending fact of this owner with this key."""

    def by_dedupe_key(self, owner: Owner, dedupe_key: str) -> FactRow | None:
        """Return the active or pending fact of this owner with this dedupe key."""

    def by_text(self, owner: Owner, text: str) -> Sequence[FactRow]:
        """Return the owner's active and superseded facts that say the same (`merging.normal_text`), newest first."""

    def similar(self, owner: Owner, vector: Vector, *, limit: int) -> Sequence[tuple[FactRow, float]]:
        """Return the owner's active facts nearest to a vector with their cosine, nearest first."""

    def change(
        self,
        fact_id: str,
        change: FactChange,
        *,
        event: str,
        actor: str,
        now: datetime,
        expected_revision: int | None = None,
    ) -> FactRow:
        """Change a fact and its history; the revision moves on.

        Each line of a history keeps the source of its text and is erased with it.

        Raises:
            Conflict: it has another revision than expected, or is gone.
        """

    def supersede(self, fact_id: str, *, successor_id: str, valid_to: datetime, actor: str, now: datetime) -> None:
        """Close a fact's validity at `valid_to` and name its successor."""

    def add_source(self, fact_id: str, source: FactSource) -> None:
        """Note another place where a known fact was said; safe to repeat."""

    def delete(self, fact_id: str) -> Mapping[str, int]:
        """Delete a fact with its history, sources, vector and answers; return how many rows of each kind went."""

    def history(self, fact_id: str) -> Sequence[HistoryRow]:
        """Return a fact's changes, oldest first, as many as `domain.histories` keeps."""

    def list(
        self, owners: Sequence[OwnerRow], *, filters: ItemFilters, limit: int, after: int | None
    ) -> Sequence[FactRow]:
        """Return active facts of these owners in the order they were stored, after a row id."""

    def list_all(self, *, filters: ItemFilters, limit: int, after: int | None) -> Sequence[FactRow]:
        """Return active facts of the whole store (admins), in the order they were stored, after a row id."""

    def count_active(self) -> int:
        """Return how many active facts the store has."""

    def without_vector(self, *, limit: int) -> Sequence[FactRow]:
        """Return facts that wait for their vector, oldest first."""

    def store_vectors(self, vectors: Mapping[str, tuple[int, Vector | None]]) -> int:
        """Save vectors by fact id, each with the revision it was made from; others are skipped. Safe to repeat.

        None marks a fact that the model gives no vector, so that it waits no longer until its text changes.
        """

    def expire(self, *, now: datetime, facts_before: datetime | None, limit: int) -> int:
        """Delete unpinned facts past `expires_at`, or last changed before `facts_before`; return how many."""
