"""Rolling upgrades and rollbacks: migrations add, and an older version serves what it can still read.

An earlier version is this one that knows fewer migrations, the next version this one with one migration more.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from memory_service.storage.migration import migrations
from tests.fakes.model_server import CHAT, Status
from tests.faults.conftest import World
from tests.faults.processes import Agent, Service, wait_for
from tests.faults.traffic import MOVING, Asked, Round, admin, helper, identity

ADDITIVE = {
    "postgres": (
        "ALTER TABLE {schema}.turns ADD COLUMN mood TEXT;\n"
        "ALTER TABLE {schema}.facts ADD COLUMN mood TEXT NOT NULL DEFAULT '';\n"
        "ALTER TABLE {schema}.sessions ADD COLUMN mood TEXT;\n"
        "CREATE TABLE {schema}.moods (name TEXT PRIMARY KEY);\n"
    ),
    "sqlite": (
        "ALTER TABLE turns ADD COLUMN mood TEXT;\n"
        "ALTER TABLE facts ADD COLUMN mood TEXT NOT NULL DEFAULT '';\n"
        "ALTER TABLE sessions ADD COLUMN mood TEXT;\n"
        "CREATE TABLE moods (name TEXT PRIMARY KEY);\n"
    ),
}
LATEST = len(migrations("sqlite"))
THIS_VERSION_IS_TOO_OLD = LATEST + 1
TALKERS = 2


@dataclass
class Traffic:
    """Rounds of all verbs, over the versions that serve just now."""

    serving: list[Service]
    job_id: str
    rounds: list[Round] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)
    talks: list[Future[None]] = field(default_factory=list)
    _leaving: set[int] = field(default_factory=set)
    _turns: Iterator[int] = field(default_factory=itertools.count)

    def ask(self, asked: Asked) -> dict[str, Any]:
        """Return the answer of one of the versions; what met one that was just leaving is sent again."""
        while True:
            service = wait_for("a version that serves", self._one_of)
            try:
                answer = asked.send(service)
            except httpx.TransportError:
                assert service.port in self._leaving, f"{asked.route} was cut off by a version that serves"
                continue
            is_json = answer.headers["Content-Type"] == "application/json"
            found: dict[str, Any] = answer.json() if is_json else {}
            return found

    def retire(self, service: Service) -> None:
        """Ask no more of a version, and end it."""
        self._leaving.add(service.port)
        self.serving.remove(service)
        assert service.stop() == 0

    def talk(self, number: int) -> None:
        """Go round after round until it is over."""
        for turn in itertools.count():
            one = Round(f"talker{number}x{turn}")
            one.prepare(self.ask, self.job_id)
            for asked in one.requests():
                if asked.route not in MOVING:
                    self.ask(asked)
            self.rounds.append(one)
            if self.is_over.is_set():
                return

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Let the talkers talk meanwhile; fail if one of them was refused anything."""
        with ThreadPoolExecutor(TALKERS) as threads:
            self.talks = [threads.submit(self.talk, number) for number in range(TALKERS)]
            try:
                yield
            finally:
                self.is_over.set()
                for talk in self.talks:
                    talk.result(timeout=120)

    def wait_for_rounds(self, more: int) -> None:
        """Wait until so many more rounds are over."""
        there = len(self.rounds)
        wait_for(
            "the traffic to go on",
            lambda: len(self.rounds) >= there + more or any(talk.done() for talk in self.talks),
        )

    def _one_of(self) -> Service | None:
        serving = list(self.serving)
        return serving[next(self._turns) % len(serving)] if serving else None


