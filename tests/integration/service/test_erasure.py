"""Forgotten is forgotten: everything at once, ahead of work in flight, and soon down to the bytes."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from memory_service.contract.config import EngineName, MediumTermConfig
from memory_service.operations.background import extract
from memory_service.operations.saving import save_fact
from memory_service.ports.records import PurgeStep
from tests.fakes.model_server import CHAT, EMBEDDINGS, Gate
from tests.integration.service.conftest import Start
from tests.integration.service.harness import Service, identity, item_texts, problem, window_texts

MARK = "zyxwalnut"
"""A word that no program says, in every text to erase."""


def _facts(count: int) -> list[dict[str, str]]:
    return [{"text": f"{MARK} number {number} of {number * 7919}", "key": f"k{number}"} for number in range(count)]


def _wordy_facts(count: int) -> list[dict[str, str]]:
    """Return facts of so many words that their vectors are like no others."""
    return [
        {"text": " ".join([MARK, *(f"word{number * 300 + word}" for word in range(300))]), "key": f"w{number}"}
        for number in range(count)
    ]


async def _fill(service: Service, user: str | None) -> None:
    agent = service.agent(user=user)
    for start in range(0, 160, 80):
        await agent.post("/v1/facts/batch", {"facts": _facts(160)[start : start + 80]})
    for session in ("s1", "s2"):
        await agent.write(*(f"I said {MARK} {number} in {session}" for number in range(40)), session=session)
    await service.work()


async def test_more_than_a_page_of_facts_and_turns_is_erased_at_once_and_nobody_elses(service: Service) -> None:
    for user in ("alice", "bob"):
        await _fill(service, user)
    alice, bob = service.agent(user="alice"), service.agent(user="bob")
    erased = await alice.forget()
    assert erased["status"] == "erased"
    assert erased["erased"]["facts"] == 160
    assert erased["erased"]["turns"] == 80
    assert erased["erased"]["vectors"] == 240
    found = await alice.recall(f"{MARK} said", session_id="s1", score_floor=0, top_k=100)
    assert found["outcome"] == "no_matches"
    assert window_texts(found) == item_texts(found) == []
    assert await alice.texts(tiers=["fact", "episode"]) == []
    assert (await alice.get("/v1/sessions"))["sessions"] == (await alice.get("/v1/jobs"))["jobs"] == []
    assert len(await bob.texts(tiers=["fact", "episode"])) == 240
    assert MARK in str(await bob.recall(MARK, session_id="s1"))


async def test_an_admin_erases_a_person_an_agent_or_a_session_everywhere(service: Service) -> None:
    everybody = {
        (agent, user): service.agent(agent, user=user)
        for agent in ("helper", "personal", "sharer")
        for user in ("alice", "bob")
    }
    for (agent, user), asker in everybody.items():
        await asker.write(f"{user} spoke to {agent}")
        await asker.remember(f"{user} told {agent} a thing")
    await service.work()
    admin = service.admin()
    await admin.post("/v1/admin/erase", {"subject": {"principal": "local#alice"}})
    left = [item["text"] for item in (await admin.get("/v1/admin/list"))["items"]]
    assert sorted(left) == [f"bob told {agent} a thing" for agent in ("helper", "personal", "sharer")]
    for (_agent, user), asker in everybody.items():
        assert len((await asker.get("/v1/sessions"))["sessions"]) == (user == "bob")
    session = {"agent": identity("helper"), "principal": "local#bob", "session": "s1"}
    await admin.post("/v1/admin/erase", {"subject": session})
    assert (await everybody["helper", "bob"].get("/v1/sessions"))["sessions"] == []
    await admin.post("/v1/admin/erase", {"subject": {"agent": identity("sharer")}})
    left = [item["text"] for item in (await admin.get("/v1/admin/list"))["items"]]
    assert sorted(left) == ["bob told helper a thing", "bob told personal a thing"]


async def test_erasing_a_session_takes_the_facts_that_come_from_it_alone(start: Start) -> None:
    service = await start(chat=True, engine=EngineName.NATIVE)
    agent = service.agent()
    await agent.write("My dog is called Rex", session="s1")
    await agent.write("My dog is called Rex. I live in Oslo", session="s2")
    for session in ("s1", "s2"):
        await agent.post(f"/v1/sessions/{session}/end")
    await service.work()
    assert sorted(await agent.texts()) == ["User lives in Oslo", "User's dog is called Rex"]
    await agent.forget(scope="session", session_id="s2")
    assert await agent.texts() == ["User's dog is called Rex"]
    await agent.forget(scope="session", session_id="s1")
    assert await agent.texts() == []


@pytest.mark.parametrize("engine", list(EngineName))
async def test_a_fact_that_a_later_session_said_again_outlives_the_first(start: Start, engine: EngineName) -> None:
    service = await start(chat=True, engine=engine)
    agent = service.agent()
    for session in ("s1", "s2"):
        await agent.write("My dog is called Rex", session=session)
        await agent.post(f"/v1/sessions/{session}/end")
        await service.work()
    assert await agent.texts(tiers=["fact"]) == ["User's dog is called Rex"]
    await agent.forget(scope="session", session_id="s1")
    assert await agent.texts(tiers=["fact"]) == ["User's dog is called Rex"]
    await agent.forget(scope="session", session_id="s2")
    assert await agent.texts() == []


async def _until_entered(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.entered.wait, 20)


@pytest.mark.parametrize("asked_by", ["agent", "admin", "fact"])
async def test_an_erasure_forgets_the_vectors_of_what_was_asked(service: Service, asked_by: str) -> None:
    """They are kept in memory under the words of a question, which are somebody's too."""
    agent = service.agent()
    saved = await agent.remember("Anna lives in Oslo")

    async def times_embedded() -> int:
        await agent.recall("where does anna live")
        asked = [request.body["input"] for request in service.models.requests if request.path == EMBEDDINGS]
        return sum("where does anna live" in text for text in asked)

    assert (await times_embedded(), await times_embedded()) == (1, 1)
    if asked_by == "agent":
        await agent.forget()
    elif asked_by == "admin":
        await service.admin().post("/v1/admin/erase", {"subject": {"agent": identity("helper")}})
    else:
        assert (await agent.ask("DELETE", f"/v1/facts/{saved['id']}")).status_code == 200
    assert await times_embedded() == 2


