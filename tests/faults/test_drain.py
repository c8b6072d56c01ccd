"""SIGTERM: requests in flight finish, jobs in hand are finished or handed back, and the next process goes on."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx

from memory_service.ports.process import Step
from tests.faults.conftest import World
from tests.faults.processes import Agent, wait_for


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
