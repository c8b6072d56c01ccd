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
