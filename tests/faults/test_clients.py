"""A real client and a real service, of which one is killed or frozen: what was said arrives, and once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memory_service.client import Deadlines, MemoryClient
from memory_service.client.outbox import Outbox
from memory_service.contract.verbs import Outcome
from memory_service.ports.process import Step
from tests.faults.conftest import World
from tests.faults.processes import Agent, Service, wait_for
from tests.integration.client.test_delivery import FLUSH

pytestmark = pytest.mark.parametrize("world", ["local"], indirect=True)


def _client(service: Service, folder: Path, **options: Any) -> MemoryClient:
    return MemoryClient(service.url, store="team", outbox=folder, env={}, binding_folder=folder / "none", **options)


@pytest.mark.parametrize("step", [Step.WRITE_RECEIVED, Step.WRITE_STORED])
async def test_a_flush_survives_kill_9_of_the_client_and_is_stored_once(step: Step, world: World) -> None:
    service = world.service()
    service.start()
    service.arm(step.value, "hold")
    folder = world.folder / "outbox"
    command = [sys.executable, "-c", FLUSH, service.url, str(folder), "one", "two"]
    flushing = await asyncio.to_thread(subprocess.Popen, command)
    wait_for("the flush", service.is_held)
    flushing.kill()
    flushing.wait()
    assert Outbox(folder).waiting() == 1
    service.disarm()
    async with _client(service, folder, deadlines=Deadlines(recall=20, write=20)) as heir:
        await heir.recall("anything")  # the first answer starts the delivery of what an earlier process has left
        assert (await heir.deliver()).waiting == 0
    assert [turn["content"] for turn in Agent(service).turns("s1")] == ["one", "two"]
    assert Outbox(folder).refused() == ()


@pytest.mark.parametrize("scenario", ["flush", "deliver"])
async def test_a_client_that_is_killed_at_any_step_of_its_outbox_has_its_turns_stored_once_and_in_order(
    scenario: str, world: World
) -> None:
    service = world.service()
    service.start()
    command = [sys.executable, "-m", "tests.faults.dying_client", service.url, str(world.folder / "lives"), scenario]
    lives = await asyncio.to_thread(subprocess.run, command)
    assert lives.returncode == 0
    folders = {int(path.name): path for path in (world.folder / "lives").iterdir()}
    whole = (folders[len(folders)] / "steps").read_text().splitlines()
    for step in ("COMMIT", "send /v1/write", "answered /v1/write", "DELETE"):
        assert any(reached.startswith(step) for reached in whole), f"no life reached {step!r}: {whole}"
    agent, stored = Agent(service), dict[int, list[str]]()
    for number, folder in folders.items():
        box = Outbox(folder / "outbox")
        async with _client(service, box.folder, deadlines=Deadlines(recall=20, write=20)) as heir:
            async with asyncio.timeout(90):
                while (await heir.deliver()).waiting:
                    pass
        assert (box.waiting(), box.refused()) == (0, ())
        stored[number] = []
    for session in agent.call("GET", "/v1/sessions?limit=1000")["sessions"]:
        turns = agent.turns(session["session_id"])
        stored[int(session["session_id"].rpartition("-")[2])] = [turn["content"] for turn in turns]
    kept = _first_kept(whole) if scenario == "flush" else 0
    assert {number for number, turns in stored.items() if turns != ["one", "two"]} <= set(range(1, kept + 1))
    assert all(turns in ([], ["one", "two"]) for turns in stored.values())


def _first_kept(steps: list[str]) -> int:
    """Return the number of the step at which an entry is committed: who dies before it was promised nothing."""
    put = next(place for place, step in enumerate(steps) if step.startswith("INSERT INTO entries"))
    return steps.index("COMMIT", put) + 1


async def test_a_frozen_service_costs_a_client_its_time_and_nothing_else(world: World) -> None:
    service = world.service()
    service.start()
    folder = world.folder / "outbox"
    async with _client(service, folder, deadlines=Deadlines(recall=0.5, write=0.5)) as client:
        assert (await client.write("s1", [{"role": "user", "content": "My boat is called Lotte"}])).status == "stored"
        service.freeze()
        recalled = await client.recall("boat", session_id="s1")
        assert recalled.outcome is Outcome.UNAVAILABLE
        assert (await client.write("s1", [{"role": "user", "content": "My dog is called Rex"}])).status == "queued"
        assert (await client.write("s1", [{"role": "user", "content": "My cat is called Ada"}])).status == "queued"
    service.thaw()
    async with _client(service, folder, deadlines=Deadlines(recall=20, write=20)) as heir:
        recalled = await heir.recall("boat", session_id="s1")
        assert recalled.outcome is not Outcome.UNAVAILABLE
        assert recalled.short_term.window
        assert (await heir.deliver()).waiting == 0
    assert [turn["content"] for turn in Agent(service).turns("s1")] == [
        "My boat is called Lotte",
        "My dog is called Rex",
        "My cat is called Ada",
    ]
    assert Outbox(folder).refused() == ()
