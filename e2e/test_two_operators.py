"""Two operators: one works, the other is ready to; the Lease passes on at once when it is let go, and soon if not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from e2e.cluster.clusters import LocalCluster, Namespace
from e2e.installation import OPERATOR, SYSTEM, Installation, agent_memory, conditions, local_store, wait_for

HANDED_OVER_WITHIN_SECONDS = 3
TAKEN_OVER_WITHIN_SECONDS = 20


@pytest.fixture(scope="module")
def two(installed: Installation) -> Iterator[Installation]:
    """Two operators, both ready."""
    installed.upgrade(replicas=2)
    installed.wait_for_leader()
    yield installed
    installed.upgrade()


def standby(two: Installation) -> str:
    (other,) = {str(pod["metadata"]["name"]) for pod in two.operators()} - {two.wait_for_leader()}
    return other


def until_two_are_ready(two: Installation) -> None:
    def ready() -> bool:
        states = [status for pod in two.operators() for status in pod["status"].get("containerStatuses") or ()]
        return len(states) == 2 and all(status["ready"] for status in states)

    two.cluster.wait_until("two ready operators", ready, seconds=120, explain=two.log)


def works(namespace: Namespace, name: str) -> None:
    """A new binding without a store is answered: somebody leads and reconciles."""
    namespace.apply(agent_memory(name, "missing"))
    wait_for(namespace, "agentmemory", name, "Ready", "False", reason="WaitingForStore", seconds=20)


def test_one_leads_and_both_are_ready(two: Installation, namespace: Namespace) -> None:
    until_two_are_ready(two)
    assert standby(two) != two.leader()
    works(namespace, "first")


def test_a_leader_that_is_told_to_stop_hands_over(
    two: Installation, namespace: Namespace, local_cluster: LocalCluster
) -> None:
    until_two_are_ready(two)
    leader, other = two.wait_for_leader(), standby(two)
    kubectl = two.cluster.kubectl.in_namespace(SYSTEM)
    mark = local_cluster.audit.mark()
    kubectl.delete("pod", leader, wait=False)

    # Whoever is first: the standby, or a pod that the Deployment made meanwhile.
    def taken() -> dict[str, Any] | None:
        spec: dict[str, Any] = kubectl.get("lease", OPERATOR)["spec"]
        return spec if spec["holderIdentity"] not in ("", leader) else None

    taken_at = datetime.fromisoformat(
        two.cluster.wait_until("another leader", taken, seconds=TAKEN_OVER_WITHIN_SECONDS)["acquireTime"]
    )
    seen = local_cluster.audit.writes(mark, namespace=SYSTEM)
    told = next(write for write in seen if (write.verb, write.name) == ("delete", leader))
    took = (taken_at - told.at).total_seconds()
    story = "\n".join(str(write) for write in seen)
    assert took < HANDED_OVER_WITHIN_SECONDS, f"{took:.1f} s from {leader} to {other}\n{story}"
    works(namespace, "handed-over")


def test_a_leader_that_is_killed_is_followed(
    two: Installation, namespace: Namespace, local_cluster: LocalCluster
) -> None:
    until_two_are_ready(two)
    leader = two.wait_for_leader()
    kubectl = two.cluster.kubectl.in_namespace(SYSTEM)
    pod = kubectl.get("pod", leader)
    killed_at = datetime.now(UTC)
    local_cluster.kill_pod_processes(pod)

    def renewed() -> bool:
        spec = kubectl.get("lease", OPERATOR)["spec"]
        return bool(spec["holderIdentity"]) and datetime.fromisoformat(spec["renewTime"]) > killed_at

    two.cluster.wait_until("the Lease renewed", renewed, seconds=TAKEN_OVER_WITHIN_SECONDS, explain=two.log)
    works(namespace, "taken-over")


def test_only_the_leader_writes(two: Installation, namespace: Namespace, local_cluster: LocalCluster) -> None:
    until_two_are_ready(two)
    restarts = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in two.operators()}
    assert len(restarts) == 2
    mark = local_cluster.audit.mark()
    namespace.apply(local_store("written"), agent_memory("reader", "written"))
    wait_for(namespace, "memorystore", "written", "Ready", "True")
    user = f"system:serviceaccount:{SYSTEM}:{OPERATOR}"
    made = local_cluster.audit.writes(mark, user=user, namespace=namespace.name, where=lambda write: write.code == 201)
    names = [f"{write.resource}/{write.name}" for write in made if write.resource != "events"]
    assert names
    assert sorted(names) == sorted(set(names)), "an object was made twice"
    assert conditions(namespace, "memorystore", "written")["Ready"]["status"] == "True"
