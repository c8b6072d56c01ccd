"""Facts with their sources and history. Every change of an owner's facts moves the owner's revision on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from memory_service.contract.items import FactStatus
from memory_service.domain.merging import normal_text
from memory_service.domain.owners import Owner
from memory_service.errors import Conflict
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
from memory_service.storage.encoding import dump, join_terms, micros, micros_or_none
from memory_service.storage.errors import Duplicate
from memory_service.storage.rows import fact_columns, fact_sources, idempotency
from memory_service.storage.rows.fact_columns import LIVE, SELECT, fact_row
from memory_service.storage.rows.fact_history import FactHistory
from memory_service.storage.rows.fact_sources import FactSources
from memory_service.storage.rows.owners import OwnerKeys
from memory_service.storage.rows.remains import ANSWERS, FACTS, Remains
from memory_service.storage.statements import LOCK, Link, Row


class Nearest(Protocol):
    """The vector part of a search."""

    def similar(self, owner: OwnerRow, vector: Vector, *, limit: int) -> Sequence[tuple[int, float]]:
        """Return the row ids of the owner's active facts nearest to a vector, with their cosine, nearest first."""


class FactRows:
    """The port's Facts."""

    def __init__(self, link: Link, owners: OwnerKeys, nearest: Nearest) -> None:
        self._link = link
        self._owners = owners
        self._nearest = nearest
        self._sources = FactSources(link)
        self._history = FactHistory(link)
        self._remains = Remains(link)
        self.has_deleted = False

    def add(self, draft: FactDraft, *, fact_id: str, actor: str, now: datetime) -> FactRow:
        """Store a fact and the first line of its history.

        Raises:
            Conflict: the owner has an active or pending fact with this key or dedupe key.
        """
        owner_id = self._owners.ensure_id(draft.owner)
        try:
            with self._link.savepoint():
                row_id = self._insert(owner_id, draft, fact_id, now)
        except Duplicate as error:
            raise Conflict("another fact of this owner has this key already; read it again, then repeat") from error
        self._sources.store(owner_id, row_id, draft.source)
        origin = fact_sources.place(draft.source)[:3]
        self._history.write((owner_id, row_id), "added", draft.text, actor=actor, now=now, origin=origin)
        self._owners.revise([owner_id])
        return self._required(owner_id, row_id)

    def is_beyond(self, fact: FactRow, most: int) -> bool:
        """Return whether a fact's owner has more than so many; a store that never had them is not asked."""
        if fact.row_id <= most:
            return False  # Numbers are given in order: no more than this one have been.
        (count,) = self._link.rows(
            "SELECT COUNT(*) FROM (SELECT 1 FROM @facts WHERE owner_id = :owner LIMIT :limit) AS counted",
            {"owner": self._owners.ensure_id(fact.owner), "limit": most + 1},
        )
        return int(count[0]) > most

    def get(self, fact_id: str) -> FactRow | None:
        """Return a fact by id."""
        return self._one(f"{SELECT} WHERE f.id = :id", {"id": fact_id})

    def by_row_ids(self, owner_ids: Collection[int], row_ids: Sequence[int]) -> Mapping[int, FactRow]:
        """Return facts of these owners by row id."""
        if not row_ids or not owner_ids:
            return {}
        # `+` keeps SQLite on the row numbers; on Postgres the owner names the partitions.
        found = self._many(
            f"{SELECT} WHERE [[|+]]f.owner_id IN [:owners] AND f.row_id IN [:ids]",
            {"owners": sorted(owner_ids), "ids": list(row_ids)},
        )
        return {fact.row_id: fact for fact in found}

    def ids(self, owner_ids: Collection[int], row_ids: Sequence[int]) -> Mapping[int, str]:
        """Return the ids of facts of these owners by row id."""
        if not row_ids or not owner_ids:
            return {}
        return dict(
            self._link.rows(
                "SELECT f.row_id, f.id FROM @facts AS f WHERE [[|+]]f.owner_id IN [:owners] AND f.row_id IN [:ids]",
                {"owners": sorted(owner_ids), "ids": list(row_ids)},
            )
        )

    def by_key(self, owner: Owner, key: str) -> FactRow | None:
        """Return the active or pending fact of this owner with this key."""
        return self._of(owner, f"f.key = :key AND f.key IS NOT NULL AND {LIVE}", {"key": key})

    def by_dedupe_key(self, owner: Owner, dedupe_key: str) -> FactRow | None:
        """Return the active or pending fact of this owner with this dedupe key."""
        return self._of(owner, f"f.dedupe_key = :key AND f.dedupe_key IS NOT NULL AND {LIVE}", {"key": dedupe_key})

    def by_text(self, owner: Owner, text: str) -> Sequence[FactRow]:
        """Return the owner's active and superseded facts that say the same, newest first."""
        row = self._owners.find([owner]).get(owner)
        if row is None:
            return []
        found = self._many(
            f"{SELECT} WHERE f.owner_id = :owner_id AND f.text_hash = :hash AND f.status IN ('active', 'superseded')"
            " ORDER BY f.row_id DESC",
            {"owner_id": row.id, "hash": self.text_hash(text)},
        )
        return [fact for fact in found if normal_text(fact.text) == normal_text(text)]

    def similar(self, owner: Owner, vector: Vector, *, limit: int) -> Sequence[tuple[FactRow, float]]:
        """Return the owner's active facts nearest to a vector with their cosine, nearest first."""
        row = self._owners.find([owner]).get(owner)
        if row is None:
            return []
        nearest = self._nearest.similar(row, vector, limit=limit)
        facts = self.by_row_ids([row.id], [row_id for row_id, _ in nearest])
        return [(facts[row_id], cosine) for row_id, cosine in nearest if row_id in facts]

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

        Raises:
            Conflict: it has another revision than expected, is gone, or its new key is taken.
        """
        known = self._one(f"{SELECT} WHERE f.id = :id [[FOR NO KEY UPDATE OF f]]", {"id": fact_id})
        if known is None:
            raise Conflict(f"fact {fact_id!r} is gone; read the list again")
        if expected_revision is not None and known.revision != expected_revision:
            raise Conflict(
                f"fact {fact_id!r} has revision {known.revision}, not {expected_revision}; read it again, then repeat"
            )
        owner_id = self._owners.ensure_id(known.owner)
        values = fact_columns.changed(change)
        if "text" in change.fields:
            values["text_hash"] = self.text_hash(change.fields["text"])
        if change.vector is not None or (change.terms is not None and not change.keeps_vector):
            values["vector"] = self._link.vector_in(change.vector)
            values["embedding_model"] = None if change.vector is None else self._link.embedding_model
        assignments = "".join(f", {column} = :{column}" for column in sorted(values))
        self._duplicates_are_conflicts(
            f"UPDATE @facts SET revision = revision + 1, updated_at = :now{assignments}"
            " WHERE owner_id = :owner_id AND row_id = :row_id",
            {**values, "owner_id": owner_id, "row_id": known.row_id, "now": micros(now)},
        )
        if change.source is not None:
            self._sources.replace(owner_id, known.row_id, change.source)
        fact = self._required(owner_id, known.row_id)
        self._history.note(
            (owner_id, fact.row_id),
            event,
            "" if fact.text == known.text else fact.text,
            actor=actor,
            now=now,
            source=change.source,
        )
        self._owners.revise([owner_id])
        return fact

    def supersede(self, fact_id: str, *, successor_id: str, valid_to: datetime, actor: str, now: datetime) -> None:
        """Close a fact's validity at `valid_to` and name its successor."""
        fields = {"status": FactStatus.SUPERSEDED, "valid_to": valid_to, "superseded_by": successor_id}
        self.change(fact_id, FactChange(fields), event="superseded", actor=actor, now=now)

    def add_source(self, fact_id: str, source: FactSource) -> None:
        """Note another place where a known fact was said; its turns are joined to those known of that place."""
        found = self._link.row("SELECT owner_id, row_id FROM @facts WHERE id = :id", {"id": fact_id})
        if found is None:
            raise Conflict(f"fact {fact_id!r} is gone; read the list again")
        self._sources.join(found[0], found[1], source)

    def delete(self, fact_id: str) -> Mapping[str, int]:
        """Delete a fact with its history, sources, vector and stored answers; an import does not bring it back.

        Return how many rows of each kind went, as a receipt has them.
        """
        found = self._link.row(f"SELECT owner_id, row_id FROM @facts WHERE id = :id {LOCK}", {"id": fact_id})
        if found is None:
            return {}
        counts = self.discard([found])
        self._link.run(
            "INSERT INTO @tombstones (key, erased_at) VALUES (:key, {now}) ON CONFLICT (key) DO NOTHING",
            {"key": fact_id},
        )
        return counts

    def discard(self, places: Sequence[Row]) -> Mapping[str, int]:
        """Delete facts by owner and row id, without a tombstone; return how many rows of each kind went."""
        if not places:
            return {}
        counts, answered = self._delete_rows(places)
        self._remains.note(FACTS, {place[0] for place in places})
        self._remains.note(ANSWERS, answered)
        self._remains.note_whole(("answered_facts",))
        return counts

    def history(self, fact_id: str) -> Sequence[HistoryRow]:
        """Return a fact's changes, oldest first."""
        return self._history.of(fact_id)

    def list(
        self, owners: Sequence[OwnerRow], *, filters: ItemFilters, limit: int, after: int | None
    ) -> Sequence[FactRow]:
        """Return facts of these owners that meet the filters, in the order they were stored, after a row id."""
        if not owners:
            return []
        where, parameters = fact_columns.conditions(filters)
        parameters |= {"owners": [owner.id for owner in owners], "after": after or 0, "limit": limit}
        return self._many(
            f"{SELECT} WHERE f.owner_id IN [:owners] AND f.row_id > :after{where} ORDER BY f.row_id LIMIT :limit",
            parameters,
        )

    def list_all(self, *, filters: ItemFilters, limit: int, after: int | None) -> Sequence[FactRow]:
        """Return facts of the whole store that meet the filters, in the order they were stored, after a row id."""
        where, parameters = fact_columns.conditions(filters)
        parameters |= {"after": after or 0, "limit": limit}
        return self._many(f"{SELECT} WHERE f.row_id > :after{where} ORDER BY f.row_id LIMIT :limit", parameters)

    def count_active(self) -> int:
        """Return how many active facts the store has."""
        found = self._link.row("SELECT COUNT(*) FROM @facts WHERE status = 'active'")
        return 0 if found is None else int(found[0])

    def without_vector(self, *, limit: int) -> Sequence[FactRow]:
        """Return facts that wait for their vector, oldest first: those that no model was asked about."""
        return self._many(
            f"{SELECT} WHERE f.vector IS NULL AND f.embedding_model IS NULL ORDER BY f.row_id LIMIT :limit",
            {"limit": limit},
        )

    def store_vectors(self, vectors: Mapping[str, tuple[int, Vector | None]]) -> int:
        """Save vectors by fact id, each with the revision it was made from; others are skipped.

        None: the model was asked and gave none; the fact waits for one no longer, until its text changes.
        """
        if not vectors:
            return 0
        found = self._link.rows(
            f"SELECT owner_id, row_id, id, revision FROM @facts WHERE id IN [:ids] ORDER BY row_id {LOCK}",
            {"ids": sorted(vectors)},
        )
        current = [row for row in found if vectors[row[2]][0] == row[3]]
        self._link.run_many(
            "UPDATE @facts SET vector = :vector, embedding_model = :model"
            " WHERE owner_id = :owner_id AND row_id = :row_id",
            [
                {
                    "owner_id": row[0],
                    "row_id": row[1],
                    "vector": self._link.vector_in(vectors[row[2]][1]),
                    "model": self._link.embedding_model,
                }
                for row in current
            ],
        )
        self._owners.revise(row[0] for row in current)
        return len(current)

    def expire(self, *, now: datetime, facts_before: datetime | None, limit: int) -> int:
        """Delete unpinned facts past `expires_at`, or last changed before `facts_before`; return how many."""
        doomed = self._past(now, facts_before, limit)
        if not doomed:
            return 0
        # Owners before their rows, as everybody locks them who saves; what was changed meanwhile may have to stay.
        owners = {row[0] for row in doomed}
        self._owners.lock_ids(owners)
        doomed = {row for row in self._past(now, facts_before, limit) if row[0] in owners}
        if doomed:
            self._delete_rows(sorted(doomed))
        return len(doomed)

    def _past(self, now: datetime, facts_before: datetime | None, limit: int) -> set[Row]:
        """Return facts by owner and row id that are past their time."""
        doomed = self._link.rows(
            "SELECT owner_id, row_id FROM @facts WHERE expires_at IS NOT NULL AND expires_at <= :now AND pinned = 0"
            " ORDER BY expires_at LIMIT :limit",
            {"now": micros(now), "limit": limit},
        )
        if facts_before is not None and len(doomed) < limit:
            doomed += self._link.rows(
                "SELECT owner_id, row_id FROM @facts WHERE updated_at < :before AND pinned = 0"
                " ORDER BY updated_at LIMIT :limit",
                {"before": micros(facts_before), "limit": limit - len(doomed)},
            )
        return set(doomed)

    def _insert(self, owner_id: int, draft: FactDraft, fact_id: str, now: datetime) -> int:
        found = self._link.row(
            f"{fact_columns.INSERT} RETURNING row_id",
            {
                "owner_id": owner_id,
                "id": fact_id,
                "kind": draft.kind.value,
                "status": draft.status.value,
                "key": draft.key,
                "dedupe_key": draft.dedupe_key,
                "text_hash": self.text_hash(draft.text),
                "said_at": micros(draft.said_at),
                "valid_from": micros(draft.valid_from),
                "valid_to": None,
                "superseded_by": None,
                "expires_at": micros_or_none(draft.expires_at),
                "importance": draft.importance,
                "pinned": int(draft.pinned),
                "revision": 1,
                "created_at": micros(now),
                "updated_at": micros(now),
                "category": draft.category,
                "tags": dump(list(draft.tags)),
                "length": len(draft.terms),
                "terms": join_terms(draft.terms),
                "embedding_model": None if draft.vector is None else self._link.embedding_model,
                "vector": self._link.vector_in(draft.vector),
                "text": draft.text,
                "evidence": draft.evidence,
                "attributes": dump(dict(draft.attributes)),
            },
        )
        assert found is not None
        return int(found[0])

    def _duplicates_are_conflicts(self, sql: str, parameters: Mapping[str, Any]) -> None:
        try:
            with self._link.savepoint():
                self._link.run(sql, parameters)
        except Duplicate as error:
            raise Conflict("another fact of this owner has this key already; read it again, then repeat") from error

    def _delete_rows(self, rows: Sequence[Row]) -> tuple[Mapping[str, int], set[int]]:
        """Delete facts by owner and row id; return how many rows went, and who had stored answers that carried them."""
        self.has_deleted = True
        places = {"owners": sorted({row[0] for row in rows}), "ids": [row[1] for row in rows]}
        forget = idempotency.FORGET.replace("{facts}", "f.owner_id IN [:owners] AND f.row_id IN [:ids]")
        answered = [row[0] for row in self._link.rows(forget, places)]
        of_fact, fact = (f"owner_id IN [:owners] AND {column} IN [:ids]" for column in ("fact_id", "row_id"))
        history = self._link.run(f"DELETE FROM @fact_history WHERE {of_fact}", places)
        self._link.run(f"DELETE FROM @fact_sources WHERE {of_fact}", places)
        has_vector = "CASE WHEN vector IS NULL THEN 0 ELSE 1 END"
        gone = self._link.rows(f"DELETE FROM @facts WHERE {fact} RETURNING {has_vector}", places)
        self._owners.revise(row[0] for row in rows)
        vectors = sum(row[0] for row in gone)
        return {"facts": len(gone), "vectors": vectors, "history": history, "answers": len(answered)}, set(answered)

    def text_hash(self, text: str) -> str:
        """Return the keyed hash by which facts that say the same are found."""
        return self._owners.keyed_hash("text", normal_text(text))[:32]

    def _required(self, owner_id: int, row_id: int) -> FactRow:
        fact = self._one(
            f"{SELECT} WHERE f.owner_id = :owner_id AND f.row_id = :row_id", {"owner_id": owner_id, "row_id": row_id}
        )
        assert fact is not None, "it was written in this transaction"
        return fact

    def _of(self, owner: Owner, where: str, parameters: Mapping[str, Any]) -> FactRow | None:
        row = self._owners.find([owner]).get(owner)
        if row is None:
            return None
        return self._one(
            f"{SELECT} WHERE f.owner_id = :owner_id AND {where} ORDER BY f.row_id LIMIT 1",
            {**parameters, "owner_id": row.id},
        )

    def _one(self, sql: str, parameters: Mapping[str, Any]) -> FactRow | None:
        found = self._many(sql, parameters)
        return found[0] if found else None

    def _many(self, sql: str, parameters: Mapping[str, Any]) -> Sequence[FactRow]:
        found = self._link.rows(sql, parameters)
        sources = self._sources.of(found)
        return [fact_row(row, sources.get(row[0], ())) for row in found]
