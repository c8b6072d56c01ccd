"""An agent that is new waits for its store, or starts without it when told to; either way the store wakes it."""

from __future__ import annotations

from e2e.cluster.clusters import Namespace
from e2e.installation import (
    Installation,
    agent_memory,
    agent_pod,
    agent_pods,
    conditions,
    fingerprint,
    local_store,
    say,
    wait_for,
)


def test_the_first_pod_waits_for_the_store_and_a_store_that_appears_wakes_it(
    namespace: Namespace, memplane: Installation
) -> None:
    namespace.apply(agent_memory(agent={"template": agent_pod(memplane.service_image, "team")}))
    waiting = wait_for(namespace, "agentmemory", "assistant", "Ready", "False", reason="WaitingForStore", seconds=20)
    assert "'team'" in waiting["message"] or "/team" in waiting["message"]
    assert namespace.kubectl.find("deployment", "assistant") is None
    namespace.apply(local_store())
    wait_for(namespace, "agentmemory", "assistant", "Ready", "True")
    assert conditions(namespace, "memorystore", "team")["Ready"]["status"] == "True"
    assert say(namespace, "Good morning.")["written"] == ["stored"]


def test_an_agent_that_need_not_wait_starts_degraded_and_recovers_without_a_restart(
    namespace: Namespace, memplane: Installation
) -> None:
    template = agent_pod(memplane.service_image, "team")
    namespace.apply(agent_memory(waitForDependencies=False, agent={"template": template}))
    wait_for(namespace, "agentmemory", "assistant", "MemoryDegraded", "True", reason="StoreNotFound", seconds=20)
    wait_for(namespace, "agentmemory", "assistant", "Ready", "True")
    before = fingerprint(agent_pods(namespace))
    first = say(namespace, "My parrot is called Otto.")
    assert (first["outcome"], first["written"]) == ("unavailable", ["queued"])
    namespace.apply(local_store())
    wait_for(namespace, "agentmemory", "assistant", "MemoryDegraded", "False")

    def remembers() -> bool:
        return "Otto" in say(namespace, "What is my parrot called?", session="s2")["block"]

    # The kubelet brings a changed ConfigMap into a running pod within about a minute.
    namespace.cluster.wait_until("what waited is remembered", remembers, seconds=150)
    assert fingerprint(agent_pods(namespace)) == before


def test_an_agent_without_a_store_runs_with_its_own_memory(namespace: Namespace, memplane: Installation) -> None:
    template = agent_pod(memplane.service_image, "none")
    namespace.apply(agent_memory(store=None, agent={"template": template}))
    wait_for(namespace, "agentmemory", "assistant", "Ready", "True", reason="LocalMemory")
    assert conditions(namespace, "agentmemory", "assistant")["MemoryDegraded"]["status"] == "False"
