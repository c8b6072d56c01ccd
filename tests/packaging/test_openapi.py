"""The OpenAPI document is a golden file: a change of the contract is a change that somebody reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

from memory_service.api.app import create_api
from memory_service.api.problems import STATUS
from memory_service.contract.problems import ProblemKind


def test_the_published_document_is_the_golden_file(repository: Path) -> None:
    golden = repository / "docs" / "reference" / "openapi.json"
    document = json.dumps(create_api(None).openapi(), indent=1, sort_keys=True) + "\n"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        golden.write_text(document)
    assert golden.read_text() == document, "run UPDATE_GOLDEN=1 pytest tests/packaging and read the diff"


def test_every_kind_of_problem_has_a_status() -> None:
    assert set(STATUS) == set(ProblemKind)


def test_every_operation_documents_its_problems() -> None:
    for path, operations in create_api(None).openapi()["paths"].items():
        for verb, operation in operations.items():
            assert "application/problem+json" in operation["responses"]["422"]["content"], f"{verb} {path}"
