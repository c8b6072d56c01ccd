"""Where things lie on this machine: everything outside the clone, under one cache folder."""

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).resolve().parent


def cache() -> Path:
    """The cache folder, MEMPLANE_CLUSTER_CACHE or the user's cache home; made when missing."""
    named = os.environ.get("MEMPLANE_CLUSTER_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(named) if named else base / "memplane" / "cluster"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def programs() -> Path:
    """Built programs, one folder a name and version."""
    return cache() / "programs"


def images() -> Path:
    """Image archives and the image builder's storage."""
    return cache() / "images"


def runs() -> Path:
    """One folder for each cluster that runs or ran last in its slot."""
    return cache() / "runs"
