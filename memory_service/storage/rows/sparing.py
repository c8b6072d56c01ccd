"""What of an import no erasure of this store has taken: a line that one covers, stored before it, stays away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from memory_service.domain.owners import AgentErasure, Owner, PrincipalErasure, SessionErasure
from memory_service.ports.records import FactSource, OwnerRow
from memory_service.storage.encoding import micros
from memory_service.storage.rows.owners import OwnerKeys

Covered = tuple[Sequence[Owner], int]
"""The marks of every erasure that covers something, and when it was stored, in microseconds."""


class Sparing:
    """Asks the marks of this store, in as many statements for many lines as for one."""

    def __init__(self, owners: OwnerKeys) -> None:
        self._owners = owners

    def spared(self, covered: Sequence[Covered]) -> list[bool]:
        """Return of each whether no erasure came later; none comes before the commit.

        Only the marks of what is spared are made, or named again, since it comes to stay; others stay as they are.
        """
        found = self._owners.find(_marks(marks for marks, _ in covered))
        spared = [not _is_erased(found, marks, at) for marks, at in covered]
        held = self._owners.share(
            _marks(marks for (marks, _), is_spared in zip(covered, spared, strict=True) if is_spared)
        )
        return [
            is_spared and not _is_erased(held, marks, at)
            for (marks, at), is_spared in zip(covered, spared, strict=True)
        ]


def covering_source(source: FactSource) -> list[Owner]:
    """Return the marks of every erasure that takes a source away; a pair's takes only what is under its owners."""
    marks: list[Owner] = []
    if source.agent:
        marks += AgentErasure(source.agent).marks
    if source.principal:
        marks += PrincipalErasure(source.principal).marks
    if source.session:
        marks += SessionErasure(source.agent, source.principal, source.session).marks
    return marks


def _marks(several: Iterable[Sequence[Owner]]) -> list[Owner]:
    return list(dict.fromkeys(mark for marks in several for mark in marks))


def _is_erased(found: Mapping[Owner, OwnerRow], marks: Sequence[Owner], created_at: int) -> bool:
    """Whether one of the marks was erased after something had been stored."""
    rows = (found.get(mark) for mark in marks)
    return any(row is not None and row.erased_at is not None and micros(row.erased_at) >= created_at for row in rows)