@pytest.mark.parametrize("engine", list(EngineName))
@pytest.mark.parametrize("path", [CHAT, EMBEDDINGS])
async def test_an_erasure_beats_an_extraction_that_is_running(start: Start, engine: EngineName, path: str) -> None:
    service = await start(chat=True, engine=engine)
    agent = service.agent(user="alice")
    await agent.write("My dog is called Rex")
    await service.work()
    await agent.post("/v1/sessions/s1/end")
    gate = Gate()
    service.models.script(path, gate)
    working = asyncio.create_task(service.work())
    await _until_entered(gate)
    erased = await agent.forget()
    assert erased["erased"]["jobs"] >= 1
    gate.opened.set()
    await working
    await service.pass_time(hours=1)
    assert await agent.texts(tiers=["fact", "episode"]) == []
    assert (await agent.get("/v1/jobs"))["jobs"] == []
    assert item_texts(await agent.recall("dog Rex", score_floor=0)) == []


@pytest.mark.parametrize("subject", ["principal", "session"])
async def test_an_erasure_that_meets_an_extraction_as_it_stores_takes_what_it_stored_and_tells_its_owners(
    start: Start, monkeypatch: pytest.MonkeyPatch, subject: str
) -> None:
    """Neither is run again, whoever reads that owner's facts hears of it, and a purge looks where they were."""
    service = await start(chat=True, engine=EngineName.NATIVE)
    sharer = service.agent("sharer", user="alice")
    other = service.agent("also-sharer")
    await other.remember("Ben keeps a boat in the harbour")
    await service.agent().remember("a purge before")
    first = await service.agent().forget()
    await service.work()
    await service.purge(service.agent(), first["receipt_id"])
    await sharer.write(f"My dog is called {MARK.title()}")
    await sharer.post("/v1/sessions/s1/end")
    stored, goes_on = threading.Event(), threading.Event()
    runs: list[str] = []

    def save(*args: Any, **options: Any) -> Any:
        saved = save_fact(*args, **options)
        runs.append(saved[0].id)
        stored.set()
        assert goes_on.wait(60)
        return saved

    monkeypatch.setattr(extract, "save_fact", save)
    before = await _revision_of_shared(service)
    working = asyncio.create_task(service.work())
    assert await asyncio.to_thread(stored.wait, 60)
    if subject == "principal":
        erasing = asyncio.create_task(
            service.admin().post("/v1/admin/erase", {"subject": {"principal": "local#alice"}})
        )
    else:
        erasing = asyncio.create_task(sharer.forget(scope="session", session_id="s1"))
    await _until_it_waits(service)
    goes_on.set()
    receipt, _ = await erasing, await working
    assert len(runs) == 1
    assert receipt["erased"]["facts"] == receipt["erased"]["history"] == receipt["erased"]["turns"] == 1
    assert await _revision_of_shared(service) == before + 2, "once as the fact came, once as it went"
    assert await other.texts() == ["Ben keeps a boat in the harbour"]
    await service.purge(service.admin(), receipt["receipt_id"])
    left = await _bytes_of(service)
    assert [name for name, content in left.items() if MARK.encode() in content.lower()] == []


