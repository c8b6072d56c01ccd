"""An upgrade without Helm: `kubectl apply --server-side` of manifests/ over those of an older release."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import home
from e2e.cluster.clusters import LocalCluster
from e2e.cluster.kubectl import Kubectl
from tests.integration.operator.processes import Reports, leading
from tests.integration.operator.test_process import USER, agent, bring_up, reports, wait_for

__all__ = ["reports"]

Manifest = dict[str, Any]
SYSTEM = "memplane-system"
NEWER = [home.REPOSITORY / "manifests" / name for name in ("crds.yaml", "install.yaml")]
CHILDREN = ("deployment", "service", "serviceaccount", "configmap", "role", "rolebinding", "networkpolicy")
DROPPED = "shareAcrossUsers"
"""A field, with a default, that the older release's AgentMemory does not have."""


def documents(file: Path) -> list[Manifest]:
    return [item for item in yaml.safe_load_all(file.read_text(encoding="utf-8")) if item]


def apply(kubectl: Kubectl, *files: Path) -> str:
    """As the page says it: nothing is forced."""
    return "".join(kubectl("apply", "--server-side", "-f", str(file)) for file in files)


def older(manifest: Manifest) -> Manifest:
    """What a release before this one had in place of it: a field, a rule, a column and a permission are not there."""
    made = copy.deepcopy(manifest)
    name = made["metadata"]["name"]
    if made["kind"] == "CustomResourceDefinition" and made["spec"]["names"]["kind"] == "AgentMemory":
        version = made["spec"]["versions"][0]
        version["additionalPrinterColumns"].pop()
        schema = version["schema"]["openAPIV3Schema"]
        schema["x-kubernetes-validations"].pop()
        del schema["properties"]["spec"]["properties"][DROPPED]
    if made["kind"] == "ClusterRole" and name == "memplane-operator":
        rules = [rule for rule in made["rules"] if rule["resources"] != ["pods"]]
        assert len(rules) == len(made["rules"]) - 1
        made["rules"] = rules
    if made["kind"] == "Deployment":
        (container,) = made["spec"]["template"]["spec"]["containers"]
        container["image"] = "localhost/memplane-operator:older"
    return made


@pytest.fixture(scope="module")
def older_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("older")
    made = []
    for file in NEWER:
        content = [older(item) for item in documents(file)]
        assert content != documents(file)
        made.append(folder / file.name)
        made[-1].write_text(yaml.safe_dump_all(content, sort_keys=False), encoding="utf-8")
    return made


@pytest.fixture
def installed(server: LocalCluster, older_files: list[Path]) -> Iterator[Path]:
    """The older release, installed; gives the kubeconfig of its operator. What only this test needs goes with it."""
    apply(server.kubectl, *older_files)
    try:
        yield server.kubeconfig_of(SYSTEM, "memplane-operator")
    finally:
        apply(server.kubectl, NEWER[0])
        for kind in ("deployment", "service", "networkpolicy", "poddisruptionbudget"):
            server.kubectl.in_namespace(SYSTEM)("delete", kind, "--all", "--wait=false")


def state(kubectl: Kubectl, *names: tuple[str, str]) -> dict[tuple[str, str], Manifest]:
    return {name: kubectl.get(*name) for name in names}


def test_plain_manifests_upgrade_a_release_and_disturb_nothing_that_is_at_rest(
    server: LocalCluster, namespace: str, installed: Path, reports: Reports, tmp_path: Path
) -> None:
    kubectl = server.kubectl.in_namespace(namespace)
    with leading(server, installed, tmp_path, "older", reports) as operator:
        bring_up(server, namespace, "rests")
    own = (("memorystore", "rests"), ("agentmemory", "rests-bot"))
    before = state(kubectl, *own)
    children = {
        (kind, item["metadata"]["name"]): item["metadata"]["resourceVersion"]
        for kind in CHILDREN
        for item in kubectl.list(kind, selector="app.kubernetes.io/managed-by=memplane")
    }
    assert len(children) > len(CHILDREN)
    assert DROPPED not in before[own[1]]["spec"]
    assert f".spec.{DROPPED}: field not declared in schema" in kubectl.refusal(
        "apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(agent("new", "rests", **{DROPPED: True}))
    )

    said = apply(server.kubectl, *NEWER)
    assert "conflict" not in said
    again = apply(server.kubectl, *NEWER)
    assert again == said, "it may be repeated"
    for plural in ("memorystores", "agentmemories", "modelapis"):
        server.kubectl("wait", "--for=condition=Established", f"crd/{plural}.memplane.dev", "--timeout=60s")
    live = server.kubectl.get("crd", "agentmemories.memplane.dev")["spec"]["versions"][0]
    wanted = next(item for item in documents(NEWER[0]) if item["spec"]["names"]["kind"] == "AgentMemory")
    columns = wanted["spec"]["versions"][0]["additionalPrinterColumns"]
    assert [item["name"] for item in live["additionalPrinterColumns"]] == [item["name"] for item in columns]
    image = server.kubectl.in_namespace(SYSTEM).get("deployment", "memplane-operator")["spec"]["template"]["spec"]
    assert not image["containers"][0]["image"].endswith(":older")

    mark = server.audit.mark()
    with leading(server, installed, tmp_path, "newer", reports) as operator:
        # Once it has answered what is new, it has looked at everything that was there.
        bring_up(server, namespace, "comes")
        kubectl.apply(agent("new", "comes", **{DROPPED: True}))
        wait_for(server, namespace, ("agentmemory", "new"), ("Ready", "True Bound"))
        after = state(kubectl, *own)
        for name in own:
            for field in ("uid", "generation", "resourceVersion"):
                assert after[name]["metadata"][field] == before[name]["metadata"][field], (name, field)
            assert after[name]["status"] == before[name]["status"]
        assert after[own[0]]["spec"] == before[own[0]]["spec"]
        assert after[own[1]]["spec"] == {**before[own[1]]["spec"], DROPPED: False}, "the new field has its default"
        for (kind, name), version in children.items():
            assert kubectl.get(kind, name)["metadata"]["resourceVersion"] == version, f"{kind}/{name} was written"
        written = server.audit.writes(mark, user=USER, namespace=namespace)
        assert [str(write) for write in written if write.name.startswith("rests")] == []
    assert not any("forbidden" in str(line).lower() for line in operator.log()), operator.text()
