"""Rolling upgrades and rollbacks: migrations add, and an older version serves what it can still read.

The next version is this one with one migration more.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx

from memory_service.storage.migration import migrations
from tests.faults.conftest import World
from tests.faults.processes import Agent, Service, wait_for

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
THIS_VERSION_IS_TOO_OLD = len(migrations("sqlite")) + 1


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
