"""A turn: one message as it was said, never edited."""

from __future__ import annotations

import json
import math
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from memory_service.contract.base import AsTruth, Text, Time, Wire
from memory_service.contract.ids import TurnId
from memory_service.contract.limits import (
    MAX_ALT_CHARS,
    MAX_JSON_DEPTH,
    MAX_NAME_CHARS,
    MAX_PARTS_PER_TURN,
    MAX_TURN_CHARS,
    MAX_URL_CHARS,
)


class Role(StrEnum):
    """Who said a turn."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


def storable_json(value: Any, depth: int = 0) -> Any:
    """Return `value`; refuse texts and keys that cannot be stored, numbers that are not JSON, and deep nesting.

    Raises:
        ValueError: with what to send instead.
    """
    if depth > MAX_JSON_DEPTH:
        raise ValueError(f"nests deeper than {MAX_JSON_DEPTH} levels; send a flatter value")
    if isinstance(value, str):
        if "\x00" in value or any("\ud800" <= c <= "\udfff" for c in value):
            raise ValueError("contains U+0000 or a lone surrogate, which cannot be stored; replace it by U+FFFD")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("contains a number that JSON does not have (NaN or infinity)")
    elif isinstance(value, list):
        for item in value:
            storable_json(item, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            storable_json(key, depth + 1)
            storable_json(item, depth + 1)
    return value


class TextPart(Wire):
    """Plain text."""

    type: Literal["text"] = "text"
    text: Annotated[Text, Field(max_length=MAX_TURN_CHARS)]


class ToolCallPart(Wire):
    """A tool call as the model made it; `arguments` is kept whole, as an object or as the model's own text."""

    type: Literal["tool_call"] = "tool_call"
    id: Annotated[Text, Field(max_length=MAX_NAME_CHARS)]
    name: Annotated[Text, Field(max_length=MAX_NAME_CHARS)]
    arguments: dict[str, Any] | Annotated[Text, Field(max_length=MAX_TURN_CHARS)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _arguments_are_storable(self) -> Self:
        storable_json(self.arguments)
        return self


class ToolResultPart(Wire):
    """What a tool returned; `content` is any JSON value and kept whole."""

    type: Literal["tool_result"] = "tool_result"
    id: Annotated[Text, Field(max_length=MAX_NAME_CHARS)]
    name: Annotated[Text, Field(max_length=MAX_NAME_CHARS)] | None = None
    content: Any = None
    is_error: Annotated[bool, AsTruth] = False

    @model_validator(mode="after")
    def _content_is_storable(self) -> Self:
        storable_json(self.content)
        return self


class MediaPart(Wire):
    """An image, a sound or a file by reference; the bytes are never stored and never embedded."""

    type: Literal["image", "audio", "file"]
    url: Annotated[Text, Field(max_length=MAX_URL_CHARS)]
    media_type: Annotated[Text, Field(max_length=MAX_NAME_CHARS)] | None = None
    alt: Annotated[Text, Field(max_length=MAX_ALT_CHARS)] | None = None


Part = Annotated[TextPart | ToolCallPart | ToolResultPart | MediaPart, Field(discriminator="type")]


class NewTurn(Wire):
    """A turn to append. Give `content`, or `parts`, or both: with both, `content` is what is searched and counted."""

    id: TurnId | None = Field(
        default=None, description="Your own id of this turn, unique in its session: a repeat is stored once."
    )
    role: Role
    content: Annotated[Text, Field(max_length=MAX_TURN_CHARS)] | None = None
    parts: Annotated[tuple[Part, ...], Field(max_length=MAX_PARTS_PER_TURN)] | None = None
    name: Annotated[Text, Field(max_length=MAX_NAME_CHARS)] | None = None
    said_at: Time | None = Field(
        default=None,
        description="When it was said; left out, when the write came, less its `queued_seconds`. Never later than now.",
    )

    @model_validator(mode="after")
    def _says_something_within_bounds(self) -> Self:
        if self.content is None and not self.parts:
            raise ValueError("a turn needs `content` or at least one of `parts`")
        size = len(self.content or "")
        for part in self.parts or ():
            size += len(json.dumps(part.model_dump(mode="json"), ensure_ascii=False))
        if size > MAX_TURN_CHARS:
            raise ValueError(f"a turn has at most {MAX_TURN_CHARS} characters, parts included; this one has {size}")
        return self


class Turn(Wire):
    """A stored turn. `truncated` says that `content` was cut on read to fit the budget; the stored turn is whole."""

    seq: int
    role: Role
    content: str
    parts: tuple[Part, ...] | None = None
    name: str | None = None
    said_at: Time
    tokens: int
    id: str | None = None
    truncated: bool = False
