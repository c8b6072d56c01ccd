"""What is kept between searches stays under its bound, however many owners are searched."""

from __future__ import annotations

import tracemalloc
from datetime import timedelta
from typing import Any, cast

import numpy as np

from memory_service.storage.search.cache import Cache, Key, Own
from memory_service.storage.search.columns import Rows
from memory_service.storage.search.kept import Kept, KeptTurns
from memory_service.storage.statements import Link
from memory_service.storage.states import HomeState

_STATE = HomeState(0, 0, 1, (2, 0, 0))
_NO_LINK = cast("Link", None)


class _OneTurn(KeptTurns):
    """A home pair that has one turn."""

    def _load(self, link: Link, state: HomeState) -> None:
        one = np.ones(1, np.int64)
        rows = Rows(one, one, one, np.zeros(1, np.int8), one, np.full(1, 3, np.int32))
        self.index.append(rows, ["green tea pot"], np.zeros(1, np.int64), np.ones((1, 64), np.float32))


class _Nothing(KeptTurns):
    """A home pair without turns; it counts how often it was read."""

    reads = 0

    def _load(self, link: Link, state: HomeState) -> None:
        _Nothing.reads += 1


def _search(cache: Cache, owner_id: int, kind: type[KeptTurns] = _OneTurn, state: HomeState = _STATE) -> Any:
    def make() -> Kept[HomeState]:
        return kind(owner_id)

    return cache.snapshot(Key("episode", owner_id), state, _NO_LINK, make, Own(ticket=1, committed=True))


def _cache(max_bytes: int = 10**9) -> Cache:
    return Cache(max_bytes=max_bytes, idle=timedelta(minutes=15), monotonic=lambda: 0.0)


def test_an_owner_of_one_turn_counts_for_what_it_takes() -> None:
    cache = _cache()
    tracemalloc.start()
    try:
        _search(cache, 0)
        before, _ = tracemalloc.get_traced_memory()
        for owner_id in range(1, 301):
            _search(cache, owner_id)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.5 * cache.nbytes < taken < cache.nbytes


def test_the_bound_holds_for_many_small_owners() -> None:
    cache = _cache(max_bytes=200_000)
    for owner_id in range(100):
        _search(cache, owner_id)
    assert 100_000 < cache.nbytes <= 200_000
    assert Key("episode", 99) in cache
    assert Key("episode", 0) not in cache


def test_an_owner_without_rows_takes_no_room_and_is_read_once_for_each_state() -> None:
    cache = _cache()
    _Nothing.reads = 0
    assert [len(_search(cache, 1, _Nothing)) for _ in range(3)] == [0, 0, 0]
    assert (cache.nbytes, _Nothing.reads) == (0, 1)
    assert Key("episode", 1) not in cache
    assert len(_search(cache, 1, _OneTurn, HomeState(0, 0, 2, (3, 0, 0)))) == 1
    assert Key("episode", 1) in cache
