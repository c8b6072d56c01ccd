"""Promise 1 on a full disk: a write that cannot be stored is refused whole, and all is well once there is space."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from memory_service.storage.local import DATABASE
from tests.fakes.model_server import CHAT, Gate, ModelServer
from tests.faults.conftest import World
from tests.faults.disks import SmallDisk, small_disk
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


def test_an_erasure_an_import_a_fold_and_the_index_that_a_full_disk_stopped_are_whole_once_there_is_space(
    model: ModelServer, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", megabytes=96) as disk:
        world = World("local", model, None, tmp_path, [])
        data = disk.seen_at / "data"
        worker = {"leaseSeconds": 2, "pollSeconds": 0.2, "sweepSeconds": 0.1}
        service = world.service(storage={"type": "local", "dataDir": str(disk.path / "data")}, worker=worker)
        service.prefix = disk.prefix
        service.search_through_index_above(20)
        try:
            service.start()
            agent = Agent(service)
            agent.call("POST", "/v1/facts/batch", {"facts": [{"text": text} for text in LAMPS]})
            agent.write("doomed", [f"My {MARK}x{number} is in a box" for number in range(24)])
            wait_for("the index", lambda: _is_indexed(disk))
            before = _recalled(agent)
            assert all("meaning" in parts for _, parts in before)
            lines, imported = _parcels(agent)
            agent.wait_settled()
            folded_before = service.counted("turns_folded")
            folds = service.steps().count(ANSWERED_FOLD)
            gate = Gate(only="summary")
            model.always(CHAT, gate)
            agent.write("folded", [f"My thing{n} is somewhere on the long green shelf of the cellar" for n in range(8)])
            wait_for("the model to be asked", gate.entered.is_set)
            wait_for("all else", lambda: {job["kind"] for job in agent.jobs("queued", "running")} <= UPKEEP | {"fold"})

            _fill(disk)
            (folder,) = data.glob("chroma-*")
            folder.rename(disk.seen_at / "aside")  # its space stays taken
            gate.opened.set()
            wait_for("the fold to have something to store", lambda: service.steps().count(ANSWERED_FOLD) > folds)
            with httpx.Client(base_url=service.url, trust_env=False, timeout=ANSWERED_SECONDS) as client:
                _is_storage_full(client.post("/v1/admin/import", json={"lines": lines}))
                forgotten = client.post("/v1/forget", json=DOOMED, headers={"Idempotency-Key": "forget"})
                # It may find room in the log, and then it is whole.
                if forgotten.status_code != 200:
                    _is_storage_full(forgotten)
                kept = client.get("/v1/sessions/doomed/turns").json().get("turns", [])
                assert len(kept) == (0 if forgotten.status_code == 200 else 24)
                assert client.get("/v1/facts?limit=1000").json()["items"], "what is there can be looked at"
            assert _recalled(agent) == before, "what the index lacks is read from the rows"

            (disk.seen_at / "ballast").unlink()
            shutil.rmtree(disk.seen_at / "aside")
            receipt = agent.call("POST", "/v1/forget", DOOMED, key="forget")
            assert receipt["erased"]["turns"] == 24
            assert agent.call("POST", "/v1/admin/import", {"lines": lines})["imported"] == len(imported)
            service.shift(HOUR)
            agent.wait_settled()
            path = f"/v1/receipts/{receipt['receipt_id']}"
            wait_for("the purge", lambda: agent.call("GET", path)["status"] == "purged")
            wait_for("the index", lambda: _is_indexed(disk))
            assert agent.jobs("dead") == [], "a full disk is not a job's fault"
            assert _recalled(agent) == before
            (digest,) = agent.digests("folded")
            assert service.counted("turns_folded") - folded_before == digest["upto_seq"], "turns were folded twice"
            texts = [text for text in agent.facts() if "thing" not in text]
            assert sorted(texts) == sorted([*LAMPS, *imported])
            assert service.stop() == 0
            assert [str(one) for one in data.rglob("*") if one.is_file() and MARK.encode() in one.read_bytes()] == []
            shutil.copy(data / DATABASE, tmp_path)
            with closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
            service.start()
            assert _recalled(agent) == before
        finally:
            for one in world.services:
                one.close()


LAMPS = [f"The lamp number {number} stands in the hall of the mill" for number in range(30)]
UPKEEP = {"reconcile_index", "expire"}
ANSWERED_FOLD = "5-model-answered fold"
MARK = "zanzibarquux"
DOOMED = {"scope": "session", "session_id": "doomed", "confirm": True}


def _parcels(agent: Agent) -> tuple[list[dict[str, Any]], list[str]]:
    """Return lines of facts that are more than a full disk's log has room for, and their texts."""
    exported = agent.call("GET", "/v1/admin/export?limit=1000")["lines"]
    like = next(line for line in exported if line["type"] == "fact")
    texts = [(f"The parcel number {number} is heavy. " + "lorem " * 2_400).strip() for number in range(400)]
    return [{**like, "id": str(uuid.uuid4()), "text": text} for text in texts], texts


def _recalled(agent: Agent) -> list[tuple[str, list[str]]]:
    """Return what is recalled by words and by meaning, with what it was found by."""
    body = {"query": "a lamp stands in the mill", "top_k": 5, "explain": True, "scopes": ["private"]}
    items = agent.call("POST", "/v1/recall", body)["long_term"]["items"]
    return [(item["text"], sorted(item["explain"])) for item in items]


def _is_indexed(disk: SmallDisk) -> bool:
    """Return whether the vector index holds each row that has a vector, and none else."""
    asked = [*disk.prefix, sys.executable, "-m", "tests.faults.index", str(disk.path / "data")]
    return subprocess.run(asked, check=False, stderr=subprocess.DEVNULL).returncode == 0


def _fill(disk: SmallDisk) -> None:
    """Leave no space at all."""
    with (disk.seen_at / "ballast").open("ab", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(b"\0" * 65_536)


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
