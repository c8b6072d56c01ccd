"""Reads a session's window: the newest turns that fit, however many are stored."""

from __future__ import annotations

from dataclasses import dataclass

from memory_service.contract.config import ServiceConfig
from memory_service.contract.turns import Turn
from memory_service.domain import window
from memory_service.operations.turns import turn_answer
from memory_service.ports.models import TokenCounter
from memory_service.ports.records import SessionRow
from memory_service.ports.storage import Transaction

_FIRST_READ = 64
"""Turns read at first; doubled until the budget is full, so that a long window costs no more than it shows."""


@dataclass(frozen=True)
class WindowView:
    """The turns that are shown, oldest first, their tokens, and whether older ones did not fit."""

    turns: tuple[Turn, ...]
    tokens: int
    cut: bool


def read_window(
    tx: Transaction, session: SessionRow, config: ServiceConfig, counter: TokenCounter, *, budget: int | None = None
) -> WindowView:
    """Return the newest turns after the digest, within the token budget and the event cap.

    The newest turn alone may be larger than the budget: then its text is cut, and says so.
    """
    tokens = budget if budget is not None else config.short_term.token_budget
    cap = config.short_term.hard_event_cap
    limit = min(_FIRST_READ, cap)
    while True:
        rows = tx.turns.window(session, limit=limit)
        enough = len(rows) < limit or limit == cap or sum(row.tokens for row in rows) > tokens
        if enough:
            break
        limit = min(limit * 2, cap)
    kept = window.visible(rows, budget_tokens=tokens, event_cap=cap)
    shown = rows[len(rows) - kept.count :] if kept.count else ()
    turns = [turn_answer(row) for row in shown]
    if kept.newest_is_cut and turns:
        turns[-1] = turn_answer(shown[-1], content=window.cut_text(shown[-1].content, counter, tokens))
    return WindowView(
        turns=tuple(turns),
        tokens=min(tokens, sum(turn.tokens for turn in turns)) if kept.newest_is_cut else sum(t.tokens for t in turns),
        cut=kept.count < session.window_turns or kept.newest_is_cut,
    )
