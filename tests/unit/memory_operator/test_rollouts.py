"""What changes the pods of many stores at once reaches a few of them at a time; what one store's spec asks, at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.cluster.kinds import Kind
from memory_operator.crd.base import ObjectKey
from memory_operator.errors import MemoryOperatorError, Refused, TryLater
from memory_operator.reconcile.rollouts import Rollouts, UnderWay
from tests.unit.memory_operator.world import SETTINGS, START, World, report

STORES = [f"store-{number}" for number in range(6)]
NEXT = "memplane:next"
TEMPLATE = {"spec": {"containers": [{"name": "agent", "image": "localhost/agent"}]}}
REVISION = "deployment.kubernetes.io/revision"


async def upgraded(limit: int = 2) -> World:
    """Ready stores, and a new operator whose stores have another image."""
    world = World(replace(SETTINGS, service_image="memplane:now", rollouts_at_once=limit))
    for name in STORES:
        await world.ready_store(name)
    world.settings = replace(world.settings, service_image=NEXT)
    await world.restart()
    await world.settle()
    return world


def deployment(world: World, store: str) -> Any:
    return world.get(kinds.DEPLOYMENT, names.memory(store))


def image(world: World, store: str) -> str:
    return str(deployment(world, store)["spec"]["template"]["spec"]["containers"][0]["image"])


def newer(world: World) -> list[str]:
    return [name for name in STORES if image(world, name) == NEXT]


def progressing(world: World, stores: Iterable[str]) -> set[tuple[str, str] | None]:
    return {world.of_store(ObjectKey("a", name), "Progressing") for name in stores}


async def end(world: World, store: str) -> None:
    """Have a store's roll-out end."""
    world.pods(names.memory(store), 1)
    await world.settle()


async def test_a_new_operator_rolls_out_a_few_stores_at_a_time_until_all_are_new() -> None:
    world = await upgraded()
    begun: list[str] = []
    while len(begun) < len(STORES):
        rolling = [name for name in newer(world) if name not in begun]
        assert len(rolling) == 2
        assert progressing(world, set(STORES) - set(newer(world))) <= {("False", "RolloutWaiting")}
        for name in rolling:
            await end(world, name)
            begun.append(name)
    assert newer(world) == STORES
    assert progressing(world, STORES) == {("False", "RolloutComplete")}
    assert len(world.context.rollouts) == 0


async def test_a_store_that_waits_keeps_its_pods_and_their_configuration_and_all_else_is_looked_after() -> None:
    world = World(replace(SETTINGS, rollouts_at_once=1))
    for name in STORES[:2]:
        await world.ready_store(name)
    world.settings = replace(world.settings, service_image=NEXT, service_account="another")
    before = {name: world.get(kinds.CONFIG_MAP, names.config(name))["data"] for name in STORES[:2]}
    await world.restart()
    await world.settle()
    (rolling,) = (name for name in STORES[:2] if image(world, name) == NEXT)
    (waiting,) = set(STORES[:2]) - {rolling}
    assert world.get(kinds.CONFIG_MAP, names.config(rolling))["data"] != before[rolling]
    assert world.get(kinds.CONFIG_MAP, names.config(waiting))["data"] == before[waiting]
    world.cluster.remove(kinds.SERVICE, "a", names.memory(waiting))
    world.cluster.remove(kinds.CONFIG_MAP, "a", names.config(waiting))
    await world.settle()
    assert world.find(kinds.SERVICE, names.memory(waiting)) is not None
    assert world.find(kinds.CONFIG_MAP, names.config(waiting)) is not None, "its pods cannot start without"
    world.cluster.remove(kinds.DEPLOYMENT, "a", names.memory(waiting))
    await world.settle()
    assert image(world, waiting) == NEXT, "there are no pods left to disturb"


async def test_a_change_of_a_stores_own_spec_never_waits() -> None:
    world = await upgraded()
    waiting = next(name for name in STORES if name not in newer(world))
    world.store(waiting, shortTerm={"tokenBudget": 2048})
    await world.settle()
    assert image(world, waiting) == NEXT
    assert len(newer(world)) == 3


async def test_a_change_of_a_stores_own_spec_that_had_to_wait_for_its_model_does_not_wait_again() -> None:
    world = await upgraded(limit=1)
    waiting = next(name for name in STORES if name not in newer(world))
    world.store(waiting, models={"summarization": {"modelAPI": "late", "model": "small"}})
    await world.settle()
    assert image(world, waiting) != NEXT, "its configuration cannot be made without the ModelAPI"
    world.put(kinds.MODEL_API, "late", {"baseURL": "http://one/v1"})
    await world.settle()
    assert image(world, waiting) == NEXT


async def test_a_change_of_a_stores_own_spec_that_was_refused_does_not_wait_for_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await upgraded(limit=1)
    waiting = next(name for name in STORES if name not in newer(world))
    with monkeypatch.context() as patch:
        refuse_deployment(world, waiting, patch)
        world.store(waiting, shortTerm={"tokenBudget": 2048})
        await world.settle()
        assert image(world, waiting) != NEXT
    await world.settle(world.settings.refused_seconds)
    assert image(world, waiting) == NEXT


