"""What Postgres errors mean to a caller. Their texts may quote rows, so only their codes are passed on."""

from __future__ import annotations

import psycopg

from memory_service.contract.health import Reason
from memory_service.errors import Conflict, InvalidRequest, MemoryServiceError, StorageFull
from memory_service.storage.errors import LostRace, unavailable

_AGAIN = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
_LOST_CLASSES = frozenset({"08", "57"})
_BUSY = (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled)


def may_run_again(error: psycopg.Error) -> bool:
    """Whether the transaction lost against another one and may simply run again."""
    return isinstance(error, _AGAIN)


def is_lost(error: psycopg.Error, connection: psycopg.Connection[tuple[object, ...]]) -> bool:
    """Whether the connection is gone, or its server is going or may not be written to any more."""
    if isinstance(error, psycopg.errors.QueryCanceled):
        return False
    if connection.closed or isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return True
    return isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08")[:2] in _LOST_CLASSES


def from_postgres(error: psycopg.Error) -> MemoryServiceError:
    """Return what an error means to a caller."""
    code = error.sqlstate or ""
    if isinstance(error, psycopg.errors.DiskFull):
        return StorageFull(
            "no space is left on the database server; nothing was stored. Free some space, then repeat",
            reason=Reason.STORAGE_FULL,
            retry_after=5,
        )
    if isinstance(error, psycopg.errors.IntegrityError):
        return Conflict("another write was first; read again, then repeat")
    if isinstance(error, psycopg.errors.DataError):
        return InvalidRequest(f"a value cannot be stored as it is (code {code or 'none'}); send another one")
    if isinstance(error, _BUSY):
        return unavailable(f"the database is busy (code {code}); nothing was stored, repeat soon")
    if may_run_again(error):
        return LostRace()
    name = code or type(error).__name__
    return unavailable(f"the database does not answer ({name}); nothing was stored", retry_after=2)
