"""How erasing, exporting, importing and starting grow with what there is."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.corpus import some
from bench.machine import ROOT, Started, Wire, memplane, resident_mib, started
from bench.report import Plot, Section, Table
from bench.stores import AGENT, BACKENDS, config, facts, postgres, storage, transact, without_vector_index

_EACH = 1_000
"""Facts of one agent where there are many."""


def _erase(backend: str, size: int, endpoint: int, folder: Path, database: Any) -> tuple[float, float]:
    """Return the seconds until an owner's facts are gone for readers, and until their bytes are gone."""
    with ExitStack() as stack:
        settings = config(stack.enter_context(storage(backend, folder, database)), endpoint)
        works = (facts(1, some(min(_EACH, size), seed=start)) for start in range(0, size, _EACH))
        transact(settings, works)
        server = stack.enter_context(memplane(folder, settings))
        wire = Wire(server.port, {"X-Memplane-Agent": AGENT.format(number=1)})
        began = time.perf_counter()
        answer = wire.call("POST", "/v1/forget", {"scope": "private", "confirm": True})
        erased = time.perf_counter() - began
        assert answer["erased"]["facts"] == size, answer
        receipt = answer["receipt_id"]
        while True:
            state = wire.call("GET", f"/v1/receipts/{receipt}")
            if state["status"] == "purged":
                return erased, time.perf_counter() - began
            time.sleep(0.05)


def _move(backend: str, size: int, endpoint: int, folder: Path, database: Any) -> tuple[float, float]:
    """Return the seconds of an export and of an import into an empty store, with the command line."""
    with ExitStack() as stack:
        settings = config(stack.enter_context(storage(backend, folder / "a", database)), endpoint)
        owners = range(-(-size // _EACH))
        works = (facts(number, some(min(_EACH, size), seed=number)) for number in owners)
        transact(settings, without_vector_index(works, again=False))  # what is exported is not searched
        file = folder / "export.jsonl"
        with memplane(folder / "a", settings) as server:
            exported = _command("export", server, file)
        empty = config(stack.enter_context(storage(backend, folder / "b", database)), endpoint)
        with memplane(folder / "b", empty) as server:
            imported = _command("import", server, file)
        with file.open() as lines:
            assert sum(1 for _ in lines) >= size
        return exported, imported


def _command(name: str, server: Started, file: Path) -> float:
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "memory_service.cli", name, "--server", f"http://127.0.0.1:{server.port}", str(file)],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
    )
    return time.perf_counter() - began


def _start(backend: str, size: int, endpoint: int, folder: Path, database: Any) -> tuple[float, float]:
    """Return the seconds from the process's start until it listens and is ready, and its memory then, in MiB."""
    with ExitStack() as stack:
        settings = config(stack.enter_context(storage(backend, folder, database)), endpoint)
        transact(settings, without_vector_index(_many(size), again=False))
        taken = []
        for _ in range(3):
            with memplane(folder, settings) as server:
                taken.append(server.seconds_to_listen)
                wire = Wire(server.port)
                assert wire.send(wire.request("GET", "/readyz"))[0] == 200
                wire.close()
                resident = resident_mib(server.pid)
        return sorted(taken)[1], resident


def _recall(backend: str, size: int, endpoint: int, folder: Path, database: Any) -> tuple[float, float]:
    """Return the ms of a recall, and of a write with a recall after it, beside many conversations of one agent.

    They are as retention leaves them: without turns.
    """
    with ExitStack() as stack:
        settings = config(stack.enter_context(storage(backend, folder, database)), endpoint)
        transact(settings, (_conversations(first, min(_EACH, size - first)) for first in range(0, size, _EACH)))
        server = stack.enter_context(memplane(folder, settings))
        wire = Wire(server.port, {"X-Memplane-Agent": AGENT.format(number=1)})
        turns = [{"role": "user", "content": text} for text in some(20, seed=1)]
        wire.call("POST", "/v1/write", {"session_id": "now", "turns": turns})
        asked = {"query": turns[7]["content"], "include": ["long_term"]}
        alone, after_a_write = [], []
        for number in range(30):
            began = time.perf_counter()
            wire.call("POST", "/v1/recall", asked)
            asked_again = time.perf_counter()
            turn = {"role": "user", "content": f"{turns[number % 20]['content']} {number}"}
            wire.call("POST", "/v1/write", {"session_id": "now", "turns": [turn]})
            wire.call("POST", "/v1/recall", asked)
            alone.append(asked_again - began)
            after_a_write.append(time.perf_counter() - asked_again)
        return 1000 * sorted(alone)[15], 1000 * sorted(after_a_write)[15]


