"""Any value in any field: it is kept exactly as it was sent, or refused by the field's name and nothing is stored."""

from __future__ import annotations

import copy
import functools
import json
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from memory_service.contract.limits import MAX_FIELD_CHARS
from tests.integration.service.harness import Asker, Json, Service

SECRET = "zyxwalnut"
"""Stands in every text of what is sent, and in no refusal."""

_RAW = "raw:"
"""A string that begins so stands for JSON that no encoder of ours writes."""

_ODD = ("1e400", "-1e400", "1e-400", "-0", "-0.0", "1.0", "1E2", "NaN", "-Infinity")
_DIGITS = (16, 19, 20, 400, 4_300, 4_301)

Path = tuple[int | str, ...]

PIECES = (
    "\x00", "\ud800", "a\udfffb", "\u2028\u2029\x85", "\u202egnihton\u202c", "\u200b\u200d\u2060\ufeff", "e\u0301",
    "\u00e9", "\u1e9b\u0323", "\ufb01", "\u212b", "👩‍👩‍👧‍👦🏳️‍🌈", "\U0010ffff\ufffe", "\x01\x1f\x7f\x9f", "\u0301" * 200,
    "ไทยไม่มีช่องว่าง" * 9, "w" * 3_000, "漢" * 1_500, "שלום مرحبا", "İstanbul ß ΑΣ ας", "' OR 1=1 --", "%s {0} ${x}",
    '\\"\\u0000', "</memory>\n```", "", " ", "\t\r\n",
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=30), max_size=4).map("".join)

NUMBERS = st.sampled_from(
    [
        *(f"{_RAW}{number}" for number in _ODD),
        *(f"{_RAW}{'9' * digits}" for digits in _DIGITS),
        0.5, 5e-324, 1.7976931348623157e308, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 0, 1, -1,
    ]
)  # fmt: skip

OFFSETS = st.sampled_from([0, 1, -1, 330, 14 * 60, -12 * 60, 23 * 60 + 59]).map(
    lambda minutes: timezone(timedelta(minutes=minutes))
)
TIMES = st.datetimes(timezones=OFFSETS).map(datetime.isoformat) | st.sampled_from(
    [
        "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-12:00",
        "2016-12-31T23:59:60Z", "2023-02-29T00:00:00Z", "2024-02-29T00:00:00Z", "2024-02-29T24:00:00Z",
        "2024-02-29T00:00:00", "2024-02-29", "12:00", "2024-02-29T00:00:00+24:00", "2024-02-29 00:00:00z",
        "2024-02-29T00:00:00.1234567Z", "+10000-01-01T00:00:00Z", "-0001-01-01T00:00:00Z", "1700000000", "١٢:٠٠",
    ]
)  # fmt: skip


def _nested(levels: int) -> Any:
    value: Any = SECRET
    for level in range(levels):
        value = [value] if level % 2 else {SECRET: value}
    return value


SHAPES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
) | st.integers(29, 36).map(_nested)

VALUES = st.one_of(TEXTS, NUMBERS, TIMES, SHAPES, st.booleans(), st.none())

