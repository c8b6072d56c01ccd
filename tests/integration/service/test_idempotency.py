"""The same request twice has one effect and one answer, on every route that writes."""

from __future__ import annotations

import asyncio
import re

import pytest

from memory_service.api.app import create_api
from tests.integration.service.harness import Asker, Json, Service, problem

ROUTES: dict[str, tuple[str, str, Json | None, Json | None]] = {
    "write": (
        "POST",
        "/v1/write",
        {"session_id": "s1", "turns": [{"role": "user", "content": "hello"}]},
        {"session_id": "s1", "turns": [{"role": "user", "content": "other"}]},
    ),
    "remember": ("POST", "/v1/facts", {"text": "Anna lives in Oslo"}, {"text": "Anna lives in Rome"}),
    "batch": ("POST", "/v1/facts/batch", {"facts": [{"text": "one thing"}]}, {"facts": [{"text": "another"}]}),
    "patch": ("PATCH", "/v1/facts/{fact}", {"text": "Ben likes tea"}, {"text": "Ben likes milk"}),
    "supersede": ("POST", "/v1/facts/{fact}/supersede", {"text": "Ben likes tea"}, {"text": "Ben likes milk"}),
    "delete": ("DELETE", "/v1/facts/{fact}", None, None),
    "forget": (
        "POST",
        "/v1/forget",
        {"confirm": True, "scope": "session", "session_id": "s9"},
        {"confirm": True, "scope": "session", "session_id": "s8"},
    ),
    "end": ("POST", "/v1/sessions/s7/end", {}, {"workspace": "another"}),
    "flush": ("POST", "/v1/sessions/s7/flush", {}, {"workspace": "another"}),
    "compact": ("POST", "/v1/sessions/s7/compact", {}, {"workspace": "another"}),
    "retry": ("POST", "/v1/jobs/{job}/retry", None, None),
}


async def prepared(service: Service, path: str) -> str:
    """Return the path with the id of a fact, or of a dead job, that is there."""
    agent = service.agent()
    await agent.write("hello", session="s7")
    fact = await agent.remember("Ben likes coffee")
    job = (await agent.get("/v1/jobs"))["jobs"][0]["id"]
    if "{job}" in path:
        await service.services.storage.transact(
            lambda tx: tx.link.run("UPDATE @jobs SET state = 'dead' WHERE id = :job", {"job": job})  # type: ignore[attr-defined]
        )
    return path.format(fact=fact["id"], job=job)


def test_the_routes_above_are_all_that_take_a_key() -> None:
    shapes = {re.sub(r"\{\w+\}|(?<=sessions/)\w+", "{}", f"{method} {path}") for method, path, *_ in ROUTES.values()}
    taking = {
        re.sub(r"\{\w+\}", "{}", f"{method.upper()} {path}")
        for path, methods in create_api(None).openapi()["paths"].items()
        for method, operation in methods.items()
        if any(parameter["name"] == "Idempotency-Key" for parameter in operation.get("parameters", ()))
    }
    assert shapes == taking


@pytest.mark.parametrize("route", list(ROUTES))
async def test_the_same_key_and_body_get_the_same_answer_and_another_body_is_refused(
    service: Service, route: str
) -> None:
    agent = service.agent()
    method, path, body, other = ROUTES[route]
    path = await prepared(service, path)
    first = await agent.ask(method, path, body, key="k1")
    assert first.status_code < 300, first.text
    counts = (await service.admin().get("/v1/admin/diagnostics"))["counts"]
    again = await agent.ask(method, path, body, key="k1")
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert (await service.admin().get("/v1/admin/diagnostics"))["counts"] == counts
    if other is not None:
        problem(await agent.ask(method, path, other, key="k1"), 422, "idempotency-mismatch")
        assert (await service.admin().get("/v1/admin/diagnostics"))["counts"] == counts


@pytest.mark.parametrize("route", list(ROUTES))
async def test_the_same_request_at_once_has_one_effect(service: Service, route: str) -> None:
    agent = service.agent()
    method, path, body, _other = ROUTES[route]
    path = await prepared(service, path)
    asked = [agent.ask(method, path, body, key="k1") for _ in range(6)]
    answers = await asyncio.gather(*asked)
    assert {answer.status_code for answer in answers} <= {200, 201, 202}, [answer.text for answer in answers]
    assert len({answer.text for answer in answers}) == 1


async def test_a_key_is_a_callers_and_a_routes_own(service: Service) -> None:
    body = {"session_id": "s1", "turns": [{"role": "user", "content": "hello"}]}
    for asker in (service.agent(user="alice"), service.agent(user="bob"), service.agent(), service.agent("other")):
        assert (await asker.post("/v1/write", body, key="k1"))["seqs"] == [1]
        assert (await asker.post("/v1/facts", {"text": "hello"}, key="k1"))["action"] == "added"
        assert (await asker.post("/v1/write", body, key="k2"))["seqs"] == [2]


async def test_a_request_that_failed_does_not_use_up_its_key(agent: Asker) -> None:
    bad = {"session_id": "s1", "turns": [{"role": "user", "content": "x"}], "generation": "nonsense"}
    problem(await agent.ask("POST", "/v1/write", bad, key="k1"), 422, "invalid-request")
    good = {"session_id": "s1", "turns": [{"role": "user", "content": "hello"}]}
    assert (await agent.post("/v1/write", good, key="k1"))["seqs"] == [1]


