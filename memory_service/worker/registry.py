"""Which operation carries which kind of job out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from memory_service.contract.sessions import JobKind
from memory_service.operations.background.embed import embed
from memory_service.operations.background.extract import extract
from memory_service.operations.background.fold import fold
from memory_service.operations.background.held import HeldJob
from memory_service.operations.background.index_turns import index_turns
from memory_service.operations.background.upkeep import expire, purge, rebuild_index, reconcile_index

OPERATIONS: Mapping[JobKind, Callable[[HeldJob], Awaitable[None]]] = {
    JobKind.INDEX_TURNS: index_turns,
    JobKind.FOLD: fold,
    JobKind.EXTRACT: extract,
    JobKind.EMBED: embed,
    JobKind.EXPIRE: expire,
    JobKind.PURGE: purge,
    JobKind.RECONCILE_INDEX: reconcile_index,
    JobKind.REBUILD_INDEX: rebuild_index,
}

QUICK = (
    JobKind.INDEX_TURNS,
    JobKind.EMBED,
    JobKind.EXPIRE,
    JobKind.PURGE,
    JobKind.RECONCILE_INDEX,
    JobKind.REBUILD_INDEX,
)
"""Jobs without a chat model: they have workers of their own, so that a slow model delays no vector and no purge."""

MODEL = (JobKind.FOLD, JobKind.EXTRACT)
"""Jobs that wait for a chat model."""
