"""A store on Postgres: two pods on two nodes, and not one acknowledged write lost, whatever is done to them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from threading import Thread
from typing import Any

import pytest
import yaml

from e2e.cluster.clusters import LocalCluster, Namespace
from e2e.installation import (
    CHART,
    POD_READY_SECONDS,
    Installation,
    agent_memory,
    agent_pod,
    agent_pods,
    external_store,
    fingerprint,
    say,
    store_pods,
    wait_for,
)

STAYS, DRAINED = "node0", "node1"
SECRET = "database-memplane-postgres"

WRITER = """
import json, os, sys, time
from pathlib import Path
from memory_service.client import ServiceUnavailable, SyncMemoryClient

session, acknowledged, failed = sys.argv[1], [], []
with SyncMemoryClient.bind("team", outbox=None, failure_mode="strict") as client:
    number = 0
    while not Path(f"/tmp/stop-{session}").exists():
        turn = {"role": "user", "content": f"number {number}", "id": f"{session}-{number}"}
        try:
            client.write(session, [turn], idempotency_key=f"{session}-{number}")
        except ServiceUnavailable as error:
            failed.append(f"{number} {error}"[:200])
            time.sleep(0.2)
            continue
        acknowledged.append(number)
        number += 1
        print("acknowledged", flush=True)
        time.sleep(0.02)
    stored, after, page, refusals = [], None, True, 0
    while page:
        try:
            page = client.sessions.turns(session, after=after, limit=500).turns
        except ServiceUnavailable:
            refusals += 1
            if refusals > 100:
                raise
            time.sleep(0.5)
            continue
        stored += [int(turn.content.split()[1]) for turn in page]
        after = page[-1].seq if page else after
print(json.dumps({"acknowledged": acknowledged, "stored": stored, "failed": failed}))
"""
"""Writes numbered turns until told to stop, and then reads all of them back. A write that is refused is tried again
with its own key and id, so that one whose answer was lost is not stored twice."""


@dataclass
class Account:
    """What the writer says at its end."""

    acknowledged: list[int]
    stored: list[int]
    failed: list[str]

    def balance(self) -> None:
        """Every write that was acknowledged is stored once, in order, and nothing else is."""
        assert len(self.acknowledged) >= 20, self
        assert self.stored == self.acknowledged


@contextlib.contextmanager
def writing(namespace: Namespace, session: str) -> Iterator[Account]:
    """A time in which the agent writes, from before its begin to after its end; the account is filled in then."""
    account = Account([], [], [])
    lines: list[str] = []
    process = namespace.kubectl.open("exec", "deployment/assistant", "--", "python", "-c", WRITER, session)
    assert process.stdout is not None
    reading = Thread(target=lines.extend, args=(process.stdout,), daemon=True)
    reading.start()
    try:

        def until_written(count: int) -> None:
            namespace.cluster.wait_until(
                f"{count} writes", lambda: len(lines) >= count, seconds=60, explain=lambda: "".join(lines)
            )

        until_written(10)
        yield account
        until_written(len(lines) + 10)
    finally:
        namespace.kubectl.execute("deployment/assistant", "touch", f"/tmp/stop-{session}")
        process.wait(timeout=120)
        reading.join(timeout=10)
        process.stdout.close()
    said = "".join(lines)
    assert process.returncode == 0, said
    found = json.loads(said.splitlines()[-1])
    account.acknowledged, account.stored, account.failed = found["acknowledged"], found["stored"], found["failed"]


def postgres(installed: Installation, namespace: str, image: str) -> list[dict[str, Any]]:
    """The chart's Postgres for development, on the node that stays."""
    name, _, tag = image.rpartition(":")
    block = "development.postgres"
    values = [f"{block}.enabled=true", f"{block}.image.repository={name}", f"{block}.image.tag={tag}"]
    values += [f"{block}.userID=65532", f"{block}.password=a-word", f"{block}.storage.size=256Mi"]
    text = installed.cluster.helm(
        "template",
        "database",
        str(CHART),
        "--namespace",
        namespace,
        "--show-only=templates/development-postgres.yaml",
        *(part for value in values for part in ("--set", value)),
    )
    objects = [item for item in yaml.safe_load_all(text) if item]
    for item in objects:
        if item["kind"] == "StatefulSet":
            item["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": STAYS}
    return objects


@pytest.fixture(scope="module")
def team(installed: Installation, postgres_image: str, local_cluster: LocalCluster) -> Iterator[Namespace]:
    """A Postgres, a ready store on it, and an agent on the node that stays."""
    installed.wait_for_leader()
    with installed.cluster.new_namespace("external-store") as namespace:
        namespace.kubectl("label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted")
        template = agent_pod(installed.service_image, "team")
        template["spec"]["nodeSelector"] = {"kubernetes.io/hostname": STAYS}
        namespace.apply(external_store("team", SECRET), agent_memory(tools="all", agent={"template": template}))
        wait_for(namespace, "memorystore", "team", "Ready", "False", reason="SecretMissing")
        namespace.apply(*postgres(installed, namespace.name, postgres_image))
        wait_for(namespace, "memorystore", "team", "Ready", "True")
        wait_for(namespace, "agentmemory", "assistant", "Ready", "True")
        yield namespace


