"""A disk of a few megabytes that only the processes of a test see: a memory file system in a mount namespace."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.processes import wait_for

_HOLD = 'mount -t tmpfs -o "size=$2" tmpfs "$1" && touch "$1/mounted" && read -r _'
"""Mounts, then keeps the namespace until its input ends."""


@dataclass(frozen=True)
class SmallDisk:
    """A mounted disk: processes that are started with `prefix` see it at `path`, the test at `seen_at`."""

    path: Path
    holder: int

    @property
    def prefix(self) -> list[str]:
        """What goes before a command that is to see the disk."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", f"--target={self.holder}", "--mount", *user]

    @property
    def seen_at(self) -> Path:
        """Where the test sees the disk."""
        return Path(f"/proc/{self.holder}/root{self.path}")

    def free(self) -> int:
        """Return the bytes that are left."""
        found = os.statvfs(self.seen_at)
        return found.f_bavail * found.f_frsize


@contextmanager
def small_disk(path: Path, *, megabytes: int) -> Iterator[SmallDisk]:
    """Mount a disk at a new folder until the context is left."""
    path.mkdir()
    mode = ["--mount"] if os.geteuid() == 0 else ["--mount", "--map-root-user"]
    holder = subprocess.Popen(
        ["unshare", *mode, "sh", "-c", _HOLD, "hold", str(path), f"{megabytes}m"], stdin=subprocess.PIPE
    )
    try:
        disk = SmallDisk(path, holder.pid)
        wait_for("the disk", lambda: holder.poll() is not None or (disk.seen_at / "mounted").exists())
        assert holder.poll() is None, "a mount namespace of one's own is needed: see user namespaces(7)"
        yield disk
    finally:
        assert holder.stdin is not None
        holder.stdin.close()
        holder.wait()
