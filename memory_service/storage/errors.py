"""Foreign database errors become the service's own here, and nowhere else.

Messages of drivers may quote rows, so none of their text is passed on: only the class of error and its code.
"""

from __future__ import annotations

import sqlite3

from memory_service.contract.health import Reason
from memory_service.errors import Conflict, MemoryServiceError, StorageFull, StorageUnavailable

_SQLITE_ABORTS_ALL = frozenset({"SQLITE_FULL", "SQLITE_IOERR", "SQLITE_NOMEM", "SQLITE_CORRUPT", "SQLITE_CANTOPEN"})


class RolledBack(Exception):
    """SQLite has rolled back the whole transaction, not only the statement; the group that shared it is lost."""


def sqlite_name(error: sqlite3.Error) -> str:
    """Return the primary result code's name, such as `SQLITE_FULL`."""
    name = str(getattr(error, "sqlite_errorname", ""))
    return "_".join(name.split("_")[:2])


def from_sqlite(error: sqlite3.Error, folder: str) -> MemoryServiceError:
    """Return what a SQLite error means to a caller."""
    name = sqlite_name(error)
    if name == "SQLITE_FULL":
        return StorageFull(
            f"no space is left for the data folder {folder!r}; nothing was stored. Free some space, then repeat",
            reason=Reason.STORAGE_FULL,
            retry_after=5,
        )
    if name == "SQLITE_CONSTRAINT":
        return Conflict("another write was first; read again, then repeat")
    return StorageUnavailable(
        f"the database in {folder!r} does not answer ({name or type(error).__name__}); nothing was stored",
        reason=Reason.STORAGE_UNREACHABLE,
    )


def aborts_group(error: sqlite3.Error) -> bool:
    """Whether an error says that the database file itself is in trouble, so that nothing beside it may be committed."""
    return sqlite_name(error) in _SQLITE_ABORTS_ALL


def unavailable(
    detail: str, *, reason: Reason = Reason.STORAGE_UNREACHABLE, retry_after: float = 1
) -> StorageUnavailable:
    """Return an outage of storage in which nothing was stored."""
    return StorageUnavailable(detail, reason=reason, retry_after=retry_after)
