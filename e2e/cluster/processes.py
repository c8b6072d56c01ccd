"""The long-running programs of one cluster: started detached, recorded on disk, ended by their process id.

A record names the process id and the moment the kernel started it, so that an id that was given to another process
meanwhile is never signalled. Whoever has the folder can end the cluster, also when the process that began it is gone.
"""

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, sleep

from . import waiting
from .commands import cluster_environment
from .errors import NotInTime, ProgramFailed

_JOIN_AND_RUN = 'if [ -n "$1" ]; then echo $$ >"$1"; fi; shift; exec "$@"'


def started_at(pid: int) -> int | None:
    """When the kernel started a process, in ticks since boot; None when it has ended."""
    with contextlib.suppress(ChildProcessError):  # reap it, if it is ours and has ended
        os.waitpid(pid, os.WNOHANG)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    # A process whose first thread has ended is a zombie at once; its ports are free when the last thread is gone.
    return None if fields[0] in "ZX" and int(fields[17]) <= 1 else int(fields[19])


def send(pid: int, number: signal.Signals) -> None:
    """Signal a process; one that has ended meanwhile is no error."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def end(pids: Iterable[int], grace_seconds: float) -> None:
    """Ask processes to end, kill those that have not after the grace, and return when all are gone.

    With no grace they are not asked but killed.
    """
    left = {pid: started for pid in pids if (started := started_at(pid)) is not None}
    asked = [(signal.SIGTERM, grace_seconds)] if grace_seconds > 0 else []
    for number, seconds in [*asked, (signal.SIGKILL, 10.0)]:
        for pid in left:
            send(pid, number)
        limit = monotonic() + seconds
        while left and monotonic() < limit:
            left = {pid: started for pid, started in left.items() if started_at(pid) == started}
            if left:
                sleep(0.02)
    if left:
        raise NotInTime(f"processes {sorted(left)} did not end when killed")


@dataclass(frozen=True)
class Record:
    """A program that was started: how, and as which process."""

    name: str
    command: list[str]
    environment: dict[str, str]
    pid: int
    started: int


class Processes:
    """Starts and ends the programs recorded in one folder."""

    def __init__(
        self, records: Path, logs: Path, *, prefix: Sequence[str] = (), cgroup_file: Path | None = None
    ) -> None:
        self._records = records
        self._logs = logs
        self._prefix = list(prefix)
        self._cgroup_file = cgroup_file
        for folder in (records, logs):
            folder.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """The names of all recorded programs, also of those that have ended."""
        return sorted(path.stem for path in self._records.glob("*.json"))

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def log_end(self, name: str, lines: int = 15) -> str:
        """The last lines of a program's log, for a message."""
        if not self.log(name).exists():
            return f"{name} has no log"
        return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-lines:])

    def record(self, name: str) -> Record:
        return Record(**json.loads((self._records / f"{name}.json").read_text()))

    def is_running(self, name: str) -> bool:
        record = self.record(name)
        return started_at(record.pid) == record.started

    def pids(self) -> list[int]:
        """The process ids of the recorded programs that run."""
        return [self.record(name).pid for name in self.names() if self.is_running(name)]

    def start(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        """Start a program in a session of its own, its output appended to its log."""
        words = [str(word) for word in command]
        join = str(self._cgroup_file) if self._cgroup_file else ""
        log = os.open(self.log(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            # posix_spawn and not Popen: a test process may leave this to another process without a warning.
            pid = os.posix_spawn(
                "/bin/sh",
                ["sh", "-c", _JOIN_AND_RUN, name, join, *self._prefix, *words],
                cluster_environment(environment),
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, nothing, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                ],
                setsid=True,
                setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGPIPE],
            )
        finally:
            os.close(log)
            os.close(nothing)
        started = started_at(pid)
        if started is None:
            raise ProgramFailed(words[0], self.log_end(name))
        record = Record(name, words, dict(environment or {}), pid, started)
        (self._records / f"{name}.json").write_text(json.dumps(asdict(record)))

    def require_all(self) -> None:
        """Find out that a program has ended.

        Raises:
            ProgramFailed: one has; carries the end of its log.
        """
        for name in self.names():
            if not self.is_running(name):
                raise ProgramFailed(name, self.log_end(name))

    def start_again(self, name: str) -> None:
        """Start a recorded program that has ended, in the same way."""
        record = self.record(name)
        self.start(name, record.command, record.environment)

    def stop(self, names: Iterable[str], grace_seconds: float = 5) -> None:
        """End these programs; their records stay, so that they can be started again."""
        end([self.record(name).pid for name in names if self.is_running(name)], grace_seconds)

    def kill(self, name: str) -> None:
        """End a program without a chance to tidy up, as a crash would."""
        self.stop([name], grace_seconds=0)

    def forget(self) -> None:
        """Remove all records."""
        for path in self._records.glob("*.json"):
            path.unlink()

    def until_ready(self, name: str, what: str, check: Callable[[], bool], seconds: float = 60) -> None:
        """Wait until a started program answers; say the end of its log when it has ended or does not."""

        def answers() -> bool:
            if not self.is_running(name):
                raise ProgramFailed(name, self.log_end(name))
            return check()

        waiting.until(what, answers, seconds=seconds, explain=lambda: self.log_end(name))
