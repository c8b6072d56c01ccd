"""The operator keeps nothing of what is gone, however much comes and goes."""

from __future__ import annotations

from tests.unit.memory_operator.soak import Soak


async def test_nothing_of_an_object_that_is_gone_is_kept() -> None:
    soak = Soak()
    await soak.round(1)
    assert soak.events > 100
    assert soak.traces() == []


async def test_what_is_kept_does_not_grow_with_what_has_come_and_gone() -> None:
    soak = Soak()
    await soak.round(1)
    before = soak.kept()
    for number in range(2, 6):
        await soak.round(number)
    assert soak.kept() == before
