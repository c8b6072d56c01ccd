"""How much each signal counts in a ranking."""

from __future__ import annotations

from dataclasses import dataclass


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
