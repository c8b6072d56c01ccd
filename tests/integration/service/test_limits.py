"""Every limit at its edge: the last that fits is taken, one more is refused by its field and stores nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from memory_service.contract import limits
from memory_service.operations import remember, write
from tests.integration.service.harness import Json, Service, problem

REFUSED_ELSEWHERE_OR_NEVER = {
    "MAX_BODY_BYTES": "413, in test_hostile_input",
    "BODY_GRACE_SECONDS": "408, in test_turn_verbs",
    "BODY_BYTES_PER_SECOND": "408, in test_turn_verbs",
    "HEAD_SECONDS": "the connection ends, in test_silence",
    "MAX_HEADER_BYTES": "431, in test_hostile_input",
    "MAX_NUMBER_DIGITS": "no JSON, in test_hostile_input and test_any_value",
    "MAX_TOKEN_CHARS": "401, in the unit tests of identity",
    "MAX_SESSIONS": "of a small store it is counted below",
    "MAX_FACTS": "of a small store it is counted below",
    "MAX_ERRORS": "the rest is not named, in test_hostile_input",
    "MAX_FIELD_CHARS": "cut, in test_expectations",
    "MAX_CURSOR_CHARS": "no cursor that a route gives is as long, in test_hostile_input",
    "MAX_GENERATION_CHARS": "no generation that an answer gives is as long, in test_hostile_input",
    "MAX_HISTORY_LINES": "older changes go, in the conformance tests of facts",
    "MAX_HISTORY_CHARS": "older changes go, in the conformance tests of facts",
    "MAX_SOURCE_SEQS": "older turns go, in the conformance tests of facts",
    "MAX_PAGE_CHARS": "the rest follows on the next page",
    "DEFAULT_PAGE": "what a call that names no limit gets",
}


@dataclass(frozen=True)
class Edge:
    """A limit, the field that is refused beyond it, and the request that has so much of what it limits."""

    limit: str
    most: int
    field: str
    path: str
    body: Callable[[int], Any]
    method: str = "POST"
    admin: bool = False


TURNS: Json = {"turns": [{"role": "user", "content": "x"}]}
WRITE: Json = {"session_id": "s1", **TURNS}


def _turn(change: Callable[[int], Json]) -> Callable[[int], Json]:
    return lambda size: {"session_id": "s1", "turns": [{"role": "user", "content": "x", **change(size)}]}


def _part(change: Callable[[int], Json]) -> Callable[[int], Json]:
    return _turn(lambda size: {"parts": [{"id": "c", "name": "n", **change(size)}]})


def _fact(change: Callable[[int], Json]) -> Callable[[int], Json]:
    return lambda size: {"text": "Anna lives in Oslo", **change(size)}


def _query(change: Callable[[int], Json]) -> Callable[[int], Json]:
    return lambda size: {"query": "walnut", **change(size)}


def _nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 and level < levels - 1 else {"a": value}
    return value


def _batch(size: int) -> Json:
    return {"facts": [{"text": f"Walnut tree number {number}"} for number in range(size)]}


def _agent_of(size: int) -> str:
    """Return an agent's identity of so many characters, the longest labels first."""
    rest = size - len("kaos://agent//") - 63
    labels = [63] * (rest // 64) + [rest % 64]
    return f"kaos://agent/{'n' * 63}/{'.'.join('a' * length for length in labels)}"


EDGES = (
    Edge(
        "MAX_TURNS_PER_WRITE",
        500,
        "turns",
        "/v1/write",
        lambda size: {"session_id": "s1", "turns": [{"role": "user", "content": "x"}] * size},
    ),
    Edge(
        "MAX_TURN_CHARS",
        1_000_000,
        "turns.0.content",
        "/v1/write",
        _turn(lambda size: {"content": "x " * (size // 2) + "x" * (size % 2)}),
    ),
    Edge(
        "MAX_PARTS_PER_TURN",
        256,
        "turns.0.parts",
        "/v1/write",
        _turn(lambda size: {"parts": [{"type": "text", "text": "x"}] * size}),
    ),
    Edge(
        "MAX_JSON_DEPTH",
        32,
        "turns.0.parts.0",
        "/v1/write",
        _part(lambda size: {"type": "tool_call", "arguments": _nested(size)}),
    ),
    Edge(
        "MAX_JSON_DEPTH",
        32,
        "turns.0.parts.0",
        "/v1/write",
        _part(lambda size: {"type": "tool_result", "content": _nested(size)}),
    ),
    Edge("MAX_JSON_DEPTH", 32, "", "/v1/facts", _fact(lambda size: {"attributes": _nested(size)})),
    Edge("MAX_NAME_CHARS", 200, "turns.0.name", "/v1/write", _turn(lambda size: {"name": "n" * size})),
    Edge(
        "MAX_NAME_CHARS",
        200,
        "turns.0.parts.0",
        "/v1/write",
        _part(lambda size: {"type": "tool_call", "name": "n" * size}),
    ),
    Edge(
        "MAX_NAME_CHARS",
        200,
        "turns.0.parts.0.id",
        "/v1/write",
        _turn(lambda size: {"parts": [{"type": "tool_result", "id": "🦙" * size}]}),
    ),
    Edge("MAX_ID_CHARS", 128, "session_id", "/v1/write", lambda size: {"session_id": "s" * size, **TURNS}),
    Edge("MAX_ID_CHARS", 128, "workspace", "/v1/write", lambda size: {"workspace": "w" * size, **WRITE}),
    Edge("MAX_ID_CHARS", 128, "turns.0.id", "/v1/write", _turn(lambda size: {"id": "t" * size})),
    Edge("MAX_KEY_CHARS", 200, "key", "/v1/facts", _fact(lambda size: {"key": "k" * size})),
    Edge("MAX_KEY_CHARS", 200, "dedupe_key", "/v1/facts", _fact(lambda size: {"dedupe_key": "d" * size})),
    Edge(
        "MAX_QUEUED_SECONDS",
        320_000_000,
        "queued_seconds",
        "/v1/write",
        lambda size: {"queued_seconds": size, **WRITE},
    ),
    Edge("MAX_WHOLE_NUMBER", 2**53, "after", "/v1/sessions/s1/turns", lambda size: {"after": size}, method="GET"),
    Edge(
        "MAX_AGENT_CHARS",
        331,
        "subject.agent",
        "/v1/admin/erase",
        lambda size: {"subject": {"agent": _agent_of(size)}},
        admin=True,
    ),
    Edge(
        "MAX_URL_CHARS",
        8_192,
        "turns.0.parts.0.url",
        "/v1/write",
        _turn(lambda size: {"parts": [{"type": "image", "url": "🦙" * size}]}),
    ),
    Edge(
        "MAX_ALT_CHARS",
        4_096,
        "turns.0.parts.0.alt",
        "/v1/write",
        _turn(lambda size: {"parts": [{"type": "audio", "url": "u", "alt": "🦙" * size}]}),
    ),
    Edge("MAX_TURN_CHARS", 1_000_000, "turns.0.content", "/v1/write", _turn(lambda size: {"content": "é" * size})),
    Edge("MAX_NAME_CHARS", 200, "turns.0.name", "/v1/write", _turn(lambda size: {"name": "🦙" * size})),
    Edge("MAX_QUERY_CHARS", 32_000, "query", "/v1/recall", _query(lambda size: {"query": "漢" * size})),
    Edge("MAX_FACT_CHARS", 16_000, "text", "/v1/facts", lambda size: {"text": "🦙" * size}),
    Edge("MAX_EVIDENCE_CHARS", 16_000, "evidence", "/v1/facts", _fact(lambda size: {"evidence": "🦙" * size})),
    Edge("MAX_TAG_CHARS", 100, "tags.0", "/v1/facts", _fact(lambda size: {"tags": ["🦙" * size]})),
    Edge("MAX_TAG_CHARS", 100, "category", "/v1/facts", _fact(lambda size: {"category": "🦙" * size})),
    Edge("MAX_QUERY_CHARS", 32_000, "query", "/v1/recall", _query(lambda size: {"query": "q" * size})),
    Edge("MAX_TOP_K", 100, "top_k", "/v1/recall", _query(lambda size: {"top_k": size})),
    Edge("MAX_TOKEN_BUDGET", 1_000_000, "token_budget", "/v1/recall", _query(lambda size: {"token_budget": size})),
    Edge(
        "MAX_FILTER_VALUES",
        64,
        "filters.tags",
        "/v1/recall",
        _query(lambda size: {"filters": {"tags": [f"t{number}" for number in range(size)]}}),
    ),
    Edge("MAX_FACT_CHARS", 16_000, "text", "/v1/facts", lambda size: {"text": "w" * size}),
    Edge("MAX_EVIDENCE_CHARS", 16_000, "evidence", "/v1/facts", _fact(lambda size: {"evidence": "e" * size})),
    Edge("MAX_TAGS", 32, "tags", "/v1/facts", _fact(lambda size: {"tags": [f"t{number}" for number in range(size)]})),
    Edge("MAX_TAG_CHARS", 100, "tags.0", "/v1/facts", _fact(lambda size: {"tags": ["t" * size]})),
    Edge("MAX_TAG_CHARS", 100, "category", "/v1/facts", _fact(lambda size: {"category": "c" * size})),
    Edge(
        "MAX_ATTRIBUTES_BYTES",
        16_384,
        "",
        "/v1/facts",
        _fact(lambda size: {"attributes": {"a": "é" * ((size - 9) // 2) + "x" * ((size - 9) % 2)}}),
    ),
    Edge("MAX_FACTS_PER_BATCH", 100, "facts", "/v1/facts/batch", _batch),
    Edge("MAX_PAGE", 1_000, "limit", "/v1/list", lambda size: {"limit": size}),
    Edge("MAX_PAGE", 1_000, "limit", "/v1/sessions", lambda size: {"limit": size}, method="GET"),
    Edge("MAX_PAGE", 1_000, "limit", "/v1/admin/export", lambda size: {"limit": size}, method="GET", admin=True),
    Edge(
        "MAX_PRINCIPAL_CHARS",
        1_000,
        "subject.principal",
        "/v1/admin/erase",
        lambda size: {"subject": {"principal": "i#" + "p" * (size - 2)}},
        admin=True,
    ),
)


async def _sent(service: Service, edge: Edge, size: int) -> Any:
    asker = service.admin() if edge.admin else service.agent()
    if edge.method == "GET":
        return await asker.ask("GET", edge.path, **edge.body(size))
    return await asker.ask(edge.method, edge.path, edge.body(size))


async def _stored(service: Service) -> Json:
    counts: Json = (await service.admin().get("/v1/admin/diagnostics"))["counts"]
    return counts


async def test_each_limit_takes_its_edge_and_refuses_one_more_by_name_and_stores_nothing(service: Service) -> None:
    exported = await _a_line(service)
    lines = Edge(
        "MAX_IMPORT_LINES", 1_000, "lines", "/v1/admin/import", lambda size: {"lines": [exported] * size}, admin=True
    )
    wrong: list[tuple[str, str]] = []
    for edge in (*EDGES, lines):
        before = await _stored(service)
        refused = await _sent(service, edge, edge.most + 1)
        is_named = refused.status_code == 422 and any(
            error["field"].startswith(edge.field) and str(edge.most) in error["expected"]
            for error in problem(refused, 422, "invalid-request")["errors"]
        )
        stored = await _stored(service) != before
        taken = await _sent(service, edge, edge.most)
        if stored or not is_named or taken.status_code >= 300:
            wrong.append((edge.limit, edge.path))
    assert wrong == []
    rows = {edge.limit: edge.most for edge in (*EDGES, lines)}
    named = {limit: value for limit, value in vars(limits).items() if limit.isupper()}
    assert {limit: value for limit, value in named.items() if limit not in REFUSED_ELSEWHERE_OR_NEVER} == rows
    assert set(REFUSED_ELSEWHERE_OR_NEVER) <= set(named)


async def _a_line(service: Service) -> Json:
    await service.agent().remember("Walnut trees need sun")
    lines: list[Json] = (await service.admin().get("/v1/admin/export"))["lines"]
    return lines[-1]


async def test_one_session_too_many_is_refused_by_name_and_stores_nothing_and_each_user_has_its_own(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "MAX_SESSIONS", 2)
    alice, bob = service.agent(user="alice"), service.agent(user="bob")
    for session in ("s1", "s2"):
        await alice.write("hello", session=session)
        await bob.write("hello", session=session)
    before = await _stored(service)
    refused = await alice.ask("POST", "/v1/write", {"session_id": "s3", **TURNS})
    assert problem(refused, 422, "limit-exceeded")["errors"][0]["field"] == "session_id"
    assert await _stored(service) == before
    await alice.write("and again", session="s2")
    await alice.forget(scope="session", session_id="s1")
    await alice.write("hello", session="s3")


async def test_one_fact_too_many_of_an_owner_is_refused_by_name_and_stores_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remember, "MAX_FACTS", 2)
    agent = service.agent()
    await service.agent("other").remember("Walnut trees need sun")
    first = await agent.remember("Anna lives in Oslo", key="k")
    await agent.remember("Rivers are long")
    before = await _stored(service)
    one_more = {"text": "Cheese is made of milk"}
    for path, body in (
        ("/v1/facts", one_more),
        ("/v1/facts/batch", {"facts": [one_more]}),
        (f"/v1/facts/{first['id']}/supersede", one_more),
    ):
        refused = problem(await agent.ask("POST", path, body), 422, "limit-exceeded")
        assert refused["errors"][0]["field"] == "scope"
    assert await _stored(service) == before
    await agent.remember("Anna lives in Rome", key="k")
    await agent.ask("DELETE", f"/v1/facts/{first['id']}")
    await agent.remember(one_more["text"])
