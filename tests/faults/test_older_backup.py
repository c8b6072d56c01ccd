"""A database that is restored from an older backup than the vector index beside it, between real processes.

The rows are what counts: nothing that they lack is found, by words or by meaning, and a row that is given a number
which a lost one had does not inherit its vector.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from memory_service.storage.local import DATABASE
from tests.fakes.model_server import ModelServer
from tests.faults import index
from tests.faults.conftest import World
from tests.faults.processes import Agent, wait_for

EXACT_ROWS = 20
KEPT = [f"The lamp number {number} stands in the hall of the mill" for number in range(30)]
LOST = [f"The walrus number {number} sleeps on the northern ice" for number in range(10)]
NEW = [f"The glider number {number} lands on the meadow at dawn" for number in range(10)]
ASKED = [LOST[3], NEW[3], KEPT[3], "walrus", "glider", "sleeps northern ice", "meadow dawn", "lamp mill"]


def test_after_an_older_backup_nothing_that_was_lost_is_found_and_no_row_has_a_vector_of_another(
    model: ModelServer, tmp_path: Path
) -> None:
    world = World("local", model, None, tmp_path, [])
    data, backup, plain = tmp_path / "data", tmp_path / "backup", tmp_path / "plain"
    quiet = {
        "shortTerm": {"tokenBudget": 4096},
        "extraction": {"minTurns": 1000},
        "worker": {"pollSeconds": 0.1, "sweepSeconds": 0.1},
    }
    service = world.service(**quiet)
    service.search_through_index_above(EXACT_ROWS)
    try:
        service.start()
        agent = Agent(service)
        _tell(agent, KEPT)
        assert service.stop() == 0
        _copy_database(data, backup)
        service.start()
        _tell(agent, LOST)
        wait_for("the index", lambda: index.is_whole(data))
        assert [len(numbers) for numbers in index.held(data)] == 2 * [len(KEPT + LOST)]
        lost = set(sorted(index.held(data)[0])[-len(LOST) :])
        assert service.stop() == 0

        newer = index.held(data)
        _copy_database(backup, data)
        service.arm("index-writes", "hold")
        service.start()
        wait_for("the index to be open, and about to be brought up to the rows", service.is_held)
        found = [_found(agent, text) for text in ASKED]
        assert not any("walrus" in text for texts in found for text in texts)
        assert any("lamp" in text for texts in found for text in texts)
        _send(agent, NEW)
        wait_for("the new rows' vectors", lambda: [len(rows) for rows in index.wanted(data)] == 2 * [len(KEPT + NEW)])
        assert lost & set(index.wanted(data)[0]), "no number is given again: nothing is shown here"
        before = [_found(agent, text) for text in ASKED]
        assert index.held(data) == newer, "these were asked beside the newer index"
        service.disarm()
        wait_for("the index", lambda: index.is_whole(data))
        after = [_found(agent, text) for text in ASKED]
        assert service.stop() == 0

        _copy_database(data, plain)
        control = world.service("control", storage={"type": "local", "dataDir": str(plain)}, **quiet)
        control.start()
        right = [_found(Agent(control), text) for text in ASKED]
        assert any("glider" in text for texts in right for text in texts)
        assert (before, after) == (right, right)
    finally:
        for one in world.services:
            one.close()


def _tell(agent: Agent, texts: list[str]) -> None:
    """Have each text as a fact and as a turn, all with their vectors."""
    _send(agent, texts)
    agent.wait_settled()


def _send(agent: Agent, texts: list[str]) -> None:
    """Have each text as a fact and as a turn; their vectors come by and by."""
    agent.call("POST", "/v1/facts/batch", {"facts": [{"text": text} for text in texts]})
    agent.write(texts[0].split()[1], texts)


def _found(agent: Agent, query: str) -> list[str]:
    """Return the facts and turns that a recall finds, best first."""
    body = {"query": query, "top_k": 20, "scopes": ["private"]}
    return [f"{item['tier']}: {item['text']}" for item in agent.call("POST", "/v1/recall", body)["long_term"]["items"]]


def _copy_database(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for path in target.glob(f"{DATABASE}*"):
        path.unlink()
    for path in source.glob(f"{DATABASE}*"):
        shutil.copy2(path, target)
