"""A local store is one pod on one claim: the claim outlives pods, nodes and the store itself, and only grows."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.cluster.clusters import LocalCluster, Namespace
from e2e.installation import (
    POD_READY_SECONDS,
    Installation,
    a_team,
    agent_pods,
    conditions,
    fingerprint,
    local_store,
    say,
    store_pods,
    until_it_reaches_its_store,
    wait_for,
)

CLAIM = "team-memory-data"


@pytest.fixture(scope="module")
def team(installed: Installation) -> Iterator[Namespace]:
    """A store on a volume that pods of both nodes can mount."""
    installed.wait_for_leader()
    volume = {"size": "64Mi", "storageClassName": "shared-path"}
    store = local_store(storage={"type": "local", "local": {"persistentVolume": volume}})
    with a_team(installed, "local-store", store) as namespace:
        yield namespace


def keeps(team: Namespace, text: str, session: str) -> None:
    until_it_reaches_its_store(team)
    assert say(team, text, session=session)["written"] == ["stored"]


def remembers(team: Namespace, question: str, answer: str, session: str) -> None:
    team.cluster.wait_until(
        f"{answer} remembered", lambda: answer in say(team, question, session=session)["block"], seconds=60
    )


def test_one_pod_ends_before_the_next_begins(team: Namespace) -> None:
    deployment = team.kubectl.get("deployment", "team-memory")
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert deployment["spec"]["replicas"] == 1
    refused = team.kubectl.refusal("scale", "memorystore", "team", "--replicas=2")
    assert "local" in refused


def test_what_was_said_survives_the_pod(team: Namespace) -> None:
    keeps(team, "My train leaves from platform 9.", "a")
    (pod,) = store_pods(team)
    team.kubectl.delete("pod", pod["metadata"]["name"])
    wait_for(team, "agentmemory", "assistant", "MemoryDegraded", "False")
    wait_for(team, "memorystore", "team", "Ready", "True")
    remembers(team, "From which platform does my train leave?", "platform 9", "b")


def test_what_was_said_survives_the_node_where_the_volume_allows(team: Namespace, local_cluster: LocalCluster) -> None:
    keeps(team, "My seat is 42.", "c")
    (pod,) = store_pods(team)
    node = pod["spec"]["nodeName"]
    with local_cluster.drained(node, seconds=POD_READY_SECONDS):
        wait_for(team, "memorystore", "team", "Ready", "True")

        def has_moved() -> bool:
            pods = store_pods(team)
            return len(pods) == 1 and pods[0]["spec"].get("nodeName") not in (None, node)

        team.cluster.wait_until("the pod on the other node", has_moved, seconds=POD_READY_SECONDS)
        wait_for(team, "memorystore", "team", "Ready", "True")
        team.kubectl.wait("condition=Available", "deployment/assistant", seconds=POD_READY_SECONDS)
        remembers(team, "What is my seat?", "seat is 42", "d")


def test_a_second_pod_on_the_claim_waits_and_never_serves(team: Namespace) -> None:
    wait_for(team, "memorystore", "team", "Ready", "True")
    (pod,) = store_pods(team)
    spec = {**pod["spec"]}
    spec.pop("nodeName")
    spec["containers"] = [{**spec["containers"][0], "name": "second"}]
    team.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "second"}, "spec": spec})
    team.kubectl.wait("jsonpath={.status.phase}=Running", "pod/second", seconds=POD_READY_SECONDS)

    def says_why() -> bool:
        script = (
            "import urllib.request as u, urllib.error as e\n"
            "try: print(u.urlopen('http://127.0.0.1:8800/readyz').read().decode())\n"
            "except e.HTTPError as error: print(error.code, error.read().decode())\n"
        )
        return "503" in team.kubectl.execute("second", "python", "-c", script)

    team.cluster.wait_until("it lives and is not ready", says_why, seconds=60, ignoring=(Exception,))
    keeps(team, "The first one serves.", "e")
    ready = team.kubectl.get("pod", "second")["status"]["containerStatuses"][0]
    assert (ready["ready"], ready["restartCount"]) == (False, 0)
    team.kubectl.delete("pod", "second", grace_seconds=1)


def test_the_claim_survives_the_store_and_is_adopted_again(team: Namespace) -> None:
    keeps(team, "My gate is B7.", "f")
    uid = team.kubectl.get("pvc", CLAIM)["metadata"]["uid"]
    before = fingerprint(agent_pods(team))
    store = team.kubectl.get("memorystore", "team")
    team.kubectl.delete("memorystore", "team")
    team.cluster.wait_until("no pod", lambda: not store_pods(team), seconds=60)
    assert team.kubectl.get("pvc", CLAIM)["metadata"]["uid"] == uid
    team.apply({key: store[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "team"}})
    wait_for(team, "memorystore", "team", "Ready", "True")
    wait_for(team, "agentmemory", "assistant", "MemoryDegraded", "False")
    assert team.kubectl.get("pvc", CLAIM)["metadata"]["uid"] == uid
    remembers(team, "What is my gate?", "gate is B7", "g")
    assert fingerprint(agent_pods(team)) == before


def test_a_larger_size_is_asked_of_the_provisioner_and_the_status_says_what_it_does(team: Namespace) -> None:
    size = {"spec": {"storage": {"local": {"persistentVolume": {"size": "128Mi"}}}}}
    team.kubectl.patch("memorystore", "team", size)
    team.cluster.wait_until(
        "the larger claim",
        lambda: team.kubectl.get("pvc", CLAIM)["spec"]["resources"]["requests"]["storage"] == "128Mi",
        seconds=10,
    )
    # Nothing resizes these volumes: the condition says that somebody is being waited for, and the store serves on.
    found = wait_for(team, "memorystore", "team", "StorageReady", "True", seconds=20)
    assert found["reason"] == "VolumeResizing", found
    assert conditions(team, "memorystore", "team")["Ready"]["status"] == "True"


def test_a_smaller_size_is_refused_with_a_sentence(team: Namespace) -> None:
    size = {"spec": {"storage": {"local": {"persistentVolume": {"size": "32Mi"}}}}}
    said = team.kubectl.refusal("patch", "memorystore", "team", "--type=merge", "--patch", json.dumps(size))
    assert "size may grow and never shrink: a claim cannot be made smaller" in said
    assert team.kubectl.get("pvc", CLAIM)["spec"]["resources"]["requests"]["storage"] == "128Mi"


def test_a_class_that_cannot_grow_is_named_and_the_store_serves_on(
    namespace: Namespace, memplane: Installation
) -> None:
    volume = {"size": "64Mi", "storageClassName": "fixed-path"}
    namespace.apply(local_store(storage={"type": "local", "local": {"persistentVolume": volume}}))
    wait_for(namespace, "memorystore", "team", "Ready", "True")
    larger = {"spec": {"storage": {"local": {"persistentVolume": {"size": "128Mi"}}}}}
    namespace.kubectl.patch("memorystore", "team", larger)
    found = wait_for(namespace, "memorystore", "team", "Stalled", "True", seconds=20)
    assert found["reason"] == "VolumeExpansionRefused", found
    assert store_pods(namespace)[0]["status"]["containerStatuses"][0]["ready"] is True