async def _until_it_waits(service: Service) -> None:
    """Return once an erasure waits for somebody else: on Postgres for a lock, locally for the one writer."""
    if service.config.storage.dsn is None:
        return
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with await psycopg.AsyncConnection.connect(service.config.storage.dsn, autocommit=True) as connection:
        async with asyncio.timeout(60):
            while await (await connection.execute(waiting)).fetchone() is None:
                pass


async def _revision_of_shared(service: Service) -> int:
    def read(tx: Any) -> int:
        return int(tx.link.row("SELECT revision FROM @owners WHERE scope = 'shared' AND workspace = ''")[0])

    return await service.services.storage.read(read)


async def test_an_erasure_beats_a_fold_that_is_running(start: Start) -> None:
    service = await start(chat=True, engine=EngineName.NATIVE, medium_term=MediumTermConfig(compaction_target=3))
    agent = service.agent()
    await agent.write("My dog is called Rex", "I live in Oslo")
    await service.work()
    await agent.post("/v1/sessions/s1/compact")
    gate = Gate()
    service.models.script(CHAT, gate)
    working = asyncio.create_task(service.work())
    await _until_entered(gate)
    await agent.forget(scope="session", session_id="s1")
    written = await agent.write("a new beginning")
    assert written["seqs"] == [1]
    gate.opened.set()
    await working
    detail = await agent.get("/v1/sessions/s1")
    assert detail["digests"] == []
    assert [turn["content"] for turn in detail["window"]] == ["a new beginning"]


async def test_an_erasure_takes_queued_work_with_it(start: Start) -> None:
    service = await start(chat=True, engine=EngineName.NATIVE)
    agent = service.agent()
    await agent.write("My dog is called Rex")
    await agent.post("/v1/sessions/s1/end")
    erased = await agent.forget()
    assert erased["erased"]["jobs"] == 2
    requests = len(service.models.requests)
    await service.pass_time(hours=1)
    assert len(service.models.requests) == requests
    assert await agent.texts(tiers=["fact", "episode"]) == []


async def test_what_builds_on_an_erased_state_is_gone(service: Service) -> None:
    agent = service.agent(user="alice")
    written = await agent.write("hello")
    recalled = await agent.recall("hello", session_id="s1")
    saved = await agent.remember("a fact")
    await agent.forget()
    for number, generation in enumerate(answer["generation"] for answer in (written, recalled, saved)):
        body = {"session_id": "s1", "turns": [{"role": "user", "content": "x"}], "generation": generation}
        problem(await agent.ask("POST", "/v1/write", body, key=f"k{number}"), 410, "erased")
        problem(await agent.ask("POST", "/v1/facts", {"text": "x", "generation": generation}), 410, "erased")
        batch = {"facts": [{"text": "x"}], "generation": generation}
        problem(await agent.ask("POST", "/v1/facts/batch", batch), 410, "erased")
    assert await agent.texts(tiers=["fact", "episode"]) == []
    fresh = (await agent.recall("hello", session_id="s1"))["generation"]
    assert (await agent.write("anew", generation=fresh))["seqs"] == [1]
    other = service.agent(user="bob")
    body = {"session_id": "s1", "turns": [{"role": "user", "content": "x"}], "generation": fresh}
    problem(await other.ask("POST", "/v1/write", body), 422, "invalid-request")


async def test_what_was_queued_before_an_erasure_is_gone_and_what_came_after_is_taken(service: Service) -> None:
    agent = service.agent()
    await agent.write("hello")
    await agent.forget()
    await service.pass_time(minutes=10)
    body = {"session_id": "s1", "turns": [{"role": "user", "content": "x"}]}
    for seconds in (1200, 3600, 10**8):
        problem(await agent.ask("POST", "/v1/write", {**body, "queued_seconds": seconds}), 410, "erased")
        problem(await agent.ask("POST", "/v1/facts", {"text": "x", "queued_seconds": seconds}), 410, "erased")
    assert (await agent.post("/v1/write", {**body, "queued_seconds": 500}))["seqs"] == [1]


