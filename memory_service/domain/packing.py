"""Packing: what is too much for one request becomes several, in order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def packed(items: Iterable[tuple[T, int]], *, most: int, most_items: float = math.inf) -> Iterator[tuple[T, ...]]:
    """Yield the items, each given with its cost, in parts that cost at most `most`; one that costs more stands alone.

    Every part is as long as it can be, up to `most_items`, and none is empty.
    """
    part: list[T] = []
    spent = 0
    for item, cost in items:
        if part and (spent + cost > most or len(part) >= most_items):
            yield tuple(part)
            part, spent = [], 0
        part.append(item)
        spent += cost
    if part:
        yield tuple(part)
