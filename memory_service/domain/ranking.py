"""Ranking: which of an owner's rows answer a query best, and whether any of them answers it at all.

Two numbers a row. `rank` is relative: it orders the rows of one recall and means nothing outside of it. `score` is
absolute, 0 to 1, and carries the floor below which a row is no match. How the constants were chosen, with the numbers
that were measured, is in docs/decisions/0002-ranking.md.

Everything here is a function of the pools it is given. Statistics are an owner's own, so text of other owners can
neither move a row nor be inferred from one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from memory_service.contract.scopes import Scope
from memory_service.domain.lexical import terms

Floats = NDArray[np.float64]

ROLE_USER = 0
"""Where `ports.records.ROLES` has the user; facts have -1."""


class Columns(Protocol):
    """Candidates of one tier under one owner key, as columns; `ports.records.Pool` is one, and says what they mean."""

    @property
    def tier(self) -> Literal["fact", "episode"]: ...
    @property
    def row_ids(self) -> NDArray[np.int64]: ...
    @property
    def session_ids(self) -> NDArray[np.int64]: ...
    @property
    def seqs(self) -> NDArray[np.int64]: ...
    @property
    def roles(self) -> NDArray[np.int8]: ...
    @property
    def said_at(self) -> NDArray[np.float64]: ...
    @property
    def lengths(self) -> NDArray[np.float32]: ...
    @property
    def term_counts(self) -> NDArray[np.float32]: ...
    @property
    def cosines(self) -> NDArray[np.float32]: ...
    @property
    def passes(self) -> NDArray[np.bool_]: ...
    @property
    def population(self) -> int: ...
    @property
    def total_length(self) -> float: ...
    @property
    def document_counts(self) -> NDArray[np.int64]: ...


@dataclass(frozen=True)
class ScopedPool:
    """A pool and the scope that it was read under.

    `window` is (session row id, folded seq): turns of that session after that seq are shown in the answer's window
    already, so they lend their words to their neighbours and are not shown again.
    """

    scope: Scope
    pool: Columns
    window: tuple[int, int] | None = None


@dataclass(frozen=True)
class Weights:
    """How much each signal counts. The defaults are measured; see docs/decisions/0002-ranking.md."""

    k1: float = 0.9
    """BM25: how soon repeats of a word stop counting. Turns are short, so soon."""
    b: float = 0.3
    """BM25: how much a long row is held against it."""
    neighbours: tuple[float, ...] = (0.4, 0.25)
    """Share that a turn gets of the BM25 of the turns next to it, and of those one further away: an answer seldom
    repeats the words of its question."""
    session: float = 0.8
    """Share that a turn gets of the BM25 of its whole session, as one document among the sessions."""
    session_b: float = 0.75
    """The `b` of that: sessions differ more in length than turns do."""
    cosine: float = 1.0
    """Weight of the cosine's z-score beside that of BM25."""
    long_reply: float = 0.5
    """Taken off for each doubling of a turn's length over `long_reply_terms`, when the user did not say it."""
    long_reply_terms: float = 40.0
    recency: float = 0.05
    """Given to the newest row; the oldest gets nothing."""
    importance: float = 0.3
    """Given to a fact of importance 1, taken off one of importance 0."""
    echo: float = 10.0
    """Taken off a turn that asks and says no word that the query does not have: the same question, asked before."""
    near_equal: float = 0.4
    """Share of common stems from which two statements are about the same thing, so that the newer one goes first."""
    near_rank: float = 0.75
    """And only if its rank is at least this share of the older one's: else it does not answer the query as well."""


DEFAULT_WEIGHTS = Weights()
DEFAULT_FLOOR = 0.2
"""Score below which a row is no match where neither caller nor store says otherwise."""


class RankOutcome(StrEnum):
    """Whether anything was found: `filtered_out` says that something was, and every bit of it failed the filters."""

    APPLIED = "applied"
    NO_MATCHES = "no_matches"
    FILTERED_OUT = "filtered_out"


@dataclass(frozen=True)
class Ranked:
    """A row that matches. `parts` add up to `rank`."""

    tier: Literal["fact", "episode"]
    row_id: int
    scope: Scope
    session_id: int
    seq: int
    said_at: float
    rank: float
    score: float
    parts: Mapping[str, float]


