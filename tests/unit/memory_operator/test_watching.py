"""Watches of what the operator makes: what breaks one, and how it goes on."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Sized
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client as kube_client

from memory_operator.cluster import kinds
from memory_operator.cluster.client import KubernetesCluster, Listing
from memory_operator.cluster.kinds import Kind
from memory_operator.cluster.watching import Expired, KubernetesWatcher, WatchEvent
from memory_operator.crd.base import ObjectKey
from memory_operator.errors import ClusterUnavailable, Forbidden, NotFound
from memory_operator.handlers import children
from memory_operator.handlers.watches import kopf_settings
from memory_operator.pacing import TokenBucket
from memory_operator.reconcile.controller import resync
from memory_operator.reconcile.strangers import Strangers
from memory_operator.settings import OperatorSettings
from tests.unit.memory_operator.test_io import Handler, listening
from tests.unit.memory_operator.world import SETTINGS, World


@asynccontextmanager
async def watcher(
    handler: Handler, silence_seconds: float = 30, address: str | None = None
) -> AsyncIterator[KubernetesWatcher]:
    configuration = kube_client.Configuration()
    configuration.client_session_kwargs = {"trust_env": False}
    async with listening(handler) as found:
        configuration.host = f"http://{address or found}"
        async with kube_client.ApiClient(configuration=configuration) as api:
            bucket = TokenBucket(1000, 1000, time.monotonic())
            yield KubernetesWatcher(KubernetesCluster(api, timeout_seconds=5, bucket=bucket), silence_seconds)


def line(kind: str, name: str, version: int) -> bytes:
    return json.dumps({"type": kind, "object": body(name, version)}).encode() + b"\n"


def body(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "a", "uid": name, "resourceVersion": str(version)}}


def says(*pieces: bytes, then: Callable[[], Any] | None = None) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if then is not None:
            await then()
        return response

    return answer


async def taken(watching: KubernetesWatcher) -> list[WatchEvent]:
    return [event async for event in watching.watch(kinds.SERVICE, "a", "x=y", 7)]


async def test_events_are_read_however_the_answer_is_cut() -> None:
    first, second = line("ADDED", "one", 8), line("BOOKMARK", "", 9)
    async with watcher(says(first[:10], first[10:] + second[:5], second[5:])) as watching:
        found = await taken(watching)
    assert [(event.type, event.body["metadata"]["resourceVersion"]) for event in found] == [
        ("ADDED", "8"),
        ("BOOKMARK", "9"),
    ]


async def test_a_watch_goes_on_from_a_version_and_asks_for_bookmarks() -> None:
    seen: dict[str, str] = {}

    async def answer(request: web.Request) -> web.Response:
        seen.update(request.query, path=request.path)
        return web.Response()

    async with watcher(answer) as watching:
        assert await taken(watching) == []
    assert seen["path"] == "/api/v1/namespaces/a/services"
    assert (seen["watch"], seen["resourceVersion"], seen["labelSelector"]) == ("true", "7", "x=y")
    assert seen["allowWatchBookmarks"] == "true"


async def test_a_watch_that_is_silent_without_an_error_is_given_up() -> None:
    async with watcher(says(line("ADDED", "one", 8), then=asyncio.Event().wait), silence_seconds=0.1) as watching:
        events = watching.watch(kinds.SERVICE, "a", "", 7)
        assert (await anext(events)).type == "ADDED"
        with pytest.raises(ClusterUnavailable):
            await anext(events)


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (says(json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}}).encode() + b"\n"), Expired),
        (says(json.dumps({"type": "ERROR", "object": {"code": 500}}).encode() + b"\n"), ClusterUnavailable),
        (says(b"not json\n"), ClusterUnavailable),
    ],
)
async def test_an_error_in_a_watch_ends_it(handler: Handler, expected: type[Exception]) -> None:
    async with watcher(handler) as watching:
        with pytest.raises(expected):
            await taken(watching)


@pytest.mark.parametrize(("status", "expected"), [(410, Expired), (403, Forbidden), (503, ClusterUnavailable)])
async def test_a_watch_that_is_refused_says_why(status: int, expected: type[Exception]) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"message": "no"}, status=status)

    async with watcher(refuse) as watching:
        with pytest.raises(expected):
            await taken(watching)


async def test_nobody_listening_is_an_error_to_try_again_after() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken_port:
        port = taken_port.getsockname()[1]
    async with watcher(says(), address=f"127.0.0.1:{port}") as watching:
        with pytest.raises(ClusterUnavailable):
            await taken(watching)


class Script:
    """A watcher that plays one scene for each watch that is opened, then stays open for ever."""

    def __init__(self, *scenes: list[WatchEvent | Exception]) -> None:
        self.scenes = list(scenes)
        self.opened: list[int] = []
        self.is_over = asyncio.Event()

    async def watch(self, kind: Kind, namespace: str | None, selector: str, since: int) -> AsyncIterator[WatchEvent]:
        self.opened.append(since)
        if not self.scenes:
            self.is_over.set()
            await asyncio.Event().wait()
        for step in self.scenes.pop(0):
            if isinstance(step, Exception):
                raise step
            yield step


async def played(world: World, script: Script, monkeypatch: pytest.MonkeyPatch, kind: Kind = kinds.SERVICE) -> None:
    monkeypatch.setattr(children, "_FIRST_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(children, "_UNSERVED_SECONDS", 0.0)
    following = asyncio.create_task(children.follow(world.context, script, kind, None))
    over = asyncio.create_task(script.is_over.wait())
    done, _ = await asyncio.wait({following, over}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    following.cancel()
    over.cancel()
    assert over in done


def service(world: World, version: int, name: str = "notes-memory") -> dict[str, Any]:
    found = json.loads(json.dumps(world.get(kinds.SERVICE, name)))
    found["metadata"]["resourceVersion"] = str(version)
    return dict(found)


async def test_a_watch_that_breaks_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.store()
    await world.settle()
    await world.restart()
    start = world.context.listed[(kinds.SERVICE, None)]
    gone = WatchEvent("DELETED", service(world, start + 5))
    far = WatchEvent("BOOKMARK", body("", start + 9))
    script = Script([gone, far, ClusterUnavailable("silent")], [])
    await played(world, script, monkeypatch)
    assert script.opened == [start, start + 9, start + 9]
    assert world.context.cache.child(kinds.SERVICE, ObjectKey("a", "notes-memory")) is None


async def test_an_object_that_cannot_be_read_ends_neither_its_watch_nor_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.store()
    await world.settle()
    await world.restart()
    start = world.context.listed[(kinds.SERVICE, None)]
    odd = service(world, start + 5)
    odd["metadata"]["ownerReferences"] = [7]
    script = Script([WatchEvent("MODIFIED", odd), WatchEvent("BOOKMARK", body("", start + 9))])
    await played(world, script, monkeypatch)
    assert script.opened == [start, start + 9]
    world.get(kinds.SERVICE, "notes-memory")["metadata"]["ownerReferences"] = [7]
    world.get(kinds.SERVICE, "notes-memory")["metadata"]["resourceVersion"] = str(start + 7)
    await resync(world.context)
    assert world.context.metrics.lost_changes.labels("Service")._value.get() == 2


async def test_a_served_namespace_that_may_not_be_read_is_left_as_it_was_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(replace(SETTINGS, watch_namespaces=("a", "b")))
    store = await world.ready_store(access={"allowedNamespaces": {"names": ["b"]}})
    world.agent(namespace="b", memoryStoreNamespace="a")
    await world.settle()
    pages = world.cluster.pages

    async def refusing(kind: Kind, namespace: str | None, selector: str) -> AsyncIterator[Listing]:
        if namespace == "b":
            raise Forbidden("the Role is gone with the namespace")
        async for page in pages(kind, namespace, selector):
            yield page

    monkeypatch.setattr(world.cluster, "pages", refusing)
    world.filter = lambda kind, event, body: False
    world.cluster.remove(kinds.SERVICE, "a", "notes-memory")
    world.filter = lambda kind, event, body: True
    await resync(world.context)
    await world.settle(5)
    assert world.find(kinds.SERVICE, "notes-memory") is not None
    assert "b.helper.json" in world.get(kinds.CONFIG_MAP, "notes-bindings-0")["data"]
    assert world.context.metrics.lists_refused.labels("AgentMemory")._value.get() == 1
    await world.restart()
    await world.settle(5)
    assert world.of_store(store, "Ready") == ("True", "Available")
    assert "data" not in world.get(kinds.CONFIG_MAP, "notes-bindings-0"), "nobody knows of an agent there"
    monkeypatch.setattr(world.cluster, "pages", pages)
    await resync(world.context)
    await world.settle(5)
    assert world.context.unlisted == set()
    assert "b.helper.json" in world.get(kinds.CONFIG_MAP, "notes-bindings-0")["data"]


async def test_an_operator_that_may_read_no_namespace_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(replace(SETTINGS, watch_namespaces=("a", "b")))

    async def refusing(kind: Kind, namespace: str | None, selector: str) -> AsyncIterator[Listing]:
        raise Forbidden("Unauthorized")
        yield

    monkeypatch.setattr(world.cluster, "pages", refusing)
    with pytest.raises(Forbidden):
        await resync(world.context)


def _unserve(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the API server know no ServiceMonitors."""
    pages, apply = world.cluster.pages, world.cluster.apply

    async def listing(kind: Kind, namespace: str | None, selector: str) -> AsyncIterator[Listing]:
        if kind == kinds.SERVICE_MONITOR:
            raise NotFound("the server could not find the requested resource")
        async for page in pages(kind, namespace, selector):
            yield page

    async def applying(kind: Kind, manifest: dict[str, Any]) -> dict[str, Any]:
        assert kind != kinds.SERVICE_MONITOR
        return await apply(kind, manifest)

    monkeypatch.setattr(world.cluster, "pages", listing)
    monkeypatch.setattr(world.cluster, "apply", applying)


