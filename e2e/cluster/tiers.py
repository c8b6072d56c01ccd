"""The two tiers, and whether this machine can run them."""

import os
import shutil
import sys
from enum import StrEnum

from . import cgroups, debian, programs
from .errors import TierUnavailable


class Tier(StrEnum):
    """How much of Kubernetes a cluster has."""

    CONTROL_PLANE = "control-plane"
    NODES = "nodes"


def require(tier: Tier) -> None:
    """Make the machine ready for a tier: packages installed, programs built.

    Raises:
        TierUnavailable: it cannot be; says what is missing and how to get it.
    """
    if sys.platform != "linux":
        raise TierUnavailable(tier, f"the system is {sys.platform}", "run on Linux, or name a cluster with KUBECONFIG")
    if tier is Tier.CONTROL_PLANE:
        if shutil.which("openssl", path=debian.SEARCH_PATH) is None:
            raise TierUnavailable(tier, "there is no openssl", "install it (apt-get install openssl)")
        if os.geteuid() == 0:
            debian.require_node_packages()
        programs.require(programs.CONTROL_PLANE, tier)
        return
    if os.geteuid() != 0:
        raise TierUnavailable(tier, "it needs root", "run as root, or name a cluster with KUBECONFIG")
    if not cgroups.are_writable():
        raise TierUnavailable(tier, "control groups are read-only", "run with a writable /sys/fs/cgroup")
    debian.require_node_packages()
    programs.require(programs.NODES, tier)
