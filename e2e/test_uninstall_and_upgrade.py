"""Namespaces go without hanging, an uninstalled release leaves stores that serve, an upgrade disturbs none of them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.clusters import Namespace
from e2e.installation import (
    CHART,
    Installation,
    agent_memory,
    agent_pods,
    fingerprint,
    local_store,
    say,
    store_pods,
    until_it_reaches_its_store,
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


@pytest.fixture(scope="module")
def newer_chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart with a CRD that has changed."""
    newer = tmp_path_factory.mktemp("chart") / "memplane"
    shutil.copytree(CHART, newer)
    path = newer / "files" / "crds" / "memplane.dev_modelapis.yaml"
    text = path.read_text()
    assert "shortNames: [mapi]" in text
    path.write_text(text.replace("shortNames: [mapi]", "shortNames: [mapi, endpoint]"))
    return newer


def images_of(pods: list[dict[str, Any]]) -> set[str]:
    return {container["image"] for pod in pods for container in pod["spec"]["containers"]}


def test_another_operator_and_a_changed_crd_touch_no_store_and_no_agent(
    team: Namespace, memplane: Installation, newer_chart: Path, newer_operator_image: str
) -> None:
    before = untouched(team)
    assert images_of(memplane.operators()) == {memplane.operator_image}
    replace(memplane, operator_image=newer_operator_image).upgrade(chart=newer_chart)
    names = memplane.cluster.kubectl.get("crd", "modelapis.memplane.dev")["spec"]["names"]
    assert names["shortNames"] == ["mapi", "endpoint"]
    memplane.wait_for_leader()
    assert images_of(memplane.operators()) == {newer_operator_image}
    assert say(team, "After the upgrade.", session="upgraded")["written"] == ["stored"]
    # A binding that is made now is answered by the operator that came: it has read the store and left it alone.
    team.apply(agent_memory("later", "team"))
    wait_for(team, "agentmemory", "later", "Ready", "True", seconds=60)
    wait_for(team, "memorystore", "team", "Ready", "True", seconds=30)
    assert untouched(team) == before


def test_another_store_image_is_rolled_out_and_memory_is_kept(
    team: Namespace, memplane: Installation, newer_service_image: str
) -> None:
    assert say(team, "My tent is orange.", session="older")["written"] == ["stored"]
    agents = fingerprint(agent_pods(team))
    replace(memplane, service_image=newer_service_image).upgrade()
    team.cluster.wait_until(
        "the newer store",
        lambda: images_of(store_pods(team)) == {newer_service_image},
        seconds=60,
        explain=team.describe,
    )
    wait_for(team, "memorystore", "team", "Ready", "True")
    wait_for(team, "agentmemory", "assistant", "MemoryDegraded", "False")
    until_it_reaches_its_store(team)
    assert "orange" in say(team, "What colour is my tent?", session="newer")["block"]
    assert fingerprint(agent_pods(team)) == agents
    memplane.upgrade()
    team.cluster.wait_until(
        "the older store", lambda: images_of(store_pods(team)) == {memplane.service_image}, seconds=60
    )
    wait_for(team, "memorystore", "team", "Ready", "True")
    until_it_reaches_its_store(team)
    assert "orange" in say(team, "What colour is my tent?", session="older-again")["block"]


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
        memplane.cluster.wait_until(
            "the Deployment of the store", lambda: namespace.kubectl.find("deployment", "team-memory")
        )
        kubectl("scale", "deployment", "memplane-operator", "--replicas=0")
        try:
            memplane.cluster.wait_until("no operator", lambda: not memplane.operators())
            memplane.cluster.kubectl("delete", "namespace", namespace.name, "--timeout=100s")
        finally:
            kubectl("scale", "deployment", "memplane-operator", "--replicas=1")
    memplane.wait_for_leader(90)
