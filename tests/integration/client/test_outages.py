"""What an agent sees of a service that is slow, dead, half there, or says no: over real sockets."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from memory_service.client import (
    AgentMemory,
    ContractError,
    Deadlines,
    InvalidRequest,
    LimitExceeded,
    NotAllowed,
    ServiceUnavailable,
    SyncMemoryClient,
)
from memory_service.client.binding import WatchedFile
from memory_service.client.breaker import Breaker
from memory_service.client.results import Delivery
from memory_service.contract.verbs import Outcome
from tests.fakes.memory_server import (
    MemoryServer,
    answer,
    drop,
    half_close,
    hang,
    item,
    problem,
    raw,
    trickle,
)
from tests.integration.client.conftest import MakeClient

TURN = {"role": "user", "content": "I live in Oslo."}
SHORT = Deadlines(recall=0.3, write=0.3, other=0.3, admin=0.3)
FAULTS = {
    "never answers": hang,
    "half closes": half_close,
    "drops": drop,
    "trickles for ever": trickle,
    "is no HTTP": raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "breaks off its body": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"),
    "answers garbage": answer(200, b"\xff\xfe<html>"),
    "answers another document": answer(200, {"hello": "world"}),
    "is another service": answer(200, {"status": "UP"}),
    "lies about gzip": answer(200, b"not gzip", Content_Encoding="gzip"),
    "redirects": answer(302, None, Location="http://127.0.0.1:1/"),
    "is overloaded": problem(503, "overloaded", Retry_After="1"),
    "has a quota": problem(429, "quota-exceeded", Retry_After="1"),
    "fails": problem(500, "internal"),
    "is behind a broken proxy": answer(502, b"<html>bad gateway</html>"),
}


class Clock:
    """Time that moves when it is told to; a sleep moves it."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_recall_answers_unavailable_within_its_time_and_never_raises(
    fault: Any, server: MemoryServer, make_client: MakeClient
) -> None:
    server.always = fault
    client = make_client(deadlines=SHORT)
    began = time.monotonic()
    recalled = await client.recall("where do I live?", session_id="s1")
    assert recalled.outcome is Outcome.UNAVAILABLE
    assert recalled.degraded[0].part == "service"
    # Far above the deadline, so that a busy machine does not matter, and far below what the fault would take.
    assert time.monotonic() - began < 10
    assert client.counts == {"unavailable": 1}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_a_soft_write_is_queued_and_a_strict_one_raises(
    fault: Any, server: MemoryServer, make_client: MakeClient
) -> None:
    server.always = fault
    soft = make_client(deadlines=SHORT)
    written = await soft.write("s1", [TURN])
    assert written.status == "queued"
    assert soft.outbox is not None
    assert soft.outbox.waiting() == 1
    await soft.aclose()
    strict = make_client(deadlines=SHORT, failure_mode="strict", outbox=None)
    with pytest.raises(ServiceUnavailable) as caught:
        await strict.write("s1", [TURN])
    assert caught.value.idempotency_key


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_forget_never_reports_a_success_that_it_does_not_have(
    fault: Any, server: MemoryServer, make_client: MakeClient
) -> None:
    server.always = fault
    forgotten = await make_client(deadlines=SHORT).forget(session_id="s1")
    assert forgotten.status == "not_erased"
    assert not forgotten.is_done
    assert forgotten.receipt_id is None
    assert forgotten.degraded
    with pytest.raises(ServiceUnavailable):
        await make_client(deadlines=SHORT).forget(session_id="s1", failure_mode="strict")


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_what_a_runtime_and_its_tools_call_never_raises_and_says_what_became_of_it(
    fault: Any, server: MemoryServer, make_client: MakeClient, tmp_path: Path
) -> None:
    server.always = fault
    clients = [make_client(deadlines=SHORT, outbox=tmp_path / str(number)) for number in range(6)]
    memories = [AgentMemory(client, "s1") for client in clients]
    prelude, written, found, saved, remembered, ended = await asyncio.gather(
        memories[0].before_run("where do I live?"),
        memories[1].after_run([TURN]),
        memories[2].search_memory("where do I live?"),
        memories[3].save_memory("I live in Oslo."),
        clients[4].remember("I live in Oslo.", key="home"),
        clients[5].sessions.end("s1"),
    )
    assert len(server.requests) >= 6  # every one of them met the fault
    assert (prelude.outcome, prelude.block, prelude.digest, prelude.window) == (Outcome.UNAVAILABLE, "", "", ())
    assert [part.status for part in written] == ["queued"]
    assert (found["outcome"], found["memories"]) == ("unavailable", [])
    assert found["degraded"]
    assert saved == {"saved": False, "status": "queued"}
    assert (remembered.status, remembered.fact) == ("queued", None)
    assert (ended.scheduled, ended.jobs, [missing.part for missing in ended.degraded]) == (False, (), ["service"])
    for number in (1, 3, 4):
        outbox = clients[number].outbox
        assert outbox is not None
        assert outbox.waiting() == 1


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_under_strict_what_was_not_kept_raises_and_what_only_reads_does_not(
    fault: Any, server: MemoryServer, make_client: MakeClient
) -> None:
    server.always = fault
    clients = [make_client(deadlines=SHORT, failure_mode="strict", outbox=None) for _ in range(6)]
    memories = [AgentMemory(client, "s1") for client in clients]
    prelude, found, *raised = await asyncio.gather(
        memories[0].before_run("where do I live?"),
        memories[1].search_memory("where do I live?"),
        memories[2].after_run([TURN]),
        memories[3].save_memory("I live in Oslo."),
        clients[4].remember("I live in Oslo."),
        clients[5].sessions.end("s1"),
        return_exceptions=True,
    )
    assert prelude.outcome is Outcome.UNAVAILABLE
    assert found["outcome"] == "unavailable"
    assert all(isinstance(error, ServiceUnavailable) for error in raised), raised


