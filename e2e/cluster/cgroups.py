"""Control groups of one cluster: every process of it, containers too, is found again by walking them.

A cluster's group holds `programs` (what this package starts, and the shims that containerd starts) and one group a
node, below which the kubelet puts its pods. With version 1 of control groups there is such a tree in each hierarchy.
"""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

_ROOT = Path("/sys/fs/cgroup")
_PAUSE_COMMAND = b"/bin/sleep\x002147483647\x00"


def is_version_two() -> bool:
    return (_ROOT / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    if is_version_two():
        return [_ROOT]
    # The hybrid layout mounts a version 2 tree without controllers; the kubelet does not use it.
    return [h for h in sorted(_ROOT.iterdir()) if (h / "cgroup.procs").exists() and h.name != "unified"]


@dataclass(frozen=True)
class Groups:
    """The control groups of one cluster."""

    name: str

    @property
    def _tracked(self) -> Path:
        """The tree in which programs are found again: the only one, or that of the pids controller."""
        return (_ROOT if is_version_two() else _ROOT / "pids") / self.name

    @property
    def programs_file(self) -> Path:
        """The file a program writes its process id to in order to join."""
        return self._tracked / "programs" / "cgroup.procs"

    def node(self, node: str) -> str:
        """The kubelet's cgroupRoot for a node."""
        return f"/{self.name}/{node}"

    def create(self, nodes: list[str]) -> None:
        """Make the groups."""
        for hierarchy in _hierarchies():
            top = hierarchy / self.name
            for group in (top, *(top / node for node in nodes)):
                group.mkdir(exist_ok=True)
                self._give_controllers(group)
        self.programs_file.parent.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def _give_controllers(group: Path) -> None:
        if is_version_two():
            for above in (group.parent, group):
                wanted = (above / "cgroup.controllers").read_text().split()
                (above / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))
        # A version 1 cpuset takes no process before it has processors and memory of its own.
        for name in ("cpuset.cpus", "cpuset.mems"):
            if not is_version_two() and (group / name).exists():
                (group / name).write_text((group.parent / name).read_text())

    def _all(self, top: Path) -> Iterator[Path]:
        for folder, _, _ in os.walk(top, topdown=False):
            yield Path(folder)

    def _pids_below(self, top: Path) -> list[int]:
        found: list[int] = []
        for group in self._all(top):
            try:
                found += [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV):
                    raise
        return found

    def pids(self) -> list[int]:
        """Every process of the cluster."""
        return self._pids_below(self._tracked)

    def pod_pids(self, nodes: list[str]) -> list[int]:
        """Every process of a pod on these nodes."""
        return [pid for node in nodes for pid in self._pids_below(self._tracked / node)]

    def pids_of_pod(self, uid: str) -> list[int]:
        """The processes of one pod's containers, without the one that holds its network."""
        return [
            pid
            for group in self._all(self._tracked)
            if group.parent.name == f"pod{uid}"
            for pid in self._pids_below(group)
            if Path(f"/proc/{pid}/cmdline").read_bytes() != _PAUSE_COMMAND
        ]

    def remove(self) -> None:
        """Remove the groups once no process is in them. Safe to repeat."""
        for hierarchy in _hierarchies():
            for group in self._all(hierarchy / self.name):
                _remove(group)

    def is_there(self) -> bool:
        return any((hierarchy / self.name).exists() for hierarchy in _hierarchies())


def _remove(group: Path) -> None:
    limit = monotonic() + 5  # the kernel lets go of a dead process a moment after it is dead
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or monotonic() > limit:
                raise
            sleep(0.02)
        else:
            return


def are_writable() -> bool:
    """Whether this machine lets us make groups."""
    probe = (_ROOT if is_version_two() else _ROOT / "pids") / f"memplane-probe-{os.getpid()}"
    try:
        probe.mkdir()
    except OSError:
        return False
    probe.rmdir()
    return True
