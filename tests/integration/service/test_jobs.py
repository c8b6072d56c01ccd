"""Background work: visible to its owner, tried again, given up, replayed, and never lost to an outage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn

import pytest

from memory_service.contract.config import (
    EngineName,
    ExtractionConfig,
    LongTermConfig,
    MediumTermConfig,
    ShortTermConfig,
    WorkerConfig,
)
from memory_service.contract.sessions import JobKind
from memory_service.operations.background.upkeep import sweep
from memory_service.storage.rows.sessions import SessionRows
from tests.fakes.model_server import (
    CHAT,
    EMBEDDINGS,
    Answering,
    Directionless,
    Embeddings,
    Gate,
    Quota,
    Refusing,
    Status,
    Text,
    wrong_count,
    wrong_dimension,
)
from tests.integration.service.conftest import Start
from tests.integration.service.harness import Asker, Json, Service, problem


async def _extracting(start: Start, engine: EngineName = EngineName.NATIVE, **more: int) -> tuple[Service, Asker]:
    service = await start(chat=True, engine=engine, extraction=ExtractionConfig(**more))
    return service, service.agent()


async def _jobs(asker: Asker, **query: str) -> list[Json]:
    return list((await asker.get("/v1/jobs", **query))["jobs"])


async def test_a_store_without_a_long_term_tier_asks_no_model_for_facts(start: Start) -> None:
    service = await start(
        chat=True,
        engine=EngineName.NATIVE,
        extraction=ExtractionConfig(min_turns=1),
        long_term=LongTermConfig(enabled=False),
    )
    agent = service.agent()
    assert (await agent.write("My dog is called Rex"))["jobs"] == []
    assert not (await agent.post("/v1/sessions/s1/end"))["scheduled"]
    await service.pass_time(seconds=service.config.extraction.idle_seconds + 60)
    assert (await _jobs(agent), service.models.requests) == ([], [])


async def test_the_jobs_of_a_write_are_listed_and_shown(start: Start) -> None:
    service, agent = await _extracting(start, min_turns=1)
    written = await agent.write("My dog is called Rex")
    assert written["scheduled"]
    listed = await _jobs(agent)
    assert {job["id"] for job in listed} == set(written["jobs"])
    assert {job["kind"] for job in listed} == {"index_turns", "extract"}
    assert {(job["state"], job["session_id"], job["attempts"]) for job in listed} == {("queued", "s1", 0)}
    await service.work()
    assert {job["state"] for job in await _jobs(agent, session_id="s1")} <= {"done"}
    assert await _jobs(agent, state="queued") == []
    assert await _jobs(agent, session_id="s2") == []
    for job_id in written["jobs"]:
        assert (await agent.get(f"/v1/jobs/{job_id}"))["state"] == "done"


async def test_a_list_of_jobs_shows_those_of_its_own_workspace(start: Start) -> None:
    service, agent = await _extracting(start, min_turns=1)
    own = {}
    for workspace in (None, "w1"):
        named = {} if workspace is None else {"workspace": workspace}
        own[workspace] = set((await agent.write("My dog is called Rex", **named))["jobs"])
        assert own[workspace]
    await service.work()
    assert {job["id"] for job in await _jobs(agent)} == own[None]
    assert {job["id"] for job in await _jobs(agent, workspace="w1")} == own["w1"]
    assert {job["id"] for job in await _jobs(agent, workspace="w1", session_id="s1")} == own["w1"]
    assert await _jobs(agent, workspace="w2") == []


@pytest.mark.parametrize("kind", [JobKind.PURGE, JobKind.EMBED])
async def test_what_a_lost_job_owed_is_done_after_a_sweep(start: Start, kind: JobKind) -> None:
    service = await start()
    agent = service.agent()
    service.models.always(EMBEDDINGS, Status(503))
    await agent.remember("My dog is called Rex")
    receipt = await agent.forget(scope="private")
    await agent.remember("My cat is called Tom")
    service.models.always(EMBEDDINGS, None)
    await service.services.storage.transact(
        lambda tx: tx.link.run("DELETE FROM @jobs WHERE kind = :kind", {"kind": kind.value})  # type: ignore[attr-defined]
    )
    await service.work()

    async def is_owed() -> bool:
        if kind is JobKind.EMBED:
            return bool(await service.services.storage.read(lambda tx: tx.facts.without_vector(limit=1)))
        return bool((await agent.get(f"/v1/receipts/{receipt['receipt_id']}"))["status"] != "purged")

    assert await is_owed()
    await service.wait_for_running_transactions()
    for _ in range(20):
        if not await is_owed():
            break
        service.clock.advance(timedelta(minutes=16))
        await sweep(service.services, upkeep=False)
        await service.work()
    assert not await is_owed()


@pytest.mark.parametrize("engine", EngineName)
async def test_an_answer_that_does_not_parse_is_a_failed_job_and_dead_in_the_end(
    start: Start, engine: EngineName
) -> None:
    service, agent = await _extracting(start, engine, max_retries=2)
    await agent.write("My dog is called Rex")
    service.models.always(CHAT, Text("I will not answer in JSON"))
    (job,) = (await agent.post("/v1/sessions/s1/end"))["jobs"]
    for attempt in range(1, 4):
        await service.work()
        state = await agent.get(f"/v1/jobs/{job}")
        assert state["attempts"] == attempt
        assert state["state"] == ("queued" if attempt < 3 else "dead")
        assert "UnparseableAnswer" in state["error"]
        assert "Rex" not in state["error"]
        await service.pass_time(minutes=16) if attempt < 3 else None
    ends = {one: service.runtime.meter.value("jobs", kind="extract", outcome=one) for one in ("done", "failed", "dead")}
    assert ends == {"done": 0, "failed": 2, "dead": 1}
    report = await service.admin().get("/v1/health/report")
    assert report["counters"]["dead"] == 1
    assert report["parts"]["jobs"] == {**report["parts"]["jobs"], "ok": False, "reason": "JobsDead"}
    assert report["ready"]
    assert await agent.texts() == []

    service.models.always(CHAT, None)
    problem(await service.agent("other").ask("POST", f"/v1/jobs/{job}/retry"), 404, "not-found")
    again = await agent.post(f"/v1/jobs/{job}/retry", key="k1")
    assert again["state"] == "queued"
    assert await agent.post(f"/v1/jobs/{job}/retry", key="k1") == again
    problem(await agent.ask("POST", f"/v1/jobs/{job}/retry"), 409, "conflict")
    await service.work()
    assert await agent.texts() == ["User's dog is called Rex"]


@pytest.mark.parametrize("engine", EngineName)
async def test_an_admin_replays_all_dead_jobs(start: Start, engine: EngineName) -> None:
    service, agent = await _extracting(start, engine, max_retries=0)
    service.models.always(CHAT, Text("no"))
    for session, name in (("s1", "Rex"), ("s2", "Tom")):
        await agent.write(f"My {session} animal is called {name}", session=session)
        await agent.post(f"/v1/sessions/{session}/end")
    await service.work()
    assert len(await _jobs(agent, state="dead")) == 2
    service.models.always(CHAT, None)
    assert (await service.admin().post("/v1/admin/jobs/replay", {"state": "dead"}))["replayed"] == 2
    await service.work()
    assert len(await agent.texts()) == 2
    assert await _jobs(agent, state="dead") == []


async def test_a_bad_answer_after_ten_failed_tries_of_an_outage_is_the_jobs_first_failure(start: Start) -> None:
    service, agent = await _extracting(start, max_retries=2)
    await agent.write("My dog is called Rex")
    (job,) = (await agent.post("/v1/sessions/s1/end"))["jobs"]
    service.models.always(CHAT, Status(503))
    for _ in range(10):
        await service.pass_time(minutes=16)
    state = await agent.get(f"/v1/jobs/{job}")
    assert (state["state"], state["attempts"]) == ("queued", 10)
    service.models.always(CHAT, Text("I will not answer in JSON"))
    await service.pass_time(minutes=16)
    state = await agent.get(f"/v1/jobs/{job}")
    assert (state["state"], state["attempts"]) == ("queued", 11)
    assert service.runtime.meter.value("texts_unanswered", purpose="extraction") == 0
    service.models.always(CHAT, None)
    await service.pass_time(seconds=3)
    assert (await agent.get(f"/v1/jobs/{job}"))["state"] == "done", "it waited as after a first failure"
    assert await agent.texts() == ["User's dog is called Rex"]


async def test_a_job_that_fails_as_often_as_allowed_is_dead_though_outages_stand_between(start: Start) -> None:
    service, agent = await _extracting(start, max_retries=2)
    await agent.write("My dog is called Rex")
    (job,) = (await agent.post("/v1/sessions/s1/end"))["jobs"]
    states = []
    for _ in range(3):
        for fault in (Status(503), Status(503), Text("I will not answer in JSON")):
            service.models.always(CHAT, fault)
            await service.pass_time(minutes=16)
        states.append((await agent.get(f"/v1/jobs/{job}"))["state"])
    assert states == ["queued", "queued", "dead"]
    assert (await agent.get(f"/v1/jobs/{job}"))["attempts"] == 9


async def test_a_model_that_is_down_for_an_hour_loses_no_turn_and_the_queue_drains(start: Start) -> None:
    service, agent = await _extracting(start, max_retries=2, min_turns=1)
    for path in (CHAT, EMBEDDINGS):
        service.models.always(path, Status(503))
    animals = {"dog": "Rex", "cat": "Tom", "bird": "Kea"}
    for session, (kind, name) in enumerate(animals.items()):
        await agent.write(f"My {kind} is called {name}", session=f"s{session}")
    for _ in range(12):
        await service.pass_time(minutes=5)
    assert {job["state"] for job in await _jobs(agent)} == {"queued"}
    report = await service.admin().get("/v1/health/report")
    assert report["parts"]["jobs"]["reason"] == "JobsLate"
    assert report["counters"]["oldest_seconds"] > 3_000
    assert await agent.texts() == []
    for session in range(3):
        assert len((await agent.get(f"/v1/sessions/s{session}/turns"))["turns"]) == 1
    for path in (CHAT, EMBEDDINGS):
        service.models.always(path, None)
    await service.pass_time(minutes=16)
    await service.pass_time(minutes=16)
    assert sorted(await agent.texts()) == sorted(f"User's {kind} is called {name}" for kind, name in animals.items())
    assert (await service.admin().get("/v1/health/report"))["counters"]["pending"] == 0


async def test_what_a_model_asks_all_jobs_to_wait_is_waited_without_asking(start: Start) -> None:
    service, agent = await _extracting(start, min_turns=1)
    service.models.always(CHAT, Status(429, retry_after="3000"))
    for number in range(8):
        await agent.write("My dog is called Rex", session=f"s{number}")
    for _ in range(5):
        await service.pass_time(minutes=9)
    assert service.models.counts[CHAT] == 1
    service.models.always(CHAT, None)
    await service.pass_time(minutes=15)
    assert await agent.texts() == ["User's dog is called Rex"]
    assert {job["state"] for job in await _jobs(agent)} == {"done"}


async def test_a_backlog_that_a_quota_interrupts_is_read_on_from_where_it_was(start: Start) -> None:
    service = await start(
        chat=True,
        chat_options={"context_tokens": 2_048},
        engine=EngineName.NATIVE,
        short_term=ShortTermConfig(token_budget=600),
        medium_term=MediumTermConfig(digest_tokens=64),
    )
    agent = service.agent()
    animals = ("dog", "cat", "bird", "fish", "horse", "goat")
    for animal in animals:
        await agent.write(f"My {animal} is called {animal.title()}y." + " word" * 2_000)
    await agent.post("/v1/sessions/s1/end")
    quota = Quota(0)
    service.models.always(CHAT, quota)
    for _ in range(10):
        quota.left = 5
        await service.pass_time(minutes=16)
    assert sorted(await agent.texts()) == sorted(f"User's {animal} is called {animal.title()}y" for animal in animals)
    assert (await agent.get("/v1/sessions/s1"))["session"]["tokens"] <= 3_000
    assert {job["state"] for job in await _jobs(agent)} == {"done"}


async def test_one_turn_that_is_longer_than_a_quota_is_read_to_its_end(start: Start) -> None:
    service = await start(
        chat=True,
        chat_options={"context_tokens": 2_048},
        engine=EngineName.NATIVE,
        short_term=ShortTermConfig(token_budget=600),
        medium_term=MediumTermConfig(digest_tokens=64),
    )
    agent = service.agent()
    animals = ("dog", "cat", "bird", "fish", "horse", "goat")
    paste = " ".join(f"My {animal} is called {animal.title()}y." + " word" * 5_000 for animal in animals)
    await agent.write(paste)
    await agent.write("I live in Oslo.")
    await agent.post("/v1/sessions/s1/end")
    quota = Quota(0)
    service.models.always(CHAT, quota)
    for _ in range(20):
        quota.left = 8
        await service.pass_time(minutes=16)
    texts = [f"User's {animal} is called {animal.title()}y" for animal in animals]
    assert sorted(await agent.texts()) == sorted([*texts, "User lives in Oslo"])
    session = (await agent.get("/v1/sessions/s1"))["session"]
    assert session["tokens"] < 600
    assert {job["state"] for job in await _jobs(agent)} == {"done"}
    asked = [request.prompt for request in service.models.requests if request.path == CHAT]
    assert sum(prompt.count("My dog is called") for prompt in asked if "Notes so far" not in prompt) < 4


async def test_long_turns_are_indexed_a_page_at_a_time_and_all_of_them(start: Start) -> None:
    service = await start()
    agent = service.agent()
    for number in range(3):
        await agent.write(f"tale {number} " + "of the sea " * 60_000)
    await service.work()
    counts = (await service.admin().get("/v1/admin/diagnostics"))["counts"]
    assert counts["episodes_indexed"] == 3
    assert service.runtime.meter.value("turns_indexed") == 3
    assert service.runtime.meter.value("jobs", kind="index_turns", outcome="done") >= 2


async def test_vectors_of_a_wrong_number_or_length_are_not_stored(start: Start) -> None:
    service, agent = await _extracting(start)
    await agent.write("My dog is called Rex", "I live in Oslo")
    for fault in (wrong_count, wrong_dimension):
        service.models.always(EMBEDDINGS, Embeddings(fault))
        await service.pass_time(minutes=16)
        counts = (await service.admin().get("/v1/admin/diagnostics"))["counts"]
        assert counts["episodes_indexed"] == 0
    service.models.always(EMBEDDINGS, None)
    await service.pass_time(minutes=16)
    counts = (await service.admin().get("/v1/admin/diagnostics"))["counts"]
    assert counts["episodes_indexed"] >= 2


@pytest.mark.parametrize("engine", EngineName)
@pytest.mark.parametrize("change", [wrong_count, wrong_dimension])
async def test_facts_whose_vectors_are_of_a_wrong_number_or_length_are_not_stored_and_their_turns_wait(
    start: Start, change: Callable[[Json], None], engine: EngineName
) -> None:
    service, agent = await _extracting(start, engine)
    await agent.write("My dog is called Rex", "I live in Oslo")
    await agent.post("/v1/sessions/s1/end")
    await service.worker.run_due([JobKind.INDEX_TURNS])
    service.models.script(EMBEDDINGS, Embeddings(lambda answer: None))  # what was said, to find what is known
    service.models.always(EMBEDDINGS, Embeddings(change))
    await service.work()
    asked = [request.body["input"] for request in service.models.requests if request.path == EMBEDDINGS]
    assert asked[-1] == ["User's dog is called Rex", "User lives in Oslo"]
    assert await agent.texts(tiers=["fact"]) == []
    assert service.runtime.meter.value("jobs", kind="extract", outcome="failed") == 1
    service.models.always(EMBEDDINGS, None)
    await service.pass_time(minutes=16)
    assert sorted(await agent.texts(tiers=["fact"])) == ["User lives in Oslo", "User's dog is called Rex"]
    assert {job["state"] for job in await _jobs(agent)} == {"done"}


@pytest.mark.parametrize(
    "fault", [Refusing("POISON"), Refusing("POISON", status=500), Directionless("POISON", 0.0)], ids=["400", "500", "0"]
)
async def test_a_text_that_the_embedder_refuses_keeps_nobody_elses_from_their_vectors(
    start: Start, fault: Refusing | Directionless
) -> None:
    service = await start()
    alice, bob = service.agent(user="alice"), service.agent(user="bob")
    service.models.always(EMBEDDINGS, Status(503))
    await alice.remember("POISON of alice")
    await bob.remember("Bob sails")
    await alice.write("POISON again")
    await alice.write("a harmless turn")
    service.models.always(EMBEDDINGS, fault)
    await service.pass_time(minutes=20)
    await service.work()
    waiting = await service.services.storage.read(lambda tx: tx.facts.without_vector(limit=10))
    assert waiting == []
    assert await service.services.storage.read(lambda tx: tx.sessions.waiting_for_index(limit=10)) == []
    asked = service.models.counts[EMBEDDINGS]
    await service.pass_time(minutes=20)
    assert service.models.counts[EMBEDDINGS] == asked
    assert service.runtime.meter.value("facts_embedded") == 1
    assert service.runtime.meter.value("texts_refused", purpose="facts") == 1
    assert service.runtime.meter.value("texts_refused", purpose="turns") == 1
    assert (await service.admin().get("/v1/health/report"))["parts"]["embedding"]["ok"]
    found = (await alice.recall("POISON alice"))["long_term"]["items"]
    assert "POISON of alice" in [item["text"] for item in found]


@pytest.mark.parametrize("status", [400, 500])
async def test_a_turn_that_the_chat_model_refuses_is_left_out_of_facts_and_digest(start: Start, status: int) -> None:
    service = await start(
        chat=True, engine=EngineName.NATIVE, extraction=ExtractionConfig(), short_term=ShortTermConfig(token_budget=60)
    )
    agent = service.agent()
    service.models.always(CHAT, Refusing("POISON", status=status))
    await agent.write("I live in Oslo")
    await agent.write("POISON word here")
    await agent.write("I live in Rome " + "by the sea " * 30)
    await agent.post("/v1/sessions/s1/end")
    await service.work()
    await agent.write("My dog is called Rex")
    await agent.post("/v1/sessions/s1/end")
    await service.work()
    assert "User's dog is called Rex" in await agent.texts()
    session = await agent.get("/v1/sessions/s1")
    assert session["session"]["digest_version"] >= 1
    assert {job["state"] for job in (await agent.get("/v1/jobs"))["jobs"]} == {"done"}
    assert service.runtime.meter.value("texts_refused", purpose="extraction") == 1
    assert service.runtime.meter.value("texts_refused", purpose="digest") >= 1


@pytest.mark.parametrize(
    ("engine", "text", "finish"),
    [
        (EngineName.NATIVE, "Sure! Here is your table.", "stop"),
        (EngineName.MEM0, "Sure! Here is your table.", "stop"),
        (EngineName.NATIVE, '{"facts": [{"text": "row 1', "length"),
    ],
)
async def test_a_turn_that_no_usable_answer_is_given_to_is_left_out_before_its_job_would_be_dead(
    start: Start, engine: EngineName, text: str, finish: str
) -> None:
    service = await start(chat=True, engine=engine, extraction=ExtractionConfig(max_retries=2))
    agent = service.agent()
    service.models.always(CHAT, Answering("TABLE", text, finish))
    await agent.write("I live in Oslo", "TABLE of people", "My dog is called Rex")
    (job,) = (await agent.post("/v1/sessions/s1/end"))["jobs"]
    await service.work()
    assert await agent.texts(tiers=["fact"]) == []
    assert service.runtime.meter.value("texts_unanswered", purpose="extraction") == 0
    for _ in range(2):
        await service.pass_time(minutes=5)
    assert sorted(await agent.texts(tiers=["fact"])) == ["User lives in Oslo", "User's dog is called Rex"]
    assert service.runtime.meter.value("texts_unanswered", purpose="extraction") == 1
    state = await agent.get(f"/v1/jobs/{job}")
    assert state["state"] == "done"
    await agent.write("I prefer tea")
    await agent.post("/v1/sessions/s1/end")
    await service.work()
    await service.pass_time(minutes=1)
    assert "User prefers tea" in await agent.texts(tiers=["fact"])


async def test_what_waits_beyond_one_extractions_characters_follows_at_once(start: Start) -> None:
    service, agent = await _extracting(start)
    for text in ("I live in Oslo. ", "I prefer tea. ", "My dog is called Rex. "):
        await agent.write(text + "and so on " * 15_000)
    await agent.post("/v1/sessions/s1/end")
    await service.work()
    assert len(await agent.texts(tiers=["fact"])) == 3
    assert len([job for job in await _jobs(agent) if job["kind"] == "extract"]) >= 3


async def test_turns_that_must_not_be_inferred_from_are_not(start: Start) -> None:
    service, agent = await _extracting(start)
    await agent.write("My dog is called Rex", infer=False)
    await agent.write("I live in Oslo")
    await agent.post("/v1/sessions/s1/end")
    await service.work()
    assert await agent.texts() == ["User lives in Oslo"]


async def test_one_noisy_session_does_not_keep_others_waiting(start: Start) -> None:
    service, agent = await _extracting(start)
    for number in range(5):
        await agent.write(*(f"noise {number} {line}" for line in range(100)), session="noisy")
    await agent.write("I live in Oslo", session="quiet")
    done = await service.worker.run_due(limit=4)
    assert done == 4
    states = {(job["session_id"], job["kind"]): job["state"] for job in await _jobs(agent)}
    assert states["quiet", "index_turns"] == "done"


async def test_a_job_of_a_worker_that_died_is_taken_over_when_its_lease_ends(start: Start) -> None:
    service, agent = await _extracting(start)
    await agent.write("I live in Oslo")
    (job,) = [job["id"] for job in await _jobs(agent)]
    lease = timedelta(seconds=service.config.worker.lease_seconds)
    lost = await service.services.storage.transact(
        lambda tx: tx.jobs.claim(kinds=[JobKind.INDEX_TURNS], lease=lease, worker="lost", max_crashes=6, now=tx.now())
    )
    assert lost is not None
    assert await service.work() == 0
    assert (await agent.get(f"/v1/jobs/{job}"))["state"] == "running"
    await service.pass_time(seconds=service.config.worker.lease_seconds + 1)
    state = await agent.get(f"/v1/jobs/{job}")
    assert state["state"] == "done"
    assert state["attempts"] >= 1


async def test_a_worker_whose_job_is_erased_stops_it_and_goes_on(start: Start) -> None:
    service = await start(chat=True, engine=EngineName.NATIVE, worker=WorkerConfig(lease_seconds=1))
    agent = service.agent()
    await agent.write("My dog is called Rex")
    await agent.post("/v1/sessions/s1/end")
    await service.worker.run_due([JobKind.INDEX_TURNS])
    gate = Gate()
    service.models.script(CHAT, gate)
    working = asyncio.create_task(service.work())
    assert await asyncio.to_thread(gate.entered.wait, 20)
    await agent.forget()
    await agent.write("I live in Oslo", session="s2")
    async with asyncio.timeout(20):
        assert await working >= 2
    assert not gate.opened.is_set()
    assert (await agent.get("/v1/jobs", session_id="s2"))["jobs"][0]["state"] == "done"


async def test_a_sweep_of_a_store_at_rest_writes_nothing_and_without_episodes_looks_for_no_vector(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: object, **_named: object) -> NoReturn:
        raise AssertionError("not asked for")

    service = await start(long_term=LongTermConfig(episodes=False))
    await service.agent().write("My dog is called Rex")
    await service.work()
    monkeypatch.setattr(SessionRows, "waiting_for_index", refuse)
    monkeypatch.setattr(service.services.storage, "transact", refuse)
    assert await sweep(service.services, upkeep=False) == 0
