"""What the operator says of itself: every test that its pages name exists, and what they say of the schemas is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

Json = dict[str, Any]
_ROW = re.compile(r"^\| (\d+) \| (.+?) \| ([012]) \| (.+) \|$", re.MULTILINE)
_TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


@pytest.fixture(scope="module")
def rows(repository: Path) -> list[tuple[int, str, int, str]]:
    text = (repository / "docs" / "reference" / "operator-grade.md").read_text(encoding="utf-8")
    return [(int(number), what, int(grade), proof) for number, what, grade, proof in _ROW.findall(text)]


@pytest.fixture(scope="module")
def schemas(repository: Path) -> dict[str, Json]:
    found = {}
    for file in sorted((repository / "crds").glob("*.yaml")):
        crd = yaml.safe_load(file.read_text(encoding="utf-8"))
        found[crd["spec"]["names"]["kind"]] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def nodes(schema: Json) -> Iterator[Json]:
    yield schema
    for inner in (schema.get("properties") or {}).values():
        yield from nodes(inner)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from nodes(schema[name])


def test_all_fifty_two_rows_are_graded(rows: list[tuple[int, str, int, str]]) -> None:
    assert [number for number, *_ in rows] == list(range(1, 53))


@pytest.mark.parametrize("page", ["operator-grade.md", "capabilities.md"])
def test_every_test_that_the_page_names_exists(repository: Path, page: str) -> None:
    files = [file for folder in ("tests", "e2e") for file in (repository / folder).rglob("test_*.py")]
    text = (repository / "docs" / "reference" / page).read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if line.startswith("| "))
    missing = [
        f"{name}::{test}"
        for name, test in _TEST.findall(lines)
        if not any(file.name == name and f"def {test}(" in file.read_text(encoding="utf-8") for file in files)
    ]
    assert missing == []


def test_a_capability_level_is_claimed_as_far_as_its_lines_are(repository: Path) -> None:
    text = (repository / "docs" / "reference" / "capabilities.md").read_text(encoding="utf-8")
    head, *sections = text.split("\n## ")
    claimed = dict(re.findall(r"^\| ([IV]+\. [^|]+?) \| (claimed|in part|not claimed)\b.* \|$", head, re.MULTILINE))
    lines = {
        section.splitlines()[0]: re.findall(r"^\| .+ \| (yes|no) \| (.+) \|$", section, re.MULTILINE)
        for section in sections
    }
    assert len(claimed) == 5
    assert claimed == {
        level: "claimed" if all(said == "yes" for said, _ in found) else "in part" for level, found in lines.items()
    }
    for said, proof in (line for found in lines.values() for line in found):
        assert bool(_TEST.search(proof)) == (said == "yes"), proof


def test_nothing_is_claimed_without_a_test(rows: list[tuple[int, str, int, str]]) -> None:
    assert [number for number, _, grade, proof in rows if grade and not _TEST.search(proof)] == []


def test_what_is_not_met_says_what_is_missing(rows: list[tuple[int, str, int, str]]) -> None:
    assert [number for number, _, grade, proof in rows if grade < 2 and not _TEST.sub("", proof).strip(" ,.")] == []


def test_no_status_has_a_phase(schemas: dict[str, Json]) -> None:
    assert [kind for kind, schema in schemas.items() if "phase" in schema["properties"]["status"]["properties"]] == []


def test_conditions_are_merged_by_their_type(schemas: dict[str, Json]) -> None:
    for schema in schemas.values():
        conditions = schema["properties"]["status"]["properties"]["conditions"]
        assert (conditions["x-kubernetes-list-type"], conditions["x-kubernetes-list-map-keys"]) == ("map", ["type"])


def test_no_schema_preserves_unknown_fields(schemas: dict[str, Json]) -> None:
    for schema in schemas.values():
        assert not any(node.get("x-kubernetes-preserve-unknown-fields") for node in nodes(schema))
