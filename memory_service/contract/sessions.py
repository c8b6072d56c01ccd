"""Bodies of the session, job and admin routes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from memory_service.contract.base import Text, Time, Wire
from memory_service.contract.ids import AgentIdentity, SessionId, Workspace
from memory_service.contract.limits import MAX_IMPORT_LINES, MAX_PRINCIPAL_CHARS
from memory_service.contract.turns import Turn
from memory_service.contract.verbs import Degraded


class SessionSummary(Wire):
    """One session of the caller. `tokens` and `turns` count the window; `last_seq` counts every turn kept."""

    session_id: str
    workspace: str | None = None
    created_at: Time
    last_write_at: Time
    ended_at: Time | None = None
    last_seq: int
    turns: int
    tokens: int
    digest_version: int


class SessionsResponse(Wire):
    """One page of the caller's sessions, newest write first."""

    sessions: tuple[SessionSummary, ...]
    next_cursor: str | None = None


class Digest(Wire):
    """One version of a session's rolling narrative; it holds the turns up to `upto_seq`."""

    version: int
    summary: str
    upto_seq: int
    tokens: int
    created_at: Time


class SessionDetail(Wire):
    """A session with its window, oldest turn first, and its kept digests, newest first."""

    session: SessionSummary
    window: tuple[Turn, ...]
    digests: tuple[Digest, ...]
    degraded: tuple[Degraded, ...] = ()


class TurnsResponse(Wire):
    """Every turn kept, in order, page by page."""

    turns: tuple[Turn, ...]
    next_after: int | None = None


class SessionAction(Wire):
    """A partition to act in; none is the session's default one."""

    workspace: Workspace | None = None


class SessionActionResponse(Wire):
    """The jobs that carry the action out; `busy` when a compaction runs already."""

    session_id: str
    jobs: tuple[str, ...]
    scheduled: bool
    busy: bool = False


class JobKind(StrEnum):
    """The kinds of background work."""

    INDEX_TURNS = "index_turns"
    FOLD = "fold"
    EXTRACT = "extract"
    EMBED = "embed"
    EXPIRE = "expire"
    PURGE = "purge"
    RECONCILE_INDEX = "reconcile_index"
    REBUILD_INDEX = "rebuild_index"


class JobState(StrEnum):
    """Where a job stands. `dead` jobs failed too often and wait for a person."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"


class Job(Wire):
    """One unit of background work. `error` is a reason and a sentence, never remembered text."""

    id: str
    kind: JobKind
    state: JobState
    attempts: int
    error: str | None = None
    session_id: str | None = None
    created_at: Time
    run_at: Time
    finished_at: Time | None = None


class JobsResponse(Wire):
    """One page of jobs, newest first."""

    jobs: tuple[Job, ...]
    next_cursor: str | None = None


class ErasureSubject(Wire):
    """Whose memory an admin erases: a principal (`<issuer>#<subject>`), an agent, or an agent's session."""

    principal: Annotated[Text, Field(min_length=3, max_length=MAX_PRINCIPAL_CHARS, pattern=r"^[^#]+#.+$")] | None = None
    agent: AgentIdentity | None = None
    session: SessionId | None = Field(
        default=None, description="Together with `agent`, and with `principal` if it has one."
    )

    @model_validator(mode="after")
    def _is_one_subject(self) -> Self:
        if self.session is not None and self.agent is None:
            raise ValueError("`session` needs `agent`: a session id is an agent's own")
        if self.session is None and (self.principal is None) == (self.agent is None):
            raise ValueError("give exactly one of `principal`, `agent`, or `session` with its `agent`")
        return self


class AdminEraseRequest(Wire):
    """An erasure by subject, over every owner key and agent of the store."""

    subject: ErasureSubject


class Diagnostics(Wire):
    """Totals of the store: rows by tier, facts by scope and status, jobs by state, schema, sizes."""

    version: str
    backend: str
    schema_version: int
    counts: dict[str, int]
    facts_by_scope: dict[str, int]
    jobs_by_state: dict[str, int]
    bytes_on_disk: int
    embedding_model: str
    dimension: int


class ReplayRequest(Wire):
    """Puts every job of a state back into the queue."""

    state: JobState = JobState.DEAD


class ReplayResponse(Wire):
    """How many jobs went back."""

    replayed: int


class ExportPage(Wire):
    """Self-contained lines of an export, in an order that an import can follow; null `next_cursor` at the end."""

    lines: tuple[dict[str, Any], ...]
    next_cursor: str | None = None


class ImportRequest(Wire):
    """Lines of an export. A line of which everything is there already is skipped."""

    lines: Annotated[tuple[dict[str, Any], ...], Field(min_length=1, max_length=MAX_IMPORT_LINES)]


class ImportResponse(Wire):
    """What became of the lines: each one counts once.

    `skipped`: the store has what the line says. `tombstoned`: it is of before an erasure, here or in a store that was
    imported from. `left_out`: a fact that was changed here since, or a digest of a session that goes on here from
    another one. `erased`: it says what was deleted where it comes from, and that was here and is deleted now; the
    receipt counts what went.
    """

    imported: int
    skipped: int
    tombstoned: int
    left_out: int = 0
    erased: int = 0
    receipt_id: str | None = None
