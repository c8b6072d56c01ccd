"""A thread that waits for coroutines ends when its caller leaves."""

from __future__ import annotations

import asyncio

import pytest

from memory_service.engines.bridge import Abandoned, Bridge


async def test_a_thread_gets_a_coroutines_result() -> None:
    bridge = Bridge(asyncio.get_running_loop())

    async def answer() -> int:
        return 42

    assert await asyncio.to_thread(bridge.wait_for, answer) == 42
    assert bridge.failure is None


async def test_the_first_failure_is_kept_for_libraries_that_swallow_it() -> None:
    bridge = Bridge(asyncio.get_running_loop())

    async def fail() -> None:
        raise LookupError("first")

    with pytest.raises(LookupError):
        await asyncio.to_thread(bridge.wait_for, fail)
    assert isinstance(bridge.failure, LookupError)


async def test_a_waiting_thread_is_let_go_when_the_caller_leaves_and_gets_nothing_more() -> None:
    bridge = Bridge(asyncio.get_running_loop())
    started = asyncio.Event()

    async def forever() -> None:
        started.set()
        await asyncio.Event().wait()

    waiting = asyncio.create_task(asyncio.to_thread(bridge.wait_for, forever))
    await started.wait()
    bridge.abandon()
    with pytest.raises(Abandoned):
        await waiting
    with pytest.raises(Abandoned):
        await asyncio.to_thread(bridge.wait_for, forever)
