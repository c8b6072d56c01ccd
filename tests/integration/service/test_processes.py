"""The service as processes: one owner of a folder, work split from serving, an orderly end, and no way out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from examples.model_server import DIMENSION
from tests.fakes.model_server import ModelServer
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


_ALONE = """
import json, os, signal, socket, subprocess, sys, urllib.request
assert subprocess.run(["ip", "link", "set", "lo", "up"]).returncode == 0
probe = socket.socket()
probe.settimeout(1)
try:
    probe.connect(("192.0.2.1", 80))
    raise SystemExit("the network is there")
except OSError:
    pass
for folder in ("/", "/home", "/root", "/tmp", "/var"):
    subprocess.run(["mount", "--bind", "-o", "ro", folder, folder], stderr=subprocess.DEVNULL)
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], stderr=subprocess.DEVNULL)
data = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", data], check=True)
try:
    open("/memplane-probe", "w")
    raise SystemExit("the root is writable")
except OSError:
    pass
served = subprocess.Popen(
    [sys.executable, "-B", "-m", "memory_service.cli", "serve", "--data-dir", data + "/store", "--port", "0"],
    stderr=subprocess.PIPE, text=True,
)
said = []
while not said or said[-1] and not said[-1].startswith("listening on "):
    said.append(served.stderr.readline().strip())
assert said[-1], said
url = said.pop().removeprefix("listening on ")

def ask(path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)

ask("/v1/write", {"session_id": "s1", "turns": [{"role": "user", "content": "My dog is called Rex"}]})
ask("/v1/facts", {"text": "Anna lives in Oslo"})
found = ask("/v1/recall", {"query": "in which city is her home"})
served.send_signal(signal.SIGTERM)
code = served.wait(60)
rest = [line for line in said + served.stderr.read().splitlines() if not line.startswith('{"time": ')]
files = [os.path.relpath(os.path.join(folder, name), data) for folder, _, names in os.walk(data) for name in names]
print(json.dumps({"texts": [item["text"] for item in found["long_term"]["items"]], "code": code, "rest": rest,
                  "files": files, "degraded": [part["part"] for part in found["degraded"]]}))
"""


def test_it_serves_with_no_network_and_a_read_only_disk_and_writes_to_its_folder_alone(
    repository: Path, tmp_path: Path
) -> None:
    own_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    data = tmp_path / "data"
    data.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MEMPLANE_", "MEM0_"))}
    environment.pop("ANONYMIZED_TELEMETRY", None)
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        ["unshare", *own_user, "--net", "--mount", sys.executable, "-B", "-c", _ALONE, str(data)],
        check=False,
        capture_output=True,
        text=True,
        cwd=repository,
        env=environment,
        timeout=2 * LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(done.stdout)
    assert "Anna lives in Oslo" in seen["texts"]
    assert "embedding" not in seen["degraded"]
    assert (seen["code"], seen["rest"]) == (0, [])
    assert {Path(name).parts[0] for name in seen["files"]} == {"store"}
    assert not [name for name in seen["files"] if "telemetry" in name.lower() or "mem0" in name.lower()]


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