async def test_a_key_is_kept_for_a_day(service: Service) -> None:
    agent = service.agent()
    body = {"session_id": "s1", "turns": [{"role": "user", "content": "hello"}]}
    await agent.post("/v1/write", body, key="k1")
    await service.pass_time(hours=23)
    assert (await agent.post("/v1/write", body, key="k1"))["seqs"] == [1]
    await service.pass_time(hours=2)
    assert (await agent.post("/v1/write", body, key="k1"))["seqs"] == [2]


async def test_a_key_is_erased_with_its_owner(service: Service) -> None:
    agent = service.agent()
    saved = await agent.post("/v1/facts", {"text": "Anna lives in Oslo"}, key="k1")
    await agent.forget()
    again = await agent.post("/v1/facts", {"text": "Anna lives in Oslo"}, key="k1")
    assert again["id"] != saved["id"]
    assert await agent.texts() == ["Anna lives in Oslo"]


def ids(answer: Json) -> set[str]:
    return {fact["id"] for fact in answer.get("facts", [answer]) if "id" in fact}


@pytest.mark.parametrize("route", ["remember", "batch", "patch", "supersede"])
async def test_a_stored_answer_goes_with_the_facts_whose_text_it_carries(service: Service, route: str) -> None:
    """Otherwise a repeat hands out what was deleted, and what was deleted stays in the table of answers."""
    agent = service.agent()
    method, path, body, _other = ROUTES[route]
    fact = await agent.remember("Ben likes coffee")
    path = path.format(fact=fact["id"])
    first = await agent.ask(method, path, body, key="k1")
    carried = ids(first.json())
    assert carried
    assert ids((await agent.ask(method, path, body, key="k1")).json()) == carried
    for fact_id in carried:
        assert (await agent.ask("DELETE", f"/v1/facts/{fact_id}")).status_code == 200
    again = await agent.ask(method, path, body, key="k1")
    assert not ids(again.json()) & carried
    if again.status_code >= 400:
        assert "Ben likes" not in again.text


async def test_keys_outside_of_their_pattern_are_refused(agent: Asker) -> None:
    for key in ("", " ", "a b", "x" * 201):
        found = problem(await agent.ask("POST", "/v1/facts", {"text": "x"}, key=key), 422, "invalid-request")
        assert found["errors"][0]["field"] == "Idempotency-Key"
    assert await agent.texts() == []


async def test_a_turn_with_an_id_is_stored_once_whatever_else_is_sent_with_it(agent: Asker) -> None:
    first = await agent.post(
        "/v1/write", {"session_id": "s1", "turns": [{"role": "user", "content": "one", "id": "t1"}]}
    )
    assert first["seqs"] == [1]
    both = [{"role": "user", "content": "one", "id": "t1"}, {"role": "user", "content": "two", "id": "t2"}]
    second = await agent.post("/v1/write", {"session_id": "s1", "turns": both})
    assert second["seqs"] == [1, 2]
    elsewhere = await agent.post("/v1/write", {"session_id": "s2", "turns": both})
    assert elsewhere["seqs"] == [1, 2]
    many = await asyncio.gather(*(agent.post("/v1/write", {"session_id": "s3", "turns": both}) for _ in range(6)))
    assert {tuple(answer["seqs"]) for answer in many} == {(1, 2)}
    page = await agent.get("/v1/sessions/s3/turns")
    assert [turn["content"] for turn in page["turns"]] == ["one", "two"]


async def test_a_repeat_is_not_counted_as_another_turn_or_fact(service: Service) -> None:
    agent = service.agent()
    turns = {"session_id": "s1", "turns": [{"role": "user", "content": "x", "id": "t1"}]}
    for key in ("w", "w", "other"):
        await agent.post("/v1/write", turns, key=key)
        await agent.post("/v1/facts", {"text": "Bob likes rum"}, key="f")
    lines = (await agent.ask("GET", "/metrics")).text.splitlines()
    counted = [line for line in lines if "turns_written_total" in line or "facts_written_total" in line]
    assert [line.rsplit(" ", 1)[1] for line in counted if not line.startswith("#") and not line.endswith(" 0.0")] == [
        "1.0",
        "1.0",
    ]


async def test_no_body_is_the_same_request_as_an_empty_one(service: Service) -> None:
    agent = service.agent()
    await agent.write("hello", session="s7")
    first = await agent.ask("POST", "/v1/sessions/s7/end", None, key="k1")
    again = await agent.ask("POST", "/v1/sessions/s7/end", {}, key="k1")
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert first.status_code < 300


async def test_to_empty_a_field_is_another_request_than_to_leave_it_alone(service: Service) -> None:
    agent = service.agent()
    fact = await agent.remember("Ben likes coffee", category="taste")
    path = f"/v1/facts/{fact['id']}"
    kept = await agent.ask("PATCH", path, {"text": "Ben likes tea"}, key="k1")
    assert kept.json()["category"] == "taste"
    emptied = {"text": "Ben likes tea", "category": None}
    problem(await agent.ask("PATCH", path, emptied, key="k1"), 422, "idempotency-mismatch")