PARTS: Sequence[Json] = (
    {"type": "text", "text": SECRET},
    {"type": "tool_call", "id": "c1", "name": "look_up", "arguments": {"of": [SECRET, 1.5, None, True]}},
    {"type": "tool_call", "id": "c2", "name": "look_up", "arguments": SECRET},
    {"type": "tool_result", "id": "c1", "name": "look_up", "content": {"found": [SECRET]}, "is_error": False},
    {"type": "image", "url": "https://example.org/a.png", "media_type": "image/png", "alt": SECRET},
    {"type": "audio", "url": "data:audio/ogg;base64,AAAA", "media_type": "audio/ogg"},
    {"type": "file", "url": "file:///a"},
)
TURN: Json = {
    "id": "t1", "role": "assistant", "content": SECRET, "name": "Ada", "said_at": "2026-01-02T03:04:05.678901+02:00",
    "parts": [*PARTS],
}  # fmt: skip
FACT: Json = {
    "text": SECRET, "kind": "preference", "category": "home", "evidence": SECRET, "importance": 0.25,
    "tags": ["a", "b"], "pinned": True, "key": "k", "dedupe_key": "d", "expires_at": "2090-01-01T00:00:00+01:00",
    "said_at": "2026-01-01T00:00:00Z", "attributes": {"of": [SECRET, {"deep": 1}]},
}  # fmt: skip
FILTERS: Json = {
    "kinds": ["semantic"], "categories": ["home"], "tags": ["a"], "since": "2020-01-01T00:00:00Z",
    "until": "2090-01-01T00:00:00Z", "min_importance": 0.1, "as_of": "2026-06-01T00:00:00Z",
}  # fmt: skip
RECALL: Json = {
    "query": SECRET, "session_id": "s", "include": ["long_term"], "top_k": 3, "token_budget": 100,
    "scopes": ["private"], "filters": FILTERS, "mode": "inherit", "score_floor": 0.1, "explain": True,
}  # fmt: skip
REQUESTS: Mapping[str, Json] = {
    "/v1/write": {"session_id": "s", "turns": [TURN], "workspace": "w", "infer": True, "queued_seconds": 0.5},
    "/v1/facts": {**FACT, "queued_seconds": 0.5},
    "/v1/facts/batch": {"facts": [FACT, {"text": "Rivers are long", "scope": "session"}]},
    "/v1/facts/{fact}": {name: FACT[name] for name in ("text", "category", "evidence", "importance", "tags", "pinned")},
    "/v1/facts/{fact}/supersede": {name: value for name, value in FACT.items() if name != "key"},
    "/v1/recall": RECALL,
    "/v1/list": {"scope": "private", "tiers": ["fact", "episode"], "limit": 3, "workspace": "w"},
    "/v1/forget": {"scope": "session", "session_id": "nobody", "confirm": True},
    "/v1/sessions/s/flush": {"workspace": "w"},
}
EXAMPLES = 3
"""Values for each field of each body; a seed makes them the same in every run."""


def _places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield every place inside of a body."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in inner:
        yield (*path, name)
        yield from _places(item, (*path, name))


def _with(body: Json, path: Path, value: Any) -> Json:
    changed = copy.deepcopy(body)
    here: Any = changed
    for name in path[:-1]:
        here = here[name]
    here[path[-1]] = value
    return changed


def _drawn(strategy: st.SearchStrategy[Any], examples: int) -> list[Any]:
    drawn: list[Any] = []

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(value: Any) -> None:
        drawn.append(value)

    draw()
    return drawn


@functools.cache
def _cases() -> list[tuple[str, Path, Json]]:
    """Return right bodies with one value of them changed for any other."""
    places = [(route, path) for route, body in REQUESTS.items() for path in _places(body)]
    values = _drawn(VALUES, EXAMPLES * len(places))
    return [
        (route, path, _with(REQUESTS[route], path, value))
        for number, (route, path) in enumerate(places)
        for value in values[number :: len(places)]
    ]


def _encoded(body: Any) -> bytes:
    text = json.dumps(body)
    for number in _ODD:
        text = text.replace(f'"{_RAW}{number}"', number)
    for digits in _DIGITS:
        text = text.replace(f'"{_RAW}{"9" * digits}"', "9" * digits)
    return text.encode()


async def _ask(asker: Asker, path: str, body: bytes, method: str = "POST") -> httpx.Response:
    headers = {**asker.headers, "content-type": "application/json"}
    return await asker.http.request(method, path, content=body, headers=headers)


def _same(sent: Any, kept: Any) -> bool:
    """Whether two values are one in JSON: `1`, `1.0` and `true` are three."""
    return json.dumps(sent, sort_keys=True) == json.dumps(kept, sort_keys=True)