async def test_a_change_of_many_specs_is_rolled_out_at_once() -> None:
    world = await upgraded(limit=1)
    for name in STORES:
        world.store(name, shortTerm={"tokenBudget": 2048})
    await world.settle()
    assert newer(world) == STORES


async def test_new_stores_start_whoever_waits() -> None:
    world = await upgraded()
    await world.ready_store("latest")
    assert image(world, "latest") == NEXT


async def test_a_process_that_takes_over_counts_what_is_rolled_out_already() -> None:
    world = await upgraded()
    first = newer(world)
    await world.restart()
    await world.settle(200)
    assert newer(world) == first
    await end(world, first[0])
    assert len(newer(world)) == 3


async def test_a_roll_out_that_misses_its_deadline_gives_its_place_back() -> None:
    world = await upgraded()
    stuck = newer(world)[0]

    def miss(live: Any) -> None:
        live["status"] |= {
            "observedGeneration": live["metadata"]["generation"],
            "conditions": [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}],
        }

    world.cluster.edit(kinds.DEPLOYMENT, ObjectKey("a", names.memory(stuck)), miss)
    await world.settle()
    assert len(newer(world)) == 3


async def test_a_store_that_is_deleted_while_it_waits_takes_no_place() -> None:
    world = await upgraded(limit=1)
    (first,) = newer(world)
    waiting = [name for name in STORES if name != first]
    for name in waiting[:-1]:
        world.cluster.remove(kinds.MEMORY_STORE, "a", name)
    world.cluster.collect_garbage()
    await world.settle()
    await end(world, first)
    assert image(world, waiting[-1]) == NEXT


async def test_without_a_limit_all_are_rolled_out_at_once() -> None:
    assert newer(await upgraded(limit=0)) == STORES


async def test_deployments_of_a_release_that_knew_no_turns_are_adopted_and_not_rolled() -> None:
    world = World(replace(SETTINGS, rollouts_at_once=1))
    for name in STORES:
        await world.ready_store(name)
        key = ObjectKey("a", names.memory(name))
        world.cluster.edit(kinds.DEPLOYMENT, key, lambda live: live["metadata"].pop("annotations"))
    generations = [deployment(world, name)["metadata"]["generation"] for name in STORES]
    await world.restart()
    await world.settle()
    assert all(names.TEMPLATE_ANNOTATION in deployment(world, name)["metadata"]["annotations"] for name in STORES)
    assert [deployment(world, name)["metadata"]["generation"] for name in STORES] == generations
    assert len(world.context.rollouts) == 0


@pytest.mark.parametrize("reason", ["NewReplicaSetCreated", "FoundNewReplicaSet", "ReplicaSetUpdated"])
async def test_a_store_is_rolled_out_until_the_cluster_says_that_it_has_ended(reason: str) -> None:
    world = await upgraded(limit=1)
    (first,) = newer(world)
    world.pods(names.memory(first), 0)
    key = ObjectKey("a", names.memory(first))
    progress = {"type": "Progressing", "status": "True", "reason": reason}
    world.cluster.edit(kinds.DEPLOYMENT, key, lambda live: live["status"].update(conditions=[progress]))
    await world.settle(100)
    assert newer(world) == [first]
    await end(world, first)
    assert len(newer(world)) == 2


async def status_of(world: World, store: str, status: dict[str, Any], revision: str = "2") -> None:
    """Have the Deployment controller say this of a store's newest template."""

    def say(live: Any) -> None:
        live["metadata"]["annotations"] |= {REVISION: revision}
        live["status"] = {"observedGeneration": live["metadata"]["generation"], **status}

    world.cluster.edit(kinds.DEPLOYMENT, ObjectKey("a", names.memory(store)), say)
    await world.settle()


