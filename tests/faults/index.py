"""What the vector index of a data folder holds, and what it is to hold: each row by its number, with its vector's sum.

    python -m tests.faults.index FOLDER

ends with 0 where both are the same: for a folder on a disk that only other processes see.
"""

from __future__ import annotations

import sqlite3
import sys
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

from memory_service.storage.local import DATABASE

Sums = tuple[dict[int, int], dict[int, int]]
"""Those of facts and those of turns."""


def wanted(data: Path) -> Sums:
    """Return the rows that have a vector."""
    return _sums(data, "SELECT row_id, vector FROM facts"), _sums(data, "SELECT id, vector FROM turns")


def held(data: Path) -> Sums:
    """Return the rows that the index holds: its ledger says, once it is made."""
    for ledger in data.glob("chroma-*/ledger.sqlite3"):
        if _rows(ledger, "SELECT 1 FROM sqlite_master WHERE name = 'members'"):
            rows = "SELECT row_id, digest FROM members WHERE tier = '{}'"
            return dict(_rows(ledger, rows.format("fact"))), dict(_rows(ledger, rows.format("episode")))
    return {}, {}


def is_whole(data: Path) -> bool:
    """Return whether the index holds each row that has a vector, and none else."""
    return held(data) == wanted(data) != ({}, {})


def _sums(data: Path, statement: str) -> dict[int, int]:
    rows = _rows(data / DATABASE, f"{statement} WHERE vector IS NOT NULL")
    return {number: zlib.crc32(vector) for number, vector in rows}


def _rows(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(statement).fetchall()


if __name__ == "__main__":
    sys.exit(not is_whole(Path(sys.argv[1])))
