"""Settling: the final order of ranked rows, once what they say is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memory_service.domain.lexical import terms
from memory_service.domain.ranking import Ranked
from memory_service.domain.weights import DEFAULT_WEIGHTS, Weights


class Detail:
    """What a fetched row adds to its ranking: its text, and how much a fact was said to matter (0 to 1)."""

    __slots__ = ("_stems", "importance", "text")

    def __init__(self, text: str, importance: float | None = None) -> None:
        self.text = text
        self.importance = importance
        self._stems: frozenset[str] | None = None

    @property
    def stems(self) -> frozenset[str]:
        """The stems of the text alone, found when they are first asked for: most rows are compared with none."""
        if self._stems is None:
            self._stems = frozenset(terms(self.text))
        return self._stems

    @property
    def asks(self) -> bool:
        """Whether the text is a question."""
        return self.text.rstrip().endswith(("?", "？"))


def settled(
    items: Sequence[Ranked],
    details: Mapping[tuple[str, int], Detail],
    *,
    query_terms: Sequence[str] = (),
    weights: Weights = DEFAULT_WEIGHTS,
) -> tuple[Ranked, ...]:
    """Return ranked items in their final order, once their rows are there.

    Importance counts; a turn that only asked the same goes behind what could answer it; and of two statements that
    say nearly the same and answer about equally well the newer one comes first. `details` are by tier and row id; an
    item without one keeps its place.
    """
    asked = frozenset(query_terms)
    known = [(item, details.get((item.tier, item.row_id))) for item in items]
    weighed = [(_weighed(item, detail, asked, weights), detail) for item, detail in known]
    weighed.sort(key=lambda entry: (-round(entry[0].rank, 9), entry[0].row_id, entry[0].tier == "episode"))
    order: list[Ranked] = []
    waiting = list(range(len(weighed)))
    while waiting:
        at, *waiting = waiting
        item, detail = weighed[at]
        newer = _newer(weighed, waiting, item, detail, weights)
        for other in sorted(newer, key=lambda other: (-weighed[other][0].said_at, other)):
            order.append(_with_part(weighed[other][0], "newer", item.rank - weighed[other][0].rank))
        order.append(item)
        if newer:
            waiting = [other for other in waiting if other not in newer]
    return tuple(order)


def _newer(
    weighed: Sequence[tuple[Ranked, Detail | None]],
    waiting: Sequence[int],
    item: Ranked,
    detail: Detail | None,
    weights: Weights,
) -> list[int]:
    """Return which rows further down are newer, answer about as well as `item` and say nearly the same."""
    if detail is None:
        return []
    tier, said_at, least = item.tier, item.said_at, weights.near_rank * item.rank
    found = []
    for at in waiting:
        other, said = weighed[at]
        if (
            other.said_at > said_at
            and other.rank >= least
            and other.tier == tier
            and said is not None
            and _near_equal(said.stems, detail.stems, weights.near_equal)
        ):
            found.append(at)
    return found


def _weighed(item: Ranked, detail: Detail | None, asked: frozenset[str], weights: Weights) -> Ranked:
    if detail is None:
        return item
    if item.tier == "fact":
        importance = 0.5 if detail.importance is None else detail.importance
        return _with_part(item, "importance", weights.importance * (2 * importance - 1))
    if detail.asks and detail.stems and detail.stems <= asked:
        return _with_part(item, "echo", -weights.echo)
    return item


def _with_part(item: Ranked, name: str, value: float) -> Ranked:
    if value == 0:
        return item
    tier, row_id, scope, session_id, seq, said_at, _, score, parts = item
    more = {**parts, name: value}
    return Ranked(tier, row_id, scope, session_id, seq, said_at, sum(more.values()), score, more)


def _near_equal(one: frozenset[str], other: frozenset[str], least: float) -> bool:
    """Whether two texts share so many of their stems (Dice coefficient) that they speak of the same thing."""
    shared = len(one & other)
    return shared > 0 and 2 * shared >= least * (len(one) + len(other))
