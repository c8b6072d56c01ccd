"""Health reports, probes of model endpoints, the polls of both, and the operator's own server; all on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from kubernetes.aio.client.exceptions import ApiException

from memory_operator import logs
from memory_operator.cluster import kinds
from memory_operator.cluster.client import translated
from memory_operator.cluster.health import HealthTarget, HealthUnavailable, HttpHealthReader, host_port
from memory_operator.cluster.probing import HttpModelProber
from memory_operator.crd import conditions, model_api
from memory_operator.crd.base import ObjectKey
from memory_operator.crd.conditions import Reason
from memory_operator.crd.model_api import ModelApi
from memory_operator.errors import ClusterUnavailable, Conflict, Forbidden, Invalid, NotFound, Refused, Throttled
from memory_operator.metrics import Metrics
from memory_operator.probes import Vitals, serving
from memory_operator.reconcile.gauges import ObjectGauges
from memory_operator.reconcile.ledger import Ledger
from memory_operator.reconcile.monitor import HealthMonitor, ModelMonitor
from memory_operator.settings import InvalidSettings, OperatorSettings, from_environment
from memory_operator.status.snapshot import ProbeResult
from memory_service.contract.health import HealthReport
from tests.fakes.kube_api import make_certificates
from tests.unit.memory_operator.test_desired import body
from tests.unit.memory_operator.world import Clock, World, report

Handler = Callable[[web.Request], Any]
STORE = ObjectKey("a", "notes")


@asynccontextmanager
async def listening(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", handler)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def read(
    handler: Handler, token_file: Path = Path("/nowhere"), scheme: str = "http", seconds: float = 10
) -> HealthReport:
    settings = OperatorSettings(token_file=str(token_file), health_timeout_seconds=seconds)
    async with listening(handler) as address, aiohttp.ClientSession() as session:
        reader = HttpHealthReader(session, settings)
        return await reader.read(HealthTarget(STORE, scheme, "notes-memory.a.svc.cluster.local"), address)


async def test_a_report_is_asked_for_with_the_operators_token(tmp_path: Path) -> None:
    seen: dict[str, str] = {}
    (tmp_path / "token").write_text("secret\n")

    async def answer(request: web.Request) -> web.Response:
        seen.update(request.headers, path=request.path)
        return web.Response(text=report("r1").model_dump_json())

    assert (await read(answer, tmp_path / "token")).bindings_revision == "r1"
    assert seen["Authorization"] == "Bearer secret"
    assert seen["path"] == "/v1/health/report"
    assert seen["Host"] == "notes-memory.a.svc.cluster.local:8800"


@pytest.mark.parametrize(
    ("status", "text", "why"), [(503, "", "answered 503"), (200, "{}", "cannot be read"), (302, "", "answered 302")]
)
async def test_what_is_not_a_report_is_said_without_an_address(status: int, text: str, why: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=text, headers={"Location": "http://127.0.0.1:1/"})

    with pytest.raises(HealthUnavailable, match=why) as caught:
        await read(answer)
    assert "127.0.0.1" not in str(caught.value)


async def test_a_pod_that_does_not_answer_is_given_up() -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    with pytest.raises(HealthUnavailable, match="in time"):
        await read(answer, seconds=0.1)


async def test_tls_needs_a_known_ca() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response()

    with pytest.raises(HealthUnavailable, match="CA"):
        await read(answer, scheme="https")


async def read_over_tls(folder: Path, ca: Callable[[str], str]) -> HealthReport:
    """Have a report of a store under an authority of its own, of which the operator is given this text."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=report("r1").model_dump_json())

    tls = make_certificates(folder)
    async with listening(answer, tls) as address, aiohttp.ClientSession() as session:
        text = ca((folder / "ca.crt").read_text())
        reader = HttpHealthReader(session, OperatorSettings(health_timeout_seconds=10))
        return await reader.read(HealthTarget(STORE, "https", "localhost", text), address)


async def test_a_bundle_with_comments_in_any_language_is_an_authority(tmp_path: Path) -> None:
    found = await read_over_tls(tmp_path, lambda pem: f"# Autoridad Raíz de la compañía\n{pem}\n# 終わり\n")
    assert found.bindings_revision == "r1"


