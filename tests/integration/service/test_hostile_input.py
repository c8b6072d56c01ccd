"""Whatever is sent, the answer is a Problem that names what is wrong, and nothing is half-written."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.core.result import Ok
from schemathesis.generation.case import Case

from memory_service.api.app import create_api
from memory_service.contract.config import ServerConfig
from memory_service.contract.health import PartHealth
from memory_service.contract.limits import MAX_BODY_BYTES, MAX_CURSOR_CHARS, MAX_ERRORS, MAX_HEADER_BYTES
from memory_service.ports.storage import Transaction
from memory_service.storage.transaction import RowTransaction
from tests.integration.service.conftest import Start
from tests.integration.service.harness import Asker, Json, Service, problem

EXAMPLES = 5
"""Examples for each route, right ones and as many wrong ones; a seed makes them the same in every run."""
EXAMPLES_OF_WRITES = 10
"""Examples for the routes that store what they are sent."""
WRITING = {"/v1/write", "/v1/facts", "/v1/facts/batch", "/v1/facts/{fact_id}/supersede", "/v1/admin/import"}

WRITE = {"session_id": "s1", "turns": [{"role": "user", "content": "hello"}]}


@functools.cache
def _cases() -> list[Case[Any]]:
    """Return seeded requests to every route of the document, right ones and wrong ones."""
    document = schemathesis.openapi.from_dict(create_api(None).openapi())
    cases: list[Case[Any]] = []
    for found in document.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()
        for mode in schemathesis.GenerationMode:

            @settings(
                max_examples=EXAMPLES_OF_WRITES if operation.path in WRITING else EXAMPLES,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def draw(case: Case[Any]) -> None:
                cases.append(case)

            with contextlib.suppress(Unsatisfiable):  # Nothing can be wrong with a request that has no parts.
                draw()
    return cases


def _bury(tx: Transaction, *, job_id: str) -> None:
    assert isinstance(tx, RowTransaction)
    tx.link.run("UPDATE @jobs SET state = 'dead' WHERE id = :id", {"id": job_id})


async def _known(service: Service, agent: Asker, path: str) -> dict[str, str]:
    """Return ids of what is there now, under the names that paths have for them."""
    known: dict[str, str] = {}
    if "{session_id}" in path or "{job_id}" in path:
        written = await agent.write("hello", session="s1")
        known = {"session_id": "s1", "job_id": written["jobs"][0]}
        if path.endswith("/retry"):
            await service.services.storage.transact(functools.partial(_bury, job_id=known["job_id"]))
    if "{fact_id}" in path:
        known["fact_id"] = (await agent.remember("Anna lives in Oslo"))["id"]
    if "{receipt_id}" in path:
        known["receipt_id"] = (await agent.forget(session_id="s2", scope="session"))["receipt_id"]
    return known


def _fitted(path: str, body: Any, lines: list[Json]) -> Any:
    """Return a body that the document allows as one that the rules beyond it allow too."""
    if not isinstance(body, dict):
        return body
    beyond = {"generation", "queued_seconds", "revision", "cursor"}
    fitted = {name: value for name, value in body.items() if name not in beyond}
    if path == "/v1/write":
        fitted["turns"] = [
            {**turn, "id": None} if turn.get("content") or turn.get("parts") else {**turn, "id": None, "content": "x"}
            for turn in body["turns"]
        ]
    elif path == "/v1/facts/batch":
        fitted["facts"] = [{**fact, "scope": "private", "session_id": None} for fact in body["facts"]]
    elif path in ("/v1/facts", "/v1/list", "/v1/forget"):
        fitted |= {"scope": "private", "session_id": None}
    elif path == "/v1/facts/{fact_id}":
        fitted = {name: value for name, value in fitted.items() if value is not None} or {"pinned": True}
    elif path == "/v1/admin/erase":
        fitted["subject"] = {"principal": "https://issuer.example#nobody"}
    elif path == "/v1/admin/import":
        fitted["lines"] = lines
    return fitted


async def test_no_request_of_any_route_makes_the_service_fail(service: Service) -> None:
    agent, admin = service.agent(user="alice"), service.admin()
    await agent.remember("Anna lives in Oslo")
    await agent.write("hello")
    lines = (await admin.get("/v1/admin/export"))["lines"]
    statuses: dict[tuple[str, str], set[int]] = {}
    right: Counter[tuple[str, str]] = Counter()
    for case in await asyncio.to_thread(_cases):
        caller = admin if "/admin/" in case.path or case.path == "/v1/health/report" else agent
        is_right = case.meta is not None and case.meta.generation.mode.is_positive
        right[case.method, case.path] += is_right
        if is_right and right[case.method, case.path] % 2:
            case.path_parameters = {**(case.path_parameters or {}), **await _known(service, agent, case.path)}
            case.body = _fitted(case.path, case.body, lines)
            case.query = {}
        given = case.as_transport_kwargs(base_url="http://127.0.0.1")
        headers = {str(name): value for name, value in dict(given.get("headers") or {}).items()}
        headers = {name: value for name, value in headers.items() if name.lower() not in ("authorization", "host")}
        sent: dict[str, Any] = {
            name: given[name] for name in ("params", "json", "content") if given.get(name) is not None
        }
        if given.get("data") is not None:
            sent["content"] = given["data"] if isinstance(given["data"], bytes | str) else json.dumps(given["data"])
        try:
            request = caller.http.build_request(
                given["method"], str(given["url"]), headers={**headers, **caller.headers}, **sent
            )
        except (httpx.InvalidURL, UnicodeEncodeError, ValueError, TypeError):
            continue  # No client could send it.
        response = await caller.http.send(request)
        statuses.setdefault((case.method, case.path), set()).add(response.status_code)
        assert response.status_code < 500, (request.method, str(request.url), request.content, response.text)
        if response.status_code >= 400:
            assert response.headers["content-type"] == "application/problem+json", response.text
            assert response.json()["detail"]
    routes = {
        (method.upper(), path)
        for path, operations in create_api(None).openapi()["paths"].items()
        for method in operations
    }
    never_served = {route for route in routes if not any(status < 300 for status in statuses.get(route, ()))}
    assert never_served == set()
    assert {200, 404, 422} <= set().union(*statuses.values())
    assert (await service.http.get("/readyz")).json()["ready"]


WRONG_BODIES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "application/json"),
    "no JSON": (b"hello", "application/json"),
    "half of it": (b'{"query": "x"', "application/json"),
    "NaN": (b'{"query": "x", "score_floor": NaN}', "application/json"),
    "infinity": (b'{"query": "x", "score_floor": 1e999}', "application/json"),
    "invalid UTF-8": (b'{"query": "\xff\xfe"}', "application/json"),
    "UTF-16": ('{"query": "x"}'.encode("utf-16"), "application/json"),
    "a lone surrogate": (b'{"query": "\\ud800"}', "application/json"),
    "NUL": (b'{"query": "a\\u0000b"}', "application/json"),
    "a huge integer": (b'{"query": "x", "top_k": ' + b"9" * 5_000 + b"}", "application/json"),
    "a byte order mark": (b'\xef\xbb\xbf{"query": "x"}', "application/json"),
    "deep lists": (b'{"query": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "application/json"),
    "deep objects": (b'{"query": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}", "application/json"),
    "a list": (b"[]", "application/json"),
    "null": (b"null", "application/json"),
    "a number": (b"7", "application/json"),
    "two documents": (b'{"query": "x"}{"query": "y"}', "application/json"),
}
NO_JSON = ("no JSON", "half of it", "UTF-16", "a huge integer", "a byte order mark", "two documents")
WRONG_TYPES = (
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/json; charset=utf-16",
    "",
)


@pytest.mark.parametrize("path", ["/v1/recall", "/v1/write", "/v1/facts", "/v1/facts/batch", "/v1/list", "/v1/forget"])
async def test_a_body_that_is_not_what_the_route_takes_is_refused(service: Service, path: str) -> None:
    agent = service.agent()
    for name, (body, content_type) in WRONG_BODIES.items():
        headers = {**agent.headers, "content-type": content_type}
        response = await service.http.post(path, content=body, headers=headers)
        assert response.status_code == 422, (name, response.text)
        told = problem(response, 422, "invalid-request")["errors"]
        assert name not in NO_JSON or [error["field"] for error in told] == ["body"], (name, told)
    for content_type in WRONG_TYPES:
        headers = {**agent.headers, "content-type": content_type}
        response = await service.http.post(path, content=b'{"query": "x"}', headers=headers)
        problem(response, 415, "unsupported-media-type")
    assert await agent.texts(tiers=["fact", "episode"]) == []


class _Counted:
    """A body that counts how much of it was asked for."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.read = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.read < self.size:
            self.read += 65_536
            yield b" " * 65_536


