"""A real API server for the operator's tests: CRDs installed, a namespace of its own for each module.

With several workers one of them runs all tests of this folder (tests/conftest.py), so that one cluster serves them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from e2e.cluster.clusters import LocalCluster
from e2e.cluster.fixtures import control_plane
from memory_operator.cluster.client import KubernetesCluster, api_client
from memory_operator.pacing import TokenBucket

__all__ = ["control_plane"]


@pytest.fixture(scope="session")
def server(control_plane: LocalCluster, repository: Path) -> LocalCluster:
    """The control plane with our CRDs."""
    for file in sorted((repository / "crds").glob("*.yaml")):
        control_plane.kubectl.apply(file)
    for name in ("memorystores", "agentmemories", "modelapis"):
        control_plane.kubectl("wait", "--for=condition=Established", f"crd/{name}.memplane.dev", "--timeout=60s")
    return control_plane


@pytest.fixture(scope="module")
def namespace(server: LocalCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the module's own."""
    prefix = request.module.__name__.rpartition(".")[2].removeprefix("test_").replace("_", "-")
    with server.new_namespace(prefix) as made:
        yield made.name


@pytest.fixture
async def cluster(server: LocalCluster) -> AsyncIterator[KubernetesCluster]:
    """The operator's own client for it."""
    async with api_client({"KUBECONFIG": str(server.kubeconfig)}) as api:
        yield KubernetesCluster(api, timeout_seconds=30, bucket=TokenBucket(1000, 1000, time.monotonic()))
