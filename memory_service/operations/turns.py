"""How a turn that was sent becomes one that is stored, and how a stored one is answered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter

from memory_service.contract.limits import MAX_PAGE_CHARS
from memory_service.contract.turns import NewTurn, Part, Turn
from memory_service.domain import lexical
from memory_service.domain.pages import page
from memory_service.domain.window import Shown
from memory_service.ports.models import SaidTurn, TokenCounter
from memory_service.ports.records import SessionRow, TurnDraft, TurnRow
from memory_service.ports.storage import Transaction

_PARTS: TypeAdapter[tuple[Part, ...]] = TypeAdapter(tuple[Part, ...])


def turn_draft(turn: NewTurn, *, counter: TokenCounter, said_at: datetime, infer: bool) -> TurnDraft:
    """Count, stem and flatten a turn: `text` is what it says in words, the parts are kept whole beside it."""
    parts = tuple(part.model_dump(mode="json") for part in turn.parts) if turn.parts is not None else None
    text = lexical.turn_text(turn.content, parts)
    return TurnDraft(
        role=turn.role,
        content=turn.content if turn.content is not None else text,
        text=text,
        parts=parts,
        name=turn.name,
        said_at=said_at,
        tokens=max(1, counter.count(_sent_again(turn.content, parts))),
        terms=lexical.terms(lexical.turn_index_text(turn.name, turn.role, said_at, text)),
        client_id=turn.id,
        infer=infer,
    )


def said_then(draft: TurnDraft, said_at: datetime) -> TurnDraft:
    """Return a draft as said at another time. It is found by its date in words, so another day is stemmed anew."""
    if lexical.spoken_date(said_at) == lexical.spoken_date(draft.said_at):
        return replace(draft, said_at=said_at)
    text = lexical.turn_index_text(draft.name, draft.role, said_at, draft.text)
    return replace(draft, said_at=said_at, terms=lexical.terms(text))


def turn_chars(row: TurnRow) -> int:
    """Return about how many characters a stored turn has on a page."""
    return len(row.text) * (1 if row.parts is None else 2) + len(row.content)


def turn_page(
    tx: Transaction, session: SessionRow, *, after: int, limit: int, most_chars: int = MAX_PAGE_CHARS
) -> tuple[Sequence[TurnRow], bool]:
    """Return turns of a session after a seq, in order, and whether more follow; bounded by rows and by text."""
    return page(
        lambda place, count: tx.turns.between(session, after=place, upto=None, limit=count),
        after,
        limit=limit,
        place=lambda row: row.seq,
        chars=turn_chars,
        most_chars=most_chars,
    )


def turn_answer(row: TurnRow) -> Turn:
    """Return a stored turn as it is answered, whole."""
    return shown_answer(Shown(row, row.content, row.parts, row.tokens))


def shown_answer(shown: Shown[TurnRow]) -> Turn:
    """Return a turn as its window shows it."""
    row = shown.turn
    return Turn(
        seq=row.seq,
        role=row.role,
        content=shown.content,
        parts=_PARTS.validate_python(shown.parts) if shown.parts is not None else None,
        name=row.name,
        said_at=row.said_at,
        tokens=shown.tokens,
        id=row.client_id,
        truncated=shown.truncated,
    )


def said_turns(rows: Sequence[TurnRow]) -> list[SaidTurn]:
    """Return turns as an engine sees them."""
    return [SaidTurn(row.seq, row.role, row.text, row.name, row.said_at) for row in rows if row.text.strip()]


def _sent_again(content: str | None, parts: Sequence[Mapping[str, Any]] | None) -> str:
    """Return what a model would be sent again for this turn, to be counted."""
    pieces = [content] if content is not None else []
    for part in parts or ():
        if part.get("type") != "text":
            pieces.append(json.dumps(part, ensure_ascii=False))
        elif content is None:
            pieces.append(str(part.get("text", "")))
    return "\n".join(pieces)
