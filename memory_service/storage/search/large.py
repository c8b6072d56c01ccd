"""Owners above the exact limit: the best rows of each signal through the database's indexes, by owner first.

Statistics are the owner's own, from the database. Candidates by words are chosen with those statistics, rarest stem
first, so that no foreign text decides which of an owner's rows are seen; a vector index only names rows, and every row
is read again under its owner before it becomes a candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from memory_service.ports.records import ItemFilters, Pool, SearchQuery, Vector
from memory_service.storage.encoding import micros
from memory_service.storage.rows.fact_columns import conditions
from memory_service.storage.search import pools, reading
from memory_service.storage.search.columns import OwnerIndex
from memory_service.storage.search.pools import Statistics
from memory_service.storage.search.words import lexeme
from memory_service.storage.statements import Link

ROWS_PER_CANDIDATE = 4
"""Rows looked at by words for each candidate asked for. More would let a common stem cost what it is not worth."""

SCAN_ROWS = 4096
"""Vectors read at once where no index may be asked: 6 MB at 384 dimensions."""


@dataclass(frozen=True)
class Corpus:
    """The rows of a large owner key: facts of one owner, or turns of home pairs or of one session of a pair.

    `countable` is the condition for a row to count at all, `where` that and the filters, both over alias `r`.
    """

    tier: Literal["fact", "episode"]
    owner_ids: tuple[int, ...]
    session_id: int | None
    countable: str
    where: str
    parameters: dict[str, Any]

    @property
    def name(self) -> tuple[str, tuple[int, ...], int | None]:
        """What the rows are of, whatever the filters say."""
        return self.tier, self.owner_ids, self.session_id

    @property
    def table(self) -> str:
        """The table's name."""
        return "facts" if self.tier == "fact" else "turns"

    @property
    def key(self) -> str:
        """The column of its row ids."""
        return "row_id" if self.tier == "fact" else "id"


class VectorIndex(Protocol):
    """Names the rows of owners that are nearest to a vector."""

    def nearest(self, link: Link, corpus: Corpus, vector: Vector, limit: int) -> Sequence[int]:
        """Return row ids that may be among the nearest; each is checked against the rows afterwards."""


def facts_of(owner_id: int, filters: ItemFilters) -> Corpus:
    """Return the corpus of an owner's facts."""
    valid, times = conditions(ItemFilters(now=filters.now, as_of=filters.as_of))
    where, parameters = conditions(filters)
    owners = "r.owner_id IN [:owners]"
    return Corpus(
        "fact",
        (owner_id,),
        None,
        owners + valid.replace("f.", "r."),
        owners + where.replace("f.", "r."),
        {"owners": [owner_id], **times, **parameters},
    )


def turns_of(home_ids: Sequence[int], session_id: int | None, filters: ItemFilters) -> Corpus:
    """Return the corpus of turns of home pairs, or of one session of theirs."""
    countable = "r.owner_id IN [:owners]"
    parameters: dict[str, Any] = {"owners": list(home_ids)}
    if session_id is not None:
        countable += " AND r.session_id = :session"
        parameters["session"] = session_id
    where = countable
    if filters.since is not None:
        where += " AND r.said_at >= :since"
        parameters["since"] = micros(filters.since)
    if filters.until is not None:
        where += " AND r.said_at <= :until"
        parameters["until"] = micros(filters.until)
    return Corpus("episode", tuple(home_ids), session_id, countable, where, parameters)


@dataclass(frozen=True)
class Totals:
    """How many rows count, how many stems they have together, and the last of them."""

    population: int
    total_length: int
    last_id: int


def totals(link: Link, corpus: Corpus, known: Totals | None) -> Totals:
    """Return the totals of a corpus; from `known` ones, only what was appended is read if nothing was deleted."""
    if known is not None:
        added = _totals(link, corpus, known.last_id)
        found = link.row(f"SELECT COUNT(*) FROM @{corpus.table} AS r WHERE {corpus.countable}", corpus.parameters)
        if found is not None and found[0] == known.population + added.population:
            return Totals(found[0], known.total_length + added.total_length, max(known.last_id, added.last_id))
    return _totals(link, corpus, 0)


