"""SIGTERM: requests in flight finish, jobs in hand are finished or handed back, and the next process goes on."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.faults.conftest import World
from tests.faults.processes import Agent, wait_for


def test_sigterm_under_load_refuses_nothing_that_it_took_and_exits_zero(world: World) -> None:
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
        stopping.set()
        assert service.stop() == 0
        for future in talks:
            future.result(timeout=60)
    service.start()
    agent = Agent(service)
    for number, texts in enumerate(acknowledged):
        kept = [turn["content"] for turn in agent.turns(f"s{number}")]
        assert kept[: len(texts)] == texts
        assert len(kept) <= len(texts) + 1, "at most the one request without an answer may be stored besides"


def test_a_job_in_hand_is_handed_back_on_sigterm_and_costs_no_attempt(world: World) -> None:
    service = world.service(server={"port": 0, "graceSeconds": 1})
    service.start()
    agent = Agent(service)
    gate = world.gate()
    agent.write("s", ["My boat is called Lotte"])
    agent.call("POST", "/v1/sessions/s/end", {})
    wait_for("the model to be asked", gate.entered.is_set)
    assert service.stop() == 0
    gate.opened.set()
    service.start()
    (job,) = [job for job in _all_jobs(agent) if job["kind"] == "extract"]
    assert job["attempts"] <= 1
    wait_for("the fact", lambda: agent.facts() == ["User's boat is called Lotte"])


def _all_jobs(agent: Agent) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = agent.call("GET", "/v1/jobs?limit=1000")["jobs"]
    return found
