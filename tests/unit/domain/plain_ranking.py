"""The ranking of one pool, row by row in plain Python: what the columns must come to."""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import fmean, pstdev

from memory_service.domain.ranking import (
    COSINE_CERTAIN,
    COSINE_OF_ONE,
    COSINE_PER_TENFOLD,
    OWN_SHARE,
    WORDS_ALONE,
    WORDS_BESIDE_MEANING,
)
from memory_service.domain.weights import DEFAULT_WEIGHTS
from memory_service.ports.records import Pool
from tests.fakes.pools import term_counts

W = DEFAULT_WEIGHTS


def _idf(population: int, holding: int) -> float:
    return math.log1p((population - min(holding, population) + 0.5) / (holding + 0.5))


def _bm25(counts: list[float], idf: list[float], relative: float, b: float) -> float:
    normal = W.k1 * (1 - b + b * relative)
    return sum(idf[n] * count * (W.k1 + 1) / (count + normal) for n, count in enumerate(counts) if count)


def _z(values: list[float]) -> list[float]:
    spread = pstdev(values)
    return [(value - fmean(values)) / spread if spread >= 1e-9 else 0.0 for value in values]


def ranks_and_scores(pool: Pool) -> dict[int, tuple[float, float]]:
    """Return rank and score by row id; every row passes and none is shown already."""
    counts = term_counts(pool).tolist()
    lengths, sessions, seqs = pool.lengths.tolist(), pool.session_ids.tolist(), pool.seqs.tolist()
    cosines = [None if math.isnan(value) else value for value in pool.cosines.tolist()]
    rows, size = range(len(lengths)), len(lengths)
    idf = [_idf(size, int(holding)) for holding in pool.document_counts]
    mean = max(sum(lengths), 1.0) / size
    own = [_bm25(counts[row], idf, lengths[row] / mean, W.b) for row in rows]
    smoothed = list(own)
    if pool.tier == "episode":
        for row in rows:
            for other in rows:
                distance = abs(seqs[row] - seqs[other])
                if sessions[row] == sessions[other] and 0 < distance <= len(W.neighbours):
                    smoothed[row] += W.neighbours[distance - 1] * own[other]
    highest = sum(idf) * (W.k1 + 1)
    lexical = [min(value / highest, 1.0) if highest else 0.0 for value in smoothed]
    if pool.tier == "episode" and len(set(sessions)) > 1:
        held: dict[int, list[float]] = defaultdict(lambda: [0.0] * len(idf))
        long: dict[int, float] = defaultdict(float)
        for row in rows:
            held[sessions[row]] = [a + b for a, b in zip(held[sessions[row]], counts[row], strict=True)]
            long[sessions[row]] += lengths[row]
        session_idf = [_idf(len(held), sum(some[n] > 0 for some in held.values())) for n in range(len(idf))]
        for row in rows:
            relative = long[sessions[row]] / max(fmean(long.values()), 1e-9)
            smoothed[row] += W.session * _bm25(held[sessions[row]], session_idf, relative, W.session_b)

    words = _z(smoothed)
    known = [row for row in rows if cosines[row] is not None]
    means = dict(zip(known, _z([cosines[row] or 0.0 for row in known]), strict=True)) if known else {}
    said = pool.said_at.tolist()
    ranks = []
    for row in rows:
        is_long = pool.roles[row] > 0 and lengths[row] > W.long_reply_terms
        talk = W.long_reply * math.log2(lengths[row] / W.long_reply_terms) if is_long else 0.0
        age = (said[row] - min(said)) / (max(said) - min(said)) if max(said) > min(said) else 0.0
        meaning = W.cosine * means.get(row, words[row] / 2) if known else 0.0
        ranks.append(words[row] - talk + W.recency * age + meaning)

    nothing = COSINE_OF_ONE + COSINE_PER_TENFOLD * math.log10(size)
    sure = []
    for row in rows:
        cosine = cosines[row] or 0.0
        meant = min(max((cosine - nothing) / (COSINE_CERTAIN - nothing), 0.0), 1.0)
        said_so = min(lexical[row] * (WORDS_ALONE if cosines[row] is None else WORDS_BESIDE_MEANING), 1.0)
        sure.append(1 - (1 - meant) * (1 - said_so))
    scores = [value**OWN_SHARE * max(sure) ** (1 - OWN_SHARE) for value in sure]
    return {int(pool.row_ids[row]): (ranks[row], scores[row]) for row in rows}
