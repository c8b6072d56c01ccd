"""Eight clients at once: writes and recalls a second, beside other systems that do the same job."""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import peers
from bench.corpus import questions, sentences, some
from bench.embedding import MINILM
from bench.machine import Load, Seen, Started, Wire, at_once, cpu_seconds, memplane, ratio, started
from bench.recall_cost import settle
from bench.report import Section, Table, Target
from bench.stores import config, postgres, storage

CLIENTS = 8
WRITES = 10.0
RECALLS = 5.0
OURS, KAOS, BARE = "memplane", "kaos-memory", "a bare route"
Json = dict[str, Any]


def _our_write(session: str, text: str) -> Json:
    return {"session_id": session, "turns": [{"role": "user", "content": text}]}


def _our_recall(question: str) -> Json:
    return {"query": question, "top_k": 10, "include": ["long_term"]}


def _kaos_write(session: str, text: str) -> Json:
    attribution = {"agent_client_id": "agent", "session_id": session}
    return {"attribution": attribution, "turns": [{"role": "user", "content": text}], "infer": False}


def _kaos_recall(question: str) -> Json:
    scope = {"level": "agent", "agent_client_id": "agent"}
    return {"scope": scope, "query": question, "top_k": 10, "include": ["long_term"]}


class _Arm:
    """Rounds of one system at one job: operations a second, milliseconds of each, CPU of each."""

    def __init__(self, once: Callable[[], tuple[Load, float]]) -> None:
        self._once = once
        self.per_second: list[float] = []
        self.loads: list[Load] = []
        self.cpu: list[float] = []

    def run(self) -> None:
        load, cpu = self._once()
        self.per_second.append(load.per_second)
        self.loads.append(load)
        self.cpu.append(cpu / max(load.operations, 1) * 1000)

    @property
    def seen(self) -> Seen:
        return Seen(tuple(self.per_second))

    def cells(self) -> tuple[str, ...]:
        joined = Load(1, 1.0, [value for load in self.loads for value in load.milliseconds])
        return (
            f"{self.seen.least:.0f}",
            f"{self.seen.median:.0f}",
            f"{joined.percentile(0.5):.1f}",
            f"{joined.percentile(0.95):.1f}",
            f"{Seen(tuple(self.cpu)).median:.2f}",
        )


def _over_http(server: Started, path: str, bodies: Callable[[int], Iterator[Json]], seconds: float) -> _Arm:
    """Return an arm of clients that send bodies, one after another each, for some seconds."""
    streams = [bodies(number) for number in range(CLIENTS)]

    def once() -> tuple[Load, float]:
        wires = [Wire(server.port) for _ in range(CLIENTS)]

        def work(number: int) -> Callable[[int], None]:
            wire, stream = wires[number], streams[number]

            def send(_run: int) -> None:
                status, answer = wire.send(wire.request("POST", path, next(stream)))
                assert status < 300, answer

            return send

        before = cpu_seconds(server.pid)
        load = at_once([work(number) for number in range(CLIENTS)], seconds=seconds)
        taken = cpu_seconds(server.pid) - before
        for wire in wires:
            wire.close()
        return load, taken

    return _Arm(once)


def _in_library(library: peers.Library, do: str, items: Iterator[list[str]], count: int) -> _Arm:
    def once() -> tuple[Load, float]:
        before = cpu_seconds(library.pid)
        answer = library.ask({"do": do, "items": list(itertools.islice(items, count)), "threads": CLIENTS})
        load = Load(len(answer["milliseconds"]), answer["seconds"], answer["milliseconds"])
        return load, cpu_seconds(library.pid) - before

    return _Arm(once)


def _writes(seed: int, make: Callable[[str, str], Json], prefix: str) -> Callable[[int], Iterator[Json]]:
    return lambda number: (make(f"{prefix}{number}", text) for text in sentences(_seed(seed, number)))


def _seed(seed: int, number: int) -> int:
    return seed * 100 + number


