"""What was said keeps the time at which it was said, however long it waited before the service had it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from memory_service.client import MemoryClient
from memory_service.contract.config import EngineName
from memory_service.contract.limits import MAX_QUEUED_SECONDS
from memory_service.domain import lexical
from tests.fakes.model_server import CHAT
from tests.integration.service.conftest import Start
from tests.integration.service.harness import Asker, Json, Service, item_texts

DAY = timedelta(days=1)


class Away(httpx.AsyncBaseTransport):
    """A way to a service that can be cut."""

    def __init__(self, service: Service) -> None:
        self._inner = httpx.ASGITransport(service.app)
        self.is_away = True

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send, or fail as where nothing listens."""
        if self.is_away:
            raise httpx.ConnectError("away")
        return await self._inner.handle_async_request(request)


def said_at(item: Json) -> datetime:
    return datetime.fromisoformat(item["said_at"])


async def turns(agent: Asker, session: str = "s1") -> list[Json]:
    found: list[Json] = (await agent.get(f"/v1/sessions/{session}/turns"))["turns"]
    return found


async def test_a_turn_of_which_nobody_knows_how_long_it_waited_is_stemmed_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    stem, stemmed = lexical.terms, []

    def terms(text: str) -> Any:
        stemmed.append(text)
        return stem(text)

    monkeypatch.setattr(lexical, "terms", terms)
    agent = service.agent(user="alice")
    body = {"session_id": "s1", "turns": [{"role": "user", "content": "walnut"}], "queued_seconds": MAX_QUEUED_SECONDS}
    await agent.post("/v1/write", body)
    assert len([text for text in stemmed if "walnut" in text]) == 1


async def test_what_waited_in_an_outbox_was_said_when_it_was_queued_and_a_newer_fact_holds(
    service: Service, tmp_path: Path
) -> None:
    way, sharer = Away(service), service.agent("sharer")
    async with MemoryClient(
        "http://127.0.0.1",
        token="sharer-token",
        outbox=tmp_path / "outbox",
        env={},
        binding_folder=tmp_path / "no-binding",
        transport=way,
        wall=lambda: service.clock.now().timestamp(),
        clock=lambda: service.clock.now().timestamp(),
    ) as client:
        monday = service.clock.now()
        assert (await client.write("s1", [{"role": "user", "content": "Tomorrow I fly to Oslo"}])).status == "queued"
        assert (await client.remember("The office is in Berlin", key="office")).status == "queued"
        assert (await client.remember("The lobby is green", key="lobby")).status == "queued"
        service.clock.advance(DAY)
        newer = await sharer.remember("The office is in Hamburg", key="office")
        service.clock.advance(DAY)
        way.is_away = False
        assert (await client.deliver()).delivered == 3
    (turn,) = await turns(sharer)
    listed = {item["key"]: item for item in (await sharer.post("/v1/list", {"tiers": ["fact"]}))["items"]}
    assert abs(said_at(turn) - monday) < timedelta(minutes=1)
    assert abs(said_at(listed["lobby"]) - monday) < timedelta(minutes=1)
    assert (listed["office"]["text"], listed["office"]["said_at"]) == ("The office is in Hamburg", newer["said_at"])
    await service.work()
    found = await sharer.recall("Oslo", session_id="s2", filters={"until": (monday + DAY / 2).isoformat()})
    assert f'{monday.date()} (user): "Tomorrow I fly to Oslo"' in found["long_term"]["block"]
    assert item_texts(await sharer.recall("Oslo", session_id="s2", filters={"since": (monday + DAY).isoformat()})) == []


@pytest.mark.parametrize("engine", list(EngineName))
async def test_a_day_that_a_late_turn_speaks_of_is_counted_from_the_day_on_which_it_was_said(
    start: Start, engine: EngineName
) -> None:
    service = await start(chat=True, engine=engine)
    agent, now = service.agent(), service.clock.now()
    await agent.write("I live in Oslo", queued_seconds=5 * DAY.total_seconds())
    await agent.post("/v1/sessions/s1/end")
    await service.work()
    asked = [request.prompt for request in service.models.requests if request.path == CHAT]
    assert asked
    assert all((now - 5 * DAY).date().isoformat() in prompt for prompt in asked)
    (fact,) = (await agent.post("/v1/list", {"tiers": ["fact"]}))["items"]
    assert abs(said_at(fact) - (now - 5 * DAY)) < timedelta(minutes=1)


