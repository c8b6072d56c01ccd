"""The vectors of recent queries are kept for a moment, and not past an erasure."""

from __future__ import annotations

from datetime import timedelta

import numpy as np

from memory_service.providers.query_cache import QueryCache

VECTOR = np.array([1.0, 0.0], dtype=np.float32)


def test_a_query_is_known_until_its_time_is_over() -> None:
    now = [0.0]
    cache = QueryCache(kept_for=timedelta(seconds=10), monotonic=lambda: now[0])
    cache.put("where is Rex?", VECTOR, generation=cache.generation)
    now[0] = 10.0
    assert cache.get("where is Rex?") is VECTOR
    now[0] = 10.1
    assert cache.get("where is Rex?") is None


def test_the_query_that_was_not_asked_for_longest_is_dropped_first() -> None:
    cache = QueryCache(max_queries=2)
    for text in ("a", "b"):
        cache.put(text, VECTOR, generation=0)
    cache.get("a")
    cache.put("c", VECTOR, generation=0)
    assert cache.get("b") is None
    assert cache.get("a") is VECTOR


def test_a_vector_asked_for_before_an_erasure_is_not_kept_after_it() -> None:
    cache = QueryCache()
    before = cache.generation
    cache.clear()
    cache.put("the secret", VECTOR, generation=before)
    assert cache.get("the secret") is None


def test_the_cache_holds_no_text() -> None:
    cache = QueryCache()
    cache.put("the secret", VECTOR, generation=0)
    assert "secret" not in repr(vars(cache))
