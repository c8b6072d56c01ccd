"""The clusters that journeys run in, see `e2e.cluster.fixtures`, and Memplane installed in them."""

from e2e.cluster.fixtures import *  # noqa: F403
from e2e.installation import *  # noqa: F403
