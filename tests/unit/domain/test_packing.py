"""Packing: nothing is lost, nothing moves, and no part is larger than it has to be."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from memory_service.domain.packing import packed

COSTS = st.lists(st.integers(0, 20))


@given(COSTS, st.integers(0, 30), st.integers(1, 5))
def test_parts_hold_every_item_in_order_and_keep_to_both_bounds_unless_one_alone_is_too_much(
    costs: list[int], most: int, most_items: int
) -> None:
    parts = list(packed(((place, cost) for place, cost in enumerate(costs)), most=most, most_items=most_items))
    assert [place for part in parts for place in part] == list(range(len(costs)))
    assert all(1 <= len(part) <= most_items for part in parts)
    assert all(len(part) == 1 or sum(costs[place] for place in part) <= most for part in parts)


@given(COSTS, st.integers(0, 30), st.integers(1, 5))
def test_no_part_has_room_for_the_next_ones_first_item(costs: list[int], most: int, most_items: int) -> None:
    parts = list(packed(((place, cost) for place, cost in enumerate(costs)), most=most, most_items=most_items))
    for part, following in pairwise(parts):
        assert len(part) == most_items or sum(costs[place] for place in (*part, following[0])) > most