async def test_a_dead_service_costs_one_timeout_and_then_answers_are_fast(
    server: MemoryServer, make_client: MakeClient
) -> None:
    server.always = hang
    client = make_client(deadlines=SHORT, breaker=Breaker(clock=Clock()))
    for _ in range(50):
        assert (await client.recall("q")).outcome is Outcome.UNAVAILABLE
        assert (await client.write("s1", [TURN])).status == "queued"
    assert len(server.requests) == 1
    assert (await client.recall("q")).degraded[0].reason == "BreakerOpen"


async def test_a_caller_in_haste_makes_nobody_else_forgetful(server: MemoryServer, make_client: MakeClient) -> None:
    server.faults.append(hang)
    client = make_client()
    assert (await client.recall("q", timeout_seconds=0.05)).degraded[0].reason == "ServiceTimeout"
    assert (await client.as_user("ada").recall("q")).outcome is Outcome.APPLIED


async def test_work_of_the_agent_that_blocks_its_loop_is_no_outage_of_the_service(
    server: MemoryServer, make_client: MakeClient
) -> None:
    server.faults.append(hang)
    client = make_client(deadlines=Deadlines(recall=0.2))
    recalling = asyncio.create_task(client.recall("q"))
    await asyncio.to_thread(server.wait_until, lambda s: len(s.requests) == 1)
    until = time.monotonic() + 1
    while time.monotonic() < until:
        pass
    assert (await recalling).degraded[0].reason == "ServiceTimeout"
    assert (await client.recall("q", timeout_seconds=20)).outcome is Outcome.APPLIED


async def test_a_service_that_comes_back_is_found_by_one_probe(server: MemoryServer, make_client: MakeClient) -> None:
    clock = Clock()
    client = make_client(outbox=None, clock=clock, breaker=Breaker(clock=clock, spread=lambda: 0.0))
    server.faults.append(problem(503, "unavailable"))
    assert (await client.recall("q")).outcome is Outcome.UNAVAILABLE
    clock.now += 0.9
    assert (await client.recall("q")).degraded[0].reason == "BreakerOpen"
    clock.now += 0.2
    assert (await client.recall("q")).outcome is Outcome.APPLIED


async def test_retry_after_is_honoured_before_the_service_is_asked_again(
    server: MemoryServer, make_client: MakeClient
) -> None:
    clock = Clock()
    client = make_client(outbox=None, clock=clock, breaker=Breaker(clock=clock))
    server.faults.append(problem(503, "overloaded", Retry_After="30"))
    await client.recall("q")
    clock.now += 29
    assert (await client.recall("q")).outcome is Outcome.UNAVAILABLE
    assert len(server.requests) == 1
    clock.now += 1.1
    assert (await client.recall("q")).outcome is Outcome.APPLIED


