"""What SQLite errors mean to a caller. Their texts may quote rows, so only their codes are passed on."""

from __future__ import annotations

import sqlite3

from memory_service.contract.health import Reason
from memory_service.errors import Conflict, MemoryServiceError, StorageFull
from memory_service.storage.errors import unavailable

_ABORTS_ALL = frozenset({"SQLITE_FULL", "SQLITE_IOERR", "SQLITE_NOMEM", "SQLITE_CORRUPT", "SQLITE_CANTOPEN"})


def primary_code(error: sqlite3.Error) -> str:
    """Return the primary result code's name, such as `SQLITE_FULL`."""
    return "_".join(str(getattr(error, "sqlite_errorname", "")).split("_")[:2])


def aborts_group(error: sqlite3.Error) -> bool:
    """Whether an error says that the database file itself is in trouble, so that nothing beside it may be committed."""
    return primary_code(error) in _ABORTS_ALL


def from_sqlite(error: sqlite3.Error, folder: str) -> MemoryServiceError:
    """Return what an error means to a caller."""
    code = primary_code(error)
    if code == "SQLITE_FULL":
        return StorageFull(
            f"no space is left for the data folder {folder!r}; nothing was stored. Free some space, then repeat",
            reason=Reason.STORAGE_FULL,
            retry_after=5,
        )
    if code == "SQLITE_CONSTRAINT":
        return Conflict("another write was first; read again, then repeat")
    name = code or type(error).__name__
    return unavailable(f"the database in {folder!r} does not answer ({name}); nothing was stored")
