"""Promise 3 and the pool: connections die, Postgres goes away and comes back, and the service goes on by itself."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.fakes.postgres import terminate_connections
from tests.faults.conftest import World
from tests.faults.processes import Agent, free_port, wait_for

ROUNDS = 8
TALKERS = 4


def test_terminated_connections_cost_no_verb_an_answer_and_no_turn_a_place(external: World) -> None:
    """Each talker writes, recalls, remembers, lists, exports and forgets, and asks once more at the most."""
    postgres = external.postgres
    assert postgres is not None
    service = external.service(extraction={"minTurns": 1000})
    service.start()
    done = threading.Event()
    answered: list[tuple[str, int]] = []

    def talk(number: int) -> tuple[list[str], list[str]]:
        """Return the turns and the facts that are to be there."""
        said: list[str] = []
        facts: list[str] = []
        headers = {"X-Memplane-Agent": f"kaos://agent/local/talker{number}"}
        with httpx.Client(base_url=service.url, trust_env=False, timeout=30, headers=headers) as client:

            def ask(method: str, path: str, body: dict[str, Any] | None = None, key: str = "") -> dict[str, Any]:
                own = {"Idempotency-Key": key} if key else {}
                for _attempt in range(2):
                    answer = client.request(method, path, json=body, headers=own)
                    if answer.status_code < 500:
                        break
                answered.append((path, answer.status_code))
                found: dict[str, Any] = answer.json()
                return found

            while not done.is_set():
                step = len(said)
                text, fact = f"thought {number} {step}", f"My item{number}x{step} is in a box"
                turn = {"id": f"t{step}", "role": "user", "content": text}
                ask("POST", "/v1/write", {"session_id": "kept", "turns": [turn]}, f"kept-{step}")
                said.append(text)
                ask("POST", "/v1/write", {"session_id": f"gone{step}", "turns": [turn]}, f"gone-{step}")
                ask("POST", "/v1/facts", {"text": fact}, f"fact-{step}")
                facts.append(fact)
                found = ask("POST", "/v1/recall", {"query": text, "session_id": "kept"})
                assert (found["outcome"], found["degraded"]) == ("applied", [])
                assert found["short_term"]["window"][-1]["content"] == text
                listed = ask("POST", "/v1/list", {"tiers": ["fact"], "limit": 1000})
                assert {item["text"] for item in listed["items"]} == set(facts)
                assert ask("GET", "/v1/admin/export?limit=20")["lines"]
                forgotten = {"scope": "session", "session_id": f"gone{step}", "confirm": True}
                receipt = ask("POST", "/v1/forget", forgotten, f"forget-{step}")
                assert receipt["erased"]["turns"] == 1
                assert ask("GET", f"/v1/receipts/{receipt['receipt_id']}")["erased"] == receipt["erased"]
        return said, facts

    with ThreadPoolExecutor(TALKERS) as threads:
        talks = [threads.submit(talk, number) for number in range(TALKERS)]
        try:
            for count in range(ROUNDS):
                enough = 8 * TALKERS * (count + 1)
                wait_for("traffic", lambda enough=enough: len(answered) > enough or any(t.done() for t in talks))  # type: ignore[misc]
                terminate_connections(postgres.dsn)
        finally:
            done.set()
        kept = [talk.result(timeout=60) for talk in talks]
    assert {(path, status) for path, status in answered if status >= 400} == set()
    for number, (said, facts) in enumerate(kept):
        agent = Agent(service, f"kaos://agent/local/talker{number}")
        assert [turn["content"] for turn in agent.turns("kept")] == said
        assert sorted(agent.facts()) == sorted(facts)
        assert [one["session_id"] for one in agent.call("GET", "/v1/sessions")["sessions"]] == ["kept"]


def test_a_database_that_is_down_makes_recall_poorer_and_the_service_unready_until_it_is_back(external: World) -> None:
    postgres = external.postgres
    assert postgres is not None
    service = external.service()
    service.start()
    agent = Agent(service)
    agent.write("before", ["My boat is called Lotte"])
    postgres.stop()
    with httpx.Client(base_url=service.url, trust_env=False, timeout=30) as client:
        recalled = client.post("/v1/recall", json={"query": "boat", "session_id": "before"})
        assert recalled.status_code == 200
        assert recalled.json()["outcome"] == "unavailable"
        assert {part["part"] for part in recalled.json()["degraded"]} >= {"storage"}
        written = client.post("/v1/write", json={"session_id": "s", "turns": [{"role": "user", "content": "x"}]})
        assert written.status_code == 503
        assert int(written.headers["Retry-After"]) >= 1
        assert client.get("/healthz").status_code == 200
        ready = client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["parts"]["storage"]["reason"] == "StorageUnreachable"
        postgres.start()
        wait_for("readiness", lambda: client.get("/readyz").status_code == 200)
    assert [turn["content"] for turn in agent.turns("before")] == ["My boat is called Lotte"]
    assert not service.has_ended()


def test_a_service_that_starts_before_its_database_serves_once_that_is_there(external: World) -> None:
    postgres = external.postgres
    assert postgres is not None
    postgres.stop()
    service = external.service(server={"port": free_port(), "graceSeconds": 5})
    service.start(wait=False)
    service.port = int(service.config["server"]["port"])
    wait_for("liveness", service.lives)
    assert _status(service.url + "/readyz") == 503
    postgres.start()
    wait_for("readiness", lambda: _status(service.url + "/readyz") == 200)
    Agent(service).write("s", ["My boat is called Lotte"])


def _status(url: str) -> int:
    try:
        return httpx.get(url, trust_env=False, timeout=10).status_code
    except httpx.TransportError:
        return 0


def test_a_frozen_database_holds_nobody_and_loses_nothing(external: World) -> None:
    """It answers nothing and ends nothing: kept connections stay open, and the kernel acknowledges what is sent."""
    postgres = external.postgres
    assert postgres is not None
    service = external.service()
    service.start()
    agent = Agent(service)
    agent.write("before", ["My boat is called Lotte"])
    recall = {"query": "boat", "session_id": "before"}
    with httpx.Client(base_url=service.url, trust_env=False, timeout=120) as client:
        postgres.freeze()
        try:
            with ThreadPoolExecutor(12) as threads:
                asked = [threads.submit(client.post, "/v1/recall", json=recall) for _ in range(12)]
                answers = [one.result() for one in asked]
            assert {(one.status_code, one.json()["outcome"]) for one in answers} == {(200, "unavailable")}
            assert all("storage" in {part["part"] for part in one.json()["degraded"]} for one in answers)
            refused = client.post("/v1/write", json={"session_id": "s", "turns": [{"role": "user", "content": "x"}]})
            assert refused.status_code == 503
            assert client.get("/healthz").status_code == 200
            assert client.get("/readyz").status_code == 503
        finally:
            postgres.thaw()
        wait_for("readiness", lambda: client.get("/readyz").status_code == 200)
        assert client.post("/v1/recall", json=recall).json()["degraded"] == []
    assert [turn["content"] for turn in agent.turns("before")] == ["My boat is called Lotte"]


def test_a_standby_that_is_away_keeps_writes_waiting_and_nobody_from_remembering(external: World) -> None:
    """Each COMMIT waits for it, for as long as it takes: more writes than the service has places for wait with it."""
    postgres = external.postgres
    assert postgres is not None
    storage = {"type": "external", "dsn": postgres.dsn, "poolSize": 4}
    service = external.service(server={"port": 0, "graceSeconds": 5, "maxInFlight": 16}, storage=storage)
    service.start()
    agent = Agent(service)
    agent.call("POST", "/v1/facts", {"text": "The boat is called Lotte"})
    recall = {"query": "boat"}
    texts = {f"w{number}": f"My item{number}x0 is kept in a box" for number in range(40)}

    def write(key: str) -> httpx.Response:
        turn = {"id": key, "role": "user", "content": texts[key]}
        body = {"session_id": f"s-{key}", "turns": [turn]}
        return client.post("/v1/write", json=body, headers={"Idempotency-Key": key})

    with httpx.Client(base_url=service.url, trust_env=False, timeout=30) as client:
        postgres.wait_for_standby("nobody")
        with ThreadPoolExecutor(len(texts)) as threads:
            writes = {key: threads.submit(write, key) for key in texts}
            recalls = 0
            while not all(one.done() for one in writes.values()):
                answer = client.post("/v1/recall", json=recall)
                assert (answer.status_code, answer.json()["outcome"], answer.json()["degraded"]) == (200, "applied", [])
                recalls += 1
            answers = {key: one.result() for key, one in writes.items()}
        assert recalls > 20
        assert {answer.status_code for answer in answers.values()} == {503}
        assert all(int(answer.headers["Retry-After"]) >= 1 for answer in answers.values())
        told = [answer.json()["detail"] for answer in answers.values()]
        assert any("may be stored or not" in one and "synchronous_standby_names" in one for one in told)
        assert "confirms no write" in write("w0").json()["detail"], "no write waits for threads that all wait"
        postgres.wait_for_standby("")
    for key, text in texts.items():
        turn = {"id": key, "role": "user", "content": text}
        agent.call("POST", "/v1/write", {"session_id": f"s-{key}", "turns": [turn]}, key=key)
        assert [turn["content"] for turn in agent.turns(f"s-{key}")] == [text]
    agent.wait_settled()
    assert agent.jobs("dead") == []