async def test_a_late_turn_is_found_by_the_words_of_the_day_on_which_it_was_said(service: Service) -> None:
    agent, now = service.agent(), service.clock.now()
    await agent.write("The kettle is new", queued_seconds=400 * DAY.total_seconds())
    await agent.write("The carpet is new", session="s2")
    then = now - 400 * DAY
    best = item_texts(await agent.recall(f"what was new on {then:%d %B %Y}", include=["long_term"], explain=True))[0]
    assert best == "The kettle is new"


async def test_a_request_that_is_delivered_again_after_its_stored_answer_went_replaces_nothing_newer(
    service: Service,
) -> None:
    agent = service.agent()
    first = {"text": "The gate code is 1111", "key": "gate"}
    second = {"text": "The gate code is 2222", "dedupe_key": "gate-2"}
    assert (await agent.post("/v1/facts", first, key="k-1"))["action"] == "added"
    service.clock.advance(timedelta(minutes=5))
    newer = await agent.post("/v1/facts", {**second, "key": "gate"}, key="k-2")
    service.clock.advance(timedelta(hours=25))
    await service.sweep()
    await service.work()
    waited = timedelta(hours=25, minutes=5, seconds=1).total_seconds()
    again = await agent.post("/v1/facts", {**first, "queued_seconds": waited}, key="k-1")
    assert (again["action"], again["text"]) == ("ignored", "The gate code is 2222")
    assert await agent.texts() == ["The gate code is 2222"]
    repeated = await agent.get(f"/v1/facts/{newer['id']}")
    assert (repeated["said_at"], repeated["revision"]) == (newer["said_at"], newer["revision"])


async def test_an_outboxs_own_order_holds_though_one_delivery_takes_longer_than_the_next(service: Service) -> None:
    agent = service.agent()
    for text, seconds in (("Berlin", 60.0), ("Hamburg", 61.5), ("Kiel", 63.0)):
        body = {"text": f"The office is in {text}", "key": "office", "queued_seconds": seconds}
        assert (await agent.post("/v1/facts", body))["action"] in ("added", "replaced")
        await agent.write(text, queued_seconds=seconds)
    assert await agent.texts(tiers=["fact"]) == ["The office is in Kiel"]
    said = [said_at(turn) for turn in await turns(agent)]
    assert said == sorted(said)


async def test_what_waited_nobody_knows_how_long_replaces_nothing_and_is_of_no_made_up_day(service: Service) -> None:
    agent = service.agent()
    await agent.remember("The office is in Hamburg", key="office")
    unknown = {"queued_seconds": MAX_QUEUED_SECONDS}
    late = await agent.post("/v1/facts", {"text": "The office is in Berlin", "key": "office", **unknown})
    assert (late["action"], late["text"]) == ("ignored", "The office is in Hamburg")
    lobby = await agent.post("/v1/facts", {"text": "The lobby is green", "key": "lobby", **unknown})
    await agent.write("Hello there", **unknown)
    (turn,) = await turns(agent)
    for item in (lobby, turn):
        assert service.clock.now() - said_at(item) < timedelta(minutes=1)


async def test_nothing_is_said_later_than_now(service: Service) -> None:
    agent = service.agent()
    future = "9999-12-31T23:59:59Z"
    given = [{"role": "user", "content": "From the future", "said_at": future}]
    await agent.post("/v1/write", {"session_id": "s1", "turns": given})
    fact = await agent.remember("The lobby is green", said_at=future)
    old = datetime(2020, 5, 4, 12, tzinfo=UTC)
    given = [{"role": "user", "content": "Long ago", "said_at": old.isoformat()}]
    await agent.post("/v1/write", {"session_id": "s1", "turns": given, "queued_seconds": 60})
    first, second = await turns(agent)
    assert said_at(first) <= service.clock.now()
    assert said_at(fact) <= service.clock.now()
    assert said_at(second) == old
