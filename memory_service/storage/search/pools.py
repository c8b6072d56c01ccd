"""Pools from columns, by numpy alone: the work of one search grows with no loop over rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memory_service.contract.scopes import Kind
from memory_service.domain.candidates import Hits
from memory_service.ports.records import ItemFilters, Pool, SearchQuery, Vector
from memory_service.storage.encoding import micros
from memory_service.storage.search.columns import KINDS, Snapshot

Mask = NDArray[np.bool_]

COSINE_DIGITS = 6
"""Cosines are rounded to this: float32 sums agree to a little more on every machine."""


@dataclass(frozen=True)
class Statistics:
    """What is known of all searchable rows of an owner key."""

    population: int
    total_length: float
    document_counts: NDArray[np.int64]


def cosines(vectors: NDArray[np.float32], vector: Vector) -> NDArray[np.float32]:
    """Return cosines of unit vectors, clipped to 0..1 and rounded.

    Each row is summed by itself, in one order: a row's cosine does not depend on where it stands among others.
    """
    found: NDArray[np.float32] = np.vecdot(vectors, vector.astype(np.float32, copy=False))
    return np.clip(found, 0.0, 1.0).round(COSINE_DIGITS)


def searchable_facts(snapshot: Snapshot, filters: ItemFilters) -> Mask:
    """Return which slots are facts that count: active and not expired, or with `as_of` what was valid then."""
    column = snapshot.columns
    counts: Mask = column["is_live"]
    if filters.as_of is None:
        counts = counts & column["is_active"] & (column["expires_at"] > micros(filters.now))
    else:
        at = micros(filters.as_of)
        counts = counts & (column["valid_from"] <= at) & (column["valid_to"] > at) & (column["expires_at"] > at)
    return counts


def passing(snapshot: Snapshot, filters: ItemFilters, *, of_facts: bool) -> Mask:
    """Return which slots meet the filters; `since` and `until` are inside their range."""
    column = snapshot.columns
    passes = np.ones(len(snapshot), np.bool_)
    if filters.since is not None:
        passes &= column["said_at"] >= micros(filters.since)
    if filters.until is not None:
        passes &= column["said_at"] <= micros(filters.until)
    if not of_facts:
        if excludes_episodes(filters):
            passes[:] = False
        return passes
    labels = snapshot.labels
    if filters.kinds is not None:
        passes &= _one_of(column["kinds"], [code for code, kind in enumerate(KINDS) if kind in filters.kinds])
    if filters.categories is not None:
        codes = [labels.categories[name] for name in filters.categories if name in labels.categories]
        passes &= _one_of(column["categories"], codes)
    if filters.tags is not None:
        codes = [number for tag in filters.tags for number in labels.sets_of_tag.get(tag, ())]
        passes &= _one_of(column["tag_sets"], codes)
    if filters.min_importance is not None:
        passes &= column["importance"] >= filters.min_importance
    return passes


def excludes_episodes(filters: ItemFilters) -> bool:
    """Whether no episode can pass: another kind is asked for, or something that only facts have."""
    return (filters.kinds is not None and Kind.EPISODE not in filters.kinds) or (
        filters.categories is not None or filters.tags is not None or filters.min_importance is not None
    )


def make(
    tier: Literal["fact", "episode"],
    snapshots: Sequence[Snapshot],
    query: SearchQuery,
    *,
    session_id: int | None = None,
    statistics: Statistics | None = None,
) -> Pool:
    """Return the rows of these snapshots as one owner key's candidates.

    With `session_id` only that session's rows count. `statistics` are given where the rows are not all of the owner's.
    """
    used = [snapshot for snapshot in snapshots if len(snapshot)]
    parts = [_part(tier, snapshot, query, session_id) for snapshot in used] or [_Part(_nothing(), [])]
    joined = (
        parts[0].columns
        if len(parts) == 1
        else {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    )
    exact = statistics is None
    hits = _hits(parts, len(query.terms))
    if statistics is None:
        lengths = joined["lengths"]
        is_kept = len(used) == 1 and lengths is used[0].lengths
        total = used[0].total_length if is_kept else float(lengths.sum(dtype=np.float64))
        counted = np.bincount(hits.terms, minlength=hits.width).astype(np.int64)
        statistics = Statistics(len(lengths), total, counted)
    # Rows of which some are left out stand to each other in another way than the kept ones.
    as_kept = tier == "episode" and len(used) == 1 and joined["row_ids"] is used[0].columns["row_ids"]
    return Pool(
        tier=tier,
        population=statistics.population,
        total_length=statistics.total_length,
        document_counts=statistics.document_counts,
        exact=exact,
        hits=hits,
        talk=used[0].talk if as_kept else None,
        **joined,
    )


class _Part(NamedTuple):
    """The rows that one snapshot gives to a pool, and for each term of the query which of them hold it how often."""

    columns: dict[str, NDArray[Any]]
    postings: Sequence[tuple[NDArray[np.int32] | NDArray[np.int64], NDArray[np.int32]]]


def _part(tier: Literal["fact", "episode"], snapshot: Snapshot, query: SearchQuery, session_id: int | None) -> _Part:
    column = snapshot.columns
    size = len(snapshot)
    chosen: Mask | None
    if tier == "fact":
        chosen = searchable_facts(snapshot, query.filters)
    elif session_id is not None:
        chosen = column["is_live"] & (column["session_ids"] == session_id)
    else:
        chosen = None if snapshot.is_whole else column["is_live"]
    if query.vector is None or snapshot.vectors is None:
        similar = np.full(size, np.nan, np.float32)
    else:
        similar = cosines(snapshot.vectors, query.vector)
        similar[snapshot.without_vector] = np.nan
    postings = [snapshot.words.postings(stem) for stem in query.terms]
    part: dict[str, NDArray[Any]] = {
        "row_ids": column["row_ids"],
        "session_ids": column["session_ids"],
        "seqs": column["seqs"],
        "roles": column["roles"],
        "said_at": snapshot.said_at,
        "lengths": snapshot.lengths,
        "cosines": similar,
        "passes": passing(snapshot, query.filters, of_facts=tier == "fact"),
    }
    if chosen is not None and not chosen.all():
        part = {name: values[chosen] for name, values in part.items()}
        numbers = np.cumsum(chosen) - 1
        held = [chosen[rows] for rows, _ in postings]
        postings = [(numbers[rows[kept]], counts[kept]) for (rows, counts), kept in zip(postings, held, strict=True)]
    for values in part.values():
        values.flags.writeable = False
    return _Part(part, postings)


def _hits(parts: Sequence[_Part], width: int) -> Hits:
    """Return where the terms occur in the rows of all parts, one part after another."""
    rows: list[NDArray[np.int64] | NDArray[np.int32]] = []
    terms: list[int] = []
    counts: list[NDArray[np.int32]] = []
    first = 0
    for part in parts:
        for number, (some, often) in enumerate(part.postings):
            rows.append(some + np.int64(first) if first else some)
            terms.append(number)
            counts.append(often)
        first += len(part.columns["row_ids"])
    if not rows:
        return Hits(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float64), width)
    return Hits(
        np.concatenate(rows, dtype=np.int64),
        np.repeat(np.array(terms, np.int64), [len(some) for some in rows]),
        np.concatenate(counts, dtype=np.float64),
        width,
    )


def _nothing() -> dict[str, NDArray[Any]]:
    return {
        "row_ids": np.empty(0, np.int64),
        "session_ids": np.empty(0, np.int64),
        "seqs": np.empty(0, np.int64),
        "roles": np.empty(0, np.int8),
        "said_at": np.empty(0, np.float64),
        "lengths": np.empty(0, np.float32),
        "cosines": np.empty(0, np.float32),
        "passes": np.empty(0, np.bool_),
    }


def _one_of(values: NDArray[Any], codes: Sequence[int]) -> Mask:
    if not codes:
        return np.zeros(len(values), np.bool_)
    lookup = np.zeros(max(int(values.max(initial=0)), *codes) + 1, np.bool_)
    lookup[codes] = True
    found: Mask = lookup[values]
    return found
