"""How much of a session one job takes to a model: about what one request holds, so that little is done twice."""

from __future__ import annotations

from memory_service.contract.limits import MAX_PAGE_CHARS
from memory_service.ports.models import Chat

CHARS_PER_TOKEN = 8
"""Characters of turns as `turn_chars` counts them, text and content, for each token of a model's context."""


def chars_of_job(chat: Chat | None) -> int:
    """Return about how many characters of turns one job reads; a turn that is longer is a job of its own.

    Each job's end is stored, so that a model that fails, or a quota that ends, costs the requests of one job.
    """
    return MAX_PAGE_CHARS if chat is None else min(MAX_PAGE_CHARS, CHARS_PER_TOKEN * chat.context_tokens)
