"""What both backends raise; `sqlite_errors` and `postgres_errors` translate the drivers' errors, nobody else does."""

from __future__ import annotations

from memory_service.contract.health import Reason
from memory_service.errors import StorageUnavailable


def unavailable(
    detail: str, *, reason: Reason = Reason.STORAGE_UNREACHABLE, retry_after: float = 1
) -> StorageUnavailable:
    """Return an outage of storage in which nothing was stored."""
    return StorageUnavailable(detail, reason=reason, retry_after=retry_after)
