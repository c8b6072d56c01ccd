"""What both backends raise; `sqlite_errors` and `postgres_errors` translate the drivers' errors, nobody else does."""

from __future__ import annotations

from memory_service.contract.health import Reason
from memory_service.errors import Conflict, Misconfigured, StorageUnavailable


class Duplicate(Conflict):
    """A unique index has such a row already."""

    def __init__(self) -> None:
        super().__init__("another write was first; read again, then repeat")


class LockTimeout(StorageUnavailable):
    """Another transaction has held a row for too long."""

    def __init__(self) -> None:
        super().__init__(
            "the database is busy; nothing was stored, repeat soon", reason=Reason.STORAGE_UNREACHABLE, retry_after=1
        )


class LostRace(StorageUnavailable):
    """Other transactions were first, several times; nothing was stored, and the same may be asked for again."""

    def __init__(self) -> None:
        super().__init__(
            "the database is busy: other writes were first, several times; nothing was stored, repeat soon",
            reason=Reason.STORAGE_UNREACHABLE,
            retry_after=1,
        )


def unavailable(
    detail: str, *, reason: Reason = Reason.STORAGE_UNREACHABLE, retry_after: float = 1
) -> StorageUnavailable:
    """Return an outage of storage in which nothing was stored."""
    return StorageUnavailable(detail, reason=reason, retry_after=retry_after)


def no_store(place: str, setting: str) -> Misconfigured:
    """Return the exception for a place without a store, where one was to be opened and not made."""
    return Misconfigured(
        f"no store is in {place}; name the one that is meant with {setting}", reason=Reason.STORAGE_UNREACHABLE
    )
