"""The local vector index is made from the rows: killed, torn or lost, it has each row once in the end."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from memory_service.contract.sessions import JobKind
from memory_service.ports.process import Step
from memory_service.storage.local import DATABASE
from tests.fakes.model_server import ModelServer
from tests.faults.conftest import World
from tests.faults.mirrors import assert_mirrors, folders
from tests.faults.processes import Agent, Service, wait_for

FACTS = 1_100
"""Chroma writes the files of its index at 1,000 rows; below, everything is in its log."""
BATCH = 100
GHOST = "My ghost is called Erik"
ASKED = range(0, FACTS, 220)


def test_kill_9_at_every_write_of_the_index_leaves_each_row_in_it_once(tmp_path: Path, repository: Path) -> None:
    command = [sys.executable, "-m", "tests.faults.mirrors", str(tmp_path)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr
    steps = {line.split()[1] for line in done.stdout.splitlines()}
    assert steps == {"index-writes", "index-written", "ledger-written"}, "a kind of write is in no life"


def _lose(folder: Path) -> None:
    shutil.rmtree(folder)


def _cut_the_database(folder: Path) -> None:
    _cut(folder / "chroma.sqlite3")


def _cut_the_links(folder: Path) -> None:
    _cut(_file_of_the_index(folder, "link_lists.bin"))


def _wipe_half_of_the_header(folder: Path) -> None:
    header = _file_of_the_index(folder, "header.bin")
    content = header.read_bytes()
    kept = len(content) // 2
    header.write_bytes(content[:kept] + bytes(len(content) - kept))


def _empty_every_file(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")


def _be_of_another_version(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "ledger.sqlite3")) as ledger, ledger:
        ledger.execute("UPDATE meta SET value = value + 1 WHERE name = 'format'")


HARMS: tuple[Callable[[Path], None], ...] = (
    _lose,
    _cut_the_database,
    _cut_the_links,
    _wipe_half_of_the_header,
    _empty_every_file,
    _be_of_another_version,
)


def test_an_index_that_is_torn_lost_or_foreign_is_made_anew_and_recalls_are_whole_meanwhile(
    model: ModelServer, tmp_path: Path
) -> None:
    world, data = World("local", model, None, tmp_path, []), tmp_path / "data"
    service = world.service(longTerm={"episodes": False})
    service.start()
    try:
        agent = Agent(service)
        for start in range(0, FACTS, BATCH):
            facts = [{"text": _said(number)} for number in range(start, start + BATCH)]
            agent.call("POST", "/v1/facts/batch", {"facts": facts})
        backup = tmp_path / "backup"
        with closing(sqlite3.connect(data / DATABASE)) as source, closing(sqlite3.connect(backup)) as target:
            source.backup(target)
        agent.call("POST", "/v1/facts", {"text": GHOST})
        service.kill()
        (service.folder / "exact_rows").write_text("100")
        _start(service)
        _wait_until_made(service)
        for harm in HARMS:
            service.kill()
            assert_mirrors(data, where=f"what came before {harm.__name__}")
            (folder,) = folders(data)
            harm(folder)
            service.arm("index-writes", "hold")
            _start(service)
            wait_for(f"the index to be made anew after {harm.__name__}", service.is_held)
            _assert_recalls_are_whole(agent, harm)
            service.disarm()
            _wait_until_made(service)
            _assert_recalls_are_whole(agent, harm)
            assert not service.has_ended()
        service.kill()
        assert_mirrors(data, where="the last harm")
        _put_back(backup, data)
        _start(service)
        _wait_until_made(service)
        recalled = agent.call("POST", "/v1/recall", {"query": GHOST, "session_id": "s"})
        assert recalled["degraded"] == []
        assert GHOST not in [item["text"] for item in recalled["long_term"]["items"]]
        service.kill()
        assert_mirrors(data, where="a database of an older backup")
    finally:
        service.close()


def _assert_recalls_are_whole(agent: Agent, harm: Callable[[Path], None]) -> None:
    for number in ASKED:
        recalled = agent.call("POST", "/v1/recall", {"query": _said(number), "session_id": "s"})
        assert recalled["degraded"] == [], harm.__name__
        found = recalled["long_term"]["items"]
        assert found[0]["text"] == _said(number), f"a fact is not recalled after {harm.__name__}"


def _put_back(backup: Path, data: Path) -> None:
    for path in data.glob(DATABASE + "*"):
        path.unlink()
    backup.rename(data / DATABASE)


def _start(service: Service) -> None:
    (service.folder / "steps").write_text("")
    service.start()


def _wait_until_made(service: Service) -> None:
    done = f"{Step.JOB_STORED.value} {JobKind.RECONCILE_INDEX.value}"
    wait_for("the index to be brought up to the rows", lambda: done in service.steps())


def _said(number: int) -> str:
    return f"Box{number} holds item{number} of the cellar"


def _cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _file_of_the_index(folder: Path, name: str) -> Path:
    return max(folder.glob(f"*/{name}"), key=lambda path: path.stat().st_size)