@pytest.mark.parametrize("text", ["", "# Raíz\n", "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----"])
async def test_what_is_no_certificate_is_no_authority(tmp_path: Path, text: str) -> None:
    with pytest.raises(HealthUnavailable, match="CA is not a certificate"):
        await read_over_tls(tmp_path, lambda pem: text)


async def test_a_report_is_read_to_its_end_however_it_is_cut() -> None:
    text = report("r1").model_dump_json().encode()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in (text[:1], text[1:400], text[400:]):
            await response.write(piece)
            await asyncio.sleep(0)
        return response

    assert (await read(answer)).bindings_revision == "r1"


async def test_an_answer_without_an_end_is_no_report() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b" " * 65536)
        return response

    with pytest.raises(HealthUnavailable, match="more than 262144 bytes"):
        await read(answer)


def test_addresses_of_both_families_have_a_port() -> None:
    assert host_port("10.0.0.1") == "10.0.0.1:8800"
    assert host_port("fd00::1") == "[fd00::1]:8800"


async def probe(url: str) -> tuple[str, str]:
    model = model_api.parse(body("ModelAPI", "gpt", {"baseURL": url}))
    async with HttpModelProber.session() as session:
        result = await HttpModelProber(session).probe(model)
    return str(result.reason), result.message


@pytest.mark.parametrize("status", [200, 401, 404, 500, 302])
async def test_anything_that_answers_http_is_reachable_and_a_redirect_is_not_followed(status: int) -> None:
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path_qs)
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    async with listening(answer) as address:
        for url in (f"http://{address}/v1/", f"http://{address}?api-version=1"):
            assert (await probe(url))[0] == "Reachable"
    assert asked == ["/v1/models", "/v1/models?api-version=1"]


async def test_nothing_that_listens_is_unreachable() -> None:
    assert (await probe("http://127.0.0.1:1/v1"))[0] == "Unreachable"


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]", "0.0.0.0"])
async def test_a_link_local_address_is_never_asked(host: str) -> None:
    assert (await probe(f"http://{host}/v1"))[0] == "AddressRefused"


async def test_a_name_that_leads_to_a_link_local_address_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from aiohttp.resolver import ThreadedResolver

    async def resolve(self: Any, host: str, port: int = 0, family: Any = 0) -> list[Any]:
        found = {"hostname": host, "host": "169.254.169.254", "port": port, "family": 2, "proto": 0, "flags": 0}
        return [found]

    monkeypatch.setattr(ThreadedResolver, "resolve", resolve)
    assert (await probe("http://metadata.example/v1"))[0] == "AddressRefused"


class Reader:
    """Gives what a test says for each address."""

    def __init__(self) -> None:
        self.answers: dict[str, HealthReport] = {}
        self.reads = 0

    async def touch(self, address: str) -> None:
        if address not in self.answers:
            raise HealthUnavailable("did not answer in time")

    async def read(self, target: HealthTarget, address: str) -> HealthReport:
        self.reads += 1
        await self.touch(address)
        return self.answers[address]


async def test_polls_are_frequent_while_something_is_not_ready_and_seldom_after() -> None:
    world, reader = World(), Reader()
    store = await world.ready_store()
    monitor = HealthMonitor(world.context, reader, lambda key: ["one", "two"], world.clock.monotonic)
    assert await monitor.poll(store) == pytest.approx(1.5), "one failure is asked about again at once"
    world.clock.seconds += 6
    assert await monitor.poll(store) == pytest.approx(5, rel=0.11)
    revision = world.context.ledger.revision(store) or ""
    reader.answers = {"one": report(revision), "two": report(revision)}
    assert await monitor.poll(store) == pytest.approx(30, rel=0.11)
    reader.answers = {"one": report(revision)}
    assert await monitor.poll(store) == pytest.approx(5, rel=0.11)


async def test_a_silent_store_is_silent_since_the_first_failure() -> None:
    world, reader = World(), Reader()
    store = await world.ready_store()
    monitor = HealthMonitor(world.context, reader, lambda key: ["one"], world.clock.monotonic)
    await monitor.poll(store)
    since = world.context.health[store].unreachable_since
    world.clock.seconds += 7
    await monitor.poll(store)
    assert world.context.health[store].unreachable_since == since
    await world.settle()
    assert world.of_store(store, "Ready") == ("Unknown", "HealthUnreachable")


