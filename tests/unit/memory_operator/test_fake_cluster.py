"""The fake cluster keeps the contract that the real one keeps."""

from __future__ import annotations

import pytest

from tests.fakes.cluster_contract import ClusterContract
from tests.fakes.kube_cluster import FakeCluster


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def namespace() -> str:
    return "test"


class TestFakeCluster(ClusterContract):
    """The contract, against the fake."""