@dataclass(frozen=True)
class LeftOut:
    """A row that would have been among the best, and why it is not there."""

    tier: Literal["fact", "episode"]
    row_id: int
    reason: Literal["below_floor", "in_window", "filtered", "duplicate", "top_k"]


@dataclass(frozen=True)
class Ranking:
    """The best rows, best first. `text_only` says that no row could be compared by meaning."""

    outcome: RankOutcome
    items: tuple[Ranked, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    text_only: bool = False


@dataclass(frozen=True)
class Detail:
    """What a fetched row adds to its ranking: the stems of its text alone, and how much a fact was said to matter."""

    terms: frozenset[str]
    importance: float | None = None
    asks: bool = False
    """Whether the text is a question."""

    @classmethod
    def of(cls, text: str, importance: float | None = None) -> Detail:
        """Return the details of a stored text."""
        return cls(frozenset(terms(text)), importance, asks=text.rstrip().endswith(("?", "？")))


@dataclass(frozen=True)
class _Rows:
    """The union of several pools in an order of its own: by tier and row id, each row once."""

    keys: NDArray[np.int64]
    pool_index: NDArray[np.int64]
    sessions: NDArray[np.int64]
    seqs: NDArray[np.int64]
    roles: NDArray[np.int8]
    said_at: Floats
    lengths: Floats
    cosines: Floats
    passes: NDArray[np.bool_]
    shown: NDArray[np.bool_]
    bm25: Floats
    lexical: Floats


def rank(
    pools: Sequence[ScopedPool],
    *,
    top: int,
    floor: float = DEFAULT_FLOOR,
    weights: Weights = DEFAULT_WEIGHTS,
) -> Ranking:
    """Return the best `top` rows of these pools with a score of at least `floor`, best first.

    The order of the pools and of the rows in them never matters; ties go to the lower row id, facts before episodes.
    Works without vectors (words only) and with vectors on a part of the rows. At most `top` rows are named as left out
    for each reason.
    """
    used = [scoped for scoped in sorted(pools, key=_pool_order) if len(scoped.pool.row_ids)]
    if not used:
        return Ranking(RankOutcome.NO_MATCHES, text_only=True)
    rows = _union(used, weights)
    has_cosine = ~np.isnan(rows.cosines)
    population = sum(max(scoped.pool.population, len(scoped.pool.row_ids)) for scoped in used)
    scores = _scores(rows, has_cosine, population)
    parts = _parts(rows, has_cosine, weights)
    ranks = np.round(sum(parts.values(), np.zeros(len(rows.keys))), 9)

    above = scores >= max(floor, _NOTHING)
    candidates = above & rows.passes & ~rows.shown
    chosen = _best(ranks, rows.keys, candidates, top + 1)
    left: list[LeftOut] = []
    reasons: tuple[tuple[Literal["below_floor", "in_window", "filtered"], NDArray[np.bool_]], ...] = (
        ("in_window", above & rows.passes & rows.shown),
        ("filtered", above & ~rows.passes & ~rows.shown),
        ("below_floor", ~above & (scores >= _NOTHING) & rows.passes & ~rows.shown),
    )
    for reason, mask in reasons:
        left.extend(LeftOut(*_identity(rows.keys[at]), reason) for at in _best(ranks, rows.keys, mask, top))
    left[0:0] = [LeftOut(*_identity(rows.keys[at]), "top_k") for at in chosen[top:]]

    items = []
    for at in chosen[:top]:
        tier, row_id = _identity(rows.keys[at])
        own = {name: float(values[at]) for name, values in parts.items() if name in _ALWAYS_TOLD or values[at] != 0}
        items.append(
            Ranked(
                tier=tier,
                row_id=row_id,
                scope=used[rows.pool_index[at]].scope,
                session_id=int(rows.sessions[at]),
                seq=int(rows.seqs[at]),
                said_at=float(rows.said_at[at]),
                rank=sum(own.values()),
                score=round(float(scores[at]), 4),
                parts=own,
            )
        )
    if items:
        outcome = RankOutcome.APPLIED
    elif bool(np.any(above & ~rows.passes & ~rows.shown)):
        outcome = RankOutcome.FILTERED_OUT
    else:
        outcome = RankOutcome.NO_MATCHES
    return Ranking(outcome, tuple(items), tuple(left), text_only=not bool(has_cosine.any()))


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
    near = _near_equal([details.get((item.tier, item.row_id)) for item in weighed], weights.near_equal)
    order: list[Ranked] = []
    placed: set[int] = set()
    for at, item in enumerate(weighed):
        if at in placed:
            continue
        newer = [
            other
            for other in np.flatnonzero(near[at]).tolist()
            if other not in placed
            and weighed[other].tier == item.tier
            and weighed[other].said_at > item.said_at
            and weighed[other].rank >= weights.near_rank * item.rank
        ]
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
    return replace(item, parts=parts, rank=sum(parts.values()))


def _near_equal(details: Sequence[Detail | None], least: float) -> NDArray[np.bool_]:
    """Return which pairs share so many of their stems (Dice coefficient) that they speak of the same thing."""
    index: dict[str, int] = {}
    rows, columns = [], []
    for row, detail in enumerate(details):
        for term in sorted(detail.terms) if detail is not None else ():
            rows.append(row)
            columns.append(index.setdefault(term, len(index)))
    holds = np.zeros((len(details), max(len(index), 1)), np.float32)
    holds[rows, columns] = 1
    shared = holds @ holds.T
    sizes = holds.sum(axis=1)
    total = sizes[:, None] + sizes[None, :]
    near: NDArray[np.bool_] = (shared > 0) & (2 * shared >= least * total)
    return near


_NOTHING = 1e-6
"""A score below this shares nothing with the query; it is no match even where the floor is 0."""

_SCOPE_ORDER = {Scope.PRIVATE: 0, Scope.USER: 1, Scope.SHARED: 2, Scope.SESSION: 3}


def _pool_order(scoped: ScopedPool) -> tuple[int, str, int, int]:
    pool = scoped.pool
    first = int(pool.row_ids.min()) if len(pool.row_ids) else -1
    return (_SCOPE_ORDER[scoped.scope], pool.tier, first, pool.population)


def _identity(key: np.int64) -> tuple[Literal["fact", "episode"], int]:
    return ("episode" if key & 1 else "fact", int(key >> 1))


def _best(ranks: Floats, keys: NDArray[np.int64], mask: NDArray[np.bool_], count: int) -> list[int]:
    """Return the positions of the highest ranks under a mask; equal ranks go by key."""
    at = np.flatnonzero(mask)
    if len(at) > count:
        # Keep everything that ties with the last one, so that the cut is made by key.
        limit = np.partition(ranks[at], len(at) - count)[len(at) - count]
        at = at[ranks[at] >= limit]
    order = np.lexsort((keys[at], -ranks[at]))
    return [int(position) for position in at[order[:count]]]


def _union(pools: Sequence[ScopedPool], weights: Weights) -> _Rows:
    bm25: list[Floats] = []
    lexical: list[Floats] = []
    shown: list[NDArray[np.bool_]] = []
    for scoped in pools:
        own, normal = _pool_bm25(scoped.pool, weights)
        bm25.append(own)
        lexical.append(normal)
        if scoped.window is None or scoped.pool.tier == "fact":
            shown.append(np.zeros(len(own), np.bool_))
        else:
            session, after = scoped.window
            shown.append((scoped.pool.session_ids == session) & (scoped.pool.seqs > after))
    keys = np.concatenate([s.pool.row_ids.astype(np.int64) * 2 + (s.pool.tier == "episode") for s in pools])
    all_bm25 = np.concatenate(bm25)
    pool_index = np.repeat(np.arange(len(pools)), [len(own) for own in bm25])
    order: slice | NDArray[np.intp] = slice(None)
    if not bool(np.all(keys[1:] > keys[:-1])):
        # A row that several scopes found counts once, as its best one has it.
        best_first = np.lexsort((pool_index, -all_bm25, keys))
        ordered = keys[best_first]
        order = best_first[np.concatenate(([True], ordered[1:] != ordered[:-1]))]
    return _Rows(
        keys=keys[order],
        pool_index=pool_index[order],
        sessions=np.concatenate([s.pool.session_ids for s in pools])[order],
        seqs=np.concatenate([s.pool.seqs for s in pools])[order],
        roles=np.concatenate([s.pool.roles for s in pools])[order],
        said_at=np.concatenate([s.pool.said_at for s in pools]).astype(np.float64, copy=False)[order],
        lengths=np.concatenate([s.pool.lengths for s in pools]).astype(np.float64)[order],
        cosines=np.concatenate([s.pool.cosines for s in pools]).astype(np.float64)[order],
        passes=np.concatenate([s.pool.passes for s in pools])[order],
        shown=np.concatenate(shown)[order],
        bm25=all_bm25[order],
        lexical=np.concatenate(lexical)[order],
    )


def _pool_bm25(pool: Columns, weights: Weights) -> tuple[Floats, Floats]:
    """Return each row's BM25, that of turns smoothed over their conversation, and what of it is not the session's as
    a share of the highest that any text could have for this query.
    """
    size = len(pool.row_ids)
    if pool.term_counts.shape[1] == 0:
        return np.zeros(size), np.zeros(size)
    population = max(pool.population, size)
    idf = _idf(population, pool.document_counts.astype(np.float64))
    mean = max(pool.total_length, 1.0) / max(population, 1)
    flat = pool.term_counts.ravel()
    filled = np.flatnonzero(flat)
    row, term = np.divmod(filled, pool.term_counts.shape[1])
    counts = flat[filled].astype(np.float64)
    own = _bm25(row, term, counts, pool.lengths.astype(np.float64) / mean, idf, weights.k1, weights.b)
    highest = float(idf.sum()) * (weights.k1 + 1)
    if pool.tier == "fact":
        return own, np.minimum(own / highest, 1.0)

    order = _conversation_order(pool)
    sessions, seqs = pool.session_ids[order], pool.seqs[order]
    smoothed = own.copy()
    smoothed[order] += _lent(own[order], sessions, seqs, weights.neighbours)
    normal = np.minimum(smoothed / highest, 1.0)
    starts = np.concatenate(([True], sessions[1:] != sessions[:-1]))
    count = int(starts.sum())
    if weights.session and count > 1:
        index = np.empty(size, np.int64)
        index[order] = np.cumsum(starts) - 1
        width = len(idf)
        cells = np.bincount(index[row] * width + term, counts, count * width)
        totals: Floats = cells.astype(np.float64).reshape(count, width)
        lengths: Floats = np.bincount(index, pool.lengths, count).astype(np.float64)
        session_idf = _idf(count, (totals > 0).sum(axis=0).astype(np.float64))
        at, which = np.nonzero(totals)
        relative = lengths / max(float(lengths.mean()), 1e-9)
        whole = _bm25(at, which, totals[at, which], relative, session_idf, weights.k1, weights.session_b)
        smoothed = smoothed + weights.session * whole[index]
    return smoothed, normal


def _conversation_order(pool: Columns) -> slice | NDArray[np.intp]:
    """Return what sorts the rows by session and seq."""
    sessions, seqs = pool.session_ids, pool.seqs
    step = sessions[1:] - sessions[:-1]
    if bool(np.all((step > 0) | ((step == 0) & (seqs[1:] > seqs[:-1])))):
        return slice(None)
    return np.lexsort((seqs, sessions))


def _idf(population: int, containing: Floats) -> Floats:
    return np.log1p((population - np.minimum(containing, population) + 0.5) / (containing + 0.5))


def _bm25(  # noqa: PLR0917  (columns of one table)
    row: NDArray[np.int64],
    term: NDArray[np.int64],
    counts: Floats,
    relative_lengths: Floats,
    idf: Floats,
    k1: float,
    b: float,
) -> Floats:
    """Return BM25 a row from the cells that are not zero, added up in the order of the cells."""
    normal = k1 * (1 - b + b * relative_lengths)
    cells = idf[term] * counts * (k1 + 1) / (counts + normal[row])
    total: Floats = np.bincount(row, cells, len(relative_lengths)).astype(np.float64)
    return total


def _lent(values: Floats, sessions: NDArray[np.int64], seqs: NDArray[np.int64], shares: Sequence[float]) -> Floats:
    """Return what each turn gets from those around it; `values` are in the order of session and seq."""
    lent = np.zeros(len(values))
    for distance, share in enumerate(shares, start=1):
        if share == 0 or len(values) <= distance:
            continue
        near = (sessions[distance:] == sessions[:-distance]) & (seqs[distance:] - seqs[:-distance] == distance)
        lent[distance:] += share * np.where(near, values[:-distance], 0.0)
        lent[:-distance] += share * np.where(near, values[distance:], 0.0)
    return lent


def _scores(rows: _Rows, has_cosine: NDArray[np.bool_], population: int) -> Floats:
    """Return the absolute scores.

    Meaning and words each say on their own how sure they are. The more rows there are, the nearer the nearest
    unrelated one comes, so the cosine that counts as nothing grows with the population. A row beside a sure match may
    be less sure itself: it belongs to what is being talked about. What the window shows lifts nothing: the question
    itself often stands there.
    """
    nothing = COSINE_OF_ONE + COSINE_PER_TENFOLD * float(np.log10(min(max(population, 1), 10_000)))
    cosines = np.where(has_cosine, rows.cosines, 0.0)
    meaning = np.clip((cosines - nothing) / (COSINE_CERTAIN - nothing), 0.0, 1.0)
    words = np.clip(rows.lexical * np.where(has_cosine, WORDS_BESIDE_MEANING, WORDS_ALONE), 0.0, 1.0)
    own = 1.0 - (1.0 - meaning) * (1.0 - words)
    scores = own.copy()
    for group in (rows.passes & ~rows.shown, ~rows.passes & ~rows.shown):
        if bool(group.any()):
            scores[group] = own[group] ** OWN_SHARE * float(own[group].max()) ** (1.0 - OWN_SHARE)
    rounded: Floats = np.round(scores, 6)
    return rounded


COSINE_OF_ONE = 0.05
COSINE_PER_TENFOLD = 0.1
COSINE_CERTAIN = 0.8
WORDS_BESIDE_MEANING = 0.7
WORDS_ALONE = 1.3
OWN_SHARE = 0.4
"""Calibration of the score, for the built-in embedder; docs/decisions/0002-ranking.md has the measurements. Another
embedder spreads its cosines otherwise: then the floor is to be chosen anew (`longTerm.scoreFloor`)."""


_ALWAYS_TOLD = frozenset({"words", "meaning"})
"""Parts that an explanation has even where they are nought, as for the only row that matches."""


def _parts(rows: _Rows, has_cosine: NDArray[np.bool_], weights: Weights) -> dict[str, Floats]:
    """Return the rank's parts by name, each a column."""
    words = _standardised(rows.bm25, np.ones(len(rows.bm25), np.bool_))
    meaning = _standardised(np.where(has_cosine, rows.cosines, 0.0), has_cosine)
    if has_cosine.any():
        # A row that waits for its vector is taken to mean half of what its words say.
        meaning = np.where(has_cosine, meaning, words / 2)
    length = np.maximum(rows.lengths / weights.long_reply_terms, 1.0)
    talk = np.where(rows.roles > ROLE_USER, -weights.long_reply * np.log2(length), 0.0)
    oldest, newest = float(rows.said_at.min()), float(rows.said_at.max())
    age = (rows.said_at - oldest) / (newest - oldest) if newest > oldest else np.zeros(len(rows.said_at))
    parts = {"words": words, "long_reply": talk, "recency": weights.recency * age}
    return {**parts, "meaning": weights.cosine * meaning} if has_cosine.any() else parts


def _standardised(values: Floats, known: NDArray[np.bool_]) -> Floats:
    """Return z-scores over the known values; zero for the others, and where all are alike."""
    if not known.any():
        return np.zeros(len(values))
    some = values[known]
    spread = float(some.std())
    if spread < 1e-9:
        return np.zeros(len(values))
    return np.where(known, (values - float(some.mean())) / spread, 0.0)
