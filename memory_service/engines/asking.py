"""What both engines do around one request: take whole answers alone, and split what does not fit an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from memory_service.contract.turns import Role
from memory_service.domain.extraction import halved
from memory_service.ports.models import Candidate, Chat, Message, SaidTurn, Truncated


def said(turns: Sequence[SaidTurn]) -> tuple[SaidTurn, ...]:
    """Return the turns that can hold something to remember: instructions and empty turns cannot."""
    return tuple(turn for turn in turns if turn.role is not Role.SYSTEM and turn.text.strip())


async def whole_answer(chat: Chat, system: str, user: str, *, max_tokens: int) -> str:
    """Return a model's whole answer.

    Raises:
        ModelUnavailable: try again later.
        Truncated: the answer is longer than `max_tokens`.
    """
    asked = (Message("system", system), Message("user", user))
    completion = await chat.complete(asked, max_tokens=max_tokens, json_object=True)
    if completion.truncated:
        raise Truncated(f"the answer was cut off at {max_tokens} tokens")
    return completion.text


async def in_halves(
    turns: tuple[SaidTurn, ...], ask: Callable[[tuple[SaidTurn, ...]], Awaitable[list[Candidate]]]
) -> list[Candidate]:
    """Ask about turns, and about each half of them, at last of a long turn's text, where the answer to all was cut off.

    Raises:
        Truncated: the answer to a single short turn was cut off.
    """
    try:
        return await ask(turns)
    except Truncated:
        parts = halved(turns)
        if parts is None:
            raise
    return [candidate for part in parts for candidate in await in_halves(part, ask)]
