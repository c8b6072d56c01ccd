"""Cutting a conversation into parts that a model can read. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memory_service.domain.packing import packed
from memory_service.domain.quoting import quoted
from memory_service.ports.models import SaidTurn, TokenCounter

FRAME_TOKENS = 24
"""Room for what a prompt writes around each turn: number, time, speaker."""
LEAST_PIECE_TOKENS = 32
LONGEST_TOKEN_CHARS = 128
"""Characters that one token covers at most: a window of this many for each token holds a whole piece."""
MARGIN = 0.9
"""Share of a model's context that is used: its tokens are not those that are counted here."""
MAX_ANSWER_TOKENS = 4_096
MAX_CONTEXT_TURNS = 10
CONTEXT_TURN_TOKENS = 80


@dataclass(frozen=True)
class Room:
    """How a model's context is divided: tokens for the whole prompt, and for the answer."""

    prompt_tokens: int
    answer_tokens: int


def room_in(context_tokens: int) -> Room:
    """Return the division of a context: an eighth for the answer, within bounds, and a margin."""
    answer = min(MAX_ANSWER_TOKENS, max(context_tokens // 8, 192))
    return Room(prompt_tokens=int(context_tokens * MARGIN) - answer, answer_tokens=answer)


def batches(turns: Sequence[SaidTurn], budget_tokens: int, counter: TokenCounter) -> tuple[tuple[SaidTurn, ...], ...]:
    """Return the turns in order, in parts that take at most `budget_tokens` when quoted; a long one is spread over
    several parts.
    """
    room = max(LEAST_PIECE_TOKENS, budget_tokens - FRAME_TOKENS)
    pieces = (piece for turn in turns for piece in _pieces(turn, room, counter))
    return tuple(
        packed(((piece, counter.count(quoted(piece.text)) + FRAME_TOKENS) for piece in pieces), most=budget_tokens)
    )


def shortened(turns: Sequence[SaidTurn], counter: TokenCounter) -> tuple[SaidTurn, ...]:
    """Return the last of the earlier turns, each cut to what explains a reference."""
    return tuple(replace(turn, text=counter.cut(turn.text, CONTEXT_TURN_TOKENS)) for turn in turns[-MAX_CONTEXT_TURNS:])


def _pieces(turn: SaidTurn, room: int, counter: TokenCounter) -> list[SaidTurn]:
    longest = room * LONGEST_TOKEN_CHARS
    if len(turn.text) <= longest and counter.count(quoted(turn.text)) <= room:
        return [turn]
    pieces: list[SaidTurn] = []
    at = 0
    while at < len(turn.text):
        window = turn.text[at : at + longest + 1]
        piece = counter.cut(window, room) or window[:1]
        while len(piece) > 1 and counter.count(quoted(piece)) > room:  # Quotes may be longer than what they quote.
            piece = piece[: len(piece) * 3 // 4]
        pieces.append(replace(turn, text=piece))
        at += len(piece)
    return pieces
