"""The OpenAPI document is a golden file: a change of the contract is a change that somebody reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

from memory_service.api.app import create_api
from memory_service.api.gate import READING_PATHS
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


def test_of_every_post_it_is_known_whether_it_changes_anything() -> None:
    posts = {path for path, operations in create_api(None).openapi()["paths"].items() if "post" in operations}
    assert posts >= READING_PATHS
    assert posts - READING_PATHS == {
        "/v1/admin/erase", "/v1/admin/import", "/v1/admin/jobs/replay", "/v1/facts", "/v1/facts/batch",
        "/v1/facts/{fact_id}/supersede", "/v1/forget", "/v1/jobs/{job_id}/retry",
        "/v1/sessions/{session_id}/compact", "/v1/sessions/{session_id}/end", "/v1/sessions/{session_id}/flush",
        "/v1/write",
    }, "a new one that reads belongs to READING_PATHS: it is answered while writes wait"  # fmt: skip
