"""What Postgres errors mean to a caller. Their texts may quote rows, so only their codes are passed on."""

from __future__ import annotations

import re

import psycopg

from memory_service.contract.health import Reason
from memory_service.errors import Conflict, InvalidRequest, MemoryServiceError, StorageFull, StorageUnavailable
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
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return unavailable(
            "the database only reads, as a standby does; let the DSN lead to the primary. Nothing was stored",
            retry_after=5,
        )
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return unavailable(
            "the role of the DSN may not do this in the store's schema; let the role own the schema and all in it."
            " Nothing was stored",
            retry_after=10,
        )
    name = code or type(error).__name__
    return unavailable(f"the database does not answer ({name}); nothing was stored", retry_after=2)


_REFUSALS = (
    (re.compile(r'database ".*" does not exist'), "there is no such database; make it, or name another one in the DSN"),
    (
        re.compile(r'role ".*" does not exist|authentication failed|no password supplied|no pg_hba\.conf entry'),
        "the server refuses the role or its password; correct the DSN, or what the server lets in",
    ),
    (
        re.compile(r"[Nn]ame or service not known|could not translate host name|failed to resolve host"),
        "the host of the DSN is not known; correct its name, or look at DNS",
    ),
    (
        re.compile(r"Connection refused|timeout expired|No route to host"),
        "nothing answers at the DSN's host and port; look at the server and at what is between",
    ),
    (re.compile(r"SSL|certificate"), "TLS to the database fails; compare `sslmode` and `sslrootcert` of the DSN"),
    (
        (_NONE_LEFT := re.compile(r"too many (?:clients|connections)|remaining connection slots|no more connections")),
        "the server has no connection left for the DSN's role; raise its limit or the role's, or lower poolSize",
    ),
)
"""Why no connection came about: the driver has no code for it, only the server's sentence, which names a role, a host
or a database, never a row. A sentence in another language than English is told without a reason."""


def has_no_connection_left(error: psycopg.Error) -> bool:
    """Whether the server answers and has no connection left."""
    return _NONE_LEFT.search(str(error)) is not None


def from_connecting(error: psycopg.Error) -> StorageUnavailable:
    """Return what it means that no connection could be made."""
    why = next((sentence for pattern, sentence in _REFUSALS if pattern.search(str(error))), None)
    if why is None:
        why = f"no connection to the database ({error.sqlstate or type(error).__name__})"
    return unavailable(f"{why}. Nothing was stored", retry_after=2)
