"""Rows as the operations see them. Times are aware UTC, similarities 0 to 1, vectors unit length in float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memory_service.contract.items import FactStatus
from memory_service.contract.scopes import FactKind, Kind, Scope
from memory_service.contract.sessions import JobKind, JobState
from memory_service.contract.turns import Role
from memory_service.contract.verbs import ErasureStatus
from memory_service.domain.candidates import Hits, Talk
from memory_service.domain.owners import Owner

Vector = NDArray[np.float32]
"""One unit vector of the store's dimension."""


@dataclass(frozen=True)
class OwnerRow:
    """An owner with its number, its generation (moved on by every erasure) and when it was last erased."""

    id: int
    owner: Owner
    generation: int
    erased_at: datetime | None


@dataclass(frozen=True)
class SessionRow:
    """A session: where its window starts (`folded_seq` is the last turn inside the digest) and what was extracted.

    `window_tokens` and `window_turns` are running totals over the turns after `folded_seq`.
    """

    id: int
    owner: Owner
    home_id: int
    fact_scope: Scope
    last_seq: int
    window_tokens: int
    window_turns: int
    folded_seq: int
    extracted_seq: int
    created_at: datetime
    last_write_at: datetime
    ended_at: datetime | None
    digest_version: int


@dataclass(frozen=True)
class TurnDraft:
    """A turn to append. `text` is what is searched, counted and shown to engines; `terms` are its stems in order."""

    role: Role
    content: str
    text: str
    parts: tuple[Mapping[str, Any], ...] | None
    name: str | None
    said_at: datetime
    tokens: int
    terms: tuple[str, ...]
    client_id: str | None
    infer: bool = True


class TurnRow(NamedTuple):
    """A stored turn. `id` is the row's number, unique in the store and stable."""

    id: int
    session_id: int
    seq: int
    role: Role
    content: str
    text: str
    parts: tuple[Mapping[str, Any], ...] | None
    name: str | None
    said_at: datetime
    tokens: int
    client_id: str | None
    infer: bool


@dataclass(frozen=True)
class Episode:
    """A turn that was found again, with the id of its session and the session's workspace."""

    turn: TurnRow
    session: str
    workspace: str


@dataclass(frozen=True)
class DigestRow:
    """One version of a session's digest; it contains every turn up to `upto_seq`."""

    session_id: int
    version: int
    summary: str
    upto_seq: int
    tokens: int
    created_at: datetime


@dataclass(frozen=True)
class FactSource:
    """Where a fact comes from: an agent's session, on behalf of a principal (or none), and the turns in it."""

    agent: str
    principal: str
    session: str
    workspace: str = ""
    seqs: tuple[int, ...] = ()


@dataclass(frozen=True)
class FactDraft:
    """A fact to store under `owner`. `vector` None means that an embed job will follow."""

    owner: Owner
    kind: FactKind
    text: str
    terms: tuple[str, ...]
    source: FactSource
    said_at: datetime
    valid_from: datetime
    key: str | None = None
    dedupe_key: str | None = None
    category: str | None = None
    tags: tuple[str, ...] = ()
    evidence: str | None = None
    importance: float | None = None
    pinned: bool = False
    status: FactStatus = FactStatus.ACTIVE
    expires_at: datetime | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    vector: Vector | None = None


@dataclass(frozen=True)
class FactRow:
    """A stored fact. `id` is a UUID, `row_id` the number that vectors and candidates use.

    `sources` are the first two and the last, by agent, principal, session and workspace: all of them where there are at
    most three. Whatever holds of these holds of those between, as far as it is about agents, pairs or one session.
    """

    id: str
    row_id: int
    owner: Owner
    kind: FactKind
    text: str
    sources: tuple[FactSource, ...]
    said_at: datetime
    valid_from: datetime
    valid_to: datetime | None
    superseded_by: str | None
    key: str | None
    dedupe_key: str | None
    category: str | None
    tags: tuple[str, ...]
    evidence: str | None
    importance: float | None
    pinned: bool
    status: FactStatus
    expires_at: datetime | None
    attributes: Mapping[str, Any]
    revision: int
    created_at: datetime
    updated_at: datetime
    has_vector: bool

    def ends_for(self, valid_from: datetime) -> datetime:
        """Return where its validity ends for a statement that holds from then on: never before it began."""
        return max(self.valid_from, valid_from)


@dataclass(frozen=True)
class FactChange:
    """New values of a fact's fields by FactRow's names; fields that are not named stay.

    With `terms` the vector becomes `vector` too (None: an embed job follows), unless `keeps_vector`. With `source` the
    fact's sources become that one alone.
    """

    fields: Mapping[str, Any]
    terms: tuple[str, ...] | None = None
    vector: Vector | None = None
    keeps_vector: bool = False
    source: FactSource | None = None


