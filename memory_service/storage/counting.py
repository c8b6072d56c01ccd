"""Totals of a store, for people who look after it."""

from __future__ import annotations

from collections.abc import Mapping

from memory_service import __version__
from memory_service.contract.sessions import Diagnostics
from memory_service.ports.storage import Transaction
from memory_service.storage.statements import Link
from memory_service.storage.transaction import RowTransaction

_COUNTED = ("sessions", "turns", "digests", "facts", "jobs", "receipts", "owners", "principals")


def diagnostics(tx: Transaction, *, backend: str, meta: Mapping[str, str], bytes_on_disk: int) -> Diagnostics:
    """Count everything."""
    assert isinstance(tx, RowTransaction)
    link = tx.link
    return Diagnostics(
        version=__version__,
        backend=backend,
        schema_version=int(meta["schema_version"]),
        counts={table: _count(link, f"SELECT COUNT(*) FROM @{table}") for table in _COUNTED}
        | {"episodes_indexed": _count(link, "SELECT COUNT(*) FROM @turns WHERE vector IS NOT NULL")},
        facts_by_scope=dict(
            link.rows(
                "SELECT o.scope, COUNT(*) FROM @facts AS f JOIN @owners AS o ON o.id = f.owner_id"
                " WHERE f.status = 'active' GROUP BY o.scope ORDER BY o.scope"
            )
        ),
        jobs_by_state=dict(link.rows("SELECT state, COUNT(*) FROM @jobs GROUP BY state ORDER BY state")),
        bytes_on_disk=bytes_on_disk,
        embedding_model=meta["embedding_model"],
        dimension=int(meta["dimension"]),
    )


def _count(link: Link, sql: str) -> int:
    found = link.row(sql)
    return 0 if found is None else int(found[0])
