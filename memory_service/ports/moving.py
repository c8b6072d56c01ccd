"""The storage port: export and import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from memory_service.ports.records import Restored


class Moving(Protocol):
    """Export and import of whole rows, in dependency order."""

    def export(self, *, cursor: str | None, limit: int) -> tuple[Sequence[Mapping[str, Any]], str | None]:
        """Return lines and the next cursor."""

    def restore(self, lines: Sequence[Mapping[str, Any]], now: datetime) -> Restored:
        """Store lines in their order; return of each whether it is imported, skipped, tombstoned, left_out or erased.

        skipped: the store has what the line says. A turn whose place another one has is appended to its session; facts
        are merged as by a save. tombstoned: it was stored before an erasure that covers it, of this store or of one
        that was imported from. left_out: a fact that was changed here since, a digest that its session cannot take.
        erased: a line that says what was deleted where it comes from, and rows of it were here; those that were stored
        later stay. The caller leaves a receipt, so that their bytes go.

        As many statements for many lines of one type as for one.

        Raises:
            InvalidRequest: the line is not one of an export.
        """
