"""How pytest hands out clusters. A conftest imports what it wants from here:

    from e2e.cluster.fixtures import *  # or by name

`cluster` is one with real pods: the one KUBECONFIG names, else the nodes tier. `local_cluster` is the same where this
package started it, so that a test may restart its API server. `control_plane` is the control-plane tier with fake
nodes, always started here. A tier that cannot run skips its tests and says why and how to get it; with
MEMPLANE_REQUIRE_TIERS=1, as CI has it, that is a failure instead.
"""

import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from . import images, local, programs
from .clusters import Cluster, LocalCluster, Namespace
from .errors import ClusterError, TierUnavailable
from .tiers import Tier

__all__ = [
    "cluster",
    "control_plane",
    "fake_namespace",
    "local_cluster",
    "namespace",
    "newer_operator_image",
    "newer_service_image",
    "operator_image",
    "postgres_image",
    "promtool",
    "pytest_runtest_makereport",
    "service_image",
]

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember a failure, so that the namespace can be shown before it goes."""
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


def _unavailable(error: TierUnavailable) -> None:
    if os.environ.get("MEMPLANE_REQUIRE_TIERS") == "1":
        pytest.fail(str(error), pytrace=False)
    pytest.skip(str(error))


def _started(tier: Tier) -> Iterator[LocalCluster]:
    try:
        started = local.start(tier)
    except TierUnavailable as error:
        _unavailable(error)
        return
    try:
        yield started
    finally:
        started.take_down()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster with real pods."""
    named = os.environ.get("KUBECONFIG")
    if named:
        programs.require(("kubectl", "helm"), Tier.NODES)
        yield Cluster(Path(named).resolve())
    else:
        yield from _started(Tier.NODES)


@pytest.fixture(scope="session")
def local_cluster(cluster: Cluster) -> LocalCluster:
    """The cluster with real pods, if its parts may be stopped and its audit log read."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip("KUBECONFIG names a cluster that is not ours to take apart; unset it to start one")
    return cluster


@pytest.fixture(scope="session")
def control_plane() -> Iterator[LocalCluster]:
    """A control plane with fake nodes."""
    yield from _started(Tier.CONTROL_PLANE)


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Prometheus's tool that checks rules and runs their tests; it needs no cluster."""
    try:
        programs.require(("promtool",), Tier.CONTROL_PLANE)
    except TierUnavailable as error:
        _unavailable(error)
    return programs.path("promtool")


def _own_namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    prefix = request.node.name.removeprefix("test_").partition("[")[0].replace("_", "-").lower()
    with cluster.new_namespace(prefix) as made:
        yield made
        if request.node.stash.get(_FAILED, False):
            try:
                seen = made.describe()
            except ClusterError as error:  # the cluster may be what failed; the test's own failure is reported anyway
                seen = str(error)
            sys.stdout.write(f"--- namespace {made.name}\n{seen}\n")  # pytest shows it with the failure


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of the test's own in `cluster`; what was in it is shown when the test fails."""
    yield from _own_namespace(cluster, request)


@pytest.fixture
def fake_namespace(control_plane: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of the test's own in `control_plane`."""
    yield from _own_namespace(control_plane, request)


def _image(cluster: Cluster, name: str, build: Callable[[], images.Image]) -> str:
    variable = f"MEMPLANE_{name.upper()}_IMAGE"
    if variable in os.environ:
        return os.environ[variable]
    if isinstance(cluster, LocalCluster):
        return cluster.load(build())
    pytest.skip(f"KUBECONFIG names another cluster; name an image it can pull with {variable}")


@pytest.fixture(scope="session")
def service_image(cluster: Cluster) -> str:
    """The memory service's image, on every node: built from this checkout, or named by MEMPLANE_SERVICE_IMAGE."""
    return _image(cluster, "service", images.service)


@pytest.fixture(scope="session")
def operator_image(cluster: Cluster) -> str:
    """The operator's image, on every node: built from this checkout, or named by MEMPLANE_OPERATOR_IMAGE."""
    return _image(cluster, "operator", images.operator)


@pytest.fixture(scope="session")
def newer_service_image(cluster: Cluster) -> str:
    """What an upgrade goes to: built here, or named by MEMPLANE_NEWER_SERVICE_IMAGE."""
    return _image(cluster, "newer_service", lambda: images.newer(images.service()))


@pytest.fixture(scope="session")
def newer_operator_image(cluster: Cluster) -> str:
    """What an upgrade goes to: built here, or named by MEMPLANE_NEWER_OPERATOR_IMAGE."""
    return _image(cluster, "newer_operator", lambda: images.newer(images.operator()))


@pytest.fixture(scope="session")
def postgres_image(cluster: Cluster) -> str:
    """PostgreSQL with pgvector, on every node: built here, or named by MEMPLANE_POSTGRES_IMAGE."""
    return _image(cluster, "postgres", images.postgres)
