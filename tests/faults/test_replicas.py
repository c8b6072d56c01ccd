"""Several processes on one Postgres: the database serialises what must be serial, and nothing is done twice."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import psycopg
import pytest

from memory_service.contract.config import EngineName
from memory_service.contract.sessions import JobState
from memory_service.operations.saving import Action
from tests.fakes.model_server import CHAT, Gate
from tests.faults.conftest import World
from tests.faults.processes import Agent, Service, wait_for

SESSIONS = 20
ACTIONS = get_args(Action)


@pytest.mark.parametrize(("engine", "turns_each"), [(EngineName.NATIVE, 50), (EngineName.MEM0, 8)])
def test_three_replicas_fold_and_extract_each_of_a_thousand_concurrent_turns_once(
    external: World, engine: EngineName, turns_each: int
) -> None:
    external.engine = engine
    services = [external.service(f"replica-{number}", worker={"leaseSeconds": 15}) for number in range(3)]
    for service in services:
        service.start()

    def write(number: int) -> int:
        session, turn = number % SESSIONS, number // SESSIONS
        body = {
            "session_id": f"session-{session}",
            "turns": [{"id": f"t{turn}", "role": "user", "content": _said(session, turn)}],
        }
        answer = Agent(services[number % 3]).call("POST", "/v1/write", body, key=f"w-{number}")
        return int(answer["seqs"][0])

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(write, range(SESSIONS * turns_each)))
    agent = Agent(services[0])
    for session in range(SESSIONS):
        agent.call("POST", f"/v1/sessions/session-{session}/end", {})
    agent.wait_settled()
    facts = agent.facts()
    folded = 0
    for session in range(SESSIONS):
        turns = agent.turns(f"session-{session}")
        assert [turn["seq"] for turn in turns] == list(range(1, turns_each + 1))
        assert {turn["content"] for turn in turns} == {_said(session, n) for n in range(turns_each)}
        digests = agent.digests(f"session-{session}")
        ends = [digest["upto_seq"] for digest in digests]
        assert ends == sorted(set(ends)), "a turn was folded twice"
        assert [digest["version"] for digest in digests] == list(
            range(digests[0]["version"], digests[0]["version"] + len(digests))
        )
        own = [text for text in facts if re.search(rf"\bitem{session}x\d", text)]
        assert len(own) == len(set(own)) == turns_each
        folded += ends[-1]
    assert agent.jobs("dead") == []
    saved = {action: sum(one.counted("facts_written", action=action) for one in services) for action in ACTIONS}
    assert saved == {**dict.fromkeys(ACTIONS, 0), "added": SESSIONS * turns_each}, "turns were extracted twice"
    assert sum(one.counted("turns_folded") for one in services) == folded, "turns were folded twice"


@pytest.mark.parametrize("step", ["6-vectors-made extract", "5-model-answered fold", "6-vectors-made index_turns"])
def test_a_replica_that_is_frozen_beyond_its_lease_stores_nothing_of_what_another_did(
    step: str, external: World
) -> None:
    frozen, other = external.service("frozen"), external.service("other")
    frozen.start()
    frozen.arm(step, "hold")
    Agent(frozen).write("s", [f"{_said(0, turn)}" for turn in range(8)])
    wait_for("the replica to have something to store", frozen.is_held)
    frozen.freeze()
    other.start()
    agent = Agent(other)
    agent.wait_settled()
    before = sorted(agent.facts()), agent.digests("s")
    assert (len(before[0]), len(before[1])) == (8, 1)
    frozen.disarm()
    frozen.thaw()
    kind = step.split()[1]
    wait_for("the replica to notice", lambda: frozen.counted("jobs", kind=kind, outcome="lost") == 1)
    assert (sorted(agent.facts()), agent.digests("s")) == before
    assert {job["state"] for job in agent.jobs(*JobState)} == {"done"}
    Agent(frozen).write("later", ["My boat is called Lotte"])
    assert [turn["content"] for turn in agent.turns("later")] == ["My boat is called Lotte"]


@pytest.mark.parametrize("engine", EngineName)
def test_a_fact_that_eight_sessions_say_at_once_is_one_fact(external: World, engine: EngineName) -> None:
    external.engine = engine
    services = [external.service(f"replica-{number}") for number in range(2)]
    for service in services:
        service.start()

    def tell(number: int) -> None:
        agent = Agent(services[number % 2])
        agent.write(f"session-{number}", ["My home town is called Trondheim"])
        agent.call("POST", f"/v1/sessions/session-{number}/end", {})

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(tell, range(8)))
    agent = Agent(services[0])
    wait_for("the queue to drain", agent.settled)
    assert agent.facts() == ["User's home town is called Trondheim"]


def test_slow_summaries_delay_no_other_session(world: World) -> None:
    service = _gated(world, extraction={"concurrency": 2})
    agent = Agent(service)
    gate = Gate(only="summary")
    world.model.always(CHAT, gate)
    agent.write("slow", [f"My thing{n} is somewhere on the long green shelf of the cellar" for n in range(8)])
    wait_for("the model to be asked", gate.entered.is_set)
    agent.write("other", ["My boat is called Lotte"])
    found = agent.call("POST", "/v1/recall", {"query": "boat", "session_id": "other"})
    assert [turn["content"] for turn in found["short_term"]["window"]] == ["My boat is called Lotte"]
    agent.call("POST", "/v1/sessions/other/end", {})
    wait_for("the other session's fact", lambda: "User's boat is called Lotte" in agent.facts())
    assert not gate.gave_up.is_set(), "the other session had to wait for the summary"
    gate.opened.set()
    wait_for("the rest", agent.settled)
    gate = Gate(only="summary")
    world.model.always(CHAT, gate)
    for number in range(3):
        agent.write(f"slow-{number}", [_said(number, turn) for turn in range(8)])
    summaries = "SELECT COUNT(*) FROM @jobs WHERE kind = 'fold' AND state = 'running'"
    wait_for("every thread for models to wait for a summary", lambda: world.rows(summaries) == [(2,)])
    agent.write_one("other", "My cat is called Ada", "cat")
    found = agent.call("POST", "/v1/recall", {"query": "boat", "session_id": "other"})
    assert found["short_term"]["window"][-1]["content"] == "My cat is called Ada"
    assert "User's boat is called Lotte" in [item["text"] for item in found["long_term"]["items"]]
    assert not gate.gave_up.is_set(), "the other session had to wait for the summaries"
    gate.opened.set()
    wait_for("the rest", agent.settled)


def test_jobs_that_wait_for_one_owner_leave_threads_to_everybody_else(external: World) -> None:
    postgres = external.postgres
    assert postgres is not None
    service = external.service(
        extraction={"minTurns": 1, "concurrency": 6}, worker={"leaseSeconds": 15}, longTerm={"episodes": False}
    )
    service.start()
    agent, other = Agent(service), Agent(service, "kaos://agent/local/other")
    gates = [external.gate() for _ in range(6)]
    for number in range(6):
        agent.write(f"session-{number}", [f"My item{number}x0 is kept in a box"])
    wait_for("six extractions", lambda: all(gate.entered.is_set() for gate in gates))
    with psycopg.connect(postgres.dsn) as holder, psycopg.connect(postgres.dsn, autocommit=True) as watcher:
        held = holder.execute("SELECT id FROM memplane.owners WHERE scope = 'private' FOR NO KEY UPDATE").fetchall()
        assert held, "the owner of the facts is not there yet"
        for gate in gates:
            gate.opened.set()
        wait_for("all to have something to store", lambda: service.steps().count("6-vectors-made extract") >= 6)
        wait_for("one to wait for the owner", lambda: _waiting(watcher) > 0)
        for number in range(5):
            other.write(f"other-{number}", ["My boat is called Lotte"])
            assert _waiting(watcher) <= 1, "jobs that wait for an owner fill the threads that others need"
        holder.rollback()
    wait_for("the facts", lambda: len([text for text in agent.facts() if "item" in text]) == 6)


def _waiting(watcher: psycopg.Connection[Any]) -> int:
    found = watcher.execute("SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()
    assert found is not None
    return int(found[0])


def test_a_noisy_session_does_not_starve_the_rest(world: World) -> None:
    service = _gated(world, extraction={"minTurns": 1, "concurrency": 1})
    agent = Agent(service)
    gate = world.gate()
    agent.write("noisy", ["My cat is called Ada"])
    wait_for("the model to be asked", gate.entered.is_set)
    for number in range(30):
        turns = [{"role": "user", "content": f"My plant{number}x{line} is on the sill"} for line in range(8)]
        agent.call("POST", "/v1/write", {"session_id": "noisy", "turns": turns}, key=f"noise-{number}")
    agent.write("quiet", ["My boat is called Lotte"])
    before = len(world.model.requests)
    gate.opened.set()
    wait_for("the quiet session's fact", lambda: "User's boat is called Lotte" in agent.facts())
    asked = [request.prompt for request in world.model.requests[before:] if request.path.endswith("completions")]
    turn_of_quiet = next(place for place, prompt in enumerate(asked) if "Lotte" in prompt)
    assert turn_of_quiet <= 3, "the quiet session waited for more than the noisy one's next job"


def _gated(world: World, **changes: dict[str, Any]) -> Service:
    service = world.service("service", **changes)
    service.start()
    return service


def _said(session: int, turn: int) -> str:
    return f"My item{session}x{turn} is kept in a box on the long green shelf of the cellar"
