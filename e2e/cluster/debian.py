"""The Debian packages that the nodes tier and the image builder stand on, installed when they are missing."""

import os
import shutil
from pathlib import Path

from .commands import run
from .errors import TierUnavailable
from .progress import step

# What a package is looked for by: a program on the path, or a file.
_NODE_PACKAGES = {
    "runc": "runc",
    "containernetworking-plugins": "/usr/lib/cni/ptp",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ipset": "ipset",
    "iproute2": "ip",
    "util-linux": "nsenter",
    "busybox-static": "busybox",
    "openssl": "openssl",
}
_IMAGE_PACKAGES = {"mmdebstrap": "mmdebstrap", "buildah": "buildah"}
_SYSTEM_PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SEARCH_PATH = f"{os.environ.get('PATH', '')}:{_SYSTEM_PATHS}"


def _is_there(sign: str) -> bool:
    if sign.startswith("/"):
        return Path(sign).exists()
    return shutil.which(sign, path=SEARCH_PATH) is not None


def _require(packages: dict[str, str], tier: str) -> None:
    missing = [package for package, sign in packages.items() if not _is_there(sign)]
    if not missing:
        return
    remedy = f"apt-get install {' '.join(missing)}"
    if os.geteuid() != 0 or not _is_there("apt-get"):
        raise TierUnavailable(tier, f"missing {', '.join(missing)}", remedy)
    with step(f"installing Debian packages: {' '.join(missing)}"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "update", "-qq"], environment=quiet, timeout_seconds=300)
        run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing],
            environment=quiet,
            timeout_seconds=600,
        )


def require_node_packages() -> None:
    """Install what real nodes need, or say what is missing."""
    _require(_NODE_PACKAGES, "nodes")


def require_image_packages() -> None:
    """Install what building images needs, or say what is missing."""
    _require(_IMAGE_PACKAGES, "nodes")
