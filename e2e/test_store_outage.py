"""Whatever becomes of a store, its agents run on: same pods, no restart, a condition that says why, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

import pytest

from e2e.cluster.clusters import LocalCluster, Namespace
from e2e.installation import (
    Installation,
    agent_pods,
    conditions,
    fingerprint,
    local_store,
    say,
    store_pods,
    until_it_reaches_its_store,
    wait_for,
)

DEGRADED_WITHIN_SECONDS = 15
"""The promise, from the end of the store's last pod to the condition."""


class Untouched:
    """What of an agent must be the same after an outage."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._before = self._now()

    def _now(self) -> tuple[object, ...]:
        deployment = self._namespace.kubectl.get("deployment", "assistant")
        template = deployment["spec"]["template"]
        return (deployment["metadata"]["generation"], template, fingerprint(agent_pods(self._namespace)))

    def check(self) -> None:
        assert self._now() == self._before
        ready = conditions(self._namespace, "agentmemory", "assistant")["Ready"]
        assert ready["status"] == "True", ready


@pytest.fixture
def untouched(team: Namespace) -> Iterator[Untouched]:
    """The agent, seen before a test; and checked once more after it, when the store is back."""
    wait_for(team, "memorystore", "team", "Ready", "True")
    wait_for(team, "agentmemory", "assistant", "MemoryDegraded", "False")
    until_it_reaches_its_store(team)
    agent = Untouched(team)
    yield agent
    agent.check()


def until_degraded(team: Namespace, began: float, reason: str) -> None:
    left = DEGRADED_WITHIN_SECONDS - (monotonic() - began)
    wait_for(team, "agentmemory", "assistant", "MemoryDegraded", "True", reason=reason, seconds=left)


def test_a_store_scaled_to_nothing_leaves_its_agent_answering_from_its_own_window(
    team: Namespace, untouched: Untouched
) -> None:
    assert say(team, "The meeting is on Tuesday.")["written"] == ["stored"]
    began = monotonic()
    team.kubectl("scale", "memorystore", "team", "--replicas=0")
    until_degraded(team, began, "StoreNotReady")
    untouched.check()
    during = say(team, "When is the meeting?")
    assert during["outcome"] == "unavailable"
    assert during["written"] == ["queued"]
    assert "The meeting is on Tuesday." in during["own_window"]
    team.kubectl("scale", "memorystore", "team", "--replicas=1")
    wait_for(team, "agentmemory", "assistant", "MemoryDegraded", "False")

    def is_delivered() -> bool:
        answer = say(team, "What did I ask about the meeting?", session="later")
        return "When is the meeting?" in answer["block"]

    team.cluster.wait_until("what waited is delivered", is_delivered, seconds=90)


def test_a_store_that_crashes_again_and_again_degrades_its_agent_and_nothing_else(
    team: Namespace, untouched: Untouched
) -> None:
    began = monotonic()
    team.kubectl.patch("memorystore", "team", {"spec": {"container": {"env": [{"name": "PYTHONPATH", "value": "/"}]}}})
    wait_for(team, "memorystore", "team", "Ready", "False", seconds=60)
    until_degraded(team, max(began, monotonic() - 5), "StoreNotReady")
    team.cluster.wait_until(
        "a crash loop",
        lambda: any(restarts > 0 for _, restarts in fingerprint(store_pods(team))),
        seconds=90,
        explain=team.describe,
    )
    untouched.check()
    assert say(team, "Are you there?")["outcome"] == "unavailable"
    team.kubectl.patch("memorystore", "team", {"spec": {"container": {"env": None}}})
    wait_for(team, "agentmemory", "assistant", "MemoryDegraded", "False")


def test_a_deleted_store_is_missed_and_one_of_its_name_is_taken_with_all_that_it_knew(
    team: Namespace, untouched: Untouched
) -> None:
    assert say(team, "My locker number is 4711.", session="before")["written"] == ["stored"]
    began = monotonic()
    team.kubectl.delete("memorystore", "team")
    until_degraded(team, began, "StoreNotFound")
    untouched.check()
    team.apply(local_store())
    wait_for(team, "agentmemory", "assistant", "MemoryDegraded", "False")

    def remembers() -> bool:
        return "4711" in say(team, "What is my locker number?", session="after")["block"]

    team.cluster.wait_until("the store remembers", remembers, seconds=60)


def test_a_store_that_is_killed_comes_back_to_the_same_agent(
    team: Namespace, untouched: Untouched, local_cluster: LocalCluster
) -> None:
    (pod,) = store_pods(team)
    local_cluster.kill_pod_processes(pod)
    team.cluster.wait_until(
        "the container runs again", lambda: any(n > 0 for _, n in fingerprint(store_pods(team))), seconds=60
    )
    wait_for(team, "memorystore", "team", "Ready", "True")
    wait_for(team, "agentmemory", "assistant", "MemoryDegraded", "False")
    until_it_reaches_its_store(team)


def test_an_operator_that_is_gone_stops_neither_the_store_nor_its_agent(
    team: Namespace, untouched: Untouched, memplane: Installation
) -> None:
    kubectl = team.cluster.kubectl.in_namespace(memplane.namespace)
    kubectl("scale", "deployment", "memplane-operator", "--replicas=0")
    try:
        team.cluster.wait_until("no operator", lambda: not memplane.operators())
        assert say(team, "Still here?", session="alone")["written"] == ["stored"]
    finally:
        kubectl("scale", "deployment", "memplane-operator", "--replicas=1")
    memplane.wait_for_leader(90)
