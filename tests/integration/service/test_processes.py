"""The service as processes: one owner of a folder, work split from serving, an orderly end, and no way out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.model_server import DIMENSION
from tests.fakes.model_server import CHAT, EMBEDDINGS, ModelServer
from tests.fakes.postgres import fresh_database
from tests.integration.service.processes import LIMIT_SECONDS, memplane

TURNS = {"session_id": "s1", "turns": [{"role": "user", "content": "My dog is called Rex"}]}


def _embedding(models: ModelServer) -> dict[str, str]:
    return {
        "MEMPLANE_EMBEDDING_URL": models.url,
        "MEMPLANE_EMBEDDING_MODEL": "rules",
        "MEMPLANE_EMBEDDING_DIMENSIONS": str(DIMENSION),
    }


def test_a_served_folder_is_refused_to_a_second_process_or_waited_for(models: ModelServer, tmp_path: Path) -> None:
    environment = _embedding(models)
    serve = ("serve", "--data-dir", str(tmp_path / "data"), "--port", "0")
    with memplane(*serve, environment=environment) as first:
        url = first.url()
        assert httpx.post(f"{url}/v1/write", json=TURNS).status_code == 202
        with memplane(*serve, environment=environment) as second:
            code, lines = second.wait()
        assert code != 0
        said = " ".join(lines)
        assert "another process" in said
        assert "--lock-wait" in said
        assert "Traceback" not in said
        with memplane(*serve, "--lock-wait", "300", environment=environment) as third:
            assert httpx.get(f"{url}/readyz").status_code == 200
            assert first.end() == (0, [f"listening on {url}"])
            turns = httpx.get(f"{third.url()}/v1/sessions/s1/turns").json()["turns"]
            assert [turn["content"] for turn in turns] == ["My dog is called Rex"]
            code, lines = third.end()
            assert (code, len(lines)) == (0, 1)


def test_serving_and_working_are_two_processes_on_one_database(
    postgres_dsn: str, models: ModelServer, tmp_path: Path
) -> None:
    environment = {
        **_embedding(models),
        "MEMPLANE_CHAT_URL": models.url,
        "MEMPLANE_CHAT_MODEL": "rules",
    }
    with fresh_database(postgres_dsn) as dsn:
        stored = ("--dsn", dsn)
        with memplane("serve", *stored, "--no-worker", "--port", "0", environment=environment) as serving:
            url = serving.url()
            httpx.post(f"{url}/v1/write", json=TURNS)
            job = httpx.post(f"{url}/v1/sessions/s1/end", json={}).json()["jobs"][0]
            assert httpx.get(f"{url}/v1/jobs/{job}").json()["state"] == "queued"
            with memplane("work", *stored, environment=environment) as working:
                with httpx.Client(timeout=30) as client:
                    _until_done(client, f"{url}/v1/jobs/{job}")
                assert working.end() == (0, [])
            facts = httpx.get(f"{url}/v1/facts").json()["items"]
            assert [fact["text"] for fact in facts] == ["User's dog is called Rex"]
            assert serving.end() == (0, [f"listening on {url}"])


def _until_done(client: httpx.Client, url: str) -> None:
    for _ in range(int(LIMIT_SECONDS / 0.2)):
        if client.get(url).json()["state"] == "done":
            return
        # The other process works meanwhile; a request with nothing to wait for would only take its time away.
        subprocess.run(["sleep", "0.2"], check=True)
    raise AssertionError("the job was not done")


def _alone(kind: str, repository: Path, folder: Path) -> dict[str, Any]:
    """Return what came of a service that is alone with what it is configured with."""
    own_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MEMPLANE_", "MEM0_"))}
    environment.pop("ANONYMIZED_TELEMETRY", None)
    environment.pop("HF_HUB_OFFLINE", None)
    program = [sys.executable, "-B", "-m", "tests.integration.service.alone", kind, str(folder)]
    done = subprocess.run(
        ["unshare", *own_user, "--net", "--mount", *program],
        check=False,
        capture_output=True,
        text=True,
        cwd=repository,
        env=environment,
        timeout=3 * LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    assert (seen["code"], seen["rest"], seen["tries"]) == (0, [], 0)
    return seen


def test_it_serves_with_no_network_and_a_read_only_disk_and_writes_to_its_folder_alone(
    repository: Path, tmp_path: Path
) -> None:
    """Promise 7: it starts with no network, no download, no telemetry and no key."""
    seen = _alone("local", repository, tmp_path)
    assert "Anna lives in Oslo" in seen["texts"]
    assert "embedding" not in seen["degraded"]
    assert {Path(name).parts[0] for name in seen["files"]} == {"store"}
    assert not [name for name in seen["files"] if "telemetry" in name.lower() or "mem0" in name.lower()]


def test_with_postgres_and_models_it_calls_those_and_looks_for_nothing_else(repository: Path, tmp_path: Path) -> None:
    """Promise 7: only what is configured is ever called."""
    seen = _alone("external", repository, tmp_path)
    assert seen["asked"] == [CHAT, EMBEDDINGS]
    assert seen["degraded"] == []


def test_no_library_writes_into_the_home_of_who_runs_it_or_looks_for_its_maker(tmp_path: Path) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    home.mkdir()
    environment = {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "MEM0_DIR": str(home / "mem0"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with memplane("serve", "--data-dir", str(data), "--port", "0", environment=environment) as process:
        url = process.url()
        httpx.post(f"{url}/v1/facts", json={"text": "Anna lives in Oslo"}, timeout=60)
        assert process.end() == (0, [f"listening on {url}"])
    assert [path for path in home.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("arguments", [("work",), ("work", "--data-dir", "data")])
def test_working_without_serving_needs_postgres(arguments: tuple[str, ...], tmp_path: Path) -> None:
    environment = {"XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)}
    with memplane(*arguments, environment=environment, folder=tmp_path) as process:
        code, lines = process.wait()
    assert code != 0
    assert "Postgres" in " ".join(lines)
    assert "Traceback" not in " ".join(lines)
    assert list(tmp_path.iterdir()) == []