def _moment(text: str) -> datetime:
    """Return a time that was sent, to the microsecond."""
    return datetime.fromisoformat(text.upper()).astimezone(UTC)


def _assert_said_then(service: Service, sent: str, kept: str) -> None:
    """What is yet to come was said when it came."""
    now = service.clock.now()
    if _moment(sent) <= now - timedelta(hours=1):
        assert _moment(kept) == _moment(sent)
    else:
        assert now - timedelta(hours=1) < _moment(kept) <= now


def _assert_refused(answer: httpx.Response, route: str, sent: bytes) -> None:
    told = answer.json()
    assert answer.headers["content-type"] == "application/problem+json", (route, sent)
    assert told["detail"], (route, sent)
    assert told["errors"] or answer.status_code == 404, (route, sent, told)
    for error in told["errors"]:
        assert error["expected"], (route, sent, told)
        assert 0 < len(error["field"]) <= MAX_FIELD_CHARS, (route, sent, told)
        assert "[" not in error["field"], (route, sent, told)
        # What is no field here is called by its name; all else repeats nothing.
        assert error["expected"] == "is not a field here" or SECRET not in json.dumps(error), (route, sent, told)
    unknown = any(error["expected"] == "is not a field here" for error in told["errors"])
    assert unknown or SECRET not in answer.text, (route, sent, told)


async def _assert_turns_kept(service: Service, agent: Asker, sent: Json) -> None:
    query = {"workspace": sent["workspace"]} if sent.get("workspace") else {}
    page = await agent.get(f"/v1/sessions/{sent['session_id']}/turns", **query)
    for said, kept in zip(sent["turns"], page["turns"], strict=True):
        assert kept["role"] == said["role"]
        assert kept["id"] == said.get("id")
        assert (kept["name"] or None) == (said.get("name") or None)
        if said.get("content") is not None:
            assert kept["content"] == said["content"]
        if said.get("said_at") is not None:
            _assert_said_then(service, said["said_at"], kept["said_at"])
        for part, found in zip(said.get("parts") or (), kept["parts"] or (), strict=True):
            assert _same(part, {name: found[name] for name in part}), (part, found)


async def _assert_fact_kept(service: Service, agent: Asker, sent: Json, fact_id: str) -> None:
    kept = await agent.get(f"/v1/facts/{fact_id}")
    for name, value in sent.items():
        match name:
            case "queued_seconds" | "scope" | "session_id" | "workspace" | "dedupe_key":
                continue
            case "said_at" if value is not None:
                _assert_said_then(service, value, kept[name])
            case "expires_at" if value is not None:
                assert _moment(kept[name]) == _moment(value)
            case "category" if value is not None:
                assert kept[name] == unicodedata.normalize("NFC", value)
            case "tags":
                assert kept[name] == [unicodedata.normalize("NFC", tag) for tag in value]
            case "importance" if value is not None:
                assert kept[name] == value
                assert not isinstance(value, bool)
            case "said_at":
                continue
            case _:
                assert _same(value, kept[name]), (name, value, kept[name])


def _in_session(route: str, body: Json, session: str) -> Json:
    """Return what is stored under an owner of its own, so that no two facts are merged."""
    own = {"scope": "session", "session_id": session}
    match route:
        case "/v1/write":
            return {**body, "session_id": session}
        case "/v1/facts":
            return {**body, **own}
        case "/v1/facts/batch" if isinstance(body["facts"], list):
            return {"facts": [{**fact, **own} if isinstance(fact, dict) else fact for fact in body["facts"]]}
        case _:
            return body


