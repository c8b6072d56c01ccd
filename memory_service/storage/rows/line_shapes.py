"""What each line of an export must look like, so that an import stores nothing that a later read cannot answer.

Lengths are not bounded here: an export of this store may hold more than a caller may send.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from memory_service.contract.base import AsNumber, Text
from memory_service.contract.expectations import expectation, field_name
from memory_service.contract.ids import (
    AGENT_PATTERN,
    SESSION_PATTERN,
    WORKSPACE_PATTERN,
    FactKey,
    Id,
    SessionId,
    TurnId,
)
from memory_service.contract.items import FactStatus
from memory_service.contract.limits import MAX_ERRORS, MAX_WHOLE_NUMBER
from memory_service.contract.scopes import FactKind, Scope
from memory_service.contract.turns import Part, Role, storable_json
from memory_service.domain.owners import Owner, erasure_of
from memory_service.errors import FieldProblem, InvalidRequest
from memory_service.storage.encoding import micros, vector_from_bytes
from memory_service.storage.rows.lines import KEYED

_Micros = Annotated[
    int, Field(ge=micros(datetime.min.replace(tzinfo=UTC)), le=micros(datetime.max.replace(tzinfo=UTC))), AsNumber
]
_Count = Annotated[int, Field(ge=0, le=MAX_WHOLE_NUMBER), AsNumber]
_Ordinal = Annotated[int, Field(ge=1, le=MAX_WHOLE_NUMBER), AsNumber]
_Flag = Annotated[int, Field(ge=0, le=1), AsNumber]


def _or_empty(pattern: str) -> StringConstraints:
    return StringConstraints(pattern=rf"^$|{pattern}")


def _decoded(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError("base64 is expected")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("base64 is expected") from error


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, cache_strings="none")


class _Principal(_Line):
    hash: Annotated[Text, Field(min_length=1, max_length=64)]
    display: Text
    created_at: _Micros


class _Place(_Line):
    agent: Annotated[str, _or_empty(AGENT_PATTERN)]
    principal: Annotated[Text, Field(max_length=64)]
    session: Annotated[str, _or_empty(SESSION_PATTERN)]
    workspace: Annotated[str, _or_empty(WORKSPACE_PATTERN)]


class _OfSession(_Place):
    agent: Annotated[str, StringConstraints(pattern=AGENT_PATTERN)]
    session: SessionId
    created_at: _Micros


class _Version(_Line):
    version: _Ordinal
    upto_seq: _Count
    tokens: _Count
    created_at: _Micros
    summary: Text


class _Session(_OfSession):
    fact_scope: Scope
    last_seq: _Count
    extracted_seq: _Count
    last_write_at: _Micros
    ended_at: _Micros | None
    digest: _Version | None


class _Embedded(_Line):
    vector: Annotated[bytes, BeforeValidator(_decoded)] | None = None
    embedding_model: Text | None = None


class _Turn(_OfSession, _Embedded):
    indexed: _Flag
    seq: _Ordinal
    client_id: TurnId | None
    role: Role
    infer: _Flag
    tokens: _Count
    said_at: _Micros
    name: Text | None
    text: Text
    content: Text | None
    parts: tuple[Part, ...] | None


class _Digest(_OfSession, _Version):
    pass


class _Source(_Place):
    seqs: tuple[_Ordinal, ...]


class _Change(_Line):
    at: _Micros
    event: Literal["added", "corrected", "restated", "replaced", "superseded", "deleted", "accepted", "rejected"]
    actor: Text
    agent: Text
    principal: Text
    session: Text
    text: Text


class _Fact(_Place, _Embedded):
    id: Id
    scope: Scope
    kind: FactKind
    status: FactStatus
    key: FactKey | None
    dedupe_key: FactKey | None
    said_at: _Micros
    valid_from: _Micros
    valid_to: _Micros | None
    superseded_by: Id | None
    expires_at: _Micros | None
    created_at: _Micros
    updated_at: _Micros
    importance: Annotated[float, Field(ge=0, le=1), AsNumber] | None
    pinned: _Flag
    revision: _Ordinal
    category: Text | None
    tags: tuple[Text, ...]
    text: Annotated[Text, Field(min_length=1)]
    evidence: Text | None
    attributes: Annotated[dict[str, Any], AfterValidator(storable_json)]
    sources: tuple[_Source, ...]
    history: tuple[_Change, ...]


class _Deleted(_Line):
    id: Id
    created_at: _Micros


_Hash = Annotated[str, StringConstraints(pattern=rf"^{KEYED.pattern}$")]


class _Erased(_Line):
    hashes: Annotated[tuple[_Hash, ...], Field(min_length=1)]
    created_at: _Micros


class _Subject(_Line):
    scope: Literal[Scope.PRIVATE, Scope.USER, Scope.SESSION]
    agent: Annotated[str, _or_empty(AGENT_PATTERN)]
    principal: Annotated[Text, Field(max_length=64)]
    session: Annotated[str, _or_empty(SESSION_PATTERN)]
    hashes: Annotated[tuple[_Hash, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_somebody(self) -> Self:
        erasure_of(Owner(self.scope, self.agent, self.principal, self.session))
        return self


_SHAPES: Mapping[str, type[_Line]] = {
    "principal": _Principal,
    "session": _Session,
    "turn": _Turn,
    "digest": _Digest,
    "fact": _Fact,
    "deleted": _Deleted,
    "erased": _Erased,
    "subject": _Subject,
}


def check(found: Sequence[Mapping[str, Any]], *, embedding_model: str, dimension: int) -> None:
    """Look at every line before one is stored; vectors of `embedding_model` have `dimension` finite numbers.

    Raises:
        InvalidRequest: a line is not one of an export; it names the line, from 0, and the field.
    """
    for number, line in enumerate(found):
        shape = _SHAPES.get(str(line.get("type")))
        if shape is None:
            raise _refused([FieldProblem(f"lines.{number}.type", f"one of {', '.join(_SHAPES)}")])
        try:
            read = shape.model_validate(line)
        except ValidationError as error:
            raise _refused(
                [
                    FieldProblem(_place(number, entry, line), expectation(entry))
                    for entry in error.errors(include_url=False, include_context=True, include_input=False)[:MAX_ERRORS]
                ]
            ) from None
        if isinstance(read, _Embedded) and read.vector is not None and read.embedding_model == embedding_model:
            _check_vector(read.vector, number, dimension)


def _check_vector(data: bytes, number: int, dimension: int) -> None:
    if len(data) != 4 * dimension or not bool(np.isfinite(vector_from_bytes(data)).all()):
        raise _refused([FieldProblem(f"lines.{number}.vector", f"{dimension} finite numbers of 4 bytes each")])


def _place(number: int, entry: Mapping[str, Any], line: Mapping[str, Any]) -> str:
    name = field_name(entry["loc"], line, is_missing=entry["type"] == "missing")
    return f"lines.{number}.{name}" if name else f"lines.{number}"


def _refused(problems: Sequence[FieldProblem]) -> InvalidRequest:
    first = problems[0]
    return InvalidRequest(
        f"`{first.field}` is not as an export writes it: {first.expected}; nothing was stored", problems
    )
