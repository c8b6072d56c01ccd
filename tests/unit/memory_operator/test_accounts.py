"""ServiceAccounts: whatever a spec says anew, pods that serve keep what they were made with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memory_operator.cluster import kinds
from memory_operator.crd.base import ObjectKey
from tests.unit.memory_operator.world import World

TEMPLATE: dict[str, Any] = {"template": {"spec": {"containers": [{"name": "agent", "image": "agent:1"}]}}}


@pytest.fixture
def world() -> World:
    return World()


async def running(world: World) -> tuple[ObjectKey, ObjectKey]:
    store = await world.ready_store()
    agent = world.agent(agent=TEMPLATE)
    await world.settle()
    await world.make_ready(store)
    world.pods("helper", 1)
    await world.settle(10)
    assert world.of_agent(agent, "Ready") == ("True", "Bound")
    return store, agent


def subjects(world: World) -> tuple[list[str], list[str]]:
    """Whose pods may watch the bindings, and whose may review tokens."""
    local = world.get(kinds.ROLE_BINDING, "notes-memory")["subjects"]
    everywhere = world.get(kinds.CLUSTER_ROLE_BINDING, world.settings.token_review_binding, "")["subjects"]
    return [item["name"] for item in local], [item["name"] for item in everywhere]


def bound_accounts(world: World) -> list[str]:
    rows = world.get(kinds.CONFIG_MAP, "notes-bindings-0").get("data") or {}
    return sorted(json.loads(row)["serviceAccount"] for row in rows.values())


def leave_a_pod(world: World, name: str, labels: dict[str, str], account: str, *, of: str | None = None) -> None:
    """Have a pod of an earlier template of a Deployment end slowly; of none, it is one that somebody labelled."""
    meta: dict[str, Any] = {"name": name, "namespace": "a", "labels": labels}
    if of is not None:
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{of}-7d4f", "uid": "u", "controller": True}
        meta["ownerReferences"] = [owner]
    spec = {"serviceAccountName": account}
    world.cluster.make(kinds.POD, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


async def test_writing_down_the_account_in_use_changes_nothing(world: World) -> None:
    await running(world)
    uids = {name: world.get(kinds.SERVICE_ACCOUNT, name)["metadata"]["uid"] for name in ("helper", "notes-memory")}
    world.store(serviceAccountName="notes-memory")
    world.agent(agent={**TEMPLATE, "serviceAccountName": "helper"})
    await world.settle(60)
    for name, uid in uids.items():
        assert world.get(kinds.SERVICE_ACCOUNT, name)["metadata"]["uid"] == uid
    assert subjects(world) == (["notes-memory"], ["notes-memory"])
    assert bound_accounts(world) == ["helper"]


async def test_an_account_that_its_agents_workload_goes_on_using_stays(world: World) -> None:
    await running(world)
    world.agent(agent={"workloadRef": {"kind": "Deployment", "name": "own"}})
    await world.settle(60)
    assert world.find(kinds.DEPLOYMENT, "helper") is None
    assert world.find(kinds.SERVICE_ACCOUNT, "helper") is not None


async def test_a_store_keeps_the_account_of_its_old_pods_until_the_last_has_ended(world: World) -> None:
    await running(world)
    world.store(serviceAccountName="mine")
    await world.settle(60)
    assert world.get(kinds.DEPLOYMENT, "notes-memory")["spec"]["template"]["spec"]["serviceAccountName"] == "mine"
    assert world.find(kinds.SERVICE_ACCOUNT, "notes-memory") is not None
    assert subjects(world) == (["mine", "notes-memory"], ["mine", "notes-memory"])
    await world.restart()
    await world.settle(60)
    assert world.find(kinds.SERVICE_ACCOUNT, "notes-memory") is not None, "a new process knows it too"
    labels = world.get(kinds.DEPLOYMENT, "notes-memory")["spec"]["selector"]["matchLabels"]
    leave_a_pod(world, "old", labels, "notes-memory", of="notes-memory")
    world.pods("notes-memory", 1)
    await world.settle(30)
    assert subjects(world) == (["mine", "notes-memory"], ["mine", "notes-memory"]), "it still ends"
    world.cluster.remove(kinds.POD, "a", "old")
    await world.settle(10)
    assert subjects(world) == (["mine"], ["mine"])
    assert world.find(kinds.SERVICE_ACCOUNT, "notes-memory") is None
    assert "earlier-accounts" not in json.dumps(world.get(kinds.DEPLOYMENT, "notes-memory")["metadata"]["annotations"])


async def test_an_agent_is_known_by_both_accounts_until_its_old_pods_have_ended(world: World) -> None:
    store, agent = await running(world)
    world.agent(agent={**TEMPLATE, "serviceAccountName": "mine"})
    await world.settle(60)
    assert bound_accounts(world) == ["helper", "mine"]
    assert world.find(kinds.SERVICE_ACCOUNT, "helper") is not None
    world.pods("helper", 1)
    await world.settle(10)
    assert bound_accounts(world) == ["mine"]
    assert world.find(kinds.SERVICE_ACCOUNT, "helper") is None
    await world.make_ready(store)
    await world.settle(10)
    assert world.of_agent(agent, "Ready") == ("True", "Bound")


async def test_the_pods_of_an_earlier_store_of_the_same_name_review_no_tokens(world: World) -> None:
    await running(world)

    def change(live: dict[str, Any]) -> None:
        live["metadata"]["ownerReferences"][0]["uid"] = "of-an-earlier-store"

    world.cluster.edit(kinds.DEPLOYMENT, ObjectKey("a", "notes-memory"), change)
    world.store(serviceAccountName="mine")
    await world.settle(60)
    spec = world.get(kinds.DEPLOYMENT, "notes-memory")["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == "notes-memory", "it is not this store's to change"
    _, everywhere = subjects(world)
    assert everywhere == ["mine"]


async def test_an_earlier_account_that_another_binding_claims_is_that_ones_at_once(world: World) -> None:
    await running(world)
    world.agent(agent={**TEMPLATE, "serviceAccountName": "mine"})
    world.agent("other", agent={"serviceAccountName": "helper"})
    await world.settle(60)
    rows = world.get(kinds.CONFIG_MAP, "notes-bindings-0")["data"]
    held = {json.loads(row)["serviceAccount"]: json.loads(row)["agent"] for row in rows.values()}
    assert held == {"mine": "kaos://agent/a/helper", "helper": "kaos://agent/a/other"}
    world.pods("helper", 1)
    await world.settle(60)
    assert world.find(kinds.SERVICE_ACCOUNT, "helper") is not None, "the other agent's spec names it"


async def test_what_somebody_else_writes_into_a_deployment_grants_nothing(world: World) -> None:
    await running(world)
    for name in ("helper", "notes-memory"):
        world.cluster.edit(
            kinds.DEPLOYMENT,
            ObjectKey("a", name),
            lambda live: live["metadata"]["annotations"].update({"memplane.dev/earlier-accounts": "evil,Foo Bar"}),
        )
    await world.settle(60)
    assert bound_accounts(world) == ["helper"]
    assert subjects(world) == (["notes-memory"], ["notes-memory"])
    await world.restart()
    await world.settle(60)
    assert bound_accounts(world) == ["helper"]
    assert subjects(world) == (["notes-memory"], ["notes-memory"])


async def test_a_pod_that_somebody_labelled_keeps_no_earlier_account(world: World) -> None:
    await running(world)
    world.agent(agent={**TEMPLATE, "serviceAccountName": "mine"})
    await world.settle(60)
    leave_a_pod(world, "stranger", {"memplane.dev/agent": "helper"}, "helper")
    world.pods("helper", 1)
    await world.settle(30)
    assert bound_accounts(world) == ["mine"]


async def test_an_agents_old_pods_stay_known_while_the_stores_spec_breaks_a_rule(world: World) -> None:
    await running(world)
    world.agent(agent={**TEMPLATE, "serviceAccountName": "mine"})
    await world.settle(60)
    store = world.store(replicas=5)
    await world.settle(60)
    assert world.of_store(store, "Ready") == ("False", "InvalidSpec")
    assert bound_accounts(world) == ["helper", "mine"]
