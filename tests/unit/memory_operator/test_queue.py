"""The work queue, its backoff and the token bucket, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import time

from memory_operator.pacing import Backoff, TokenBucket
from memory_operator.queue import WorkQueue


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def queue() -> tuple[WorkQueue[str], Clock]:
    clock = Clock()
    return WorkQueue(clock, Backoff(0.5, 120, lambda: 0.5)), clock


def test_a_key_waits_once_however_often_it_is_added() -> None:
    work, _ = queue()
    for _ in range(3):
        work.add("a")
    assert (work.take(), work.take()) == ("a", None)


def test_keys_come_in_the_order_in_which_they_were_added() -> None:
    work, _ = queue()
    for key in "bca":
        work.add(key)
    assert [work.take() for _ in range(3)] == ["b", "c", "a"]


def test_a_key_that_is_added_while_it_runs_runs_again_and_not_beside_itself() -> None:
    work, _ = queue()
    work.add("a")
    assert work.take() == "a"
    work.add("a")
    assert work.take() is None
    work.done("a")
    assert work.take() == "a"


def test_a_key_that_is_added_in_the_background_while_it_runs_runs_again() -> None:
    work, _ = queue()
    work.add("a")
    assert work.take() == "a"
    work.add_in_background("a")
    assert work.take() is None
    work.done("a")
    assert work.take() == "a"


def test_a_delay_makes_a_key_ready_when_it_is_over() -> None:
    work, clock = queue()
    work.add_after("a", 5)
    assert work.take() is None
    assert work.next_due() == 5
    clock.now = 5
    assert work.take() == "a"


def test_the_earlier_of_two_delays_counts() -> None:
    work, clock = queue()
    work.add_after("a", 5)
    work.add_after("a", 2)
    work.add_after("a", 9)
    clock.now = 2
    assert work.take() == "a"
    work.done("a")
    clock.now = 10
    assert work.take() is None


def test_adding_a_key_forgets_its_delay() -> None:
    work, clock = queue()
    work.add_after("a", 5)
    work.add("a")
    assert work.take() == "a"
    work.done("a")
    clock.now = 6
    assert work.take() is None


def test_a_key_that_keeps_failing_waits_longer_up_to_a_limit_and_success_forgets() -> None:
    work, _ = queue()
    assert [work.retry("a") for _ in range(3)] == [0.5, 1.0, 2.0]
    for _ in range(20):
        last = work.retry("a")
    assert last == 120
    work.succeed("a")
    assert work.retry("a") == 0.5


def test_a_retry_waits_at_least_as_long_as_the_server_asks() -> None:
    work, _ = queue()
    assert work.retry("a", at_least=7) == 7


def test_jitter_spreads_the_retries_by_a_fifth() -> None:
    assert Backoff[str](1, 10, lambda: 0.0).next("a") == 0.8
    assert abs(Backoff[str](1, 10, lambda: 1.0).next("a") - 1.2) < 1e-9


async def test_a_worker_that_waits_is_woken_by_a_new_key() -> None:
    work, _ = queue()
    waiting = asyncio.create_task(work.get())
    await asyncio.sleep(0)
    work.add("a")
    assert await asyncio.wait_for(waiting, 1) == "a"


async def _workers(work: WorkQueue[str], count: int) -> list[asyncio.Task[str]]:
    waiting = [asyncio.create_task(work.get()) for _ in range(count)]
    await asyncio.sleep(0)
    return waiting


async def test_each_new_key_wakes_a_worker_of_its_own_and_no_other() -> None:
    work, _ = queue()
    waiting = await _workers(work, 3)
    work.add("a")
    work.add("b")
    await asyncio.sleep(0)
    assert [task.result() if task.done() else None for task in waiting] == ["a", "b", None]
    work.add("c")
    assert await asyncio.wait_for(waiting[2], 1) == "c"


async def test_a_delay_that_ends_wakes_a_worker_that_waits() -> None:
    work = WorkQueue[str](time.monotonic, Backoff(0.5, 120, lambda: 0.5))
    work.add_after("late", 0.05)
    waiting = await _workers(work, 2)
    work.add_after("early", 0.01)
    assert [await asyncio.wait_for(task, 5) for task in waiting] == ["early", "late"]


async def test_one_ring_stands_for_all_delays_that_end_soon_after_the_last() -> None:
    work = WorkQueue[str](time.monotonic, Backoff(0.5, 120, lambda: 0.5))
    work.add_after("a", 0.01)
    assert await asyncio.wait_for(work.get(), 5) == "a"
    waiting = await _workers(work, 2)
    work.add_after("b", 0.001)
    assert work._rings_at >= work._rang_at + 0.1
    work.add_after("c", 0.002)
    assert sorted([await asyncio.wait_for(task, 5) for task in waiting]) == ["b", "c"]


async def test_a_delay_that_is_over_when_the_first_worker_comes_is_not_waited_for() -> None:
    work, clock = queue()
    work.add_after("a", 5)
    clock.now = 5
    assert await asyncio.wait_for(work.get(), 1) == "a"


async def test_a_worker_that_is_cancelled_as_it_is_woken_passes_the_key_on() -> None:
    work, _ = queue()
    first, second = await _workers(work, 2)
    work.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 1) == "a"
    assert first.cancelled()


def test_a_key_waits_from_its_addition_until_it_is_taken() -> None:
    work, _ = queue()
    assert not work.is_waiting("a")
    work.add("a")
    assert work.is_waiting("a")
    work.take()
    assert not work.is_waiting("a")


def test_a_changed_key_goes_before_those_in_the_background_and_they_come_too() -> None:
    work, _ = queue()
    for number in range(3):
        work.add_in_background(f"old-{number}")
    for number in range(20):
        work.add(f"new-{number}")
    taken = [key for _ in range(23) if (key := work.take())]
    assert taken[0] == "new-0"
    assert sorted(taken) == sorted([*(f"old-{n}" for n in range(3)), *(f"new-{n}" for n in range(20))])
    assert [key for key in taken if key.startswith("old")] == ["old-0", "old-1", "old-2"]
    assert taken.index("old-0") < 10, "the background gets a turn"
    assert work.take() is None


def test_a_key_in_the_background_that_changes_is_called_forward_once() -> None:
    work, _ = queue()
    work.add_in_background("a")
    work.add_in_background("b")
    work.add("b")
    work.add_in_background("b")
    assert len(work) == 2
    assert [work.take(), work.take(), work.take()] == ["b", "a", None]


async def test_a_key_in_the_background_wakes_a_worker() -> None:
    work, _ = queue()
    (waiting,) = await _workers(work, 1)
    work.add_in_background("a")
    assert await asyncio.wait_for(waiting, 1) == "a"


def test_the_bucket_gives_a_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(rate=10, burst=2, now=0)
    assert [bucket.reserve(0), bucket.reserve(0)] == [0, 0]
    assert abs(bucket.reserve(0) - 0.1) < 1e-9
    assert abs(bucket.reserve(0) - 0.2) < 1e-9
    assert bucket.reserve(1.2) == 0


def test_delays_that_nobody_waits_for_any_more_do_not_pile_up() -> None:
    work, _ = queue()
    work.add_after("other", 100)
    for _ in range(10_000):
        work.add("a")
        assert work.take() == "a"
        work.done("a")
        work.add_after("a", 60)
    assert len(work._heap) < 200
    assert work.next_due() == 60
    work.add("a")
    assert work.next_due() == 100


def test_keys_that_were_called_forward_leave_nothing_in_the_background() -> None:
    work, _ = queue()
    for _ in range(100):
        for key in "abc":
            work.add_in_background(key)
        for key in "abc":
            work.add(key)
        assert [work.take() for _ in range(3)] == list("abc")
        for key in "abc":
            work.done(key)
    assert len(work._background) == 0