async def test_a_quota_holds_back_its_own_verb_alone(server: MemoryServer, make_client: MakeClient) -> None:
    client = make_client(outbox=None)
    server.faults.append(problem(429, "quota-exceeded", Retry_After="60"))
    assert (await client.write("s1", [TURN])).status == "dropped"
    assert (await client.write("s1", [TURN])).status == "dropped"
    assert len(server.requests) == 1
    assert (await client.recall("q")).outcome is Outcome.APPLIED


async def test_a_strict_write_comes_back_when_it_is_asked_to(server: MemoryServer, make_client: MakeClient) -> None:
    clock = Clock()
    breaker = Breaker(clock=clock)
    client = make_client(outbox=None, failure_mode="strict", clock=clock, sleep=clock.sleep, breaker=breaker)
    server.faults.append(problem(503, "overloaded", Retry_After="2"))
    written = await client.write("s1", [TURN])
    assert written.status == "stored"
    assert clock.slept == [2.0]
    first, second = server.requests
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert first.body == second.body


async def test_a_connection_that_died_while_it_was_idle_is_replaced_unnoticed(
    server: MemoryServer, make_client: MakeClient
) -> None:
    client = make_client(failure_mode="strict")
    await client.write("s1", [TURN])
    server.faults.append(drop)
    assert (await client.write("s1", [TURN])).status == "stored"
    assert client.counts == {}


async def test_a_repeat_with_the_same_key_is_stored_once(server: MemoryServer, make_client: MakeClient) -> None:
    client = make_client()
    first = await client.write("s1", [TURN], idempotency_key="mine")
    second = await client.write("s1", [TURN], idempotency_key="mine")
    assert first.seqs == second.seqs == (1,)
    assert server.texts("s1") == ["I live in Oslo."]


async def test_a_refused_recall_is_an_outcome_with_its_problem_logged_and_counted(
    server: MemoryServer, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    server.always = problem(403, "forbidden", "scope 'user' is not readable")
    counted: list[tuple[str, str]] = []
    client = make_client(on_count=lambda name, verb: counted.append((name, verb)))
    with caplog.at_level(logging.WARNING, "memory_service.client"):
        recalled = await client.recall("q", scopes=["user"])
    assert recalled.outcome is Outcome.REFUSED
    assert recalled.problem is not None
    assert recalled.problem.detail == "scope 'user' is not readable"
    assert counted == [("refused", "recall")]
    assert any(record.message == "recall refused" for record in caplog.records)
    with pytest.raises(NotAllowed):
        await client.recall("q", raise_contract_errors=True)


async def test_a_metrics_library_that_fails_costs_no_memory(
    server: MemoryServer, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(name: str, verb: str) -> None:
        raise RuntimeError("metrics are down")

    server.always = problem(503, "unavailable")
    client = make_client(on_count=fail)
    assert (await client.recall("q")).outcome is Outcome.UNAVAILABLE
    assert (await client.write("s1", [TURN], durable=True)).status == "queued"
    assert client.counts["unavailable"] >= 2
    assert any(record.message == "on_count failed" for record in caplog.records)


async def test_a_recall_that_is_wrong_before_it_is_sent_is_refused_too(
    server: MemoryServer, make_client: MakeClient
) -> None:
    recalled = await make_client().recall("q", session_id="not a session id", top_k=0)
    assert recalled.outcome is Outcome.REFUSED
    assert recalled.problem is not None
    assert {error.field for error in recalled.problem.errors} == {"session_id", "top_k"}
    assert server.requests == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 413, 422])
async def test_a_write_that_is_refused_raises_under_soft_too_and_is_not_queued(
    status: int, server: MemoryServer, make_client: MakeClient
) -> None:
    server.always = problem(status, "whatever")
    client = make_client()
    for call in (
        client.write("s1", [TURN]),
        client.write("s1", [TURN], durable=True),
        client.remember("a fact"),
        client.forget(session_id="s1"),
        client.sessions.end("s1"),
    ):
        with pytest.raises(ContractError) as caught:
            await call
        assert caught.value.status == status
    assert client.outbox is not None
    assert client.outbox.waiting() == 0
    assert client.outbox.refused() == ()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405])
