"""One Chroma folder: vectors under their owner's number, and a ledger of which rows are in it.

It holds no text: ids, owners, sessions and vectors only. Chroma says neither which version of a row it has nor whether
its index survived, so a small ledger beside it does: a row is in the ledger only after Chroma has it. Chroma loads the
files of its index without a look at them, and a torn one ends the process or never lets go of a thread; so the ledger
has their digests too, and no file is loaded that is not as it was written. Chroma serves one process; the lock of the
data folder sees to that. Importing it takes seconds and tens of megabytes, so this module does so when a folder is
first opened, and the mirror opens none before an owner is large enough to need it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from chromadb.api.client import Client
    from chromadb.api.models.Collection import Collection

Tier = Literal["fact", "episode"]
TIERS: tuple[Tier, ...] = ("fact", "episode")

State = tuple[int, ...]
"""Numbers that differ whenever a unit's rows differ."""

_LEDGER = "ledger.sqlite3"
_DATABASE = "chroma.sqlite3"
_INDEX_FILES = "*/*"
_PLACES = ("data_level0.bin", "length.bin")
_WRITTEN = "index_metadata.pickle"
"""Chroma's files of an index: its vectors with their lengths, and what is there once rows were written."""
_FORMAT = 2
REMOVALS = 100
REMOVAL_SECONDS = 0.1
"""A folder is looked at this often, this long apart, until it is gone: ten seconds."""
_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE units (
    tier TEXT NOT NULL, owner_id INTEGER NOT NULL, session_id INTEGER NOT NULL, state TEXT NOT NULL,
    PRIMARY KEY (tier, owner_id, session_id)
) WITHOUT ROWID;
CREATE TABLE members (
    tier TEXT NOT NULL, owner_id INTEGER NOT NULL, session_id INTEGER NOT NULL, row_id INTEGER NOT NULL,
    digest INTEGER NOT NULL,
    PRIMARY KEY (tier, owner_id, session_id, row_id)
) WITHOUT ROWID;
CREATE TABLE files (path TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID;
"""


class MirrorBroken(Exception):
    """The folder cannot be used: missing, torn, closed or of another format. It is made anew from the rows."""


class Unit(NamedTuple):
    """Rows that are compared as one: a session's turns, or an owner's facts (session 0)."""

    tier: Tier
    owner_id: int
    session_id: int


@dataclass(frozen=True)
class Members:
    """Rows of one unit with their vectors and a short digest of each."""

    unit: Unit
    row_ids: NDArray[np.int64]
    vectors: NDArray[np.float32]
    digests: Sequence[int]


class _File(NamedTuple):
    size: int
    changed_ns: int
    digest: str


def remove(path: Path) -> None:
    """Remove a folder, and look again until it is gone: Chroma's threads may write into it just after it was closed.

    Raises:
        OSError: something of it stays; its bytes are not gone.
    """
    for _ in range(REMOVALS):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        time.sleep(REMOVAL_SECONDS)
    raise OSError(f"the folder {path.name!r} cannot be removed; look at its permissions and who has it open")


class ChromaFolder:
    """One open folder. Searches may run in several threads; one thread at a time changes it."""

    def __init__(
        self, path: Path, client: Client, ledger: sqlite3.Connection, files: Mapping[str, _File] | None = None
    ) -> None:
        """Use `create` or, with the files that were found, `open`."""
        self.path = path
        self._client = client
        self._ledger = ledger
        self._collections: Mapping[Tier, Collection] = {
            tier: client.get_or_create_collection(
                f"memory-{tier}", embedding_function=None, configuration={"hnsw": {"space": "cosine", "ef_search": 200}}
            )
            for tier in TIERS
        }
        self._batch = client.get_max_batch_size()
        self._is_complete = files is not None
        self._files: Mapping[str, _File] = files or {}
        self._waiting: list[Members] = []
        self._settling: dict[Unit, State] = {}
        self._uses = 0
        self._closed = False
        self._idle = threading.Condition()
        self.states: dict[Unit, State] = {}
        self.last_rows: dict[tuple[Tier, int], int] = {}

    @classmethod
    def create(cls, path: Path, dimension: int) -> ChromaFolder:
        """Make an empty folder; until `complete`, nobody opens it again.

        Raises:
            MirrorBroken: it cannot be made; what of it cannot be removed is no folder that is opened.
        """
        with _translated(), ExitStack() as undo:
            path.mkdir()
            undo.callback(shutil.rmtree, path, ignore_errors=True)
            ledger = _connect(path / _LEDGER)
            undo.callback(ledger.close)
            with ledger:
                ledger.executescript(_SCHEMA)
                ledger.executemany(
                    "INSERT INTO meta VALUES (?, ?)",
                    [("format", _FORMAT), ("dimension", dimension), ("complete", 0), ("residue", 0)],
                )
            client = _client(path)
            undo.callback(client.close)
            folder = cls(path, client, ledger)
            undo.pop_all()
            return folder

    @classmethod
    def open(cls, path: Path, dimension: int) -> ChromaFolder:
        """Open a folder whose files are as they were written, and check that the ledger and Chroma agree.

        Raises:
            MirrorBroken: they do not, or it was not completed, or it is of another format or dimension.
        """
        if not (path / _LEDGER).is_file():
            raise MirrorBroken(f"{path.name} has no ledger")
        with _translated(), ExitStack() as undo:
            ledger = _connect(path / _LEDGER)
            undo.callback(ledger.close)
            meta = dict(ledger.execute("SELECT name, value FROM meta"))
            if (meta["format"], meta["dimension"], meta["complete"]) != (_FORMAT, dimension, 1):
                raise MirrorBroken(f"{path.name} is of another format, of another dimension or unfinished")
            _check_databases(path, ledger)
            files = _read_files(path, {})
            if _digests_of(files) != dict(ledger.execute("SELECT path, digest FROM files")):
                raise MirrorBroken(f"files of {path.name} are not as they were written")
            client = _client(path)
            undo.callback(client.close)
            folder = cls(path, client, ledger, files)
            folder._check()
            undo.pop_all()
            return folder

    @property
    def residue(self) -> int:
        """How many vectors of rows that are gone the files may hold: Chroma frees no bytes."""
        with _translated():
            found: int = self._ledger.execute("SELECT value FROM meta WHERE name = 'residue'").fetchone()[0]
        return found

    @property
    def is_mostly_residue(self) -> bool:
        """Whether more vectors are gone than are there: they cost disk and memory, and each search and change time."""
        with _translated():
            held: int = self._ledger.execute("SELECT COUNT(*) FROM members").fetchone()[0]
        return self.residue > held

    def complete(self) -> None:
        """Say that the folder may be opened from now on."""
        self.flush()
        self._is_complete = True
        with self._changes():
            self._note_files()
            self._ledger.execute("UPDATE meta SET value = 1 WHERE name = 'complete'")

    def members(self, unit: Unit) -> dict[int, int]:
        """Return the digests of a unit's rows by row id."""
        with _translated():
            return dict(
                self._ledger.execute(
                    "SELECT row_id, digest FROM members WHERE (tier, owner_id, session_id) = (?, ?, ?)", unit
                )
            )

    def put(self, members: Members) -> None:
        """Take rows in, or their new vectors; they are written in batches, the last one by `flush`."""
        for start in range(0, len(members.row_ids), self._batch):
            part = slice(start, start + self._batch)
            if sum(len(waiting.row_ids) for waiting in self._waiting) + len(members.row_ids[part]) > self._batch:
                self._write()
            self._waiting.append(
                Members(members.unit, members.row_ids[part], members.vectors[part], members.digests[part])
            )

    def settle(self, unit: Unit, state: State) -> None:
        """Say that a unit stands as in this state once what was put before is written."""
        self._settling[unit] = state

    def remove(self, unit: Unit, row_ids: Sequence[int]) -> None:
        """Take rows out."""
        for start in range(0, len(row_ids), self._batch):
            part = row_ids[start : start + self._batch]
            self.note_residue(len(part))
            with _translated():
                self._collections[unit.tier].delete(ids=[str(row_id) for row_id in part])
            with self._changes():
                self._ledger.executemany(
                    "DELETE FROM members WHERE (tier, owner_id, session_id, row_id) = (?, ?, ?, ?)",
                    [(*unit, row_id) for row_id in part],
                )
                self._note_files()

    def note_residue(self, count: int) -> None:
        """Say, before it becomes true, that the files hold so many more vectors of rows that are gone."""
        with self._changes():
            self._ledger.execute("UPDATE meta SET value = value + ? WHERE name = 'residue'", (count,))

    def drop(self, unit: Unit) -> None:
        """Forget a unit whose rows were removed."""
        with self._changes():
            self._ledger.execute("DELETE FROM units WHERE (tier, owner_id, session_id) = (?, ?, ?)", unit)
        self.states.pop(unit, None)

    def flush(self) -> None:
        """Write what was put, then what was settled."""
        self._write()
        with self._changes():
            self._ledger.executemany(
                "INSERT OR REPLACE INTO units VALUES (?, ?, ?, ?)",
                [(*unit, " ".join(map(str, state))) for unit, state in self._settling.items()],
            )
        self.states.update(self._settling)
        self._settling.clear()

    def nearest(
        self, tier: Tier, owner_ids: Sequence[int], session_id: int | None, vector: NDArray[np.float32], limit: int
    ) -> list[int]:
        """Return the row ids nearest to a vector under some owners; nearly always the true ones.

        Raises:
            MirrorBroken: the index does not answer.
        """
        where: dict[str, Any] = {"owner": {"$in": list(owner_ids)}}
        if session_id is not None:
            where = {"$and": [where, {"session": session_id}]}
        with self._used(), _translated():
            found = self._collections[tier].query(
                query_embeddings=vector[np.newaxis, :], n_results=limit, where=where, include=[]
            )
        return [int(row_id) for row_id in found["ids"][0]]

    def close(self) -> None:
        """Wait for searches and give the files back."""
        with self._idle:
            if self._closed:
                return
            self._closed = True
            self._idle.wait_for(lambda: self._uses == 0)
        self._client.close()
        self._ledger.close()

    def delete(self) -> None:
        """Close the folder and remove it."""
        self.close()
        remove(self.path)

    @contextmanager
    def _used(self) -> Iterator[None]:
        with self._idle:
            if self._closed:
                raise MirrorBroken(f"{self.path.name} was closed")
            self._uses += 1
        try:
            yield
        finally:
            with self._idle:
                self._uses -= 1
                self._idle.notify_all()

    def _write(self) -> None:
        for tier in TIERS:
            parts = [part for part in self._waiting if part.unit.tier == tier and len(part.row_ids)]
            if not parts:
                continue
            rows = [(part.unit, int(row_id)) for part in parts for row_id in part.row_ids]
            with _translated():
                self._collections[tier].upsert(
                    ids=[str(row_id) for _, row_id in rows],
                    embeddings=np.concatenate([part.vectors for part in parts]),
                    metadatas=[{"owner": unit.owner_id, "session": unit.session_id} for unit, _ in rows],
                )
            with self._changes():
                self._ledger.executemany(
                    "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?)",
                    [(*row, digest) for part in parts for row, digest in _digests(part)],
                )
                self._note_files()
            for unit, row_id in rows:
                place = (unit.tier, unit.owner_id)
                self.last_rows[place] = max(self.last_rows.get(place, 0), row_id)
        self._waiting.clear()

    @contextmanager
    def _changes(self) -> Iterator[None]:
        """One transaction of the ledger."""
        with _translated(), self._ledger:
            yield

    def _note_files(self) -> None:
        """Note in the ledger what the index's files hold; of an unfinished folder nobody asks."""
        if not self._is_complete:
            return
        _blank_unused(self.path)
        self._files = _read_files(self.path, self._files)
        self._ledger.execute("DELETE FROM files")
        self._ledger.executemany("INSERT INTO files VALUES (?, ?)", _digests_of(self._files).items())

    def _check(self) -> None:
        """Compare counts, and look for the first and the last row of each tier."""
        for tier, collection in self._collections.items():
            counted, first, last = self._ledger.execute(
                "SELECT COUNT(*), MIN(row_id), MAX(row_id) FROM members WHERE tier = ?", (tier,)
            ).fetchone()
            if collection.count() != counted:
                raise MirrorBroken(f"{self.path.name} holds another number of rows than its ledger")
            ends = [str(row_id) for row_id in {first, last} - {None}]
            if ends and len(collection.get(ids=ends, include=[])["ids"]) != len(ends):
                raise MirrorBroken(f"{self.path.name} lacks a row of its ledger")
        for tier, owner_id, session_id, state in self._ledger.execute("SELECT * FROM units"):
            self.states[Unit(tier, owner_id, session_id)] = tuple(map(int, state.split()))
        self.last_rows = {
            (tier, owner_id): last
            for tier, owner_id, last in self._ledger.execute(
                "SELECT tier, owner_id, MAX(row_id) FROM members GROUP BY tier, owner_id"
            )
        }


def _digests(part: Members) -> Iterator[tuple[tuple[Tier, int, int, int], int]]:
    for row_id, digest in zip(part.row_ids.tolist(), part.digests, strict=True):
        yield (*part.unit, row_id), digest


def _blank_unused(path: Path) -> None:
    """Write zeros over the places of indexes that no row was written to yet.

    A new index is written with places that are not cleared: they have what the process had there before, a text or a
    vector of somebody else. The first rows that are written take the place of whole files; till then the index says
    that it is empty, and its rows are read from Chroma's log.
    """
    for folder in (found for found in path.iterdir() if found.is_dir() and not (found / _WRITTEN).exists()):
        for places in (folder / name for name in _PLACES if (folder / name).exists()):
            with places.open("r+b") as file:
                file.write(bytes(places.stat().st_size))
                file.flush()
                os.fsync(file.fileno())


def _read_files(path: Path, known: Mapping[str, _File]) -> dict[str, _File]:
    """Return the files of a folder's index as they are now; those that are as they were known are not read again."""
    found = {}
    for file in path.glob(_INDEX_FILES):
        name, stat = file.relative_to(path).as_posix(), file.stat()
        before = known.get(name)
        if before is not None and (before.size, before.changed_ns) == (stat.st_size, stat.st_mtime_ns):
            found[name] = before
            continue
        with file.open("rb") as opened:
            found[name] = _File(stat.st_size, stat.st_mtime_ns, hashlib.file_digest(opened, "blake2b").hexdigest())
    return found


def _digests_of(files: Mapping[str, _File]) -> dict[str, str]:
    return {name: file.digest for name, file in files.items()}


def _check_databases(path: Path, ledger: sqlite3.Connection) -> None:
    if not (path / _DATABASE).is_file():
        raise MirrorBroken(f"{path.name} has no database of Chroma's")
    with closing(_connect(path / _DATABASE)) as database:
        for name, checked in ((_LEDGER, ledger), (_DATABASE, database)):
            if checked.execute("PRAGMA quick_check").fetchall() != [("ok",)]:
                raise MirrorBroken(f"{name} of {path.name} is torn")


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, check_same_thread=False)


def _client(path: Path) -> Client:
    import chromadb
    from chromadb.config import Settings

    settings = Settings(anonymized_telemetry=False)
    return cast("Client", chromadb.PersistentClient(path=str(path), settings=settings))


@contextmanager
def _translated() -> Iterator[None]:
    from chromadb.errors import ChromaError

    try:
        yield
    except (ChromaError, sqlite3.Error, OSError, ValueError, KeyError) as error:
        raise MirrorBroken(f"the vector index does not answer: {type(error).__name__}") from error
