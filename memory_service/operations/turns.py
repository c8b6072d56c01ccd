"""How a turn that was sent becomes one that is stored, and how a stored one is answered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime

from pydantic import TypeAdapter

from memory_service.contract.turns import (
    MediaPart,
    NewTurn,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    Turn,
)
from memory_service.domain import lexical
from memory_service.ports.models import SaidTurn, TokenCounter
from memory_service.ports.records import TurnDraft, TurnRow

_PARTS: TypeAdapter[tuple[Part, ...]] = TypeAdapter(tuple[Part, ...])


def turn_draft(turn: NewTurn, *, counter: TokenCounter, now: datetime, infer: bool) -> TurnDraft:
    """Count, stem and flatten a turn. `text` is what was said and what tools returned, without media and arguments."""
    said_at = turn.said_at or now
    spoken = turn.content if turn.content is not None else _join(_spoken(turn.parts or ()))
    text = spoken if turn.parts is None else _join([spoken, *_returned(turn.parts)])
    counted = spoken + "".join(_payloads(turn.parts or ()))
    return TurnDraft(
        role=turn.role,
        content=spoken,
        text=text,
        parts=tuple(part.model_dump(mode="json") for part in turn.parts) if turn.parts is not None else None,
        name=turn.name,
        said_at=said_at,
        tokens=max(1, counter.count(counted)),
        terms=lexical.terms(lexical.turn_index_text(name=turn.name, role=turn.role.value, said_at=said_at, text=text)),
        client_id=turn.id,
        infer=infer,
    )


def turn_answer(row: TurnRow, *, content: str | None = None) -> Turn:
    """Return a stored turn as it is answered; `content` replaces a text that was cut to fit."""
    return Turn(
        seq=row.seq,
        role=row.role,
        content=row.content if content is None else content,
        parts=_PARTS.validate_python(row.parts) if row.parts is not None and content is None else None,
        name=row.name,
        said_at=row.said_at,
        tokens=row.tokens,
        id=row.client_id,
        truncated=content is not None,
    )


def said_turns(rows: Sequence[TurnRow]) -> list[SaidTurn]:
    """Return turns as an engine sees them."""
    return [SaidTurn(row.seq, row.role, row.text, row.name, row.said_at) for row in rows if row.text.strip()]


def _spoken(parts: Iterable[Part]) -> list[str]:
    texts = []
    for part in parts:
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif isinstance(part, MediaPart) and part.alt:
            texts.append(part.alt)
    return texts


def _returned(parts: Iterable[Part]) -> list[str]:
    return [
        part.content if isinstance(part.content, str) else json.dumps(part.content, ensure_ascii=False)
        for part in parts
        if isinstance(part, ToolResultPart) and part.content is not None
    ]


def _payloads(parts: Iterable[Part]) -> list[str]:
    """Return everything besides the spoken text that a model would be sent again, to be counted."""
    return [
        json.dumps(part.model_dump(mode="json"), ensure_ascii=False)
        for part in parts
        if isinstance(part, ToolCallPart | ToolResultPart | MediaPart)
    ]


def _join(texts: Iterable[str]) -> str:
    return "\n".join(text for text in texts if text)