async def run(world: World, monitor: HealthMonitor, seconds: float, until: Callable[[], bool]) -> float:
    """Let the operator and its health polls work until something is so; return after how long."""
    began, end = world.clock.seconds, world.clock.seconds + seconds
    await world.settle()
    while not until() and world.clock.seconds < end:
        await monitor.advance()
        await world.settle(min(0.25, monitor.next_due or 0.25))
    return world.clock.seconds - began


@pytest.mark.parametrize("offset", [0.0, 1.7, 3.1, 4.9, 12.0, 29.0])
async def test_pods_that_stay_ready_and_cannot_be_reached_degrade_within_fifteen_seconds(offset: float) -> None:
    world, reader = World(), Reader()
    store = await world.ready_store()
    agent = world.agent()
    await world.settle()
    revision = world.context.ledger.revision(store) or ""
    reader.answers = {"one": report(revision), "two": report(revision)}
    monitor = HealthMonitor(world.context, reader, lambda key: ["one", "two"], world.clock.monotonic)
    monitor.watch(store, 0.1)

    def is_degraded(expected: tuple[str, str]) -> bool:
        return world.of_agent(agent, "MemoryDegraded") == expected

    await run(world, monitor, 30, lambda: world.of_agent(agent, "Ready") == ("True", "Bound"))
    await run(world, monitor, 10 + offset, lambda: False)
    assert is_degraded(("False", "MemoryHealthy"))
    reports, reader.answers = reader.answers, {}
    took = await run(world, monitor, 30, lambda: is_degraded(("True", "StoreUnreachable")))
    assert took <= 15
    assert world.of_agent(agent, "Ready") == ("True", "Bound")
    reader.answers = reports
    assert await run(world, monitor, 30, lambda: is_degraded(("False", "MemoryHealthy"))) <= 15


async def watched(world: World, reader: Reader) -> tuple[ObjectKey, ObjectKey, HealthMonitor]:
    """Return a store that serves, its agent, which is bound, and who watches it."""
    store = await world.ready_store()
    agent = world.agent()
    await world.settle()
    reader.answers = {"one": report(world.context.ledger.revision(store) or "")}
    monitor = HealthMonitor(world.context, reader, lambda key: ["one"], world.clock.monotonic)
    monitor.watch(store, 0.1)
    await run(world, monitor, 30, lambda: world.of_agent(agent, "Ready") == ("True", "Bound"))
    return store, agent, monitor


async def test_one_poll_that_fails_changes_nothing() -> None:
    world, reader = World(), Reader()
    store, _, monitor = await watched(world, reader)
    await run(world, monitor, 2, lambda: False)
    before, reports, reader.answers = len(world.cluster.writes), reader.answers, {}
    await run(world, monitor, 10, lambda: world.context.health[store].unreachable_since is not None)
    reader.answers = reports
    await run(world, monitor, 60, lambda: False)
    assert world.writes_since(before) == []


async def test_a_well_store_is_touched_often_and_asked_seldom() -> None:
    world, reader = World(), Reader()
    store = await world.ready_store()
    world.agent()
    await world.settle()
    reader.answers = {"one": report(world.context.ledger.revision(store) or "")}
    monitor = HealthMonitor(world.context, reader, lambda key: ["one"], world.clock.monotonic)
    monitor.watch(store, 0.1)
    await run(world, monitor, 30, lambda: False)
    reader.reads = 0
    await run(world, monitor, 120, lambda: False)
    assert 3 <= reader.reads <= 5


async def test_a_port_that_nobody_listens_at_cannot_be_touched() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response()

    async with aiohttp.ClientSession() as session:
        reader = HttpHealthReader(session, OperatorSettings())
        async with listening(answer) as address:
            await reader.touch(address)
        with pytest.raises(HealthUnavailable, match="refused"):
            await reader.touch(address)


async def test_a_port_that_takes_no_connection_is_not_waited_for_long() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        with socket.create_connection(address):
            async with aiohttp.ClientSession() as session:
                reader = HttpHealthReader(session, OperatorSettings(health_timeout_seconds=0.1))
                with pytest.raises(HealthUnavailable, match="in time"):
                    await reader.touch(f"127.0.0.1:{address[1]}")