def _conversations(first: int, count: int) -> Any:
    """Return a work that stores conversations of an agent that have no turn any more."""

    def work(tx: Any) -> None:
        from bench.stores import owner_of

        home, numbers = owner_of(tx, 1), range(first, first + count)
        tx.link.run_many(
            "INSERT INTO @owners (id, key, scope, agent, principal, session, workspace)"
            " VALUES (:id, :session, 'session', :agent, '', :session, '')",
            [
                {"id": 1_000_000 + number, "session": f"old-{number}", "agent": AGENT.format(number=1)}
                for number in numbers
            ],
        )
        tx.link.run_many(
            "INSERT INTO @sessions (owner_id, home_id, fact_scope, last_seq, window_tokens, window_turns, folded_seq,"
            " extracted_seq, digest_version, index_revision, created_at, last_write_at)"
            " VALUES (:owner, :home, 'private', 6, 0, 0, 0, 6, 0, 2, 1, 1)",
            [{"owner": 1_000_000 + number, "home": home} for number in numbers],
        )

    return work


def _many(size: int) -> Iterator[Any]:
    """Yield works that store facts of many agents: a thousand rows made, the rest copied by the database."""
    yield facts(0, some(min(_EACH, size), seed=1))
    step = 50_000

    def copy(count: int, number: int) -> Any:
        def work(tx: Any) -> None:
            from bench.stores import owner_of

            owner = owner_of(tx, number)
            tx.link.run(
                "INSERT INTO @facts (owner_id, id, kind, status, text_hash, said_at, valid_from, pinned, revision,"
                " created_at, updated_at, tags, length, terms, embedding_model, vector, text, attributes)"
                " SELECT :owner, :name || f.id, kind, status, text_hash, said_at, valid_from, pinned, revision,"
                " created_at, updated_at, tags, length, terms, embedding_model, vector, text, attributes"
                " FROM @facts AS f WHERE f.owner_id = :source LIMIT :count",
                {"owner": owner, "name": f"{number}-", "source": owner_of(tx, 0), "count": count},
            )
            tx.owners.revise([owner])

        return work

    made, number = min(_EACH, size), 1
    while made < size:
        works = []
        while made < size and len(works) * _EACH < step:
            works.append(copy(min(_EACH, size - made), number))
            made += _EACH
            number += 1
        yield lambda tx, works=works: [work(tx) for work in works]


def run(*, quick: bool, largest: int = 1_000_000) -> Section:
    """Measure everything at several sizes, none above `largest`."""
    erasing = (300, 1_000) if quick else (1_000, 3_000, 10_000)
    moving = (300, 1_000) if quick else (1_000, 10_000, 100_000)
    starting = (1_000, 10_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
    recalling = (100, 1_000) if quick else (1_000, 10_000, 100_000)
    erasing, moving, starting, recalling = (
        tuple(size for size in sizes if size <= largest) for sizes in (erasing, moving, starting, recalling)
    )
    backends = BACKENDS[:1] if quick else BACKENDS
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(postgres(folder))
        endpoint = stack.enter_context(started([sys.executable, "-m", "bench.embedding"])).port
        for what, sizes, measure, names in (
            ("erase", erasing, _erase, ("erased", "purged")),
            ("move", moving, _move, ("export", "import")),
            ("start", starting, _start, ("ready", "MiB")),
            ("recall", recalling, _recall, ("recall", "write and recall")),
        ):
            for backend in backends:
                for size in sizes:
                    place = folder / f"{what}-{backend}-{size}"
                    with tempfile.TemporaryDirectory(dir=folder) as inner:
                        values = measure(backend, size, endpoint, Path(inner), database)
                    print(f"{place.name}: {values}", flush=True)
                    for name, value in zip(names, values, strict=True):
                        found.setdefault(name, {}).setdefault(backend, []).append((size, value))
    return Section(
        "Growth",
        "Facts with synthetic vectors. `erased`: from the request until no reader sees them; `purged`: until "
        "their bytes are gone from the files or tables too (a job). `export` and `import` are the command line's, over "
        "HTTP, into an empty store. `ready`: from the start of the process until it listens, the median "
        "of three; `MiB` is the "
        "memory that it has resident then; on Postgres "
        "these facts have no vector index, which takes longer to make than all else here. `recall` and `write and "
        "recall`: of an agent that has had so many conversations, whose turns retention has deleted; medians of 30. "
        "Wall times.",
        tables=[
            Table(
                title,
                (counted, *(f"{name}, {backend}" for name in names for backend in backends)),
                [
                    (f"{size:,}", *(f"{found[name][backend][at][1]:.3g}" for name in names for backend in backends))
                    for at, size in enumerate(sizes)
                ],
            )
            for title, counted, sizes, names in (
                ("Erasing one owner's facts, s", "facts", erasing, ("erased", "purged")),
                ("Moving, s", "facts", moving, ("export", "import")),
                ("Starting: seconds until ready, and MiB", "facts", starting, ("ready", "MiB")),
                ("One agent, ms", "conversations", recalling, ("recall", "write and recall")),
            )
        ],
        plots=[
            Plot(
                f"growth-{name}",
                title,
                "facts",
                "s",
                {f"{part}, {backend}": found[part][backend] for part in parts for backend in backends},
            )
            for name, title, parts in (
                ("erase", "Erasing one owner's facts", ("erased", "purged")),
                ("move", "Export and import", ("export", "import")),
                ("start", "Start with facts stored", ("ready",)),
            )
        ],
    )