async def test_what_something_between_refuses_is_an_outage_to_a_soft_caller(
    status: int, server: MemoryServer, make_client: MakeClient
) -> None:
    server.always = answer(status, b"<html>default backend</html>")
    client = make_client()
    assert (await client.write("s1", [TURN])).status == "queued"
    assert (await client.write("s2", [TURN], durable=True)).status == "queued"
    assert (await client.remember("a fact")).status == "queued"
    assert (await client.sessions.end("s1")).degraded[0].reason == "BadAnswer"
    assert (await client.forget(session_id="s3")).status == "not_erased"
    with pytest.raises(ContractError):
        await client.write("s4", [TURN], failure_mode="strict")


async def test_a_write_that_is_too_large_for_what_is_between_is_refused(
    server: MemoryServer, make_client: MakeClient
) -> None:
    server.always = answer(413, b"<html>too large</html>")
    with pytest.raises(LimitExceeded):
        await make_client().write("s1", [TURN])


async def test_what_waits_is_not_looked_at_before_the_service_may_be_asked_again(
    server: MemoryServer, make_client: MakeClient
) -> None:
    clock = Clock()
    client = make_client(clock=clock, sleep=clock.sleep, breaker=Breaker(clock=clock))
    server.faults.append(problem(503, "unavailable", Retry_After="60"))
    assert (await client.write("s1", [{"role": "user", "content": "one"}])).status == "queued"
    await asyncio.to_thread(server.wait_until, lambda s: s.texts("s1") == ["one"])
    assert clock.slept[0] == 60


async def test_a_refusal_does_not_open_the_breaker(server: MemoryServer, make_client: MakeClient) -> None:
    client = make_client()
    server.faults.append(problem(404, "not-found"))
    assert (await client.recall("q")).outcome is Outcome.REFUSED
    assert (await client.recall("q")).outcome is Outcome.APPLIED


async def test_a_port_where_nobody_listens_is_unavailable(make_client: MakeClient) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    client = make_client(f"http://127.0.0.1:{port}")
    assert (await client.recall("q")).degraded[0].reason == "ServiceUnreachable"
    with pytest.raises(ServiceUnavailable):
        await client.list()
    assert not await client.health.live()


@pytest.mark.parametrize("endpoint", ["not a url", "ftp://x", "http://", "http://[::1", "http://127.0.0.1:99999"])
async def test_an_endpoint_that_is_none_is_unavailable(endpoint: str, make_client: MakeClient) -> None:
    assert (await make_client(endpoint).recall("q")).outcome is Outcome.UNAVAILABLE


async def test_a_session_that_cannot_be_ended_says_so_under_soft(server: MemoryServer, make_client: MakeClient) -> None:
    server.always = problem(503, "unavailable")
    acted = await make_client(deadlines=SHORT).sessions.end("s1")
    assert not acted.scheduled
    assert acted.degraded[0].part == "service"