class Broken(Reader):
    """Fails as nobody has thought of."""

    async def read(self, target: HealthTarget, address: str) -> HealthReport:
        raise TypeError("nobody has thought of it")

    async def touch(self, address: str) -> None:
        raise TypeError("nobody has thought of it")


async def test_a_store_that_cannot_even_be_asked_is_not_well_and_ends_nothing() -> None:
    world = World()
    store = await world.ready_store()
    monitor = HealthMonitor(world.context, Broken(), lambda key: ["one"], world.clock.monotonic)
    monitor.watch(store, 0.1)
    await run(world, monitor, 30, lambda: world.of_store(store, "Ready") == ("Unknown", "HealthUnreachable"))
    assert world.of_store(store, "Ready") == ("Unknown", "HealthUnreachable")
    assert "TypeError" in str(world.get(kinds.MEMORY_STORE, "notes")["status"]["conditions"])


async def test_a_look_that_fails_is_counted_and_made_again_later_and_the_others_go_on() -> None:
    world, asked = World(), []
    await world.ready_store()
    await world.ready_store("other")

    def resolver(store: ObjectKey) -> list[str]:
        asked.append(store.name)
        if store == STORE:
            raise TypeError("nobody has thought of it")
        return []

    monitor = HealthMonitor(world.context, Reader(), resolver, world.clock.monotonic)
    for name in ("notes", "other"):
        monitor.watch(ObjectKey("a", name), 0.1)
    await run(world, monitor, 200, lambda: False)
    failures = world.context.metrics.look_failures.labels("MemoryStore")._value.get()
    assert 3 <= failures == asked.count("notes") <= 10
    assert asked.count("other") > failures


async def test_numbers_reach_the_status_at_most_every_half_minute() -> None:
    world, reader = World(), Reader()
    store = await world.ready_store()
    monitor = HealthMonitor(world.context, reader, lambda key: ["one"], world.clock.monotonic)
    world.context.health.clear()

    async def facts_after(seconds: float, facts: int) -> int:
        world.clock.seconds += seconds
        told = report(world.context.ledger.revision(store) or "")
        counters = told.counters.model_copy(update={"facts": facts})
        reader.answers = {"one": told.model_copy(update={"counters": counters})}
        await monitor.poll(store)
        await world.settle()
        return int(world.get(kinds.MEMORY_STORE, "notes")["status"]["facts"])

    assert await facts_after(0, 1) == 1
    assert await facts_after(10, 2) == 1
    assert await facts_after(10, 3) == 1
    assert await facts_after(15, 4) == 4


async def test_a_store_that_is_gone_is_polled_no_more() -> None:
    world = World()
    monitor = HealthMonitor(world.context, Reader(), lambda key: ["one"], world.clock.monotonic)
    assert await monitor.poll(STORE) is None


def test_a_replica_that_is_behind_still_holds_the_rows_it_had() -> None:
    ledger = Ledger()
    ledger.record(STORE, {"a": "1"})
    old = ledger.revision(STORE) or ""
    ledger.record(STORE, {"a": "1", "b": "1"})
    new = ledger.revision(STORE) or ""
    assert ledger.holds(STORE, "a", "1", [old, new]) is True
    assert ledger.holds(STORE, "b", "1", [old, new]) is False
    assert ledger.holds(STORE, "b", "1", [new]) is True
    assert ledger.holds(STORE, "b", "2", [new]) is False, "the row has changed since"
    assert ledger.holds(STORE, "a", "1", []) is None
    assert ledger.holds(STORE, "a", "1", ["unknown"]) is False


async def test_the_operators_own_probes_and_metrics() -> None:
    clock = Clock()
    vitals = Vitals(clock.monotonic, Metrics(), resync_limit_seconds=900)
    async with serving(vitals, "127.0.0.1", 0) as port, aiohttp.ClientSession() as session:

        async def status(path: str) -> int:
            async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status

        assert (await status("/livez"), await status("/readyz"), await status("/metrics")) == (200, 200, 200)
        vitals.is_standby = False
        assert await status("/readyz") == 503
        vitals.has_synced, vitals.resynced_at = True, 0
        assert await status("/readyz") == 200
        clock.seconds = 901
        assert await status("/livez") == 503