@pytest.mark.parametrize("namespaces", [(), ("a", "b")], ids=["everywhere", "in some namespaces"])
async def test_a_kind_of_other_people_that_is_not_there_holds_nobody_up_and_is_found_later(
    monkeypatch: pytest.MonkeyPatch, namespaces: tuple[str, ...]
) -> None:
    world = World(replace(SETTINGS, service_monitors=True, watch_namespaces=namespaces))
    missing = world.context.metrics.kinds_missing.labels("ServiceMonitor")._value
    with monkeypatch.context() as absent:
        _unserve(world, absent)
        await resync(world.context)
        store = await world.ready_store()
        assert world.of_store(store, "Ready") == ("True", "Available")
        assert world.of_store(store, "Stalled") is None
        assert missing.get() == 1
    await resync(world.context)
    await world.settle(5)
    assert world.find(kinds.SERVICE_MONITOR, "notes-memory") is not None
    assert missing.get() == 0


async def test_a_kind_of_other_people_may_go_while_the_operator_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(replace(SETTINGS, service_monitors=True))
    store = await world.ready_store()
    assert world.find(kinds.SERVICE_MONITOR, "notes-memory") is not None
    _unserve(world, monkeypatch)
    world.filter = lambda kind, event, body: False
    world.cluster.remove(kinds.SERVICE_MONITOR, "a", "notes-memory")
    world.filter = lambda kind, event, body: True
    await resync(world.context)
    await world.settle(5)
    assert world.context.cache.child(kinds.SERVICE_MONITOR, ObjectKey("a", "notes-memory")) is None
    assert world.of_store(store, "Stalled") is None
    assert world.of_store(store, "Ready") == ("True", "Available")


