"""The storage port: conversations: sessions, what was said in them, and their digests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from memory_service.contract.scopes import Scope
from memory_service.domain.owners import Owner
from memory_service.ports.records import DigestRow, Episode, OwnerRow, SessionRow, TurnDraft, TurnRow, Vector


class Sessions(Protocol):
    """Conversations and their running totals."""

    def ensure(self, owner: Owner, fact_scope: Scope, now: datetime) -> SessionRow:
        """Return the session of a session-scope owner, made if needed, locked until the transaction ends.

        `fact_scope` is where facts from its turns go from now on.
        """

    def is_beyond(self, session: SessionRow, most: int) -> bool:
        """Return whether the pair of a session has more than so many; a store that never had them is not asked."""

    def find(self, owner: Owner) -> SessionRow | None:
        """Return the session, or None."""

    def get(self, session_id: int) -> SessionRow | None:
        """Return a session by its number, for jobs that were made under it."""

    def get_many(self, session_ids: Collection[int]) -> Mapping[int, SessionRow]:
        """Return sessions by their numbers; those that are gone are left out."""

    def lock(self, session_id: int) -> SessionRow | None:
        """Like `get`, held until the transaction ends."""

    def list(
        self, homes: Sequence[OwnerRow], *, limit: int, before: tuple[datetime, int] | None
    ) -> Sequence[SessionRow]:
        """Return sessions of these pairs, newest write first; `before` is the last row of the previous page."""

    def written_since(
        self, homes: Sequence[OwnerRow], moment: datetime, *, after: int, limit: int
    ) -> Sequence[SessionRow]:
        """Return sessions of these pairs that were written to since a moment, by row id, after one."""

    def partitions(self, owner: Owner) -> Sequence[SessionRow]:
        """Return the sessions of this session id in every workspace partition of its agent and principal."""

    def end(self, session_id: int, now: datetime) -> None:
        """Mark a session as ended; a later write opens it again."""

    def advance_extracted(self, session_id: int, *, from_seq: int, to_seq: int) -> bool:
        """Move `extracted_seq` on; False when it no longer is `from_seq`."""

    def waiting_for_extraction(self, *, idle_before: datetime, limit: int) -> Sequence[SessionRow]:
        """Return sessions whose last write is older and that have turns which are not extracted, oldest first.

        One with a queued or running job is being seen to, and one whose extraction is dead waits for a person or for
        the next write: none of them keeps another from its turn.
        """

    def waiting_for_index(self, *, limit: int) -> Sequence[SessionRow]:
        """Return sessions that have turns without a vector and no queued, running or dead index_turns job."""


class Turns(Protocol):
    """Messages as they were said."""

    def append(self, session: SessionRow, turns: Sequence[TurnDraft], now: datetime) -> Sequence[int]:
        """Store turns at the end of a locked session and return their seqs; a known client id returns its own seq.

        Totals of the session move in the same statement: the cost does not depend on the window's size.
        """

    def window(self, session: SessionRow, *, limit: int) -> Sequence[TurnRow]:
        """Return the newest `limit` turns after `folded_seq`, oldest first."""

    def between(self, session: SessionRow, *, after: int, upto: int | None, limit: int) -> Sequence[TurnRow]:
        """Return turns with after < seq <= upto, in order."""

    def unindexed(self, session_id: int, *, after: int = 0, limit: int) -> Sequence[TurnRow]:
        """Return turns of a session with after < seq that have no vector yet, oldest first."""

    def store_vectors(self, session_id: int, vectors: Mapping[int, Vector | None]) -> int:
        """Save vectors by turn row id; None marks a turn that has nothing to embed, so that it waits no longer.

        Turns that were erased meanwhile are skipped. Safe to repeat.
        """

    def list(
        self, homes: Sequence[OwnerRow], *, session: SessionRow | None, after: int | None, limit: int
    ) -> Sequence[TurnRow]:
        """Return turns of these pairs (of one session of theirs) by row id, after one; the episodes of a scope."""

    def get(self, homes: Collection[int], row_ids: Sequence[int]) -> Mapping[int, Episode]:
        """Return turns of these owners that a Pool named, by row id; ids that are gone are left out."""

    def expire(self, *, before: datetime, limit: int) -> int:
        """Delete turns that were stored earlier, oldest first, and take them out of their windows; return how many.

        What goes without having been extracted is waited for no longer.
        """


class Digests(Protocol):
    """Rolling narratives; append-only."""

    def latest(self, session_id: int) -> DigestRow | None:
        """Return the newest version."""

    def list(self, session_id: int, *, limit: int) -> Sequence[DigestRow]:
        """Return kept versions, newest first."""

    def append(self, digest: DigestRow, *, folded_from: int, keep: int) -> bool:
        """Commit a version and move the window's start to its `upto_seq`; keep the newest `keep` versions.

        False, and nothing is stored, when the session's `folded_seq` is no longer `folded_from`, or its
        `digest_version` is the digest's already.
        """

    def expire(self, *, before: datetime, limit: int) -> int:
        """Delete versions that were made earlier, the newest one too, oldest first; return how many.

        Nothing that they tell of was said later. `digest_version` and the window stay.
        """