async def _answer_of(
    service: Service,
    body: _Counted,
    headers: list[tuple[bytes, bytes]],
    *,
    method: str = "POST",
    path: str = "/v1/write",
) -> tuple[int, Json]:
    """Send a body piece by piece, as it is asked for, and return the answer."""
    pieces = body.__aiter__()
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        piece = await anext(pieces, None)
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "scheme": "http",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"), *headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await service.app(scope, receive, send)  # type: ignore[arg-type]
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return int(sent[0]["status"]), json.loads(content)


async def test_a_body_that_says_it_is_too_large_is_refused_unread(service: Service) -> None:
    body = _Counted(10 * MAX_BODY_BYTES)
    headers = [(b"authorization", b"Bearer helper-token"), (b"content-length", str(body.size).encode())]
    status, answer = await _answer_of(service, body, headers)
    assert (status, answer["type"].rsplit("/", 1)[-1]) == (413, "too-large")
    assert body.read == 0


async def test_a_body_that_does_not_say_how_large_it_is_is_read_up_to_the_limit(service: Service) -> None:
    body = _Counted(10 * MAX_BODY_BYTES)
    headers = [(b"authorization", b"Bearer helper-token"), (b"transfer-encoding", b"chunked")]
    status, answer = await _answer_of(service, body, headers)
    assert (status, answer["type"].rsplit("/", 1)[-1]) == (413, "too-large")
    assert body.read <= MAX_BODY_BYTES + 65_536


@contextlib.asynccontextmanager
async def _under_way(agent: Asker, path: str, body: Json, count: int) -> AsyncIterator[dict[str, str]]:
    """Have so many requests wait for their bodies inside; yields an agent's headers for others."""
    held, may_end = asyncio.Semaphore(0), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        held.release()
        await may_end.wait()
        yield json.dumps(body).encode()

    headers = {**agent.headers, "content-type": "application/json"}
    serving = [asyncio.create_task(agent.http.post(path, content=slow(), headers=headers)) for _ in range(count)]
    for _ in serving:
        await held.acquire()
    try:
        yield headers
    finally:
        may_end.set()
        await asyncio.wait(serving)
    assert all(answer.is_success for answer in await asyncio.gather(*serving))


async def test_a_request_beyond_those_in_flight_is_refused_unread_while_the_service_lives(start: Start) -> None:
    service = await start(server=ServerConfig(max_in_flight=2))
    agent = service.agent()
    async with _under_way(agent, "/v1/recall", {"query": "boat"}, 2) as headers:
        body = _Counted(MAX_BODY_BYTES)
        refused = await agent.http.post("/v1/write", content=body, headers=headers)
        problem(refused, 503, "overloaded")
        assert (int(refused.headers["retry-after"]), body.read) == (1, 0)
        assert (await agent.http.get("/healthz")).status_code == 200
    await agent.write("there is room again")


