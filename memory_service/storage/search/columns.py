"""One owner's rows as columns, in memory: what a search needs and nothing that can be read as text.

A row keeps its slot for as long as it does not change; a changed row gets a new slot and the old one dies. What was
written to a slot stays, so a snapshot is read without a lock while the index grows. The exceptions are a slot's death
and a vector that comes late: both have a flag that a snapshot copies before it looks at anything else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memory_service.contract.scopes import FactKind
from memory_service.domain.candidates import Talk
from memory_service.ports.records import ROLES
from memory_service.storage.search.words import Words, WordsView

FOREVER = np.iinfo(np.int64).max
"""The time in microseconds that stands for "no end"."""

KINDS: tuple[str, ...] = tuple(FactKind)
ROLE_CODES = {role.value: code for code, role in enumerate(ROLES)}

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Rows:
    """Rows as a database gave them, column by column. Facts leave session, seq and role at 0, 0 and -1."""

    row_ids: NDArray[np.int64]
    session_ids: NDArray[np.int64]
    seqs: NDArray[np.int64]
    roles: NDArray[np.int8]
    said_at: NDArray[np.int64]
    """Microseconds since 1970."""
    lengths: NDArray[np.int32]
    facts: Facts | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.row_ids)

    def take(self, chosen: NDArray[np.int64]) -> Rows:
        """Return the rows with these numbers."""
        return Rows(
            self.row_ids[chosen],
            self.session_ids[chosen],
            self.seqs[chosen],
            self.roles[chosen],
            self.said_at[chosen],
            self.lengths[chosen],
            None if self.facts is None else self.facts.take(chosen),
        )


@dataclass(frozen=True)
class Facts:
    """The columns that only facts have. Times are microseconds, `FOREVER` where there is no end."""

    kinds: NDArray[np.int8]
    is_active: NDArray[np.bool_]
    categories: Sequence[str | None]
    tags: Sequence[frozenset[str]]
    importance: NDArray[np.float64]
    valid_from: NDArray[np.int64]
    valid_to: NDArray[np.int64]
    expires_at: NDArray[np.int64]
    versions: NDArray[np.int64]
    has_vector: NDArray[np.bool_]

    def take(self, chosen: NDArray[np.int64]) -> Facts:
        """Return the facts with these numbers."""
        return Facts(
            self.kinds[chosen],
            self.is_active[chosen],
            [self.categories[number] for number in chosen],
            [self.tags[number] for number in chosen],
            self.importance[chosen],
            self.valid_from[chosen],
            self.valid_to[chosen],
            self.expires_at[chosen],
            self.versions[chosen],
            self.has_vector[chosen],
        )


_SLOT_BYTES = 100
"""What an entry of a dictionary costs beside its key."""
_LISTED_BYTES = 32
"""What a number costs in a list that grows."""


@dataclass
class Labels:
    """Numbers for categories and sets of tags; a tag leads to the sets that hold it."""

    categories: dict[str | None, int] = field(default_factory=lambda: {None: 0})
    tag_sets: dict[frozenset[str], int] = field(default_factory=dict)
    sets_of_tag: dict[str, list[int]] = field(default_factory=dict)
    nbytes: int = 0
    """About how much memory they take."""

    def category(self, name: str | None) -> int:
        """Return the number of a category, given if it is new."""
        number = self.categories.get(name)
        if number is None:
            number = self.categories[name] = len(self.categories)
            self.nbytes += sys.getsizeof(name) + _SLOT_BYTES
        return number

    def tag_set(self, tags: frozenset[str]) -> int:
        """Return the number of a set of tags, given if it is new."""
        number = self.tag_sets.get(tags)
        if number is None:
            number = self.tag_sets[tags] = len(self.tag_sets)
            self.nbytes += sys.getsizeof(tags) + _SLOT_BYTES
            for tag in tags:
                if tag not in self.sets_of_tag:
                    self.sets_of_tag[tag] = []
                    self.nbytes += sys.getsizeof(self.sets_of_tag[tag]) + _SLOT_BYTES
                self.sets_of_tag[tag].append(number)
                self.nbytes += sys.getsizeof(tag) + _LISTED_BYTES
        return number

    def copy(self) -> Labels:
        """Return labels that grow apart from these."""
        sets = {tag: list(numbers) for tag, numbers in self.sets_of_tag.items()}
        return Labels(dict(self.categories), dict(self.tag_sets), sets, self.nbytes)


_TYPES: dict[str, type[np.generic]] = {
    "row_ids": np.int64,
    "session_ids": np.int64,
    "seqs": np.int64,
    "roles": np.int8,
    "said_at": np.int64,
    "lengths": np.int32,
    "is_live": np.bool_,
    "has_vector": np.bool_,
}
_FACT_TYPES: dict[str, type[np.generic]] = {
    "kinds": np.int8,
    "is_active": np.bool_,
    "categories": np.int32,
    "tag_sets": np.int32,
    "importance": np.float64,
    "valid_from": np.int64,
    "valid_to": np.int64,
    "expires_at": np.int64,
    "versions": np.int64,
}


@dataclass(frozen=True)
class Snapshot:
    """An index at one moment: columns of one length, dead slots included.

    What no query has a part in is worked out when it is first asked for, and kept with the snapshot.
    """

    columns: dict[str, NDArray[Any]]
    vectors: Vectors | None
    words: WordsView
    labels: Labels

    def __len__(self) -> int:
        """Return the number of slots."""
        return len(self.columns["row_ids"])

    @cached_property
    def is_whole(self) -> bool:
        """Whether no slot is dead."""
        return bool(self.columns["is_live"].all())

    @cached_property
    def without_vector(self) -> NDArray[np.intp]:
        """The slots that have no vector."""
        return np.flatnonzero(~self.columns["has_vector"])

    @cached_property
    def said_at(self) -> NDArray[np.float64]:
        """Seconds since 1970."""
        return _fixed(self.columns["said_at"] / 1e6)

    @cached_property
    def lengths(self) -> NDArray[np.float32]:
        """Stems of each row."""
        return _fixed(self.columns["lengths"].astype(np.float32))

    @cached_property
    def total_length(self) -> float:
        """Stems of all rows."""
        return float(self.lengths.sum(dtype=np.float64))

    @cached_property
    def talk(self) -> Talk:
        """How the turns stand to each other."""
        return Talk.of(self.columns["session_ids"], self.columns["seqs"], self.lengths)


def _fixed(values: NDArray[Any]) -> NDArray[Any]:
    values.flags.writeable = False
    return values


class OwnerIndex:
    """The rows of one owner (or of one session). Not thread-safe: the cache holds a lock around changes."""

    def __init__(self, *, of_facts: bool) -> None:
        """Start empty."""
        types = {**_TYPES, **_FACT_TYPES} if of_facts else _TYPES
        self._columns: dict[str, NDArray[Any]] = {name: np.empty(0, kind) for name, kind in types.items()}
        self._size = 0
        self._vectors: Vectors | None = None
        self._words = Words()
        self._labels = Labels()

    @property
    def nbytes(self) -> int:
        """About how much memory the index takes."""
        vectors = 0 if self._vectors is None else self._vectors.nbytes
        columns = sum(column.nbytes for column in self._columns.values())
        return columns + vectors + self._words.nbytes + self._labels.nbytes

    @property
    def dead(self) -> int:
        """How many slots no longer stand for a row."""
        return self._size - int(self.column("is_live").sum())

    def __len__(self) -> int:
        """Return the number of slots."""
        return self._size

    def column(self, name: str) -> NDArray[Any]:
        """Return one column over all slots."""
        return self._columns[name][: self._size]

    def encode(self, facts: Facts) -> dict[str, NDArray[Any]]:
        """Return the facts' columns as they are kept, labels as numbers."""
        return {
            "kinds": facts.kinds,
            "is_active": facts.is_active,
            "categories": np.array([self._labels.category(name) for name in facts.categories], np.int32),
            "tag_sets": np.array([self._labels.tag_set(tags) for tags in facts.tags], np.int32),
            "importance": facts.importance,
            "valid_from": facts.valid_from,
            "valid_to": facts.valid_to,
            "expires_at": facts.expires_at,
            "versions": facts.versions,
        }

    def append(self, rows: Rows, terms: Sequence[str], slots: NDArray[np.int64], vectors: Vectors) -> None:
        """Add rows. `vectors` belong to the new rows numbered `slots` from 0; the others have none yet."""
        start, count = self._size, len(rows)
        self._grow(start + count)
        values: dict[str, Any] = {
            "row_ids": rows.row_ids,
            "session_ids": rows.session_ids,
            "seqs": rows.seqs,
            "roles": rows.roles,
            "said_at": rows.said_at,
            "lengths": rows.lengths,
            "is_live": True,
            "has_vector": False,
        }
        if rows.facts is not None:
            values.update(self.encode(rows.facts))
        for name, value in values.items():
            self._columns[name][start : start + count] = value
        self._size = start + count
        self._words.add(start, terms)
        self.set_vectors(slots + start, vectors)

    def set_vectors(self, slots: NDArray[np.int64], vectors: Vectors) -> None:
        """Give slots their vectors."""
        if not len(slots):
            return
        if self._vectors is None:
            self._vectors = np.zeros((len(self._columns["row_ids"]), vectors.shape[1]), np.float32)
        self._vectors[slots] = vectors
        self._columns["has_vector"][slots] = True

    def kill(self, slots: NDArray[np.int64]) -> None:
        """Say that slots no longer stand for a row."""
        if len(slots):
            alive = self._columns["is_live"].copy()
            alive[slots] = False
            self._columns["is_live"] = alive

    def snapshot(self) -> Snapshot:
        """Return the index as it is now."""
        columns = {name: column[: self._size] for name, column in self._columns.items()}
        columns["has_vector"] = columns["has_vector"].copy()
        vectors = None if self._vectors is None else self._vectors[: self._size]
        return Snapshot(columns, vectors, self._words.view(), self._labels)

    def copy(self) -> OwnerIndex:
        """Return an index that changes apart from this one."""
        other = OwnerIndex(of_facts=False)
        other._columns = {name: column.copy() for name, column in self._columns.items()}
        other._size = self._size
        other._vectors = None if self._vectors is None else self._vectors.copy()
        other._words = self._words.copy()
        other._labels = self._labels.copy()
        return other

    def _grow(self, size: int) -> None:
        capacity = len(self._columns["row_ids"])
        if size <= capacity:
            return
        # The first rows come all at once; later ones one by one, so room is made for an eighth more.
        capacity = size + (size // 8 + 8 if self._size else 0)
        for name, column in self._columns.items():
            grown = np.zeros(capacity, column.dtype)
            grown[: self._size] = column[: self._size]
            self._columns[name] = grown
        if self._vectors is not None:
            vectors = np.zeros((capacity, self._vectors.shape[1]), np.float32)
            vectors[: self._size] = self._vectors[: self._size]
            self._vectors = vectors
