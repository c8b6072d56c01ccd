"""The kept index of an owner says how much memory it takes, so that the bound on all of them holds."""

from __future__ import annotations

import sys

from memory_service.storage.search.columns import Labels


def _held(sets: list[frozenset[str]], names: list[str]) -> int:
    return sum(sys.getsizeof(tags) + sum(map(sys.getsizeof, tags)) for tags in sets) + sum(map(sys.getsizeof, names))


def test_labels_count_the_text_of_tags_and_categories() -> None:
    sets = [frozenset(f"{number}-{place}-" + "t" * 60 for place in range(32)) for number in range(200)]
    names = [f"category {number} " + "c" * 60 for number in range(200)]
    labels = Labels()
    for tags, name in zip(sets, names, strict=True):
        labels.tag_set(tags)
        labels.category(name)
    held = _held(sets, names)
    assert held <= labels.nbytes < 4 * held
    assert labels.copy().nbytes == labels.nbytes


def test_labels_that_are_known_cost_nothing_more() -> None:
    labels = Labels()
    first = labels.tag_set(frozenset({"diet", "home"})), labels.category("food")
    before = labels.nbytes
    assert (labels.tag_set(frozenset({"home", "diet"})), labels.category("food")) == first
    assert labels.category(None) == 0
    assert labels.nbytes == before
