"""Facts: saved once however often they are said, corrected, superseded, deleted, and each step written down."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from memory_service.contract.config import EmbeddingConfig, EngineName, ModelsConfig
from memory_service.operations import facts
from tests.fakes.model_server import CHAT, DIMENSION, EMBEDDINGS, Gate, ModelServer, Status, Text
from tests.integration.service.conftest import Start
from tests.integration.service.harness import MODEL, Asker, Json, Service, item_texts, problem

UNKNOWN = "00000000-0000-4000-8000-000000000000"


async def _history(asker: Asker, fact: Json) -> list[tuple[str, str | None]]:
    page = await asker.get(f"/v1/facts/{fact['id']}/history")
    return [(entry["event"], entry["text"]) for entry in page["entries"]]


async def test_a_saved_fact_is_found_before_the_call_returns(agent: Asker) -> None:
    saved = await agent.remember(
        "Anna takes her coffee black",
        category="drinks",
        tags=["coffee"],
        importance=0.7,
        evidence="She said so",
        attributes={"cup": {"size": 2, "colours": ["red", None]}},
        kind="preference",
    )
    assert saved["action"] == "added"
    assert saved["generation"]
    shown = await agent.get(f"/v1/facts/{saved['id']}")
    for name in ("text", "category", "tags", "importance", "evidence", "attributes", "kind", "revision"):
        assert shown[name] == saved[name]
    assert shown["attributes"] == {"cup": {"size": 2, "colours": ["red", None]}}
    assert item_texts(await agent.recall("coffee")) == ["Anna takes her coffee black"]


async def test_a_later_fact_with_the_same_key_replaces_the_first(agent: Asker) -> None:
    first = await agent.remember("Anna lives in Oslo", key="anna/home")
    second = await agent.remember("Anna has a house in Rome", key="anna/home")
    assert (second["action"], second["id"]) == ("replaced", first["id"])
    assert second["revision"] > first["revision"]
    assert await agent.texts() == ["Anna has a house in Rome"]
    assert await _history(agent, first) == [
        ("added", "Anna lives in Oslo"),
        ("replaced", "Anna has a house in Rome"),
    ]
    assert item_texts(await agent.recall("Oslo", score_floor=0.3)) == []


async def test_an_older_statement_does_not_replace_a_newer_one_with_its_key(agent: Asker) -> None:
    await agent.remember("Anna has a house in Rome", key="anna/home", said_at="2026-03-01T00:00:00Z")
    late = await agent.remember("Anna lives in Oslo", key="anna/home", said_at="2026-01-01T00:00:00Z")
    assert late["action"] == "ignored"
    assert await agent.texts() == ["Anna has a house in Rome"]


async def test_a_second_save_with_a_dedupe_key_updates_the_first(agent: Asker) -> None:
    first = await agent.remember("Order 17 is packed", dedupe_key="order-17")
    second = await agent.remember("Order 17 is on its way", dedupe_key="order-17")
    other = await agent.remember("Order 18 is packed", dedupe_key="order-18")
    assert second["id"] == first["id"]
    assert other["id"] != first["id"]
    assert sorted(await agent.texts()) == ["Order 17 is on its way", "Order 18 is packed"]


async def test_a_key_and_a_dedupe_key_of_two_facts_name_one_afterwards(agent: Asker) -> None:
    drink = await agent.remember("Bob likes tea", key="bob/drink")
    order = await agent.remember("Order 9 is open", dedupe_key="o9")
    both = await agent.remember("Bob drinks juice", key="bob/drink", dedupe_key="o9")
    assert (both["action"], both["id"]) == ("replaced", drink["id"])
    assert await agent.texts() == ["Bob drinks juice"]
    assert (await agent.get(f"/v1/facts/{order['id']}"))["superseded_by"] == drink["id"]


async def test_a_superseded_facts_key_leads_to_its_successor(agent: Asker) -> None:
    first = await agent.remember("Carl lives in Rome", key="carl/home", dedupe_key="d")
    second = await agent.post(f"/v1/facts/{first['id']}/supersede", {"text": "Carl lives in Oslo"})
    assert second["key"] == "carl/home"
    third = await agent.remember("Carl lives in Bonn", key="carl/home")
    assert (third["action"], third["id"]) == ("replaced", second["id"])
    assert await agent.texts() == ["Carl lives in Bonn"]


async def test_a_fact_said_at_a_time_to_come_does_not_outlast_later_ones(agent: Asker) -> None:
    await agent.remember("Dora works at the mill", key="dora/job", said_at="2099-01-01T00:00:00Z")
    later = await agent.remember("Dora works at the port", key="dora/job")
    assert later["action"] == "replaced"


async def test_what_is_saved_again_lasts_as_long_as_it_was_last_asked_to(service: Service) -> None:
    agent = service.agent()
    ends = (service.clock.now() + timedelta(minutes=1)).isoformat()
    first = await agent.remember("The meeting room is Atlas", expires_at=ends)
    again = await agent.remember("The meeting room is Atlas")
    assert (again["action"], again["id"], again["expires_at"]) == ("ignored", first["id"], None)
    await agent.remember("The gate is open", expires_at=ends)
    service.clock.advance(timedelta(minutes=2))
    assert (await agent.remember("The gate is open"))["action"] == "added"
    assert item_texts(await agent.recall("gate open", include=["long_term"])) == ["The gate is open"]


async def test_what_had_expired_when_it_was_said_is_refused_and_what_expired_in_a_queue_is_not(
    service: Service,
) -> None:
    agent = service.agent()
    over = {"text": "The gate is open", "expires_at": (service.clock.now() - timedelta(minutes=1)).isoformat()}
    refused = await agent.ask("POST", "/v1/facts", over)
    assert problem(refused, 422, "invalid-request")["errors"][0]["field"] == "expires_at"
    refused = await agent.ask("POST", "/v1/facts/batch", {"facts": [{"text": "x"}, over]})
    assert problem(refused, 422, "invalid-request")["errors"][0]["field"] == "facts.1.expires_at"
    fact = await agent.remember("The gate is shut")
    refused = await agent.ask("POST", f"/v1/facts/{fact['id']}/supersede", over)
    assert problem(refused, 422, "invalid-request")["errors"][0]["field"] == "expires_at"
    assert await agent.texts() == ["The gate is shut"]
    assert (await agent.post("/v1/facts", {**over, "queued_seconds": 120}))["action"] == "added"


async def test_another_agents_shared_fact_is_not_replaced_by_its_key_or_a_contradiction(service: Service) -> None:
    writer, other = service.agent("sharer"), service.agent("also-sharer")
    vault = await writer.remember("The vault is Alpha", key="vault", pinned=True)
    refused = problem(
        await other.ask("POST", "/v1/facts", {"text": "The vault is Beta", "key": "vault"}), 403, "forbidden"
    )
    assert [error["field"] for error in refused["errors"]] == ["key"]
    home = await writer.remember("Carla lives in Rome")
    assert (await other.remember("Carla lives in Bonn"))["action"] == "added"
    assert (await writer.get(f"/v1/facts/{home['id']}"))["status"] == "active"
    assert (await writer.remember("The vault is Gamma", key="vault"))["id"] == vault["id"]


async def test_facts_are_listed_before_episodes_whatever_order_is_asked_for(service: Service) -> None:
    agent = service.agent()
    await agent.remember("Anna takes coffee")
    await agent.write("turn one")
    for tiers in (["fact", "episode"], ["episode", "fact"]):
        assert await agent.texts(tiers=tiers) == ["Anna takes coffee", "turn one"]


async def test_a_patch_that_nulls_what_every_fact_has_is_refused(agent: Asker) -> None:
    fact = await agent.remember("Anna takes her coffee black")
    for name in ("text", "tags", "pinned"):
        problem(await agent.ask("PATCH", f"/v1/facts/{fact['id']}", {name: None}), 422, "invalid-request")
    assert (await agent.get(f"/v1/facts/{fact['id']}"))["revision"] == fact["revision"]


async def test_a_correction_that_says_again_what_a_fact_says_is_taken(agent: Asker) -> None:
    fact = await agent.remember("Anna lives in Oslo", category="home", tags=["city"])
    for change in (
        {"text": "Anna lives in Oslo"},
        {"category": "home"},
        {"text": "Anna lives in Oslo", "pinned": True},
    ):
        answer = await agent.ask("PATCH", f"/v1/facts/{fact['id']}", change)
        assert answer.status_code == 200, answer.text
    assert (answer.json()["text"], answer.json()["pinned"]) == ("Anna lives in Oslo", True)
    assert item_texts(await agent.recall("where does Anna live", scopes=["private"])) == ["Anna lives in Oslo"]


async def test_a_patch_is_of_the_fact_as_it_is_once_other_writers_are_done(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = service.agent()
    fact = await agent.remember("Anna owns a bicycle")
    before = await service.services.storage.read(lambda tx: tx.facts.get(fact["id"]))
    await agent.ask("PATCH", f"/v1/facts/{fact['id']}", {"text": "Anna owns a helicopter"})
    changeable, looks = facts._changeable, iter([before])
    monkeypatch.setattr(
        facts, "_changeable", lambda tx, caller, fact_id: next(looks, None) or changeable(tx, caller, fact_id)
    )
    patched = await agent.ask("PATCH", f"/v1/facts/{fact['id']}", {"tags": ["garage"]})
    assert (patched.status_code, patched.json()["text"]) == (200, "Anna owns a helicopter")
    assert item_texts(await agent.recall("helicopter", include=["long_term"])) == ["Anna owns a helicopter"]


async def test_keys_are_an_owners_own(service: Service) -> None:
    askers = [service.agent(user="alice"), service.agent(user="bob"), service.agent(), service.agent("other")]
    for number, asker in enumerate(askers):
        saved = await asker.remember(f"Fact of caller {number}", key="k", dedupe_key="d")
        assert saved["action"] == "added"
    for number, asker in enumerate(askers):
        assert f"Fact of caller {number}" in await asker.texts()


async def test_the_same_words_again_are_known_already(agent: Asker) -> None:
    first = await agent.remember("Anna takes her coffee black")
    again = await agent.remember("anna takes her  coffee black.")
    assert (again["action"], again["id"]) == ("ignored", first["id"])
    assert len(await agent.texts()) == 1


async def test_a_correction_is_refused_where_the_fact_changed_meanwhile(agent: Asker) -> None:
    fact = await agent.remember("Anna lives in Oslo", category="home")
    path = f"/v1/facts/{fact['id']}"
    corrected = await agent.ask("PATCH", path, {"text": "Anna lives in Bergen", "revision": fact["revision"]})
    assert corrected.status_code == 200
    assert corrected.json()["revision"] == fact["revision"] + 1
    refused = await agent.ask("PATCH", path, {"text": "Anna lives in Rome", "revision": fact["revision"]})
    problem(refused, 409, "conflict")
    assert (await agent.get(path))["text"] == "Anna lives in Bergen"
    assert (await agent.get(path))["category"] == "home"
    events = await _history(agent, fact)
    assert [event for event, _text in events] == ["added", "corrected"]
    assert item_texts(await agent.recall("Bergen")) == ["Anna lives in Bergen"]
    problem(await agent.ask("PATCH", path, {}), 422, "invalid-request")
    problem(await agent.ask("PATCH", path, {"revision": 2}), 422, "invalid-request")


async def test_a_field_is_cleared_by_null_and_kept_by_leaving_it_out(agent: Asker) -> None:
    fact = await agent.remember("Anna lives in Oslo", category="home", importance=0.5, tags=["a", "b"])
    changed = await agent.ask("PATCH", f"/v1/facts/{fact['id']}", {"category": None, "tags": []})
    assert changed.status_code == 200
    assert (changed.json()["category"], changed.json()["importance"], changed.json()["tags"]) == (None, 0.5, [])


async def test_pages_of_all_facts_of_a_store_end_at_their_text_too(service: Service, agent: Asker) -> None:
    """A thousand long facts would be more than a client reads."""
    for number in range(3):
        facts_ = [{"text": f"{number} {one} " + "w" * 15_980, "key": f"{number}-{one}"} for one in range(45)]
        await agent.post("/v1/facts/batch", {"facts": facts_})
    admin = service.admin()
    pages, cursor = [], ""
    while cursor is not None:
        page = await admin.get(f"/v1/admin/list?limit=1000{cursor and '&cursor=' + cursor}")
        pages.append(len(page["items"]))
        cursor = page.get("next_cursor")
    assert pages == [125, 10]


async def test_a_fact_has_one_successor(agent: Asker) -> None:
    fact = await agent.remember("Anna lives in Oslo")
    path = f"/v1/facts/{fact['id']}"
    new = await agent.post(f"{path}/supersede", {"text": "Anna lives in Lisbon"})
    assert new["action"] == "superseded"
    problem(await agent.ask("POST", f"{path}/supersede", {"text": "Anna lives in Rome"}), 409, "conflict")
    assert (await agent.get(path))["superseded_by"] == new["id"]
    assert await agent.texts() == ["Anna lives in Lisbon"]
    assert [event for event, _text in await _history(agent, fact)] == ["added", "superseded"]


async def test_a_deleted_fact_leaves_a_receipt_and_nothing_else(service: Service) -> None:
    agent = service.agent()
    fact = await agent.remember("Anna lives in Oslo", key="home")
    deleted = (await agent.ask("DELETE", f"/v1/facts/{fact['id']}")).json()
    assert deleted["erased"]["facts"] == 1
    assert (await agent.get(f"/v1/receipts/{deleted['receipt_id']}"))["status"] == "erased"
    for path in ("", "/history"):
        problem(await agent.ask("GET", f"/v1/facts/{fact['id']}{path}"), 404, "not-found")
    problem(await agent.ask("DELETE", f"/v1/facts/{fact['id']}"), 404, "not-found")
    assert await agent.texts() == []
    assert (await service.purge(agent, deleted["receipt_id"]))["status"] == "purged"
    assert (await agent.remember("Anna lives in Rome", key="home"))["action"] == "added"


async def test_a_batch_is_saved_whole_or_not_at_all(service: Service) -> None:
    agent = service.agent("personal", user="alice")
    good = {"text": "Anna lives in Oslo"}
    for bad in ({"text": ""}, {"text": "x", "key": "*"}, {"text": "x", "importance": 2}, {"text": "x\x00"}):
        problem(await agent.ask("POST", "/v1/facts/batch", {"facts": [good, bad]}), 422, "invalid-request")
    mixed = {"facts": [good, {"text": "for all", "scope": "shared"}]}
    problem(await agent.ask("POST", "/v1/facts/batch", mixed), 403, "forbidden")
    two = [{**good, "scope": "session", "session_id": name} for name in ("s1", "s2")]
    problem(await agent.ask("POST", "/v1/facts/batch", {"facts": two}), 422, "invalid-request")
    assert await agent.texts() == []
    saved = await agent.post("/v1/facts/batch", {"facts": [good, {"text": "Ben lives in Rome", "key": "ben"}, good]})
    assert [fact["action"] for fact in saved["facts"]] == ["added", "added", "ignored"]
    assert len(await agent.texts()) == 2


async def test_a_fact_of_a_session_is_recalled_in_that_session_alone(service: Service) -> None:
    agent = service.agent()
    await agent.remember("The meeting is about walnuts", scope="session", session_id="s1")
    assert item_texts(await agent.recall("meeting walnuts", session_id="s1")) == ["The meeting is about walnuts"]
    assert item_texts(await agent.recall("meeting walnuts", session_id="s2")) == []
    assert item_texts(await agent.recall("meeting walnuts")) == []
    problem(await agent.ask("POST", "/v1/facts", {"text": "x", "scope": "session"}), 400, "scope-unresolved")


async def test_what_an_agent_shares_all_agents_read_and_it_alone_changes(service: Service) -> None:
    sharer = service.agent("sharer")
    fact = await sharer.remember("The office opens at nine")
    helper = service.agent()
    assert item_texts(await helper.recall("office opens")) == ["The office opens at nine"]
    problem(await helper.ask("PATCH", f"/v1/facts/{fact['id']}", {"text": "mine"}), 403, "forbidden")
    problem(await helper.ask("DELETE", f"/v1/facts/{fact['id']}"), 403, "forbidden")
    changed = await sharer.ask("PATCH", f"/v1/facts/{fact['id']}", {"text": "The office opens at ten"})
    assert changed.status_code == 200


async def test_a_shared_fact_tells_nobody_which_conversation_it_comes_from(service: Service) -> None:
    await service.agent("sharer").remember("The office opens at nine", session_id="a-private-talk")
    recalled = await service.agent("also-sharer").recall("when does the office open?", scopes=["shared"])
    (item,) = recalled["long_term"]["items"]
    assert item["text"] == "The office opens at nine"
    assert (item["session_id"], item["seqs"]) == (None, [])


async def test_a_shared_fact_that_two_agents_said_is_neither_ones_to_change(service: Service) -> None:
    first, second = service.agent("sharer"), service.agent("also-sharer")
    fact = await first.remember("The office is in Bergen")
    assert (await second.remember("The office is in Bergen"))["id"] == fact["id"]
    for agent in (first, second):
        problem(await agent.ask("DELETE", f"/v1/facts/{fact['id']}"), 403, "forbidden")
        problem(await agent.ask("PATCH", f"/v1/facts/{fact['id']}", {"text": "It is in Oslo"}), 403, "forbidden")
    assert await first.texts(scope="shared") == ["The office is in Bergen"]


async def test_facts_are_listed_page_by_page_without_a_gap(agent: Asker) -> None:
    names = ["anchor", "bottle", "candle", "doorway", "engine", "feather", "garden", "hammer", "island", "jacket"]
    await agent.post("/v1/facts/batch", {"facts": [{"text": f"The {name} is painted"} for name in names]})
    found: list[str] = []
    cursor = None
    for _ in range(10):
        page = await agent.get("/v1/facts", limit=3, **({"cursor": cursor} if cursor else {}))
        assert len(page["items"]) <= 3
        found += [item["text"].split()[1] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == names
    for cursor in ("nonsense", "W10", "", "eyJ4IjoxfQ", "WyJmYWN0IiwgImEiXQ", "W1tbW1tbW1tb" * 50):
        problem(await agent.ask("GET", "/v1/facts", cursor=cursor), 422, "invalid-request")


@pytest.mark.parametrize("engine", list(EngineName))
async def test_eight_sessions_that_say_one_thing_leave_one_fact(start: Start, engine: EngineName) -> None:
    service = await start(chat=True, engine=engine)
    agent = service.agent()
    await asyncio.gather(*(agent.write("My dog is called Rex", session=f"s{number}") for number in range(8)))
    await asyncio.gather(*(agent.post(f"/v1/sessions/s{number}/end") for number in range(8)))
    await asyncio.gather(*(service.work() for _ in range(4)))
    assert await agent.texts() == ["User's dog is called Rex"]


async def test_eight_saves_of_one_thing_at_once_leave_one_fact(agent: Asker) -> None:
    saved = await asyncio.gather(*(agent.remember("Anna takes her coffee black", key="coffee") for _ in range(8)))
    assert len({fact["id"] for fact in saved}) == 1
    assert len(await agent.texts()) == 1
    plain = await asyncio.gather(*(agent.remember("Ben drinks tea at noon") for _ in range(8)))
    assert len({fact["id"] for fact in plain}) == 1
    assert [fact["action"] for fact in plain].count("added") == 1


async def test_a_contradiction_supersedes_and_the_past_stays_askable(start: Start) -> None:
    service = await start(chat=True, engine=EngineName.NATIVE)
    agent = service.agent()
    for moment, text in (("2026-01-01T00:00:00Z", "I live in Oslo"), ("2026-03-01T00:00:00Z", "I live in Lisbon")):
        turns = [{"role": "user", "content": text, "said_at": moment}]
        await agent.post("/v1/write", {"session_id": "s1", "turns": turns})
        await agent.post("/v1/sessions/s1/end")
        await service.work()
    assert await agent.texts() == ["User lives in Lisbon"]
    before = await agent.recall("where does the user live", filters={"as_of": "2026-02-01T00:00:00Z"})
    facts = [item["text"] for item in before["long_term"]["items"] if item["tier"] == "fact"]
    assert facts == ["User lives in Oslo"]


@pytest.mark.parametrize("engine", list(EngineName))
async def test_of_a_value_and_its_correction_in_one_write_the_correction_holds(
    start: Start, engine: EngineName
) -> None:
    service = await start(chat=True, engine=engine)
    agent = service.agent()
    await agent.write("I live in Oslo.", "Wait, that is old. I live in Bergen.")
    await agent.post("/v1/sessions/s1/end")
    await service.work()
    assert await agent.texts() == ["User lives in Bergen"]


async def _extracted(service: Service, agent: Asker, text: str, **more: object) -> None:
    """Let the native engine find one fact in a turn."""
    service.models.always(CHAT, Text(json.dumps({"facts": [{"text": text, "seqs": [1], **more}]})))
    await agent.write(text)
    await agent.post("/v1/sessions/s1/end")
    await service.work()


async def test_a_fact_that_two_facts_of_one_attribute_follow_keeps_what_a_person_filed_it_under(start: Start) -> None:
    service = await start(chat=True, engine=EngineName.NATIVE)
    agent = service.agent()
    ends = (service.clock.now() + timedelta(days=9)).isoformat()
    filed = {"tags": ["travel"], "category": "home", "importance": 1.0, "attributes": {"crm": "42"}}
    first = await agent.remember("User lives in Oslo", expires_at=ends, evidence="form 7", **filed)
    await _extracted(service, agent, "User lives in Bergen")
    (item,) = (await agent.post("/v1/list", {"tiers": ["fact"]}))["items"]
    assert item["text"] == "User lives in Bergen"
    assert {name: item[name] for name in filed} == filed
    assert (item["expires_at"], item["evidence"]) == (first["expires_at"], None)
    assert item_texts(await agent.recall("where does the user live", filters={"tags": ["travel"]})) == [item["text"]]


@pytest.mark.parametrize("label", [{"tags": ["travel"]}, {"attributes": {"crm": "42"}}, {"category": "home"}])
async def test_labels_that_were_given_in_another_session_stay_with_their_fact(start: Start, label: Json) -> None:
    service = await start(chat=True, engine=EngineName.NATIVE)
    agent = service.agent()
    await agent.remember("User lives in Oslo", session_id="s0", **label)
    await _extracted(service, agent, "User lives in Bergen")
    assert sorted(await agent.texts(tiers=["fact"])) == ["User lives in Bergen", "User lives in Oslo"]
    await agent.forget(scope="session", session_id="s0")
    assert await agent.texts(tiers=["fact"]) == ["User lives in Bergen"]


async def test_what_an_extraction_filed_a_fact_under_keeps_no_correction_of_another_session_out(start: Start) -> None:
    service = await start(chat=True, engine=EngineName.NATIVE)
    agent = service.agent()
    await _extracted(service, agent, "User lives in Oslo", category="home", importance=0.5)
    service.models.always(CHAT, None)
    await agent.write("I live in Bergen", session="s2")
    await agent.post("/v1/sessions/s2/end")
    await service.work()
    assert await agent.texts(tiers=["fact"]) == ["User lives in Bergen"]


async def test_extraction_does_not_move_the_expiry_that_somebody_set(start: Start) -> None:
    service = await start(chat=True, engine=EngineName.NATIVE)
    agent = service.agent()
    ends = (service.clock.now() + timedelta(hours=1)).isoformat()
    saved = await agent.remember("The guest code of the door is 4711", expires_at=ends)
    await _extracted(service, agent, "The guest code of the door is 4711")
    assert (await agent.get(f"/v1/facts/{saved['id']}"))["expires_at"] == saved["expires_at"]
    await service.pass_time(hours=2)
    assert await agent.texts(tiers=["fact"]) == []


async def test_a_fact_that_the_engine_names_is_superseded_however_many_others_are_nearer(start: Start) -> None:
    service = await start(chat=True, engine=EngineName.NATIVE)
    agent = service.agent()
    old = await agent.remember("Anna works for Siemens")
    people = [f"Person{number} started a new position at the harbour of Turku" for number in range(12)]
    await agent.post("/v1/facts/batch", {"facts": [{"text": text} for text in people]})
    found = {"text": "Anna started a new position at the harbour of Turku", "updates": "k1", "contradicts": True}
    service.models.always(CHAT, Text(json.dumps({"facts": [{**found, "seqs": [1]}]})))
    await agent.write("Anna works for Siemens no more")
    await agent.post("/v1/sessions/s1/end")
    await service.work()
    assert service.models.requests[-2].prompt.count('k1: "Anna works for Siemens"') == 1
    assert (await agent.get(f"/v1/facts/{old['id']}"))["status"] == "superseded"


async def test_a_correction_that_was_saved_without_a_vector_holds_once_it_has_one(service: Service) -> None:
    agent = service.agent()
    old = await agent.remember("Anna lives in Oslo", said_at="2026-01-01T00:00:00Z")
    kept = await agent.remember("Ben lives in Oslo", tags=["team"])
    service.models.always(EMBEDDINGS, Status(503))
    new = await agent.remember("Anna lives in Bergen")
    late = await agent.remember("Anna lives in Narvik", said_at="2025-01-01T00:00:00Z")
    await agent.remember("Ben lives in Bergen")
    assert new["action"] == late["action"] == "added"
    service.models.always(EMBEDDINGS, None)
    await service.pass_time(minutes=20)
    assert sorted(await agent.texts()) == ["Anna lives in Bergen", "Ben lives in Bergen", "Ben lives in Oslo"]
    for fact in (old, late):
        shown = await agent.get(f"/v1/facts/{fact['id']}")
        assert (shown["status"], shown["superseded_by"]) == ("superseded", new["id"])
    assert (await agent.get(f"/v1/facts/{kept['id']}"))["status"] == "active"


async def test_ids_that_are_not_there_are_404_and_malformed_ones_422(agent: Asker) -> None:
    for method, path, body in (
        ("GET", "/v1/facts/{}", None),
        ("PATCH", "/v1/facts/{}", {"text": "x"}),
        ("DELETE", "/v1/facts/{}", None),
        ("POST", "/v1/facts/{}/supersede", {"text": "x"}),
        ("GET", "/v1/jobs/{}", None),
        ("POST", "/v1/jobs/{}/retry", None),
        ("GET", "/v1/receipts/{}", None),
    ):
        problem(await agent.ask(method, path.format(UNKNOWN), body), 404, "not-found")
        problem(await agent.ask(method, path.format("nonsense"), body), 422, "invalid-request")


@pytest.mark.parametrize("verb", ["remember", "batch", "patch", "supersede"])
async def test_an_embedder_that_hangs_keeps_a_fact_no_longer_than_a_query(
    verb: str, start: Start, models: ModelServer
) -> None:
    embedding = EmbeddingConfig(
        url=models.url, model=MODEL, dimensions=DIMENSION, query_timeout_seconds=0.5, timeout_seconds=300
    )
    service = await start(models=ModelsConfig(embedding=embedding))
    agent = service.agent()
    fact = await agent.remember("Anna lives in Oslo")
    await service.work()
    gate = Gate()
    models.always(EMBEDDINGS, gate)
    match verb:
        case "remember":
            await agent.remember("Ben likes tea")
        case "batch":
            await agent.post("/v1/facts/batch", {"facts": [{"text": "Ben likes tea"}, {"text": "Cleo sails"}]})
        case "patch":
            assert (await agent.ask("PATCH", f"/v1/facts/{fact['id']}", {"text": "Ben likes tea"})).is_success
        case _:
            await agent.post(f"/v1/facts/{fact['id']}/supersede", {"text": "Ben likes tea"})
    assert not gate.gave_up.is_set()
    assert "Ben likes tea" in item_texts(await agent.recall("tea", score_floor=0))
    gate.opened.set()
    models.always(EMBEDDINGS, None)
    before = len(models.requests)
    await service.pass_time(minutes=10)
    await service.work()
    embedded = [text for request in models.requests[before:] for text in request.body["input"]]
    assert "Ben likes tea" in embedded
