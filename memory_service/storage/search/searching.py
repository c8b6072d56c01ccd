"""The port's Search over one transaction, and what all transactions of a store share."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np

from memory_service.ports.records import ItemFilters, OwnerRow, Pool, SearchQuery, SessionRow, Vector
from memory_service.storage.search import large, pools, reading
from memory_service.storage.search.cache import Cache, Key, Memo, Own
from memory_service.storage.search.columns import Snapshot
from memory_service.storage.search.kept import KeptFacts, KeptTurns, S
from memory_service.storage.search.large import Corpus, PostgresVectors, Totals, VectorIndex
from memory_service.storage.search.mirror import Mirror
from memory_service.storage.statements import Link
from memory_service.storage.states import FactState, HomeState, OwnerState

EXACT_ROWS = 20_000
"""Rows up to which an owner is scored whole: 30 MB of vectors at 384 dimensions, about 3 ms a search."""

MAX_BYTES = 256 * 1024 * 1024
"""Memory for kept rows. Less makes more searches read their owner's rows again, about 10 us each."""

IDLE = timedelta(minutes=15)


class SearchIndex:
    """The kept rows of one store, shared by its transactions. Safe to use from several threads."""

    def __init__(
        self,
        *,
        mirror: Mirror | None = None,
        exact_rows: int = EXACT_ROWS,
        max_bytes: int = MAX_BYTES,
        idle: timedelta = IDLE,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Find large owners' vectors through `mirror`; None stands for pgvector."""
        self.exact_rows = exact_rows
        self.mirror = mirror
        self._vectors: VectorIndex = mirror or PostgresVectors()
        self.cache = Cache(max_bytes=max_bytes, idle=idle, monotonic=monotonic)
        self.counts: Memo[int] = Memo()
        self.totals: Memo[Totals] = Memo()
        self._tickets = itertools.count(1)

    @property
    def vectors(self) -> VectorIndex:
        """What names the nearest rows of large owners."""
        return self._vectors

    def over(
        self, link: Link, *, committed: bool = False, states: Mapping[int, OwnerState] | None = None
    ) -> OwnerSearch:
        """Return the search of one transaction; call it before the transaction reads anything.

        `committed` says that the transaction writes nothing: what it reads is kept for others. `states` are those that
        it has read already, by owner; there may come more while it goes on.
        """
        return OwnerSearch(self, link, Own(next(self._tickets), committed), {} if states is None else states)

    def limit_exact(self, rows: int) -> None:
        """Score owners of more rows than this through indexes from now on."""
        self.exact_rows = rows
        if self.mirror is not None:
            self.mirror.exact_rows = rows

    def drop(self, owner_ids: Collection[int]) -> None:
        """Forget all rows of these owners: call it when their erasure is committed."""
        self.cache.drop(owner_ids)

    def clear(self) -> None:
        """Forget everything."""
        self.cache.clear()
        self.counts.clear()
        self.totals.clear()

    def close(self) -> None:
        """Forget everything and close the mirror's files."""
        self.clear()
        if self.mirror is not None:
            self.mirror.close()


def local_search(
    data_dir: Path, dimension: int, *, exact_rows: int = EXACT_ROWS, max_bytes: int = MAX_BYTES
) -> SearchIndex:
    """Return the search of the local backend: large owners' vectors are found through a mirror in the data folder."""
    mirror = Mirror(data_dir, dimension, exact_rows=exact_rows)
    return SearchIndex(mirror=mirror, exact_rows=exact_rows, max_bytes=max_bytes)


class OwnerSearch:
    """Candidates by owner in one transaction."""

    def __init__(self, index: SearchIndex, link: Link, own: Own, states: Mapping[int, OwnerState]) -> None:
        self._index = index
        self._link = link
        self._own = own
        self._known = states

    def facts(self, owner: OwnerRow, query: SearchQuery) -> Pool:
        """Return the owner's facts as candidates; only those valid at `as_of` count."""
        found = self._states([owner.id]).get(owner.id)
        state = FactState(-1, -1) if found is None else found.facts
        key = Key("fact", owner.id)
        if self._count(key, state, partial(reading.count_facts, self._link, owner.id)) > self._index.exact_rows:
            return self._large(large.facts_of(owner.id, query.filters), query)
        snapshot = self._index.cache.snapshot(key, state, self._link, lambda: KeptFacts(owner.id), self._own)
        return pools.make("fact", [snapshot], query)

    def similar(self, owner: OwnerRow, vector: Vector, *, limit: int) -> list[tuple[int, float]]:
        """Return the row ids of the owner's active facts nearest to a vector, with their cosine, nearest first."""
        # Expiry is the sweeper's; an active fact that is about to go still is what a new one is compared with.
        always = ItemFilters(now=datetime(1970, 1, 1, tzinfo=UTC))
        pool = self.facts(owner, SearchQuery(terms=(), vector=vector, filters=always, limit=limit))
        order = np.lexsort((pool.row_ids, -pool.cosines))[:limit]
        return [(int(pool.row_ids[n]), float(pool.cosines[n])) for n in order if not np.isnan(pool.cosines[n])]

    def episodes(self, homes: Sequence[OwnerRow], query: SearchQuery, *, session: SessionRow | None) -> Pool:
        """Return turns of these pairs (of one session of theirs) as candidates of one owner key."""
        home_ids = sorted({home.id for home in homes})
        if session is not None:
            if session.home_id not in home_ids:
                return pools.make("episode", [], query)
            home_ids = [session.home_id]
        states = {home_id: found.home for home_id, found in self._states(home_ids).items()}
        if self._turns_count(states) <= self._index.exact_rows:
            snapshots = [self._home(home_id, state) for home_id, state in sorted(states.items())]
            session_id = None if session is None else session.id
            return pools.make("episode", snapshots, query, session_id=session_id)
        if session is not None:
            return self._session(states[session.home_id], session, query)
        return self._large(large.turns_of(home_ids, None, query.filters), query)

    def _states(self, owner_ids: Sequence[int]) -> Mapping[int, OwnerState]:
        """Return the states of owners, read now where they are not known."""
        known = {owner_id: self._known[owner_id] for owner_id in owner_ids if owner_id in self._known}
        missing = [owner_id for owner_id in owner_ids if owner_id not in known]
        return {**known, **reading.states(self._link, missing)} if missing else known

    def _count(self, key: Key, state: S, count: Callable[..., int]) -> int:
        """Return how many rows there are, at most one more than are scored whole; asked once for each state."""
        known = self._index.counts.get(key, state)
        if known is None:
            known = count(upto=self._index.exact_rows + 1)
            if self._own.committed:
                self._index.counts.put(key, state, known)
        return known

    def _turns_count(self, states: Mapping[int, HomeState]) -> int:
        return sum(
            self._count(Key("episode", home_id), state, partial(reading.count_turns, self._link, home_id))
            for home_id, state in states.items()
        )

    def _home(self, home_id: int, state: HomeState) -> Snapshot:
        key = Key("episode", home_id)
        return self._index.cache.snapshot(key, state, self._link, lambda: KeptTurns(home_id), self._own)

    def _session(self, home: HomeState, session: SessionRow, query: SearchQuery) -> Pool:
        """A session of a home pair that is too large to be kept whole."""
        found = reading.session_state(self._link, session.home_id, session.id)
        if found is None:
            return pools.make("episode", [], query)
        state = home.of_session(found.changed)
        key = Key("episode", session.home_id, session.id)
        count = partial(reading.count_session_turns, self._link, session.home_id, session.id)
        # Counted where as many were ever written: those that are past their time are none of them.
        if found.last_seq > self._index.exact_rows and self._count(key, state, count) > self._index.exact_rows:
            return self._large(large.turns_of([session.home_id], session.id, query.filters), query)
        make = partial(KeptTurns, session.home_id, session.id)
        return pools.make("episode", [self._index.cache.snapshot(key, state, self._link, make, self._own)], query)

    def _large(self, corpus: Corpus, query: SearchQuery) -> Pool:
        known = None
        if corpus.tier == "episode":
            known = self._index.totals.get(corpus.name, None)
        totals = large.totals(self._link, corpus, known)
        if corpus.tier == "episode" and self._own.committed:
            self._index.totals.put(corpus.name, None, totals)
        return large.pool(self._link, corpus, query, totals, self._index.vectors)