async def test_a_watch_of_a_kind_that_is_not_served_waits_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(replace(SETTINGS, service_monitors=True))
    script = Script([NotFound("the server could not find the requested resource")])

    is_lost, mark = asyncio.Event(), world.context.mark_served

    def marking(kind: Kind, *, is_served: bool) -> None:
        mark(kind, is_served=is_served)
        if not is_served:
            is_lost.set()

    async def find() -> None:
        await is_lost.wait()
        await resync(world.context)

    monkeypatch.setattr(world.context, "mark_served", marking)

    finding = asyncio.create_task(find())
    await played(world, script, monkeypatch, kinds.SERVICE_MONITOR)
    await finding
    assert script.opened == [0, world.context.listed[(kinds.SERVICE_MONITOR, None)]]


async def test_what_could_not_be_listed_is_followed_from_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script([Forbidden("not yet")])
    await played(World(), script, monkeypatch)
    assert script.opened == [0, 0]


def test_kopf_never_gives_up_on_one_of_several_namespaces() -> None:
    endless = kopf_settings(OperatorSettings(watch_namespaces=("a",))).networking.error_backoffs
    assert not isinstance(endless, Sized | float)
    assert list(itertools.islice(endless, 1000)) == [1, 2, 4, *[8] * 20, *[60] * 977]


async def test_a_watch_that_fails_as_nobody_has_thought_of_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    await world.restart()
    script = Script([TypeError("nobody has thought of it")])
    await played(world, script, monkeypatch)
    assert len(script.opened) == 2


async def test_what_an_expired_watch_has_missed_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.store()
    await world.settle()
    await world.restart()
    key = ObjectKey("a", "notes-memory")
    world.filter = lambda kind, event, body: False
    world.cluster.remove(kinds.SERVICE, "a", "notes-memory")
    assert world.context.cache.child(kinds.SERVICE, key) is not None
    start = world.context.listed[(kinds.SERVICE, None)]
    script = Script([Expired("too old")])
    await played(world, script, monkeypatch)
    assert world.context.cache.child(kinds.SERVICE, key) is None
    assert script.opened[0] == start < script.opened[1]


def test_kopfs_own_watches_are_given_up_after_the_same_silence() -> None:
    assert kopf_settings(OperatorSettings(watch_silence_seconds=42)).watching.inactivity_timeout == 42


async def test_answers_about_taken_names_are_forgotten_while_others_wait_for_one() -> None:
    """An answer that was forgotten while somebody waited for its lock came back without one."""
    world = World()
    strangers, at = Strangers(), 0.0

    async def find(kind: Kind, namespace: str) -> None:
        await strangers.find(world.cluster, kind, namespace, "x", at_least=0, now=at)

    await find(kinds.SERVICE, "a")
    strangers._locks.clear()
    at = 60.0
    await find(kinds.SERVICE, "b")
    assert list(strangers._known) == [(kinds.SERVICE, "b")]