async def test_what_was_said_after_an_erasure_is_taken_though_its_agent_had_not_heard_of_it(service: Service) -> None:
    agent = service.agent()
    generation = (await agent.write("hello"))["generation"]
    await agent.forget()
    await service.pass_time(minutes=10)
    body = {"session_id": "s1", "turns": [{"role": "user", "content": "x"}], "generation": generation}
    problem(await agent.ask("POST", "/v1/write", {**body, "queued_seconds": 1200}), 410, "erased")
    written = await agent.post("/v1/write", {**body, "queued_seconds": 500})
    assert written["seqs"] == [1]
    fresh = {**body, "generation": written["generation"], "queued_seconds": 10**8}
    assert (await agent.post("/v1/write", fresh))["seqs"] == [2]
    foreign = {**body, "generation": "g", "queued_seconds": 1}
    problem(await agent.ask("POST", "/v1/write", foreign), 422, "invalid-request")


async def test_a_fact_that_an_import_deletes_is_purged_like_any_other(service: Service) -> None:
    agent, admin = service.agent(), service.admin()
    fact = await agent.remember("Kim has diabetes")
    line = {"type": "deleted", "id": fact["id"], "created_at": 1_900_000_000_000_000}
    assert (await admin.post("/v1/admin/import", {"lines": [line]}))["erased"] == 1
    problem(await agent.ask("GET", f"/v1/facts/{fact['id']}"), 404, "not-found")
    rows = await service.services.storage.read(lambda tx: tx.link.rows("SELECT id FROM @receipts"))  # type: ignore[attr-defined]
    assert [(await service.purge(admin, receipt))["erased"] for (receipt,) in rows] == [
        {"facts": 1, "vectors": 1, "history": 1, "answers": 0}
    ]


async def test_an_import_carries_out_another_stores_erasure_with_a_receipt_and_up_to_its_time(service: Service) -> None:
    agent, admin = service.agent(), service.admin()
    written = await agent.write("Kim has diabetes", session="s1")
    exported = (await admin.get("/v1/admin/export"))["lines"]
    (subject,) = [line for line in exported if line["type"] == "subject" and line["session"] == "s1"]
    (at,) = [line["created_at"] for line in exported if line["type"] == "turn"]
    elsewhere = {**subject, "hashes": ["ab" * 32]}
    await service.pass_time(minutes=1)
    await agent.write("Kim is well", session="s1")
    answer = await admin.post("/v1/admin/import", {"lines": [elsewhere]})
    assert (answer["imported"], answer["erased"], answer["receipt_id"]) == (1, 0, None)
    erased = {"type": "erased", "hashes": elsewhere["hashes"], "created_at": at}
    answer = await admin.post("/v1/admin/import", {"lines": [erased]})
    assert (answer["imported"], answer["erased"]) == (0, 1)
    receipt = await service.purge(admin, answer["receipt_id"])
    assert (receipt["erased"]["turns"], receipt["erased"]["sessions"]) == (1, 0)
    turns = (await agent.get("/v1/sessions/s1/turns"))["turns"]
    assert [turn["content"] for turn in turns] == ["Kim is well"]
    stale = {"session_id": "s1", "turns": [{"role": "user", "content": "x"}], "generation": written["generation"]}
    problem(await agent.ask("POST", "/v1/write", stale), 410, "erased")
    again = await admin.post("/v1/admin/import", {"lines": exported})
    assert again["tombstoned"] > 0
    assert [turn["content"] for turn in (await agent.get("/v1/sessions/s1/turns"))["turns"]] == ["Kim is well"]


