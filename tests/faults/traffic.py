"""Traffic of all verbs: rounds of one request of every route, and what each round has left when it is over."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.faults.processes import Agent, Service

TURNS = 8
AGENT = "kaos://agent/shop/helper"
MOVING = ("/v1/admin/export", "/v1/admin/import")
"""Routes whose statements need the newest tables."""


def identity(folder: Path) -> dict[str, Any]:
    """Return settings under which there are an agent with a user, and an admin."""
    content = {
        "agents": [{"token": "helper-token", "agent": AGENT, "scope": "private", "readScopes": ["private", "session"]}],
        "users": [{"token": "alice-token", "principal": "alice"}],
        "admins": [{"token": "admin-token"}],
    }
    path = folder / "tokens.json"
    path.write_text(json.dumps(content))
    return {"auth": "static", "tokensFile": str(path)}


def helper(service: Service) -> Agent:
    """Return the agent, on behalf of its user."""
    return Agent(service, token="helper-token", user_token="alice-token")


def admin(service: Service) -> Agent:
    """Return the admin."""
    return Agent(service, token="admin-token")


@dataclass(frozen=True)
class Asked:
    """One request; `also` are the statuses beside those of success that it may be answered with."""

    method: str
    route: str
    body: Mapping[str, Any] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    also: tuple[int, ...] = ()
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def headers(self) -> dict[str, str]:
        """Return who asks, and under which key."""
        if not self.route.startswith("/v1/"):
            return {}
        key = {} if self.method == "GET" else {"Idempotency-Key": self.key}
        if self.route.startswith(("/v1/admin/", "/v1/health/")):
            return {"Authorization": "Bearer admin-token", **key}
        return {"Authorization": "Bearer helper-token", "X-Memplane-User": "alice-token", **key}

    def send(self, service: Service) -> httpx.Response:
        """Ask a service, over a connection of its own."""
        with httpx.Client(trust_env=False, verify=False, timeout=60) as client:
            path = self.route.format(**self.names)
            answer = client.request(self.method, service.url + path, json=self.body, headers=self.headers)
        assert answer.is_success or answer.status_code in self.also, f"{self.method} {path}: {answer.text}"
        return answer


Ask = Callable[[Asked], dict[str, Any]]


def routes() -> set[tuple[str, str]]:
    """Return every route that the contract has."""
    contract = json.loads((Path(__file__).parents[2] / "docs/reference/openapi.json").read_text())
    return {(method.upper(), path) for path, methods in contract["paths"].items() for method in methods}


class Round:
    """One request of every route, about things of its own whose names begin with the round's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._ids: dict[str, str] = {}
        self._receipt = ""

    def prepare(self, ask: Ask, job_id: str) -> None:
        """Store what the round's requests are about."""
        for session in ("kept", "forgotten", "erased"):
            ask(self._write(session, TURNS if session == "kept" else 1))
        for fact in ("read", "patched", "superseded", "deleted", "dropped"):
            answer = ask(Asked("POST", "/v1/facts", {"text": f"{self.name} {fact}", "key": f"{self.name}.{fact}"}))
            self._ids[fact] = answer["id"]
        gone = ask(Asked("DELETE", "/v1/facts/{fact_id}", names={"fact_id": self._ids["dropped"]}))
        self._receipt = gone["receipt_id"]
        self._job_id = job_id

    def requests(self) -> list[Asked]:
        """Return a request of every route."""
        kept, job = {"session_id": f"{self.name}-kept"}, {"job_id": self._job_id}
        erased = {"agent": AGENT, "principal": "local#alice", "session": f"{self.name}-erased"}
        line = {"type": "principal", "hash": f"{self.name}-imported", "display": self.name, "created_at": 1}
        return [
            Asked("GET", "/healthz"),
            Asked("GET", "/metrics"),
            Asked("GET", "/readyz"),
            Asked("GET", "/v1/health/report"),
            self._write("late", 2),
            Asked("POST", "/v1/recall", {"query": "what is on the shelf?", **kept}),
            Asked("POST", "/v1/list", {"tiers": ["fact", "episode"]}),
            Asked("POST", "/v1/forget", {"confirm": True, "scope": "session", "session_id": f"{self.name}-forgotten"}),
            Asked("GET", "/v1/facts"),
            Asked("POST", "/v1/facts", {"text": f"{self.name} saved"}),
            Asked(
                "POST", "/v1/facts/batch", {"facts": [{"text": f"{self.name} first"}, {"text": f"{self.name} next"}]}
            ),
            Asked("GET", "/v1/facts/{fact_id}", names=self._fact("read")),
            Asked("GET", "/v1/facts/{fact_id}/history", names=self._fact("read")),
            Asked("PATCH", "/v1/facts/{fact_id}", {"text": f"{self.name} corrected"}, self._fact("patched")),
            Asked("DELETE", "/v1/facts/{fact_id}", names=self._fact("deleted")),
            Asked("POST", "/v1/facts/{fact_id}/supersede", {"text": f"{self.name} newer"}, self._fact("superseded")),
            Asked("GET", "/v1/sessions"),
            Asked("GET", "/v1/sessions/{session_id}", names=kept),
            Asked("GET", "/v1/sessions/{session_id}/turns", names=kept),
            Asked("POST", "/v1/sessions/{session_id}/compact", {}, kept),
            Asked("POST", "/v1/sessions/{session_id}/flush", {}, kept),
            Asked("POST", "/v1/sessions/{session_id}/end", {}, kept),
            Asked("GET", "/v1/jobs"),
            Asked("GET", "/v1/jobs/{job_id}", names=job),
            Asked("POST", "/v1/jobs/{job_id}/retry", None, job, also=(409,)),
            Asked("GET", "/v1/receipts/{receipt_id}", names={"receipt_id": self._receipt}),
            Asked("GET", "/v1/admin/diagnostics"),
            Asked("GET", "/v1/admin/list"),
            Asked("POST", "/v1/admin/erase", {"subject": erased}),
            Asked("POST", "/v1/admin/jobs/replay", {"state": "dead"}),
            Asked("GET", "/v1/admin/export"),
            Asked("POST", "/v1/admin/import", {"lines": [line]}),
        ]

    def check(self, service: Service) -> None:
        """Fail unless everything that the round was promised is there, and once."""
        agent = helper(service)
        for session, count in (("kept", TURNS), ("late", 2), ("forgotten", 0), ("erased", 0)):
            path = f"/v1/sessions/{self.name}-{session}/turns"
            found = Asked("GET", path, also=(404,)).send(service).json().get("turns", [])
            assert [turn["content"] for turn in found] == self._said(session, count), path
        texts = [text for text in agent.facts() if self.name in text.split()]
        expected = [f"{self.name} {fact}" for fact in ("read", "corrected", "newer", "saved", "first", "next")]
        assert sorted(text for text in texts if text.startswith(self.name)) == sorted(expected)
        said = [text for text in texts if text.startswith("User's")]
        assert len(said) == len(set(said)) >= TURNS, said
        for fact, events in (("read", ["added"]), ("patched", ["added", "corrected"])):
            history = agent.call("GET", f"/v1/facts/{self._ids[fact]}/history")["entries"]
            assert [change["event"] for change in history] == events
        assert Asked("GET", f"/v1/facts/{self._ids['deleted']}", also=(404,)).send(service).status_code == 404
        assert agent.call("GET", f"/v1/receipts/{self._receipt}")["receipt_id"] == self._receipt

    def _write(self, session: str, count: int) -> Asked:
        turns = [{"id": f"{n}", "role": "user", "content": text} for n, text in enumerate(self._said(session, count))]
        return Asked("POST", "/v1/write", {"session_id": f"{self.name}-{session}", "turns": turns})

    def _said(self, session: str, count: int) -> list[str]:
        return [f"My item of {self.name} {session} {n} is kept on the long green shelf" for n in range(count)]

    def _fact(self, name: str) -> dict[str, str]:
        return {"fact_id": self._ids[name]}