def until_two_serve(team: Namespace) -> None:
    def serving() -> bool:
        status = team.kubectl.get("memorystore", "team")["status"]
        return bool(status.get("readyReplicas") == 2 and len(store_pods(team)) == 2)

    team.cluster.wait_until("two ready pods", serving, seconds=POD_READY_SECONDS, explain=team.describe)
    wait_for(team, "memorystore", "team", "Ready", "True")


def test_a_store_without_a_count_has_two_pods_on_two_nodes_and_a_budget(team: Namespace) -> None:
    until_two_serve(team)
    assert {pod["spec"]["nodeName"] for pod in store_pods(team)} == {STAYS, DRAINED}
    budget = team.kubectl.get("poddisruptionbudget", "team-memory")
    assert budget["spec"]["minAvailable"] == 1
    assert budget["status"]["disruptionsAllowed"] == 1


def test_the_agent_remembers(team: Namespace) -> None:
    assert say(team, "My bicycle is green.", session="one")["written"] == ["stored"]
    assert "green" in say(team, "What colour is my bicycle?", session="two")["block"]


def test_a_drained_node_loses_no_write(team: Namespace, local_cluster: LocalCluster) -> None:
    until_two_serve(team)
    with writing(team, "drain") as account:
        try:
            local_cluster.drain(DRAINED, seconds=POD_READY_SECONDS)
            until_two_serve(team)
        finally:
            local_cluster.kubectl("uncordon", DRAINED)
    account.balance()
    assert account.failed == []


def test_a_rolling_update_loses_no_write(team: Namespace) -> None:
    until_two_serve(team)
    before = fingerprint(store_pods(team))
    agent = fingerprint(agent_pods(team))
    with writing(team, "update") as account:
        team.kubectl.patch("memorystore", "team", {"spec": {"longTerm": {"defaultTopK": 6}}})

        def is_replaced() -> bool:
            return not {uid for uid, _ in before} & {uid for uid, _ in fingerprint(store_pods(team))}

        team.cluster.wait_until("new pods", is_replaced, seconds=2 * POD_READY_SECONDS, explain=team.describe)
        until_two_serve(team)
    account.balance()
    assert account.failed == []
    assert fingerprint(agent_pods(team)) == agent


def test_an_upgrade_to_another_image_loses_no_write(
    team: Namespace, memplane: Installation, newer_service_image: str
) -> None:
    until_two_serve(team)
    agent = fingerprint(agent_pods(team))

    def images() -> set[str]:
        return {container["image"] for pod in store_pods(team) for container in pod["spec"]["containers"]}

    try:
        with writing(team, "upgrade") as account:
            replace(memplane, service_image=newer_service_image).upgrade()
            team.cluster.wait_until(
                "new pods", lambda: images() == {newer_service_image}, seconds=POD_READY_SECONDS, explain=team.describe
            )
            until_two_serve(team)
        account.balance()
        assert account.failed == []
        assert fingerprint(agent_pods(team)) == agent
    finally:
        memplane.upgrade()
    team.cluster.wait_until(
        "the pods of before", lambda: images() == {memplane.service_image}, seconds=POD_READY_SECONDS
    )


def test_the_kill_of_either_pod_loses_no_write(team: Namespace, local_cluster: LocalCluster) -> None:
    until_two_serve(team)
    for number in range(2):
        pod = sorted(store_pods(team), key=lambda pod: str(pod["metadata"]["name"]))[number]
        with writing(team, f"kill-{number}") as account:
            local_cluster.kill_pod_processes(pod)
            team.cluster.wait_until(
                "a restart", lambda: any(n > 0 for _, n in fingerprint(store_pods(team))), seconds=60
            )
            until_two_serve(team)
        account.balance()


def test_a_stopped_postgres_degrades_the_agent_and_heals_without_a_restart(team: Namespace) -> None:
    until_two_serve(team)
    before = fingerprint(agent_pods(team))
    team.kubectl("scale", "statefulset", "database-memplane-postgres", "--replicas=0")
    wait_for(team, "agentmemory", "assistant", "MemoryDegraded", "True", reason="StoreNotReady", seconds=30)
    wait_for(team, "memorystore", "team", "StorageReady", "False", seconds=10)
    answer = say(team, "Is anybody there?", session="outage")
    assert answer["written"] == ["queued"]
    assert fingerprint(agent_pods(team)) == before
    team.kubectl("scale", "statefulset", "database-memplane-postgres", "--replicas=1")
    wait_for(team, "agentmemory", "assistant", "MemoryDegraded", "False")

    def is_delivered() -> bool:
        return "Is anybody there?" in say(team, "Who asked if anybody is there?", session="later")["block"]

    team.cluster.wait_until("what waited is delivered", is_delivered, seconds=90)
    assert fingerprint(agent_pods(team)) == before
