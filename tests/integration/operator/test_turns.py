"""A new release that changes the stores' pods, against real controllers: the stores take turns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.clusters import LocalCluster
from tests.integration.operator.processes import OperatorProcess, Reports
from tests.integration.operator.test_process import kubeconfig, reports, store, wait_for

__all__ = ["kubeconfig", "reports"]

STORES = ("first", "second", "third")
NEXT = "localhost/memplane:next"


@contextmanager
def no_node_for_new_pods(server: LocalCluster) -> Iterator[None]:
    """A time in which no roll-out can end: pods that run go on, new ones wait for a node."""
    nodes = [item["metadata"]["name"] for item in server.kubectl.list("node")]
    server.kubectl("cordon", *nodes)
    try:
        yield
    finally:
        server.kubectl("uncordon", *nodes)


def newer(server: LocalCluster, namespace: str) -> list[str]:
    found = []
    for name in STORES:
        deployment = server.kubectl.in_namespace(namespace).get("deployment", f"{name}-memory")
        if deployment["spec"]["template"]["spec"]["containers"][0]["image"] == NEXT:
            found.append(name)
    return found


def test_stores_take_turns_when_a_new_release_changes_their_pods(
    server: LocalCluster, namespace: str, kubeconfig: Path, reports: Reports, tmp_path: Path
) -> None:
    kubectl = server.kubectl.in_namespace(namespace)
    operator = OperatorProcess(server, kubeconfig, tmp_path, "now", reports)
    try:
        operator.wait_to_lead()
        kubectl.apply(*(store(name) for name in STORES))
        for name in STORES:
            wait_for(server, namespace, ("memorystore", name), ("Progressing", "False RolloutComplete"))
            wait_for(server, namespace, ("memorystore", name), ("Ready", "True Available"))
    finally:
        assert operator.stop() == 0, operator.text()
    changed = {"SERVICE_IMAGE": NEXT, "ROLLOUTS_AT_ONCE": "1"}
    operator = OperatorProcess(server, kubeconfig, tmp_path, "next", reports, **changed)
    try:
        with no_node_for_new_pods(server):
            operator.wait_to_lead()
            server.wait_until("a store is rolled out", lambda: newer(server, namespace), explain=operator.text)
            (rolling,) = newer(server, namespace)
            for name in set(STORES) - {rolling}:
                wait_for(server, namespace, ("memorystore", name), ("Progressing", "False RolloutWaiting"))
                wait_for(server, namespace, ("memorystore", name), ("Ready", "True Available"))
            wait_for(server, namespace, ("memorystore", rolling), ("Progressing", "True RolloutInProgress"))
            assert newer(server, namespace) == [rolling]
            assert "memplane_operator_rollouts_waiting 2.0" in operator.metrics()
        for name in STORES:
            wait_for(server, namespace, ("memorystore", name), ("Progressing", "False RolloutComplete"))
        assert newer(server, namespace) == list(STORES)
        assert "memplane_operator_rollouts_waiting 0.0" in operator.metrics()
    finally:
        assert operator.stop() == 0, operator.text()
