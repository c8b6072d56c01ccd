"""One cluster's folder, and its end.

A machine has a few slots; a slot is a folder and a range of addresses. The process that starts a cluster holds a lock
on its slot for as long as it lives, and a second process (`warden`) waits for it to end: however it ends, also by
SIGKILL, the warden takes the cluster down. `up` on the command line keeps its cluster instead, until `down`.
Everything `take_down` needs is on disk, so any process can do it, twice too.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from . import home, processes, sysctls
from .cgroups import Groups
from .commands import run as run_command
from .errors import ClusterError, ProgramFailed
from .image_store import ImageStore
from .network import SLOTS, Addresses, Namespace, in_slot, on_loopback
from .processes import Processes
from .progress import say

# What must end before the pods: else it starts them again.
_CONTROLLERS = (
    "kube-scheduler",
    "kube-controller-manager",
    "kwok",
    "kube-proxy",
    "kube-router",
    "local-path-provisioner",
    "shared-path-provisioner",
    "kubelet",
)


@dataclass(frozen=True)
class Run:
    """The slot and folder of one cluster."""

    slot: int

    @property
    def folder(self) -> Path:
        return home.runs() / str(self.slot)

    @property
    def logs(self) -> Path:
        """Logs outlive the cluster, until the slot is used again."""
        return self.folder / "logs"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    @property
    def name(self) -> str:
        return f"memplane{self.slot}"

    @property
    def is_rootless(self) -> bool:
        return os.geteuid() != 0

    @property
    def addresses(self) -> Addresses:
        return on_loopback(self.slot) if self.is_rootless else in_slot(self.slot)

    @property
    def namespace(self) -> Namespace:
        return Namespace(self.name, self.addresses)

    @property
    def groups(self) -> Groups:
        return Groups(self.name)

    @property
    def nodes(self) -> list[str]:
        """The real nodes that were started."""
        return json.loads((self.folder / "nodes.json").read_text()) if (self.folder / "nodes.json").exists() else []

    @property
    def is_kept(self) -> bool:
        return (self.folder / "kept").exists()

    def processes(self) -> Processes:
        records = self.folder / "processes"
        if self.is_rootless:
            return Processes(records, self.logs)
        return Processes(records, self.logs, prefix=self.namespace.enter(), cgroup_file=self.groups.programs_file)


@dataclass
class Claim:
    """A slot held by this process; letting go of it takes the cluster down."""

    run: Run
    _lock: int
    _warden_pipe: int | None = field(default=None)
    _warden: int | None = field(default=None)

    def keep(self) -> None:
        """Let the cluster outlive this process."""
        (self.run.folder / "kept").touch()

    def watch(self) -> None:
        """Start the warden, which takes the cluster down when this process ends without doing so."""
        reading, writing = os.pipe()
        log = os.open(self.run.logs / "warden.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        module = f"{__package__}.warden"
        start = f"import os, runpy, sys; os.chdir({str(home.REPOSITORY)!r}); sys.path.insert(0, os.getcwd()); "
        self._warden = os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", f"{start}runpy.run_module({module!r}, run_name='__main__')", str(self.run.slot)],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, reading, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
            setsid=True,
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
        )
        os.close(reading)
        os.close(log)
        self._warden_pipe = writing

    def release(self) -> None:
        """Take the cluster down, unless it is kept, and give the slot back. Safe to repeat."""
        if self._lock < 0:
            return
        if not self.run.is_kept:
            take_down(self.run)
        if self._warden_pipe is not None:
            os.close(self._warden_pipe)  # the warden sees the end, finds nothing to do and ends
        if self._warden is not None:
            os.waitpid(self._warden, 0)
        os.close(self._lock)
        self._lock = -1


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    home.runs().mkdir(parents=True, exist_ok=True)
    with (home.runs() / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _try_lock(slot: int) -> int | None:
    """The slot's lock, or None when a living process holds it. The lock is not inherited by what we start."""
    lock = os.open(home.runs() / f"{slot}.owner", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def claim() -> Claim:
    """Take a free slot with an empty folder; what a dead process left in it is taken down first.

    Raises:
        ClusterError: every slot is in use.
    """
    with _locked("claims.lock"):
        for slot in range(SLOTS):
            lock = _try_lock(slot)
            if lock is None:
                continue
            run = Run(slot)
            if run.is_kept and run.processes().pids():
                os.close(lock)
                continue
            take_down(run)
            shutil.rmtree(run.folder, ignore_errors=True)
            run.logs.mkdir(parents=True)
            return Claim(run, lock)
    raise ClusterError(
        f"all {SLOTS} slots in {home.runs()} run a cluster; take one down with `python -m e2e.cluster down`"
    )


def known() -> list[Run]:
    """All slots that were ever used."""
    if not home.runs().exists():
        return []
    return [Run(int(path.name)) for path in sorted(home.runs().iterdir()) if path.is_dir() and path.name.isdigit()]


def is_owned(run: Run) -> bool:
    """Whether a living process holds the slot."""
    lock = _try_lock(run.slot)
    if lock is None:
        return True
    os.close(lock)
    return False


def clean() -> list[Run]:
    """Take down every cluster whose owner is dead and that nobody asked to keep."""
    stale = [run for run in known() if not is_owned(run) and not run.is_kept and leftovers(run)]
    for run in stale:
        say(f"slot {run.slot}: its owner is gone, taking it down")
        take_down(run)
    return stale


def leftovers(run: Run) -> list[str]:
    """What of a cluster is on this machine now: processes, mounts, the namespace, devices, control groups."""
    found = [f"process {pid}" for pid in run.processes().pids()]
    found += [f"mount {mount}" for mount in _mounts(run)]
    if not run.is_rootless:
        found += [f"process {pid} in a group" for pid in run.groups.pids()]
        if run.namespace.path.exists():
            found.append(f"network namespace {run.namespace.name}")
        found += [f"device {d.name}" for d in Path("/sys/class/net").iterdir() if d.name.startswith(f"{run.name}-")]
        if run.groups.is_there():
            found.append(f"control group {run.name}")
    return found


def take_down(run: Run) -> None:
    """End everything of a cluster and remove all but its logs. Safe to repeat, and to call from two processes."""
    with _locked(f"{run.slot}.down"):
        if not run.folder.exists():
            return
        began = monotonic()
        programs = run.processes()
        names = programs.names()
        programs.stop([n for n in names if n.startswith(_CONTROLLERS)], grace_seconds=2)
        if not run.is_rootless:
            # Containers first, while containerd lives and tidies up behind each of them.
            processes.end(run.groups.pod_pids(run.nodes), grace_seconds=0)
            for node in run.nodes:
                ImageStore(run.slot, node).close(run.folder / node / "containerd.sock")
        programs.stop(names, grace_seconds=3)
        if not run.is_rootless:
            _remove_root_owned(run)
        programs.forget()
        for path in run.folder.iterdir():
            if path != run.logs:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        with _locked("sysctls.lock"):
            if not any(other.nodes for other in known()):
                sysctls.put_back()
        if names:
            say(f"slot {run.slot} is down: {monotonic() - began:.1f} s")


def _remove_root_owned(run: Run) -> None:
    sockets = list(shim_sockets(run))
    processes.end(run.groups.pids(), grace_seconds=1)  # the containers' shims
    for mount in _mounts(run):
        with contextlib.suppress(ProgramFailed):  # one that went with the mount above it
            _detach(mount)
    for shim_socket in sockets:
        shim_socket.unlink(missing_ok=True)
    run.namespace.remove()
    run.groups.remove()


def _detach(mount: str) -> None:
    """Detach a mount, also one that is busy."""
    run_command(["umount", "--lazy", mount])


def _mounts(run: Run) -> list[str]:
    """Mounts below the run's folder, the deepest first."""
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return sorted((p for p in points if p.startswith(f"{run.folder}/")), reverse=True)


def shim_sockets(run: Run) -> Iterator[Path]:
    """The sockets of the containers' shims, which lie outside the run's folder."""
    for started in run.folder.glob("node*/state/*/*/*/bootstrap.json"):
        address = json.loads(started.read_text()).get("address", "")
        yield Path(address.removeprefix("unix://"))
