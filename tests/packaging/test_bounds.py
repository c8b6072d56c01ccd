"""Nothing that a caller sends is without a bound, and every bound is one of the page of limits."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

from memory_service.api.app import create_api
from memory_service.contract import ids, limits

FREE = {
    "attributes": "MAX_ATTRIBUTES_BYTES",
    "arguments": "MAX_TURN_CHARS",
    "content": "MAX_TURN_CHARS",
    "lines": "MAX_BODY_BYTES",
}
"""Fields of any JSON inside, and what bounds them as a whole."""


def _unbounded(
    name: str, schema: Mapping[str, Any], schemas: Mapping[str, Any], known: Container[float]
) -> Iterator[str]:
    """Yield what of a schema has no bound of the module of limits."""
    if "$ref" in schema:
        yield from _unbounded(name, schemas[schema["$ref"].rsplit("/", 1)[-1]], schemas, known)
    elif branches := schema.get("anyOf") or schema.get("oneOf"):
        for branch in branches:
            yield from _unbounded(name, branch, schemas, known)
    elif {"enum", "const"} & schema.keys() or schema.get("type") in ("boolean", "null"):
        return
    elif schema.get("type") == "object" and "properties" in schema:
        for field, inner in schema["properties"].items():
            yield from _unbounded(f"{name}.{field}", inner, schemas, known)
    elif schema.get("type") == "array":
        if schema.get("maxItems") not in known and schema.get("maxItems") not in _sizes(schema["items"], schemas):
            yield name
        yield from _unbounded(name, schema["items"], schemas, known)
    elif schema.get("type") == "string":
        has_one_length = schema.get("pattern") == ids.UUID_PATTERN or schema.get("format") == "date-time"
        if not has_one_length and schema.get("maxLength") not in known:
            yield name
    elif schema.get("type") in ("integer", "number"):
        if schema.get("maximum") not in known and schema.get("maximum") != 1:
            yield name
    elif name.rsplit(".", 1)[-1] not in FREE:
        yield name


def _sizes(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> set[int]:
    """Return how many values there are, where there is a closed list of them."""
    found = schemas[schema["$ref"].rsplit("/", 1)[-1]] if "$ref" in schema else schema
    return {len(found["enum"])} if "enum" in found else set()


def test_whatever_a_caller_can_grow_has_a_limit_of_the_limits_page() -> None:
    document = create_api(None).openapi()
    schemas = document["components"]["schemas"]
    known = {value for name, value in vars(limits).items() if name.isupper()}
    found: list[str] = []
    seen: set[str] = set()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                seen.add(parameter["name"])
                found += _unbounded(f"{path} {parameter['name']}", parameter["schema"], schemas, known)
            if body := operation.get("requestBody"):
                seen.add(path)
                found += _unbounded(path, body["content"]["application/json"]["schema"], schemas, known)
    assert found == []
    assert {"/v1/write", "/v1/recall", "/v1/facts", "/v1/admin/import", "cursor", "limit", "Idempotency-Key"} <= seen
    assert set(FREE.values()) <= vars(limits).keys()


def test_no_bound_of_the_contract_is_a_number_of_its_own(repository: Path) -> None:
    bound = re.compile(r"(?:max_length|le|lt|multiple_of)=(?!1\b)[\d.]")
    folder = repository / "memory_service"
    of_a_person = {"config.py"}  # A configuration is its writer's own; docs/reference/configuration.md has its bounds.
    found = [
        f"{path.relative_to(folder)}: {line.strip()}"
        for part in ("contract", "api", "client")
        for path in sorted((folder / part).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if bound.search(line) and path.name not in of_a_person
    ]
    assert found == []