def test_versions_follow_each_other_over_a_full_store_under_traffic_and_no_verb_is_refused(world: World) -> None:
    versions = []
    for known in range(1, LATEST + 1):
        version = world.service(f"version-{known}", identity=identity(world.folder))
        (version.folder / "knows").write_text(str(known))
        versions.append(version)
    first, last = versions[0], versions[-1]
    first.start()
    agent = helper(first)
    agent.write("before", ["My boat is called Lotte"])
    traffic, full = Traffic([first], agent.jobs("queued", "running", "done")[0]["id"]), Round("full")
    full.prepare(traffic.ask, traffic.job_id)
    world.model.always(CHAT, Status(503))
    agent.write("waiting", ["My dog is called Rex"])
    agent.call("POST", "/v1/sessions/waiting/end", {})
    wait_for("a job that waits for its model", lambda: world.rows("SELECT 1 FROM @jobs WHERE state = 'queued'"))
    assert admin(first).call("GET", "/v1/admin/diagnostics")["schema_version"] == 1

    with traffic.flowing():
        traffic.wait_for_rounds(1)
        for before, after in itertools.pairwise(versions):
            if world.backend == "local":  # a folder has one process: its callers wait while the next one starts
                traffic.retire(before)
                after.start()
                traffic.serving.append(after)
            else:
                after.start()
                traffic.serving.append(after)
                traffic.wait_for_rounds(1)  # on both
                traffic.retire(before)
            traffic.wait_for_rounds(1)
        world.model.always(CHAT, None)

    assert admin(last).call("GET", "/v1/admin/diagnostics")["schema_version"] == LATEST
    for asked in full.requests():  # of what was stored in the first schema
        traffic.ask(asked)
    traffic.rounds.append(full)
    agent = helper(last)
    last.shift(3_600)
    agent.wait_settled()
    for one in traffic.rounds:
        one.check(last)
    assert "User's dog is called Rex" in agent.facts()
    lines = admin(last).call("GET", "/v1/admin/export?limit=1000")["lines"]
    assert {line["type"] for line in lines} >= {"principal", "subject", "session", "turn", "fact", "deleted"}


def _next_version(world: World, *, min_reader: int, name: str = "next") -> Service:
    service = world.service(name)
    for dialect, sql in ADDITIVE.items():
        (service.folder / f"next.{dialect}.sql").write_text(f"-- min_reader: {min_reader}\n{sql}")
    return service


def test_a_newer_process_migrates_beside_older_ones_and_no_write_is_refused(external: World) -> None:
    old, new = external.service("old"), _next_version(external, min_reader=1)
    old.start()
    done = threading.Event()
    written: dict[int, list[str]] = {number: [] for number in range(3)}

    def talk(number: int) -> None:
        with httpx.Client(trust_env=False, timeout=60) as client:
            while not done.is_set():
                services = [service for service in (old, new) if service.port]
                text = f"My item{number}x{len(written[number])} is on the shelf"
                body = {"session_id": f"s{number}", "turns": [{"role": "user", "content": text}]}
                service = services[len(written[number]) % len(services)]
                answer = client.post(service.url + "/v1/write", json=body)
                assert answer.status_code < 300, f"a write was refused during the upgrade: {answer.text}"
                written[number].append(text)

    with ThreadPoolExecutor(3) as threads:
        talks = [threads.submit(talk, number) for number in written]
        try:
            wait_for("traffic", lambda: sum(map(len, written.values())) > 10)
            new.start()
            count = sum(map(len, written.values()))
            wait_for("traffic on both", lambda: sum(map(len, written.values())) > count + 20)
        finally:
            done.set()
        for future in talks:
            future.result(timeout=120)
    for service in (old, new):
        agent = Agent(service)
        agent.wait_settled()
        for number, texts in written.items():
            assert [turn["content"] for turn in agent.turns(f"s{number}")] == texts
        assert agent.jobs("dead") == []
        assert not service.has_ended()


def test_after_a_rollback_the_older_version_serves_the_newer_schema(world: World) -> None:
    old, new = world.service("old"), _next_version(world, min_reader=1)
    old.start()
    Agent(old).write("before", ["My boat is called Lotte"])
    assert old.stop() == 0
    new.start()
    Agent(new).write("during", ["My dog is called Rex"])
    assert new.stop() == 0
    old.start()
    agent = Agent(old)
    agent.write("after", ["My cat is called Ada"])
    said = {name: [turn["content"] for turn in agent.turns(name)] for name in ("before", "during", "after")}
    assert said == {
        "before": ["My boat is called Lotte"],
        "during": ["My dog is called Rex"],
        "after": ["My cat is called Ada"],
    }


def test_a_version_that_is_too_old_for_the_schema_refuses_to_serve_it_and_changes_nothing(world: World) -> None:
    new = _next_version(world, min_reader=THIS_VERSION_IS_TOO_OLD)
    new.start()
    Agent(new).write("s", ["My boat is called Lotte"])
    assert new.stop() == 0
    old = world.service("old")
    old.start(wait=False)
    wait_for("the refusal", old.has_ended)
    assert old.process is not None
    assert old.process.returncode != 0
    log = (old.folder / "log").read_text()
    needed = THIS_VERSION_IS_TOO_OLD
    assert f"the schema needs a version that knows schema {needed}; this one knows {needed - 1}. Run a newer" in log
    new.start()
    assert [turn["content"] for turn in Agent(new).turns("s")] == ["My boat is called Lotte"]