@dataclass(frozen=True)
class HistoryRow:
    """One change of a fact; `text` is None where it went on to say the same."""

    at: datetime
    event: Literal["added", "corrected", "restated", "replaced", "superseded", "deleted", "accepted", "rejected"]
    text: str | None
    actor: str


@dataclass(frozen=True)
class JobDraft:
    """Work to enqueue in the transaction that causes it.

    One queued job per (`kind`, `dedupe_key`) exists: a second draft returns the first one's id.
    Jobs with the same `lane` never run at the same time, on any replica.
    """

    kind: JobKind
    dedupe_key: str
    run_at: datetime
    lane: str | None = None
    session_id: int | None = None
    owner_id: int | None = None
    generation: int | None = None
    payload: Mapping[str, Any] = field(default_factory=dict)
    request_id: str | None = None

    @classmethod
    def of_purge(cls, run_at: datetime) -> JobDraft:
        """Return the job that purges whatever was erased: one runs at a time, and one more waits at most."""
        return cls(JobKind.PURGE, "purge", run_at, lane="purge")


@dataclass(frozen=True)
class JobRow:
    """A job. While it runs, `lease_token` proves whose it is; a worker may only finish what it still holds.

    `attempts` counts every try that ended without its work. Of these, `failures` are the job's own and `crashes` are
    leases that expired; the rest were outages.
    """

    id: str
    kind: JobKind
    state: JobState
    attempts: int
    failures: int
    crashes: int
    run_at: datetime
    created_at: datetime
    finished_at: datetime | None
    lane: str | None
    session_id: int | None
    owner_id: int | None
    generation: int | None
    payload: Mapping[str, Any]
    error: str | None
    request_id: str | None
    lease_token: str | None


@dataclass(frozen=True)
class ReceiptRow:
    """An erasure's receipt. `owner` is who asked (its private pair), empty agent for an admin's."""

    id: str
    agent: str
    principal: str
    status: ErasureStatus
    erased: Mapping[str, int]
    erased_at: datetime
    purged_at: datetime | None
    waiting_for: tuple[str, ...]


@dataclass(frozen=True)
class StoredAnswer:
    """The answer that a finished request left under its idempotency key; it goes with the facts whose text it has."""

    body_hash: str
    status: int
    body: str
    fact_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class ItemFilters:
    """Conditions on candidates; None means no condition. `as_of` None means now."""

    now: datetime
    kinds: frozenset[Kind] | None = None
    categories: frozenset[str] | None = None
    tags: frozenset[str] | None = None
    since: datetime | None = None
    until: datetime | None = None
    min_importance: float | None = None
    as_of: datetime | None = None


@dataclass(frozen=True)
class SearchQuery:
    """What to look for: distinct stems of the query, its unit vector (None: words only), and the conditions.

    `limit` bounds the candidates per signal where an owner is too large to be scored whole.
    """

    terms: tuple[str, ...]
    vector: Vector | None
    filters: ItemFilters
    limit: int = 500


@dataclass(frozen=True)
class Pool:
    """Candidates of one tier under one owner key, as columns of length n; t is the number of query terms.

    The statistics are over all searchable rows of the owner key, whatever the filters say: nothing foreign is in them.
    `exact` says that every row of the owner is here; else the best of each signal and their neighbours are.
    """

    tier: Literal["fact", "episode"]
    row_ids: NDArray[np.int64]
    session_ids: NDArray[np.int64]
    """Episodes: the session; facts: 0."""
    seqs: NDArray[np.int64]
    roles: NDArray[np.int8]
    """Episodes: index into ROLES; facts: -1."""
    said_at: NDArray[np.float64]
    """Seconds since 1970, UTC."""
    lengths: NDArray[np.float32]
    """Number of stems of the row."""
    hits: Hits
    """How often each query term occurs in each row."""
    cosines: NDArray[np.float32]
    """Cosine clipped to 0..1 and rounded to 6 digits; NaN where the row has no vector yet or the query has none."""
    passes: NDArray[np.bool_]
    """Whether the row meets the filters."""
    population: int
    total_length: float
    document_counts: NDArray[np.int64]
    """t: in how many of the owner's rows each query term occurs."""
    exact: bool
    talk: Talk | None = None
    """How these turns stand to each other, where that is known already."""


ROLES: tuple[Role, ...] = (Role.USER, Role.ASSISTANT, Role.TOOL, Role.SYSTEM)
"""The order that Pool.roles indexes."""


@dataclass(frozen=True)
class PurgeStep:
    """How a purge went: done, or what it waits for."""

    done: bool
    waiting_for: tuple[Literal["lock", "rights", "snapshot", "space"], ...] = ()


@dataclass(frozen=True)
class Restored:
    """What an import did: of each line what became of it, and how many rows of each kind its erasures took."""

    outcomes: Sequence[str]
    erased: Mapping[str, int]