async def test_the_token_is_read_again_when_the_service_refuses_the_old_one(
    server: MemoryServer, make_client: MakeClient, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("old")

    def expire(of: MemoryServer, connection: socket.socket, request: Any) -> None:
        token.write_text("new")
        problem(401, "unauthenticated")(of, connection, request)

    server.faults.append(expire)
    client = make_client(token_file=token, agent="kaos://agent/local/a")
    assert (await client.recall("q")).outcome is Outcome.APPLIED
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer old", "Bearer new"]
    assert all("x-memplane-agent" not in request.headers for request in server.requests)


async def test_a_variable_that_names_no_token_is_named_itself_and_nothing_is_sent_as_somebody_else(
    server: MemoryServer, make_client: MakeClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "token"
    env = {"MEMPLANE_TOKEN_FILE": str(path), "AGENT_IDENTITY": "kaos://agent/local/a"}
    with caplog.at_level(logging.WARNING, "memory_service.client"):
        client = make_client(env=env)
    assert any("MEMPLANE_TOKEN_FILE" in record.getMessage() for record in caplog.records)
    recalled = await client.recall("q")
    assert (recalled.outcome, recalled.degraded[0].reason) == (Outcome.UNAVAILABLE, "TokenMissing")
    assert (await client.write("s1", [TURN])).status == "queued"
    with pytest.raises(ServiceUnavailable, match=f"MEMPLANE_TOKEN_FILE names '{path}'"):
        await client.write("s2", [TURN], failure_mode="strict")
    assert server.requests == []
    stranger = make_client(env={"AGENT_IDENTITY": env["AGENT_IDENTITY"]})
    assert await stranger.deliver() == Delivery(waiting_for_others=1)
    path.write_text("late")
    assert (await client.recall("q")).outcome is Outcome.APPLIED
    assert (await client.write("s1", [{"role": "user", "content": "And I work there."}])).status == "stored"
    assert server.texts("s1") == ["I live in Oslo.", "And I work there."]
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer late"}
    assert (await client.deliver()).waiting_for_others == 0
    path.unlink()
    assert (await client.recall("q")).degraded[0].reason == "TokenMissing"


async def test_what_waits_for_a_token_goes_out_after_a_restart_under_that_token_alone(
    server: MemoryServer, make_client: MakeClient, tmp_path: Path
) -> None:
    def env(name: str) -> dict[str, str]:
        return {"MEMPLANE_TOKEN_FILE": str(tmp_path / name)}

    client = make_client(env=env("token"))
    assert (await client.write("s1", [TURN])).status == "queued"
    await client.aclose()
    for name in ("token", "another"):
        (tmp_path / name).write_text(f"of {name}")
    assert await make_client(env=env("another")).deliver() == Delivery(waiting_for_others=1)
    assert server.requests == []
    assert await make_client(env=env("token")).deliver() == Delivery(delivered=1)
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer of token"]


async def test_what_waits_for_a_token_is_forgotten_with_its_session(
    server: MemoryServer, make_client: MakeClient, tmp_path: Path
) -> None:
    client = make_client(env={"MEMPLANE_TOKEN_FILE": str(tmp_path / "token")})
    assert (await client.write("s1", [TURN])).status == "queued"
    (tmp_path / "token").write_text("late")
    assert (await client.forget(session_id="s1")).is_done
    assert client.outbox is not None
    assert client.outbox.waiting() == 0
    assert server.texts("s1") == []


async def test_a_token_that_goes_while_a_call_is_made_makes_nobody_else_of_the_caller(
    server: MemoryServer, make_client: MakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text("mine")
    read = WatchedFile.text

    def read_last(file: WatchedFile) -> str | None:
        text = read(file)
        if file.path == path:
            path.unlink(missing_ok=True)
        return text

    client = make_client(outbox=None, token_file=path, agent="kaos://agent/local/a")
    monkeypatch.setattr(WatchedFile, "text", read_last)
    assert (await client.recall("q")).outcome is Outcome.APPLIED
    assert server.requests[0].headers["authorization"] == "Bearer mine"
    assert (await client.recall("q")).degraded[0].reason == "TokenMissing"


@pytest.mark.parametrize("has_token", [True, False])
async def test_whether_the_service_lives_can_be_asked_without_a_token_and_tells_nobody_who_asks(
    has_token: bool, server: MemoryServer, make_client: MakeClient, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    env = {"MEMPLANE_TOKEN_FILE": str(path), "AGENT_IDENTITY": "kaos://agent/local/a"}
    if has_token:
        path.write_text("mine")
    server.routes["GET /readyz"] = {"ready": True, "parts": {}}
    client = make_client(env=env).as_user("ada")
    assert await client.health.live()
    assert await client.health.ready()
    assert len(server.requests) == 2
    for request in server.requests:
        assert not {"authorization", "x-memplane-agent", "x-memplane-user"} & set(request.headers)


async def test_users_act_through_views_of_one_client(server: MemoryServer, make_client: MakeClient) -> None:
    client = make_client(agent="kaos://agent/local/a")
    await client.as_user("zoë").write("s1", [TURN])
    await client.write("s1", [TURN])
    first, second = server.requests
    assert first.headers["x-memplane-user"].encode("latin-1").decode() == "zoë"
    assert "x-memplane-user" not in second.headers
    assert second.headers["x-memplane-agent"] == "kaos://agent/local/a"


async def test_a_user_that_no_header_can_carry_is_refused_before_it_is_sent(
    server: MemoryServer, make_client: MakeClient
) -> None:
    view = make_client().as_user("ada\r\nX-Memplane-Agent: kaos://agent/local/admin")
    assert (await view.recall("q")).outcome is Outcome.REFUSED
    with pytest.raises(InvalidRequest):
        await view.write("s1", [TURN])
    assert server.requests == []


async def test_proxy_variables_are_not_followed(
    server: MemoryServer, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert (await make_client().recall("q")).outcome is Outcome.APPLIED


async def test_a_recall_that_its_caller_cancels_leaves_the_breaker_usable(
    server: MemoryServer, make_client: MakeClient
) -> None:
    server.faults.append(hang)
    client = make_client()
    recalling = asyncio.create_task(client.recall("q"))
    await asyncio.to_thread(server.wait_until, lambda s: len(s.requests) == 1)
    recalling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await recalling
    assert (await client.recall("q")).outcome is Outcome.APPLIED


def test_the_blocking_client_keeps_the_same_deadlines(server: MemoryServer, tmp_path: Path) -> None:
    server.faults.append(trickle)
    options: dict[str, Any] = {"outbox": tmp_path, "env": {}, "deadlines": SHORT, "binding_folder": tmp_path / "none"}
    with SyncMemoryClient(server.url, **options) as client:
        assert client.recall("q").outcome is Outcome.UNAVAILABLE
        assert client.write("s1", [TURN]).status == "queued"
        assert client.outbox is not None
        assert client.outbox.waiting() == 1


def test_the_blocking_client_works_from_several_threads(server: MemoryServer, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with SyncMemoryClient(server.url, outbox=tmp_path, env={}, binding_folder=tmp_path / "none") as client:
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda n: client.write(f"s{n}", [TURN]).status, range(12)))
        assert results == ["stored"] * 12
        assert client.recall("q").long_term.items[0].text == item("q")["text"]


def test_one_client_may_be_used_from_one_event_loop_after_another(server: MemoryServer, tmp_path: Path) -> None:
    """In a process of its own: the first loop leaves its sockets to the garbage collector, which warns."""
    code = (
        "import asyncio, sys; from memory_service.client import MemoryClient;"
        "client = MemoryClient(sys.argv[1], outbox=None, env={}, binding_folder=sys.argv[2]);"
        "print([asyncio.run(client.recall('q')).outcome.value for _ in range(3)]); asyncio.run(client.aclose())"
    )
    command = [sys.executable, "-c", code, server.url, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['applied', 'applied', 'applied']"


def bound_to_new(folder: Path) -> None:
    """Write the binding of an agent that was moved to the store `new`."""
    folder.mkdir()
    (folder / "binding.json").write_text(json.dumps({"store": "new", "audience": "memplane:a/new"}))


def project(folder: Path, audience: str) -> None:
    """Write a token for one store."""
    said = {"iss": "https://kubernetes.default", "sub": "system:serviceaccount:a:ada", "aud": [audience]}
    claims = base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")
    (folder / "token").write_text(f"e30.{claims}.e30")


async def test_a_pod_of_an_agent_that_is_moved_shows_its_token_to_nobody_and_keeps_what_is_written(
    server: MemoryServer, make_client: MakeClient, tmp_path: Path
) -> None:
    folder = tmp_path / "binding"
    bound_to_new(folder)
    project(folder, "memplane:a/old")
    client = make_client()
    found = await client.recall("where does Ada live?")
    assert (found.outcome, found.degraded[0].reason) == (Outcome.UNAVAILABLE, "BindingMoved")
    assert (await client.remember("Ada lives in Oslo.")).status == "queued"
    with pytest.raises(ServiceUnavailable, match="moved"):
        await client.facts.list()
    assert server.requests == []
    await client.aclose()
    project(folder, "memplane:a/new")
    assert (await make_client().deliver()).delivered == 1


async def test_a_renewed_token_for_another_store_is_shown_to_nobody_either(
    server: MemoryServer, make_client: MakeClient, tmp_path: Path
) -> None:
    def renew(of: MemoryServer, connection: socket.socket, request: Any) -> None:
        project(tmp_path / "binding", "memplane:a/old")
        problem(401, "unauthenticated")(of, connection, request)

    bound_to_new(tmp_path / "binding")
    project(tmp_path / "binding", "memplane:a/new")
    server.faults.append(renew)
    assert (await make_client().recall("q")).outcome is Outcome.REFUSED
    assert len(server.requests) == 1
