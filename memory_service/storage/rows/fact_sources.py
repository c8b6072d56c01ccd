"""Where facts were said. Each place is a row that stays, since a fact goes with the last of them; few are ever read, so
that a fact which is said again in ten thousand sessions is found as fast as any other.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from memory_service.contract.limits import MAX_SOURCE_SEQS
from memory_service.ports.records import FactSource
from memory_service.storage.encoding import dump
from memory_service.storage.statements import Link, Row

INSERT = (
    "INSERT INTO @fact_sources (owner_id, fact_id, agent, principal, session, workspace, seqs)"
    " VALUES (:owner_id, :fact_id, :agent, :principal, :session, :workspace, :seqs)"
    " ON CONFLICT (owner_id, fact_id, agent, principal, session, workspace) DO UPDATE SET seqs = excluded.seqs"
)

_PLACE = ("agent", "principal", "session", "workspace")
_FIRST = 2
_READ = _FIRST + 1
"""How many are read of a fact: the first two and the last show whether all are of one agent, pair or session."""

_SOME = (
    "SELECT * FROM (SELECT fact_id, agent, principal, session, workspace, seqs FROM @fact_sources"
    " WHERE owner_id IN [:owners] AND fact_id IN [:ids] LIMIT :most) AS s"
    " ORDER BY fact_id, agent, principal, session, workspace"
)
_OF_ONE = "FROM @fact_sources AS x WHERE x.owner_id = f.owner_id AND x.fact_id = f.row_id"
_ONE_PARTITION = "AND x.owner_id IN [:owners]"
_FROM_FRONT = f"ORDER BY x.agent, x.principal, x.session, x.workspace LIMIT {_FIRST}"
_FROM_BACK = "ORDER BY x.agent DESC, x.principal DESC, x.session DESC, x.workspace DESC LIMIT 1"
_ENDS = (
    "SELECT f.row_id, s.agent, s.principal, s.session, s.workspace, s.seqs FROM @facts AS f"
    f"[[ CROSS JOIN LATERAL ((SELECT x.* {_OF_ONE} {_ONE_PARTITION} {_FROM_FRONT})"
    f" UNION (SELECT x.* {_OF_ONE} {_ONE_PARTITION} {_FROM_BACK})) AS s"
    f"| JOIN @fact_sources AS s ON s.rowid IN (SELECT * FROM (SELECT x.rowid {_OF_ONE} {_FROM_FRONT})"
    f" UNION SELECT * FROM (SELECT x.rowid {_OF_ONE} {_FROM_BACK}))]]"
    " WHERE [[|+]]f.owner_id IN [:owners] AND f.row_id IN [:ids]"
    " ORDER BY f.row_id, s.agent, s.principal, s.session, s.workspace"
)


class FactSources:
    """The sources of facts."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def of(self, facts: Collection[Row]) -> Mapping[int, tuple[FactSource, ...]]:
        """Return the sources of facts, given by row id and owner in front, as `FactRow.sources` says."""
        if not facts:
            return {}
        parameters = {"owners": sorted({row[1] for row in facts}), "ids": [row[0] for row in facts]}
        most = _READ * len(facts) + 1
        found = self._link.rows(_SOME, {**parameters, "most": most})
        if len(found) == most:
            found = self._link.rows(_ENDS, parameters)
        sources: dict[int, list[FactSource]] = {}
        for row in found:
            sources.setdefault(row[0], []).append(source(row[1:]))
        return {
            row_id: tuple(several) if len(several) <= _READ else (*several[:_FIRST], several[-1])
            for row_id, several in sources.items()
        }

    def store(self, owner_id: int, row_id: int, source: FactSource) -> None:
        """Store a source, in place of what was known of its turns."""
        self._link.run(INSERT, {"owner_id": owner_id, "fact_id": row_id, **values(source)})

    def join(self, owner_id: int, row_id: int, source: FactSource) -> None:
        """Store a source; its turns are joined to those that are known of its place."""
        known = self._link.row(
            "SELECT seqs FROM @fact_sources WHERE owner_id = :owner_id AND fact_id = :fact_id AND agent = :agent"
            " AND principal = :principal AND session = :session AND workspace = :workspace",
            {"owner_id": owner_id, "fact_id": row_id, **dict(zip(_PLACE, place(source), strict=True))},
        )
        seqs = set() if known is None else set(json.loads(known[0]))
        if known is None or not seqs.issuperset(source.seqs):
            joined = FactSource(*place(source), seqs=tuple(sorted(seqs.union(source.seqs))))
            self.store(owner_id, row_id, joined)

    def replace(self, owner_id: int, row_id: int, source: FactSource) -> None:
        """Let a source be the only one."""
        self._link.run(
            "DELETE FROM @fact_sources WHERE owner_id = :owner_id AND fact_id = :fact_id",
            {"owner_id": owner_id, "fact_id": row_id},
        )
        self.store(owner_id, row_id, source)


def place(source: FactSource) -> tuple[str, str, str, str]:
    """Return where a source is, without its turns."""
    return source.agent, source.principal, source.session, source.workspace


def values(source: FactSource) -> dict[str, Any]:
    """Return the columns of a source, without its fact. Of very many turns the last ones are kept."""
    return {**dict(zip(_PLACE, place(source), strict=True)), "seqs": dump(list(source.seqs[-MAX_SOURCE_SEQS:]))}


def source(columns: Row) -> FactSource:
    """Return the source in agent, principal, session, workspace, seqs."""
    agent, principal, session, workspace, seqs = columns
    return FactSource(agent, principal, session, workspace, tuple(json.loads(seqs)))