async def test_objects_are_counted_by_what_they_say() -> None:
    world = World()
    gauges = ObjectGauges(world.context.cache)

    def told() -> dict[tuple[str, ...], float]:
        return {tuple(item.labels.values()): item.value for family in gauges.collect() for item in family.samples}

    assert told() == {}
    store = await world.ready_store()
    world.agent("one")
    world.agent("two", memoryStore="absent")
    await world.settle(60)
    assert told()[("MemoryStore", "Ready", "True", "Available")] == 1
    assert told()[("AgentMemory", "MemoryDegraded", "True", "StoreNotFound")] == 1
    expected = Counter(
        (kind.name, item["type"], item["status"], item["reason"])
        for kind in kinds.OWN
        for body in world.context.cache.bodies(kind)
        for item in conditions.listed(body)
    )
    assert told() == expected
    world.cluster.remove(kinds.MEMORY_STORE, store.namespace, store.name)
    await world.settle(60)
    assert {labels[0] for labels in told()} == {"AgentMemory"}
    assert told()[("AgentMemory", "MemoryDegraded", "True", "StoreNotFound")] == 2


def test_an_event_loop_that_stands_still_is_noticed() -> None:
    clock = Clock()
    vitals = Vitals(clock.monotonic, Metrics())
    for _ in range(4):
        vitals.tick()
        clock.seconds += 10
    assert vitals.sickness()
    vitals.tick()
    clock.seconds += 1
    vitals.tick()
    assert not vitals.sickness()


def test_settings_come_from_variables_and_wrong_ones_are_named() -> None:
    given = {
        "MEMPLANE_OPERATOR_WATCH_NAMESPACES": "b, a",
        "MEMPLANE_OPERATOR_WORKERS": "3",
        "MEMPLANE_OPERATOR_NETWORK_POLICIES": "false",
        "MEMPLANE_OPERATOR_POD_LABELS": "app=x",
        "HOME": "/",
    }
    settings = from_environment(given)
    assert settings.watch_namespaces == ("a", "b")
    assert (settings.workers, settings.network_policies, settings.pod_labels) == (3, False, {"app": "x"})
    for name, value in (("WORKERS", "many"), ("NETWORK_POLICIES", "maybe"), ("TYPO", "1"), ("POD_LABELS", "x")):
        with pytest.raises(InvalidSettings, match=f"MEMPLANE_OPERATOR_{name}"):
            from_environment({f"MEMPLANE_OPERATOR_{name}": value})


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (404, NotFound),
        (409, Conflict),
        (410, Conflict),
        (401, Forbidden),
        (403, Forbidden),
        (400, Invalid),
        (422, Invalid),
        (405, Refused),
        (500, ClusterUnavailable),
        (503, ClusterUnavailable),
    ],
)
def test_the_api_servers_answers_become_our_errors(status: int, expected: type[Exception]) -> None:
    error = ApiException(status=status, reason="why")
    error.body = json.dumps({"message": "a sentence"})
    assert type(translated(error)) is expected
    assert str(translated(error)) == "a sentence"


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ('Invalid value: "CANARY": must be short', "Invalid value: must be short"),
        ('Invalid value: "CANARY": field label not supported: CANARY', "Invalid value: field label not supported: …"),
        ('Unsupported value: "CANARY": supported values: "A", "B"', 'Unsupported value: supported values: "A", "B"'),
        ('Duplicate value: "CANARY"', "Duplicate value"),
        ('Invalid value: "a \\"CANARY\\"": no', "Invalid value: no"),
        ('Invalid value: map[string]string{"a":"CANARY: x"}: no such label', "Invalid value: no such label"),
        ("Invalid value: CANARY", "Invalid value"),
        ("Invalid value: 99999: must be below 65536", "Invalid value: must be below 65536"),
        ("Required value", "Required value"),
    ],
)
def test_what_the_api_server_says_is_repeated_without_values(cause: str, said: str) -> None:
    error = ApiException(status=422, reason="Invalid")
    content: dict[str, Any] = {"message": f'Deployment.apps "helper" is invalid: spec.x: {cause}'}
    error.body = json.dumps(content)
    assert "CANARY" not in str(translated(error)) or said.endswith("no such label")
    causes = [{"reason": "FieldValueInvalid", "field": "spec.x", "message": cause}]
    error.body = json.dumps({**content, "details": {"kind": "Deployment", "name": "helper", "causes": causes}})
    assert str(translated(error)) == f"Deployment 'helper' is invalid: spec.x: {said}"


