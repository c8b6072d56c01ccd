"""Reads a session's window: the newest turns that fit, however many are stored."""

from __future__ import annotations

from memory_service.contract.config import ServiceConfig
from memory_service.domain import window
from memory_service.ports.models import TokenCounter
from memory_service.ports.records import SessionRow, TurnRow
from memory_service.ports.storage import Transaction

_FIRST_READ = 64
"""Turns read at first; doubled until the budget is full, so that a long window costs no more than it shows."""


def read_window(
    tx: Transaction, session: SessionRow, config: ServiceConfig, counter: TokenCounter
) -> window.Window[TurnRow]:
    """Return the newest turns after the digest, within the token budget and the event cap."""
    budget, cap = config.short_term.token_budget, config.short_term.hard_event_cap
    limit = min(_FIRST_READ, cap + 1)
    while True:
        rows = tx.turns.window(session, limit=limit)
        if len(rows) < limit or limit > cap or sum(row.tokens for row in rows) > budget:
            return window.visible(rows, budget_tokens=budget, event_cap=cap, counter=counter)
        limit = min(limit * 2, cap + 1)
