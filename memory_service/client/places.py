"""Where a client's outbox lies."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from enum import Enum
from pathlib import Path


class Place(Enum):
    """Where an outbox lies when its caller does not say."""

    DEFAULT = "default"


def outbox_folder(env: Mapping[str, str], store: str | None, endpoint: str | None, agent: str | None) -> Path:
    """Return the outbox folder of this store and of who the agent claims to be.

    It stays where it is whatever tokens come and go: an entry says itself whose it is.
    """
    identity = "\n".join(
        (store or "", endpoint or env.get("MEMPLANE_ENDPOINT", ""), agent or env.get("AGENT_IDENTITY", ""))
    )
    name = hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:16]
    state = env.get("XDG_STATE_HOME") or env.get("LOCALAPPDATA")
    base = Path(state) if state else Path(env.get("HOME") or tempfile.gettempdir(), ".local", "state")
    if not os.access(_nearest(base), os.W_OK):
        # A read-only home, as in pods; the temporary folder is what is left. The user's number keeps users apart.
        base = Path(tempfile.gettempdir(), f"memplane-{os.getuid() if hasattr(os, 'getuid') else 'user'}")
    return base / "memplane" / "outbox" / name


def _nearest(folder: Path) -> Path:
    """Return the nearest parent that can be seen to exist."""
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder
