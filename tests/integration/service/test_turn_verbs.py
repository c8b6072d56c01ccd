"""Write and recall pass the framework by; nobody can tell by what is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from memory_service.api import gate
from memory_service.api.app import create_api
from memory_service.api.gate import Gate
from memory_service.api.turn_verbs import TurnVerbs
from memory_service.contract.limits import MAX_BODY_BYTES
from memory_service.contract.verbs import WriteResponse
from memory_service.identity.build import http_rules
from memory_service.operations import write as write_verb
from tests.integration.service.harness import Json, Service

JSON = "application/json"
AGENT = {"Authorization": "Bearer helper-token"}
WRITE: Json = {"session_id": "s1", "turns": [{"role": "user", "content": "hello"}]}
RECALL: Json = {"query": "hello"}
GOOD = {"/v1/write": WRITE, "/v1/recall": RECALL}


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


def gated(service: Service, app: Any) -> Gate:
    config, meter = service.config, service.runtime.meter
    return Gate(app, rules=http_rules(config), max_in_flight=config.server.max_in_flight, meter=meter)


async def nobody(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise AssertionError("the framework was asked")


async def told(app: Any, path: str, content: Any, headers: dict[str, str]) -> tuple[int, dict[str, str], Json]:
    async with client(app) as http:
        response = await http.post(path, content=content, headers=headers)
    body = response.json()
    body.pop("request_id", None)
    kept = {name: value for name, value in response.headers.items() if name not in {"x-request-id", "content-length"}}
    return response.status_code, kept, body


def body(path: str, **more: Any) -> bytes:
    return json.dumps({**GOOD[path], **more}).encode()


ODD: dict[str, tuple[Any, dict[str, str]]] = {
    "no body": (b"", {"Content-Type": JSON, **AGENT}),
    "not JSON": (b"{", {"Content-Type": JSON, **AGENT}),
    "not JSON and nobody": (b"{", {"Content-Type": JSON}),
    "not UTF-8": (b'{"query": "\xff"}', {"Content-Type": JSON, **AGENT}),
    "null": (b"null", {"Content-Type": JSON, **AGENT}),
    "a list": (b"[]", {"Content-Type": JSON, **AGENT}),
    "NaN": (b'{"query": NaN}', {"Content-Type": JSON, **AGENT}),
    "deep": (b"[" * 5_000, {"Content-Type": JSON, **AGENT}),
    "a wrong field": (b'{"session_id": 5, "query": 5}', {"Content-Type": JSON, **AGENT}),
    "a wrong field of nobody": (b'{"session_id": 5, "query": 5}', {"Content-Type": JSON}),
    "an unknown field": (b'{"wuery": "x"}', {"Content-Type": JSON, **AGENT}),
    "no type": (b"{}", AGENT),
    "another type": (b"{}", {"Content-Type": "text/plain", **AGENT}),
    "an unknown token": (b"{}", {"Content-Type": JSON, "Authorization": "Bearer nobody"}),
    "a key that is none": (b"{}", {"Content-Type": JSON, "Idempotency-Key": "k" * 1_000, **AGENT}),
    "an empty key": (b"{}", {"Content-Type": JSON, "Idempotency-Key": "", **AGENT}),
}


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("what", ODD)
async def test_what_is_odd_is_answered_in_the_frameworks_words(service: Service, path: str, what: str) -> None:
    content, headers = ODD[what]
    plain = gated(service, create_api(service.runtime))
    found = await told(service.app, path, content, headers)
    assert found == await told(plain, path, content, headers)
    assert found[0] >= 400


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("kind", [JSON, "application/json; charset=utf-8", "Application/JSON"])
async def test_every_way_to_say_json_is_served(service: Service, path: str, kind: str) -> None:
    plain = gated(service, create_api(service.runtime))
    headers = {"Content-Type": kind, **AGENT}
    status, _, _ = await told(service.app, path, body(path), headers)
    assert status in {200, 202}
    assert status == (await told(plain, path, body(path), headers))[0]


@pytest.mark.parametrize("path", GOOD)
async def test_a_good_request_does_not_reach_the_framework(service: Service, path: str) -> None:
    app = gated(service, TurnVerbs(nobody, service.runtime))
    status, headers, _ = await told(app, path, body(path), {"Content-Type": JSON, **AGENT, "Idempotency-Key": "one"})
    assert status in {200, 202}
    assert headers["content-type"] == JSON


@pytest.mark.parametrize("path", GOOD)
async def test_what_a_verb_refuses_is_a_problem(service: Service, path: str) -> None:
    plain = gated(service, create_api(service.runtime))
    content = body(path, generation="nothing-like-one") if path == "/v1/write" else body(path, scopes=["user"])
    straight = gated(service, TurnVerbs(nobody, service.runtime))
    headers = {"Content-Type": JSON, **AGENT}
    found = await told(straight, path, content, headers)
    assert found == await told(plain, path, content, headers)


async def test_a_body_in_pieces_is_one_body(service: Service) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for byte in body("/v1/write"):
            yield bytes([byte])

    status, _, answer = await told(service.app, "/v1/write", pieces(), {"Content-Type": JSON, **AGENT})
    assert (status, answer["seqs"]) == (202, [1])


async def test_an_endless_body_is_refused_when_it_is_too_large(service: Service) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * (MAX_BODY_BYTES // 4)

    status, headers, answer = await told(service.app, "/v1/write", endless(), {"Content-Type": JSON, **AGENT})
    assert (status, headers["content-type"]) == (413, "application/problem+json")
    assert str(MAX_BODY_BYTES) in answer["detail"]


@pytest.mark.parametrize("path", ["/v1/write", "/v1/facts"])
async def test_a_body_that_is_sent_by_half_holds_its_place_for_a_bounded_time(
    service: Service, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(gate, "BODY_GRACE_SECONDS", 0)

    async def half() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    status, headers, answer = await told(service.app, path, half(), {"Content-Type": JSON, **AGENT})
    assert (status, answer["type"].rsplit("/", 1)[-1]) == (408, "too-slow")
    assert headers["connection"] == "close"
    status, _, _ = await told(service.app, "/v1/write", body("/v1/write"), {"Content-Type": JSON, **AGENT})
    assert status == 202


async def test_a_caller_who_hangs_up_amid_the_body_stores_nothing(service: Service) -> None:
    messages: list[Message] = [
        {"type": "http.request", "body": body("/v1/write"), "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"content-type", JSON.encode()), (b"authorization", b"Bearer helper-token"), (b"host", b"127.0.0.1")]
    place = {"path": "/v1/write", "raw_path": b"/v1/write", "query_string": b""}
    scope = {"type": "http", "method": "POST", "headers": headers, **place}
    await service.app(scope, receive, send)
    assert [message["status"] for message in sent if message["type"] == "http.response.start"] in ([], [400], [422])
    assert await service.agent().texts(tiers=["episode"]) == []


async def test_an_answer_that_cannot_be_made_is_not_made_twice(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    async def broken(*_: Any, **__: Any) -> None:
        nonlocal calls
        calls += 1
        WriteResponse.model_validate({})

    monkeypatch.setattr(write_verb, "write", broken)
    status, _, answer = await told(service.app, "/v1/write", body("/v1/write"), {"Content-Type": JSON, **AGENT})
    assert (status, calls) == (500, 1)
    assert "log" in answer["detail"]