def _recalls(asked: list[str], make: Callable[[str], Json]) -> Callable[[int], Iterator[Json]]:
    return lambda number: (make(question) for question in itertools.cycle(_from(asked, number)))


def _from(asked: list[str], number: int) -> list[str]:
    """Return the questions as a client asks them: each begins elsewhere, so that none is asked twice within a while."""
    at = number * len(asked) // CLIENTS
    return asked[at:] + asked[:at]


def _loaded(server: Started, texts: list[str], make: Callable[[str, str], Json], wait: Callable[[], None]) -> None:
    """Store texts, 50 a request, in sessions of 200."""
    wire = Wire(server.port)
    for start in range(0, len(texts), 50):
        body = make(f"load-{start // 200}", "")
        body["turns"] = [{"role": "user", "content": text} for text in texts[start : start + 50]]
        wire.call("POST", "/v1/write", body)
    wire.close()
    wait()


def _kaos_settles(server: Started, wanted: int) -> None:
    """Wait until what left the windows is in the long-term tier: it has no queue that can be asked, so by its CPU."""
    quiet, before = 0, cpu_seconds(server.pid)
    while quiet < 4:
        time.sleep(0.5)
        now = cpu_seconds(server.pid)
        quiet = quiet + 1 if now - before < 0.05 else 0
        before = now
    assert wanted > 0