async def test_what_was_queued_while_a_backup_was_restored_is_taken(service: Service) -> None:
    agent = service.agent()
    await agent.write("before the backup")
    await agent.forget()
    await service.pass_time(minutes=10)
    generation = (await agent.write("after an erasure that the backup has"))["generation"]
    await service.services.storage.transact(lambda tx: tx.link.run("UPDATE @owners SET generation = 0"))  # type: ignore[attr-defined]
    body = {"session_id": "s1", "turns": [{"role": "user", "content": "x"}], "generation": generation}
    problem(await agent.ask("POST", "/v1/write", {**body, "queued_seconds": 1200}), 410, "erased")
    problem(await agent.ask("POST", "/v1/write", body), 410, "erased")
    assert (await agent.post("/v1/write", {**body, "queued_seconds": 500}))["seqs"] == [2]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/write", {"session_id": "s1", "turns": [{"role": "user", "content": "x"}]}),
        ("/v1/facts", {"text": "x"}),
    ],
)
async def test_a_body_that_is_slow_to_come_was_queued_that_much_longer(
    path: str, body: dict[str, Any], service: Service
) -> None:
    agent = service.agent()
    await agent.write("hello")
    await agent.forget()
    content = json.dumps({**body, "queued_seconds": 0}).encode()

    async def slow(last: str) -> AsyncIterator[bytes]:
        yield content[:10]
        if last == "erased":
            await agent.forget()
        yield content[10:]

    headers = {**agent.headers, "Content-Type": "application/json"}
    answer = await service.http.post(path, content=slow("erased"), headers=headers)
    problem(answer, 410, "erased")
    await service.pass_time(minutes=1)
    assert (await service.http.post(path, content=slow("not"), headers=headers)).is_success


async def test_an_erasure_of_one_session_leaves_the_others_generation(service: Service) -> None:
    agent = service.agent()
    first = await agent.write("hello", session="s1")
    second = await agent.write("hello", session="s2")
    await agent.forget(scope="session", session_id="s1")
    assert (await agent.write("more", session="s2", generation=second["generation"]))["seqs"] == [2]
    body = {"session_id": "s1", "turns": [{"role": "user", "content": "x"}], "generation": first["generation"]}
    problem(await agent.ask("POST", "/v1/write", body), 410, "erased")


async def test_forgetting_needs_its_confirmation_and_its_session(service: Service) -> None:
    agent = service.agent()
    await agent.write("hello")
    for body in (
        {},
        {"confirm": False},
        {"confirm": "yes"},
        {"confirm": True, "session_id": "s1"},
        {"confirm": True, "scope": "private", "session_id": "s1"},
    ):
        problem(await agent.ask("POST", "/v1/forget", body), 422, "invalid-request")
    problem(await agent.ask("POST", "/v1/forget", {"confirm": True, "scope": "session"}), 400, "scope-unresolved")
    assert len((await agent.get("/v1/sessions"))["sessions"]) == 1


