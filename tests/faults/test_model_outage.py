"""A model that is down for an hour: nothing said is lost, nothing is given up, and the queue drains once it is back."""

from __future__ import annotations

import pytest

from memory_service.contract.config import EngineName
from tests.fakes.model_server import CHAT, EMBEDDINGS, Status
from tests.faults.conftest import World
from tests.faults.processes import Agent, wait_for

HOUR = 3600
STEP = 600


@pytest.mark.parametrize(
    ("world", "engine"),
    [("local", EngineName.MEM0), ("local", EngineName.NATIVE), ("external", EngineName.NATIVE)],
    indirect=["world"],
)
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
