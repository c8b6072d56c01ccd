"""A bell lets one idle task look at a time."""

from __future__ import annotations

import asyncio

from memory_service.worker.bell import Bell


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_ring_is_heard_by_one_task() -> None:
    bell, heard = Bell(), list[int]()

    async def listen(number: int) -> None:
        await bell.heard()
        heard.append(number)

    async with asyncio.TaskGroup() as listeners:
        for number in range(3):
            listeners.create_task(listen(number))
        await settle()
        assert heard == []
        for count in (1, 2, 3):
            bell.ring()
            await settle()
            assert len(heard) == count


async def test_rings_that_nobody_heard_are_one() -> None:
    bell = Bell()
    for _ in range(5):
        bell.ring()
    await bell.heard()
    again = asyncio.create_task(bell.heard())
    await settle()
    assert not again.done()
    bell.ring()
    await again
