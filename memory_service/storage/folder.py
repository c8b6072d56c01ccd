"""One process serves a data folder: an advisory lock on a file in it, given back by the system when a process dies."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from memory_service.contract.health import Reason
from memory_service.errors import FolderLocked, Misconfigured

LOCK_FILE = "memplane.lock"
_LOOK_AGAIN_SECONDS = 0.1


class FolderLock:
    """The lock on a folder. `take` blocks, so it is called from a thread."""

    def __init__(self, folder: Path, *, wait_seconds: float) -> None:
        self._folder = folder
        self._wait_seconds = wait_seconds
        self._file: int | None = None
        self._given_up = threading.Event()

    def take(self, on_wait: Callable[[], None] = lambda: None) -> None:
        """Make the folder if needed and lock it, waiting as long as was asked for; `on_wait` is told that it waits.

        Raises:
            FolderLocked: another process serves the folder.
            Misconfigured: the folder cannot be made or written.
        """
        self._given_up.clear()
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(self._folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Misconfigured(
                f"the data folder {str(self._folder)!r} cannot be written ({error.strerror});"
                " name another one with --data-dir or make it writable",
                reason=Reason.STORAGE_UNREACHABLE,
            ) from error
        deadline = time.monotonic() + self._wait_seconds
        is_waiting = False
        while not _is_taken(file):
            if not is_waiting:
                is_waiting = True
                on_wait()
            if time.monotonic() >= deadline or self._given_up.wait(_LOOK_AGAIN_SECONDS):
                holder = _holder(file)
                os.close(file)
                raise FolderLocked(
                    f"another process{holder} serves the data folder {str(self._folder)!r}; stop it, name another"
                    " folder with --data-dir, or wait for it with --lock-wait SECONDS",
                    reason=Reason.WAITING_FOR_LOCK,
                )
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file = file

    def give_back(self) -> None:
        """Give the lock back, or stop waiting for it; safe to repeat."""
        self._given_up.set()
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _is_taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(file: int) -> str:
    text = os.pread(file, 32, 0).decode("ascii", "replace").strip()
    return f" (pid {text})" if text.isdigit() else ""
