"""The page of known faults names a test for each of them, and every one of these tests exists."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = "docs/explanation/known-faults.md"
SERVICE_FAULTS, ENGINE_FAULTS, EXPECTATIONS = 56, 10, 20
"""How many are known, to the row: one that is added raises the number, so that none can go unseen."""


def _rows(repository: Path) -> dict[str, list[str]]:
    """Return the rows of each of the page's tables by the heading above it."""
    rows: dict[str, list[str]] = {}
    heading = ""
    for line in (repository / PAGE).read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith(("| input |", "| behaviour |")):
            rows.setdefault(heading, []).append(line)
    return rows


def _tests(row: str) -> list[tuple[str, str]]:
    return re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row)


def test_every_known_fault_names_its_tests_and_they_exist(repository: Path) -> None:
    missing = []
    for row in [row for rows in _rows(repository).values() for row in rows]:
        assert _tests(row), f"no test is named: {row}"
        for file, name in _tests(row):
            path = repository / file
            if not path.is_file() or re.search(rf"^(async )?def {name}\(", path.read_text(), re.MULTILINE) is None:
                missing.append(f"{file}::{name}")
    assert missing == []


def test_no_known_fault_is_dropped(repository: Path) -> None:
    service, engine, expected = _rows(repository).values()
    assert (len(service), len(engine), len(expected)) == (SERVICE_FAULTS, ENGINE_FAULTS, EXPECTATIONS)