def _totals(link: Link, corpus: Corpus, after: int) -> Totals:
    found = link.row(
        f"SELECT COUNT(*), CAST(COALESCE(SUM(r.length), 0) AS BIGINT), COALESCE(MAX(r.{corpus.key}), 0)"
        f" FROM @{corpus.table} AS r WHERE {corpus.countable} AND r.{corpus.key} > :after",
        {**corpus.parameters, "after": after},
    )
    assert found is not None, "an aggregate has one row"
    return Totals(*found)


def pool(link: Link, corpus: Corpus, query: SearchQuery, known: Totals, vectors: VectorIndex) -> Pool:
    """Return the best rows of each signal, and the turns beside them, as candidates. `known` is what `totals` found."""
    counts = np.array([_document_count(link, corpus, stem) for stem in query.terms], np.int64)
    statistics = Statistics(known.population, float(known.total_length), counts)
    chosen: set[int] = set()
    if corpus.tier == "fact" or not pools.excludes_episodes(query.filters):
        chosen.update(_by_words(link, corpus, query, statistics))
        if query.vector is not None:
            chosen.update(vectors.nearest(link, corpus, query.vector, query.limit))
    if corpus.tier == "episode":
        chosen.update(_beside(link, corpus, sorted(chosen)))
    index = _read(link, corpus, sorted(chosen))
    return pools.make(corpus.tier, [index.snapshot()], query, session_id=corpus.session_id, statistics=statistics)


def scan(link: Link, corpus: Corpus, vector: Vector, limit: int) -> list[int]:
    """Return the row ids nearest to a vector by reading every vector of a corpus once, in steps."""
    best_ids, best = np.empty(0, np.int64), np.empty(0, np.float32)
    after = 0
    while True:
        found = link.rows(
            f"SELECT r.{corpus.key}, {reading.VECTOR} FROM @{corpus.table} AS r WHERE {corpus.where}"
            f" AND r.{corpus.key} > :after AND r.vector IS NOT NULL ORDER BY r.{corpus.key} LIMIT :step",
            {**corpus.parameters, "after": after, "step": SCAN_ROWS},
        )
        if not found:
            return best_ids.tolist()
        after = found[-1][0]
        ids = np.concatenate([best_ids, np.array([row[0] for row in found], np.int64)])
        vectors = reading.vectors_from(link, [row[1] for row in found])[1]
        similar = np.concatenate([best, pools.cosines(vectors, vector)])
        order = np.lexsort((ids, -similar))[:limit]
        best_ids, best = ids[order], similar[order]


class PostgresVectors:
    """pgvector's HNSW under an owner, with an exact answer whenever the index gives less than it was asked for.

    A filtered HNSW scan that stops early looks like a small result, so fewer rows than `limit` are never believed.
    """

    def nearest(self, link: Link, corpus: Corpus, vector: Vector, limit: int) -> Sequence[int]:
        """Return the row ids nearest to a vector, nearest first."""
        link.row(
            "SELECT set_config('hnsw.iterative_scan', 'strict_order', true), set_config('hnsw.ef_search', :ef, true),"
            " set_config('plan_cache_mode', 'force_custom_plan', true)",
            {"ef": str(min(1000, max(100, limit)))},
        )
        found = self._ordered(link, corpus, vector, limit, "")
        if len(found) < limit:
            found = self._ordered(link, corpus, vector, limit, " + 0")
        return found

    def _ordered(self, link: Link, corpus: Corpus, vector: Vector, limit: int, plus: str) -> list[int]:
        # `distance + 0` is no expression of the index, so that the rows are found by owner and sorted.
        found = link.rows(
            f"SELECT r.{corpus.key} FROM @{corpus.table} AS r WHERE {corpus.where} AND r.vector IS NOT NULL"
            f" ORDER BY (r.vector OPERATOR({{vectors}}.<=>) :vector){plus} LIMIT :limit",
            {**corpus.parameters, "vector": link.vector_in(vector), "limit": limit},
        )
        return [row[0] for row in found]


def _match(corpus: Corpus, stem: str) -> dict[str, Any]:
    lexemes = [lexeme(owner, stem) for owner in corpus.owner_ids]
    quoted = " OR ".join('"' + word.replace('"', '""') + '"' for word in lexemes)
    return {**corpus.parameters, "lexemes": lexemes, "match": quoted}