def test_a_value_of_another_type_is_not_repeated() -> None:
    error = ApiException(status=400, reason="Bad Request")
    error.body = json.dumps({"message": ".spec.x: expected string, got &value.valueUnstructured{Value:CANARY}"})
    assert str(translated(error)) == ".spec.x: expected string, got another type"


class Prober:
    """Gives one answer after another, and the last one again and again."""

    def __init__(self, *answers: ProbeResult) -> None:
        self.answers = list(answers)

    async def probe(self, model: ModelApi) -> ProbeResult:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


_ANSWERS = ProbeResult(Reason.REACHABLE, "Answers HTTP 2xx.")
_IS_SILENT = ProbeResult(Reason.UNREACHABLE, "Does not answer in time.")


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_one_lost_probe_of_a_model_endpoint_is_nothing_and_two_are_told(is_restarted: bool) -> None:
    world, key = World(), ObjectKey("a", "gpt")
    world.put(kinds.MODEL_API, "gpt", {"baseURL": "http://one/v1"})
    prober = Prober(_ANSWERS)
    monitor = ModelMonitor(world.context, prober, world.clock.monotonic)
    await world.settle()
    await monitor.advance()
    await world.settle()
    assert world.condition(kinds.MODEL_API, key, "Ready") == ("True", "Reachable")
    if is_restarted:
        await world.restart()
        monitor = ModelMonitor(world.context, prober, world.clock.monotonic)
    before = len(world.cluster.writes)
    prober.answers = [_IS_SILENT, _ANSWERS, _IS_SILENT]
    assert await monitor.poll(key) == pytest.approx(1.5)
    assert await monitor.poll(key) == pytest.approx(world.settings.probe_seconds, rel=0.11)
    await world.settle()
    assert world.writes_since(before) == []
    await monitor.poll(key)
    await monitor.poll(key)
    await world.settle()
    assert world.condition(kinds.MODEL_API, key, "Ready") == ("False", "Unreachable")


def test_a_429_says_when_to_come_back() -> None:
    error = ApiException(status=429, reason="slow down")
    error.headers = {"Retry-After": "7"}
    found = translated(error)
    assert isinstance(found, Throttled)
    assert found.after_seconds == 7


def test_logs_are_json_with_the_fields_of_the_record() -> None:
    record = logging.getLogger("x").makeRecord("x", logging.INFO, "f", 1, "object applied", (), None)
    record.child = "notes-memory"
    line = json.loads(logs.JsonFormatter().format(record))
    assert line["message"] == "object applied"
    assert line["child"] == "notes-memory"
    assert line["level"] == "info"


async def test_no_secret_of_a_spec_is_ever_logged(caplog: pytest.LogCaptureFixture) -> None:
    canary = "s3cr3t-canary"
    caplog.set_level(logging.DEBUG)
    world = World()
    world.put(kinds.MODEL_API, "gpt", {"baseURL": f"https://user:{canary}@host/v1"})
    world.store(engine=canary)
    world.agent(scope=canary)
    await world.settle(5)
    assert canary not in "".join(str(record.__dict__) for record in caplog.records)
    for name, kind in (("gpt", kinds.MODEL_API), ("notes", kinds.MEMORY_STORE), ("helper", kinds.AGENT_MEMORY)):
        assert canary not in json.dumps(world.get(kind, name)["status"])


async def test_a_certificate_authority_is_read_again_only_after_a_minute() -> None:
    world = World()
    world.cluster.make(kinds.CONFIG_MAP, {"metadata": {"name": "ca", "namespace": "a"}, "data": {"ca.crt": "ONE"}})
    await world.ready_store(tls={"secretRef": {"name": "tls"}, "caConfigMapRef": {"name": "ca"}})
    reads = 0

    def count() -> None:
        nonlocal reads
        reads += 1

    world.cluster.before_read = count
    await world.settle(timedelta(minutes=10).total_seconds())
    assert reads <= 11
