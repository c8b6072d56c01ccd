"""A service as a process that faults can act on, and the agent that talks to it and never gives up."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

from memory_service.contract.config import ServiceConfig

START_SECONDS = 90
WAIT_SECONDS = 90
T = TypeVar("T")


def wait_for(what: str, condition: Callable[[], T | None], seconds: float = WAIT_SECONDS) -> T:
    """Return what `condition` returns once it is something."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.02)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Service:
    """One service process over a folder; it is started and ended as often as a test likes."""

    folder: Path
    config: dict[str, Any]
    mode: str = "serve"
    port: int = 0
    prefix: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        ServiceConfig.model_validate(self.config)
        (self.folder / "config.json").write_text(json.dumps(self.config))
        (self.folder / "shift").write_text("0")
        (self.folder / "steps").touch()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, wait: bool = True) -> None:
        """Start the process; with `wait`, return when it is ready."""
        with (self.folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "tests.faults.entry", self.mode, str(self.folder)],
                stderr=log,
                env={name: value for name, value in os.environ.items() if not name.startswith("MEMPLANE_")},
            )
        if wait and self.mode == "serve":
            wait_for("the service to listen", self._listens, START_SECONDS)

    def kill(self) -> None:
        """End it as kill -9 does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """End it as Kubernetes does; return its exit code."""
        self.ask_to_stop()
        return self.wait_ended()

    def ask_to_stop(self) -> None:
        """Tell it to end, as Kubernetes does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def wait_ended(self) -> int:
        """Wait until it has ended; return its exit code."""
        assert self.process is not None
        return self.process.wait(timeout=60)

    def freeze(self) -> None:
        """Stop it where it is, as a node without a processor to spare does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Make sure that it is gone."""
        if self.process is not None and self.process.poll() is None:
            self.kill()  # reaches one that is frozen too

    def has_ended(self) -> bool:
        """Return whether the process is gone."""
        return self.process is not None and self.process.poll() is not None

    def arm(self, step: str, action: str) -> None:
        """Have `kill` or `hold` happen when a step is reached."""
        (self.folder / "held").unlink(missing_ok=True)
        (self.folder / "do").write_text(action)
        (self.folder / "at").write_text(step)

    def disarm(self) -> None:
        """Let go of what is held, and do nothing from now on."""
        (self.folder / "at").unlink(missing_ok=True)

    def is_disarmed(self) -> bool:
        """Return whether what was armed has happened, and the process is gone or serves again."""
        assert self.process is not None
        return not (self.folder / "at").exists() and (self.has_ended() or self.lives())

    def lives(self) -> bool:
        """Return whether it answers at all."""
        try:
            return httpx.get(self.url + "/healthz", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def is_held(self) -> bool:
        """Return whether a step is being held."""
        return (self.folder / "held").exists()

    def shift(self, seconds: float) -> None:
        """Set how far its clock is ahead."""
        part = self.folder / "shift.part"
        part.write_text(str(seconds))
        part.replace(self.folder / "shift")

    def search_through_index_above(self, rows: int) -> None:
        """Have memories of more rows than this searched through the vector index, from the next start on."""
        (self.folder / "exact_rows").write_text(str(rows))

    def counted(self, name: str, **labels: str) -> float:
        """Return the sum of a counter's series with these labels, since the process started."""
        found = httpx.get(self.url + "/metrics", trust_env=False, timeout=30).text
        series = re.findall(rf"^memplane_{name}_total(?:{{(.*)}})? (\S+)$", found, re.MULTILINE)
        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        return sum(float(value) for given, value in series if wanted <= set(given.split(",")))

    def steps(self) -> list[str]:
        """Return the steps that were reached, in order."""
        return (self.folder / "steps").read_text().splitlines()

    def _listens(self) -> bool:
        assert self.process is not None
        log = (self.folder / "log").read_text().splitlines()
        assert self.process.poll() is None, "the service ended:\n" + "\n".join(log[-30:])
        for line in log:
            if line.startswith("listening on "):
                self.port = int(line.rsplit(":", 1)[1])
                return True
        return False


class Agent:
    """Talks to a service; a call of unknown outcome is sent again, with the same key and the same turn ids."""

    def __init__(
        self, service: Service, name: str = "kaos://agent/local/default", *, token: str = "", user_token: str = ""
    ) -> None:
        self._service = service
        self._headers = {"Authorization": f"Bearer {token}"} if token else {"X-Memplane-Agent": name}
        if user_token:
            self._headers["X-Memplane-User"] = user_token
        self.on_outage: Callable[[], None] = lambda: None

    def call(
        self, method: str, path: str, body: dict[str, Any] | None = None, key: str | None = None
    ) -> dict[str, Any]:
        """Return the answer; wait through outages, and fail on any other error."""
        headers = {**self._headers, **({"Idempotency-Key": key} if key else {})}

        def attempt() -> dict[str, Any] | None:
            try:
                with httpx.Client(trust_env=False, verify=False, timeout=15) as client:
                    answer = client.request(method, self._service.url + path, json=body, headers=headers)
            except httpx.TransportError:
                self.on_outage()
                return None
            if answer.status_code in (500, 503):
                assert answer.status_code == 503, answer.text
                self.on_outage()
                return None
            assert answer.status_code < 400, answer.text
            found: dict[str, Any] = answer.json()
            return found or {"empty": True}

        return wait_for(f"{method} {path}", attempt)

    def refusal(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, str]:
        """Return the status of an answer that refuses, and its Problem's kind."""
        with httpx.Client(trust_env=False, verify=False, timeout=15) as client:
            answer = client.request(method, self._service.url + path, json=body, headers=self._headers)
        return answer.status_code, str(answer.json()["type"]).rsplit("/", 1)[-1]

    def write(self, session: str, turns: list[str]) -> dict[str, Any]:
        """Append user turns to a session, each with an id of its own."""
        body = {
            "session_id": session,
            "turns": [{"id": f"{session}-{n}", "role": "user", "content": text} for n, text in enumerate(turns)],
        }
        return self.call("POST", "/v1/write", body, key=f"write-{session}")

    def write_one(self, session: str, text: str, turn_id: str) -> dict[str, Any]:
        """Append one user turn."""
        turn = {"id": turn_id, "role": "user", "content": text}
        return self.call("POST", "/v1/write", {"session_id": session, "turns": [turn]}, key=f"{session}-{turn_id}")

    def turns(self, session: str) -> list[dict[str, Any]]:
        """Return every turn kept."""
        found: list[dict[str, Any]] = self.call("GET", f"/v1/sessions/{session}/turns?limit=1000")["turns"]
        return found

    def facts(self) -> list[str]:
        """Return the texts of all active facts."""
        texts, cursor = [], ""
        while True:
            page = self.call("GET", f"/v1/facts?limit=1000{cursor}")
            texts += [item["text"] for item in page["items"]]
            if page["next_cursor"] is None:
                return texts
            cursor = f"&cursor={page['next_cursor']}"

    def digests(self, session: str) -> list[dict[str, Any]]:
        """Return the kept versions of a session's digest, oldest first."""
        found: list[dict[str, Any]] = self.call("GET", f"/v1/sessions/{session}")["digests"]
        return found[::-1]

    def jobs(self, *states: str) -> list[dict[str, Any]]:
        """Return the jobs of these states, seen in one look: a job that ends may have made the next one."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = self.call("GET", f"/v1/jobs?limit=1000{cursor}")
            found += [job for job in page["jobs"] if job["state"] in states]
            if page["next_cursor"] is None:
                return found
            cursor = f"&cursor={page['next_cursor']}"

    def wait_settled(self) -> None:
        """Wait until no job waits or runs, for as long as there is progress: a busy machine is no failure."""
        fewest, since = sys.maxsize, time.monotonic()

        def is_settled() -> bool:
            nonlocal fewest, since
            left = len(self.jobs("queued", "running"))
            if left < fewest:
                fewest, since = left, time.monotonic()
            assert time.monotonic() - since < WAIT_SECONDS, f"{left} jobs are left, and none ended for long"
            return left == 0

        wait_for("the queue to drain", is_settled, 10 * WAIT_SECONDS)

    def settled(self) -> bool:
        """Return whether no job waits or runs."""
        return not self.jobs("queued", "running")
