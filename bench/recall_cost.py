"""What one recall costs over 6,000 turns, and whether own facts stay complete and quick among those of others."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.corpus import questions, some
from bench.embedding import MINILM, SYNTHETIC
from bench.machine import Seen, Started, Wire, children, cpu_seconds, in_turns, memory_folder, memplane, started
from bench.report import Section, Table, Target
from bench.stores import AGENT, BACKENDS, config, facts, postgres, storage, transact, without_vector_index

CPU_LIMIT = 3.0
FACTS_LIMIT = 5.0
_TOP = 10


def _least(seen: Seen) -> str:
    return f"{seen.least:.2f} ms least, {seen.median:.2f} ms median"


def _ask(wire: Wire, question: str) -> bytes:
    return wire.request("POST", "/v1/recall", {"query": question, "top_k": _TOP, "include": ["long_term"]})


def settle(server: Started) -> None:
    """Wait until no job is left."""
    wire = Wire(server.port)
    while any(wire.call("GET", f"/v1/jobs?state={state}&limit=1")["jobs"] for state in ("queued", "running", "queued")):
        time.sleep(0.05)
    wire.close()


def _over_turns(quick: bool, endpoint: int, stack: ExitStack, folder: Path, database: Any) -> dict[str, Seen]:
    turns, rounds = (1_000, 3) if quick else (6_000, 15)
    texts, asked = some(turns, seed=3), questions(50, seed=3)
    arms: dict[str, Callable[[], float]] = {}
    for backend in BACKENDS:
        place = folder / f"{backend}-turns"
        section = stack.enter_context(storage(backend, place, database))
        server = stack.enter_context(memplane(place, config(section, endpoint, MINILM)))
        wire = Wire(server.port)
        for start in range(0, turns, 200):
            said = [{"role": "user", "content": text} for text in texts[start : start + 200]]
            wire.call("POST", "/v1/write", {"session_id": f"s{start}", "turns": said})
        settle(server)

        def measure(server: Started = server, *, backend: str = backend, with_database: bool = False) -> float:
            pids = [server.pid, *(children(database.pid()) if with_database else ())]
            wire = Wire(server.port)
            requests = [_ask(wire, question) for question in asked]
            for request in requests:  # the vectors of these questions are kept from here on
                wire.send(request)
            before = cpu_seconds(*pids)
            for request in requests:
                status, answer = wire.send(request)
                assert status == 200, answer
            taken = cpu_seconds(*pids) - before
            wire.close()
            return taken / len(requests) * 1000

        arms[backend] = measure
        if backend == "external":
            arms["external, database too"] = lambda measure=measure: measure(with_database=True)
    return in_turns(arms, rounds)


@dataclass(frozen=True)
class _OwnFacts:
    cold: Seen
    warm: Seen
    cpu: Seen
    alone: Seen
    complete: int
    asked: int


def _own_facts(quick: bool, endpoint: int, stack: ExitStack, folder: Path, database: Any) -> dict[str, _OwnFacts]:
    owners, each = (20, 200) if quick else (100, 1_000)
    asked = {number: some(each, seed=1_000 + number)[each // 2] for number in range(owners)}
    found = {}
    for backend in BACKENDS:
        ids: dict[str, list[list[str]]] = {}
        measured: dict[str, tuple[list[float], list[float], list[float]]] = {}
        for store, numbers in (("alone", range(1)), ("among others", range(owners))):
            with ExitStack() as inner:
                place = folder / f"{backend}-{store.replace(' ', '-')}"
                settings = config(inner.enter_context(storage(backend, place, database)), endpoint)
                transact(
                    settings,
                    without_vector_index(
                        facts(number, some(each, seed=1_000 + number), asked=asked[number]) for number in numbers
                    ),
                )
                server = inner.enter_context(memplane(place, settings, worker=False))
                stranger = Wire(server.port, {"X-Memplane-Agent": AGENT.format(number="nobody")})
                wires = [Wire(server.port, {"X-Memplane-Agent": AGENT.format(number=number)}) for number in numbers]
                for number in numbers:
                    stranger.send(_ask(stranger, asked[number]))  # the vectors of these questions are kept
                cold, warm, cpu = [], [], []
                for number in numbers:
                    start = time.perf_counter()
                    answer = wires[number].call(
                        "POST", "/v1/recall", {"query": asked[number], "include": ["long_term"]}
                    )
                    cold.append((time.perf_counter() - start) * 1000)
                    ids.setdefault(store, []).append([item["id"] for item in answer["long_term"]["items"]])
                    assert answer["long_term"]["items"][0]["text"] == asked[number]
                for number in list(numbers) * (1 if len(numbers) > 1 else owners):
                    request = _ask(wires[number], asked[number])
                    before, start = cpu_seconds(server.pid), time.perf_counter()
                    status, body = wires[number].send(request)
                    warm.append((time.perf_counter() - start) * 1000)
                    cpu.append((cpu_seconds(server.pid) - before) * 1000)
                    assert status == 200, body
                measured[store] = (cold, warm, cpu)
        cold, warm, cpu = (Seen(tuple(values)) for values in measured["among others"])
        full = sum(len(some_ids) == _TOP for some_ids in ids["among others"])
        if ids["among others"][0] != ids["alone"][0]:
            full -= 1
        found[backend] = _OwnFacts(cold, warm, cpu, Seen(tuple(measured["alone"][1])), full, owners)
    return found


def run(*, quick: bool) -> Section:
    """Measure both."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=memory_folder())))
        database = stack.enter_context(postgres(folder))
        endpoint = stack.enter_context(started([sys.executable, "-m", "bench.embedding"])).port
        with ExitStack() as inner:
            turns = _over_turns(quick, endpoint, inner, folder, database)
        own = _own_facts(quick, endpoint, stack, folder, database)
    size = 1_000 if quick else 6_000
    owners, each = (20, 200) if quick else (100, 1_000)
    targets = [
        Target.at_most(
            f"CPU of one recall over {size:,} turns, {name},", CPU_LIMIT, seen.least, unit=" ms", seen=_least(seen)
        )
        for name, seen in turns.items()
    ]
    for backend, seen in own.items():
        what = f"own facts among {owners} × {each:,}, {backend}"
        targets.append(Target.at_least(f"{what}: owners answered in full", seen.asked, seen.complete))
        targets.append(
            Target.at_most(f"{what}: one recall", FACTS_LIMIT, seen.warm.least, unit=" ms", seen=_least(seen.warm))
        )
    return Section(
        "One recall",
        f"{size:,} turns in sessions of 200 are written and indexed; then 50 questions are asked in turns at `top_k` "
        f"{_TOP}, twice in a row: the second time their vectors are kept by the service, so that what is measured is "
        "everything but the embedding. Targets in ms are held against the least, since what else a "
        "machine does can only "
        "add. CPU of the serving process; `database too` adds that of Postgres.\n\n"
        f"Own facts: {owners} agents have {each:,} facts each in one store (vector model: `{SYNTHETIC}`), and each is "
        f"asked for one of its own. An owner is answered in full when {_TOP} rows of its own come, the asked one "
        "first; for the first owner they must be the rows that a store answers in which it is alone. `first` is an "
        "owner's first recall after a start: it reads the owner's rows. Times are wall times of a call over HTTP.",
        targets,
        [
            Table(
                "CPU of one recall in ms",
                ("arm", "least", "median"),
                [(name, f"{seen.least:.2f}", f"{seen.median:.2f}") for name, seen in turns.items()],
            ),
            Table(
                f"Own facts among {owners} × {each:,}, ms",
                ("backend", "in full", "median", "least", "CPU, median", "first, median", "alone in its store, median"),
                [
                    (
                        backend,
                        f"{seen.complete} of {seen.asked}",
                        f"{seen.warm.median:.2f}",
                        f"{seen.warm.least:.2f}",
                        f"{seen.cpu.median:.2f}",
                        f"{seen.cold.median:.1f}",
                        f"{seen.alone.median:.2f}",
                    )
                    for backend, seen in own.items()
                ],
            ),
        ],
    )