@pytest.mark.parametrize(("places", "kept"), [(2, 1), (4, 1), (8, 2)])
async def test_requests_that_change_something_leave_places_to_those_that_do_not(
    start: Start, places: int, kept: int
) -> None:
    service = await start(server=ServerConfig(max_in_flight=places))
    agent = service.agent()
    async with _under_way(agent, "/v1/write", WRITE, places - kept) as headers:
        for method, path in (("POST", "/v1/write"), ("DELETE", f"/v1/facts/{uuid.uuid4()}"), ("POST", "/v1/forget")):
            problem(await agent.http.request(method, path, headers=headers), 503, "overloaded")
        assert (await agent.recall("boat"))["outcome"] == "no_matches"
        for method, path in (("POST", "/v1/list"), ("GET", "/v1/facts"), ("GET", "/v1/sessions")):
            content = b"{}" if method == "POST" else None
            answer = await agent.http.request(method, path, content=content, headers=headers)
            assert answer.status_code == 200, answer.text
    await agent.write("there is room again")


_TAKING_BODIES = sorted(
    (method.upper(), path)
    for path, operations in create_api(None).openapi()["paths"].items()
    for method, operation in operations.items()
    if "requestBody" in operation
)


@pytest.mark.parametrize("token", [None, b"Bearer nobody's-token"], ids=["no-token", "wrong-token"])
async def test_of_a_caller_who_does_not_prove_who_it_is_no_route_reads_a_body(
    service: Service, token: bytes | None
) -> None:
    assert len(_TAKING_BODIES) > 8
    for method, path in _TAKING_BODIES:
        body = _Counted(MAX_BODY_BYTES)
        headers = [(b"transfer-encoding", b"chunked")] + ([(b"authorization", token)] if token else [])
        status, answer = await _answer_of(
            service, body, headers, method=method, path=path.replace("{", "").replace("}", "")
        )
        assert (status, answer["type"].rsplit("/", 1)[-1], body.read) == (401, "unauthenticated", 0), path


async def test_every_refused_field_is_named(agent: Asker) -> None:
    batch = {"facts": [{"text": "a", "session_id": "s1"}, {"text": "b", "session_id": "s2"}]}
    for path, body, field in (
        ("/v1/forget", {"confirm": True, "scope": "shared"}, "scope"),
        ("/v1/facts/batch", batch, "facts"),
        ("/v1/write", {"session_id": "s1", "turns": [{"role": "nobody", "content": "a"}]}, "turns.0.role"),
    ):
        answer = (await agent.ask("POST", path, body)).json()
        assert [error["field"] for error in answer["errors"]] == [field]


