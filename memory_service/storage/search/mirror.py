"""The Chroma mirror of large owners' vectors: an index that may lag, and is made anew from the rows at any doubt.

Only owners that are searched through an index are mirrored: Chroma's filtered search costs what the folder holds, not
what the owner has, and everyone else is scored whole. A search never waits for the mirror: units that it does not hold
in their newest state are read from the rows, and without a mirror all are.
"""

from __future__ import annotations

import logging
import re
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from memory_service.errors import StorageUnavailable
from memory_service.ports.records import Vector
from memory_service.storage.chroma import ChromaFolder, Members, MirrorBroken, State, Tier, Unit, remove
from memory_service.storage.errors import unavailable
from memory_service.storage.search import large, reading
from memory_service.storage.search.large import Corpus
from memory_service.storage.statements import Link

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NAME = re.compile(r"chroma-([0-9]{1,9})")

Owned = tuple[Tier, int]
"""A tier of an owner."""


class Read(Protocol):
    """Runs work over one consistent snapshot of the database."""

    def __call__(self, work: Callable[[Link], T], /) -> T:
        """Return what the work returns."""


class Mirror:
    """The mirror of one data folder. Searches run in several threads; the rest waits for each other."""

    def __init__(self, data_dir: Path, dimension: int, *, exact_rows: int) -> None:
        """Open nothing yet: `reconcile` does, when there is an owner with more than `exact_rows` rows."""
        self._data_dir = data_dir
        self._dimension = dimension
        self.exact_rows = exact_rows
        self._folder: ChromaFolder | None = None
        self._asked: set[Owned] = set()
        self._working = threading.Lock()
        self._last_number = 0

    @property
    def is_open(self) -> bool:
        """Whether searches use a folder."""
        return self._folder is not None

    def nearest(self, link: Link, corpus: Corpus, vector: Vector, limit: int) -> Sequence[int]:
        """Return row ids that may be among the nearest: Chroma's, and those of rows that it does not hold yet."""
        self._asked.update((corpus.tier, owner_id) for owner_id in corpus.owner_ids)
        folder = self._folder
        if folder is None:
            return large.scan(link, corpus, vector, limit)
        behind = _behind(link, corpus, folder)
        try:
            named = folder.nearest(corpus.tier, corpus.owner_ids, corpus.session_id, vector, limit)
        except MirrorBroken as error:
            logger.warning("the vector index failed a search", extra={"folder": folder.path.name, "reason": str(error)})
            self._folder = None
            return large.scan(link, corpus, vector, limit)
        found = _meeting(link, corpus, named)
        if behind is not None:
            found.update(large.scan(link, behind, vector, limit))
        if len(found) < limit:
            # Filters, or rows that are gone, took some of the named ones: what is left is not known to be all.
            return large.scan(link, corpus, vector, limit)
        return sorted(found)

    def reconcile(self, read: Read) -> int:
        """Bring the mirror up to the rows and return how many it moved; makes it anew where it is in doubt."""
        with self._working:
            owned = read(self._large) | self._asked
            if not owned and self._folder is None and not self._folders():
                return 0
            folder = self._usable()
            if folder is None:
                return self._make(read, owned)
            try:
                moved = _bring_up(read, folder, owned | {(unit.tier, unit.owner_id) for unit in folder.states})
                if folder.is_mostly_residue:
                    self._shrink(read, owned)
                return moved
            except MirrorBroken as error:
                logger.warning("the vector index is made anew", extra={"reason": str(error)})
                return self._make(read, owned)

    def rebuild(self, read: Read) -> int:
        """Make the mirror anew from the rows and return how many it holds."""
        with self._working:
            return self._make(read, read(self._large) | self._asked)

    def purge(self, read: Read) -> None:
        """Carry vectors of erased rows off the disk: a new folder from the rows, and the old one is deleted."""
        self.reconcile(read)
        with self._working:
            if self._folder is not None and self._folder.residue:
                self._make(read, read(self._large))

    def close(self) -> None:
        """Close the files."""
        with self._working:
            if self._folder is not None:
                self._folder.close()
                self._folder = None

    def _large(self, link: Link) -> set[Owned]:
        limit = {"limit": self.exact_rows}
        facts = link.rows("SELECT owner_id FROM @facts GROUP BY owner_id HAVING COUNT(*) > :limit", limit)
        # Counted where as many were ever written: what is past its time, or was erased, is none of them.
        homes = link.rows(
            "SELECT owner_id FROM @turns WHERE owner_id IN"
            " (SELECT home_id FROM @sessions GROUP BY home_id HAVING SUM(last_seq) > :limit)"
            " GROUP BY owner_id HAVING COUNT(*) > :limit",
            limit,
        )
        return {("fact", row[0]) for row in facts} | {("episode", row[0]) for row in homes}

    def _folders(self) -> list[Path]:
        """Return the mirror's folders, newest first."""
        numbered = [(found, path) for path in self._data_dir.iterdir() if (found := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(numbered, key=lambda pair: -int(pair[0][1]))]

    def _usable(self) -> ChromaFolder | None:
        if self._folder is not None:
            if self._folder.path.is_dir():
                return self._folder
            self._folder.close()
            self._folder = None
        for path in self._folders():
            try:
                self._folder = ChromaFolder.open(path, self._dimension)
            except MirrorBroken as error:
                logger.warning("a vector index is unusable", extra={"folder": path.name, "reason": str(error)})
                continue
            try:
                self._delete_others()
            except OSError as error:
                logger.warning("an old vector index stays", extra={"reason": str(error)})
            return self._folder
        return None

    def _make(self, read: Read, owned: set[Owned]) -> int:
        """Build a folder beside the present one, switch to it, then delete every other."""
        if not owned:
            self._switch(None)
            return 0
        newest = [int(path.name.removeprefix("chroma-")) for path in self._folders()[:1]]
        self._last_number = max([self._last_number, *newest]) + 1
        try:
            folder = ChromaFolder.create(self._data_dir / f"chroma-{self._last_number}", self._dimension)
            try:
                moved = _bring_up(read, folder, owned)
                folder.complete()
            except BaseException:
                folder.delete()
                raise
        except (MirrorBroken, OSError) as error:
            raise unavailable(f"the vector index cannot be made: {error}", retry_after=30) from error
        self._switch(folder)
        logger.info("vector index made", extra={"folder": folder.path.name, "rows": moved})
        return moved

    def _shrink(self, read: Read, owned: set[Owned]) -> None:
        """Make a folder anew that is right and too large; where that cannot be, it stays for now."""
        try:
            self._make(read, owned)
        except StorageUnavailable as error:
            logger.warning("the vector index stays as large as it is", extra={"reason": error.detail})

    def _switch(self, folder: ChromaFolder | None) -> None:
        old, self._folder = self._folder, folder
        self._asked.clear()
        try:
            if old is not None:
                old.delete()
            self._delete_others()
        except OSError as error:
            raise unavailable(f"the old vector index stays: {error}", retry_after=30) from error

    def _delete_others(self) -> None:
        for path in self._folders():
            if self._folder is None or path != self._folder.path:
                remove(path)


def _states(link: Link, owned: set[Owned]) -> dict[Unit, State]:
    """Return the units of owners with numbers that differ whenever their rows do, even after an older backup."""
    homes = sorted(owner_id for tier, owner_id in owned if tier == "episode")
    owners = sorted(owner_id for tier, owner_id in owned if tier == "fact")
    sessions = link.rows(
        "SELECT home_id, id, last_seq, index_revision, last_write_at FROM @sessions WHERE home_id IN [:homes]",
        {"homes": homes},
    )
    facts = link.rows(
        "SELECT o.id, o.revision, o.generation, COALESCE(MAX(f.updated_at), 0) FROM @owners AS o"
        " JOIN @facts AS f ON f.owner_id = o.id WHERE o.id IN [:owners] GROUP BY o.id, o.revision, o.generation",
        {"owners": owners},
    )
    states: dict[Unit, State] = {Unit("episode", row[0], row[1]): row[2:] for row in sessions}
    states.update({Unit("fact", row[0], 0): row[1:] for row in facts})
    return states


def _behind(link: Link, corpus: Corpus, folder: ChromaFolder) -> Corpus | None:
    """Return the rows of a corpus that the folder does not hold as they are now, or None."""
    parameters: dict[str, Any]
    if corpus.tier == "fact":
        # A fact that changed after it was mirrored stays to be found by words until the next reconciliation.
        (owner_id,) = corpus.owner_ids
        condition, parameters = "r.row_id > :mirrored", {"mirrored": folder.last_rows.get(("fact", owner_id), 0)}
    else:
        states = _states(link, {("episode", owner_id) for owner_id in corpus.owner_ids})
        late = [unit.session_id for unit, state in states.items() if folder.states.get(unit) != state]
        if not late:
            return None
        condition, parameters = "r.session_id IN [:late]", {"late": late}
    return replace(corpus, where=f"{corpus.where} AND {condition}", parameters={**corpus.parameters, **parameters})


def _meeting(link: Link, corpus: Corpus, row_ids: Sequence[int]) -> set[int]:
    """Return those of the named rows that are there, are the owner's and meet the filters."""
    found = link.rows(
        f"SELECT r.{corpus.key} FROM @{corpus.table} AS r WHERE {corpus.where} AND r.{corpus.key} IN [:ids]",
        {**corpus.parameters, "ids": list(row_ids)},
    )
    return {row[0] for row in found}


def _bring_up(read: Read, folder: ChromaFolder, owned: set[Owned]) -> int:
    """Compare each unit whose state moved with the ledger, and move what differs; return how many rows moved."""
    states = read(lambda link: _states(link, owned))
    moved = 0
    for unit in [unit for unit in folder.states if unit not in states]:
        gone = list(folder.members(unit))
        folder.remove(unit, gone)
        folder.drop(unit)
        moved += len(gone)
    for unit, state in states.items():
        if folder.states.get(unit) != state:
            moved += _bring_up_unit(read, folder, unit)
            folder.settle(unit, state)
    folder.flush()
    return moved


def _bring_up_unit(read: Read, folder: ChromaFolder, unit: Unit) -> int:
    known = folder.members(unit)
    moved = after = 0
    while True:
        members = read(lambda link, after=after: _members(link, unit, after))  # type: ignore[misc]
        if not len(members.row_ids):
            break
        after = int(members.row_ids[-1])
        before = [known.pop(row_id, None) for row_id in members.row_ids.tolist()]
        new = [n for n, digest in enumerate(before) if digest != members.digests[n]]
        if replaced := sum(before[n] is not None for n in new):
            folder.note_residue(replaced)
        if new:
            digests = [members.digests[n] for n in new]
            folder.put(Members(unit, members.row_ids[new], members.vectors[new], digests))
            moved += len(new)
    if known:
        folder.remove(unit, list(known))
    return moved + len(known)


def _members(link: Link, unit: Unit, after: int) -> Members:
    table, key = ("facts", "row_id") if unit.tier == "fact" else ("turns", "id")
    session = "" if unit.tier == "fact" else " AND session_id = :session"
    parameters = {"owner": unit.owner_id, "after": after, "step": large.SCAN_ROWS}
    if session:
        parameters["session"] = unit.session_id
    found = link.rows(
        f"SELECT {key}, {reading.VECTOR} FROM @{table} WHERE owner_id = :owner{session}"
        f" AND {key} > :after AND vector IS NOT NULL ORDER BY {key} LIMIT :step",
        parameters,
    )
    vectors = reading.vectors_from(link, [row[1] for row in found])[1]
    digests = [zlib.crc32(vector.tobytes()) for vector in vectors]
    return Members(unit, np.array([row[0] for row in found], np.int64), vectors, digests)
