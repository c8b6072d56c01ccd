"""The storage port: one interface, two implementations, one conformance suite.

Every method that touches memory takes its owner, or a row that was found under one. An empty owner set returns nothing.
Methods never commit: `Storage.transact` runs a function and commits once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from memory_service.contract.health import PartHealth
from memory_service.contract.scopes import Scope
from memory_service.contract.sessions import Diagnostics, JobKind, JobState
from memory_service.domain.callers import Principal
from memory_service.domain.owners import AgentPairs, Erasure, Owner, PrincipalPairs
from memory_service.ports.records import (
    DigestRow,
    Episode,
    FactChange,
    FactDraft,
    FactRow,
    FactSource,
    HistoryRow,
    ItemFilters,
    JobDraft,
    JobRow,
    OwnerRow,
    Pool,
    PurgeStep,
    ReceiptRow,
    Restored,
    SearchQuery,
    SessionRow,
    StoredAnswer,
    TurnDraft,
    TurnRow,
    Vector,
)

T = TypeVar("T")


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
        meanwhile; an erasure locks its `marks`.
        """

    def lock(self, owner: Owner) -> OwnerRow:
        """Like `ensure`, and hold the row until the transaction ends: one writer merges at a time."""

    def pairs(self, pairs: AgentPairs | PrincipalPairs) -> Sequence[OwnerRow]:
        """Return the private pairs of an agent, or of a principal over all agents, in one workspace partition."""

    def name_principal(self, principal: Principal) -> None:
        """Keep the shown form of a principal beside its hash."""

    def principal_name(self, principal_hash: str) -> str | None:
        """Return `<issuer>#<subject>`, or None when it was erased."""


class Sessions(Protocol):
    """Conversations and their running totals."""

    def ensure(self, owner: Owner, fact_scope: Scope, now: datetime) -> SessionRow:
        """Return the session of a session-scope owner, made if needed, locked until the transaction ends.

        `fact_scope` is where facts from its turns go from now on.
        """

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
        """Return sessions whose last write is older and whose turns are not all extracted, oldest first.

        One whose extraction is dead waits for a person or for the next write: asking again changes nothing.
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
        """Delete turns that were stored earlier, oldest first, and take them out of their windows; return how many."""


class Digests(Protocol):
    """Rolling narratives; append-only."""

    def latest(self, session_id: int) -> DigestRow | None:
        """Return the newest version."""

    def list(self, session_id: int, *, limit: int) -> Sequence[DigestRow]:
        """Return kept versions, newest first."""

    def append(self, digest: DigestRow, *, folded_from: int, keep: int) -> bool:
        """Commit a version and move the window's start to its `upto_seq`; keep the newest `keep` versions.

        False, and nothing is stored, when the session's `folded_seq` is no longer `folded_from`.
        """


class Facts(Protocol):
    """Long-term facts."""

    def add(self, draft: FactDraft, *, fact_id: str, actor: str, now: datetime) -> FactRow:
        """Store a fact and the first line of its history."""

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

    def delete(self, fact_id: str) -> None:
        """Delete a fact with its history, sources and vector."""

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


class Jobs(Protocol):
    """The durable queue."""

    def enqueue(self, draft: JobDraft, now: datetime) -> str:
        """Enqueue, or return the id of the queued job with the same kind and dedupe key."""

    def claim(
        self, *, kinds: Sequence[JobKind], lease: timedelta, worker: str, max_crashes: int, now: datetime
    ) -> JobRow | None:
        """Take the job that is due longest and whose lane is free; expired leases come back first, an attempt each.

        A job whose lease expired `max_crashes` times is dead, whatever else it was tried for in between.
        """

    def renew(self, job: JobRow, *, lease: timedelta, now: datetime) -> bool:
        """Lengthen the lease; False when it is no longer ours."""

    def finish(self, job: JobRow, now: datetime) -> bool:
        """Mark as done, its dead twins too; False, and the caller must roll back, when the lease is no longer ours."""

    def fail(self, job: JobRow, *, error: str, is_own: bool, retry_at: datetime | None, now: datetime) -> bool:
        """Put back with a failed attempt, or mark as dead when `retry_at` is None; False when not ours any more.

        `is_own`: the failure is the job's, not an outage's. Of one kind and dedupe key the newest job alone is dead.
        """

    def release(self, job: JobRow, now: datetime) -> bool:
        """Hand back without an attempt (drain)."""

    def get(self, job_id: str) -> JobRow | None:
        """Return a job by id; the caller checks its owner."""

    def list(
        self,
        *,
        homes: Sequence[OwnerRow] | None,
        state: JobState | None,
        session: Sequence[SessionRow] | None,
        limit: int,
        before: tuple[datetime, str] | None,
    ) -> Sequence[JobRow]:
        """Return jobs, newest first; `homes` None is the admin's view over all owners."""

    def is_running(self, kind: JobKind, session_id: int, now: datetime) -> bool:
        """Return whether a worker holds a job of this kind for a session."""

    def retry(self, job_id: str, now: datetime) -> bool:
        """Put a dead job back with its counts cleared; False when it is not dead."""

    def replay(self, state: JobState, now: datetime) -> int:
        """Put every job of a state back; return how many."""

    def counts(self, now: datetime) -> tuple[Mapping[JobState, int], float]:
        """Return jobs by state, and the age in seconds of the oldest one that is due."""

    def forget_done(self, *, before: datetime, limit: int) -> int:
        """Delete finished jobs; return how many."""


