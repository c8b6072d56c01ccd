"""Who a caller is comes from its tokens alone: nothing else in a request names an owner, and admins are listed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memory_service.api.app import create_api
from memory_service.identity import static
from tests.integration.service.harness import (
    Asker,
    Json,
    Service,
    identity,
    item_texts,
    problem,
    tokens_file,
    window_texts,
)

FORGED = {
    "agent": identity("helper"),
    "agent_id": identity("helper"),
    "user_id": "alice",
    "principal": "local#alice",
    "owner": {"scope": "private", "agent": identity("helper")},
    "run_id": "s1",
    "actor": "admin",
    "namespace": "shop",
}
"""What a body, a query or a header may pretend. The tests below send it as somebody else."""

FORGED_HEADERS = {
    "X-Memplane-Agent": identity("helper"),
    "X-Memplane-Principal": "local#alice",
    "X-Memplane-Admin": "true",
    "X-Actor": "admin",
    "X-Forwarded-User": "alice",
    "X-Remote-User": "alice",
    "X-Original-URL": "/v1/admin/list",
}

WRITING: dict[str, Json] = {
    "/v1/write": {"session_id": "s1", "turns": [{"role": "user", "content": "hello"}]},
    "/v1/recall": {"query": "secret", "session_id": "s1"},
    "/v1/facts": {"text": "a fact"},
    "/v1/facts/batch": {"facts": [{"text": "a fact"}]},
    "/v1/list": {},
    "/v1/forget": {"confirm": True},
    "/v1/sessions/s1/end": {},
    "/v1/sessions/s1/flush": {},
    "/v1/sessions/s1/compact": {},
}

ADMIN_ROUTES: tuple[tuple[str, str, Json | None], ...] = (
    ("POST", "/v1/admin/erase", {"subject": {"agent": identity("helper")}}),
    ("GET", "/v1/admin/list", None),
    ("GET", "/v1/admin/diagnostics", None),
    ("GET", "/v1/admin/export", None),
    ("POST", "/v1/admin/import", {"lines": [{"kind": "fact"}]}),
    ("POST", "/v1/admin/jobs/replay", {}),
    ("GET", "/v1/health/report", None),
)


async def _secret_of_alice(service: Service) -> Json:
    alice = service.agent(user="alice")
    await alice.write("the secret of alice is a walnut")
    fact = await alice.remember("the secret of alice is a walnut", key="secret")
    await service.work()
    return fact


async def _all_that_is_seen(asker: Asker) -> str:
    """Return everything that a caller can read about the secret, as one text."""
    seen: list[Any] = [
        await asker.recall("secret walnut alice", session_id="s1", score_floor=0),
        await asker.post("/v1/list", {"tiers": ["fact", "episode"]}),
        await asker.get("/v1/facts"),
        await asker.get("/v1/sessions"),
        await asker.get("/v1/jobs"),
    ]
    for path in ("/v1/sessions/s1", "/v1/sessions/s1/turns"):
        response = await asker.ask("GET", path)
        seen.append(response.text if response.status_code == 200 else "")
    return str(seen)


async def test_a_body_that_names_an_owner_is_refused(service: Service) -> None:
    mallory = service.agent("other", user="bob")
    for path, body in WRITING.items():
        for name, value in FORGED.items():
            found = problem(await mallory.ask("POST", path, {**body, name: value}), 422, "invalid-request")
            assert [error["field"] for error in found["errors"]] == [name]
    assert await service.agent().texts() == []
    assert (await mallory.get("/v1/sessions"))["sessions"] == []


async def test_queries_and_headers_that_name_an_owner_change_nothing(service: Service) -> None:
    await _secret_of_alice(service)
    honest = service.agent("other", user="bob")
    forging = Asker(service.http, {**FORGED_HEADERS, **honest.headers})
    assert "walnut" not in await _all_that_is_seen(honest)
    assert "walnut" not in await _all_that_is_seen(forging)
    forged_query = {name: str(value) for name, value in FORGED.items()}
    for path in ("/v1/facts", "/v1/sessions", "/v1/jobs"):
        refused = problem(await forging.ask("GET", path, **forged_query), 422, "invalid-request")
        assert {one["field"] for one in refused["errors"]} >= {"agent", "principal"}
        assert "walnut" not in str(refused)
    problem(await forging.ask("POST", "/v1/facts", {"text": "bob was here"}, **forged_query), 422, "invalid-request")
    written = await forging.ask("POST", "/v1/facts", {"text": "bob was here"})
    assert written.status_code == 201
    assert "bob was here" not in await _all_that_is_seen(service.agent(user="alice"))
    assert await honest.texts() == ["bob was here"]


async def test_a_scope_outside_of_the_binding_is_refused_for_reading_and_writing(service: Service) -> None:
    personal = service.agent("personal", user="alice")
    for scope in ("private", "shared"):
        problem(await personal.ask("POST", "/v1/recall", {"query": "x", "scopes": [scope]}), 403, "forbidden")
        problem(await personal.ask("POST", "/v1/list", {"scope": scope}), 403, "forbidden")
        problem(await personal.ask("POST", "/v1/facts", {"text": "x", "scope": scope}), 403, "forbidden")
        problem(await personal.ask("POST", "/v1/forget", {"confirm": True, "scope": scope}), 403, "forbidden")
    shared = service.agent("sharer")
    problem(await shared.ask("POST", "/v1/forget", {"confirm": True}), 403, "forbidden")


async def test_the_scope_of_a_user_without_a_user_is_refused_and_asks_nothing(service: Service) -> None:
    await service.agent("personal", user="alice").remember("alice likes tea")
    nobody = service.agent("personal")
    for path, body in (
        ("/v1/recall", {"query": "tea"}),
        ("/v1/list", {}),
        ("/v1/facts", {"text": "x"}),
        ("/v1/forget", {"confirm": True}),
        ("/v1/write", {"session_id": "s1", "turns": [{"role": "user", "content": "x"}]}),
    ):
        found = problem(await nobody.ask("POST", path, body), 400, "scope-unresolved")
        assert found["errors"][0]["field"] == "X-Memplane-User"
    assert await service.agent("personal", user="alice").texts() == ["alice likes tea"]


async def test_two_users_of_one_agent_never_see_each_others_memory(service: Service) -> None:
    alice, bob, nobody = (service.agent(user=user) for user in ("alice", "bob", None))
    for name, asker in (("alice", alice), ("bob", bob), ("nobody", nobody)):
        await asker.write(f"{name} said walnut")
        await asker.remember(f"{name} saved walnut", key="what")
    await service.work()
    for name, asker in (("alice", alice), ("bob", bob), ("nobody", nobody)):
        others = {"alice", "bob"} - {name}
        seen = await _all_that_is_seen(asker)
        assert f"{name} said walnut" in seen
        assert f"{name} saved walnut" in seen
        assert not any(f"{other} s" in seen for other in others), seen
        recalled = await asker.recall("walnut", session_id="s1")
        assert window_texts(recalled) == [f"{name} said walnut"]
    # What is said on nobody's behalf is the agent's own, so its users see it too; only its conversations are apart.
    assert "nobody saved walnut" in item_texts(await alice.recall("walnut", score_floor=0))


async def test_a_binding_that_lifts_the_fence_reads_all_users_and_changes_none(service: Service) -> None:
    fact = await service.agent("open", user="alice").remember("alice saved walnut")
    bob = service.agent("open", user="bob")
    assert "alice saved walnut" in item_texts(await bob.recall("walnut", score_floor=0))
    refused = await bob.ask("PATCH", f"/v1/facts/{fact['id']}", {"text": "bob was here"})
    problem(refused, 403, "forbidden")
    problem(await bob.ask("DELETE", f"/v1/facts/{fact['id']}"), 403, "forbidden")


async def test_two_agents_or_users_with_one_session_id_have_two_sessions(service: Service) -> None:
    askers = {
        name: service.agent(agent, user=user)
        for name, agent, user in (
            ("first", "helper", None),
            ("second", "other", None),
            ("third", "helper", "alice"),
            ("fourth", "helper", "bob"),
        )
    }
    for name, asker in askers.items():
        assert (await asker.write(f"{name} speaks", session="same"))["seqs"] == [1]
    await askers["first"].forget(scope="session", session_id="same")
    for name, asker in askers.items():
        recalled = await asker.recall("who speaks", session_id="same", include=["short_term"])
        assert window_texts(recalled) == ([] if name == "first" else [f"{name} speaks"])


async def test_what_another_owner_has_is_not_there(service: Service) -> None:
    alice = service.agent(user="alice")
    fact = await _secret_of_alice(service)
    written = await alice.write("one more")
    job = written["jobs"][0]
    receipt = (await alice.forget(scope="session", session_id="s1"))["receipt_id"]
    await alice.write("again", session="s2")
    job = (await alice.get("/v1/jobs"))["jobs"][0]["id"]
    for stranger in (service.agent(user="bob"), service.agent(), service.agent("other", user="alice")):
        for method, path, body in (
            ("GET", f"/v1/facts/{fact['id']}", None),
            ("PATCH", f"/v1/facts/{fact['id']}", {"text": "mine now"}),
            ("DELETE", f"/v1/facts/{fact['id']}", None),
            ("GET", f"/v1/facts/{fact['id']}/history", None),
            ("POST", f"/v1/facts/{fact['id']}/supersede", {"text": "mine now"}),
            ("GET", f"/v1/jobs/{job}", None),
            ("POST", f"/v1/jobs/{job}/retry", None),
            ("GET", f"/v1/receipts/{receipt}", None),
            ("GET", "/v1/sessions/s2", None),
            ("GET", "/v1/sessions/s2/turns", None),
            ("POST", "/v1/sessions/s2/end", {}),
            ("POST", "/v1/sessions/s2/flush", {}),
            ("POST", "/v1/sessions/s2/compact", {}),
        ):
            problem(await stranger.ask(method, path, body), 404, "not-found")
    assert (await alice.get(f"/v1/facts/{fact['id']}"))["text"] == "the secret of alice is a walnut"


async def test_what_is_not_there_and_what_is_anothers_get_the_same_answer(service: Service) -> None:
    fact = await _secret_of_alice(service)
    unknown = "00000000-0000-4000-8000-000000000000"
    bob = service.agent(user="bob")
    answers = []
    for fact_id in (fact["id"], unknown):
        found = problem(await bob.ask("GET", f"/v1/facts/{fact_id}"), 404, "not-found")
        answers.append(found["detail"].replace(fact_id, "ID"))
    assert answers[0] == answers[1]


def test_the_list_of_admin_routes_below_is_whole() -> None:
    paths = create_api(None).openapi()["paths"]
    admin = {(method.upper(), path) for path, methods in paths.items() for method in methods if "/admin/" in path}
    assert admin <= {(method, path) for method, path, _body in ADMIN_ROUTES}


async def test_admin_routes_are_for_listed_admins_alone(service: Service) -> None:
    agent = service.agent(user="alice")
    await agent.remember("still here")
    for method, path, body in ADMIN_ROUTES:
        await _refuse_all_but_admins(service, agent, method, path, body)
    assert await agent.texts() == ["still here"]
    for method, path, body in reversed(ADMIN_ROUTES):
        assert (await service.admin().ask(method, path, body)).status_code in (200, 422)


async def _refuse_all_but_admins(service: Service, agent: Asker, method: str, path: str, body: Json | None) -> None:
    problem(await agent.ask(method, path, body), 403, "forbidden")
    problem(await Asker(service.http, {**FORGED_HEADERS, **agent.headers}).ask(method, path, body), 403, "forbidden")
    for headers in (
        {},
        dict(FORGED_HEADERS),
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer alice-user-token"},
        {"Authorization": "Basic YWRtaW46YWRtaW4="},
        {"Authorization": "bearer wrong"},
        {"X-Memplane-User": "admin-token"},
    ):
        problem(await Asker(service.http, headers).ask(method, path, body), 401, "unauthenticated")


async def test_an_admin_owns_no_memory_and_may_not_act_as_an_agent(service: Service) -> None:
    for path, body in WRITING.items():
        problem(await service.admin().ask("POST", path, body), 403, "forbidden")


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("agents: [")], ids=["removed", "broken"])
async def test_probes_of_a_service_that_nobody_calls_see_that_its_tokens_file_is_gone(
    service: Service, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], object]
) -> None:
    monkeypatch.setattr(static, "RELOAD_SECONDS", 0.0)
    path = Path(str(service.config.identity.tokens_file))

    async def reason() -> str:
        ready = (await service.http.get("/readyz")).json()
        assert ready["ready"]
        return str(ready["parts"]["bindings"]["reason"])

    assert await reason() == "Ok"
    spoil(path)
    assert await reason() == "BindingsStale"
    report = await service.admin().get("/v1/health/report")
    assert "the last good one stays in use" in report["parts"]["bindings"]["message"]
    tokens_file(path.parent)
    assert await reason() == "Ok"
