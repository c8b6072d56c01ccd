"""SIGTERM: requests in flight finish, jobs in hand are finished or handed back, and the next process goes on."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx

from memory_service.ports.process import Step
from tests.fakes.model_server import CHAT, Text
from tests.faults.conftest import World
from tests.faults.processes import Agent, Service, wait_for
from tests.faults.traffic import Asked, Round, helper, identity, routes


def test_sigterm_under_load_answers_every_request_that_was_taken_and_exits_zero(world: World) -> None:
    service = world.service()
    service.start()
    acknowledged: list[list[str]] = [[] for _ in range(4)]
    stopping = threading.Event()

    def talk(number: int) -> None:
        with httpx.Client(base_url=service.url, trust_env=False, timeout=30) as client:
            while True:
                text = f"thought {number} {len(acknowledged[number])}"
                body = {"session_id": f"s{number}", "turns": [{"role": "user", "content": text}]}
                try:
                    answer = client.post("/v1/write", json=body)
                except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError):
                    assert stopping.is_set(), "a request was cut off before the service was asked to stop"
                    return
                assert answer.status_code < 400, answer.text
                acknowledged[number].append(text)

    with ThreadPoolExecutor(4) as threads:
        talks = [threads.submit(talk, number) for number in range(4)]
        wait_for("traffic", lambda: sum(map(len, acknowledged)) > 40)
        service.arm(Step.WRITE_RECEIVED.value, "hold")
        wait_for("a write in flight", service.is_held)
        stopping.set()
        service.ask_to_stop()
        service.disarm()
        assert service.wait_ended() == 0
        for future in talks:
            future.result(timeout=60)
    taken = service.steps().count(Step.WRITE_RECEIVED.value)
    assert sum(map(len, acknowledged)) == taken, "a request that was taken got no answer"
    service.start()
    agent = Agent(service)
    for number, texts in enumerate(acknowledged):
        assert [turn["content"] for turn in agent.turns(f"s{number}")] == texts


def test_a_job_in_hand_is_handed_back_on_sigterm_and_costs_no_attempt(world: World) -> None:
    service = world.service(server={"port": 0, "graceSeconds": 1}, worker={"leaseSeconds": 3600})
    service.start()
    agent = Agent(service)
    agent.write("s", ["My boat is called Lotte"])
    wait_for("the turn to be indexed", agent.settled)
    gate = world.gate()
    agent.call("POST", "/v1/sessions/s/end", {})
    wait_for("the model to be asked", gate.entered.is_set)
    assert service.stop() == 0
    assert not gate.gave_up.is_set()
    gate.opened.set()
    assert world.rows("SELECT state, attempts FROM @jobs WHERE kind = 'extract'") == [("queued", 0)]
    service.start()
    wait_for("the fact, an hour before its lease would end", lambda: "User's boat is called Lotte" in agent.facts())


def test_sigterm_amid_all_verbs_answers_each_and_hands_back_the_jobs_that_ask_a_model(world: World) -> None:
    service = world.service(
        identity=identity(world.folder),
        server={"port": 0, "graceSeconds": 20},
        extraction={"minTurns": 100, "maxRetries": 0},
        worker={"leaseSeconds": 3600},
    )
    service.start()
    agent, everything = helper(service), Round("round")
    everything.prepare(lambda asked: _given(asked, service), _dead_job(world, service))
    wait_for("the queue to drain", agent.settled)
    requests = everything.requests()
    assert {(asked.method, asked.route) for asked in requests} == routes(), "a route has no request in the traffic"

    gates = [world.gate(), world.gate()]
    agent.write("long", [f"My drawer{n} is full of old letters of my aunt and of her cat" for n in range(8)])
    agent.write("short", ["My boat is called Lotte"])
    agent.call("POST", "/v1/sessions/short/end", {})
    for gate in gates:
        wait_for("a model to be asked", gate.entered.is_set)

    (service.folder / "taken").unlink()
    (service.folder / "hold-requests").touch()
    with ThreadPoolExecutor(len(requests)) as threads, socket.create_connection(("127.0.0.1", service.port)) as slow:
        body = json.dumps({"lines": [{"type": "principal", "hash": "slow", "display": "slow", "created_at": 1}]})
        slow.sendall(_import_of(len(body)) + body[:20].encode())
        answers = [threads.submit(asked.send, service) for asked in requests]
        wait_for("every request to be taken", lambda: len(_taken(service)) == len(requests) + 1)
        service.ask_to_stop()
        wait_for("the service to listen no more", lambda: not _listens(service))
        assert not service.has_ended()
        (service.folder / "hold-requests").unlink()
        slow.sendall(body[20:].encode())
        assert slow.recv(4096).startswith(b"HTTP/1.1 200 "), "an import whose body was still coming"
        assert service.wait_ended() == 0
        assert {future.result().status_code for future in answers} <= {200, 201, 202, 409}  # 409: a replay was first
    assert "Traceback" not in (service.folder / "log").read_text()
    for gate in gates:
        assert not gate.gave_up.is_set()
        gate.opened.set()
    assert world.rows("SELECT kind, attempts FROM @jobs WHERE state = 'running'") == []
    interrupted = "SELECT kind, attempts FROM @jobs WHERE state = 'queued' AND kind IN ('fold', 'extract')"
    assert {("fold", 0), ("extract", 0)} <= set(world.rows(interrupted))
    service.start()
    agent.wait_settled()
    everything.check(service)
    assert agent.jobs("dead") == []
    assert "User's boat is called Lotte" in agent.facts()
    assert [digest["version"] for digest in agent.digests("long")] == [1]
    (imported,) = world.rows("SELECT COUNT(*) FROM @principals WHERE hash IN ('slow', 'round-imported')")
    assert imported == (2,)


def _given(asked: Asked, service: Service) -> dict[str, object]:
    found: dict[str, object] = asked.send(service).json()
    return found


def _dead_job(world: World, service: Service) -> str:
    """Let a model's useless answer kill a job, and return its id."""
    agent = helper(service)
    world.model.always(CHAT, Text("no JSON"))
    agent.write("unlucky", ["My goat is called Ida"])
    agent.call("POST", "/v1/sessions/unlucky/end", {})
    (dead,) = wait_for("the job to die", lambda: agent.jobs("dead"))
    world.model.always(CHAT, None)
    return str(dead["id"])


def _import_of(length: int) -> bytes:
    head = f"POST /v1/admin/import HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}"
    return f"{head}\r\nAuthorization: Bearer admin-token\r\n\r\n".encode()


def _taken(service: Service) -> list[str]:
    file = service.folder / "taken"
    return file.read_text().splitlines() if file.exists() else []


def _listens(service: Service) -> bool:
    try:
        socket.create_connection(("127.0.0.1", service.port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True