class Receipts(Protocol):
    """Erasures and how far they are."""

    def add(self, receipt_id: str, *, asked_by: Owner | None, erased: Mapping[str, int], now: datetime) -> ReceiptRow:
        """Leave a receipt for something that was deleted by id, and enqueue the purge of its bytes."""

    def get(self, receipt_id: str) -> ReceiptRow | None:
        """Return a receipt; the caller checks whose it is."""

    def unpurged(self, *, limit: int) -> Sequence[ReceiptRow]:
        """Return receipts whose bytes are not gone yet, oldest first."""

    def note_purge(self, receipt_ids: Sequence[str], step: PurgeStep, now: datetime) -> None:
        """Write what a purge reached."""


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


class Erasing(Protocol):
    """Erasure, stage one."""

    def erase(self, erasure: Erasure, *, receipt_id: str, asked_by: Owner | None, now: datetime) -> ReceiptRow:
        """Delete every tier of the subject, move generations on, note when, and leave a receipt."""


class Search(Protocol):
    """Candidates by owner."""

    def facts(self, owner: OwnerRow, query: SearchQuery) -> Pool:
        """Return the owner's facts as candidates; only those valid at `as_of` count."""

    def episodes(self, homes: Sequence[OwnerRow], query: SearchQuery, *, session: SessionRow | None) -> Pool:
        """Return turns of these pairs (of one session of theirs) as candidates of one owner key."""


class Moving(Protocol):
    """Export and import of whole rows, in dependency order."""

    def export(self, *, cursor: str | None, limit: int) -> tuple[Sequence[Mapping[str, Any]], str | None]:
        """Return lines and the next cursor."""

    def restore(self, lines: Sequence[Mapping[str, Any]], now: datetime) -> Restored:
        """Store lines in their order; return of each whether it is imported, skipped, tombstoned, left_out or erased.

        skipped: the store has what the line says. A turn whose place another one has is appended to its session; facts
        are merged as by a save. tombstoned: it was stored before an erasure that covers it, of this store or of one
        that was imported from. left_out: a fact that was changed here since, a digest that its session cannot take.
        erased: a line that says what was deleted where it comes from, and rows of it were here; those that were stored
        later stay. The caller leaves a receipt, so that their bytes go.

        As many statements for many lines of one type as for one.

        Raises:
            InvalidRequest: the line is not one of an export.
        """


class Transaction(Protocol):
    """Everything that one commit may hold."""

    owners: Owners
    sessions: Sessions
    turns: Turns
    digests: Digests
    facts: Facts
    jobs: Jobs
    receipts: Receipts
    idempotency: Idempotency
    erasing: Erasing
    search: Search
    moving: Moving

    def now(self) -> datetime:
        """Return the time that job due times compare with: the database's plus the clock's shift."""


class Storage(Protocol):
    """A backend."""

    async def transact(self, work: Callable[[Transaction], T], *, urgent: bool = False) -> T:
        """Run `work` in one transaction and commit it durably before returning.

        `urgent` work does not queue behind writes of this process that wait for rows which others hold; it is for what
        must not be late and takes no owner's lock, such as the renewal of a lease.

        `work` must be safe to run again from the start: it is, once, when the connection is lost before the commit.
        Whatever it raises rolls everything back.

        Raises:
            StorageUnavailable: nothing was stored.
        """

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` over one consistent snapshot; it must not write."""

    async def migrate(self) -> None:
        """Bring the schema up to date; refuses one that is too new or made for another embedding.

        Raises:
            Misconfigured: with what is wrong and what to do.
        """

    async def health(self) -> Mapping[str, PartHealth]:
        """Return the parts `storage` and `schema`, from a real query with a timeout; never raises."""

    async def purge(self) -> PurgeStep:
        """Carry the bytes of erased rows off the disk: a step that may be repeated."""

    async def rebuild_index(self) -> None:
        """Make the vector index anew from the rows."""

    async def reconcile_index(self) -> int:
        """Bring the vector index up to the rows (local: Chroma); return how many rows it moved."""

    async def diagnostics(self) -> Diagnostics:
        """Count everything."""

    async def schemas_left_behind(self) -> Sequence[str]:
        """Name schemas in this database that are another store's of the same name."""

    async def close(self) -> None:
        """Finish what runs, close connections and give the folder's lock back; repeating it does nothing.

        Everything after it, `migrate` too, raises StorageUnavailable, and `health` says that nothing is open.
        """
