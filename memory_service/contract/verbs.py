"""Bodies of the agent's verbs: write, recall, remember, facts, list, forget."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from memory_service.contract.base import AsNumber, AsTruth, Text, Time, Wire
from memory_service.contract.ids import FactKey, SessionId, Workspace
from memory_service.contract.items import Filters, Item, Label
from memory_service.contract.limits import (
    DEFAULT_PAGE,
    MAX_ATTRIBUTES_BYTES,
    MAX_CURSOR_CHARS,
    MAX_EVIDENCE_CHARS,
    MAX_FACT_CHARS,
    MAX_FACTS_PER_BATCH,
    MAX_GENERATION_CHARS,
    MAX_PAGE,
    MAX_QUERY_CHARS,
    MAX_QUEUED_SECONDS,
    MAX_TAGS,
    MAX_TOKEN_BUDGET,
    MAX_TOP_K,
    MAX_TURNS_PER_WRITE,
    MAX_WHOLE_NUMBER,
)
from memory_service.contract.scopes import FactKind, Scope, Tier
from memory_service.contract.turns import NewTurn, Turn, storable_json

Generation = Annotated[str, Field(min_length=1, max_length=MAX_GENERATION_CHARS)]


class Degraded(Wire):
    """A part that was missing from an answer, with a reason code from docs/reference/reasons.md."""

    part: str
    reason: str


class WriteRequest(Wire):
    """Turns to append to a session, all or none."""

    session_id: SessionId
    turns: Annotated[tuple[NewTurn, ...], Field(min_length=1, max_length=MAX_TURNS_PER_WRITE)]
    workspace: Workspace | None = None
    infer: Annotated[bool, AsTruth] = Field(
        default=True, description="Whether facts may be extracted from these turns."
    )
    generation: Generation | None = Field(
        default=None,
        description="From an earlier answer; 410 if anything was erased since, unless `queued_seconds` comes with it.",
    )
    queued_seconds: Annotated[float, Field(ge=0, le=MAX_QUEUED_SECONDS), AsNumber] | None = Field(
        default=None,
        description="How long the turns waited in an outbox; 410 if anything was erased after they were said. "
        "It counts for what `generation` does not vouch for.",
    )

    @model_validator(mode="after")
    def _turn_ids_are_unique(self) -> Self:
        ids = [turn.id for turn in self.turns if turn.id is not None]
        if len(ids) != len(set(ids)):
            raise ValueError("two turns of one write have the same `id`; give each turn its own")
        return self


class WriteResponse(Wire):
    """Where the turns are, in the order they were sent, and the jobs that they caused."""

    session_id: str
    seqs: tuple[int, ...]
    jobs: tuple[str, ...] = ()
    scheduled: bool = False
    generation: str
    degraded: tuple[Degraded, ...] = ()


class RecallMode(StrEnum):
    """How a recall's own selection meets the binding's: as it is, added to it, instead of it, or no recall at all."""

    INHERIT = "inherit"
    APPEND = "append"
    REPLACE = "replace"
    DISABLE = "disable"


class Outcome(StrEnum):
    """How a recall went; nothing found, not available, switched off, filtered out and refused are different."""

    APPLIED = "applied"
    NO_MATCHES = "no_matches"
    FILTERED_OUT = "filtered_out"
    DISABLED = "disabled"
    UNAVAILABLE = "unavailable"
    REFUSED = "refused"
    BUDGET_EXHAUSTED = "budget_exhausted"
    RENDERER_REJECTED = "renderer_rejected"
    UNCONFIGURED = "unconfigured"
    NOT_REPORTED = "not_reported"


class RecallRequest(Wire):
    """What to look for and how much of it to bring."""

    query: Annotated[Text, Field(max_length=MAX_QUERY_CHARS)]
    session_id: SessionId | None = None
    include: Annotated[tuple[Tier, ...], Field(min_length=1, max_length=len(Tier))] = (
        Tier.SHORT_TERM,
        Tier.MEDIUM_TERM,
        Tier.LONG_TERM,
    )
    top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K), AsNumber] | None = Field(
        default=None, description="The store's default if left out; as many as fit where there is a token budget."
    )
    token_budget: Annotated[int, Field(ge=1, le=MAX_TOKEN_BUDGET), AsNumber] | None = Field(
        default=None, description="Tokens of the long-term block; the binding's, else no bound but top_k."
    )
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1, max_length=len(Scope))] | None = Field(
        default=None, description="Among the binding's readScopes; all of them if left out."
    )
    workspace: Workspace | None = None
    filters: Filters = Filters()
    mode: RecallMode = RecallMode.INHERIT
    score_floor: Annotated[float, Field(ge=0, le=1), AsNumber] | None = Field(
        default=None, description="0 means no floor."
    )
    explain: Annotated[bool, AsTruth] = False


class LongTerm(Wire):
    """Ranked items and the quoted block that renders them."""

    items: tuple[Item, ...] = ()
    block: str = ""


class MediumTerm(Wire):
    """The session's digest; version 0 means that there is none yet. `block` shows it quoted, to be put into a prompt;
    `summary` is as a model wrote it, from whatever was said.
    """

    summary: str = ""
    version: int = 0
    block: str = ""


class ShortTerm(Wire):
    """The session's window, oldest first."""

    window: tuple[Turn, ...] = ()


