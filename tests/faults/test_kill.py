"""Promise 1: a turn that was acknowledged is never lost, and nothing is folded or extracted twice.

The steps of the journey from a turn to its facts are what the code itself says it reaches: a rehearsal collects them,
and the service (or Postgres) is killed at each. A step that is added is covered by being reached.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import pytest

from memory_service.contract.config import EngineName
from memory_service.contract.sessions import JobKind
from memory_service.operations.saving import Action
from memory_service.ports.process import Step
from tests.fakes.model_server import EMBEDDINGS, Status
from tests.faults.conftest import World
from tests.faults.processes import Agent, Service, wait_for

TURNS = 8
ACTIONS = get_args(Action)
LEAVING = "kaos://agent/local/leaving"
JOURNEY = ("", JobKind.INDEX_TURNS, JobKind.FOLD, JobKind.EXTRACT)
"""What a step may be about: the write itself, or a job on the way from its turns to facts."""
UPKEEP = (JobKind.EXPIRE, JobKind.RECONCILE_INDEX, JobKind.REBUILD_INDEX)
"""Runs at every start anew, and deletes or makes again what nobody waits for: every restart here repeats it."""
BESIDE = ("remember", "forget", *(kind for kind in JobKind if kind not in JOURNEY and kind not in UPKEEP))
"""What a save and an erasure reach, with all jobs that are on no other list: a new one has to be met there."""


def _turns(number: int) -> list[str]:
    return [f"My item{number}x{n} is kept in a box on the long green shelf of the cellar" for n in range(TURNS)]


def _rehearse(service: Service, agent: Agent) -> list[str]:
    """Run one whole journey and return the steps that it reached, in order, each once."""
    agent.write("rehearsal", _turns(0))
    wait_for("the rehearsal to settle", agent.settled)
    steps = [step for step in dict.fromkeys(service.steps()) if step.partition(" ")[2] in JOURNEY]
    assert {step.split()[0] for step in steps} == {step.value for step in Step}, "a step is declared and never reached"
    return steps


def _steps_of(world: World, steps: list[str]) -> list[str]:
    """Return the steps to be killed at: on Postgres the default engine differs from the other in extraction alone."""
    if world.backend == "external" and world.engine is EngineName.MEM0:
        return [step for step in steps if step.endswith(f" {JobKind.EXTRACT.value}")]
    return steps


def _assert_whole(service: Service, agent: Agent, session: str, number: int, where: str) -> None:
    turns = agent.turns(session)
    assert [turn["content"] for turn in turns] == _turns(number), f"turns lost or repeated after {where}"
    assert [turn["seq"] for turn in turns] == list(range(1, TURNS + 1)), where
    digests = agent.digests(session)
    assert [digest["version"] for digest in digests] == list(range(1, len(digests) + 1)), f"folded twice after {where}"
    ends = [digest["upto_seq"] for digest in digests]
    assert ends == sorted(set(ends)), f"a turn was folded twice after {where}"
    noted = re.findall(rf"\bitem{number}x\d+", digests[-1]["summary"]) if digests else []
    assert len(noted) == len(set(noted)) == (ends or [0])[-1], f"a turn was folded twice after {where}"
    mentioned = [text for text in agent.facts() if re.search(rf"item{number}x\d", text)]
    assert len(mentioned) == TURNS == len(set(mentioned)), f"facts lost or repeated after {where}: {sorted(mentioned)}"
    saved = {action: service.counted("facts_written", action=action) for action in ACTIONS}
    assert saved == {**dict.fromkeys(ACTIONS, 0), "added": saved["added"]}, f"turns were extracted twice after {where}"
    assert agent.jobs("dead") == [], where


@pytest.mark.parametrize(
    ("world", "engine"),
    [(backend, engine) for backend in ("local", "external") for engine in EngineName],
    indirect=["world"],
)
def test_kill_9_of_the_service_at_every_step_loses_nothing_and_does_nothing_twice(
    world: World, engine: EngineName
) -> None:
    world.engine = engine
    service = world.service()
    service.start()
    agent = Agent(service)
    for number, step in enumerate(_steps_of(world, _rehearse(service, agent)), start=1):
        service.arm(step, "kill")

        agent.on_outage = lambda: _restart(service)
        session = f"session-{number}"
        agent.write(session, _turns(number))
        wait_for(f"the kill at {step}", service.is_disarmed)
        _restart(service)
        wait_for(f"the work after the kill at {step}", agent.settled)
        _assert_whole(service, agent, session, number, f"a kill at {step!r}")


def _save_and_erase(world: World, service: Service, number: int) -> None:
    """Save a fact while the embedder is away, and let another agent write and erase all that it has."""
    agent, leaving = Agent(service), Agent(service, LEAVING)
    agent.on_outage = leaving.on_outage = lambda: _restart(service)
    world.model.always(EMBEDDINGS, Status(503))
    agent.call("POST", "/v1/facts", {"text": f"Box {number} is green"}, key=f"save-{number}")
    world.model.always(EMBEDDINGS, None)
    service.shift(3600 * (number + 1))
    leaving.write(f"gone-{number}", ["My boat is called Lotte"])
    leaving.call("POST", "/v1/facts", {"text": f"Bag {number} is red"}, key=f"gone-{number}")
    leaving.call("POST", "/v1/forget", {"confirm": True}, key=f"forget-{number}")


def _restart(service: Service) -> None:
    if service.has_ended():
        service.start()


def _are_purged(world: World) -> bool:
    return world.rows("SELECT COUNT(*) FROM @receipts WHERE status <> 'purged'") == [(0,)]


def test_kill_9_at_every_step_of_a_save_and_of_an_erasure_leaves_all_of_it_or_nothing(world: World) -> None:
    service = world.service()
    service.start()
    agent, leaving = Agent(service), Agent(service, LEAVING)
    _save_and_erase(world, service, 0)
    wait_for("the rehearsal", lambda: agent.settled() and _are_purged(world))
    steps = [step for step in dict.fromkeys(service.steps()) if step.partition(" ")[2] in BESIDE]
    assert {step.partition(" ")[2] for step in steps} == set(BESIDE), "a kind of work is in no journey"
    for number, step in enumerate(steps, start=1):
        service.arm(step, "kill")
        _save_and_erase(world, service, number)
        wait_for(f"the kill at {step}", service.is_disarmed)
        _restart(service)
        wait_for(f"the work after the kill at {step}", lambda: agent.settled() and _are_purged(world))
        # The job that makes vectors is the store's, and so is in no agent's list.
        wait_for(
            f"the vectors after the kill at {step}",
            lambda: world.rows("SELECT COUNT(*) FROM @facts WHERE vector IS NULL") == [(0,)],
        )
        assert sorted(agent.facts()) == sorted(f"Box {n} is green" for n in range(number + 1)), step
        assert (leaving.facts(), leaving.call("GET", "/v1/sessions")["sessions"]) == ([], []), step
        assert world.rows("SELECT COUNT(*) FROM @turns") == [(0,)], step
        assert world.rows("SELECT COUNT(*) FROM @receipts") == [(number + 1,)], f"erased twice after {step}"
        assert agent.jobs("dead") == leaving.jobs("dead") == [], step


@pytest.mark.parametrize("engine", EngineName)
def test_kill_9_of_postgres_at_every_step_loses_nothing_and_does_nothing_twice(
    external: World, engine: EngineName
) -> None:
    external.engine, postgres = engine, external.postgres
    assert postgres is not None
    service = external.service()
    service.start()
    agent = Agent(service)
    background = ThreadPoolExecutor(1)
    for number, step in enumerate(_steps_of(external, _rehearse(service, agent)), start=1):
        service.arm(step, "hold")

        def restart() -> None:
            if service.is_held():
                postgres.kill()
                postgres.start()
                service.disarm()
                (service.folder / "held").unlink()

        session = f"session-{number}"
        writing = background.submit(agent.write, session, _turns(number))
        wait_for(f"the step {step}", service.is_held)
        restart()
        writing.result(timeout=120)
        wait_for(f"the work after the crash at {step}", agent.settled)
        _assert_whole(service, agent, session, number, f"a crash of Postgres at {step!r}")
        assert not service.has_ended(), "a database that crashes must not end the service"
