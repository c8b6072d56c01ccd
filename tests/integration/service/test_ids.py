"""Ids are taken literally or refused: nothing in one is a wildcard, a separator or a part of a query."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from memory_service.contract.config import AuthMode, IdentityConfig
from tests.integration.service.conftest import Start
from tests.integration.service.harness import Asker, Service, identity, item_texts, problem

HOSTILE = (
    "*",
    "%",
    "_",
    " ",
    "\t",
    "a b",
    "kaos:shared",
    "a\x00b",
    "a" * 10_240,
    "a&agent_id=b",
    "a' OR '1'='1",
    "../s1",
    "s1%",
    "S1*",
    "%2e%2e",
    "s1\n",
    "ｓ１",
    "",
)
"""Ids that would mean something somewhere."""
LITERAL = ("kaos:shared", "a.b", "a_b", "A:b-c", "0")
"""Ids that look special and are allowed: they are themselves and nothing else."""


async def _foreign_memory(service: Service) -> None:
    for user in ("alice", "bob"):
        asker = service.agent(user=user)
        await asker.write(f"walnut of {user}", session="s1")
        await asker.write(f"walnut of {user} again", session="aXb")
        await asker.remember(f"walnut fact of {user}", key="k1")
    await service.agent("sharer").remember("walnut shared", key="k1")
    await service.work()


@pytest.mark.parametrize("name", ["session_id", "workspace", "key", "dedupe_key", "turn id"])
async def test_an_id_outside_of_its_pattern_is_refused_in_a_body(service: Service, name: str) -> None:
    asker = service.agent(user="alice")
    for value in HOSTILE:
        if value in LITERAL:
            continue
        if name in ("key", "dedupe_key"):
            response = await asker.ask("POST", "/v1/facts", {"text": "x", name: value})
        elif name == "turn id":
            turns = [{"role": "user", "content": "x", "id": value}]
            response = await asker.ask("POST", "/v1/write", {"session_id": "s1", "turns": turns})
        else:
            turns = [{"role": "user", "content": "x"}]
            response = await asker.ask("POST", "/v1/write", {"session_id": "s1", "turns": turns, name: value})
        found = problem(response, 422, "invalid-request")
        assert found["errors"][0]["field"].endswith(name.removeprefix("turn "))
    assert await asker.texts(tiers=["fact", "episode"]) == []


async def test_an_id_outside_of_its_pattern_is_refused_or_found_nowhere_in_a_path_or_query(service: Service) -> None:
    await _foreign_memory(service)
    asker = service.agent("other", user="alice")
    for value in HOSTILE:
        if value == "" or value in LITERAL:
            continue
        quoted = httpx.QueryParams({"x": value})["x"]
        for path in ("/v1/sessions/{}", "/v1/sessions/{}/turns", "/v1/facts/{}", "/v1/jobs/{}", "/v1/receipts/{}"):
            url = httpx.URL("http://127.0.0.1").copy_with(raw_path=path.format(_escaped(quoted)).encode())
            response = await asker.http.get(url, headers=asker.headers)
            assert response.status_code in (404, 422), (path, value, response.text)
            assert "walnut" not in response.text
        for path in ("/v1/jobs", "/v1/facts"):
            for name in ("session_id", "workspace"):
                response = await asker.ask("GET", path, **{name: value})
                assert response.status_code == 422, (path, value, response.text)


async def test_allowed_ids_that_look_special_are_only_themselves(service: Service) -> None:
    await _foreign_memory(service)
    asker = service.agent(user="alice")
    for name in LITERAL:
        assert (await asker.write(f"turn of {name}", session=name))["seqs"] == [1]
        await asker.remember(f"fact of {name}", key=name)
    turns = {}
    for name in LITERAL:
        page = await asker.get(f"/v1/sessions/{name}/turns")
        turns[name] = [turn["content"] for turn in page["turns"]]
    assert turns == {name: [f"turn of {name}"] for name in LITERAL}
    facts = await asker.get("/v1/facts")
    assert {item["key"]: item["text"] for item in facts["items"]} == {
        "k1": "walnut fact of alice",
        **{name: f"fact of {name}" for name in LITERAL},
    }


async def test_erasing_under_an_id_that_looks_like_a_pattern_erases_nothing_else(service: Service) -> None:
    await _foreign_memory(service)
    asker = service.agent(user="alice")
    await asker.write("x", session="a_b")
    await asker.forget(scope="session", session_id="a_b")
    assert len((await asker.get("/v1/sessions"))["sessions"]) == 2
    for value in HOSTILE:
        if value in LITERAL:
            continue
        body = {"confirm": True, "scope": "session", "session_id": value}
        problem(await asker.ask("POST", "/v1/forget", body), 422, "invalid-request")
    assert len((await asker.get("/v1/sessions"))["sessions"]) == 2
    subjects = (
        {"agent": "*"},
        {"agent": identity("%")},
        {"agent": "kaos:shared"},
        {"principal": "*"},
        {"principal": ""},
    )
    for subject in subjects:
        problem(await service.admin().ask("POST", "/v1/admin/erase", {"subject": subject}), 422, "invalid-request")
    for principal in ("local#*", "local#%", "local#alic_", "*#alice", "%#%"):
        erased = await service.admin().post("/v1/admin/erase", {"subject": {"principal": principal}})
        assert not any(erased["erased"].values()), erased
    assert len((await asker.get("/v1/sessions"))["sessions"]) == 2


async def test_principals_that_look_like_patterns_are_people_of_their_own(start: Start, tmp_path: Path) -> None:
    names = ("*", "%", "kaos:shared", "a b", "a&agent_id=b", "alice%", "local#alice", "a" * 1000, "ålice")
    path = tmp_path / "people.json"
    people = [{"token": f"user-{number}", "principal": name} for number, name in enumerate(names)]
    path.write_text(
        json.dumps(
            {
                "agents": [{"token": "t", "agent": identity("helper"), "readScopes": ["private", "user"]}],
                "users": [*people, {"token": "alice", "principal": "alice"}],
            }
        )
    )
    service = await start(identity=IdentityConfig(auth=AuthMode.STATIC, tokens_file=str(path)))
    alice = Asker(service.http, {"Authorization": "Bearer t", "X-Memplane-User": "alice"})
    await alice.write("walnut of alice")
    await alice.remember("walnut fact of alice")
    for number in range(len(names)):
        asker = Asker(service.http, {"Authorization": "Bearer t", "X-Memplane-User": f"user-{number}"})
        recalled = await asker.recall("walnut", session_id="s1", score_floor=0)
        assert item_texts(recalled) == []
        assert recalled["short_term"]["window"] == []
        await asker.forget()
        assert (await asker.write(f"turn of {number}"))["seqs"] == [1]
    assert len(await alice.texts(tiers=["fact", "episode"])) == 2


_ANY_ID = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(max_size=40),
    st.text(alphabet="a%_*.:-1&=/ ", min_size=1, max_size=12),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True),
)


def _random_ids() -> list[tuple[str, str, str, str | None]]:
    drawn: list[tuple[str, str, str, str | None]] = []

    @settings(max_examples=60, derandomize=True, database=None, phases=[Phase.generate])
    @given(ids=st.tuples(_ANY_ID, _ANY_ID, _ANY_ID, st.none() | _ANY_ID))
    def draw(ids: tuple[str, str, str, str | None]) -> None:
        drawn.append(ids)

    draw()
    return drawn


async def test_no_random_id_ever_returns_a_foreign_row(start: Start) -> None:
    service = await start(identity=IdentityConfig(auth=AuthMode.NONE))
    owner = Asker(service.http, {"X-Memplane-Agent": identity("owner"), "X-Memplane-User": "owner"})
    await owner.write("walnut turn", session="s1")
    await owner.remember("walnut fact", key="k1")
    await owner.remember("walnut of the user", scope="user")
    await service.work()
    seen: list[httpx.Response] = []
    for agent, user, session, workspace in _random_ids():
        headers = {
            b"X-Memplane-Agent": _header(agent if agent.startswith("kaos") else f"kaos://agent/shop/{agent}"),
            b"X-Memplane-User": _header(user),
        }
        body = {"query": "walnut", "session_id": session, "score_floor": 0, "workspace": workspace}
        response = await service.http.post("/v1/recall", content=json.dumps(body), headers=_raw(headers))
        seen.append(response)
        assert response.status_code in (200, 422), response.text
        assert "walnut" not in response.text
        listed = {"tiers": ["fact", "episode"], "scope": "private", "workspace": workspace}
        response = await service.http.post("/v1/list", content=json.dumps(listed), headers=_raw(headers))
        assert response.status_code in (200, 422), response.text
        assert "walnut" not in response.text
    assert {response.status_code for response in seen} == {200, 422}


def _raw(headers: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [*headers.items(), (b"content-type", b"application/json")]


def _header(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")[:9_000]


def _escaped(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())
