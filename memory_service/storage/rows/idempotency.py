"""Answers under idempotency keys, written in the transaction that they answer for: a crash leaves nothing in flight."""

from __future__ import annotations

from datetime import datetime

from memory_service.domain.owners import Owner
from memory_service.errors import InFlight
from memory_service.ports.records import StoredAnswer
from memory_service.storage.encoding import micros
from memory_service.storage.errors import LockTimeout
from memory_service.storage.rows.owners import OwnerKeys
from memory_service.storage.statements import Link

FORGET = (
    "DELETE FROM @idempotency WHERE (owner_id, route, key) IN (SELECT a.owner_id, a.route, a.key"
    " FROM @facts AS f JOIN @answered_facts AS a ON a.fact_id = f.id WHERE {facts})"
    " RETURNING owner_id"
)
"""Deletes the answers that carry facts and returns whose they were; `{facts}` is a condition on `@facts AS f`."""


class Answers:
    """The port's Idempotency."""

    def __init__(self, link: Link, owners: OwnerKeys) -> None:
        self._link = link
        self._owners = owners

    def begin(self, owner: Owner, *, route: str, key: str, body_hash: str, now: datetime) -> StoredAnswer | None:
        """Claim the key in this transaction, or return the answer that it has.

        Raises:
            InFlight: another transaction has held the key for longer than the lock timeout, 5 s.
        """
        try:
            place = {"owner_id": self._owners.ensure_id(owner), "route": route, "key": key}
            claimed = self._link.run(
                "INSERT INTO @idempotency (owner_id, route, key, body_hash, created_at)"
                " VALUES (:owner_id, :route, :key, :body_hash, :now) ON CONFLICT (owner_id, route, key) DO NOTHING",
                {**place, "body_hash": body_hash, "now": micros(now)},
            )
        except LockTimeout as error:
            raise InFlight("the same request is still being carried out; repeat it soon", retry_after=1) from error
        if claimed:
            return None
        found = self._link.row(
            "SELECT body_hash, status, body FROM @idempotency"
            " WHERE owner_id = :owner_id AND route = :route AND key = :key",
            place,
        )
        if found is None or found[1] is None:
            raise InFlight("the same request is still being carried out; repeat it soon", retry_after=1)
        return StoredAnswer(found[0], found[1], found[2])

    def finish(self, owner: Owner, *, route: str, key: str, answer: StoredAnswer) -> None:
        """Write the answer of a claimed key; an erasure in this transaction may have taken the claim itself."""
        self._link.run(
            "INSERT INTO @idempotency (owner_id, route, key, body_hash, created_at, status, body)"
            " VALUES (:owner_id, :route, :key, :body_hash, {now}, :status, :body)"
            " ON CONFLICT (owner_id, route, key) DO UPDATE SET status = excluded.status, body = excluded.body",
            {
                "owner_id": self._owners.ensure_id(owner),
                "route": route,
                "key": key,
                "body_hash": answer.body_hash,
                "status": answer.status,
                "body": answer.body,
            },
        )
        self._link.run_many(
            "INSERT INTO @answered_facts (owner_id, route, key, fact_id)"
            " VALUES (:owner_id, :route, :key, :fact_id) ON CONFLICT (owner_id, route, key, fact_id) DO NOTHING",
            [
                {"owner_id": self._owners.ensure_id(owner), "route": route, "key": key, "fact_id": fact_id}
                for fact_id in answer.fact_ids
            ],
        )

    def expire(self, *, before: datetime, limit: int) -> int:
        """Delete old answers; return how many."""
        return self._link.run(
            "DELETE FROM @idempotency WHERE (owner_id, route, key) IN (SELECT owner_id, route, key FROM @idempotency"
            " WHERE created_at < :before ORDER BY created_at LIMIT :limit)",
            {"before": micros(before), "limit": limit},
        )

    def forget_commits(self, *, before: datetime, limit: int) -> int:
        """Delete old marks of commits; return how many."""
        return self._link.run(
            "DELETE FROM @commits WHERE token IN (SELECT token FROM @commits WHERE at < :before"
            " ORDER BY at LIMIT :limit)",
            {"before": micros(before), "limit": limit},
        )