def _holding(link: Link, corpus: Corpus, where: str) -> str:
    """Return the FROM and WHERE of the rows that hold a stem; the array is the index's own expression."""
    table = corpus.table
    if link.is_postgres:
        prefix = "r.owner_id::text || ':'"
        words = f"string_to_array({prefix} || replace(r.terms, ' ', ' ' || {prefix}), ' ')"
        return f"@{table} AS r WHERE {words} && CAST(:lexemes AS TEXT[]) AND {where}"
    # CROSS JOIN keeps the order: the words are asked first.
    joined = f"@{table}_words AS w CROSS JOIN @{table} AS r ON r.{corpus.key} = w.rowid"
    return f"{joined} WHERE {table}_words MATCH :match AND {where}"


def _document_count(link: Link, corpus: Corpus, stem: str) -> int:
    holding = _holding(link, corpus, corpus.countable)
    if not link.is_postgres and corpus.tier == "episode" and corpus.session_id is None:
        # The words alone say whose they are, and every turn counts: no row has to be looked at.
        holding = "@turns_words WHERE turns_words MATCH :match"
    found = link.row(f"SELECT COUNT(*) FROM {holding}", _match(corpus, stem))
    assert found is not None
    return int(found[0])


def _by_words(link: Link, corpus: Corpus, query: SearchQuery, statistics: Statistics) -> list[int]:
    """Return the best rows by BM25 among those that hold the rarest stems; the newest where too many hold one."""
    seen: set[int] = set()
    room = query.limit * ROWS_PER_CANDIDATE
    order = np.argsort(statistics.document_counts, kind="stable")
    for number in order:
        if not statistics.document_counts[number] or len(seen) >= room:
            continue
        found = link.rows(
            f"SELECT r.{corpus.key} FROM {_holding(link, corpus, corpus.where)}"
            f" ORDER BY [[r.{corpus.key}|w.rowid]] DESC LIMIT :room",
            {**_match(corpus, query.terms[number]), "room": room - len(seen)},
        )
        seen.update(row[0] for row in found)
    if not seen:
        return []
    found = link.rows(
        f"SELECT r.{corpus.key}, r.length, r.terms FROM @{corpus.table} AS r"
        f" WHERE r.owner_id IN [:owners] AND r.{corpus.key} IN [:ids]",
        {"owners": list(corpus.owner_ids), "ids": sorted(seen)},
    )
    ids = np.array([row[0] for row in found], np.int64)
    lengths = np.array([row[1] for row in found], np.float64)
    counts = np.array([[stems.count(term) for term in query.terms] for stems in (row[2].split() for row in found)])
    scores = _bm25(counts, lengths, statistics)
    best: list[int] = ids[np.lexsort((-ids, -scores))[: query.limit]].tolist()
    return best


def _bm25(counts: NDArray[np.int64], lengths: NDArray[np.float64], statistics: Statistics) -> NDArray[np.float64]:
    average = statistics.total_length / max(statistics.population, 1) or 1.0
    held = statistics.document_counts
    weight = np.log1p((statistics.population - held + 0.5) / (held + 0.5))
    damped = counts * 2.2 / (counts + 1.2 * (0.25 + 0.75 * lengths / average)[:, None])
    scores: NDArray[np.float64] = damped @ weight
    return scores


def _beside(link: Link, corpus: Corpus, row_ids: Sequence[int]) -> list[int]:
    """Return the turns before and after these turns in their sessions."""
    if not row_ids:
        return []
    found = link.rows(
        "SELECT n.id FROM @turns AS c JOIN @turns AS n ON n.owner_id = c.owner_id AND n.session_id = c.session_id"
        " AND (n.seq = c.seq - 1 OR n.seq = c.seq + 1) WHERE c.owner_id IN [:owners] AND c.id IN [:ids]",
        {"owners": list(corpus.owner_ids), "ids": list(row_ids)},
    )
    return [row[0] for row in found]


def _read(link: Link, corpus: Corpus, row_ids: Sequence[int]) -> OwnerIndex:
    index = OwnerIndex(of_facts=corpus.tier == "fact")
    if not row_ids:
        return index
    if corpus.tier == "fact":
        (owner_id,) = corpus.owner_ids
        batch = reading.fact_words(link, owner_id, reading.named_facts(link, owner_id, row_ids))
    else:
        batch = reading.turns(link, corpus.owner_ids, row_ids)
    index.append(batch.rows, batch.terms, batch.slots, batch.vectors)
    return index
