"""Promise 1 on a full disk: a write that cannot be stored is refused whole, and all is well once there is space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tests.fakes.model_server import ModelServer
from tests.faults.conftest import World
from tests.faults.disks import small_disk
from tests.faults.processes import Agent, wait_for

BALLAST = 10 * 1024 * 1024
ANSWERED_SECONDS = 30
HOUR = 3600


def test_a_full_disk_refuses_whole_writes_and_the_service_goes_on_once_there_is_space(
    model: ModelServer, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", megabytes=20) as disk:
        world = World("local", model, None, tmp_path, [])
        service = world.service(storage={"dataDir": str(disk.path / "data")})
        service.prefix = disk.prefix
        ballast = disk.seen_at / "ballast"
        ballast.write_bytes(b"\0" * BALLAST)
        service.start()
        try:
            with httpx.Client(base_url=service.url, trust_env=False, timeout=ANSWERED_SECONDS) as client:
                stored: dict[str, list[str]] = {}
                refused: dict[str, list[str]] = {}

                def write(name: str) -> httpx.Response:
                    texts = [f"My {name}x{number} is in a box. " + "lorem " * 2_000 for number in range(3)]
                    turns = [{"role": "user", "content": text} for text in texts]
                    body = {"session_id": name, "turns": turns}
                    answer = client.post("/v1/write", json=body, headers={"Idempotency-Key": name})
                    (stored if answer.status_code < 300 else refused)[name] = texts
                    return answer

                for number in range(1_000):
                    answer = write(f"session-{number}")
                    if answer.status_code >= 300:
                        break
                _is_storage_full(answer)
                for number in range(5):
                    _is_storage_full(write(f"refused-{number}"))
                much = ("a fact that is too much " + "lorem " * 2_000).strip()
                saved = client.post("/v1/facts", json={"text": much})
                # A third of what was refused: it may find room in the log, and then it is stored whole.
                if saved.status_code != 201:
                    _is_storage_full(saved)
                recalled = client.post("/v1/recall", json={"query": "lorem", "session_id": "session-0"})
                assert recalled.status_code == 200
                assert client.get("/healthz").status_code == 200
                assert stored, "nothing fitted on the disk at all"
                _assert_sessions(client, stored, refused)

                ballast.unlink()
                for name in list(refused):
                    answer = write(name)
                    assert answer.status_code < 300, answer.text
                    del refused[name]
                _assert_sessions(client, stored, {})
                wait_for("readiness", lambda: client.get("/readyz").status_code == 200)
            service.shift(HOUR)
            agent = Agent(service)
            for name in stored:
                agent.call("POST", f"/v1/sessions/{name}/end", {})
            agent.wait_settled()
            assert agent.jobs("dead") == [], "a full disk is not a job's fault"
            said = [f"User's {name}x{number} is in a box" for name in stored for number in range(3)]
            said += [much] if saved.status_code == 201 else []
            assert sorted(agent.facts()) == sorted(said), "what was refused is there, or what was stored is not"
            assert agent.digests("session-0"), "the window was over its mark, so it was folded"
            service.kill()
            service.start()
            with httpx.Client(base_url=service.url, trust_env=False, timeout=ANSWERED_SECONDS) as client:
                _assert_sessions(client, stored, {})
        finally:
            service.close()


def _is_storage_full(answer: httpx.Response) -> None:
    assert answer.status_code == 507, answer.text
    problem: dict[str, Any] = answer.json()
    assert problem["type"].endswith("storage-full")
    assert "nothing was stored" in problem["detail"]
    assert int(answer.headers["Retry-After"]) >= 1


def _assert_sessions(client: httpx.Client, stored: dict[str, list[str]], refused: dict[str, list[str]]) -> None:
    for name, texts in stored.items():
        kept = client.get(f"/v1/sessions/{name}/turns", params={"limit": 1000}).json()["turns"]
        assert [turn["content"] for turn in kept] == texts, name
    for name in refused:
        assert client.get(f"/v1/sessions/{name}/turns").status_code == 404, f"{name} was refused and is half there"
