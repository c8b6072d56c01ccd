"""Promise 4 between real processes: what was erased comes back from nowhere, and in the end its bytes are gone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import psycopg

from memory_service.client import MemoryClient
from tests.faults.conftest import World
from tests.faults.processes import Agent, Service, wait_for

MARK = "Zanzibarquux"
TRACES = (MARK, MARK.lower(), MARK[4:])
"""A text, its word as an index has it, and the end of one that an index wrote as what differs from the word before."""
SEGMENTS = 3


class Cable(httpx.AsyncHTTPTransport):
    """The way to a service, which a test can pull out."""

    is_out = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request, or fail as without a network."""
        if self.is_out:
            raise httpx.ConnectError("the cable is out", request=request)
        return await super().handle_async_request(request)


def _identity(folder: Path) -> dict[str, Any]:
    policy = {"scope": "private", "readScopes": ["private", "user", "session"]}
    content = {
        "agents": [
            {"token": "helper-token", "agent": "kaos://agent/shop/helper", **policy},
            {"token": "other-token", "agent": "kaos://agent/shop/other", **policy},
        ],
        "users": [{"token": "alice-token", "principal": "alice"}],
        "admins": [{"token": "admin-token"}],
    }
    path = folder / "tokens.json"
    path.write_text(json.dumps(content))
    return {"auth": "static", "tokensFile": str(path)}