async def test_many_probes_at_once_share_a_look_at_the_store(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = service.services.storage
    looks: list[None] = []
    look = storage.health

    async def counted() -> Mapping[str, PartHealth]:
        looks.append(None)
        return await look()

    monkeypatch.setattr(storage, "health", counted)
    answers = await asyncio.gather(*(service.http.get("/readyz") for _ in range(40)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(looks) <= 2


async def test_a_probe_amid_a_slow_look_waits_for_that_look_alone(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = service.services.storage
    looks, begun, may_end = 0, asyncio.Event(), asyncio.Event()
    look = storage.health

    async def slow() -> Mapping[str, PartHealth]:
        nonlocal looks
        looks += 1
        begun.set()
        await may_end.wait()
        return await look()

    monkeypatch.setattr(storage, "health", slow)
    first = asyncio.create_task(service.http.get("/readyz"))
    await begun.wait()
    impatient = asyncio.create_task(service.http.get("/readyz"))
    second = asyncio.create_task(service.http.get("/readyz"))
    await asyncio.sleep(0)
    impatient.cancel()
    may_end.set()
    assert (await first).status_code == (await second).status_code == 200
    assert looks == 1


async def test_headers_that_are_too_large_are_refused(agent: Asker) -> None:
    response = await agent.http.get("/v1/facts", headers={**agent.headers, "X-Long": "a" * MAX_HEADER_BYTES})
    problem(response, 431, "headers-too-large")
    response = await agent.http.get(f"/v1/facts?cursor={'a' * MAX_HEADER_BYTES}", headers=agent.headers)
    problem(response, 431, "headers-too-large")


@pytest.mark.parametrize(
    "field, change",
    [
        ("turns", {"turns": [{"role": "user", "content": "x"}] * 501}),
        ("turns", {"turns": []}),
        ("turns.0", {"turns": [{"role": "user"}]}),
        ("turns.0.role", {"turns": [{"role": "boss", "content": "x"}]}),
        ("turns.0", {"turns": [{"role": "user", "parts": [{"type": "text", "text": "x" * 700_000}] * 2}]}),
        ("turns.0.content", {"turns": [{"role": "user", "content": "x" * 1_000_001}]}),
        ("turns.0.said_at", {"turns": [{"role": "user", "content": "x", "said_at": "2026-01-01T00:00:00"}]}),
        ("turns.0.said_at", {"turns": [{"role": "user", "content": "x", "said_at": "yesterday"}]}),
        ("turns.0.said_at", {"turns": [{"role": "user", "content": "x", "said_at": "0001-01-01T00:00:00+14:00"}]}),
        ("turns.1.content", {"turns": [{"role": "user", "content": "x"}, {"role": "user", "content": 7}]}),
        ("queued_seconds", {"queued_seconds": -1}),
        ("queued_seconds", {"queued_seconds": 1e300}),
        ("generation", {"generation": "x"}),
        ("generation", {"generation": "g" * 4_097}),
        ("session_id", {"session_id": None}),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_stored(service: Service, field: str, change: Json) -> None:
    agent = service.agent()
    found = problem(await agent.ask("POST", "/v1/write", {**WRITE, **change}), 422, "invalid-request")
    assert found["errors"][0]["field"].startswith(field), found["errors"]
    assert found["errors"][0]["expected"]
    assert (await agent.get("/v1/sessions"))["sessions"] == []


async def test_times_at_the_edges_of_the_calendar_are_kept_and_those_to_come_are_now(
    service: Service, agent: Asker
) -> None:
    for number, moment in enumerate(("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "1969-12-31T23:59:59.5Z")):
        await agent.post(
            "/v1/write",
            {"session_id": f"s{number}", "turns": [{"role": "user", "content": "x", "said_at": moment}]},
        )
        (kept,) = (await agent.get(f"/v1/sessions/s{number}/turns"))["turns"]
        if moment < "2000":
            assert kept["said_at"].rstrip("0Z") == moment.rstrip("0Z")
        else:
            assert abs(datetime.fromisoformat(kept["said_at"]) - service.clock.now()) < timedelta(minutes=1)
        await agent.remember(f"fact number {number} of {moment}", said_at=moment, expires_at="9999-12-31T00:00:00Z")
    assert (await agent.recall("fact number", scopes=["private"]))["outcome"] == "applied"


async def test_a_problem_never_repeats_what_was_said(service: Service) -> None:
    secret = "zyxwalnut-secret"
    for path, body in (
        ("/v1/write", {**WRITE, "turns": [{"role": "user", "content": [secret]}]}),
        ("/v1/write", {**WRITE, "turns": [{"role": "user", "content": secret + "\x00"}]}),
        ("/v1/facts", {"text": {"a": secret}}),
        ("/v1/facts", {"text": secret * 2_000}),
        ("/v1/recall", {"query": [secret]}),
        ("/v1/recall", {"query": "x", "mode": f"{secret} said"}),
        ("/v1/facts", {"text": "x", "pinned": f"{secret} said"}),
        ("/v1/admin/import", {"lines": [{"type": f"{secret} said"}]}),
    ):
        asker = service.admin() if "/admin/" in path else service.agent()
        response = await asker.ask("POST", path, body)
        assert response.status_code == 422
        assert secret not in response.text


async def test_unknown_routes_and_methods_are_problems(agent: Asker) -> None:
    problem(await agent.ask("GET", "/v1/nothing"), 404, "not-found")
    problem(await agent.ask("GET", "/../etc/passwd"), 404, "not-found")
    problem(await agent.ask("PUT", "/v1/write", WRITE), 405, "method-not-allowed")
    problem(await agent.ask("GET", "/v1/recall"), 405, "method-not-allowed")


async def test_a_refusal_names_fifty_wrong_fields_at_most_and_says_how_many_there_are(agent: Asker) -> None:
    turns = [{"role": "nobody", "content": "x"}] * 500
    told = problem(await agent.ask("POST", "/v1/write", {"session_id": "s1", "turns": turns}), 422, "invalid-request")
    assert len(told["errors"]) == MAX_ERRORS
    assert "497 more" in told["detail"]


async def test_a_web_page_is_kept_out(agent: Asker) -> None:
    forged = Asker(agent.http, {**agent.headers, "Origin": "https://evil.example"})
    problem(await forged.ask("POST", "/v1/recall", {"query": "x"}), 403, "forbidden")


_TEXT = st.text(max_size=60) | st.sampled_from(
    ["\u0000", "\ud800", "🦙", "e\u0301", "\u202e", "' OR 1=1 --", "%s %(a)s"]
)


def _texts() -> list[str]:
    drawn: list[str] = []

    @settings(max_examples=40, derandomize=True, database=None, phases=[Phase.generate])
    @given(text=_TEXT)
    def draw(text: str) -> None:
        drawn.append(text)

    draw()
    return drawn


async def test_any_text_is_kept_as_it_is_or_refused_as_a_whole(service: Service) -> None:
    agent = service.agent()
    kept = []
    for text in _texts():
        body = json.dumps({"session_id": "s1", "turns": [{"role": "user", "content": text, "name": text}]})
        headers = {**agent.headers, "content-type": "application/json"}
        response = await service.http.post("/v1/write", content=body, headers=headers)
        storable = "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
        assert response.status_code == (202 if storable else 422), (text, response.text)
        kept += [text] if storable else []
    turns = (await agent.get("/v1/sessions/s1/turns", limit=1_000))["turns"]
    assert [turn["content"] for turn in turns] == kept
    assert [turn["name"] or "" for turn in turns] == kept
    await service.work()
    assert (await service.admin().get("/v1/health/report"))["counters"]["dead"] == 0


@pytest.mark.parametrize(
    ("method", "target", "field", "expected"),
    [
        ("GET", "/v1/sessions?workspce=w", "workspce", "one of cursor, limit, workspace"),
        ("GET", "/v1/sessions?limit=1&limit=2", "limit", "to be given once"),
        ("POST", "/v1/write?session_id=s1", "session_id", "no query parameter"),
    ],
)
async def test_a_query_parameter_that_a_route_does_not_know_is_refused_by_name(
    service: Service, method: str, target: str, field: str, expected: str
) -> None:
    body = WRITE if method == "POST" else None
    refused = problem(await service.agent().ask(method, target, body), 422, "invalid-request")
    assert [(one["field"], one["expected"]) for one in refused["errors"]] == [(field, expected)]


async def test_a_path_with_a_slash_too_many_leads_nowhere_else(service: Service) -> None:
    answer = await service.agent().ask("POST", "/v1/write/", WRITE)
    problem(answer, 404, "not-found")
    assert "location" not in answer.headers


async def test_a_cursor_that_is_too_long_or_holds_half_a_character_is_refused(service: Service) -> None:
    problem(await service.agent().ask("GET", "/v1/jobs", cursor="a" * (MAX_CURSOR_CHARS + 1)), 422, "invalid-request")
    for text in ("\ud800", "\x00"):
        cursor = base64.urlsafe_b64encode(json.dumps([1, text]).encode()).decode().rstrip("=")
        problem(await service.agent().ask("GET", f"/v1/jobs?cursor={cursor}"), 422, "invalid-request")
