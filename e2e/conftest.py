"""The clusters that journeys run in; see `e2e.cluster.fixtures`."""

from e2e.cluster.fixtures import *  # noqa: F403
