"""Every case of an AgentMemory, from applying it to what its status says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.cluster.keys import ReconcileKey
from memory_operator.cluster.kinds import Kind
from memory_operator.crd.base import ObjectKey
from memory_operator.errors import Forbidden
from memory_operator.handlers.watches import take
from memory_operator.reconcile.controller import work_once
from memory_service.client import binding
from tests.unit.memory_operator.world import SETTINGS, World, report

TEMPLATE: dict[str, Any] = {"template": {"spec": {"containers": [{"name": "agent", "image": "agent:1"}]}}}
DEGRADED = "MemoryDegraded"


@pytest.fixture
def world() -> World:
    return World()


def template(world: World, name: str = "helper") -> Any:
    return world.get(kinds.DEPLOYMENT, name)["spec"]["template"]


async def running(world: World, **spec: Any) -> tuple[ObjectKey, ObjectKey]:
    """A ready store and a bound, running agent."""
    store = await world.ready_store()
    agent = world.agent(agent=TEMPLATE, **spec)
    await world.settle()
    await world.make_ready(store)
    world.pods("helper", 1)
    await world.settle(10)
    assert world.of_agent(agent, "Ready") == ("True", "Bound")
    assert world.of_agent(agent, DEGRADED) == ("False", "MemoryHealthy")
    return store, agent


async def test_local_memory_is_never_degraded(world: World) -> None:
    agent = world.put(kinds.AGENT_MEMORY, "alone", {"type": "local"})
    await world.settle()
    assert world.of_agent(agent, "Ready") == ("True", "LocalMemory")
    assert world.of_agent(agent, DEGRADED) == ("False", "LocalMemory")
    assert world.find(kinds.CONFIG_MAP, "alone-memory") is None


async def test_an_agent_that_the_operator_runs_says_how_many_pods_there_are_and_by_which_labels(world: World) -> None:
    await running(world)
    status = world.get(kinds.AGENT_MEMORY, "helper")["status"]
    assert (status["replicas"], status["selector"]) == (1, "memplane.dev/agent=helper")
    world.agent("bound")
    await world.settle(60)
    assert not {"replicas", "selector"} & set(world.get(kinds.AGENT_MEMORY, "bound")["status"])


async def test_first_creation_waits_for_a_missing_store(world: World) -> None:
    agent = world.agent(agent=TEMPLATE)
    await world.settle()
    assert world.of_agent(agent, "Ready") == ("False", "WaitingForStore")
    assert world.of_agent(agent, "StoreResolved") == ("False", "StoreNotFound")
    assert world.find(kinds.DEPLOYMENT, "helper") is None


async def test_first_creation_waits_for_a_store_that_is_not_ready(world: World) -> None:
    world.store()
    agent = world.agent(agent=TEMPLATE)
    await world.settle()
    assert world.of_agent(agent, "Ready") == ("False", "WaitingForStore")
    assert world.find(kinds.DEPLOYMENT, "helper") is None


async def test_a_store_that_becomes_ready_wakes_the_waiting_agent(world: World) -> None:
    agent = world.agent(agent=TEMPLATE)
    await world.settle()
    store = await world.ready_store()
    assert world.find(kinds.DEPLOYMENT, "helper") is not None
    world.pods("helper", 1)
    await world.make_ready(store)
    await world.settle(10)
    assert world.of_agent(agent, "Ready") == ("True", "Bound")
    assert world.of_agent(agent, DEGRADED) == ("False", "MemoryHealthy")


async def test_an_agent_that_need_not_wait_starts_degraded(world: World) -> None:
    agent = world.agent(agent=TEMPLATE, waitForDependencies=False)
    await world.settle()
    assert world.of_agent(agent, DEGRADED) == ("True", "StoreNotFound")
    world.pods("helper", 1)
    await world.settle()
    assert world.of_agent(agent, "Ready") == ("True", "Bound")


@pytest.mark.parametrize("end", ["deleted", "scaled to zero", "crashed", "storage down", "silent"])
async def test_a_store_that_goes_leaves_the_agent_ready_and_its_pods_untouched(world: World, end: str) -> None:
    store, agent = await running(world)
    before, writes = template(world), len(world.cluster.writes)
    reason = "StoreNotReady"
    match end:
        case "deleted":
            world.cluster.remove(kinds.MEMORY_STORE, "a", "notes")
            world.cluster.collect_garbage()
            reason = "StoreNotFound"
        case "scaled to zero":
            world.store(replicas=0)
        case "crashed":
            world.pods("notes-memory", 0)
        case "storage down":
            world.pods("notes-memory", 0)
            world.says(store, report(ready=False, failing={"storage": "StorageUnreachable"}))  # type: ignore[dict-item]
        case _:
            world.says(store, unreachable=True)
            reason = "StoreUnreachable"
    await world.settle(14)
    assert world.of_agent(agent, DEGRADED) == ("True", reason)
    assert world.of_agent(agent, "Ready") == ("True", "Bound")
    assert template(world) == before
    written = [write for write in world.writes_since(writes) if write[2] == "helper"]
    assert written == [("status", "AgentMemory", "helper")], "one outage is one write for each agent"


async def test_a_store_that_comes_back_clears_the_degradation(world: World) -> None:
    store, agent = await running(world)
    before = template(world)
    world.pods("notes-memory", 0)
    await world.settle(10)
    assert world.of_agent(agent, DEGRADED) == ("True", "StoreNotReady")
    await world.make_ready(store)
    await world.settle(10)
    assert world.of_agent(agent, DEGRADED) == ("False", "MemoryHealthy")
    assert template(world) == before


async def test_an_outage_posts_an_event_for_the_store_and_none_for_its_agents(world: World) -> None:
    store = world.store()
    agents = [world.agent(f"helper-{number}") for number in range(30)]
    await world.settle()
    await world.make_ready(store)
    await world.settle(10)
    start = len(world.cluster.writes)
    world.pods("notes-memory", 0)
    await world.settle(20)
    assert {world.of_agent(agent, DEGRADED) for agent in agents} == {("True", "StoreNotReady")}
    written = world.writes_since(start)
    assert [kind for _, kind, _ in written].count("Event") == 1
    assert sorted(name for _, kind, name in written if kind == "AgentMemory") == sorted(key.name for key in agents)


async def test_a_store_that_comes_back_by_way_of_unknown_is_one_write_for_each_agent(world: World) -> None:
    store, agent = await running(world)
    world.pods("notes-memory", 0)
    await world.settle(20)
    start = len(world.cluster.writes)
    world.pods("notes-memory", 1)
    world.says(store)
    await world.settle(1)
    assert world.of_store(store, "Ready") == ("Unknown", "HealthUnknown")
    assert world.of_agent(agent, DEGRADED) == ("True", "StoreNotReady")
    await world.make_ready(store)
    await world.settle(10)
    assert world.of_agent(agent, DEGRADED) == ("False", "MemoryHealthy")
    written = [write for write in world.writes_since(start) if write[1:] == ("AgentMemory", "helper")]
    assert written == [("status", "AgentMemory", "helper")]


async def test_a_store_that_is_scaled_up_again_is_one_write_for_each_agent(world: World) -> None:
    store, agent = await running(world)
    world.store(replicas=0)
    world.pods("notes-memory", 0)
    await world.settle(20)
    assert world.of_store(store, "Ready") == ("False", "ScaledToZero")
    start = len(world.cluster.writes)
    world.store(replicas=1)
    await world.settle()
    world.pods("notes-memory", 0)
    await world.settle(3)
    assert world.of_store(store, "Ready") == ("False", "Starting")
    await world.make_ready(store)
    await world.settle(10)
    assert world.of_agent(agent, DEGRADED) == ("False", "MemoryHealthy")
    written = [write for write in world.writes_since(start) if write[1:] == ("AgentMemory", "helper")]
    assert written == [("status", "AgentMemory", "helper")]


async def test_a_store_that_is_made_again_is_found_again(world: World) -> None:
    _, agent = await running(world)
    before = template(world)
    world.cluster.remove(kinds.MEMORY_STORE, "a", "notes")
    world.cluster.collect_garbage()
    await world.settle(10)
    assert world.of_agent(agent, DEGRADED) == ("True", "StoreNotFound")
    await world.ready_store()
    await world.settle(10)
    assert world.of_agent(agent, DEGRADED) == ("False", "MemoryHealthy")
    assert template(world) == before


async def test_a_flicker_of_the_store_writes_nothing_to_its_agents(world: World) -> None:
    store, _ = await running(world)
    writes = len(world.cluster.writes)
    world.pods("notes-memory", 0)
    await world.settle(2)
    await world.make_ready(store)
    await world.settle(20)
    assert [write for write in world.writes_since(writes) if write[1] == "AgentMemory"] == []


async def test_a_store_that_turns_tls_on_changes_the_folder_and_not_the_pods(world: World) -> None:
    store, _ = await running(world)
    before = template(world)
    world.store(tls={"secretRef": {"name": "tls"}, "caBundle": "PEM"})
    await world.settle()
    data = world.get(kinds.CONFIG_MAP, "helper-memory")["data"]
    assert json.loads(data["binding.json"])["endpoint"] == "https://notes-memory.a.svc.cluster.local:8800"
    assert data["ca.crt"] == "PEM"
    assert template(world) == before
    world.cluster.remove(kinds.MEMORY_STORE, "a", store.name)
    world.cluster.collect_garbage()
    await world.settle(10)
    assert template(world) == before


async def test_another_default_failure_mode_of_the_store_restarts_neither_agent_nor_store(world: World) -> None:
    await running(world)
    before, store_before = template(world), template(world, "notes-memory")
    world.store(defaultFailureMode="strict")
    await world.settle()
    binding = json.loads(world.get(kinds.CONFIG_MAP, "helper-memory")["data"]["binding.json"])
    assert binding["failureMode"] == "strict"
    assert template(world) == before
    assert template(world, "notes-memory") == store_before


async def test_an_invalid_spec_names_the_field_and_never_its_value(world: World) -> None:
    agent = world.agent(type="local", scope="sec-ret")
    await world.settle()
    assert world.of_agent(agent, "Accepted") == ("False", "InvalidSpec")
    message = json.dumps(world.get(kinds.AGENT_MEMORY, "helper")["status"])
    assert "spec.scope" in message
    assert "sec-ret" not in message


async def test_a_store_must_allow_another_namespace(world: World) -> None:
    await world.ready_store()
    agent = world.agent(namespace="b", memoryStoreNamespace="a")
    await world.settle()
    assert world.of_agent(agent, "Accepted") == ("False", "StoreNotAllowed")
    assert world.get(kinds.CONFIG_MAP, "notes-bindings-0").get("data") is None
    world.store(access={"allowedNamespaces": {"names": ["b"]}})
    await world.settle()
    assert world.of_agent(agent, "Accepted") == ("True", "Accepted")
    assert list(world.get(kinds.CONFIG_MAP, "notes-bindings-0")["data"]) == ["b.helper.json"]


async def test_a_namespace_may_be_allowed_by_its_labels(world: World) -> None:
    await world.ready_store(access={"allowedNamespaces": {"selector": {"matchLabels": {"team": "x"}}}})
    namespace = world.cluster.make(kinds.NAMESPACE, {"metadata": {"name": "b"}})
    agent = world.agent(namespace="b", memoryStoreNamespace="a")
    await world.settle()
    assert world.of_agent(agent, "Accepted") == ("False", "StoreNotAllowed")
    key = ObjectKey("", namespace["metadata"]["name"])
    world.cluster.edit(kinds.NAMESPACE, key, lambda live: live["metadata"].update(labels={"team": "x"}))
    await world.settle()
    assert world.of_agent(agent, "Accepted") == ("True", "Accepted")


_ANY: list[dict[str, Any]] = [
    {},
    {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["untrusted"]}]},
    {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]},
    {"matchLabels": {"kubernetes.io/metadata.name": "b"}},
]


@pytest.mark.parametrize("selector", _ANY)
@pytest.mark.parametrize("namespaces", [("a", "b"), ()])
async def test_no_selector_matches_a_namespace_whose_labels_are_not_known(
    selector: dict[str, Any], namespaces: tuple[str, ...]
) -> None:
    world = World(replace(SETTINGS, watch_namespaces=namespaces))
    await world.ready_store(access={"allowedNamespaces": {"selector": selector}})
    labels = {"kubernetes.io/metadata.name": "b"}
    world.filter = lambda kind, event, body: kind != kinds.NAMESPACE
    world.cluster.make(kinds.NAMESPACE, {"metadata": {"name": "b", "labels": labels}})
    agent = world.agent(namespace="b", memoryStoreNamespace="a")
    await world.settle()
    assert world.of_agent(agent, "Accepted") == ("False", "StoreNotAllowed")
    assert "does not know its labels" in str(world.get(kinds.AGENT_MEMORY, "helper", "b")["status"]["conditions"])
    assert world.get(kinds.CONFIG_MAP, "notes-bindings-0").get("data") is None
    world.filter = lambda kind, event, body: True
    world.cluster.edit(kinds.NAMESPACE, ObjectKey("", "b"), lambda live: live["metadata"].update(labels=labels))
    await world.restart()
    await world.settle()
    is_row_there = "b.helper.json" in world.get(kinds.CONFIG_MAP, "notes-bindings-0").get("data", {})
    assert is_row_there == (not namespaces), "the labels come in cluster mode alone"


async def test_a_namespace_that_is_made_again_is_judged_by_its_new_labels(world: World) -> None:
    await world.ready_store(access={"allowedNamespaces": {"selector": {"matchLabels": {"team": "x"}}}})
    world.cluster.make(kinds.NAMESPACE, {"metadata": {"name": "b", "labels": {"team": "x"}}})
    agent = world.agent(namespace="b", memoryStoreNamespace="a")
    await world.settle()
    assert world.of_agent(agent, "Accepted") == ("True", "Accepted")
    world.cluster.remove(kinds.NAMESPACE, "", "b")
    await world.settle()
    assert world.of_agent(agent, "Accepted") == ("False", "StoreNotAllowed")
    assert world.get(kinds.CONFIG_MAP, "notes-bindings-0").get("data") is None


async def test_a_permission_that_is_taken_back_unbinds_and_leaves_the_agent_running(world: World) -> None:
    store = await world.ready_store(access={"allowedNamespaces": {"names": ["b"]}})
    agent = world.agent(namespace="b", memoryStoreNamespace="a", agent=TEMPLATE)
    await world.settle()
    await world.make_ready(store)
    world.pods("helper", 1, "b")
    await world.settle(10)
    assert world.of_agent(agent, "Ready") == ("True", "Bound")
    world.store()
    await world.settle()
    assert world.get(kinds.CONFIG_MAP, "notes-bindings-0").get("data") is None
    assert world.of_agent(agent, "Ready") == ("True", "Bound")
    assert world.of_agent(agent, DEGRADED) == ("True", "StoreNotAllowed")
    assert world.find(kinds.DEPLOYMENT, "helper", "b") is not None


@pytest.mark.parametrize(("elder", "younger"), [("first", "second"), ("second", "first")])
async def test_the_oldest_binding_of_a_service_account_holds_it(elder: str, younger: str, world: World) -> None:
    await world.ready_store()
    first = world.agent(elder, agent={"serviceAccountName": "bot"})
    await world.settle(5)
    second = world.agent(younger, agent={"serviceAccountName": "bot"})
    await world.settle()
    assert world.of_agent(first, "Accepted") == ("True", "Accepted")
    assert world.of_agent(second, "Accepted") == ("False", "ServiceAccountTaken")
    assert list(world.get(kinds.CONFIG_MAP, "notes-bindings-0")["data"]) == [f"a.{elder}.json"]
    world.cluster.remove(kinds.AGENT_MEMORY, "a", elder)
    await world.settle()
    assert world.of_agent(second, "Accepted") == ("True", "Accepted")
    assert list(world.get(kinds.CONFIG_MAP, "notes-bindings-0")["data"]) == [f"a.{younger}.json"]


async def test_ready_means_that_every_ready_replica_uses_the_binding(world: World) -> None:
    store = await world.ready_store()
    old = world.context.ledger.revision(store)
    agent = world.agent()
    await world.settle()
    new = world.context.ledger.revision(store)
    assert world.of_agent(agent, "Ready") == ("Unknown", "BindingPending")
    world.says(store, report(new or ""), report(old or ""))
    await world.settle()
    assert world.of_agent(agent, "Ready") == ("Unknown", "BindingPending")
    world.says(store, report(new or ""), report(new or ""))
    await world.settle()
    assert world.of_agent(agent, "Ready") == ("True", "Bound")


async def test_other_agents_bindings_do_not_make_an_agent_wait(world: World) -> None:
    store = await world.ready_store()
    agent = world.agent()
    await world.settle()
    first = world.context.ledger.revision(store) or ""
    world.agent("other")
    await world.settle()
    world.says(store, report(first))
    await world.settle()
    assert world.of_agent(agent, "Ready") == ("True", "Bound")
    assert world.of_agent(ObjectKey("a", "other"), "Ready") == ("Unknown", "BindingPending")


async def test_a_bound_workload_gets_a_snippet_and_is_never_touched(world: World) -> None:
    await world.ready_store()
    world.agent(agent={"workloadRef": {"kind": "Deployment", "name": "chat"}})
    await world.settle()
    status = world.get(kinds.AGENT_MEMORY, "helper")["status"]
    assert "memplane:a/notes" in status["snippet"]
    assert world.find(kinds.DEPLOYMENT, "helper") is None
    assert world.find(kinds.DEPLOYMENT, "chat") is None
    assert world.find(kinds.CONFIG_MAP, "helper-memory") is not None


async def test_a_store_that_somebody_adds_to_an_agents_folder_is_taken_out(world: World) -> None:
    await running(world)
    key = ObjectKey("a", "helper-memory")
    before = dict(world.get(kinds.CONFIG_MAP, key.name)["data"])
    foreign = {"other.json": '{"endpoint": "http://thief"}', "ca.crt": "thief"}
    world.cluster.edit(kinds.CONFIG_MAP, key, lambda live: live["data"].update(foreign))
    await world.settle(5)
    assert world.get(kinds.CONFIG_MAP, key.name)["data"] == before


async def test_an_object_of_somebody_else_is_left_alone(world: World) -> None:
    await world.ready_store()
    theirs = {
        "metadata": {"name": "helper", "namespace": "a"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"x": "y"}}},
    }
    world.cluster.make(kinds.DEPLOYMENT, theirs)
    agent = world.agent(agent=TEMPLATE)
    await world.settle()
    assert world.of_agent(agent, "Stalled") == ("True", "NameConflict")
    assert world.get(kinds.DEPLOYMENT, "helper")["spec"] == theirs["spec"]


async def test_an_agent_that_is_given_another_store_is_not_bound_until_that_one_knows_it(world: World) -> None:
    await running(world)
    agent = world.agent(agent=TEMPLATE, memoryStore="other")
    await world.settle(10)
    assert world.of_agent(agent, "Ready") == ("False", "WaitingForStore")
    assert "bound" not in world.get(kinds.AGENT_MEMORY, "helper")["status"]
    other = world.store("other")
    await world.settle()
    world.bind_claim("other")
    world.pods("other-memory", 1)
    world.says(other, report("rows without it"))
    await world.settle(10)
    assert world.of_agent(agent, "Ready") == ("Unknown", "BindingPending")
    world.says(other, report(world.context.ledger.revision(other) or ""))
    await world.settle(10)
    assert world.of_agent(agent, "Ready") == ("True", "Bound")
    assert world.find(kinds.DEPLOYMENT, "helper") is not None


async def test_a_deployment_deleted_during_an_outage_is_put_back(world: World) -> None:
    await running(world)
    world.pods("notes-memory", 0)
    await world.settle(10)
    world.cluster.remove(kinds.DEPLOYMENT, "a", "helper")
    await world.settle()
    assert world.find(kinds.DEPLOYMENT, "helper") is not None


async def test_the_first_status_says_that_ready_is_unknown_or_why_not(world: World) -> None:
    statuses: list[Any] = []
    world.cluster.watchers.append(
        lambda kind, event, body: (
            statuses.append(body["status"]) if kind == kinds.AGENT_MEMORY and "status" in body else None
        )
    )
    world.agent()
    await world.settle()
    first = {item["type"]: item["status"] for item in statuses[0]["conditions"]}
    assert first["Ready"] in ("Unknown", "False")
    assert statuses[0]["observedGeneration"] == 1


async def _step(world: World) -> ReconcileKey:
    """Deliver all events and reconcile the one object that is next."""
    while world.events:
        take(world.context, *world.events.pop(0))
    key = world.context.queue.take()
    assert key is not None
    await work_once(world.context, key)
    return key


async def test_agents_that_are_found_with_their_store_are_bound_by_one_status_each(world: World) -> None:
    agents = [world.agent(f"helper-{number}") for number in range(3)]
    store = world.store()
    world.events.clear()
    await world.restart()
    assert await _step(world) == ReconcileKey(names.MEMORY_STORE, store)
    assert world.of_store(store, "Ready") == ("Unknown", "Reconciling")
    world.put(kinds.MODEL_API, "another", {"baseURL": "http://model:8000", "probe": "None"})
    assert (await _step(world)).kind == names.MODEL_API, "what somebody changes goes before agents that would wait"
    world.bind_claim()
    world.pods("notes-memory", 1)
    world.says(store, report(world.context.ledger.revision(store) or ""))
    assert await _step(world) == ReconcileKey(names.MEMORY_STORE, store)
    assert world.of_store(store, "Ready") == ("True", "Available")
    assert {(await _step(world)).object for _ in agents} == set(agents), "a store that is ready calls them forward"
    await world.settle(60)
    assert {world.of_agent(agent, "Ready") for agent in agents} == {("True", "Bound")}
    written = [name for verb, kind, name in world.cluster.writes if (verb, kind) == ("status", "AgentMemory")]
    assert sorted(written) == [agent.name for agent in agents]


async def test_a_new_process_looks_at_each_object_after_those_that_it_needs(world: World) -> None:
    for number in range(3):
        world.agent(f"helper-{number}")
        world.store(f"notes-{number}")
        world.put(kinds.MODEL_API, f"model-{number}", {"baseURL": "http://model:8000", "probe": "None"})
    await world.restart()
    taken = [key.kind for _ in range(9) if (key := world.context.queue.take())]
    assert taken == [kind.name for kind in (kinds.MODEL_API, kinds.MEMORY_STORE, kinds.AGENT_MEMORY) for _ in range(3)]


async def test_the_client_understands_the_folder(world: World) -> None:
    await world.ready_store()
    world.agent(
        tools="read",
        scope="user",
        readScopes=["user", "private"],
        clientParams={"tokenBudget": 9, "rollingSummary": False},
    )
    await world.settle()
    data = world.get(kinds.CONFIG_MAP, names.agent_binding("helper"))["data"]
    read = binding.from_files(data, "notes")
    assert read.endpoint == "http://notes-memory.a.svc.cluster.local:8800"
    assert read.audience == "memplane:a/notes"
    assert read.agent == "kaos://agent/a/helper"
    assert (read.scope, read.read_scopes, read.tools) == ("user", ("user", "private"), "read")
    assert (read.token_budget, read.rolling_summary, read.failure_mode) == (9, False, "soft")


def folder(world: World, name: str = "helper") -> dict[str, Any]:
    content: dict[str, Any] = json.loads(world.get(kinds.CONFIG_MAP, f"{name}-memory")["data"]["binding.json"])
    return content


@pytest.mark.parametrize("why", ["missing", "not allowed"])
@pytest.mark.parametrize("how", ["template", "workloadRef"])
async def test_the_folder_of_an_agent_that_is_moved_never_names_the_earlier_store(
    world: World, why: str, how: str
) -> None:
    await world.ready_store()
    spec = {"agent": TEMPLATE if how == "template" else {"workloadRef": {"kind": "Deployment", "name": "own"}}}
    agent = world.agent(**spec)
    await world.settle(10)
    assert folder(world)["store"] == "notes"
    if why == "not allowed":
        world.store("finance", "b", tls={"secretRef": {"name": "tls"}})
    world.agent(memoryStore="finance", memoryStoreNamespace="b", **spec)
    await world.settle(60)
    assert (folder(world)["store"], folder(world)["audience"]) == ("finance", "memplane:b/finance")
    assert folder(world)["endpoint"] == "http://finance-memory.b.svc.cluster.local:8800"
    status = world.get(kinds.AGENT_MEMORY, agent.name)["status"]
    assert status["endpoint"] == folder(world)["endpoint"]
    assert not world.get(kinds.CONFIG_MAP, "notes-bindings-0").get("data")


async def test_a_folder_is_switched_by_a_process_that_never_saw_the_earlier_store(world: World) -> None:
    await running(world)
    world.agent(agent=TEMPLATE, memoryStore="finance")
    live = world.get(kinds.AGENT_MEMORY, "helper")
    live["status"]["audience"] = "memplane:a/finance"
    await world.restart()
    await world.settle(60)
    assert folder(world)["store"] == "finance"


async def test_the_folder_of_an_agent_whose_store_goes_stays_as_it_was(world: World) -> None:
    await running(world)
    world.store(tls={"secretRef": {"name": "tls"}, "caBundle": "PEM"})
    await world.settle()
    before = world.get(kinds.CONFIG_MAP, "helper-memory")["data"]
    world.cluster.remove(kinds.MEMORY_STORE, "a", "notes")
    world.cluster.collect_garbage()
    await world.settle(60)
    assert world.get(kinds.CONFIG_MAP, "helper-memory")["data"] == before


async def test_an_agent_whose_pods_are_still_of_the_earlier_store_is_degraded(world: World) -> None:
    _, agent = await running(world)
    other = await world.ready_store("other")
    world.agent(agent=TEMPLATE, memoryStore="other")
    await world.settle(10)
    await world.make_ready(other)
    await world.settle(60)
    assert world.of_agent(agent, DEGRADED) == ("True", "RolloutInProgress")
    world.pods("helper", 1)
    await world.settle(10)
    assert world.of_agent(agent, DEGRADED) == ("False", "MemoryHealthy")
    assert world.of_agent(agent, "Ready") == ("True", "Bound")


@pytest.mark.parametrize("then", ["restarted", "flickering", "image"])
async def test_an_agent_is_degraded_by_pods_of_the_earlier_store_however_late_its_new_store_comes(
    world: World, then: str
) -> None:
    _, agent = await running(world)
    world.agent(agent=TEMPLATE, memoryStore="late")
    await world.settle(60)
    assert world.of_agent(agent, DEGRADED) == ("True", "StoreNotFound")
    if then == "restarted":
        await world.restart()
    late = await world.ready_store("late")
    await world.settle(60)
    assert world.of_agent(agent, DEGRADED) == ("True", "RolloutInProgress")
    if then == "flickering":
        world.pods("late-memory", 0)
        await world.settle(60)
        assert world.of_agent(agent, DEGRADED) == ("True", "StoreNotReady")
        await world.make_ready(late)
        await world.settle(60)
        assert world.of_agent(agent, DEGRADED) == ("True", "RolloutInProgress")
    world.pods("helper", 1)
    await world.settle(10)
    assert world.of_agent(agent, DEGRADED) == ("False", "MemoryHealthy")
    assert "earlier-audiences" not in json.dumps(world.get(kinds.DEPLOYMENT, "helper")["metadata"]["annotations"])
    if then == "image":
        newer = {"template": {"spec": {"containers": [{"name": "agent", "image": "agent:2"}]}}}
        world.agent(agent=newer, memoryStore="late")
        await world.settle(10)
        assert world.of_agent(agent, "Reconciling") == ("True", "RolloutInProgress")
        assert world.of_agent(agent, DEGRADED) == ("False", "MemoryHealthy")


async def test_an_agent_whose_pods_could_not_be_moved_is_degraded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, agent = await running(world)
    await world.ready_store("other")
    apply = world.cluster.apply

    async def refuse(kind: Kind, manifest: dict[str, Any]) -> dict[str, Any]:
        if kind == kinds.DEPLOYMENT and manifest["metadata"]["name"] == "helper":
            raise Forbidden("exceeded quota")
        return await apply(kind, manifest)

    monkeypatch.setattr(world.cluster, "apply", refuse)
    world.agent(agent=TEMPLATE, memoryStore="other")
    await world.settle(60)
    assert world.of_agent(agent, "Stalled") == ("True", "ApplyFailed")
    assert world.of_agent(agent, DEGRADED) == ("True", "RolloutInProgress")


async def test_pods_keep_the_labels_that_people_select_by(world: World) -> None:
    mine = {"app.kubernetes.io/name": "shop-bot", "app.kubernetes.io/component": "web", "team": "shop"}
    await world.ready_store(podLabels={"app.kubernetes.io/name": "shop-memory", "team": "shop"})
    world.agent(agent={"template": {"metadata": {"labels": mine}, **TEMPLATE["template"]}})
    await world.settle()
    labels = template(world)["metadata"]["labels"]
    assert mine.items() <= labels.items()
    assert labels["app.kubernetes.io/instance"] == labels["memplane.dev/agent"] == "helper"
    labels = template(world, "notes-memory")["metadata"]["labels"]
    assert (labels["app.kubernetes.io/name"], labels["team"]) == ("shop-memory", "shop")
    selector = world.get(kinds.DEPLOYMENT, "notes-memory")["spec"]["selector"]["matchLabels"]
    assert selector.items() <= labels.items()


@pytest.mark.parametrize("label", ["memplane.dev/store", "memplane.dev/binding"])
async def test_a_label_by_which_pods_are_found_is_refused_by_name(world: World, label: str) -> None:
    agent = world.agent(agent={"template": {"metadata": {"labels": {label: "x"}}, **TEMPLATE["template"]}})
    store = world.store(podLabels={label: "x"})
    await world.settle()
    for key, kind, field in (
        (agent, kinds.AGENT_MEMORY, "spec.agent.template.metadata.labels"),
        (store, kinds.MEMORY_STORE, "spec.podLabels"),
    ):
        assert world.condition(kind, key, "Ready") == ("False", "InvalidSpec")
        assert f"{field}.{label}" in json.dumps(world.get(kind, key.name)["status"])


async def test_the_component_of_a_stores_pods_is_refused_by_name(world: World) -> None:
    store = world.store(podLabels={"app.kubernetes.io/component": "db"})
    await world.settle()
    assert world.of_store(store, "Ready") == ("False", "InvalidSpec")
