"""`memplane why` with the real kubectl against objects that the operator has written the status of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import programs
from e2e.cluster.clusters import LocalCluster
from tests.integration.operator.processes import OperatorProcess
from tests.integration.operator.test_process import (
    agent,
    bring_up,
    kubeconfig,
    operator,
    reports,
    store,
    wait_for,
)

__all__ = ["kubeconfig", "operator", "reports"]


class Command:
    """The command line as a person at a kubeconfig runs it."""

    def __init__(self, kubeconfig: Path, namespace: str, home: Path) -> None:
        self._flags = ("--kubeconfig", str(kubeconfig), "--namespace", namespace)
        path = os.pathsep.join([str(programs.path("kubectl").parent), "/usr/bin", "/bin"])
        self._environment = {"PATH": path, "HOME": str(home)}

    def __call__(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "memory_service.cli",
                "why",
                *arguments,
                *(() if "-f" in arguments else self._flags),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=self._environment,
            **options,
        )


@pytest.fixture
def why(server: LocalCluster, namespace: str, tmp_path: Path) -> Command:
    return Command(server.kubeconfig, namespace, tmp_path)


def test_an_agent_that_is_bound_is_well(
    server: LocalCluster, namespace: str, operator: OperatorProcess, why: Command
) -> None:
    bring_up(server, namespace, "well")
    for what in ("agentmemory/well-bot", "agentmem/well-bot", "memorystores.memplane.dev/well"):
        done = why(what)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[0].endswith(" is well.")


def test_a_degraded_agent_is_explained_down_to_its_store(
    server: LocalCluster, namespace: str, operator: OperatorProcess, why: Command
) -> None:
    bring_up(server, namespace, "down")
    kubectl = server.kubectl.in_namespace(namespace)
    kubectl("scale", "memorystore", "down", "--replicas=0")
    wait_for(server, namespace, ("agentmemory", "down-bot"), ("MemoryDegraded", "True StoreNotReady"))
    done = why("agentmemory/down-bot")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith(f"AgentMemory {namespace}/down-bot is degraded.\n")
    assert "forgetful, not unavailable" in done.stdout
    assert f"1. MemoryStore {namespace}/down: set `spec.replicas` to 1 or more." in done.stdout
    found = json.loads(why("agentmemory/down-bot", "-o", "json").stdout)
    assert [one["reason"] for one in found["findings"] if one["is_wrong"]] == ["StoreNotReady", "ScaledToZero"]
    printed = kubectl("get", "agentmem,memstore,mapi", "-o", "json")
    again = why("agentmem/down-bot", "-f", "-", input=printed)
    assert again.stdout == done.stdout, "what kubectl printed says as much"


def test_a_missing_model_is_found_behind_a_waiting_agent(
    server: LocalCluster, namespace: str, operator: OperatorProcess, why: Command
) -> None:
    models = {"summarization": {"modelAPI": "nowhere", "model": "m"}}
    server.kubectl.in_namespace(namespace).apply(store("waits", models=models), agent("waits-bot", "waits"))
    wait_for(server, namespace, ("agentmemory", "waits-bot"), ("Ready", "False WaitingForStore"))
    done = why("agentmem/waits-bot")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ModelAPINotFound" in done.stdout
    assert f"ModelAPI {namespace}/nowhere was not read: " in done.stdout


def test_what_is_not_there_ends_with_2(server: LocalCluster, namespace: str, why: Command) -> None:
    done = why("agentmem/nobody")
    assert (done.returncode, done.stdout) == (2, "")
    assert "agentmemories.memplane.dev/nobody does not exist; `--namespace` names where to look" in done.stderr


def test_a_cluster_that_does_not_answer_ends_with_3(server: LocalCluster, tmp_path: Path) -> None:
    config = json.loads(server.kubectl("config", "view", "--raw", "-o", "json"))
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))
    done = Command(file, "default", tmp_path)("agentmem/nobody")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "cannot be read: " in done.stderr


def test_the_snippet_is_a_patch_that_binds_the_workload(
    server: LocalCluster, namespace: str, operator: OperatorProcess, why: Command, tmp_path: Path
) -> None:
    kubectl = server.kubectl.in_namespace(namespace)
    containers = [{"name": "main", "image": "localhost/agent"}]
    labels = {"app": "mine"}
    kubectl.apply(
        store("mine"),
        agent("mine-bot", "mine", agent={"workloadRef": {"kind": "Deployment", "name": "mine"}}),
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "mine"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
            },
        },
    )
    wait_for(server, namespace, ("agentmemory", "mine-bot"), ("Ready", "True Bound"))
    done = why("agentmem/mine-bot", "--snippet")
    assert done.returncode == 0, done.stdout + done.stderr
    patch = tmp_path / "patch.yaml"
    patch.write_text(done.stdout)
    assert "patched" in kubectl("patch", "deployment/mine", "--patch-file", str(patch))
    template = kubectl.get("deployment", "mine")["spec"]["template"]
    (main,) = template["spec"]["containers"]
    assert (main["name"], main["image"]) == ("main", "localhost/agent")
    assert [mount["mountPath"] for mount in main["volumeMounts"]] == ["/var/run/memplane"]
    assert template["metadata"]["labels"] == {"app": "mine", "memplane.dev/binding": "mine-bot"}
    assert template["spec"]["serviceAccountName"] == "mine-bot"
    (volume,) = template["spec"]["volumes"]
    assert volume["projected"]["sources"][1]["serviceAccountToken"]["audience"] == f"memplane:{namespace}/mine"
    assert "no change" in kubectl("patch", "deployment/mine", "--patch-file", str(patch)), "it may be repeated"
