"""An API server that restarts, and one whose watches go silent without an error, under a running operator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.clusters import LocalCluster
from tests.integration.operator.processes import OperatorProcess, Reports, gate, leading
from tests.integration.operator.test_process import bring_up, kubeconfig, reports, store, wait_for

__all__ = ["kubeconfig", "reports"]

PATIENT = {"LEASE_SECONDS": "240", "RENEW_DEADLINE_SECONDS": "180", "REQUEST_TIMEOUT_SECONDS": "5"}
"""Longer than a restart takes, so that the Lease is not what is tested."""


@pytest.fixture
def free_lease(server: LocalCluster) -> Iterator[None]:
    """Operators of other tests have let go of the Lease; whatever is left of it goes."""
    yield
    server.kubectl.in_namespace("memplane-system").delete("lease", "memplane-operator")


def comes_back(server: LocalCluster, namespace: str, kind: str, name: str, operator: OperatorProcess) -> None:
    kubectl = server.kubectl.in_namespace(namespace)
    uid = kubectl.get(kind, name)["metadata"]["uid"]
    kubectl("delete", kind, name, "--wait=false")
    server.wait_until(
        f"{kind} {name} is back",
        lambda: (found := kubectl.find(kind, name)) and found["metadata"]["uid"] != uid,
        seconds=60,
        explain=operator.text,
    )


@pytest.mark.usefixtures("free_lease")
def test_the_operator_lives_through_a_restart_of_the_api_server(
    server: LocalCluster, namespace: str, kubeconfig: Path, reports: Reports, tmp_path: Path
) -> None:
    with leading(server, kubeconfig, tmp_path, "restart", reports, **PATIENT) as operator:
        bring_up(server, namespace, "before")
        with server.without("kube-apiserver"):
            assert operator.is_alive
        bring_up(server, namespace, "after")
        comes_back(server, namespace, "service", "before-memory", operator)
        assert operator.is_alive, operator.text()


@pytest.mark.usefixtures("free_lease")
def test_a_watch_that_is_silent_without_an_error_is_opened_anew(
    server: LocalCluster, namespace: str, kubeconfig: Path, reports: Reports, tmp_path: Path
) -> None:
    """The resync is five minutes away: only a watch that was opened anew can tell in time."""
    with gate(server) as way:
        content = json.loads(kubeconfig.read_text())
        content["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{way.port}"
        through = tmp_path / "kubeconfig"
        through.write_text(json.dumps(content))
        settings = {**PATIENT, "WATCH_SILENCE_SECONDS": "6"}
        with leading(server, through, tmp_path, "silent", reports, **settings) as operator:
            bring_up(server, namespace, "frozen")
            way.freeze()
            comes_back(server, namespace, "service", "frozen-memory", operator)
            way.freeze()
            server.kubectl.in_namespace(namespace).apply(store("thawed"))
            wait_for(server, namespace, ("memorystore", "thawed"), ("Ready", "True Available"), seconds=60)
            assert operator.is_alive, operator.text()
