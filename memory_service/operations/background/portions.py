"""How much of a session one job takes to a model: about what one request holds, so that little is done twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memory_service.contract.limits import MAX_PAGE_CHARS
from memory_service.ports.models import Chat
from memory_service.ports.records import JobRow

CHARS_PER_TOKEN = 8
"""Characters of turns as `turn_chars` counts them, text and content, for each token of a model's context."""


def chars_of_job(chat: Chat | None) -> int:
    """Return about how many characters of turns one job reads; a turn that is longer has several jobs.

    Each job's end is stored, so that a model that fails, or a quota that ends, costs the requests of one job.
    """
    return MAX_PAGE_CHARS if chat is None else min(MAX_PAGE_CHARS, CHARS_PER_TOKEN * chat.context_tokens)


def place_in(seq: int, place: int) -> Mapping[str, Any]:
    """Return the payload of the job that reads on in a turn, from a place inside it."""
    return {"in_turn": seq, "place": place}


def place_of(job: JobRow, seq: int) -> int:
    """Return where a job begins in a turn: at 0 unless the job before it stored what came of the turn's beginning."""
    payload = job.payload
    return int(payload.get("place", 0)) if payload.get("in_turn") == seq else 0