class Omitted(Wire):
    """An item that was found and left out, and why: budget, duplicate, below_floor, in_window, filtered, top_k."""

    id: str
    reason: str


class Usage(Wire):
    """Tokens of the answer, counted by the service."""

    tokens: int = 0
    long_term: int = 0
    medium_term: int = 0
    short_term: int = 0


class RecallResponse(Wire):
    """What is remembered, how it went, what was left out and what was missing."""

    outcome: Outcome
    long_term: LongTerm = LongTerm()
    medium_term: MediumTerm = MediumTerm()
    short_term: ShortTerm = ShortTerm()
    usage: Usage = Usage()
    omitted: tuple[Omitted, ...] = ()
    degraded: tuple[Degraded, ...] = ()
    generation: str | None = None


class FactFields(Wire):
    """The guided fields of a fact, all optional."""

    kind: FactKind = FactKind.SEMANTIC
    category: Label | None = None
    evidence: Annotated[Text, Field(max_length=MAX_EVIDENCE_CHARS)] | None = None
    importance: Annotated[float, Field(ge=0, le=1), AsNumber] | None = None
    tags: Annotated[tuple[Label, ...], Field(max_length=MAX_TAGS)] = ()
    pinned: Annotated[bool, AsTruth] = False
    dedupe_key: FactKey | None = Field(
        default=None, description="A second save with it, in one owner, updates the first."
    )
    expires_at: Time | None = None
    said_at: Time | None = Field(
        default=None,
        description="When it was said; left out, when it came, less its `queued_seconds`. Never later than now.",
    )
    attributes: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _attributes_are_storable(self) -> Self:
        storable_json(self.attributes)
        size = len(json.dumps(self.attributes, ensure_ascii=False).encode())
        if size > MAX_ATTRIBUTES_BYTES:
            raise ValueError(f"`attributes` has at most {MAX_ATTRIBUTES_BYTES} bytes as JSON; this has {size}")
        return self


class NewFact(FactFields):
    """A fact to save under its scope: the binding's own, or `session`."""

    text: Annotated[Text, Field(min_length=1, max_length=MAX_FACT_CHARS)]
    key: FactKey | None = Field(default=None, description="A later fact with the same key replaces this one.")
    scope: Scope | None = None
    session_id: SessionId | None = None
    workspace: Workspace | None = None


class RememberRequest(NewFact):
    """A fact to save now; it can be found before the call returns."""

    generation: Generation | None = None
    queued_seconds: Annotated[float, Field(ge=0, le=MAX_QUEUED_SECONDS), AsNumber] | None = None


