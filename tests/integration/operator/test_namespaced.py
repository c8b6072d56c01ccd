"""An operator that serves one namespace, with a Role in it and no permission anywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.clusters import LocalCluster
from tests.integration.operator.processes import OperatorProcess, Reports, leading
from tests.integration.operator.test_process import bring_up, reports, store

__all__ = ["reports"]

NAME = "memplane-operator"
FOR_ALL_NAMESPACES = {"namespaces", "clusterrolebindings", "clusterroles"}


def role(namespace: str) -> list[dict[str, Any]]:
    """What the operator may do of `role.yaml`, as far as it is about one namespace."""
    documents = list(yaml.safe_load_all((Path(__file__).parent / "role.yaml").read_text()))
    rules = [
        rule
        for document in documents
        if document["kind"] in ("ClusterRole", "Role") and document["metadata"]["name"] == NAME
        for rule in document["rules"]
        if not FOR_ALL_NAMESPACES & set(rule["resources"])
    ]
    meta = {"name": NAME, "namespace": namespace}
    api = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": api, "kind": "Role", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", **meta}],
        },
    ]


@pytest.fixture
def elsewhere(server: LocalCluster) -> Iterator[str]:
    with server.new_namespace("elsewhere") as made:
        yield made.name


def test_an_operator_of_one_namespace_serves_it_and_touches_nothing_elsewhere(
    server: LocalCluster, namespace: str, elsewhere: str, reports: Reports, tmp_path: Path
) -> None:
    server.kubectl.apply(*role(namespace))
    kubeconfig = server.kubeconfig_of(namespace, NAME)
    settings = {"WATCH_NAMESPACES": namespace, "NAMESPACE": namespace}
    server.kubectl.in_namespace(elsewhere).apply(store("notes"))
    mark = server.audit.mark()
    with leading(server, kubeconfig, tmp_path, "one-namespace", reports, **settings) as operator:
        bring_up(server, namespace, "notes")
        kubectl = server.kubectl.in_namespace(namespace)
        uid = kubectl.get("service", "notes-memory")["metadata"]["uid"]
        kubectl("delete", "service", "notes-memory", "--wait=false")
        server.wait_until(
            "the service is back",
            lambda: (found := kubectl.find("service", "notes-memory")) and found["metadata"]["uid"] != uid,
            explain=operator.text,
        )
    writes = server.audit.writes(mark, user=f"system:serviceaccount:{namespace}:{NAME}")
    assert {write.namespace for write in writes} == {namespace}
    assert all(write.changed_something for write in writes), [str(write) for write in writes]
    other = server.kubectl.in_namespace(elsewhere)
    assert "status" not in other.get("memorystore", "notes")
    assert [item["metadata"]["name"] for kind in ("deployment", "service") for item in other.list(kind)] == []
    assert [line for line in operator.log() if line.get("level") in ("warning", "error")] == []


def test_a_namespace_that_is_taken_away_leaves_the_others_served(
    server: LocalCluster, namespace: str, elsewhere: str, reports: Reports, tmp_path: Path
) -> None:
    _, its_role, its_binding = role(elsewhere)
    its_binding["subjects"] = [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}]
    server.kubectl.apply(*role(namespace), its_role, its_binding)
    kubeconfig = server.kubeconfig_of(namespace, NAME)
    settings = {"WATCH_NAMESPACES": f"{namespace},{elsewhere}", "NAMESPACE": namespace, "RESYNC_SECONDS": "5"}
    kubectl = server.kubectl.in_namespace(namespace)

    def is_refused(operator: OperatorProcess) -> bool:
        return any(line.get("message") == "namespace not listed" for line in operator.log())

    with leading(server, kubeconfig, tmp_path, "two-namespaces", reports, **settings) as operator:
        bring_up(server, namespace, "served")
        assert not is_refused(operator)
        server.kubectl.in_namespace(elsewhere)("delete", "rolebinding", NAME)
        server.wait_until("the refusal", lambda: is_refused(operator), explain=operator.text)
        kubectl("delete", "service", "served-memory", "--wait=false")
        server.wait_until(
            "the service is back", lambda: kubectl.find("service", "served-memory"), explain=operator.text
        )
    with leading(server, kubeconfig, tmp_path, "one-is-gone", reports, **settings) as operator:
        bring_up(server, namespace, "later")
        assert is_refused(operator)
