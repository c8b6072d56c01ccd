"""Ranking: which of an owner's rows answer a query best, and whether any of them answers it at all.

Two numbers a row. `rank` is relative: it orders the rows of one recall and means nothing outside of it. `score` is
absolute, 0 to 1, and carries the floor below which a row is no match. How the constants were chosen, with the numbers
that were measured, is in docs/decisions/0002-ranking.md.

Everything here is a function of the pools it is given. Statistics are an owner's own, so text of other owners can
neither move a row nor be inferred from one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from memory_service.contract.scopes import Scope
from memory_service.domain.lexical import terms

Floats = NDArray[np.float64]

ROLE_USER = 0
"""Where `ports.records.ROLES` has the user; facts have -1."""


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
    def hits(self) -> Hits: ...
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
    @property
    def talk(self) -> Talk | None: ...


@dataclass(frozen=True)
class Hits:
    """Where a query's terms occur: cell by cell the row, the number of the term and how often.

    `width` is the number of terms. The cells of a row are in the order of the terms; a row without any has none.
    """

    rows: NDArray[np.int64]
    terms: NDArray[np.int64]
    counts: Floats
    width: int

    @classmethod
    def of(cls, table: NDArray[np.generic]) -> Hits:
        """Return the cells of a table with a row for each row and a column for each term that are not zero."""
        terms, rows = np.nonzero(table.T)
        return cls(rows, terms, table[rows, terms].astype(np.float64), table.shape[1])

    def table(self, size: int) -> NDArray[np.float64]:
        """Return them as the table of `size` rows that `of` takes."""
        table = np.zeros((size, self.width))
        table[self.rows, self.terms] = self.counts
        return table


@dataclass(frozen=True)
class Talk:
    """How turns stand to each other. No query has a part in it, so that it is worked out once for rows that are kept.

    `order` sorts the rows by session and seq. `near` has, for each distance from 1 on, whether a turn in that order and
    the one so many places later are so far apart in one session, as 1 or 0. `sessions` numbers each row's session, and
    `session_lengths` are the sessions' stems over their mean.
    """

    order: slice | NDArray[np.intp]
    near: tuple[Floats, ...]
    sessions: NDArray[np.int64]
    session_lengths: Floats

    @classmethod
    def of(
        cls,
        session_ids: NDArray[np.int64],
        seqs: NDArray[np.int64],
        lengths: NDArray[np.float32],
        *,
        reach: int = len(DEFAULT_WEIGHTS.neighbours),
    ) -> Talk:
        """Work it out, `reach` turns far."""
        order = _conversation_order(session_ids, seqs)
        sessions, seqs = session_ids[order], seqs[order]
        near = tuple(
            ((sessions[distance:] == sessions[:-distance]) & (seqs[distance:] - seqs[:-distance] == distance)).astype(
                np.float64
            )
            for distance in range(1, reach + 1)
        )
        starts = np.concatenate(([True], sessions[1:] != sessions[:-1]))
        numbers = np.empty(len(sessions), np.int64)
        numbers[order] = np.cumsum(starts) - 1
        totals = np.bincount(numbers, lengths).astype(np.float64)
        return cls(order, near, numbers, totals / max(float(totals.mean()), 1e-9))


@dataclass(frozen=True)
class ScopedPool:
    """A pool and the scope that it was read under.

    `window` is (session row id, folded seq): turns of that session after that seq are shown in the answer's window
    already, so they lend their words to their neighbours and are not shown again.
    """

    scope: Scope
    pool: Columns
    window: tuple[int, int] | None = None


DEFAULT_FLOOR = 0.2
"""Score below which a row is no match where neither caller nor store says otherwise."""


class RankOutcome(StrEnum):
    """Whether anything was found: `filtered_out` says that something was, and every bit of it failed the filters."""

    APPLIED = "applied"
    NO_MATCHES = "no_matches"
    FILTERED_OUT = "filtered_out"


class Ranked(NamedTuple):
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


class LeftOut(NamedTuple):
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


@dataclass(frozen=True)
class _Rows:
    """The union of several pools in an order of its own: by tier and row id, each row once."""

    keys: NDArray[np.int64]
    pool_index: NDArray[np.int64]
    sessions: NDArray[np.int64]
    seqs: NDArray[np.int64]
    roles: NDArray[np.int8]
    said_at: Floats
    lengths: NDArray[np.float32]
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
    # All rows have a part in what is usual among them; only those that share something with the query are looked at.
    at, scores = _scores(rows, has_cosine, population)
    parts = _parts(rows, at, has_cosine, weights)
    ranks = np.round(sum(parts.values(), np.zeros(len(at))), 9)
    keys, passes, shown = rows.keys[at], rows.passes[at], rows.shown[at]

    above = scores >= max(floor, _NOTHING)
    fits = passes & ~shown
    filtered = above & ~passes & ~shown
    chosen = _best(ranks, keys, above & fits, top + 1)
    left = [LeftOut(*_identity(key), "top_k") for key in keys[chosen[top:]].tolist()]
    reasons: tuple[tuple[Literal["below_floor", "in_window", "filtered"], NDArray[np.bool_]], ...] = (
        ("in_window", above & passes & shown),
        ("filtered", filtered),
        ("below_floor", ~above & (scores >= _NOTHING) & fits),
    )
    for reason, mask in reasons:
        best = _best(ranks, keys, mask, top)
        left.extend(LeftOut(*_identity(key), reason) for key in keys[best].tolist())

    chosen = chosen[:top]
    items = _ranked(used, rows, at[chosen], scores[chosen], {name: values[chosen] for name, values in parts.items()})
    nothing = RankOutcome.FILTERED_OUT if filtered.any() else RankOutcome.NO_MATCHES
    return Ranking(RankOutcome.APPLIED if items else nothing, items, tuple(left), text_only=not has_cosine.any())


def _ranked(
    pools: Sequence[ScopedPool], rows: _Rows, at: NDArray[np.intp], scores: Floats, parts: Mapping[str, Floats]
) -> tuple[Ranked, ...]:
    names = list(parts)
    items = []
    for key, pool, session, seq, said_at, score, *values in zip(
        rows.keys[at].tolist(),
        rows.pool_index[at].tolist(),
        rows.sessions[at].tolist(),
        rows.seqs[at].tolist(),
        rows.said_at[at].tolist(),
        scores.tolist(),
        *(parts[name].tolist() for name in names),
        strict=True,
    ):
        own = {name: value for name, value in zip(names, values, strict=True) if value != 0 or name in _ALWAYS_TOLD}
        tier, row_id = _identity(key)
        total = sum(own.values())
        items.append(Ranked(tier, row_id, pools[pool].scope, session, seq, said_at, total, round(score, 4), own))
    return tuple(items)


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


_NOTHING = 1e-6
"""A score below this shares nothing with the query; it is no match even where the floor is 0."""

_SCOPE_ORDER = {Scope.PRIVATE: 0, Scope.USER: 1, Scope.SHARED: 2, Scope.SESSION: 3}


def _pool_order(scoped: ScopedPool) -> tuple[int, str, int, int]:
    pool = scoped.pool
    first = int(pool.row_ids.min()) if len(pool.row_ids) else -1
    return (_SCOPE_ORDER[scoped.scope], pool.tier, first, pool.population)


def _identity(key: int) -> tuple[Literal["fact", "episode"], int]:
    return ("episode" if key & 1 else "fact", key >> 1)


def _best(ranks: Floats, keys: NDArray[np.int64], mask: NDArray[np.bool_], count: int) -> NDArray[np.intp]:
    """Return the positions of the highest ranks under a mask; equal ranks go by key."""
    at = np.flatnonzero(mask)
    if len(at) > count:
        # Keep everything that ties with the last one, so that the cut is made by key.
        some = ranks[at]
        limit = np.partition(some, len(at) - count)[len(at) - count]
        at = at[some >= limit]
    return at[np.lexsort((keys[at], -ranks[at]))[:count]]


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
    keys = _joined([s.pool.row_ids.astype(np.int64) * 2 + (s.pool.tier == "episode") for s in pools])
    all_bm25 = _joined(bm25)
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
        sessions=_joined([s.pool.session_ids for s in pools])[order],
        seqs=_joined([s.pool.seqs for s in pools])[order],
        roles=_joined([s.pool.roles for s in pools])[order],
        said_at=_joined([s.pool.said_at for s in pools]).astype(np.float64, copy=False)[order],
        lengths=_joined([s.pool.lengths for s in pools])[order],
        cosines=_joined([s.pool.cosines for s in pools]).astype(np.float64)[order],
        passes=_joined([s.pool.passes for s in pools])[order],
        shown=_joined(shown)[order],
        bm25=all_bm25[order],
        lexical=_joined(lexical)[order],
    )


C = TypeVar("C", bound=np.generic)


def _joined(columns: Sequence[NDArray[C]]) -> NDArray[C]:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _pool_bm25(pool: Columns, weights: Weights) -> tuple[Floats, Floats]:
    """Return each row's BM25, that of turns smoothed over their conversation, and what of it is not the session's as
    a share of the highest that any text could have for this query.
    """
    size, hits = len(pool.row_ids), pool.hits
    row, term, counts, width = hits.rows, hits.terms, hits.counts, hits.width
    if width == 0:
        return np.zeros(size), np.zeros(size)
    population = max(pool.population, size)
    idf = _idf(population, pool.document_counts.astype(np.float64))
    mean = max(pool.total_length, 1.0) / max(population, 1)
    own = _bm25(row, term, counts, pool.lengths[row].astype(np.float64) / mean, idf, weights.k1, weights.b, size)
    highest = float(idf.sum()) * (weights.k1 + 1)
    if pool.tier == "fact":
        return own, np.minimum(own / highest, 1.0)

    talk = pool.talk
    if talk is None or len(talk.near) < len(weights.neighbours):
        talk = Talk.of(pool.session_ids, pool.seqs, pool.lengths, reach=len(weights.neighbours))
    smoothed = own.copy()
    smoothed[talk.order] += _lent(own[talk.order], talk.near, weights.neighbours)
    normal = np.minimum(smoothed / highest, 1.0)
    count = len(talk.session_lengths)
    if weights.session and count > 1:
        cells = np.bincount(talk.sessions[row] * width + term, counts, count * width)
        totals: Floats = cells.astype(np.float64).reshape(count, width)
        session_idf = _idf(count, (totals > 0).sum(axis=0).astype(np.float64))
        at, which = np.nonzero(totals)
        relative = talk.session_lengths[at]
        whole = _bm25(at, which, totals[at, which], relative, session_idf, weights.k1, weights.session_b, count)
        smoothed = smoothed + (weights.session * whole)[talk.sessions]
    return smoothed, normal


def _conversation_order(sessions: NDArray[np.int64], seqs: NDArray[np.int64]) -> slice | NDArray[np.intp]:
    """Return what sorts the rows by session and seq."""
    step = sessions[1:] - sessions[:-1]
    if bool(np.all((step > 0) | ((step == 0) & (seqs[1:] > seqs[:-1])))):
        return slice(None)
    return np.lexsort((seqs, sessions))


def _idf(population: int, containing: Floats) -> Floats:
    return np.log1p((population - np.minimum(containing, population) + 0.5) / (containing + 0.5))


def _bm25(  # noqa: PLR0917  (columns of one table, and how it is weighed)
    row: NDArray[np.int64],
    term: NDArray[np.int64],
    counts: Floats,
    relative_lengths: Floats,
    idf: Floats,
    k1: float,
    b: float,
    size: int,
) -> Floats:
    """Return BM25 of `size` rows from the cells that are not zero, added up in the order of the cells; the lengths are
    those of the cells' rows.
    """
    cells = idf[term] * counts * (k1 + 1) / (counts + k1 * (1 - b + b * relative_lengths))
    total: Floats = np.bincount(row, cells, size).astype(np.float64, copy=False)
    return total


def _lent(values: Floats, near: Sequence[Floats], shares: Sequence[float]) -> Floats:
    """Return what each turn gets from those around it; `values` are in the order of session and seq."""
    lent = np.zeros(len(values))
    for distance, share in enumerate(shares, start=1):
        if share == 0 or len(values) <= distance:
            continue
        given = share * near[distance - 1]
        lent[distance:] += given * values[:-distance]
        lent[:-distance] += given * values[distance:]
    return lent


def _scores(rows: _Rows, has_cosine: NDArray[np.bool_], population: int) -> tuple[NDArray[np.intp], Floats]:
    """Return which rows share something with the query, and their absolute scores; all others have none.

    Meaning and words each say on their own how sure they are. The more rows there are, the nearer the nearest
    unrelated one comes, so the cosine that counts as nothing grows with the population. A row beside a sure match may
    be less sure itself: it belongs to what is being talked about. What the window shows lifts nothing: the question
    itself often stands there.
    """
    nothing = COSINE_OF_ONE + COSINE_PER_TENFOLD * float(np.log10(min(max(population, 1), 10_000)))
    at = np.flatnonzero((rows.cosines > nothing) | (rows.lexical > 0))
    known = has_cosine[at]
    cosines = np.where(known, rows.cosines[at], 0.0)
    meaning = np.clip((cosines - nothing) / (COSINE_CERTAIN - nothing), 0.0, 1.0)
    words = np.clip(rows.lexical[at] * np.where(known, WORDS_BESIDE_MEANING, WORDS_ALONE), 0.0, 1.0)
    own = 1.0 - (1.0 - meaning) * (1.0 - words)
    scores = own.copy()
    passes, shown = rows.passes[at], rows.shown[at]
    for group in (passes & ~shown, ~passes & ~shown):
        if bool(group.any()):
            some = own if bool(group.all()) else own[group]
            scores[group] = some**OWN_SHARE * float(some.max()) ** (1.0 - OWN_SHARE)
    rounded: Floats = np.round(scores, 6)
    return at, rounded


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


def _parts(rows: _Rows, at: NDArray[np.intp], has_cosine: NDArray[np.bool_], weights: Weights) -> dict[str, Floats]:
    """Return the parts of the rank of the rows `at`, by name, each a column."""
    words = _standardised(rows.bm25, at)
    long = rows.lengths[at]
    talk = np.zeros(len(at))
    replies = np.flatnonzero((rows.roles[at] > ROLE_USER) & (long > weights.long_reply_terms))
    talk[replies] = -weights.long_reply * np.log2(long[replies].astype(np.float64) / weights.long_reply_terms)
    oldest, newest = float(rows.said_at.min()), float(rows.said_at.max())
    age = (rows.said_at[at] - oldest) / (newest - oldest) if newest > oldest else np.zeros(len(at))
    parts = {"words": words, "long_reply": talk, "recency": weights.recency * age}
    if not has_cosine.any():
        return parts
    if has_cosine.all():
        meaning = _standardised(rows.cosines, at)
    else:
        # A row that waits for its vector is taken to mean half of what its words say.
        numbers = np.cumsum(has_cosine) - 1
        known = has_cosine[at]
        meaning = words / 2
        meaning[known] = _standardised(rows.cosines[has_cosine], numbers[at[known]])
    return {**parts, "meaning": weights.cosine * meaning}


def _standardised(values: Floats, at: NDArray[np.intp]) -> Floats:
    """Return the z-scores of some of the values; zero where all are alike."""
    mean = float(values.mean())
    apart = values - mean
    spread = math.sqrt(float(apart @ apart) / len(values))
    if spread < 1e-9:
        return np.zeros(len(at))
    return apart[at] / spread
