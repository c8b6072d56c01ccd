"""A wall clock that is set back by hours makes the operator wait for none of them."""

from __future__ import annotations

from datetime import timedelta

from memory_operator.cluster import kinds
from memory_operator.crd.base import ObjectKey
from memory_operator.reconcile.rollouts import Rollouts, UnderWay
from tests.unit.memory_operator.test_io import Reader, run, watched
from tests.unit.memory_operator.world import START, World

BACK = timedelta(hours=6)
CA = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ca", "namespace": "a"}}


async def test_a_store_that_was_just_lost_is_said_to_be_away() -> None:
    world, reader = World(), Reader()
    store, agent, monitor = await watched(world, reader)
    reader.answers = {}
    await run(world, monitor, 20, lambda: world.context.health[store].unreachable_since is not None)
    world.clock.set_back = BACK
    await run(world, monitor, 60, lambda: (world.of_agent(agent, "MemoryDegraded") or ("",))[0] == "True")
    assert (world.of_agent(agent, "MemoryDegraded") or ("",))[0] == "True"
    reads = reader.reads
    await run(world, monitor, 60, lambda: False)
    assert reader.reads - reads < 60, "a silence that counts is not looked at as one in doubt"


async def test_a_changed_authority_is_read() -> None:
    world = World()
    world.cluster.make(kinds.CONFIG_MAP, {**CA, "data": {"ca.crt": "ONE"}})
    await world.ready_store(tls={"secretRef": {"name": "tls"}, "caConfigMapRef": {"name": "ca"}})
    world.agent()
    await world.settle()
    world.clock.set_back = BACK
    world.cluster.edit(kinds.CONFIG_MAP, ObjectKey("a", "ca"), lambda live: live["data"].update({"ca.crt": "TWO"}))
    await world.settle(120)
    assert [text for _, text in world.context.authorities.values()] == ["TWO"]


def test_a_roll_out_that_gets_no_further_keeps_its_place_no_longer() -> None:
    places, stuck, waits = Rollouts(), ObjectKey("a", "stuck"), ObjectKey("a", "waits")
    assert places.may_begin(stuck, UnderWay(), 1, START)
    assert not places.may_begin(waits, UnderWay(), 1, START)
    assert places.may_begin(waits, UnderWay(), 1, START - BACK)