def run(*, quick: bool) -> Section:
    """Measure writes, then recalls."""
    seconds, rounds, stored = (2.0, 2, 200) if quick else (4.0, 3, 500)
    calls = 24 if quick else 48
    writes: dict[str, _Arm] = {}
    recalls: dict[str, _Arm] = {}
    texts, asked = some(stored, seed=7), questions(400 if quick else 1_000, seed=7)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        endpoint = stack.enter_context(started([sys.executable, "-m", "bench.embedding"])).port
        database = stack.enter_context(postgres(folder))
        # Every text that will be embedded is in the endpoint's cache, or the model would share the cores.
        warm, fast, slow = Wire(endpoint), (400 if quick else 2_000), (100 if quick else 400)
        said = [text for number in range(CLIENTS) for text in some(fast, seed=_seed(1, number))]
        said += [text for number in range(CLIENTS) for text in some(slow, seed=_seed(2, number))]
        said += [*some(len(asked), seed=9), *texts, *asked]
        for start in range(0, len(said), 50):
            warm.call("POST", "/v1/embeddings", {"model": MINILM, "input": said[start : start + 50]})
        warm.close()

        ours = {}
        for backend in ("local", "external"):
            place = folder / backend
            section = stack.enter_context(storage(backend, place, database))
            ours[backend] = stack.enter_context(memplane(place, config(section, endpoint, MINILM)))
            name = OURS if backend == "local" else f"{OURS}, Postgres"
            writes[name] = _over_http(ours[backend], "/v1/write", _writes(1, _our_write, "w"), seconds)
            recalls[name] = _over_http(ours[backend], "/v1/recall", _recalls(asked, _our_recall), seconds)
        bare = stack.enter_context(
            started([sys.executable, "-m", "bench.bare", "sqlite", str(folder / "bare.sqlite3"), str(endpoint)])
        )
        writes[BARE] = _over_http(bare, "/v1/write", _writes(1, _our_write, "w"), seconds)
        recalls[BARE] = _over_http(bare, "/v1/recall", _recalls(asked, _our_recall), seconds)
        large = stack.enter_context(peers.kaos(folder / "kaos-4096", endpoint, token_budget=4096))
        small = stack.enter_context(peers.kaos(folder / "kaos-64", endpoint, token_budget=64))
        writes[KAOS] = _over_http(large, "/v1/write", _writes(1, _kaos_write, "w"), seconds)
        writes[f"{KAOS}, window of 64 tokens"] = _over_http(small, "/v1/write", _writes(2, _kaos_write, "w"), seconds)
        recalls[KAOS] = _over_http(small, "/v1/recall", _recalls(asked, _kaos_recall), seconds)
        dsn = stack.enter_context(storage("external", folder / "mem0", database))["dsn"]
        for name, label, vectors in (
            ("mem0-chroma", "mem0ai, Chroma", ""),
            ("mem0-pgvector", "mem0ai, pgvector", dsn),
            ("aimu-chroma", "aimu", ""),
        ):
            library = stack.enter_context(peers.library(name, folder / name, endpoint, vectors))
            items = [["user", text] for text in texts]
            library.ask({"do": "write", "items": items[:1], "threads": 1})  # makes its tables, which threads cannot
            library.ask({"do": "write", "items": items[1:], "threads": CLIENTS})
            said = ([f"user-{number % CLIENTS}", text] for number, text in enumerate(sentences(9)))
            writes[label] = _in_library(library, "write", said, calls)
            recalls[label] = _in_library(library, "recall", (["user", one] for one in itertools.cycle(asked)), calls)

        # What is recalled from is there first, and nothing else; writes come last.
        for server in ours.values():
            _loaded(server, texts, _our_write, lambda server=server: settle(server))
        _loaded(bare, texts, _our_write, lambda: None)
        _loaded(small, texts, _kaos_write, lambda: _kaos_settles(small, stored))
        for _ in range(rounds):
            for arm in recalls.values():
                arm.run()
        for _ in range(rounds):
            for name, arm in writes.items():
                arm.run()
                if name.startswith(OURS):
                    settle(ours["local" if name == OURS else "external"])
                elif name.startswith(f"{KAOS}, window"):
                    _kaos_settles(small, 1)
    faster = max((name for name in writes if name.startswith(KAOS)), key=lambda name: writes[name].seen.median)
    bare_writes = ratio(writes[BARE].seen, writes[faster].seen).median
    bare_recalls = ratio(recalls[BARE].seen, recalls[KAOS].seen).median
    write_ratio = ratio(writes[OURS].seen, writes[faster].seen)
    recall_ratio = ratio(recalls[OURS].seen, recalls[KAOS].seen)
    columns = ("system", "a second, least", "a second, median", "p50 ms", "p95 ms", "CPU ms each")
    return Section(
        "Eight clients",
        f"Eight clients each send one request after another, for {seconds:g} s a round and {rounds} rounds in turns. A "
        f"write is one turn of fifteen words or so, a recall asks for 10 items out of {stored:,} turns. Memplane "
        "is measured with its worker running, which makes the vectors of what is written; all systems embed through "
        "the same endpoint. The target takes the faster of the peer's two settings for writes. Memplane "
        "stores a turn with "
        "`synchronous = FULL`, searchable by words at once and by meaning soon; with a window of 4,096 tokens "
        "kaos-memory keeps a turn in its window only. What else was run does less per call: see the settings. The "
        "bare route (`bench/bare.py`) is the most that this setup can show, clients and endpoint on the same cores "
        "included: FastAPI under the same server that stores a turn with one COMMIT, or has the question embedded and "
        f"answers ten turns that it did not search for. It makes {bare_writes:.1f}× the writes and "
        f"{bare_recalls:.1f}× the recalls of {KAOS}.",
        [
            Target.at_least(f"writes a second, of those of {KAOS} 0.8.4", WRITES, write_ratio.median, unit="×"),
            Target.at_least(f"recalls a second, of those of {KAOS} 0.8.4", RECALLS, recall_ratio.median, unit="×"),
        ],
        [
            Table(f"{what}, {CLIENTS} clients", columns, [(name, *arm.cells()) for name, arm in arms.items()])
            for what, arms in (("Writes", writes), ("Recalls", recalls))
        ],
        notes=[f"{name}: {about}." for name, about in _settings().items()],
    )


def _settings() -> Mapping[str, str]:
    return {
        "memplane": "its service, mode `none`, one process, default settings",
        **peers.SETTINGS,
    }
