"""What one durable write costs beside the least route that stores as durably, and whether long windows cost more."""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.corpus import sentences
from bench.machine import Seen, Started, Wire, children, cpu_seconds, in_turns, memory_folder, memplane, ratio, started
from bench.report import Section, Table, Target
from bench.stores import BACKENDS, config, postgres, storage

LIMIT = 2.0
GROWTH_LIMIT = 1.2
WINDOWS = (4_096, 32_768, 131_072)
_FILL_TOKENS = 60
"""About how many tokens the turns have that fill a window."""


def _writing(server: Started, *also: int, session: str, texts: Iterator[str], writes: int) -> Callable[[], float]:
    """Return a measurement: milliseconds of CPU of one write, in the server and in the processes `also`."""

    def measure() -> float:
        wire = Wire(server.port)
        turns = [[{"role": "user", "content": text}] for text in itertools.islice(texts, writes)]
        requests = [wire.request("POST", "/v1/write", {"session_id": session, "turns": some}) for some in turns]
        wire.send(requests[0])
        before = cpu_seconds(server.pid, *also)
        for request in requests[1:]:
            status, answer = wire.send(request)
            assert status < 300, answer
        taken = cpu_seconds(server.pid, *also) - before
        wire.close()
        return taken / (writes - 1) * 1000

    return measure


def _fill(server: Started, session: str, tokens: int) -> None:
    """Fill a window with turns."""
    wire = Wire(server.port)
    turns = [
        {"role": "user", "content": f"{number} " + "word and another " * (_FILL_TOKENS // 3)}
        for number in range(tokens // _FILL_TOKENS)
    ]
    for start in range(0, len(turns), 200):
        wire.call("POST", "/v1/write", {"session_id": session, "turns": turns[start : start + 200]})
    wire.close()


def _beside_bare(quick: bool) -> tuple[dict[str, Seen], dict[str, Seen]]:
    writes, rounds = (60, 3) if quick else (150, 7)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=memory_folder())))
        server = stack.enter_context(postgres(folder))
        texts = sentences(1)
        arms: dict[str, Callable[[], float]] = {}
        for backend in BACKENDS:
            place = folder / backend
            section = stack.enter_context(storage(backend, place, server))
            ours = stack.enter_context(memplane(place, config(section, None), worker=False))
            what = ["sqlite", str(folder / "bare.sqlite3")] if backend == "local" else ["postgres", section["dsn"]]
            bare = stack.enter_context(started([sys.executable, "-m", "bench.bare", *what]))
            for name, process in (("ours", ours), ("bare", bare)):
                arms[f"{backend} {name}"] = _writing(process, session="s1", texts=texts, writes=writes)
                arms[f"{backend} {name}"]()
            if backend == "external":
                pid = server.pid()
                assert pid is not None

                def with_database(measure: Callable[[], float], pid: int = pid) -> Callable[[], float]:
                    def both() -> float:
                        before = cpu_seconds(*children(pid))
                        taken = measure()
                        return taken + (cpu_seconds(*children(pid)) - before) / (writes - 1) * 1000

                    return both

                for name in ("ours", "bare"):
                    arms[f"external {name}, database too"] = with_database(arms[f"external {name}"])
        seen = in_turns(arms, rounds)
    pairs = {"local": "local", "external": "external", "external, database too": "external"}
    return seen, {
        name: ratio(
            seen[name.replace(backend, f"{backend} ours", 1)], seen[name.replace(backend, f"{backend} bare", 1)]
        )
        for name, backend in pairs.items()
    }


def _by_window(quick: bool, backend: str) -> dict[int, Seen]:
    writes, rounds = (60, 3) if quick else (150, 7)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=memory_folder())))
        database = stack.enter_context(postgres(folder)) if backend == "external" else None
        texts = sentences(2)
        arms: dict[str, Callable[[], float]] = {}
        for window in WINDOWS:
            place = folder / str(window)
            section = stack.enter_context(storage(backend, place, database))
            settings = config(section, None, shortTerm={"tokenBudget": window, "hardEventCap": 100_000})
            server = stack.enter_context(memplane(place, settings, worker=False))
            _fill(server, "s1", window)
            arms[str(window)] = _writing(server, session="s1", texts=texts, writes=writes)
            arms[str(window)]()
        return {int(name): seen for name, seen in in_turns(arms, rounds).items()}


def run(*, quick: bool) -> Section:
    """Measure both."""
    seen, ratios = _beside_bare(quick)
    windows = {backend: _by_window(quick, backend) for backend in BACKENDS}
    growth = {
        backend: {window: ratio(found, of[WINDOWS[0]]) for window, found in of.items()}
        for backend, of in windows.items()
    }
    targets = [
        Target.at_most(f"CPU of one write, {name}, of a bare route's", LIMIT, found.median, unit="×")
        for name, found in ratios.items()
    ]
    targets += [
        Target.at_most(
            f"CPU of one write at a window of 128k tokens, {backend}, of that at 4k",
            GROWTH_LIMIT,
            growth[backend][WINDOWS[-1]].median,
            unit="×",
        )
        for backend in BACKENDS
    ]
    return Section(
        "One durable write",
        "A turn of fifteen words or so is written over one connection. The bare route (`bench/bare.py`) is FastAPI "
        "under the same server: it reads the same body, stores the turn in one table with one `COMMIT` as durable as "
        "ours (SQLite: WAL with `synchronous = FULL`; Postgres: its default), answers, and does nothing "
        "else. Ours counts "
        "tokens and stems, finds the caller's owner and session, keeps the window's totals and enqueues the job that "
        "makes the turn's vector; the job itself is not part of it. CPU of the serving process; `database too` adds "
        "that of Postgres.",
        targets,
        [
            Table(
                "CPU of one write in ms",
                ("arm", "least", "median", "ratio, least", "ratio, median"),
                [
                    (
                        name,
                        f"{found.least:.2f}",
                        f"{found.median:.2f}",
                        *_ratio_cells(name, ratios),
                    )
                    for name, found in seen.items()
                ],
            ),
            *(
                Table(
                    f"CPU of one write in ms, {backend}, by the tokens in the window",
                    ("window", "least", "median", "ratio, least", "ratio, median"),
                    [
                        (
                            f"{window:,}",
                            f"{found.least:.2f}",
                            f"{found.median:.2f}",
                            f"{growth[backend][window].least:.2f}",
                            f"{growth[backend][window].median:.2f}",
                        )
                        for window, found in of.items()
                    ],
                )
                for backend, of in windows.items()
            ),
        ],
    )


def _ratio_cells(name: str, ratios: dict[str, Seen]) -> tuple[str, str]:
    found = ratios.get(name.replace(" ours", "", 1)) if " ours" in name else None
    return ("", "") if found is None else (f"{found.least:.2f}", f"{found.median:.2f}")