async def test_any_value_in_any_field_is_kept_as_it_was_sent_or_refused_by_its_name(service: Service) -> None:
    agent = service.agent(user="alice")
    taken: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    turns = facts = 0
    for number, (route, path, drawn) in enumerate(_cases()):
        fact: Json = {}
        if "{fact}" in route:
            fact = await agent.remember(f"old {number}", scope="session", session_id=f"f{number}")
            facts += 1
        sent = _encoded(drawn if path[:1] == ("session_id",) else _in_session(route, drawn, f"s{number}"))
        method = "PATCH" if route == "/v1/facts/{fact}" else "POST"
        answer = await _ask(agent, route.replace("{fact}", str(fact.get("id"))), sent, method)
        assert answer.status_code < 500, (route, sent, answer.text)
        if answer.status_code >= 400:
            refused[route] += 1
            _assert_refused(answer, route, sent)
            continue
        taken[route] += 1
        body = json.loads(sent)
        if route == "/v1/write":
            turns += len(body["turns"])
            await _assert_turns_kept(service, agent, body)
        elif route.startswith("/v1/facts"):
            saved = answer.json()
            facts += 0 if method == "PATCH" else len(saved.get("facts", [saved]))
            for one, found in zip(body.get("facts", [body]), saved.get("facts", [saved]), strict=True):
                await _assert_fact_kept(service, agent, one, found["id"])
    counts = (await service.admin().get("/v1/admin/diagnostics"))["counts"]
    assert (counts["turns"], counts["facts"]) == (turns, facts), "a request that was refused left something"
    await service.work()
    assert (await service.admin().get("/v1/health/report"))["counters"]["dead"] == 0
    assert set(refused) == set(REQUESTS)
    assert set(taken) >= {route for route in REQUESTS if "facts" in route or "write" in route}


async def _lines_of_every_type(service: Service) -> list[Json]:
    agent = service.agent(user="alice")
    await agent.post("/v1/write", {"session_id": "s", "turns": [TURN]})
    await agent.write("hello", session="gone")
    await agent.forget(scope="session", session_id="gone")
    old = await agent.remember(**FACT)
    await agent.post(f"/v1/facts/{old['id']}/supersede", {"text": f"{SECRET} again"})
    deleted = await agent.remember("to be deleted")
    await agent.ask("DELETE", f"/v1/facts/{deleted['id']}")
    await service.work()
    lines = await _exported(service)
    return list({line["type"]: line for line in lines}.values())


async def _exported(service: Service) -> list[Json]:
    lines: list[Json] = []
    page = await service.admin().get("/v1/admin/export", limit=1_000)
    while True:
        lines += page["lines"]
        if page["next_cursor"] is None:
            return lines
        page = await service.admin().get("/v1/admin/export", limit=1_000, cursor=page["next_cursor"])


async def test_any_value_in_any_field_of_a_line_is_imported_so_that_it_can_be_read_or_refused_by_its_name(
    service: Service,
) -> None:
    lines = await _lines_of_every_type(service)
    assert {"turn", "fact", "session", "principal", "deleted", "erased"} <= {line["type"] for line in lines}
    places = [(line, path) for line in lines for path in _places(line)]
    values = _drawn(VALUES, 2 * len(places))
    refused: Counter[str] = Counter()
    for number, (line, path) in enumerate(places):
        for value in values[number :: len(places)]:
            sent = _encoded({"lines": [_with(line, path, value)]})
            answer = await _ask(service.admin(), "/v1/admin/import", sent)
            assert answer.status_code < 500, (sent, answer.text)
            if answer.status_code >= 400:
                _assert_refused(answer, "/v1/admin/import", sent)
                assert answer.json()["errors"][0]["field"].startswith(("lines", "body")), (sent, answer.text)
                refused[line["type"]] += 1
    assert set(refused) == {line["type"] for line in lines}
    await service.work()
    assert await _exported(service)
    agent = service.agent(user="alice")
    await agent.recall("hello", session_id="s", score_floor=0)
    await agent.texts(tiers=["fact", "episode"])
    for session in (await agent.get("/v1/sessions"))["sessions"]:
        await agent.get(f"/v1/sessions/{session['session_id']}/turns", limit=1_000)
    assert (await service.admin().get("/v1/health/report"))["counters"]["dead"] == 0
