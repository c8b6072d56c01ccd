"""A model that is down for an hour, or is of no use: nothing said is lost, and all is done once it is back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from memory_service.contract.config import EngineName
from memory_service.contract.sessions import JobKind
from tests.fakes.model_server import CHAT, EMBEDDINGS, Embeddings, Status, Text, wrong_count, wrong_dimension
from tests.faults.conftest import World
from tests.faults.processes import Agent, Service, wait_for

HOUR = 3600
STEP = 600
Change = Callable[[dict[str, Any]], None]
ENGINES = pytest.mark.parametrize("engine", EngineName)


@ENGINES
def test_an_hour_without_any_model_loses_no_turn_and_the_queue_drains_afterwards(
    world: World, engine: EngineName
) -> None:
    world.engine = engine
    service = world.service()
    service.start()
    agent = Agent(service)
    for path in (CHAT, EMBEDDINGS):
        world.model.always(path, Status(503))
    said = {}
    for minute in range(0, HOUR, STEP):
        service.shift(minute)
        session = f"minute-{minute}"
        said[session] = [
            f"My item{minute}x{n} is kept in a box on the long green shelf of the cellar" for n in range(8)
        ]
        agent.write(session, said[session])
        recalled = agent.call("POST", "/v1/recall", {"query": f"item{minute}x0", "session_id": session})
        assert recalled["short_term"]["window"], "the window needs no model"
        assert {part["part"] for part in recalled["degraded"]} >= {"embedding"}
        saved = agent.call("POST", "/v1/facts", {"text": f"Box {minute} is green"})
        found = agent.call("POST", "/v1/recall", {"query": f"Box {minute}", "session_id": "another"})
        assert saved["id"] in [item["id"] for item in found["long_term"]["items"]], "words find what waits for a vector"
        wait_for("an attempt at the model", lambda: any(job["attempts"] for job in agent.jobs("queued")))
    assert agent.jobs("dead") == [], "an outage is not a job's fault"
    for session, texts in said.items():
        assert [turn["content"] for turn in agent.turns(session)] == texts
    for path in (CHAT, EMBEDDINGS):
        world.model.always(path, None)
    service.shift(2 * HOUR)
    agent.wait_settled()
    facts = agent.facts()
    assert len(facts) == len(set(facts)) == len(said) * 9
    for session, texts in said.items():
        assert [turn["content"] for turn in agent.turns(session)] == texts
        assert agent.digests(session), "the window was over its mark, so it was folded"
    recalled = agent.call("POST", "/v1/recall", {"query": "green box", "session_id": "another"})
    assert recalled["degraded"] == []


@ENGINES
def test_answers_that_are_of_no_use_fail_jobs_that_are_counted_and_replayed(world: World, engine: EngineName) -> None:
    world.engine = engine
    service = world.service(extraction={"minTurns": 50, "maxRetries": 0})
    service.start()
    agent = Agent(service)
    agent.write("pets", ["My dog is called Rex"])
    world.model.always(CHAT, Text("I will not answer in JSON"))
    (extraction,) = agent.call("POST", "/v1/sessions/pets/end", {})["jobs"]
    dead = _dead_job(service, agent, JobKind.EXTRACT)
    assert dead["id"] == extraction
    assert "UnparseableAnswer" in dead["error"]
    assert "Rex" not in dead["error"]
    assert agent.facts() == []
    assert [turn["content"] for turn in agent.turns("pets")] == ["My dog is called Rex"]

    world.model.always(CHAT, None)
    agent.write("long", _long_turns("first"))
    wait_for("a digest", lambda: agent.digests("long"))
    agent.wait_settled()
    digests = agent.digests("long")
    world.model.always(CHAT, Text("  \n"))
    told = [*_long_turns("first"), *_long_turns("second")]
    turns = [{"role": "user", "content": text} for text in _long_turns("second")]
    agent.call("POST", "/v1/write", {"session_id": "long", "turns": turns}, key="second")
    assert "UnparseableAnswer" in _dead_job(service, agent, JobKind.FOLD)["error"]
    assert agent.digests("long") == digests, "an empty summary keeps the digest"

    world.model.always(CHAT, None)
    agent.call("POST", f"/v1/jobs/{extraction}/retry", {})
    wait_for("the fact", lambda: agent.facts() == ["User's dog is called Rex"])
    asked = httpx.post(service.url + "/v1/admin/jobs/replay", json={"state": "dead"}, trust_env=False)
    assert asked.json() == {"replayed": 1}
    wait_for("the next digest", lambda: len(agent.digests("long")) > len(digests))
    assert [digest["version"] for digest in agent.digests("long")] == list(range(1, len(agent.digests("long")) + 1))
    assert [turn["content"] for turn in agent.turns("long")] == told
    agent.wait_settled()
    assert agent.jobs("dead") == []


@pytest.mark.parametrize("fault", [wrong_count, wrong_dimension])
def test_vectors_of_a_wrong_number_or_length_are_not_stored_and_made_later(world: World, fault: Change) -> None:
    world.engine = EngineName.MEM0
    service = world.service()
    service.start()
    agent = Agent(service)
    world.model.always(EMBEDDINGS, Embeddings(fault))
    agent.write("pets", ["My dog is called Rex", "I live in Oslo"])
    agent.call("POST", "/v1/sessions/pets/end", {})
    saved = agent.call("POST", "/v1/facts", {"text": "Box 1 is green"})
    for kind in (JobKind.INDEX_TURNS, JobKind.EXTRACT, JobKind.EMBED):
        failed = f"SELECT COUNT(*) FROM @jobs WHERE kind = '{kind.value}' AND attempts > 0"
        wait_for(f"a failed {kind}", lambda failed=failed: world.rows(failed) != [(0,)])  # type: ignore[misc]
        failures = partial(service.counted, "jobs", kind=kind.value, outcome="failed")
        wait_for(f"the failed {kind} to be counted", failures)
    for table in ("facts", "turns"):
        assert world.rows(f"SELECT COUNT(*) FROM @{table} WHERE vector IS NOT NULL") == [(0,)]
    assert agent.facts() == ["Box 1 is green"]
    recalled = agent.call("POST", "/v1/recall", {"query": "green box", "session_id": "pets"})
    assert "embedding" in {part["part"] for part in recalled["degraded"]}
    assert saved["id"] in [item["id"] for item in recalled["long_term"]["items"]]

    world.model.always(EMBEDDINGS, None)
    service.shift(HOUR)
    agent.wait_settled()
    for table, rows in (("facts", 3), ("turns", 2)):
        counted = f"SELECT COUNT(*), COUNT(vector) FROM @{table}"
        wait_for(f"the vectors of {table}", lambda counted=counted, rows=rows: world.rows(counted) == [(rows, rows)])  # type: ignore[misc]
    assert sorted(agent.facts()) == ["Box 1 is green", "User lives in Oslo", "User's dog is called Rex"]
    assert agent.jobs("dead") == []


def _dead_job(service: Service, agent: Agent, kind: JobKind) -> dict[str, Any]:
    """Return the one job of a kind that failed for good, and is counted."""

    def dead() -> list[dict[str, Any]]:
        return [job for job in agent.jobs("dead") if job["kind"] == kind]

    (job,) = wait_for(f"a dead {kind}", dead)
    wait_for("its count", lambda: service.counted("jobs", kind=kind.value, outcome="dead") == 1)
    return job


def _long_turns(name: str) -> list[str]:
    return [f"My {name}x{number} is kept in a box on the long green shelf of the cellar" for number in range(5)]
