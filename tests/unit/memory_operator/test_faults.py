"""Whatever stops or lies in between, the end state is that of a run without faults."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from memory_operator.cluster import kinds
from memory_operator.cluster.client import Listing
from memory_operator.crd.base import ObjectKey
from memory_operator.errors import ClusterUnavailable, Conflict, Throttled
from memory_operator.reconcile.controller import LISTS_AT_ONCE, resync
from tests.unit.memory_operator.world import Killed, World

TEMPLATE: dict[str, Any] = {
    "template": {"spec": {"containers": [{"name": "a", "image": "x", "ports": [{"containerPort": 8000}]}]}}
}
EXTERNAL: dict[str, Any] = {"storage": {"type": "external", "external": {"connectionSecretRef": {"name": "db"}}}}


async def _appears(world: World) -> None:
    """A store and two agents are applied, become ready, and the store shrinks to one pod."""
    world.store(**EXTERNAL)
    world.agent(agent=TEMPLATE)
    world.agent("plain", tools="all")
    await world.settle()


async def _becomes_ready(world: World) -> None:
    if world.find(kinds.DEPLOYMENT, "notes-memory") is not None:
        await world.make_ready(ObjectKey("a", "notes"))
        if world.find(kinds.DEPLOYMENT, "helper") is not None:
            world.pods("helper", 1)
    await world.settle()


async def _changes(world: World) -> None:
    world.store(**EXTERNAL, replicas=1, shortTerm={"tokenBudget": 50})
    world.cluster.remove(kinds.AGENT_MEMORY, "a", "plain")
    world.cluster.collect_garbage()
    await world.settle(1)


STEPS: tuple[Callable[[World], Awaitable[None]], ...] = (_appears, _becomes_ready, _becomes_ready, _changes)


async def _finish(world: World) -> dict[str, Any]:
    """Bring everything to rest as a healthy cluster would, and return what is there."""
    for _ in range(3):
        await _becomes_ready(world)
        await world.settle(20)
    return world.cluster.dump()


async def _fault_free() -> tuple[dict[str, Any], int]:
    world = World()
    for step in STEPS:
        await step(world)
    writes = len(world.cluster.writes)
    return await _finish(world), writes


async def _run_killed(at: int, moment: str) -> World:
    """Run with a process that ends before or after its write number `at`, then with a new one."""
    world = World()
    killed = False

    def kill(number: int) -> None:
        nonlocal killed
        if number == at and not killed:
            killed = True
            raise Killed

    setattr(world.cluster, f"{moment}_write", kill)
    for step in STEPS:
        try:
            await step(world)
        except Killed:
            await world.restart()
            try:
                await step(world)
            except Conflict:
                await world.settle()
    return world


async def test_a_process_killed_at_any_write_leaves_work_that_the_next_one_finishes() -> None:
    wanted, writes = await _fault_free()
    assert writes > 25
    for at in range(writes):
        for moment in ("before", "after"):
            world = await _run_killed(at, moment)
            assert await _finish(world) == wanted, f"killed {moment} write {at}"


async def _with_faults(seed: int, share: float) -> World:
    """Run on an API server that fails before or after this share of the writes."""
    chance = random.Random(seed)
    world = World()

    def fail(number: int) -> None:
        if chance.random() < share:
            raise chance.choice([ClusterUnavailable("500"), Throttled("429", 1.0), Conflict("409")])

    world.cluster.before_write = fail
    world.cluster.after_write = lambda number: (
        fail(number) if chance.random() < 0.5 else None  # the write is done and its answer is lost
    )
    for step in STEPS:
        await step(world)
        await world.settle(300)
    world.cluster.before_write = world.cluster.after_write = lambda number: None
    await world.settle(300)
    return world


@pytest.mark.parametrize("seed", range(5))
async def test_an_api_server_that_fails_a_third_of_the_writes_only_delays(seed: int) -> None:
    wanted, _ = await _fault_free()
    assert await _finish(await _with_faults(seed, 0.3)) == wanted


async def test_each_event_that_is_dropped_is_made_up_for_by_a_resync() -> None:
    wanted, _ = await _fault_free()
    total = 0

    def count(kind: Any, event: str, body: Any) -> bool:
        nonlocal total
        total += 1
        return True

    world = World()
    world.filter = count
    for step in STEPS:
        await step(world)
    for dropped in range(0, total, 3):
        seen = 0

        def drop(kind: Any, event: str, body: Any, dropped: int = dropped) -> bool:
            nonlocal seen
            seen += 1
            return seen - 1 != dropped

        world = World()
        world.filter = drop
        for step in STEPS:
            await step(world)
        await _resync(world)
        assert await _finish(world) == wanted, f"event {dropped} was lost"


async def _resync(world: World) -> None:
    await resync(world.context)
    await world.settle()


async def test_an_object_that_vanished_unseen_is_a_ghost_until_the_resync() -> None:
    world = World()
    store = await world.ready_store()
    world.filter = lambda kind, event, body: event != "DELETED"
    world.cluster.remove(kinds.MEMORY_STORE, "a", "notes")
    world.cluster.collect_garbage()
    await world.settle(5)
    assert world.context.cache.body(kinds.MEMORY_STORE, store) is not None
    await _resync(world)
    assert world.context.cache.body(kinds.MEMORY_STORE, store) is None
    assert world.find(kinds.DEPLOYMENT, "notes-memory") is None


@pytest.mark.parametrize(("lists_at_once", "most"), [(1, 1), (LISTS_AT_ONCE, LISTS_AT_ONCE)])
async def test_a_resync_holds_one_page_and_a_new_leader_some(
    lists_at_once: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    await world.ready_store()
    open_pages, seen = 0, 0
    pages = world.cluster.pages

    async def counted(*place: Any) -> AsyncIterator[Listing]:
        nonlocal open_pages, seen
        open_pages += 1
        seen = max(seen, open_pages)
        await asyncio.sleep(0)
        async for page in pages(*place):
            yield page
        open_pages -= 1

    monkeypatch.setattr(world.cluster, "pages", counted)
    await resync(world.context, lists_at_once)
    assert seen == most


async def test_what_many_objects_say_in_the_same_words_is_kept_once() -> None:
    world = World()
    await world.ready_store()
    keys = [world.agent(name, tools="all") for name in ("one", "two")]
    await world.settle(60)
    for key in keys:
        again = json.loads(json.dumps(world.get(kinds.AGENT_MEMORY, key.name)))
        again["metadata"]["resourceVersion"] = "100000"
        world.context.cache.put(kinds.AGENT_MEMORY, again)
    one, two = (world.context.cache.body(kinds.AGENT_MEMORY, key) or {} for key in keys)
    assert one["status"]["conditions"] == two["status"]["conditions"]
    assert all(a is b for a, b in zip(one["status"]["conditions"], two["status"]["conditions"], strict=True))
    assert one["spec"]["memoryStore"] is two["spec"]["memoryStore"]
    found = [world.context.cache.child(kinds.CONFIG_MAP, ObjectKey("a", f"{name}-memory")) for name in ("one", "two")]
    assert len({id(child.key.namespace) for child in found if child is not None}) == 1


async def test_events_that_arrive_twice_or_late_change_nothing() -> None:
    wanted, _ = await _fault_free()
    world = World()
    replay: list[Any] = []
    world.filter = lambda kind, event, body: bool(replay.append((kind, event, body))) or True
    for step in STEPS:
        await step(world)
    await _finish(world)
    stale = [item for item in replay if item[1] != "DELETED"]
    gone = {(kind.name, body["metadata"]["uid"]) for kind, event, body in replay if event == "DELETED"}
    world.events += [item for item in stale if (item[0].name, item[2]["metadata"]["uid"]) not in gone]
    await world.settle(30)
    assert await _finish(world) == wanted


async def test_a_poisoned_object_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from memory_operator.reconcile import store as module

    world = World()
    parse = module.memory_store.parse

    def poisoned(body: Any) -> Any:
        if body["metadata"]["name"] == "bad":
            raise ZeroDivisionError
        return parse(body)

    monkeypatch.setattr(module.memory_store, "parse", poisoned)
    world.store("bad")
    await world.ready_store("good")
    assert world.of_store(ObjectKey("a", "good"), "Ready") == ("True", "Available")
    before = world.clock.seconds
    await world.settle(600)
    failures = world.context.queue.failures(_key("bad"))
    assert 5 < failures < 20, f"it backs off: {failures} tries in {world.clock.seconds - before} s"


def _key(name: str) -> Any:
    from memory_operator.cluster.keys import ReconcileKey

    return ReconcileKey("MemoryStore", ObjectKey("a", name))


async def test_a_rival_that_edits_without_end_is_answered_each_time_and_no_more() -> None:
    world = World()
    await world.ready_store()
    key = ObjectKey("a", "notes-memory")
    writes = len(world.cluster.writes)
    for number in range(20):
        world.cluster.edit(kinds.SERVICE, key, lambda live, n=number: live["spec"].update(type=f"T{n}"))
        await world.settle()
    assert world.writes_since(writes) == [("apply", "Service", "notes-memory")] * 20
    assert world.get(kinds.SERVICE, "notes-memory")["spec"]["type"] == "ClusterIP"