def test_what_was_erased_comes_back_from_no_job_no_outbox_and_no_import_and_its_bytes_go(world: World) -> None:
    service = world.service(identity=_identity(world.folder), extraction={"minTurns": 100, "concurrency": 1})
    service.start()
    agent = Agent(service, token="helper-token", user_token="alice-token")
    other, admin = Agent(service, token="other-token"), Agent(service, token="admin-token")
    other.write("hers", ["My boat is called Lotte"])
    known = agent.write("running", [f"My dog is called {MARK}"])["generation"]
    agent.write("queued", [f"My cat is called {MARK}x"])
    agent.call("POST", "/v1/facts", {"text": f"The safe's word is {MARK}"})
    asyncio.run(_fill_outboxes(service, world.folder))
    wait_for("all to be indexed", agent.settled)
    assert len(_seen(agent)) == 4
    lines = _export(admin)
    assert MARK in json.dumps(lines)

    gate = world.gate()
    agent.call("POST", "/v1/sessions/running/end", {})
    wait_for("the extraction to run", gate.entered.is_set)
    agent.call("POST", "/v1/sessions/queued/end", {})
    assert [job["session_id"] for job in agent.jobs("queued")] == ["queued"]
    jobs = len(agent.call("GET", "/v1/jobs?limit=1000")["jobs"])
    receipt = agent.call("POST", "/v1/forget", {"confirm": True})
    gate.opened.set()
    assert receipt["erased"] == {
        "turns": 3, "episodes": 3, "sessions": 3, "facts": 1, "history": 1, "digests": 0, "vectors": 4, "jobs": jobs,
        "answers": 3,
    }  # fmt: skip
    assert agent.call("GET", f"/v1/receipts/{receipt['receipt_id']}")["erased"] == receipt["erased"]

    late = {"session_id": "running", "turns": [{"role": "user", "content": f"It is still called {MARK}"}]}
    for told in ({"generation": known}, {"queued_seconds": 600}, {"generation": known, "queued_seconds": 600}):
        assert agent.refusal("POST", "/v1/write", {**late, **told}) == (410, "erased")
        assert agent.refusal("POST", "/v1/facts", {"text": f"It is {MARK}", **told}) == (410, "erased")
    erased = asyncio.run(_deliver(service, world.folder))
    assert erased == {"answered": 1, "unanswered": 1}, "what waited in an outbox is erased too, and counted there"
    imported = admin.call("POST", "/v1/admin/import", {"lines": lines})
    hers = [line["type"] for line in lines if line["type"] in ("turn", "fact") and MARK in json.dumps(line)]
    sessions = [line["type"] for line in lines if line["type"] == "session" and line["agent"].endswith("/helper")]
    assert imported["tombstoned"] == len(hers + sessions) == 7
    wait_for("the work in flight", lambda: agent.settled() and other.settled())
    assert _seen(agent) == []
    assert agent.call("GET", "/v1/sessions")["sessions"] == []
    assert _seen(other) == ["My boat is called Lotte"]

    wait_for("the purge", lambda: _is_purged(agent, receipt["receipt_id"]))
    if world.postgres is None:
        assert _files_with(TRACES, world.folder / "data") == []
        assert service.stop() == 0
        assert _files_with(TRACES, world.folder / "data") == []
        return
    assert service.stop() == 0
    data = world.folder / "postgres" / "data"
    with psycopg.connect(world.postgres.dsn, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        assert [path for path in _files_with(TRACES, data) if "pg_wal" not in path.parts] == []
        assert _files_with(TRACES, data / "pg_wal"), "the log keeps what it wrote until its segments go"
        connection.execute("ALTER SYSTEM SET wal_recycle = off")
        connection.execute("SELECT pg_reload_conf()")
        for _ in range(SEGMENTS):
            connection.execute("SELECT pg_logical_emit_message(false, 'filler', 'x')")
            connection.execute("SELECT pg_switch_wal()")
            connection.execute("CHECKPOINT")
        wait_for("the log's segments to go", lambda: _files_with(TRACES, data) == [])


def test_an_erasure_between_two_pages_of_an_export_holds_for_all_of_its_pages(world: World) -> None:
    service = world.service(identity=_identity(world.folder), extraction={"minTurns": 100, "concurrency": 1})
    service.start()
    agent = Agent(service, token="helper-token", user_token="alice-token")
    other, admin = Agent(service, token="other-token"), Agent(service, token="admin-token")
    for number in range(4):
        other.write(f"theirs-{number}", [f"My boat {number} is called Lotte"])
        agent.write(f"hers-{number}", [f"My dog {number} is called {MARK}"])
        agent.call("POST", "/v1/facts", {"text": f"The word of safe {number} is {MARK}"})
    wait_for("all to be indexed", lambda: agent.settled() and other.settled())
    whole = _export(admin)
    before = next(place for place, line in enumerate(whole) if MARK in json.dumps(line)) + 1
    first = admin.call("GET", f"/v1/admin/export?limit={before}")
    assert MARK in json.dumps(first["lines"])
    assert first["next_cursor"] is not None
    agent.call("POST", "/v1/forget", {"confirm": True})
    rest = _export(admin, first["next_cursor"])
    assert MARK not in json.dumps(rest), "a later page holds what was erased before it was read"

    admin.call("POST", "/v1/admin/import", {"lines": first["lines"] + rest})
    admin.call("POST", "/v1/admin/import", {"lines": whole})
    wait_for("the work in flight", lambda: agent.settled() and other.settled())
    assert _seen(agent) == []
    assert agent.call("GET", "/v1/sessions")["sessions"] == []
    assert sorted(_seen(other)) == [f"My boat {number} is called Lotte" for number in range(4)]


async def _fill_outboxes(service: Service, folder: Path) -> None:
    """Leave a turn in the outbox of a client that had an answer before, and in one of a client that had none."""
    for name, had_answer in (("answered", True), ("unanswered", False)):
        cable = Cable()
        async with _client(service, folder / name, transport=cable) as client:
            if had_answer:
                written = await client.write(f"outbox-{name}", [{"role": "user", "content": f"First {MARK}"}])
                assert written.status == "stored"
            cable.is_out = True
            written = await client.write(f"outbox-{name}", [{"role": "user", "content": f"Second {MARK}"}])
            assert written.status == "queued"


async def _deliver(service: Service, folder: Path) -> dict[str, int]:
    erased = {}
    for name in ("answered", "unanswered"):
        async with _client(service, folder / name) as client:
            await client.deliver()
            erased[name] = client.outbox.counts()["erased"] if client.outbox is not None else 0
    return erased


def _client(service: Service, outbox: Path, **options: Any) -> MemoryClient:
    return MemoryClient(
        service.url,
        token="helper-token",
        user="alice-token",
        outbox=outbox,
        env={},
        binding_folder=outbox / "binding",
        **options,
    )


def _export(admin: Agent, cursor: str | None = None) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    while True:
        page = admin.call("GET", "/v1/admin/export?limit=1000" + (f"&cursor={cursor}" if cursor else ""))
        lines += page["lines"]
        cursor = page["next_cursor"]
        if cursor is None:
            return lines


def _seen(agent: Agent) -> list[str]:
    texts: list[str] = []
    body: dict[str, Any] = {"tiers": ["fact", "episode"], "limit": 1000}
    while True:
        page = agent.call("POST", "/v1/list", body)
        texts += [item["text"] for item in page["items"]]
        if page["next_cursor"] is None:
            return texts
        body["cursor"] = page["next_cursor"]


def _is_purged(agent: Agent, receipt_id: str) -> bool:
    return bool(agent.call("GET", f"/v1/receipts/{receipt_id}")["status"] == "purged")


def _files_with(traces: tuple[str, ...], folder: Path) -> list[Path]:
    """Return the files that hold one of some texts, by its bytes."""
    found = []
    for path in folder.rglob("*"):
        try:
            content = path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:
            continue  # Removed since it was listed.
        if any(trace.encode() in content for trace in traces):
            found.append(path)
    return found
