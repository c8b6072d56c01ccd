"""The operator's client keeps the contract against a real API server, so that the fake may stand for it."""

from __future__ import annotations

from tests.fakes.cluster_contract import ClusterContract


class TestKubernetesCluster(ClusterContract):
    """The contract, against the real API server."""