class RememberResponse(Item):
    """The saved fact. `action`: added, replaced (same key), superseded (another fact), ignored (known already)."""

    generation: str
    action: Literal["added", "replaced", "superseded", "ignored"]


class FactBatchRequest(Wire):
    """Facts to save together: all or none."""

    facts: Annotated[tuple[NewFact, ...], Field(min_length=1, max_length=MAX_FACTS_PER_BATCH)]
    generation: Generation | None = None


class FactBatchResponse(Wire):
    """The saved facts in the order they were sent."""

    facts: tuple[RememberResponse, ...]
    generation: str


class FactPatch(Wire):
    """A correction of one fact; what is left out stays. `revision` refuses (409) a fact that changed meanwhile."""

    text: Annotated[Text, Field(min_length=1, max_length=MAX_FACT_CHARS)] | None = None
    category: Label | None = None
    evidence: Annotated[Text, Field(max_length=MAX_EVIDENCE_CHARS)] | None = None
    importance: Annotated[float, Field(ge=0, le=1), AsNumber] | None = None
    tags: Annotated[tuple[Label, ...], Field(max_length=MAX_TAGS)] | None = None
    pinned: Annotated[bool, AsTruth] | None = None
    expires_at: Time | None = None
    revision: Annotated[int, Field(ge=0, le=MAX_WHOLE_NUMBER), AsNumber] | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not (self.model_fields_set - {"revision"}):
            raise ValueError(
                "names nothing to change; give one of text, category, evidence, importance, tags, pinned, expires_at"
            )
        empty = [
            name for name in ("text", "tags", "pinned") if name in self.model_fields_set and getattr(self, name) is None
        ]
        if empty:
            raise ValueError(f"`{empty[0]}` cannot be null, every fact has one; leave it out to keep what it is")
        return self


class SupersedeRequest(FactFields):
    """The statement that takes a fact's place; the old one keeps its validity and its successor."""

    text: Annotated[Text, Field(min_length=1, max_length=MAX_FACT_CHARS)]


class HistoryEntry(Wire):
    """One change of a fact. `text` is what it said from then on; null where it went on to say the same."""

    at: Time
    event: Literal["added", "corrected", "restated", "replaced", "superseded", "deleted", "accepted", "rejected"]
    text: str | None
    actor: str


class HistoryResponse(Wire):
    """A fact's changes, oldest first; of very many, the newest."""

    id: str
    entries: tuple[HistoryEntry, ...]


ListedTier = Literal["fact", "episode"]


class ListRequest(Wire):
    """Everything visible at one scope, page by page, oldest first."""

    scope: Scope | None = None
    session_id: SessionId | None = None
    workspace: Workspace | None = None
    tiers: Annotated[tuple[ListedTier, ...], Field(min_length=1, max_length=len(get_args(ListedTier)))] = ("fact",)
    cursor: Annotated[str, Field(max_length=MAX_CURSOR_CHARS)] | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE), AsNumber] = DEFAULT_PAGE


class ListResponse(Wire):
    """One page; `next_cursor` is null at the end."""

    items: tuple[Item, ...]
    next_cursor: str | None = None


class ForgetRequest(Wire):
    """An erasure of the binding's own scope, or of a session. `confirm` must be true."""

    scope: Scope | None = None
    session_id: SessionId | None = None
    confirm: Annotated[Literal[True], AsTruth]


class ErasureStatus(StrEnum):
    """`erased`: nothing reads it again. `purged`: the bytes are gone too."""

    ERASED = "erased"
    PURGED = "purged"


class ForgetResponse(Wire):
    """The receipt's id and what was erased, by tier."""

    receipt_id: str
    status: ErasureStatus
    erased: dict[str, int]


class Receipt(Wire):
    """How far an erasure is. `waiting_for`: lock, rights, snapshot, space."""

    receipt_id: str
    status: ErasureStatus
    erased: dict[str, int]
    erased_at: Time
    purged_at: Time | None = None
    waiting_for: tuple[str, ...] = ()
