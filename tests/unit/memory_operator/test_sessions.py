"""What kopf hears of the objects that it watches: what is new, and nothing that the caches know."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web

from memory_operator.cluster import kinds
from memory_operator.crd.base import ObjectKey
from memory_operator.handlers.sessions import Sessions, session
from tests.unit.memory_operator.test_io import Handler, listening
from tests.unit.memory_operator.test_watching import says
from tests.unit.memory_operator.world import World

WATCH = "/apis/memplane.dev/v1alpha1/agentmemories?watch=true"
LIST = "/apis/memplane.dev/v1alpha1/namespaces/a/agentmemories"


@asynccontextmanager
async def answers(world: World, handler: Handler, path: str) -> AsyncIterator[aiohttp.ClientResponse]:
    async with listening(handler) as address:
        info = kopf.ConnectionInfo(server=f"http://{address}", token="mine", default_namespace="a", priority=3)
        made = session(info, world.context.cache)
        assert (made.server, made.default_namespace, made.priority) == (info.server, "a", 3)
        async with made.aiohttp_session as connections, connections.get(f"{info.server}{path}") as answer:
            yield answer


async def bound() -> tuple[World, dict[str, Any]]:
    """A binding at rest, and it as the API server has it."""
    world = World()
    await world.ready_store()
    key = world.agent()
    await world.settle(60)
    return world, json.loads(json.dumps(world.get(kinds.AGENT_MEMORY, key.name)))


def later(body: dict[str, Any], **changed: Any) -> dict[str, Any]:
    meta = {**body["metadata"], "resourceVersion": str(int(body["metadata"]["resourceVersion"]) + 1)}
    return {**body, "metadata": meta, **changed}


def line(kind: str, content: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": content}).encode() + b"\n"


async def heard(world: World, *pieces: bytes, path: str = WATCH) -> list[str]:
    async with answers(world, says(*pieces), path) as answer:
        text = b"".join([piece async for piece in answer.content.iter_chunked(1024)])
    return [json.loads(item).get("type", "") if item.startswith(b"{") else item.decode() for item in text.splitlines()]


async def test_kopf_does_not_hear_the_echo_of_a_write() -> None:
    world, body = await bound()
    assert await heard(world, line("MODIFIED", body), line("ADDED", body)) == []


async def test_kopf_hears_what_people_change_and_how_far_a_watch_is() -> None:
    world, body = await bound()
    other = {**body, "metadata": {**body["metadata"], "name": "new", "uid": "new"}}
    told = [line("MODIFIED", later(body)), line("ADDED", other), line("DELETED", body), line("BOOKMARK", body)]
    assert await heard(world, *told) == ["MODIFIED", "ADDED", "DELETED", "BOOKMARK"]


async def test_what_kopf_hears_does_not_depend_on_how_an_answer_is_cut() -> None:
    world, body = await bound()
    text = line("MODIFIED", body) + line("MODIFIED", later(body)) + line("MODIFIED", body)
    assert await heard(world, text[:50], text[50:700], text[700:-30], text[-30:]) == ["MODIFIED"]


async def test_what_cannot_be_read_is_left_to_kopf() -> None:
    world, _ = await bound()
    error = json.dumps({"type": "ERROR", "object": {"code": 410}}).encode() + b"\n"
    assert await heard(world, error, b"no json\n", b"{}\n", b"the end") == ["ERROR", "no json", "", "the end"]


async def test_other_kinds_are_not_looked_through() -> None:
    world, body = await bound()
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?watch=true"
    assert await heard(world, line("MODIFIED", body), path=path) == ["MODIFIED"]


@pytest.mark.parametrize("is_known", [True, False])
async def test_kopf_lists_what_the_first_list_did_not_have(is_known: bool) -> None:
    world, body = await bound()
    item = body if is_known else later(body)

    async def answer(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer mine"
        return web.json_response({"metadata": {"resourceVersion": "9", "continue": "x"}, "items": [item]})

    async with answers(world, answer, LIST) as found:
        content = await found.json()
    assert content == {"metadata": {"resourceVersion": "9", "continue": "x"}, "items": [] if is_known else [item]}


async def test_an_object_that_came_back_is_news() -> None:
    world, body = await bound()
    world.context.cache.remove(kinds.AGENT_MEMORY, ObjectKey("a", body["metadata"]["name"]))
    assert await heard(world, line("ADDED", body)) == ["ADDED"]


async def test_a_namespace_is_known_by_its_version() -> None:
    world, _ = await bound()
    body = {"metadata": {"name": "a", "uid": "a", "resourceVersion": "50", "labels": {}}}
    world.context.cache.put(kinds.NAMESPACE, body)
    told = [line("MODIFIED", body), line("MODIFIED", later(body))]
    assert await heard(world, *told, path="/api/v1/namespaces?watch=true") == ["MODIFIED"]


async def test_credentials_that_were_refused_are_tried_again_after_a_rest_and_others_at_once() -> None:
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    sessions = Sessions(World().context.cache, rest_seconds=10, sleep=rest)
    waited = []
    for token in ("old", "old", "new", "new"):
        made = await sessions.open(kopf.ConnectionInfo(server="http://127.0.0.1:1", token=token))
        assert made.aiohttp_session.headers["Authorization"] == f"Bearer {token}"
        await made.aiohttp_session.close()
        waited.append(len(rests))
    assert waited == [0, 1, 1, 2]
