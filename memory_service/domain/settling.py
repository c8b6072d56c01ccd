"""Settling: the final order of ranked rows, once what they say is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memory_service.domain.lexical import terms
from memory_service.domain.ranking import Ranked
from memory_service.domain.weights import DEFAULT_WEIGHTS, Weights


class Detail(NamedTuple):
    """What a fetched row adds to its ranking: the stems of its text alone, and how much a fact was said to matter."""

    terms: frozenset[str]
    importance: float | None = None
    asks: bool = False
    """Whether the text is a question."""

    @classmethod
    def of(cls, text: str, importance: float | None = None) -> Detail:
        """Return the details of a stored text."""
        return cls(frozenset(terms(text)), importance, asks=text.rstrip().endswith(("?", "？")))


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
    weighed = [_weighed(item, details.get((item.tier, item.row_id)), asked, weights) for item in items]
    weighed.sort(key=lambda item: (-round(item.rank, 9), item.row_id, item.tier == "episode"))
    goes_first = _goes_first(weighed, [details.get((item.tier, item.row_id)) for item in weighed], weights)
    order: list[Ranked] = []
    placed: set[int] = set()
    for at, item in enumerate(weighed):
        if at in placed:
            continue
        newer = [other for other in goes_first.get(at, ()) if other not in placed]
        for other in sorted(newer, key=lambda other: (-weighed[other].said_at, other)):
            order.append(_with_part(weighed[other], "newer", item.rank - weighed[other].rank))
            placed.add(other)
        order.append(item)
        placed.add(at)
    return tuple(order)


def _weighed(item: Ranked, detail: Detail | None, asked: frozenset[str], weights: Weights) -> Ranked:
    if detail is None:
        return item
    if item.tier == "fact":
        importance = 0.5 if detail.importance is None else detail.importance
        return _with_part(item, "importance", weights.importance * (2 * importance - 1))
    if detail.asks and detail.terms and detail.terms <= asked:
        return _with_part(item, "echo", -weights.echo)
    return item


def _with_part(item: Ranked, name: str, value: float) -> Ranked:
    if value == 0:
        return item
    parts = {**item.parts, name: value}
    return item._replace(parts=parts, rank=sum(parts.values()))


def _goes_first(
    items: Sequence[Ranked], details: Sequence[Detail | None], weights: Weights
) -> Mapping[int, Sequence[int]]:
    """Return, for each item that has any, the newer ones that say nearly the same and answer about as well."""
    near = _near_equal(details, weights.near_equal)
    tiers = np.array([item.tier == "fact" for item in items], np.bool_)
    said_at = np.array([item.said_at for item in items])
    ranks = np.array([item.rank for item in items])
    near &= (tiers[:, None] == tiers) & (said_at > said_at[:, None]) & (ranks >= weights.near_rank * ranks[:, None])
    found: dict[int, list[int]] = {}
    for at, other in zip(*(numbers.tolist() for numbers in np.nonzero(near)), strict=True):
        found.setdefault(at, []).append(other)
    return found


def _near_equal(details: Sequence[Detail | None], least: float) -> NDArray[np.bool_]:
    """Return which pairs share so many of their stems (Dice coefficient) that they speak of the same thing."""
    index: dict[str, int] = {}
    terms = [detail.terms if detail is not None else frozenset[str]() for detail in details]
    columns = [index.setdefault(term, len(index)) for some in terms for term in some]
    holds = np.zeros((len(details), max(len(index), 1)), np.float32)
    holds[np.repeat(np.arange(len(details)), [len(some) for some in terms]), columns] = 1
    shared = holds @ holds.T
    sizes = holds.sum(axis=1)
    total = sizes[:, None] + sizes[None, :]
    near: NDArray[np.bool_] = (shared > 0) & (2 * shared >= least * total)
    return near
