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
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from memory_service.contract.scopes import Scope
from memory_service.domain.bm25 import pool_bm25
from memory_service.domain.candidates import Columns, Floats
from memory_service.domain.weights import DEFAULT_WEIGHTS, Weights

ROLE_USER = 0
"""Where `ports.records.ROLES` has the user; facts have -1."""


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
    at, sure = _sureness(rows, has_cosine, population)
    parts = _parts(rows, at, has_cosine, weights)
    ranks = np.round(sum(parts.values(), np.zeros(len(at))), 9)
    keys, passes, shown = rows.keys[at], sure.passes, sure.shown

    above = sure.at_least(max(floor, _NOTHING))
    fits = passes & ~shown
    filtered = above & ~passes & ~shown
    chosen = _best(ranks, keys, above & fits, top + 1)
    left = [LeftOut(*_identity(key), "top_k") for key in keys[chosen[top:]].tolist()]
    reasons: tuple[tuple[Literal["below_floor", "in_window", "filtered"], NDArray[np.bool_]], ...] = (
        ("in_window", above & passes & shown),
        ("filtered", filtered),
        ("below_floor", ~above & sure.at_least(_NOTHING) & fits),
    )
    for reason, mask in reasons:
        best = _best(ranks, keys, mask, top)
        left.extend(LeftOut(*_identity(key), reason) for key in keys[best].tolist())

    chosen = chosen[:top]
    scores = sure.scores(chosen)
    items = _ranked(used, rows, at[chosen], scores, {name: values[chosen] for name, values in parts.items()})
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
        own, normal = pool_bm25(scoped.pool, weights)
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


@dataclass(frozen=True)
class _Sure:
    """How sure each row is on its own, and how sure the surest of those beside it is.

    A score is `own ** OWN_SHARE * best ** (1 - OWN_SHARE)`. That grows with `own`, so it is compared with a floor where
    the row's own sureness is, and worked out for the few rows that are answered.
    """

    own: Floats
    passes: NDArray[np.bool_]
    shown: NDArray[np.bool_]
    best_passing: float
    best_failing: float

    def at_least(self, score: float) -> NDArray[np.bool_]:
        """Return which rows have at least this score, as it is rounded."""
        least = score - 0.5 * 10.0**-SCORE_DIGITS
        among = [
            (least / best ** (1.0 - OWN_SHARE)) ** (1.0 / OWN_SHARE) if best > 0 else math.inf
            for best in (self.best_passing, self.best_failing)
        ]
        found: NDArray[np.bool_] = self.own >= self._of_group(among[0], among[1], least)
        return found

    def scores(self, at: NDArray[np.intp]) -> Floats:
        """Return the scores of the rows at these positions."""
        own = self.own[at]
        best = np.where(self.shown[at], own, np.where(self.passes[at], self.best_passing, self.best_failing))
        rounded: Floats = np.round(own**OWN_SHARE * best ** (1.0 - OWN_SHARE), SCORE_DIGITS)
        return rounded

    def _of_group(self, passing: float, failing: float, shown: float) -> Floats | float:
        if bool(self.passes.all()) and not bool(self.shown.any()):
            return passing
        return np.where(self.shown, shown, np.where(self.passes, passing, failing))


def _sureness(rows: _Rows, has_cosine: NDArray[np.bool_], population: int) -> tuple[NDArray[np.intp], _Sure]:
    """Return which rows share something with the query, and how sure they are; all others have no score.

    Meaning and words each say on their own how sure they are. The more rows there are, the nearer the nearest
    unrelated one comes, so the cosine that counts as nothing grows with the population. A row beside a sure match may
    be less sure itself: it belongs to what is being talked about. What the window shows lifts nothing: the question
    itself often stands there.
    """
    nothing = COSINE_OF_ONE + COSINE_PER_TENFOLD * math.log10(min(max(population, 1), 10_000))
    at = np.flatnonzero((rows.cosines > nothing) | (rows.lexical > 0))
    known = has_cosine[at]
    cosines = np.where(known, rows.cosines[at], 0.0)
    meaning = np.clip((cosines - nothing) / (COSINE_CERTAIN - nothing), 0.0, 1.0)
    words = np.clip(rows.lexical[at] * np.where(known, WORDS_BESIDE_MEANING, WORDS_ALONE), 0.0, 1.0)
    own = 1.0 - (1.0 - meaning) * (1.0 - words)
    passes, shown = rows.passes[at], rows.shown[at]
    return at, _Sure(own, passes, shown, _most(own, passes & ~shown), _most(own, ~passes & ~shown))


def _most(values: Floats, among: NDArray[np.bool_]) -> float:
    return float(np.max(values, where=among, initial=0.0))


SCORE_DIGITS = 6
"""Scores are rounded to this, and compared with a floor as they are rounded."""
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
    age = _ages(rows.said_at, at)
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


_FIRST_BELIEVED, _LAST_BELIEVED = -2_208_988_800.0, 7_258_118_400.0
"""1900 and 2200: times beyond are what programs give that know none, and would stretch the scale for all others."""


def _ages(said_at: Floats, at: NDArray[np.intp]) -> Floats:
    """Return where some of the rows stand between the oldest one, 0, and the newest, 1."""
    oldest, newest = float(said_at.min()), float(said_at.max())
    if oldest < _FIRST_BELIEVED or newest > _LAST_BELIEVED:
        believed = said_at[(said_at >= _FIRST_BELIEVED) & (said_at <= _LAST_BELIEVED)]
        oldest, newest = (float(believed.min()), float(believed.max())) if len(believed) else (0.0, 0.0)
        said_at = np.clip(said_at, oldest, newest)
    ages: Floats = (said_at[at] - oldest) / (newest - oldest) if newest > oldest else np.zeros(len(at))
    return ages


def _standardised(values: Floats, at: NDArray[np.intp]) -> Floats:
    """Return the z-scores of some of the values; zero where all are alike."""
    mean = float(values.mean())
    apart = values - mean
    spread = math.sqrt(float(apart @ apart) / len(values))
    if spread < 1e-9:
        return np.zeros(len(at))
    return apart[at] / spread
