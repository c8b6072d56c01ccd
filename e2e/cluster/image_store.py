"""What a node keeps from one run to the next: containerd's images, so that half a gigabyte is unpacked once.

A store is marked while it is in use. One whose mark is still there when a node starts was left in an unknown state
and is thrown away; it is only a cache.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from . import home, programs
from .commands import run
from .errors import ProgramFailed
from .progress import say


@dataclass(frozen=True)
class ImageStore:
    """The images of one node in one slot."""

    slot: int
    node: str

    @property
    def folder(self) -> Path:
        return home.cache() / "nodes" / str(self.slot) / self.node

    @property
    def _mark(self) -> Path:
        return self.folder.parent / f"{self.node}.in-use"

    def open(self) -> Path:
        """Mark the store as in use and return containerd's root."""
        if self._mark.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._mark.touch()
        return self.folder

    def close(self, socket: Path) -> None:
        """Remove the containers, which are of one run, while containerd still answers at its socket.

        Where that fails the mark stays, and the next run starts with an empty store.
        """
        client: list[str | Path] = [programs.path("ctr"), "--address", socket, "--timeout", "10s"]
        containers = [*client, "--namespace", "k8s.io", "containers"]
        try:
            found = run([*containers, "list", "-q"], timeout_seconds=15).split()
            if found:
                run([*containers, "rm", *found], timeout_seconds=60)
        except ProgramFailed as error:
            say(f"images of {self.node} are not kept: {error}")
            return
        self._mark.unlink(missing_ok=True)
