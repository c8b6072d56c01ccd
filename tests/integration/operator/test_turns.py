"""A new release that changes the stores' pods, against real controllers: the stores take turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.cluster.clusters import LocalCluster
from tests.integration.operator.processes import OperatorProcess, Reports, leading
from tests.integration.operator.test_process import kubeconfig, reports, store, wait_for

__all__ = ["kubeconfig", "reports"]

STORES = ("first", "second", "third")
NOW = "localhost/memplane:now"
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


def of_image(server: LocalCluster, namespace: str, stores: Sequence[str], image: str) -> list[str]:
    """The stores whose Deployment asks for an image."""
    found = []
    for name in stores:
        deployment = server.kubectl.in_namespace(namespace).get("deployment", f"{name}-memory")
        if deployment["spec"]["template"]["spec"]["containers"][0]["image"] == image:
            found.append(name)
    return found


def newer(server: LocalCluster, namespace: str) -> list[str]:
    return of_image(server, namespace, STORES, NEXT)


def test_stores_take_turns_when_a_new_release_changes_their_pods(
    server: LocalCluster, namespace: str, kubeconfig: Path, reports: Reports, tmp_path: Path
) -> None:
    kubectl = server.kubectl.in_namespace(namespace)
    with leading(server, kubeconfig, tmp_path, "now", reports) as operator:
        kubectl.apply(*(store(name) for name in STORES))
        for name in STORES:
            wait_for(server, namespace, ("memorystore", name), ("Progressing", "False RolloutComplete"))
            wait_for(server, namespace, ("memorystore", name), ("Ready", "True Available"))
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


def disk(name: str, namespace: str) -> dict[str, Any]:
    """A volume for a local store's claim: nothing provisions one for pods that do not run."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{name}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": namespace,
            "hostPath": {"path": "/nowhere"},
            "claimRef": {"name": f"{name}-memory-data", "namespace": namespace},
        },
    }


def local_store(name: str, namespace: str) -> dict[str, Any]:
    volume = {"size": "1Gi", "storageClassName": namespace}
    return store(name) | {"spec": {"storage": {"type": "local", "local": {"persistentVolume": volume}}}}


@contextmanager
def pods_that_take_their_time_to_end(server: LocalCluster, namespace: str, stores: Sequence[str]) -> Iterator[None]:
    """A time in which pods that are deleted stay, as long as one that finishes its requests."""
    kubectl = server.kubectl.in_namespace(namespace)

    def hold(finalizers: Sequence[str]) -> None:
        for name in stores:
            for pod in kubectl.list("pod", selector=f"memplane.dev/store={name}"):
                kubectl.patch("pod", pod["metadata"]["name"], {"metadata": {"finalizers": finalizers}})

    hold(["memplane.test/hold"])
    try:
        yield
    finally:
        hold([])


def is_ending(server: LocalCluster, namespace: str, store: str) -> bool:
    """Whether the controller has looked at a Deployment's newest template and its old pod has not ended yet."""
    deployment = server.kubectl.in_namespace(namespace).get("deployment", f"{store}-memory")
    status = deployment["status"]
    is_seen = status["observedGeneration"] == deployment["metadata"]["generation"]
    progress = {item["type"]: item["reason"] for item in status["conditions"]}["Progressing"]
    return is_seen and "updatedReplicas" not in status and progress == "NewReplicaSetAvailable"


def looked_at_again(server: LocalCluster, namespace: str, store: str) -> None:
    """Have the operator look at a store once more: it makes what is missing."""
    kubectl = server.kubectl.in_namespace(namespace)
    before = kubectl.get("service", f"{store}-memory")["metadata"]["uid"]
    kubectl.delete("service", f"{store}-memory")

    def is_there() -> bool:
        found = kubectl.find("service", f"{store}-memory")
        return found is not None and found["metadata"]["uid"] != before

    server.wait_until(f"the service of {store}", is_there)


def test_stores_of_one_pod_each_take_turns_there_and_back_however_long_a_pod_takes_to_end(
    server: LocalCluster, namespace: str, kubeconfig: Path, reports: Reports, tmp_path: Path
) -> None:
    kubectl = server.kubectl.in_namespace(namespace)
    kubectl("delete", "memorystore", "--all")
    stores = ("one", "two", "three")
    kubectl.apply(*(disk(name, namespace) for name in stores), *(local_store(name, namespace) for name in stores))

    def rolled_out() -> None:
        for name in stores:
            wait_for(server, namespace, ("memorystore", name), ("Progressing", "False RolloutComplete"))
            wait_for(server, namespace, ("memorystore", name), ("Ready", "True Available"))

    with leading(server, kubeconfig, tmp_path, "now", reports, SERVICE_IMAGE=NOW) as operator:
        rolled_out()
    for image in (NEXT, NOW):
        changed = {"SERVICE_IMAGE": image, "ROLLOUTS_AT_ONCE": "1"}
        operator = OperatorProcess(server, kubeconfig, tmp_path, image.rpartition(":")[2], reports, **changed)

        def begun(image: str = image) -> list[str]:
            return of_image(server, namespace, stores, image)

        try:
            with pods_that_take_their_time_to_end(server, namespace, stores):
                operator.wait_to_lead()
                (rolling,) = server.wait_until("a store is rolled out", begun, explain=operator.text)
                server.wait_until("its old pod ends", lambda: is_ending(server, namespace, rolling))  # noqa: B023
                wait_for(server, namespace, ("memorystore", rolling), ("Progressing", "True RolloutInProgress"))
                for name in set(stores) - {rolling}:
                    looked_at_again(server, namespace, name)
                    wait_for(server, namespace, ("memorystore", name), ("Progressing", "False RolloutWaiting"))
                assert begun() == [rolling]
            server.wait_until("all are of one image", lambda: len(begun()) == len(stores))
            rolled_out()
        finally:
            assert operator.stop() == 0, operator.text()
