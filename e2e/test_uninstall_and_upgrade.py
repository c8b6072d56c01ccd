"""Namespaces go without hanging, an uninstalled release leaves stores that serve, an upgrade disturbs none of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from e2e.cluster.clusters import Namespace
from e2e.installation import (
    CHART,
    Installation,
    agent_pods,
    fingerprint,
    local_store,
    say,
    store_pods,
    wait_for,
)

CRDS = ("memorystores", "agentmemories", "modelapis")


def untouched(team: Namespace) -> tuple[object, ...]:
    deployments = [team.kubectl.get("deployment", name) for name in ("team-memory", "assistant")]
    return (
        [item["spec"]["template"] for item in deployments],
        fingerprint(store_pods(team)),
        fingerprint(agent_pods(team)),
    )


def test_a_chart_with_a_changed_crd_and_another_operator_keeps_every_store_serving(
    team: Namespace, memplane: Installation, tmp_path: Path
) -> None:
    before = untouched(team)
    newer = tmp_path / "memplane"
    shutil.copytree(CHART, newer)
    path = newer / "files" / "crds" / "memplane.dev_modelapis.yaml"
    text = path.read_text()
    assert "shortNames: [mapi]" in text
    path.write_text(text.replace("shortNames: [mapi]", "shortNames: [mapi, endpoint]"))
    operators = fingerprint(memplane.operators())
    memplane.cluster.helm(
        "upgrade",
        memplane.release,
        str(newer),
        "--namespace",
        memplane.namespace,
        "--wait",
        *memplane.values(podAnnotations__version="newer"),
    )
    names = memplane.cluster.kubectl.get("crd", "modelapis.memplane.dev")["spec"]["names"]
    assert names["shortNames"] == ["mapi", "endpoint"]
    memplane.wait_for_leader()
    assert fingerprint(memplane.operators()) != operators
    assert say(team, "After the upgrade.", session="upgraded")["written"] == ["stored"]
    wait_for(team, "memorystore", "team", "Ready", "True", seconds=30)
    assert untouched(team) == before


def test_an_uninstalled_release_leaves_crds_stores_and_memory_and_is_taken_up_again(
    team: Namespace, memplane: Installation
) -> None:
    before = untouched(team)
    assert say(team, "My hotel is called Aurora.", session="before")["written"] == ["stored"]
    memplane.uninstall()
    assert memplane.operators() == []
    for plural in CRDS:
        assert memplane.cluster.kubectl.find("crd", f"{plural}.memplane.dev") is not None
    answer = say(team, "What is my hotel called?", session="without-an-operator")
    assert "Aurora" in answer["block"]
    assert untouched(team) == before
    memplane.upgrade()
    memplane.wait_for_leader()
    wait_for(team, "memorystore", "team", "Ready", "True", seconds=60)
    wait_for(team, "agentmemory", "assistant", "MemoryDegraded", "False", seconds=60)
    assert untouched(team) == before


def test_a_namespace_with_a_store_and_an_agent_goes(memplane: Installation, team: Namespace) -> None:
    with memplane.cluster.new_namespace("goes") as namespace:
        namespace.apply(local_store())
        wait_for(namespace, "memorystore", "team", "Ready", "True")
        memplane.cluster.kubectl("delete", "namespace", namespace.name, "--timeout=100s")
        assert memplane.cluster.kubectl.find("namespace", namespace.name) is None


def test_a_namespace_goes_while_no_operator_runs(memplane: Installation) -> None:
    kubectl = memplane.cluster.kubectl.in_namespace(memplane.namespace)
    with memplane.cluster.new_namespace("alone") as namespace:
        namespace.apply(local_store())
        wait_for(namespace, "memorystore", "team", "Reconciling", "True", seconds=30)
        kubectl("scale", "deployment", "memplane-operator", "--replicas=0")
        try:
            memplane.cluster.wait_until("no operator", lambda: not memplane.operators())
            memplane.cluster.kubectl("delete", "namespace", namespace.name, "--timeout=100s")
        finally:
            kubectl("scale", "deployment", "memplane-operator", "--replicas=1")
    memplane.wait_for_leader(90)