COMPLETE = [
    {"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable"},
    {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
]
"""What is still said of the template before, while the one pod ends; and of a way back, until it has ended."""


async def test_a_store_whose_old_pod_takes_its_time_to_end_has_its_place_until_the_new_one_serves() -> None:
    world = await upgraded(limit=1)
    (first,) = newer(world)
    await status_of(world, first, {"replicas": 1, "conditions": COMPLETE})
    assert newer(world) == [first], "the old pod ends"
    await status_of(world, first, {"conditions": COMPLETE})
    assert newer(world) == [first], "there is no pod"
    await status_of(world, first, {"replicas": 1, "updatedReplicas": 1, "conditions": COMPLETE})
    await world.settle(100)
    assert newer(world) == [first], "the new pod starts"
    await end(world, first)
    assert len(newer(world)) == 2


async def test_a_way_back_takes_turns_as_the_way_there() -> None:
    world = await upgraded(limit=1)
    for _ in STORES:
        for name in newer(world):
            await end(world, name)
    assert newer(world) == STORES
    for name in STORES:
        await end(world, name)
    world.settings = replace(world.settings, service_image="memplane:now")
    await world.restart()
    await world.settle()
    (first,) = set(STORES) - set(newer(world))
    await status_of(world, first, {"conditions": COMPLETE})
    await world.settle(100)
    assert set(STORES) - set(newer(world)) == {first}
    await end(world, first)
    assert len(newer(world)) == len(STORES) - 2


async def test_a_process_that_takes_over_counts_a_store_whose_old_pod_has_not_ended() -> None:
    world = await upgraded(limit=1)
    (first,) = newer(world)
    await status_of(world, first, {"replicas": 1, "conditions": COMPLETE})
    await world.restart()
    await world.settle(100)
    assert newer(world) == [first]


async def test_pods_that_never_come_give_the_place_back_after_ten_minutes() -> None:
    world = await upgraded(limit=1)
    (first,) = newer(world)
    await status_of(world, first, {"conditions": COMPLETE})
    await world.restart()
    await world.settle(590)
    assert newer(world) == [first]
    await world.settle(80)
    assert len(newer(world)) == 2


def refuse_deployment(
    world: World, store: str, patch: pytest.MonkeyPatch, error: type[MemoryOperatorError] = Refused
) -> None:
    """Have the API server refuse a store's Deployment."""
    apply = world.cluster.apply

    async def refuse(kind: Kind, manifest: dict[str, Any]) -> Any:
        if kind == kinds.DEPLOYMENT and manifest["metadata"]["name"] == names.memory(store):
            raise error("a policy forbids it")
        return await apply(kind, manifest)

    patch.setattr(world.cluster, "apply", refuse)


@pytest.mark.parametrize("error", [Refused, TryLater])
async def test_a_deployment_that_cannot_be_written_takes_no_place(
    error: type[MemoryOperatorError], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(replace(SETTINGS, service_image="memplane:now", rollouts_at_once=1))
    for name in STORES:
        await world.ready_store(name)
    refuse_deployment(world, STORES[0], monkeypatch, error)
    world.pods(names.memory(STORES[0]), 0)
    world.settings = replace(world.settings, service_image=NEXT)
    await world.restart()
    await world.settle(100)
    assert len(newer(world)) == 1


async def test_a_store_that_is_deleted_while_it_is_rolled_out_makes_room_at_once() -> None:
    world = await upgraded(limit=1)
    (first,) = newer(world)
    gauge = "memplane_operator_rollouts_waiting"
    assert world.context.metrics.registry.get_sample_value(gauge) == len(STORES) - 1
    world.cluster.remove(kinds.MEMORY_STORE, "a", first)
    world.cluster.collect_garbage()
    await world.settle()
    left = [name for name in STORES if name != first]
    assert [image(world, name) for name in left].count(NEXT) == 1
    assert world.context.metrics.registry.get_sample_value(gauge) == len(left) - 1


async def test_an_agents_deployment_takes_no_stores_place() -> None:
    world = await upgraded(limit=1)
    (first,) = newer(world)
    await world.restart()
    await world.settle()
    world.agent(first, memoryStore=first, agent={"template": TEMPLATE})
    await world.settle()
    world.says(ObjectKey("a", first), report(world.context.ledger.revision(ObjectKey("a", first)) or ""))
    await world.settle()
    assert world.find(kinds.DEPLOYMENT, first) is not None
    world.pods(first, 1)
    await world.settle(100)
    assert newer(world) == [first]


async def test_stores_that_come_for_the_first_time_leave_the_places_to_those_that_wait() -> None:
    world = await upgraded(limit=1)
    (first,) = newer(world)
    for name in ("new", "newer"):
        world.store(name)
        await world.settle()
        starting = [{"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}]
        await status_of(world, name, {"replicas": 1, "updatedReplicas": 1, "conditions": starting}, "1")
    await end(world, first)
    assert len(newer(world)) == 2


def keys(*stores: str) -> list[ObjectKey]:
    return [ObjectKey("a", name) for name in stores]


def test_a_store_that_is_about_to_begin_has_a_place_before_the_cluster_shows_it() -> None:
    one, two, three = keys("one", "two", "three")
    rollouts = Rollouts()
    assert rollouts.may_begin(one, UnderWay(), 2, START)
    assert rollouts.may_begin(one, UnderWay(), 2, START), "it is asked again after a failure"
    assert not rollouts.may_begin(two, UnderWay([three]), 2, START)
    rollouts.end(one)
    assert rollouts.woken(UnderWay([three]), 2, START) == [two]
    assert rollouts.woken(UnderWay(), 2, START) == []


def test_who_waits_longest_is_woken_first_and_no_more_than_there_are_places() -> None:
    one, two, three, four = keys("one", "two", "three", "four")
    rollouts = Rollouts()
    for store in (three, one, two):
        assert not rollouts.may_begin(store, UnderWay([four]), 1, START)
    assert rollouts.woken(UnderWay([four]), 1, START) == []
    assert rollouts.woken(UnderWay(), 2, START) == [three, one]
    assert rollouts.woken(UnderWay(), 2, START) == [two]