async def test_what_is_erased_while_a_purge_runs_is_purged_by_the_next_one_and_not_said_to_be_before(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, other, storage = service.agent(), service.agent("other"), service.services.storage
    steps = 0
    later: list[str] = []
    at_once = time.monotonic() + 1
    service.services.purges.monotonic = lambda: at_once

    async def purge() -> PurgeStep:
        nonlocal steps
        steps += 1
        if steps == 1:
            # The bytes that this purge carries off were looked at before.
            later.append((await other.forget(scope="private"))["receipt_id"])
            await storage.transact(
                lambda tx: tx.link.run("DELETE FROM @jobs WHERE kind = 'purge' AND state = 'queued'")  # type: ignore[attr-defined]
            )
        else:
            assert (await other.get(f"/v1/receipts/{later[0]}"))["status"] == "erased"
        return PurgeStep(done=True)

    for asker in (agent, other):
        await asker.remember("My dog is called Rex")
    await service.work()
    first = (await agent.forget(scope="private"))["receipt_id"]
    monkeypatch.setattr(storage, "purge", purge)
    await service.work()
    assert (await agent.get(f"/v1/receipts/{first}"))["status"] == "purged"
    assert (await other.get(f"/v1/receipts/{later[0]}"))["status"] == "purged"
    assert steps == 2


async def test_one_deletion_after_another_is_purged_together_once_the_last_purge_has_rested(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, storage, took = service.agent(), service.services.storage, timedelta(seconds=10)
    watch = [time.monotonic() + 1]
    service.services.purges.monotonic = lambda: watch[0]
    purges: list[float] = []

    async def purge() -> PurgeStep:
        purges.append(watch[0])
        watch[0] += took.total_seconds()
        return PurgeStep(done=True)

    async def delete() -> str:
        saved = await agent.remember("My dog is called Rex")
        answer = await agent.ask("DELETE", f"/v1/facts/{saved['id']}")
        await service.work()
        return str(answer.json()["receipt_id"])

    async def statuses() -> list[str]:
        return [(await agent.get(f"/v1/receipts/{receipt}"))["status"] for receipt in receipts]

    monkeypatch.setattr(storage, "purge", purge)
    receipts = [await delete()]
    assert (await statuses(), len(purges)) == (["purged"], 1)
    for _ in range(3):
        receipts.append(await delete())
        watch[0] += took.total_seconds()
        await service.pass_time(seconds=took.total_seconds())
    assert (await statuses(), len(purges)) == (["purged", *["erased"] * 3], 1)
    receipts.append(await delete())
    watch[0] += took.total_seconds()
    await service.pass_time(seconds=took.total_seconds())
    assert (await statuses(), len(purges)) == (["purged"] * 5, 2)


async def test_a_purge_that_waits_for_hours_is_tried_ever_less_often_whatever_the_sweeps_ask_for(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, storage = service.agent(), service.services.storage
    tries: list[datetime] = []
    waits = PurgeStep(done=False, waiting_for=("snapshot",))

    async def purge() -> PurgeStep:
        tries.append(service.clock.now())
        return waits

    await agent.remember("My dog is called Rex")
    await service.work()
    receipt = (await agent.forget(scope="private"))["receipt_id"]
    with monkeypatch.context() as patched:
        patched.setattr(storage, "purge", purge)
        await service.work()
        for _ in range(180):
            await service.pass_time(seconds=60)
        assert (await agent.get(f"/v1/receipts/{receipt}"))["waiting_for"] == ["snapshot"]
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert pauses[0] < timedelta(minutes=2)
    assert timedelta(minutes=9) < pauses[-1] < timedelta(minutes=13)
    assert len(tries) < 40
    await service.wait_for_running_transactions()
    await service.pass_time(minutes=13)
    assert (await agent.get(f"/v1/receipts/{receipt}"))["status"] == "purged"


async def test_once_purged_no_byte_of_text_terms_or_vectors_is_left(start: Start) -> None:
    service = await start(chat=True, engine=EngineName.NATIVE, medium_term=MediumTermConfig(compaction_target=3))
    agent, other = service.agent(user="alice"), service.agent(user="bob")
    await other.remember("Ben keeps a fact here")
    await agent.write(*(f"remember that {MARK} is in drawer {number}" for number in range(12)))
    await agent.post("/v1/sessions/s1/end")
    await agent.post("/v1/sessions/s1/compact")
    await service.work()
    await agent.post("/v1/facts/batch", {"facts": _facts(60)})
    facts = _wordy_facts(3)
    await agent.post("/v1/facts/batch", {"facts": facts})
    assert len(await agent.texts()) >= 70
    detail = await agent.get("/v1/sessions/s1")
    assert MARK in detail["digests"][0]["summary"]
    made = await service.services.embedder.embed([fact["text"] for fact in facts])
    vectors = [np.asarray(vector, dtype="<f4").tobytes()[80:112] for vector in made]
    before = await _bytes_of(service)
    assert any(MARK.encode() in content for content in before.values())
    assert all(any(vector in content for content in before.values()) for vector in vectors)
    receipt = await agent.forget(scope="private")
    done = await service.purge(agent, receipt["receipt_id"])
    assert done["purged_at"]
    assert done["waiting_for"] == []
    assert done["erased"] == receipt["erased"]
    left = await _bytes_of(service)
    for text in (MARK.encode(), MARK[3:].encode(), *vectors):
        assert [name for name, content in left.items() if text in content] == []
    assert await other.texts() == ["Ben keeps a fact here"]
    assert item_texts(await other.recall("Ben fact")) == ["Ben keeps a fact here"]


async def _bytes_of(service: Service) -> dict[str, bytes]:
    return await asyncio.to_thread(lambda: dict(_files(service)))


def _files(service: Service) -> Iterator[tuple[str, bytes]]:
    """Return every file of the data folder, or of the database's tables and indexes, read by the server itself."""
    storage = service.config.storage
    if storage.dsn is None:
        assert storage.data_dir is not None
        yield from ((str(path), path.read_bytes()) for path in Path(storage.data_dir).rglob("*") if path.is_file())
        return
    with psycopg.connect(storage.dsn, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        paths = connection.execute(
            "SELECT pg_relation_filepath(c.oid), c.relname"
            " FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE n.nspname IN (%s, 'pg_toast') AND c.relkind IN ('r', 'i', 't')",
            [storage.schema_name],
        ).fetchall()
        for path, name in paths:
            found = connection.execute("SELECT pg_read_binary_file(%s, 0, 1000000000, true)", [path]).fetchone()
            assert found is not None
            yield f"{path} {name}", bytes(found[0] or b"")
