"""A conversation is cut into parts that a model can read, and nothing of it is lost."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from memory_service.contract.turns import Role
from memory_service.domain.quoting import quoted
from memory_service.engines.batches import FRAME_TOKENS, LEAST_PIECE_TOKENS, batches, room_in
from memory_service.ports.models import SaidTurn
from memory_service.providers import OfflineTokenCounter

COUNTER = OfflineTokenCounter()
AT = datetime(2026, 5, 1, tzinfo=UTC)
TEXTS = st.lists(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=300), max_size=8)


@given(TEXTS, st.integers(min_value=LEAST_PIECE_TOKENS + FRAME_TOKENS, max_value=400))
@settings(max_examples=30)
def test_parts_hold_all_text_in_order_and_fit_the_budget(texts: list[str], budget: int) -> None:
    turns = [SaidTurn(seq, Role.USER, text, None, AT) for seq, text in enumerate(texts)]
    parts = batches(turns, budget, COUNTER)
    joined: dict[int, str] = {}
    for part in parts:
        assert part
        assert sum(COUNTER.count(quoted(turn.text)) + FRAME_TOKENS for turn in part) <= budget or len(part) == 1
        for turn in part:
            joined[turn.seq] = joined.get(turn.seq, "") + turn.text
    assert list(joined.items()) == list(enumerate(texts))


def test_a_turn_longer_than_any_context_is_spread_over_parts() -> None:
    turn = SaidTurn(1, Role.USER, "a <b> c\n" * 20_000, None, AT)
    parts = batches([turn], 2_000, COUNTER)
    assert all(COUNTER.count(quoted(part[0].text)) <= 2_000 for part in parts)
    assert "".join(piece.text for part in parts for piece in part) == turn.text


def test_every_context_leaves_room_for_prompt_and_answer() -> None:
    for context in (512, 2_048, 16_384, 1_000_000):
        room = room_in(context)
        assert room.answer_tokens > 0
        assert room.prompt_tokens > 0
        assert room.prompt_tokens + room.answer_tokens <= context
