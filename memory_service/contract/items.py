"""Long-term items as they are answered, and the filters that choose among them."""

from __future__ import annotations

import unicodedata
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from memory_service.contract.base import AsNumber, Text, Time, Wire
from memory_service.contract.limits import MAX_FILTER_VALUES, MAX_TAG_CHARS
from memory_service.contract.scopes import Kind, Scope


class FactStatus(StrEnum):
    """Where a fact stands. Only `active` facts are recalled, unless `as_of` asks for the past."""

    ACTIVE = "active"
    SUPERSEDED = "superseded"
    PENDING = "pending"
    REJECTED = "rejected"


class Item(Wire):
    """A fact or an episode. `score` is absolute, 0 to 1; the order of items is the rank."""

    id: str
    tier: Literal["fact", "episode"]
    kind: Kind
    text: str
    score: float | None = None
    scope: Scope
    said_at: Time
    session_id: str | None = None
    seqs: tuple[int, ...] = ()
    role: str | None = None
    key: str | None = None
    workspace: str | None = None
    valid_from: Time | None = None
    valid_to: Time | None = None
    category: str | None = None
    tags: tuple[str, ...] = ()
    evidence: str | None = None
    importance: float | None = None
    pinned: bool = False
    status: FactStatus | None = None
    superseded_by: str | None = None
    expires_at: Time | None = None
    attributes: dict[str, Any] = Field(default_factory=dict)
    revision: int | None = None
    explain: dict[str, float] | None = Field(default=None, description="Parts of the rank, with `explain: true`.")


Label = Annotated[
    Text, Field(min_length=1, max_length=MAX_TAG_CHARS), AfterValidator(lambda text: unicodedata.normalize("NFC", text))
]
"""A category or a tag; however Unicode composes its letters, it is the same one."""


class Filters(Wire):
    """Conditions that every item must meet; an empty list of values is refused, since it would match nothing."""

    kinds: Annotated[tuple[Kind, ...], Field(min_length=1, max_length=MAX_FILTER_VALUES)] | None = None
    categories: Annotated[tuple[Label, ...], Field(min_length=1, max_length=MAX_FILTER_VALUES)] | None = None
    tags: Annotated[tuple[Label, ...], Field(min_length=1, max_length=MAX_FILTER_VALUES)] | None = None
    since: Time | None = None
    until: Time | None = None
    min_importance: Annotated[float, Field(ge=0, le=1), AsNumber] | None = None
    as_of: Time | None = Field(
        default=None, description="Facts as they were valid at this time, superseded ones included."
    )
