"""Promise 6: found, nothing found, not available, switched off, filtered out and refused are different answers.

What could not look never says that there is nothing, whatever keeps it from looking; what need not look, and what is
wrong by itself, is answered as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from memory_service.contract.verbs import Outcome
from tests.fakes.model_server import ModelServer
from tests.fakes.postgres import PostgresServer
from tests.faults.conftest import World
from tests.faults.processes import Agent, Service, free_port, wait_for

ASKED: dict[str, dict[str, Any]] = {
    "found": {"query": "boat"},
    "nothing": {"query": "glacier"},
    "filtered": {"query": "boat", "filters": {"categories": ["hobby"]}},
    "disabled": {"query": "boat", "mode": "disable"},
    "no session": {"query": "boat", "scopes": ["session"], "session_id": "none", "include": ["short_term"]},
    "wrong": {"query": "boat", "scopes": ["everybody"]},
    "refused": {"query": "boat", "scopes": ["user"]},
}
LOOKED = {
    "found": Outcome.APPLIED,
    "nothing": Outcome.NO_MATCHES,
    "filtered": Outcome.FILTERED_OUT,
    "disabled": Outcome.DISABLED,
    "no session": Outcome.NO_MATCHES,
    "wrong": Outcome.REFUSED,
    "refused": Outcome.REFUSED,
}
COULD_NOT_LOOK = {name: Outcome.UNAVAILABLE for name in LOOKED} | {
    "disabled": Outcome.DISABLED,
    "wrong": Outcome.REFUSED,
    "refused": Outcome.REFUSED,
}


def _answers(service: Service) -> dict[str, Outcome]:
    """Return how each recall went; what looked at all of it misses nothing, and what could not names the storage."""
    outcomes: dict[str, Outcome] = {}
    with httpx.Client(base_url=service.url, trust_env=False, timeout=60) as client:
        for name, body in ASKED.items():
            answer = client.post("/v1/recall", json=body)
            if 400 <= answer.status_code < 500:
                outcomes[name] = Outcome.REFUSED
                continue
            assert answer.status_code == 200, answer.text
            recalled = answer.json()
            outcomes[name] = Outcome(recalled["outcome"])
            missing = [part["part"] for part in recalled["degraded"]]
            assert missing == (["storage"] if outcomes[name] is Outcome.UNAVAILABLE else [])
            has_any = bool(recalled["long_term"]["items"] or recalled["short_term"]["window"])
            assert has_any == (outcomes[name] is Outcome.APPLIED)
    return outcomes


def _is_ready(service: Service) -> bool:
    return httpx.get(service.url + "/readyz", trust_env=False, timeout=30).status_code == 200


@contextmanager
def _down(postgres: PostgresServer) -> Iterator[None]:
    postgres.stop()
    yield
    postgres.start()


@contextmanager
def _killed(postgres: PostgresServer) -> Iterator[None]:
    postgres.kill()
    yield
    postgres.start()


@contextmanager
def _frozen(postgres: PostgresServer) -> Iterator[None]:
    postgres.freeze()
    try:
        yield
    finally:
        postgres.thaw()


@pytest.mark.parametrize("away", [_down, _killed, _frozen])
def test_a_recall_that_could_not_ask_postgres_never_says_that_there_is_nothing(
    away: Callable[[PostgresServer], Any], external: World
) -> None:
    postgres = external.postgres
    assert postgres is not None
    service = external.service()
    service.start()
    assert set(_answers(service).values()) == {Outcome.NO_MATCHES, Outcome.DISABLED, Outcome.REFUSED}
    Agent(service).call("POST", "/v1/facts", {"text": "My boat is called Lotte"})
    assert _answers(service) == LOOKED
    with away(postgres):
        assert _answers(service) == COULD_NOT_LOOK
    wait_for("readiness", lambda: _is_ready(service))
    assert _answers(service) == LOOKED


def test_a_recall_that_could_not_open_the_folder_never_says_that_there_is_nothing(
    model: ModelServer, tmp_path: Path
) -> None:
    world = World("local", model, None, tmp_path, [])
    storage = {"dataDir": str(tmp_path / "data"), "lockWaitSeconds": 300}
    holder = world.service("holder", storage=storage)
    waiting = world.service("waiting", storage=storage, server={"port": free_port(), "graceSeconds": 5})
    try:
        holder.start()
        waiting.start(wait=False)
        waiting.port = int(waiting.config["server"]["port"])
        wait_for("it to live", waiting.lives)
        assert _answers(waiting) == COULD_NOT_LOOK
        assert set(_answers(holder).values()) == {Outcome.NO_MATCHES, Outcome.DISABLED, Outcome.REFUSED}
        Agent(holder).call("POST", "/v1/facts", {"text": "My boat is called Lotte"})
        assert (_answers(holder), _answers(waiting)) == (LOOKED, COULD_NOT_LOOK)
        holder.kill()
        wait_for("readiness", lambda: _is_ready(waiting))
        assert _answers(waiting) == LOOKED
    finally:
        for service in world.services:
            service.close()
